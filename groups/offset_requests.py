"""OffsetCommit, OffsetFetch and OffsetDelete, in every version.

Version 0 of OffsetCommit and OffsetFetch uses the tree (offsets/zookeeper.py): it knows no members, and any broker
answers. Partitions that are refused before the group is looked up come first in an answer, as in Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from sys import intern
from typing import TYPE_CHECKING

from barnabas.coordinators.append_errors import commit_error
from barnabas.groups.classic import ClassicGroup, State
from barnabas.groups.member import CONSUMER_PROTOCOL_TYPE
from barnabas.groups.runtime import Shard
from barnabas.offsets.journal import Cause
from barnabas.offsets.manager import Offsets
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset, GroupOffsets, TopicPartition
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.parts import in_parts, join
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, chunks

if TYPE_CHECKING:
    from barnabas.groups.coordinator import Context, GroupCoordinator
    from barnabas.protocol.messages import (
        OffsetCommitRequest,
        OffsetCommitResponse,
        OffsetDeleteRequest,
        OffsetDeleteResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
    )

    CommitReply = OffsetCommitResponse | Pending[OffsetCommitResponse]
    FetchReply = OffsetFetchResponse | Pending[OffsetFetchResponse]
    DeleteReply = OffsetDeleteResponse | Pending[OffsetDeleteResponse]
    _Refused = dict[str, list[OffsetDeleteResponse.OffsetDeleteResponsePartition]]  # by topic
    # The answer in case of success, the offsets to store, and the rows of partitions whose metadata is too long.
    _Screened = tuple[OffsetCommitResponse, GroupOffsets, list[OffsetCommitResponse.OffsetCommitResponsePartition]]

NO_OFFSET = CommittedOffset(-1)
ROWS_PER_PIECE = 500  # of a long request: less than a millisecond
ADMIN_CLIENTS = ("barnabas-cli", "adminclient-", "__admin_client")  # the second: Java's, unless it is named
# Errors that say something of the group. Others say that the coordinator moves, or that its log has trouble.
NOTED = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    )
)
REFUSED_OFFSET = "an offset of group %r for %r, partition %d"


# ---- OffsetCommit ----


def offset_commit(coordinator: GroupCoordinator, request: OffsetCommitRequest, context: Context) -> CommitReply:
    """Check the request, then store the offsets. Answered when they are committed."""
    if context.is_long:
        return coordinator.turns.run(_long_commit(coordinator, request, context), to_the_end=True)
    return _commit(coordinator, request, context, _screen_commit(coordinator, request, context))


def _long_commit(
    coordinator: GroupCoordinator, request: OffsetCommitRequest, context: Context
) -> Pieces[OffsetCommitResponse]:
    """Check the rows in pieces. The offsets are stored together, as in Kafka."""
    response = messages.OffsetCommitResponse(topics=[])  # at first only with the rows that are refused
    others = messages.OffsetCommitResponse(topics=[])
    commits: GroupOffsets = {}
    too_long: list[OffsetCommitResponse.OffsetCommitResponsePartition] = []
    for part in in_parts(request, "topics", "partitions", ROWS_PER_PIECE):
        yield
        answer, of_part, too_long_in_part = _screen_commit(coordinator, part, context)
        rest = messages.OffsetCommitResponse(topics=[copy(topic) for topic in answer.topics])
        for topic, not_refused in zip(answer.topics, rest.topics, strict=True):
            not_refused.partitions = [row for row in topic.partitions if not row.error_code]
            topic.partitions = [row for row in topic.partitions if row.error_code]
        join(response, answer, "topics", "partitions")
        join(others, rest, "topics", "partitions")
        for name, offsets in of_part.items():
            commits.setdefault(name, {}).update(offsets)
        too_long += too_long_in_part
    for topic, not_refused in zip(response.topics, others.topics, strict=True):
        topic.partitions += not_refused.partitions
    reply = _commit(coordinator, request, context, (response, commits, too_long))
    return (yield reply) if isinstance(reply, Pending) else reply


def _commit(
    coordinator: GroupCoordinator, request: OffsetCommitRequest, context: Context, screened: _Screened
) -> CommitReply:
    version = context.api_version
    response, commits, too_long = screened
    group_id = request.group_id

    def refuse(error: ErrorCode) -> OffsetCommitResponse:
        coordinator.note_refusal(
            context,
            error,
            "offsets of group %r, member %r, generation %d",
            *(group_id, request.member_id, request.generation_id_or_member_epoch),
        )
        if error in NOTED:
            coordinator.note_refused(context, error, group_id, "commit", request.member_id)
        return _fail(response, error)

    if version == 0:
        return _commit_to_tree(coordinator, group_id, response, commits, too_long)
    if not commits and not too_long:
        return response
    shard = coordinator.shard_of(group_id)
    if isinstance(shard, ErrorCode):
        return refuse(shard)
    if shard.is_held(group_id):
        return coordinator.until_free(shard, group_id).and_then(
            lambda is_free: (
                offset_commit(coordinator, request, context) if is_free else refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            )
        )
    group = shard.groups.get(group_id)
    error = _check_commit(shard, group, request, version)
    if error:
        return refuse(error)
    if group is not None:
        group.extend_session(request.member_id, coordinator.clock.monotonic_ms())
    for row in too_long:
        row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    if not commits:
        return response
    waiting: Pending[OffsetCommitResponse] = Pending()

    def done(error: ErrorCode) -> None:
        waiting.complete(refuse(commit_error(error)) if error else response)

    origin = b"" if coordinator.journal is None else _origin(coordinator, request, context, group)
    coordinator.offsets.put(shard, group_id, commits, done, origin)
    return waiting


def _origin(
    coordinator: GroupCoordinator, request: OffsetCommitRequest, context: Context, group: ClassicGroup | None
) -> bytes:
    """Who commits, for the journal.

    An admin commits like a consumer that assigns its partitions itself: without member and generation. It is an admin
    if the group has had members (such a consumer has a group of its own), or if the client's name says so.
    """
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    cause = Cause.COMMIT
    if (
        generation < 0
        and not member_id
        and (
            (group is not None and group.protocol_type is not None)
            or (context.client_id or "").startswith(ADMIN_CLIENTS)
        )
    ):
        cause = Cause.RESET
    return coordinator.origin(cause, context, generation, member_id)


def _commit_to_tree(
    coordinator: GroupCoordinator,
    group_id: str,
    response: OffsetCommitResponse,
    commits: GroupOffsets,
    too_long: list[OffsetCommitResponse.OffsetCommitResponsePartition],
) -> CommitReply:
    for row in too_long:
        row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    if not commits:
        return response
    if group_id == "":
        return _fail(response, ErrorCode.INVALID_GROUP_ID)  # an empty id names no node
    waiting: Pending[OffsetCommitResponse] = Pending()
    coordinator.legacy_offsets.put(None, group_id, commits, lambda error: waiting.complete(_fail(response, error)))
    return waiting


def _screen_commit(coordinator: GroupCoordinator, request: OffsetCommitRequest, context: Context) -> _Screened:
    """Separate the partitions that do not exist. Returns the answer in case of success, the offsets to store, and the
    rows of partitions whose metadata is too long. Those rows get their error only if the client may commit."""
    version = context.api_version
    topics = coordinator.topics
    metadata_max = coordinator.config.offset_metadata_max_bytes
    now_ms = coordinator.clock.now_ms()
    expire_timestamp = min(now_ms + request.retention_time_ms, _LONG_MAX) if request.retention_time_ms >= 0 else -1
    make_row = messages.OffsetCommitResponse.OffsetCommitResponsePartition
    response = messages.OffsetCommitResponse()
    commits: GroupOffsets = {}
    too_long = []
    for topic in request.topics:
        topic_id = NO_TOPIC_ID
        name: str | None = topic.name
        if version >= 10:
            topic_id = topic.topic_id
            name = topics.topic_name(topic_id)
        known = () if name is None else topics.partition_indexes(name)
        offsets = commits.get(name or "", {})
        refused = []
        fine = []
        for partition in topic.partitions:
            index = partition.partition_index
            if index not in known:
                unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                refused.append(make_row(partition_index=index, error_code=unknown))
                named = name or topic_id.hex()
                coordinator.note_refusal(context, unknown, REFUSED_OFFSET, request.group_id, named, index)
                continue
            metadata = partition.committed_metadata or ""
            if metadata and utf16_length(metadata) > metadata_max:
                row = make_row(partition_index=index)
                fine.append(row)
                too_long.append(row)
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                coordinator.note_refusal(context, error, REFUSED_OFFSET, request.group_id, topic.name, index)
                continue
            fine.append(_STORED[index])
            offsets[index] = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                partition.commit_timestamp if version == 1 and partition.commit_timestamp >= 0 else now_ms,
                expire_timestamp,
                topic_id,
            )
        if offsets:
            assert name is not None
            commits[intern(name)] = offsets  # one string for all groups that read the topic
        response.topics.append(
            messages.OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=refused + fine if refused else fine
            )
        )
    return response, commits, too_long


class _StoredRows(dict[int, "OffsetCommitResponse.OffsetCommitResponsePartition"]):
    """Rows of answers that report success, by partition. Answers share them, so a row must not be changed."""

    __slots__ = ()

    def __missing__(self, index: int) -> OffsetCommitResponse.OffsetCommitResponsePartition:
        row = messages.OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index)
        if index < 4096:
            self[index] = row
        return row


_STORED = _StoredRows()


def _check_commit(shard: Shard, group: ClassicGroup | None, request: OffsetCommitRequest, version: int) -> ErrorCode:
    generation = request.generation_id_or_member_epoch
    if group is not None:
        return group.check_commit(request.member_id, request.group_instance_id, generation)
    if request.group_id in shard.foreign_groups:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation < 0:
        return ErrorCode.NONE  # a group without members: its first commit creates it
    return ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION


def _fail(response: OffsetCommitResponse, error: ErrorCode) -> OffsetCommitResponse:
    """Set the error in all rows of the answer that have none."""
    make_row = messages.OffsetCommitResponse.OffsetCommitResponsePartition
    for topic in response.topics:
        topic.partitions = [
            row if row.error_code else make_row(partition_index=row.partition_index, error_code=error)
            for row in topic.partitions
        ]
    return response


def utf16_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


# ---- OffsetFetch ----

_LONG_MAX = 2**63 - 1
# A requested topic: its name (None: the id is unknown), its id, the partitions.
_Asked = tuple[str | None, bytes, list[int]]


def offset_fetch(coordinator: GroupCoordinator, request: OffsetFetchRequest, context: Context) -> FetchReply:
    """Committed offsets of one group (v0-7) or of several (v8+)."""
    return coordinator.turns.run(_fetch_while_it_owns(coordinator, request, context.api_version))


def _fetch_while_it_owns(
    coordinator: GroupCoordinator, request: OffsetFetchRequest, version: int
) -> Pieces[OffsetFetchResponse]:
    """Fetch again if this broker lost a group between the pieces: another coordinator may have newer offsets."""
    fetch = _fetch_groups if version >= 8 else _fetch_flat
    while True:
        before = coordinator.ownership
        response = yield from fetch(coordinator, request, version)
        if version == 0 or coordinator.ownership == before:
            return response


def _fetch_flat(
    coordinator: GroupCoordinator, request: OffsetFetchRequest, version: int
) -> Pieces[OffsetFetchResponse]:
    asked: list[_Asked] | None = None
    if request.topics is not None:
        asked = [(topic.name, NO_TOPIC_ID, topic.partition_indexes) for topic in request.topics]
    keys = yield from _keys(asked)
    found: Offsets | Pending[Offsets]
    if version > 0:
        found = _get(coordinator, request.group_id, keys, request.require_stable)
    elif request.group_id == "":
        found = Offsets(ErrorCode.INVALID_GROUP_ID, {})
    else:
        known = []
        for piece in chunks(keys or (), ROWS_PER_PIECE):
            yield
            known += [key for key in piece if coordinator.topics.contains(*key)]
        found = coordinator.legacy_offsets.get(None, request.group_id, known)
    if isinstance(found, Pending):
        found = yield found
    assert isinstance(found, Offsets)
    response = messages.OffsetFetchResponse()
    if found.error and version >= 2:
        response.error_code = found.error
        return response
    make_row = messages.OffsetFetchResponse.OffsetFetchResponsePartition
    for name, _, indexes in asked if asked is not None else _all_topics(found):
        topic = messages.OffsetFetchResponse.OffsetFetchResponseTopic(name=name or "")
        response.topics.append(topic)
        for index, committed, error in _offsets_of(found, name, indexes, NO_TOPIC_ID):
            yield
            if version == 0 and not error and committed is NO_OFFSET:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic.partitions.append(
                make_row(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    error_code=error,
                )
            )
    return response


def _fetch_groups(
    coordinator: GroupCoordinator, request: OffsetFetchRequest, version: int
) -> Pieces[OffsetFetchResponse]:
    answers: list[tuple[str, list[_Asked] | None, Offsets | Pending[Offsets]]] = []
    for entry in request.groups:  # ask for all groups first, so that they wait at the same time
        yield
        asked = _asked_of_group(coordinator, entry, version)
        keys = yield from _keys(asked)
        found = _get(coordinator, entry.group_id, keys, request.require_stable)
        answers.append((entry.group_id, asked, found))
    response = messages.OffsetFetchResponse()
    for group_id, asked, found in answers:
        if isinstance(found, Pending):
            found = yield found
        assert isinstance(found, Offsets)
        response.groups.append((yield from _group_answer(coordinator, group_id, asked, found, version)))
    return response


def _asked_of_group(
    coordinator: GroupCoordinator, entry: OffsetFetchRequest.OffsetFetchRequestGroup, version: int
) -> list[_Asked] | None:
    if entry.topics is None:
        return None
    if version < 10:
        return [(topic.name, NO_TOPIC_ID, topic.partition_indexes) for topic in entry.topics]
    topics = coordinator.topics
    return [(topics.topic_name(topic.topic_id), topic.topic_id, topic.partition_indexes) for topic in entry.topics]


def _group_answer(
    coordinator: GroupCoordinator, group_id: str, asked: list[_Asked] | None, found: Offsets, version: int
) -> Pieces[OffsetFetchResponse.OffsetFetchResponseGroup]:
    group = messages.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id)
    if found.error:
        group.error_code = found.error
        return group
    rows = asked
    if rows is None:
        rows = _all_topics(found)
        if version >= 10:  # the answer can name a topic only by its id
            with_ids = [(name, coordinator.topics.topic_id(name or ""), indexes) for name, _, indexes in rows]
            rows = [row for row in with_ids if row[1] != NO_TOPIC_ID]
    make_row = messages.OffsetFetchResponse.OffsetFetchResponsePartitions
    for name, topic_id, indexes in rows:
        told = (name or "") if version < 10 else ""
        topic = messages.OffsetFetchResponse.OffsetFetchResponseTopics(name=told, topic_id=topic_id)
        group.topics.append(topic)
        for index, committed, error in _offsets_of(found, name, indexes, topic_id):
            yield
            topic.partitions.append(
                make_row(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    metadata=committed.metadata,
                    error_code=error,
                )
            )
    return group


def _get(
    coordinator: GroupCoordinator, group_id: str, keys: list[TopicPartition] | None, require_stable: bool
) -> Offsets | Pending[Offsets]:
    shard = coordinator.readable_shard_of(group_id)
    if isinstance(shard, ErrorCode):
        return Offsets(shard, {})
    return coordinator.offsets.get(shard, group_id, keys, require_stable=require_stable)


def _offsets_of(
    found: Offsets, name: str | None, indexes: Iterable[int], topic_id: bytes
) -> Iterator[tuple[int, CommittedOffset, ErrorCode]]:
    """Each partition of a topic with its offset, or with an error."""
    error = found.error or (ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE)
    offsets = found.committed.get(name or "", {})
    for index in indexes:
        committed = offsets.get(index, NO_OFFSET)
        if error:
            yield index, NO_OFFSET, error
        elif (name, index) in found.unstable:
            yield index, NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif topic_id != NO_TOPIC_ID and committed.topic_id not in (NO_TOPIC_ID, topic_id):
            yield index, NO_OFFSET, ErrorCode.NONE  # the offset belongs to an older topic of the same name
        else:
            yield index, committed, ErrorCode.NONE


def _keys(asked: list[_Asked] | None) -> Pieces[list[TopicPartition] | None]:
    if asked is None:
        return None
    keys: dict[TopicPartition, None] = {}
    for name, _, indexes in asked:
        if name is not None:
            for piece in chunks(indexes, ROWS_PER_PIECE):
                keys.update(dict.fromkeys([(name, index) for index in piece]))
                yield
    return list(keys)


def _all_topics(found: Offsets) -> list[_Asked]:
    return [(topic, NO_TOPIC_ID, list(partitions)) for topic, partitions in found.committed.items()]


# ---- OffsetDelete ----


def offset_delete(coordinator: GroupCoordinator, request: OffsetDeleteRequest, context: Context) -> DeleteReply:
    """Forget offsets of topics that no active member of a consumer group reads."""
    if context.is_long:
        return coordinator.turns.run(_long_delete(coordinator, request, context), to_the_end=True)
    refused: _Refused = {}
    wanted: dict[str, list[int]] = {}
    _screen_delete(coordinator, request, refused, wanted)
    return _delete(coordinator, request.group_id, refused, wanted, context)


def _long_delete(
    coordinator: GroupCoordinator, request: OffsetDeleteRequest, context: Context
) -> Pieces[OffsetDeleteResponse]:
    refused: _Refused = {}
    wanted: dict[str, list[int]] = {}
    for part in in_parts(request, "topics", "partitions", ROWS_PER_PIECE):
        yield
        _screen_delete(coordinator, part, refused, wanted)
    reply = _delete(coordinator, request.group_id, refused, wanted, context)
    return (yield reply) if isinstance(reply, Pending) else reply


def _screen_delete(
    coordinator: GroupCoordinator, request: OffsetDeleteRequest, refused: _Refused, wanted: dict[str, list[int]]
) -> None:
    """Separate the partitions that do not exist."""
    make_partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition
    for topic in request.topics:
        for partition in topic.partitions:
            index = partition.partition_index
            if coordinator.topics.contains(topic.name, index):
                wanted.setdefault(topic.name, []).append(index)
            else:
                refused.setdefault(topic.name, []).append(
                    make_partition(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                )


def _delete(
    coordinator: GroupCoordinator, group_id: str, refused: _Refused, wanted: dict[str, list[int]], context: Context
) -> DeleteReply:
    make_partition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition

    def answer(errors: dict[str, ErrorCode]) -> OffsetDeleteResponse:
        rows = {name: list(partitions) for name, partitions in refused.items()}
        for name, indexes in wanted.items():
            rows.setdefault(name, []).extend(
                make_partition(partition_index=index, error_code=errors.get(name, ErrorCode.NONE)) for index in indexes
            )
        make_topic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
        return messages.OffsetDeleteResponse(topics=[make_topic(name=name, partitions=rows[name]) for name in rows])

    if not coordinator.is_active:
        return messages.OffsetDeleteResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if group_id == "":
        return messages.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if not wanted:
        return answer({})
    found = coordinator.shard_of(group_id)
    if isinstance(found, ErrorCode):
        return messages.OffsetDeleteResponse(error_code=found)
    shard = found
    pending: Pending[OffsetDeleteResponse] = Pending()
    coordinator.limit(pending, messages.OffsetDeleteResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def end(response: OffsetDeleteResponse) -> None:
        shard.release(group_id)
        if not pending.done:
            pending.complete(response)

    def remove(errors: dict[str, ErrorCode]) -> None:
        partitions = [(name, index) for name, indexes in wanted.items() if name not in errors for index in indexes]

        def removed(error: ErrorCode) -> None:
            end(messages.OffsetDeleteResponse(error_code=commit_error(error)) if error else answer(errors))

        origin = coordinator.origin(Cause.DELETION, context)
        coordinator.offsets.remove(shard, group_id, partitions, removed, origin)

    def act() -> None:
        if shard.closed or pending.done:  # too late: the client was told that it is not done
            end(messages.OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR))
            return
        group = shard.groups.get(group_id)
        if group is None or group.state is State.DEAD:
            coordinator.if_it_has_offsets(
                shard,
                group_id,
                lambda error: end(messages.OffsetDeleteResponse(error_code=error)),
                lambda: remove({}),
            )
            return
        errors: dict[str, ErrorCode] = {}
        if group.state is not State.EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                end(messages.OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
                return
            errors = {name: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for name in wanted if group.subscribes(name)}
        remove(errors)

    shard.hold(group_id, act)
    return pending
