"""A long message as several short ones, which are handled one after the other."""

from collections.abc import Iterator
from copy import copy
from typing import Any, TypeVar

from barnabas.protocol.message import Message

M = TypeVar("M", bound=Message)


def count_rows(message: Message, topics: str, rows: str) -> int:
    """The rows in the lists called `rows` of the structures in the list called `topics`. No row counts as one."""
    return sum([max(len(getattr(topic, rows)), 1) for topic in getattr(message, topics)])


def in_parts(message: M, topics: str, rows: str, rows_max: int) -> Iterator[M]:
    """The rows in their order, in copies of the message with at most `rows_max` of them. Copies share the rows."""
    assert rows_max > 0, "a part without room for a row"
    part: list[Any] = []
    room = rows_max
    for topic in getattr(message, topics):
        all_rows = getattr(topic, rows)
        first = 0
        while True:
            if room <= 0:
                yield _with(message, topics, part)
                part, room = [], rows_max
            some = all_rows[first : first + room]
            part.append(_with(topic, rows, some))
            room -= max(len(some), 1)
            first += len(some)
            if first >= len(all_rows):
                break
    yield _with(message, topics, part)


def join(answer: Message, part: Message, topics: str, rows: str) -> None:
    """Append the topics of the answer to a part. A topic that was divided is put together."""
    joined: list[Any] = getattr(answer, topics)
    for topic in getattr(part, topics):
        if joined and (joined[-1].name, joined[-1].topic_id) == (topic.name, topic.topic_id):
            getattr(joined[-1], rows).extend(getattr(topic, rows))
        else:
            joined.append(topic)


def _with(original: Any, field: str, value: list[Any]) -> Any:
    changed = copy(original)
    setattr(changed, field, value)
    return changed
