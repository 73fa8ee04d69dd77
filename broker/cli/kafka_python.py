"""What kafka-python does wrong, and commands and tests cannot do without: one function for each fault.

These functions know the inside of kafka-python 3.0, so pyproject.toml allows no later one before it was tested.
"""

from typing import Any


class _NoValue(bytes):
    pass


NO_VALUE = _NoValue()  # as the value of a header: it has none


class NotUtf8(str):
    """A name of a header that is not UTF-8, with a replacement character for each wrong byte, as Java has it."""


class _Lenient(bytes):
    """Bytes of records in which names of headers may be anything."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return found if isinstance(found, int) else _Lenient(found)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return NotUtf8(super().decode(encoding, "replace"))


def read_every_header_name() -> None:
    """Have consumers read records with a name of a header that is not UTF-8; it comes as `NotUtf8`.

    kafka-python says that such a batch is corrupt, and never reads on behind it.
    """
    from kafka.record.default_records import DefaultRecordBatch

    read: Any = getattr(DefaultRecordBatch, "_read_msg", None)
    if read is None or hasattr(read, "reads"):  # another version of kafka-python, or it is done
        return

    def lenient(batch: Any, *more: Any) -> Any:
        try:
            return read(batch, *more)
        except UnicodeDecodeError:
            batch._buffer = _Lenient(batch._buffer)
            return read(batch, *more)

    lenient.reads = read  # type: ignore[attr-defined]
    DefaultRecordBatch._read_msg = lenient


def send_headers_without_value() -> None:
    """Have producers send headers whose value is `NO_VALUE` without one: kafka-python takes no None for it."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    append: Any = DefaultRecordBatchBuilder.append
    if hasattr(append, "appends"):
        return

    def with_none(batch: Any, offset: int, timestamp: int, key: Any, value: Any, headers: Any) -> Any:
        sent = [(name, None if one is NO_VALUE else one) for name, one in headers]
        return append(batch, offset, timestamp, key, value, sent)

    with_none.appends = append  # type: ignore[attr-defined]
    DefaultRecordBatchBuilder.append = with_none


def take_up_every_assignment() -> None:
    """Have consumers ask again until they have taken up the assignment of every join that they begin.

    kafka-python 3.0 joins again when the metadata of its topics has changed since it assigned them. If its `poll` ends
    before that join does, the next `poll` finds the metadata unchanged: nobody takes up the assignment, and the member
    owns nothing for ever. A join that is marked as needed from its begin is taken up by a later `poll`.
    """
    from kafka.coordinator.base import BaseCoordinator

    join: Any = getattr(BaseCoordinator, "join_group_async", None)
    if join is None or hasattr(join, "marks"):  # another version of kafka-python, or it is done
        return

    async def marked(coordinator: Any, timeout_ms: float | None = None) -> Any:
        if coordinator.need_rejoin():
            coordinator.request_rejoin()
        return await join(coordinator, timeout_ms=timeout_ms)

    marked.marks = join  # type: ignore[attr-defined]
    BaseCoordinator.join_group_async = marked
