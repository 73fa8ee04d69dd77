"""`/metrics`: its text as Prometheus reads it, what it says, and that its table is the documentation."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.broker.http import routes
from barnabas.broker.http.metric_names import METRICS
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import FindCoordinatorRequest, HeartbeatRequest
from barnabas.protocol.record_batch import Record, build
from barnabas.runtime.build import build_name
from barnabas.storage.validation import AppendOrigin
from prometheus_client.parser import text_string_to_metric_families
from simulator.storage_transactions import take_part

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask, connect, request
from http_examples import commit, join
from transaction_requests import add, end, init, sleep

World = Any  # of conftest.py
ODD_NAME = 'a "b"\\c\nd\\n é'
Samples = dict[str, dict[tuple[str, ...], float]]
routes.load()


@pytest.fixture
def metrics_world(make_world: type[Any]) -> Iterator[World]:
    world = make_world()
    prepare(world)
    yield world
    world.env.run(world.broker.stop())
    assert world.broker.http.handler_failures == 0
    assert world.escaped == []


def test_a_directory_whose_name_is_no_text(metrics_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may have any bytes; Python shows those that are no UTF-8 as half surrogate pairs."""
    (directory,) = metrics_world.broker.log_manager.open_directories
    monkeypatch.setattr(metrics_world.env.disk, "total_and_free_bytes", lambda path: (2, 1))
    monkeypatch.setattr(directory, "path", "/data\udcff")
    samples = scrape(metrics_world)
    monkeypatch.undo()
    assert samples["barnabas_directory_bytes"] == {("/data\ufffd",): 2}


def prepare(world: World) -> None:
    """A topic with three partitions, and a group with a member and committed offsets."""
    world.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="billing"))
    world.create_topic("orders", 3)
    commit(world, "billing", "orders", partitions=3)
    join(world, "billing")


def scrape(world: World) -> Samples:
    """Every sample by name and labels, as Prometheus' own parser reads them."""
    answer = world.env.run(ask(world.env, world.broker, "GET", "/metrics"))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    types = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(set(types)) == len(types) == text.count("# HELP "), "each family stands once"
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric = METRICS[sample.name]
            assert family.type == metric.kind
            assert family.documentation == metric.meaning
            assert set(sample.labels) == set(metric.labels)
            of_name = samples.setdefault(sample.name, {})
            labels = tuple(sample.labels[label] for label in metric.labels)
            assert labels not in of_name, "counted twice"
            of_name[labels] = sample.value
    return samples


def produce(world: World, topic: str, index: int, count: int) -> None:
    """Append records."""
    from barnabas.protocol.batch_records import Record
    from barnabas.protocol.messages import ProduceRequest
    from barnabas.protocol.record_batch import build

    records = build([Record(value=b"x") for _ in range(count)])
    data = ProduceRequest.PartitionProduceData(index=index, records=records)
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    answer = world.ask(ApiKey.PRODUCE, 7, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_what_it_says(metrics_world: World) -> None:
    world = metrics_world
    produce(world, "orders", 0, 12)
    produce(world, "orders", 1, 6)
    commit(world, ODD_NAME, "orders")
    commit(world, "late", "orders", offset=100)  # past the end
    world.create_topic("elsewhere")
    commit(world, "gone", "elsewhere")
    partitions = world.broker.replica_manager.partitions
    elsewhere = partitions.pop(("elsewhere", 0))  # as if its replicas were on other brokers
    world.ask(ApiKey.HEARTBEAT, 0, HeartbeatRequest(group_id="billing", generation_id=1, member_id="nobody"))
    samples = scrape(world)
    lag = samples["barnabas_group_lag_records"]
    assert lag == {("billing",): 7 + 1, (ODD_NAME,): 7, ("late",): 0, ("gone",): 0}
    assert samples["barnabas_group_lag_records_max"]["billing",] == 7
    assert samples["barnabas_lag_records"][()] == 15
    assert samples["barnabas_group_partitions"]["billing",] == 3
    assert samples["barnabas_group_partitions_without_lag"] == {("gone",): 1}
    assert samples["barnabas_group_members"]["billing",] == 1
    assert samples["barnabas_group_generation"]["billing",] >= 1
    assert samples["barnabas_group_last_commit_timestamp_seconds"]["billing",] > 0
    assert samples["barnabas_committed_offsets"][()] == 6
    assert sum(samples["barnabas_groups"].values()) == 4
    assert samples["barnabas_requests_total"]["OffsetCommit",] == 4
    assert samples["barnabas_requests_total"]["Heartbeat",] == 1
    assert samples["barnabas_topic_high_watermarks"]["orders",] == 18
    assert samples["barnabas_topic_partitions_led"]["orders",] == 3
    assert samples["barnabas_partitions"]["leader",] == 9
    assert samples["barnabas_partitions_under_replicated"][()] == 0
    assert samples["barnabas_logs"][()] == 10
    assert samples["barnabas_log_bytes"][()] > 0
    assert samples["barnabas_is_controller"][()] == 1
    assert samples["barnabas_http_requests_total"][()] == 1
    assert samples["barnabas_build_info"] == {(build_name(),): 1}
    assert samples["barnabas_broker_info"] == {("0", world.broker.cluster_id): 1}
    partitions["elsewhere", 0] = elsewhere
    again = scrape(world)
    assert again["barnabas_requests_total"] == samples["barnabas_requests_total"], "it does not count itself"
    sometimes = {
        "barnabas_request_refusals_total",
        "barnabas_group_partitions_without_lag",
        "barnabas_topic_offsets_held_back",
        "barnabas_quota_use",
    }
    assert set(METRICS) - set(again) <= sometimes, "each has a value"


def test_open_transactions_and_what_they_hold_back(metrics_world: World) -> None:
    world = metrics_world
    assert scrape(world)["barnabas_transaction_open_seconds_max"][()] == 0
    world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="ends", key_type=1))
    for name in ("ends", "stays"):
        error, *producer = init(world, name)
        assert not error
        assert add(world, name, (producer[0], producer[1]), [("orders", 2)]) == [0]
        if name == "ends":
            assert end(world, name, (producer[0], producer[1]), committed=True)[0] == 0
            sleep(world, 1_000)
    sleep(world, 30_000)
    samples = scrape(world)
    states = {"Ongoing": 1, "PrepareCommit": 0, "PrepareAbort": 0, "idle": 1}
    assert samples["barnabas_transactional_ids"] == {(state,): count for state, count in states.items()}
    assert 30 <= samples["barnabas_transaction_open_seconds_max"][()] < 60
    assert samples["barnabas_partitions_held_back"][()] == 0, "nothing is written yet"
    log = world.broker.log_manager.get("orders", 2)
    take_part(log, 7_777, 0)
    before = log.log_end_offset
    batch = build([Record(value=b"x")] * 3, producer_id=7_777, producer_epoch=0, base_sequence=0, transactional=True)
    assert not log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=0).error
    log.set_high_watermark(before + 3)
    samples = scrape(world)
    assert samples["barnabas_partitions_held_back"][()] == 1
    assert samples["barnabas_topic_offsets_held_back"] == {("orders",): 3}


