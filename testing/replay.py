"""Sends again what clients have asked, in the order in which it came, and compares the answers.

A session is a list of rows of `GET /v1/control/requests?frames=true`, as `barnabas trace --frames` and
`Barnabas.requests(frames=True)` give them. Its order is that of the broker: a request is sent when all that came before
it have been sent, and all answers that were there before it came are here. So members join in the same turn, and a long
poll waits for the same record: if it got one, it waits as long as an answer may take, because a replay may be slower.
What the broker cannot do yet is asked again.

What a broker gives out is another thing each time: member ids, generations, ids and epochs of producers, ids of topics,
fetch sessions. Each answer is laid beside the recorded one, and what it gives out stands in the requests that follow.
"""

import base64
import selectors
import socket
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from barnabas.protocol import batch_layout, frames, uuids
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.as_json import as_json
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.errors import ErrorCode, ProtocolError
from barnabas.protocol.message import Message, Struct
from barnabas.protocol.messages import ApiVersionsRequest, FetchRequest, MetadataRequest
from barnabas.testing.kept import Address, address_of
from barnabas.testing.wire import Connection

SIZE = struct.Struct(">i")
READ_BYTES = 65_536
METADATA_VERSION = 9
CONNECTED_WITHIN_S = 10.0
PROGRESS_S = 0.2
RETRY_S = 0.01
CLIENT_ID = "replay"
NEEDED = {"number": int, "time_ms": int, "fate": str, "api": str}  # fields of a row
ANSWERED = ("answered", "cut")  # fates that are waited for

# What tells whether the same has happened, beside error codes. Other fields are different in each life of a broker.
COMPARED = frozenset(("base_offset", "committed_offset", "offset"))
ERROR = "error_code"  # the end of the names of such fields
NOT_YET = frozenset(
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.CONCURRENT_TRANSACTIONS)
)
OF_OLD_VERSIONS = "v3_and_below_"  # the begin of names in AddPartitionsToTxn
KEYS = ("name", "topic", "topic_id", "group_id", "key", "partition_index", "partition", "index", "transactional_id")
NO_NAME = (None, "", uuids.to_text(uuids.ZERO))
MEMBER, GENERATION, PRODUCER, TOPIC, FETCH_SESSION = "member", "generation", "producer", "topic", "fetch session"
GIVEN = {
    "member_id": MEMBER,
    "generation_id": GENERATION,
    "generation_id_or_member_epoch": GENERATION,
    "member_epoch": GENERATION,
    "producer_id": PRODUCER,
    "topic_id": TOPIC,
    "session_id": FETCH_SESSION,
}
NOTHING_GIVEN: dict[str, tuple[Any, ...]] = {
    MEMBER: ("",),
    GENERATION: (-1, 0),  # nor is the epoch 0, with which members join
    PRODUCER: (-1,),
    TOPIC: (uuids.to_text(uuids.ZERO),),
    FETCH_SESSION: (0,),
}


class SessionError(Exception):
    """The rows are no session that can be sent."""


class Difference(NamedTuple):
    """A field of an answer that is not what it was; `now` is a text where there is no answer."""

    number: int
    node_id: int
    api: str
    client_id: str
    field: str
    recorded: Any
    now: Any


