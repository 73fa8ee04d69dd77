"""`barnabas status`: whether a broker serves, and what it is."""

from typing import Any

from barnabas.cli.shared.client import admin, answered
from barnabas.cli.shared.exits import Failure
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json, print_table

app = new_app()


@app.command()
def status(target: Target, as_json: AsJson = False) -> None:
    """Say whether a broker serves, and what it is; a script waits here for a broker that is being started.

    Exit code 0 when it serves, 1 when none answers within --wait and --timeout.
    The version is the Kafka whose requests it understands: what a client takes it for.

    \b
    barnabas status
    barnabas status --wait 30 && barnabas topics create orders
    barnabas status --json --bootstrap localhost:9093
    """
    with admin(target) as client:
        cluster = answered(client, client.describe_cluster)
        topics = answered(client, client.describe_topics)
        groups = answered(client, client.list_groups)
        api = HttpApi(client, target)
        http = {broker["broker_id"]: _http_address(api, broker["broker_id"]) for broker in cluster["brokers"]}
        version = client.get_broker_version_data(cluster["controller_id"]).broker_version
    document: dict[str, Any] = {
        "bootstrap": target.bootstrap,
        "version": ".".join(map(str, version)),
        "cluster_id": cluster["cluster_id"],
        "controller": cluster["controller_id"],
        "brokers": [
            {
                "node_id": broker["broker_id"],
                "host": broker["host"],
                "port": broker["port"],
                "http": http[broker["broker_id"]],
            }
            for broker in cluster["brokers"]
        ],
        "topics": sum(not topic["is_internal"] for topic in topics),
        "groups": len(groups),
    }
    if as_json:
        print_json(document)
        return
    brokers = ", ".join(f"{broker['node_id']} at {broker['host']}:{broker['port']}" for broker in document["brokers"])
    apis = ", ".join(f"{node_id} at http://{address}" for node_id, address in http.items() if address)
    shown = document | {"brokers": brokers, "HTTP API": apis or "none"}
    print(f"A broker serves at {target.bootstrap}.")
    print_table(["what", "value"], [(name.replace("_", " "), value) for name, value in shown.items()])


def _http_address(api: HttpApi, node_id: int) -> str | None:
    """host:port of a broker's HTTP API; None: it has none, or does not answer."""
    try:
        return api.address(node_id)
    except Failure:
        return None
