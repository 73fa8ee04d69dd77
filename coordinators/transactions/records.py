"""The records of `__transaction_state`: Kafka's binary format, key version 0, value versions 0 and 1.

Version 1 (transaction version 1 and later) has tagged fields for what version 2 of transactions needs. Every
transaction writes three records, so they are written here field by field; the tests compare them with the schema.
"""

import re
from struct import Struct
from struct import error as StructError

from barnabas.coordinators.transactions.metadata import NO_PRODUCER_ID, Transaction
from barnabas.coordinators.transactions.states import EMPTY, TransactionState
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError
from barnabas.protocol.record_batch import PlainRecords
from barnabas.protocol.varint import encode_unsigned

KEY_VERSION = 0
PLAIN_KEY = b"\0\0"  # how keys of it begin

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_HEAD = Struct(">hqhib")  # version, producer id and epoch, timeout, state
_TIMES = Struct(">qq")  # of the last update, of the start
_PRODUCER_TAG = Struct(">bbq")  # tag, size, a producer id
_CLIENT_VERSION_TAG = Struct(">bbh")
_PREVIOUS_TAG, _NEXT_TAG, _VERSION_TAG = 0, 1, 2
_NO_PARTITIONS_BYTES = {0: 4, 1: 1}  # by the version of the value

_STATES = tuple(TransactionState)
_NOTHING: frozenset[tuple[str, int]] = frozenset()
# Values of idle ids without another producer id: Empty, CompleteCommit or CompleteAbort, with no partitions.
_PLAIN = re.compile(
    rb"\x00\x01.{14}[\x00\x04\x05][\x00\x01].{16}(?:\x01\x02\x02\x00[\x00-\x02]|\x00)"
    rb"|\x00\x00.{14}[\x00\x04\x05](?:\x00{4}|\xff{4}).{16}",
    re.DOTALL,
)


class TransactionRecord:
    """One change of a transactional id. `transaction` None: the id is removed. `value`: its bytes, when appended."""

    __slots__ = ("transaction", "transactional_id", "value", "value_version")
    count = 1

    def __init__(self, transactional_id: str, transaction: Transaction | None, value_version: int = 0) -> None:
        self.transactional_id = transactional_id
        self.transaction = transaction
        self.value_version = value_version
        self.value: bytes | None = None

    def __repr__(self) -> str:
        return f"TransactionRecord({self.transactional_id!r}, {self.transaction!r})"

    def append_to(self, records: PlainRecords) -> None:
        self.value = encode_value(self.transaction, self.value_version)
        records.add(encode_key(self.transactional_id), self.value)


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return PLAIN_KEY + _INT16.pack(len(name)) + name


def decode_key(key: bytes) -> str:
    """The id that a key of `KEY_VERSION` names. ProtocolError."""
    if len(key) < 4 or len(key) < (end := 4 + _INT16.unpack_from(key, 2)[0]) or end < 4:
        raise ProtocolError("the key of a transactional id ends too early")
    try:
        return key[4:end].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("the key of a transactional id is no text") from error


def encode_value(held: Transaction | None, version: int) -> bytes | None:
    """The value; None is a tombstone. Version 0 has no room for the previous and next producer id."""
    if held is None:
        return None
    head = _HEAD.pack(version, held.producer_id, held.producer_epoch, held.timeout_ms, held.state)
    times = _TIMES.pack(held.last_update_ms, held.start_ms)
    partitions: dict[str, list[int]] | None = None
    if held.state is not EMPTY:
        partitions = {}
        for topic, index in sorted(held.partitions):
            partitions.setdefault(topic, []).append(index)
    if not version:
        return head + _partitions_of_version_0(partitions) + times
    tags = []
    if held.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_TAG.pack(_PREVIOUS_TAG, 8, held.previous_producer_id))
    if held.next_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_TAG.pack(_NEXT_TAG, 8, held.next_producer_id))
    if held.client_version:
        tags.append(_CLIENT_VERSION_TAG.pack(_VERSION_TAG, 2, held.client_version))
    return b"".join((head, _partitions(partitions), times, bytes((len(tags),)), *tags))


def _partitions(partitions: dict[str, list[int]] | None) -> bytes:
    if not partitions:
        return b"\0" if partitions is None else b"\1"
    parts = [encode_unsigned(len(partitions) + 1)]
    for topic, indexes in partitions.items():
        name = topic.encode()
        parts += (encode_unsigned(len(name) + 1), name, encode_unsigned(len(indexes) + 1))
        parts += map(_INT32.pack, indexes)
        parts.append(b"\0")  # no tagged fields
    return b"".join(parts)


def _partitions_of_version_0(partitions: dict[str, list[int]] | None) -> bytes:
    if partitions is None:
        return _INT32.pack(-1)
    parts = [_INT32.pack(len(partitions))]
    for topic, indexes in partitions.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(indexes)))
        parts += map(_INT32.pack, indexes)
    return b"".join(parts)


