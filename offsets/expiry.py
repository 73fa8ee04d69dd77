"""When a committed offset expires (KIP-211): pure rules over values. kafka.py writes the tombstones."""

from collections.abc import Container
from enum import StrEnum

from barnabas.offsets.records import CommittedOffset, GroupOffsets, TopicPartition
from barnabas.protocol.named_tuple import NamedTuple

CONSUMER_PROTOCOL_TYPE = "consumer"
WARNING_MS_MAX = 86_400_000


class GroupSituation(NamedTuple):
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


class _Rule(NamedTuple):
    """What the state of a group says of its offsets. `base_ms` None: they count from their commit."""

    keeps_all: bool
    kept_topics: Container[str]
    base_ms: int | None

    def expires_ms(self, topic: str, committed: CommittedOffset, retention_ms: int) -> int | None:
        """When an offset expires, if the group stays as it is; None: never."""
        if self.keeps_all or topic in self.kept_topics:
            return None
        if committed.expire_timestamp >= 0:
            return committed.expire_timestamp
        return (committed.commit_timestamp if self.base_ms is None else self.base_ms) + retention_ms


def _rule(situation: GroupSituation) -> _Rule:
    base_ms = None
    subscribed: Container[str] = ()
    if situation.protocol_type is not None:
        if situation.is_empty:
            base_ms = situation.empty_since_ms
        elif (
            situation.protocol_type == CONSUMER_PROTOCOL_TYPE
            and situation.is_stable
            and situation.subscribed_topics is not None
        ):
            subscribed = situation.subscribed_topics
        else:
            return _Rule(True, (), None)
    return _Rule(False, subscribed, base_ms)


def expired_offsets(
    situation: GroupSituation,
    offsets: GroupOffsets,
    pending: Container[TopicPartition],
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The partitions whose offset has expired; with a later `now_ms`, those that will have.

    If the commit set an expiry time (v2-v4), that counts instead of the retention. It counts only while the state of
    the group lets offsets expire at all. The offset of a partition that an open transaction commits never expires.
    """
    rule = _rule(situation)
    if rule.keeps_all:
        return []
    expired = []
    for topic, partitions in offsets.items():
        if topic in rule.kept_topics:
            continue
        for partition, committed in partitions.items():
            if (topic, partition) in pending:
                continue
            expires_ms = rule.expires_ms(topic, committed, retention_ms)
            assert expires_ms is not None
            if now_ms >= expires_ms:
                expired.append((topic, partition))
    return expired


def may_have_expired(situation: GroupSituation, oldest_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Whether any offset of a group may have expired. `oldest_ms`: when the oldest was committed; none has an expiry
    time of its own.
    """
    rule = _rule(situation)
    return not rule.keeps_all and now_ms - (oldest_ms if rule.base_ms is None else rule.base_ms) >= retention_ms


class Kept(StrEnum):
    """Why an offset does not expire."""

    MEMBERS = "members"
    TRANSACTION = "transaction"
    TREE = "tree"


def forecast(
    situation: GroupSituation | None, topic: str, committed: CommittedOffset, is_pending: bool, retention_ms: int
) -> int | Kept:
    """When an offset will expire if its group stays as it is, or why it will not."""
    if is_pending:
        return Kept.TRANSACTION
    expires_ms = None if situation is None else _rule(situation).expires_ms(topic, committed, retention_ms)
    return Kept.MEMBERS if expires_ms is None else expires_ms


def warning_ms(retention_ms: int, check_interval_ms: int) -> int:
    """How long before an offset expires the broker warns: a day, or less where the retention is short.

    It looks only every `check_interval_ms`, and must look twice before the time has come.
    """
    return min(retention_ms, max(min(WARNING_MS_MAX, retention_ms // 7), 2 * check_interval_ms))
