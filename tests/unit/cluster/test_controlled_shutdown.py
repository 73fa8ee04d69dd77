"""How long a broker that stops asks the controller to take over what it leads."""

import pytest
from barnabas.cluster.controlled_shutdown import ANSWER_WITHIN_MS, hand_over
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ControlledShutdownResponse, UpdateMetadataRequest
from barnabas.runtime.pending import Pending
from simulator.env import sim_env

LEFT = ControlledShutdownResponse(
    remaining_partitions=[ControlledShutdownResponse.RemainingPartition(topic_name="t", partition_index=0)]
)
REFUSED = ControlledShutdownResponse(error_code=ErrorCode.NOT_CONTROLLER)
DONE = ControlledShutdownResponse()
NEVER = object()  # the controller waits for room on the disk of the tree, say


class Cluster:
    """Broker 1 stops. `answers`: what the controller says, one after the other."""

    def __init__(self, *answers, **settings):
        self.env = sim_env(1)
        self.cache = MetadataCache(self.env.clock)
        self.answers = list(answers)
        self.asked = []  # (milliseconds since the beginning, broker epoch)
        self.broker_epoch = 77
        self.holds = True  # the lease
        self.config = BrokerConfig.of({"node.id": "1", "log.dirs": "/data", **settings})
        self.began_ms = self.env.clock.monotonic_ms()

    def tell(self, *live, controller=2, isr=(1,), replicas=(1, 2)):
        """UpdateMetadata with these brokers, and a partition that broker 1 leads."""
        State, Topic = (
            UpdateMetadataRequest.UpdateMetadataPartitionState,
            UpdateMetadataRequest.UpdateMetadataTopicState,
        )
        state = State(partition_index=0, leader=1, isr=list(isr), replicas=list(replicas))
        brokers = [UpdateMetadataRequest.UpdateMetadataBroker(id=broker, endpoints=[]) for broker in live]
        topics = [Topic(topic_name="t", topic_id=bytes(15) + b"1", partition_states=[state])]
        self.cache.update(UpdateMetadataRequest(controller_id=controller, live_brokers=brokers, topic_states=topics))

    def send(self, request, version):
        assert version == 3
        self.asked.append((self.env.clock.monotonic_ms() - self.began_ms, request.broker_epoch))
        answer = Pending()
        given = self.answers.pop(0)
        if given is not NEVER:
            answer.complete(given)
        return answer

    def stop(self):
        """Returns at which times it asked, and when it had ended."""
        self.env.run(hand_over(self.env.clock, self.config, 1, lambda: self.broker_epoch, self.cache, self, self))
        assert self.answers == []
        return [when for when, _ in self.asked], self.env.clock.monotonic_ms() - self.began_ms


def test_nothing_is_left():
    cluster = Cluster(DONE)
    cluster.tell(1, 2)
    assert cluster.stop() == ([0], 0)


def test_each_try_names_the_broker_epoch_of_its_time():
    """Between two tries the session may be lost, and the broker registers again."""
    cluster = Cluster(REFUSED, DONE)
    cluster.tell(1, 2)
    cluster.env.clock.call_later(300, lambda: setattr(cluster, "broker_epoch", 80))
    cluster.stop()
    assert [epoch for _, epoch in cluster.asked] == [77, 80]


def test_as_soon_as_another_replica_is_in_sync():
    cluster = Cluster(LEFT, DONE)
    cluster.tell(1, 2)
    cluster.env.clock.call_later(700, lambda: cluster.tell(1, 2, isr=(1, 2)))
    assert cluster.stop() == ([0, 700], 700)


def test_a_replica_that_does_not_catch_up_is_given_up():
    cluster = Cluster(LEFT, LEFT, LEFT)
    cluster.tell(1, 2)
    assert cluster.stop() == ([0, 5000, 10000], 10000)


def test_replicas_that_are_away_are_not_waited_for():
    cluster = Cluster(LEFT)
    cluster.tell(1, 3)
    assert cluster.stop() == ([0], 0)


def test_a_replica_that_goes_meanwhile_is_not_waited_for():
    cluster = Cluster(LEFT)
    cluster.tell(1, 2)
    cluster.env.clock.call_later(300, lambda: cluster.tell(1, 3))
    assert cluster.stop() == ([0], 300)


@pytest.mark.parametrize("answer", [None, REFUSED])
def test_another_controller_is_asked_at_once(answer):
    cluster = Cluster(answer, DONE)
    cluster.tell(1, 2, 3)
    cluster.env.clock.call_later(400, lambda: cluster.tell(1, 3, controller=3))
    assert cluster.stop() == ([0, 400], 400)


def test_without_any_controller():
    cluster = Cluster(
        None, None, **{"controlled.shutdown.max.retries": "2", "controlled.shutdown.retry.backoff.ms": "60"}
    )
    cluster.tell(1, 2)
    assert cluster.stop() == ([0, 60], 60)


def test_a_controller_that_never_answers_does_not_hold_the_stop():
    cluster = Cluster(NEVER)
    cluster.tell(1, 2)
    assert cluster.stop() == ([0], ANSWER_WITHIN_MS)


def test_the_controller_after_one_that_never_answered_is_asked():
    cluster = Cluster(NEVER, DONE)
    cluster.tell(1, 2, 3)
    cluster.env.clock.call_later(400, lambda: cluster.tell(1, 3, controller=3))
    assert cluster.stop() == ([0, ANSWER_WITHIN_MS], ANSWER_WITHIN_MS)


def test_a_broker_that_is_alone_or_not_registered_does_not_ask():
    """Nobody could take over what it leads."""
    alone = Cluster()
    alone.tell(1)
    assert alone.stop() == ([], 0)
    unregistered = Cluster()
    unregistered.tell(2)
    assert unregistered.stop() == ([], 0)
    disabled = Cluster(**{"controlled.shutdown.enable": "false"})
    disabled.tell(1, 2)
    assert disabled.stop() == ([], 0)


def test_nothing_is_tried_again_while_the_tree_cannot_be_used():
    cluster = Cluster(REFUSED)
    cluster.tell(1, 2)
    cluster.holds = False
    assert cluster.stop() == ([0], 0)
