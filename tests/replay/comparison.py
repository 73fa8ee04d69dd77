"""Two answers to the same request, Kafka's and ours: which of their values differ.

What a broker chooses for itself (topic, member, producer and session ids, ports, the cluster id, folders) is learnt as
a two-way mapping: where Kafka's answer chose X and ours Y in the same field, Y goes into later requests in place of X,
and a later answer with anything else than Y in that place is a difference. Times and disk sizes are only compared as
"there" or "not there"; error messages as null, empty or a text. Lists that Kafka orders by a hash are matched by key.
"""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import crc32c
from barnabas.protocol import record_batch
from barnabas.protocol.errors import ErrorCode, ProtocolError

ABSENT = "(absent)"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Fields that hold what the broker chose, and the kind of thing it is. One mapping per kind.
CHOSEN = {
    "topic_id": "topic id",
    "member_id": "member id",
    "leader": "member id",
    "producer_id": "producer id",
    "v3_and_below_producer_id": "producer id",
    "session_id": "fetch session",
    "cluster_id": "cluster id",
    "port": "port",
    "log_dir": "folder",
    "token_id": "token id",
    "hmac": "token secret",
}
# Values that mean "none" or name nobody: never learnt, always compared.
NOTHING: dict[str, set[Any]] = {
    "topic id": {bytes(16)},
    "member id": {"", None},
    "producer id": {-1},
    "fetch session": {0},
    "cluster id": {"", None},
    "port": {-1},
    "folder": {"", None},
    "token id": {""},
    "token secret": {b""},
}
# Sizes that are the machine's: only "there or not" can be compared.
SIZES = {"total_bytes", "usable_bytes", "finalized_features_epoch"}
# Times: equal where they came from a request, else both the time of their own run.
TIMES = {
    *("log_append_time_ms", "last_timestamp", "transaction_start_time_ms"),
    *(f"{which}_timestamp{unit}" for which in ("issue", "expiry", "max") for unit in ("", "_ms")),  # of tokens
}
RUN_TIME_MS = 1_750_000_000_000  # the recording was made later than this, its requests carry older times
# Texts for people.
MESSAGES = {"error_message", "batch_index_error_message"}
# (API, path of the list): the fields by which its entries are matched, since their order is a hash table's.
UNORDERED: dict[tuple[str, str], tuple[str, ...]] = {
    ("ApiVersions", "api_keys"): ("api_key",),
    ("ApiVersions", "supported_features"): ("name",),
    ("ApiVersions", "finalized_features"): ("name",),
    ("ConsumerGroupDescribe", "groups"): ("group_id",),
    ("ConsumerGroupDescribe", "groups/members"): ("member_id",),
    ("AlterClientQuotas", "entries/entity"): ("entity_type",),
    ("DescribeClientQuotas", "entries/entity"): ("entity_type",),
    ("DescribeClientQuotas", "entries/values"): ("key",),
    ("Metadata", "brokers"): ("node_id",),
    ("Metadata", "topics"): ("name", "topic_id"),
    ("Metadata", "topics/partitions"): ("partition_index",),
    ("Produce", "responses"): ("name", "topic_id"),
    ("Produce", "responses/partition_responses"): ("index",),
    ("CreateTopics", "topics"): ("name",),
    ("CreateTopics", "topics/configs"): ("name",),
    ("CreatePartitions", "results"): ("name",),
    ("DeleteTopics", "responses"): ("name", "topic_id"),
    ("DescribeConfigs", "results/configs"): ("name",),
    ("ListConfigResources", "config_resources"): ("resource_type", "resource_name"),
    ("DescribeLogDirs", "results"): ("log_dir",),
    ("DescribeLogDirs", "results/topics"): ("name",),
    ("DescribeLogDirs", "results/topics/partitions"): ("partition_index",),
    ("DescribeProducers", "topics/partitions/active_producers"): ("producer_id",),
    ("DescribeGroups", "groups"): ("group_id",),
    ("DescribeGroups", "groups/members"): ("member_id",),
    ("ListGroups", "groups"): ("group_id",),
    ("ListTransactions", "transaction_states"): ("transactional_id",),
    ("DescribeTransactions", "transaction_states/topics"): ("topic",),
    ("AddPartitionsToTxn", "results_by_transaction"): ("transactional_id",),
    ("JoinGroup", "members"): ("member_id",),
    ("LeaveGroup", "members"): ("member_id", "group_instance_id"),
    ("DeleteGroups", "results"): ("group_id",),
    ("OffsetCommit", "topics"): ("name", "topic_id"),
    ("OffsetCommit", "topics/partitions"): ("partition_index",),
    ("OffsetFetch", "topics"): ("name",),
    ("OffsetFetch", "topics/partitions"): ("partition_index",),
    ("OffsetFetch", "groups"): ("group_id",),
    ("OffsetFetch", "groups/topics"): ("name", "topic_id"),
    ("OffsetFetch", "groups/topics/partitions"): ("partition_index",),
    ("DescribeAcls", "resources"): ("resource_type", "resource_name", "pattern_type"),
    ("DescribeAcls", "resources/acls"): ("principal", "host", "operation", "permission_type"),
    ("DeleteAcls", "filter_results/matching_acls"): (
        *("resource_type", "resource_name", "pattern_type"),
        *("principal", "host", "operation", "permission_type"),
    ),
    ("DescribeUserScramCredentials", "results"): ("user",),
    ("DescribeDelegationToken", "tokens"): ("token_id",),
    ("DeleteRecords", "topics"): ("name",),
    ("DeleteRecords", "topics/partitions"): ("partition_index",),
    ("ListOffsets", "topics"): ("name",),
    ("ListOffsets", "topics/partitions"): ("partition_index",),
}


