"""The internals of kafka-python 3.0: what it has no method for, and bugs of it. No other file uses its internals.

So pyproject.toml allows no later version before this file was tested with it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.protocol.schema import MessageSchema, Structure

# ---- what there is no method or setting for


def token_provider(token: Callable[[], str]) -> Any:
    """What a client asks for the token by which it logs in."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class _Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    return _Provider()


def wait_longest(metadata_ms: int, connection_ms: int) -> None:
    """How long clients wait before they ask for metadata, also the first time, and for a connection to be made."""
    from kafka.cluster import ClusterMetadata
    from kafka.net.manager import KafkaConnectionManager

    ClusterMetadata.DEFAULT_CONFIG["retry_backoff_ms"] = metadata_ms
    KafkaConnectionManager.DEFAULT_CONFIG["socket_connection_setup_timeout_ms"] = connection_ms
    KafkaConnectionManager.DEFAULT_CONFIG["socket_connection_setup_timeout_max_ms"] = connection_ms


def connect_again_after(client: Any, wait_ms: int) -> None:
    """How long an admin client waits before it connects again."""
    client._manager.config["reconnect_backoff_ms"] = wait_ms


def ask_who_knows_brokers(client: Any, within_ms: int) -> None:
    """Have an admin client ask, of now on, only brokers that know of some, if there are such: it asks any."""
    from kafka.errors import KafkaError
    from kafka.protocol.metadata import MetadataRequest

    manager, knowing = client._manager, []
    for broker in manager.cluster.brokers():
        with suppress(KafkaError):
            if send(client, MetadataRequest(topics=[], min_version=1), broker.node_id, within_ms).brokers:
                knowing.append(broker.node_id)
    if knowing:
        manager.least_loaded_node = lambda: next((n for n in knowing if not manager.connection_delay(n)), knowing[0])


def send(client: Any, request: Any, node_id: int | None = None, within_ms: int | None = None) -> Any:
    """Send a request of the protocol that the admin client has no method for, to this node or to any; its answer."""
    return client._manager.run(client._manager.send, request, node_id, within_ms)


def send_to_controller(client: Any, request: Any) -> Any:
    """The same, sent to the controller."""
    return client._manager.run(client._send_request_to_controller, request)


def send_all(client: Any, requests: Sequence[tuple[int, Any]], in_flight_max: int) -> list[Any]:
    """Send requests to nodes, so many at a time to each. The answers, without those that did not come."""
    from kafka.errors import KafkaError

    async def run() -> list[Any]:
        responses = []
        waiting: list[tuple[int, Any]] = []

        async def receive() -> None:
            with suppress(KafkaError):
                responses.append(await waiting.pop(0)[1])

        for node_id, request in requests:
            while sum(node_id == other for other, _ in waiting) == in_flight_max:
                await receive()
            waiting.append((node_id, client._manager.send(request, node_id)))
        while waiting:
            await receive()
        return responses

    found: list[Any] = client._manager.run(run)
    return found


def find_transaction_coordinator(client: Any, transactional_id: str) -> int:
    """The broker that coordinates a transactional id."""
    from kafka.protocol.metadata import CoordinatorType

    found = client._manager.run(client._find_coordinator_ids, [transactional_id], CoordinatorType.TRANSACTION)
    return int(found[transactional_id])


def forget_controller_and_coordinators(client: Any) -> None:
    """Have an admin client look its coordinators up again."""
    client._controller_id = None
    client._manager.cluster._coordinators.clear()
    client._manager.cluster.request_update()


def note_answers(producer: Any, note: Callable[[Any, int], None]) -> None:
    """Have `note(partition, error code)` called for each answer: a producer tells nobody why it sends again."""
    complete = producer._sender._complete_batch

    def noted(batch: Any, answer: Any) -> None:
        note(batch.topic_partition, answer.error_code)
        complete(batch, answer)

    producer._sender._complete_batch = noted


def leader_for(producer: Any, partition: Any) -> int:
    """The leader of a partition, as far as a producer knows."""
    return int(producer._metadata.leader_for_partition(partition))


def partition_of(future: Any) -> Any:
    """Where a record goes that was sent."""
    return future._produce_future.topic_partition


