"""Kafka 4.1.0's own `__consumer_offsets` loads: groups, members, offsets, transactions, what was deleted."""

import re
import tarfile
from pathlib import Path

import pytest
from barnabas.coordinators.groups.consumer.records import TargetEpoch
from barnabas.coordinators.groups.consumer.states import GroupState
from barnabas.coordinators.groups.records import decode_group
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.offsets.records import OffsetCommits, OffsetRemovals, decode_key, decode_value, key_version
from barnabas.protocol import messages, record_batch
from barnabas.protocol.record_batch import PlainRecords
from group_world import GroupWorld

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.1.0"
COUNT = 5


@pytest.fixture(scope="module")
def segments() -> list[bytes]:
    found: dict[int, bytes] = {}
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        for member in archive:
            match = re.search(r"__consumer_offsets-(\d+)/00000000000000000000\.log$", member.name)
            if match:
                file = archive.extractfile(member)
                assert file is not None
                found[int(match[1])] = file.read()
    assert sorted(found) == list(range(COUNT))
    return [found[index] for index in range(COUNT)]


@pytest.fixture
def world(segments: list[bytes]) -> GroupWorld:
    world = GroupWorld(count=COUNT)
    for log, segment in zip(world.logs, segments, strict=True):
        for header, batch in record_batch.batches(memoryview(segment)):
            log.batches.append((header.base_offset, bytes(batch)))
            log.log_end_offset = log.high_watermark = header.next_offset
    world.restart()
    return world


def shard_of(world: GroupWorld, group_id: str) -> Shard:
    shard = world.coordinator.shard_of(group_id)
    assert isinstance(shard, Shard)
    return shard


def test_offsets_are_those_of_the_dump(world: GroupWorld) -> None:
    assert world.fetch("billing") == {("events", 0): 5, ("events", 1): 6, ("events", 2): 7}
    assert world.fetch("shipping") == {("orders-none", 0): 33, ("orders-none", 1): 44}
    assert world.fetch("robots") == {("events", 0): 11, ("events", 1): 12, ("events", 2): 13}
    assert world.fetch("gone") == {}
    found = shard_of(world, "billing").offsets.get("billing", "events", 2)
    assert found is not None
    assert found.metadata == "sieben ß\x00"


def test_a_transactional_commit_was_decided_by_its_marker(world: GroupWorld) -> None:
    assert world.fetch("tellers")[("events", 0)] == 7
    assert not shard_of(world, "tellers").offsets.pending


def test_groups_come_back(world: GroupWorld) -> None:
    billing = shard_of(world, "billing").groups["billing"]
    assert billing.rebalance.protocol_type == "consumer"
    assert shard_of(world, "shipping").groups["shipping"].state is State.EMPTY
    assert shard_of(world, "simple-tool").groups["simple-tool"].rebalance.protocol_type is None
    assert "gone" not in shard_of(world, "gone").groups


def test_a_group_of_the_consumer_protocol_comes_back(world: GroupWorld) -> None:
    shard = shard_of(world, "robots")
    assert "robots" not in shard.groups
    group = shard.consumer.by_id["robots"]
    assert (group.epoch, group.of_targets, group.state) == (1, TargetEpoch(1), GroupState.STABLE)
    (member,) = group.members.values()
    assert member.member_id == "la/O+oVoRgayK13B320ieg"
    assert member.subscription.topic_names == ("events",)
    ((_, partitions),) = member.current.assigned.items()
    assert partitions == {0: 1, 1: 1, 2: 1}  # Kafka 4.1 stores no epochs of partitions: they are the member's
    assert group.target_of(member.member_id) == {
        topic: frozenset(each) for topic, each in member.current.assigned.items()
    }


def written(records: OffsetCommits | OffsetRemovals) -> tuple[bytes | None, bytes | None]:
    content = PlainRecords()
    records.append_to(content)
    (record,) = record_batch.records(record_batch.build_plain(content, 0).data)
    return record.key, record.value


def test_every_record_is_written_back_to_the_same_bytes(segments: list[bytes]) -> None:
    seen = 0
    for segment in segments:
        for header, batch in record_batch.batches(memoryview(segment)):
            if header.is_control:
                continue
            for record in record_batch.records(batch, max_bytes=1 << 20):
                assert record.key is not None
                version = key_version(record.key)
                if version == 1:
                    group_id, topic, partition = decode_key(record.key)
                    if record.value is None:
                        assert written(OffsetRemovals(group_id, [(topic, partition)])) == (record.key, record.value)
                    else:
                        offsets = {topic: {partition: decode_value(record.value)}}
                        assert written(OffsetCommits(group_id, offsets)) == (record.key, record.value)
                    seen += 1
                elif version == 2:
                    group = decode_group(record.key, record.value)
                    assert (group.key(), group.value()) == (record.key, record.value)
                    seen += 1
    assert seen > 20


def test_a_commit_is_kafkas_batch_byte_for_byte(segments: list[bytes]) -> None:
    world = GroupWorld()
    header, batch = next(record_batch.batches(memoryview(segments[0])))
    world.clock.step_wall_clock(header.base_timestamp - world.clock.now_ms())
    world.commit("gone", {("events", 2): 1}, metadata="soon gone\x00")
    assert world.logs[0].batches[0][1] == bytes(batch)
    # Then Kafka deleted the group: both tombstones in one batch, the offset's first.
    header, batch = list(record_batch.batches(memoryview(segments[0])))[1]
    world.clock.step_wall_clock(header.base_timestamp - world.clock.now_ms())
    world.ask("delete_groups", messages.DeleteGroupsRequest(groups_names=["gone"]), 2)
    assert world.logs[0].batches[1][1] == bytes(batch)
