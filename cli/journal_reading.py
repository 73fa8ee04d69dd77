"""The offset journal as a command reads it: only the partition of the group, from the time that it needs on."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from barnabas.cli.shared.client import (
    answered,
    attempts,
    broker_setting,
    committed_offsets,
    connection,
    is_barnabas,
)
from barnabas.cli.shared.exits import ExitCode, Failure, fail, say
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.words import partitions_in_a_line
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC
from barnabas.coordinators.coordinator import partition_for
from barnabas.offsets.journal import (
    NO_POSITION,
    NOT_KNOWN,
    Changes,
    Gap,
    UnknownVersionError,
    decode,
    key_of,
    without_repetitions,
)
from barnabas.offsets.journal_history import Position, Positions, clock_set_back, lacking, positions_at
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

POLL_MS = 500
BEHIND_MS_MAX = 3_000  # how long a command waits for the journal
SETTING = "offsets.journal.enable"
IS_OFF = f"{SETTING}=false"
DELETED = "retention has deleted what was written before"


def read_journal(target: Target, client: Any, group: str, since_ms: int | None, up_to: int = -1) -> list[Changes | Gap]:
    """The records of a group, and the gaps of its partition, that were written since then or ever.

    `up_to`: an offset of the journal that its leader had; its followers may not have what is before it yet.
    """
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    journal_partitions, offsets_partitions = _journal_partitions(client, group)
    count = len(journal_partitions)
    if offsets_partitions and len(offsets_partitions) != count:
        fail(
            f"{JOURNAL_TOPIC} has {counted(count, 'partition')}, and {OFFSETS_TOPIC} {len(offsets_partitions)}, so "
            "it is no journal of that. Delete it: brokers make it again."
        )
    place = TopicPartition(JOURNAL_TOPIC, partition_for(group, count))
    off_at = _where_it_is_off(client, offsets_partitions, place.partition)
    consumer = KafkaConsumer(
        **connection(target),
        group_id=None,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        auto_offset_reset="earliest",  # if retention takes records while they are read
    )
    try:
        consumer.assign([place])
        found = _read(target, client, consumer, place, key_of(group), since_ms, up_to)
    finally:
        consumer.close(autocommit=False)
    records = [record for record in without_repetitions(found) if isinstance(record, Gap) or record.group_id == group]
    if off_at is not None:
        last = records[-1] if records else None
        last_ms = since_ms or 0 if last is None else last.last_ms if isinstance(last, Gap) else last.time_ms
        why = f"broker {off_at}, the group's coordinator, has {IS_OFF}"
        records.append(Gap(NO_POSITION, NO_POSITION, last_ms, RealClock().now_ms(), -1, why))
    return records


def _read(
    target: Target, client: Any, consumer: Any, place: Any, key: bytes, since_ms: int | None, up_to: int
) -> list[Changes | Gap]:
    """The records with this key, and the gaps: of what the journal says, and where retention has taken records."""
    found: list[Changes | Gap] = []
    before_ms = 0
    end = _end(consumer, place, up_to)
    first = None
    if since_ms is not None:
        # A record is written at the time of its changes or a little later, and never earlier.
        start = answered(None, lambda: consumer.offsets_for_times({place: max(0, since_ms)}))[place]
        first = end if start is None else start.offset
    begin = _begin(consumer, place)  # last, so that what retention has taken meanwhile is known
    if first is None:
        first = begin
    has_begun = first > begin or begin == 0
    consumer.seek(place, first)
    while consumer.position(place) < end:
        for records in consumer.poll(POLL_MS).values():
            target.renew()
            if not has_begun or records[0].offset > first:
                has_begun = True
                found.append(Gap(NO_POSITION, NO_POSITION, 0, records[0].timestamp, -1, DELETED))
            for record in records:
                if record.key in (key, b""):
                    found.append(_decoded(record, before_ms))
                before_ms = record.timestamp
            first = records[-1].offset + 1
    if not has_begun or (first < end and _begin(consumer, place) > first):
        found.append(Gap(NO_POSITION, NO_POSITION, 0, RealClock().now_ms() - _retention_ms(client), -1, DELETED))
    return found


def _begin(consumer: Any, place: Any) -> int:
    """Where the journal begins now."""
    begin: int = answered(None, lambda: consumer.beginning_offsets([place]))[place]
    return begin


def _end(consumer: Any, place: Any, up_to: int) -> int:
    """Where the journal ends, at `up_to` at least."""
    for _ in attempts(BEHIND_MS_MAX, POLL_MS):
        end: int = answered(None, lambda: consumer.end_offsets([place]))[place]
        if end >= up_to:
            return end
    return fail(f"the followers of {JOURNAL_TOPIC}-{place.partition} do not have its end yet; try again.")


def _journal_partitions(client: Any, group: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The partitions of the journal, which must be there, and of `__consumer_offsets`."""
    topics = answered(client, lambda: client.describe_topics([JOURNAL_TOPIC, OFFSETS_TOPIC]))
    described = {topic["name"]: topic["partitions"] for topic in topics if not topic["error_code"]}
    offsets_partitions = described.get(OFFSETS_TOPIC, [])
    if JOURNAL_TOPIC not in described:
        _no_journal(client, group, offsets_partitions)
    return described[JOURNAL_TOPIC], offsets_partitions