def know_internal_topics(producer: Any) -> None:
    """Have a producer write to internal topics, too."""
    producer._metadata.topics = partial(producer._metadata.topics, exclude_internal_topics=False)


# ---- what is wrong


class _NoValue(bytes):
    pass


UNSUPPORTED_VERSION = 35
TURN_CONSUMER_PROTOCOL_ON = (
    "To turn it on: barnabas features upgrade --feature group.version=1, and consumer among "
    "group.coordinator.rebalance.protocols, if that is set"
)
NO_VALUE = _NoValue()  # as the value of a header, or of a record without key: it has none


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


@cache  # once
def read_every_header_name() -> None:
    """Have consumers read records with a name of a header that is not UTF-8; it comes as `NotUtf8`.

    kafka-python says that such a batch is corrupt, and never reads on behind it.
    """
    from kafka.record.default_records import DefaultRecordBatch

    read: Any = getattr(DefaultRecordBatch, "_read_msg", None)
    if read is None:  # another version of kafka-python
        return

    def lenient(batch: Any, *more: Any) -> Any:
        try:
            return read(batch, *more)
        except UnicodeDecodeError:
            batch._buffer = _Lenient(batch._buffer)
            return read(batch, *more)

    DefaultRecordBatch._read_msg = lenient


@cache  # once
def send_headers_without_value() -> None:
    """Have producers send headers whose value is `NO_VALUE` without one: kafka-python takes no None for it."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    append: Any = DefaultRecordBatchBuilder.append

    def with_none(batch: Any, offset: int, timestamp: int, key: Any, value: Any, headers: Any) -> Any:
        sent = [(name, None if one is NO_VALUE else one) for name, one in headers]
        return append(batch, offset, timestamp, key, value, sent)

    DefaultRecordBatchBuilder.append = with_none


def null_values() -> Any:
    """A serializer that sends the value `NO_VALUE` as null: kafka-python takes no None from a record without key."""
    from kafka.serializer import Serializer

    class Nulls(Serializer):  # type: ignore[misc]
        def serialize(self, topic: str, headers: Any, data: Any) -> Any:
            return None if data is NO_VALUE else data

    return Nulls()


def new_producer(**settings: Any) -> Any:
    """A producer that leaves nothing behind when Ctrl-C comes while it is made.

    The `__del__` of kafka-python's own fails then, and Python prints its traceback.
    """
    from kafka import KafkaProducer

    class Producer(KafkaProducer):  # type: ignore[misc]
        def __del__(self) -> None:
            if hasattr(self, "_closed"):  # the last thing that `__init__` sets
                super().__del__()

    return Producer(**settings)


@cache  # once
def take_up_every_assignment() -> None:
    """Have consumers ask again until they have taken up the assignment of every join that they begin.

    kafka-python 3.0 joins again when the metadata of its topics has changed since it assigned them. If its `poll` ends
    before that join does, the next `poll` finds the metadata unchanged: nobody takes up the assignment, and the member
    owns nothing for ever. A join that is marked as needed from its begin is taken up by a later `poll`.
    """
    from kafka.coordinator.base import BaseCoordinator

    join: Any = getattr(BaseCoordinator, "join_group_async", None)
    if join is None:  # another version of kafka-python
        return

    async def marked(coordinator: Any, timeout_ms: float | None = None) -> Any:
        if coordinator.need_rejoin():
            coordinator.request_rejoin()
        return await join(coordinator, timeout_ms=timeout_ms)

    BaseCoordinator.join_group_async = marked


@cache  # once
def read_without_assertions() -> None:
    """Have it read answers also under `python -O` (PYTHONOPTIMIZE): it reads a byte of most of them in an assertion."""
    if __debug__:
        return
    from kafka.protocol.schemas.fields.codecs import tagged_fields

    tagged_fields.TaggedFields.decode_empty = tagged_fields.UnsignedVarInt32.decode


# ---- consumer groups (KIP-848), which it cannot describe


def describe_consumer_groups(client: Any, groups: list[str]) -> dict[str, Any]:
    """Those of the groups that are consumer groups (KIP-848), in the form of its `describe_groups`.

    Where the brokers refuse the protocol, they do not describe such a group. They list it: then it has an error, unless
    it has no members.
    """
    from kafka.errors import IncompatibleBrokerVersion

    request = _describe_request()
    described, refused = {}, set()
    for group in groups:
        [coordinator] = client._manager.run(client._find_coordinator_ids, [group]).values()
        try:
            response = send(client, request(group_ids=[group]), coordinator)
        except IncompatibleBrokerVersion:  # a broker before Kafka 3.7
            return {}
        for found in response.groups:
            if not found.error_code:
                described[found.group_id] = _as_classic(found)
            elif found.error_code == UNSUPPORTED_VERSION:
                refused.add(found.group_id)
    listed = consumer_groups(client.list_groups()) if refused else []
    return described | {row["group_id"]: _as_listed(row) for row in listed if row["group_id"] in refused}


def consumer_groups(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of its `list_groups` that are of the consumer protocol (KIP-848)."""
    return [row for row in listed if row.get("group_type") == "consumer"]


