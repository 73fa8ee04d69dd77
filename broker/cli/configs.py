"""`barnabas configs`: describe, set, delete the settings of topics and brokers."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.broker.cli.client import admin, describe_topics
from barnabas.broker.cli.exits import ExitCode, fail, key_values, say
from barnabas.broker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    new_app,
    print_json,
    print_outcomes,
    print_table,
)

app = new_app("""Settings of topics and brokers: describe, set, delete.

    \b
    barnabas configs describe topic orders
    barnabas configs set topic orders retention.ms=3600000 cleanup.policy=compact
    barnabas configs delete topic orders retention.ms
    barnabas configs describe broker 0 --all
    """)


class Kind(StrEnum):
    """What a setting belongs to."""

    TOPIC = "topic"
    BROKER = "broker"


KindArgument = Annotated[Kind, typer.Argument(metavar="topic|broker", help="What the settings belong to.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic, or the node id of the broker.")]


@app.command()
def describe(
    kind: KindArgument,
    name: Name,
    everything: Annotated[bool, typer.Option("--all", help="Show settings that have their default too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Values and where each one comes from.

    \b
    barnabas configs describe topic orders
    barnabas configs describe topic orders --all
    barnabas configs describe broker 0 --json
    """
    with admin(bootstrap) as client:
        if kind is Kind.TOPIC:
            describe_topics(client, [name])
        resource = _resource(kind, name)
        found = client.describe_configs([resource], include_synonyms=True, config_filter="all")
    rows = [
        {
            "name": key,
            "value": "(hidden)" if config["is_sensitive"] else config["value"],
            "source": config["config_source"],
            "read_only": config["read_only"],
            "type": config.get("config_type"),
            "synonyms": config.get("synonyms", []),
            "documentation": config.get("documentation"),
        }
        for key, config in sorted(found[kind.value][name].items())
        if everything or config["config_source"] != "DEFAULT_CONFIG"
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ["setting", "value", "source", "can change", "falls back to"],
            [
                (
                    row["name"],
                    row["value"],
                    row["source"].lower().replace("_", " "),
                    "no" if row["read_only"] else "yes",
                    ", ".join(f"{other['name']}={other['value']}" for other in row["synonyms"][1:]) or None,
                )
                for row in rows
            ],
        )
    else:
        say(f"{kind.value} {name} overrides nothing. (All values: --all)")


@app.command("set")
def set_configs(
    kind: KindArgument,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Let the broker check it, change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change settings; they take effect at once.

    \b
    barnabas configs set topic orders retention.ms=3600000
    barnabas configs set topic orders cleanup.policy=compact,delete --dry-run
    barnabas configs set broker 0 log.retention.ms=86400000
    """
    values = key_values(settings, "a setting")
    with admin(bootstrap) as client:
        result = client.alter_configs([_resource(kind, name, values)], validate_only=dry_run, raise_on_unknown=False)
    _report(result[kind.value][name], kind, name, "valid, not changed" if dry_run else "changed", list(values), as_json)


@app.command()
def delete(
    kind: KindArgument,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Take overrides back, so that the next source (broker, file, default) holds again.

    \b
    barnabas configs delete topic orders retention.ms
    barnabas configs delete broker 0 log.retention.ms
    """
    with admin(bootstrap) as client:
        result = client.reset_configs([_resource(kind, name, dict.fromkeys(keys))], raise_on_unknown=False)
    _report(result[kind.value][name], kind, name, "back to what it falls back to", keys, as_json)


def _resource(kind: Kind, name: str, configs: dict[str, Any] | None = None) -> Any:
    from kafka.admin import ConfigResource, ConfigResourceType

    if kind is Kind.BROKER and not name.isdecimal():
        fail(f"a broker is named by its node id, a number, not {name!r}.", ExitCode.NOT_VALID)
    return ConfigResource(ConfigResourceType[kind.name], name, configs)


def _report(result: str, kind: Kind, name: str, good: str, keys: list[str], as_json: bool) -> None:
    row: dict[str, Any] = {"resource": f"{kind.value} {name}", "result": f"{', '.join(keys)}: {good}", "settings": keys}
    if result != "OK":
        row |= {"result": "not changed", "error": result.partition("] ")[2] or result}
    print_outcomes("resource", [row], as_json, nothing_there="UnknownTopicOrPartitionError" in result)
