"""What Kafka's nodes hold: values, and their bytes exactly as Kafka 3.9 writes them.

Readers ignore keys that they do not know, and read older versions too. Bytes of another form raise ValueError.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote

from barnabas.cluster.tree.paths import encode_name
from barnabas.protocol import uuids
from barnabas.protocol.named_tuple import NamedTuple

PRODUCER_ID_BLOCK_SIZE = 1000

P = ParamSpec("P")
T = TypeVar("T")

_NONE: Mapping[Any, Any] = MappingProxyType({})


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _reads(read: Callable[P, T]) -> Callable[P, T]:
    """Let a decoder raise ValueError, whatever is wrong with the bytes that it is given."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not what {read.__qualname__} reads: {error!r}") from error

    return reading


def _load(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # what it is may be a secret
    return value


# /cluster/id


def encode_cluster_id(cluster_id: str) -> bytes:
    """The 22 character id of a cluster."""
    return _dump({"version": "1", "id": cluster_id})


@_reads
def decode_cluster_id(data: bytes) -> str:
    return str(_load(data)["id"])


# /barnabas/restored


class RestoredTree(NamedTuple):
    """The tree was put back from a copy: what was changed after the copy was made is not in it."""

    copied_ms: int  # when the copy was made; 0: not known

    def encode(self) -> bytes:
        """Version 1."""
        return _dump({"version": 1, "copied": str(self.copied_ms)})

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "RestoredTree":
        """Version 1."""
        return cls(int(_load(data)["copied"]))


# /controller_epoch, /consumers/<group>/offsets/…


def encode_number(number: int) -> bytes:
    """Decimal text: a controller epoch, or an offset that an old consumer group has committed."""
    return str(number).encode()


@_reads
def decode_number(data: bytes) -> int:
    """A number in decimal text."""
    return int(data)


# /controller


class ControllerNode(NamedTuple):
    """Who the controller is."""

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int = -1

    def encode(self) -> bytes:
        """Version 2."""
        return _dump(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": self.kraft_controller_epoch,
            }
        )

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "ControllerNode":
        """Versions 1 and 2."""
        value = _load(data)
        return cls(int(value["brokerid"]), int(value.get("timestamp", 0)), int(value.get("kraftControllerEpoch", -1)))


# /brokers/ids/<id>


class BrokerEndpoint(NamedTuple):
    """One listener of a registered broker."""

    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"

    @classmethod
    def read(cls, text: str) -> "BrokerEndpoint":
        """From `NAME://host:port`."""
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        return cls(name, host.removeprefix("[").removesuffix("]"), int(port))


