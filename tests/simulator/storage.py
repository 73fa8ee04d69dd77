"""Power cuts under a data directory: a workload that uses all of storage, and what must hold after a power cut at any
change of the disk, whatever happens to unsynced bytes.

The workload keeps a book of the records that it appended and of what the log manager promised to be durable. The disk
is copied before every change of it. `crash_points` hands out these copies; `check` crashes one, opens it and compares.
"""

import copy
import random
from collections.abc import Iterator
from typing import NamedTuple

from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.protocol.batch_layout import CONTROL, TRANSACTIONAL
from barnabas.protocol.record_batch import Record
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker, marker_of
from barnabas.storage import producer_state, truncation
from barnabas.storage.directory_contents import DataDirectoryError
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from barnabas.storage.producer_entry import BATCHES_REMEMBERED, ProducerBatch, ProducerEntry
from barnabas.storage.producer_state import ProducerStateManager
from barnabas.storage.validation import AppendOrigin

from simulator import storage_transactions
from simulator.disk import SimDisk
from simulator.env import SimEnv, sim_env
from simulator.storage_transactions import Event, TransactionSteps, take_part
from simulator.violation import Violation

FATES = ("lost", "torn", "torn", "scattered", "kept")
DIRECTORY = "/var/data"
SMALL = {"internal.segment.bytes": "900", "index.interval.bytes": "150", "file.delete.delay.ms": "500"}
TOPICS = {
    "plain": SMALL,
    "flushed": SMALL | {"flush.messages": "1"},
    "compacted": SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "short": SMALL | {"retention.bytes": "1500"},
    "followed": SMALL,
    "deleted": SMALL,
}
POLICIES = ("compact", "delete")  # of the compacted topic; now and then the workload changes it
TOPIC_ID = bytes(15) + b"\x07"


def settings_of(topic: str, policy: str) -> dict[str, str]:
    """The settings of a topic; `policy` is the compacted topic's cleanup.policy now."""
    settings = TOPICS.get(topic) or storage_transactions.TOPICS.get(topic, {})
    return settings | {"cleanup.policy": policy} if topic == "compacted" else settings


class Stored(NamedTuple):
    """One record that was appended."""

    key: bytes | None
    value: bytes | None


class Book:
    """What is known of one log. A change is noted before it begins; a promise is noted when it has been made."""

    def __init__(self) -> None:
        self.records: dict[int, Stored] = {}  # by offset; also records that are being appended now
        self.old: dict[int, list[Stored]] = {}  # records of deleted topics of the same name
        self.cut: dict[int, list[Stored]] = {}  # records that the truncation in progress removes
        self.durable_end = 0  # the log manager has promised that all below is durable
        self.start_allowed = 0  # the highest log start that is allowed
        self.exists = False  # its folder was made durable
        self.may_be_gone = True
        self.controls: dict[int, None] = {}


class CrashPoint(NamedTuple):
    """The disk as it was before one change, and the books as they were then."""

    number: int
    operation: str
    step: str
    disk: SimDisk
    books: dict[str, Book]
    events: dict[str, tuple[list[Event], int]]  # of the logs with transactions, and how far their start may be


