"""Where a follower cuts its log, so that it agrees with its leader's: pure decisions, by leader epoch.

The leader says which epoch the two logs have in common, and where that epoch ends in its own log: in a Fetch answer as
`DivergingEpoch` (KIP-595), or in the answer to OffsetForLeaderEpoch (KIP-101). The follower compares this with its own
epochs. If it does not know the leader's epoch, it cuts to the end of an older one and asks again (KIP-279). Without
epochs it cuts to its high watermark, because everything above that may differ.
"""

from collections.abc import Callable

from barnabas.protocol.named_tuple import NamedTuple

UNDEFINED = -1

EndOffsetFor = Callable[[int], tuple[int, int]]  # as LeaderEpochCache.end_offset_for


def truncation_by_epoch(
    leader_epoch: int, leader_end_offset: int, end_offset_for: EndOffsetFor, log_end_offset: int, high_watermark: int
) -> int:
    """The offset to cut from by the leader's answer: its epoch, and where that ends in its log.

    `end_offset_for` asks the own log: the largest known epoch that is not above the given one, and where it ends.
    """
    if leader_end_offset == UNDEFINED:  # the leader knows no such epoch
        return min(high_watermark, log_end_offset)
    if leader_epoch == UNDEFINED:  # a leader that knows no epochs (OffsetForLeaderEpoch 0)
        return min(leader_end_offset, log_end_offset)
    own_epoch, own_end_offset = end_offset_for(leader_epoch)
    if own_end_offset == UNDEFINED:
        return min(leader_end_offset, log_end_offset)
    if own_epoch < leader_epoch:  # the leader is asked again afterwards
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, leader_end_offset, log_end_offset)


def first_truncation(latest_epoch: int, log_end_offset: int, high_watermark: int) -> int:
    """Where to cut before the first fetch: nowhere if the log has epochs, because then the leader says it."""
    if latest_epoch == UNDEFINED:
        return min(high_watermark, log_end_offset)
    return log_end_offset


class NewBounds(NamedTuple):
    """What a follower out of the leader's range does: cut from `end_offset` on; or begin anew at `start_offset`."""

    end_offset: int
    start_offset: int | None = None


def bounds_out_of_range(log_end_offset: int, leader_start_offset: int, leader_end_offset: int) -> NewBounds:
    """What a follower does whose fetch offset is not in the leader's log, by the ends of that log.

    Its own log is longer: it has records that the leader does not have. Its own log ends before the leader's begins:
    nothing of it can be used. Else the leader's log has moved meanwhile, and the follower goes on at its end.
    """
    if leader_end_offset < log_end_offset:
        return NewBounds(leader_end_offset)
    if leader_start_offset > log_end_offset:
        return NewBounds(log_end_offset, leader_start_offset)
    return NewBounds(log_end_offset)