# (API, path of the list): numbers in the order of a hash table.
UNORDERED_NUMBERS = {("DescribeTransactions", "transaction_states/topics/partitions")}


class Difference(NamedTuple):
    """One value that differs. The path's parts are field names and, in lists, keys or positions."""

    path: str
    kafka: Any
    ours: Any


class Chosen:
    """What Kafka chose, and what we chose in its place, by kind."""

    def __init__(self) -> None:
        self.ours: dict[str, dict[Any, Any]] = {kind: {} for kind in NOTHING}
        self.kafkas: dict[str, dict[Any, Any]] = {kind: {} for kind in NOTHING}

    def agree(self, kind: str, kafka: Any, ours: Any) -> bool:
        """Whether ours is what stands for Kafka's value; learnt when neither is known."""
        if kafka in NOTHING[kind] or ours in NOTHING[kind]:
            return kafka == ours
        known = self.ours[kind].get(kafka)
        if known is not None:
            return known == ours
        if ours in self.kafkas[kind] or shape(kafka) != shape(ours):
            return False
        self.ours[kind][kafka] = ours
        self.kafkas[kind][ours] = kafka
        return True

    def translate(self, message: Any, version: int) -> bool:
        """Put our values in place of Kafka's in a request of this version; whether anything changed."""
        changed = False
        absent = {field.name for field in message.SCHEMA.root.fields if not field.is_in(version)}
        for owner, name, value in fields(message):
            kind = CHOSEN.get(name)
            if kind is not None and not isinstance(value, list) and not (owner is message and name in absent):
                ours = self.ours[kind].get(value, value)
                if ours != value:
                    setattr(owner, name, ours)
                    changed = True
            elif name == "producer_id_filters":
                ours = [self.ours["producer id"].get(each, each) for each in value]
                changed = changed or ours != value
                owner.producer_id_filters = ours
            elif name == "records" and value is not None:
                records = self._translate_records(bytes(value))
                if records is not None:
                    setattr(owner, name, records)
                    changed = True
        return changed

    def _translate_records(self, records: bytes) -> bytes | None:
        """The batch with our producer id, its checksum made again; None when it needs none or cannot be read."""
        if len(records) < 61 or records[16] != 2:
            return None
        (producer_id,) = struct.unpack_from(">q", records, 43)
        ours = self.ours["producer id"].get(producer_id, producer_id)
        size = 12 + struct.unpack_from(">i", records, 8)[0]
        intact = size <= len(records) and crc32c.crc32c(records[21:size]) == struct.unpack_from(">I", records, 17)[0]
        if ours == producer_id or not intact:
            return None
        batch = bytearray(records)
        struct.pack_into(">q", batch, 43, ours)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:size])))
        return bytes(batch)


def shape(value: Any) -> Any:
    """What two values of one kind must have in common: a text but for the UUID in it, else the type alone."""
    return UUID.sub("UUID", value) if isinstance(value, str) and UUID.search(value) else type(value)


def field_names(message: Any) -> tuple[str, ...]:
    """The fields of a message or of a struct in it; () of anything else."""
    return tuple(name for name in getattr(type(message), "__slots__", ()) if name != "unknown_tagged_fields")


