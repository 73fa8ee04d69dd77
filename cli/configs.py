"""`barnabas configs`: describe, set, delete the settings of topics, brokers and groups.

These commands build the requests themselves, because kafka-python's admin client can neither name the resource of all
brokers (its name is empty) nor ask for the documentation of settings.
"""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import UNKNOWN_TOPIC_OR_PARTITION, admin, answered, reason, result_of
from barnabas.cli.shared.exits import ExitCode, fail, key_values, say
from barnabas.cli.shared.kafka_python import send
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json, print_outcomes, print_paragraph, print_table

app = new_app("""Settings of topics, brokers and groups: describe, set, delete.

    \b
    barnabas configs describe topic orders
    barnabas configs describe topic orders retention.ms --docs
    barnabas configs set topic orders retention.ms=3600000 cleanup.policy=compact
    barnabas configs delete topic orders retention.ms
    barnabas configs describe broker 0 --all
    barnabas configs set broker default log.retention.ms=86400000
    barnabas configs set group billing consumer.session.timeout.ms=60000
    """)

ALL_BROKERS = "default"
BUILT_IN = 5  # the source of a value that nobody has set
SET, DELETE = 0, 1  # what IncrementalAlterConfigs does with a setting


class Kind(StrEnum):
    """What a setting belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


KindArgument = Annotated[Kind, typer.Argument(metavar="topic|broker|group", help="What the settings belong to.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help=f"The topic; the broker's node id, or '{ALL_BROKERS}' for all brokers; the group."
    ),
]


@app.command()
def describe(
    target: Target,
    kind: KindArgument,
    name: Name,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these, whatever their source.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show settings that have their default too.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Say what each one means.")] = False,
    as_json: AsJson = False,
) -> None:
    """Values and where each one comes from.

    \b
    barnabas configs describe topic orders
    barnabas configs describe topic orders retention.ms --docs
    barnabas configs describe broker 0 --all
    barnabas configs describe broker default --json
    """
    from kafka.protocol.admin import DescribeConfigsRequest

    with admin(target) as client:
        request = DescribeConfigsRequest(
            resources=[(*_resource(kind, name), keys or None)],
            include_synonyms=True,
            include_documentation=True,
            min_version=3,  # KIP-569: types and texts
        )
        (result,) = _send(client, request, kind, name).results
    if result.error_code:
        missing = result.error_code == UNKNOWN_TOPIC_OR_PARTITION
        code = ExitCode.NOTHING_THERE if missing else ExitCode.FAILED
        asked = _right("describe-configs", kind, name)
        fail(f"{kind} {name}: {reason(result.error_code, result.error_message, asked)}", code)
    rows = [
        _row(config)
        for config in sorted(result.configs, key=lambda config: config.name)
        if everything or keys or config.config_source != BUILT_IN
    ]
    unknown = [key for key in keys or () if key not in {row["name"] for row in rows}]
    if unknown:
        fail(f"{kind} {name} has no setting {', '.join(unknown)}.", ExitCode.NOTHING_THERE)
    if as_json:
        print_json(rows)
    elif docs:
        for row in rows:
            fixed = ", read only" if row["read_only"] else ""
            print(f"{row['name']} = {_shown(row['value'])}  ({_source(row)}{fixed})", flush=True)
            print_paragraph(row["documentation"] or "Nothing is said of it.")
    elif rows:
        print_table(
            ["setting", "value", "source", "falls back to"],
            [(row["name"], row["value"], _source(row), _fallback(row)) for row in rows],
        )
    else:
        hint = "" if name == ALL_BROKERS else " (All values: --all)"
        say(f"{kind} {name} overrides nothing.{hint}")


def _row(config: Any) -> dict[str, Any]:
    from kafka.admin import ConfigSourceType, ConfigType

    return {
        "name": config.name,
        "value": "(hidden)" if config.is_sensitive else config.value,
        "source": ConfigSourceType(config.config_source).name,
        "read_only": config.read_only,
        "type": ConfigType(config.config_type).name,
        "synonyms": [
            {"name": other.name, "value": other.value, "source": ConfigSourceType(other.source).name}
            for other in config.synonyms
        ],
        "documentation": config.documentation,
    }


@app.command("set")
def set_configs(
    target: Target,
    kind: KindArgument,
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Let the broker check it, change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change settings; they take effect at once.

    \b
    barnabas configs set topic orders retention.ms=3600000
    barnabas configs set topic orders cleanup.policy=compact,delete --dry-run
    barnabas configs set broker 0 log.retention.ms=86400000
    barnabas configs set broker default log.retention.ms=86400000
    """
    values = key_values(settings, "a setting")
    operations = [(key, SET, value) for key, value in values.items()]
    done = "valid, not changed" if dry_run else "changed"
    _alter(kind, name, operations, done, target, dry_run=dry_run, as_json=as_json)


