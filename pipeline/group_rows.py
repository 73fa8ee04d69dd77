"""The table `barnabas.groups`: the records of groups and members in `__consumer_offsets`.

They are few and deep (members, subscriptions, assignments), so each is decoded by the broker's own decoder.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from barnabas.pipeline.columns import Rows, content_of, number_at
from barnabas.pipeline.commit_rows import OFFSET_KEY_VERSION_MAX, unreadable
from barnabas.pipeline.place import Place
from barnabas.pipeline.records import Records
from barnabas.pipeline.schemas import GROUPS, MEMBERS, arrow_schema, struct
from barnabas.pipeline.shared_columns import log_position_columns
from barnabas.protocol import records as stored
from barnabas.protocol import uuids
from barnabas.protocol.errors import ProtocolError, UnsupportedVersionError

# The version of a key says which record it is.
KINDS = {
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
_MEMBERS = arrow_schema(struct(members=MEMBERS)).field("members").type
_CONSUMER = "consumer"

Fields = dict[str, Any]


def group_rows(records: Records, place: Place) -> Rows:
    """A row for each record that is about a group or a member of one. Commits are left out, and kinds of records that
    are newer than this program.
    """
    data = records.data
    version = np.where(records.key_bytes >= 2, number_at(data, records.key_at, ">i2"), -1)
    records = records.only((version > OFFSET_KEY_VERSION_MAX) & np.isin(version, list(KINDS)))
    rows: list[Fields] = []
    bad = np.zeros(len(records), bool)
    for index in range(len(records)):
        key = content_of(data, records.key_at[index], records.key_bytes[index]) or b""
        value = content_of(data, records.value_at[index], records.value_bytes[index])
        try:
            rows.append(_row(KINDS[stored.version_of(key)], key, value))
        except (ProtocolError, UnsupportedVersionError, ValueError):
            bad[index] = True
    corrupt = unreadable(records, bad, "a record of a group that cannot be read")
    records = records.only(~bad)

    def column(name: str) -> pa.Array:
        field = GROUPS.arrow.field(name)
        type_ = _MEMBERS if name == "members" else field.type
        return pa.array([row.get(name) for row in rows], type_)

    own = [one.name for one in GROUPS.columns if not one.name.startswith("log_") and one.name != "directory"]
    columns = {name: (lambda name=name: column(name)) for name in own}
    return Rows(records, columns | log_position_columns(records, place), corrupt, is_made=True)


def _row(kind: str, key_bytes: bytes, value_bytes: bytes | None) -> Fields:
    _, key = stored.decode_versioned(getattr(stored, kind + "Key"), key_bytes)
    row: Fields = {
        "group_id": key.group if kind == "GroupMetadata" else key.group_id,
        "record_type": kind,
        "is_tombstone": value_bytes is None,
    }
    member_id = getattr(key, "member_id", None)
    if value_bytes is None:
        return row | ({} if member_id is None else {"members": [{"member_id": member_id}]})
    _, value = stored.decode_versioned(getattr(stored, kind + "Value"), value_bytes)
    if kind == "GroupMetadata":
        return row | _classic(value)
    epochs = (getattr(value, name, None) for name in ("epoch", "member_epoch", "assignment_epoch"))
    row["generation"] = next((epoch for epoch in epochs if epoch is not None), None)
    if member_id is not None:
        row["members"] = [_member(member_id, value)]
    return row


def _classic(value: Any) -> Fields:
    is_consumer = value.protocol_type == _CONSUMER
    since = value.current_state_timestamp
    return {
        "protocol_type": value.protocol_type or None,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "state_timestamp": None if since < 0 else since * 1000,
        "members": [_classic_member(one, is_consumer=is_consumer) for one in value.members],
    }


def _classic_member(member: Any, *, is_consumer: bool) -> Fields:
    row: Fields = {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout,
        "session_timeout_ms": member.session_timeout,
        "subscription": bytes(member.subscription),
        "assignment": bytes(member.assignment),
    }
    if not is_consumer:
        return row
    subscription = _embedded("ConsumerProtocolSubscription", row["subscription"])
    if subscription is not None:
        row["subscribed_topics"] = list(subscription.topics)
        row["owned"] = _assigned(subscription.owned_partitions)
    assignment = _embedded("ConsumerProtocolAssignment", row["assignment"])
    if assignment is not None:
        row["assigned"] = _assigned(assignment.assigned_partitions)
    return row


def _embedded(name: str, content: bytes) -> Any:
    """What a client has put into the record; None if it is empty or cannot be read."""
    try:
        return stored.decode_versioned(getattr(stored, name), content, newer_as_latest=True)[1]
    except (ProtocolError, UnsupportedVersionError, ValueError):
        return None


def _member(member_id: str, value: Any) -> Fields:
    """A member of a group of the new protocols, as far as this record tells."""
    row: Fields = {"member_id": member_id}
    for name, field in (
        ("group_instance_id", "instance_id"),
        ("client_id", "client_id"),
        ("client_host", "client_host"),
        ("rebalance_timeout_ms", "rebalance_timeout_ms"),
        ("subscribed_topics", "subscribed_topic_names"),
    ):
        row[name] = getattr(value, field, None)
    assigned = getattr(value, "assigned_partitions", None)
    if assigned is None:
        assigned = getattr(value, "topic_partitions", None)
    row["assigned"] = None if assigned is None else _assigned(assigned)
    return row


def _assigned(topics: Any) -> list[Fields]:
    found = []
    for one in topics:
        topic_id = getattr(one, "topic_id", None)
        found.append(
            {
                "topic": getattr(one, "topic", None),
                "topic_id": uuids.to_text(topic_id) if topic_id else None,
                "partitions": list(one.partitions),
            }
        )
    return found
