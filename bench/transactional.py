"""A transactional producer on a raw connection, for loads: the same client for Barnabas and for Apache Kafka.

Requests are made once, and each time the producer's id, epoch and sequences are written into their bytes. It goes on
after CONCURRENT_TRANSACTIONS as Java's producer does: it waits 20 ms, and sends the request again.
"""

import asyncio
import time
from collections.abc import Sequence
from struct import Struct
from typing import Any

from barnabas.protocol import frames, messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, CRC_AT, PRODUCER_ID_AT, RECORD_COUNT_AT, UINT32
from barnabas.protocol.batch_records import Record
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message
from barnabas.runtime.grouped import grouped

from bench.wire import CLIENT_ID, INT32, Connection, LoadError, until

RETRY_SECONDS = 0.02
IN_FLIGHT = 5
TIMEOUT_MS = 60_000
_IDENTITY = Struct(">qh")
_PRODUCER = Struct(">qhi")  # in the header of a batch: its id, its epoch and the base sequence
_PLACEHOLDER = (0x0123_4567_89AB_CDEF, 0x1357)
_AGAIN = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

LARGE_RECORDS, LARGE_PARTITIONS, LARGE_BATCH = 1_000, 4, 15  # batches of 16 KiB, as the Java producer makes them

Place = tuple[str, int]


class Versions:
    """The versions of the requests that a producer sends."""

    def __init__(self, transaction: int) -> None:
        self.transaction = transaction
        self.adds_by_itself = transaction >= 2
        self.produce = 12 if self.adds_by_itself else 11
        self.end = 5 if self.adds_by_itself else 4
        self.commit = 5 if self.adds_by_itself else 4
        self.add = 3


class Template:
    """A request whose bytes are made once."""

    def __init__(self, version: int, request: Message) -> None:
        self.key = ApiKey(request.API_KEY)
        self.version = version
        self.frame = bytearray(frames.encode_request(self.key, version, 1, CLIENT_ID, request))
        self._identity_at = self.frame.find(_IDENTITY.pack(*_PLACEHOLDER))

    def take(self, producer: "Producer") -> bytes:
        """The bytes of this producer's next request."""
        _IDENTITY.pack_into(self.frame, self._identity_at, producer.producer_id, producer.epoch)
        return bytes(self.frame)

    def errors(self, frame: bytes) -> list[int]:
        """All error codes of an answer."""
        answer: Any = frames.decode_response(self.key, self.version, frame)[1]
        match self.key:
            case ApiKey.PRODUCE:
                return [row.error_code for topic in answer.responses for row in topic.partition_responses]
            case ApiKey.TXN_OFFSET_COMMIT:
                return [row.error_code for topic in answer.topics for row in topic.partitions]
            case ApiKey.ADD_PARTITIONS_TO_TXN:
                topics = answer.results_by_topic_v3_and_below
                return [row.partition_error_code for topic in topics for row in topic.results_by_partition]
        return [answer.error_code]


class Batches(Template):
    """A Produce request with one batch for each of some partitions."""

    def __init__(
        self, versions: Versions, transactional_id: str | None, topic: str, values: dict[int, Sequence[bytes]]
    ) -> None:
        now_ms = time.time_ns() // 1_000_000  # old records would be removed
        batches = {
            index: bytes(
                record_batch.build(
                    [Record(offset=number, timestamp=now_ms, value=value) for number, value in enumerate(row)],
                    producer_id=_PLACEHOLDER[0],
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=transactional_id is not None,
                )
            )
            for index, row in values.items()
        }
        make = messages.ProduceRequest
        request = make(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[
                make.TopicProduceData(
                    name=topic,
                    partition_data=[
                        make.PartitionProduceData(index=index, records=records) for index, records in batches.items()
                    ],
                )
            ],
        )
        super().__init__(versions.produce, request)
        self.places: list[Place] = [(topic, index) for index in values]
        self._parts: list[tuple[int, int, Place, int]] = []  # where a batch begins and ends, its partition, its count
        end = 0
        for place, records in zip(self.places, batches.values(), strict=True):
            at = self.frame.index(records, end)
            end = at + len(records)
            self._parts.append((at, end, place, INT32.unpack_from(records, RECORD_COUNT_AT)[0]))

    def take(self, producer: "Producer") -> bytes:
        frame, view = self.frame, memoryview(self.frame)
        for at, end, place, count in self._parts:
            sequence = producer.sequences.get(place, 0)
            producer.sequences[place] = sequence + count
            _PRODUCER.pack_into(frame, at + PRODUCER_ID_AT, producer.producer_id, producer.epoch, sequence)
            UINT32.pack_into(frame, at + CRC_AT, crc32c(view[at + ATTRIBUTES_AT : end]))
        return bytes(frame)


