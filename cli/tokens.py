"""`barnabas tokens`: create, list, renew, end delegation tokens, by which others log in as their owner for a while."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import reason
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.login import ask
from barnabas.cli.shared.login import read as read_access
from barnabas.cli.shared.target import Target, addresses_of
from barnabas.cli.shared.terminal import AsJson, new_app, print_found, print_json, print_table
from barnabas.cluster.security.scram import HASHES
from barnabas.protocol.message import Message
from barnabas.protocol.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

app = new_app("""Delegation tokens: create, list, renew, expire. Who has one logs in by SCRAM, as its owner.

    \b
    barnabas tokens create --days 1
    barnabas tokens list
    barnabas tokens renew HMAC
    barnabas tokens expire HMAC
    """)

CREATE_VERSION = DESCRIBE_VERSION = 3
CHANGE_VERSION = 2
DAY_MS = 24 * 60 * 60 * 1000
DAYS_MAX = 36_500
BY_SETTING, NOW = -1, -1
NOT_FOUND, NOT_ALLOWED, DISABLED = 62, 64, 61
WORDS = {
    DISABLED: "the brokers have no delegation tokens: set delegation.token.secret.key to the same secret.",
    NOT_FOUND: "there is no such token, or it has expired. (Tokens: barnabas tokens list)",
    NOT_ALLOWED: "tokens are given out over a listener with logins, and not to somebody who has logged in by a token. "
    "Name a file with a login: --command-config FILE.",
}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}" tokenauth="true";'

Hmac = Annotated[str, typer.Argument(metavar="HMAC", help="The secret of the token, as create and list show it.")]


@app.command()
def create(
    target: Target,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="PRINCIPAL", help="Whose it shall be; yours if it is left out.")
    ] = None,
    renewers: Annotated[
        list[str] | None, typer.Option("--renewer", metavar="PRINCIPAL", help="Who else may renew it. May be repeated.")
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.001, max=DAYS_MAX, help="How long it counts; at most as long as brokers allow."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and show its secret: who has it is its owner.

    \b
    barnabas tokens create
    barnabas tokens create --days 0.5 --renewer User:scheduler
    barnabas tokens create --owner User:alice --json
    """
    type, name = (None, None) if owner is None else _parted(owner)
    request = CreateDelegationTokenRequest(
        owner_principal_type=type,
        owner_principal_name=name,
        renewers=[
            CreateDelegationTokenRequest.CreatableRenewers(principal_type=kind, principal_name=each)
            for kind, each in map(_parted, renewers or ())
        ],
        max_lifetime_ms=BY_SETTING if days is None else int(days * DAY_MS),
    )
    answer = _asked(target, request, CREATE_VERSION)
    secret = base64.b64encode(bytes(answer.hmac)).decode()
    row = {
        "token_id": answer.token_id,
        "hmac": secret,
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "requester": f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
        "expires": _time(answer.expiry_timestamp_ms),
        "ends_at_last": _time(answer.max_timestamp_ms),
        "jaas": JAAS.format(answer.token_id, secret),
    }
    if as_json:
        print_json(row)
        return
    print_table(["", "token"], [(name.replace("_", " "), row[name]) for name in row if name != "jaas"])
    typer.echo(f"\nIn a client's file:\nsasl.mechanism={_mechanism(target)}\nsasl.jaas.config={row['jaas']}")


