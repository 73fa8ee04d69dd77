"""Hostile requests of somebody with few rights or none, for a simulated broker with an authorizer.

Each case is one request. No handler fails, whatever is refused; nothing that somebody may not know is in the answer;
and who has no right at all changes no topic and no log.
"""

import struct
from typing import Any

from barnabas.broker.broker import Broker
from barnabas.cluster.security.acls import Acl, AclOperation, Permission, Resource, ResourceType
from barnabas.cluster.topic_names import INTERNAL_TOPICS
from barnabas.config.broker import BrokerConfig
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from logins import Client, Talk
from mutations import Random, case
from simulator.env import SimEnv, sim_env
from wire_requests import GROUPS, TOPICS, Names, hostile
from worlds import Worlds

CASES_PER_BROKER = 2_000
PORT = 9092
PLANTED = "planted"  # a topic, a group and a transactional id that no request names
ADMIN, NOBODY, SOME, READER, ALMOST_ALL = "User:admin", "User:nobody", "User:some", "User:reader", "User:almost-all"
CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC
RULES = {
    SOME: (
        (TOPIC, "produce", AclOperation.ALL),
        (TOPIC, "fetch", AclOperation.DESCRIBE),
        (GROUP, GROUPS[0], AclOperation.READ),
        (CLUSTER, "kafka-cluster", AclOperation.CREATE),
    ),
    READER: ((TOPIC, "fetch", AclOperation.READ), (CLUSTER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE)),
    ALMOST_ALL: tuple((type, "*", AclOperation.DESCRIBE) for type in (TOPIC, GROUP)),
}


class World:
    """A broker, which some thousand cases share."""

    def __init__(self) -> None:
        self.env: SimEnv = sim_env(7)
        self.escaped: list[object] = []
        self.env.clock.loop.set_exception_handler(lambda loop, context: self.escaped.append(context))
        config = BrokerConfig.of(
            {
                "listeners": f"PLAINTEXT://127.0.0.1:{PORT}",
                "coordination.path": ":memory:",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": ADMIN,
                "offsets.topic.num.partitions": "3",
                "auto.create.topics.enable": "false",
            }
        )
        self.broker = Broker(self.env, config, "/data")
        self.env.run(self.broker.start())
        self.env.run(self._prepare())

    async def _prepare(self) -> None:
        create = messages.CreateTopicsRequest
        topics = [
            create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in (*TOPICS, PLANTED)
        ]
        commit = messages.OffsetCommitRequest
        row = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        rows = [commit.OffsetCommitRequestTopic(name=PLANTED, partitions=[row])]
        for api, version, request in (
            (ApiKey.CREATE_TOPICS, 5, create(topics=topics, timeout_ms=10_000)),
            (ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=PLANTED)),
            *((ApiKey.OFFSET_COMMIT, 8, commit(group_id=group, topics=rows)) for group in (PLANTED, GROUPS[0])),
            (ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=PLANTED, key_type=1)),
            (
                ApiKey.INIT_PRODUCER_ID,
                4,
                messages.InitProducerIdRequest(transactional_id=PLANTED, transaction_timeout_ms=60_000),
            ),
        ):
            assert await self.told(ADMIN, Talk(Random(1)).frame(api, version, request)) is not None
        authorizer = self.broker.request_gate.authorizer
        assert authorizer is not None
        for user, rights in RULES.items():
            await authorizer.add(
                [Acl(Resource(type, name), user, "*", operation, Permission.ALLOW) for type, name, operation in rights]
            )
        await authorizer.add(
            [Acl(Resource(type, PLANTED), "User:*", "*", AclOperation.ALL, Permission.DENY) for type in (TOPIC, GROUP)]
        )

    async def told(self, principal: str, frame: bytes) -> bytes | None:
        """The answer to a request of this principal; None: the connection was closed, or there is none in time."""
        client = Client(self.env)
        await self.env.network.connect("127.0.0.1", PORT, lambda: client)
        max(self.broker.server.connections, key=lambda each: each.number).principal = principal
        client.transport.write(struct.pack(">i", len(frame)) + frame)
        answer = await client.answer()
        client.transport.close()
        return answer

    def state(self) -> Any:
        """What requests may change: the topics, and the ends of their logs. Members that time out change others."""
        partitions = self.broker.replica_manager.partitions.items()
        ends = {key: each.log.log_end_offset for key, each in partitions if key[0] not in INTERNAL_TOPICS}
        return sorted(self.broker.metadata_cache.topics), ends


worlds = Worlds(World, CASES_PER_BROKER)


def check(seed: int, number: int) -> str | None:
    """One case; what went wrong."""
    here = worlds.next_case()
    gate, random = here.broker.request_gate, case(seed, "gate", number)
    principal = random.choice((NOBODY, NOBODY, SOME, READER, ALMOST_ALL, ALMOST_ALL))
    topic_ids = [here.broker.metadata_cache.topic_id(name) for name in TOPICS]
    planted_id = here.broker.metadata_cache.topic_id(PLANTED)
    frame = hostile(random, Names(topic_ids))
    failures, escaped, before = gate.handler_failures, len(here.escaped), here.state()
    answer = here.env.run(here.told(principal, frame))
    found = None
    if gate.handler_failures != failures:
        found = "a handler has failed"
    elif len(here.escaped) != escaped:
        found = f"an exception that nobody has caught: {here.escaped[-1]}"
    elif answer is not None and any(secret in answer for secret in (PLANTED.encode(), planted_id)):
        found = f"the answer to {principal} names what it may not know"
    elif principal == NOBODY and here.state() != before:
        found = "somebody without rights has changed something"
    if found is None:
        return None
    worlds.forget()
    return f"{found}\n{principal}: {frame.hex()}"