class BrokerRegistration(NamedTuple):
    """How a broker can be reached. `security_protocols` maps listener names."""

    endpoints: tuple[BrokerEndpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    security_protocols: Mapping[str, str] = _NONE
    features: Mapping[str, Mapping[str, int]] = _NONE
    jmx_port: int = -1

    def encode(self) -> bytes:
        """Version 5."""
        plain = next((e for e in self.endpoints if self._protocol(e) == "PLAINTEXT"), None)
        return _dump(
            {
                "features": dict(self.features),
                "listener_security_protocol_map": {e.listener_name: self._protocol(e) for e in self.endpoints},
                "endpoints": [str(endpoint) for endpoint in self.endpoints],
                **({} if self.rack is None else {"rack": self.rack}),
                "jmx_port": self.jmx_port,
                "port": -1 if plain is None else plain.port,
                "host": None if plain is None else plain.host,
                "version": 5,
                "timestamp": str(self.timestamp_ms),
            }
        )

    def _protocol(self, endpoint: BrokerEndpoint) -> str:
        return self.security_protocols.get(endpoint.listener_name, endpoint.listener_name)

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "BrokerRegistration":
        """Versions 1 to 5."""
        value = _load(data)
        if "endpoints" in value:
            endpoints = tuple(BrokerEndpoint.read(text) for text in value["endpoints"])
        else:
            endpoints = (BrokerEndpoint("PLAINTEXT", str(value["host"]), int(value["port"])),)
        names = {e.listener_name: e.listener_name for e in endpoints}  # up to version 3 a name is a protocol
        return cls(
            endpoints,
            int(value.get("timestamp") or 0),
            value.get("rack"),
            value.get("listener_security_protocol_map", names),
            value.get("features", {}),
            int(value.get("jmx_port", -1)),
        )


# /brokers/topics/<topic>


class TopicAssignment(NamedTuple):
    """Replicas of each partition, the preferred leader first; `adding` and `removing` while partitions move."""

    partitions: Mapping[int, tuple[int, ...]]
    topic_id: bytes | None = None
    adding: Mapping[int, tuple[int, ...]] = _NONE
    removing: Mapping[int, tuple[int, ...]] = _NONE

    def encode(self) -> bytes:
        """Version 3, or 2 for a topic without an id."""
        return _dump(
            {
                "partitions": _numbered(self.partitions),
                **({} if self.topic_id is None else {"topic_id": uuids.to_text(self.topic_id)}),
                "adding_replicas": _numbered(self.adding),
                "removing_replicas": _numbered(self.removing),
                "version": 2 if self.topic_id is None else 3,
            }
        )

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "TopicAssignment":
        """Versions 1 to 3."""
        value = _load(data)
        topic_id = value.get("topic_id")
        return cls(
            _replicas(value["partitions"]),
            None if topic_id is None else uuids.from_text(topic_id),
            _replicas(value.get("adding_replicas", {})),
            _replicas(value.get("removing_replicas", {})),
        )


def _numbered(replicas: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(index): list(brokers) for index, brokers in replicas.items()}


def _replicas(value: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    return {int(index): tuple(map(int, brokers)) for index, brokers in value.items()}


# /brokers/topics/<topic>/partitions/<partition>/state


class PartitionState(NamedTuple):
    """Leader (-1: none) and ISR. The node's version is the partition epoch.

    `eligible` and `log_ends` are not in Kafka 3.9's node, whose brokers leave out what they do not know.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    recovering: bool = False
    eligible: tuple[int, ...] = ()
    log_ends: Mapping[int, tuple[bool, int, int]] = _NONE  # see `LogEnd` in cluster/leader_and_isr.py

    def encode(self) -> bytes:
        """Version 1."""
        return _dump(
            {
                "controller_epoch": self.controller_epoch,
                "leader": self.leader,
                "version": 1,
                "leader_epoch": self.leader_epoch,
                "isr": self.isr,
                **({"leader_recovery_state": 1} if self.recovering else {}),
                **({"eligible_leader_replicas": self.eligible} if self.eligible else {}),
                **({"log_ends": {str(member): end for member, end in self.log_ends.items()}} if self.log_ends else {}),
            }
        )

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "PartitionState":
        """Version 1."""
        value = _load(data)
        return cls(
            int(value["leader"]),
            int(value["leader_epoch"]),
            tuple(map(int, value["isr"])),
            int(value["controller_epoch"]),
            value.get("leader_recovery_state", 0) == 1,
            tuple(map(int, value.get("eligible_leader_replicas", ()))),
            _log_ends(value["log_ends"]) if "log_ends" in value else _NONE,
        )


def _log_ends(value: Mapping[str, Sequence[Any]]) -> dict[int, tuple[bool, int, int]]:
    return {int(replica): (bool(newer), int(epoch), int(offset)) for replica, (newer, epoch, offset) in value.items()}


# /barnabas/tree_marks/<id>


class TreeMark(NamedTuple):
    """A broker's mark. `reports_since`: the tree was found to be older; the zxid of the mark in it. None: it was not.

    While that is set, the broker is reporting where its logs end, and has done so up to the partition `reported_to`.
    `restored_ms`: when the copy was made for which it has done that last, as the copy says itself (`RestoredTree`).
    `durable`: a mark that is on the disks, whatever happens to the machine.
    """

    number: int = 0
    reports_since: int | None = None
    reported_to: tuple[str, int] = ("", -1)
    restored_ms: int = -1
    durable: int = 0

    def is_behind(self, on_disk: int, copied_ms: int) -> bool:
        """Whether its tree is older than the disks: a later mark is there, or this broker has not started on the copy.

        `copied_ms`: when the copy was made that the tree is; -1: it does not say that it is one.
        """
        return on_disk > self.number or copied_ms not in (-1, self.restored_ms)

    def encode(self) -> bytes:
        """Version 1."""
        reports = {"since": self.reports_since, "to": self.reported_to}
        value = {"version": 1, "mark": self.number, "restored": self.restored_ms, "durable": self.durable}
        return _dump(value if self.reports_since is None else value | {"reports": reports})

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "TreeMark":
        """Version 1. A node without data is one that a broker has not written yet."""
        if not data:
            return cls()
        value = _load(data)
        mark = cls(int(value["mark"]), restored_ms=int(value["restored"]), durable=int(value.get("durable", 0)))
        reports = value.get("reports")
        if reports is None:
            return mark
        topic, index = reports["to"]
        return mark._replace(reports_since=int(reports["since"]), reported_to=(str(topic), int(index)))


# /admin/preferred_replica_election, /isr_change_notification/…


def encode_isr_change(partitions: Iterable[tuple[str, int]]) -> bytes:
    """Partitions whose ISR their leader has changed."""
    return _dump({"version": 1, "partitions": [{"topic": t, "partition": p} for t, p in partitions]})


@_reads
def decode_isr_change(data: bytes) -> list[tuple[str, int]]:
    return [_partition(row) for row in _load(data)["partitions"]]


decode_preferred_election = decode_isr_change  # the same form: the partitions that are to get their preferred leader


def _partition(row: Mapping[str, Any]) -> tuple[str, int]:
    return str(row["topic"]), int(row["partition"])


# /admin/delete_topics/<topic>


def encode_topic_deletion(topic_id: bytes | None) -> bytes:
    """The id of the topic that is to be deleted. Kafka writes no data here, and reads none."""
    return b"" if topic_id is None else uuids.to_text(topic_id).encode()


def decode_topic_deletion(data: bytes) -> bytes | None:
    """The id of the topic that is to be deleted. None: whichever has the name."""
    try:
        return uuids.from_text(data.decode("ascii"))
    except ValueError:
        return None


# /log_dir_event_notification/…


def encode_log_dir_event(broker_id: int) -> bytes:
    """A broker has lost a data directory."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


@_reads
def decode_log_dir_event(data: bytes) -> int:
    return int(_load(data)["broker"])


# /config/…


def encode_config(values: Mapping[str, str]) -> bytes:
    """Settings of an entity, all as text."""
    return _dump({"version": 1, "config": dict(values)})


UNREADABLE_NODE = "the data of {} in the tree cannot be read, so it is not changed: mend or remove this node"


@_reads
def decode_config(data: bytes) -> dict[str, str]:
    """Settings of an entity; none for a node without data."""
    return {str(name): str(text) for name, text in _load(data).get("config", {}).items()} if data else {}


def encode_config_change(entity_path: str) -> bytes:
    """The notice that an entity's settings were changed: `topics/t`, `brokers/<default>`, `users/u/clients/c`."""
    return _dump({"version": 2, "entity_path": entity_path})


@_reads
def decode_config_change(data: bytes) -> str:
    """The path of the entity whose settings were changed; versions 1 and 2."""
    value = _load(data)
    if "entity_path" in value:
        return str(value["entity_path"])
    return f"{value['entity_type']}/{value['entity_name']}"


# /latest_producer_id_block


class ProducerIdBlock(NamedTuple):
    """The newest block of producer ids and the broker it was given to. Both ends belong to it."""

    broker_id: int
    first: int
    last: int

    @classmethod
    def after(cls, block: "ProducerIdBlock | None", broker_id: int) -> "ProducerIdBlock":
        """The next block, or the very first."""
        first = 0 if block is None else block.last + 1
        return cls(broker_id, first, first + PRODUCER_ID_BLOCK_SIZE - 1)

    def encode(self) -> bytes:
        """Version 1."""
        return _dump(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    @_reads
    def decode(cls, data: bytes) -> "ProducerIdBlock | None":
        """None for a node without data: no block was given yet."""
        if not data:
            return None
        value = _load(data)
        return cls(int(value["broker"]), int(value["block_start"]), int(value["block_end"]))


# /feature


def encode_feature(features: Mapping[str, int]) -> bytes:
    """Finalised feature levels."""
    levels = {name: {"max_version_level": level} for name, level in features.items()}
    return _dump({"features": levels, "version": 2, "status": 1})


@_reads
def decode_feature(data: bytes) -> dict[str, int]:
    """Finalised feature levels; none when features are disabled."""
    value = _load(data)
    if value.get("status") != 1:
        return {}
    return {name: int(level["max_version_level"]) for name, level in value.get("features", {}).items()}


# /kafka-acl/…, and the notices of their changes


class AclRule(NamedTuple):
    """One access rule, words spelled as in the tree (Allow, Read)."""

    principal: str
    permission_type: str
    host: str
    operation: str


def encode_acls(rules: Iterable[AclRule]) -> bytes:
    """The access rules of a resource."""
    rows = [
        {"principal": r.principal, "permissionType": r.permission_type, "host": r.host, "operation": r.operation}
        for r in rules
    ]
    return _dump({"acls": rows, "version": 1})


@_reads
def decode_acls(data: bytes) -> list[AclRule]:
    """The access rules of a resource; none for a node without data."""
    if not data:
        return []
    document = _load(data)
    if document["version"] != 1:
        raise ValueError(f"version {document['version']!r} of access rules is not known")
    rows = document["acls"]
    return [AclRule(row["principal"], row["permissionType"], row["host"], row["operation"]) for row in rows]


def encode_acl_change(resource_type: str, name: str) -> bytes:
    """The notice for a literal resource; the type in capitals."""
    return f"{resource_type}:{name}".encode()


@_reads
def decode_acl_change(data: bytes) -> tuple[str, str]:
    """Type and name of a literal resource."""
    resource_type, _, name = data.decode().partition(":")
    return resource_type, name


def encode_extended_acl_change(resource_type: str, name: str, pattern_type: str) -> bytes:
    """The notice for a resource pattern."""
    return _dump({"version": 1, "resourceType": resource_type, "name": name, "patternType": pattern_type})


@_reads
def decode_extended_acl_change(data: bytes) -> tuple[str, str, str]:
    """Type, name and pattern type."""
    value = _load(data)
    return value["resourceType"], value["name"], value["patternType"]


# /delegation_token/tokens/<id>


class DelegationToken(NamedTuple):
    """A delegation token, without its secret. Principals are written User:alice. `key_check` tells keys apart by which
    tokens are made, and nothing else of them; "": a broker of Kafka has made the token."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int
    key_check: str = ""

    def concerns(self, principal: str) -> bool:
        """Whether it is the principal's own, was asked for by it, or may be renewed by it."""
        return principal in (self.owner, self.requester, *self.renewers)


def encode_delegation_token(token: DelegationToken) -> bytes:
    """A token; principals as in names of nodes."""
    value = {
        "version": 3,
        "owner": encode_name(token.owner),
        "tokenRequester": encode_name(token.requester),
        "renewers": [encode_name(renewer) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }
    return _dump(value | ({"keyCheck": token.key_check} if token.key_check else {}))


@_reads
def decode_delegation_token(data: bytes) -> DelegationToken:
    """A token; before version 3 its owner has asked for it."""
    value = _load(data)
    if not 1 <= value["version"] <= 3:
        raise ValueError(f"version {value['version']} is not known")
    owner, *others = (unquote(each) for each in (value["owner"], value.get("tokenRequester") or value["owner"]))
    issued_ms, max_ms, expires_ms = (int(value[f"{name}Timestamp"]) for name in ("issue", "max", "expiry"))
    return DelegationToken(
        str(value["tokenId"]),
        owner,
        others[0],
        tuple(unquote(each) for each in value["renewers"]),
        issued_ms,
        max_ms,
        expires_ms,
        str(value.get("keyCheck", "")),
    )
