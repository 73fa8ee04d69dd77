"""When a committed offset expires (KIP-211). Pure rules over values; who writes the tombstones is elsewhere."""

from collections.abc import Container
from dataclasses import dataclass

from barnabas.offsets.records import GroupOffsets, TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class GroupSituation:
    """What expiry needs to know of a group. `protocol_type` None: it only commits. `subscribed_topics` None: unknown.
    `empty_since_ms`: when it became Empty, None where the stored record did not say."""

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
    """Partitions whose offset has outlived its time. An explicit expiry of the commit (v2-v4) counts instead of the
    retention, but only where the group's state lets offsets expire at all; a pending transactional offset never does.
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