class _Asked:
    """A request of the session, and what became of it now."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        if not isinstance(row, dict) or any(type(row.get(name)) is not kind for name, kind in NEEDED.items()):
            raise SessionError(f"this is no request of a session: {str(row)[:80]}")
        self.row = row
        self.node_id: int = row.get("node_id", 0)
        self.number: int = row["number"]
        self.came_ms: int = row["time_ms"]
        times = (row.get("answered_before"), row.get("answered_ms"), self.node_id)
        self.is_awaited = row["fate"] in ANSWERED
        if self.is_awaited and not all(isinstance(each, int) for each in times):
            raise SessionError(f"request {self.number} ({row['api']}) does not say when it was answered")
        if row.get("frame") is None:
            what = f"request {self.number} ({row['api']}) has no frame: ask for frames, while they are kept (64 MB are)"
            raise SessionError(what)
        try:
            frame = base64.b64decode(row["frame"], validate=True)
            self.header, self.request = frames.decode_request(memoryview(frame)[SIZE.size :])
        except (ValueError, TypeError, ProtocolError) as error:
            raise SessionError(f"the frame of request {self.number} ({row['api']}) cannot be read: {error}") from None
        self.is_done = False
        self.answer: Any = None

    def wait_for_records(self, timeout_s: float) -> None:
        """If this is a long poll that its records have ended, and not its time: let it wait for them that long."""
        request = self.request
        if isinstance(request, FetchRequest) and _record_bytes(self.row.get("answer")) >= max(1, request.min_bytes):
            request.max_wait_ms = round(timeout_s * 1000)

    def is_answered_before(self, other: "_Asked") -> bool:
        """Whether the answer was there when the other request came."""
        if not self.is_awaited:
            return False
        if self.node_id != other.node_id:
            return bool(self.row["answered_ms"] < other.came_ms)
        return bool(self.row["answered_before"] <= other.number)

    def difference(self, field: str, recorded: Any, now: Any) -> Difference:
        """One of this request."""
        return Difference(
            self.number, self.node_id, str(self.row["api"]), self.header.client_id or "", field, recorded, now
        )


def replay(
    session: Sequence[Mapping[str, Any]], bootstrap: str, *, timeout_s: float = 30.0, paced: bool = False
) -> list[Difference]:
    """Send a session to the brokers at `bootstrap` ("host:port", several with commas); returns what is different.

    With `paced`, requests are sent no sooner after the first than they came. If an answer is not there within
    `timeout_s`, the replay ends with that difference, because what follows would mean nothing. SessionError, OSError.
    """
    return list(replaying(session, bootstrap, timeout_s=timeout_s, paced=paced, progress=lambda: None))


def replaying(
    session: Sequence[Mapping[str, Any]],
    bootstrap: str,
    *,
    timeout_s: float,
    paced: bool,
    progress: Callable[[], None],
) -> Iterator[Difference]:
    """The same, each difference as it is found. `progress` is called several times a second."""
    asked = [_Asked(row) for row in session]
    seen: set[tuple[int, int, int]] = set()
    for each in asked:
        row = each.node_id, each.number, each.came_ms
        if row in seen:
            raise SessionError(f"request {each.number} of broker {each.node_id} is in the session twice")
        seen.add(row)
    is_of_one = len({each.node_id for each in asked}) <= 1
    asked.sort(key=lambda each: (0 if is_of_one else each.came_ms, each.number))
    with _Ways(bootstrap, progress) as ways:
        yield from _run(asked, ways, timeout_s, paced)


def _run(asked: Sequence[_Asked], ways: "_Ways", timeout_s: float, paced: bool) -> Iterator[Difference]:
    given = _Given()
    began_s = time.monotonic()
    under_way: list[_Asked] = []
    for each in asked:
        if paced:
            ways.read_until(began_s + (each.came_ms - asked[0].came_ms) / 1_000)
        before = [other for other in under_way if other.is_answered_before(each)]
        late = yield from _answers(before, ways, given, timeout_s)
        if late:
            return
        under_way = [other for other in under_way if other not in before]
        given.replace_in(each.request)
        each.wait_for_records(timeout_s)
        ways.send(each)
        under_way.append(each)
    yield from _answers([each for each in under_way if each.is_awaited], ways, given, timeout_s)


def _answers(
    awaited: Sequence[_Asked], ways: "_Ways", given: "_Given", timeout_s: float
) -> Generator[Difference, None, bool]:
    """Wait for these answers, and tell what is different; returns whether one is late."""
    deadline_s = time.monotonic() + timeout_s
    for each in awaited:
        found = _compared(each, ways, deadline_s)
        while any(_says_not_yet(field, now) for field, _, now in found) and time.monotonic() < deadline_s:
            ways.read_until(time.monotonic() + RETRY_S)
            ways.send(each)
            found = _compared(each, ways, deadline_s)
        if not each.is_done:
            yield each.difference("", each.row["fate"], f"not answered within {timeout_s:g} s")
            return True
        given.learn(each.request, each.row.get("answer"), each.answer)
        yield from (each.difference(*difference) for difference in found)
    return False


def _compared(asked: _Asked, ways: "_Ways", deadline_s: float) -> list[tuple[str, Any, Any]]:
    """The differences of an answer, if it comes until then."""
    while not asked.is_done and ways.read_until(deadline_s, one=True):
        pass
    if not asked.is_done:
        return []
    fate, recorded, now = asked.row["fate"], asked.row.get("answer"), asked.answer
    if (fate == "answered") != (now is not None):
        return [("", fate, "closed" if now is None else "answered")]
    return [] if None in (recorded, now) else list(differences(recorded, now))


def _says_not_yet(field: str, value: Any) -> bool:
    """Whether a field tells the client to ask again in a moment. How long a moment is, is not replayed."""
    return field.endswith(ERROR) and value in NOT_YET


def differences(recorded: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields (path, recorded, now) that tell that something else has happened."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        prefix = f"{path}." if path else ""
        errors = [name for name in recorded if name.endswith(ERROR) and recorded[name] != now.get(name)]
        if errors:  # then all else is different, too
            found = ((prefix + name, recorded[name], now.get(name)) for name in errors)
            yield from (each for each in found if not _says_not_yet(*each[:2]) or each[2] != ErrorCode.NONE)
            return
        for name, value in recorded.items():
            if name in COMPARED and not isinstance(value, dict | list):
                if value != now.get(name):
                    yield prefix + name, value, now.get(name)
            else:
                yield from differences(value, now.get(name), prefix + name)
    elif isinstance(recorded, list) and isinstance(now, list):
        for label, value, other in _pairs(recorded, now):
            if other is None and isinstance(value, dict):
                yield f"{path}[{label}]", "there", "missing"
            else:
                yield from differences(value, other, f"{path}[{label}]")


def _pairs(recorded: list[Any], now: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Items of two lists that are about the same: by their names where they have any, else by their places."""
    by_label = {_label(item, place): item for place, item in enumerate(now)}
    for place, item in enumerate(recorded):
        label = _label(item, place)
        other = by_label.get(label)
        is_by_id = isinstance(item, dict) and label == item.get("topic_id")
        if other is None and is_by_id and place < len(now):  # a topic that was made again has another id
            other = now[place]
        yield label, item, other


