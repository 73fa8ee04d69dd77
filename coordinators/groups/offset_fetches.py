"""OffsetFetch, in every version. Version 0 reads the tree (offsets/zookeeper.py), and any broker answers it.

The rows of an answer are written as the bytes that they are on the wire (protocol/rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.coordinators.groups.consumer.commits import check_fetch
from barnabas.coordinators.groups.consumer.topics import Topics
from barnabas.coordinators.groups.requests import ROWS_PER_PIECE, Context, Gate
from barnabas.coordinators.groups.shard import Shard
from barnabas.offsets.manager import OffsetManager, Offsets, Partitions
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset
from barnabas.offsets.zookeeper import ZooKeeperOffsetManager
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.rows import Rows, row_layout
from barnabas.protocol.varint import encode_unsigned
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, Turns, chunks

if TYPE_CHECKING:
    from barnabas.protocol.messages import OffsetFetchRequest, OffsetFetchResponse

    FetchReply = OffsetFetchResponse | Pending[OffsetFetchResponse]

FIRST_VERSION_WITH_LEADER_EPOCH: Final = 5
FIRST_FLEXIBLE_VERSION: Final = 6
FIRST_VERSION_WITH_MEMBER_EPOCH: Final = 9
NO_OFFSET: Final = CommittedOffset(-1)
NONE: Final = ErrorCode.NONE
_start_of_row: Final = Struct(">iqi").pack  # partition, offset; leader epoch, which old versions do not have
_INT16: Final = Struct(">h")
# A requested topic: its name (None: the id is unknown), its id, the partitions.
_Asked = tuple[str | None, bytes, list[int]]


class ReadGate(Gate, Protocol):
    """The way to a group for who only reads its offsets."""

    @property
    def ownership(self) -> tuple[int, bool]:
        """Changes when this broker may have lost a group."""

    def readable_shard_of(self, group_id: str) -> Shard | ErrorCode:
        """The shard that owns a group, also while it loads, if it is known which of its offsets are in doubt."""


class OffsetFetches:
    """Answers OffsetFetch. `offsets` is the storage of all versions but version 0."""

    def __init__(
        self, turns: Turns, gate: ReadGate, topics: Topics, offsets: OffsetManager, tree: ZooKeeperOffsetManager
    ) -> None:
        self._turns = turns
        self._gate = gate
        self._topics = topics
        self._offsets = offsets
        self._tree = tree

    def offset_fetch(self, request: OffsetFetchRequest, context: Context) -> FetchReply:
        """Committed offsets of one group (v0-7) or of several (v8+)."""
        return self._turns.run(self._fetch_while_it_owns(request, context.api_version))

    def _fetch_while_it_owns(self, request: OffsetFetchRequest, version: int) -> Pieces[OffsetFetchResponse]:
        """Fetch again if this broker lost a group between the pieces: another coordinator may have newer offsets."""
        fetch = self._fetch_groups if version >= 8 else self._fetch_flat
        while True:
            before = self._gate.ownership
            response = yield from fetch(request, version)
            if version == 0 or self._gate.ownership == before:
                return response

    def _fetch_flat(self, request: OffsetFetchRequest, version: int) -> Pieces[OffsetFetchResponse]:
        asked: list[_Asked] | None = None
        if request.topics is not None:
            asked = [(topic.name, NO_TOPIC_ID, topic.partition_indexes) for topic in request.topics]
        found: Offsets | Pending[Offsets]
        if version > 0:
            found = self._get(request.group_id, _named(asked), request.require_stable)
        elif request.group_id == "":
            found = Offsets(ErrorCode.INVALID_GROUP_ID, {})
        else:
            known = []
            for topic, indexes in _named(asked) or ():
                for piece in chunks(indexes, ROWS_PER_PIECE):
                    yield
                    known.append((topic, [index for index in piece if self._topics.contains(topic, index)]))
            found = self._tree.get(None, request.group_id, known)
        if isinstance(found, Pending):
            found = yield found
        assert isinstance(found, Offsets)
        response = messages.OffsetFetchResponse()
        if found.error and version >= 2:
            response.error_code = found.error
            return response
        make_topic = messages.OffsetFetchResponse.OffsetFetchResponseTopic
        for name, _, indexes in asked if asked is not None else _all_topics(found):
            if response.topics:
                yield
            rows = yield from _rows(found, name, indexes, NO_TOPIC_ID, version)
            response.topics.append(make_topic(name=name or "", partitions=rows))
        return response

    def _fetch_groups(self, request: OffsetFetchRequest, version: int) -> Pieces[OffsetFetchResponse]:
        answers: list[tuple[str, list[_Asked] | None, Offsets | Pending[Offsets]]] = []
        for entry in request.groups:  # ask for all groups first, so that they wait at the same time
            if answers:
                yield
            asked = self._asked_of_group(entry, version)
            error = self._check(entry) if version >= FIRST_VERSION_WITH_MEMBER_EPOCH else NONE
            found = Offsets(error, {}) if error else self._get(entry.group_id, _named(asked), request.require_stable)
            answers.append((entry.group_id, asked, found))
        response = messages.OffsetFetchResponse()
        for group_id, asked, found in answers:
            if response.groups:
                yield
            if isinstance(found, Pending):
                found = yield found
            assert isinstance(found, Offsets)
            response.groups.append((yield from self._group_answer(group_id, asked, found, version)))
        return response

    def _check(self, entry: OffsetFetchRequest.OffsetFetchRequestGroup) -> ErrorCode:
        """Whether the member is one of its group, and in its epoch. Classic groups do not ask for that."""
        if entry.member_id is None and entry.member_epoch < 0:
            return ErrorCode.NONE
        shard = self._gate.shard_of(entry.group_id)  # members are known only when all is loaded
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.consumer.by_id.get(entry.group_id)
        return ErrorCode.NONE if group is None else check_fetch(group, entry.member_id, entry.member_epoch)

    def _asked_of_group(self, entry: OffsetFetchRequest.OffsetFetchRequestGroup, version: int) -> list[_Asked] | None:
        if entry.topics is None:
            return None
        if version < 10:
            return [(topic.name, NO_TOPIC_ID, topic.partition_indexes) for topic in entry.topics]
        topics = self._topics
        return [(topics.topic_name(topic.topic_id), topic.topic_id, topic.partition_indexes) for topic in entry.topics]

    def _group_answer(
        self, group_id: str, asked: list[_Asked] | None, found: Offsets, version: int
    ) -> Pieces[OffsetFetchResponse.OffsetFetchResponseGroup]:
        group = messages.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id)
        if found.error:
            group.error_code = found.error
            return group
        topics = asked
        if topics is None:
            topics = _all_topics(found)
            if version >= 10:  # the answer can name a topic only by its id
                with_ids = [(name, self._topics.topic_id(name or ""), indexes) for name, _, indexes in topics]
                topics = [topic for topic in with_ids if topic[1] != NO_TOPIC_ID]
        make_topic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
        for name, topic_id, indexes in topics:
            if group.topics:
                yield
            told = (name or "") if version < 10 else ""
            rows = yield from _rows(found, name, indexes, topic_id, version)
            group.topics.append(make_topic(name=told, topic_id=topic_id, partitions=rows))
        return group

    def _get(self, group_id: str, asked: Partitions | None, require_stable: bool) -> Offsets | Pending[Offsets]:
        shard = self._gate.readable_shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return Offsets(shard, {})
        return self._offsets.get(shard, group_id, asked, require_stable=require_stable)


def _rows(found: Offsets, name: str | None, indexes: Sequence[int], topic_id: bytes, version: int) -> Pieces[Rows]:
    """A row for each partition of a topic, with its offset, or with an error."""
    structure = "OffsetFetchResponsePartitions" if version >= 8 else "OffsetFetchResponsePartition"
    layout = row_layout(messages.OffsetFetchResponse, structure, version)
    assert layout is not None
    pieces: list[bytes] = []
    for some in chunks(indexes, ROWS_PER_PIECE):
        if pieces:
            yield
        pieces.append(_encode_rows(found, name, some, topic_id, version))
    return Rows(layout, pieces[0] if len(pieces) == 1 else b"".join(pieces), len(indexes))


def _encode_rows(found: Offsets, name: str | None, indexes: Sequence[int], topic_id: bytes, version: int) -> bytes:
    unstable = found.unstable
    if not unstable and name is not None and version >= FIRST_VERSION_WITH_LEADER_EPOCH:
        run = found.only_run(name)
        if run is not None and len(run) <= ROWS_PER_PIECE:
            rows = run.rows(indexes, topic_id, _end_of_row("", NONE, version))
            if rows is not None:
                return rows
    absent, offsets = NONE, found.committed.get(name or "", {})
    if found.error or name is None:
        absent, offsets, unstable = found.error or ErrorCode.UNKNOWN_TOPIC_ID, {}, ()
    elif version == 0:
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    start_bytes = 16 if version >= FIRST_VERSION_WITH_LEADER_EPOCH else 12
    end = _end_of_row("", NONE, version)
    pieces = []
    for index in indexes:
        committed, error = offsets.get(index, NO_OFFSET), NONE
        if unstable and (name, index) in unstable:
            committed, error = NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif committed is NO_OFFSET:
            error = absent
        elif topic_id != NO_TOPIC_ID and committed.topic_id not in (NO_TOPIC_ID, topic_id):
            committed = NO_OFFSET  # it belongs to an older topic of the same name
        pieces.append(_start_of_row(index, committed.offset, committed.leader_epoch)[:start_bytes])
        pieces.append(_end_of_row(committed.metadata, error, version) if error or committed.metadata else end)
    return b"".join(pieces)


def _end_of_row(metadata: str, error: ErrorCode, version: int) -> bytes:
    text = metadata.encode()
    if version < FIRST_FLEXIBLE_VERSION:
        return _INT16.pack(len(text)) + text + _INT16.pack(error)
    return encode_unsigned(len(text) + 1) + text + _INT16.pack(error) + b"\0"


def _named(asked: list[_Asked] | None) -> Partitions | None:
    """Without topics whose id is unknown."""
    return None if asked is None else [(name, indexes) for name, _, indexes in asked if name is not None]


def _all_topics(found: Offsets) -> list[_Asked]:
    return [(topic, NO_TOPIC_ID, list(partitions)) for topic, partitions in found.committed.items()]