def _as_listed(row: dict[str, Any]) -> dict[str, Any]:
    state = row["group_state"]
    is_off = f"it is {state}, but group.protocol=consumer is off here, so brokers do not tell its members, whose "
    is_off += f"heartbeats they refuse. Its offsets: barnabas groups lag {row['group_id']}. {TURN_CONSUMER_PROTOCOL_ON}"
    return {
        "error": None if state == "Empty" else is_off,
        "group_id": row["group_id"],
        "group_state": state,
        "protocol_type": "consumer",
        "is_consumer_group": True,
        "protocol_data": "",
        "members": [],
    }


def _as_classic(found: Any) -> dict[str, Any]:
    from barnabas.coordinators.groups.consumer.states import STATIC_LEAVE_EPOCH

    return {
        "error": None,
        "group_id": found.group_id,
        "group_state": found.group_state,
        "protocol_type": "consumer",
        "is_consumer_group": True,  # of the consumer protocol; the classic one has this protocol type, too
        "protocol_data": found.assignor_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "is_away": member.member_epoch == STATIC_LEAVE_EPOCH,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_assignment": {
                    "assigned_partitions": [
                        {"topic": topic.topic_name, "partitions": list(topic.partitions)}
                        for topic in member.assignment.topic_partitions
                    ]
                },
            }
            for member in found.members
        ],
    }


@cache
def _describe_request() -> Any:
    """ConsumerGroupDescribe, version 0. A class takes its fields from the file of its name, and then from here."""
    from barnabas.protocol import schema
    from kafka.protocol.api_message import ApiMessage

    schemas = schema.load("consumer_group_describe")

    class DescribeGroupsRequest(ApiMessage):  # type: ignore[misc]
        @classmethod
        def json_patch(cls, json: Any) -> Any:
            return _first_version(schemas["ConsumerGroupDescribeRequest"], "request")

    class DescribeGroupsResponse(ApiMessage):  # type: ignore[misc]
        @classmethod
        def json_patch(cls, json: Any) -> Any:
            return _first_version(schemas["ConsumerGroupDescribeResponse"], "response")

    global _describe_response  # the registry of answers has weak references only
    _describe_response = DescribeGroupsResponse
    return DescribeGroupsRequest


_describe_response: Any = None


def _first_version(schema: "MessageSchema", kind: str) -> dict[str, Any]:
    """Version 0 of a message of ours as JSON, in the form that Kafka's own files have, and kafka-python reads."""

    def fields(structure: "Structure") -> list[dict[str, Any]]:
        return [
            {
                "name": field.name.title().replace("_", ""),
                "type": f"[]{field.type}" if field.array else field.type,
                "versions": "0+",
                **({"nullableVersions": "0+"} if field.is_nullable(0) else {}),
                **({} if field.structure is None else {"fields": fields(field.structure)}),
            }
            for field in structure.fields
            if field.is_in(0)
        ]

    whole = {"apiKey": schema.api_key, "type": kind, "name": schema.name, "fields": fields(schema.root)}
    return whole | {"validVersions": "0", "flexibleVersions": "0+"}
