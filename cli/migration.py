"""`barnabas offsets migrate`: committed offsets of old consumers from the tree into the topic `__consumer_offsets`.

The tree's offsets are read with OffsetFetch version 0, which every broker answers from the tree.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from barnabas.cli.shared.client import (
    BROKER_RESOURCE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Key,
    admin,
    answered,
    await_coordinators,
    commit,
    committed_offsets,
    describe_groups,
    reason,
    refuse_members,
)
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.kafka_python import send
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Yes, confirm, print_json, print_table
from barnabas.runtime.counted import counted
from barnabas.runtime.grouped import grouped

if TYPE_CHECKING:
    from barnabas.config.broker import BrokerConfig
    from barnabas.runtime.ports import Env

PARTITIONS_PER_REQUEST = 1_000
ZOOKEEPER_ANSWERS_WITHIN_MS = 5_000


def migrate(
    target: Target,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group whose offsets move.")],
    source: Annotated[str, typer.Option("--from", metavar="zookeeper", help="Where the offsets are now.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed, change nothing.")] = False,
    stopped: Annotated[
        bool, typer.Option("--consumers-stopped", help="Do not look in ZooKeeper for consumers that still run.")
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="FILE", help="A broker's server.properties, if ZooKeeper wants TLS or a login."
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets that old consumers committed in the tree into __consumer_offsets.

    The group's consumers must be stopped. An offset that the topic has already is replaced only by a larger one.
    Afterwards both places are read again and compared, partition by partition. Nothing is deleted in the tree.

    \b
    barnabas offsets migrate --from zookeeper --group billing --dry-run
    barnabas offsets migrate --from zookeeper --group billing --yes --json
    barnabas offsets migrate --from zookeeper --group g --config server.properties
    """
    if source != "zookeeper":
        fail(f"--from wants zookeeper, not {source!r}.", ExitCode.NOT_VALID)
    with admin(target) as client:
        settings = _settings(client)
        if settings.get("offsets.storage") == "zookeeper":
            fail(
                "these brokers keep all offsets in the tree (offsets.storage=zookeeper): start them with "
                "offsets.storage=kafka first, and with dual.commit.enabled=true if old consumers go on."
            )
        refuse_members(group, describe_groups(client, [group], may_be_missing=True), "Stop its consumers first.")
        if not stopped and settings.get("zookeeper.connect"):
            _refuse_old_consumers(settings["zookeeper.connect"], config, group)
        in_tree = _in_tree(client, group)
        if not in_tree:
            fail(f"{group} has no offsets in the tree.", ExitCode.NOTHING_THERE)
        rows = _rows(in_tree, _in_topic(client, group))
        if not as_json:
            _show(rows)
        moving = [row for row in rows if row["result"] == "to be committed"]
        if not dry_run:
            if moving:
                confirm(f"Commit {counted(len(moving), 'offset')} for {group}?", yes)
                wanted = {(row["topic"], row["partition"]): (row["in_tree"], "", -1) for row in moving}
                errors = commit(client, group, wanted)
                for row, key in zip(moving, wanted, strict=True):
                    row["result"] = f"not committed: {errors[key]}" if key in errors else "committed"
            _compare(rows, _in_tree(client, group), _in_topic(client, group))
    _tell(group, rows, as_json, dry_run)


def _settings(client: Any) -> dict[str, str]:
    """The settings of a broker that were set."""
    from kafka.protocol.admin import DescribeConfigsRequest

    node_id = client.describe_cluster()["brokers"][0]["broker_id"]
    request = DescribeConfigsRequest(resources=[(BROKER_RESOURCE, str(node_id), None)], min_version=1)
    (result,) = send(client, request, node_id).results
    if result.error_code:
        fail(f"broker {node_id}: {reason(result.error_code, result.error_message)}")
    return {config.name: config.value for config in result.configs if config.value is not None}


def _refuse_old_consumers(connect: str, path: str | None, group: str) -> None:
    """End the command if a consumer of the group is registered in ZooKeeper, or if nobody can say.

    `path`: the file with the rest of what a broker's settings say of ZooKeeper.
    """
    from barnabas.cli.start_settings import configure
    from barnabas.cluster.tree.port import CoordinationError
    from barnabas.config.profiles import NO_PROFILE
    from barnabas.runtime.env import real
    from barnabas.runtime.tls import TlsError

    said = {"zookeeper.connect": connect, "zookeeper.connection.timeout.ms": str(ZOOKEEPER_ANSWERS_WITHIN_MS)}
    env = real()
    try:
        ids = asyncio.run(_old_consumers(env, configure(env, path, NO_PROFILE, said, None).config, group))
    except (CoordinationError, TlsError) as error:
        hint = "" if path else " If it wants TLS or a login, name the server.properties of a broker with --config."
        fail(
            f"whether old consumers of {group} still run is not known: {str(error).rstrip('.')}.{hint} "
            "If they are stopped for sure, say --consumers-stopped."
        )
    if ids:
        fail(
            f"{group} has {counted(len(ids), 'old consumer')} ({', '.join(ids[:3])}), which would commit "
            "over it. Stop them."
        )


