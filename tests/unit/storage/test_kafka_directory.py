"""A data directory that Apache Kafka 4.1.0 wrote, against what Kafka's own dump tool printed of it."""

import re
import tarfile
from pathlib import Path

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.record_batch import Compression, records
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.ports import Env
from barnabas.storage.index import TransactionIndex
from barnabas.storage.log_manager import LogManager
from barnabas.storage.producer_snapshot import read_snapshot
from barnabas.storage.producer_state import ProducerStateManager
from simulator.env import sim_env

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.1.0"
DUMPS = sorted(path.stem for path in (GOLDEN / "dump").iterdir())
BATCH = re.compile(
    r"baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) baseSequence: (?P<sequence>-?\d+) "
    r"lastSequence: (?P<last_sequence>-?\d+) producerId: (?P<producer>-?\d+) producerEpoch: (?P<producer_epoch>-?\d+) "
    r"partitionLeaderEpoch: (?P<leader_epoch>-?\d+) isTransactional: (?P<transactional>\w+) "
    r"isControl: (?P<control>\w+) "
    r"deleteHorizonMs: (?P<horizon>\S+) position: (?P<position>\d+) (?P<kind>\w+): (?P<time>\d+) size: (?P<size>\d+) "
    r"magic: 2 compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: true"
)
RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?P<kind>\w+): (?P<time>-?\d+) keySize: (?P<key>-?\d+) valueSize: (?P<value>-?\d+) "
    r"sequence: -?\d+ headerKeys: \[(?P<headers>[^\]]*)\](?: key: (?P<key_text>\S+))?(?: payload: (?P<payload>.*))?"
)


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kafka")
    with tarfile.open(GOLDEN / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    world = sim_env()
    env = Env(world.clock, RealDisk(), world.network, world.rng)
    manager = LogManager(env, f"{folder}/data", BrokerConfig.of({}), lambda topic: {})
    manager.start()
    yield manager
    manager.shutdown()


@pytest.fixture
def disk():
    return sim_env().disk


def test_it_opens_as_a_clean_directory_of_node_1(manager):
    assert manager.was_clean
    assert manager.meta.node_id == 1
    assert manager.meta.cluster_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert manager.meta.directory_id == "clgIgj5k7pi8denYmYxO7Q"
    assert len(manager.all()) == 26
    payments = manager.get("payments", 0)
    assert (payments.log_end_offset, payments.high_watermark, payments.durability.recovery_point) == (15, 15, 15)
    assert len(payments.topic_id) == 16
    assert payments.leader_epochs.entries == [(0, 0)]


@pytest.mark.parametrize("partition", DUMPS)
def test_every_batch_and_record_equals_kafkas_dump(manager, partition):
    topic, _, number = partition.rpartition("-")
    log = manager.get(topic, int(number))
    stored = {}
    for segment in log.segments:
        for batch in segment.batches():
            stored[batch.base_offset] = (segment, batch)
    seen = 0
    current = []
    for line in (GOLDEN / "dump" / f"{partition}.txt").read_text().splitlines():
        if match := BATCH.match(line):
            assert not current
            segment, batch = stored[int(match["base"])]
            whole = segment.batch_bytes(batch)
            expected = tuple(int(match[name]) for name in ("last", "count", "sequence", "producer", "producer_epoch"))
            assert expected == (
                batch.last_offset,
                batch.record_count,
                batch.base_sequence,
                batch.producer_id,
                batch.producer_epoch,
            )
            assert (int(match["position"]), int(match["size"])) == (batch.position, batch.size)
            assert int(match["time"]) == batch.max_timestamp
            assert int(match["leader_epoch"]) == batch.partition_leader_epoch
            assert (match["kind"] == "LogAppendTime") == bool(batch.attributes & 8)
            assert (match["transactional"] == "true") == bool(batch.attributes & 16)
            assert (match["control"] == "true") == bool(batch.attributes & 32)
            assert match["codec"].upper() == Compression(batch.attributes & 7).name
            assert int(match["crc"]) == int.from_bytes(whole[17:21], "big")
            current = list(records(whole))
        elif match := RECORD.match(line):
            record = current.pop(0)
            assert (int(match["offset"]), int(match["time"])) == (record.offset, record.timestamp)
            assert int(match["key"]) == (-1 if record.key is None else len(record.key))
            assert int(match["value"]) == (-1 if record.value is None else len(record.value))
            assert match["headers"] == ",".join(key for key, _ in record.headers)
            if match["payload"] is not None and not topic.startswith("__"):
                assert match["payload"] == record.value.decode()
            if match["key_text"] is not None and not topic.startswith("__"):
                assert match["key_text"] == record.key.decode()
            seen += 1
    assert seen > 0
    assert not current


def test_transactions_are_understood(manager):
    log = manager.get("payments", 0)
    assert log.last_stable_offset == 14
    assert log.segments.aborted_transactions(0, 15) == [(2, 4), (2, 11)]
    assert log.producers.get(2).current_transaction_first_offset == -1 or log.producers.get(2).last_offset == 14


@pytest.mark.parametrize("partition", ["payments-0", "payments-1"])
def test_an_index_of_aborted_transactions_is_read_and_written_as_kafka_wrote_it(manager, partition, disk):
    log = manager.get("payments", int(partition[-1]))
    written = 0
    for segment in log.segments:
        index = segment.transaction_index
        if not index.on_disk:
            continue
        kafkas = Path(index.path).read_bytes()
        assert len(index.entries) * 34 == len(kafkas)
        again = TransactionIndex(disk, "/again", on_disk=False)
        for entry in index.entries:
            again.append(entry)
        file = disk.open("/again")
        assert file.read(0, file.size()) == kafkas
        written += len(index.entries)
    assert written > 0


@pytest.mark.parametrize("partition", ["payments-0", "payments-1", "orders-none-0", "events-1", "__consumer_offsets-3"])
def test_a_producer_snapshot_is_read_and_written_as_kafka_wrote_it(manager, partition, disk):
    """With the first offset of an open transaction (payments), and without any producer (events)."""
    topic, _, number = partition.rpartition("-")
    log = manager.get(topic, int(number))
    path = log.producers.snapshot_path(log.log_end_offset)
    again = ProducerStateManager(disk, "/p")
    disk.make_directory("/p")
    for entry in read_snapshot(log.env.disk, path):
        again.entries[entry.producer_id] = entry
    again.map_end_offset = log.log_end_offset
    file = disk.open(again.take_snapshot())
    assert file.read(0, file.size()) == Path(path).read_bytes()


def test_the_replayed_log_gives_kafkas_snapshot_and_index(manager):
    """What Kafka has written down is what a replay of all batches finds."""
    log = manager.get("payments", 0)
    kafkas = {entry.producer_id: entry for entry in read_snapshot(log.env.disk, log.producers.snapshot_path(15))}
    replayed = ProducerStateManager(log.env.disk, log.directory)
    indexes = {segment: list(segment.transaction_index.entries) for segment in log.segments}
    for segment in log.segments:
        segment.transaction_index.entries.truncate(0)
    for _ in replayed.replay(log.segments, 0):
        pass
    assert {segment: list(segment.transaction_index.entries) for segment in log.segments} == indexes
    assert kafkas.keys() == replayed.entries.keys()
    for producer_id, entry in kafkas.items():
        found = replayed.entries[producer_id]
        assert (found.producer_epoch, found.coordinator_epoch) == (entry.producer_epoch, entry.coordinator_epoch)
        assert found.current_transaction_first_offset == entry.current_transaction_first_offset
        assert (found.last_timestamp, found.last_sequence) == (entry.last_timestamp, entry.last_sequence)


def test_reads_and_time_look_ups_work_on_it(manager):
    log = manager.get("prices", 0)
    assert log.offset_for_timestamp(1760000060000, 60).offset == 1
    assert log.segments.max_timestamp_offset().offset == 59
    data = log.read(30, 10**6, upper_bound=60, at_least_one=True)
    assert (data.first_offset, data.next_offset, len(data.records)) == (0, 60, 1286)
