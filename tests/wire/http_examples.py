"""One request, or several, of every route of the HTTP API: test_http.py holds the declared fields against the answers.

Who adds a route adds its examples here. The world has a topic `orders` with three partitions, and a group `billing`
with a member and committed offsets; `prepare` makes what else the examples need. Each array that a route declares must
have an item in one of its examples, unless its name is in `EMPTY`.
"""

from typing import Any, NamedTuple

from barnabas.broker.control.rules import Effect, Rule
from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.events import Kind, identity
from barnabas.coordinators.groups.members import Member
from barnabas.offsets.records import CommittedOffset, OffsetCommits
from barnabas.protocol import frames
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import (
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
)
from barnabas.protocol.records import ConsumerProtocolAssignment, encode_versioned


class Example(NamedTuple):
    """What is asked."""

    target: str
    body: Any = None


# Arrays that have no item in these examples. test_health.py has those of health, clients/test_tls.py certificates.
EMPTY = {
    "loading",
    "loading_partitions",
    "stopped_loads",
    "undecided",
    "unreadable",
    "read_by_others",
    "certificates",
    "first_set_aside",
    "failed",
    "write_blocked",
    "standing",
    "gone_topics",
    "waited_for",
    "behind",
    "offline",
    "transactional_ids",
}

EXAMPLES: dict[tuple[str, str], list[Example]] = {
    ("GET", "/metrics"): [Example("/metrics")],
    ("GET", "/health"): [Example("/health")],
    ("GET", "/health/live"): [Example("/health/live")],
    ("GET", "/health/ready"): [Example("/health/ready")],
    ("POST", "/v1/control/rules"): [Example("/v1/control/rules", {"effect": "delay", "ms": 1, "api": "ListGroups"})],
    ("GET", "/v1/control/rules"): [Example("/v1/control/rules")],
    ("DELETE", "/v1/control/rules/{rule}"): [Example("/v1/control/rules/1")],
    ("DELETE", "/v1/control/rules"): [Example("/v1/control/rules")],
    ("GET", "/v1/control/leftovers"): [Example("/v1/control/leftovers")],
    ("GET", "/v1/control/clock"): [Example("/v1/control/clock")],
    ("POST", "/v1/control/clock"): [Example("/v1/control/clock", {"advance_ms": 1})],
    ("GET", "/v1/control/requests"): [Example("/v1/control/requests"), Example("/v1/control/requests?frames=true")],
    ("GET", "/v1/control/lint"): [Example("/v1/control/lint")],
    ("GET", "/v1/control/groups/{group}/wait"): [Example("/v1/control/groups/billing/wait?members=1&timeout_ms=0")],
    ("GET", "/v1/control/topics/{topic}/wait"): [
        Example("/v1/control/topics/orders/wait?in_sync=1&records=0&timeout_ms=0"),
        Example("/v1/control/topics/none/wait?exists=false&timeout_ms=0"),
    ],
    ("GET", "/v1/control/transactions/{transactional_id}/wait"): [
        Example("/v1/control/transactions/copier/wait?timeout_ms=0")
    ],
    ("GET", "/v1/control/requests/wait"): [Example("/v1/control/requests/wait?timeout_ms=0")],
    ("GET", "/v1/control/rules/{rule}/wait"): [Example("/v1/control/rules/1/wait?fired=0&timeout_ms=0")],
    ("POST", "/v1/control/groups/{group}/members/{member}/expire"): [
        Example("/v1/control/groups/expiring/members/a/expire")
    ],
    ("GET", "/v1/topics"): [Example("/v1/topics"), Example("/v1/topics?internal=true")],
    ("GET", "/v1/topics/{topic}"): [Example("/v1/topics/orders")],
    ("GET", "/v1/status"): [Example("/v1/status")],
    ("GET", "/v1/openapi.json"): [Example("/v1/openapi.json")],
    ("GET", "/v1/health"): [Example("/v1/health"), Example("/v1/health?stalled_ms=1000")],
    ("GET", "/v1/groups"): [Example("/v1/groups"), Example("/v1/groups?state=Empty&state=Stable")],
    ("GET", "/v1/groups/{group}/events"): [
        Example("/v1/groups/billing/events"),
        Example("/v1/groups/restarted/events"),
    ],
    ("POST", "/v1/groups/{group}/live-reset"): [
        Example("/v1/groups/moved/live-reset", {"offsets": [{"topic": "orders", "partition": 1, "offset": 3}]})
    ],
    ("POST", "/v1/groups/{group}/offsets-cleanup"): [
        Example("/v1/groups/idle/offsets-cleanup", {"offsets": [{"topic": "orders", "partition": 0, "offset": 5}]})
    ],
    ("GET", "/v1/groups/{group}"): [Example("/v1/groups/billing"), Example("/v1/groups/waiting")],
    ("GET", "/v1/groups/{group}/journal"): [Example("/v1/groups/billing/journal")],
    ("GET", "/v1/groups/{group}/lag"): [Example("/v1/groups/billing/lag")],
    ("POST", "/v1/positions"): [
        Example(
            "/v1/positions",
            {
                "positions": [
                    {"topic": "orders", "partition": 0, "offset": 0},
                    {"topic": "orders", "partition": 2, "offset": 7, "leader_epoch": 0, "topic_id": None},
                    {"topic": "none", "partition": 0, "offset": 0},
                ]
            },
        )
    ],
}


