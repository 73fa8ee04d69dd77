"""`barnabas groups explain`: the story of a group's last rebalances, as text."""

from datetime import datetime
from typing import Any

from barnabas.cli.shared.exits import say
from barnabas.cli.shared.terminal import print_paragraph
from barnabas.cli.shared.words import partition_of, shown
from barnabas.runtime.counted import counted

MOVED_SHOWN = 12


def print_story(story: dict[str, Any]) -> None:
    """Print each rebalance with its timeline, then the advice."""
    group = story["group"]
    if not story["rebalances"] and not story["since_then"]:
        say(f"{group}: its coordinator, broker {story['node_id']}, remembers no rebalance.")
        return
    for rebalance in story["rebalances"]:
        _print_rebalance(rebalance)
    if story["since_then"]:
        print("since then")
        _print_events(story["since_then"])
        print()
    for row in story["advice"]:
        print(shown(f"{row['cause']}:"))
        print_paragraph(row["text"])


def _print_rebalance(rebalance: dict[str, Any]) -> None:
    if rebalance["outcome"] == "live reset":
        what = f"live reset, generation {rebalance['from_generation']} ended"
    else:
        generation = rebalance["generation"]
        to = "" if generation is None else f" -> {generation}"
        counted_by = "epoch" if rebalance["outcome"] == "assigned" else "generation"
        what = f"{counted_by} {rebalance['from_generation']}{to}: {rebalance['outcome']}"
    members = rebalance["members"]
    count = "" if members is None else f", {counted(members, 'member')}"
    assignor = f", {rebalance['protocol']}" if rebalance["protocol"] else ""
    print(shown(f"{_clock(rebalance['at_ms'])}  {what}{count}{assignor}"))
    if rebalance["outcome"] != "live reset":
        print(shown(f"    because {rebalance['cause']}"))
    _print_events(rebalance["events"])
    if rebalance["join_ms"] is not None:
        held = f"; the last to join was {_named(rebalance['last_to_join'])}" if rebalance["last_to_join"] else ""
        print(shown(f"    join phase {_seconds(rebalance['join_ms'])}{held}"))
    if rebalance["sync_ms"] is not None:
        print(shown(f"    sync phase {_seconds(rebalance['sync_ms'])}, assigned by {_named(rebalance['leader'])}"))
    moved = rebalance["moved"]
    if moved:
        for row in moved[:MOVED_SHOWN]:
            place = partition_of(row)
            print(shown(f"    moved {place}: {_named(row['before'])} -> {_named(row['after'])}"))
        if rebalance["moved_count"] > MOVED_SHOWN:
            print(f"    and {counted(rebalance['moved_count'] - MOVED_SHOWN, 'more partition')} moved")
    elif moved is not None and rebalance["outcome"] in ("stable", "assigned"):
        print("    no partition moved")
    print()


def _print_events(events: list[dict[str, Any]]) -> None:
    for event in events:
        print(shown(f"    {_clock(event['at_ms'])}  {event['text']}"))


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _named(who: dict[str, Any] | None) -> str:
    return "nobody" if who is None else f"{who['instance_id'] or who['client_id'] or who['member_id']} at {who['host']}"
