"""A transactional producer, as Java's client is one: it retries what may be retried, and aborts or ends otherwise.

A client of the first version adds partitions before it writes to them (AddPartitionsToTxn, AddOffsetsToTxn). One of
version 2 (KIP-890) just writes, and gets a new epoch with the answer to each EndTxn. Each process chooses one.

Between every two steps the world may strike (`at`). A process may also stand still in a transaction, while another one
takes over its transactional id. When it goes on, it does not know that it is a zombie, and sends the rest.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from barnabas.protocol.record_batch import Record
from barnabas.runtime.grouped import grouped

from simulator.clients.client import RETRIABLE, Client
from simulator.clients.connection import LostError, UnansweredError
from simulator.clients.requests import produce_request
from simulator.ledger import TopicPartition
from simulator.transaction_book import Attempt, Fate
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.world import World

TIMEOUTS_MS = (8_000, 15_000)
PATIENCE_MS = 30_000.0  # for one step
PRODUCE_LIMIT_MS = 15_000.0
TIMEOUT_MARGIN_MS = 1_000.0
BATCHES_IN_FLIGHT_MAX = 3
ABORTS, DIES, IS_REPLACED, PAUSES = 0.15, 0.02, 0.02, 0.08  # how often: of each transaction, and at (some) steps
PAUSE_MS = (4_000.0, 14_000.0)  # longer than a session of a member, shorter than a transaction may take

RAISES_EPOCHS = 2  # from this transaction version on
STEPS = (  # of all kinds of transactional clients
    "before it adds partitions",
    "before its first write",
    "between its writes",
    "before its last write",
    "before it adds offsets",
    "before it commits offsets",
    "before a commit",
    "behind a commit",
    "before an abort",
    "behind an abort",
)

_AGAIN = (*RETRIABLE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT)
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_LATE = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)  # not in an open transaction any more


# Behind a batch that was refused so, none may be accepted. Other errors come from a wait: the batch may be in the log.
_NOT_WRITTEN = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS)


class AbortError(Exception):
    """The transaction must be aborted."""


class ProcessEndError(Exception):
    """The process cannot go on: it was fenced, has lost its patience, or was killed."""


class Transactional(Client):
    """One process after the other with one transactional id. Each kind says what it does in a transaction."""

    must_get_on = True

    def __init__(self, world: "World", name: str, transactional_id: str | None = None) -> None:
        super().__init__(world, name)
        assert world.transactions is not None
        self.part = world.transactions
        self.book = world.transactions.book
        self.transactional_id = transactional_id or name
        self.timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self.successors = 0
        self.is_replaced = False
        self.producer_id = -1
        self.producer_epoch = -1
        self._knows_version_2 = False
        self.raises_epochs = False  # in the present transaction
        self._sequences: dict[TopicPartition, int] = {}
        self._added: dict[TopicPartition | str, None] = {}
        self._began_ms = 0.0  # when the transaction may have begun
        self._is_uncertain = False  # the answer to a request was lost: it may be handled later, and do anything
        self._epoch_is_spent = False  # a batch may come late, so the epoch must be raised (KIP-360)
        self._used_ms = 0.0  # when the transactional id was used last
        self._is_ready = False  # to begin to work

    # -- what a kind of client says

    async def transaction(self) -> None:
        """Do one transaction, from its begin to its end."""
        raise NotImplementedError

    async def started(self) -> bool:
        """The process has its producer id. Returns whether it can begin to work."""
        return True

    def successor(self, name: str) -> "Transactional":
        """Another process with the same transactional id."""
        raise NotImplementedError

    # -- life

    async def run(self) -> None:
        """Take turns until the world ends the clients, or until another process has taken over."""
        while not (self.world.ending or self.is_replaced):
            try:
                await (self.rest() if self.world.quiet else self.turn())
            except LostError as error:
                self.world.note(f"{self.name} lost: {error}")
                self.hang_up()
                await self.sleep(50, 500)
            except ProcessEndError as error:
                self.world.note(f"{self.name} ends: {error}")
                self.restart()
                await self.sleep(50, 3_000)
        self.hang_up()

    async def turn(self) -> None:
        if self.producer_id < 0:
            self._choose_version()
            await self._init()
            self._is_ready = False
        if not self._is_ready:
            if not await self.started():
                raise ProcessEndError("it cannot begin")
            self._is_ready = True
        await self.transaction()

    async def rest(self) -> None:
        await self.turn()
        await self.sleep(20_000, 50_000)

    def restart(self) -> None:
        """Go on as another process."""
        self.producer_id = self.producer_epoch = -1
        self._is_uncertain = self._epoch_is_spent = False
        self.hang_up()

    async def at(self, step: str) -> None:
        """Between two steps: the world may strike, and this process may die or be replaced."""
        assert step in STEPS
        self.world.note(f"{self.name} {step}")
        self.part.at(self, step)
        if self.world.settling:
            return
        luck = self.rng.random()
        if luck < DIES:
            raise ProcessEndError("it is killed")
        if luck < DIES + IS_REPLACED and not self.is_replaced:
            self._be_replaced()
            await self.sleep(0, 12_000)
        elif step == "before a commit" and DIES + IS_REPLACED <= luck < DIES + IS_REPLACED + PAUSES:
            # Its group may give its partitions to another member, which must not begin before this transaction ends.
            self.world.note(f"{self.name} pauses")
            await self.sleep(*PAUSE_MS)

    def _be_replaced(self) -> None:
        """Another process begins with the same id. This one goes on as soon as it can."""
        self.is_replaced = True
        successor = self.successor(f"{self.name.partition('+')[0]}+{self.successors + 1}")
        successor.successors = self.successors + 1
        successor.progress = self.progress
        self.world.note(f"{self.name} stands still, and {successor.name} takes over")
        self.world.clients[self.world.clients.index(self)] = successor
        self.world.spawn(successor.run())

    def _choose_version(self) -> None:
        self._knows_version_2 = self.rng.random() < 0.7

    # -- requests

    async def insist(self, api: ApiKey, version: int, message: Any) -> tuple[Any, ErrorCode]:
        """Ask until there is an answer that is no reason to ask again; the answer, and its first error."""
        give_up_ms = self.world.clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                response = await self.ask(api, version, message)
                error = first_error(response)
                if error not in _AGAIN:
                    return response, error
            except LostError:
                self._is_uncertain = True
                self.hang_up()
            if self.world.ending:
                raise ProcessEndError("the world ends")
            if self.world.clock.monotonic_ms() > give_up_ms:
                raise ProcessEndError(f"{api.name} does not succeed")
            await self.sleep(20, 300)

    async def _init(self) -> None:
        """Get a producer id and an epoch; with those that it has, if it has any (KIP-360)."""
        goes_on = self.producer_id >= 0
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
        )
        version = self.rng.randint(3 if goes_on else 0, 5)
        response, error = await self.insist(ApiKey.INIT_PRODUCER_ID, version, request)
        if error:
            self._check_fenced(error, "InitProducerId")
            raise ProcessEndError(f"InitProducerId: {error.name}")
        self._used_ms = self.world.clock.monotonic_ms()
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._epoch_is_spent = False
        if not goes_on:
            self._is_uncertain = False
        if not self.world.settling:  # while it has whims, most of its time may go by with sleep
            self.progress += 1

    def begin(self, group_id: str | None = None) -> Attempt:
        """A transaction begins."""
        self.raises_epochs = self._knows_version_2 and self.part.version >= RAISES_EPOCHS
        self._added.clear()
        self._began_ms = self.world.clock.monotonic_ms()
        return self.book.begin(self.name, group_id)

    async def add_partitions(self, keys: list[TopicPartition]) -> None:
        """Say what will be written to. AbortError, ProcessEndError."""
        new = [key for key in keys if key not in self._added]
        if self.raises_epochs or not new:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in grouped(new).items()
            ],
        )
        self._added.update(dict.fromkeys(new))
        _, error = await self.insist(ApiKey.ADD_PARTITIONS_TO_TXN, self.rng.randint(0, 3), request)
        self.check(error, "AddPartitionsToTxn")

    def check(self, error: ErrorCode, what: str) -> None:
        """Take an answer inside of a transaction. AbortError, ProcessEndError; Violation if it cannot be."""
        if error in _FENCED or error in _LATE:
            self._check_fenced(error, what)
            if error in (ErrorCode.INVALID_PRODUCER_EPOCH, *_LATE):
                raise AbortError(f"{what}: {error.name}")
            raise ProcessEndError(f"{what}: {error.name}")
        if error:
            raise Violation("a producer in order is accepted", f"{self.name} {what}: {error.name}")

    def _check_fenced(self, error: ErrorCode, what: str) -> None:
        """Only a process that is replaced, or late, is fenced."""
        late_ms = self.world.clock.monotonic_ms() - self._began_ms - self.timeout_ms + TIMEOUT_MARGIN_MS
        is_late = self._began_ms > 0 and (late_ms > 0 or self.part.clocks_step)
        is_expired = error is ErrorCode.INVALID_PRODUCER_ID_MAPPING and self.part.has_expired(self._used_ms)
        if not (self.is_replaced or self._is_uncertain or is_late or is_expired):
            raise Violation("a producer in order is accepted", f"{self.name} {what}: {error.name}")

    def batch(self, attempt: Attempt, key: TopicPartition, values: list[str]) -> bytes:
        """A batch, with the producer's next sequence."""
        self.book.write(attempt, key, values)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        now_ms = self.world.clock.now_ms()
        records = [Record(slot, now_ms, None, value.encode(), []) for slot, value in enumerate(values)]
        return bytes(
            record_batch.build(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )

    async def produce(self, batches: list[tuple[TopicPartition, bytes]]) -> None:
        """Write batches, several in flight, those of a partition in order. AbortError, ProcessEndError."""
        give_up_ms = self.world.clock.monotonic_ms() + PATIENCE_MS
        lives = self.part.lives_begun
        left = list(batches)
        while left:
            sent: list[tuple[TopicPartition, bytes, asyncio.Future[Any]]] = []
            asked_ms = self.world.clock.monotonic_ms()
            try:
                for key, data in left[:BATCHES_IN_FLIGHT_MAX]:
                    connection = await self.leader(key)
                    version = self.rng.randint(12, 13) if self.raises_epochs else self.rng.randint(3, 11)
                    request = self._produce_request(key, data)
                    sent.append((key, data, connection.send(ApiKey.PRODUCE, version, request, PRODUCE_LIMIT_MS)))
            except LostError:
                self.hang_up()
            refused: dict[TopicPartition, ErrorCode] = {}
            for key, data, answer in sent:
                try:
                    response = await answer
                except UnansweredError as unanswered:
                    self.world.note_unanswered(self.name, str(unanswered), asked_ms)
                    response = None
                except LostError:
                    response = None
                if response is None:
                    self._epoch_is_spent = True
                    self.hang_up()
                    continue
                self.world.answers += 1
                error = first_error(response)
                if error is ErrorCode.NONE:
                    if refused.get(key) in _NOT_WRITTEN:
                        detail = f"{self.name} {key}: {refused[key].name} before"
                        raise Violation("sequences leave no gap", detail)
                    left.remove((key, data))
                elif key in refused:
                    pass  # because the batch before it was
                elif error in _AGAIN:
                    refused[key] = error
                    self.forget(key)
                elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lives != self.part.lives_begun:
                    # A replay of the log after a crash does not find batches that were deleted meanwhile.
                    self._epoch_is_spent = True
                    raise AbortError("it has lost its place")
                else:
                    self._epoch_is_spent = True
                    self.check(error, f"Produce to {key}")
            if left:
                if self.world.ending:
                    raise ProcessEndError("the world ends")
                if self.world.clock.monotonic_ms() > give_up_ms:
                    self._epoch_is_spent = True
                    raise AbortError("its records do not arrive")
                await self.sleep(20, 300)

    def _produce_request(self, key: TopicPartition, data: bytes) -> ProduceRequest:
        topic_id = self.world.topic_ids[key[0]]
        return produce_request(key, data, topic_id=topic_id, transactional_id=self.transactional_id)

    async def end(self, attempt: Attempt, *, commit: bool) -> None:
        """End the transaction. ProcessEndError if it was ended by others."""
        if commit:
            self.book.ask_commit(attempt)
        else:
            self.book.give_up(attempt)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        was_uncertain, self._is_uncertain = self._is_uncertain, False
        version = 5 if self.raises_epochs else self.rng.randint(0, 4)
        response, error = await self.insist(ApiKey.END_TXN, version, request)
        asked_once, self._is_uncertain = not self._is_uncertain, self._is_uncertain or was_uncertain
        if error is ErrorCode.NONE:
            self._used_ms = self.world.clock.monotonic_ms()
            if commit:
                self.book.acknowledge_commit(attempt)
            if commit or not self.world.settling:
                self.progress += 1
            if self.raises_epochs:
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
                self._sequences.clear()
                self._epoch_is_spent = False
            return
        if error not in _FENCED and error not in _LATE:
            raise Violation("a producer in order is accepted", f"{self.name} EndTxn: {error.name}")
        self._check_fenced(error, "EndTxn")
        if commit and asked_once:
            self.book.refuse_commit(attempt)
        raise ProcessEndError(f"EndTxn: {error.name}")

    async def abort(self, attempt: Attempt, why: str) -> None:
        """Abort the transaction, and raise the epoch if a batch of it may come late (KIP-360)."""
        self.world.note(f"{self.name} aborts: {why}")
        self.book.give_up(attempt)
        if self._added or self.raises_epochs:
            await self.end(attempt, commit=False)
        if self._epoch_is_spent:
            await self._init()

    async def carry_out(self, attempt: Attempt) -> bool:
        """Do all steps of a transaction (`steps`), and end it; whether it was committed. ProcessEndError."""
        wants_commit = self.rng.random() >= ABORTS
        try:
            try:
                await self.steps(attempt)
                if not wants_commit:
                    raise AbortError("as it likes")
            except AbortError as error:
                await self.at("before an abort")
                await self.abort(attempt, str(error))
                await self.at("behind an abort")
                return False
            await self.at("before a commit")
            await self.end(attempt, commit=True)
            await self.at("behind a commit")
            return True
        finally:
            if attempt.fate is Fate.OPEN and not self.world.ending:
                self.book.give_up(attempt)

    async def steps(self, attempt: Attempt) -> None:
        """All that the transaction does before its end. AbortError, ProcessEndError."""
        raise NotImplementedError


def first_error(response: Any) -> ErrorCode:
    """The first error in an answer of a transactional API."""
    codes = [getattr(response, "error_code", 0)]
    for topic in getattr(response, "results_by_topic_v3_and_below", None) or ():
        codes += [part.partition_error_code for part in topic.results_by_partition]
    for topic in getattr(response, "responses", None) or ():
        codes += [part.error_code for part in topic.partition_responses]
    for topic in getattr(response, "topics", None) or ():
        codes += [part.error_code for part in topic.partitions]
    return ErrorCode(next((code for code in codes if code), 0))
