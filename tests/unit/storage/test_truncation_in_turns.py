"""A truncation in turns: no sync on the loop, a log that can be read between the steps, and ends that come early."""

import errno

import pytest
from barnabas.storage import truncation

CUTS = [0, 1, 7, 20, 21, 50, 59]


def filled(world):
    """A log of several segments whose recovery point is written down."""
    log = world.log(segment_bytes=1500, index_interval_bytes=100)
    world.fill(log, 60)
    log.flush()
    world.manager.checkpoint()
    assert len(log.segments) > 3
    return log


def begin(world, log, cut):
    work = truncation.begin_truncation(log, cut)
    assert log.finish_truncation is not None
    ended = []
    world.env.turns.begin(work.in_turns(), ended.append)
    return ended


def forbid_blocking(monkeypatch, world):
    def refuse(*_):
        raise AssertionError("a sync on the loop")

    background = world.disk.sync_in_background
    sync_directory = world.disk.sync_directory
    monkeypatch.setattr(world.disk, "sync_all", refuse)
    monkeypatch.setattr(world.disk, "sync_directory", refuse)

    def allowed(files, done, directories=()):
        def ended(error):
            monkeypatch.setattr(world.disk, "sync_directory", refuse)
            done(error)

        background(files, ended, directories)
        monkeypatch.setattr(world.disk, "sync_directory", sync_directory)

    monkeypatch.setattr(world.disk, "sync_in_background", allowed)


@pytest.mark.parametrize("cut", CUTS)
def test_it_ends_as_a_blocking_one_does(world, read, cut, monkeypatch):
    log = filled(world)
    with monkeypatch.context() as patch:
        forbid_blocking(patch, world)
        ended = begin(world, log, cut)
        while not ended:
            assert log.append_as_follower(b"").error, "nothing else writes"
            found = [offset for offset, _, _ in read(log)]
            assert found == list(range(len(found)))
            assert log.log_end_offset == len(found), "what is said to be there can be read"
            world.clock.advance(0)
    assert (log.log_end_offset, log.failed, log.finish_truncation) == (cut, None, None)
    world.fill(log, 20)
    assert [offset for offset, _, _ in read(log)] == list(range(cut + 20))
    log = world.crash("kept").get("t", 0)
    assert [offset for offset, _, _ in read(log)] == list(range(cut + 20))


@pytest.mark.parametrize("passes", range(12))
@pytest.mark.parametrize("cut", [1, 21])
def test_the_rest_can_be_done_at_once_after_any_step(world, read, cut, passes):
    log = filled(world)
    begin(world, log, cut)
    for _ in range(passes):
        world.clock.advance(0)
    if log.finish_truncation is not None:
        log.finish_truncation()
    assert log.log_end_offset == cut
    world.fill(log, 5)
    world.clock.advance(1_000)
    assert [offset for offset, _, _ in read(log)] == list(range(cut + 5)), "the work in turns does nothing any more"


@pytest.mark.parametrize("passes", range(12))
def test_a_power_cut_after_any_step_leaves_a_log_that_opens(world, read, passes):
    log = filled(world)
    begin(world, log, 21)
    for _ in range(passes):
        world.clock.advance(0)
    log = world.crash("lost").get("t", 0)
    assert log.log_end_offset >= 21
    assert [offset for offset, _, _ in read(log)] == list(range(log.log_end_offset))


def test_a_stop_finishes_it(world, read):
    log = filled(world)
    begin(world, log, 21)
    log = world.restart().get("t", 0)
    assert [offset for offset, _, _ in read(log)] == list(range(21))


def test_a_log_that_is_deleted_meanwhile_is_left_alone(world):
    log = filled(world)
    ended = begin(world, log, 21)
    world.manager.delete("t", 0)
    world.clock.advance(1_000)
    assert ended == [None]
    assert log.failed is None


def test_epochs_without_records_go_even_when_nothing_is_cut(world):
    log = world.log()
    world.append(log, (b"k", b"v"), epoch=1)
    log.leader_epochs.assign(2, 1)
    assert log.leader_epochs.latest == 2
    assert truncation.begin_truncation(log, 1) is None
    assert (log.leader_epochs.entries, log.log_end_offset) == ([(1, 0)], 1)


def test_a_full_disk_before_the_first_cut_costs_nothing(world, monkeypatch):
    log = filled(world)
    open_file = world.disk.open

    def full(path, **options):
        if path.endswith("checkpoint.tmp"):
            raise OSError(errno.ENOSPC, "full", path)
        return open_file(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "open", full)
        ended = begin(world, log, 21)
        world.clock.advance(100)
    assert ended == [None]
    assert (log.failed, log.log_end_offset) == (None, 60)
    ended = begin(world, log, 21)
    world.clock.advance(100)
    assert (ended, log.log_end_offset) == ([None], 21)
    text = world.disk.open("/data/recovery-point-offset-checkpoint").read(0, 999)
    assert f"t 0 {log.durability.recovery_point}".encode() in text
