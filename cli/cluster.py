"""`barnabas cluster`: its brokers, and how the replicas of its partitions are. `barnabas cluster backup`: its tree."""

from typing import Annotated, Any

import typer
from barnabas.cli import cluster_backup
from barnabas.cli.shared.client import admin, answered, out_of_sync, replica_rows
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Columns, Group, new_app, print_json, print_rows
from barnabas.runtime.counted import counted

DEFAULT = "show"


class ClusterGroup(Group):
    """`barnabas cluster` alone, and with options only, is `barnabas cluster show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_help = args and args[0] in ctx.help_option_names
        if not args or (args[0].startswith("-") and not is_help):
            args = [DEFAULT, *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = new_app(
    """Brokers and replicas of the cluster (show, also without this word); a backup of its tree.

    \b
    barnabas cluster
    barnabas cluster --all
    barnabas cluster backup tree.backup
    """,
    cls=ClusterGroup,
)
app.command()(cluster_backup.backup)


@app.command(DEFAULT)
def show(
    target: Target,
    every: Annotated[
        bool, typer.Option("--all", help="Show every partition, not only those where something is missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Brokers and the partitions they lead; partitions without a leader, and those whose replicas are not all in sync.

    \b
    barnabas cluster
    barnabas cluster --all
    barnabas cluster --json
    """
    with admin(target) as client:
        described = answered(client, client.describe_cluster)
        topics = sorted(answered(client, client.describe_topics), key=lambda topic: topic["name"])
        rows = replica_rows(client, topics)
        # What others say of a broker may be old: the tree may be away, or empty.
        serving = HttpApi(client, target).why_not_serving(row["broker_id"] for row in described["brokers"])
    offline = [row for row in rows if row["leader"] is None]
    under_replicated = [row for row in rows if len(row["in_sync"]) < len(row["replicas"])]
    document = {
        "cluster_id": described["cluster_id"],
        "controller": described["controller_id"] if described["controller_id"] >= 0 else None,
        "brokers": _brokers(described["brokers"], serving, rows),
        "under_replicated": len(under_replicated),
        "offline": len(offline),
        "partitions": rows,
    }
    if as_json:
        print_json(document)
    else:
        _print(document, rows if every else [row for row in rows if row in under_replicated or row in offline])


BROKERS: Columns = {
    "#broker": "node_id",
    "address": lambda broker: broker["address"] or "not registered",
    "rack": "rack",
    "#leads": "leads",
    "#replicas": "replicas",
    "#in sync": "in_sync",
}
PARTITIONS: Columns = {
    "topic": "topic",
    "#partition": "partition",
    "#leader": lambda row: "none" if row["leader"] is None else row["leader"],
    "replicas": lambda row: ",".join(map(str, row["replicas"])),
    "in sync": lambda row: ",".join(map(str, row["in_sync"])),
    "not in sync": lambda row: out_of_sync(row) or None,
}


def _print(document: dict[str, Any], partitions: list[dict[str, Any]]) -> None:
    controller = "no controller" if document["controller"] is None else f"controller {document['controller']}"
    print(
        f"Cluster {document['cluster_id']}, {controller}, {counted(len(document['partitions']), 'partition')}: "
        f"{document['under_replicated']} under-replicated, {document['offline']} offline."
    )
    for broker in document["brokers"]:
        if broker["why_not_serving"]:
            print(f"Broker {broker['node_id']} serves nobody: {broker['why_not_serving']}.")
    print_rows(BROKERS, document["brokers"])
    if partitions:
        print()
        print_rows(PARTITIONS, partitions)


def _brokers(
    registered: list[dict[str, Any]], serving: dict[int, str | None], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each broker: those that are registered, and those that only have replicas."""
    known = {broker["broker_id"]: broker for broker in registered}
    replicas = {node_id for row in rows for node_id in row["replicas"]}
    return [
        {
            "node_id": node_id,
            "address": f"{known[node_id]['host']}:{known[node_id]['port']}" if node_id in known else None,
            "rack": known.get(node_id, {}).get("rack"),
            "why_not_serving": serving.get(node_id),
            "leads": sum(row["leader"] == node_id for row in rows),
            "replicas": sum(node_id in row["replicas"] for row in rows),
            "in_sync": sum(node_id in row["in_sync"] for row in rows),
        }
        for node_id in sorted({*known, *replicas})
    ]
