"""Produce (key 0), versions 3-13. Versions 0-2 are announced and refused, as Kafka 4 does, because librdkafka looks
for version 0.

acks=1 is answered without waiting. A request with acks=all is parked once for all its partitions. acks=0 gets no
answer. Transactional batches are taken if the partition is in the producer's transaction (`transactional_writes.py`).
If the coordinator of the transaction must be asked first, the whole request waits for its answer, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from barnabas.broker import transactional_writes
from barnabas.broker.access import records as records_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import CLOSE, Reply, RequestContext, api
from barnabas.broker.services import Services
from barnabas.broker.transactional_writes import Refusal
from barnabas.config.topic import TopicConfig
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEAD,
    HEADER_BYTES,
    INT32,
    MAGIC,
    PREFIX_BYTES,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ProduceRequest, ProduceResponse
from barnabas.protocol.parts import count_rows, in_parts, join
from barnabas.runtime.pending import CarriedOut, Pending
from barnabas.runtime.ports import Buffer
from barnabas.runtime.turns import Pieces, chunks
from barnabas.storage.validation import (
    CONVERTED_AT_ONCE_BYTES_MAX,
    OPENED_AT_ONCE_MAX,
    Appendable,
    AppendOrigin,
    AppendResult,
    takes_long,
    validate_for_leader,
)

ADMIN_CLIENT_ID: Final = "__admin_client"  # the only client that may write to internal topics
SMALLEST_LENGTHS: Final = {0: 14, 1: 14, 2: 49}  # by magic: the smallest length of a batch or message, in bytes
ATTRIBUTES_LOW: Final = ATTRIBUTES_AT + 1  # the position of the byte that holds the codec
ZSTD: Final = 4
APPENDS_PER_PIECE = 100  # about a millisecond
COMPRESSED_PER_PIECE: Final = 4
FIRST_VERSION_WITH_ZSTD: Final = 7
REFUSED_RECORDS: Final = "records for %r, partition %d"
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
FIRST_VERSION_WITH_LEADERS: Final = 10

Answer = ProduceResponse.PartitionProduceResponse
_failed = each_row(also={"base_offset": -1}, topic_data="responses", partition_data="partition_responses")


@api(ApiKey.PRODUCE, versions=(3, 13), access=records_access.produce, announced=(0, 13), failure=_failed)
def produce(services: Services, request: ProduceRequest, context: RequestContext) -> Reply:
    """Append to each partition. The answer goes out when the outcome of all is known."""
    if context.is_long and count_rows(request, "topic_data", "partition_data") > APPENDS_PER_PIECE:
        return services.env.turns.run(_produce_in_parts(services, request, context), to_the_end=True)
    version = context.api_version
    acks = request.acks
    acks_error = ErrorCode.NONE if -1 <= acks <= 1 else ErrorCode.INVALID_REQUIRED_ACKS
    entries: list[tuple[str, int, Buffer]] = []
    places: list[tuple[str, int]] = []  # topic and partition of each entry, for the answer
    answers: list[ProduceResponse.PartitionProduceResponse] = []  # of each entry
    topics: list[ProduceResponse.TopicProduceResponse] = []
    has_error = has_large = has_transactional = False
    cache = services.metadata_cache
    for topic in request.topic_data:
        name: str | None = topic.name
        topic_error = ErrorCode.NONE
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            name = cache.topic_name(topic.topic_id)
            if name is None:
                topic_error = ErrorCode.UNKNOWN_TOPIC_ID
        of_topic: list[ProduceResponse.PartitionProduceResponse] = []
        for partition in topic.partition_data:
            records = partition.records
            error = topic_error or unreadable(records, version) or acks_error
            answer = Answer(index=partition.index)
            of_topic.append(answer)
            if error:
                if name is not None and cache.partition(name, partition.index) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # Kafka says this first
                answer.error_code = error
                answer.base_offset = -1
                has_error = True
                services.refusals.note(context, error, REFUSED_RECORDS, name or topic.topic_id.hex(), partition.index)
            else:
                assert name is not None
                assert records is not None
                if (
                    len(records) > CONVERTED_AT_ONCE_BYTES_MAX
                    or INT32.unpack_from(records, RECORD_COUNT_AT)[0] > OPENED_AT_ONCE_MAX
                ):
                    has_large = True
                if records[ATTRIBUTES_LOW] & TRANSACTIONAL:
                    has_transactional = True
                entries.append((name, partition.index, records))
                places.append((name, partition.index))
                answers.append(answer)
        topics.append(
            ProduceResponse.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=of_topic)
        )
    response = ProduceResponse(responses=topics)
    if has_transactional:
        return _append_transactional(
            services, request, context, response, entries, places, answers, has_error, has_large
        )
    return _append(services, request, context, response, entries, places, answers, has_error, has_large)


def _append_transactional(
    services: Services,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    entries: list[tuple[str, int, Buffer]],
    places: list[tuple[str, int]],
    answers: list[Answer],
    has_error: bool,
    has_large: bool,
) -> Reply:
    """Append what is in the producer's transaction, and refuse the rest."""
    refused = transactional_writes.refused(services, request, context.api_version, entries)
    if isinstance(refused, Pending):
        entries = [(topic, index, context.kept(records)) for topic, index, records in entries]
        context.keep_frame()

        # Its records are not in the logs yet: the requests behind it wait, so batches stay in their order.
        return refused.and_then(
            lambda refused: _append(
                *(services, request, context, response, entries, places, answers),
                _refuse(services, context, refused, entries, places, answers) or has_error,
                has_large,
            )
        )
    if refused:
        has_error = _refuse(services, context, refused, entries, places, answers) or has_error
    return _append(services, request, context, response, entries, places, answers, has_error, has_large)