def fields(message: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every (struct, field name, value) in a message, lists of structs opened."""
    for name in field_names(message):
        value = getattr(message, name)
        yield message, name, value
        if isinstance(value, list):
            for entry in value:
                yield from fields(entry)
        else:
            yield from fields(value)


def compare(api: str, kafka: Any, ours: Any, chosen: Chosen) -> list[Difference]:
    """All differences between two decoded answers of one API and version."""
    if api == "DescribeLogDirs":
        _into_one_folder(kafka)
    return list(_compare_structs(api, "", "", kafka, ours, chosen))


def _into_one_folder(response: Any) -> None:
    """The recorded broker spread its logs over two folders, ours has one: what lies in them, taken together."""
    topics = {}
    for result in response.results:
        for topic in result.topics:
            known = topics.setdefault(topic.name, topic)
            if known is not topic:
                known.partitions.extend(topic.partitions)
    if response.results:
        response.results[0].topics = list(topics.values())
    del response.results[1:]


def _compare_structs(
    api: str, path: str, list_path: str, kafka: Any, ours: Any, chosen: Chosen
) -> Iterator[Difference]:
    for name in field_names(kafka):
        yield from _compare_values(
            api, f"{path}{name}", f"{list_path}{name}", name, getattr(kafka, name), getattr(ours, name), chosen
        )


def _compare_values(
    api: str, path: str, list_path: str, name: str, kafka: Any, ours: Any, chosen: Chosen
) -> Iterator[Difference]:
    if isinstance(kafka, list) and isinstance(ours, list):
        yield from _compare_lists(api, path, list_path, name, kafka, ours, chosen)
    elif name == "records" and kafka is not None and ours is not None:
        yield from _compare_records(path, bytes(kafka), bytes(ours), chosen)
    elif field_names(kafka) and field_names(ours):
        yield from _compare_structs(api, f"{path}/", f"{list_path}/", kafka, ours, chosen)
    elif not _equal(name, kafka, ours, chosen):
        yield Difference(path, kafka, ours)


def _equal(name: str, kafka: Any, ours: Any, chosen: Chosen) -> bool:
    if name in CHOSEN:
        return chosen.agree(CHOSEN[name], kafka, ours)
    if name in SIZES:
        return bool(kafka == ours or (kafka >= 0 and ours >= 0))
    if name in TIMES:
        return bool(kafka == ours or (kafka > RUN_TIME_MS and ours > RUN_TIME_MS))
    if name in MESSAGES:
        return (kafka is None) == (ours is None) and bool(kafka) == bool(ours)
    return bool(kafka == ours)


def _compare_lists(
    api: str, path: str, list_path: str, name: str, kafka: list[Any], ours: list[Any], chosen: Chosen
) -> Iterator[Difference]:
    keys = UNORDERED.get((api, list_path))
    if (api, list_path) in UNORDERED_NUMBERS:
        kafka, ours = sorted(kafka), sorted(ours)
    if (api, list_path) == ("DescribeClientQuotas", "entries"):
        kafka, ours = sorted(kafka, key=_entity), sorted(ours, key=_entity)
    if keys is None:
        for position in range(max(len(kafka), len(ours))):
            here = f"{path}/{position}"
            if position >= len(kafka):
                yield Difference(here, ABSENT, ours[position])
            elif position >= len(ours):
                yield Difference(here, kafka[position], ABSENT)
            else:
                yield from _compare_values(api, here, list_path, name, kafka[position], ours[position], chosen)
        return
    for key, theirs, mine in _matched(keys, kafka, ours, chosen):
        here = f"{path}/{key}"
        if theirs is None:
            yield Difference(here, ABSENT, mine)
        elif mine is None:
            yield Difference(here, theirs, ABSENT)
        else:
            yield from _compare_structs(api, f"{here}/", f"{list_path}/", theirs, mine, chosen)


def _entity(entry: Any) -> list[tuple[str, str]]:
    """Whom a quota is for, in an order that is no hash table's."""
    return sorted((part.entity_type, part.entity_name or "") for part in entry.entity)


def _matched(
    keys: tuple[str, ...], kafka: list[Any], ours: list[Any], chosen: Chosen
) -> Iterator[tuple[str, Any | None, Any | None]]:
    """Entries of both lists by key; those with a key that is not known yet meet in the order of the rest of them."""
    left = list(ours)
    unknown = []
    for entry in kafka:
        key = tuple(_expected(name, getattr(entry, name, None), chosen) for name in keys)
        partner = next((other for other in left if _key(keys, other) == key), None)
        if partner is None:
            unknown.append(entry)
        else:
            left.remove(partner)
            yield _text(_key(keys, entry)), entry, partner
    learnable = [
        entry for entry in unknown if any(_may_be_learnt(name, getattr(entry, name, None), chosen) for name in keys)
    ]
    for entry in learnable:
        partner = next(
            (other for other in left if all(_same_but_chosen(name, entry, other) for name in keys)),
            None,
        )
        if partner is not None:
            left.remove(partner)
            unknown.remove(entry)
            yield _text(_key(keys, entry)), entry, partner
    for entry in unknown:
        yield _text(_key(keys, entry)), entry, None
    for entry in left:
        yield _text(_key(keys, entry)), None, entry


def _key(keys: tuple[str, ...], entry: Any) -> tuple[Any, ...]:
    return tuple(getattr(entry, name, None) for name in keys)


def _expected(name: str, value: Any, chosen: Chosen) -> Any:
    return chosen.ours[CHOSEN[name]].get(value, value) if name in CHOSEN else value


def _may_be_learnt(name: str, value: Any, chosen: Chosen) -> bool:
    kind = CHOSEN.get(name)
    return kind is not None and value not in chosen.ours[kind] and value not in NOTHING[kind]


def _same_but_chosen(name: str, kafka: Any, ours: Any) -> bool:
    if name in CHOSEN:
        return bool(shape(getattr(kafka, name, None)) == shape(getattr(ours, name, None)))
    return bool(getattr(kafka, name, None) == getattr(ours, name, None))


def _text(key: tuple[Any, ...]) -> str:
    """The first key that is there, for a path; two where the first alone is not unique (resource type and name)."""
    named = [part.hex() if isinstance(part, bytes) else str(part) for part in key if part is not None]
    return named[0] if isinstance(key[0], str) else ",".join(named)


def _compare_records(path: str, kafka: bytes, ours: bytes, chosen: Chosen) -> Iterator[Difference]:
    """Batch by batch, field by field. An incomplete last batch is none: Kafka cuts by bytes, clients drop it."""
    try:
        theirs, mine = _batches(kafka), _batches(ours)
    except ProtocolError:
        if kafka != ours:
            yield Difference(path, kafka.hex(), ours.hex())
        return
    for position in range(max(len(theirs), len(mine))):
        here = f"{path}/{position}"
        if position >= len(mine):
            yield Difference(here, theirs[position], ABSENT)
        elif position >= len(theirs):
            yield Difference(here, ABSENT, mine[position])
        else:
            for name, value in theirs[position].items():
                other = mine[position][name]
                same = chosen.agree("producer id", value, other) if name == "producer_id" else value == other
                if not same:
                    yield Difference(f"{here}/{name}", value, other)


def _batches(records: bytes) -> list[dict[str, Any]]:
    found = []
    position = 0
    while position + 61 <= len(records) and records[position + 16] == 2:
        header = record_batch.read_header(memoryview(records), position)
        if position + header.size_bytes > len(records):
            break
        batch = memoryview(records)[position : position + header.size_bytes]
        timed: Callable[[int], Any] = (lambda stamp: stamp > RUN_TIME_MS) if header.is_log_append_time else int
        found.append(
            {
                "base_offset": header.base_offset,
                "partition_leader_epoch": header.partition_leader_epoch,
                "attributes": header.attributes,
                "last_offset_delta": header.last_offset_delta,
                "base_timestamp": header.base_timestamp,
                "max_timestamp": timed(header.max_timestamp),
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "records": [
                    (record.offset, timed(record.timestamp), record.key, record.value, record.headers)
                    for record in record_batch.records(batch, max_bytes=1 << 24)
                ],
                "checksum is valid": record_batch.crc_is_valid(batch),
            }
        )
        position += header.size_bytes
    return found


def has_errors(differences: list[Difference]) -> bool:
    """Whether an error is among them, or no answer could be compared."""
    return any(difference.path == "" or difference.path.endswith("error_code") for difference in differences)


def is_being_ended(differences: list[Difference]) -> bool:
    """Whether only we said that the markers of a transaction are still on their way. Such an answer changed nothing."""
    return any(difference.ours == ErrorCode.CONCURRENT_TRANSACTIONS for difference in differences)
