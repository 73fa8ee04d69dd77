"""Texts for the log about members and assignments, of bounded length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.coordinators.groups.records import read_assignment
from barnabas.offsets.expiry import CONSUMER_PROTOCOL_TYPE

if TYPE_CHECKING:
    from barnabas.coordinators.groups.consumer.member import ConsumerMember
    from barnabas.coordinators.groups.members import Member

CHARACTERS_MAX = 100  # how much is shown of a text that a client chose
LINE_CHARACTERS_MAX = 1_000
ASSIGNMENT_BYTES_MAX = 4_096  # larger assignments are not decoded for the log


def quoted(text: str) -> str:
    """A text that a client chose, shortened, on one line."""
    return repr(text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + "...")


def who(member: Member | ConsumerMember) -> str:
    """The member: its member id, instance id, client id and host."""
    member_id = member.member_id if len(member.member_id) <= 2 * CHARACTERS_MAX else quoted(member.member_id)
    instance = "" if member.group_instance_id is None else f"instance {quoted(member.group_instance_id)}, "
    return f"{member_id} ({instance}client {quoted(member.client_id)} at {member.client_host.removeprefix('/')})"


def listed(texts: Iterable[str], count: int) -> str:
    """As many of the `count` texts as fit into a line, and how many more there are."""
    shown: list[str] = []
    characters = 0
    for text in texts:
        if characters > LINE_CHARACTERS_MAX:
            break
        shown.append(text)
        characters += len(text)
    more = count - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def assignments(members: Iterable[Member], count: int, protocol_type: str | None) -> str:
    return listed((f"{who(member)} has {_assigned(member, protocol_type)}" for member in members), count)


def _assigned(member: Member, protocol_type: str | None) -> str:
    size = len(member.assignment)
    if size == 0:
        return "nothing"
    is_readable = protocol_type == CONSUMER_PROTOCOL_TYPE and size <= ASSIGNMENT_BYTES_MAX
    found = read_assignment(member.assignment) if is_readable else None
    if found is None:
        return f"{size:,} bytes"
    topics = [f"{topic.topic}: {_ranges(topic.partitions)}" for topic in found.assigned_partitions if topic.partitions]
    return listed(topics, len(topics)) or "nothing"


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: `0-2, 5`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)
