"""The transaction APIs. Each hands its request to the transaction coordinator (barnabas.coordinators.transactions).

AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), DescribeTransactions (65), ListTransactions (66);
InitProducerId is in init_producer_id.py. Old versions say INVALID_PRODUCER_EPOCH where later ones say PRODUCER_FENCED
(KIP-588).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from barnabas.broker.access import transactions as transactions_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.requests import Reply, RequestContext, api
from barnabas.cluster.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.grouped import grouped
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.coordinators.transactions.coordinator import ProducerIdAndEpoch

    Transaction = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    Topics = Sequence[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
    TopicResult = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult

FIRST_BATCHED_VERSION = 4  # of AddPartitionsToTxn: several transactions, sent by brokers
FIRST_VERSION_THAT_RAISES_EPOCHS = 5  # of EndTxn
KNOWS_FENCED_SINCE = 2

Errors = dict[tuple[str, int], ErrorCode]


def for_version(error: ErrorCode, version: int, knows_fenced_since: int = KNOWS_FENCED_SINCE) -> ErrorCode:
    """The error that this version knows."""
    if error is ErrorCode.PRODUCER_FENCED and version < knows_fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# ---- AddPartitionsToTxn ----


def _results(errors: Errors) -> list[TopicResult]:
    """The errors by topic: those that were found first, first."""
    topics: dict[str, TopicResult] = {}
    for (topic, index), error in errors.items():
        result = topics.get(topic)
        if result is None:
            result = topics[topic] = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic)
        result.results_by_partition.append(
            messages.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=error
            )
        )
    return list(topics.values())


def _partitions(topics: Topics) -> list[tuple[str, int]]:
    return list(dict.fromkeys((topic.name, index) for topic in topics for index in topic.partitions))


def add_partitions_failed(
    request: messages.AddPartitionsToTxnRequest, error: ErrorCode
) -> messages.AddPartitionsToTxnResponse:
    if request.transactions:
        return messages.AddPartitionsToTxnResponse(error_code=error)
    partitions = _partitions(request.v3_and_below_topics)
    return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(dict.fromkeys(partitions, error)))


@api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    access=transactions_access.add_partitions_to_txn,
    failure=add_partitions_failed,
    is_wide=True,
    is_of_brokers=lambda request: bool(request.transactions),
)
def add_partitions_to_txn(
    services: Services, request: messages.AddPartitionsToTxnRequest, context: RequestContext
) -> Reply:
    """AddPartitionsToTxn (key 24), versions 0-5: partitions that a transaction will write to.

    Versions 4 and 5 are sent by brokers. They add partitions for a client, or only ask whether it has added them.
    """
    version = context.api_version
    transactions = request.transactions
    if version < FIRST_BATCHED_VERSION:
        transactions = [
            messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]
    elif not services.transactions.coordinator.transaction_version() and not all(
        transaction.verify_only for transaction in transactions
    ):
        return messages.AddPartitionsToTxnResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

    def answer(errors: list[Errors]) -> messages.AddPartitionsToTxnResponse:
        if version < FIRST_BATCHED_VERSION:
            return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(errors[0]))
        return messages.AddPartitionsToTxnResponse(
            results_by_transaction=[
                messages.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id, topic_results=_results(found)
                )
                for transaction, found in zip(transactions, errors, strict=True)
            ]
        )

    def wait(
        found: list[Errors | Pending[Errors]],
    ) -> messages.AddPartitionsToTxnResponse | Pending[messages.AddPartitionsToTxnResponse]:
        if not any(isinstance(each, Pending) for each in found):
            return answer(cast(list[Errors], found))
        return Pending.all([each if isinstance(each, Pending) else Pending.of(each) for each in found]).map(answer)

    # All are begun before the first is waited for, so that they are written together. None is kept waiting by the end
    # of another one's transaction: with CONCURRENT_TRANSACTIONS its broker asks again.
    may_wait = len(transactions) == 1
    begun = services.env.turns.run(_begin_all(services, transactions, version, may_wait), to_the_end=True)
    return begun.and_then(wait) if isinstance(begun, Pending) else wait(begun)


def _begin_all(
    services: Services, transactions: Sequence[Transaction], version: int, may_wait: bool
) -> Pieces[list[Errors | Pending[Errors]]]:
    found = []
    for transaction in transactions:
        found.append(_begin(services, transaction, version, may_wait))
        yield
    return found


def _begin(services: Services, transaction: Transaction, version: int, may_wait: bool) -> Errors | Pending[Errors]:
    """Add the partitions of one transaction, or only verify them."""
    cache, coordinator = services.metadata_cache, services.transactions.coordinator
    partitions = _partitions(transaction.topics)
    errors: Errors = {}
    for partition in partitions:
        if version < FIRST_BATCHED_VERSION and partition[0] in INTERNAL_TOPICS:
            errors[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED  # only brokers write to them
        elif not cache.contains(*partition):
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:
        rest = [partition for partition in partitions if partition not in errors]
        return errors | dict.fromkeys(rest, ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return {partition: coordinator.verify_partition(*producer, partition) for partition in partitions}
    client_version = 2 if version >= FIRST_BATCHED_VERSION else 0
    found = coordinator.add_partitions(*producer, frozenset(partitions), client_version, may_wait=may_wait)
    if isinstance(found, Pending):
        return found.map(lambda error: dict.fromkeys(partitions, for_version(error, version)))
    return dict.fromkeys(partitions, for_version(found, version))


# ---- AddOffsetsToTxn, EndTxn ----


@api(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), access=transactions_access.add_offsets_to_txn)
def add_offsets_to_txn(services: Services, request: messages.AddOffsetsToTxnRequest, context: RequestContext) -> Reply:
    """AddOffsetsToTxn (key 25), versions 0-4: a group whose offsets the transaction will commit.

    A producer may send it before anybody has asked for the coordinator of a group. Kafka then adds a partition of a
    topic that does not exist. Here the topic is created first, and the answer waits up to half a second for it.
    """
    return services.env.turns.run(_add_offsets(services, request, context.api_version), to_the_end=True)


def _add_offsets(
    services: Services, request: messages.AddOffsetsToTxnRequest, version: int
) -> Pieces[messages.AddOffsetsToTxnResponse]:
    if not services.metadata_cache.contains(OFFSETS_TOPIC):
        services.auto_topics.create(OFFSETS_TOPIC)
        yield services.auto_topics.creations_ended([OFFSETS_TOPIC])
    count = services.metadata_cache.partition_count(OFFSETS_TOPIC)
    if not count:
        return messages.AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = (OFFSETS_TOPIC, partition_for(request.group_id, count))
    found = services.transactions.coordinator.add_partitions(
        request.transactional_id, request.producer_id, request.producer_epoch, frozenset({partition}), 0
    )
    error: ErrorCode = (yield found) if isinstance(found, Pending) else found
    return messages.AddOffsetsToTxnResponse(error_code=for_version(error, version))


@api(ApiKey.END_TXN, versions=(0, 5), access=transactions_access.end_txn)
def end_txn(
    services: Services, request: messages.EndTxnRequest, context: RequestContext
) -> messages.EndTxnResponse | Pending[messages.EndTxnResponse]:
    """EndTxn (key 26), versions 0-5: commit or abort. From version 5 on the answer has the next producer epoch."""
    version = context.api_version
    raises_epochs = version >= FIRST_VERSION_THAT_RAISES_EPOCHS

    def answer(given: ProducerIdAndEpoch) -> messages.EndTxnResponse:
        response = messages.EndTxnResponse(
            error_code=for_version(given.error, version), producer_id=-1, producer_epoch=-1
        )
        if raises_epochs:
            response.producer_id, response.producer_epoch = given.producer_id, given.producer_epoch
        return response

    found = services.transactions.coordinator.end_transaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        2 if raises_epochs else 0,
    )
    return found.map(answer) if isinstance(found, Pending) else answer(found)


# ---- administration ----


@api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    access=transactions_access.describe_transactions,
    failure=each_row(value="transactional_id", transactional_ids="transaction_states"),
    is_wide=True,
)
def describe_transactions(
    services: Services, request: messages.DescribeTransactionsRequest, context: RequestContext
) -> Reply:
    """DescribeTransactions (key 65), version 0: the state of transactional ids, with the partitions of open ones."""
    return services.env.turns.run(_describe(services, request.transactional_ids))


def _describe(services: Services, transactional_ids: Iterable[str]) -> Pieces[messages.DescribeTransactionsResponse]:
    response = messages.DescribeTransactionsResponse()
    for transactional_id in transactional_ids:
        yield
        found = services.transactions.coordinator.describe(transactional_id)
        if isinstance(found, ErrorCode):
            response.transaction_states.append(
                response.TransactionState(transactional_id=transactional_id, error_code=found)
            )
            continue
        topics = grouped(sorted(found.partitions))
        response.transaction_states.append(
            response.TransactionState(
                transactional_id=transactional_id,
                transaction_state=found.state.kafka_name,
                transaction_timeout_ms=found.timeout_ms,
                transaction_start_time_ms=found.start_ms,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                topics=[
                    messages.DescribeTransactionsResponse.TopicData(topic=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        )
    return response


@api(ApiKey.LIST_TRANSACTIONS, versions=(0, 2), access=transactions_access.list_transactions, is_wide=True)
def list_transactions(services: Services, request: messages.ListTransactionsRequest, context: RequestContext) -> Reply:
    """ListTransactions (key 66), versions 0-2: the ids that this broker coordinates, filtered."""
    coordinator = services.transactions.coordinator
    if not coordinator.is_active:
        return messages.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return services.env.turns.run(_list(services, request))


def _list(services: Services, request: messages.ListTransactionsRequest) -> Pieces[messages.ListTransactionsResponse]:
    coordinator = services.transactions.coordinator
    if any(shard.loading for shard in coordinator.shards.values()):
        return messages.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    from barnabas.coordinators.transactions.states import TransactionState  # late, as all of transactions (broker.py)

    pattern = None
    if request.transactional_id_pattern:
        from barnabas.protocol.re2 import PatternError, compiled  # late: few requests have a pattern

        try:
            pattern = yield from compiled(request.transactional_id_pattern)
        except PatternError:
            return messages.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    known = {state.kafka_name for state in TransactionState}
    wanted = set(request.state_filters)
    response = messages.ListTransactionsResponse(
        unknown_state_filters=[each for each in request.state_filters if each not in known]
    )
    ids = set(request.producer_id_filters)
    now_ms = services.env.clock.now_ms()
    for shard in coordinator.loaded_shards():
        for transactional_id, entry in shard.entries.looks():
            yield
            held = entry.transaction
            if (
                (wanted and held.state.kafka_name not in wanted)
                or (ids and held.producer_id not in ids)
                or (request.duration_filter >= 0 and now_ms - held.start_ms <= request.duration_filter)
                or (pattern is not None and not (yield from pattern.matches(transactional_id)))
            ):
                continue
            response.transaction_states.append(
                messages.ListTransactionsResponse.TransactionState(
                    transactional_id=transactional_id,
                    producer_id=held.producer_id,
                    transaction_state=held.state.kafka_name,
                )
            )
    return response
