"""Which right a command lacks, and the command by which somebody else gives it."""

import shlex

# What is asked for where a command does not say: who may look into the broker's log finds it there.
USUAL = {
    29: "read|write|create|… topic NAME",
    30: "read|describe|delete group NAME",
    31: "describe|alter|… cluster",
    53: "write transactional-id NAME",
}
_principal = "User:NAME"  # of this process, once it is known


def know_user(user: str) -> None:
    global _principal
    _principal = shlex.quote(f"User:{user}")


def asks_for(error_code: int, *words: str) -> None:
    """This command asks for one right of a kind only, which is named wherever it is missing: write, topic, orders."""
    USUAL[error_code] = shlex.join(words)


def missing(error_code: int, asked: str | None = None) -> str:
    """What is said behind an error of a broker: nothing, if it is not about rights.

    `asked`: the right as `barnabas acls add` takes it: `delete topic orders`.
    """
    if error_code not in USUAL:
        return ""
    return f" (a right is missing: barnabas acls add {_principal} {asked or USUAL[error_code]})"
