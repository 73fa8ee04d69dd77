"""What brokers had at a moment, in a folder."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """All that brokers had at a moment: records, offsets, groups, transactions, the tree, and how far time had gone."""

    folder: Path
    clock_ahead_ms: int
    next_requests: dict[int, int] = field(default_factory=dict)
    """Of each broker that ran: the number of its next request, as `Barnabas.requests(since=…)` takes it."""
