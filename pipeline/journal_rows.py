"""The table `barnabas.journal`: who has changed which committed offset, from where to where, and why.

Each record is decoded by the broker's own decoder (`offsets/journal.py` describes the format), and becomes a row for
each partition that it has changed. A record of a gap becomes one row, and so does a record that cannot be understood.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from barnabas.offsets.journal import NO_POSITION, NOT_KNOWN, Cause, Changes, Gap, UnknownVersionError, decode
from barnabas.offsets.records import NO_TOPIC_ID
from barnabas.pipeline.batches import Array
from barnabas.pipeline.columns import Rows, content_of, times
from barnabas.pipeline.commit_rows import unreadable
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import Records
from barnabas.pipeline.schemas import JOURNAL
from barnabas.pipeline.shared_columns import log_position_columns
from barnabas.protocol import uuids

COLUMNS = [one.name for one in JOURNAL.columns if not one.name.startswith("log_") and one.name != "directory"]
_WORDS = {cause: cause.words for cause in Cause}

Cells = tuple[Any, ...]


def journal_rows(records: Records, place: Place) -> Rows:
    """A row for each change, and for each gap. Records of later versions cannot be read. A damaged one is a gap."""
    data = records.data
    rows: list[Cells] = []
    counts = np.zeros(len(records), np.int64)
    unread: dict[str, Array] = {}  # by reason: which records
    for index in range(len(records)):
        key = content_of(data, records.key_at[index], records.key_bytes[index])
        value = content_of(data, records.value_at[index], records.value_bytes[index])
        before = len(rows)
        try:
            record = decode(key, value)
        except UnknownVersionError as error:
            unread.setdefault(str(error), np.zeros(len(records), bool))[index] = True
            continue
        except ValueError as error:
            # No broker has written it, but a client that may write to internal topics: it must not end the query.
            record = Gap(NO_POSITION, NO_POSITION, 0, int(records.timestamp_ms[index]), -1, str(error))
        rows += [_of_gap(record)] if isinstance(record, Gap) else _of_changes(record)
        counts[index] = len(rows) - before
    corrupt = [one for reason, which in unread.items() for one in unreadable(records, which, reason)]
    values = dict(zip(COLUMNS, zip(*rows) if rows else [()] * len(COLUMNS)))

    def column(name: str) -> pa.Array:
        type_ = JOURNAL.arrow.field(name).type
        if pa.types.is_timestamp(type_):
            return times(np.array(values[name], np.int64))
        return pa.array(values[name], type_)

    columns = {name: (lambda name=name: column(name)) for name in COLUMNS}
    records = records.repeated(counts)
    return Rows(records, columns | log_position_columns(records, place), corrupt, is_made=True)


def _of_changes(record: Changes) -> Iterator[Cells]:
    """The rows of a record of changes, in the order of the columns. Of a time −1 means that there is none."""
    shared = (False, record.time_ms, record.group_id, _WORDS[record.cause])
    who = (
        None if record.generation < 0 else record.generation,
        *(record.client_id or None, record.host or None, record.principal or None, record.member_id or None),
    )
    is_placed = record.position >= 0
    step = 0 if record.cause is Cause.TRANSACTION else 1
    end = record.end_position if is_placed else None
    for index, row in enumerate(record.rows):
        was_there, is_there = row.old_offset >= 0, row.new_offset >= 0
        yield (
            *shared,
            *(row.topic, _topic_id(row.topic_id), row.partition),
            row.old_offset if was_there else None,
            None if row.old_leader_epoch < 0 else row.old_leader_epoch,
            row.old_metadata if was_there else None,
            row.old_offset != NOT_KNOWN,
            row.new_offset if is_there else None,
            None if row.new_leader_epoch < 0 else row.new_leader_epoch,
            row.new_metadata if is_there else None,
            *who,
            *(record.position + index * step if is_placed else None, end),
            *(-1, None, None),
        )


def _of_gap(gap: Gap) -> Cells:
    nothing = (None,) * (COLUMNS.index("change_offset") - 2)
    begin, end, count = (None if one < 0 else one for one in (gap.position, gap.end_position, gap.change_count))
    return (True, gap.first_ms or -1, *nothing, begin, end, gap.last_ms or -1, count, gap.why)


@lru_cache(maxsize=1024)
def _topic_id(topic_id: bytes) -> str | None:
    return None if topic_id == NO_TOPIC_ID else uuids.to_text(topic_id)
