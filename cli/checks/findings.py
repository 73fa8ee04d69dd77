"""What a check finds, and how findings are put together: by severity, and a bounded number of each kind."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from barnabas.cli.checks.facts import Facts, Row
from barnabas.cli.shared.words import partition_of


class Severity(IntEnum):
    """How bad it is. Notes are worth knowing, and do not change the exit code."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


class Needs(StrEnum):
    """What a check must be able to ask."""

    KAFKA = "Kafka's protocol"
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


def line_of(command: tuple[str, ...], bootstrap: str | None) -> str:
    """The words of a command as a shell takes them. `bootstrap` None: the default, or it asks no broker."""
    end = command.index("--") if "--" in command else len(command)
    options, names = command[:end], command[end:]
    if bootstrap is not None and "--bootstrap" not in options:
        options += ("--bootstrap", bootstrap)
    return " ".join(map(_quoted, ("barnabas", *options, *names)))


def _quoted(word: str) -> str:
    """A word for a shell. What is not printable is escaped, so that a name cannot look like a line of its own."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        "\\" + character if character in "\\'" else character if character.isprintable() else _octal(character)
        for character in word
    )
    return f"$'{''.join(escaped)}'"


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogatepass"))


def command_of(command: str, names: Sequence[str], *options: str) -> tuple[str, ...]:
    """The words of a command for things with these names. A name may begin with a dash, and is no option then."""
    words = tuple(command.split())
    if any(name.startswith("-") for name in names):
        return (*words, *options, "--", *names)
    return (*words, *names, *options)


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table: its name, what it looks at, what it needs, and the function that looks."""

    name: str
    looks_at: str
    needs: Needs
    find: Callable[[Facts], Iterable[Finding]]


TABLE: list[Check] = []
OF_ITSELF = ("brokers", "tree", "logs", "disks", "failures")  # what a broker knows that is in no cluster


Find = Callable[[Facts], Iterator[Finding]]


def check(name: str, looks_at: str, needs: Needs = Needs.KAFKA) -> Callable[[Find], None]:
    """Register the decorated function as a check."""

    def register(find: Find) -> None:
        assert all(each.name != name for each in TABLE), name
        TABLE.append(Check(name, looks_at, needs, find))

    return register


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check has found: the worst findings, and how many there are of each severity."""

    check: Check
    findings: Sequence[Finding]
    counts: Mapping[Severity, int]
    not_made: str | None  # why not, or where not

    @property
    def found(self) -> int:
        """How many findings there are."""
        return sum(self.counts.values())

    @property
    def left_out(self) -> int:
        """How many of them are not listed."""
        return self.found - len(self.findings)

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None: nothing was found."""
        return max(self.counts, default=None)


def load() -> None:
    """Let all checks register."""
    from barnabas.cli.checks import brokers, groups, security, settings, transactions  # noqa: F401


def examine(facts: Facts, findings_max: int) -> list[Outcome]:
    """All checks, those with the worst findings first. Of each, at most `findings_max` findings."""
    load()
    why_not, outside = unasked(facts), in_no_cluster(facts)
    found = []
    for each in TABLE:
        is_made = outside is None or each.name in OF_ITSELF
        all_of_it = each.find(facts) if is_made else ()
        rows = sorted(all_of_it, key=lambda finding: (-finding.severity, finding.since_ms or facts.now_ms))
        not_made = outside if not is_made else why_not if each.needs is Needs.HTTP else None
        counts = Counter(finding.severity for finding in rows)
        found.append(Outcome(each, rows[:findings_max], counts, not_made))
    return sorted(found, key=lambda outcome: -1 if outcome.worst is None else outcome.worst, reverse=True)


def in_no_cluster(facts: Facts) -> str | None:
    """Why what brokers say of the cluster may be untrue: none of them is in it now. None: some are."""
    known = facts.healths
    if not known or len(known) < len(facts.living):
        return None
    if any(health["is_lease_held"] and health["why_not_registered"] is None for _, health in known):
        return None
    names = listed(str(broker.node_id) for broker, _ in known)
    are = f"broker {names} is" if len(known) == 1 else f"brokers {names} are"
    return f"{are} in no cluster now, and what is said of topics, settings and groups may be untrue"


def unasked(facts: Facts) -> str | None:
    """Which brokers could not be asked by HTTP; None: all could."""
    missing = [broker for broker in facts.living if broker.health is None]
    if not missing:
        return None
    if len(missing) == len(facts.living) and not any(broker.has_http for broker in missing):
        return "no broker has an HTTP API (Apache Kafka has none; Barnabas has none with http.listeners=none)"
    return "; ".join(f"broker {broker.node_id}: {broker.why_not or 'it does not answer'}" for broker in missing[:3])


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def places(rows: Iterable[Row]) -> str:
    """`orders-0, orders-1`: the partitions of rows, as `listed`."""
    return listed(partition_of(row) for row in rows)
