"""`barnabas topics`: list, describe, create, alter, delete."""

import shlex
from typing import Annotated, Any
from uuid import UUID

import typer
from barnabas.cli.shared.client import (
    UNKNOWN_TOPIC_OR_PARTITION,
    admin,
    answered,
    await_controller,
    describe_topics,
    leaders_of,
    offsets_at,
    out_of_sync,
    replica_rows,
    result_of,
)
from barnabas.cli.shared.exits import ExitCode, fail, key_values, say
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import (
    INT16_MAX,
    INT32_MAX,
    AsJson,
    Yes,
    confirm,
    new_app,
    print_json,
    print_list,
    print_outcomes,
    print_rows,
)
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.protocol.uuids import to_text
from barnabas.runtime.counted import counted

# What is lost with a topic of the broker's own. Kafka's tools delete these, too, and do not say it.
GOES_WITH = {
    OFFSETS_TOPIC: (
        "all groups lose all committed offsets: they begin again at the end or the begin of their topics, as their "
        "auto.offset.reset says. `barnabas offsets export` keeps them."
    ),
    TRANSACTIONS_TOPIC: (
        "all open transactions are forgotten: nobody ends them, so readers of committed records stop at them until "
        "`barnabas transactions find-hanging` and `abort`, and producers are no longer fenced."
    ),
    JOURNAL_TOPIC: "the history of committed offsets is lost (`barnabas offsets log`).",
}
GONE_WITH = {
    OFFSETS_TOPIC: "no group has a committed offset any more. It is made again, empty, for the next group.",
    TRANSACTIONS_TOPIC: "no transaction is known any more. It is made again, empty, for the next producer.",
    JOURNAL_TOPIC: "the history of committed offsets begins anew.",
}

app = new_app("""Topics: list, describe, create, add partitions, delete. (Settings: barnabas configs)

    \b
    barnabas topics create orders --partitions 3 --config retention.ms=3600000
    barnabas topics list
    barnabas topics describe orders
    barnabas topics alter orders --partitions 6
    barnabas topics delete orders --yes
    """)

TOPIC_ALREADY_EXISTS = 36
BROKERS_DEFAULT = -1

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more topics.")]


