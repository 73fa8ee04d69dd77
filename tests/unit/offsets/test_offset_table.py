"""The table and its transactions; a record that is replayed twice changes nothing."""

from barnabas.offsets.records import CommittedOffset, OffsetCommits, OffsetRemovals
from barnabas.offsets.table import OffsetTable


def put(table: OffsetTable, offset: int, record_offset: int, producer_id: int = -1, partition: int = 0) -> None:
    table.replay(OffsetCommits("g", {"t": {partition: CommittedOffset(offset)}}), record_offset, producer_id)


def offset_of(table: OffsetTable) -> int | None:
    found = table.get("g", "t", 0)
    return None if found is None else found.offset


def test_last_wins_and_a_tombstone_removes() -> None:
    table = OffsetTable()
    put(table, 1, 0)
    put(table, 2, 1)
    assert offset_of(table) == 2
    table.replay(OffsetRemovals("g", [("t", 0)]), 2)
    assert offset_of(table) is None
    assert table.committed == {}


def test_pending_offsets_are_unseen_until_the_commit_marker() -> None:
    table = OffsetTable()
    put(table, 5, 0, producer_id=9)
    assert offset_of(table) is None
    assert table.pending_of_group("g") == {("t", 0)}
    assert table.replay_end_transaction(9, True) == ["g"]
    assert offset_of(table) == 5
    assert table.pending_of_group("g") == set()


def test_abort_drops() -> None:
    table = OffsetTable()
    put(table, 1, 0)
    put(table, 5, 1, producer_id=9)
    assert table.replay_end_transaction(9, False) == []
    assert offset_of(table) == 1
    assert table.pending_of_group("g") == set()


def test_commit_marker_does_not_overwrite_what_is_newer() -> None:
    table = OffsetTable()
    put(table, 5, 10, producer_id=9)
    put(table, 6, 11)
    table.replay_end_transaction(9, True)
    assert offset_of(table) == 6


def test_two_producers_of_one_group_are_counted_apart() -> None:
    table = OffsetTable()
    put(table, 5, 10, producer_id=1)
    put(table, 6, 11, producer_id=2)
    table.replay_end_transaction(1, True)
    assert table.pending_of_group("g") == {("t", 0)}
    table.replay_end_transaction(2, False)
    assert table.pending_of_group("g") == set()
    assert offset_of(table) == 5


def test_a_group_is_known_until_its_last_transaction_has_ended() -> None:
    table = OffsetTable()
    for producer_id in (1, 2, 3):
        put(table, 5, 10, producer_id=producer_id)
    for producer_id, left in ((1, ["g"]), (2, ["g"]), (3, [])):
        table.replay_end_transaction(producer_id, False)
        assert table.groups() == left


def test_deletion_takes_pending_offsets_too() -> None:
    table = OffsetTable()
    put(table, 5, 10, producer_id=1)
    assert table.groups() == ["g"]
    assert table.partitions_before("g", {"t": {0}, "u": {1}}, before_offset=11) == [("t", 0)]
    assert table.partitions_before("g", {"t": {0}, "u": {1}}, before_offset=10) == []
    table.replay(OffsetRemovals("g", [("t", 0)]), 2)
    assert table.pending_of_group("g") == set()
    table.replay_end_transaction(1, True)
    assert offset_of(table) is None


def test_marker_of_an_unknown_producer_is_harmless() -> None:
    assert OffsetTable().replay_end_transaction(77, True) == []
