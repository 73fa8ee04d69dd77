"""Removal of committed offsets, and of groups: OffsetDelete, DeleteGroups, and the cleanup of the HTTP API.

Each decides from the absence of members or offsets, so it takes the group with `Shard.hold`, and looks then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from barnabas.coordinators.append_errors import commit_error
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE
from barnabas.coordinators.groups.requests import ROWS_PER_PIECE, Asker, Context, Gate, Origins
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.states import State
from barnabas.offsets.journal import Cause
from barnabas.offsets.manager import OffsetManager, Offsets
from barnabas.offsets.records import TopicPartition
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.parts import in_parts
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, Turns

if TYPE_CHECKING:
    from barnabas.protocol.messages import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
    )

    DeleteReply = OffsetDeleteResponse | Pending[OffsetDeleteResponse]
    _Refused = dict[str, list[OffsetDeleteResponse.OffsetDeleteResponsePartition]]  # by topic

logger = logging.getLogger("barnabas.groups")


class Removals:
    """Removes offsets and groups. `offsets` is the storage that `offsets.storage` names."""

    def __init__(self, turns: Turns, gate: Gate, topics: Topics, offsets: OffsetManager, origins: Origins) -> None:
        self._turns = turns
        self._gate = gate
        self._topics = topics
        self._offsets = offsets
        self._origins = origins

    # ---- OffsetDelete ----

    def offset_delete(self, request: OffsetDeleteRequest, context: Context) -> DeleteReply:
        """Forget offsets of topics that no active member of a consumer group reads."""
        if context.is_long:
            return self._turns.run(self._long_delete(request, context), to_the_end=True)
        refused: _Refused = {}
        wanted: dict[str, list[int]] = {}
        self._screen_delete(request, refused, wanted)
        return self._delete(request.group_id, refused, wanted, context)

    def _long_delete(self, request: OffsetDeleteRequest, context: Context) -> Pieces[OffsetDeleteResponse]:
        refused: _Refused = {}
        wanted: dict[str, list[int]] = {}
        for part in in_parts(request, "topics", "partitions", ROWS_PER_PIECE):
            yield
            self._screen_delete(part, refused, wanted)
        reply = self._delete(request.group_id, refused, wanted, context)
        return (yield reply) if isinstance(reply, Pending) else reply

    def _screen_delete(self, request: OffsetDeleteRequest, refused: _Refused, wanted: dict[str, list[int]]) -> None:
        """Separate the partitions that do not exist."""
        make_partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition
        for topic in request.topics:
            for partition in topic.partitions:
                index = partition.partition_index
                if self._topics.contains(topic.name, index):
                    wanted.setdefault(topic.name, []).append(index)
                else:
                    refused.setdefault(topic.name, []).append(
                        make_partition(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    )

    def _delete(self, group_id: str, refused: _Refused, wanted: dict[str, list[int]], context: Context) -> DeleteReply:
        make_partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition

        def answer(errors: dict[str, ErrorCode]) -> OffsetDeleteResponse:
            rows = {name: list(partitions) for name, partitions in refused.items()}
            for name, indexes in wanted.items():
                rows.setdefault(name, []).extend(
                    make_partition(partition_index=index, error_code=errors.get(name, ErrorCode.NONE))
                    for index in indexes
                )
            make_topic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
            return messages.OffsetDeleteResponse(topics=[make_topic(name=name, partitions=rows[name]) for name in rows])

        if not self._gate.is_active:
            return _refused_delete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group_id == "":
            return _refused_delete(ErrorCode.INVALID_GROUP_ID)
        shard = self._gate.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return _refused_delete(shard)

        def remove(end: Callable[[OffsetDeleteResponse], None], errors: dict[str, ErrorCode]) -> None:
            partitions = [(name, index) for name, indexes in wanted.items() if name not in errors for index in indexes]

            def removed(error: ErrorCode) -> None:
                end(_refused_delete(commit_error(error)) if error else answer(errors))

            origin = self._origins.of(Cause.DELETION, context)
            self._offsets.remove(shard, group_id, partitions, removed, origin)

        def act(end: Callable[[OffsetDeleteResponse], None]) -> None:
            consumer = shard.consumer.by_id.get(group_id)
            if consumer is not None:
                remove(end, {name: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for name in wanted if consumer.subscribes(name)})
                return
            group = shard.groups.get(group_id)
            if group is None or group.state is State.DEAD:
                self._if_it_has_offsets(
                    shard, group_id, lambda error: end(_refused_delete(error)), lambda: remove(end, {})
                )
                return
            errors: dict[str, ErrorCode] = {}
            if group.state is not State.EMPTY:
                if group.rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE:
                    end(_refused_delete(ErrorCode.NON_EMPTY_GROUP))
                    return
                errors = {
                    name: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for name in wanted if group.rebalance.subscribes(name)
                }
            remove(end, errors)

        late = _refused_delete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard.alone(group_id, late, _refused_delete(ErrorCode.NOT_COORDINATOR), act)

    # ---- DeleteGroups ----

    def delete_groups(
        self, request: DeleteGroupsRequest, context: Context
    ) -> DeleteGroupsResponse | Pending[DeleteGroupsResponse]:
        """DeleteGroups: removes empty groups with all their offsets. A group that is named twice is answered once."""
        origin = self._origins.of(Cause.DELETION, context)
        return self._turns.run(self._delete_groups(list(dict.fromkeys(request.groups_names)), origin), to_the_end=True)

    def _delete_groups(self, group_ids: list[str], origin: bytes) -> Pieces[DeleteGroupsResponse]:
        outcomes: list[Pending[ErrorCode]] = []
        for group_id in group_ids:
            yield
            shard = self._gate.shard_of(group_id)
            if isinstance(shard, ErrorCode):
                outcomes.append(Pending.of(shard))
            else:
                outcomes.append(self._delete_group(shard, group_id, origin))
        result = messages.DeleteGroupsResponse.DeletableGroupResult
        response = messages.DeleteGroupsResponse()
        for group_id, outcome in zip(group_ids, outcomes, strict=True):
            response.results.append(result(group_id=group_id, error_code=(yield outcome)))
        return response

    def _delete_group(self, shard: Shard, group_id: str, origin: bytes) -> Pending[ErrorCode]:
        def act(end: Callable[[ErrorCode], None]) -> None:
            def removed(error: ErrorCode) -> None:
                end(commit_error(error))

            error = _refusal(shard, group_id)
            if error:
                end(error)
                return
            group = shard.groups.get(group_id)
            if group_id not in shard.consumer.by_id and (group is None or group.state is State.DEAD):
                self._if_it_has_offsets(
                    shard, group_id, end, lambda: self._offsets.remove(shard, group_id, None, removed, origin)
                )
                return
            logger.info("group %s: deleted", group_id)
            both: tuple[Pending[ErrorCode], Pending[ErrorCode]] = (Pending(), Pending())
            Pending.all(both).then(lambda errors: removed(next(filter(None, errors), ErrorCode.NONE)))
            # Both writes go out in one pass of the loop.
            self._offsets.remove(shard, group_id, None, both[0].complete, origin)
            shard.remove_group(group_id, both[1].complete)

        return shard.alone(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, act)

    def _if_it_has_offsets(
        self, shard: Shard, group_id: str, otherwise: Callable[[ErrorCode], None], action: Callable[[], None]
    ) -> None:
        """Call `action` if the group has offsets, else `otherwise`. A group that only commits exists by its offsets."""

        def found(offsets: Offsets) -> None:
            if offsets.error or not offsets.committed:
                otherwise(offsets.error or ErrorCode.GROUP_ID_NOT_FOUND)
            else:
                action()

        reply = self._offsets.get(shard, group_id, None)
        if isinstance(reply, Pending):
            reply.then(found)
        else:
            found(reply)

    # ---- cleanup ----

    def cleanup(self, group_id: str, seen: Mapping[TopicPartition, int], asker: Asker) -> Pending[ErrorCode]:
        """Remove these offsets of a group without members, all or none. Completed when the removal is committed.

        Unlike OffsetDelete it takes topics that are gone. An offset is removed only if it is still the one that the
        caller has seen.

        NON_EMPTY_GROUP: it has members. GROUP_ID_NOT_FOUND: it does not exist. INVALID_REQUEST: an offset is not as it
        was seen. UNSTABLE_OFFSET_COMMIT: an open transaction has an offset for one of these partitions, which would be
        lost. COORDINATOR_NOT_AVAILABLE: it is not committed in time, and may be later, if it was begun.
        """
        shard = self._gate.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return Pending.of(shard)
        origin = self._origins.of(Cause.DELETION, asker)

        def act(end: Callable[[ErrorCode], None]) -> None:
            error = _refusal(shard, group_id)
            if error:
                end(error)
                return
            reply = self._offsets.get(shard, group_id, None)
            if isinstance(reply, Pending):
                reply.then(lambda offsets: remove(end, offsets))
            else:
                remove(end, reply)

        def remove(end: Callable[[ErrorCode], None], offsets: Offsets) -> None:
            known = offsets.committed
            if offsets.error:
                end(offsets.error)
            elif not known and group_id not in shard.groups and group_id not in shard.consumer.by_id:
                end(ErrorCode.GROUP_ID_NOT_FOUND)
            elif any(
                (committed := known.get(topic, {}).get(index)) is None or committed.offset != offset
                for (topic, index), offset in seen.items()
            ):
                end(ErrorCode.INVALID_REQUEST)
            elif not shard.offsets.pending_of_group(group_id).isdisjoint(seen):
                end(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                self._offsets.remove(shard, group_id, list(seen), lambda error: end(commit_error(error)), origin)

        return shard.alone(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, act)


def _refused_delete(error: ErrorCode) -> OffsetDeleteResponse:
    return messages.OffsetDeleteResponse(error_code=error)


def _refusal(shard: Shard, group_id: str) -> ErrorCode:
    """NON_EMPTY_GROUP if the group may have members."""
    if group_id in shard.foreign_groups:  # its members are not known here, so it cannot be called empty
        return ErrorCode.NON_EMPTY_GROUP
    group = shard.groups.get(group_id)
    if group is not None and group.state not in (State.EMPTY, State.DEAD):
        return ErrorCode.NON_EMPTY_GROUP
    consumer = shard.consumer.by_id.get(group_id)
    if consumer is not None and consumer.members:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
