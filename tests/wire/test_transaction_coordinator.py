"""The transaction coordinator over the wire: Kafka's own answers, restarts in the middle, time-outs and idle ids."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.coordinators.transactions.metadata import EXHAUSTED_EPOCH, Transaction
from barnabas.coordinators.transactions.records import encode_key, encode_value
from barnabas.coordinators.transactions.shard import ANSWER_WITHIN_MS
from barnabas.coordinators.transactions.states import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, ONGOING
from barnabas.protocol import record_batch
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    ProduceRequest,
)
from barnabas.runtime.pending import Pending
from barnabas.storage.validation import AppendOrigin, AppendResult

sys.path.insert(0, str(Path(__file__).parent))
from transaction_requests import Lasting, add, describe, end, init, listed, sleep

World = Any  # of conftest.py
GOLDEN = Path(__file__).parents[1] / "golden" / "transaction-answers.txt"
PARTITIONS = [("t", 0), ("t", 1)]


@pytest.fixture
def world(make_world: type[World]) -> Iterator[World]:
    world = make_world(**{"transaction.state.log.num.partitions": "2"})
    world.create_topic("t", 2)
    found = world.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=1))
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, world.broker.node_id)
    yield world
    world.end()


def test_clients_cannot_add_partitions_of_internal_topics(world: World) -> None:
    error, *who = init(world, "a")
    assert not error
    producer = (who[0], who[1])
    refused, untried = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert add(world, "a", producer, [("__transaction_state", 0)]) == [refused]
    assert add(world, "a", producer, [("t", 0), ("__consumer_offsets", 0)]) == [refused, untried]
    assert describe(world, "a").transaction_state == "Empty"


def test_each_answer_is_kafkas(world: World) -> None:
    ours: dict[int, int] = {-1: -1}  # Kafka's producer id: ours

    def of(text: str) -> tuple[int, int]:
        producer_id, epoch = ast.literal_eval(text)
        return ours.get(producer_id, 10_000 + producer_id), epoch

    for line in GOLDEN.read_text().splitlines():
        words = line.split()
        if line.startswith("#"):
            continue
        if words[0] == "sleep":
            sleep(world, int(words[1]))
            continue
        asked, wanted = line.split(" -> ")
        if words[0] == "describe":
            found = describe(world, words[1])
            error, state, producer_id, epoch, timeout_ms, topics = wanted.split(" ", 5)
            expected = [(topic, sorted(indexes)) for topic, indexes in ast.literal_eval(topics)]
            assert (found.error_code, found.transaction_state) == (int(error), state), line
            assert (found.producer_id, found.producer_epoch) == (ours[int(producer_id)], int(epoch)), line
            assert found.transaction_timeout_ms == int(timeout_ms)
            assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == expected, line
            continue
        version, transactional_id = int(words[1]), words[2]
        producer = re.search(r"\(.*?\)", asked)
        assert producer is not None
        who, rest = of(producer[0]), asked[producer.end() :].strip()
        if words[0] == "add":
            partitions = ast.literal_eval(rest.removeprefix("verify "))
            codes = add(world, transactional_id, who, partitions, version, rest.startswith("verify"))
            assert codes == [int(code) for code in wanted.split(", ")], line
            continue
        if words[0] == "init":
            timeout_ms = 500 if transactional_id == "late" else 60_000
            given = init(world, transactional_id, version, who, timeout_ms)
        else:
            given = end(world, transactional_id, who, rest == "commit", version)
        error, answered = wanted.split(" ", 1)
        producer_id, epoch = ast.literal_eval(answered)
        if words[0] == "init" and given[0] == 0:
            ours.setdefault(producer_id, given[1])
        assert given == (int(error), ours.get(producer_id), epoch), line
        sleep(world, 50)  # the markers are written
    assert len(ours) > 5


def ongoing(world: World, transactional_id: str, version: int = 3) -> tuple[int, int]:
    """Begin a transaction with both partitions."""
    error, *producer = init(world, transactional_id)
    assert error == ErrorCode.NONE
    producer_id, epoch = producer
    assert set(add(world, transactional_id, (producer_id, epoch), PARTITIONS, version)) == {ErrorCode.NONE}
    return producer_id, epoch


@pytest.fixture
def lasting(make_world: type[World]) -> Iterator[Lasting]:
    lasting = Lasting(make_world)
    yield lasting
    lasting.world.end()


def stable_offsets(world: World) -> list[int]:
    return [world.broker.log_manager.get("t", index).last_stable_offset for index in range(2)]


def test_the_first_use_makes_the_topic(make_world: type[World]) -> None:
    world = make_world(**{"transaction.state.log.num.partitions": "2"})
    assert not world.broker.metadata_cache.contains("__transaction_state")
    answer = world.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"]))
    assert [(each.error_code, each.node_id) for each in answer.coordinators] == [(0, world.broker.node_id)] * 2
    assert world.broker.metadata_cache.partition_count(TRANSACTIONS_TOPIC) == 2
    settings = world.broker.log_manager.configs.of("__transaction_state")
    assert settings.cleanup_policy in ("compact", ["compact"], {"compact"})
    world.env.run(world.broker.stop())


def test_a_broker_without_transactions_does_not_pay_for_them(make_world: type[World]) -> None:
    world = make_world()
    world.create_topic("t", 2)
    assert not world.broker.transactions.has_coordinator
    assert "late transactions" not in [task.name for task in world.env.upkeep.tasks]
    assert init(world, "a")[0] == ErrorCode.NOT_COORDINATOR
    assert "late transactions" in [task.name for task in world.env.upkeep.tasks]
    world.env.run(world.broker.stop())
    assert not world.broker.transactions.coordinator.is_active
    code = (
        "import sys, barnabas.broker.broker, barnabas.cli.start; from barnabas.protocol import messages;"
        "print([name for name in sys.modules if name.startswith('barnabas.coordinators.transactions')],"
        "[name for name in vars(messages) if 'Txn' in name])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["[]", "[]"]


def test_without_the_topic_nobody_coordinates(make_world: type[World]) -> None:
    world = make_world()
    assert init(world, "a")[0] == ErrorCode.NOT_COORDINATOR
    assert init(world, "")[0] == ErrorCode.INVALID_REQUEST
    assert end(world, "a", (1, 0), True)[0] == ErrorCode.NOT_COORDINATOR
    assert describe(world, "a").error_code == ErrorCode.NOT_COORDINATOR
    world.env.run(world.broker.stop())


def test_markers_reach_every_partition(world: World) -> None:
    producer = ongoing(world, "a")
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert describe(world, "a").transaction_state == "CompleteCommit"
    assert stable_offsets(world) == [1, 1], "one marker each"


def test_an_open_transaction_and_an_idle_id_are_there_after_a_restart(lasting: Lasting) -> None:
    world = lasting.world
    producer = ongoing(world, "open", version=5)
    idle = init(world, "idle")[1:]
    world = lasting.restart()
    found = describe(world, "open")
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", *producer)
    assert [(topic.topic, list(topic.partitions)) for topic in found.topics] == [("t", [0, 1])]
    assert end(world, "open", producer, True, version=5) == (ErrorCode.NONE, producer[0], producer[1] + 1)
    assert init(world, "idle", expected=idle) == (ErrorCode.NONE, idle[0], idle[1] + 1)


def test_what_is_loaded_is_what_was_there(lasting: Lasting) -> None:
    """Idle ids stay as their records have them; others are read at once. Both are found in every form of batch."""
    world = lasting.world
    for number in range(40):
        version = (3, 5)[number % 2]
        producer = init(world, f"id-{number}")[1:]
        if number % 4 > 1:
            add(world, f"id-{number}", producer, PARTITIONS, version)
        if number % 8 > 5:
            assert end(world, f"id-{number}", producer, number % 3 > 0, 4 + number % 2)[0] == ErrorCode.NONE
            sleep(world, 50)
    shard = world.broker.transactions.coordinator.shards[0]
    value = Transaction(transactional_id="late", producer_id=9, producer_epoch=1, timeout_ms=7, last_update_ms=8)
    plain = encode_value(value, 1)
    now_ms = world.env.clock.now_ms()
    for codec, timestamp in ((Compression.NONE, now_ms), (Compression.LZ4, now_ms), (Compression.NONE, now_ms + 1)):
        name = f"late-{codec}-{timestamp - now_ms}"
        records = [
            record_batch.Record(offset=0, timestamp=now_ms, key=None, value=b"no key"),
            record_batch.Record(offset=1, timestamp=now_ms, key=encode_key(name), value=plain),
            record_batch.Record(offset=2, timestamp=timestamp, key=encode_key(name), value=b"\0\x63" + bytes(30)),
            record_batch.Record(offset=3, timestamp=timestamp, key=b"\0\x09" + bytes(9), value=plain),
            record_batch.Record(offset=4, timestamp=timestamp, key=encode_key("id-0"), value=None),
        ]
        assert not shard.log.append(
            record_batch.build(records, compression=codec), origin=AppendOrigin.COORDINATOR, required_acks=-1
        ).error
    sleep(world, 50)
    before = everything(world)
    before.pop("id-0")
    world = lasting.restart()
    after = everything(world)
    for codec in (Compression.NONE, Compression.LZ4):
        assert after.pop(f"late-{codec}-0") == value._replace(transactional_id=f"late-{codec}-0")
    after.pop(f"late-{Compression.NONE}-1")
    assert after == before
    assert {held.state for held in after.values()} == {EMPTY, ONGOING, COMPLETE_ABORT, COMPLETE_COMMIT}
    shards = world.broker.transactions.coordinator.loaded_shards()
    assert sum(len(shard.entries.in_use()) for shard in shards) == sum(
        held.state is ONGOING for held in after.values()
    ), "idle ids are not decoded"


def everything(world: World) -> dict[str, Transaction]:
    """All values, without what is not in their records."""
    return {
        transactional_id: entry.transaction._replace(last_producer_epoch=-1)
        for shard in world.broker.transactions.coordinator.loaded_shards()
        for transactional_id, entry in shard.entries.looks()
    }


def test_an_idle_id_is_kept_as_its_record_has_it(world: World) -> None:
    shards = world.broker.transactions.coordinator.loaded_shards()
    producer = init(world, "a")[1:]
    assert [entry for shard in shards for entry in shard.entries.in_use()] == []
    assert listed(world) == ["a"]
    assert describe(world, "a").transaction_state == "Empty"
    again = init(world, "a", expected=producer)
    assert again == (ErrorCode.NONE, producer[0], producer[1] + 1)
    assert init(world, "a", expected=producer) == again, "a repeat: so what is not in the record is kept, too"


def test_a_prepared_transaction_that_is_loaded_is_ended(lasting: Lasting) -> None:
    world = lasting.world
    producer = ongoing(world, "a", version=5)
    world.broker.transactions.coordinator.markers.end = lambda *_: None  # the broker stops before it sends any
    assert end(world, "a", producer, True, version=5)[0] == ErrorCode.NONE
    sleep(world, 1000)
    assert describe(world, "a").transaction_state == "PrepareCommit"
    assert add(world, "a", (producer[0], producer[1] + 1), PARTITIONS, 5) == [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
    assert init(world, "a")[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert stable_offsets(world) == [0, 0]
    world = lasting.restart()
    assert describe(world, "a").transaction_state == "CompleteCommit"
    assert stable_offsets(world) == [1, 1]
    assert end(world, "a", producer, True, version=5) == (ErrorCode.NONE, producer[0], producer[1] + 1), "a repeat"


def test_refused_markers_are_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = ongoing(world, "a")
    markers = world.broker.transactions.coordinator.markers
    ask, asked = markers._ask, []

    def refusing(broker_id: int, request: Any, version: int) -> Any:
        asked.append(sorted(index for topic in request.markers[0].topics for index in topic.partition_indexes))
        if len(asked) == 1:
            request.markers[0].topics[0].partition_indexes = [0, 7]  # 1 gets no answer, 7 is not there
        return ask(broker_id, request, version)

    monkeypatch.setattr(markers, "_ask", refusing)
    assert end(world, "a", producer, False)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert describe(world, "a").transaction_state == "PrepareAbort"
    assert [topic.partitions for topic in describe(world, "a").topics] == [[1]], "what lacks its marker"
    for committed in (False, True):
        assert end(world, "a", producer, committed)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    sleep(world, 200)
    assert describe(world, "a").transaction_state == "CompleteAbort"
    assert asked == [[0, 1], [1]]
    assert stable_offsets(world) == [1, 1]


@pytest.mark.parametrize("version", [3, 5])
def test_the_next_transaction_waits_for_the_markers_of_the_last(world: World, version: int) -> None:
    producer_id, epoch = ongoing(world, "a", version)
    markers = world.broker.transactions.coordinator.markers
    ask = markers._ask

    def slowly(*asked: Any) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        world.env.clock.call_later(5, lambda: ask(*asked).then(answer.complete))
        return answer

    markers._ask = slowly
    for _ in range(3):
        error, *given = end(world, "a", (producer_id, epoch), True, version)
        assert error == ErrorCode.NONE
        producer_id, epoch = given if version > 4 else (producer_id, epoch)
        assert describe(world, "a").transaction_state == "PrepareCommit", "the markers are on their way"
        assert add(world, "a", (producer_id, epoch), PARTITIONS, version) == [ErrorCode.NONE] * 2
    assert stable_offsets(world) == [3, 3]


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_a_producer_may_go_on_before_the_last_transaction_is_complete(world: World, is_exhausted: bool) -> None:
    """It has heard its next epoch, or its next producer id, already. Kafka would end it for using them so early."""
    producer = ongoing(world, "a", 5)
    coordinator = world.broker.transactions.coordinator
    if is_exhausted:
        (entry,) = [shard.entries["a"] for shard in coordinator.loaded_shards() if "a" in shard.entries]
        entry.transaction = entry.transaction._replace(producer_epoch=EXHAUSTED_EPOCH)
        producer = producer[0], EXHAUSTED_EPOCH
    ask = coordinator.markers._ask

    def slowly(*asked: Any) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        world.env.clock.call_later(5, lambda: ask(*asked).then(answer.complete))
        return answer

    coordinator.markers._ask = slowly
    error, *told = end(world, "a", producer, True, 5)
    assert error == ErrorCode.NONE
    assert (told[0] != producer[0]) == is_exhausted
    assert add(world, "a", tuple(told), PARTITIONS[:1], 5, verify_only=True) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert init(world, "a", expected=tuple(told))[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    error, *after = end(world, "a", tuple(told), False, 5)
    assert (error, after) == (ErrorCode.NONE, [told[0], told[1] + 1])
    assert add(world, "a", tuple(after), PARTITIONS, 5) == [ErrorCode.NONE] * 2


def test_it_waits_for_no_longer_than_kafkas_client_before_it_asks_again(world: World) -> None:
    producer = ongoing(world, "a")
    coordinator = world.broker.transactions.coordinator
    coordinator.markers._ask = lambda *_: Pending()  # no answer comes
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    began_ms = world.env.clock.monotonic_ms()
    for _ in range(3):
        assert add(world, "a", producer, PARTITIONS) == [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
    assert world.env.clock.monotonic_ms() - began_ms == 3 * 20
    assert [shard._waiting for shard in coordinator.loaded_shards()] == [{}, {}]


def test_who_waits_is_told_when_another_broker_coordinates_the_id(world: World) -> None:
    producer = ongoing(world, "a")
    coordinator = world.broker.transactions.coordinator
    coordinator.markers._ask = lambda *_: Pending()
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    world.env.clock.call_later(5, lambda: [coordinator.unload(index) for index in list(coordinator.shards)])
    assert add(world, "a", producer, PARTITIONS) == [ErrorCode.NOT_COORDINATOR] * 2


def test_transactions_of_one_request_are_written_together(world: World) -> None:
    ids = ["a", "b", "c"]
    producers = [init(world, each)[1:] for each in ids]
    make = AddPartitionsToTxnRequest
    request = make(
        transactions=[
            make.AddPartitionsToTxnTransaction(
                transactional_id=each,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[make.AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            for each, (producer_id, epoch) in zip(ids, producers, strict=True)
        ]
    )
    logs = [world.broker.log_manager.get("__transaction_state", index) for index in range(2)]
    before = [log.log_end_offset for log in logs]
    answer = world.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, request)
    assert [
        row.topic_results[0].results_by_partition[0].partition_error_code for row in answer.results_by_transaction
    ] == [0] * 3
    batches = 0
    for log, start in zip(logs, before, strict=True):
        found = log.read(start, 1 << 20, upper_bound=log.log_end_offset, at_least_one=True)
        batches += len(list(record_batch.batches(found.records)))
    assert batches <= 2, "one for each partition of the topic"


def test_a_partition_that_is_deleted_needs_no_marker(world: World) -> None:
    world.create_topic("gone", 1)
    producer_id, epoch = init(world, "a")[1:]
    assert add(world, "a", (producer_id, epoch), [("gone", 0), ("t", 0)]) == [0, 0]
    coordinator = world.broker.transactions.coordinator
    held = coordinator.markers._ask
    coordinator.markers._ask = lambda *_: Any  # nothing is asked
    coordinator.markers._send_to = lambda *_: None
    assert end(world, "a", (producer_id, epoch), True)[0] == ErrorCode.NONE
    sleep(world, 20)
    coordinator.on_partitions_deleted([("gone", 0)])
    assert describe(world, "a").transaction_state == "PrepareCommit"
    coordinator.on_partitions_deleted([("t", 0)])
    sleep(world, 20)
    assert describe(world, "a").transaction_state == "CompleteCommit"
    coordinator.markers._ask = held


def test_a_producer_id_that_a_client_made_up_leaves_ids_for_the_others(lasting: Lasting) -> None:
    world = lasting.world
    batch = record_batch.build(
        [record_batch.Record(value=b"x")], producer_id=(1 << 63) - 1, producer_epoch=0, base_sequence=0
    )
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    answer = world.ask(ApiKey.PRODUCE, 9, ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic]))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    given = init(world, "a")[1]
    world = lasting.restart()
    error, producer_id, _ = init(world, "b")
    assert (error, given < producer_id < 1_000_000) == (ErrorCode.NONE, True)


def test_an_id_that_nobody_uses_is_removed(lasting: Lasting) -> None:
    world, minute = lasting.world, 60_000
    idle = init(world, "idle")[1:]
    begun = init(world, "open", timeout_ms=9 * minute)
    add(world, "open", begun[1:], PARTITIONS)
    sleep(world, 1.5 * minute)
    assert listed(world) == ["idle", "open"]
    sleep(world, 2 * minute)
    assert listed(world) == ["open"]
    assert describe(world, "idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert add(world, "idle", idle, PARTITIONS) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    world = lasting.restart()
    assert listed(world) == ["open"], "the tombstone is loaded"


def test_the_log_has_one_line_for_many_ids_that_are_removed(lasting: Lasting, caplog: pytest.LogCaptureFixture) -> None:
    world = lasting.world
    for number in range(100):
        init(world, f"idle-{number}")
    caplog.set_level("INFO", "barnabas.transactions")
    sleep(world, 4 * 60_000)
    assert listed(world) == []
    lines = [record.getMessage() for record in caplog.records if "not used for" in record.getMessage()]
    assert 1 <= len(lines) <= 2, "one for each partition of __transaction_state"
    assert sum(int(line.split(": ")[1].split()[0]) for line in lines) == 100


def test_ids_are_listed_by_what_is_asked(world: World) -> None:
    first, _ = ongoing(world, "orders-1")
    sleep(world, 5_000)
    ongoing(world, "orders-2")
    init(world, "payments")
    assert listed(world) == ["orders-1", "orders-2", "payments"]
    assert listed(world, state_filters=["Ongoing"]) == ["orders-1", "orders-2"]
    assert listed(world, state_filters=["Ongoing", "Empty"], producer_id_filters=[first]) == ["orders-1"]
    assert listed(world, duration_filter=3_000) == ["orders-1", "payments"], "as Kafka: without a start it is old"
    assert listed(world, transactional_id_pattern="orders-.") == ["orders-1", "orders-2"]
    assert listed(world, transactional_id_pattern="orders") == []
    bad = world.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="orders["))
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    unknown = world.ask(ApiKey.LIST_TRANSACTIONS, 0, ListTransactionsRequest(state_filters=["Sleeping"]))
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Sleeping"], [])


def test_offsets_are_added_by_their_group(world: World) -> None:
    producer_id, epoch = init(world, "a")[1:]
    request = AddOffsetsToTxnRequest(
        transactional_id="a", producer_id=producer_id, producer_epoch=epoch, group_id="copier"
    )
    assert world.ask(ApiKey.ADD_OFFSETS_TO_TXN, 4, request).error_code == ErrorCode.NONE
    assert [topic.topic for topic in describe(world, "a").topics] == ["__consumer_offsets"]
    request.producer_epoch += 1
    for version, error in ((0, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)):
        assert world.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code == error
    assert end(world, "a", (producer_id, epoch), True)[0] == ErrorCode.NONE
    sleep(world, 50)
    assert describe(world, "a").transaction_state == "CompleteCommit"


def test_what_is_not_there_is_not_added(world: World) -> None:
    producer_id, epoch = init(world, "a")[1:]
    codes = add(world, "a", (producer_id, epoch), [("t", 0), ("t", 9)])
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED]
    assert describe(world, "a").transaction_state == "Empty"


def test_a_record_that_cannot_be_written_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = ongoing(world, "a")
    coordinator = world.broker.transactions.coordinator
    with monkeypatch.context() as patched:
        refusal = AppendResult(error=ErrorCode.NOT_ENOUGH_REPLICAS)
        for each in coordinator.shards.values():
            patched.setattr(each.log, "append", lambda *_, **__: refusal)
        assert end(world, "a", producer, True)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert init(world, "a")[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE, "its fencing is not written either"
        assert init(world, "never")[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert listed(world) == ["a"]
    assert (describe(world, "a").transaction_state, describe(world, "a").producer_epoch) == ("Ongoing", producer[1])
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE


def test_a_client_hears_in_time_that_it_is_not_known_when_its_record_is_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three brokers have died, say. The outcome may still come, so the id stays busy."""
    producer = ongoing(world, "a")
    coordinator = world.broker.transactions.coordinator
    partition = coordinator.shard_of("a").log.partition
    with monkeypatch.context() as patched:
        patched.setattr(type(partition), "raise_high_watermark", lambda *_: False)
        began_ms = world.env.clock.monotonic_ms()
        assert end(world, "a", producer, True)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.env.clock.monotonic_ms() - began_ms < ANSWER_WITHIN_MS + 1_000
        assert end(world, "a", producer, True)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        assert init(world, "a")[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        assert init(world, "b")[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition.raise_high_watermark()
    partition.wake_later()
    sleep(world, 1_000)
    assert end(world, "a", producer, True)[0] == ErrorCode.NONE
    assert describe(world, "a").transaction_state == "CompleteCommit"
    assert init(world, "a")[0] == ErrorCode.NONE
