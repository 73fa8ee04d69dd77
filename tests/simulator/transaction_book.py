"""The book of transactional clients: what each transaction wrote, how it ended, and what consumers may be shown of it.

A transaction is OPEN until its client asks to commit it. Then nobody knows, until an answer or a consumer says that it
is COMMITTED. It is ABORTED as soon as its client knows that it will never ask to commit it. An open or an aborted one
may never be seen; a committed one must be seen in the end, with every record, in all its partitions.

A copier gives each input record an effect: a record in each of its output partitions, which names the input. The book
holds these records against the inputs and against the offsets that the copier's group has committed.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from simulator.ledger import TopicPartition
from simulator.violation import Violation


class Fate(Enum):
    """What is known of a transaction's end."""

    OPEN = "open"
    UNKNOWN = "asked to commit"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Attempt:
    """One transaction of a client."""

    __slots__ = ("client", "fate", "group_id", "number", "offsets", "values")

    def __init__(self, number: int, client: str, group_id: str | None) -> None:
        self.number = number
        self.client = client
        self.group_id = group_id
        self.fate = Fate.OPEN
        self.values: dict[TopicPartition, list[str]] = {}
        self.offsets: dict[TopicPartition, int] = {}

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.client}, {self.fate.value}"


class Effect(NamedTuple):
    """An input record that a copier has processed in a transaction."""

    source: TopicPartition
    offset: int
    attempt: int


def value_of(attempt: Attempt, count: int, padding: int = 0) -> str:
    """A value that only this transaction writes."""
    return f"{attempt.number}.{count} {'x' * padding}"


def effect_of(attempt: Attempt, source: TopicPartition, offset: int, padding: int = 0) -> str:
    """The value that a copier writes for an input."""
    return f"{attempt.number}.{source[0]}/{source[1]}/{offset} {'x' * padding}"


def number_in(value: str) -> int:
    """The number of the transaction that wrote a value."""
    return int(value.partition(".")[0])


def read_effect(value: str) -> Effect:
    """What a copier's value says."""
    number, _, rest = value.partition(" ")[0].partition(".")
    topic, index, offset = rest.split("/")
    return Effect((topic, int(index)), int(offset), int(number))


