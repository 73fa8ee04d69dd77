"""Runs of committed offsets: what is one, and that a table of runs is the table that record by record makes."""

import random
from collections.abc import Iterable

import pytest
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetCommits,
    OffsetRemovals,
    decode_change,
    encode_key,
    encode_value,
)
from barnabas.offsets.stored import Splitter, StoredRun
from barnabas.offsets.table import COPIES_MAX, RUNS_MAX, OffsetTable
from barnabas.protocol.batch_records import Record
from barnabas.protocol.record_batch import (
    PlainRecords,
    build,
    build_plain,
    patch,
    read_header,
    rebuild,
    records,
    unpacked,
)

TOPIC_ID = bytes(range(16))


def committed(offset: int, topic_id: bytes = NO_TOPIC_ID, metadata: str = "", epoch: int = 3) -> CommittedOffset:
    return CommittedOffset(offset, epoch, metadata, 1_700_000_000_000, topic_id=topic_id)


def batch_of(*changes: OffsetCommits | OffsetRemovals, base: int = 0, codec: int = 0) -> bytes:
    plain = PlainRecords()
    for change in changes:
        change.append_to(plain)
    batch = build_plain(plain, 5, codec=codec, base_sequence=0).data
    patch(batch, 0, base, 0)
    return bytes(batch)


def runs_of(batch: bytes) -> list[tuple[str, StoredRun]] | None:
    header = read_header(batch)
    return Splitter().runs(unpacked(batch, header, 1 << 20), header.base_offset, header.record_count)


def version_3(offset: int, metadata: bytes = b"") -> bytes:
    value = b"\0\3" + offset.to_bytes(8, "big") + (3).to_bytes(4, "big")
    return value + len(metadata).to_bytes(2, "big") + metadata + (9).to_bytes(8, "big")


@pytest.mark.parametrize("count", [1, 63, 64, 65, 500])
@pytest.mark.parametrize("topic_id", [NO_TOPIC_ID, TOPIC_ID])
@pytest.mark.parametrize("names", [("g", "t"), ("gruppe-ü", "t" * 200)])
@pytest.mark.parametrize("metadata", ["", "m" * 40, "ü" * 63])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_commit_is_a_run_until_its_deltas_have_another_size(
    count: int, topic_id: bytes, names: tuple[str, str], metadata: str, codec: int
) -> None:
    group_id, topic = names
    offsets = {index: committed(index, topic_id, metadata) for index in range(count)}
    found = runs_of(batch_of(OffsetCommits(group_id, {topic: offsets}), base=1_000, codec=codec))
    assert found is not None
    assert [len(run) for _, run in found] == ([count] if count <= 64 else [64, count - 64])
    assert {(each, run.topic) for each, run in found} == {names}
    decoded = {index: offset for _, run in found for index, offset in run.offsets().items()}
    for index, offset in offsets.items():
        offset.record_offset = 1_000 + index
    assert decoded == offsets
    positions = [row for _, run in found for row in run.positions()]
    assert positions == [(index, each.offset, each.commit_timestamp) for index, each in offsets.items()]


def test_values_of_kafka_are_runs_and_others_are_not() -> None:
    def found(value: bytes | None, key: bytes | None = None) -> int | None:
        pairs = [(encode_key("g", "t", index) if key is None else key, value) for index in range(3)]
        runs = runs_of(bytes(build([Record(index, 0, *pair, []) for index, pair in enumerate(pairs)])))
        return None if runs is None else len(runs)

    assert found(version_3(5)) == 1
    assert found(encode_value(committed(5))) == 1
    assert found(encode_value(committed(5, TOPIC_ID))) == 1
    assert found(version_3(5, b"m")) == 1
    assert found(encode_value(committed(5, metadata="m"))) == 1
    assert found(encode_value(committed(5, TOPIC_ID, "m" * 126))) == 1
    for value in (
        None,
        b"",
        version_3(5, b"m" * 127),
        version_3(5, b"\xff"),
        b"\0\2" + version_3(5)[2:],
        encode_value(committed(5, metadata="m" * 127)),
        encode_value(committed(5))[:14] + b"\0" + encode_value(committed(5))[15:],
        encode_value(CommittedOffset(5, commit_timestamp=1, expire_timestamp=9)),
        b"\0\5" + encode_value(committed(5))[2:],
        encode_value(committed(5)) + b"\0",
        encode_value(committed(5))[:-1] + b"\1",
    ):
        assert found(value) is None
    good = encode_value(committed(5))
    assert found(good, b"\0\0" + encode_key("g", "t", 0)[2:]) is None, "key version 0"
    assert found(good, b"\0\2" + encode_key("g", "t", 0)[2:]) is None
    assert found(good, encode_key("g", "t", 0)[:3] + b"\2" + encode_key("g", "t", 0)[4:]) is None, "a wrong length"
    assert found(good, b"\0\1\0\1\xff\0\1t\0\0\0\0") is None, "no UTF-8"
    assert found(good, encode_key("g", "t", 0)) is None, "a partition is there three times"


