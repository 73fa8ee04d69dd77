"""Retention waits for groups that have not read, at most so long, and not when the disk is full."""

import errno
import logging

import pytest
from barnabas.storage.retention import Hold, released_segments

DUE = [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize(
    ("unread_from", "held_since", "wait_max_ms", "count"),
    [
        (0, {}, 100, 0),
        (9, {}, 100, 0),
        (10, {}, 100, 1),
        (11, {}, 100, 1),
        (30, {}, 100, 3),
        (99, {}, 100, 3),
        (0, {0: 900, 10: 900, 20: 900}, 101, 0),
        (0, {0: 900, 10: 900, 20: 900}, 100, 3),
        (0, {0: 900, 10: 950}, 100, 1),
        (0, {0: 900, 10: 900}, 100, 2),
        (0, {10: 0}, 100, 0),  # one that was held longer does not go before an older one
        (0, {}, 0, 3),
        (0, {0: 0}, None, 0),
    ],
)
def test_which_due_segments_go(unread_from, held_since, wait_max_ms, count):
    assert released_segments(DUE, unread_from, held_since, now_ms=1_000, wait_max_ms=wait_max_ms) == count


class Groups:
    """What stands for the coordinator: from where on a log is not read."""

    def __init__(self, world):
        self.unread_from = 0
        self.names = ("billing",)
        self.world = world
        if world.manager is None:
            world.open()
        world.manager.hold_of = self.hold_of

    def hold_of(self, log):
        yield None
        return None if self.unread_from is None else Hold(self.unread_from, self.names)


@pytest.fixture
def groups(make_world):
    world = make_world(broker={"log.retention.check.interval.ms": "3600000"})
    groups = Groups(world)
    groups.log = world.log(
        segment_bytes=1_000,
        retention_ms=60_000,
        barnabas_retention_wait_for_groups=("billing",),
        barnabas_retention_wait_max_ms=600_000,
        file_delete_delay_ms=0,
    )
    world.fill(groups.log, 60)
    world.clock.advance(61_000)
    return groups


def lines(caplog):
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def retain(groups):
    groups.world.manager.apply_retention()
    return groups.log.log_start_offset


def test_what_is_not_read_stays_until_it_is(groups, caplog):
    first, second = groups.log.segments[1].base_offset, groups.log.segments[2].base_offset
    count = len(groups.log.segments)
    groups.unread_from = first + 1
    assert retain(groups) == first, "below, all is read"
    text = f"t-0: retention waits for billing, which has not read from offset {first + 1} on: {count - 1} segments stay"
    assert lines(caplog) == [f"{text}, at most 600 s"]
    assert retain(groups) == first
    assert lines(caplog) == [], "it is said once"
    groups.unread_from = second
    assert retain(groups) == second
    groups.unread_from = groups.log.log_end_offset
    assert retain(groups) == groups.log.log_end_offset
    assert lines(caplog) == []


def test_a_topic_that_rests_keeps_what_is_read_and_due(groups):
    """Its settings are those of an older copy of the tree (`broker/old_settings.py`)."""
    groups.unread_from = groups.log.log_end_offset
    groups.world.manager.rests = lambda topic: topic == "t"
    assert retain(groups) == 0
    groups.world.manager.rests = lambda topic: False
    assert retain(groups) == groups.log.log_end_offset


def test_it_goes_on_after_the_longest_wait_and_says_so(groups, caplog):
    assert retain(groups) == 0
    groups.world.clock.advance(599_000)
    assert retain(groups) == 0
    lines(caplog)
    groups.world.clock.advance(1_000)
    assert retain(groups) == 60
    assert lines(caplog) == [
        "t-0: retention has waited 600 s for billing and goes on: it deletes 60 records unread at most"
    ]


def test_each_segment_waits_for_its_own_time(groups):
    groups.log.config.retention_ms = 10 * 60_000
    groups.world.fill(groups.log, 1)
    groups.log.config.retention_ms = 60_000
    begun = groups.log.segments.active.base_offset
    assert retain(groups) == 0
    groups.world.fill(groups.log, 30)
    groups.world.clock.advance(300_000)
    assert retain(groups) == 0, "the new segments are held from now on"
    groups.world.clock.advance(300_000)
    assert 0 < retain(groups) <= begun + 8 < groups.log.log_end_offset
    groups.world.clock.advance(300_000)
    assert retain(groups) == groups.log.log_end_offset


def test_a_size_limit_waits_as_well(groups):
    groups.log.config.retention_ms, groups.log.config.retention_bytes = -1, 3_000
    groups.unread_from = 20
    assert retain(groups) <= 20
    groups.unread_from = 60
    assert retain(groups) > 20


def test_what_delete_records_has_taken_is_not_waited_for(groups, caplog):
    groups.log.delete_records_before(35)
    retain(groups)
    assert groups.log.segments[0].base_offset <= 35 < groups.log.segments[1].base_offset
    assert groups.log.log_start_offset == 35


def test_who_follows_removes_only_what_its_leader_has_removed(groups, caplog):
    groups.names = None
    groups.world.clock.advance(1_200_000)  # twice the longest wait
    assert retain(groups) == 0
    assert lines(caplog) == []
    groups.log.delete_records_before(30)
    retain(groups)
    assert groups.log.log_start_offset == 30


def test_without_the_setting_nobody_is_asked(groups):
    groups.log.config.barnabas_retention_wait_for_groups = ()
    groups.world.manager.hold_of = None
    assert retain(groups) == 60


def test_a_full_disk_ends_the_wait(groups, caplog):
    assert retain(groups) == 0
    lines(caplog)
    other = groups.world.log("other")
    other.health.block_writes(OSError(errno.ENOSPC, "no space"))
    groups.world.clock.advance(100)
    assert groups.log.log_start_offset == 60, "the next round of retention began at once"
    expected = "t-0: the disk is full, so retention does not wait for billing, and deletes 60 records unread at most"
    assert expected in lines(caplog)


def test_a_log_that_is_deleted_is_not_waited_for(groups):
    retain(groups)
    assert groups.world.manager.waits
    groups.world.manager.delete("t", 0)
    assert not groups.world.manager.waits