class TransactionBook:
    """Its methods raise Violation."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.outputs: dict[str, tuple[TopicPartition, ...]] = {}  # of each copiers' group
        self.committed: dict[str, dict[TopicPartition, int]] = {}  # group -> the highest offsets known to be committed
        self.progress: dict[str, int] = {}  # group -> commits of its copiers
        self.on_commit: Callable[[Attempt], None] = lambda attempt: None  # before it is asked for
        self.seen: dict[TopicPartition, dict[int, str]] = {}  # what read_committed consumers got: offset -> value
        self._places: dict[TopicPartition, dict[str, int]] = {}  # and the other way round
        self._effects: dict[TopicPartition, dict[tuple[TopicPartition, int], Effect]] = {}  # by output, input

    # -- what clients do

    def begin(self, client: str, group_id: str | None = None) -> Attempt:
        """A transaction begins. Its client sends nothing of it yet."""
        attempt = Attempt(len(self.attempts), client, group_id)
        self.attempts.append(attempt)
        return attempt

    def write(self, attempt: Attempt, key: TopicPartition, values: Iterable[str]) -> None:
        """The client is about to send values."""
        attempt.values.setdefault(key, []).extend(values)

    def offsets(self, attempt: Attempt, offsets: dict[TopicPartition, int]) -> None:
        """The client is about to commit offsets of its group."""
        attempt.offsets = dict(offsets)

    def ask_commit(self, attempt: Attempt) -> None:
        """The client is about to ask for the commit."""
        if attempt.fate is Fate.OPEN:
            attempt.fate = Fate.UNKNOWN
            self.on_commit(attempt)

    def acknowledge_commit(self, attempt: Attempt) -> None:
        """The client was told that it is committed."""
        if attempt.fate is Fate.ABORTED:
            raise Violation("a transaction ends in one way", f"{attempt}, and its commit is acknowledged")
        attempt.fate = Fate.COMMITTED
        if attempt.group_id is not None:
            known = self.committed.setdefault(attempt.group_id, {})
            for key, offset in attempt.offsets.items():
                known[key] = max(offset, known.get(key, -1))

    def give_up(self, attempt: Attempt) -> None:
        """Nobody will ask to commit it any more."""
        if attempt.fate is Fate.OPEN:
            attempt.fate = Fate.ABORTED

    def refuse_commit(self, attempt: Attempt) -> None:
        """The client was told, in answer to its only request for it, that it is not committed."""
        if attempt.fate is Fate.COMMITTED:
            raise Violation("a transaction ends in one way", f"{attempt}, and was seen, and its commit is refused")
        attempt.fate = Fate.ABORTED

    # -- what consumers and brokers show

    def read(self, key: TopicPartition, offset: int, value: str) -> None:
        """A read_committed consumer got a record."""
        seen = self.seen.setdefault(key, {})
        known = seen.get(offset)
        if known is not None:
            if known != value:
                raise Violation("what was read stays", f"{key} {offset}: {value}, was {known}")
            return
        seen[offset] = value
        attempt = self._attempt_of(key, value, f"{key} {offset}: {value}")
        if attempt.fate is Fate.OPEN:
            raise Violation("nothing undecided is visible", f"{key} {offset}: of {attempt}")
        if attempt.fate is Fate.ABORTED:
            raise Violation("nothing aborted is visible", f"{key} {offset}: of {attempt}")
        self.acknowledge_commit(attempt)
        other = self._places.setdefault(key, {}).setdefault(value, offset)
        if other != offset:
            raise Violation("each record of a transaction is there once", f"{key}: {value} at {other} and at {offset}")
        if attempt.group_id is not None:
            effect = read_effect(value)
            effects = self._effects.setdefault(key, {})
            first = effects.setdefault((effect.source, effect.offset), effect)
            if first != effect:
                detail = f"{effect.source} {effect.offset} in {key}: by {self._name(first)} and by {self._name(effect)}"
                raise Violation("each input has its effect once", detail)

    def _name(self, effect: Effect) -> str:
        return str(self.attempts[effect.attempt])

    def _attempt_of(self, key: TopicPartition, value: str, where: str) -> Attempt:
        number = number_in(value)
        attempt = self.attempts[number] if number < len(self.attempts) else None
        if attempt is None or value not in attempt.values.get(key, ()):
            raise Violation("no invented record", where)
        return attempt

    def allows_offset(self, group_id: str, key: TopicPartition, offset: int) -> Attempt | None:
        """The transaction that may have committed this offset, or None. One that is seen is committed."""
        suspect = None
        for attempt in self.attempts:
            if attempt.group_id == group_id and attempt.offsets.get(key) == offset:
                if attempt.fate in (Fate.UNKNOWN, Fate.COMMITTED):
                    return attempt
                suspect = attempt
        if suspect is not None:
            raise Violation("only offsets of committed transactions count", f"{group_id} {key}: {offset} of {suspect}")
        return None

    def look_at_offset(self, group_id: str, key: TopicPartition, offset: int) -> None:
        """A broker has, or tells, a committed offset of a copiers' group."""
        if offset >= 0 and self.allows_offset(group_id, key, offset) is None:
            raise Violation("no invented offset", f"{group_id} {key}: {offset}")

    def told_stable(self, group_id: str, key: TopicPartition, offset: int, known_before: int) -> None:
        """A consumer that wants stable offsets was told one. `known_before`: what was committed when it asked."""
        self.look_at_offset(group_id, key, offset)
        if offset < known_before:
            detail = f"{group_id} {key}: told {offset}, committed was {known_before}"
            raise Violation("a stable offset is no earlier one", detail)

    # -- the end

    def check_all(self, logs: dict[TopicPartition, dict[int, str]]) -> None:
        """`logs`: what a read_committed consumer gets of each partition in the end, in full."""
        shown: dict[int, dict[TopicPartition, list[str]]] = {}
        for key, log in logs.items():
            for offset in sorted(log):
                shown.setdefault(number_in(log[offset]), {}).setdefault(key, []).append(log[offset])
            for offset, value in self.seen.get(key, {}).items():
                if log.get(offset) != value:
                    raise Violation("what was read stays", f"{key} {offset}: {value}, found {log.get(offset)}")
        for attempt in self.attempts:
            found = shown.get(attempt.number, {})
            for key, values in attempt.values.items():
                if attempt.fate is Fate.COMMITTED and found.get(key, []) != values:
                    detail = f"{attempt} in {key}: {found.get(key, [])} of {values}"
                    if found:
                        raise Violation("a transaction is whole or nothing", detail)
                    raise Violation("what is committed is visible", detail)

    def check_effects(
        self, group_id: str, inputs: dict[TopicPartition, list[int]], committed: dict[TopicPartition, int]
    ) -> None:
        """Below the committed offset every input has its effect in all outputs; from there on none has one."""
        for output in self.outputs[group_id]:
            effects = self._effects.get(output, {})
            for source, offsets in inputs.items():
                end = committed.get(source, -1)
                for offset in offsets:
                    effect = effects.get((source, offset))
                    if offset < end and effect is None:
                        detail = f"{source} {offset} has none in {output}, {group_id} has committed {end}"
                        raise Violation("each input has its effect", detail)
                    if offset >= end and effect is not None:
                        detail = f"{source} {offset} has one in {output}, {group_id} has committed {end}"
                        raise Violation("no effect without its offset", detail)
            for source, offset in effects:
                if offset not in inputs.get(source, ()):
                    raise Violation("no effect without its input", f"{source} {offset} in {output}")
