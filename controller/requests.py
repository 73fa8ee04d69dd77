"""Collects the requests of one step of the controller, and sends them: LeaderAndIsr, UpdateMetadata, StopReplica."""

from collections.abc import Callable, Container, Iterable, Mapping

from barnabas.cluster.leader_and_isr import (
    CANNOT_WRITE,
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    LeaderAndIsr,
)
from barnabas.cluster.metadata_cache import FULL, NO_TOPIC_ID
from barnabas.config.broker import BrokerConfig
from barnabas.controller.channels import BrokerChannels, ControlResponse
from barnabas.controller.state import ControllerState, Replica, TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Turns, chunks

# Of a partition whose state cannot be read, brokers hear that it exists. Otherwise a broker that starts would tell
# clients fewer partitions, and a producer would send keys elsewhere.
UNREADABLE = LeaderAndIsr(NO_LEADER, leader_epoch=-1, isr=())
INCREMENTAL = 1  # the type of an UpdateMetadata that has only what was changed
# A broker makes or renames the folders of so many logs, or changes so many roles, before it serves its clients again.
FOLDERS_PER_REQUEST = 10
ROLES_PER_REQUEST = 250
# What a broker answers for a partition whose log it has. STALE_CONTROLLER_EPOCH: it has this role already, because the
# request was sent again after its answer was lost.
HAS_LOG = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, CANNOT_WRITE)


class Answered(NamedTuple):
    """Which life of a broker an answer comes from, and which topics it is about: their ids when they were sent."""

    broker_id: int
    broker_epoch: int
    topic_ids: Mapping[str, bytes | None]


