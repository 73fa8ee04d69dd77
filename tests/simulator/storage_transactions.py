"""Transactions in the workload of `storage.py`: several open at a time, across segments, restarts and compactions.

The book is the list of everything that was appended, in the order of offsets. From any prefix of it, `expected` says
what a consumer with read_committed must be shown. A crash or a truncation leaves a prefix. So the book needs no other
memory, and knows nothing of how the log keeps its transactions.
"""

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from barnabas.protocol import record_batch
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.runtime.ports import Buffer
from barnabas.storage import truncation
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin

from simulator.env import SimEnv
from simulator.violation import Violation

SMALL = {"internal.segment.bytes": "900", "index.interval.bytes": "150", "file.delete.delay.ms": "500"}
TOPICS = {
    "payments": SMALL,
    "balances": SMALL
    | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "20000"},
}
PRODUCERS = (71, 72, 73)
COMMIT, ABORT = "commit", "abort"


class Event(NamedTuple):
    """One batch. `end` is COMMIT or ABORT for a marker, and None for data; `producer_id` -1: no transaction."""

    base_offset: int
    producer_id: int
    keys: tuple[bytes, ...] = ()
    end: str | None = None


class Expected(NamedTuple):
    """What the events say."""

    committed: dict[int, bytes]  # offset -> key
    aborted: set[int]
    undecided: set[int]
    first_undecided: int | None


def expected(events: list[Event], end_offset: int) -> Expected:
    """What a consumer with read_committed must be shown of the events before an offset."""
    decided: dict[int, bytes] = {}
    aborted: set[int] = set()
    ongoing: dict[int, dict[int, bytes]] = {}
    for event in events:
        if event.base_offset >= end_offset:
            break
        if event.end is not None:
            records = ongoing.pop(event.producer_id, {})
            if event.end == COMMIT:
                decided.update(records)
            else:
                aborted.update(records)
            continue
        records = {event.base_offset + slot: key for slot, key in enumerate(event.keys)}
        if event.producer_id < 0:
            decided.update(records)
        else:
            ongoing.setdefault(event.producer_id, {}).update(records)
    undecided = {offset for records in ongoing.values() for offset in records}
    return Expected(decided, aborted, undecided, min(undecided, default=None))


def take_part(log: Log, producer_id: int, producer_epoch: int) -> None:
    """As if the producer's coordinator had confirmed that the partition is in its transaction."""
    asked = log.producers.begin_verification(producer_id, producer_epoch, 2**31 - 1, 0, raises_epochs=False)
    if asked is not None:
        log.producers.confirm(asked, producer_epoch)


def visible(log: Log) -> dict[int, bytes | None]:
    """The keys of the records that a consumer with read_committed is shown, by offset: it does as clients do."""
    found: dict[int, bytes | None] = {}
    offset = log.log_start_offset
    while True:
        data = log.read(offset, 400, upper_bound=log.last_stable_offset, at_least_one=True)
        if data.error:
            raise Violation("the log can be read", f"{log.name} at {offset}: {data.error.name}")
        if not len(data.records):
            return found
        aborted = [(row[0], row[1]) for row in log.segments.aborted_transactions(offset, data.next_offset)]
        for record in committed_records(data.records, aborted):
            if record.offset >= offset:
                found[record.offset] = record.key
        offset = max(offset, *(header.next_offset for header, _ in record_batch.batches(data.records)))


