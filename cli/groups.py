"""`barnabas groups`: list, describe, lag, explain, remove members, delete."""

import shlex
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli.group_waits import group_waits, lines
from barnabas.cli.lag import add_true_lag, lag, true_lag_cells
from barnabas.cli.shared.client import (
    UNKNOWN_MEMBER_ID,
    admin,
    answered,
    await_coordinators,
    changed,
    describe_groups,
    positions,
    reason,
    result_of,
)
from barnabas.cli.shared.exits import ExitCode, Failure, fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import (
    AsJson,
    Yes,
    confirm,
    new_app,
    print_json,
    print_list,
    print_outcomes,
    print_rows,
)
from barnabas.cli.shared.words import shown
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted, names_in_a_line

app = new_app("""Consumer groups: list, describe, how far they are behind, delete.

    \b
    barnabas groups list
    barnabas groups describe billing          who reads what, and its lag
    barnabas groups lag billing --watch       what it has not read, as it goes
    barnabas groups explain billing           why it has rebalanced
    barnabas groups remove billing --member ID    a member that hangs
    barnabas groups delete billing --yes
    """)

Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more groups.")]


class State(StrEnum):
    """What a group is doing."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@app.command("list")
def list_groups(
    target: Target,
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE",
            case_sensitive=False,
            help="Stable, Empty, PreparingRebalance, CompletingRebalance or Dead; of consumer groups (KIP-848) also "
            "Assigning or Reconciling; repeat.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every group: its type (classic, or consumer: KIP-848), its state, and what its members are.

    \b
    barnabas groups list
    barnabas groups list --state Empty --json
    """
    with admin(target) as client:
        found = answered(
            client, lambda: client.list_groups(states_filter=[one.name for one in state] if state else None)
        )
    rows = [
        {
            "group": row["group_id"],
            "type": row.get("group_type"),  # of brokers before Kafka 3.8 it is not known
            "state": row.get("group_state"),
            "protocol_type": row["protocol_type"],
        }
        for row in sorted(found, key=lambda row: row["group_id"])
    ]
    columns: dict[str, Any] = {
        "group": "group",
        "type": "type",
        "state": "state",
        # The type is that of KIP-848; what its members are (consumers, Connect's workers) is the protocol's type.
        "members are": lambda row: MEMBERS_ARE.get(row["protocol_type"], row["protocol_type"]),
    }
    print_list(rows, columns, as_json, "No groups.")


@app.command()
def describe(target: Target, groups: Names, as_json: AsJson = False) -> None:
    """Members of a group, the partitions each one reads, committed offsets and lag.

    "lag" is the distance of offsets, "records" are those that a consumer gets (`groups lag` says more).
    Where the group waits for an open transaction, it is said which, and how to end it.

    \b
    barnabas groups describe billing
    barnabas groups describe billing --json
    """
    with admin(target) as client:
        documents = []
        tell = partial(tell_loading, HttpApi(client, target))
        for name, group in describe_groups(client, groups, on_wait=tell).items():
            members = [
                {
                    "member_id": member["member_id"],
                    "instance_id": member.get("group_instance_id"),
                    "is_away": member.get("is_away", False),
                    "client_id": member["client_id"],
                    "host": member["client_host"].lstrip("/"),
                    "partitions": assigned(member),
                }
                for member in group["members"]
            ]
            owners = {tuple(partition): member for member in members for partition in member["partitions"]}
            rows = positions(client, name, extra=owners)
            add_true_lag(HttpApi(client, target), name, rows)
            waits = group_waits(client, HttpApi(client, target), name, rows)
            for row in rows:
                owner = owners.get((row["topic"], row["partition"]))
                row["member_id"] = owner["member_id"] if owner else None
            documents.append(
                {
                    "group": name,
                    "state": group["group_state"],
                    "protocol": group["protocol_data"],
                    "members": members,
                    "offsets": rows,
                    "waits": waits,
                }
            )
    if as_json:
        print_json(documents)
        return
    for document in documents:
        _print(document, target.bootstrap_option)


def _print(document: dict[str, Any], bootstrap: str | None) -> None:
    assignor = f", {document['protocol']}" if document["protocol"] else ""
    members_counted = counted(len(document["members"]), "member")
    print(shown(f"{document['group']}  {document['state']}{assignor}, {members_counted}"))
    if document["members"]:
        print_rows(
            {
                "client": "client_id",
                "host": "host",
                "instance": lambda row: f"{row['instance_id']} (away)" if row["is_away"] else row["instance_id"],
                "partitions": lambda row: (
                    " ".join(f"{topic}-{partition}" for topic, partition in row["partitions"]) or None
                ),
                "member": "member_id",
            },
            document["members"],
        )
        print()
    if document["offsets"]:
        print_rows(
            {
                "topic": "topic",
                "#partition": "partition",
                "#committed": "committed_offset",
                "#log end": "log_end_offset",
                "#lag": "lag",
                "#records": lambda row: true_lag_cells(row)[0],
                "#behind": lambda row: true_lag_cells(row)[1],
                "member": "member_id",
                "note": "note",
            },
            document["offsets"],
        )
    for line in lines(document["waits"], bootstrap):
        print(shown(line))


app.command("lag")(lag)


