"""A controller over a real tree with three brokers that are only channels."""

import asyncio
import json

from barnabas.cluster import registration
from barnabas.cluster.leader_and_isr import CANNOT_WRITE
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.payloads import BrokerEndpoint, BrokerRegistration
from barnabas.controller.controller import Controller
from barnabas.protocol import codec
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AlterPartitionRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication_world import Host

VERSIONS = {LeaderAndIsrRequest: 7, UpdateMetadataRequest: 8, StopReplicaRequest: 4}


class Channels:
    """Three brokers: they remember what they were told and say yes, unless told to say something else."""

    def __init__(self, clock):
        self.clock = clock
        self.told = []  # (broker id, request)
        self.deaf = set()
        self.failed_logs = set()  # (broker id, topic, partition)
        self.full_disks = set()  # broker ids
        self.answers_else = ErrorCode.NONE  # to LeaderAndIsr
        self.cannot_delete = set()

    def set_live_brokers(self, brokers):
        pass

    def end_term(self):
        pass

    def send(self, broker_id, request, done):
        version = VERSIONS[type(request)]
        request, _ = codec.decode(type(request), version, memoryview(codec.encode(request, version)))
        self.told.append((broker_id, request))
        if broker_id not in self.deaf:
            response = self.answer(broker_id, request)
            self.clock.call_soon(lambda: done(response))

    def answer(self, broker_id, request):
        if isinstance(request, UpdateMetadataRequest):
            return UpdateMetadataResponse()
        if isinstance(request, StopReplicaRequest):
            Failed = StopReplicaResponse.StopReplicaPartitionError
            refused = ErrorCode.KAFKA_STORAGE_ERROR if broker_id in self.cannot_delete else ErrorCode.NONE
            return StopReplicaResponse(
                partition_errors=[
                    Failed(
                        topic_name=topic.topic_name,
                        partition_index=state.partition_index,
                        error_code=refused if state.delete_partition else ErrorCode.NONE,
                    )
                    for topic in request.topic_states
                    for state in topic.partition_states
                ]
            )
        TopicError, Error = LeaderAndIsrResponse.LeaderAndIsrTopicError, LeaderAndIsrResponse.LeaderAndIsrPartitionError
        return LeaderAndIsrResponse(
            topics=[
                TopicError(
                    topic_id=topic.topic_id,
                    partition_errors=[
                        Error(
                            partition_index=state.partition_index,
                            error_code=ErrorCode.KAFKA_STORAGE_ERROR
                            if (broker_id, topic.topic_name, state.partition_index) in self.failed_logs
                            else CANNOT_WRITE
                            if broker_id in self.full_disks
                            else self.answers_else,
                        )
                        for state in topic.partition_states
                    ],
                )
                for topic in request.topic_states
            ]
        )

    def take(self):
        """What was told since, shortly: (broker, kind, details)."""
        told, self.told = self.told, []
        return [(broker_id, *short(request)) for broker_id, request in told]

    def last(self, kind, broker_id):
        return next(request for other, request in reversed(self.told) if other == broker_id and type(request) is kind)


def short(request):
    if isinstance(request, LeaderAndIsrRequest):
        return "lead", {
            (topic.topic_name, state.partition_index): (state.leader, state.leader_epoch, sorted(state.isr))
            for topic in request.topic_states
            for state in topic.partition_states
        }
    if isinstance(request, UpdateMetadataRequest):
        return "metadata", {
            (topic.topic_name, state.partition_index): (state.leader, state.leader_epoch, sorted(state.isr))
            for topic in request.topic_states
            for state in topic.partition_states
        }
    return "stop", {
        (topic.topic_name, state.partition_index): state.delete_partition
        for topic in request.topic_states
        for state in topic.partition_states
    }


