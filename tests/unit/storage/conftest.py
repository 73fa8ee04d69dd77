"""A log manager on a simulated disk, and short ways to make and read batches."""

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record, build, records
from barnabas.protocol.record_batch import batches as split
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.storage.log_manager import LogManager
from barnabas.storage.validation import AppendOrigin
from simulator.env import sim_env
from simulator.storage_transactions import take_part


class World:
    def __init__(self, seed=0, broker=None, topics=None):
        self.env = sim_env(seed)
        self.disk = self.env.disk
        self.clock = self.env.clock
        self.broker = BrokerConfig.of(broker or {})
        self.topics = topics or {}
        self.manager = None
        self.directories = "/data"

    def open(self):
        self.manager = LogManager(self.env, self.directories, self.broker, lambda topic: self.topics.get(topic, {}))
        self.manager.start()
        return self.manager

    def log(self, topic="t", **settings):
        if self.manager is None:
            self.open()
        if "index_interval_bytes" in settings:  # segments take it when they are made
            self.topics.setdefault(topic, {})["index.interval.bytes"] = str(settings["index_interval_bytes"])
        log = self.manager.get_or_create(topic, 0, bytes(15) + b"\x07")
        self.set(log, **settings)
        return log

    def set(self, log, **settings):
        """Settings below what a topic may have (a segment of 1000 bytes, say)."""
        for name, value in settings.items():
            assert hasattr(log.config, name)
            setattr(log.config, name, value)

    def crash(self, unsynced="lost"):
        self.disk.crash(unsynced)
        self.clock = self.env.clock
        return self.open()

    def restart(self):
        self.manager.shutdown()
        return self.open()

    def now(self):
        return self.clock.now_ms()

    def append(
        self, log, *pairs, origin=AppendOrigin.CLIENT, epoch=0, timestamp=None, codec=Compression.NONE, **fields
    ):
        timestamp = self.now() if timestamp is None else timestamp
        if fields.get("transactional"):
            take_part(log, fields["producer_id"], fields["producer_epoch"])
        batch = build([Record(timestamp=timestamp, key=k, value=v) for k, v in pairs], compression=codec, **fields)
        return log.append_as_leader(batch, leader_epoch=epoch, origin=origin, now_ms=self.now())

    def fill(self, log, count, size=100, **fields):
        """`count` batches of one record; keys and values tell their number."""
        for _ in range(count):
            number = log.log_end_offset
            result = self.append(log, (b"k%d" % number, (b"v%d " % number).ljust(size, b".")), **fields)
            assert result.error == 0, result
        log.set_high_watermark(log.log_end_offset)

    def marker(self, log, producer_id, epoch=0, commit=True, coordinator_epoch=1):
        batch = build_marker(
            CONTROL_COMMIT if commit else CONTROL_ABORT,
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.now(),
        )
        return log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=self.now())


def read_all(log, offset=None, max_bytes=1 << 20):
    """(offset, key, value) of every record, read the way a consumer does."""
    found = []
    offset = log.log_start_offset if offset is None else offset
    while True:
        data = log.read(offset, max_bytes, upper_bound=log.log_end_offset, at_least_one=True)
        assert data.error == 0, data.error
        if not len(data.records):
            return found
        for header, batch in split(data.records):
            found.extend((r.offset, r.key, r.value) for r in records(batch) if r.offset >= offset)
            end = header.next_offset
        assert end <= data.next_offset
        offset = end


@pytest.fixture
def world():
    return World()


@pytest.fixture
def read():
    return read_all


@pytest.fixture
def make_world():
    return World
