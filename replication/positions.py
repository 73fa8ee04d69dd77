"""What the leader of a partition says about a position in its log.

A position is an offset, the leader epoch of the record before it, and the id of the topic that it was meant for, as a
group has committed it. The leader tells whether the offset still means the same records, and what lies behind it.

Clients before OffsetCommit v10 name no topic id, so a position of an older topic of the same name is known only by a
leader epoch that the new topic has not reached. But the coordinator removes the offsets of a topic with the topic.
"""

from barnabas.protocol.errors import CorruptBatchError, ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.uuids import ZERO
from barnabas.replication.partition import Partition
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.turns import Pieces
from barnabas.storage.retention import Forecast, forecast
from barnabas.storage.unread import HEADERS_MAX, BothIsolations, count_unread


class PositionInLog(NamedTuple):
    """The answer of a leader. `error`: it cannot tell, and the rest means nothing.

    `of_other_topic`: the position was committed for an older topic of that name. `cut_at`: the log was cut there since,
    below the position, so the records before the position are others than those that were read. `unread` is None if the
    position lies behind the end of the log, or means another topic. `held_until_ms`: until when retention waits at most
    for groups that have not read the record there; None: it does not wait.
    """

    error: ErrorCode = ErrorCode.NONE
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_end_offset: int = -1
    of_other_topic: bool = False
    cut_at: int | None = None
    unread: BothIsolations | None = None
    forecast: Forecast | None = None
    held_until_ms: int | None = None


def look_at(
    manager: ReplicaManager,
    topic: str,
    index: int,
    offset: int,
    *,
    leader_epoch: int = -1,
    topic_id: bytes = ZERO,
    headers_max: int = HEADERS_MAX,
) -> Pieces[PositionInLog]:
    """Look at a position in pieces. `leader_epoch` -1 and `topic_id` zero: the position does not say."""
    partition = _led(manager, topic, index)
    if isinstance(partition, ErrorCode):
        return PositionInLog(partition)
    log = partition.log
    ends = (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset)
    present_id = partition.topic_id or ZERO
    if ZERO not in (topic_id, present_id) and topic_id != present_id:
        return PositionInLog(ErrorCode.NONE, *ends, of_other_topic=True)
    if leader_epoch > partition.leader_epoch:
        return PositionInLog(ErrorCode.UNKNOWN_LEADER_EPOCH)  # as a rule of a deleted topic with more elections
    _, epoch_end = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
    cut_at = epoch_end if 0 <= epoch_end < offset else None
    start = offset if cut_at is None else cut_at
    if start > log.log_end_offset:
        return PositionInLog(ErrorCode.NONE, *ends, cut_at=cut_at)
    try:
        unread = yield from count_unread(log, start, headers_max)
        expected = forecast(log, start) if unread.read_uncommitted.records_max else None
    except (OSError, CorruptBatchError) as error:
        return PositionInLog(log.unreadable(error))
    if _led(manager, topic, index) is not partition:
        return PositionInLog(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    held_until_ms = manager.log_manager.waits.held_until_ms(log, start)
    return PositionInLog(
        ErrorCode.NONE, *ends, cut_at=cut_at, unread=unread, forecast=expected, held_until_ms=held_until_ms
    )


def _led(manager: ReplicaManager, topic: str, index: int) -> Partition | ErrorCode:
    """The partition, if this broker leads it and may say what is committed in it."""
    partition = manager.leader_partition(topic, index)
    if not isinstance(partition, Partition):
        return partition
    if not manager.lease.holds:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if partition.high_watermark < partition.leader_epoch_start_offset:
        return ErrorCode.OFFSET_NOT_AVAILABLE  # a new leader does not know yet how far was committed (KIP-207)
    return partition