class Workload:
    """The steps of a workload, in an order that depends on the seed."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.rng = random.Random(f"{seed} storage")
        self._policy_rng = random.Random(f"{seed} policy")
        self._policy = POLICIES[0]
        self.steps = steps
        self.env = sim_env(seed)
        self.books = {topic: Book() for topic in TOPICS}
        self.points: list[CrashPoint] = []
        self.step = "start"
        self.transactions = TransactionSteps(self.env, seed)
        self.manager = self._open()
        self._sequences: dict[tuple[str, int], int] = {}
        self._compactions = 0
        self._epoch = 0
        self._keep_every = 1
        self._focus = ""

    def crash_points(self, keep_every: int = 1, focus: str = "") -> Iterator[CrashPoint]:
        """Run to the end; hand out every `keep_every`-th point of the steps whose name begins with `focus`."""
        self._keep_every = keep_every
        self._focus = focus
        self.env.disk.on_change = self._about_to_change
        for topic in TOPICS:
            self._make(topic)
        for _ in range(self.steps):
            self._one_step()
            self.step = "transactions"
            self.transactions.one(self.manager)
            yield from self._taken()
        self.step = "shutdown"
        self.manager.shutdown()
        self._promised()
        yield from self._taken()

    def _taken(self) -> Iterator[CrashPoint]:
        points, self.points = self.points, []
        yield from points

    def _about_to_change(self, operation: str, path: str) -> None:
        disk = self.env.disk
        if disk.operations % self._keep_every == 0 and self.step.startswith(self._focus):
            books = copy.deepcopy(self.books)
            starts = self.transactions.start_allowed
            events = {topic: (events.copy(), starts[topic]) for topic, events in self.transactions.events.items()}
            point = CrashPoint(disk.operations, f"{operation} {path}", self.step, disk.copy(), books, events)
            self.points.append(point)

    def _open(self) -> LogManager:
        manager = LogManager(self.env, DIRECTORY, BrokerConfig.of({}), lambda topic: settings_of(topic, self._policy))
        manager.start()
        return manager

    def _make(self, topic: str) -> Log:
        self.step = f"make {topic}"
        self.books[topic].may_be_gone = True
        log = self.manager.get_or_create(topic, 0, TOPIC_ID)
        self.books[topic].exists = True
        return log

    def _promised(self) -> None:
        """Note what the logs say is durable now."""
        for topic, book in self.books.items():
            log = self.manager.get(topic, 0)
            if log is not None and log.failed is None and book.exists:
                book.durable_end = max(book.durable_end, log.durability.recovery_point)
                if topic == "flushed":
                    book.durable_end = log.log_end_offset
                book.may_be_gone = book.may_be_gone and book.durable_end == 0
                book.cut.clear()

    def _one_step(self) -> None:
        rng = self.rng
        if self._policy_rng.random() < 0.1:
            self._policy = self._policy_rng.choice(POLICIES)
            self.manager.update_topic_config("compacted")
        luck = rng.random()
        if luck < 0.62:
            self._append(rng.choice(list(TOPICS)))
        elif luck < 0.68:
            self._flush(rng.choice(list(TOPICS)))
        elif luck < 0.72:
            self._compact()
        elif luck < 0.76:
            if rng.random() < 0.5:  # so that more than one segment is removed
                for _ in range(rng.randint(8, 16)):
                    self._append("short")
            self._retention()
        elif luck < 0.80:
            self.step = "checkpoint"
            self.manager.checkpoint()
        elif luck < 0.84:
            self._truncate()
            if rng.random() < 0.5:  # as a follower that catches up
                for _ in range(rng.randint(3, 12)):
                    self._append("followed")
        elif luck < 0.88:
            self._delete_records()
        elif luck < 0.91:
            self._delete_topic()
        elif luck < 0.95:
            self.step = "a while passes"
            self.env.clock.advance(rng.choice((100, 6_000, 70_000)))
        else:
            self.step = "clean restart"
            self.manager.shutdown()
            self._promised()
            self.manager = self._open()
        self._promised()

    def _log(self, topic: str) -> Log:
        log = self.manager.get(topic, 0)
        return self._make(topic) if log is None else log

    def _append(self, topic: str) -> None:
        rng = self.rng
        log = self._log(topic)
        book = self.books[topic]
        self.step = f"append to {topic}"
        count = rng.randint(1, 3)
        start = log.log_end_offset
        now_ms = self.env.clock.now_ms() + rng.randint(-500, 500)
        batch = []
        for slot in range(count):
            key = b"key%d" % rng.randint(0, 5) if topic == "compacted" else None
            value = None if topic == "compacted" and rng.random() < 0.05 else b"%s %d" % (topic.encode(), start + slot)
            if value is not None:
                value += b"." * rng.choice((0, 20, 120))
            batch.append(Record(offset=slot, timestamp=now_ms + slot, key=key, value=value, headers=[]))
            book.records[start + slot] = Stored(key, value)
        producer_id, sequence = -1, -1
        if topic in ("plain", "flushed", "short", "followed"):
            producer_id = rng.randint(0, 2)
            sequence = self._sequences.get((topic, producer_id), 0)
        self._epoch += rng.random() < 0.05
        data = record_batch.build(
            batch,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            partition_leader_epoch=self._epoch if topic == "followed" else -1,
            base_offset=start if topic == "followed" else 0,
        )
        if topic == "followed":
            result = log.append_as_follower(data)
        else:
            result = log.append_as_leader(
                data, leader_epoch=self._epoch, origin=AppendOrigin.CLIENT, now_ms=self.env.clock.now_ms()
            )
        assert not result.error, (topic, result.error, result.error_message)
        assert result.base_offset == start
        self._sequences[topic, producer_id] = sequence + count
        log.set_high_watermark(log.log_end_offset)
        if topic == "plain" and rng.random() < 0.15:
            self._transaction(log, book)

    def _transaction(self, log: Log, book: Book) -> None:
        """A batch of a transaction and its marker."""
        self.step = "transaction on plain"
        producer_id = 7
        sequence = self._sequences.get(("plain", producer_id), 0)
        start = log.log_end_offset
        now_ms = self.env.clock.now_ms()
        value = b"plain %d" % start
        book.records[start] = Stored(None, value)
        data = record_batch.build(
            [Record(offset=0, timestamp=now_ms, key=None, value=value, headers=[])],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        take_part(log, producer_id, 0)
        result = log.append_as_leader(data, leader_epoch=self._epoch, origin=AppendOrigin.CLIENT, now_ms=now_ms)
        assert not result.error, result.error
        self._sequences["plain", producer_id] = sequence + 1
        book.controls[log.log_end_offset] = None
        marker = build_marker(
            self.rng.choice((CONTROL_ABORT, CONTROL_COMMIT)),
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=now_ms,
        )
        log.append_as_leader(marker, leader_epoch=self._epoch, origin=AppendOrigin.COORDINATOR, now_ms=now_ms)
        log.set_high_watermark(log.log_end_offset)

    def _flush(self, topic: str) -> None:
        log = self._log(topic)
        self.step = f"flush {topic}"
        log.flush()
        self.books[topic].durable_end = log.log_end_offset

    def _compact(self) -> None:
        log = self._log("compacted")
        self.step = "compaction"
        self._compactions += 1
        if self._compactions % 2:
            self.manager.cleaner.run(log)
        else:
            self.manager.cleaner.begin(log)  # it runs while time passes and other steps change the log

    def _retention(self) -> None:
        for topic in ("short", "plain"):
            log = self.manager.get(topic, 0)
            if log is not None and topic == "short":
                self.books[topic].start_allowed = log.log_end_offset
        self.step = "retention"
        self.manager.apply_retention()
        log = self.manager.get("short", 0)
        if log is not None:
            self.books["short"].start_allowed = log.log_start_offset

    def _truncate(self) -> None:
        log = self._log("followed")
        book = self.books["followed"]
        if log.log_end_offset <= log.log_start_offset:
            return
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        if self.rng.random() < 0.15:
            offset = log.log_end_offset + self.rng.randint(0, 5)
            self.step = f"truncate followed fully to {offset}"
            book.may_be_gone = True  # or it may be empty
            book.start_allowed = offset
            book.durable_end = 0
            book.cut = {at: [record] for at, record in book.records.items()}
            book.records.clear()
            truncation.truncate_fully_and_start_at(log, offset)
        else:
            self.step = f"truncate followed to {offset}"
            start = next((b.base_offset for _, b in log.segments.batches_from(offset)), offset)
            start = min(start, offset)
            book.durable_end = min(book.durable_end, start) if start > log.segments[0].base_offset else 0
            gone = [at for at in book.records if at >= start]
            book.cut = {at: [book.records[at]] for at in gone}
            for at in gone:
                del book.records[at]
            truncation.truncate_to(log, offset)
        assert log.failed is None
        self._sequences = {key: value for key, value in self._sequences.items() if key[0] != "followed"}
        for entry in log.producers.entries.values():
            if entry.batches:
                self._sequences["followed", entry.producer_id] = entry.batches[-1].last_sequence + 1
        log.set_high_watermark(log.log_end_offset)

    def _delete_records(self) -> None:
        topic = self.rng.choice(("plain", "flushed"))
        log = self._log(topic)
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        book = self.books[topic]
        book.start_allowed = max(book.start_allowed, offset)
        self.step = f"delete records of {topic} before {offset}"
        log.delete_records_before(offset)

    def _delete_topic(self) -> None:
        if self.manager.get("deleted", 0) is None:
            return
        self.step = "delete a topic"
        book = self.books["deleted"]
        book.may_be_gone = True
        self.manager.delete("deleted", 0)
        fresh = self.books["deleted"] = Book()
        # its old name is removed durably a little later; until then a crash may bring it back
        fresh.old = {at: [*book.old.get(at, ()), record] for at, record in book.records.items()}
        fresh.controls = book.controls
        self._sequences = {key: value for key, value in self._sequences.items() if key[0] != "deleted"}


def check(point: CrashPoint, fate: str, seed: int) -> None:
    """Crash at this point, open the directory and compare it with the books. Violation."""
    where = f"crash {point.number} before {point.operation} ({point.step}), unsynced {fate}"
    env = sim_env(seed)
    disk = point.disk.copy(env.clock, random.Random(f"{seed} {point.number} {fate}"))
    disk.crash(fate)
    env = SimEnv(clock=env.clock, disk=disk, network=env.network, rng=env.rng)
    policy = random.Random(f"{seed} {point.number} policy").choice(POLICIES)
    try:
        manager = opened(env, policy)
        ends = {}
        for topic, book in point.books.items():
            log = manager.get(topic, 0)
            if log is None:
                if book.exists and not book.may_be_gone:
                    raise Violation("everything synced is there", f"{topic} is gone")
                continue
            compare(log, book)
            check_log(log, book.start_allowed)
            ends[topic] = append_one(log)
        check_transactions(manager, point.events)
        manager.shutdown()
        manager = opened(env, policy)
        check_transactions(manager, point.events)
        for topic, end in ends.items():
            log = manager.get(topic, 0)
            if log is None or log.log_end_offset != end:
                raise Violation("a clean stop keeps everything", f"{topic}: {log} should end at {end}")
            check_log(log, point.books[topic].start_allowed)
    except Violation as violation:
        raise Violation(violation.invariant, f"{violation} [{where}]") from None
    except Exception as error:
        raise Violation("nothing escapes", f"{error!r} [{where}]") from error


def check_transactions(manager: LogManager, books: dict[str, tuple[list[Event], int]]) -> None:
    """Compare the logs with transactions with what was done in them."""
    for topic, (events, start_allowed) in books.items():
        log = manager.get(topic, 0)
        if log is not None:
            log.set_high_watermark(log.log_end_offset)
            storage_transactions.check(log, events)
            check_log(log, start_allowed)


def opened(env: SimEnv, policy: str) -> LogManager:
    """The logs of the directory after a start, which must not be refused."""
    manager = LogManager(env, DIRECTORY, BrokerConfig.of({}), lambda topic: settings_of(topic, policy))
    try:
        manager.start()
    except DataDirectoryError as error:
        raise Violation("a data directory opens", str(error)) from error
    return manager


def append_one(log: Log) -> int:
    """Append one batch at the log's end; returns the new end."""
    end = log.log_end_offset
    data = record_batch.build([Record(offset=0, timestamp=1, key=b"after", value=b"crash", headers=[])])
    epoch = max(log.leader_epochs.latest, 0) + 1
    result = log.append_as_leader(data, leader_epoch=epoch, origin=AppendOrigin.COORDINATOR, now_ms=1)
    if result.error or result.base_offset != end:
        raise Violation("the log goes on", f"{log.name} at {end}: {result.error.name} {result.base_offset}")
    log.set_high_watermark(log.log_end_offset)
    return log.log_end_offset


