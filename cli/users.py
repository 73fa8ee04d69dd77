"""`barnabas users`: list, add, remove the users that log in by SCRAM."""

import sys
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import admin, answered, reason, result_of
from barnabas.cli.shared.exits import ExitCode, fail
from barnabas.cli.shared.kafka_python import send, send_to_controller
from barnabas.cli.shared.target import Target, no_time_limit
from barnabas.cli.shared.terminal import AsJson, Columns, Yes, confirm, new_app, print_found, print_outcomes
from barnabas.cluster.security import scram
from barnabas.cluster.security.scram import HASHES, ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN, NUMBERS
from barnabas.runtime.env import real

app = new_app("""Users that log in by SCRAM: list, add, remove. Users of PLAIN are in the brokers' files.

    \b
    barnabas users list
    barnabas users add alice
    barnabas users remove alice
    """)

NOT_THERE = 91  # RESOURCE_NOT_FOUND
MECHANISM_NUMBERS = {name: number for number, name in NUMBERS.items()}

User = Annotated[str, typer.Argument(metavar="USER", help="The name, without User: before it.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512; both if it is left out."),
]


@app.command("list")
def list_users(target: Target, as_json: AsJson = False) -> None:
    """The users, and by which mechanisms they can log in.

    \b
    barnabas users list
    barnabas users list --json
    """
    with admin(target) as client:
        rows = [
            {"user": result.user, "mechanisms": _mechanisms(result)}
            for result in described_users(client, None)
            if not result.error_code
        ]
    columns: Columns = {"user": "user", "mechanisms": lambda row: ", ".join(row["mechanisms"])}
    print_found(rows, columns, as_json, "there are no users of SCRAM.")


@app.command()
def add(
    target: Target,
    user: User,
    mechanism: Mechanisms = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="How slow a password is to try.")
    ] = ITERATIONS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make a user, or give one another password. It is asked for, or read from standard input.

    It never leaves this machine: the broker gets what it needs to check it.

    \b
    barnabas users add alice
    barnabas users add alice --mechanism SCRAM-SHA-512 < password-file
    """
    from kafka.protocol.admin import AlterUserScramCredentialsRequest

    names = _named(mechanism)
    password = _password(user)
    upsertions = []
    for name in names:
        salt = real().secret_bytes(scram.SALT_BYTES)
        upsertions.append(
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=user,
                mechanism=MECHANISM_NUMBERS[name],
                iterations=iterations,
                salt=salt,
                salted_password=scram.salted(name, password, salt, iterations),
            )
        )
    _alter(target, user, [], upsertions, f"can log in by {', '.join(names)}", as_json)


@app.command()
def remove(target: Target, user: User, mechanism: Mechanisms = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Take a user's credentials away. Connections that are open stay open, up to connections.max.reauth.ms.

    \b
    barnabas users remove alice
    barnabas users remove alice --mechanism SCRAM-SHA-256 --yes
    """
    from kafka.protocol.admin import AlterUserScramCredentialsRequest

    named = _named(mechanism)
    with admin(target) as client:
        there = {name for result in described_users(client, user) for name in _mechanisms(result)}
    names = [name for name in named if name in there]
    if not names:
        fail(f"{user} has no credentials of {' or '.join(named)}.", ExitCode.NOTHING_THERE)
    confirm(f"Remove the credentials of {user} for {', '.join(names)}?", yes)
    deletions = [
        AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=MECHANISM_NUMBERS[name])
        for name in names
    ]
    _alter(target, user, deletions, [], f"cannot log in by {', '.join(names)} any more", as_json)


def _alter(target: Target, user: str, deletions: list[Any], upsertions: list[Any], done: str, as_json: bool) -> None:
    from kafka.protocol.admin import AlterUserScramCredentialsRequest

    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    with admin(target) as client:
        (result,) = answered(client, lambda: send_to_controller(client, request)).results
    outcome = result_of(done, result.error_code, result.error_message, "alter cluster", otherwise="not changed")
    print_outcomes("user", [{"user": user, **outcome}], as_json, nothing_there=result.error_code == NOT_THERE)


def described_users(client: Any, user: str | None) -> list[Any]:
    """The mechanisms of a user, or of all who have a password of SCRAM."""
    from kafka.protocol.admin import DescribeUserScramCredentialsRequest

    wanted = None if user is None else [DescribeUserScramCredentialsRequest.UserName(name=user)]
    request = DescribeUserScramCredentialsRequest(users=wanted)
    answer = answered(client, lambda: send(client, request))
    if answer.error_code:
        fail(f"the users are not told: {reason(answer.error_code, answer.error_message, 'describe cluster')}")
    return list(answer.results)


def _mechanisms(result: Any) -> dict[str, int]:
    """The iterations of each mechanism."""
    return {NUMBERS[info.mechanism]: info.iterations for info in result.credential_infos if info.mechanism in NUMBERS}


def _named(mechanisms: list[str] | None) -> list[str]:
    names = [name.upper() for name in mechanisms or HASHES]
    for name in names:
        if name not in HASHES:
            fail(f"the mechanisms are {' and '.join(HASHES)}, not {name}.", ExitCode.NOT_VALID)
    return list(dict.fromkeys(names))


def _password(user: str) -> str:
    if sys.stdin.isatty():
        with no_time_limit():
            password: str = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        fail("a password is not empty.", ExitCode.NOT_VALID)
    return password
