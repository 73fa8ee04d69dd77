"""`barnabas status`: whether a broker serves, and what it is."""

from typing import Any

from barnabas.cli.shared.client import admin, answered, attempts
from barnabas.cli.shared.exits import Failure, fail
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json, print_table
from barnabas.config.listeners import url_of

app = new_app()

LOOKS_AGAIN_MS = 250


@app.command()
def status(target: Target, as_json: AsJson = False) -> None:
    """Say whether a broker serves, and what it is; a script waits here for a broker that is being started.

    Exit code 0 when it serves, 1 when none answers within --wait and --timeout,
    or when those that answer serve nobody: then it says why.
    The version is the Kafka whose requests it understands: what a client takes it for.

    \b
    barnabas status
    barnabas status --wait 30 && barnabas topics create orders
    barnabas status --json --bootstrap localhost:9093
    """
    with admin(target) as client:
        api = HttpApi(client, target)
        cluster, why_not = _serving(client, api, target)
        topics = answered(client, client.describe_topics)
        groups = answered(client, client.list_groups)
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
                "why_not_serving": why_not[broker["broker_id"]],
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
    apis = ", ".join(f"{node_id} at {url_of(address)}" for node_id, address in http.items() if address)
    shown = document | {"brokers": brokers, "HTTP API": apis or "none"}
    print(f"A broker serves at {target.bootstrap}.")
    for node_id, why in why_not.items():
        if why is not None:
            print(f"Broker {node_id} serves nobody: {why}.")
    print_table(["what", "value"], [(name.replace("_", " "), value) for name, value in shown.items()])


def _serving(client: Any, api: HttpApi, target: Target) -> tuple[dict[str, Any], dict[int, str | None]]:
    """The cluster, and which of its brokers serve nobody, and why. Ends the command if none serves within --wait."""
    why_not: dict[int, str | None] = {}
    for _ in attempts(target.wait_s * 1000, LOOKS_AGAIN_MS):
        cluster = answered(client, client.describe_cluster)
        why_not = api.why_not_serving(broker["broker_id"] for broker in cluster["brokers"])
        if not why_not or None in why_not.values():
            return cluster, why_not
        target.renew()
    said = " ".join(f"Broker {node_id}: {why}." for node_id, why in why_not.items())
    return fail(f"a broker answers at {target.bootstrap}, and serves nobody. {said}")


def _http_address(api: HttpApi, node_id: int) -> str | None:
    """host:port of a broker's HTTP API; None: it has none, or does not answer."""
    try:
        return api.address(node_id)
    except Failure:
        return None