def read_all(log: Log) -> dict[int, Stored | None]:
    """Every record by offset, as a reader finds it (None: a control record)."""
    found: dict[int, Stored | None] = {}
    offset = log.log_start_offset
    while True:
        data = log.read(offset, 500, upper_bound=log.log_end_offset, at_least_one=True)
        if data.error:
            raise Violation("the log can be read", f"{log.name} at {offset}: {data.error.name}")
        if not len(data.records):
            return found
        for header, batch in record_batch.batches(data.records):
            if not record_batch.crc_is_valid(batch):
                raise Violation("batches are whole", f"{log.name} {header.base_offset}")
            for record in record_batch.records(batch):
                if record.offset >= offset:
                    found[record.offset] = None if header.is_control else Stored(record.key, record.value)
            offset = header.next_offset


def compare(log: Log, book: Book) -> None:
    """Compare the log with the book."""
    name = log.name
    found = read_all(log)
    start, end = log.log_start_offset, log.log_end_offset
    if start > book.start_allowed and start > 0:
        raise Violation("the log starts where it may", f"{name}: {start}, allowed is {book.start_allowed}")
    if end < book.durable_end:
        raise Violation("everything synced is there", f"{name}: ends at {end}, {book.durable_end} was promised")
    for offset, stored in found.items():
        if stored is None:
            if offset not in book.controls:
                raise Violation("no invented record", f"{name}: a marker at {offset}")
        elif stored != book.records.get(offset) and stored not in (
            *book.cut.get(offset, ()),
            *book.old.get(offset, ()),
        ):
            raise Violation("no invented record", f"{name} {offset}: {stored}, not {book.records.get(offset)}")
    expected = [offset for offset in [*book.records, *book.controls] if start <= offset < end]
    if name.startswith("compacted"):
        # records that were not promised may be gone; in the middle as well, because compaction may leave gaps
        latest: dict[bytes | None, int] = {}
        for offset in sorted(expected):
            if offset < book.durable_end:
                latest[book.records[offset].key] = offset
        newest = {stored.key: offset for offset, stored in sorted(found.items()) if stored is not None}
        for key, offset in latest.items():
            if newest.get(key, -1) < offset and book.records[offset].value is not None:
                raise Violation("the last record of a key stays", f"{name} {key!r} {offset}, found {newest.get(key)}")
    elif not book.cut and not book.old:
        missing = [offset for offset in expected if offset not in found]
        if missing:
            raise Violation("a prefix", f"{name}: {missing} missing between {start} and {end}")


