"""A data directory with damaged files, opened by the storage layer on a simulated disk.

Each case takes the directory of a workload (see simulator.storage), stopped cleanly or not, damages one or two files
and starts. Either the start is refused with a sentence that names the file. Or the logs open: then they hold only
records that were written; indexes and producers agree with a full read; and look-ups, compaction, appends, a stop and
another start raise no unexpected exception. If synced records are missing, the log must have said so.
"""

import logging
import random as _random
import traceback
from contextlib import suppress
from functools import cache
from random import Random
from typing import NamedTuple

from barnabas.config.broker import BrokerConfig
from barnabas.protocol import record_batch
from barnabas.protocol.errors import CorruptBatchError
from barnabas.storage import checkpoints
from barnabas.storage.directory_contents import DataDirectoryError
from barnabas.storage.log import Log
from barnabas.storage.log_manager import LogManager
from mutations import case, spoil
from simulator.disk import SimDisk
from simulator.env import SimEnv, sim_env
from simulator.ledger import Violation
from simulator.storage import DIRECTORY, TOPICS, Book, Workload, append_one, check_log

CASES_PER_DIRECTORY = 200
STEPS = 60
# Damage after which a log need not agree with itself: these have no checksum, or were good for another log.
UNPROVABLE = (".log ", ".timeindex", checkpoints.LEADER_EPOCHS, checkpoints.LOG_START_OFFSETS, "swapped", "replaced")
ADVICE = ("restore", "remove", "move", "name ", "start ", "rewrite", "keep ", "use ", "check")


class Image(NamedTuple):
    """A directory as a broker left it, what is in it, and up to where its checkpoint says that it was synced."""

    disk: SimDisk
    books: dict[str, Book]
    synced: dict[tuple[str, int], int]
    clean: bool


@cache
def image(seed: int, number: int) -> Image:
    """The directory of so many cases in a row; every second was not closed."""
    image.cache_clear()
    clean = number % 2 == 0
    workload = Workload(seed * 1000 + number)
    for topic in TOPICS:
        workload._make(topic)
    for _ in range(STEPS):
        workload._one_step()
    if clean:
        workload.manager.shutdown()
        workload._promised()
    disk = workload.env.disk
    synced = checkpoints.read_offsets(disk, f"{DIRECTORY}/{checkpoints.RECOVERY_POINTS}")
    return Image(disk, workload.books, synced, clean)