@app.command()
def delete(
    target: Target,
    kind: KindArgument,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    as_json: AsJson = False,
) -> None:
    """Remove overrides, so that the value of the next source holds again.

    A topic and a group fall back to the broker's value; a broker to the value for all brokers, then its file, then the
    default.

    \b
    barnabas configs delete topic orders retention.ms
    barnabas configs delete broker 0 log.retention.ms
    barnabas configs delete broker default log.retention.ms
    """
    operations = [(key, DELETE, None) for key in keys]
    _alter(kind, name, operations, "not overridden any more", target, dry_run=False, as_json=as_json)


def _alter(
    kind: Kind,
    name: str,
    operations: Sequence[tuple[str, int, str | None]],
    done: str,
    target: Target,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    with admin(target) as client:
        request = IncrementalAlterConfigsRequest(
            resources=[(*_resource(kind, name), list(operations))], validate_only=dry_run
        )
        (result,) = _send(client, request, kind, name).responses
    keys = [key for key, _, _ in operations]
    right = _right("alter-configs", kind, name)
    done = f"{', '.join(keys)}: {done}"
    outcome = result_of(done, result.error_code, result.error_message, right, otherwise="not changed")
    row = {"resource": f"{kind} {name}", **outcome, "settings": keys}
    print_outcomes("resource", [row], as_json, nothing_there=result.error_code == UNKNOWN_TOPIC_OR_PARTITION)


def _right(operation: str, kind: Kind, name: str) -> str:
    """As `barnabas acls add` takes it."""
    return f"{operation} cluster" if kind is Kind.BROKER else f"{operation} {kind} {shlex.quote(name)}"


def _resource(kind: Kind, name: str) -> tuple[int, str]:
    """Type and name of the resource, as requests write them."""
    from kafka.admin import ConfigResourceType

    if kind is Kind.BROKER and name != ALL_BROKERS and not name.isdecimal():
        fail(f"a broker is named by its node id, or '{ALL_BROKERS}' for all of them, not {name!r}.", ExitCode.NOT_VALID)
    all_brokers = kind is Kind.BROKER and name == ALL_BROKERS
    return ConfigResourceType[kind.name].value, "" if all_brokers else name


def _send(client: Any, request: Any, kind: Kind, name: str) -> Any:
    """Send a request, for a broker's own settings to that broker, and return the answer."""
    from kafka.errors import UnknownBrokerIdError

    node_id = int(name) if kind is Kind.BROKER and name != ALL_BROKERS else None
    try:
        # Also for changes: to set or delete a setting twice does no harm.
        return answered(client, lambda: send(client, request, node_id))
    except UnknownBrokerIdError:
        fail(f"there is no broker {name}.", ExitCode.NOTHING_THERE)


def _shown(value: str | None) -> str:
    return "(not set)" if value is None else value or "(empty)"


def _source(row: dict[str, Any]) -> str:
    return str(row["source"]).removesuffix("_CONFIG").lower().replace("_", " ")


def _fallback(row: dict[str, Any]) -> str | None:
    """The value that would hold without the strongest source; with its name if it is another setting's."""
    others = [
        _shown(other["value"]) if other["name"] == row["name"] else f"{other['name']}={_shown(other['value'])}"
        for other in row["synonyms"][1:]
    ]
    return ", ".join(dict.fromkeys(others)) or None
