"""Worlds for replication tests: a cluster of one with everything real, or bare partitions told by hand."""

import asyncio
from types import SimpleNamespace

from barnabas.cluster import registration
from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.config_changes import ConfigChanges
from barnabas.cluster.metadata_cache import Endpoint, MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.protocol import record_batch
from barnabas.protocol.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.pending import Pending
from barnabas.storage.log_manager import LogManager

TOPIC_ID = bytes(range(16))


def batch(count=1, value=b"value"):
    """A batch as a producer sends it."""
    return record_batch.build(
        [
            record_batch.Record(offset=i, timestamp=1_700_000_000_000, key=b"k", value=value, headers=[])
            for i in range(count)
        ]
    )


def offsets_of(records):
    return [header.base_offset for header, _ in record_batch.batches(memoryview(records))]


class Host:
    """One broker's replication parts. `node_id` 1."""

    def __init__(self, env, coordination, settings=None, data="/data"):
        self.env = env
        self.config = BrokerConfig.of({"node.id": "1", "log.dirs": data, **(settings or {})})
        self.coordination = coordination
        self.metadata_cache = MetadataCache(env.clock)
        self.config_changes = ConfigChanges(env, self.config, 1, coordination, lambda: True)
        self.log_manager = LogManager(env, data, self.config, self.config_changes.topic_overrides)
        self.config_changes.on_topic_change = self.log_manager.update_topic_config
        self.lease = lease = SimpleNamespace(holds=True)
        self.clients = BrokerClients(env, self.config, self.metadata_cache)
        self.manager = ReplicaManager(
            env, self.config, 1, self.log_manager, self.metadata_cache, coordination, lease, self.clients, self._ask
        )
        self.ask = lambda request: self.controller.alter_partition(request)  # its own controller, if it has started
        self.controller = Controller(env, self.config, 1, coordination, BrokerChannels(env, self.config, self.manager))
        self.admin = TopicAdmin(env, self.config, coordination, self.metadata_cache)
        self.leading, self.following = [], []
        self.manager.on_leadership.append(self._leadership)
        self.manager.on_deleted.append(self.config_changes.forget_topics)

    def _ask(self, request, version):
        assert version == 3
        return self.ask(request)

    def _leadership(self, leaders, followers):
        self.leading += [(p.topic, p.index) for p in leaders]
        self.following += [(p.topic, p.index) for p in followers]

    async def start_alone(self):
        """Everything a broker does at its start, with the coordination tree."""
        await self.coordination.start()
        await registration.make_persistent_paths(self.coordination, 1)
        await self.config_changes.start()
        self.log_manager.start()
        self.log_manager.initialise(1, await registration.cluster_id(self.env, self.coordination))
        self.manager.start()
        place = registration.Registration(
            self.env, self.coordination, 1, [Endpoint("PLAINTEXT", "127.0.0.1", 9092)], "rack-1"
        )
        self.manager.broker_epoch = await place.register()
        await self.controller.start()

    async def stop(self):
        await self.controller.stop()
        await self.config_changes.stop()
        self.manager.shutdown()
        self.log_manager.shutdown()
        await self.coordination.close()

    async def wait(self, predicate, timeout_ms=5_000):
        assert await result_of(self.metadata_cache.wait_for(predicate, timeout_ms)), "not in time"

    # --- told by hand ---

    def start_bare(self):
        self.log_manager.start()

    def live(self, *broker_ids, racks=None):
        """UpdateMetadata that names live brokers."""
        request = UpdateMetadataRequest(
            controller_id=1,
            controller_epoch=1,
            live_brokers=[
                UpdateMetadataRequest.UpdateMetadataBroker(
                    id=broker_id,
                    endpoints=[
                        UpdateMetadataRequest.UpdateMetadataEndpoint(
                            port=9092, host=f"host-{broker_id}", listener="PLAINTEXT", security_protocol=0
                        )
                    ],
                    rack=(racks or {}).get(broker_id),
                )
                for broker_id in broker_ids
            ],
        )
        assert self.manager.update_metadata(request).error_code == 0

    def lead(
        self,
        topic="t",
        index=0,
        *,
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        isr=(1,),
        replicas=(1,),
        controller_epoch=1,
        broker_epoch=-1,
        topic_id=TOPIC_ID,
        recovering=False,
    ):
        """A hand-made LeaderAndIsr for one partition; returns its error, or that of the whole request."""
        response = self.manager.leader_and_isr(
            LeaderAndIsrRequest(
                controller_id=1,
                controller_epoch=controller_epoch,
                broker_epoch=broker_epoch,
                topic_states=[
                    LeaderAndIsrRequest.LeaderAndIsrTopicState(
                        topic_name=topic,
                        topic_id=topic_id,
                        partition_states=[
                            LeaderAndIsrRequest.LeaderAndIsrPartitionState(
                                partition_index=index,
                                controller_epoch=controller_epoch,
                                leader=leader,
                                leader_epoch=leader_epoch,
                                isr=list(isr),
                                partition_epoch=partition_epoch,
                                replicas=list(replicas),
                                leader_recovery_state=int(recovering),
                            )
                        ],
                    )
                ],
            )
        )
        return response.error_code or response.topics[0].partition_errors[0].error_code

    def append(self, *topics, acks=-1, timeout_ms=1_000, count=1):
        return self.manager.append(
            [(topic, 0, batch(count)) for topic in topics or ("t",)], required_acks=acks, timeout_ms=timeout_ms
        )


async def result_of(outcome):
    """The value of a Pending, waited for in virtual time."""
    if not isinstance(outcome, Pending):
        return outcome
    future = asyncio.get_running_loop().create_future()
    outcome.then(future.set_result)
    return await future


class Observed:
    """The value of a Pending, if it is complete."""

    def __init__(self, outcome):
        self.value = None
        self.done = False
        if isinstance(outcome, Pending):
            outcome.then(self._take)
        else:
            self._take(outcome)

    def _take(self, value):
        assert not self.done
        self.value, self.done = value, True