@app.command("list")
def list_tokens(
    target: Target,
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="PRINCIPAL", help="Of these only. May be repeated.")
    ] = None,
    hmac: Annotated[bool, typer.Option("--hmac", help="Show their secrets, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """The tokens that you may see: your own, those that you may renew, and others by rules.

    \b
    barnabas tokens list
    barnabas tokens list --owner User:alice --hmac --json
    """
    wanted = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    owners = None if owner is None else [wanted(principal_type=t, principal_name=n) for t, n in map(_parted, owner)]
    answer = _asked(target, DescribeDelegationTokenRequest(owners=owners), DESCRIBE_VERSION)
    rows = [_row(token, hmac) for token in answer.tokens]
    columns: dict[str, Any] = {name.replace("_", " "): name for name in (rows or [{}])[0]}
    columns |= {"renewers": lambda row: ", ".join(row["renewers"])}
    print_found(rows, columns, as_json, "there are no tokens that you may see.")


@app.command()
def renew(
    target: Target,
    hmac: Hmac,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.001, max=DAYS_MAX, help="From now on; at most delegation.token.expiry.time.ms."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a token count longer. Its owner and its renewers may.

    \b
    barnabas tokens renew HMAC
    barnabas tokens renew HMAC --days 0.5
    """
    period_ms = BY_SETTING if days is None else int(days * DAY_MS)
    answer = _asked(target, RenewDelegationTokenRequest(hmac=_secret(hmac), renew_period_ms=period_ms), CHANGE_VERSION)
    _tell(f"counts until {_time(answer.expiry_timestamp_ms)}", answer, as_json)


@app.command()
def expire(
    target: Target,
    hmac: Hmac,
    days: Annotated[
        float | None, typer.Option("--days", min=0, max=DAYS_MAX, help="When it ends; now if it is left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a token end. Connections that are open stay until its former end.

    \b
    barnabas tokens expire HMAC
    barnabas tokens expire HMAC --days 1
    """
    period_ms = NOW if days is None else int(days * DAY_MS)
    request = ExpireDelegationTokenRequest(hmac=_secret(hmac), expiry_time_period_ms=period_ms)
    answer = _asked(target, request, CHANGE_VERSION)
    _tell("has ended" if days is None else f"counts until {_time(answer.expiry_timestamp_ms)}", answer, as_json)


def _tell(result: str, answer: Any, as_json: bool) -> None:
    if as_json:
        print_json({"result": result, "expires": _time(answer.expiry_timestamp_ms)})
    else:
        typer.echo(f"the token {result}")


def _asked(target: Target, request: Message, version: int) -> Any:
    """The answer of a broker. Ends the command if it is an error."""
    access = read_access(target.command_config)
    (address,) = addresses_of(target.reach())
    answer, refusal = ask(address, access, request, version)
    if refusal is not None and access.login is not None:
        fail(f"{target.bootstrap} refuses {access.login.named}: {refusal}")
    if answer is None:
        why = "it may want a login (--command-config), or have no delegation tokens"
        fail(f"no answer from {target.bootstrap}: {why}.")
    if answer.error_code:
        code = ExitCode.NOTHING_THERE if answer.error_code == NOT_FOUND else ExitCode.FAILED
        fail(WORDS.get(answer.error_code) or f"the broker refuses: {reason(answer.error_code)}", code)
    return answer


def _row(token: Any, with_hmac: bool) -> dict[str, Any]:
    row = {
        "token_id": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "requester": f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
        "renewers": [f"{each.principal_type}:{each.principal_name}" for each in token.renewers],
        "issued": _time(token.issue_timestamp),
        "expires": _time(token.expiry_timestamp),
        "ends_at_last": _time(token.max_timestamp),
    }
    return row | ({"hmac": base64.b64encode(bytes(token.hmac)).decode()} if with_hmac else {})


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _parted(principal: str) -> tuple[str, str]:
    type, colon, name = principal.partition(":")
    if not colon or not type or not name:
        fail(f"a principal is written User:NAME, not {principal}.", ExitCode.NOT_VALID)
    return type, name


def _secret(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        fail("an HMAC is Base64, as `barnabas tokens list --hmac` shows it.", ExitCode.NOT_VALID)


def _mechanism(target: Target) -> str:
    """By which a client logs in with a token: the one of this command, if it is one of SCRAM's."""
    login = read_access(target.command_config).login
    return login.mechanism if login is not None and login.mechanism in HASHES else next(reversed(HASHES))
