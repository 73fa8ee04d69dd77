"""`barnabas quotas`: list, set, remove the quotas of clients and of addresses."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import admin, answered, reason, result_of
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.kafka_python import send
from barnabas.cli.shared.options import Names
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, Yes, confirm, new_app, print_found, print_outcomes
from barnabas.cluster.quota_table import (
    CLIENT_ID,
    CONNECTIONS,
    DEFAULT_NAME,
    EXACT,
    FETCH,
    IP,
    MUTATIONS,
    PRODUCE,
    REQUEST,
    USER,
)

app = new_app("""How much clients may use: list, set and remove quotas.

    \b
    barnabas quotas list
    barnabas quotas set --user alice produce=1MB fetch=2MB
    barnabas quotas set --default-user --client-id loader request=50
    barnabas quotas set --ip 192.0.2.7 connections=10
    barnabas quotas remove --user alice produce
    """)

# What a person writes, and Kafka's name, which may be written, too.
KEYS = {"produce": PRODUCE, "fetch": FETCH, "request": REQUEST, "mutations": MUTATIONS, "connections": CONNECTIONS}
UNITS = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
DEFAULT_TEXT = "<default>"

Parts = list[tuple[str, str | None]]


@dataclass(frozen=True, kw_only=True)
class Whom(Names):
    """Of whom a quota is."""

    user: Annotated[str | None, typer.Option(metavar="USER", help="Of this user, without User: before it.")] = None
    client_id: Annotated[str | None, typer.Option(metavar="ID", help="Of this client id.")] = None
    ip: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of this address: only connections.")] = None
    default_user: Annotated[bool, typer.Option("--default-user", help="Of each user that has none of its own.")] = False
    default_client_id: Annotated[
        bool, typer.Option("--default-client-id", help="Of each client id that has none of its own.")
    ] = False
    default_ip: Annotated[bool, typer.Option("--default-ip", help="Of each address that has none of its own.")] = False

    def parts(self) -> Parts:
        """The types and names of the entity; None: the default. One that is named in both ways ends the command."""
        parts: Parts = []
        for kind, name, is_default in (
            (USER, self.user, self.default_user),
            (CLIENT_ID, self.client_id, self.default_client_id),
            (IP, self.ip, self.default_ip),
        ):
            if name is not None and is_default:
                fail(f"--{kind} and --default-{kind} are two quotas: name one.", ExitCode.NOT_VALID)
            if name is not None or is_default:
                parts.append((kind, name))
        return parts


@app.command("list")
def list_quotas(whom: Whom, target: Target, as_json: AsJson = False) -> None:
    """The quotas that are set: all, or those of a user, a client id or an address.

    \b
    barnabas quotas list
    barnabas quotas list --user alice
    barnabas quotas list --default-client-id --json
    """
    parts = whom.parts()
    with admin(target) as client:
        rows = [row for entry in _described(client, parts) for row in _rows(entry)]
    columns = {"user": "user", "client id": "client_id", "ip": "ip", "quota": "quota", "value": "value"}
    print_found(rows, columns, as_json, "there are no such quotas.")


@app.command("set")
def set_quotas(
    whom: Whom,
    target: Target,
    quotas: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE…", help="What it may use a second.")],
    as_json: AsJson = False,
) -> None:
    """Set quotas: produce and fetch in bytes a second (also 500KB, 10MB), request in percent of a processor,
    mutations in partitions a second that are created or deleted, connections in new ones a second.

    \b
    barnabas quotas set --user alice produce=1MB fetch=2MB
    barnabas quotas set --user alice --client-id loader request=50
    barnabas quotas set --default-client-id mutations=5
    barnabas quotas set --ip 192.0.2.7 connections=10
    """
    parts = whom.parts()
    changes: dict[str, float | None] = {}
    for text in quotas:
        name, separator, value = text.partition("=")
        if not separator:
            fail(f"write it as {name}=VALUE.", ExitCode.NOT_VALID)
        changes[_key(name)] = _value(text, value)
    _alter(target, parts, changes, f"has {', '.join(quotas)}", as_json)


@app.command()
def remove(
    whom: Whom,
    target: Target,
    quotas: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA…]", help="Which; all, if none is named.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of a user, a client id, both, or an address.

    \b
    barnabas quotas remove --user alice produce
    barnabas quotas remove --ip 192.0.2.7 --yes
    """
    parts = whom.parts()
    with admin(target) as client:
        there = {value.key for entry in _described(client, parts, strict=True) for value in entry.values}
    wanted = [_key(name) for name in quotas] if quotas else sorted(there)
    keys = [key for key in wanted if key in there]
    if not keys:
        fail(f"{_words(parts)} has no {' and no '.join(quotas or ['quotas'])}.", ExitCode.NOTHING_THERE)
    confirm(f"Remove {', '.join(keys)} of {_words(parts)}?", yes)
    _alter(target, parts, dict.fromkeys(keys), f"has no {', '.join(keys)} any more", as_json)


