"""What a coordinator loads is what was committed, whatever has happened to the log: compactions, crashes and stops, in
any order, with transactions. The log is a real one on a simulated disk.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.config.broker import BrokerConfig
from barnabas.offsets.records import (
    NO_TOPIC_ID,
    CommittedOffset,
    OffsetCommits,
    OffsetRemovals,
    decode_change,
    encode_key,
    encode_value,
)
from barnabas.offsets.table import OffsetTable
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import PlainBatch, PlainRecords, Record, build, build_plain, records
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin, AppendResult
from group_world import GroupWorld
from simulator.env import sim_env
from simulator.storage_transactions import take_part

TOPIC_ID = bytes(range(16))
PRODUCERS = (7, 8)
GROUPS = ("g", *(f"group-{number}" for number in range(1, 12)))


class Written(NamedTuple):
    """A batch as it was appended. `commit`: of a marker."""

    base_offset: int
    end_offset: int
    data: bytes
    producer_id: int = -1
    commit: bool | None = None


class DiskLog:
    """A `CoordinatorLog` over a log on a simulated disk, and a list of what was appended and is still there."""

    leader_epoch = 0

    def __init__(self, seed: int) -> None:
        self.env = sim_env(seed)
        self.written: list[Written] = []
        self.open()

    def open(self) -> None:
        """After the broker has ended in any way."""
        self.manager = LogManager(self.env, "/data", BrokerConfig.of({"log.cleaner.enable": "false"}), lambda topic: {})
        self.manager.start()
        self.log = self.manager.get_or_create(OFFSETS_TOPIC, 0, TOPIC_ID)
        config = self.log.config
        config.cleanup_policy = frozenset(("compact",))
        config.segment_bytes, config.delete_retention_ms = 12_000, 1_000
        self.log.set_high_watermark(self.log.log_end_offset)
        self.written = [each for each in self.written if each.end_offset <= self.log_end_offset]

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    def append(self, batch: Any, required_acks: int = -1, **fields: Any) -> AppendResult:
        data = bytearray(batch.data if isinstance(batch, PlainBatch) else batch)
        result = self.log.append_as_leader(
            data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=self.env.clock.now_ms()
        )
        assert not result.error, result
        self.log.set_high_watermark(self.log.log_end_offset)
        self.written.append(Written(result.base_offset, self.log_end_offset, bytes(data), **fields))
        return result

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> object:
        self.env.clock.call_soon(lambda: waiter(ErrorCode.NONE))
        return None

    def read(self, offset: int, max_bytes: int) -> Any:
        found = self.log.read(offset, max_bytes, upper_bound=self.log_end_offset, at_least_one=True)
        assert not found.error
        return found.records

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp=self.env.clock.now_ms(),
        )
        self.append(marker, producer_id=producer_id, commit=commit)

    def table(self) -> OffsetTable:
        """What was written, record by record."""
        table = OffsetTable()
        for batch in self.written:
            if batch.commit is not None:
                table.replay_end_transaction(batch.producer_id, batch.commit)
                continue
            for record in records(batch.data):
                assert record.key is not None
                table.replay(decode_change(record.key, record.value), record.offset, batch.producer_id)
        return table


def random_commits(chance: random.Random) -> OffsetCommits:
    group_id = chance.choice(GROUPS)
    topics = chance.sample(("t", "events"), chance.choice((1, 1, 2)))
    first, count = chance.choice(((0, 4), (0, 4), (0, 4), (2, 4), (250, 12)))
    metadata = chance.choice(("", "", "", "note", "x" * 130))
    topic_id = chance.choice((NO_TOPIC_ID, TOPIC_ID))
    offsets = {
        topic: {
            index: CommittedOffset(chance.randrange(1 << 40), 3, metadata, 1_700_000_000_000, topic_id=topic_id)
            for index in range(first, first + count)
        }
        for topic in topics
    }
    return OffsetCommits(group_id, offsets)


def write_some(log: DiskLog, chance: random.Random) -> None:
    """Commits and removals as a coordinator writes them."""
    plain = PlainRecords()
    for _ in range(chance.choice((1, 1, 3))):
        random_commits(chance).append_to(plain)
        if chance.random() < 0.1:
            OffsetRemovals(chance.choice(GROUPS[:3]), [("t", index) for index in range(3)]).append_to(plain)
    log.append(build_plain(plain, log.env.clock.now_ms(), codec=chance.choice((0, 0, 1)), base_sequence=0).data)


def write_in_transaction(log: DiskLog, chance: random.Random, producer_id: int) -> None:
    """Commits of a transaction, which stays open."""
    commits = random_commits(chance)
    pairs = [
        (encode_key(commits.group_id, topic, index), encode_value(offset))
        for topic, offsets in commits.offsets.items()
        for index, offset in offsets.items()
    ]
    now_ms = log.env.clock.now_ms()
    take_part(log.log, producer_id, 0)
    rows = [Record(index, now_ms, *pair, []) for index, pair in enumerate(pairs)]
    log.append(build(rows, producer_id=producer_id, producer_epoch=0, transactional=True), producer_id=producer_id)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_loaded_is_what_was_committed(seed: int) -> None:
    chance = random.Random(seed)
    log = DiskLog(seed)
    world = GroupWorld(seed)
    world.logs[0] = log  # type: ignore[call-overload]
    runs = lives = 0
    for _ in range(120):
        log.env.clock.advance(chance.choice((1, 50, 3_000)))
        what = chance.random()
        if what < 0.6:
            write_some(log, chance)
        elif what < 0.7:
            write_in_transaction(log, chance, chance.choice(PRODUCERS))
        elif what < 0.8:
            producer_id = chance.choice(PRODUCERS)
            if log.log.producers.is_in_transaction(producer_id, 0):
                log.end_transaction(producer_id, commit=chance.random() < 0.6)
        elif what < 0.85:
            log.log.flush()
        elif what < 0.93:
            log.manager.cleaner.run(log.log)
        else:
            if chance.random() < 0.3:
                log.manager.shutdown()
            else:
                log.env.disk.crash(chance.choice(("lost", "kept", "torn", "scattered")))
            log.open()
            world.restart()
            lives += 1
            loaded = world.coordinator.shards[0].offsets
            runs += sum(map(len, loaded.stored.values()))
            expected = log.table()
            assert loaded.committed == expected.committed
            assert loaded.pending == expected.pending
    assert runs
    assert lives
