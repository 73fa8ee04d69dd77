"""`barnabas offsets set … --live`: ask for a live reset, then look what became of each member and each partition."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import attempts, describe_groups, positions, refuse_members
from barnabas.cli.shared.exits import fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import print_json, print_table
from barnabas.cli.shared.words import partition_of
from barnabas.runtime.counted import counted, names_in_a_line

LOOK_AGAIN_MS = 500
PATH = "/v1/groups/{group}/live-reset"


@dataclass(frozen=True, kw_only=True)
class Live:
    """Whether the group may have members."""

    live: Annotated[bool, typer.Option("--live", help="The group has members: they stop, and read on from there.")] = (
        False
    )
    live_wait_s: Annotated[
        float,
        typer.Option("--live-wait", min=0, max=3600, metavar="S", help="With --live: how long the members may take."),
    ] = 60.0

    def check(self, client: Any, target: Target, group: str, *, may_be_missing: bool = True) -> bool:
        """Whether there is such a group. One that may not be missing, or may have no members, ends the command."""
        if self.live:
            HttpApi(client, target).entry()  # a live reset goes over HTTP: better said before the plan than behind it
        described = describe_groups(client, [group], may_be_missing=may_be_missing)
        if not self.live:
            refuse_members(group, described, "Stop its consumers first, or add --live.")
        return group in described


def reset_live(
    client: Any, target: Target, group: str, rows: list[dict[str, Any]], wait_s: float, *, as_json: bool
) -> None:
    """Do it, and verify. The command fails if an offset is not there, or a member is not back in time."""
    wanted = [{"topic": row["topic"], "partition": row["partition"], "offset": row["new_offset"]} for row in rows]
    answer = HttpApi(client, target).post(PATH, {"offsets": wanted}, group=group)
    members = answer["members"]
    if not as_json:
        what = f"{counted(len(members), 'member joins', 'members join')} again" if members else "it had no members"
        say(f"{group}: committed; {what}.")
    back = _await_members(client, target, group, members, wait_s) if members else {}
    outcomes = _outcomes(client, group, answer["offsets"])
    rejoined = [
        {
            "client_id": member["client_id"],
            "host": member["host"],
            "instance_id": member["instance_id"],
            "was": member["member_id"],
            "is": None if (now := back.get(member["member_id"])) is None else now["member_id"],
            "partitions": [] if now is None else now["partitions"],
        }
        for member in members
    ]
    if as_json:
        print_json({"group": group, "generation": answer["generation"], "offsets": outcomes, "members": rejoined})
    else:
        _print(rejoined, outcomes)
    wrong = [row for row in outcomes if not row["verified"]]
    missing = [row for row in rejoined if row["is"] is None]
    if wrong:
        names = names_in_a_line([partition_of(row) for row in wrong])
        fail(f"{group}: the committed offset is not behind what was set: {names}.")
    if missing:
        fail(
            f"{group}: not back after {wait_s:.0f} s: {len(missing)} of {counted(len(members), 'member')}. What they "
            "commit is refused until they join again."
        )


def _print(rejoined: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> None:
    if rejoined:
        print_table(
            ["client", "host", "instance", "now reads", "member"],
            [
                (
                    row["client_id"],
                    row["host"],
                    row["instance_id"],
                    " ".join(f"{topic}-{index}" for topic, index in row["partitions"]) or None,
                    row["is"] or "not back",
                )
                for row in rejoined
            ],
        )
        print()
    print_table(
        ["topic", "#partition", "#before", "#set", "#committed now"],
        [(row["topic"], row["partition"], row["before"], row["offset"], row["committed_offset"]) for row in outcomes],
    )


def _outcomes(client: Any, group: str, offsets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each partition with what is committed now: the new offset, or one that a member has committed since."""
    now = {(row["topic"], row["partition"]): row["committed_offset"] for row in positions(client, group)}
    outcomes = []
    for row in offsets:
        committed = now.get((row["topic"], row["partition"]))
        # Members go forward from the new offset. To what was committed before, they cannot jump at once.
        is_right = committed is not None and committed >= row["offset"]
        outcomes.append(row | {"committed_offset": committed, "verified": is_right})
    return outcomes


def _await_members(
    client: Any, target: Target, group: str, members: list[dict[str, Any]], wait_s: float
) -> dict[str, dict[str, Any]]:
    """Who is back, by the member id of before. Returns when the group is stable with all, or the time is over."""
    back: dict[str, dict[str, Any]] = {}
    for _ in attempts(wait_s * 1000, LOOK_AGAIN_MS):
        described = describe_groups(client, [group], may_be_missing=True).get(group)
        found = described["members"] if described is not None else []
        back = _matched(members, found) if described is not None and described["group_state"] == "Stable" else {}
        # A member that a live reset has met in the middle of a join gets nothing in its first generation.
        if len(back) == len(members) and any(row["partitions"] for row in back.values()):
            break
        target.renew()  # the coordinator has answered; what takes long are the members
    return back


def _matched(members: list[dict[str, Any]], found: list[Any]) -> dict[str, dict[str, Any]]:
    """Each thrown-out member with one that has the same instance id, or the same client id and host.

    Whoever is described now has joined since.
    """
    from barnabas.cli.groups import assigned

    free = list(found)
    back = {}
    for member in sorted(members, key=lambda one: one["instance_id"] is None):
        for one in free:
            if member["instance_id"] is not None:
                is_same = one.get("group_instance_id") == member["instance_id"]
            else:
                same_host = one["client_host"].lstrip("/") == member["host"]
                is_same = one["client_id"] == member["client_id"] and same_host
            if is_same:  # a member of the consumer protocol keeps its id
                free.remove(one)
                back[member["member_id"]] = {"member_id": one["member_id"], "partitions": assigned(one)}
                break
    return back