class Producer:
    """One producer without a connection. Without a transactional id it is idempotent only."""

    def __init__(self, transactional_id: str | None, versions: Versions) -> None:
        self.transactional_id = transactional_id
        self.versions = versions
        self.producer_id = self.epoch = -1
        self.sequences: dict[Place, int] = {}

    def ending(self, is_commit: bool) -> Template:
        """EndTxn."""
        request = messages.EndTxnRequest(
            transactional_id=self.transactional_id or "",
            producer_id=_PLACEHOLDER[0],
            producer_epoch=_PLACEHOLDER[1],
            committed=is_commit,
        )
        return Template(self.versions.end, request)

    def ended(self, frame: bytes) -> None:
        """Take over the answer to EndTxn: from version 2 on it has the id and epoch with which the producer goes on."""
        answer: Any = frames.decode_response(ApiKey.END_TXN, self.versions.end, frame)[1]
        if answer.error_code:
            raise LoadError(f"EndTxn: {ErrorCode.of(answer.error_code).name}")
        if self.versions.adds_by_itself:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    def batches(self, topic: str, values: dict[int, Sequence[bytes]]) -> Batches:
        """A Produce request of this producer."""
        return Batches(self.versions, self.transactional_id, topic, values)

    def adding(self, places: Sequence[Place]) -> Template:
        """AddPartitionsToTxn of a client that does not leave it to Produce."""
        make = messages.AddPartitionsToTxnRequest
        request = make(
            v3_and_below_transactional_id=self.transactional_id or "",
            v3_and_below_producer_id=_PLACEHOLDER[0],
            v3_and_below_producer_epoch=_PLACEHOLDER[1],
            v3_and_below_topics=[
                make.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in grouped(places).items()
            ],
        )
        return Template(self.versions.add, request)

    def adding_offsets(self, group: str) -> Template:
        """AddOffsetsToTxn of a client that does not leave it to TxnOffsetCommit."""
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id or "",
            producer_id=_PLACEHOLDER[0],
            producer_epoch=_PLACEHOLDER[1],
            group_id=group,
        )
        return Template(3, request)

    def committing(self, group: str, topic: str, offset: int) -> Template:
        """TxnOffsetCommit of one partition, by a consumer that is in no group."""
        make = messages.TxnOffsetCommitRequest
        row = make.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = make(
            transactional_id=self.transactional_id or "",
            group_id=group,
            producer_id=_PLACEHOLDER[0],
            producer_epoch=_PLACEHOLDER[1],
            generation_id_or_member_epoch=-1,
            topics=[make.TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
        )
        return Template(self.versions.commit, request)


class Connected(Producer):
    """A producer with a connection."""

    def __init__(self, connection: Connection, transactional_id: str | None, versions: Versions) -> None:
        super().__init__(transactional_id, versions)
        self.connection = connection
        self.again = 0  # how often it was told to ask again
        self._ends = {is_commit: self.ending(is_commit) for is_commit in (True, False)}

    async def begin(self) -> None:
        """Get an id and an epoch. The first time this makes the topic of the coordinator."""

        async def found() -> bool:
            if self.transactional_id is not None:
                request = messages.FindCoordinatorRequest(key=self.transactional_id, key_type=1)
                answer: Any = await self.connection.ask(ApiKey.FIND_COORDINATOR, 3, request)
                if answer.error_code:
                    return False
            init = messages.InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS
            )
            answer = await self.connection.ask(ApiKey.INIT_PRODUCER_ID, 4, init)
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            return not answer.error_code

        await until(f"a producer id for {self.transactional_id}", found)

    async def ask(self, template: Template) -> bytes:
        """Send a request, again until the transaction before it has ended; returns the answer without an error."""
        return await self.ask_all([template])

    async def ask_all(self, templates: Sequence[Template]) -> bytes:
        """Send requests in order, five in flight; returns the last answer."""
        first = 0
        while True:
            before = [dict(self.sequences)]  # for each request that was sent
            failed, frame = await self._send_all(templates[first:], before)
            if failed is None:
                return frame
            first += failed
            self.sequences = before[failed]
            self.again += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _send_all(
        self, templates: Sequence[Template], before: list[dict[Place, int]]
    ) -> tuple[int | None, bytes]:
        """Which request has to be sent again, with all after it, if there is one; and the last answer."""
        done: asyncio.Future[tuple[int | None, bytes]] = asyncio.get_running_loop().create_future()
        write = self.connection.transport.write
        sent = answers = 0
        failed: int | None = None

        def answered(answer: memoryview) -> None:
            nonlocal answers, failed
            frame = bytes(answer)
            errors = [error for error in templates[answers].errors(frame) if error]
            if any(error not in _AGAIN for error in errors) and not done.done():
                names = [ErrorCode.of(error).name for error in errors]
                peer = self.connection.transport.get_extra_info("peername")
                done.set_exception(LoadError(f"{templates[answers].key.name} to {peer}: {names}"))
            if errors and failed is None:
                failed = answers
            answers += 1
            if failed is None and sent < len(templates):
                send()
            elif answers == sent and not done.done():
                done.set_result((failed, frame))

        def send() -> None:
            nonlocal sent
            write(templates[sent].take(self))
            sent += 1
            before.append(dict(self.sequences))

        self.connection.on_frame = answered
        while sent < min(IN_FLIGHT, len(templates)):
            send()
        return await done

    async def end(self, is_commit: bool = True) -> None:
        """Commit or abort."""
        self.ended(await self.ask(self._ends[is_commit]))


def large_requests(producer: Producer, topic: str) -> list[Template]:
    """A large transaction: 1,000 records of 1 KB over four partitions."""
    requests: list[Template] = []
    left = LARGE_RECORDS // LARGE_PARTITIONS
    while left:
        values = [bytes(1024)] * min(left, LARGE_BATCH)
        requests.append(producer.batches(topic, dict.fromkeys(range(LARGE_PARTITIONS), values)))
        left -= len(values)
    return requests
