"""Several replica managers, joined by encoded messages with a latency; LeaderAndIsr comes by hand. No tree."""

from types import SimpleNamespace

from barnabas.broker.api.fetch import fetch
from barnabas.broker.api.list_offsets import list_offsets
from barnabas.broker.fetch_sessions import FetchSessionCache
from barnabas.broker.requests import RequestContext
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from barnabas.protocol.record_batch import batches, records
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.pending import Pending
from barnabas.storage.log_manager import LogManager
from replication_world import TOPIC_ID, batch

LATENCY_MS = 1.0
HANDLERS = {ApiKey.FETCH: fetch, ApiKey.LIST_OFFSETS: list_offsets}


class Replica:
    """One broker: what replication needs of it. It is its own `broker` for the handlers."""

    def __init__(self, world, node_id):
        self.world = world
        self.node_id = node_id
        self.env = world.env
        self.turns = world.env.turns
        settings = {"node.id": str(node_id), "log.dirs": f"/data{node_id}", "replica.selector.class": "rack"}
        self.config = BrokerConfig.of({**settings, **world.settings})
        self.metadata_cache = MetadataCache(self.env.clock)
        self.log_manager = LogManager(
            self.env, f"/data{node_id}", self.config, lambda topic: world.topics.get(topic, {})
        )
        self.log_manager.start()
        self.fetch_sessions = FetchSessionCache(self.env.rng, 1_000)
        self.addresses = SimpleNamespace(of=lambda *_: None, tell_leader=lambda *_: None)
        self.replica_manager = ReplicaManager(
            self.env,
            self.config,
            node_id,
            self.log_manager,
            self.metadata_cache,
            EmbeddedCoordination(self.env, ":memory:"),
            SimpleNamespace(holds=True),
            self,
            lambda request, version: Pending(),  # there is no controller
        )
        self.replica_manager.broker_epoch = 100 + node_id
        self.replica_manager.fetchers.start()

    # --- the clients of its fetchers ---

    def to(self, broker_id, purpose, request_timeout_ms=None):
        if broker_id not in self.metadata_cache.brokers:
            return None
        return self.world.connections.setdefault((self.node_id, broker_id, purpose), Connection(self, broker_id))

    # --- short ways ---

    def log(self, topic="t", index=0):
        return self.log_manager.get(topic, index)

    def partition(self, topic="t", index=0):
        return self.replica_manager.partitions[topic, index]

    def append(self, topic="t", index=0, count=1, value=b"value", acks=1):
        return self.replica_manager.append([(topic, index, batch(count, value))], required_acks=acks, timeout_ms=5_000)

    def values(self, topic="t", index=0):
        """(offset, value) of every record."""
        log = self.log(topic, index)
        end = log.log_end_offset
        found, offset = [], log.log_start_offset
        while offset < end:
            data = log.read(offset, 1 << 20, upper_bound=end, at_least_one=True)
            for header, one in batches(memoryview(data.records)):
                found += [(record.offset, bytes(record.value)) for record in records(one)]
                offset = header.last_offset + 1
        return found


class Connection:
    """Requests to one broker, one after the other."""

    def __init__(self, source, target_id):
        self.source, self.target_id = source, target_id
        self.busy = None
        self.waiting = []

    def send(self, request, version):
        world = self.source.world
        pending = Pending()
        world.requests.append((self.source.node_id, self.target_id, request))
        frame = frames.encode_request(request.API_KEY, version, 7, "c", request)[4:]
        self.waiting.append((frame, pending))
        if self.busy is None:
            self._next()
        return pending

    def _next(self):
        if not self.waiting:
            self.busy = None
            return
        frame, pending = self.busy = self.waiting.pop(0)
        world = self.source.world
        world.env.clock.call_later(LATENCY_MS, lambda: self._arrive(frame, pending))

    def _arrive(self, frame, pending):
        world = self.source.world
        if (self.source.node_id, self.target_id) in world.cut:
            world.env.clock.call_later(LATENCY_MS, lambda: self._answer(pending, None))
            return
        header, request = frames.decode_request(frame)
        context = RequestContext.__new__(RequestContext)
        for name in RequestContext.__slots__:
            setattr(context, name, None)
        context.api_version = header.api_version
        context.listener_name = "PLAINTEXT"
        outcome = HANDLERS[header.api_key](world.replicas[self.target_id], request, context)

        def reply(response):
            parts = frames.encode_response(header.api_key, header.api_version, 7, response)
            data = b"".join(bytes(world.read_part(part)) for part in parts)[4:]
            _, decoded = frames.decode_response(header.api_key, header.api_version, bytearray(data))
            world.answers.append((self.source.node_id, self.target_id, decoded))
            lost = (self.target_id, self.source.node_id) in world.cut
            world.env.clock.call_later(LATENCY_MS, lambda: self._answer(pending, None if lost else decoded))

        if isinstance(outcome, Pending):
            outcome.then(reply)
        else:
            reply(outcome)

    def _answer(self, pending, response):
        if response is not None:
            for change in self.source.world.on_answer:
                change(response)
        pending.complete(response)
        self._next()


