"""How the transaction of a batch ended: committed, aborted, or not yet."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from barnabas.pipeline.batches import Array, Batches
from barnabas.protocol.batch_layout import CONTROL, HEADER_BYTES, TRANSACTIONAL
from barnabas.runtime.grouped import grouped

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
    open_since: tuple[tuple[int, int], ...] | None = None  # by producer; None: all from the last stable offset on


class Transactions:
    """The transactions of one partition. What is needed to know them is read when the first one is seen."""

    def __init__(self, read: Callable[[], Ended]) -> None:
        self._read = read

    @cached_property
    def _known(self) -> Ended:
        return self._read()

    @cached_property
    def _aborted(self) -> dict[int, tuple[Array, Array]]:
        return _by_producer(self._known.aborted)

    def states(self, batches: Batches) -> Array:
        """For each batch NONE (it is part of no transaction), COMMITTED, ABORTED or OPEN."""
        states = np.full(len(batches), NONE, np.int8)
        transactional = np.flatnonzero(batches.headers["attributes"] & TRANSACTIONAL)
        if not len(transactional):
            return states
        known = self._known
        offsets = batches.of("base_offset")[transactional]
        producers = batches.of("producer_id")[transactional]
        is_open = offsets >= known.last_stable_offset
        if known.open_since is not None:
            is_open[:] = False
            for producer, since in known.open_since:
                is_open |= (producers == producer) & (offsets >= since)
        states[transactional] = np.where(is_open, OPEN, COMMITTED)
        for producer in np.unique(producers).tolist():
            if producer not in self._aborted:
                continue
            firsts, lasts = self._aborted[producer]
            mine = np.flatnonzero((producers == producer) & ~is_open)
            which = np.minimum(np.searchsorted(lasts, offsets[mine]), len(lasts) - 1)
            inside = (firsts[which] <= offsets[mine]) & (offsets[mine] <= lasts[which])
            states[transactional[mine[inside]]] = ABORTED
        return states

    def readable(self, batches: Batches) -> Array:
        """Whether each batch is outside of transactions, or its transaction is committed."""
        return self.states(batches) <= COMMITTED

    def stable(self, batches: Batches) -> Array:
        """Whether each batch lies below all that is undecided."""
        return batches.last_offsets < self._known.last_stable_offset


@dataclass
class Deciding:
    """Transactions begin and end as the batches of a log do, which must come in their order."""

    open_since: dict[int, int] = field(default_factory=dict)  # by producer
    aborted: set[Aborted] = field(default_factory=set)

    def take(self, batches: Batches) -> None:
        """The next batches."""
        transactional = batches.only((batches.of("attributes") & TRANSACTIONAL) != 0)
        for producer, offset, kind, is_control in zip(
            transactional.of("producer_id").tolist(),
            transactional.of("base_offset").tolist(),
            control_types(transactional).tolist(),
            ((transactional.of("attributes") & CONTROL) != 0).tolist(),
        ):
            if not is_control:
                self.open_since.setdefault(producer, offset)
            elif kind >= 0:
                since = self.open_since.pop(producer, None)
                if kind == 0 and since is not None:
                    self.aborted.add(Aborted(producer, since, offset))

    def ended(self, end_offset: int, aborted: Iterable[Aborted] = ()) -> Ended:
        """What is known when the batches below this offset were taken; with what else is known to be aborted."""
        stable = min(self.open_since.values(), default=end_offset)
        return Ended(stable, tuple(sorted(self.aborted.union(aborted))), tuple(sorted(self.open_since.items())))


def _by_producer(aborted: Iterable[Aborted]) -> dict[int, tuple[Array, Array]]:
    """The first and last offsets of each producer's transactions. One producer's do not overlap."""
    result = {}
    for producer, found in grouped((one.producer_id, (one.last_offset, one.first_offset)) for one in aborted).items():
        columns = np.array(sorted(found), np.int64)
        result[producer] = (columns[:, 1].copy(), columns[:, 0].copy())
    return result


def control_types(batches: Batches) -> Array:
    """The type of each control batch's only record (0 abort, 1 commit), −1 for other batches and other types.

    The record: length, attributes, timestamp and offset delta (one byte each but the length), then a key of 4 bytes:
    version and type, int16 each.
    """
    result = np.full(len(batches), -1, np.int32)
    for index in np.flatnonzero(batches.headers["attributes"] & CONTROL).tolist():  # one for each transaction
        start = int(batches.starts[index]) + HEADER_BYTES
        content = batches.data[start : start + 9].tobytes()
        if len(content) == 9 and content[4] == 8:  # 4 bytes, as a zigzag number
            type_ = int.from_bytes(content[7:9], "big", signed=True)
            result[index] = type_ if type_ in (0, 1) else -1
    return result