class RequestBatch:
    """The requests of one step of the controller. `send` reads the present state, sends, and leaves the batch empty.

    Many roles or deletions go to a broker in several requests. The metadata always goes in one, so that no client ever
    sees half a topic.
    """

    def __init__(
        self,
        state: ControllerState,
        config: BrokerConfig,
        turns: Turns,
        channels: BrokerChannels,
        node_id: int,
        controller_epoch: int,
        on_log_failures: Callable[[Answered, list[Replica]], None],
        on_logs: Callable[[Answered, list[Replica]], None],
        on_write_blocks: Callable[[Answered, list[Replica], list[Replica]], None],
        on_deletions: Callable[[Answered, list[Replica], list[Replica]], None],
    ) -> None:
        self._state = state
        self._config = config
        self._controller_epoch = controller_epoch
        self._turns = turns
        self._channels = channels
        self._node_id = node_id
        self._on_log_failures = on_log_failures
        self._on_logs = on_logs  # called with the replicas that were offline, and have a log now
        self._on_write_blocks = on_write_blocks  # called with the replicas that cannot be written, and those that can
        self._on_deletions = on_deletions  # called with the replicas deleted, and those not deleted
        self._leader_and_isr: dict[int, dict[TopicPartition, bool]] = {}  # broker -> partition -> whether it is new
        self._update_metadata: dict[int, dict[TopicPartition, None]] = {}
        self._know_nothing: dict[int, None] = {}  # brokers that are told all metadata, and forget what is not in it
        self._stop_replica: dict[int, dict[TopicPartition, bool]] = {}  # broker -> partition -> whether to delete it

    def add_leader_and_isr(self, broker_ids: Iterable[int], partition: TopicPartition, *, is_new: bool = False) -> None:
        """Tell these replicas of a partition its state, and all brokers the metadata."""
        for broker_id in broker_ids:
            if broker_id in self._state.brokers:
                partitions = self._leader_and_isr.setdefault(broker_id, {})
                partitions[partition] = is_new or partitions.get(partition, False)
        self.add_update_metadata(self._state.brokers, [partition])

    def add_update_metadata(self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition]) -> None:
        """Tell these brokers which brokers live, and the state of partitions."""
        wanted = list(partitions)
        for broker_id in broker_ids:
            if broker_id in self._state.brokers:
                known = self._update_metadata.setdefault(broker_id, {})
                known.update(dict.fromkeys(wanted))

    def add_full_metadata(self, broker_ids: Iterable[int]) -> None:
        """Tell these brokers which brokers live, and all partitions. Topics that they know beyond these are gone."""
        brokers = [broker_id for broker_id in broker_ids if broker_id in self._state.brokers]
        self._know_nothing.update(dict.fromkeys(brokers))
        self.add_update_metadata(brokers, self._state.all_partitions())

    def add_stop_replica(self, broker_id: int, partition: TopicPartition, *, delete: bool) -> None:
        """Tell a broker to let go of a replica."""
        if broker_id in self._state.brokers:
            partitions = self._stop_replica.setdefault(broker_id, {})
            partitions[partition] = delete or partitions.get(partition, False)

    async def send(self) -> None:
        """Send what was collected, to each broker in the order it must have it."""
        leader_and_isr, self._leader_and_isr = self._leader_and_isr, {}
        update_metadata, self._update_metadata = self._update_metadata, {}
        full, self._know_nothing = self._know_nothing, {}
        stop_replica, self._stop_replica = self._stop_replica, {}
        pace = self._turns.pace()
        for broker_id, partitions in leader_and_isr.items():
            known = [(partition, is_new) for partition, is_new in partitions.items() if not is_new]
            new = [(partition, is_new) for partition, is_new in partitions.items() if is_new]
            for piece in (*chunks(known, ROLES_PER_REQUEST), *chunks(new, FOLDERS_PER_REQUEST)):
                await pace.rest()
                self._send_leader_and_isr(broker_id, dict(piece))
        await self._send_update_metadata(update_metadata, full)
        for broker_id, partitions in stop_replica.items():
            await self._send_stop_replicas(broker_id, partitions)

    def _broker_epoch(self, broker_id: int) -> int:
        return self._state.brokers[broker_id].epoch

    def _answered(self, broker_id: int, topics: Iterable[str]) -> Answered:
        ids = self._state.topic_ids
        return Answered(broker_id, self._broker_epoch(broker_id), {topic: ids.get(topic) for topic in topics})

    def _send_leader_and_isr(self, broker_id: int, partitions: dict[TopicPartition, bool]) -> None:
        topics: dict[str, LeaderAndIsrRequest.LeaderAndIsrTopicState] = {}
        leaders: dict[int, None] = {}
        for (topic, index), is_new in partitions.items():
            state = self._state.states.get((topic, index))
            if state is None:
                continue
            topic_state = topics.get(topic)
            if topic_state is None:
                topic_state = topics[topic] = LeaderAndIsrRequest.LeaderAndIsrTopicState(
                    topic_name=topic, topic_id=self._state.topic_ids.get(topic, NO_TOPIC_ID), partition_states=[]
                )
            leaders[state.leader] = None
            topic_state.partition_states.append(
                LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                    partition_index=index,
                    controller_epoch=state.controller_epoch,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    isr=list(state.isr),
                    partition_epoch=state.partition_epoch,
                    replicas=list(self._state.replicas((topic, index))),
                    is_new=is_new,
                    leader_recovery_state=RECOVERING if state.recovering else RECOVERED,
                )
            )
        listener = self._config.inter_broker_listener
        live_leaders = [
            LeaderAndIsrRequest.LeaderAndIsrLiveLeader(broker_id=leader, host_name=endpoint.host, port=endpoint.port)
            for leader in leaders
            if (broker := self._state.brokers.get(leader)) is not None
            for endpoint in broker.endpoints
            if endpoint.listener == listener
        ]
        request = LeaderAndIsrRequest(
            controller_id=self._node_id,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._broker_epoch(broker_id),
            topic_states=list(topics.values()),
            live_leaders=live_leaders,
        )
        names = {topic_state.topic_id: topic for topic, topic_state in topics.items()}
        answered = self._answered(broker_id, topics)
        self._channels.send(broker_id, request, lambda response: self._leader_and_isr_done(answered, names, response))

    def _leader_and_isr_done(
        self, answered: Answered, names: dict[bytes, str], response: ControlResponse | None
    ) -> None:
        if not isinstance(response, LeaderAndIsrResponse):
            return
        broker_id = answered.broker_id
        known_failed = self._state.failed_logs.get(broker_id, ())
        known_blocked = self._state.write_blocked_logs.get(broker_id, ())
        failed: list[Replica] = []
        has_log: list[Replica] = []
        write_blocked: list[Replica] = []
        can_write: list[Replica] = []
        for topic in response.topics:
            for partition in topic.partition_errors:
                name, index, error = names[topic.topic_id], partition.partition_index, partition.error_code
                replica = (name, index, broker_id)
                if error == ErrorCode.KAFKA_STORAGE_ERROR:
                    failed.append(replica)
                elif error in HAS_LOG and (name, index) in known_failed:
                    has_log.append(replica)
                if (error == CANNOT_WRITE) != ((name, index) in known_blocked):
                    (write_blocked if error == CANNOT_WRITE else can_write).append(replica)
        if failed:
            self._on_log_failures(answered, failed)
        if has_log:
            self._on_logs(answered, has_log)
        if write_blocked or can_write:
            self._on_write_blocks(answered, write_blocked, can_write)

    async def _send_update_metadata(
        self, update_metadata: dict[int, dict[TopicPartition, None]], full: Container[int]
    ) -> None:
        if not update_metadata:
            return
        live_brokers = [
            UpdateMetadataRequest.UpdateMetadataBroker(
                id=broker.broker_id,
                endpoints=[
                    UpdateMetadataRequest.UpdateMetadataEndpoint(
                        port=endpoint.port,
                        host=endpoint.host,
                        listener=endpoint.listener,
                        security_protocol=endpoint.security_protocol,
                    )
                    for endpoint in broker.endpoints
                ],
                rack=broker.rack,
            )
            for broker in self._state.brokers.values()
        ]
        for broker_id, partitions in update_metadata.items():
            request = UpdateMetadataRequest(
                controller_id=self._node_id,
                type=FULL if broker_id in full else INCREMENTAL,
                controller_epoch=self._controller_epoch,
                broker_epoch=self._broker_epoch(broker_id),
                topic_states=await self._topic_states(partitions),
                live_brokers=live_brokers,
            )
            self._channels.send(broker_id, request, lambda response: None)

    async def _topic_states(
        self, partitions: Iterable[TopicPartition]
    ) -> list[UpdateMetadataRequest.UpdateMetadataTopicState]:
        topics: dict[str, UpdateMetadataRequest.UpdateMetadataTopicState] = {}
        pace = self._turns.pace()
        for topic, index in partitions:
            await pace.rest()
            state = self._state.states.get((topic, index))
            being_deleted = self._state.is_being_deleted(topic)
            if state is None and (topic, index) in self._state.unreadable:
                state = UNREADABLE
            if state is None and not being_deleted:
                continue
            topic_state = topics.get(topic)
            if topic_state is None:
                topic_state = topics[topic] = UpdateMetadataRequest.UpdateMetadataTopicState(
                    topic_name=topic, topic_id=self._state.topic_ids.get(topic, NO_TOPIC_ID), partition_states=[]
                )
            topic_state.partition_states.append(
                UpdateMetadataRequest.UpdateMetadataPartitionState(
                    partition_index=index,
                    controller_epoch=0 if state is None else state.controller_epoch,
                    leader=LEADER_DURING_DELETE if state is None or being_deleted else state.leader,
                    leader_epoch=EPOCH_DURING_DELETE if state is None else state.leader_epoch,
                    isr=[] if state is None else list(state.isr),
                    zk_version=0 if state is None else state.partition_epoch,
                    replicas=list(self._state.replicas((topic, index))),
                    offline_replicas=self._state.offline_replicas((topic, index)),
                )
            )
        return list(topics.values())

    async def _send_stop_replicas(self, broker_id: int, partitions: dict[TopicPartition, bool]) -> None:
        """Send in pieces. `_on_deletions` is called once, when all pieces are answered."""
        answered = self._answered(broker_id, {topic for topic, _ in partitions})
        pace = self._turns.pace()
        size = FOLDERS_PER_REQUEST if any(partitions.values()) else ROLES_PER_REQUEST
        answers = []
        for piece in chunks(list(partitions.items()), size):
            await pace.rest()
            answers.append(self._send_stop_replica(broker_id, dict(piece)))

        def tell(found: list[dict[TopicPartition, int]]) -> None:
            done, failed = list[Replica](), list[Replica]()
            for errors in found:
                for partition, error in errors.items():
                    (failed if error else done).append((*partition, broker_id))
            if done or failed:
                self._on_deletions(answered, done, failed)

        Pending.all(answers).then(tell)

    def _send_stop_replica(
        self, broker_id: int, partitions: dict[TopicPartition, bool]
    ) -> Pending[dict[TopicPartition, int]]:
        """What becomes of those that are to be deleted: their errors. None if the broker goes away: by its death they
        are ineligible.
        """
        topics: dict[str, StopReplicaRequest.StopReplicaTopicState] = {}
        for (topic, index), delete in partitions.items():
            topic_state = topics.get(topic)
            if topic_state is None:
                topic_state = topics[topic] = StopReplicaRequest.StopReplicaTopicState(
                    topic_name=topic, partition_states=[]
                )
            state = self._state.states.get((topic, index))
            if self._state.is_being_deleted(topic):
                leader_epoch = EPOCH_DURING_DELETE
            else:
                leader_epoch = NO_LEADER if state is None else state.leader_epoch
            topic_state.partition_states.append(
                StopReplicaRequest.StopReplicaPartitionState(
                    partition_index=index, leader_epoch=leader_epoch, delete_partition=delete
                )
            )
        request = StopReplicaRequest(
            controller_id=self._node_id,
            controller_epoch=self._controller_epoch,
            broker_epoch=self._broker_epoch(broker_id),
            topic_states=list(topics.values()),
        )
        answer: Pending[ControlResponse | None] = Pending()
        self._channels.send(broker_id, request, answer.complete)
        deleting = [partition for partition, delete in partitions.items() if delete]
        return answer.map(lambda response: _errors_of(deleting, response))


def _errors_of(deleting: list[TopicPartition], response: ControlResponse | None) -> dict[TopicPartition, int]:
    if not isinstance(response, StopReplicaResponse):
        return {}
    errors = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    return {partition: response.error_code or errors.get(partition, ErrorCode.NONE) for partition in deleting}
