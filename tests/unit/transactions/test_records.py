"""Records of `__transaction_state`: what is written and read field by field is what the schema says."""

import random
from collections.abc import Iterator

import pytest
from barnabas.coordinators.transactions.decisions import Entry
from barnabas.coordinators.transactions.entries import Entries
from barnabas.coordinators.transactions.metadata import Transaction
from barnabas.coordinators.transactions.records import (
    _decode_any,
    decode,
    decode_plain,
    encode_key,
    encode_value,
    is_plain,
)
from barnabas.coordinators.transactions.states import COMPLETE, EMPTY, IDLE, ONGOING, TransactionState
from barnabas.protocol import records as stored
from barnabas.protocol.batch_records import iterate, short_records
from barnabas.protocol.errors import ProtocolError
from barnabas.protocol.record_batch import PlainRecords
from barnabas.runtime.grouped import grouped


def by_schema(held: Transaction, version: int) -> bytes:
    topics = grouped(sorted(held.partitions))
    make = stored.TransactionLogValue
    value = make(
        producer_id=held.producer_id,
        producer_epoch=held.producer_epoch,
        transaction_timeout_ms=held.timeout_ms,
        transaction_status=held.state,
        transaction_partitions=None
        if held.state is EMPTY
        else [make.PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()],
        transaction_last_update_timestamp_ms=held.last_update_ms,
        transaction_start_timestamp_ms=held.start_ms,
    )
    if version:
        value.previous_producer_id = held.previous_producer_id
        value.next_producer_id = held.next_producer_id
        value.client_transaction_version = held.client_version
    return stored.encode_versioned(value, version)


def values(seed: int) -> Iterator[tuple[Transaction, int]]:
    rng = random.Random(seed)
    for number in range(300):
        state = rng.choice(list(TransactionState))
        many = rng.random() < 0.1
        topics = [
            "t" * rng.choice((1, 5, 200 if many else 9)) + str(each)
            for each in range(rng.choice((0, 1, 3, 200 if many else 2)))
        ]
        partitions = {
            (topic, rng.randrange(70_000)) for topic in topics for _ in range(rng.choice((1, 4, 150 if many else 2)))
        }
        version = number % 2
        yield (
            Transaction(
                transactional_id=rng.choice(("a", "ü" * 70, "x" * 300)),
                producer_id=rng.randrange(2**62),
                producer_epoch=rng.randrange(-1, 2**15),
                previous_producer_id=rng.choice((-1, 5)) if version else -1,
                next_producer_id=rng.choice((-1, 6)) if version else -1,
                timeout_ms=rng.randrange(2**31),
                state=state,
                partitions=frozenset() if state is EMPTY or rng.random() < 0.3 else frozenset(partitions),
                start_ms=rng.choice((-1, 2**41)),
                last_update_ms=rng.randrange(2**41),
                client_version=rng.choice((0, 0, 2)) if version else 0,
            ),
            version,
        )


@pytest.mark.parametrize("seed", range(4))
def test_records_are_written_and_read_as_the_schema_says(seed: int) -> None:
    plain = 0
    for held, version in values(seed):
        value = by_schema(held, version)
        assert encode_value(held, version) == value
        record = decode(encode_key(held.transactional_id), value)
        assert record is not None
        assert (record.transaction, record.value_version) == (held, version)
        assert _decode_any(held.transactional_id, value).transaction == held
        if is_plain(value):
            plain += 1
            assert decode_plain(held.transactional_id, value) == held
            assert held.state in IDLE
    assert plain > 20


@pytest.mark.parametrize("seed", range(4))
def test_broken_values_are_read_as_the_schema_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    for held, version in values(seed):
        value = bytearray(by_schema(held, version))
        match rng.randrange(3):
            case 0:
                value[rng.randrange(len(value))] = rng.randrange(256)
            case 1:
                del value[rng.randrange(2, len(value)) :]
            case 2:
                value += rng.randbytes(rng.randrange(1, 5))
        wanted, found = outcome(_decode_any, "a", bytes(value)), outcome(decode, encode_key("a"), bytes(value))
        assert found == wanted, bytes(value).hex()
        if is_plain(bytes(value)):
            assert (decode_plain("a", bytes(value)), value[1]) == wanted


def outcome(read: object, *asked: object) -> object:
    try:
        record = read(*asked)  # type: ignore[operator]
    except (ProtocolError, ValueError):
        return None
    return record.transaction, record.value_version


def test_keys_that_cannot_be_read_are_refused() -> None:
    assert encode_key("ü") == stored.encode_versioned(stored.TransactionLogKey(transactional_id="ü"), 0)
    for key in (b"", b"\0", b"\0\0\0", b"\0\0\0\2a", b"\0\0\xff\xffa", b"\0\0\0\1\xff"):
        with pytest.raises(ProtocolError):
            decode(key, None)


def test_short_records_are_what_iterate_finds() -> None:
    rng = random.Random(1)
    for count in (1, 2, 64, 65, 200):
        records = PlainRecords()
        for _ in range(count):
            records.add(
                rng.randbytes(rng.choice((0, 5, 60, 70))),
                None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 37, 300))),
            )
        data = b"".join(records.parts)
        wanted = [(record.key, record.value) for record in iterate(data, count, 0, 0, None)]
        assert short_records(b"head" + data + b"tail", 4, 4 + len(data), count) == wanted
        assert short_records(data, 0, len(data), count + 1) is None
        assert short_records(data + b"x", 0, len(data) + 1, count) is None
    records = PlainRecords()
    records.add(b"k", bytes(9000))
    data = b"".join(records.parts)
    assert short_records(data, 0, len(data), 1) is None, "it is long"


def test_idle_ids_stay_as_they_were_written_until_they_are_used() -> None:
    held = Transaction(transactional_id="a", producer_id=7, producer_epoch=3, timeout_ms=60_000, last_update_ms=9)
    value = encode_value(held, 1)
    assert value is not None
    entries = Entries()
    entries.store("a", value)
    looked = entries.look("a")
    assert looked is not None
    assert (looked.transaction, len(entries), entries.in_use()) == (held, 1, [])
    used = entries.get("a")
    assert used is not None
    assert used is entries["a"] is entries.look("a")
    assert (used.transaction, len(entries), entries.ids()) == (held, 1, ["a"])
    entries.add(Entry(held._replace(producer_id=8)))
    assert entries["a"] is used, "it is known"
    entries.store("a", value)
    assert entries.in_use() == []
    entries.remove("a")
    assert (entries.get("a"), len(entries), list(entries.looks())) == (None, 0, [])
    with pytest.raises(KeyError):
        entries["a"]


def test_only_idle_values_are_plain() -> None:
    for state in TransactionState:
        for partitions in (frozenset[tuple[str, int]](), frozenset({("t", 0)})):
            held = Transaction(
                transactional_id="a", producer_id=7, timeout_ms=1, last_update_ms=9, state=state, partitions=partitions
            )
            for version in (0, 1):
                value = encode_value(held, version)
                assert value is not None
                plain = state in IDLE and (not partitions or state is EMPTY)
                assert is_plain(value) is plain, (state, version)
    assert ONGOING not in IDLE
    assert COMPLETE < IDLE
