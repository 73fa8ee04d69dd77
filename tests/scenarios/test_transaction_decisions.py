"""What each request does to a transactional id in each state: transactions/decisions.txt, one table per situation.

After a wanted change: pytest tests/scenarios --update, and read the diff. What Kafka 4.1 does in most of these
situations is held by tests/wire/test_transaction_coordinator.py and tests/unit/transactions.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from barnabas.coordinators.transactions import decisions
from barnabas.coordinators.transactions.decisions import Entry, NeedProducerId, Outcome, Refuse, Repeat, Write
from barnabas.coordinators.transactions.metadata import NOT_STARTED_MS, PRODUCER_EPOCH_MAX, Transaction
from barnabas.coordinators.transactions.states import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREDECESSORS,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionState,
)

TABLE = Path(__file__).parent / "transactions" / "decisions.txt"
NOW_MS = 9_000
ID, OTHER_ID, FRESH_ID, FORMER_ID = 10, 11, 20, 9
T0, T1 = ("t", 0), ("t", 1)
Ask = Callable[[Entry], Outcome | NeedProducerId]


def held(state: TransactionState, client_version: int = 0, epoch: int = 5, **fields: int) -> Transaction:
    is_open = state is ONGOING or state in PREPARED
    return Transaction(
        transactional_id="id",
        producer_id=fields.pop("producer_id", ID),
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset({T0}) if is_open else frozenset(),
        start_ms=NOT_STARTED_MS if state is EMPTY else 1_000,
        last_update_ms=2_000,
        client_version=client_version,
        **fields,
    )


def situations() -> Iterator[tuple[str, Entry]]:
    yield "new: no epoch was given yet", Entry(held(EMPTY, epoch=-1))
    for version, words in ((0, "last used by a client of version 0 or 1"), (2, "last used by a client of version 2")):
        for state in (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT):
            yield (
                f"{state.kafka_name}, epoch 5, the one before was 4, {words}",
                Entry(held(state, version, last_producer_epoch=4)),
            )
    for state in (EMPTY, ONGOING, COMPLETE_COMMIT):
        yield (
            f"{state.kafka_name}, epoch 32766: the last one that a producer is given",
            Entry(held(state, 2, 32766, last_producer_epoch=32765)),
        )
    for state in (PREPARE_COMMIT, PREPARE_ABORT):
        yield (
            f"{state.kafka_name}, epoch 32767: its exhausted producer id is replaced by 20 at the end",
            Entry(held(state, 2, 32767, last_producer_epoch=32766, next_producer_id=FRESH_ID)),
        )
    yield "Ongoing, epoch 32767: Kafka has written it", Entry(held(ONGOING, 2, 32767, last_producer_epoch=32766))
    yield "CompleteAbort, epoch 32767: it only fenced", Entry(held(COMPLETE_ABORT, 2, 32767, last_producer_epoch=32766))
    yield (
        "CompleteCommit, epoch 0, its exhausted producer id 9 was replaced",
        Entry(held(COMPLETE_COMMIT, 2, 0, previous_producer_id=FORMER_ID, last_producer_epoch=32766)),
    )
    yield "Ongoing, epoch 5, and PrepareCommit is being written", Entry(held(ONGOING), pending=PREPARE_COMMIT)


def requests(entry: Entry) -> Iterator[tuple[str, Ask]]:
    epoch = entry.transaction.producer_epoch

    def init(expected: tuple[int, int] | None, finalised: int) -> Ask:
        def ask(entry: Entry) -> Outcome | NeedProducerId:
            found = decisions.init_producer_id(entry, 60_000, expected, finalised, NOW_MS)
            if isinstance(found, NeedProducerId):
                found = decisions.init_producer_id(entry, 60_000, expected, finalised, NOW_MS, FRESH_ID)
            return found

        return ask

    def add(producer_id: int, producer_epoch: int, version: int, *partitions: tuple[str, int]) -> Ask:
        return lambda entry: decisions.add_partitions(
            entry, producer_id, producer_epoch, frozenset(partitions), version, NOW_MS
        )

    def verify(producer_epoch: int, partition: tuple[str, int]) -> Ask:
        return lambda entry: Refuse(decisions.verify_partition(entry, ID, producer_epoch, partition))

    def end(producer_id: int, producer_epoch: int, is_commit: bool, version: int) -> Ask:
        def ask(entry: Entry) -> Outcome | NeedProducerId:
            asked = (entry, producer_id, producer_epoch, is_commit, version, NOW_MS)
            found = decisions.end_transaction(*asked)
            return decisions.end_transaction(*asked, FRESH_ID) if isinstance(found, NeedProducerId) else found

        return ask

    for finalised in (0, 2):
        for words, expected in (
            ("", None),
            (f" expects {ID}/{epoch}", (ID, epoch)),
            (f" expects {ID}/{epoch - 1}", (ID, epoch - 1)),
            (f" expects {ID}/{epoch - 2}", (ID, epoch - 2)),
            (f" expects {OTHER_ID}/{epoch}", (OTHER_ID, epoch)),
            (f" expects {FORMER_ID}/32766", (FORMER_ID, 32766)),
        ):
            if epoch >= 2 or expected is None or expected[1] == 32766:
                yield f"init (finalised {finalised}){words}", init(expected, finalised)
    if epoch < 0:
        return  # such an entry is in the coordinator only while its first record is written
    for version in (0, 2):
        yield f"add {version} t-0", add(ID, epoch, version, T0)
        yield f"add {version} t-1", add(ID, epoch, version, T1)
    yield f"add 2 by epoch {epoch - 1}", add(ID, epoch - 1, 2, T1)
    if epoch < PRODUCER_EPOCH_MAX:
        yield f"add 2 by epoch {epoch + 1}", add(ID, epoch + 1, 2, T1)
    yield f"add 2 by the fresh id {FRESH_ID}/0", add(FRESH_ID, 0, 2, T1)
    yield f"add 2 by another id {OTHER_ID}", add(OTHER_ID, epoch, 2, T1)
    yield "verify t-0", verify(epoch, T0)
    yield "verify t-1", verify(epoch, T1)
    yield f"verify t-0 by epoch {epoch - 1}", verify(epoch - 1, T0)
    for version in (0, 2):
        for is_commit in (True, False):
            word = "commit" if is_commit else "abort"
            yield f"{word} {version}", end(ID, epoch, is_commit, version)
            yield f"{word} {version} by epoch {epoch - 1}", end(ID, epoch - 1, is_commit, version)
            yield f"{word} {version} by former {FORMER_ID}/32766", end(FORMER_ID, 32766, is_commit, version)
    yield f"commit 2 by epoch {epoch + 1}", end(ID, epoch + 1, True, 2)
    yield f"commit 2 by another id {OTHER_ID}", end(OTHER_ID, epoch, True, 2)


def deeds_of_the_coordinator(entry: Entry) -> Iterator[tuple[str, str]]:
    """What it does by itself: by the clock, and when all markers are written."""
    value = entry.transaction
    late_ms = NOW_MS + 100_000
    is_late, is_idle = decisions.is_timed_out(entry, late_ms), decisions.is_expired(entry, late_ms, 1_000)
    for finalised in (0, 2):
        words = told(Write(decisions.abort_fenced(value, finalised, late_ms))) if is_late else "nothing"
        yield f"open for longer than its timeout ({finalised})", words
    yield "not used for long", "removed" if is_idle else "nothing"
    if value.state in PREPARED:
        yield "all markers are written", told(Write(decisions.completed(value, NOW_MS)))


def told(found: Outcome | NeedProducerId) -> str:
    assert not isinstance(found, NeedProducerId)
    if isinstance(found, Refuse):
        return found.error.name
    value = found.transaction
    producer_id, epoch = decisions.next_identity(value)
    if isinstance(found, Repeat):
        return f"as before: {producer_id}/{epoch}"
    text = f"{value.state.kafka_name} {value.producer_id}/{value.producer_epoch}"
    if value.partitions:
        text += " " + ",".join(f"{topic}-{index}" for topic, index in sorted(value.partitions))
    if value.next_producer_id >= 0:
        text += f", next {producer_id}/{epoch}"
    return text + (f"; answers {found.error.name}" if found.error else "")


def table() -> str:
    lines = []
    for title, entry in situations():
        lines += ["", f"# {title}"]
        for words, ask in requests(entry):
            found = ask(entry)
            if not isinstance(found, Refuse | Repeat | NeedProducerId) and entry.pending is None:
                assert entry.transaction.state in PREDECESSORS[found.transaction.state]
                assert 0 <= found.transaction.producer_epoch <= 32767
            lines.append(f"{words:<40} {told(found)}")
        if entry.transaction.producer_epoch >= 0:
            lines += [f"{words:<40} {what}" for words, what in deeds_of_the_coordinator(entry)]
    return "\n".join(lines).lstrip() + "\n"


def test_every_state_and_request(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update"):
        TABLE.write_text(table())
    assert table() == TABLE.read_text()


def test_a_transaction_is_late_after_its_timeout_and_an_id_idle_after_its_own() -> None:
    for state in TransactionState:
        entry = Entry(held(state))
        assert decisions.is_timed_out(entry, 61_000) is False
        assert decisions.is_timed_out(entry, 61_001) is (state is ONGOING)
        assert decisions.is_expired(entry, 2_999, 1_000) is False
        assert decisions.is_expired(entry, 3_000, 1_000) is (state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
        entry.pending = ONGOING
        assert not decisions.is_timed_out(entry, 1 << 50)
        assert not decisions.is_expired(entry, 1 << 50, 0)


def test_an_id_that_is_not_there() -> None:
    unknown = Refuse(decisions.ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert decisions.add_partitions(None, ID, 0, frozenset({T0}), 2, NOW_MS) == unknown
    assert decisions.end_transaction(None, ID, 0, True, 2, NOW_MS) == unknown
    assert decisions.verify_partition(None, ID, 0, T0) == unknown.error


def test_a_state_that_may_not_follow_is_not_written() -> None:
    for before in TransactionState:
        for after in TransactionState:
            entry = Entry(held(before))
            if before in PREDECESSORS[after]:
                decisions.begin_write(entry, held(after))
                assert entry.pending is after
            else:
                with pytest.raises(AssertionError):
                    decisions.begin_write(entry, held(after))