def _no_journal(client: Any, group: str, partitions: Sequence[dict[str, Any]]) -> NoReturn:
    """End the command, because there is no journal: say why, and what to do."""
    node_id = _leader_of(partitions, partition_for(group, len(partitions))) if partitions else None
    if node_id is None:
        node_id = answered(client, client.describe_cluster)["brokers"][0]["broker_id"]
    nobody = "so nobody knows where a group was before, or who moved it"
    by_hand = f"`barnabas offsets set {group}` moves it to an offset or a time that you name."
    if not answered(client, lambda: is_barnabas(client, node_id)):
        fail(f"broker {node_id} is no Barnabas: Apache Kafka has no offset journal, {nobody}. {by_hand}")
    if answered(client, lambda: broker_setting(client, node_id, SETTING)) == "false":
        fail(
            f"broker {node_id} has {IS_OFF}, and there is no offset journal, {nobody}. Start all brokers with "
            f"{SETTING}=true, which is the default: what changes from then on is known. {by_hand}"
        )
    fail("there is no offset journal yet: the first commit of a group makes it.", ExitCode.NOTHING_THERE)


def tell_what_lacks(records: Sequence[Changes | Gap], positions: Iterable[Position]) -> None:
    """Say why it is not known where a group was, if it is not."""
    if any(position.offset == NOT_KNOWN for position in positions):
        for why in dict.fromkeys(record.why for record in records if isinstance(record, Gap)):
            say(f"Not everything is known, because the journal lacks changes: {why}.")


def _decoded(record: Any, before_ms: int) -> Changes | Gap:
    """A record of the journal. One that cannot be read is a gap of unknown changes since the record before it.

    Any client may write to the journal if it calls itself `__admin_client`, as in Kafka.
    """
    try:
        return decode(record.key, record.value)
    except UnknownVersionError as error:
        why = f"{error}: use the command of the version that the brokers have"
    except ValueError as error:
        why = f"the record at offset {record.offset} cannot be read: {error}"
    return Gap(NO_POSITION, NO_POSITION, before_ms, record.timestamp, -1, why)


def _where_it_is_off(client: Any, partitions: Sequence[dict[str, Any]], index: int) -> int | None:
    """The coordinator of this partition, if it does not write the journal now; None: it does, or there is none."""
    from kafka.errors import KafkaError

    node_id = _leader_of(partitions, index)
    with suppress(KafkaError):
        if node_id is not None and broker_setting(client, node_id, SETTING) == "false":
            return node_id
    return None


def _leader_of(partitions: Sequence[dict[str, Any]], index: int) -> int | None:
    """The broker that leads this partition; None: there is none now."""
    leaders = (row["leader_id"] for row in partitions if row["partition_index"] == index and row["leader_id"] >= 0)
    return next(leaders, None)


