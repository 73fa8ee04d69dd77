"""Rows of a message that stay bytes until somebody asks for one.

A commit of many offsets has a row for each, and mostly these differ in their numbers alone: no metadata, no tagged
fields. So all have the same size. The decoder then leaves them as they are, as `Rows`: a sequence that makes rows for
those who ask for them. Who knows the layout takes whole columns out of the bytes (`cut`), and makes the rows of an
answer of a column (`pad`).
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, overload

from barnabas.protocol.schema import FIXED, SIZES

if TYPE_CHECKING:
    from barnabas.protocol.message import Message
    from barnabas.protocol.schema import Structure

# Structures that are read, or written, so, and from which version on. Their fields are numbers, and behind them a text
# that may be null.
READ: Final = {"OffsetCommitRequestPartition": 6}
WRITTEN: Final = {"OffsetCommitResponsePartition": 0}
ROWS_MIN: Final = 2  # fewer rows are objects
_NULL_OR_EMPTY: Final = (b"\xff\0", b"\0\1")  # the bytes of the length of such a text; the second: in flexible versions


class RowLayout:
    """How rows lie in one version: their numbers, and behind them nothing, or what says that there is no more."""

    __slots__ = ("_is_flexible", "_names", "_numbers", "_text", "_type", "is_read", "size_bytes", "tail_bytes")

    def __init__(self, message: "type[Message]", structure: "Structure", version: int) -> None:
        fields = [field for field in structure.fields if field.is_in(version)]
        numbers = [field for field in fields if field.type in FIXED]
        texts = [field for field in fields if field.type not in FIXED]
        assert fields == numbers + texts
        self._type = message._NAMESPACE[structure.name]
        self._names = [field.name for field in numbers]
        self._text = texts[0].name if texts else ""
        self._is_flexible = version >= message.SCHEMA.flexible_since
        formats = [FIXED[field.type] for field in numbers]
        text_bytes = 0 if not texts else 1 if self._is_flexible else 2
        self.tail_bytes = text_bytes + self._is_flexible
        self.size_bytes = sum(SIZES[each] for each in formats) + self.tail_bytes
        self._numbers = Struct(f">{''.join(formats)}{self.tail_bytes}x")
        self.is_read = structure.name in READ

    def fits(self, data: bytes) -> bool:
        """Whether all rows are of this layout: no text, no tagged fields."""
        size = self.size_bytes
        lengths, last = data[size - 2 :: size], data[size - 1 :: size]
        if lengths.strip(_NULL_OR_EMPTY[self._is_flexible]):
            return False
        return last == (bytes(len(last)) if self._is_flexible else lengths)

    def row(self, data: bytes, index: int) -> Any:
        """The row, made anew."""
        at = index * self.size_bytes
        values = dict(zip(self._names, self._numbers.unpack_from(data, at), strict=True))
        if self._text:
            is_empty = data[at + self.size_bytes - self.tail_bytes] == self._is_flexible
            values[self._text] = "" if is_empty else None
        return self._type(**values)


class Rows(Sequence[Any]):
    """Rows as bytes. Each that is asked for is made anew, so to change it changes nothing."""

    __slots__ = ("data", "layout")

    def __init__(self, layout: RowLayout, data: bytes) -> None:
        self.layout = layout
        self.data = data

    def __len__(self) -> int:
        return len(self.data) // self.layout.size_bytes

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        found = range(len(self))[index]
        if isinstance(found, int):
            return self.layout.row(self.data, found)
        return [self.layout.row(self.data, each) for each in found]

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
    return Rows(layout, data) if layout.fits(data) else None


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
