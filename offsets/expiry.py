"""When a committed offset expires (KIP-211): pure rules over values. kafka.py writes the tombstones."""

from collections.abc import Container
from dataclasses import dataclass

from barnabas.offsets.records import GroupOffsets, TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class GroupSituation:
    """What expiry needs to know of a group.

    `protocol_type` None: the group has no members, it only commits. `subscribed_topics` None: unknown.
    `empty_since_ms`: when the group became Empty; None: its stored record does not say.
    """

    protocol_type: str | None
    is_empty: bool
    is_stable: bool
    empty_since_ms: int | None
    subscribed_topics: Container[str] | None


SIMPLE = GroupSituation(None, True, False, None, None)


def expired_offsets(
    situation: GroupSituation,
    offsets: GroupOffsets,
    pending: Container[TopicPartition],
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The partitions whose offset has expired.

    If the commit set an expiry time (v2-v4), that counts instead of the retention. It counts only while the state of
    the group lets offsets expire at all. The offset of a partition that an open transaction commits never expires.
    """
    base_is_empty_time = False
    subscribed: Container[str] = ()
    if situation.protocol_type is not None:
        if situation.is_empty:
            base_is_empty_time = situation.empty_since_ms is not None
        elif (
            situation.protocol_type == CONSUMER_PROTOCOL_TYPE
            and situation.is_stable
            and situation.subscribed_topics is not None
        ):
            subscribed = situation.subscribed_topics
        else:
            return []
    expired = []
    for topic, partitions in offsets.items():
        if topic in subscribed:
            continue
        for partition, committed in partitions.items():
            if (topic, partition) in pending:
                continue
            if committed.expire_timestamp >= 0:
                due = now_ms >= committed.expire_timestamp
            else:
                base = situation.empty_since_ms if base_is_empty_time else committed.commit_timestamp
                assert base is not None
                due = now_ms - base >= retention_ms
            if due:
                expired.append((topic, partition))
    return expired