def _coordinator(client: Any, group: str) -> int | None:
    """The broker that coordinates a group; None: there is none now."""
    (topic,) = answered(client, lambda: client.describe_topics([OFFSETS_TOPIC]))
    if topic["error_code"] or not topic["partitions"]:
        return None
    return _leader_of(topic["partitions"], partition_for(group, len(topic["partitions"])))


def _retention_ms(client: Any) -> int:
    """How long the journal keeps records at least."""
    from kafka.admin import ConfigResource, ConfigResourceType

    resource = ConfigResource(ConfigResourceType.TOPIC, JOURNAL_TOPIC)
    (topics,) = answered(client, lambda: client.describe_configs([resource])).values()
    return max(int(topics[JOURNAL_TOPIC].get("retention.ms", {"value": 0})["value"]), 0)


def history(
    target: Target, client: Any, group: str, since_ms: int, now: Positions, *, may_move: bool
) -> list[Changes | Gap]:
    """The records since then; all that there are, if those do not say where each partition was.

    A gap may hide partitions of which nothing else says that the group had them.
    """
    records = read_up_to(target, client, group, since_ms, now, may_move=may_move)
    found = positions_at(records, since_ms, now).values()
    if any(isinstance(record, Gap) for record in records) or any(position.offset == NOT_KNOWN for position in found):
        records = read_journal(target, client, group, None)
    return records


def warn_of_clocks(records: Sequence[Changes | Gap]) -> None:
    """Say so if a broker's clock was set back while they were written."""
    found = clock_set_back(records)
    if found is not None:
        say(
            f"a broker's clock was set back from {shown_time(found[0])} to {shown_time(found[1])}, so what was when "
            "near these times is not sure. `barnabas offsets log` has the changes in their order."
        )


def read_up_to(
    target: Target, client: Any, group: str, since_ms: int | None, now: Positions, *, may_move: bool
) -> list[Changes | Gap]:
    """The records of a group, with those that led to where it is now. `may_move`: it has moved on since, perhaps.

    The journal is written a moment after a change; but while its disk is full, or it has no leader, much later.
    """
    up_to = _await_written(target, client, group)
    is_all = up_to is None  # nobody says how far it is, so its last records have to
    missing: Iterable[tuple[str, int]] = ()
    for _ in attempts(BEHIND_MS_MAX, POLL_MS):
        records = read_journal(target, client, group, None if is_all else since_ms, up_to or -1)
        missing = lacking(records, now, may_move=may_move, is_all=is_all)
        if not missing:
            return records
    names = partitions_in_a_line(missing)
    return fail(f"the journal does not have the last changes of {group} yet ({names}). Nothing was changed; try again.")


def _await_written(target: Target, client: Any, group: str) -> int | None:
    """Wait until all changes of up to now are in the journal; returns before which offset of it, or -1: its end.

    None: the coordinator has no HTTP API that this machine reaches.
    """
    coordinator = _coordinator(client, group)
    if coordinator is None:
        return None
    api = HttpApi(client, target)
    noted_to = None
    for _ in attempts(BEHIND_MS_MAX, POLL_MS):
        try:
            # One attempt: its HTTP API may be for its own machine only.
            progress = api.ask("GET", "/v1/groups/{group}/journal", names={"group": group}, node_id=coordinator)
        except Failure:
            return None
        if not progress["is_on"]:
            return -1  # the records of the journal end with a gap that says it
        if noted_to is None:
            noted_to = progress["noted_to"]
        if progress["written_to"] >= noted_to:
            return int(progress["end_offset"])
        if not noted_to:  # nothing was committed, or the log of offsets is lost, which the journal notes
            _journal_partitions(client, group)  # or there is no journal yet
    _journal_partitions(client, group)
    return fail(
        f"the journal does not have the last changes of {group}'s partition yet: broker {coordinator} cannot write it "
        "now. Nothing was changed; `barnabas doctor` may say why."
    )


def committed(client: Any, group: str) -> Positions:
    return {
        (partition.topic, partition.partition): Position(found.offset, found.leader_epoch, found.metadata)
        for partition, found in committed_offsets(client, group).items()
    }


def shown_time(milliseconds: int) -> str:
    """A time in the zone of this machine."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(timespec="milliseconds")