def check_log(log: Log, settled_from: int = 0) -> None:
    """Check a log against itself: indexes, timestamps, epochs and producers must agree with a full read."""
    name = log.name
    fresh = ProducerStateManager(log.env.disk, log.directory)
    batches = []
    previous_end = log.segments[0].base_offset
    for segment in log.segments:
        segment.load()
        stored = list(segment.batches())
        positions = {batch.position: batch for batch in stored}
        for batch in stored:
            if batch.base_offset < previous_end or batch.base_offset < segment.base_offset:
                raise Violation("offsets rise", f"{name}: {batch.base_offset} behind {previous_end}")
            previous_end = batch.last_offset + 1
            batches.append((segment, batch))
            found = segment.find(batch.last_offset)
            if found is None or found.position != batch.position:
                raise Violation("the offset index agrees", f"{name}: {batch.last_offset} is found at {found}")
        last = segment.offset_index.last_position()
        if stored and last and last not in positions:
            raise Violation("the offset index agrees", f"{name}: its last entry is {last}, where no batch begins")
        largest = max((batch.max_timestamp for batch in stored), default=-1)
        if segment.max_timestamp != largest:
            detail = f"{name} segment {segment.base_offset}: {segment.max_timestamp}, the batches say {largest}"
            raise Violation("the time index agrees", detail)
        previous_end = max(previous_end, segment.base_offset)
    if previous_end > log.log_end_offset:
        raise Violation("the log ends behind its last batch", f"{name}: {log.log_end_offset}, {previous_end}")
    log_start = max(log.log_start_offset, settled_from)  # below, records of a lost log start may be back
    for segment, batch in batches:
        epoch = log.leader_epochs.epoch_for_offset(max(batch.base_offset, log_start))
        if (
            batch.last_offset >= log_start
            and batch.partition_leader_epoch >= 0
            and epoch != batch.partition_leader_epoch
        ):
            detail = f"{name} {batch.base_offset}: {epoch}, the batch says {batch.partition_leader_epoch}"
            raise Violation("the epochs agree", detail)
        if batch.max_timestamp >= 0 and batch.base_offset >= log_start:
            sought = log.offset_for_timestamp(batch.max_timestamp, log.log_end_offset)
            first = next(
                b.last_offset
                for _, b in batches
                if b.last_offset >= log_start and b.max_timestamp >= batch.max_timestamp
            )
            if sought is None or sought[0] > first:
                raise Violation("times are found", f"{name}: {batch.max_timestamp} at {sought}, should be by {first}")
        if batch.producer_id >= 0:
            if batch.attributes & CONTROL:
                marker = marker_of(segment.batch_bytes(batch))
                if marker is not None:
                    fresh.update_marker(
                        batch.producer_id, batch.producer_epoch, marker, batch.last_offset, batch.max_timestamp
                    )
            else:
                fresh.update_data(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.base_offset,
                    batch.last_offset,
                    batch.max_timestamp,
                    bool(batch.attributes & TRANSACTIONAL),
                )
    for producer_id, entry in fresh.entries.items():
        known = log.producers.get(producer_id)
        if known is None:
            if any(b.producer_id == producer_id and b.last_offset >= log_start for _, b in batches):
                raise Violation("producers are a function of the log", f"{name}: {producer_id} is not known")
            continue
        ours, theirs = entry.batches[-1:], known.batches[-1:]
        if name.rpartition("-")[0] in storage_transactions.TOPICS:  # a snapshot has the time of the last marker
            ours, theirs = ([batch._replace(timestamp=0) for batch in some] for some in (ours, theirs))
        if (
            ours
            and ours[0].last_offset >= log_start
            and (ours != theirs or entry.producer_epoch != known.producer_epoch)
        ):
            raise Violation("producers are a function of the log", f"{name}: {producer_id} has {theirs}, not {ours}")
        lost = [batch for batch in entry.batches if batch.last_offset >= log_start and not _remembers(known, batch)]
        if lost:
            raise Violation("producers are a function of the log", f"{name}: {producer_id} may send again {lost}")
        begun, known_begun = entry.current_transaction_first_offset, known.current_transaction_first_offset
        if (
            begun != known_begun
            and not 0 <= min(begun, known_begun) < log_start
            and max(begun, known_begun) >= log_start
        ):
            detail = f"{name}: transaction of {producer_id} from {known_begun} on, not from {begun}"
            raise Violation("producers are a function of the log", detail)
    for producer_id in log.producers.entries:
        if producer_id not in fresh.entries and log.segments[0].base_offset == 0 and not log_start:
            raise Violation("producers are a function of the log", f"{name}: {producer_id} is invented")


