"""How the transaction of a batch ended: committed, aborted, or not yet."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from barnabas.pipeline.batches import Array, Batches
from barnabas.protocol.batch_layout import TRANSACTIONAL

NONE, COMMITTED, ABORTED, OPEN = -1, 0, 1, 2
STATES = ("committed", "aborted", "open")


class Aborted(NamedTuple):
    """An aborted transaction: its producer, and its first and last offset (that of its marker)."""

    producer_id: int
    first_offset: int
    last_offset: int


class Ended(NamedTuple):
    """What is known of the transactions of a log below the end that is read."""

    last_stable_offset: int  # from here on there are undecided records
    aborted: tuple[Aborted, ...]


class Transactions:
    """The transactions of one partition. What is needed to know them is read when the first one is seen."""

    def __init__(self, read: Callable[[], Ended]) -> None:
        self._read = read
        self._ended: Ended | None = None
        self._aborted: dict[int, tuple[Array, Array]] = {}

    @property
    def last_stable_offset(self) -> int:
        """The first offset that is not decided."""
        return self._known().last_stable_offset

    def _known(self) -> Ended:
        if self._ended is None:
            self._ended = self._read()
            self._aborted = _by_producer(self._ended.aborted)
        return self._ended

    def states(self, batches: Batches) -> Array:
        """For each batch NONE (it is part of no transaction), COMMITTED, ABORTED or OPEN."""
        states = np.full(len(batches), NONE, np.int8)
        transactional = np.flatnonzero(batches.headers["attributes"] & TRANSACTIONAL)
        if not len(transactional):
            return states
        stable = self._known().last_stable_offset
        offsets = batches.of("base_offset")[transactional]
        producers = batches.of("producer_id")[transactional]
        states[transactional] = np.where(offsets < stable, COMMITTED, OPEN)
        for producer in np.unique(producers).tolist():
            if producer not in self._aborted:
                continue
            firsts, lasts = self._aborted[producer]
            mine = np.flatnonzero((producers == producer) & (offsets < stable))
            which = np.minimum(np.searchsorted(lasts, offsets[mine]), len(lasts) - 1)
            inside = (firsts[which] <= offsets[mine]) & (offsets[mine] <= lasts[which])
            states[transactional[mine[inside]]] = ABORTED
        return states

    def readable(self, batches: Batches) -> Array:
        """Whether a consumer that reads committed records gets each batch."""
        states = self.states(batches)
        return (states <= COMMITTED) & (batches.last_offsets < self.last_stable_offset)


def _by_producer(aborted: Iterable[Aborted]) -> dict[int, tuple[Array, Array]]:
    """The first and last offsets of each producer's transactions. One producer's do not overlap."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for one in aborted:
        ranges.setdefault(one.producer_id, []).append((one.last_offset, one.first_offset))
    result = {}
    for producer, found in ranges.items():
        columns = np.array(sorted(found), np.int64)
        result[producer] = (columns[:, 1].copy(), columns[:, 0].copy())
    return result
