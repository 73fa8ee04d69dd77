"""A classic group becomes a consumer group when a member of that protocol joins, and the reverse when the last one of
them leaves, as `group.consumer.migration.policy` allows (KIP-848). Members keep what they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.consumer import heartbeats
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.classic_members import assignment_bytes
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import Assigned, ClassicProtocols, CurrentAssignment, Subscription
from barnabas.coordinators.groups.consumer.reconciliation import merged
from barnabas.coordinators.groups.consumer.records import GroupEpoch, Kind, TargetEpoch
from barnabas.coordinators.groups.consumer.requests import Refusal
from barnabas.coordinators.groups.consumer.topics import NO_HASH, NO_TOPIC_ID, Topics, metadata_hash
from barnabas.coordinators.groups.events import cut
from barnabas.coordinators.groups.members import CONSUMER_PROTOCOL_TYPE, Member, Supported, most_voted
from barnabas.coordinators.groups.records import GroupRecord, live_reset_tag, read_assignment, read_subscription
from barnabas.coordinators.groups.states import State
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.java_hash import in_java_order, java_hash_code

UPGRADES = ("upgrade", "bidirectional")
DOWNGRADES = ("downgrade", "bidirectional")


def check_upgrade(classic: ClassicGroup, policy: str, size_max: int) -> Refusal | None:
    """Why a classic group with members may not become a consumer group, in Kafka's words."""
    if policy.lower() not in UPGRADES:
        reason = "online upgrade is disabled"
    elif classic.rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > size_max:
        reason = "the group size exceeds the consumer group maximum size"
    elif any(_subscription(classic, member) is None for member in classic.members.by_id.values()):
        reason = "the embedded consumer protocol is malformed"
    else:
        return None
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, message)


def upgrade(classic: ClassicGroup, topics: Topics) -> Change | Refusal:
    """The consumer group of a classic one: every member stands where the last generation has left it.

    In the midst of a rebalance that may not be known any more, and behind one, members may still give up what the
    leader withholds from all until they join again (KIP-429). So they also have what they have said that they own, as
    far as nobody else has it. With Kafka, such a partition gets a second owner.
    A rebalance that is under way is not lost: without a hash of its topics the group has a new epoch at once. So it has
    if the leader has left a partition to nobody: one that is new, or that it withholds from all. With Kafka, nobody
    reads such a partition, nor one that belonged to a member that has left, until members or topics change.
    Refused as by Kafka if its leader has assigned one partition to two members: here, one member owns a partition.
    """
    change = Change(ConsumerGroup(classic.group_id))
    change.records.before = GroupRecord(classic.group_id, None)
    epoch = classic.generation
    by_id = classic.members.by_id
    members = [by_id[member_id] for member_id in in_java_order(by_id, java_hash_code)]  # as Kafka keeps them
    assigned: dict[str, Assigned] = {
        member.member_id: _assigned(member.assignment, epoch, topics) for member in members
    }
    refusal = _check_owners(assigned, topics)
    if refusal is not None:
        return refusal
    saying = {member.member_id: _subscription(classic, member) for member in members}
    is_settled = classic.state is State.STABLE and _is_all_assigned(assigned, saying, topics)
    _add_claims(assigned, saying, epoch, topics)
    for member in members:
        said = saying[member.member_id]
        assert said is not None
        subscription = Subscription(
            member.group_instance_id,
            said.rack_id,
            member.client_id,
            member.client_host,
            tuple(sorted(set(said.topics))),
            "",
            member.rebalance_timeout_ms,
            None,
            ClassicProtocols(member.session_timeout_ms, tuple(member.protocols)),
        )
        change.add(Kind.MEMBER, member.member_id, subscription)
    change.group.begin_upgraded()
    topics_hash = metadata_hash(topics, change.group.subscribed_topics()) if is_settled else NO_HASH
    change.add(Kind.GROUP, "", GroupEpoch(epoch, topics_hash, classic.rebalance.reset_generation))
    for member_id, of_member in assigned.items():
        target = {topic_id: frozenset(partitions) for topic_id, partitions in of_member.items()}
        change.add(Kind.TARGET_MEMBER, member_id, target)
    change.add(Kind.TARGET_EPOCH, "", TargetEpoch(epoch))
    for member_id, of_member in assigned.items():
        change.add(Kind.CURRENT_ASSIGNMENT, member_id, CurrentAssignment(epoch, epoch, assigned=of_member))
    return change


def _subscription(classic: ClassicGroup, member: Member) -> stored.ConsumerProtocolSubscription | None:
    metadata = member.metadata(classic.rebalance.protocol_name) or member.protocols[0][1]
    return read_subscription(metadata)


def _assigned(assignment: bytes, epoch: int, topics: Topics) -> Assigned:
    found = read_assignment(assignment)
    return {} if found is None else _existing(found.assigned_partitions, epoch, topics)