async def _old_consumers(env: "Env", config: "BrokerConfig", group: str) -> list[str]:
    from barnabas.cluster.coordination import coordination_of
    from barnabas.cluster.tree import paths
    from barnabas.cluster.tree.port import children_if_there

    tree = coordination_of(env, config, None)
    await tree.look()
    try:
        return await children_if_there(tree, paths.consumer_ids(group))
    finally:
        await tree.close()


def _in_tree(client: Any, group: str) -> dict[Key, int]:
    """The offsets in the tree, of all partitions that exist."""
    from kafka.errors import UnsupportedVersionError
    from kafka.protocol.consumer import OffsetFetchRequest

    partitions = [
        (topic["name"], partition["partition_index"])
        for topic in answered(client, client.describe_topics)
        for partition in topic["partitions"]
    ]
    found: dict[Key, int] = {}
    for start in range(0, len(partitions), PARTITIONS_PER_REQUEST):
        asked = grouped(partitions[start : start + PARTITIONS_PER_REQUEST])
        make_topic = OffsetFetchRequest.OffsetFetchRequestTopic
        topics = [make_topic(name=name, partition_indexes=indexes) for name, indexes in asked.items()]
        try:
            answer = send(client, OffsetFetchRequest(group_id=group, topics=topics, max_version=0))
        except UnsupportedVersionError:
            fail("these brokers do not serve OffsetFetch 0, which reads offsets in the tree: they are no Barnabas.")
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code == 0 and row.committed_offset >= 0:
                    found[topic.name, row.partition_index] = row.committed_offset
                elif row.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION):  # the latter: it has none in the tree
                    fail(f"{topic.name}-{row.partition_index} in the tree: {reason(row.error_code)}")
    return found


def _in_topic(client: Any, group: str) -> dict[Key, int]:
    """The offsets in __consumer_offsets."""
    await_coordinators(client, [group])
    return {tuple(partition): committed.offset for partition, committed in committed_offsets(client, group).items()}


def _rows(in_tree: dict[Key, int], in_topic: dict[Key, int]) -> list[dict[str, Any]]:
    rows = []
    for (topic, partition), offset in sorted(in_tree.items()):
        known = in_topic.get((topic, partition))
        result = "to be committed"
        if known is not None and known >= offset:
            result = "the same already" if known == offset else "kept, because it is larger"
        rows.append({"topic": topic, "partition": partition, "in_tree": offset, "in_topic": known, "result": result})
    return rows


def _compare(rows: list[dict[str, Any]], in_tree: dict[Key, int], in_topic: dict[Key, int]) -> None:
    """Compare every partition with what is in both places now."""
    for row in rows:
        key = (row["topic"], row["partition"])
        expected = max(row["in_tree"], -1 if row["in_topic"] is None else row["in_topic"])
        row["in_topic_now"] = in_topic.get(key)
        row["in_tree_now"] = in_tree.get(key)
        row["is_equal"] = row["in_topic_now"] == expected and row["in_tree_now"] == row["in_tree"]


def _show(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["topic", "#partition", "#in the tree", "#in the topic", "what"],
        [(row["topic"], row["partition"], row["in_tree"], row["in_topic"], row["result"]) for row in rows],
    )


def _tell(group: str, rows: list[dict[str, Any]], as_json: bool, dry_run: bool) -> None:
    counts = {
        "found": len(rows),
        "committed": sum(row["result"] == "committed" for row in rows),
        "kept": sum(row["result"] in ("the same already", "kept, because it is larger") for row in rows),
        "compared_equal": sum(row.get("is_equal", False) for row in rows),
    }
    wrong = [] if dry_run else [row for row in rows if not row["is_equal"]]
    found = counted(counts["found"], "offset")
    if as_json:
        print_json({"group": group, "dry_run": dry_run, **counts, "partitions": rows})
    elif dry_run:
        moving = counts["found"] - counts["kept"]
        say(f"{group}: {found} in the tree, {moving} to be committed. Nothing was changed (dry run).")
    else:
        say(
            f"{group}: {found} in the tree, {counts['committed']} committed, {counts['kept']} kept; "
            f"read again, {counts['compared_equal']} of {counts['found']} as they should be."
        )
    if wrong:
        row = wrong[0]
        fail(
            f"{counted(len(wrong), 'offset')} not as it should be, the first of {row['topic']}-{row['partition']}: "
            f"{row['result']}, in the tree {row['in_tree']}, now {row['in_tree_now']}; in the topic "
            f"{row['in_topic_now']}. Does a consumer of {group} still run?"
        )