def test_a_run_ends_where_something_else_begins() -> None:
    one = OffsetCommits("g", {"t": {0: committed(1), 1: committed(2)}, "u": {0: committed(3)}})
    other = OffsetCommits("h", {"t": {0: committed(4, TOPIC_ID)}})
    found = runs_of(batch_of(one, other))
    assert found is not None
    assert [(group_id, run.topic, len(run)) for group_id, run in found] == [("g", "t", 2), ("g", "u", 1), ("h", "t", 1)]
    assert runs_of(batch_of(one, OffsetRemovals("g", [("t", 0)]))) is None
    expiring = CommittedOffset(1, commit_timestamp=1, expire_timestamp=9)
    assert runs_of(batch_of(one, OffsetCommits("h", {"t": {0: expiring}}))) is None
    noted = OffsetCommits("g", {"t": {index: committed(index, metadata="ab"[index > 1]) for index in range(3)}})
    assert [len(run) for _, run in runs_of(batch_of(noted)) or ()] == [2, 1]
    whole = batch_of(one)
    header = read_header(whole)
    data = unpacked(whole, header, 1 << 20)
    assert Splitter().runs(data, 0, header.record_count + 1) is None
    assert Splitter().runs(data + b"\0", 0, header.record_count) is None
    for end in range(1, len(data)):
        assert Splitter().runs(data[:end], 0, header.record_count) is None


def test_a_table_keeps_what_it_was_given_until_somebody_needs_it() -> None:
    table = OffsetTable()
    load(table, [batch_of(OffsetCommits("g", {"t": {0: committed(1), 1: committed(2)}}))])
    assert table.group_ids() == ["g"]
    assert (table.group_count, table.count("g"), table.topics("g"), table.has_offsets) == (1, 2, ["t"], True)
    assert table.of_group("g")["t"][1].offset == 2
    found = table.get("g", "t", 1)
    assert found is not None
    assert found.offset == 2
    assert not table.decoded
    assert table.asked_for("g") is table.of_group("g"), "a client that asks again need not wait for it"
    assert table.group_ids() == ["g"]
    load(table, [batch_of(OffsetCommits("h", {"t": {0: committed(1)}}))])
    assert table.to_change("h") is table.decoded["h"]
    kept = table.asked_for("g")
    assert table.to_change("g") is table.decoded["g"] is kept
    assert not table.stored
    assert table.asked_for("none") == table.to_change("none") == {}


def test_a_commit_of_the_same_partitions_replaces_the_run() -> None:
    table = OffsetTable()
    for offset in range(20):
        load(table, [batch_of(OffsetCommits("g", {"t": {0: committed(offset), 300: committed(offset)}}), base=offset)])
    assert [len(run) for run in table.stored["g"]] == [2]
    assert [row[:2] for row in table.positions("g")[0][1]] == [(0, 19), (300, 19)]
    load(table, [batch_of(OffsetCommits("g", {"t": {1: committed(5)}}), base=90)])
    assert table.count("g") == 3
    assert not table.decoded
    load(table, [batch_of(OffsetCommits("g", {"t": {1: committed(6), 2: committed(6)}}), base=91)])
    assert not table.stored, "runs that overlap are decoded"
    assert table.count("g") == 4