def is_plain(value: bytes) -> bool:
    """Whether it is the value of an idle id in one of the forms that `decode_plain` reads."""
    return _PLAIN.fullmatch(value) is not None


def decode_plain(transactional_id: str, value: bytes) -> Transaction:
    """Read a plain value. It cannot fail."""
    version, producer_id, producer_epoch, timeout_ms, state = _HEAD.unpack_from(value)
    times_at = _HEAD.size + _NO_PARTITIONS_BYTES[version]
    last_update_ms, start_ms = _TIMES.unpack_from(value, times_at)
    has_version = version and value[times_at + _TIMES.size]  # one tag, or none
    return Transaction(
        transactional_id,
        producer_id,
        timeout_ms,
        last_update_ms,
        producer_epoch,
        state=_STATES[state],
        partitions=_NOTHING,
        start_ms=start_ms,
        client_version=value[-1] if has_version else 0,
    )


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Read a record; None: its key version is not known, and Kafka skips it. ProtocolError when it cannot be read."""
    if stored.version_of(key) != KEY_VERSION:
        return None
    transactional_id = decode_key(key)
    if value is None:
        return TransactionRecord(transactional_id, None)
    try:
        found = _decode_usual(transactional_id, value)
    except (IndexError, StructError, UnicodeDecodeError):
        found = None
    return found or _decode_any(transactional_id, value)


def _decode_usual(transactional_id: str, value: bytes) -> TransactionRecord | None:
    """Read a value of the form in which coordinators write it, with less than 127 topics; None: it has another one."""
    version, producer_id, producer_epoch, timeout_ms, state = _HEAD.unpack_from(value)
    if version not in (0, 1):
        return None
    partitions: list[tuple[str, int]] = []
    position = _HEAD.size + _NO_PARTITIONS_BYTES[version]
    topics = value[_HEAD.size] - 1 if version else _INT32.unpack_from(value, _HEAD.size)[0]
    if topics > 126:
        return None
    for _ in range(topics):
        if version:
            name_bytes = value[position] - 1
            count_at = position + 1 + name_bytes
            count, begin = value[count_at] - 1, count_at + 1
            end = begin + 4 * count
            if name_bytes < 0 or name_bytes > 126 or not 0 <= count < 127 or value[end]:
                return None
            topic = value[position + 1 : count_at].decode()
            position = end + 1
        else:
            (name_bytes,) = _INT16.unpack_from(value, position)
            count_at = position + 2 + name_bytes
            (count,) = _INT32.unpack_from(value, count_at)
            if name_bytes < 0 or count < 0:
                return None
            topic = value[position + 2 : count_at].decode()
            begin = count_at + 4
            position = begin + 4 * count
        partitions += [(topic, index) for (index,) in _INT32.iter_unpack(value[begin : begin + 4 * count])]
    last_update_ms, start_ms = _TIMES.unpack_from(value, position)
    position += _TIMES.size
    previous_id, next_id, client_version = NO_PRODUCER_ID, NO_PRODUCER_ID, 0
    if version:
        tags = value[position]
        position += 1
        for _ in range(tags):
            tag, size = value[position], value[position + 1]
            if (tag, size) == (_VERSION_TAG, 2):
                (client_version,) = _INT16.unpack_from(value, position + 2)
            elif (tag, size) == (_PREVIOUS_TAG, 8):
                (previous_id,) = _INT64.unpack_from(value, position + 2)
            elif (tag, size) == (_NEXT_TAG, 8):
                (next_id,) = _INT64.unpack_from(value, position + 2)
            else:
                return None
            position += 2 + size
    if position != len(value) or not 0 <= state < len(_STATES):
        return None
    held = Transaction(
        *(transactional_id, producer_id, timeout_ms, last_update_ms, producer_epoch),
        previous_producer_id=previous_id,
        next_producer_id=next_id,
        state=_STATES[state],
        partitions=frozenset(partitions),
        start_ms=start_ms,
        client_version=client_version,
    )
    return TransactionRecord(transactional_id, held, version)


def _decode_any(transactional_id: str, value: bytes) -> TransactionRecord:
    """Read a value by the schema. ProtocolError, ValueError."""
    try:
        version, found = stored.decode_versioned(stored.TransactionLogValue, value)
    except UnsupportedVersionError as error:
        raise ProtocolError(str(error)) from error
    return TransactionRecord(
        transactional_id,
        Transaction(
            transactional_id=transactional_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            previous_producer_id=found.previous_producer_id,
            next_producer_id=found.next_producer_id,
            timeout_ms=found.transaction_timeout_ms,
            state=TransactionState(found.transaction_status),
            partitions=frozenset(
                (topic.topic, index) for topic in found.transaction_partitions or () for index in topic.partition_ids
            ),
            start_ms=found.transaction_start_timestamp_ms,
            last_update_ms=found.transaction_last_update_timestamp_ms,
            client_version=found.client_transaction_version,
        ),
        version,
    )