@app.command()
def explain(
    target: Target,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    last: Annotated[int, typer.Option(min=1, metavar="N", help="So many rebalances, at most.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Why a group has rebalanced lately, and what to do about it.

    Who joined, left, or was thrown out and why; what each phase took and who held
    it up; which partitions moved; what was refused. The coordinator remembers it in
    memory, for the last events.

    \b
    barnabas groups explain billing
    barnabas groups explain billing --last 20 --json
    """
    from barnabas.cli.explanation import print_story

    with admin(target) as client:
        await_coordinators(client, [group])
        story = HttpApi(client, target).get("/v1/groups/{group}/events", group=group)
    story["rebalances"] = story["rebalances"][-last:]
    if as_json:
        print_json(story)
    else:
        print_story(story)


@app.command()
def remove(
    target: Target,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    member: Annotated[
        list[str] | None, typer.Option("--member", metavar="ID", help="A member id (groups describe); repeat.")
    ] = None,
    instance: Annotated[
        list[str] | None, typer.Option("--instance", metavar="NAME", help="A group.instance.id; repeat.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove members from a group: the others need not wait for one that hangs.

    The others share its partitions. If its process lives, its commits are refused from
    then on, and it joins again when it polls.

    \b
    barnabas groups remove billing --member consumer-1-4b1f9c3e
    barnabas groups remove billing --instance worker-3 --yes
    """
    from kafka.admin import MemberToRemove

    members = [MemberToRemove(member_id=each, reason=REMOVED) for each in member or ()]
    members += [MemberToRemove(group_instance_id=each, reason=REMOVED) for each in instance or ()]
    names = [*(member or ()), *(instance or ())]
    if not names:
        fail("say which: --member ID or --instance NAME.", ExitCode.NOT_VALID)
    confirm(f"Remove {', '.join(names)} from {group}?", yes)
    with admin(target) as client:
        describe_groups(client, [group])  # ends the command when there is no such group
        results = changed(client, lambda: dict(client.remove_group_members(group, members)))
    rows = [{"member": name, **result_of("removed", each.errno)} for name, each in zip(names, results.values())]
    missing = all(result.errno in (0, UNKNOWN_MEMBER_ID) for result in results.values())
    print_outcomes("member", rows, as_json, nothing_there=missing)


MEMBERS_ARE = {"consumer": "consumers", "connect": "Connect workers", "": None}  # by type of the protocol
REMOVED = "an operator has removed it"


@app.command()
def delete(target: Target, groups: Names, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete groups and their committed offsets.

    A group with members is refused: stop its consumers first.

    \b
    barnabas groups delete billing
    barnabas groups delete billing audit --yes
    """
    confirm(f"Delete {', '.join(groups)} and the committed offsets?", yes)
    with admin(target) as client:
        await_coordinators(client, groups)
        results: dict[str, Any] = {}
        for group in groups:
            results |= changed(client, partial(client.delete_groups, [group]))
    rows = []
    for name, result in results.items():
        row = {"group": name, "result": "deleted"}
        if result != "OK":
            row |= {"result": "not deleted", "error": _not_deleted(result, name)}
        rows.append(row)
    missing = all(result in ("OK", "GroupIdNotFoundError") for result in results.values())
    print_outcomes("group", rows, as_json, nothing_there=missing)


def tell_loading(api: HttpApi, reason: Exception) -> None:
    """Say that a coordinator loads committed offsets, and how far it is; nothing for another reason to wait."""
    if type(reason).__name__ != "CoordinatorLoadInProgressError":
        return
    with suppress(Failure):  # a cluster without the HTTP API
        for answer in api.of_each_broker("/v1/groups", {"state": State.DEAD.value}):
            line = loading_line(answer)
            if line:
                say(line)


def loading_line(answer: dict[str, Any]) -> str | None:
    """What a broker loads, in words; None: nothing."""
    rows = answer["loading"]
    if not rows:
        return None
    for row in rows:
        if row["stopped_by"]:
            what = f"partition {row['partition']} of __consumer_offsets from offset {row['loaded_offset']} on"
            return f"broker {answer['node_id']} cannot load {what}: {row['stopped_by']}. It goes on when it can."
    loaded = sum(row["loaded_offset"] - row["start_offset"] for row in rows)
    count = sum(row["end_offset"] - row["start_offset"] for row in rows)
    percent = 100 * loaded // count if count else 0
    partitions = names_in_a_line([str(row["partition"]) for row in rows])
    return f"broker {answer['node_id']} loads committed offsets: {percent} % of partition {partitions}. Waiting."


ERRORS = {
    "NonEmptyGroupError": "NON_EMPTY_GROUP: it has members; stop its consumers first",
    "GroupIdNotFoundError": "GROUP_ID_NOT_FOUND: there is no such group",
}


def assigned(member: dict[str, Any]) -> list[tuple[str, int]]:
    """The partitions that a described member reads."""
    assignment = member["member_assignment"]
    if not isinstance(assignment, dict):  # the group rebalances, or the member is not a consumer
        return []
    return sorted(
        (topic["topic"], partition)
        for topic in assignment.get("assigned_partitions", [])
        for partition in topic["partitions"]
    )


def _not_deleted(error: str, group: str) -> str:
    if error == "GroupAuthorizationFailedError":
        return reason(ErrorCode.GROUP_AUTHORIZATION_FAILED, asked=f"delete group {shlex.quote(group)}")
    return ERRORS.get(error, error)
