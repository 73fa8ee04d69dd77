"""What waits to be written into the offset journal: records of one batch, or the word that some are lost."""

from __future__ import annotations

from barnabas.offsets import journal as form
from barnabas.offsets.journal import Gap

RECORD_BYTES = 24  # what a batch needs for a record besides its key and value, at most


class Part:
    """Keys and values of records that will be one batch."""

    __slots__ = ("contents", "count", "end_position", "first_ms", "last_ms", "position", "size_bytes")

    def __init__(self, position: int, first_ms: int) -> None:
        self.contents: list[tuple[bytes, bytes]] = []
        self.size_bytes = 0
        self.count = 0  # changes
        self.position = position
        self.end_position = position
        self.first_ms = self.last_ms = first_ms

    def add(self, key: bytes, value: bytes, count: int, end_position: int, now_ms: int) -> None:
        self.contents.append((key, value))
        self.size_bytes += len(key) + len(value) + RECORD_BYTES
        self.count += count
        self.end_position = end_position
        self.last_ms = now_ms


class Lost:
    """A gap that is not written yet."""

    __slots__ = ("count", "end_position", "first_ms", "last_ms", "position", "why")

    def __init__(self, why: str, position: int, first_ms: int) -> None:
        self.why = why
        self.count = 0
        self.position = position
        self.end_position = position
        self.first_ms = self.last_ms = first_ms

    def add(self, count: int, end_position: int, now_ms: int) -> None:
        self.count += count
        self.end_position = max(end_position, self.end_position)
        self.last_ms = max(now_ms, self.last_ms)


def gap_part(gap: Gap) -> Part:
    part = Part(gap.position, gap.first_ms)
    part.add(b"", form.encode_gap(gap), 0, gap.end_position, gap.last_ms)
    return part
