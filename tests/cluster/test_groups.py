"""Groups of a cluster: what was committed is there after the death of their coordinator, and members go on."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from confluent_kafka import Consumer, KafkaException

from cluster import NotYetError

MakeCluster = Callable[..., Any]
RECORDS = 60  # of each partition, written around each kill


def test_committed_offsets_survive_the_death_of_each_coordinator_in_turn(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("t", 2)
    groups = ["a", "b", "c", "d"]  # of several offsets partitions
    for group in groups:
        cluster.commit(group, "t", {0: 10, 1: 1})
    for killing in range(3):
        coordinator_id = cluster.coordinator("a")
        for group in groups:
            cluster.commit(group, "t", {0: 11 + 2 * killing})
        cluster.end_one(coordinator_id, signal.SIGKILL)
        for group in groups:
            assert cluster.committed(group, "t", 0) == 11 + 2 * killing
            assert cluster.committed(group, "t", 1) == 1
            assert cluster.coordinator(group) != coordinator_id
            cluster.commit(group, "t", {0: 12 + 2 * killing})
        cluster.start(coordinator_id)
        cluster.in_sync("__consumer_offsets", 0, {0, 1, 2})
        cluster.in_sync("__consumer_offsets", 1, {0, 1, 2})
        cluster.in_sync("__consumer_offsets", 2, {0, 1, 2})
        for group in groups:
            assert cluster.committed(group, "t", 0) == 12 + 2 * killing


def test_every_broker_answers_for_every_group_if_they_may_ask_each_other(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(offsets_fetch_forward="true")
    cluster.create_topic("t", 1)
    groups = ["a", "b", "c", "d"]  # of several offsets partitions
    for number, group in enumerate(groups):
        cluster.commit(group, "t", {0: 100 + number})
    assert len({cluster.coordinator(group) for group in groups}) > 1
    fetch = messages.OffsetFetchRequest
    topic = fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=[topic]) for group in groups])
    for node_id in cluster.ports:

        def ask(node_id: int = node_id) -> list[int]:
            with cluster.client(node_id) as client:
                answer = client.ask(ApiKey.OFFSET_FETCH, 8, request)
            if any(group.error_code for group in answer.groups):
                raise NotYetError(f"offsets by broker {node_id}: {answer}")
            return [group.topics[0].partitions[0].committed_offset for group in answer.groups]

        assert cluster.until(ask) == [100, 101, 102, 103]


def test_a_coordinator_that_stops_tells_its_members_to_look_for_another(make_cluster: MakeCluster) -> None:
    """KafkaJS finds the new one at once if it hears this, but only after half a minute if the broker is just gone."""
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    coordinator_id = cluster.coordinator("readers")
    join = messages.JoinGroupRequest
    asked = join(
        group_id="readers",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with cluster.client(coordinator_id) as client:
        joined = client.ask(ApiKey.JOIN_GROUP, 3, asked)
        member = {"group_id": "readers", "generation_id": joined.generation_id, "member_id": joined.member_id}
        assert client.ask(ApiKey.SYNC_GROUP, 2, messages.SyncGroupRequest(**member)).error_code == ErrorCode.NONE
        stopping = threading.Thread(target=cluster.end_one, args=(coordinator_id,))
        stopping.start()
        heard = ErrorCode.NONE
        while heard == ErrorCode.NONE:
            heard = client.ask(ApiKey.HEARTBEAT, 2, messages.HeartbeatRequest(**member)).error_code
            time.sleep(0.1)
    assert heard == ErrorCode.NOT_COORDINATOR
    stopping.join()
    assert cluster.coordinator("readers") != coordinator_id


class Member(threading.Thread):
    """A member of a group that reads and commits until it is told to stop."""

    def __init__(self, cluster: Any, name: str) -> None:
        super().__init__(name=name)
        self.read: dict[tuple[int, int], bytes] = {}  # (partition, offset) -> value
        self.stopping = False
        self.error: Exception | None = None
        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values()),
                "group.id": "readers",
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )

    def run(self) -> None:
        """Read and commit."""
        try:
            self._consumer.subscribe(["t"])
            has_news = False
            while not self.stopping:
                message = self._consumer.poll(0.1)
                if message is not None and not message.error():  # after an error it finds the way back by itself
                    self.read[message.partition(), message.offset()] = message.value()
                    has_news = True
                if has_news:
                    try:
                        self._consumer.commit(asynchronous=False)
                        has_news = False
                    except KafkaException:
                        pass  # the coordinator moves: the same again, later
        except Exception as error:
            self.error = error
        finally:
            self._consumer.close()


def all_are_committed(cluster: Any, written: int) -> None:
    """Wait until the group has committed all records of both partitions."""

    def check() -> None:
        offsets = [cluster.committed("readers", "t", index) for index in range(2)]
        if offsets != [written, written]:
            raise NotYetError(f"committed {offsets}, written {written}")

    cluster.until(check)


def test_a_group_goes_on_through_the_deaths_of_its_coordinators(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(group_initial_rebalance_delay_ms="0")
    cluster.create_topic("t", 2)
    producers = [cluster.producer("t", index) for index in range(2)]
    members = [Member(cluster, f"member-{number}") for number in range(2)]
    for member in members:
        member.start()
    written = 0
    try:
        for _ in range(3):
            coordinator_id = cluster.coordinator("readers")
            for half in range(2):
                for producer in producers:
                    cluster.produce(producer, [b"%d" % (written + number) for number in range(RECORDS)])
                written += RECORDS
                if half == 0:
                    cluster.end_one(coordinator_id, signal.SIGKILL)
            all_are_committed(cluster, written)
            cluster.start(coordinator_id)
            cluster.in_sync("t", 0, {0, 1, 2})
            cluster.in_sync("t", 1, {0, 1, 2})
    finally:
        for member in members:
            member.stopping = True
        for member in members:
            member.join(200)
    assert [member.error for member in members] == [None, None]
    for index in range(2):
        values = [b"%d" % number for number in range(written)]
        assert cluster.values("t", index) == values
        for member in members:
            assert all(values[offset] == value for (p, offset), value in member.read.items() if p == index)
        assert {offset for member in members for p, offset in member.read if p == index} == set(range(written))
