"""Which open transactions a group waits for, in words: for `barnabas groups describe`."""

from contextlib import suppress
from typing import Any

from barnabas.cli.open_transactions import Wait, abort_words, waits_of
from barnabas.cli.shared.exits import Failure
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.words import command_of, duration, line_of, partition_of
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.runtime.clock import RealClock

SHOWN_MAX = 10


def group_waits(client: Any, api: HttpApi, group: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of the group waits. Its pending offsets are known where there is an HTTP API."""
    from kafka.errors import KafkaError

    positions = {(row["topic"], row["partition"]): row["committed_offset"] for row in rows}
    found: list[Wait] = []
    with suppress(Failure, KafkaError):  # an old broker knows nothing of transactions
        found = waits_of(client, {key: offset for key, offset in positions.items() if offset is not None})
    with suppress(Failure):
        document = api.get("/v1/groups/{group}", group=group)
        found += [Wait(**row) for row in document["waits"] if row["kind"] == "offsets"]
    return [{**one._asdict(), "command": list(_command(one))} for one in found]


def _command(one: Wait) -> tuple[str, ...]:
    if one.transactional_id is not None:
        return command_of("transactions abort", [one.transactional_id])
    if one.kind == "records":
        return abort_words(one.topic, one.partition, one.offset)
    return ("transactions", "find-hanging", "--topic", OFFSETS_TOPIC, "--longer-than", "0")


def lines(waits: list[dict[str, Any]], bootstrap: str | None) -> list[str]:
    """Each with the command that ends it."""
    now_ms = RealClock().now_ms()
    said = []
    for row in waits[:SHOWN_MAX]:
        name = partition_of(row)
        if row["transactional_id"] is None:
            what = f"a transaction of producer {row['producer_id']} that no coordinator knows"
        else:
            what = f"transaction {row['transactional_id']} (producer {row['producer_id']})"
            what += f", open for {duration(max(now_ms - row['since_ms'], 0) / 1000)}"
        if row["kind"] == "records":
            said.append(f"{name}: consumers with read_committed get nothing from offset {row['offset']} on: {what}")
        else:
            said.append(f"{name}: offset {row['offset']} counts when it is committed: {what}")
        if row["ends_ms"] is not None:
            said.append(f"    Its timeout aborts it in {duration(max(row['ends_ms'] - now_ms, 0) / 1000)}. At once:")
        said.append(f"    {line_of(tuple(row['command']), bootstrap)}")
    if len(waits) > SHOWN_MAX:
        said.append(f"… and {len(waits) - SHOWN_MAX:,} more")
    return said