def _refuse(
    services: Services,
    context: RequestContext,
    refused: list[Refusal],
    entries: list[tuple[str, int, Buffer]],
    places: list[tuple[str, int]],
    answers: list[Answer],
) -> bool:
    """Answer entries that must not be appended, and take them out; returns whether there were any."""
    for slot, error, message in reversed(refused):
        services.refusals.note(context, error, REFUSED_RECORDS, *places[slot])
        answers[slot].error_code = error
        answers[slot].error_message = message
        answers[slot].base_offset = -1
        del entries[slot], places[slot], answers[slot]
    return bool(refused)


def _append(
    services: Services,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    entries: list[tuple[str, int, Buffer]],
    places: list[tuple[str, int]],
    answers: list[Answer],
    has_error: bool,
    has_large: bool,
) -> Reply:
    acks = request.acks
    if not entries:
        return response if acks else CLOSE if has_error else None
    may_be_internal = context.client_id == ADMIN_CLIENT_ID

    def append(piece: Sequence[tuple[str, int, Appendable]]) -> list[AppendResult] | Pending[list[AppendResult]]:
        return services.replica_manager.append(
            piece,
            required_acks=acks,
            timeout_ms=request.timeout_ms,
            origin=AppendOrigin.CLIENT,
            internal_topics_allowed=may_be_internal,
        )

    def answer_to(results: list[AppendResult]) -> Reply:
        if acks == 0:
            refused = [(place, result) for place, result in zip(places, results, strict=True) if result.error]
            for place, result in refused:
                note_refusal(services, context, place, result)
            return CLOSE if has_error or refused else None
        fill(services, response, places, answers, results, context)
        return response

    long_slots = slots_that_take_long(services, entries) if has_large else {}
    if long_slots or len(entries) > appends_per_piece(entries):
        kept = [(topic, index, context.kept(records)) for topic, index, records in entries]
        work = append_in_pieces(services, kept, long_slots, appends_per_piece(kept), append, answer_to)
        return services.env.turns.run(work, to_the_end=True)
    outcome = append(entries)
    # The records are in the logs, and the answer waits for replicas.
    return outcome.map(answer_to, CarriedOut) if isinstance(outcome, Pending) else answer_to(outcome)


def _produce_in_parts(services: Services, request: ProduceRequest, context: RequestContext) -> Pieces[Reply]:
    """Handle a request of very many partitions as several requests, and answer when all are done."""
    if context.frame_is_lent:  # so it is not large
        for topic in request.topic_data:
            for partition in topic.partition_data:
                partition.records = partition.records and context.kept(partition.records)
        context.keep_frame()
    replies: list[Reply] = []
    for part in in_parts(request, "topic_data", "partition_data", APPENDS_PER_PIECE):
        yield
        replies.append(produce(services, part, context))
    response = ProduceResponse(responses=[])
    is_refused = False
    for reply in replies:
        answer = (yield reply) if isinstance(reply, Pending) else reply
        if isinstance(answer, ProduceResponse):
            join(response, answer, "responses", "partition_responses")
            known = {endpoint.node_id for endpoint in response.node_endpoints}
            response.node_endpoints += [each for each in answer.node_endpoints if each.node_id not in known]
        else:
            is_refused = is_refused or answer is CLOSE
    return response if request.acks else CLOSE if is_refused else None