def committed_records(data: Buffer | None, aborted: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """The records that a client hands to its reader: not those of aborted transactions (producer id, first offset)."""
    waiting = sorted(aborted, key=lambda row: row[1], reverse=True)
    aborting: set[int] = set()
    for header, batch in record_batch.batches(data or b""):
        while waiting and waiting[-1][1] <= header.base_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield from record_batch.records(batch)


def check_bounds(log: Log, where: str) -> None:
    """The last stable offset lies between log start and high watermark, and before what is open. Violation."""
    start, stable, high_watermark = log.log_start_offset, log.last_stable_offset, log.high_watermark
    if not start <= stable <= high_watermark:
        detail = f"{where}: {start} <= {stable} <= {high_watermark}"
        raise Violation("the last stable offset is below the high watermark", detail)
    for producer_id, entry in log.producers.entries.items():
        begun = entry.current_transaction_first_offset
        if 0 <= begun < stable and stable > start:
            detail = f"{where}: {stable}, that of producer {producer_id} began at {begun}"
            raise Violation("the last stable offset stops at open transactions", detail)


def check(log: Log, events: list[Event]) -> None:
    """Compare what consumers are shown of a log with what the events say. Violation."""
    name, start, high_watermark = log.name, log.log_start_offset, log.high_watermark
    stable = log.last_stable_offset
    check_bounds(log, name)
    truth = expected(events, log.log_end_offset)
    # A log may forget a transaction whose records were deleted, all of them.
    first = min((offset for offset in truth.undecided if offset >= start), default=None)
    if first is not None and stable > first:
        raise Violation("the last stable offset stops at open transactions", f"{name}: {stable}, open is {first}")
    decided = expected(events, high_watermark)
    first = min((offset for offset in decided.undecided if offset >= start), default=None)
    if first is not None and stable > first:
        raise Violation("a marker counts when it is replicated", f"{name}: {stable}, undecided is {first}")
    latest = high_watermark if decided.first_undecided is None else min(decided.first_undecided, high_watermark)
    if stable < max(latest, start):
        raise Violation("the last stable offset moves on", f"{name}: {stable}, everything is decided up to {latest}")
    shown = visible(log)
    for offset in shown:
        if offset in truth.aborted:
            raise Violation("nothing aborted is visible", f"{name}: {offset}")
        if offset in truth.undecided:
            raise Violation("nothing undecided is visible", f"{name}: {offset}")
    wanted = {offset: key for offset, key in truth.committed.items() if start <= offset < stable}
    if name.startswith("balances"):
        newest = {key: offset for offset, key in sorted(shown.items())}
        missing = [
            offset
            for key, offset in {key: at for at, key in sorted(wanted.items())}.items()
            if newest.get(key, -1) < offset
        ]
    else:
        missing = [offset for offset in wanted if offset not in shown]
    if missing:
        raise Violation("what is committed is visible", f"{name}: {missing} of {start}..{stable}")


class TransactionSteps:
    """The steps on the logs with transactions. Their random numbers are their own."""

    def __init__(self, env: SimEnv, seed: int) -> None:
        self._env = env
        self._rng = random.Random(f"{seed} transactions")
        self.events: dict[str, list[Event]] = {topic: [] for topic in TOPICS}
        self._logs: dict[str, Log] = {}
        self.start_allowed = dict.fromkeys(TOPICS, 0)  # the highest log start that is allowed

    def one(self, manager: LogManager) -> None:
        """Do a step, perhaps."""
        rng = self._rng
        if rng.random() < 0.5:
            return
        topic = rng.choice(list(TOPICS))
        log = manager.get(topic, 0)
        if log is None:
            log = manager.get_or_create(topic, 0, bytes(15) + b"\x08")
        if self._logs.get(topic) is not log:  # a restart has forgotten which markers are not replicated
            self._logs[topic] = log
            log.set_high_watermark(log.log_end_offset)
        events = self.events[topic]
        luck = rng.random()
        for _ in range(rng.randint(1, 4)):
            self._append(log, events)
        if luck < 0.5:
            self._end(log, events)
        elif luck < 0.6:
            log.roll()
        elif luck < 0.66 and topic == "payments":
            offset = rng.randint(log.log_start_offset, log.high_watermark)
            self.start_allowed[topic] = max(self.start_allowed[topic], offset)
            log.delete_records_before(offset)
        elif luck < 0.72 and topic == "payments":
            truncation.truncate_to(log, rng.randint(log.high_watermark, log.log_end_offset))
            events[:] = [event for event in events if event.base_offset < log.log_end_offset]
        elif luck < 0.8 and topic == "balances":
            manager.cleaner.run(log)
        if rng.random() < 0.7:
            log.set_high_watermark(log.log_end_offset)
        check(log, events)

    def _append(self, log: Log, events: list[Event]) -> None:
        rng = self._rng
        producer_id = rng.choice((-1, *PRODUCERS))
        keys = tuple(b"key%d" % rng.randint(0, 5) for _ in range(rng.randint(1, 2)))
        now_ms = self._env.clock.now_ms()
        records = [Record(timestamp=now_ms, key=key, value=b"." * rng.choice((1, 60))) for key in keys]
        entry = log.producers.get(producer_id)
        batch = record_batch.build(
            records,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=-1 if producer_id < 0 else 0 if entry is None else entry.last_sequence + 1,
            transactional=producer_id >= 0,
        )
        events.append(Event(log.log_end_offset, producer_id, keys))
        if producer_id >= 0:
            take_part(log, producer_id, 0)
        result = log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=now_ms)
        assert not result.error, result

    def _end(self, log: Log, events: list[Event]) -> None:
        rng = self._rng
        end = rng.choice((COMMIT, ABORT))
        producer_id = rng.choice(PRODUCERS)
        now_ms = self._env.clock.now_ms()
        marker = build_marker(
            CONTROL_COMMIT if end == COMMIT else CONTROL_ABORT,
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=now_ms,
        )
        events.append(Event(log.log_end_offset, producer_id, end=end))
        result = log.append_as_leader(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
        assert not result.error, result