def _remembers(known: ProducerEntry, batch: ProducerBatch) -> bool:
    """Whether a batch can be known when it is sent again. Compaction lets a log show older ones than the last five."""
    return any(each[:3] == batch[:3] for each in known.batches) or (
        len(known.batches) == BATCHES_REMEMBERED and batch.last_offset < known.batches[0].last_offset
    )


def run(seed: int, steps: int = 60, keep_every: int = 1, fates: tuple[str, ...] = FATES, focus: str = "") -> int:
    """Crash at each point with each fate; returns how many crashes. Violation, also if the workload itself fails.

    These logs are so short that all of them would be replayed after each crash. So most seeds take up the newest
    snapshot, however few batches are behind it.
    """
    replayed_bytes = producer_state.REPLAYED_AFTER_CRASH_BYTES
    producer_state.REPLAYED_AFTER_CRASH_BYTES = 0 if seed % 3 else replayed_bytes
    count = 0
    try:
        for point in Workload(seed, steps).crash_points(keep_every, focus):
            for number, fate in enumerate(fates):
                check(point, fate, seed * 1000 + number)
                count += 1
    except Violation:
        raise
    except Exception as error:
        raise Violation("nothing escapes", repr(error)) from error
    finally:
        producer_state.REPLAYED_AFTER_CRASH_BYTES = replayed_bytes
    return count
