"""What a check finds, and the table of all checks, which their modules fill."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from barnabas.cli.checks.facts import Facts, Row
from barnabas.cli.shared.words import line_of, partition_of


class Severity(IntEnum):
    """How bad it is. Notes are worth knowing, and do not change the exit code."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


class Needs(StrEnum):
    """What a check must be able to ask."""

    KAFKA = "Kafka's protocol"
    SETTINGS = "the settings of each broker"
    HTTP = "the HTTP API of each broker"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or soon will be.

    `where`: of which thing (`group billing`, `broker 2`, `topic orders`). `since_ms`: not before that, as far as it
    is known. `command`: the words of the command that mends it, or says what else to know.
    """

    severity: Severity
    where: str
    what: str
    why: str
    command: tuple[str, ...]
    since_ms: int | None = None

    @property
    def is_start(self) -> bool:
        """Whether the command starts a broker, and so asks none."""
        return self.command[:1] == ("start",)

    def command_line(self, bootstrap: str | None) -> str:
        """The command as a shell takes it, on one line. `bootstrap` None: the default."""
        return line_of(self.command, None if self.is_start else bootstrap)


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table: its name, what it looks at, what it needs, and the function that looks."""

    name: str
    looks_at: str
    needs: Needs
    find: Callable[[Facts], Iterable[Finding]]


TABLE: list[Check] = []


Find = Callable[[Facts], Iterator[Finding]]


def check(name: str, looks_at: str, needs: Needs = Needs.KAFKA) -> Callable[[Find], None]:
    """Register the decorated function as a check."""

    def register(find: Find) -> None:
        assert all(each.name != name for each in TABLE), name
        TABLE.append(Check(name, looks_at, needs, find))

    return register


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def places(rows: Iterable[Row]) -> str:
    """`orders-0, orders-1`: the partitions of rows, as `listed`."""
    return listed(partition_of(row) for row in rows)
