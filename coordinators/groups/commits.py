"""OffsetCommit, in every version: which offsets a member may commit, and where they go.

Version 0 uses the tree (offsets/zookeeper.py): it knows no members, and any broker answers. Partitions that are refused
before the group is looked up come first in an answer, as in Kafka's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from copy import copy
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import commit_error
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.consumer.commits import Partition, check_commit
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.requests import ROWS_PER_PIECE, Context, Gate, Origins, Refusals
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.journal import Cause
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    PARTITION_BYTES,
    POSITION_BYTES,
    CommittedOffset,
    CommittedTopics,
    GroupOffsets,
    OffsetCommits,
    TopicColumns,
)
from barnabas.offsets.zookeeper import ZooKeeperOffsetManager
from barnabas.protocol import messages
from barnabas.protocol.codec import native_codec
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.parts import in_parts, join
from barnabas.protocol.rows import Rows, cut, pad, row_layout
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.protocol.messages import OffsetCommitRequest, OffsetCommitResponse

    CommitReply = OffsetCommitResponse | Pending[OffsetCommitResponse]
    # The answer in case of success, the offsets to store, and the rows of partitions whose metadata is too long.
    _Screened = tuple[OffsetCommitResponse, OffsetCommits, list[OffsetCommitResponse.OffsetCommitResponsePartition]]

ADMIN_CLIENTS: Final = ("barnabas-cli", "adminclient-", "__admin_client")  # the second: Java's, unless it is named
REFUSED_OFFSET: Final = "an offset of group %r for %r, partition %d"
NONE: Final = ErrorCode.NONE
COMMIT: Final = Cause.COMMIT
RESET: Final = Cause.RESET
_LONG_MAX: Final = 2**63 - 1
_cut: Final = cut if native_codec is None else native_codec.cut
_pad: Final = pad if native_codec is None else native_codec.pad


class _Answer:
    """The answer to one OffsetCommit, which may have to wait.

    It is an object, and no functions inside a function: mypyc makes a cycle of those, for the garbage collector.
    """

    __slots__ = ("_context", "_refusals", "_request", "_response", "waiting")

    def __init__(
        self, refusals: Refusals, request: OffsetCommitRequest, context: Context, response: OffsetCommitResponse
    ) -> None:
        """`response`: the answer in case of success."""
        self._refusals = refusals
        self._request = request
        self._context = context
        self._response = response
        self.waiting: Pending[OffsetCommitResponse] = Pending()

    def refuse(self, error: ErrorCode) -> OffsetCommitResponse:
        """Nothing is stored."""
        request = self._request
        group_id, member_id = request.group_id, request.member_id
        what = "offsets of group %r, member %r, generation %d"
        who = (group_id, member_id, request.generation_id_or_member_epoch)
        self._refusals.refuse_commit(self._context, error, group_id, member_id, what, *who)
        return _fail(self._response, error)

    def done(self, error: ErrorCode) -> None:
        """The offsets are committed, or have failed."""
        self.waiting.complete(self.refuse(commit_error(error)) if error else self._response)


class Commits:
    """Answers OffsetCommit. `tree` is where version 0 commits, and the others if `offsets.storage` says so."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        gate: Gate,
        topics: Topics,
        tree: ZooKeeperOffsetManager,
        refusals: Refusals,
        origins: Origins,
    ) -> None:
        self._clock = env.clock
        self._turns = env.turns
        self._config = config
        self._gate = gate
        self._topics = topics
        self._tree = tree
        self._is_in_topic = config.offsets_storage != "zookeeper"
        self._is_in_both = self._is_in_topic and config.dual_commit_enabled
        self._refusals = refusals
        self._origins = origins
        # Not looked up in the module for each commit. (The classes are made here, for brokers alone.)
        self._answer = messages.OffsetCommitResponse
        self._answer_topic = messages.OffsetCommitResponse.OffsetCommitResponseTopic
        self._answer_row = messages.OffsetCommitResponse.OffsetCommitResponsePartition

    def offset_commit(self, request: OffsetCommitRequest, context: Context) -> CommitReply:
        """Check the request, then store the offsets. Answered when they are committed."""
        if context.is_long:
            return self._turns.run(self._long_commit(request, context), to_the_end=True)
        return self._commit(request, context, self._screen_commit(request, context))

    def _long_commit(self, request: OffsetCommitRequest, context: Context) -> Pieces[OffsetCommitResponse]:
        """Check the rows in pieces. The offsets are stored together, as in Kafka."""
        response = messages.OffsetCommitResponse(topics=[])  # at first only with the rows that are refused
        others = messages.OffsetCommitResponse(topics=[])
        commits: GroupOffsets = {}
        too_long: list[OffsetCommitResponse.OffsetCommitResponsePartition] = []
        for part in in_parts(request, "topics", "partitions", ROWS_PER_PIECE):
            yield
            answer, of_part, too_long_in_part = self._screen_commit(part, context)
            rest = messages.OffsetCommitResponse(topics=[copy(topic) for topic in answer.topics])
            for topic, not_refused in zip(answer.topics, rest.topics, strict=True):
                not_refused.partitions = [row for row in topic.partitions if not row.error_code]
                topic.partitions = [row for row in topic.partitions if row.error_code]
            join(response, answer, "topics", "partitions")
            join(others, rest, "topics", "partitions")
            for name, offsets in of_part.offsets.items():
                commits.setdefault(name, {}).update(offsets)
            too_long += too_long_in_part
        for topic, not_refused in zip(response.topics, others.topics, strict=True):
            topic.partitions = [*topic.partitions, *not_refused.partitions]
        reply = self._commit(request, context, (response, OffsetCommits(request.group_id, commits), too_long))
        return (yield reply) if isinstance(reply, Pending) else reply

    def _commit(self, request: OffsetCommitRequest, context: Context, screened: _Screened) -> CommitReply:
        version = context.api_version
        response, records, too_long = screened
        group_id = request.group_id
        if version == 0:
            return self._commit_to_tree(group_id, response, records, too_long)
        if not records.count and not too_long:
            return response
        answer = _Answer(self._refusals, request, context, response)
        shard = self._gate.shard_of(group_id)
        if not isinstance(shard, Shard):
            return answer.refuse(shard)
        if shard.is_held(group_id):
            go_on = partial(self._commit_if_free, request, context, screened, answer)
            return shard.until_released(group_id).and_then(go_on)
        group = shard.groups.get(group_id)
        error = self._check(shard, group, request, version, records)
        if error:
            return answer.refuse(error)
        if group is not None and request.member_id:
            group.extend_session(request.member_id, self._clock.monotonic_ms())
        for row in too_long:
            row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if not records.count:
            return response
        if self._origins.wanted:
            is_consumer_group = group_id in shard.consumer.by_id
            records.origin = self._origin(request, context, group, is_consumer_group=is_consumer_group)
        if not self._is_in_topic:
            self._tree.put(records, answer.done)
        elif self._is_in_both:
            shard.write(group_id, records, partial(self._put_in_tree, records, answer))
        else:
            shard.write(group_id, records, answer.done)
        return answer.waiting

    def _commit_if_free(
        self, request: OffsetCommitRequest, context: Context, screened: _Screened, answer: _Answer, is_free: bool
    ) -> CommitReply:
        """The group is not held any more, or it was held for too long."""
        if is_free:
            return self._commit(request, context, screened)
        return answer.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _put_in_tree(self, records: OffsetCommits, answer: _Answer, error: ErrorCode) -> None:
        """The offsets are in the topic. After an error they may be, too; the client commits again."""
        if error:
            answer.done(error)
        else:
            self._tree.put(records, answer.done)

    def _check(
        self,
        shard: Shard,
        group: ClassicGroup | None,
        request: OffsetCommitRequest,
        version: int,
        records: OffsetCommits,
    ) -> ErrorCode:
        generation = request.generation_id_or_member_epoch
        if group is not None:
            return group.check_commit(request.member_id, request.group_instance_id, generation)
        consumer = shard.consumer.by_id.get(request.group_id)
        if consumer is not None:
            is_fenced = consumer.of_group.reset_epoch >= 0 and consumer.is_fenced(self._clock.monotonic_ms())
            partitions = with_ids(records.partitions(), self._topics)
            return check_commit(consumer, request.member_id, generation, version, partitions, is_fenced=is_fenced)
        if request.group_id in shard.foreign_groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation < 0:
            return NONE  # a group without members: its first commit creates it
        return ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION

    def _origin(
        self,
        request: OffsetCommitRequest,
        context: Context,
        group: ClassicGroup | None,
        *,
        is_consumer_group: bool,
    ) -> bytes:
        """Who commits, for the journal.

        An admin commits like a consumer that assigns its partitions itself: without member and generation. It is an
        admin if the group has had members (such a consumer has a group of its own), or if the client's name says so.
        """
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        cause = COMMIT
        if (
            generation < 0
            and not member_id
            and (
                (group is not None and group.rebalance.protocol_type is not None)
                or is_consumer_group
                or (context.client_id or "").startswith(ADMIN_CLIENTS)
            )
        ):
            cause = RESET
        return self._origins.of(cause, context, generation, member_id)

    def _commit_to_tree(
        self,
        group_id: str,
        response: OffsetCommitResponse,
        records: OffsetCommits,
        too_long: list[OffsetCommitResponse.OffsetCommitResponsePartition],
    ) -> CommitReply:
        for row in too_long:
            row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        if not records.count:
            return response
        if group_id == "":
            return _fail(response, ErrorCode.INVALID_GROUP_ID)  # an empty id names no node
        waiting: Pending[OffsetCommitResponse] = Pending()
        self._tree.put(records, lambda error: waiting.complete(_fail(response, error)))
        return waiting

    def _screen_commit(self, request: OffsetCommitRequest, context: Context) -> _Screened:
        """Separate the partitions that do not exist.

        Rows of partitions whose metadata is too long get their error only if the client may commit.
        """
        version = context.api_version
        now_ms = self._clock.now_ms()
        expire_timestamp = min(now_ms + request.retention_time_ms, _LONG_MAX) if request.retention_time_ms >= 0 else -1
        make_topic, make_row = self._answer_topic, self._answer_row
        response = self._answer()
        commits: CommittedTopics = {}
        too_long = []
        for topic in request.topics:
            topic_id = topic.topic_id if version >= 10 else NO_TOPIC_ID
            name = self._topics.topic_name(topic_id) if version >= 10 else topic.name
            known = self._topics.topics.get(name or "", ())
            found = commits.get(name or "")
            rows: Any = topic.partitions
            if found is None and name is not None and type(rows) is Rows:
                columns = _columns(rows, name, topic_id, known)
                if columns is not None:
                    commits[columns.topic] = columns
                    stored = _stored_rows(columns.partitions, version)
                    response.topics.append(make_topic(name=topic.name, topic_id=topic.topic_id, partitions=stored))
                    continue
            offsets = found.offsets(now_ms) if isinstance(found, TopicColumns) else found or {}
            refused = []
            fine = []
            for partition in rows:
                index = partition.partition_index
                if index not in known:
                    error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    refused.append(make_row(partition_index=index, error_code=error))
                    self._refusals.log(context, error, REFUSED_OFFSET, request.group_id, name or topic_id.hex(), index)
                    continue
                metadata = partition.committed_metadata or ""
                if metadata and utf16_length(metadata) > self._config.offset_metadata_max_bytes:
                    too_long.append(make_row(partition_index=index))
                    fine.append(too_long[-1])
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                    self._refusals.log(context, error, REFUSED_OFFSET, request.group_id, name, index)
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
            if known and not rows:
                continue  # as Kafka's answer, which says nothing of it
            response.topics.append(
                make_topic(name=topic.name, topic_id=topic.topic_id, partitions=refused + fine if refused else fine)
            )
        return response, OffsetCommits(request.group_id, commits, b"", now_ms), too_long


