"""The book of what producers, consumers and members asked for, were told and read, and the invariants over it."""

from collections.abc import Iterable

from barnabas.runtime.grouped import grouped

from simulator.commits import Commits
from simulator.violation import Violation

TopicPartition = tuple[str, int]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, in order."""
    return grouped(sorted(partitions))


def number_of(value: str) -> int:
    """The number in a value `producer:number ...` or `key:number ...`."""
    return int(value.partition(":")[2].partition(" ")[0])


class Ledger:
    """The book of one run. Its methods raise Violation.

    `groups_are_weak`: a leader change may take the record of a group, so the next coordinator may count a generation
    again.
    """

    def __init__(self, commits: Commits, *, groups_are_weak: bool = False) -> None:
        self.commits = commits
        self.groups_are_weak = groups_are_weak
        self.sent: dict[str, int] = {}  # every value that was sent, and how often it may be in the log
        self.acknowledged: dict[TopicPartition, dict[int, str]] = {}  # offset -> value
        self.read: dict[TopicPartition, dict[int, str]] = {}  # the records that consumers got
        self.deletions_sent: dict[str, int] = {}  # key of a compacted topic -> number of its last deletion
        self.with_retention: dict[str, None] = {}  # topics with retention, whose log start rises by itself
        self.deletions_asked: dict[TopicPartition, int] = {}  # the offset up to which a client asked to delete records
        self.owners: dict[str, dict[tuple[int, TopicPartition], str]] = {}  # by group
        self.generations: dict[str, int] = {}  # group -> the highest generation in which a client got an assignment
        self.gone_ms: dict[str, float] = {}  # group -> when it was last seen to be gone
        self.last_sign_ms: dict[tuple[str, str], float] = {}  # (group, member) -> when it last sent anything
        self.acknowledgements = 0
        self.assignments = 0

    # -- producers and consumers

    def acknowledge(self, key: TopicPartition, base_offset: int, values: list[str]) -> None:
        """The broker said that these values have offsets from `base_offset` on."""
        known = self.acknowledged.setdefault(key, {})
        for offset, value in enumerate(values, base_offset):
            if base_offset < 0 or known.setdefault(offset, value) != value:
                raise Violation("one record per offset", f"{key} {offset}: {value}, was {known.get(offset)}")
            if self.read.get(key, {}).get(offset, value) != value:
                raise Violation("acknowledged is what is read", f"{key} {offset}: {value} was not read")
        self.acknowledgements += 1

    def consume(self, key: TopicPartition, offset: int, value: str) -> None:
        """A consumer got a record."""
        if value not in self.sent:
            raise Violation("no invented record", f"{key} {offset}: {value}")
        if self.read.setdefault(key, {}).setdefault(offset, value) != value:
            raise Violation("what was read stays", f"{key} {offset}: {value}, was {self.read[key][offset]}")
        if self.acknowledged.get(key, {}).get(offset, value) != value:
            raise Violation("acknowledged is what is read", f"{key} {offset}: {value}")

    def ask_record_deletion(self, key: TopicPartition, offset: int) -> None:
        """A client is about to delete the records below an offset."""
        self.deletions_asked[key] = max(offset, self.deletions_asked.get(key, 0))

    def log_start_allowed(self, key: TopicPartition) -> float:
        """The highest log start that is allowed."""
        return float("inf") if key[0] in self.with_retention else self.deletions_asked.get(key, 0)

    def check_partition(self, key: TopicPartition, log: dict[int, str], log_start_offset: int) -> None:
        """Check a whole partition at the end of the run, as a consumer reads it."""
        for name, book in (("acknowledged", self.acknowledged), ("read", self.read)):
            for offset, value in book.get(key, {}).items():
                if offset >= log_start_offset and log.get(offset) != value:
                    raise Violation(f"what was {name} is there", f"{key} {offset}: {value}, found {log.get(offset)}")
        last: dict[str, int] = {}
        times: dict[str, int] = {}
        for offset in sorted(log):
            value = log[offset]
            if value not in self.sent:
                raise Violation("no invented record", f"{key} {offset}: {value}")
            producer, number = value.partition(":")[0], number_of(value)
            times[value] = times.get(value, 0) + 1
            again = times[value] <= self.sent[value] and number == last.get(producer)
            if number <= last.get(producer, -1) and not again:
                raise Violation("once and in order", f"{key} {offset}: {value} behind number {last[producer]}")
            last[producer] = number

    def check_compacted(self, key: TopicPartition, log: dict[int, str]) -> None:
        """Check a compacted partition at the end: of each key it must have the last acknowledged value or a later one.

        A value is `key:number`, with a "-" behind it if it deletes the key.
        """
        newest: dict[str, int] = {}
        for offset in sorted(log):
            newest[log[offset].partition(":")[0]] = offset
        latest: dict[str, int] = {}
        for offset in sorted(self.acknowledged.get(key, {})):
            latest[self.acknowledged[key][offset].partition(":")[0]] = offset
        for name, offset in latest.items():
            found = newest.get(name, -1)
            number = number_of(self.acknowledged[key][offset])
            if found < offset and not (found < 0 and self.deletions_sent.get(name, -1) >= number):
                raise Violation("the latest value of a key stays", f"{key} {name}: {offset}, found {found}")

    # -- groups

    def assigned(
        self, group_id: str, generation: int, owner: str, partitions: list[TopicPartition], asked_ms: float
    ) -> None:
        """A member got its assignment, for which it had asked at `asked_ms`."""
        self.assignments += 1
        if asked_ms <= self.gone_ms.get(group_id, -1.0):
            return  # of a group that is gone; the next group of that name begins anew
        self.generations[group_id] = max(generation, self.generations.get(group_id, -1))
        owners = self.owners.setdefault(group_id, {})
        for partition in partitions:
            other = owners.setdefault((generation, partition), owner)
            if other != owner and not self.groups_are_weak:
                detail = f"{partition} of {group_id} in generation {generation}: {other} and {owner}"
                raise Violation("one owner per generation", detail)

    def group_is_gone(self, group_id: str, now_ms: float) -> None:
        """The broker has removed the group, as it may: the next group of that name begins anew."""
        self.generations.pop(group_id, None)
        self.owners.pop(group_id, None)
        self.gone_ms[group_id] = now_ms
