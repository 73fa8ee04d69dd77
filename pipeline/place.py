"""Where a buffer of batches comes from."""

from dataclasses import dataclass
from typing import NamedTuple

from barnabas.pipeline.batches import Batches
from barnabas.pipeline.transactions import Transactions


@dataclass
class Place:
    """A partition, and over which way a buffer of it was read."""

    topic: str
    partition: int
    transactions: Transactions
    directory: str | None = None  # None over the wire
    segment: str | None = None  # a file's name
    position: int = 0  # of the buffer in the segment


class Read(NamedTuple):
    """What was read: batches, and which of their offsets are wanted."""

    place: Place
    batches: Batches
    low: int
    high: int
    only: bool | None = None  # those in transactions (True), or those outside of any (False)
