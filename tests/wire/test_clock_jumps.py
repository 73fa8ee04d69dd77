"""Time that tests let pass by command has the effects of time that passes: the same records, in the same order.

The same story is told twice in the simulator's world: hours pass there, or a command moves the clock by them. All logs
are compared then, record by record. Times in them are left out: a jump is made in steps, and what falls due within one
is done at its end.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.protocol import messages, record_batch
from barnabas.protocol.api_keys import ApiKey

sys.path.insert(0, str(Path(__file__).parent))
from http_client import ask
from http_examples import commit
from transaction_requests import add, init

World = Any  # of conftest.py

MINUTE_MS = 60_000
CONTROL = 0x20  # of a batch's attributes
HOURS_MS = 4 * 60 * MINUTE_MS
TIME = re.compile(rb"\x00\x00\x01[\x8b\x8c].{4}", re.DOTALL)  # eight bytes: ms since 1970, as the world has them
SETTINGS = {
    "control_enable": "true",
    "offsets_retention_minutes": "60",
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "producer_id_expiration_ms": str(50 * MINUTE_MS),
    "producer_id_expiration_check_interval_ms": "1000",
    "transactional_id_expiration_ms": str(90 * MINUTE_MS),
    "transaction_remove_expired_transaction_cleanup_interval_ms": "1000",
    "offsets_retention_check_interval_ms": "1000",
    "log_retention_check_interval_ms": "1000",
    "log_cleaner_backoff_ms": "1000",
    "log_segment_delete_delay_ms": "0",
}


def produce(
    world: World, topic: str, *values: bytes, producer: tuple[int, int] = (-1, -1), copier: str | None = None
) -> None:
    now_ms = world.env.clock.now_ms()
    rows = [record_batch.Record(index, now_ms, b"key", value, []) for index, value in enumerate(values)]
    sequence = (
        {} if producer[0] < 0 else {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0}
    )
    batch = record_batch.build(rows, **sequence, transactional=copier is not None)
    make = messages.ProduceRequest
    partition = make.PartitionProduceData(index=0, records=batch)
    request = make(
        acks=-1,
        timeout_ms=9_000,
        transactional_id=copier,
        topic_data=[make.TopicProduceData(name=topic, partition_data=[partition])],
    )
    (answer,) = world.ask(ApiKey.PRODUCE, 9, request).responses
    assert answer.partition_responses[0].error_code == 0


def member(world: World, group: str) -> None:
    """One that joins, and is never heard of again."""
    join = messages.JoinGroupRequest
    request = join(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[join.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = world.ask(ApiKey.JOIN_GROUP, 3, request)
    sync = messages.SyncGroupRequest
    assigned = [sync.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    request = sync(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=assigned)
    assert world.ask(ApiKey.SYNC_GROUP, 2, request).error_code == 0


def begin(world: World) -> None:
    """Something for each of those that wait for their time."""
    for key, kind in (("quiet", 0), ("copier", 1)):
        world.ask(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest(key=key, key_type=kind))
    world.env.run(world.env.clock.sleep(5_000))
    world.create_topic("kept")
    world.create_topic("short", retention_ms=str(30 * MINUTE_MS))
    compacted = {"max_compaction_lag_ms": str(40 * MINUTE_MS), "min_cleanable_dirty_ratio": "1", "segment_ms": "60000"}
    world.create_topic("compacted", cleanup_policy="compact", **compacted)
    for value in (b"goes", b"stays"):
        produce(world, "compacted", value)
    world.env.run(world.env.clock.sleep(2 * MINUTE_MS))
    produce(world, "compacted", b"in the last segment")
    produce(world, "kept", b"a", b"b")
    produce(world, "short", b"goes")
    commit(world, "quiet", "kept")
    commit(world, "silent", "kept")
    member(world, "silent")
    idle = init(world, "idle")
    assert idle[0] == 0
    copier = init(world, "copier")
    assert add(world, "copier", copier[1:], [("kept", 0)]) == [0]
    produce(world, "kept", b"open", producer=copier[1:], copier="copier")
    request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    plain = world.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
    produce(world, "kept", b"idempotent", producer=(plain.producer_id, plain.producer_epoch))


def pass_by_waiting(world: World) -> None:
    world.env.run(world.env.clock.sleep(HOURS_MS))


def pass_by_command(world: World) -> None:
    body = {"advance_ms": HOURS_MS, "sessions": "expire"}
    answer = world.env.run(ask(world.env, world.broker, "POST", "/v1/control/clock", body))
    assert answer.status == 200, answer.body


def told(world: World) -> dict[str, Any]:
    """All that the logs have, but times; and what the broker remembers."""
    partitions = sorted(world.broker.replica_manager.partitions.items())
    return {
        "records": {key: list(records(world, each.log)) for key, each in partitions},
        "log starts": {key: each.log.log_start_offset for key, each in partitions},
        "producers": {key: sorted(each.log.producers.entries) for key, each in partitions},
    }


def records(world: World, log: Any) -> Iterator[tuple[int, int, int, bytes | None, bytes | None]]:
    """Offset, producer, attributes, key and value."""
    for name in sorted(each for each in world.env.disk.list_directory(log.directory) if each.endswith(".log")):
        for header, batch in record_batch.batches(bytes(world.env.disk.data_of(f"{log.directory}/{name}"))):
            for row in record_batch.records(batch):
                value = None if row.value is None else TIME.sub(b"<time>", row.value)
                yield row.offset, header.producer_id, header.attributes, row.key, value


def test_a_jump_leaves_the_records_that_time_leaves(make_world: Any) -> None:
    traces = []
    for passes in (pass_by_waiting, pass_by_command):
        world = make_world(**SETTINGS)
        begin(world)
        passes(world)
        world.env.run(world.env.clock.sleep(5_000))
        traces.append(told(world))
        world.env.run(world.broker.stop())
        assert world.escaped == []
    waited, jumped = traces
    for what, found in waited.items():
        assert found == jumped[what], what
    assert_all_was_due(waited)


def assert_all_was_due(trace: dict[str, Any]) -> None:
    """Retention, compaction, a transaction's time-out, a session, and expiry of offsets, ids and producers."""
    rows = {topic: found for (topic, _), found in trace["records"].items()}
    assert trace["log starts"]["short", 0] == 1
    assert [value for *_, value in rows["compacted"]] == [b"stays", b"in the last segment"]
    assert [attributes & CONTROL != 0 for _, _, attributes, *_ in rows["kept"]] == [False, False, False, False, True]
    assert trace["producers"]["kept", 0] == []
    assert {key for *_, key, value in rows["__transaction_state"] if value is None} == {
        b"\0\0\0\x04idle",
        b"\0\0\0\x06copier",
    }
    forgotten = [key for *_, key, value in rows["__consumer_offsets"] if value is None and key is not None]
    for group in (b"quiet", b"silent"):
        assert any(group in key for key in forgotten)
    assert any(b"silent" in key and value for *_, key, value in rows["__consumer_offsets"])
