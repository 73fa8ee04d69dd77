"""OffsetCommit and OffsetFetch in the versions that the conversations do not speak: shapes, ids, stability."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.protocol import codec, messages
from barnabas.protocol.compile import EncoderWriter
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.plan import plan
from barnabas.protocol.rows import Rows
from barnabas.runtime.turns import at_once
from group_world import GroupWorld, answer_of
from native import build
from simulator.clock import PIECES_PER_PASS

Commit = messages.OffsetCommitRequest
Fetch = messages.OffsetFetchRequest


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The codec in C, built of this source."""
    return build("native_codec", "protocol/native/*.c", tmp_path_factory.mktemp("native"))


def commit_by_id(world: GroupWorld, rows: list[tuple[bytes, int, int]]) -> list[tuple[bytes, int, int]]:
    topics = [
        Commit.OffsetCommitRequestTopic(
            topic_id=topic_id,
            partitions=[
                Commit.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=None
                )
            ],
        )
        for topic_id, index, offset in rows
    ]
    response = world.ask("offset_commit", Commit(group_id="g", topics=topics), 10)
    codec.encode(response, 10)
    return [
        (topic.topic_id, row.partition_index, row.error_code) for topic in response.topics for row in topic.partitions
    ]


def fetch_groups(world: GroupWorld, groups: list[tuple[str, Any]], version: int, *, stable: bool = False) -> Any:
    request = Fetch(
        groups=[Fetch.OffsetFetchRequestGroup(group_id=group, topics=topics) for group, topics in groups],
        require_stable=stable,
    )
    response = world.ask("offset_fetch", request, version)
    codec.encode(response, version)
    return response


def by_id(topic_id: bytes, *indexes: int) -> Any:
    return Fetch.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=list(indexes))


def by_name(name: str, *indexes: int) -> Any:
    return Fetch.OffsetFetchRequestTopics(name=name, partition_indexes=list(indexes))


def rows(group: Any) -> list[tuple[int, int, int]]:
    return [
        (row.partition_index, row.committed_offset, row.error_code)
        for topic in group.topics
        for row in topic.partitions
    ]


@pytest.mark.parametrize("rows_per_piece", [1, 100])
def test_a_topic_without_partitions_is_not_in_the_answer(monkeypatch: pytest.MonkeyPatch, rows_per_piece: int) -> None:
    """As Kafka 4.3.1 answers; but one that is not known is."""
    monkeypatch.setattr("barnabas.coordinators.groups.commits.ROWS_PER_PIECE", rows_per_piece)
    world = GroupWorld()
    make = Commit.OffsetCommitRequestTopic
    row = Commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [make(name="t", partitions=[]), make(name="nope", partitions=[]), make(name="t", partitions=[row])]
    response = world.ask("offset_commit", Commit(group_id="g", topics=topics), 9)
    told = [(topic.name, [row.error_code for row in topic.partitions]) for topic in response.topics]
    assert told == [("nope", []), ("t", [ErrorCode.NONE])]