def _label(item: Any, place: int) -> Any:
    found = (item[key] for key in KEYS if item.get(key) not in NO_NAME) if isinstance(item, dict) else iter(())
    return next(found, place)


def _record_bytes(answer: Any) -> int:
    """How many bytes of records there are in an answer."""
    if isinstance(answer, list):
        return sum(map(_record_bytes, answer))
    if not isinstance(answer, dict):
        return 0
    size = answer.get("bytes")
    return size if isinstance(size, int) else sum(map(_record_bytes, answer.values()))


def _kind(name: str) -> str | None:
    """What a field holds that a broker gives out; None: nothing of that sort."""
    return GIVEN.get(name.removeprefix(OF_OLD_VERSIONS))


class _Given:
    """What the broker of the session has given out, and what this one gives out in its place."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, Any, Any], Any] = {}  # kind, whose, recorded value
        self._epochs: dict[tuple[int, int], int] = {}  # of producers: recorded id and epoch

    def learn(self, request: Message, recorded: Any, now: Any) -> None:
        """Look at the answer to a request, which names the group that a generation is of."""
        self._learn(getattr(request, "group_id", ""), recorded, now)

    def _learn(self, group: str, recorded: Any, now: Any) -> None:
        if isinstance(recorded, dict) and isinstance(now, dict):
            for name, value in recorded.items():
                kind = _kind(name)
                other = now.get(name)
                if kind is not None and other is not None and {value, other}.isdisjoint(NOTHING_GIVEN[kind]):
                    self._now[kind, self._whose(kind, group), value] = other
                self._learn(group, value, other)
            if "producer_epoch" in recorded and recorded["producer_epoch"] >= 0:
                epoch = now.get("producer_epoch", -1)
                self._epochs[recorded.get("producer_id", -1), recorded["producer_epoch"]] = epoch
        elif isinstance(recorded, list) and isinstance(now, list):
            for _, value, other in _pairs(recorded, now):
                self._learn(group, value, other)

    def _whose(self, kind: str, group: str) -> str:
        return group if kind == GENERATION else ""

    def replace_in(self, value: Any, group: str = "") -> None:
        """Put what this broker has given out in the place of what the other one has."""
        group = getattr(value, "group_id", group) or group
        fields = value._FIELDS
        for begin in ("", OF_OLD_VERSIONS):
            if f"{begin}producer_epoch" in fields:
                epoch = getattr(value, f"{begin}producer_epoch")
                now = self._epochs.get((getattr(value, f"{begin}producer_id"), epoch), epoch)
                setattr(value, f"{begin}producer_epoch", now)
        for name in fields:
            field = getattr(value, name)
            kind = _kind(name)
            if kind == TOPIC:
                text = self._now.get((kind, "", uuids.to_text(bytes(field))))
                if text is not None:
                    setattr(value, name, uuids.from_text(text))
            elif kind is not None and not isinstance(field, Struct | list):
                setattr(value, name, self._now.get((kind, self._whose(kind, group), field), field))
            elif name == "current_leader_epoch":
                setattr(value, name, -1)  # it is not checked: a broker that has begun again leads in another one
            elif name == "records" and field is not None:
                setattr(value, name, self._with_producer(bytearray(field)))
            for item in field if isinstance(field, list | tuple) else (field,):
                if isinstance(item, Struct):
                    self.replace_in(item, group)

    def _with_producer(self, records: bytearray) -> bytearray:
        """The batches of a Produce, with the producer's id and epoch of now."""
        at = 0
        while at + batch_layout.HEADER_BYTES <= len(records):
            _, length = batch_layout.PREFIX.unpack_from(records, at)
            end = at + batch_layout.PREFIX_BYTES + length
            if length < 0 or end > len(records) or records[at + batch_layout.MAGIC_AT] != batch_layout.MAGIC:
                break  # it was refused when it came, and will be again
            id_at = at + batch_layout.PRODUCER_ID_AT
            (producer_id,) = batch_layout.INT64.unpack_from(records, id_at)
            (epoch,) = batch_layout.INT16.unpack_from(records, id_at + 8)
            now = self._now.get((PRODUCER, "", producer_id))
            if now is not None:
                batch_layout.INT64.pack_into(records, id_at, now)
                batch_layout.INT16.pack_into(records, id_at + 8, self._epochs.get((producer_id, epoch), epoch))
                sum_of_it = crc32c(memoryview(records)[at + batch_layout.ATTRIBUTES_AT : end])
                batch_layout.UINT32.pack_into(records, at + batch_layout.CRC_AT, sum_of_it)
            at = end
        return records


