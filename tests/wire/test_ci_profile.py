"""What `--profile ci` promises: records stay whatever their timestamps are, and no test waits for a slow clock."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.profiles import beside, profile
from barnabas.config.topic import TopicConfig
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FindCoordinatorRequest, ListOffsetsRequest, ProduceRequest
from barnabas.protocol.record_batch import Record

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import add, init, sleep

World = Any  # of conftest.py
IN_2001_MS = 1_000_000_000_000
EARLIEST, LATEST = -2, -1
READ_COMMITTED = 1
SECOND_MS = 1_000

# Nobody waits for these: checkpoints and syncs are for what comes after a crash, and the longest pause of a stop that
# could not hand over ends as soon as it can.
NOT_WAITED_FOR = {
    "group.consumer.max.assignment.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",  # a bound
    "group.consumer.regex.refresh.interval.ms",  # as short as it may be; new topics do not wait
    "log.flush.offset.checkpoint.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
    "replica.high.watermark.checkpoint.interval.ms",
    "controlled.shutdown.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",  # a bound
}


@pytest.fixture
def world(make_world: type[World]) -> Iterator[World]:
    world = make_world(**profile("ci").settings)
    yield world
    world.end()


def produce(world: World, topic: str, timestamp_ms: int, **producer: Any) -> None:
    record = Record(offset=0, timestamp=timestamp_ms, key=b"k", value=b"v", headers=[])
    batch = record_batch.build([record], **producer)
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    of_topic = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    transactional_id = "a" if producer else None
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[of_topic])
    (answer,) = world.ask(ApiKey.PRODUCE, 9, request).responses[0].partition_responses
    assert answer.error_code == 0


def offset_at(world: World, topic: str, time: int, isolation_level: int = 0) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=time)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
    offset: int = world.ask(ApiKey.LIST_OFFSETS, 5, request).topics[0].partitions[0].offset
    return offset


def test_records_with_old_timestamps_stay(world: World) -> None:
    world.create_topic("orders")
    produce(world, "orders", IN_2001_MS)
    sleep(world, 60 * SECOND_MS)  # retention looks each second
    assert (offset_at(world, "orders", EARLIEST), offset_at(world, "orders", LATEST)) == (0, 1)


def test_a_topic_that_limits_itself_loses_them_at_once(world: World) -> None:
    world.create_topic("orders", retention_ms="60000")
    produce(world, "orders", IN_2001_MS)
    sleep(world, 2 * SECOND_MS)
    assert (offset_at(world, "orders", EARLIEST), offset_at(world, "orders", LATEST)) == (1, 1)


def test_readers_wait_no_longer_than_the_time_out_of_the_transaction(world: World) -> None:
    world.create_topic("orders")
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    _, producer_id, epoch = init(world, "a", timeout_ms=SECOND_MS)
    add(world, "a", (producer_id, epoch), [("orders", 0)])
    produce(
        world,
        "orders",
        world.env.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    assert offset_at(world, "orders", LATEST, READ_COMMITTED) == 0
    sleep(world, 1.5 * SECOND_MS)
    assert offset_at(world, "orders", LATEST, READ_COMMITTED) == 2  # the record and the marker of its abort


def test_whatever_looks_now_and_then_looks_each_second() -> None:
    config = BrokerConfig.of(profile("ci").settings)
    late = {}
    for name, setting in BROKER_SETTINGS.items():
        if not setting.has_effect or not any(word in name for word in ("interval", "backoff", "delay")):
            continue
        unit_ms = 1 if name.endswith(".ms") else SECOND_MS if name.endswith(".seconds") else 0
        value = getattr(config, setting.attribute)
        if unit_ms and value is not None and value * unit_ms > SECOND_MS:
            late[name] = value
    assert late.keys() == NOT_WAITED_FOR


def test_a_setting_of_the_command_line_counts_although_the_profile_has_a_stronger_name_for_it() -> None:
    given = {"log.retention.hours": "1"}
    settings = {**beside(profile("ci"), given).settings, **given}
    assert TopicConfig.of({}, BrokerConfig.of(settings)).retention_ms == 3_600_000
    assert "log.retention.ms" in profile("ci").settings