class Cluster:
    def __init__(self, env, tree=None):
        self.env = env
        self.host = Host(env, tree or EmbeddedCoordination(env, ":memory:"))
        self.tree = self.host.coordination
        self.channels = Channels(env.clock)
        self.controller = Controller(env, self.host.config, 1, self.tree, self.channels)

    async def start(self, *registered):
        await self.tree.start()
        await registration.make_persistent_paths(self.tree, 1)
        for broker_id in registered or (1, 2, 3):
            await self.join(broker_id)
        await self.controller.start()
        await self.settle()

    async def settle(self):
        for _ in range(30):
            await self.env.clock.sleep(0)
        handled = asyncio.Event()

        async def mark():
            handled.set()

        self.controller._enqueue(mark)
        await handled.wait()

    async def join(self, broker_id, port=None):
        endpoints = (BrokerEndpoint("PLAINTEXT", f"host-{broker_id}", port or 9092),)
        data = BrokerRegistration(endpoints, 1, f"rack-{broker_id}").encode()
        await self.tree.create(f"/brokers/ids/{broker_id}", data)

    async def die(self, broker_id):
        await self.tree.delete(f"/brokers/ids/{broker_id}")
        await self.settle()

    async def disk_changes(self, broker_id, *, is_full):
        """A broker says that its disk is full, or is not any more."""
        (self.channels.full_disks.add if is_full else self.channels.full_disks.discard)(broker_id)
        notice = json.dumps({"version": 1, "broker": broker_id, "event": 1}).encode()
        await self.tree.create("/log_dir_event_notification/log_dir_event_", notice, sequential=True)
        await self.settle()
        await self.settle()

    async def create(self, topic, partitions):
        data = {"version": 1, "partitions": {str(i): replicas for i, replicas in partitions.items()}}
        await self.tree.create(f"/brokers/topics/{topic}", json.dumps(data).encode())
        await self.settle()

    async def state(self, topic, index):
        data, stat = await self.tree.get(f"/brokers/topics/{topic}/partitions/{index}/state")
        state = json.loads(data)
        return state["leader"], state["leader_epoch"], sorted(state["isr"]), stat.version

    def epoch(self, broker_id):
        return self.controller.term.state.brokers[broker_id].epoch

    def topic_id(self, topic):
        return self.controller.term.state.topic_ids[topic]

    async def ask(self, pending):
        """The answer, once the controller has handled all that came before."""
        await self.settle()
        assert pending.done
        return pending.take()

    async def alter(self, leader, changes, version=3, broker_epoch=None):
        """AlterPartition of a leader; `changes`: (topic, index) -> (leader epoch, partition epoch, ISR)."""
        request = self.alteration(leader, changes, version, broker_epoch)
        return answers(await self.ask(self.controller.alter_partition(request)))

    def alteration(self, leader, changes, version=3, broker_epoch=None, recovering=0):
        Topic, Partition = AlterPartitionRequest.TopicData, AlterPartitionRequest.PartitionData
        topics = []
        for (topic, index), (leader_epoch, partition_epoch, isr) in changes.items():
            brokers = self.controller.term.state.brokers
            epochs = isr if isinstance(isr, dict) else {m: brokers[m].epoch if m in brokers else 1 for m in isr}
            members = [AlterPartitionRequest.BrokerState(broker_id=m, broker_epoch=e) for m, e in epochs.items()]
            partition = Partition(
                partition_index=index,
                leader_epoch=leader_epoch,
                partition_epoch=partition_epoch,
                leader_recovery_state=recovering,
                **({"new_isr_with_epochs": members} if version == 3 else {"new_isr": list(epochs)}),
            )
            topic_id = topic if isinstance(topic, bytes) else self.topic_id(topic)
            topics.append(Topic(topic_id=topic_id, partitions=[partition]))
        return AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self.epoch(leader) if broker_epoch is None else broker_epoch,
            topics=topics,
        )


def answers(response):
    """The error of the whole answer, or what is said of each partition in it: its error, or leader, epochs and ISR."""
    if response.error_code:
        return ErrorCode(response.error_code)
    return [
        ErrorCode(partition.error_code)
        if partition.error_code
        else (partition.leader_id, partition.leader_epoch, partition.partition_epoch, sorted(partition.isr))
        for topic in response.topics
        for partition in topic.partitions
    ]