def test_version_10_speaks_of_topics_by_id() -> None:
    world = GroupWorld()
    known, unknown = world.topics.topic_id("t"), b"\x07" * 16
    assert commit_by_id(world, [(known, 0, 5), (unknown, 0, 6), (known, 9, 7)]) == [
        (known, 0, ErrorCode.NONE),
        (unknown, 0, ErrorCode.UNKNOWN_TOPIC_ID),
        (known, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (group,) = fetch_groups(world, [("g", [by_id(known, 0, 1), by_id(unknown, 0)])], 10).groups
    assert rows(group) == [(0, 5, 0), (1, -1, 0), (0, -1, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert [topic.topic_id for topic in group.topics] == [known, unknown]


def test_an_offset_of_an_older_topic_of_that_name_is_not_told() -> None:
    world = GroupWorld()
    old = world.topics.topic_id("t")
    commit_by_id(world, [(old, 0, 5)])
    world.commit("g", {("t", 1): 6})  # by name: of whichever topic has it
    world.topics.topic_id = lambda topic: b"\x09" * 16 if topic == "t" else bytes(16)  # type: ignore[method-assign]
    (group,) = fetch_groups(world, [("g", [by_id(b"\x09" * 16, 0, 1)])], 10).groups
    assert rows(group) == [(0, -1, 0), (1, 6, 0)]
    (group,) = fetch_groups(world, [("g", [by_name("t", 0, 1)])], 9).groups
    assert rows(group) == [(0, 5, 0), (1, 6, 0)]


def test_all_topics_by_id_leave_out_those_without() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1, ("events", 0): 2})
    del world.topics.partitions["events"]
    (group,) = fetch_groups(world, [("g", None)], 10).groups
    assert rows(group) == [(0, 1, 0)]
    (group,) = fetch_groups(world, [("g", None)], 9).groups
    assert rows(group) == [(0, 1, 0), (0, 2, 0)]


def test_several_groups_are_answered_in_the_order_asked() -> None:
    world = GroupWorld(count=7)
    world.commit("a", {("t", 0): 1})
    world.commit("b", {("t", 0): 2})
    asked = [("b", None), ("nobody", [by_name("t", 0)]), ("a", None)]
    groups = fetch_groups(world, asked, 8, stable=True).groups
    assert [(group.group_id, rows(group)) for group in groups] == [
        ("b", [(0, 2, 0)]),
        ("nobody", [(0, -1, 0)]),
        ("a", [(0, 1, 0)]),
    ]
    assert fetch_groups(world, [], 8).groups == []


def test_several_groups_fail_each_for_itself() -> None:
    world = GroupWorld(count=7)
    world.commit("a", {("t", 0): 1})
    shard = world.coordinator.shard_of("my-group")
    assert not isinstance(shard, ErrorCode)
    world.coordinator.unload(shard.partition)
    first, second = fetch_groups(world, [("my-group", None), ("a", None)], 9).groups
    assert (first.error_code, first.topics) == (ErrorCode.NOT_COORDINATOR, [])
    assert (second.error_code, rows(second)) == (0, [(0, 1, 0)])


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("count", [1, 4, 60, 1200])
@pytest.mark.parametrize("version", range(1, 11))
def test_rows_that_are_bytes_are_those_of_objects(native: Any, version: int, count: int, is_plain: bool) -> None:
    """Also with metadata, leader epochs and errors, and over several pieces; where all is plain, from one run."""
    rng = random.Random(version)
    world = GroupWorld()
    world.topics.partitions["t"] = count
    texts = ("",) if is_plain else ("", "", "m", "übrig", "x" * 126, "x" * 127, "x" * 4000)
    wanted = {
        index: (index, rng.randrange(2**63), rng.randrange(-1, 2**31) if version >= 5 else -1, rng.choice(texts), 0)
        for index in rng.sample(range(count), (count + 1) // 2)
    }
    commits = [
        Commit.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=text
        )
        for index, offset, epoch, text, _ in wanted.values()
    ]
    of_topic = Commit.OffsetCommitRequestTopic(name="t", topic_id=world.topics.topic_id("t"), partitions=commits)
    world.ask("offset_commit", Commit(group_id="g", topics=[of_topic]), 8)
    stable = version >= 7
    if stable and not is_plain:
        world.pend("g", 7, {("t", count - 1): 3})
        wanted[count - 1] = (count - 1, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    asked = rng.sample([*range(count), 2**31 - 1, -1], count + 2)
    if version < 8:
        of_topic = Fetch.OffsetFetchRequestTopic(name="t", partition_indexes=asked)
        answer = world.ask("offset_fetch", Fetch(group_id="g", topics=[of_topic], require_stable=stable), version)
        topics = answer.topics
    else:
        of_topic = by_id(world.topics.topic_id("t"), *asked) if version >= 10 else by_name("t", *asked)
        answer = fetch_groups(world, [("g", [of_topic])], version, stable=True)
        topics = answer.groups[0].topics
    found = topics[0].partitions
    assert type(found) is Rows
    assert len(found) == len(asked)
    assert [
        (row.partition_index, row.committed_offset, row.committed_leader_epoch, row.metadata, row.error_code)
        for row in found
    ] == [wanted.get(index, (index, -1, -1, "", 0)) for index in asked]
    encoders = [
        EncoderWriter(messages.OffsetFetchResponse, version).build(),
        lambda *arguments: at_once(in_pieces(*arguments)),
        native.Encoder("OffsetFetchResponse", version, plan(messages.OffsetFetchResponse, version)),
    ]
    in_pieces = EncoderWriter(messages.OffsetFetchResponse, version, in_pieces=True).build()
    encoded = [bytes(encode(answer, bytearray(), [])) for encode in encoders]
    topics[0].partitions = list(found)
    encoded += [bytes(encode(answer, bytearray(), [])) for encode in encoders]
    assert encoded == [encoded[0]] * 6
    assert codec.decode(messages.OffsetFetchResponse, version, encoded[0])[0] == answer


@pytest.mark.parametrize("version", range(1, 8))
def test_where_a_group_error_stands(version: int) -> None:
    world = GroupWorld()
    world.coordinator.unload(0)
    request = Fetch(group_id="g", topics=[Fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
    response = world.ask("offset_fetch", request, version)
    codec.encode(response, version)
    told = [row.error_code for topic in response.topics for row in topic.partitions]
    if version == 1:
        assert told == [ErrorCode.NOT_COORDINATOR] * 2
    else:
        assert (response.error_code, told) == (ErrorCode.NOT_COORDINATOR, [])


def test_a_stable_fetch_waits_for_what_is_in_flight_and_fails_with_it() -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 1})
    world.logs[0].held = True
    partition = Commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    topic = Commit.OffsetCommitRequestTopic(name="t", partitions=[partition])
    committing = world.call("offset_commit", Commit(group_id="g", topics=[topic]), 8)
    asked = Fetch(groups=[Fetch.OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True)
    fetching = world.call("offset_fetch", asked, 9)
    world.settle()
    assert not committing.done
    assert not fetching.done
    world.logs[0].lose_leadership()
    world.settle()
    told: list[Any] = []
    committing.then(told.append)
    fetching.then(told.append)
    assert told[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert told[1].groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_version_1_keeps_the_clients_timestamp() -> None:
    world = GroupWorld()
    for timestamp in (12345, -1):
        partition = Commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata="", commit_timestamp=timestamp
        )
        topic = Commit.OffsetCommitRequestTopic(name="t", partitions=[partition])
        world.ask("offset_commit", Commit(group_id="g", topics=[topic]), 1)
        found = world.coordinator.shards[0].offsets.get("g", "t", 0)
        assert found is not None
        assert found.commit_timestamp == (12345 if timestamp >= 0 else world.clock.now_ms())


@pytest.mark.parametrize(("length", "error"), [(4095, 0), (4096, 0), (4097, ErrorCode.OFFSET_METADATA_TOO_LARGE)])
def test_metadata_is_measured_in_utf16_units(length: int, error: int) -> None:
    world = GroupWorld()
    metadata = "\U0001f600" * (length // 2) + "ß" * (length % 2)
    assert world.commit("g", {("t", 0): 1}, metadata=metadata) == [error]


def test_all_groups_share_the_name_of_a_topic() -> None:
    world = GroupWorld()
    for group in ("g", "h"):
        world.commit(group, {("".join(["ev", "ents"]), 0): 1})
    for _ in range(2):
        first, second = (next(iter(world.coordinator.shards[0].offsets.of_group(group))) for group in ("g", "h"))
        assert first is second
        world.restart()


def test_one_commit_is_one_batch_and_one_pass_is_one_batch() -> None:
    world = GroupWorld()
    world.commit("g", {("t", index): index for index in range(4)})
    assert len(world.logs[0].batches) == 1
    partition = Commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    topic = Commit.OffsetCommitRequestTopic(name="t", partitions=[partition])

    async def together() -> None:
        for group in ("g", "h", "i"):
            world.coordinator.commits.offset_commit(Commit(group_id=group, topics=[topic]), _context(8))

    world.env.run(together())
    world.settle()
    assert len(world.logs[0].batches) == 2
    assert world.fetch("i") == {("t", 0): 2}


def test_only_what_is_too_large_suffers() -> None:
    world = GroupWorld()
    partition = Commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    topic = Commit.OffsetCommitRequestTopic(name="t", partitions=[partition])
    replies: list[Any] = []

    async def together() -> None:
        for group in ("g", "h"):
            reply: Any = world.coordinator.commits.offset_commit(Commit(group_id=group, topics=[topic]), _context(8))
            reply.then(replies.append)

    world.logs[0].failures = [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE]  # both together, then g alone
    world.env.run(together())
    world.settle()
    told = [reply.topics[0].partitions[0].error_code for reply in replies]
    assert told == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.NONE]


@pytest.mark.parametrize("codec_number", range(5))
def test_the_offsets_topics_own_compression(codec_number: int) -> None:
    world = GroupWorld(offsets_topic_compression_codec=codec_number)
    world.commit("g", {("t", 0): 5})
    attributes = int.from_bytes(world.logs[0].batches[0][1][21:23], "big")
    assert attributes & 7 == codec_number
    world.restart()
    assert world.fetch("g") == {("t", 0): 5}


def _context(version: int) -> Any:
    return SimpleNamespace(api_version=version, client_id="c", client_host="/h", principal="User:alice", is_long=False)


def test_offsets_of_very_many_groups_are_told_over_several_passes() -> None:
    world = GroupWorld()
    groups = [f"g{number}" for number in range(3 * PIECES_PER_PASS)]
    for number, group in enumerate(groups):
        world.commit(group, {("t", 0): number, ("events", 1): 7})
    request = Fetch(
        groups=[
            Fetch.OffsetFetchRequestGroup(group_id=group, topics=[by_name("t", 0), by_name("events", 1)])
            for group in groups
        ]
    )
    reply = world.call("offset_fetch", request, 8)
    assert not reply.done
    passes = 0

    def look() -> None:
        nonlocal passes
        passes += 1
        if not reply.done:
            world.clock.call_soon(look)

    look()
    world.settle()
    response = answer_of(reply)
    assert passes > 6, "three pieces for each group"
    assert [group.group_id for group in response.groups] == groups
    assert [rows(group) for group in response.groups] == [[(0, n, 0), (1, 7, 0)] for n in range(len(groups))]


@pytest.mark.parametrize("name", ["list_groups", "describe_groups"])
def test_very_many_groups_are_told_over_several_passes(name: str) -> None:
    world = GroupWorld()
    groups = [f"g{number}" for number in range(3 * PIECES_PER_PASS)]
    for group in groups:
        world.commit(group, {("t", 0): 1})
    request = messages.ListGroupsRequest() if name == "list_groups" else messages.DescribeGroupsRequest(groups=groups)
    reply = world.call(name, request, 4)
    assert not reply.done
    world.settle()
    assert [group.group_id for group in answer_of(reply).groups] == groups