class World:
    def __init__(self, env, node_ids=(1, 2, 3), settings=None):
        self.env = env
        self.settings = settings or {}
        self.topics = {}
        self.connections = {}
        self.requests = []
        self.answers = []
        self.on_answer = []
        self.cut = set()  # (from, to)
        self.epochs = {}
        self.replicas = {node_id: Replica(self, node_id) for node_id in node_ids}
        self.tell_metadata(*node_ids)

    def __getitem__(self, node_id):
        return self.replicas[node_id]

    def read_part(self, part):
        if isinstance(part, (bytes, bytearray, memoryview)):
            return part
        return part.read(len(part))

    def run(self, ms=100):
        self.env.clock.advance(ms)

    def tell_metadata(self, *live, racks=None):
        request = UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            live_brokers=[
                UpdateMetadataRequest.UpdateMetadataBroker(
                    id=node_id,
                    endpoints=[
                        UpdateMetadataRequest.UpdateMetadataEndpoint(
                            port=9092, host=f"host-{node_id}", listener="PLAINTEXT", security_protocol=0
                        )
                    ],
                    rack=(racks or {}).get(node_id),
                )
                for node_id in live
            ],
        )
        for replica in self.replicas.values():
            assert replica.replica_manager.update_metadata(request).error_code == 0

    def lead(self, leader, *keys, isr=None, to=None, topic_id=TOPIC_ID, replicas=None):
        """LeaderAndIsr in the next leader epoch, to all replicas or to some."""
        topics = {}
        for topic, index in keys or (("t", 0),):
            epoch = self.epochs[topic, index] = self.epochs.get((topic, index), -1) + 1
            topics.setdefault(topic, []).append(
                LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                    partition_index=index,
                    controller_epoch=1,
                    leader=leader,
                    leader_epoch=epoch,
                    isr=list(isr or self.replicas),
                    partition_epoch=epoch,
                    replicas=list(replicas or self.replicas),
                )
            )
        request = LeaderAndIsrRequest(
            controller_id=1,
            controller_epoch=1,
            broker_epoch=-1,
            topic_states=[
                LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=states)
                for topic, states in topics.items()
            ],
        )
        for node_id in to or self.replicas:
            response = self.replicas[node_id].replica_manager.leader_and_isr(request)
            assert response.error_code == 0
            for topic in response.topics:
                assert [answer.error_code for answer in topic.partition_errors if answer.error_code] == []

    def stop_replica(self, node_id, topic="t", index=0, delete=False):
        state = StopReplicaRequest.StopReplicaPartitionState(
            partition_index=index, leader_epoch=-2, delete_partition=delete
        )
        response = self.replicas[node_id].replica_manager.stop_replica(
            StopReplicaRequest(
                controller_id=1,
                controller_epoch=1,
                broker_epoch=-1,
                topic_states=[StopReplicaRequest.StopReplicaTopicState(topic_name=topic, partition_states=[state])],
            )
        )
        assert [answer.error_code for answer in response.partition_errors] == [0]

    def fetches(self, source, target):
        return [r for s, t, r in self.requests if (s, t) == (source, target) and r.API_KEY == ApiKey.FETCH]
