"""The lag of groups on a whole broker: asked for, and sampled in the background."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.broker import Broker
from barnabas.broker.group_lag import lags, positions_of
from barnabas.broker.requests import RequestContext
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.lag import PartitionLag, Status
from barnabas.offsets.lag_history import rates
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ListOffsetsResponse, OffsetCommitRequest
from barnabas.protocol.record_batch import Record, build
from barnabas.replication import record_deletion
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import at_once
from simulator.env import SimEnv, sim_env


class World:
    """A broker of its own, with topics `t` and `u` of three partitions."""

    def __init__(self, path: Path) -> None:
        self.env: SimEnv = sim_env(3)
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "coordination.path": str(path / "tree.sqlite"),
            "num.partitions": "3",
            "log.retention.check.interval.ms": "10000",
            "log.segment.bytes": "1048576",
        }
        self.broker = Broker(self.env, BrokerConfig.of(settings), "/data")
        self.env.run(self.broker.start())
        for topic in ("t", "u", "__consumer_offsets"):
            self.make(topic)

    def make(self, topic: str) -> None:
        async def create() -> None:
            self.broker.auto_topics.create(topic)

        self.env.run(create())
        self.env.clock.advance(1_000)
        assert self.broker.metadata_cache.contains(topic)

    def produce(self, topic: str, index: int, count: int, size: int = 10) -> None:
        now_ms = self.env.clock.now_ms()
        batch = build([Record(timestamp=now_ms, key=None, value=b"v" * size) for _ in range(count)])
        result: Any = self.broker.replica_manager.append([(topic, index, batch)], required_acks=1, timeout_ms=1)
        assert not result[0].error
        self.env.clock.advance(1)

    def commit(self, group: str, **offsets: list[int]) -> None:
        make = OffsetCommitRequest
        topics = [
            make.OffsetCommitRequestTopic(
                name=topic,
                topic_id=self.broker.metadata_cache.topic_id(topic),
                partitions=[
                    make.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                    for index, offset in enumerate(each)
                ],
            )
            for topic, each in offsets.items()
        ]

        async def commit() -> None:
            request = make(group_id=group, topics=topics)
            answer: Any = self.broker.group_coordinator.commits.offset_commit(request, RequestContext(8, 10, 1, "c"))
            if isinstance(answer, Pending):
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                answer.then(future.set_result)
                answer = await future
            assert not any(row.error_code for topic in answer.topics for row in topic.partitions)

        self.env.run(commit())

    def shard(self, group: str) -> Shard:
        shard = self.broker.group_coordinator.shard_of(group)
        assert isinstance(shard, Shard)
        return shard

    def lag(self, group: str) -> list[PartitionLag]:
        return at_once(lags(self.broker, positions_of(self.shard(group).offsets.of_group(group))))

    def points(self, group: str) -> list[tuple[int, ...]]:
        return [point[1:] for point in self.broker.lag_sampling.histories.of_group(group)]

    def look(self) -> None:
        self.env.clock.advance(31_000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.env.run(world.broker.stop())


def test_every_partition_that_the_group_has_committed(world: World) -> None:
    for index in range(3):
        world.produce("t", index, 10 * (index + 1))
    world.produce("u", 0, 4)
    world.commit("g", t=[10, 5, 0], u=[4])
    assert [
        (row.topic, row.partition, row.read_uncommitted.records) for row in world.lag("g") if row.read_uncommitted
    ] == [
        ("t", 0, 0),
        ("t", 1, 15),
        ("t", 2, 30),
        ("u", 0, 0),
    ]
    assert {row.leader for row in world.lag("g")} == {world.broker.node_id}


def test_a_topic_that_is_made_again_is_another_topic(world: World) -> None:
    world.produce("t", 0, 10)
    world.commit("g", t=[3])
    committed = world.shard("g").offsets.of_group("g")["t"][0]
    assert committed.topic_id == world.broker.metadata_cache.topic_id("t") != bytes(16)
    committed.topic_id = bytes(15) + b"\x01"  # as if the offset had outlived the topic
    assert [row.status for row in world.lag("g")] == [Status.TOPIC_MADE_AGAIN]


def test_one_group_costs_what_one_costs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        world.commit(f"g{number}", t=[0, 0, 0])
    looked: list[tuple[Any, ...]] = []
    original = lags.__globals__["look_at"]
    monkeypatch.setitem(
        lags.__globals__, "look_at", lambda *given, **more: looked.append(given) or original(*given, **more)
    )
    world.lag("g7")
    assert len(looked) == 3


def test_the_history_follows_a_group(world: World) -> None:
    world.produce("t", 0, 100)
    world.commit("g", t=[0])
    world.look()
    world.commit("g", t=[60])
    world.look()
    world.produce("t", 0, 5)
    world.look()
    assert world.points("g") == [(100, 0, 1, 0), (40, 60, 1, 0), (45, 60, 1, 0)]


def test_while_nothing_changes_nothing_is_sampled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce("t", 0, 100)
    for number in range(20):
        world.commit(f"g{number}", t=[number])
    for _ in range(3):
        world.look()
    sampled: list[str] = []
    sampling = world.broker.lag_sampling
    original = sampling._sample
    monkeypatch.setattr(sampling, "_sample", lambda group, offsets: sampled.append(group) or original(group, offsets))
    world.look()
    assert sampled == []
    world.produce("u", 0, 1)
    world.look()
    assert sampled == [], "nobody reads that topic"
    world.produce("t", 1, 1)
    world.look()
    assert len(sampled) == 20


def test_groups_that_are_gone_leave_no_history(world: World) -> None:
    world.commit("a", t=[0])
    world.commit("b", t=[0])
    world.look()
    assert len(world.broker.lag_sampling.histories) == 2
    shard = world.shard("a")
    done: list[Any] = []
    world.broker.group_coordinator.offsets.remove(shard, "a", None, done.append)
    world.look()
    world.look()
    assert done
    assert "a" not in world.broker.lag_sampling.histories
    assert "b" in world.broker.lag_sampling.histories


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "barnabas.groups"]
    caplog.clear()
    return found


def test_the_log_tells_once_what_went_and_what_will_go(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = world.broker.replica_manager.partitions["t", 0].log
    log.config.retention_ms = 600_000
    world.produce("t", 0, 10)
    log.roll()
    world.env.clock.advance(300_000)
    world.produce("t", 0, 10)
    world.commit("g", t=[4])
    world.commit("done", t=[20])
    world.look()
    assert warnings(caplog) == []
    world.env.clock.advance(230_000)
    world.look()
    assert warnings(caplog) == [
        "group g: retention will delete records that the group has not read, 6 at most, the first in 0 minutes "
        "(barnabas groups lag g)"
    ]
    world.env.clock.advance(60_000)
    assert log.log_start_offset == 10
    world.look()
    assert warnings(caplog) == [
        "group g: records were deleted that the group had not read, 6 at most (barnabas groups lag g)"
    ]
    world.look()
    world.look()
    assert warnings(caplog) == []
    record_deletion.delete(world.broker.replica_manager, [("t", 0, 17)], 1_000)
    world.look()
    assert warnings(caplog) == [
        "group g: records were deleted that the group had not read, 7 at most (barnabas groups lag g)"
    ]


def test_who_reads_nothing_is_at_no_rate_while_retention_takes_what_is_unread(world: World) -> None:
    """What went was once taken for read: the group was said to catch up, and the doctor took it for a slow one."""
    world.produce("t", 0, 100)
    world.commit("g", t=[4])
    world.look()
    record_deletion.delete(world.broker.replica_manager, [("t", 0, 50)], 1_000)
    world.look()
    world.produce("t", 0, 10)
    world.look()
    found = rates(world.broker.lag_sampling.histories.of_group("g"), world.env.clock.now_ms())
    assert (found.consumed, found.catch_up_seconds) == (0.0, None)
    assert found.produced == pytest.approx(10 / 62, rel=0.1)
    assert world.points("g")[-1] == (60, 4, 1, 46)
    world.commit("g", t=[60])
    world.look()
    found = rates(world.broker.lag_sampling.histories.of_group("g"), world.env.clock.now_ms())
    assert found.consumed == pytest.approx(10 / 93, rel=0.1), "it goes on where the log begins, and has read ten"


def test_many_groups_fill_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world.produce("t", 0, 10)
    for number in range(30):
        world.commit(f"g{number}", t=[0])
    world.look()
    record_deletion.delete(world.broker.replica_manager, [("t", 0, 8)], 1_000)
    world.look()
    found = warnings(caplog)
    assert len(found) == 11
    assert found[-1].startswith("20 more groups: ")


# ---- retention waits for groups ----


def waiting(world: World, *names: str) -> Any:
    """The log of t-0, whose retention waits for these groups: 20 records in two segments, all of them too old."""
    log = world.broker.replica_manager.partitions["t", 0].log
    config = world.broker.log_manager.configs.of("t")
    config.retention_ms, config.barnabas_retention_wait_for_groups = 60_000, names
    config.barnabas_retention_wait_max_ms = 3_600_000
    log.config = config
    world.produce("t", 0, 10)
    log.roll()
    world.produce("t", 0, 10)
    log.roll()
    return log


def after_retention(world: World, log: Any) -> int:
    world.env.clock.advance(121_000)
    return int(log.log_start_offset)


def test_retention_waits_until_the_group_has_read(world: World) -> None:
    log = waiting(world, "billing")
    assert after_retention(world, log) == 0, "nothing is committed, so nothing is read"
    world.commit("billing", t=[12])
    assert after_retention(world, log) == 10
    (row,) = world.lag("billing")
    now_ms = world.env.clock.now_ms()
    assert row.held_until_ms is not None
    assert now_ms < row.held_until_ms <= now_ms + 3_600_000
    world.commit("other", t=[0])
    world.commit("billing", t=[20])
    assert after_retention(world, log) == 20
    assert [row.held_until_ms for row in world.lag("billing")] == [None]


def test_a_pattern_stands_for_the_groups_that_read_the_partition(world: World) -> None:
    world.commit("team-a", t=[20])
    world.commit("team-b", t=[12])
    world.commit("team-c", u=[0])
    world.commit("lead", t=[0])
    log = waiting(world, "team-?")
    assert after_retention(world, log) == 10
    hold = at_once(world.broker.waited_groups.hold_of(log))
    assert hold is not None
    assert (hold.unread_from, hold.groups) == (12, ("team-b",))
    world.commit("team-b", t=[20])
    assert after_retention(world, log) == 20


def test_very_many_groups_are_looked_at_in_pieces(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(450):
        world.commit(f"team-{number}", t=[0])
    log = waiting(world, "*")
    assert after_retention(world, log) == 0
    assert len(list(world.broker.waited_groups.hold_of(log))) == 2
    (line,) = [record.getMessage() for record in caplog.records if "retention waits for" in record.getMessage()]
    assert "team-0, team-1, team-10, team-100, team-101 and 445 more, which has not read" in line


def test_brackets_in_a_pattern_are_brackets(world: World) -> None:
    world.commit("[a]1", t=[0])
    assert after_retention(world, waiting(world, "[a]*")) == 0


def test_a_pattern_that_no_group_matches_holds_nothing(world: World) -> None:
    log = waiting(world, "nobody-*")
    assert after_retention(world, log) == 20


def test_an_offset_of_an_older_topic_is_nothing_read(world: World) -> None:
    world.commit("billing", t=[20])
    world.shard("billing").offsets.of_group("billing")["t"][0].topic_id = bytes(15) + b"\x01"
    assert after_retention(world, waiting(world, "billing")) == 0


def test_who_does_not_lead_waits_for_the_leader(world: World) -> None:
    log = waiting(world, "billing")
    world.commit("billing", t=[20])
    partition = world.broker.replica_manager.partitions["t", 0]
    partition.is_leader = False
    hold = at_once(world.broker.waited_groups.hold_of(log))
    assert hold is not None
    assert (hold.unread_from, hold.groups) == (0, None)
    partition.is_leader = True
    assert at_once(world.broker.waited_groups.hold_of(log)) is None


def test_a_group_elsewhere_counts_as_behind_until_its_coordinator_has_said_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit("team-a", t=[20])
    log = waiting(world, "team-*")
    world.env.clock.advance(20_000)
    waited = world.broker.waited_groups
    assert at_once(waited.hold_of(log)) is None
    monkeypatch.setattr(world.broker.group_coordinator, "shard_of", lambda group: ErrorCode.NOT_COORDINATOR)
    hold = at_once(waited.hold_of(log))
    assert hold is not None
    assert (hold.unread_from, hold.groups) == (0, ("team-a",))
    waited._elsewhere["team-a"] = {("t", 0): 12}
    hold = at_once(waited.hold_of(log))
    assert hold is not None
    assert hold.unread_from == 12
    waited._elsewhere["team-a"] = {("t", 1): 0}
    assert at_once(waited.hold_of(log)) is None, "it does not read this partition"
    waited._unheard.add(7)
    hold = at_once(waited.hold_of(log))
    assert hold is not None
    assert hold.unread_from == 0, "a broker that has not answered may have a group of that name"


# ---- logs elsewhere ----


class Elsewhere:
    """Another broker, which leads t-1 from offset 5 to 105, and t-2 from 0 to 7."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = True

    def to(self, broker_id: int, purpose: str) -> "Elsewhere":
        assert (broker_id, purpose) == (7, "log-ranges")
        return self

    def send(self, request: Any, version: int) -> Pending[Any]:
        self.asked += 1
        ranges = {1: (5, 105), 2: (0, 7)}
        make = ListOffsetsResponse
        rows = [
            make.ListOffsetsPartitionResponse(
                partition_index=row.partition_index, offset=ranges[row.partition_index][row.timestamp == -1]
            )
            for row in request.topics[0].partitions
        ]
        pending: Pending[Any] = Pending()
        answer = make(topics=[make.ListOffsetsTopicResponse(name="t", partitions=rows)])
        pending.complete(answer if self.answers else None)
        return pending


def test_logs_elsewhere_count_as_their_leader_has_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Elsewhere()
    monkeypatch.setattr(world.broker.log_ranges, "_broker_clients", other)
    world.produce("t", 0, 10)
    for index in (1, 2):
        world.broker.replica_manager.partitions["t", index].is_leader = False
        partitions = world.broker.metadata_cache.topics["t"]
        monkeypatch.setitem(partitions, index, partitions[index]._replace(leader_id=7))
    world.commit("g", t=[4, 2, 3])
    rows = world.lag("g")
    assert [(row.status, row.leader) for row in rows] == [
        (Status.OK, world.broker.node_id),
        (Status.OTHER_LEADER, 7),
        (Status.OTHER_LEADER, 7),
    ]
    world.look()
    assert world.points("g") == [(6, 4, 1, 0)], "the other leader is not asked yet"
    world.look()
    assert other.asked == 2
    assert world.points("g")[-1] == (6 + 100 + 4, 4 + 2 + 3, 3, 3), "t-1 from its log start on"
    other.answers = False
    world.look()
    assert world.points("g")[-1] == (110, 9, 3, 3), "what was said before is remembered"
    for index in (1, 2):
        world.broker.replica_manager.partitions["t", index].is_leader = True
