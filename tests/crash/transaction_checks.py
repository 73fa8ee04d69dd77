"""What consumers must see of the transactions of transaction_load.py: their book, a reader, and the comparison."""

import threading
import time
from collections import defaultdict
from contextlib import closing, suppress

from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from broker_process import Client, whole_batches
from kill_load import COORDINATOR_MOVES, AskAgainError, Books, OneBroker, Partition

TRANSACTIONS = "transactions"  # what producers write, and copiers read
COPIES = "copies"
COPIERS_GROUP = "copiers"
TRANSACTION_TIMEOUT_MS = 6_000
# Of the broker, so that what hangs ends soon.
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
ENDED_WITHIN_S = TRANSACTION_TIMEOUT_MS / 1000 + 10  # a marker waits for the broker to be back
AGAIN_S = 0.02

Number = tuple[int, int]  # a producer and its transaction


class Transactions:
    """The book of all transactions: how many records each wrote to which partition, and what became of it."""

    def __init__(self) -> None:
        self.records: dict[Number, dict[Partition, int]] = {}
        self.fates: dict[Number, str] = {}  # open, ending, committed, aborted
        self.counts: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def begin(self, number: Number) -> None:
        """It is open: nothing of it may be seen."""
        with self._lock:
            self.records[number] = defaultdict(int)
            self.fates[number] = "open"

    def becomes(self, number: Number, fate: str) -> None:
        """`ending`: the broker was asked to commit it."""
        with self._lock:
            self.fates[number] = fate
            self.counts[fate] += 1

    def snapshot(self) -> dict[Number, str]:
        """What is known now."""
        with self._lock:
            return dict(self.fates)


class CommittedReader:
    """Reads a partition as a consumer with read_committed does: it leaves out what the answers say was aborted."""

    def __init__(self, partition: Partition, position: int = 0) -> None:
        self.partition = partition
        self.position = position
        self.high_watermark = -1
        self._aborting: dict[int, list[int]] = defaultdict(list)  # producer id: where its aborted transactions begin

    def read(self, client: Client) -> list[tuple[int, bytes]]:
        """Offset and value of the next records. OSError if this broker does not lead the partition."""
        topic, index = self.partition
        fetch = messages.FetchRequest
        rows = [fetch.FetchPartition(partition=index, fetch_offset=self.position, partition_max_bytes=1 << 20)]
        topics = [fetch.FetchTopic(topic=topic, partitions=rows)]
        request = fetch(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1, topics=topics)
        row = client.ask(ApiKey.FETCH, 11, request).responses[0].partitions[0]
        if row.error_code:
            raise AskAgainError
        self.high_watermark = row.high_watermark
        for aborted in row.aborted_transactions or ():
            if aborted.first_offset not in self._aborting[aborted.producer_id]:
                self._aborting[aborted.producer_id].append(aborted.first_offset)
        found: list[tuple[int, bytes]] = []
        for header, data in record_batch.batches(whole_batches(row.records or b"")):
            starts = self._aborting.get(header.producer_id, [])
            is_aborted = any(start <= header.base_offset for start in starts)
            if header.attributes & CONTROL:
                if is_aborted:
                    self._aborting[header.producer_id] = [start for start in starts if start > header.base_offset]
            elif not (header.attributes & TRANSACTIONAL and is_aborted):
                found += [
                    (record.offset, bytes(record.value or b""))
                    for record in record_batch.records(data)
                    if record.offset >= self.position
                ]
            self.position = max(self.position, header.next_offset)
        return found


def stable_offsets(client: Client, indexes: list[int]) -> dict[int, int] | None:
    """Committed offsets of the copiers' group; None while some are in an open transaction. OSError if it moves."""
    fetch = messages.OffsetFetchRequest
    rows = [fetch.OffsetFetchRequestTopic(name=TRANSACTIONS, partition_indexes=indexes)]
    request = fetch(group_id=COPIERS_GROUP, topics=rows, require_stable=True)
    answer = client.ask(ApiKey.OFFSET_FETCH, 7, request)
    if answer.error_code in COORDINATOR_MOVES:
        raise AskAgainError
    if answer.error_code or any(row.error_code for row in answer.topics[0].partitions):
        return None
    return {row.partition_index: row.committed_offset for row in answer.topics[0].partitions}


