"""Asks transaction coordinators whether partitions are in a producer's transaction, or to add them to it (KIP-890).

A partition takes the first batch of a transaction only when the transaction's coordinator knows of the partition. Else
a batch that comes late, after the end of its transaction, would begin another one, which nobody ends. `verify` is the
whole of it, for a request that writes. `ask` is only the question.

Questions go by AddPartitionsToTxn, also to this broker itself. Those of one pass of the loop to the same coordinator
travel in one request. One request is in flight to each coordinator; what comes meanwhile travels in the next one.

While the transaction before is being ended, the coordinator answers CONCURRENT_TRANSACTIONS. Clients of transaction
version 2 begin their next transaction with the Produce itself, so they would often meet it. They are asked for again
here, as in Kafka, until add.partitions.to.txn.retry.backoff.max.ms have passed. Kafka waits
add.partitions.to.txn.retry.backoff.ms each time. That is the longest pause here; the first ones are shorter, because
markers take a few milliseconds. (A request for one transaction only has waited at the coordinator already.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.config.broker import BrokerConfig
from barnabas.coordinators.coordinator import coordinator_of
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.replication.partition import Partition
from barnabas.runtime.grouped import grouped
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer
from barnabas.storage.producer_entry import Verification
from barnabas.storage.producer_state import ProducerStateManager

VERSION = 5
FIRST_PAUSE_MS = 1.0

TopicPartition = tuple[str, int]
Errors = dict[TopicPartition, ErrorCode]
AskBroker = Callable[[int, Message, int], "Pending[messages.AddPartitionsToTxnResponse | None]"]


class _Question:
    """What is asked about one transaction, and who waits for the answer."""

    __slots__ = ("adds", "partitions", "producer_epoch", "producer_id", "transactional_id", "waiting")

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, adds: bool) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.adds = adds
        self.partitions: dict[TopicPartition, None] = {}
        self.waiting: list[tuple[tuple[TopicPartition, ...], Pending[Errors]]] = []

    def message(self) -> messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
        request = messages.AddPartitionsToTxnRequest
        return request.AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            verify_only=not self.adds,
            topics=[
                request.AddPartitionsToTxnTopic(name=name, partitions=rows)
                for name, rows in grouped(self.partitions).items()
            ],
        )

    def answer(self, found: Mapping[TopicPartition, ErrorCode], otherwise: ErrorCode) -> None:
        """Tell those who wait what was found; partitions of which nothing was found get the other error."""
        for partitions, answer in self.waiting:
            answer.complete({partition: found.get(partition, otherwise) for partition in partitions})


class TransactionVerification:
    """The questions of this broker to the coordinators.

    `leader_partition` gives a partition that this broker leads. `ask_broker` sends a request to a broker, or gives it
    to this broker's own handler; None: no answer.
    """

    def __init__(
        self,
        clock: Clock,
        config: BrokerConfig,
        metadata_cache: MetadataCache,
        leader_partition: Callable[[str, int], Partition | ErrorCode],
        ask_broker: AskBroker,
    ) -> None:
        self.clock = clock
        self.config = config
        self.leader_partition = leader_partition
        self._metadata_cache = metadata_cache
        self._ask_broker = ask_broker
        self._unasked: dict[int, dict[str, _Question]] = {}  # broker -> transactional id -> question
        self._in_flight: set[int] = set()  # brokers that have not answered
        self._flush_is_due = False
        self.pausing: dict[_Check, None] = {}  # they go on later, or when this is stopped
        self._is_stopped = False

    def stop(self) -> None:
        """Ask nothing any more. Who waits, or asks from now on, gets a retriable error."""
        self._is_stopped = True
        unasked, self._unasked = self._unasked, {}
        for questions in unasked.values():
            for question in questions.values():
                question.answer({}, ErrorCode.NETWORK_EXCEPTION)
        for check in list(self.pausing):
            check.go_on()

    # ---- questions ----

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        adds: bool,
    ) -> Pending[Errors]:
        """What the coordinator answers for each partition, with Kafka's errors.

        `adds`: it adds them to the transaction, and begins one if none is open. Else it says whether they are in it:
        TRANSACTION_ABORTABLE if not. A producer that is fenced hears INVALID_PRODUCER_EPOCH. NETWORK_EXCEPTION: no
        answer. Old clients do not know all these errors: the caller sees to that.
        """
        wanted = tuple(partitions)
        leader = coordinator_of(self._metadata_cache, TRANSACTIONS_TOPIC, transactional_id)
        if leader is None or self._is_stopped:
            return Pending.of(dict.fromkeys(wanted, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        unasked = self._unasked.setdefault(leader.broker_id, {})
        question = unasked.get(transactional_id)
        if question is None or (producer_id, producer_epoch, adds) != (
            question.producer_id,
            question.producer_epoch,
            question.adds,
        ):
            if question is not None:
                if producer_epoch < question.producer_epoch:
                    return Pending.of(dict.fromkeys(wanted, ErrorCode.INVALID_PRODUCER_EPOCH))
                is_fenced = producer_epoch > question.producer_epoch
                error = ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.NETWORK_EXCEPTION
                self.clock.call_soon(partial(question.answer, {}, error))
            question = unasked[transactional_id] = _Question(transactional_id, producer_id, producer_epoch, adds)
        answer: Pending[Errors] = Pending()
        question.partitions.update(dict.fromkeys(wanted))
        question.waiting.append((wanted, answer))
        self._flush_soon()
        return answer

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self.clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        for broker_id in [each for each in self._unasked if each not in self._in_flight]:
            questions = self._unasked.pop(broker_id)
            self._in_flight.add(broker_id)
            request = messages.AddPartitionsToTxnRequest(
                transactions=[question.message() for question in questions.values()]
            )
            self._ask_broker(broker_id, request, VERSION).then(partial(self._answered, broker_id, questions))

    def _answered(
        self, broker_id: int, questions: dict[str, _Question], response: messages.AddPartitionsToTxnResponse | None
    ) -> None:
        self._in_flight.discard(broker_id)
        if broker_id in self._unasked:
            self._flush_soon()
        otherwise = ErrorCode.NETWORK_EXCEPTION
        found: dict[str, Errors] = {}
        if response is not None:
            if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                otherwise = ErrorCode.INVALID_TXN_STATE  # it is not the client that was not allowed
            elif response.error_code:
                otherwise = ErrorCode.of(response.error_code)
            for result in response.results_by_transaction:
                found[result.transactional_id] = {
                    (topic.name, row.partition_index): _known_to_producers(row.partition_error_code)
                    for topic in result.topic_results
                    for row in topic.results_by_partition
                }
        for transactional_id, question in questions.items():
            question.answer(found.get(transactional_id, {}), otherwise)

    # ---- requests that write ----

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        sequences: Mapping[TopicPartition, int],
        adds: bool,
    ) -> Errors | Pending[Errors]:
        """Make sure that a producer's batches may be appended. The result has the partitions that may not, and why.

        `sequences`: the base sequence of the first batch for each partition. A partition that has an open transaction
        of the producer already is not asked for. Partitions that this broker does not lead are left to the append.
        """
        check = _Check(self, transactional_id, producer_id, producer_epoch, sequences, adds)
        if not adds and not self.config.transaction_partition_verification_enable:
            check.trust()
            return {}
        check.begin()
        if not check.asked:
            return check.refused
        check.ask()
        return check.answer


class _Check:
    """One `verify`, with all its questions."""

    def __init__(
        self,
        owner: TransactionVerification,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        sequences: Mapping[TopicPartition, int],
        adds: bool,
    ) -> None:
        self._owner = owner
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._sequences = sequences
        self._adds = adds
        self._began_ms = owner.clock.monotonic_ms()
        self._pause_ms = FIRST_PAUSE_MS
        self._timer: Timer | None = None
        # What the coordinator must confirm.
        self.asked: dict[TopicPartition, tuple[ProducerStateManager, Verification]] = {}
        self.refused: Errors = {}  # what it need not be asked for
        self.answer: Pending[Errors] = Pending()

    def begin(self) -> None:
        """Begin the verification of each partition that needs one, so that a marker from now on is noticed."""
        self.asked, self.refused = {}, {}
        for place, sequence in self._sequences.items():
            partition = self._owner.leader_partition(*place)
            if not isinstance(partition, Partition):
                continue
            producers = partition.log.producers
            if producers.is_fenced(self._producer_id, self._producer_epoch):
                self.refused[place] = ErrorCode.INVALID_PRODUCER_EPOCH
                continue
            asked = self._begin(producers, sequence)
            if asked is not None and asked.confirmed_epoch != self._producer_epoch:
                self.asked[place] = (producers, asked)

    def _begin(self, producers: ProducerStateManager, sequence: int) -> Verification | None:
        now_ms = self._owner.clock.now_ms()
        return producers.begin_verification(
            self._producer_id, self._producer_epoch, sequence, now_ms, raises_epochs=self._adds
        )

    def trust(self) -> None:
        """Take everything for confirmed."""
        for place, sequence in self._sequences.items():
            partition = self._owner.leader_partition(*place)
            if isinstance(partition, Partition):
                asked = self._begin(partition.log.producers, sequence)
                if asked is not None:
                    partition.log.producers.confirm(asked, self._producer_epoch)

    def ask(self) -> None:
        owner = self._owner
        owner.ask(self._transactional_id, self._producer_id, self._producer_epoch, self.asked, self._adds).then(
            self._answered
        )

    def _answered(self, errors: Errors) -> None:
        refused = self.refused
        is_early = is_overtaken = False  # to ask again helps: later, or at once
        for place, (producers, asked) in self.asked.items():
            error = errors[place]
            if not error and not producers.confirm(asked, self._producer_epoch):
                # A marker came after the question: mostly that of the transaction before, which the coordinator has
                # waited for.
                error = ErrorCode.INVALID_TXN_STATE
                is_overtaken = True
            if error:
                refused[place] = error
                is_early = is_early or (self._adds and error is ErrorCode.CONCURRENT_TRANSACTIONS)
        config, waited_ms = self._owner.config, self._owner.clock.monotonic_ms() - self._began_ms
        longest_ms = config.request_timeout_ms
        if not is_overtaken:  # a client does not go on after INVALID_TXN_STATE, however long the question took
            longest_ms = min(longest_ms, config.add_partitions_to_txn_retry_backoff_max_ms)
        if not (is_early or is_overtaken) or waited_ms >= longest_ms:
            self.answer.complete(refused)
        elif is_early:
            self._owner.pausing[self] = None
            self._timer = self._owner.clock.call_later(self._pause_ms, self.go_on)
            self._pause_ms = min(2 * self._pause_ms, config.add_partitions_to_txn_retry_backoff_ms)
        else:
            self.go_on()

    def go_on(self) -> None:
        """Ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.pausing.pop(self, None)
        self.begin()
        if self.asked:
            self.ask()
        else:
            self.answer.complete(self.refused)


def _known_to_producers(code: int) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else ErrorCode.of(code)
