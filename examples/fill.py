"""Writes a day to brokers: ordinary records to the topics, and to `__consumer_offsets` and `__offset_journal` what
coordinators would write.

A coordinator stamps commits with its own clock, so a day of commits would take a day. The records of groups are
therefore produced like others, by the client id that Kafka lets write to internal topics. Coordinators know of them
after the next start, when they load what their log holds.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.cli.shared.client import await_coordinators
from barnabas.cli.shared.kafka_python import know_internal_topics
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.coordinators.groups.records import GroupRecord
from barnabas.offsets import journal
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset, encode_key, encode_value
from barnabas.protocol import records as stored
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from examples.day import GROUPS, TOPICS, BrokerDies, Commit, Day, Generation, Record

OPERATOR = "offset-tool"  # client id of who sets offsets
ADMIN_CLIENT_ID = "__admin_client"
CODECS = {"orders": "lz4", "payments": None, "clicks": "zstd"}
BATCH_BYTES = 4096
FLUSHED_EVERY_MS = 3_600_000  # of the day: a batch that spans hours would hide how far its log was within them
CAUSES = {cause.words: cause for cause in journal.Cause}
SESSION_TIMEOUT_MS = 24 * 3_600_000  # the members of the day are gone; this keeps brokers from removing them at once


def fill(bootstrap: str, day: Day, kill_a_broker: Callable[[], None] | None) -> dict[str, Any]:
    """Write the day; the truth about it, with what only the brokers know."""
    _create_topics(bootstrap)
    connect = partial(KafkaProducer, bootstrap_servers=bootstrap, acks="all", linger_ms=50)
    producers = {topic: connect(compression_type=codec, batch_size=BATCH_BYTES) for topic, codec in CODECS.items()}
    coordinator = connect(client_id=ADMIN_CLIENT_ID, batch_size=1 << 17)
    know_internal_topics(coordinator)
    offsets_partitions = len(coordinator.partitions_for(OFFSETS_TOPIC))
    assert len(coordinator.partitions_for(JOURNAL_TOPIC)) == offsets_partitions  # asking for it makes it
    noted: list[tuple[Commit, Any]] = []  # commits that are not in the journal yet, with their places
    committed: dict[tuple[str, str, int], int | None] = {}
    killed_at_ms = None

    def flush() -> None:
        """Wait until everything is written, and then write down who committed it."""
        for producer in (*producers.values(), coordinator):
            producer.flush()
        for commit, place in noted:
            written = place.get(30)
            key, value = journal_record(commit, written.offset, committed)
            last[JOURNAL_TOPIC, written.partition] = coordinator.send(
                JOURNAL_TOPIC, value, key, [], written.partition, commit.at_ms
            )
            sent[JOURNAL_TOPIC, written.partition] += 1
        noted.clear()
        coordinator.flush()

    sent: Counter[tuple[str, int]] = Counter()
    last = {}

    flushed_until_ms = 0
    for event in day.events:
        if event.at_ms >= flushed_until_ms:
            flush()
            flushed_until_ms = event.at_ms - event.at_ms % FLUSHED_EVERY_MS + FLUSHED_EVERY_MS
        if isinstance(event, BrokerDies):
            if kill_a_broker is not None:
                flush()
                kill_a_broker()
                killed_at_ms = event.at_ms
            continue
        if isinstance(event, Record):
            producer, place = producers[event.topic], (event.topic, event.partition)
            key, value, headers = event.key, event.value, list(event.headers)
        else:
            producer, place = coordinator, (OFFSETS_TOPIC, partition_for(event.group, offsets_partitions))
            (key, value), headers = offset_record(event) if isinstance(event, Commit) else group_record(event), []
        last[place] = producer.send(place[0], value, key, headers, place[1], event.at_ms)
        sent[place] += 1
        if isinstance(event, Commit):
            noted.append((event, last[place]))
    flush()
    for producer in (*producers.values(), coordinator):
        producer.close()
    for place, future in last.items():  # brokers that had records before have them still
        assert future.get(30).offset + 1 >= sent[place], f"{place} lacks records"
    return {**day.truth, "offsets_partitions": offsets_partitions, "broker_killed_at_ms": killed_at_ms}


def offset_record(commit: Commit) -> tuple[bytes, bytes | None]:
    """Key and value as a coordinator writes them."""
    key = encode_key(commit.group, commit.topic, commit.partition)
    if commit.offset is None:
        return key, None
    return key, encode_value(CommittedOffset(commit.offset, 0, commit.metadata, commit.at_ms, commit.expire_ms))


def journal_record(
    commit: Commit, position: int, committed: dict[tuple[str, str, int], int | None]
) -> tuple[bytes, bytes]:
    """Key and value as a coordinator writes them of a commit at this place. `committed` is kept up to date."""
    place = commit.group, commit.topic, commit.partition
    before, committed[place] = committed.get(place), commit.offset
    old, new = (journal.NO_OFFSET if offset is None else offset for offset in (before, commit.offset))
    by: dict[str, Any] = {"principal": ""}
    if commit.cause != "expiry":
        by = {"client_id": commit.group if commit.member else OPERATOR, "host": "/127.0.0.1"}
        by |= {"member_id": commit.member, "generation": commit.generation}
    origin = journal.encode_origin(CAUSES[commit.cause], **by)
    row = journal.Row(commit.topic, NO_TOPIC_ID, commit.partition, old, 0, "", new, 0, commit.metadata)
    ((value, _),) = journal.encode_rows(origin, position, commit.at_ms, [row])
    return journal.key_of(commit.group), value


def group_record(generation: Generation) -> tuple[bytes, bytes | None]:
    """Key and value as a coordinator writes them."""
    subscription = stored.encode_versioned(stored.ConsumerProtocolSubscription(topics=[generation.topic]), 0)
    assigned = stored.ConsumerProtocolAssignment.TopicPartition
    members = [
        stored.GroupMetadataValue.MemberMetadata(
            member_id=member,
            client_id=generation.group,
            client_host="/127.0.0.1",
            rebalance_timeout=300_000,
            session_timeout=SESSION_TIMEOUT_MS,
            subscription=subscription,
            assignment=stored.encode_versioned(
                stored.ConsumerProtocolAssignment(
                    assigned_partitions=[assigned(topic=generation.topic, partitions=list(partitions))]
                ),
                0,
            ),
        )
        for member, partitions in generation.assignment.items()
    ]
    record = GroupRecord(
        generation.group,
        stored.GroupMetadataValue(
            protocol_type="consumer",
            generation=generation.generation,
            protocol="range" if members else None,
            leader=members[0].member_id if members else None,
            current_state_timestamp=generation.at_ms,
            members=members,
        ),
    )
    return record.key(), record.value()


def _create_topics(bootstrap: str) -> None:
    """The topics of the day, which keep their records however old these are, and the topic of offsets."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    replicas = min(3, len(admin.describe_cluster()["brokers"]))
    for topic, (partitions, _) in TOPICS.items():
        settings = {"retention.ms": "-1"}
        try:
            admin.create_topics([NewTopic(topic, partitions, replicas, topic_configs=settings)])
        except TopicAlreadyExistsError:
            raise SystemExit(f"{bootstrap} has a topic {topic!r} already: fill brokers that are empty.") from None
    deadline = time.monotonic() + 30
    await_coordinators(admin, [group.name for group in GROUPS])
    while OFFSETS_TOPIC not in admin.list_topics():
        assert time.monotonic() < deadline, "no topic of offsets"
        time.sleep(0.1)
    admin.close()
