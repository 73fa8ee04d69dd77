"""Removes committed offsets of a group without members, also of topics that are gone.

OffsetDelete refuses a topic that does not exist, and DeleteGroups removes all. An offset is removed only if it is still
the one that the caller has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.coordinators.append_errors import commit_error
from barnabas.groups.classic import State
from barnabas.offsets.manager import Offsets
from barnabas.offsets.records import TopicPartition
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending

if TYPE_CHECKING:
    from barnabas.groups.coordinator import GroupCoordinator
    from barnabas.groups.runtime import Shard


def cleanup(
    coordinator: GroupCoordinator, group_id: str, seen: Mapping[TopicPartition, int], origin: bytes
) -> Pending[ErrorCode]:
    """Remove these offsets, all or none. Completed when the removal is committed.

    NON_EMPTY_GROUP: it has members. GROUP_ID_NOT_FOUND: it does not exist. INVALID_REQUEST: an offset is not as it was
    seen. UNSTABLE_OFFSET_COMMIT: an open transaction has an offset for one of these partitions, which would be lost.
    COORDINATOR_NOT_AVAILABLE: it is not committed in time, and may be later, if it was begun.
    """
    outcome: Pending[ErrorCode] = Pending()
    found = coordinator.shard_of(group_id)
    if isinstance(found, ErrorCode):
        outcome.complete(found)
        return outcome
    shard = found
    coordinator.limit(outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def end(error: ErrorCode) -> None:
        shard.release(group_id)
        if not outcome.done:
            outcome.complete(error)

    def act() -> None:
        error = ErrorCode.REQUEST_TIMED_OUT if outcome.done else _refusal(shard, group_id)
        if error:
            end(error)
            return
        reply = coordinator.offsets.get(shard, group_id, None)
        if isinstance(reply, Pending):
            reply.then(remove)
        else:
            remove(reply)

    def remove(offsets: Offsets) -> None:
        known = offsets.committed
        if offsets.error:
            end(offsets.error)
        elif not known and group_id not in shard.groups:
            end(ErrorCode.GROUP_ID_NOT_FOUND)
        elif any(
            (committed := known.get(topic, {}).get(index)) is None or committed.offset != offset
            for (topic, index), offset in seen.items()
        ):
            end(ErrorCode.INVALID_REQUEST)
        elif not shard.offsets.pending_of_group(group_id).isdisjoint(seen):
            end(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        else:
            coordinator.offsets.remove(shard, group_id, list(seen), lambda error: end(commit_error(error)), origin)

    shard.hold(group_id, act)
    return outcome


def _refusal(shard: Shard, group_id: str) -> ErrorCode:
    if shard.closed:
        return ErrorCode.NOT_COORDINATOR
    if group_id in shard.foreign_groups:  # its members are not known here, so it cannot be called empty
        return ErrorCode.NON_EMPTY_GROUP
    group = shard.groups.get(group_id)
    if group is not None and group.state not in (State.EMPTY, State.DEAD):
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
