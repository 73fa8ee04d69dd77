"""Where a follower cuts its log: the table of KIP-101, KIP-279 and KIP-595, and two logs that must come to agree."""

import random

import pytest
from barnabas.replication.truncation import (
    NewBounds,
    bounds_out_of_range,
    first_truncation,
    truncation_by_epoch,
)
from barnabas.storage.leader_epochs import LeaderEpochCache
from simulator.env import sim_env

# own epochs, own log end, own high watermark, the leader's epoch and end -> where to cut
TABLE = {
    "the epoch ends earlier at the leader": ([(1, 0), (2, 10)], 20, 5, (2, 15), 15),
    "the epoch ends earlier here": ([(1, 0), (3, 10)], 20, 5, (1, 15), 10),
    "both end at the same offset: nothing to cut": ([(1, 0)], 20, 5, (1, 20), 20),
    "the leader has more of the epoch": ([(1, 0)], 20, 5, (1, 50), 20),
    "an epoch without records, which the leader never heard of": ([(1, 0), (2, 20)], 20, 5, (1, 20), 20),
    "the leader's epoch is not known here, an older one is": (
        [(1, 0), (4, 10)],
        20,
        5,
        (2, 15),
        10,
    ),
    "the same, and the older one ends behind the log (KIP-279)": (
        [(1, 0), (4, 30)],
        30,
        5,
        (3, 40),
        30,
    ),
    "all epochs here are newer: cut to the end of the first older one": ([(5, 10)], 20, 5, (3, 8), 8),
    "no epochs here": ([], 20, 5, (3, 8), 8),
    "no epochs here, and the leader has more": ([], 20, 5, (3, 28), 20),
    "the leader does not know the epoch: high watermark": ([(1, 0)], 20, 5, (-1, -1), 5),
    "the leader knows an offset, but no epochs": ([(1, 0)], 20, 5, (-1, 12), 12),
    "the leader knows an offset behind our end, but no epochs": ([(1, 0)], 20, 5, (-1, 25), 20),
    "below the high watermark, after an unclean election": ([(1, 0)], 20, 18, (1, 3), 3),
}


@pytest.mark.parametrize("name", TABLE)
def test_by_epoch(name):
    entries, log_end_offset, high_watermark, answer, expected = TABLE[name]
    cache = LeaderEpochCache(sim_env(1).disk, "/epochs", entries)
    cut = truncation_by_epoch(
        *answer, lambda epoch: cache.end_offset_for(epoch, log_end_offset), log_end_offset, high_watermark
    )
    assert cut == expected


@pytest.mark.parametrize(("latest_epoch", "expected"), [(-1, 7), (0, 20), (6, 20)])
def test_before_the_first_fetch(latest_epoch, expected):
    assert first_truncation(latest_epoch, 20, 7) == expected


@pytest.mark.parametrize(
    ("own_end", "leader_start", "leader_end", "expected"),
    [
        (20, 0, 15, NewBounds(15)),
        (20, 0, 20, NewBounds(20)),
        (20, 0, 30, NewBounds(20)),
        (20, 20, 30, NewBounds(20)),
        (20, 21, 30, NewBounds(20, 21)),
        (0, 100, 100, NewBounds(0, 100)),
        (20, 18, 18, NewBounds(18)),
    ],
)
def test_out_of_range(own_end, leader_start, leader_end, expected):
    assert bounds_out_of_range(own_end, leader_start, leader_end) == expected


class Log:
    """A list of epochs, one for each record."""

    def __init__(self, env, name, records, phantom):
        self.records = list(records)
        self.epochs = LeaderEpochCache(env.disk, f"/{name}", [])
        for offset, epoch in enumerate(records):
            self.epochs.assign(epoch, offset)
        if phantom is not None:
            self.epochs.assign(phantom, len(records))

    @property
    def end(self):
        return len(self.records)

    def end_offset_for(self, epoch):
        return self.epochs.end_offset_for(epoch, self.end)

    def cut(self, offset):
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)


def histories(rng):
    """Logs of replicas that led in turn, each with what it had replicated before: any two share a prefix."""
    replicas = [[] for _ in range(3)]
    phantoms = [None] * 3
    for epoch in range(rng.randrange(1, 9)):
        leader = rng.randrange(3)
        phantoms[leader] = epoch
        replicas[leader] += [epoch] * rng.randrange(4)
        if rng.random() < 0.5:
            follower = rng.randrange(3)
            if follower != leader:
                replicas[follower] = replicas[leader][: rng.randrange(len(replicas[leader]) + 1)]
                phantoms[follower] = None
    return replicas, phantoms


@pytest.mark.parametrize("seed", range(200))
def test_two_logs_come_to_agree_within_as_many_steps_as_they_have_epochs(seed):
    rng = random.Random(seed)
    replicas, phantoms = histories(rng)
    env = sim_env(1)
    leader = Log(env, "leader", replicas[0], 100)
    follower = Log(env, "follower", replicas[1], phantoms[1] if phantoms[1] not in replicas[1] else None)
    common = 0
    for ours, theirs in zip(follower.records, leader.records, strict=False):
        if ours != theirs:
            break
        common += 1
    for _ in range(12):
        last = follower.epochs.latest
        if last < 0:
            break
        epoch, end = leader.end_offset_for(last)
        if epoch == last and end >= follower.end:
            break
        cut = truncation_by_epoch(epoch, end, follower.end_offset_for, follower.end, 0)
        follower.cut(cut)
    else:
        pytest.fail("the follower asks for ever")
    assert follower.records == leader.records[: follower.end], "what is left is the leader's"
    assert follower.end <= common