def _alter(target: Target, parts: Parts, changes: dict[str, float | None], done: str, as_json: bool) -> None:
    from kafka.protocol.admin import AlterClientQuotasRequest

    if not parts:
        fail("name whom it is for: --user, --client-id, both, or --ip (see --help).", ExitCode.NOT_VALID)
    entry = AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntryData.EntityData(entity_type=kind, entity_name=name) for kind, name in parts
        ],
        ops=[
            AlterClientQuotasRequest.EntryData.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    with admin(target) as client:
        (result,) = answered(client, lambda: send(client, request)).entries
    right = "alter-configs cluster"
    outcome = result_of(done, result.error_code, result.error_message, right, otherwise="not changed")
    print_outcomes("entity", [{"entity": _words(parts), **outcome}], as_json)


def _described(client: Any, parts: Parts, *, strict: bool = False) -> list[Any]:
    from kafka.protocol.admin import DescribeClientQuotasRequest

    components = [
        DescribeClientQuotasRequest.ComponentData(
            entity_type=kind, match_type=DEFAULT_NAME if name is None else EXACT, match=name
        )
        for kind, name in parts
    ]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer = answered(client, lambda: send(client, request))
    if answer.error_code:
        fail(f"the quotas are not told: {reason(answer.error_code, answer.error_message, 'describe-configs cluster')}")
    return sorted(answer.entries or (), key=lambda entry: sorted(map(_shown, entry.entity)))


def _shown(part: Any) -> tuple[str, str]:
    return part.entity_type, part.entity_name or ""


def _rows(entry: Any) -> list[dict[str, Any]]:
    names = {part.entity_type: DEFAULT_TEXT if part.entity_name is None else part.entity_name for part in entry.entity}
    whom = {"user": names.get(USER), "client_id": names.get(CLIENT_ID), "ip": names.get(IP)}
    return [whom | {"quota": value.key, "value": _number(value.value)} for value in entry.values]


def _number(value: float) -> int | float | str:
    if not math.isfinite(value):
        return "Infinity" if value > 0 else "NaN"  # JSON has no such numbers
    return int(value) if value == int(value) else value


def _words(parts: Parts) -> str:
    return " and ".join(f"{kind} {DEFAULT_TEXT if name is None else name}" for kind, name in parts)


def _key(name: str) -> str:
    if name in KEYS.values():
        return name
    if name not in KEYS:
        fail(f"a quota is one of {', '.join(KEYS)}: not {name!r}.", ExitCode.NOT_VALID)
    return KEYS[name]


def _value(text: str, value: str) -> float:
    number = value.strip().upper().rstrip("KMGB")
    unit = value.strip().upper()[len(number) :]
    try:
        return float(number) * UNITS[unit]
    except (ValueError, KeyError):
        fail(f"{text}: a value is a number, or a number of KB, MB or GB.", ExitCode.NOT_VALID)
