"""Texts for the log about members of consumer groups, of bounded length."""

from __future__ import annotations

from barnabas.coordinators.groups.consumer.member import ConsumerMember
from barnabas.coordinators.groups.log_lines import CHARACTERS_MAX, quoted


def who(member: ConsumerMember) -> str:
    """The member: its member id, instance id, client id and host."""
    member_id = member.member_id if len(member.member_id) <= 2 * CHARACTERS_MAX else quoted(member.member_id)
    of = member.subscription
    instance = "" if of.instance_id is None else f"instance {quoted(of.instance_id)}, "
    return f"{member_id} ({instance}client {quoted(of.client_id)} at {of.client_host.removeprefix('/')})"