def _columns(partitions: Rows, topic: str, topic_id: bytes, known: Collection[int]) -> TopicColumns | None:
    """The partitions of a topic in a commit; None: some do not exist, or are there twice."""
    columns = TopicColumns(
        intern(topic), topic_id, *_cut(partitions.data, partitions.layout.size_bytes, PARTITION_BYTES, POSITION_BYTES)
    )
    numbers = columns.numbers()
    distinct = set(numbers)
    return columns if len(distinct) == len(numbers) and distinct.issubset(known) else None


def _stored_rows(partitions: bytes, version: int) -> Any:
    """The rows of an answer that report success, as `Rows`."""
    layout = row_layout(messages.OffsetCommitResponse, "OffsetCommitResponsePartition", version)
    assert layout is not None
    data = _pad(partitions, PARTITION_BYTES, layout.size_bytes)
    return Rows(layout, data, len(partitions) // PARTITION_BYTES)


def with_ids(commits: Iterable[tuple[str, Iterable[int]]], topics: Topics) -> Iterator[Partition]:
    """The partitions of a commit, with the ids of their topics."""
    for topic, offsets in commits:
        topic_id = topics.topic_id(topic)
        yield from ((topic_id, index) for index in offsets)


class _StoredRows(dict[int, "OffsetCommitResponse.OffsetCommitResponsePartition"]):
    """Rows of answers that report success, by partition. Answers share them, so a row must not be changed."""

    __slots__ = ()

    def __missing__(self, index: int) -> OffsetCommitResponse.OffsetCommitResponsePartition:
        row = messages.OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index)
        if index < 4096:
            self[index] = row
        return row


_STORED: Final = _StoredRows()


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
    """The length of a text as Java counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