def test_of_groups_that_were_asked_for_only_the_last_are_kept_decoded_and_never_an_old_state() -> None:
    table = OffsetTable()
    for number in range(COPIES_MAX + 1):
        table.replay(OffsetCommits(f"g{number}", {"t": {0: committed(1)}}), number)
        assert f"g{number}" in table.decoded, "one offset takes less memory decoded"
    table = OffsetTable()
    for number in range(COPIES_MAX + 1):
        commit(table, OffsetCommits(f"g{number}", {"t": {0: committed(1), 1: committed(1)}}), 2 * number)
    kept = {f"g{number}": table.asked_for(f"g{number}") for number in range(COPIES_MAX + 1)}
    assert [group_id for group_id, found in kept.items() if table.of_group(group_id) is not found] == ["g0"]
    commit(table, OffsetCommits("g1", {"t": {0: committed(5), 1: committed(6)}}), 100)
    assert [each.offset for each in table.of_group("g1")["t"].values()] == [5, 6]
    assert [each.offset for each in table.asked_for("g1")["t"].values()] == [5, 6]
    assert not table.decoded


def test_a_commit_of_several_offsets_is_kept_as_it_was_written() -> None:
    table = OffsetTable()
    before = 7  # records of other commits in the same batch
    for position in (0, 500):
        offsets = {
            topic: {index: committed(position + index, topic_id) for index in range(100)}
            for topic, topic_id in (("t", NO_TOPIC_ID), ("u" * 200, TOPIC_ID))
        }
        commit(table, OffsetCommits("g", offsets), position, before)
        assert not table.decoded
        assert [len(run) for run in table.stored["g"]] == [100, 100]
        for index, each in enumerate(each for of_topic in offsets.values() for each in of_topic.values()):
            each.record_offset = position + index
        assert table.of_group("g") == offsets
        assert table.of_group("g")["u" * 200][3].record_offset == position + 103
        columns = table.columns("g", "t", b"".join(index.to_bytes(4, "big") for index in range(100)))
        assert columns is not None
        assert columns.positions[:24] == b"".join(
            (position + index).to_bytes(8, "big") + (3).to_bytes(4, "big") for index in (0, 1)
        )
        assert table.columns("g", "t", columns.partitions[4:]) is None
        assert table.columns("g", "t", columns.partitions[::-1]) is None
        assert table.columns("h", "t", columns.partitions) is None
    commit(table, OffsetCommits("g", {"t": {0: committed(9), 1: committed(9, metadata="m")}}), 900)
    assert not table.stored
    assert table.count("g") == 200
    assert table.of_group("g")["t"][1].metadata == "m"
    assert table.of_group("g")["t"][2].record_offset == 502


def test_a_group_with_many_runs_is_decoded() -> None:
    table = OffsetTable()
    for index in range(RUNS_MAX + 1):
        assert not table.decoded
        load(table, [batch_of(OffsetCommits("g", {"t": {index: committed(5)}}), base=index)])
    assert table.count("g") == RUNS_MAX + 1
    assert not table.stored


# ---- run equals replay ----


def commit(table: OffsetTable, change: OffsetCommits | OffsetRemovals, position: int, before: int = 0) -> None:
    """As a coordinator does that has appended the change, after as many other records in the same batch."""
    plain = PlainRecords()
    for index in range(before):
        plain.add(b"key%d" % index, None)
    change.append_to(plain)
    table.replay(change, position)


def load(table: OffsetTable, log: Iterable[bytes]) -> None:
    """As the loader does."""
    splitter = Splitter()
    for batch in log:
        header = read_header(batch)
        runs = splitter.runs(unpacked(batch, header, 1 << 20), header.base_offset, header.record_count)
        if runs is None:
            replay(table, [batch])
        else:
            for group_id, run in runs:
                table.store(group_id, run)


def replay(table: OffsetTable, log: Iterable[bytes]) -> None:
    """Record by record."""
    for batch in log:
        for record in records(batch):
            assert record.key is not None
            table.replay(decode_change(record.key, record.value), record.offset)


