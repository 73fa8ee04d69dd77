"""What coordinators and partitions say of transactions, in Kafka's messages: Apache Kafka answers the same.

A coordinator knows a transaction by its id, and a partition knows it by its producer. Where a partition has an open
transaction that no coordinator will end, the transaction hangs (KIP-664).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from barnabas.cli.shared.client import (
    LATEST,
    ONE_ANSWERS_WITHIN_MS,
    RETRY_MS,
    Key,
    answered,
    broker_setting,
    leaders_of,
    list_offsets_request,
    listed_offsets,
)
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.kafka_python import find_transaction_coordinator, send
from barnabas.cli.shared.words import shown
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.clock import RealClock
from barnabas.runtime.grouped import grouped

T = TypeVar("T")

IDS_AT_ONCE = 1_000
PARTITIONS_AT_ONCE = 200
ATTEMPTS = 20  # to reach the leaders of partitions, while they move
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LONGEST_TIMEOUT_MS = 900_000  # where no broker says it
FUTURE_MS = 60_000  # a time that is later than now by so much was not taken from a clock
TRANSACTION_MAX_TIMEOUT = "transaction.max.timeout.ms"


class State(StrEnum):
    """What a transactional id is doing."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


OPEN_STATES = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Listed(NamedTuple):
    """A transactional id, as its coordinator lists it."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int


class Described(NamedTuple):
    """A transactional id, as its coordinator describes it. `partitions`: those whose markers are not written yet."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[Key, ...]

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or being ended."""
        return self.state in OPEN_STATES

    @property
    def is_decided(self) -> bool:
        """Whether it is being ended: it only waits for its markers."""
        return self.is_open and self.state != State.ONGOING

    @property
    def ends_ms(self) -> int | None:
        """When its timeout ends it; None: it is decided already, or there is none."""
        return self.start_ms + self.timeout_ms if self.state == State.ONGOING else None

    def is_same_transaction(self, other: "Described") -> bool:
        """Whether both are the same transaction of the same producer."""
        return (self.producer_id, self.producer_epoch, self.start_ms) == (
            other.producer_id,
            other.producer_epoch,
            other.start_ms,
        )


class Open(NamedTuple):
    """An open transaction in a partition, as a replica knows it by its producer."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    @property
    def key(self) -> Key:
        return self.topic, self.partition


def abort_words(topic: str, partition: int, first_offset: int) -> tuple[str, ...]:
    """The words of the command that aborts a hanging transaction."""
    return (
        *("transactions", "abort", f"--topic={topic}"),
        *("--partition", str(partition), "--start-offset", str(first_offset)),
    )


class Ends(NamedTuple):
    """Where consumers of a partition stop: those with read_committed at the last stable offset."""

    last_stable_offset: int
    high_watermark: int

    @property
    def held_back(self) -> int:
        """Offsets that only the others read."""
        return max(self.high_watermark - self.last_stable_offset, 0)


def raise_for(code: int) -> None:
    """Raise kafka-python's exception of an error code."""
    from kafka.errors import for_code

    if code:
        raise for_code(code)()


# ------------------------------------------------------------------ coordinators


