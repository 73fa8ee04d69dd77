"""Segments that somebody has removed, emptied or exchanged while the broker was stopped: the start says so."""

from collections.abc import Callable

import pytest
from barnabas.storage import checkpoints


def name(base):
    return f"/data/t-0/{base:020d}.log"


def remove(world, bases):
    world.disk.remove(name(bases[1]))


def remove_first(world, bases):
    world.disk.remove(name(bases[0]))


def empty(world, bases):
    world.disk.open(name(bases[1])).truncate(0)


def cut(world, bases):
    file = world.disk.open(name(bases[1]))
    file.truncate(file.size() // 3)


def exchange(world, bases):
    world.disk.rename(name(bases[1]), "/data/x")
    world.disk.rename(name(bases[2]), name(bases[1]))
    world.disk.rename("/data/x", name(bases[2]))


def segments_of(world, count=30, **settings):
    log = world.log(segment_bytes=1000, **settings)
    world.fill(log, count, size=200)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    return bases


CASES: list[tuple[Callable, int, int]] = [(remove, 1, 2), (remove_first, 0, 1), (empty, 1, 2), (exchange, 1, 2)]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(("damage", "first", "end"), CASES)
def test_what_is_missing_is_said_once_and_counts_as_lost(world, caplog, monkeypatch, damage, first, end, large):
    if large:  # the ends of segments are found by the ends of their indexes
        monkeypatch.setattr("barnabas.storage.missing_records.WINDOW_BYTES", 0)
    bases = segments_of(world, index_interval_bytes=100)
    world.manager.shutdown()
    damage(world, bases)
    manager = world.open()
    said = [record.message for record in caplog.records if "no records from offset" in record.message]
    assert len(said) == 1
    assert f"t-0: no records from offset {bases[first]} to {bases[end] - 1}, because" in said[0]
    assert manager.get("t", 0).missing_from == bases[first]
    assert manager.has_lost("t", 0)
    assert manager.may_lack_records


def test_a_segment_that_ends_early_and_one_with_the_content_of_another(world, caplog):
    bases = segments_of(world)
    world.manager.shutdown()
    cut(world, bases)
    assert bases[1] < world.open().get("t", 0).missing_from < bases[2]
    assert f"to {bases[2] - 1}, because a segment was removed or cut since the broker stopped" in caplog.text


def test_after_a_kill_the_segments_below_the_recovery_point_are_looked_at(world):
    bases = segments_of(world)
    world.log().flush()
    world.manager.checkpoint()
    world.manager.abandon()
    remove(world, bases)
    assert world.open().get("t", 0).missing_from == bases[1]


@pytest.mark.parametrize("why", ["policy", "was compacted"])
def test_compacted_logs_have_gaps(world, caplog, why):
    bases = segments_of(world)
    if why == "was compacted":
        world.manager.directories[0].cleaner_offsets["t", 0] = 5
    world.manager.shutdown()
    if why == "policy":
        world.topics["t"] = {"cleanup.policy": "compact"}
    for damage in (remove, remove_first):
        damage(world, bases)
    assert not world.open().may_lack_records
    assert not caplog.messages


def test_what_retention_and_a_deletion_of_records_have_taken_is_no_loss(world, caplog):
    bases = segments_of(world)
    world.log().delete_records_before(bases[2] + 1)
    world.manager.apply_retention()
    assert world.disk.exists(name(bases[2]))
    assert not world.disk.exists(name(bases[1]))
    for _ in range(2):
        assert not world.restart().may_lack_records
    assert checkpoints.CLEAN_SHUTDOWN not in world.disk.list_directory("/data")
    assert not caplog.messages


@pytest.mark.parametrize(("slot", "by"), [(0, 1), (1, 1), (1, -1), (2, 1), (2, -1)])
def test_a_segment_that_was_renamed_is_no_removed_one(world, caplog, slot, by):
    """Until 2026-11-30 its records were said to be missing, though consumers got them."""
    bases = segments_of(world)
    world.manager.shutdown()
    world.disk.rename(name(bases[slot]), name(bases[slot] + by))
    manager = world.open()
    (said,) = [record.message for record in caplog.records if "since the broker stopped" in record.message]
    assert f"{name(bases[slot] + by)} begins with offset {bases[slot]}, so somebody has renamed it" in said
    assert f"Give it the name {bases[slot]:020d}.log again while the broker is stopped" in said
    assert manager.get("t", 0).missing_from == min(bases[slot], bases[slot] + by)
    manager.shutdown()
    world.disk.rename(name(bases[slot] + by), name(bases[slot]))
    if slot == 0:
        assert "while the broker is stopped, and write 0 for it in log-start-offset-checkpoint." in said
        world.disk.open("/data/log-start-offset-checkpoint").write(0, b"0\n1\nt 0 0\n")
    caplog.clear()
    manager = world.open()
    assert not manager.may_lack_records
    assert manager.get("t", 0).log_start_offset == 0
    assert not caplog.messages