def prepare(world: Any) -> None:
    """Make what the examples ask for."""
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="billing"))
    world.create_topic("orders", 3)
    commit(world, "billing", "orders", partitions=3)
    world.env.clock.advance(31_000)  # lag is sampled
    join(world, "billing")
    commit(world, "moved", "orders", partitions=2)
    for group in ("nobody", "nobody-either"):
        world.broker.request_gate.rules.add(Rule(Effect.DROP_ANSWER, group=group))
    join(world, "moved")
    join(world, "expiring")
    commit(world, "idle", "orders", offset=6)
    commit(world, "idle", "orders")  # it goes back: lint finds that
    rebalance(world, "restarted")
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="copier", key_type=1))
    world.env.clock.advance(1_000)  # its partitions get leaders
    world.ask(
        ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id="copier", transaction_timeout_ms=9_000)
    )
    commit(world, "waiting", "orders")
    pend(world, "waiting", "orders", offset=6)


def pend(world: Any, group: str, topic: str, offset: int, producer_id: int = 77) -> None:
    """As if a transaction had committed an offset, and had not ended yet."""
    shard = world.broker.group_coordinator.shard_of(group)
    change = OffsetCommits(group, {topic: {0: CommittedOffset(offset, -1, "", world.env.clock.now_ms())}})
    shard.offsets.replay(change, 1_000_000, producer_id)


def commit(world: Any, group: str, topic: str, partitions: int = 1, offset: int = 5) -> None:
    """Commit offsets without a member."""
    topics = OffsetCommitRequest.OffsetCommitRequestTopic
    rows = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata="m"
        )
        for index in range(partitions)
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, topics=[topics(name=topic, partitions=rows)]
    )
    answer = world.ask(ApiKey.OFFSET_COMMIT, 8, request)
    assert {row.error_code for row in answer.topics[0].partitions} == {0}


def join(world: Any, group: str) -> None:
    """Let a member join the group; its connection stays open."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        group_instance_id="a",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )

    async def run() -> None:
        client = await world.connect()
        client.transport.write(frames.encode_request(ApiKey.JOIN_GROUP, 5, 1, "test", request))
        assert await client.answer()

    world.env.run(run())


def rebalance(world: Any, group: str) -> None:
    """Make a group with a story: two rebalances, advice, and a member that has gone since."""
    events, clock = world.broker.group_coordinator.events, world.broker.group_coordinator.clock
    effects = Effects(clock.now_ms(), clock.monotonic_ms())
    who = Member("c-1", None, "c", "/10.0.0.1", 1000, 1000, [])
    other = Member("c-2", None, "d", "/10.0.0.2", 1000, 1000, [])
    topic = ConsumerProtocolAssignment.TopicPartition(topic="orders", partitions=[0])
    given = encode_versioned(ConsumerProtocolAssignment(assigned_partitions=[topic]), 0)
    for generation, owner in ((1, who), (2, other)):
        effects.note(Kind.SILENT, who, session_timeout_ms=1000, setting="session.timeout.ms", is_new=False)
        effects.note(Kind.REBALANCE, generation=generation - 1, cause="a member was silent", members=2)
        made = {"members": 1, "protocol": "range", "leader": identity(owner), "last": identity(owner)}
        effects.note(Kind.GENERATION, generation=generation, took_ms=5.0, last_after_ms=4.0, **made)
        assignments = [(identity(owner), given)]
        effects.note(Kind.STABLE, generation=generation, took_ms=2.5, protocol_type="consumer", assignments=assignments)
    effects.note(Kind.LEFT, who, reason="bye")
    events.note(group, effects.events)