def appends_per_piece(entries: Sequence[tuple[str, int, Buffer]]) -> int:
    """How many entries are appended at a time: few if some are compressed, because unpacking may take long."""
    if len(entries) <= COMPRESSED_PER_PIECE:
        return APPENDS_PER_PIECE
    is_compressed = any(records[ATTRIBUTES_LOW] & CODEC_MASK for *_, records in entries)
    return COMPRESSED_PER_PIECE if is_compressed else APPENDS_PER_PIECE


def slots_that_take_long(services: Services, entries: Sequence[tuple[str, int, Buffer]]) -> dict[int, TopicConfig]:
    """Which entries take long to check, with the settings of their topics."""
    found = {}
    for slot, (topic, index, records) in enumerate(entries):
        log = services.log_manager.get(topic, index)
        if log is not None and takes_long(records, log.config):
            found[slot] = log.config
    return found


def append_in_pieces(
    services: Services,
    entries: Sequence[tuple[str, int, Buffer]],
    long_slots: Mapping[int, TopicConfig],
    piece_size: int,
    append: Callable[[Sequence[tuple[str, int, Appendable]]], list[AppendResult] | Pending[list[AppendResult]]],
    answer_to: Callable[[list[AppendResult]], Reply],
) -> Pieces[Reply]:
    """Check in a thread the batches that take long, then append to `piece_size` partitions at a time.

    The connection handles no later request meanwhile, so a producer's batches stay in their order.
    """
    clock = services.env.clock
    checked: list[tuple[str, int, Appendable]] = list(entries)
    for slot, config in long_slots.items():
        topic, index, records = entries[slot]
        check = partial(validate_for_leader, records, config, AppendOrigin.CLIENT, clock.now_ms(), f"{topic}-{index}")
        checked[slot] = (topic, index, (yield clock.in_thread(check)))
    outcomes = []
    for piece in chunks(checked, piece_size):
        yield
        outcomes.append(append(piece))
    results: list[AppendResult] = []
    for outcome in outcomes:
        results += (yield outcome) if isinstance(outcome, Pending) else outcome
    return answer_to(results)


def unreadable(records: Buffer | None, version: int) -> ErrorCode:
    """The error of records that cannot be appended to any log: they must be exactly one batch of magic 2."""
    if records is None or len(records) < HEADER_BYTES:
        return ErrorCode.INVALID_RECORD
    _, length, _, magic, _, attributes = HEAD.unpack_from(records)
    if magic != MAGIC or length + PREFIX_BYTES != len(records):
        smallest = SMALLEST_LENGTHS.get(magic)
        return ErrorCode.CORRUPT_MESSAGE if smallest is None or length < smallest else ErrorCode.INVALID_RECORD
    if version < FIRST_VERSION_WITH_ZSTD and attributes & CODEC_MASK == ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def fill(
    services: Services,
    response: ProduceResponse,
    places: list[tuple[str, int]],
    answers: list[ProduceResponse.PartitionProduceResponse],
    results: list[AppendResult],
    context: RequestContext,
) -> None:
    """Write the results of the appends into the answers of the partitions."""
    for place, answer, result in zip(places, answers, results, strict=True):
        answer.base_offset = result.base_offset
        answer.log_append_time_ms = result.log_append_time_ms
        answer.log_start_offset = result.log_start_offset
        if result.error:
            note_refusal(services, context, place, result)
            answer.error_code = result.error
            answer.base_offset = answer.log_append_time_ms = -1
            if result.record_errors:  # Kafka sends the message only with record errors
                answer.error_message = result.error_message
                answer.record_errors = [
                    ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                    for index, message in result.record_errors
                ]
            if result.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and context.api_version >= FIRST_VERSION_WITH_LEADERS:
                leader = services.replica_manager.fetching.leader_of(*place)
                if leader is not None:
                    services.addresses.tell_leader(response, answer, leader, context)


def note_refusal(services: Services, context: RequestContext, place: tuple[str, int], result: AppendResult) -> None:
    why = result.error_message or next((message for _, message in result.record_errors or ()), None)
    services.refusals.note(context, result.error, f"{REFUSED_RECORDS}: %s", *place, why or "no details")