def test_refusals_are_counted_by_api_and_error(metrics_world: World) -> None:
    from barnabas.protocol.messages import JoinGroupRequest

    request = JoinGroupRequest(group_id="", session_timeout_ms=10_000, protocol_type="consumer")
    assert metrics_world.ask(ApiKey.JOIN_GROUP, 3, request).error_code == 24
    request = JoinGroupRequest(group_id="a", session_timeout_ms=1, protocol_type="consumer")
    for _ in range(2):
        assert metrics_world.ask(ApiKey.JOIN_GROUP, 3, request).error_code == 26
    refused = scrape(metrics_world)["barnabas_request_refusals_total"]
    assert refused["JoinGroup", "INVALID_SESSION_TIMEOUT"] == 2


def test_the_number_of_series_is_limited(make_world: type[Any]) -> None:
    world = make_world(http_metrics_groups_max="5", http_metrics_topics_max="2")
    prepare(world)
    for number in range(6):
        commit(world, f"group-{number}", "orders")
        world.create_topic(f"topic-{number}")
    samples = scrape(world)
    assert len(samples["barnabas_group_lag_records"]) == 5
    assert samples["barnabas_groups_left_out"][()] == 2
    assert len(samples["barnabas_topic_log_bytes"]) == 2
    assert samples["barnabas_topics_left_out"][()] == 7
    assert samples["barnabas_committed_offsets"][()] == 9
    assert scrape(world)["barnabas_group_lag_records"].keys() == samples["barnabas_group_lag_records"].keys()
    world.env.run(world.broker.stop())


def test_scrapers_that_take_nothing_are_few(metrics_world: World) -> None:
    world = metrics_world
    for number in range(400):
        world.create_topic(f"topic-{number}" + "x" * 200)

    async def run() -> None:
        slow = [await connect(world.env, world.broker) for _ in range(5)]
        for client in slow:
            client.transport.pause_reading()
            client.transport.write(request("GET", "/metrics"))
            await world.env.clock.sleep(200)
        assert len(world.broker.http.scrapes) == 4
        refused = await ask(world.env, world.broker, "GET", "/metrics")
        assert (refused.status, refused.error) == (503, "TOO_MANY_SCRAPES")
        for client in slow:
            client.transport.abort()
        await world.env.clock.sleep(10)
        assert len(world.broker.http.scrapes) == 0
        assert (await ask(world.env, world.broker, "HEAD", "/metrics")).status == 200
        assert len(world.broker.http.scrapes) == 0

    world.env.run(run())


def test_many_lines_are_still_one_family(make_world: type[Any]) -> None:
    world = make_world()
    prepare(world)
    for number in range(250):
        world.create_topic(f"topic-{number}")
    assert len(scrape(world)["barnabas_topic_log_bytes"]) == 253
    world.env.run(world.broker.stop())
