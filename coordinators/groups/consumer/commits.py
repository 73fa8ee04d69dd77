"""Who may commit and fetch offsets of a consumer group: members in their epoch, and anybody while it has no members."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import ConsumerMember
from barnabas.protocol.errors import ErrorCode

FIRST_VERSION_WITH_MEMBER_EPOCH = 9  # of OffsetCommit

# Topic id and partition.
Partition = tuple[bytes, int]


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    version: int,
    partitions: Iterable[Partition],
    *,
    is_fenced: bool = False,
) -> ErrorCode:
    """Whether such an OffsetCommit is allowed. `is_fenced`: there was a live reset lately (live_reset.py)."""
    if epoch < 0 and not group.members:
        return ErrorCode.NONE if not is_fenced else ErrorCode.UNKNOWN_MEMBER_ID
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if version < FIRST_VERSION_WITH_MEMBER_EPOCH and not member.is_classic:
        return ErrorCode.UNSUPPORTED_VERSION
    if is_fenced and member.is_classic:
        partitions = list(partitions)  # they are looked at twice
        if not _has_all(member, partitions):
            return ErrorCode.ILLEGAL_GENERATION
    return _check_epoch(member, epoch, partitions)


def check_transactional_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[Partition],
    *,
    is_fenced: bool = False,
) -> ErrorCode:
    """Whether such a TxnOffsetCommit is allowed. A client that names no member may, but not just after a live reset."""
    if group.members and epoch == -1 and member_id == "" and instance_id is None:
        return ErrorCode.NONE
    version = FIRST_VERSION_WITH_MEMBER_EPOCH
    error = check_commit(group, member_id, epoch, version, partitions, is_fenced=is_fenced)
    return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Whether such an OffsetFetch is allowed."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == member.epoch else _stale(member)


def _check_epoch(member: ConsumerMember, epoch: int, partitions: Iterable[Partition]) -> ErrorCode:
    """An older epoch will do for partitions that the member has had since then (KIP-1251)."""
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch > member.epoch:
        return _stale(member)
    assigned, revoking = member.current.assigned, member.current.revoking
    for topic_id, partition in partitions:
        since = assigned.get(topic_id, {}).get(partition, revoking.get(topic_id, {}).get(partition))
        if since is None or epoch < since:
            return _stale(member)
    return ErrorCode.NONE


def _has_all(member: ConsumerMember, partitions: Iterable[Partition]) -> bool:
    assigned = member.current.assigned
    return all(partition in assigned.get(topic_id, ()) for topic_id, partition in partitions)


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