def list_transactions(
    client: Any,
    *,
    states: Sequence[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int | None = None,
    id_pattern: str | None = None,
) -> list[Listed]:
    """The transactional ids of all coordinators that fit. Filters that a broker does not know end the command."""
    from kafka.errors import IncompatibleBrokerVersion
    from kafka.protocol.admin.transactions import ListTransactionsRequest

    wanted = sorted(set(producer_ids))

    def ask() -> list[Listed]:
        found = []
        for broker in client.describe_cluster()["brokers"]:
            request = ListTransactionsRequest(
                state_filters=list(states),
                producer_id_filters=wanted,
                duration_filter=-1 if longer_than_ms is None else longer_than_ms,
                transactional_id_pattern=id_pattern,
                min_version=0 if longer_than_ms is None and id_pattern is None else 1 if id_pattern is None else 2,
            )
            node_id = int(broker["broker_id"])
            response = send(client, request, node_id)
            if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                fail(f"{id_pattern!r} is no regular expression in the syntax of RE2.", ExitCode.NOT_VALID)
            raise_for(response.error_code)
            found += [
                Listed(row.transactional_id, row.transaction_state, node_id, row.producer_id)
                for row in response.transaction_states
            ]
        return found

    try:
        return answered(client, ask)
    except IncompatibleBrokerVersion:
        if longer_than_ms is None and id_pattern is None:
            fail("the broker cannot list transactions (Apache Kafka can since 3.0).")
        what, since = ("durations", "3.8") if id_pattern is None else ("patterns", "4.1")
        fail(f"the broker knows no filter for {what} (Apache Kafka has it since {since}). List without it.")


def describe_transactions(client: Any, listed: Iterable[Listed]) -> dict[str, Described]:
    """More of ids that were listed. One that has moved, or is gone, since it was listed is left out."""
    from kafka.errors import KafkaError
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest

    found: dict[str, Described] = {}
    for node_id, names in grouped((one.coordinator, one.transactional_id) for one in listed).items():
        for at in range(0, len(names), IDS_AT_ONCE):
            request = DescribeTransactionsRequest(transactional_ids=names[at : at + IDS_AT_ONCE])
            try:
                response = send(client, request, node_id, ONE_ANSWERS_WITHIN_MS)
            except KafkaError:
                break
            found |= {
                row.transactional_id: _described(row, node_id)
                for row in response.transaction_states
                if not row.error_code
            }
    return found


def describe_transaction(client: Any, transactional_id: str) -> Described:
    """An id, from its coordinator. One that does not exist ends the command."""
    from kafka.errors import TransactionalIdNotFoundError
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest

    if not transactional_id:
        fail("a transactional id has at least one character.", ExitCode.NOT_VALID)

    def ask() -> Described:
        node_id = find_transaction_coordinator(client, transactional_id)
        response = send(client, DescribeTransactionsRequest(transactional_ids=[transactional_id]), node_id)
        (row,) = response.transaction_states
        raise_for(row.error_code)
        return _described(row, node_id)

    try:
        return answered(client, ask)
    except TransactionalIdNotFoundError:
        fail(
            f"there is no transactional id {shown(transactional_id)}. "
            "`barnabas transactions list` shows what there is.",
            ExitCode.NOTHING_THERE,
        )


def _described(row: Any, node_id: int) -> Described:
    return Described(
        row.transactional_id,
        row.transaction_state,
        node_id,
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple(sorted((topic.topic, index) for topic in row.topics for index in topic.partitions)),
    )


# ------------------------------------------------------------------ partitions


def leaders(client: Any, partitions: Iterable[Key]) -> dict[Key, int]:
    """The leaders of those that have one."""
    wanted = set(partitions)
    names = sorted({topic for topic, _ in wanted})
    described = answered(client, lambda: client.describe_topics(names)) if names else []
    return {key: leader for key, leader in leaders_of(described).items() if key in wanted}


def _from_leaders(
    client: Any,
    partitions: Iterable[Key],
    node_id: int | None,
    ask: Callable[[int, Sequence[Key]], Mapping[Key, T]],
) -> dict[Key, T]:
    """What the leaders of partitions answer, or this one broker. Those that do not answer are asked again for a while,
    and then left out; so is who refuses.
    """
    from kafka.errors import KafkaError

    clock = RealClock()
    found: dict[Key, T] = {}
    left = sorted(set(partitions))
    for attempt in range(ATTEMPTS):
        if attempt:
            asyncio.run(clock.sleep(RETRY_MS))
        led = dict.fromkeys(left, node_id) if node_id is not None else leaders(client, left)
        for broker, keys in grouped((broker, key) for key, broker in led.items()).items():
            for at in range(0, len(keys), PARTITIONS_AT_ONCE):
                try:
                    found |= ask(broker, keys[at : at + PARTITIONS_AT_ONCE])
                except KafkaError:
                    break
        left = [key for key in left if key not in found and (node_id is not None or key in led)]
        if not left:
            break
    return found


def open_in(
    client: Any, partitions: Iterable[Key], node_id: int | None = None
) -> tuple[dict[Key, list[Open]], list[Key]]:
    """The open transactions in each partition, as their leaders or this one broker say it; and who did not say it."""
    from kafka.protocol.admin.transactions import DescribeProducersRequest

    def ask(broker: int, keys: Sequence[Key]) -> dict[Key, list[Open]]:
        make, asked = DescribeProducersRequest.TopicRequest, grouped(keys)
        topics = [make(name=name, partition_indexes=indexes) for name, indexes in asked.items()]
        response = send(client, DescribeProducersRequest(topics=topics), broker, ONE_ANSWERS_WITHIN_MS)
        rows = ((topic.name, row) for topic in response.topics for row in topic.partitions)
        return {(name, row.partition_index): _open(name, row) for name, row in rows if not row.error_code}

    wanted = set(partitions)
    found = _from_leaders(client, wanted, node_id, ask)
    return found, [key for key in sorted(wanted) if key not in found]


def _open(topic: str, row: Any) -> list[Open]:
    return [
        Open(
            topic,
            row.partition_index,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.current_txn_start_offset,
            each.last_timestamp,
        )
        for each in row.active_producers
        if each.current_txn_start_offset >= 0
    ]


def ends_of(client: Any, partitions: Iterable[Key]) -> dict[Key, Ends]:
    """Where consumers stop in those whose leaders say it. A new leader that waits for its replicas does not."""

    def ask(isolation: int, broker: int, keys: Sequence[Key]) -> dict[Key, int]:
        request = list_offsets_request(dict.fromkeys(keys, LATEST), isolation=isolation, min_version=2)
        return listed_offsets(send(client, request, broker, ONE_ANSWERS_WITHIN_MS))

    stable = _from_leaders(client, partitions, None, partial(ask, READ_COMMITTED))
    high = _from_leaders(client, stable, None, partial(ask, READ_UNCOMMITTED))  # the later, so it is not behind
    return {key: Ends(stable[key], high[key]) for key in high}


# ------------------------------------------------------------------ both together


def is_old(one: Open, now_ms: int, longer_than_ms: int) -> bool:
    """Whether the last record of a transaction is so old, or has a time that no clock has shown."""
    return now_ms - one.last_timestamp_ms > longer_than_ms or one.last_timestamp_ms > now_ms + FUTURE_MS


def coordinators_of(client: Any, opens: Iterable[Open]) -> dict[int, Described]:
    """What coordinators know of these producers, by producer id."""
    listed = list_transactions(client, producer_ids={one.producer_id for one in opens})
    return {one.producer_id: one for one in describe_transactions(client, listed).values()}


def absent_coordinators(client: Any) -> list[Key]:
    """Partitions of the coordinators' topic without a leader: nobody knows the transactions in them now."""
    described = answered(client, lambda: client.describe_topics([TRANSACTIONS_TOPIC]))
    rows = (row for topic in described for row in topic["partitions"])
    return sorted((TRANSACTIONS_TOPIC, int(row["partition_index"])) for row in rows if row["leader_id"] < 0)


def will_be_ended(one: Open, known: Mapping[int, Described]) -> bool:
    """Whether a coordinator has the partition in the producer's transaction, and so sends it a marker."""
    described = known.get(one.producer_id)
    return described is not None and described.is_open and one.key in described.partitions


def find_hanging(
    client: Any, partitions: Iterable[Key], longer_than_ms: int, node_id: int | None = None
) -> tuple[list[Open], list[Key]]:
    """Transactions in partitions that no coordinator will end; and the partitions that could not be looked at."""
    found, unknown = open_in(client, partitions, node_id)
    now_ms = RealClock().now_ms()
    old = [one for rows in found.values() for one in rows if is_old(one, now_ms, longer_than_ms)]
    if not old:
        return [], unknown
    known = coordinators_of(client, old)
    hanging = [one for one in old if not will_be_ended(one, known)]
    missing = absent_coordinators(client) if hanging else []
    if missing:  # they may know these transactions
        return [], sorted({*unknown, *missing, *(one.key for one in hanging)})
    # One whose marker came while the coordinators were asked does not hang.
    again, gone = open_in(client, {one.key for one in hanging}, node_id)
    still = {(each.key, each.producer_id, each.start_offset) for rows in again.values() for each in rows}
    return [one for one in hanging if (one.key, one.producer_id, one.start_offset) in still], [*unknown, *gone]


class Wait(NamedTuple):
    """What of a group waits: records of a partition from an offset on, or its offset that a transaction commits.

    `transactional_id` None: no coordinator knows it, so it hangs. `ends_ms` None: it is decided, or not known.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    producer_id: int
    transactional_id: str | None
    since_ms: int | None
    ends_ms: int | None


def waits_of(client: Any, positions: Mapping[Key, int]) -> list[Wait]:
    """Where consumers with read_committed, at these positions, get nothing more until a transaction ends."""
    stands = [
        key
        for key, ends in ends_of(client, positions).items()
        if positions[key] >= ends.last_stable_offset and ends.held_back
    ]
    found, _ = open_in(client, stands) if stands else ({}, [])
    firsts = [min(rows, key=lambda one: one.start_offset) for rows in found.values() if rows]
    known = coordinators_of(client, firsts) if firsts else {}
    waits = []
    for one in sorted(firsts):
        described = known.get(one.producer_id) if will_be_ended(one, known) else None
        name, since_ms = (None, None) if described is None else (described.transactional_id, described.start_ms)
        ends_ms = None if described is None else described.ends_ms
        waits.append(Wait("records", *one.key, one.start_offset, one.producer_id, name, since_ms, ends_ms))
    return waits


def longest_timeout_ms(client: Any) -> int:
    """transaction.max.timeout.ms of the brokers: no transaction that a coordinator knows is open for longer."""
    from kafka.errors import KafkaError

    longest = 0
    for broker in answered(client, client.describe_cluster)["brokers"]:
        try:
            longest = max(longest, int(broker_setting(client, int(broker["broker_id"]), TRANSACTION_MAX_TIMEOUT) or 0))
        except (KafkaError, ValueError):
            continue
    return longest or LONGEST_TIMEOUT_MS