class TransactionChecker:
    """Reads what consumers of committed records see, and compares it with the book and the committed offsets."""

    def __init__(self, place: OneBroker, books: Books, transactions: Transactions, partitions: list[Partition]) -> None:
        self.place = place
        self.books = books
        self.transactions = transactions
        self.partitions = partitions
        self.copies = [(COPIES, index) for _, index in partitions]

    def check(self, at_rest: bool = False) -> int:
        """Returns how many records are visible. `at_rest`: no client works any more, and nothing may be half done."""
        before = self.transactions.snapshot()
        committed = self._committed_offsets()
        visible = self._copies_and_sources()
        after = self.transactions.snapshot()
        found: dict[Number, dict[Partition, list[int]]] = defaultdict(lambda: defaultdict(list))
        for partition in self.partitions:
            for _, value in visible[partition]:
                producer, count, index = map(int, value.split()[:3])
                found[producer, count][partition].append(index)
        for number, fate in after.items():
            wrote = {key: list(range(count)) for key, count in self.transactions.records[number].items() if count}
            seen = dict(found.get(number, {}))
            if before.get(number) == "committed":
                is_right = seen == wrote
            elif fate in ("open", "aborted"):
                is_right = not seen
            elif at_rest:
                is_right = not seen or seen == wrote
            else:
                # It was committed meanwhile: a reading ends at what was the high watermark, perhaps in its middle.
                is_right = all(indexes == wrote.get(key, [])[: len(indexes)] for key, indexes in seen.items())
            if not is_right:
                self.books.problem(f"transaction {number} is {fate}, wrote {_counts(wrote)}, visible: {_counts(seen)}")
        self._check_copies(committed, visible, at_rest)
        return sum(len(visible[partition]) for partition in self.partitions)

    def _check_copies(
        self, committed: dict[Partition, int], visible: dict[Partition, list[tuple[int, bytes]]], at_rest: bool
    ) -> None:
        """Each visible record has one copy, in order, up to the committed offset at least, which is older."""
        for partition, copy in zip(self.partitions, self.copies, strict=True):
            copies = [int(value) for _, value in visible[copy]]
            sources = [offset for offset, _ in visible[partition]]
            if copies != sources[: len(copies)]:
                pairs = enumerate(zip(copies, sources, strict=False))
                place = next((at for at, pair in pairs if pair[0] != pair[1]), len(sources))
                text = f"copies of {partition} differ from place {place} on: {copies[place : place + 5]}, "
                self.books.problem(text + f"of {sources[place : place + 5]}")
            end = copies[-1] + 1 if copies else 0
            if end < committed[partition] or (at_rest and end != max(committed[partition], 0)):
                self.books.problem(f"copies of {partition} end at {end}, committed is {committed[partition]}")

    def _copies_and_sources(self) -> dict[Partition, list[tuple[int, bytes]]]:
        """The visible records of all.

        A leader that was just elected may know of a lower high watermark than the one before it, until its followers
        fetch. So where fewer records are visible than were copied, it is looked again.
        """
        deadline = time.monotonic() + ENDED_WITHIN_S
        while True:
            visible = self._visible([*self.copies, *self.partitions])
            is_behind = any(
                len(visible[partition]) < len(visible[copy])
                for partition, copy in zip(self.partitions, self.copies, strict=True)
            )
            if not is_behind or time.monotonic() > deadline:
                return visible
            time.sleep(AGAIN_S)

    def _committed_offsets(self) -> dict[Partition, int]:
        """When all are stable."""
        indexes = [index for _, index in self.partitions]
        deadline = time.monotonic() + ENDED_WITHIN_S
        while time.monotonic() < deadline:
            with suppress(OSError), closing(self.place.coordinator(COPIERS_GROUP)) as client:
                offsets = stable_offsets(client, indexes)
                if offsets is not None:
                    return {(TRANSACTIONS, index): offset for index, offset in offsets.items()}
            time.sleep(AGAIN_S)
        self.books.problem("the copiers' offsets do not become stable")
        return dict.fromkeys(self.partitions, -1)

    def _visible(self, partitions: list[Partition]) -> dict[Partition, list[tuple[int, bytes]]]:
        """Offset and value of each committed record, up to the present high watermarks, which are asked for in order.

        What is open there must end by the clock. All high watermarks are known first, so it ends everywhere at once.
        """
        readers = {partition: CommittedReader(partition) for partition in partitions}
        found = {partition: self._read(reader) for partition, reader in readers.items()}
        ends = {partition: reader.high_watermark for partition, reader in readers.items()}
        for partition, reader in readers.items():
            found[partition] += self._read(reader, ends[partition])
        return found

    def _read(self, reader: CommittedReader, end: int | None = None) -> list[tuple[int, bytes]]:
        """The records up to this offset. None: those of one answer."""
        found: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + ENDED_WITHIN_S
        while end is None or reader.position < end:
            before = reader.position
            with suppress(OSError), closing(self.place.leader(reader.partition)) as client:
                while end is None or reader.position < end:
                    found += reader.read(client)
                    if end is None:
                        return found
                    if reader.position == before:
                        break
                    before = reader.position
                    deadline = time.monotonic() + ENDED_WITHIN_S
            if time.monotonic() > deadline:
                name = f"{reader.partition[0]}-{reader.partition[1]}"
                self.books.problem(f"{name}: stable up to {reader.position} for {ENDED_WITHIN_S} s, and ends at {end}")
                break
            time.sleep(AGAIN_S)
        return found


def _counts(records: dict[Partition, list[int]]) -> str:
    return ", ".join(f"{index}: {len(rows)}" for (_, index), rows in sorted(records.items())) or "nothing"