def _existing(rows: Iterable[Any], epoch: int, topics: Topics) -> dict[bytes, dict[int, int]]:
    """The partitions of these rows that exist, as assigned in this epoch."""
    found = merged(
        (topics.topic_id(row.topic), set(row.partitions).intersection(range(topics.partition_count(row.topic))))
        for row in rows
    )
    return {
        topic_id: dict.fromkeys(sorted(partitions), epoch)
        for topic_id, partitions in found.items()
        if topic_id != NO_TOPIC_ID and partitions
    }


def _is_all_assigned(
    assigned: Mapping[str, Assigned], saying: Mapping[str, stored.ConsumerProtocolSubscription | None], topics: Topics
) -> bool:
    """Whether the leader has given every partition that the members read to one of them. It gives none to two."""
    counts: Counter[bytes] = Counter()
    for of_member in assigned.values():
        for topic_id, partitions in of_member.items():
            counts[topic_id] += len(partitions)
    names = {name for said in saying.values() if said is not None for name in said.topics}
    return all(counts[topics.topic_id(name)] == topics.partition_count(name) for name in names)


def _add_claims(
    assigned: dict[str, Assigned],
    saying: Mapping[str, stored.ConsumerProtocolSubscription | None],
    epoch: int,
    topics: Topics,
) -> None:
    """Give members what they say that they own, as far as nobody else has it."""
    taken = {
        (topic_id, partition)
        for of_member in assigned.values()
        for topic_id, partitions in of_member.items()
        for partition in partitions
    }
    for member_id, said in saying.items():
        has = {topic_id: dict(partitions) for topic_id, partitions in assigned[member_id].items()}
        claims = {} if said is None else _existing(said.owned_partitions, epoch, topics)
        for topic_id, partitions in claims.items():
            for partition in partitions:
                if (topic_id, partition) not in taken:
                    taken.add((topic_id, partition))
                    has.setdefault(topic_id, {})[partition] = epoch
        assigned[member_id] = has


def _check_owners(assigned: Mapping[str, Assigned], topics: Topics) -> Refusal | None:
    owners: dict[tuple[bytes, int], str] = {}
    for member_id, of_member in assigned.items():
        for topic_id, partitions in of_member.items():
            for partition in partitions:
                other = owners.setdefault((topic_id, partition), member_id)
                if other != member_id:
                    message = (
                        "The classic group cannot become a consumer group, because its leader has assigned partition "
                        f"{topics.topic_name(topic_id)}-{partition} to two members, {cut(other)} and {cut(member_id)}."
                    )
                    return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, message)
    return None


def may_downgrade(group: ConsumerGroup, leaving: set[str], policy: str, size_max: int) -> bool:
    """Whether the group becomes a classic one when these members leave: all others speak the classic protocol."""
    return (
        policy.lower() in DOWNGRADES
        and 0 < len(group.members) - len(leaving) <= size_max
        and all(member.is_classic for member_id, member in group.members.items() if member_id not in leaving)
        and _common_protocol(group, leaving) is not None
    )


def _common_protocol(group: ConsumerGroup, leaving: set[str]) -> str | None:
    """The protocol of the classic members that stay; None: there is none that all support."""
    lists = [
        [name for name, _ in member.subscription.classic.protocols]
        for member_id, member in group.members.items()
        if member_id not in leaving and member.subscription.classic is not None
    ]
    return most_voted(lists, lambda name: all(name in names for names in lists))


def downgrade(
    change: Change, leaving: set[str], topics: Topics, now_ms: int, leader: str | None
) -> tuple[GroupRecord, Supported]:
    """Remove the consumer group; returns the record of the classic one, with the members that stay.

    The record has the metadata of one protocol. Beside it stands what else each member supports.
    `leader`: None: as in Kafka, the first one.
    """
    group = change.group
    protocol = _common_protocol(group, leaving)
    assert protocol is not None
    supported: dict[str, list[tuple[str, bytes]]] = {}
    make = stored.GroupMetadataValue
    members = []
    for member_id in group.in_stored_order():
        member = group.members[member_id]
        of, classic = member.subscription, member.subscription.classic
        if member_id in leaving:
            continue
        assert classic is not None
        supported[member_id] = list(classic.protocols)
        metadata = dict(classic.protocols)[protocol]
        members.append(
            make.MemberMetadata(
                member_id=member_id,
                group_instance_id=of.instance_id,
                client_id=of.client_id,
                client_host=of.client_host,
                rebalance_timeout=of.rebalance_timeout_ms,
                session_timeout=classic.session_timeout_ms,
                subscription=metadata,
                assignment=assignment_bytes(member.current.assigned, topics, metadata),
            )
        )
    value = make(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=protocol,
        leader=leader or members[0].member_id,
        current_state_timestamp=now_ms,
        members=members,
        unknown_tagged_fields=live_reset_tag(group.of_group.reset_epoch),
    )
    for member_id in list(group.members):
        heartbeats.remove(change, member_id)
    heartbeats.delete(change)
    record = GroupRecord(group.group_id, value)
    change.records.after = record
    return record, supported
