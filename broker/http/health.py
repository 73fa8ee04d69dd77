"""`/v1/health`: what this broker knows of its own troubles, as facts. `barnabas doctor` judges them."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from barnabas.broker.access.http import sees_all
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, Parameter, route
from barnabas.broker.http.schemas import array, boolean, integer, member, number, record, text
from barnabas.broker.services import Services
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.cluster.tree.tree_place import read_by_others
from barnabas.coordinators.groups.classic import ClassicGroup
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.events import Kind, identity
from barnabas.coordinators.groups.explanation import STORM_WITHIN_MS, advice
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.standstill import STALLED_MS
from barnabas.coordinators.groups.states import State
from barnabas.coordinators.groups.views import CLASSIC, CONSUMER, STATES, view
from barnabas.offsets.expiry import Kept, expired_offsets, forecast, may_have_expired, warning_ms
from barnabas.offsets.lag_history import Point
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.turns import Pieces
from barnabas.storage.directory_contents import strays_in
from barnabas.storage.disk_space import filling

LOGS_MAX = 50
GROUPS_MAX = 500  # with members, and as many without
STOPPED_MAX = 20  # groups without members that have unread records, and nothing else
NAMES_MAX = 5
LARGEST_MAX = 3
WAITS_MS = 5_000.0  # a phase of a rebalance that takes less is nothing to tell
_REBALANCES_MIN = 3  # in the last minutes; fewer are nothing to tell
_DEPARTURES = {Kind.LEFT, Kind.SILENT, Kind.DID_NOT_JOIN, Kind.DID_NOT_SYNC, Kind.NEVER_JOINED}

LOG = record(
    "A log.",
    topic=text("Its topic."),
    partition=integer("Its partition."),
    why=text("The error of the disk."),
)
STOPPED_LOAD = record(
    "A partition of a coordinator's topic that is not loaded to its end, and does not get further now.",
    topic=text("__consumer_offsets or __transaction_state."),
    partition=integer("Its number."),
    offset=integer("What is before this offset is loaded."),
    end_offset=integer("Where the partition ended when its loading began."),
    why=text("What is missing: replicas in sync, or a batch that can be read."),
    waiting_groups=integer("How many groups cannot read offsets; the others can. Null: nobody can.", nullable=True),
)
DIRECTORY = record(
    "A data directory.",
    path=text("Where it is."),
    offline=text("Why it cannot be used until the next start; null: it is in use.", nullable=True),
    bytes=integer("Size of its file system.", nullable=True),
    free_bytes=integer("What of it is free.", nullable=True),
    filling_bytes_per_second=number("How fast it fills, over the last hours; null: not known yet.", nullable=True),
    full_in_seconds=number("When it is full if that goes on; null: it does not fill, or not known.", nullable=True),
    known_seconds=number("How long the broker has looked at it."),
    largest=array(
        record("A topic.", topic=text("Its name."), bytes=integer("What its logs take."), logs=integer("How many.")),
        "The largest topics.",
    ),
    set_aside=integer("Folders of logs that were renamed to `…-stray`, because the tree does not know their topics."),
    first_set_aside=array(text("A folder."), f"Their names, at most {LARGEST_MAX}."),
)
STANDING = record(
    "A partition with unread records, whose committed offset does not move.",
    topic=text("The topic."),
    partition=integer("The partition."),
    offset=integer("The committed offset."),
    since_ms=integer("Since when, as far as the coordinator knows."),
)
MEMBER = member("A member.")
GROUP_HEALTH = record(
    "A group that may have a problem.",
    group=text("Its name."),
    type=text("classic, or consumer (KIP-848).", one_of=[CLASSIC, CONSUMER]),
    state=text("What it is doing.", one_of=STATES),
    members=integer("How many members it has."),
    clients=array(MEMBER, f"Who they are; at most {NAMES_MAX}."),
    unread_partitions=integer("Partitions with unread records."),
    standing_partitions=integer("Those that stand still for the time of the question, of the few that are watched."),
    is_moving=boolean("Whether the group has read on in others meanwhile."),
    standing=array(STANDING, f"The first of those that stand still, at most {NAMES_MAX}; the longest first."),
    past_end_partitions=integer("Partitions where more is committed than the log has."),
    expiring_partitions=integer("Partitions whose committed offset expires soon, if the group stays as it is."),
    expires_ms=integer("When the first of them expires.", nullable=True),
    gone_topics=array(text("A topic."), f"Topics with committed offsets that do not exist; at most {NAMES_MAX}."),
    lost_records_max=integer("So many records at most were deleted before it read them."),
    threatened_records=integer("Unread records that retention takes before long, at most."),
    threatened_topic=text("The topic of the first of them.", nullable=True),
    goes_ms=integer("When the first of them goes.", nullable=True),
    waits_ms=number("How long it waits already for members in a rebalance, or to give up partitions; 0: for nobody."),
    waited_for=array(MEMBER, f"For whom it waits, at most {NAMES_MAX}."),
    waited_for_members=integer("For how many members it waits."),
    rebalances=integer(f"Rebalances of the last {STORM_WITHIN_MS // 60_000} minutes."),
    departures=integer("Members that left or were thrown out in that time."),
    last_rebalance_ms=integer("When the last one began.", nullable=True),
    advice=text("What the coordinator advises, if it knows the cause.", nullable=True),
)
UNDECIDED = record(
    "A partition without a leader until the logs of all replicas decide, because the tree or the disks are old copies.",
    topic=text("Its topic."),
    partition=integer("Its number."),
    waits_for=array(integer("A broker."), "The brokers that have not said yet where their logs end."),
)
BEHIND = record(
    "A follower that is not in sync, in partitions that this broker leads.",
    node_id=integer("The follower."),
    partitions=integer("In how many partitions."),
    since_ms=integer("Since when, in one of them, as far as this leader knows."),
)
UNREADABLE = record(
    "Something that the coordination tree has, and that cannot be read: somebody has written it by hand.",
    of=text("What it is of.", one_of=["users", "quotas", "acls"]),
    name=text("Whose it is, or for what."),
)
CERTIFICATE = record(
    "A certificate of this broker.",
    listener=text("The listener that shows it."),
    ends_ms=integer("When it ends; ms since 1970."),
)
HEALTH = record(
    "What a broker knows of its own troubles.",
    node_id=integer("The broker."),
    time_ms=integer("When this was so; ms since 1970."),
    is_journal_on=boolean("Whether it writes the offset journal."),
    is_lease_held=boolean("Whether it may serve what only a leader may."),
    tree_trouble=text(
        "What is wrong with the coordination tree until a person mends it; null: nothing.", nullable=True
    ),
    tree_held_by=text(
        "The process that is inside a change of the coordination tree, which others wait for; null: none.",
        nullable=True,
    ),
    read_by_others=array(
        text("A file."), "Files of the coordination tree that may hold passwords, and others can read."
    ),
    certificates=array(CERTIFICATE, "Those of its listeners with TLS."),
    why_not_registered=text("Why it is not registered any more, and serves nothing; null: it is.", nullable=True),
    is_told_by_controller=boolean("Whether a controller has told it of the cluster since it started."),
    unreadable=array(UNREADABLE, f"What of users, quotas and access rules cannot be read; {LOGS_MAX} at most."),
    undecided=array(
        UNDECIDED,
        f"Partitions here that wait for it, because an older tree, or older disks, were put back; {LOGS_MAX} at most.",
    ),
    watching_since_ms=integer("Since when it looks at the lag of its groups; null: not yet.", nullable=True),
    loading_partitions=integer("Partitions of __consumer_offsets that are being loaded; their groups are missing."),
    stopped_loads=array(STOPPED_LOAD, "Those that do not get further: replicas are missing, or the log is damaged."),
    directories=array(DIRECTORY, "Its data directories."),
    behind=array(BEHIND, "Followers that are not in sync, where this broker leads."),
    logs=integer("How many logs it has."),
    failed_logs=integer("How many of them cannot be used until the next start."),
    failed=array(LOG, f"At most {LOGS_MAX} of them."),
    write_blocked_logs=integer(
        "In how many the last write was refused (no room, say); with those that could not be made or deleted."
    ),
    write_blocked=array(LOG, f"At most {LOGS_MAX} of them."),
    handler_failures=integer("Requests that met a bug, since its start."),
    upkeep_failures=integer("Failures of what it does again and again by itself, since its start."),
    groups_looked_at=integer("How many groups it coordinates."),
    are_all_watched=boolean("Whether there is room to watch which offsets stand still, for all groups."),
    groups_left_out=integer("Groups that may have a problem, and are not listed."),
    stopped_groups=integer("Groups without members, with unread records that stand still."),
    expiring_groups=integer("Groups without unread records whose offsets expire soon."),
    groups=array(GROUP_HEALTH, "Groups that may have a problem; those with members first."),
)


@route(
    "GET",
    "/v1/health",
    summary="What this broker knows of its own troubles",
    query=[Parameter("stalled_ms", integer("How long an offset must stand still to be told. Default: ten minutes."))],
    answer=HEALTH,
    access=sees_all(ApiKey.DESCRIBE_LOG_DIRS),
)
def health(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """Facts of this broker: its disks and logs, and the groups that it coordinates. What is known of offsets is as old
    as the last look at them (half a minute by default). Ask every broker to see the cluster.
    """
    asked = request.query["stalled_ms"]
    stalled_ms = STALLED_MS if asked is None else max(asked, 0)
    now_ms = services.env.clock.now_ms()
    directories = yield from _directories(services, now_ms)
    logs = yield from _logs(services)
    behind = yield from _behind(services, now_ms)
    groups = yield from _groups(services, now_ms, stalled_ms)
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "time_ms": now_ms,
            "is_journal_on": services.group_coordinator.journal is not None,
            "is_lease_held": services.lease.holds,
            "tree_trouble": services.coordination.trouble or None,
            "tree_held_by": services.coordination.held_by() or None,
            "read_by_others": []
            if services.tree_path is None
            else read_by_others(services.env.disk, services.tree_path),
            "certificates": [
                {"listener": name, "ends_ms": each.names.ends_ms}
                for name, each in ({} if services.tls is None else services.tls.by_listener).items()
                if each.names is not None and each.names.ends_ms is not None
            ],
            "why_not_registered": services.own_registration.why_not,
            "is_told_by_controller": bool(services.metadata_cache.brokers),
            "unreadable": _unreadable(services)[:LOGS_MAX],
            "undecided": [
                {"topic": topic, "partition": index, "waits_for": list(missing)}
                for (topic, index), missing in islice(services.restored_tree.waits_for.items(), LOGS_MAX)
                if missing
            ],
            "watching_since_ms": services.lag_sampling.since_ms,
            "loading_partitions": sum(shard.loading for shard in services.group_coordinator.shards.values()),
            "stopped_loads": _stopped_loads(services),
            "directories": directories,
            "behind": behind,
            **logs,
            "handler_failures": services.request_gate.handler_failures + services.http.handler_failures,
            "upkeep_failures": sum(task.failures for task in services.env.upkeep.tasks),
            "are_all_watched": not services.lag_sampling.standstills.is_full,
            **groups,
        }
    )


def _unreadable(services: Services) -> list[dict[str, str]]:
    """What of users, quotas and access rules cannot be read."""
    found = [("users", repr(user)) for user in sorted(services.credentials.unreadable)]
    found += [("quotas", name) for name in sorted(map(str, services.client_quotas.unreadable))]
    if services.authorizer is not None:
        resources = sorted(services.authorizer.unreadable)
        found += [("acls", f"{resource.type.name.lower()} {resource.name!r}") for resource in resources]
    return [{"of": kind, "name": name} for kind, name in found]


def _logs(services: Services) -> Pieces[dict[str, Any]]:
    """The logs that have failed, and those that cannot be written."""
    failed, write_blocked = [], []
    logs = services.log_manager.all()
    for number_of, log in enumerate(logs):
        if number_of % 100 == 0:
            yield None
        if log.failed is not None:
            failed.append((log, log.failed))
        elif log.write_blocked is not None:
            write_blocked.append((log, log.write_blocked))
    refused = services.replica_manager.refusals.causes
    return {
        "logs": len(logs),
        "failed_logs": len(failed),
        "failed": [_refused(log.topic, log.partition, error) for log, error in failed[:LOGS_MAX]],
        "write_blocked_logs": len(write_blocked) + len(refused),
        "write_blocked": [
            *(_refused(*key, error) for key, error in list(refused.items())[:LOGS_MAX]),
            *(
                _refused(log.topic, log.partition, error)
                for log, error in write_blocked[: max(LOGS_MAX - len(refused), 0)]
            ),
        ],
    }


def _groups(services: Services, now_ms: int, stalled_ms: int) -> Pieces[dict[str, Any]]:
    """The groups that doctor should know of, and how many there are beyond the limits."""
    looked_at = 0
    living: list[dict[str, Any]] = []
    empty: list[dict[str, Any]] = []
    stopped: list[dict[str, Any]] = []
    stopped_count = expiring_count = left_out = 0
    for shard in services.group_coordinator.loaded_shards():
        for group_id in shard.group_ids():
            yield None
            looked_at += 1
            row = _group(services, shard, group_id, now_ms, stalled_ms)
            if row is None:
                continue
            is_unread = row["unread_partitions"] > 0
            stopped_count += bool(not row["members"] and row["standing_partitions"])
            expiring_count += bool(row["expiring_partitions"] and not is_unread)
            if row["members"]:
                rows, most = living, GROUPS_MAX
            elif _is_only_stopped(row, is_unread):
                rows, most = stopped, STOPPED_MAX
            else:
                rows, most = empty, GROUPS_MAX
            if len(rows) < most:
                rows.append(row)
            elif rows is not stopped:
                left_out += 1
    return {
        "groups_looked_at": looked_at,
        "groups_left_out": left_out,
        "stopped_groups": stopped_count,
        "expiring_groups": expiring_count,
        "groups": (row for rows in (living, empty, stopped) for row in rows),
    }


def _refused(topic: str, partition: int, error: OSError) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "why": error.strerror or str(error)}


def _stopped_loads(services: Services) -> list[dict[str, Any]]:
    rows = []
    shards = services.group_coordinator.shards
    transactions = services.transactions
    for topic, found in (
        (OFFSETS_TOPIC, services.group_coordinator.loading()),
        (TRANSACTIONS_TOPIC, transactions.coordinator.loading() if transactions.has_coordinator else []),
    ):
        for load in found:
            if load.stopped_by:
                in_doubt = shards[load.partition].in_doubt if topic == OFFSETS_TOPIC else None
                rows.append(
                    {
                        "topic": topic,
                        "partition": load.partition,
                        "offset": load.loaded_offset,
                        "end_offset": load.end_offset,
                        "why": load.stopped_by,
                        "waiting_groups": None if in_doubt is None else len(in_doubt),
                    }
                )
    return rows


def _directories(services: Services, now_ms: int) -> Pieces[list[dict[str, Any]]]:
    rows = []
    for directory in services.log_manager.directories:
        sizes: dict[str, list[int]] = {}  # bytes and number of the logs of a topic
        total = free = offline = None
        strays: list[str] = []
        space = services.log_manager.free_space.get(directory.path)
        found = filling([] if space is None else space.points, now_ms)
        if directory.failed is not None:
            offline = str(directory.failed)
        else:
            try:
                total, free = services.env.disk.total_and_free_bytes(directory.path)
                strays = strays_in(services.env.disk, directory.path)
            except OSError as error:
                offline = error.strerror or str(error)
            for number_of, log in enumerate(list(directory.logs.values())):
                if number_of % 100 == 0:
                    yield None
                of_topic = sizes.setdefault(log.topic, [0, 0])
                of_topic[0] += log.size_bytes
                of_topic[1] += 1
        largest = sorted(sizes.items(), key=lambda each: -each[1][0])[:LARGEST_MAX]
        rows.append(
            {
                "path": directory.path,
                "offline": offline,
                "bytes": total,
                "free_bytes": free,
                "filling_bytes_per_second": found.bytes_per_second,
                "full_in_seconds": found.full_in_seconds,
                "known_seconds": found.known_seconds,
                "largest": [{"topic": topic, "bytes": size, "logs": logs} for topic, (size, logs) in largest],
                "set_aside": len(strays),
                "first_set_aside": strays[:LARGEST_MAX],
            }
        )
    return rows


def _behind(services: Services, now_ms: int) -> Pieces[list[dict[str, Any]]]:
    monotonic_ms = services.env.clock.monotonic_ms()
    counts: dict[int, int] = {}
    since: dict[int, int] = {}
    for number_of, partition in enumerate(list(services.replica_manager.partitions.values())):
        if number_of % 100 == 0:
            yield None
        if not partition.is_leader or len(partition.isr) >= len(partition.replicas):
            continue
        at_ms = int(now_ms - (monotonic_ms - partition.isr_since_ms))
        for node_id in partition.replicas:
            if node_id not in partition.isr:
                counts[node_id] = counts.get(node_id, 0) + 1
                since[node_id] = min(since.get(node_id, at_ms), at_ms)
    return [
        {"node_id": node_id, "partitions": count, "since_ms": since[node_id]}
        for node_id, count in sorted(counts.items())
    ]


def _is_only_stopped(row: dict[str, Any], is_unread: bool) -> bool:
    """Whether a group without members only has unread records, or only offsets that expire."""
    if is_unread and row["expiring_partitions"]:
        return False
    return not (
        row["past_end_partitions"] or row["gone_topics"] or row["lost_records_max"] or row["threatened_records"]
    )


def _group(services: Services, shard: Shard, group_id: str, now_ms: int, stalled_ms: int) -> dict[str, Any] | None:
    """What is known of a group; None if nothing of it can be a problem."""
    sampling = services.lag_sampling
    group, consumer = shard.groups.get(group_id), shard.consumer.by_id.get(group_id)  # no id is in both
    members: Collection[str] = () if group is None else group.members.by_id
    if consumer is not None:
        members = consumer.members
    standing = [each for each in sampling.standstills.of_group(group_id) if now_ms - each.since_ms >= stalled_ms]
    past_end, lost = sampling.past_end.get(group_id, 0), sampling.lost.get(group_id, 0)
    threat = sampling.threatened.get(group_id)
    gone = [topic for topic in shard.offsets.topics(group_id) if not services.metadata_cache.contains(topic)]
    expiring, expires_ms = _expiring(services, shard, group_id, now_ms)
    events = [] if not members else services.group_coordinator.events.of_group(group_id)
    recent = [event for event in events if event.at_ms >= now_ms - STORM_WITHIN_MS]
    times = [event.at_ms for event in recent if event.kind is Kind.REBALANCE]
    waits_ms, waited_for = _waits(group, consumer, services.env.clock.monotonic_ms())
    has_storm = len(times) >= _REBALANCES_MIN
    hangs = waits_ms > 0 and waits_ms >= min(WAITS_MS, stalled_ms)
    if not (standing or expiring or past_end or gone or lost or threat or hangs or has_storm):
        return None
    standing.sort(key=lambda each: each.since_ms)
    advices = advice(events) if has_storm or hangs or standing else []
    seen = view(shard, group_id)
    return {
        "group": group_id,
        "type": CLASSIC if consumer is None else CONSUMER,
        "state": State.EMPTY.value if seen is None else seen.state,
        "members": len(members),
        "clients": [_named(group, consumer, each) for each in islice(members, NAMES_MAX)],
        "standing_partitions": len(standing),
        "unread_partitions": sampling.standstills.unread_partitions(group_id),
        "is_moving": bool(standing) and _moves(sampling.histories.of_group(group_id), now_ms - stalled_ms),
        "standing": [each._asdict() for each in standing[:NAMES_MAX]],
        "past_end_partitions": past_end,
        "expiring_partitions": expiring,
        "expires_ms": expires_ms,
        "gone_topics": gone[:NAMES_MAX],
        "lost_records_max": lost,
        "threatened_records": 0 if threat is None else threat.records,
        "threatened_topic": None if threat is None else threat.topic,
        "goes_ms": None if threat is None else threat.goes_ms,
        "waits_ms": waits_ms,
        "waited_for": [_named(group, consumer, each) for each in waited_for[:NAMES_MAX]],
        "waited_for_members": len(waited_for),
        "rebalances": len(times),
        "departures": sum(event.kind in _DEPARTURES for event in recent),
        "last_rebalance_ms": times[-1] if times else None,
        "advice": advices[0][1] if advices else None,
    }


def _moves(points: list[Point], since_ms: int) -> bool:
    """Whether a group has read on since then. A point holds until the next one."""
    if not points:
        return False
    before = next((point for point in reversed(points) if point.time_ms <= since_ms), points[0])
    return points[-1].position > before.position and points[-1].partitions == before.partitions


def _expiring(services: Services, shard: Shard, group_id: str, now_ms: int) -> tuple[int, int | None]:
    """How many committed offsets expire so soon that the log warns, and when the first one does."""
    situation = shard.situation(group_id)
    if situation is None:
        return 0, None
    config = services.config
    retention_ms = config.offsets_retention_minutes * 60_000
    last_ms = now_ms + warning_ms(retention_ms, config.offsets_retention_check_interval_ms)
    oldest_ms = shard.offsets.oldest_ms(group_id)
    if oldest_ms is not None and not may_have_expired(situation, oldest_ms, last_ms, retention_ms):
        return 0, None
    committed, pending = shard.offsets.of_group(group_id), shard.offsets.pending_of_group(group_id)
    expiring = expired_offsets(situation, committed, pending, last_ms, retention_ms)
    times = (forecast(situation, topic, committed[topic][index], False, retention_ms) for topic, index in expiring)
    return len(expiring), min((each for each in times if not isinstance(each, Kept)), default=None)


def _waits(group: ClassicGroup | None, consumer: ConsumerGroup | None, monotonic_ms: float) -> tuple[float, list[str]]:
    """How long a group is in its present phase, and the members for whom it waits.

    In a consumer group, those that must give up partitions, and classic ones that must join again.
    """
    if consumer is not None:
        late = {**consumer.timers.joins, **consumer.timers.revocations}
        since_ms = min((each.at_ms - each.timeout_ms for each in late.values()), default=monotonic_ms)
        return monotonic_ms - since_ms, list(late)
    if group is None:
        return 0.0, []
    if group.state is State.PREPARING_REBALANCE:
        absent = [key for key, member in group.members.by_id.items() if member.awaiting_join is None]
        return (monotonic_ms - group.rebalance.began_ms if absent else 0.0), absent
    if group.state is State.COMPLETING_REBALANCE:
        absent = [key for key in group.members.by_id if key in group.members.pending_sync]
        if group.members.leader in absent:
            absent = [group.members.leader]  # the others wait for the assignment that it makes
        return (monotonic_ms - group.rebalance.began_ms if absent else 0.0), absent
    return 0.0, []


def _named(group: ClassicGroup | None, consumer: ConsumerGroup | None, member_id: str) -> dict[str, Any]:
    if consumer is not None:
        return identity(consumer.members[member_id])._asdict()
    return {} if group is None else identity(group.members.by_id[member_id])._asdict()
