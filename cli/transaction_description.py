"""One transaction for a person: its producer, its age, and what it holds back in its partitions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from barnabas.cli.open_transactions import Described, Ends, Open, State, ends_of, open_in
from barnabas.cli.shared.client import Key
from barnabas.cli.shared.terminal import print_table
from barnabas.cli.shared.words import duration, shown
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

DETAILED_MAX = 200  # partitions of one transaction that are looked at


def document_of(client: Any, found: Described) -> dict[str, Any]:
    """All that is known of a transaction; of its partitions, the first."""
    detailed = found.partitions[:DETAILED_MAX]
    opens, _ = open_in(client, detailed) if detailed else ({}, [])
    ends = ends_of(client, detailed)
    now_ms = RealClock().now_ms()
    return {
        **found._asdict(),
        "start_ms": found.start_ms if found.is_open else None,
        "age_ms": max(now_ms - found.start_ms, 0) if found.is_open else None,
        "ends_ms": found.ends_ms,
        "partitions": [_partition(found, key, opens.get(key), ends.get(key)) for key in detailed],
        "partitions_left_out": len(found.partitions) - len(detailed),
    }


def _partition(found: Described, key: Key, opens: Sequence[Open] | None, ends: Ends | None) -> dict[str, Any]:
    own = next((one for one in opens or () if one.producer_id == found.producer_id), None)
    if opens is None:
        note = "its leader does not answer"
    elif ends is None:
        note = "its leader waits for replicas: it does not say how far consumers get"
    elif own is None:
        note = "nothing is written yet" if found.state == State.ONGOING else "its marker is written"
    elif ends.last_stable_offset < own.start_offset:
        note = "held back by an older transaction, too"
    else:
        note = None
    return {
        "topic": key[0],
        "partition": key[1],
        "first_offset": None if own is None else own.start_offset,
        "last_stable_offset": None if ends is None else ends.last_stable_offset,
        "high_watermark": None if ends is None else ends.high_watermark,
        "held_back": None if ends is None or own is None else ends.held_back,
        "note": note,
    }


def print_document(document: dict[str, Any]) -> None:
    print("\n".join(map(shown, headlines(document))))
    if document["partitions"]:
        print()
        print_table(
            ["topic", "#partition", "#first offset", "#stable up to", "#high watermark", "#held back", "note"],
            [tuple(row.values()) for row in document["partitions"]],
        )
    if document["partitions_left_out"]:
        print(f"… and {counted(document['partitions_left_out'], 'more partition')}")


def headlines(document: dict[str, Any]) -> list[str]:
    """A transaction in a few lines."""
    state = document["state"]
    lines = [
        f"{document['transactional_id']}  {state}"
        + (f", open for {words_of(document['age_ms'])}" if document["age_ms"] is not None else ""),
        f"producer {document['producer_id']}, epoch {document['producer_epoch']}; "
        f"coordinator {document['coordinator']}",
    ]
    timeout = f"timeout {words_of(document['timeout_ms'])}"
    if document["ends_ms"] is not None:
        left_ms = document["timeout_ms"] - document["age_ms"]
        ends = (
            f"which aborts it in {words_of(left_ms)}" if left_ms > 0 else "which is over: its coordinator aborts it now"
        )
        lines.append(f"began {_clock(document['start_ms'])}; {timeout}, {ends}")
    elif document["age_ms"] is not None:
        what = "committed" if state == State.PREPARE_COMMIT else "aborted"
        lines.append(f"began {_clock(document['start_ms'])}; it is {what}, and these partitions wait for its marker")
    else:
        lines.append(f"{timeout}; no transaction is open")
    return lines


def _clock(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def words_of(milliseconds: int | None) -> str | None:
    """A time in words."""
    return None if milliseconds is None else duration(milliseconds / 1000)
