"""What open transactions hold back from a query that follows: said while it runs, because it does not end by itself."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow.compute as pc
from barnabas.pipeline.errors import LostRecordsError
from barnabas.pipeline.history_state import held_back
from barnabas.pipeline.once import GROUP_PREFIX
from barnabas.pipeline.options import ranges_text
from barnabas.pipeline.schemas import COMMITS
from barnabas.pipeline.small_tables import rows_of
from barnabas.pipeline.source import Source
from barnabas.pipeline.wire import UnreachableError

Ranges = dict[int, tuple[tuple[int, int]]]


def _print(sentence: str) -> None:
    print(f"{sentence}.", file=sys.stderr, flush=True)


@dataclass
class HeldBack:
    """Looks at a source from time to time.

    A transaction that is open at one look is nothing to speak of: another one is, nearly always, in a group whose
    commits are in transactions. What holds back the same offset at two looks is said once, and when it is over.
    """

    source: Source
    options: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = _print
    _first: dict[int, int] = field(default_factory=dict)  # the first undecided offset at the last look, by partition
    _said: dict[int, int] = field(default_factory=dict)  # the same of what was said

    def look(self) -> None:
        """Say what is new. A source that cannot be read now is not: the query itself says so."""
        with suppress(UnreachableError, LostRecordsError, OSError):
            ranges = self.source.undecided()
            first = {partition: low for partition, ((low, _),) in ranges.items()}
            stays = {partition: low for partition, low in first.items() if self._first.get(partition) == low}
            self._first = first
            if stays == self._said:
                return
            groups = open_groups(self.source, {partition: ranges[partition] for partition in stays}, self.options)
            if groups:
                self.say(held_back(len(groups), groups))
            elif self._said:
                self.say("What open transactions held back counts now")
            self._said = stays


def open_groups(source: Source, ranges: Ranges, options: Mapping[str, str]) -> list[str]:
    """The group of each commit in an open transaction, of those in these ranges."""
    if not ranges:
        return []
    wanted = {**source.where(), **options, "ranges": ranges_text(ranges), "columns": "group_id,transaction"}
    groups: list[str] = []
    for rows in rows_of(COMMITS.name, wanted)[1]:
        groups += rows.filter(pc.equal(rows["transaction"], "open"))["group_id"].to_pylist()
    return [group for group in groups if not group.startswith(GROUP_PREFIX)]
