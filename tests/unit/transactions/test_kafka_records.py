"""Kafka 4.1 and our decisions write the same records: golden/transaction-records.jsonl, byte for byte.

The records are those of one broker with transaction.version 2, and of the same one with 0 (ids that begin with z). Our
own records say more where an exhausted producer id is replaced: Kafka 4.1.0 never writes the tagged fields for it.
"""

import json
from pathlib import Path

import pytest
from barnabas.coordinators.transactions import decisions
from barnabas.coordinators.transactions.decisions import Entry, NeedProducerId, Write
from barnabas.coordinators.transactions.metadata import NO_PRODUCER_ID, Transaction
from barnabas.coordinators.transactions.records import TransactionRecord, decode, encode_key, encode_value
from barnabas.coordinators.transactions.states import ONGOING

GOLDEN = Path(__file__).parents[2] / "golden" / "transaction-records.jsonl"
PARTITIONS = frozenset({("t", 0), ("t", 1)})

# What the clients did, a line for each record. `init [id epoch]`: InitProducerId with what is expected; `add`, `commit`
# and `abort` with the version (1: AddPartitionsToTxn 3, EndTxn 4; 2: the versions after them) and the epoch.
STORIES = {
    "v2": "init; add 2 0; commit 2 0; complete; abort 2 1; complete; add 2 2; abort 2 2; complete; init 0 2",
    "mix": "init; add 1 0; commit 1 0; complete; abort 2 0; complete",
    "fence": "init; add 1 0; init; complete; init; init; add 2 3; init; complete; init 4 3",
    "late": "init; add 1 0; late; complete; init 5 0; init",
    "empty": "init; abort 2 0; complete",
    "v1": "init; add 1 0; commit 1 0; complete; add 1 0; abort 1 0; complete; init 2 0; init 2 0; init 2 1",
    "o1": "held; init 6 32765; init 6 32766; init 6 32766; add 1 0; commit 1 0; complete",
    "o2": "held; add 2 32765; commit 2 32765; complete; add 2 32766; commit 2 32766; complete; add 2 0; abort 2 0; "
    "complete",
    "o3": "held; init; add 2 32766; init; complete; init",
    "o4": "held; init; add 1 32766; init; complete; init",
    "za": "init; add 1 0; commit 1 0; complete",
    "zb": "init",
    "zc": "init; add 1 0; init 16 0; complete; init",
    "zd": "init; add 1 0; late; complete; init",
}


def golden(transactional_id: str) -> list[tuple[bytes, bytes]]:
    rows = map(json.loads, GOLDEN.read_text().splitlines())
    return [(bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) for row in rows if row["id"] == transactional_id]


def read(key: bytes, value: bytes) -> TransactionRecord:
    record = decode(key, value)
    assert record is not None
    return record


@pytest.mark.parametrize("transactional_id", STORIES)
def test_what_kafka_wrote_is_read_and_written_the_same(transactional_id: str) -> None:
    rows = golden(transactional_id)
    assert rows
    for key, value in rows:
        record = read(key, value)
        assert record.transactional_id == transactional_id
        assert record.transaction is not None
        assert encode_key(transactional_id) == key
        assert encode_value(record.transaction, record.value_version) == value


@pytest.mark.parametrize("transactional_id", STORIES)
def test_our_decisions_write_what_kafka_wrote(transactional_id: str) -> None:
    steps = STORIES[transactional_id].split("; ")
    rows = golden(transactional_id)
    assert len(steps) == len(rows)
    finalised = 0 if transactional_id.startswith("z") else 2
    entry: Entry | None = None
    for step, (key, value) in zip(steps, rows, strict=True):
        wanted = read(key, value).transaction
        assert wanted is not None
        if entry is None:
            entry = decisions.begin(transactional_id, wanted.producer_id, wanted.timeout_ms, wanted.last_update_ms)
        written = decided(entry, step, finalised, wanted)
        decisions.begin_write(entry, written)
        said_more = written._replace(previous_producer_id=NO_PRODUCER_ID, next_producer_id=NO_PRODUCER_ID)
        assert encode_value(said_more, 1 if finalised else 0) == value, step
        entry.transaction, entry.pending = written, None