class Said(logging.Handler):
    """What the storage layer warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def check(seed: int, number: int) -> str | None:
    """One case; what is wrong, if anything."""
    random = case(seed, "files", number)
    before = image(seed, number // CASES_PER_DIRECTORY)
    env = sim_env(number)
    disk = before.disk.copy(env.clock, _random.Random(number))
    disk.crash("kept")
    damaged = [damage(random, disk) for _ in range(random.choice((1, 1, 1, 2)))]
    said = Said()
    root = logging.getLogger("barnabas.storage")
    was_disabled, level = root.manager.disable, root.level
    logging.disable(logging.NOTSET)
    root.addHandler(said)
    root.propagate = False
    try:
        found = complaint(SimEnv(clock=env.clock, disk=disk, network=env.network, rng=env.rng), before, damaged, said)
    except Exception:
        found = traceback.format_exc(limit=-6)
    finally:
        root.removeHandler(said)
        root.propagate = True
        root.setLevel(level)
        logging.disable(was_disabled)
    how = "clean" if before.clean else "not clean"
    return found and f"{found}\nthe stop was {how}; damaged: {'; '.join(damaged)}\nsaid: {said.lines[:5]}"


def complaint(env: SimEnv, before: Image, damaged: list[str], said: Said) -> str | None:
    """Start, look at everything, go on, stop, start again; what is wrong."""
    try:
        manager = _start(env)
    except DataDirectoryError as error:
        return _complaint_about(str(error))
    has_bad_log = any(".log " in line for line in damaged)
    # Kafka does not notice either that a whole file is another log's, or that a byte changed after a clean stop.
    lost_checkpoint = any(checkpoints.RECOVERY_POINTS in line for line in damaged)
    has_foreign = any(".log swapped" in line or ".log replaced" in line or " swapped with" in line for line in damaged)
    for log in manager.all():
        synced = None if lost_checkpoint else before.synced.get((log.topic, log.partition), 0)
        found = _look_at(log, before.books[log.topic], said, synced, has_bad_log, has_foreign, before.clean)
        if found is not None:
            return f"{log.name}: {found}"
    if not any(word in line for line in damaged for word in UNPROVABLE):
        for log in manager.all():
            if log.failed is None:
                try:
                    check_log(log, before.books[log.topic].start_allowed)
                except Violation as violation:
                    return str(violation)
    _lookups(manager)
    ends = {}
    for log in manager.all():
        if log.failed is None:
            try:
                ends[log.topic] = append_one(log)
            except Violation as violation:
                if log.failed is None or not said.lines:  # it may go offline, and say so
                    return f"{log.name}: {violation}"
    env.clock.advance(400_000)  # retention, checkpoints, compaction
    manager.shutdown()
    try:
        manager = _start(env)
    except DataDirectoryError as error:
        return _complaint_about(str(error))
    for topic, end in ends.items():
        log = manager.get(topic, 0)
        if log is None or log.log_end_offset != end:
            return f"{topic}: {log} after a clean stop, it should end at {end}"
    manager.shutdown()
    return None


def _start(env: SimEnv) -> LogManager:
    manager = LogManager(env, DIRECTORY, BrokerConfig.of({}), lambda topic: TOPICS.get(topic, {}))
    manager.start()
    return manager


def _complaint_about(sentence: str) -> str | None:
    """A refusal says where, and what to do."""
    if DIRECTORY in sentence and any(word in sentence.lower() for word in ADVICE) and len(sentence) < 600:
        return None
    return f"refused without advice: {sentence}"


def _look_at(
    log: Log, book: Book, said: Said, synced: int | None, has_bad_log: bool, has_foreign: bool, clean: bool
) -> str | None:
    """Every record by its offset: nothing invented, nothing that was synced missing in silence."""
    found = {}
    errors = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 500, upper_bound=log.log_end_offset, at_least_one=True)
        if data.error or not len(data.records):
            errors.append(data.error.name)
            break
        try:
            for header, batch in record_batch.batches(data.records):
                if not record_batch.crc_is_valid(batch):
                    raise CorruptBatchError("the checksum of a batch is wrong")
                for record in record_batch.records(batch):
                    if record.offset >= offset:
                        found[record.offset] = None if header.is_control else (record.key, record.value)
                offset = max(offset, header.next_offset)
        except CorruptBatchError as error:  # as a consumer would see it
            errors.append(str(error))
            break
    if log.failed is not None and said.lines:
        return None
    if errors and not has_bad_log:
        return f"cannot be read: {errors}"
    for at, stored in found.items():
        written = book.records.get(at)
        fits = at in book.controls if stored is None else written is not None and stored == tuple(written)
        fits = fits or any(stored == tuple(other) for other in (*book.cut.get(at, ()), *book.old.get(at, ())))
        if has_bad_log and log.topic == "compacted":  # a base offset has no checksum, and gaps are what it may leave
            fits = fits or stored in book.records.values()
        if not fits and not has_foreign and not (clean and has_bad_log):
            return f"invented at {at}: {stored}, written was {written}"
    if errors and not clean and synced is not None and offset >= synced:
        return f"after a crash damage at {offset} was kept: {errors}"
    if synced is not None and synced > log.log_end_offset and not said.lines:
        return f"ends at {log.log_end_offset}, {synced} was promised, and nothing was said"
    if not has_bad_log and not errors:
        missing = [
            at
            for at in book.records
            if log.log_start_offset <= at < log.log_end_offset and at not in found and log.topic != "compacted"
        ]
        if missing and not said.lines:
            return f"missing in silence: {missing[:10]}"
    return None


def _lookups(manager: LogManager) -> None:
    """What clients and upkeep ask of a log; damage is an exception of its own or an answer."""
    manager.apply_retention()
    for log in manager.all():
        if log.failed is not None:
            continue
        for timestamp in (0, 1, 10**6, 2**62):
            with suppress(CorruptBatchError):
                log.offset_for_timestamp(timestamp, log.log_end_offset)
        with suppress(CorruptBatchError):
            log.segments.max_timestamp_offset()
        with suppress(CorruptBatchError):
            log.segments.aborted_transactions(log.log_start_offset, log.log_end_offset)
        log.bytes_between(log.log_start_offset, log.log_end_offset)
        if "compact" in log.config.cleanup_policy:
            manager.cleaner.run(log)


# ---------------------------------------------------------------------- damage


def _all_files(disk: SimDisk, path: str) -> list[str]:
    found = []
    for name in sorted(disk.list_directory(path)):
        below = f"{path}/{name}"
        found += _all_files(disk, below) if disk.is_directory(below) else [below]
    return found


def damage(random: Random, disk: SimDisk) -> str:
    """Do something to a file; what it was. Kinds of files are chosen alike, however many there are of each."""
    files = _all_files(disk, DIRECTORY)
    kinds: dict[str, list[str]] = {}
    for path in files:
        name = path.rpartition("/")[2]
        kinds.setdefault(name.rpartition(".")[2] if name[:1].isdigit() else name, []).append(path)
    path = random.choice(kinds[random.choice(sorted(kinds))])
    luck = random.random()
    if luck < 0.7:
        content = _read(disk, path)
        return _write(disk, path, _changed(random, content), "changed")
    if luck < 0.76:
        return _write(disk, path, b"", "emptied")
    if luck < 0.8:
        return _write(disk, path, bytes(len(_read(disk, path))), "zeroed")
    if luck < 0.86:
        other = random.choice(files)
        first, second = _read(disk, path), _read(disk, other)
        _write(disk, path, second, "")
        return _write(disk, other, first, f"swapped with {path} and")
    if luck < 0.9:
        return _write(disk, path, _read(disk, random.choice(files)), "replaced by another")
    disk.remove(path)
    if luck < 0.95:
        disk.make_directory(path)
        return f"{path} is a folder now"
    return f"{path} removed"


def _changed(random: Random, content: bytes) -> bytes:
    kind = random.random()
    if kind < 0.1:
        return content + random.choice((b"\0", bytes(12), bytes(4096), random.randbytes(61), b"garbage\n"))
    return spoil(random, content)


def _read(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _write(disk: SimDisk, path: str, content: bytes, how: str) -> str:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, content)
        file.sync()
    finally:
        file.close()
    return f"{path} {how}, {len(content)} bytes"
