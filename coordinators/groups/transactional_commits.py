"""TxnOffsetCommit: offsets that a producer commits in its transaction (KIP-98, KIP-447).

They are written as a batch of the producer, and wait in the table of offsets (offsets/table.py) until the marker of the
transaction. The producer's partition of `__consumer_offsets` must be in the transaction. `Verify` finds that out before
the group is asked, in Kafka's order. Then the member and the generation are checked, if the request names any: a
producer that reads for a member of an older generation is refused, and must abort.

What is not checked, as in Kafka: the state of the group (a rebalance does not end a transaction), and everything about
the member if the request names neither member, nor generation, nor instance (versions 0-2 cannot). Such a producer is
fenced by its transactional id alone.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING

from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.append_errors import commit_error
from barnabas.coordinators.groups.commits import utf16_length, with_ids
from barnabas.coordinators.groups.consumer.commits import check_transactional_commit
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.requests import ROWS_PER_PIECE, Context, Gate, Origins, Refusals
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.shard import Producer
from barnabas.offsets.journal import Cause
from barnabas.offsets.records import (
    CommittedOffset,
    GroupOffsets,
    OffsetCommits,
    PendingCommits,
    TopicPartition,
)
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import Pieces, chunks

if TYPE_CHECKING:
    from barnabas.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

# Whether a partition of `__consumer_offsets` is in the transaction; for clients of transaction version 2 it is added.
Verify = Callable[[int], ErrorCode | Pending[ErrorCode]]

FIRST_VERSION_THAT_KNOWS_LOADING = 2  # older producers could crash by COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
FIRST_VERSION_THAT_KNOWS_ABORTABLE = 4
ONLY_IN_THE_TOPIC = (
    "offsets of group %r in a transaction: they can be kept only in the topic, so this needs offsets.storage=kafka and "
    "dual.commit.enabled=false"
)


class TransactionalCommits:
    """Answers TxnOffsetCommit."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        gate: Gate,
        topics: Topics,
        refusals: Refusals,
        origins: Origins,
    ) -> None:
        self._clock = env.clock
        self._turns = env.turns
        self._config = config
        self._gate = gate
        self._topics = topics
        self._refusals = refusals
        self._origins = origins
        self._is_in_topic_alone = config.offsets_storage != "zookeeper" and not config.dual_commit_enabled

    def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: Context, verify: Verify
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        """Check the request, then write the offsets. Answered when they are in the log of all replicas in sync."""
        return self._turns.run(self._answer(request, context, verify), to_the_end=True)

    def _answer(
        self, request: TxnOffsetCommitRequest, context: Context, verify: Verify
    ) -> Pieces[TxnOffsetCommitResponse]:
        # Of partitions that do not exist: first, as in Kafka's answers.
        errors: list[tuple[TopicPartition, ErrorCode]] = []
        offsets: GroupOffsets = {}
        too_long: set[TopicPartition] = set()
        asked: list[TopicPartition] = []
        now_ms = self._clock.now_ms()
        metadata_max = self._config.offset_metadata_max_bytes
        for topic in request.topics:
            name = intern(topic.name)
            known = self._topics.topics.get(name, ())
            for rows in chunks(topic.partitions, ROWS_PER_PIECE):
                yield
                for row in rows:
                    index, metadata = row.partition_index, row.committed_metadata or ""
                    if index not in known:
                        errors.append(((name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                        continue
                    asked.append((name, index))
                    if metadata and utf16_length(metadata) > metadata_max:
                        too_long.add((name, index))
                        continue
                    offsets.setdefault(name, {})[index] = CommittedOffset(
                        row.committed_offset, row.committed_leader_epoch, metadata, now_ms
                    )
        if asked:
            error = yield from self._commit(request, context, verify, offsets)
            error = for_version(error, context.api_version)
            for keys in chunks(asked, ROWS_PER_PIECE):
                yield
                errors += [
                    (key, ErrorCode.OFFSET_METADATA_TOO_LARGE if key in too_long and not error else error)
                    for key in keys
                ]
        return (yield from response_of(errors))

    def _commit(
        self,
        request: TxnOffsetCommitRequest,
        context: Context,
        verify: Verify,
        offsets: GroupOffsets,
    ) -> Pieces[ErrorCode]:
        group_id = request.group_id
        if not self._gate.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group_id == "":
            return ErrorCode.INVALID_GROUP_ID
        if not self._is_in_topic_alone:
            # An offset in the tree counts at once. Clients take this error for one that no repetition helps against.
            refused = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
            self._refusals.log(context, refused, ONLY_IN_THE_TOPIC, group_id)
            return refused
        if request.producer_id < 0:  # it names no producer, so there is no transaction
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING if request.transactional_id else ErrorCode.INVALID_REQUEST
        shard = self._gate.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        verified = verify(shard.partition)
        error: ErrorCode = (yield verified) if isinstance(verified, Pending) else verified
        if not error:
            error = yield from self._write(request, context, offsets)
        if error:
            what = "offsets of group %r in the transaction of %r, member %r, generation %d"
            who = (group_id, request.transactional_id, request.member_id, request.generation_id_or_member_epoch)
            self._refusals.refuse_commit(context, error, group_id, request.member_id, what, *who)
        return error

    def _write(self, request: TxnOffsetCommitRequest, context: Context, offsets: GroupOffsets) -> Pieces[ErrorCode]:
        group_id = request.group_id
        while True:
            shard = self._gate.shard_of(group_id)
            if isinstance(shard, ErrorCode):
                return shard
            if not shard.is_held(group_id):
                break
            if not (yield shard.until_released(group_id)):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check(shard, request, offsets)
        if error or not offsets:
            return error
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        origin = self._origins.of(Cause.TRANSACTION, context, generation, member_id)
        written: Pending[ErrorCode] = Pending()
        shard.write(
            group_id,
            PendingCommits(OffsetCommits(group_id, offsets, origin), request.producer_id),
            written.complete,
            producer=Producer(request.producer_id, request.producer_epoch),
        )
        error = yield written
        return commit_error(error)

    def _check(self, shard: Shard, request: TxnOffsetCommitRequest, offsets: GroupOffsets) -> ErrorCode:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        group = shard.groups.get(request.group_id)
        if group is not None:
            return group.check_commit(member_id, instance_id, generation, transactional=True)
        consumer = shard.consumer.by_id.get(request.group_id)
        if consumer is not None:
            partitions = with_ids(offsets.items(), self._topics)
            is_fenced = consumer.is_fenced(self._clock.monotonic_ms())
            return check_transactional_commit(
                consumer, member_id, instance_id, generation, partitions, is_fenced=is_fenced
            )
        if request.group_id in shard.foreign_groups:
            names_a_member = generation >= 0 or member_id != "" or instance_id is not None
            return ErrorCode.UNKNOWN_MEMBER_ID if names_a_member else ErrorCode.NONE
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION


def for_version(error: ErrorCode, version: int) -> ErrorCode:
    """The error that this version knows."""
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_VERSION_THAT_KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_THAT_KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def response_of(errors: list[tuple[TopicPartition, ErrorCode]]) -> Pieces[TxnOffsetCommitResponse]:
    """The answer, with a topic where the first of its partitions is."""
    answer = messages.TxnOffsetCommitResponse
    make_row = answer.TxnOffsetCommitResponsePartition
    topics: dict[str, list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]] = {}
    for rows in chunks(errors, ROWS_PER_PIECE):
        yield
        for (name, index), error in rows:
            topics.setdefault(name, []).append(make_row(partition_index=index, error_code=error))
    return answer(
        topics=[
            answer.TxnOffsetCommitResponseTopic(name=name, partitions=partitions) for name, partitions in topics.items()
        ]
    )