def decided(entry: Entry, step: str, finalised: int, wanted: Transaction) -> Transaction:
    """The value that a step writes, at the time and with the fresh producer id of Kafka's own."""
    word, *numbers = step.split()
    values = list(map(int, numbers))
    held, now_ms = entry.transaction, wanted.last_update_ms
    if word == "held":
        return wanted
    if word == "complete":
        return decisions.completed(held, now_ms)
    if word == "late":
        assert decisions.is_timed_out(entry, now_ms)
        return decisions.abort_fenced(held, finalised, now_ms)
    fresh = None
    while True:
        if word == "init":
            expected = (values[0], values[1]) if values else None
            found = decisions.init_producer_id(entry, wanted.timeout_ms, expected, finalised, now_ms, fresh)
        else:
            version, epoch = values
            client_version = 2 if version == 2 else 0
            if word == "add":
                found = decisions.add_partitions(entry, held.producer_id, epoch, PARTITIONS, client_version, now_ms)
            else:
                commits = word == "commit"
                found = decisions.end_transaction(
                    entry, held.producer_id, epoch, commits, client_version, now_ms, fresh
                )
        if not isinstance(found, NeedProducerId):
            assert isinstance(found, Write), (step, found)
            return found.transaction
        fresh = wanted.producer_id if word == "init" else wanted.producer_id + 1


def test_an_exhausted_producer_id_is_replaced_also_after_a_restart() -> None:
    """Without the next id in the record a restart would keep the old one, though the client was told the new one."""
    held = read(*golden("o2")[4]).transaction
    assert held is not None
    found = decisions.end_transaction(Entry(held), held.producer_id, 32766, True, 2, 1, fresh_producer_id=77)
    assert isinstance(found, Write)
    value = encode_value(found.transaction, 1)
    assert value is not None
    restored = read(encode_key("o2"), value).transaction
    assert restored is not None
    ended = decisions.completed(restored, 2)
    assert (ended.producer_id, ended.producer_epoch, ended.previous_producer_id) == (77, 0, held.producer_id)
    value = encode_value(ended, 1)
    assert value is not None
    restored = read(encode_key("o2"), value).transaction
    assert restored is not None
    assert decisions.end_transaction(Entry(restored), held.producer_id, 32766, True, 2, 3) == decisions.Repeat(restored)


@pytest.mark.parametrize("finalised", [0, 2])
def test_an_open_transaction_in_the_very_last_epoch_is_aborted_in_it(finalised: int) -> None:
    """Apache Kafka takes such a one from a producer that was told the epoch which only fences, and never ends it."""
    held = Transaction("x", 5, 1, 1, producer_epoch=32767, state=ONGOING, partitions=PARTITIONS)
    aborted = decisions.abort_fenced(held, finalised, 2)
    assert (aborted.producer_epoch, aborted.client_version) == (32767, 0), "a marker of the old kind, in the same epoch"
    assert encode_value(aborted, 1) is not None
    fresh = decisions.init_producer_id(Entry(decisions.completed(aborted, 3)), 1, None, finalised, 4)
    assert isinstance(fresh, NeedProducerId)


def test_version_0_has_no_room_for_what_version_2_needs() -> None:
    held = read(*golden("o2")[4]).transaction
    assert held is not None
    value = encode_value(held._replace(next_producer_id=5), 0)
    assert value is not None
    restored = read(encode_key("o2"), value).transaction
    assert restored == held._replace(client_version=0)
    assert encode_value(None, 1) is None
    unknown = bytes([0, 9]) + encode_key("o2")[2:]
    assert decode(unknown, value) is None