class _Way:
    """A connection, and the request that it waits for."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECTED_WITHIN_S)
        self.received = bytearray()
        self.asked: _Asked | None = None


class _Ways:
    """Connections to brokers: as many as there are requests under way."""

    def __init__(self, bootstrap: str, progress: Callable[[], None]) -> None:
        self._progress = progress
        self._selector = selectors.DefaultSelector()
        self._idle: dict[Address, list[_Way]] = {}
        self._address_of = _addresses(bootstrap)
        self._last: tuple[Address, _Asked] | None = None  # what was sent last, and where
        self._others: dict[Address, Connection] = {}  # see `_let_arrive`

    def __enter__(self) -> "_Ways":
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            key.data[0].socket.close()
        for idle in (way for ways in self._idle.values() for way in ways):
            idle.socket.close()
        for other in self._others.values():
            other.close()
        self._selector.close()

    def send(self, asked: _Asked) -> None:
        """Send a request on a connection of its own, if all others wait."""
        asked.is_done = False
        self._progress()
        self._let_arrive()
        header, request = asked.header, asked.request
        frame = frames.encode_request(
            header.api_key, header.api_version, header.correlation_id, header.client_id, request
        )
        # A session of one broker may be sent to one with another id.
        address = self._address_of.get(asked.node_id) or next(iter(self._address_of.values()))
        idle = self._idle.setdefault(address, [])
        way = idle.pop() if idle else _Way(address)
        way.socket.sendall(frame)
        self._last = address, asked
        if header.api_key == ApiKey.PRODUCE and getattr(request, "acks", -1) == 0:
            asked.is_done = True  # nothing comes
            idle.append(way)
            return
        way.asked = asked
        self._selector.register(way.socket, selectors.EVENT_READ, (way, address))

    def _let_arrive(self) -> None:
        """Return when what was sent last has been read: else one on another connection could overtake it.

        A broker that answers a later question on a third connection has been round all its connections.
        """
        if self._last is not None and not self._last[1].is_done:
            address = self._last[0]
            if address not in self._others:
                self._others[address] = _connection(address)
            _ask(self._others[address], 0, ApiVersionsRequest())

    def read_until(self, deadline_s: float, *, one: bool = False) -> bool:
        """Take what comes until that time, or until something has come. False: the time is over."""
        while True:
            self._progress()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            for key, _ in self._selector.select(min(left_s, PROGRESS_S)):
                self._read(*key.data)
                if one:
                    return True

    def _read(self, way: _Way, address: Address) -> None:
        asked = way.asked
        assert asked is not None, "only connections that wait are listened to"
        try:
            received = way.socket.recv(READ_BYTES)
        except OSError:
            received = b""
        way.received += received
        if received and (len(way.received) < 4 or len(way.received) < 4 + SIZE.unpack_from(way.received)[0]):
            return
        self._selector.unregister(way.socket)
        way.asked = None
        asked.is_done = True
        answer = memoryview(bytes(way.received))[SIZE.size :]
        way.received.clear()
        try:
            if received:
                _, message = frames.decode_response(asked.header.api_key, asked.header.api_version, answer)
                asked.answer = as_json(message)
        except ProtocolError:  # what listens there is no broker
            received = b""
        if received:
            self._idle[address].append(way)
        else:
            way.socket.close()


def _addresses(bootstrap: str) -> dict[int, Address]:
    """Where the brokers are, by node id."""
    with closing(_connection(address_of(bootstrap.split(",")[0]))) as connection:
        found = _ask(connection, METADATA_VERSION, MetadataRequest(topics=[]))
    return {broker.node_id: (broker.host, broker.port) for broker in found.brokers}


def _connection(address: Address) -> Connection:
    """For requests of the replay's own."""
    return Connection(address, CONNECTED_WITHIN_S, CLIENT_ID)


def _ask(connection: Connection, version: int, request: Message) -> Any:
    try:
        return connection.ask(version, request, CONNECTED_WITHIN_S)
    except ProtocolError as error:
        raise ConnectionError(f"what listens there is no Kafka broker: {error}") from None