def random_changes(chance: random.Random) -> list[OffsetCommits | OffsetRemovals]:
    changes: list[OffsetCommits | OffsetRemovals] = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        group_id = chance.choice(("g", "group-1", "group-2", "quiet"))
        topics = chance.sample(("t", "events", "orders"), chance.choice((1, 1, 2)))
        if chance.random() < 0.1:
            changes.append(OffsetRemovals(group_id, [(topics[0], index) for index in range(chance.choice((1, 4)))]))
            continue
        first, count = chance.choice(((0, 4), (0, 4), (2, 4), (250, 12), (0, 80)))
        metadata = chance.choice(("", "", "", "note", "x" * 130))
        topic_id = chance.choice((NO_TOPIC_ID, TOPIC_ID))
        offsets = {
            topic: {
                index: committed(chance.randrange(1 << 40), topic_id, metadata, chance.randrange(-1, 9))
                for index in range(first, first + count)
            }
            for topic in topics
        }
        changes.append(OffsetCommits(group_id, offsets))
    return changes


def compacted(log: list[bytes], chance: random.Random) -> list[bytes]:
    """A legal compaction of a beginning of the log: some records that later ones replace are gone."""
    end = chance.randrange(len(log) + 1)
    newest = {record.key: record.offset for batch in log[:end] for record in records(batch)}
    after = []
    for batch in log[:end]:
        kept = [each for each in records(batch) if newest[each.key] == each.offset or chance.random() < 0.3]
        if kept:
            after.append(bytes(rebuild(read_header(batch), kept)))
    return after + log[end:]


@pytest.mark.parametrize("seed", range(60))
def test_a_table_of_runs_equals_a_replay_after_any_legal_compaction_and_truncation(seed: int) -> None:
    chance = random.Random(seed)
    log: list[bytes] = []
    base = 0
    for _ in range(25):
        batch = batch_of(*random_changes(chance), base=base, codec=chance.choice((0, 0, 1)))
        base = read_header(batch).next_offset
        log.append(batch)
    log = log[: chance.randrange(1, len(log) + 1)]
    if chance.random() < 0.7:
        log = compacted(log, chance)
    whole, stored = OffsetTable(), OffsetTable()
    replay(whole, log)
    load(stored, log)
    assert stored.committed == whole.committed
    assert not whole.stored
    for group_id in whole.committed:
        assert stored.count(group_id) == whole.count(group_id)
        assert sorted(stored.topics(group_id)) == sorted(whole.topics(group_id))
        assert by_key(stored, group_id) == by_key(whole, group_id)
        if group_id in stored.stored:
            times = [each.commit_timestamp for of in whole.of_group(group_id).values() for each in of.values()]
            assert stored.oldest_ms(group_id) == min(times)
        assert stored.partitions_before(group_id, {"t": range(300)}, base // 2) == whole.partitions_before(
            group_id, {"t": range(300)}, base // 2
        )
    for change in random_changes(chance):  # life goes on
        for table in (whole, stored):
            plain = batch_of(change, base=base)
            replay(table, [plain])
        base += change.count
    assert stored.committed == whole.committed


@pytest.mark.parametrize("seed", range(60))
def test_a_table_in_use_equals_a_replay_of_its_log(seed: int) -> None:
    chance = random.Random(seed)
    log: list[bytes] = []
    running = OffsetTable()
    base = 0
    for _ in range(25):
        changes = random_changes(chance)
        log.append(batch_of(*changes, base=base, codec=chance.choice((0, 0, 1))))
        for change in changes:
            running.replay(change, base)
            base += change.count
            if chance.random() < 0.3:
                running.asked_for(change.group_id)
        assert running.decoded.keys().isdisjoint(running.stored)
    whole, loaded = OffsetTable(), OffsetTable()
    replay(whole, log)
    load(loaded, compacted(log, chance))
    assert running.committed == whole.committed == loaded.committed
    for group_id in whole.committed:
        assert by_key(running, group_id) == by_key(whole, group_id)
        assert running.of_group(group_id) == running.asked_for(group_id) == whole.of_group(group_id)
        order = [(topic, list(of)) for topic, of in whole.of_group(group_id).items()]
        assert [(topic, list(of)) for topic, of in running.of_group(group_id).items()] == order


def by_key(table: OffsetTable, group_id: str) -> dict[tuple[str, int], tuple[int, int]]:
    rows = [((topic, row[0]), row[1:]) for topic, of_topic in table.positions(group_id) for row in of_topic]
    assert len(dict(rows)) == len(rows)
    return dict(rows)
