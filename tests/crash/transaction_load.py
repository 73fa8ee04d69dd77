"""Transactional producers and copiers of a broker that is killed again and again, and what consumers must see of them.

Each transaction writes numbered records to some partitions. Its book says what became of it: committed or aborted, if
the broker has said so; else either of them, but whole. A producer that lost its connection asks again or begins anew,
as it likes, and now and then it leaves a transaction open, which the coordinator has to end by the clock.
"""

import time
import traceback
from collections import defaultdict
from contextlib import suppress
from typing import Any

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from broker_process import Client, batch
from kill_load import (
    COORDINATOR_MOVES,
    PAUSE_S,
    PRODUCE_AGAIN,
    AskAgainError,
    Books,
    OneBroker,
    Partition,
    Worker,
    find_coordinator,
)
from transaction_checks import (
    AGAIN_S,
    COPIERS_GROUP,
    COPIES,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONS,
    CommittedReader,
    Number,
    Transactions,
    stable_offsets,
)

EPOCHS_GROW = 2  # the transaction version
# The broker has ended the transaction by the clock, or is told to end another one.
OVER = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)


class _OverError(Exception):
    """The transaction cannot go on."""


class TransactionalClient(Worker):
    """A transactional producer on sockets of its own, in the way of one transaction version."""

    def __init__(self, id: str, version: int, place: OneBroker, books: Books, seed: int) -> None:
        super().__init__(f"{id} of version {version}", place, books, seed)
        self.id = id
        self.version = version
        self.identity = (-1, -1)
        self.sequences: dict[Partition, int] = defaultdict(int)
        self._leaders: dict[Partition, Client] = {}
        self._began_s = 0.0

    def connect(self) -> Client:
        """A connection to the coordinator of its id."""
        return self.place.coordinator(self.id, key_type=1)

    def work(self, client: Client) -> None:
        """One transaction after the other; what was open when it connects is aborted first."""
        find_coordinator(client, self.id, key_type=1)
        try:
            self._init(client)
            self.live(client)
        except _OverError:
            raise AskAgainError from None
        finally:
            for leader in self._leaders.values():
                leader.close()
            self._leaders.clear()

    def live(self, client: Client) -> None:
        """Transactions, with the connection to the coordinator."""
        raise NotImplementedError

    def begin(self) -> None:
        """From now on its time runs."""
        self._began_s = time.monotonic()

    def _init(self, client: Client) -> None:
        request = messages.InitProducerIdRequest(
            transactional_id=self.id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer = self._until_it_is_free(client, ApiKey.INIT_PRODUCER_ID, 4, request, lambda answer: answer.error_code)
        self._has(answer.producer_id, answer.producer_epoch)

    def _has(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self.identity:
            self.sequences.clear()
        self.identity = producer_id, epoch

    def _until_it_is_free(self, client: Client, api: ApiKey, version: int, request: Any, error_of: Any) -> Any:
        """Ask again while the coordinator is busy with the id."""
        while True:
            answer = client.ask(api, version, request)
            error = error_of(answer)
            if error in COORDINATOR_MOVES or error == ErrorCode.REQUEST_TIMED_OUT:
                raise AskAgainError
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._judge(error)
                return answer
            time.sleep(AGAIN_S)

    def _judge(self, error: int) -> None:
        if error in OVER and time.monotonic() > self._began_s + TRANSACTION_TIMEOUT_MS / 1000 - 0.1:
            raise _OverError
        assert error == ErrorCode.NONE, ErrorCode(error).name

    def add(self, client: Client, partitions: list[Partition]) -> None:
        """AddPartitionsToTxn, which a client of version 2 does not need."""
        if self.version >= EPOCHS_GROW:
            return
        add = messages.AddPartitionsToTxnRequest
        indexes = [index for _, index in partitions]
        request = add(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=[add.AddPartitionsToTxnTopic(name=partitions[0][0], partitions=indexes)],
        )

        def error_of(answer: Any) -> int:
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            return next((int(row.partition_error_code) for row in rows if row.partition_error_code), 0)

        self._until_it_is_free(client, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request, error_of)

    def produce(self, partition: Partition, values: list[bytes]) -> None:
        """One batch, again in the same place until it is answered, or not."""
        data = batch(
            values,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=self.sequences[partition],
            transactional=True,
        )
        self.sequences[partition] += len(values)
        while True:
            try:
                error = self._ask_leader(partition, data)
            except OSError:
                if self.rng.random() < 0.5 or self.stopping:
                    raise
                time.sleep(AGAIN_S * 5)
                continue
            if error not in (*PRODUCE_AGAIN, ErrorCode.CONCURRENT_TRANSACTIONS):
                self._judge(error)
                return
            time.sleep(AGAIN_S)

    def _ask_leader(self, partition: Partition, data: bytes | bytearray) -> int:
        produce = messages.ProduceRequest
        rows = [produce.PartitionProduceData(index=partition[1], records=data)]
        topics = [produce.TopicProduceData(name=partition[0], partition_data=rows)]
        request = produce(transactional_id=self.id, acks=-1, timeout_ms=4_000, topic_data=topics)
        version = 12 if self.version >= EPOCHS_GROW else 11
        try:
            if partition not in self._leaders:
                self._leaders[partition] = self.place.leader(partition)
            answer = self._leaders[partition].ask(ApiKey.PRODUCE, version, request)
        except OSError:
            self._forget(partition)
            raise
        error = int(answer.responses[0].partition_responses[0].error_code)
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._forget(partition)
        return error

    def _forget(self, partition: Partition) -> None:
        if partition in self._leaders:
            self._leaders.pop(partition).close()

    def end(self, client: Client, is_commit: bool) -> bool:
        """Again on another connection, if the answer is lost. Whether the first one has the answer."""
        producer_id, epoch = self.identity
        request = messages.EndTxnRequest(
            transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=is_commit
        )
        version = 5 if self.version >= EPOCHS_GROW else 4
        connection = client
        while True:
            try:
                answer = self._until_it_is_free(
                    connection, ApiKey.END_TXN, version, request, lambda answer: answer.error_code
                )
                break
            except OSError:
                connection.close()
                if self.rng.random() < 0.3 or self.stopping:
                    raise
                time.sleep(AGAIN_S * 5)
                with suppress(OSError):
                    connection = self.connect()
        if self.version >= EPOCHS_GROW:
            self._has(answer.producer_id, answer.producer_epoch)
        if connection is client:
            return True
        connection.close()
        return False


class Transactor(TransactionalClient):
    """Writes numbered records, and commits, aborts, or leaves what it has begun."""

    def __init__(
        self, number: int, version: int, partitions: list[Partition], place: OneBroker, books: Books,
        transactions: Transactions, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(f"transactor-{number}", version, place, books, seed)
        self.number = number
        self.partitions = partitions
        self.transactions = transactions
        self.count = 0

    def live(self, client: Client) -> None:
        """One transaction after the other."""
        while not self.stopping:
            number = self.number, self.count
            self.count += 1
            self.transactions.begin(number)
            self.begin()
            for _ in range(self.rng.choice((1, 1, 2))):
                some = self.rng.sample(self.partitions, self.rng.randint(1, len(self.partitions)))
                self.add(client, some)
                for partition in some:
                    self.produce(partition, self._values(number, partition))
            if self.rng.random() < 0.02:  # nobody uses this id again: the coordinator ends the transaction by the clock
                self.id = f"transactor-{self.number}-{self.count}"
                raise AskAgainError
            if self.rng.random() < 0.1:
                time.sleep(self.rng.uniform(0.0, 1.0))
            is_commit = self.rng.random() < 0.7
            if is_commit:
                self.transactions.becomes(number, "ending")
            is_connected = self.end(client, is_commit)
            self.transactions.becomes(number, "committed" if is_commit else "aborted")
            self.steps += 1
            if not is_connected:
                raise AskAgainError
            time.sleep(PAUSE_S)

    def _values(self, number: Number, partition: Partition) -> list[bytes]:
        written = self.transactions.records[number]
        first = written[partition]
        written[partition] += self.rng.randint(1, 6)
        indexes = range(first, written[partition])
        return [b"%d %d %d %s" % (*number, index, b"." * self.rng.randint(0, 200)) for index in indexes]


class Copier(TransactionalClient):
    """Copies one partition, with its offsets in the same transaction. Aborts, or begins anew in the middle, sometimes.

    It does not join its group: it owns its partition by its transactional id, as in the time before KIP-447.
    """

    def __init__(self, index: int, version: int, place: OneBroker, books: Books, seed: int) -> None:
        super().__init__(f"copier-{index}", version, place, books, seed)
        self.source = TRANSACTIONS, index
        self.sink = COPIES, index

    def live(self, client: Client) -> None:
        """From the committed offset on."""
        coordinator = self.place.coordinator(COPIERS_GROUP)
        source = self.place.leader(self.source)
        try:
            find_coordinator(coordinator, COPIERS_GROUP)
            reader = self._reader(coordinator)
            while not self.stopping:
                polled = reader.read(source)
                if not polled:
                    time.sleep(0.05)
                    continue
                self.begin()
                self.add(client, [self.sink])
                self.produce(self.sink, [b"%d" % offset for offset, _ in polled])
                self._send_offset(client, coordinator, polled[-1][0] + 1)
                if self.rng.random() < 0.03:
                    raise AskAgainError
                is_commit = self.rng.random() < 0.8
                is_connected = self.end(client, is_commit)
                if not is_connected:
                    raise AskAgainError
                if is_commit:
                    self.books.committed()
                    self.steps += 1
                else:
                    reader = self._reader(coordinator)
        finally:
            coordinator.close()
            source.close()

    def _reader(self, coordinator: Client) -> CommittedReader:
        """At the committed offset, when it is stable."""
        while True:
            offsets = stable_offsets(coordinator, [self.source[1]])
            if offsets is not None:
                return CommittedReader(self.source, max(offsets[self.source[1]], 0))
            if self.stopping:
                raise AskAgainError
            time.sleep(AGAIN_S)

    def _send_offset(self, client: Client, coordinator: Client, offset: int) -> None:
        producer_id, epoch = self.identity
        names = {"transactional_id": self.id, "producer_id": producer_id, "producer_epoch": epoch}
        names["group_id"] = COPIERS_GROUP
        if self.version < EPOCHS_GROW:
            request = messages.AddOffsetsToTxnRequest(**names)
            self._until_it_is_free(client, ApiKey.ADD_OFFSETS_TO_TXN, 3, request, lambda answer: answer.error_code)
        commit = messages.TxnOffsetCommitRequest
        rows = [commit.TxnOffsetCommitRequestPartition(partition_index=self.source[1], committed_offset=offset)]
        topics = [commit.TxnOffsetCommitRequestTopic(name=TRANSACTIONS, partitions=rows)]
        version = 5 if self.version >= EPOCHS_GROW else 3
        self._until_it_is_free(
            *(coordinator, ApiKey.TXN_OFFSET_COMMIT, version, commit(**names, topics=topics)),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )


class _NeedsAbortError(Exception):
    """librdkafka wants the transaction to be aborted."""


class LibrdkafkaWorker(Worker):
    """A client with librdkafka's transactional producer. A new one is made when the old one must not go on."""

    def run(self) -> None:
        """One producer after the other."""
        try:
            while not self.stopping:
                with suppress(_OverError):
                    self.live(self._producer())
        except BaseException:
            self.books.problem(f"{self.name}: {traceback.format_exc()}")

    def live(self, producer: Any) -> None:
        """Until it stops, or the producer must not go on."""
        raise NotImplementedError

    def _producer(self) -> Any:
        from confluent_kafka import Producer as Library

        producer = Library(
            {
                "bootstrap.servers": self.place.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
                "log_level": 0,
                "reconnect.backoff.max.ms": 300,
                "socket.timeout.ms": 4_000,
            }
        )
        self.until_answered(producer.init_transactions)
        return producer

    def until_answered(self, ask: Any, *words: Any) -> None:
        """Ask until there is an answer, as an application does."""
        from confluent_kafka import KafkaException

        while True:
            try:
                ask(*words, 5.0)
                return
            except KafkaException as exception:
                error = exception.args[0]
                if error.retriable() and not self.stopping:
                    continue
                if error.txn_requires_abort():
                    raise _NeedsAbortError(str(error)) from None
                raise _OverError(str(error)) from None

    def abort(self, producer: Any) -> None:
        """Abort its transaction."""
        try:
            self.until_answered(producer.abort_transaction)
        except _NeedsAbortError as error:
            raise _OverError(str(error)) from None


class LibrdkafkaTransactor(LibrdkafkaWorker):
    """librdkafka's transactional producer."""

    def __init__(
        self, number: int, partitions: list[Partition], place: OneBroker, books: Books,
        transactions: Transactions, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(f"librdkafka-transactor-{number}", place, books, seed)
        self.number = number
        self.partitions = partitions
        self.transactions = transactions
        self.count = 0

    def live(self, producer: Any) -> None:
        """One transaction after the other."""
        while not self.stopping:
            number = self.number, self.count
            self.count += 1
            self._transaction(producer, number)
            time.sleep(PAUSE_S)

    def _transaction(self, producer: Any, number: Number) -> None:
        self.transactions.begin(number)
        written = self.transactions.records[number]
        producer.begin_transaction()
        for _ in range(self.rng.randint(1, 20)):
            topic, index = partition = self.rng.choice(self.partitions)
            value = b"%d %d %d %s" % (*number, written[partition], b"." * self.rng.randint(0, 200))
            written[partition] += 1
            producer.produce(topic, value, partition=index)
        is_commit = self.rng.random() < 0.7
        if is_commit:
            self.transactions.becomes(number, "ending")
            try:
                self.until_answered(producer.commit_transaction)
            except _NeedsAbortError:
                is_commit = False
        if not is_commit:
            self.abort(producer)
        self.transactions.becomes(number, "committed" if is_commit else "aborted")
        self.steps += 1
