"""What of a group waits for an open transaction: its members behind the last stable offset, and its pending offsets.

The coordinator of the group knows its pending offsets, and the partitions that it leads itself. Which transactional id
a producer has, and when its timeout ends the transaction, is asked of all transaction coordinators.
"""

from collections.abc import Collection, Mapping
from typing import Any

from barnabas.broker.services import Services
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.records import GroupOffsets
from barnabas.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.turns import Pieces

RECORDS, OFFSETS = "records", "offsets"
PURPOSE = "waits"
WAITS_MAX = 1_000
ANSWERS_WITHIN_MS = 5_000.0


class Known(NamedTuple):
    """A transaction, as its coordinator knows it. `ends_ms` None: it is decided, its markers are on their way."""

    transactional_id: str
    start_ms: int
    ends_ms: int | None


class Wait(NamedTuple):
    """What waits: records of a partition from an offset on, or the offset of it that is committed in a transaction."""

    kind: str
    topic: str
    partition: int
    offset: int
    producer_id: int


def waits(
    services: Services, shard: Shard, group_id: str, committed: GroupOffsets
) -> Pieces[list[tuple[Wait, Known | None]]]:
    """What of the group waits, each with its transaction; None: no coordinator that answers knows the transaction."""
    found = yield from _found(services, shard, group_id, committed)
    if not found:
        return []
    known = yield from transactions_of(services, {each.producer_id for each in found})
    return [(each, known.get(each.producer_id)) for each in found]


def _found(services: Services, shard: Shard, group_id: str, committed: GroupOffsets) -> Pieces[list[Wait]]:
    found = []
    if group_id in shard.offsets.pending_counts:
        for producer_id, groups in list(shard.offsets.pending.items()):
            yield None
            for topic, partitions in groups.get(group_id, {}).items():
                found += [Wait(OFFSETS, topic, index, each.offset, producer_id) for index, each in partitions.items()]
    for topic, partitions in committed.items():
        for index, each in list(partitions.items()):
            yield None
            partition = services.replica_manager.partitions.get((topic, index))
            if partition is None or not partition.is_leader:
                continue
            log = partition.log
            oldest = log.producers.oldest_transaction
            if oldest is not None and log.last_stable_offset < log.high_watermark:
                first_offset = oldest.current_transaction_first_offset
                if each.offset >= log.last_stable_offset:
                    found.append(Wait(RECORDS, topic, index, first_offset, oldest.producer_id))
    return found[:WAITS_MAX]


def transactions_of(services: Services, producer_ids: Collection[int]) -> Pieces[dict[int, Known]]:
    """The open transactions of producers, by producer id. A coordinator that does not answer is passed over."""
    found: dict[int, Known] = {}
    for broker_id in sorted(services.metadata_cache.brokers):
        request = ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
        listed: ListTransactionsResponse | None = yield services.transactions.ask_broker(
            PURPOSE, broker_id, request, 0, ANSWERS_WITHIN_MS
        )
        if listed is None or not listed.transaction_states:
            continue
        names = [each.transactional_id for each in listed.transaction_states]
        described: DescribeTransactionsResponse | None = yield services.transactions.ask_broker(
            PURPOSE, broker_id, DescribeTransactionsRequest(transactional_ids=names), 0, ANSWERS_WITHIN_MS
        )
        for row in [] if described is None else described.transaction_states:
            if row.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
                start_ms = row.transaction_start_time_ms
                ends_ms = start_ms + row.transaction_timeout_ms if row.transaction_state == "Ongoing" else None
                found[row.producer_id] = Known(row.transactional_id, start_ms, ends_ms)
    return found


def as_json(wait: Wait, known: Known | None) -> Mapping[str, Any]:
    transactional_id, since_ms, ends_ms = known or (None, None, None)
    return {**wait._asdict(), "transactional_id": transactional_id, "since_ms": since_ms, "ends_ms": ends_ms}
