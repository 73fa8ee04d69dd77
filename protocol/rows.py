"""Rows of a message that stay bytes until somebody asks for one.

A commit of many offsets has a row for each, and mostly these differ in their numbers alone: no metadata, no tagged
fields. So all have the same size. The decoder then leaves them as they are, as `Rows`: a sequence that makes rows for
those who ask for them. Who knows the layout takes whole columns out of the bytes (`cut`), and makes the rows of an
answer of a column (`pad`), or one by one.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, overload

from barnabas.protocol.schema import FIXED
from barnabas.protocol.varint import decode_unsigned

if TYPE_CHECKING:
    from barnabas.protocol.message import Message
    from barnabas.protocol.schema import Structure

# Structures that are read, or written, so, and from which version on. Their fields are numbers, and texts that may be
# null; behind the numbers of those that are read there is one text at most.
READ: Final = {"OffsetCommitRequestPartition": 6}
WRITTEN: Final = {
    "OffsetCommitResponsePartition": 0,
    "OffsetFetchResponsePartition": 0,
    "OffsetFetchResponsePartitions": 8,
}
ROWS_MIN: Final = 2  # fewer rows are objects
_NULL_OR_EMPTY: Final = (b"\xff\0", b"\0\1")  # the bytes of the length of such a text; the second: in flexible versions


class RowLayout:
    """How rows lie in one version: their fields in order, and no tagged fields. `size_bytes`: without texts."""

    __slots__ = ("_is_flexible", "_parts", "_type", "is_read", "size_bytes")

    def __init__(self, message: "type[Message]", structure: "Structure", version: int) -> None:
        fields = [field for field in structure.fields if field.is_in(version)]
        self._type = message._NAMESPACE[structure.name]
        self._is_flexible = version >= message.SCHEMA.flexible_since
        self.size_bytes = int(self._is_flexible)
        # Some numbers, by name, or one text.
        self._parts: list[tuple[list[str], Struct | None]] = []
        for is_number, some in groupby(fields, lambda field: field.type in FIXED):
            part = list(some)
            names = [field.name for field in part]
            if is_number:
                numbers = Struct(">" + "".join(FIXED[field.type] for field in part))
                self._parts.append((names, numbers))
                self.size_bytes += numbers.size
            else:
                self._parts += [([name], None) for name in names]
                self.size_bytes += len(names) * (1 if self._is_flexible else 2)
        self.is_read = structure.name in READ

    def fits(self, data: bytes) -> bool:
        """Whether all rows have no text and no tagged fields."""
        size = self.size_bytes
        lengths, last = data[size - 2 :: size], data[size - 1 :: size]
        if lengths.strip(_NULL_OR_EMPTY[self._is_flexible]):
            return False
        return last == (bytes(len(last)) if self._is_flexible else lengths)

    def rows(self, data: bytes) -> Iterator[Any]:
        """The rows, made anew."""
        at = 0
        while at < len(data):
            values: dict[str, Any] = {}
            for names, numbers in self._parts:
                if numbers is None:
                    values[names[0]], at = self._text(data, at)
                else:
                    values.update(zip(names, numbers.unpack_from(data, at), strict=True))
                    at += numbers.size
            at += self._is_flexible
            yield self._type(**values)

    def _text(self, data: bytes, at: int) -> tuple[str | None, int]:
        if self._is_flexible:
            size, at = decode_unsigned(data, at)
            size -= 1
        else:
            size, at = int.from_bytes(data[at : at + 2], "big", signed=True), at + 2
        return (None, at) if size < 0 else (data[at : at + size].decode(), at + size)


class Rows(Sequence[Any]):
    """So many rows as bytes. They are made anew for each who asks, so to change one changes nothing."""

    __slots__ = ("data", "layout", "row_count")

    def __init__(self, layout: RowLayout, data: bytes, count: int) -> None:
        self.layout = layout
        self.data = data
        self.row_count = count

    def __len__(self) -> int:
        return self.row_count

    def __iter__(self) -> Iterator[Any]:
        return self.layout.rows(self.data)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Rows) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))


_layouts: dict[tuple[str, int], RowLayout] = {}


def row_layout(message: "type[Message]", name: str, version: int) -> RowLayout | None:
    """The layout of the structures of this name; None: they are always objects."""
    if version < READ.get(name, WRITTEN.get(name, version + 1)):
        return None
    layout = _layouts.get((name, version))
    if layout is None:
        layout = _layouts[name, version] = RowLayout(message, message.SCHEMA.structures[name], version)
    return layout


def read_rows(layout: RowLayout, buffer: memoryview, position: int, count: int) -> Rows | None:
    """So many rows as bytes, which are there; None: some are not of this layout. Its twin in C: native/decode.c."""
    data = bytes(buffer[position : position + count * layout.size_bytes])
    return Rows(layout, data, count) if layout.fits(data) else None


def cut(data: bytes, row_bytes: int, first: int, second: int) -> tuple[bytes, bytes]:
    """Of each row the first bytes, so many, and those behind them. Its twin in C: native/rows.c."""
    found = _pieces(len(data) // row_bytes, f"{first}s{second}s{row_bytes - first - second}x").unpack(data)
    return b"".join(found[::2]), b"".join(found[1::2])


def pad(column: bytes, size: int, row_bytes: int) -> bytes:
    """Rows that begin with a piece of a column, with zeros behind it. Its twin in C: native/rows.c."""
    zeros = bytes(row_bytes - size)
    return zeros.join(split(column, size)) + zeros


def split(column: bytes, size: int) -> tuple[bytes, ...]:
    """The pieces of a column."""
    return _pieces(len(column) // size, f"{size}s").unpack(column)


@lru_cache(maxsize=256)
def _pieces(count: int, layout: str) -> Struct:
    return Struct(">" + layout * count)