@app.command("list")
def list_topics(
    target: Target,
    internal: Annotated[bool, typer.Option(help="Show internal topics such as __consumer_offsets too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every topic with its partitions and replicas.

    \b
    barnabas topics list
    barnabas topics list --internal --json
    """
    with admin(target) as client:
        topics = sorted(answered(client, client.describe_topics), key=lambda topic: topic["name"])
    rows = [_summary(topic) for topic in topics if internal or not topic["is_internal"]]
    columns = {"topic": "topic", "#partitions": "partitions", "#replicas": "replicas", "topic id": "topic_id"}
    print_list(rows, columns, as_json, "No topics yet. Make one: barnabas topics create NAME")


@app.command()
def describe(target: Target, topics: Names, as_json: AsJson = False) -> None:
    """Partitions of a topic (leader, replicas, which of them are catching up, offsets) and its settings.

    \b
    barnabas topics describe orders
    barnabas topics describe orders payments --json
    """
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.structs import TopicPartition

    with admin(target) as client:
        described = describe_topics(client, topics)
        configs = answered(
            client,
            lambda: client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in described]),
        )
        partitions = [TopicPartition(*key) for key in leaders_of(described.values())]
        replicas = {(row["topic"], row["partition"]): row for row in replica_rows(client, list(described.values()))}
        earliest = offsets_at(client, partitions, OffsetSpec.EARLIEST)
        latest = offsets_at(client, partitions, OffsetSpec.LATEST)
    documents = []
    for name, topic in described.items():
        document = _summary(topic)
        overrides = configs.get("topic", {}).get(name, {})
        document["configs"] = {key: config["value"] for key, config in sorted(overrides.items())}
        document["partitions"] = []
        for partition in sorted(topic["partitions"], key=lambda partition: partition["partition_index"]):
            place = TopicPartition(name, partition["partition_index"])
            document["partitions"].append(
                {
                    "partition": place.partition,
                    "leader": partition["leader_id"],
                    "leader_epoch": partition.get("leader_epoch"),
                    "replicas": partition["replica_nodes"],
                    "in_sync": partition["isr_nodes"],
                    "offline": replicas[place]["offline"],
                    "lag": replicas[place]["lag"],
                    "log_start_offset": earliest[place].offset if place in earliest else None,
                    "log_end_offset": latest[place].offset if place in latest else None,
                }
            )
        documents.append(document)
    if as_json:
        print_json(documents)
        return
    for document in documents:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    settings = " ".join(f"{key}={value}" for key, value in document["configs"].items()) or "none overridden"
    print(f"{document['topic']}  id {document['topic_id']}  settings: {settings}")
    print_rows(
        {
            "#partition": "partition",
            "#leader": "leader",
            "#epoch": "leader_epoch",
            "replicas": lambda row: ",".join(map(str, row["replicas"])),
            "in sync": lambda row: ",".join(map(str, row["in_sync"])),
            "not in sync": lambda row: out_of_sync(row) or None,
            "#log start": "log_start_offset",
            "#log end": "log_end_offset",
        },
        document["partitions"],
    )


@app.command()
def create(
    target: Target,
    topics: Names,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="How many; else the broker's num.partitions."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=INT16_MAX, help="Copies; else the broker's default.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A topic setting; repeat.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is fine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make topics.

    \b
    barnabas topics create orders
    barnabas topics create orders --partitions 3 --config cleanup.policy=compact
    barnabas topics create orders payments --if-not-exists
    """
    configs = key_values(config or [], "--config")
    counts = {
        "num_partitions": partitions or BROKERS_DEFAULT,
        "replication_factor": replication_factor or BROKERS_DEFAULT,
    }
    wanted = {name: {**counts, "configs": configs} for name in topics}
    with admin(target) as client:
        await_controller(client)
        results = client.create_topics(wanted, raise_errors=False)["topics"]
    rows = []
    for result in results:
        name, code = result["name"], result["error_code"]
        outcome = result_of("created", code, result["error_message"], _right("create", name))
        if code == TOPIC_ALREADY_EXISTS and if_not_exists:
            outcome = {"result": "exists already"}
        rows.append({"topic": name, **outcome, "partitions": result["num_partitions"]})
    print_outcomes("topic", rows, as_json)


@app.command()
def alter(
    target: Target,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=INT32_MAX, help="The new number of partitions; it can only grow."
        ),
    ] = None,
    config: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic. Its settings are changed by `barnabas configs set`.

    \b
    barnabas topics alter orders --partitions 6
    barnabas configs set topic orders retention.ms=3600000    a setting
    """
    if config is not None or partitions is None:
        settings = " ".join(map(shlex.quote, config or ["retention.ms=3600000"]))
        fail(
            "topics alter adds partitions (--partitions N). A setting is changed by "
            f"`barnabas configs set topic {shlex.quote(topic)} {settings}`.",
            ExitCode.NOT_VALID,
        )
    with admin(target) as client:
        await_controller(client)
        result = client.create_partitions({topic: partitions}, raise_errors=False).results[0]
    right, done = _right("alter", topic), f"{counted(partitions, 'partition')} now"
    outcome = result_of(done, result.error_code, result.error_message, right, otherwise="not altered")
    row = {"topic": topic, **outcome, "partitions": partitions}
    print_outcomes("topic", [row], as_json, nothing_there=result.error_code == UNKNOWN_TOPIC_OR_PARTITION)


@app.command()
def delete(target: Target, topics: Names, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete topics and every record in them.

    \b
    barnabas topics delete orders
    barnabas topics delete orders payments --yes
    """
    for topic in topics:
        if topic in GOES_WITH:
            say(f"barnabas: with {topic} {GOES_WITH[topic]}")
    confirm(f"Delete {', '.join(topics)} and all records?", yes)
    with admin(target) as client:
        await_controller(client)
        results = client.delete_topics(topics, raise_errors=False)["topics"]
    rows = []
    for result in results:
        name, code = result["name"], result["error_code"]
        if not code and name in GONE_WITH:
            say(f"barnabas: {name} was deleted: {GONE_WITH[name]}")
        outcome = result_of("deleted", code, result.get("error_message"), _right("delete", name))
        rows.append({"topic": name, **outcome})
    missing = all(result["error_code"] in (0, UNKNOWN_TOPIC_OR_PARTITION) for result in results)
    print_outcomes("topic", rows, as_json, nothing_there=missing)


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    replicas = {len(partition["replica_nodes"]) for partition in topic["partitions"]}
    return {
        "topic": topic["name"],
        "topic_id": to_text(UUID(str(topic["topic_id"])).bytes),
        "partitions": len(topic["partitions"]),
        "replicas": max(replicas, default=0),
        "internal": topic["is_internal"],
    }


def _right(operation: str, topic: str) -> str:
    """As `barnabas acls add` takes it."""
    return f"{operation} topic {shlex.quote(topic)}"
