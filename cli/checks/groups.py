"""Checks of groups and their committed offsets. What the coordinator says is as old as its last look (30 seconds)."""

from collections.abc import Iterator, Sequence

from barnabas.cli.checks.facts import HOUR_MS, Facts, Row
from barnabas.cli.checks.findings import Finding, Needs, Severity, check, listed, places
from barnabas.cli.checks.starting import start_again
from barnabas.cli.shared.words import command_of, duration
from barnabas.coordinators.groups.explanation import STORM_COUNT, STORM_WITHIN_MS
from barnabas.offsets.lag import READ_UNCOMMITTED, PartitionLag, Status
from barnabas.runtime.counted import counted

PROTOCOLS = "group.coordinator.rebalance.protocols"
HANGING_MS, HANGING_LONG_MS = 30_000, 300_000
STORM_OVER_MS = 300_000  # so long without a rebalance: it is over
STORM_DEPARTURES = 2  # where members only come, the group grows
CONFIRMED_MAX = 50  # groups that are looked at once more, before something is said of their offsets


def to_confirm(healths: Sequence[Row]) -> list[str]:
    """The groups whose offsets must be looked at: what the coordinator has seen half a minute ago may be over.

    Logs elsewhere may have grown since, and what has not been read may be no records.
    """
    rows = [row for health in healths for row in health["groups"] if row["past_end_partitions"] or _stands(row)]
    rows.sort(key=lambda row: (not row["past_end_partitions"], not row["members"]))
    return [row["group"] for row in rows]


def _stands(row: Row) -> bool:
    return bool(row["members"] and row["standing_partitions"])


@check("stalled groups", "groups with members and unread records, whose committed offsets do not move", Needs.HTTP)
def stalled(facts: Facts) -> Iterator[Finding]:
    """The consumers live, and nothing moves."""
    for _, row in facts.group_rows():
        if not _stands(row):
            continue
        rows = [each for each in row["standing"] if _is_unread(facts, row["group"], each)]
        if not rows:
            continue
        name, since_ms = row["group"], min(each["since_ms"] for each in rows)
        names = places(rows)
        still = duration((facts.now_ms - since_ms) / 1000)
        clients = listed(map(_named, row["clients"]), 2)
        first = rows[0]
        blocked = [each for each in rows if _is_held_back(facts, row["group"], each)]
        if len(blocked) == len(rows):
            yield Finding(
                Severity.WARNING if row["is_moving"] else Severity.ERROR,
                f"group {name}",
                f"nothing was committed for {still}, behind an open transaction: {names}",
                "Consumers with read_committed get no record until the transaction ends. The command says which it is, "
                f"and how to end it. Members: {clients}.",
                command_of("groups describe", [name]),
                since_ms,
            )
            continue
        if row["is_moving"]:
            what = f"{counted(len(rows), 'partition')} not read for {still}, others are: {names}"
            why = (
                f"Often it is one record that cannot be processed (offset {first['offset']} of {first['topic']}-"
                f"{first['partition']}): the command passes over it. Members: {clients}."
            )
        else:
            what = f"nothing was committed for {still}, with records to read: {names}"
            why = (
                "A member works on a record that does not end, does not commit, or cannot process the record at offset "
                f"{first['offset']} of {first['topic']}-{first['partition']}, which the command passes over. "
                f"Members: {clients}."
            )
        if row["advice"]:
            why += f" {row['advice']}"
        place = f"{first['topic']}:{first['partition']}"
        command = command_of("offsets set", [name], "--topic", place, "--shift-by", "1", "--live")
        severity = Severity.WARNING if row["is_moving"] else Severity.ERROR
        yield Finding(severity, f"group {name}", what, why, command, since_ms)


def _is_held_back(facts: Facts, group: str, standing: Row) -> bool:
    """Whether the group stands at the last stable offset, with records behind it."""
    return any(
        row.last_stable_offset is not None
        and row.high_watermark is not None
        and row.last_stable_offset <= row.offset
        and row.last_stable_offset < row.high_watermark
        for row in facts.lags.get(group, ())
        if (row.topic, row.partition) == (standing["topic"], standing["partition"])
    )


def _is_unread(facts: Facts, group: str, standing: Row) -> bool:
    """Whether the look at the logs has found records where the coordinator thought so, and the offset is the same."""
    rows = facts.lags.get(group)
    if rows is None:
        return group not in facts.not_confirmed
    for row in rows:
        if (row.topic, row.partition) == (standing["topic"], standing["partition"]):
            lag = row.of(READ_UNCOMMITTED)
            return row.offset == standing["offset"] and lag is not None and lag.records > 0
    return False


@check("stopped groups", "groups without members that have not read everything", Needs.HTTP)
def stopped(facts: Facts) -> Iterator[Finding]:
    """One note for all: nobody may want them any more."""
    rows = [row for _, row in facts.group_rows() if not row["members"] and row["standing_partitions"]]
    if not rows:
        return
    of_all = sum(health["stopped_groups"] for _, health in facts.healths)
    names = listed(row["group"] for row in rows)
    what = f"{counted(max(of_all, len(rows)), 'group')} without members, with unread records: {names}"
    why = "If they are meant to run, start their consumers. If nobody needs them any more, delete them."
    command = command_of("groups lag", [rows[0]["group"]])
    yield Finding(Severity.NOTE, "groups", what, why, command, min(row["standing"][0]["since_ms"] for row in rows))


@check("commits past the end", "committed offsets behind the end of their log, or of a log that was cut or made again")
def past_the_end(facts: Facts) -> Iterator[Finding]:
    """What is committed does not fit to the log. Each group was looked at with its partitions' leaders."""
    members = {row["group"]: row["members"] for _, row in facts.group_rows()}
    texts = {
        Status.PAST_LOG_END: "behind the end of the log",
        Status.LOG_CUT: "above the place where the log was cut",
        Status.TOPIC_MADE_AGAIN: "of a deleted topic of the same name",
    }
    for group, rows in facts.lags.items():
        for status, text in texts.items():
            bad = [row for row in rows if row.status is status]
            if not bad:
                continue
            found = listed(_place(row) for row in bad)
            numbers = ",".join(str(row.partition) for row in bad if row.topic == bad[0].topic)
            to = "earliest" if status is Status.TOPIC_MADE_AGAIN else "latest"
            if status is Status.LOG_CUT:
                to = str(min(row.cut_at or 0 for row in bad if row.topic == bad[0].topic))
            has_members = members.get(group, facts.groups is not None and facts.groups.get(group) != "Empty")
            live = ["--live"] if has_members else []
            what = f"{counted(len(bad), 'committed offset')} {text}: {found}"
            why = (
                "A consumer that starts there is sent to one end of the log by auto.offset.reset, and reads again or "
                "passes over records; one that runs waits until the log has grown so far, and never gets what is "
                "written until then."
            )
            command = command_of("offsets set", [group], "--topic", f"{bad[0].topic}:{numbers}", "--to", to, *live)
            yield Finding(Severity.ERROR if has_members else Severity.WARNING, f"group {group}", what, why, command)


def _place(row: PartitionLag) -> str:
    return f"{row.topic}-{row.partition} at {row.offset}, end {row.log_end_offset}"


@check("offsets of topics that are gone", "committed offsets of topics that do not exist", Needs.HTTP)
def gone_topics(facts: Facts) -> Iterator[Finding]:
    """They take room, and count if a topic of that name is made again."""
    for _, row in facts.group_rows():
        if row["gone_topics"]:
            what = f"has committed offsets of topics that do not exist: {listed(row['gone_topics'])}"
            why = "If a topic of this name is made again, the group begins at these offsets in it."
            command = ("offsets", "cleanup", "--group", row["group"], "--gone")
            yield Finding(Severity.NOTE, f"group {row['group']}", what, why, command)


@check("expiring offsets", "committed offsets that expire soon because no member reads their topics", Needs.HTTP)
def expiring(facts: Facts) -> Iterator[Finding]:
    """A warning where unread records would be passed over; else one note for all: groups come and go."""
    read = []
    minutes = int(facts.any_settings.number("offsets.retention.minutes") or 10_080)
    command = start_again(facts, facts.brokers[0], {"offsets.retention.minutes": str(min(2 * minutes, 2**31 - 1))})
    for health, row in facts.group_rows():
        if not row["expiring_partitions"]:
            continue
        left = duration(max((row["expires_ms"] or 0) - health["time_ms"], 0) / 1000)
        if not row["unread_partitions"]:
            read.append((row["group"], left))
            continue
        expiring = counted(row["expiring_partitions"], "of its offsets expires", "of its offsets expire")
        what = f"{expiring}, the first in {left}; it has unread records"
        why = (
            "Without an offset its consumers begin where auto.offset.reset says: they read all again, or pass over "
            "unread records. Start them, or let all brokers keep offsets for longer (offsets.retention.minutes)."
        )
        yield Finding(Severity.WARNING, f"group {row['group']}", what, why, command)
    if read:
        of_all = sum(health["expiring_groups"] for _, health in facts.healths)
        what = (
            f"the offsets of {counted(max(of_all, len(read)), 'group')} without unread records expire soon: "
            f"{listed(name for name, _ in read)}, the first in {read[0][1]}"
        )
        why = "If they are to come back, start their consumers, or let all brokers keep offsets for longer."
        yield Finding(Severity.NOTE, "groups", what, why, command)


@check("consumer groups", "groups of the consumer protocol (KIP-848) where brokers refuse it")
def refused_protocol(facts: Facts) -> Iterator[Finding]:
    """One for all: the level is that of the cluster, and brokers have the same setting."""
    names = sorted(facts.consumer_groups)
    without = [broker for broker, settings in facts.settings if _has_no_consumer(settings.text(PROTOCOLS))]
    if not names or (facts.group_version != 0 and not without):
        return
    with_members = [name for name in names if (facts.groups or {}).get(name) != "Empty"]
    command = command_of("features upgrade --feature group.version=1", ())
    off = "group.version is 0"
    if facts.group_version != 0:
        off = f"{PROTOCOLS} has no consumer"
        command = start_again(facts, without[0], {PROTOCOLS: "classic,consumer"})
    severity, found, have = (
        (Severity.ERROR, with_members, "with") if with_members else (Severity.NOTE, names, "without")
    )
    what = f"{counted(len(found), 'group')} of group.protocol=consumer {have} members, and {off}: {listed(found)}"
    why = (
        "Brokers refuse the heartbeats of their members, which lose their places, and do not describe these groups. "
        "The committed offsets stay. Turn the protocol on, or start the consumers with group.protocol=classic."
    )
    yield Finding(severity, "groups", what, why, command)


def _has_no_consumer(protocols: str | None) -> bool:
    return protocols is not None and "consumer" not in protocols.replace(" ", "").split(",")


@check("hanging members", "members for which a rebalance waits, or which keep partitions of others", Needs.HTTP)
def hanging(facts: Facts) -> Iterator[Finding]:
    """The others do not read, or not these partitions, until it joins, gives them up, or is thrown out."""
    for health, row in facts.group_rows():
        if row["waits_ms"] < min(HANGING_MS, facts.stalled_ms) or not row["waited_for"]:
            continue
        if row["type"] == "consumer":
            phase, so = "for partitions that are not given up", "Nobody else reads them"
        else:
            phase = "to join" if row["state"] == "PreparingRebalance" else "for the assignment of its leader"
            so = f"{counted(row['members'] - row['waited_for_members'], 'other member')} read nothing"
        why = (
            f"{so} meanwhile. It is thrown out when max.poll.interval.ms is over; end the process, or make it poll "
            "more often (max.poll.records). The command takes it out."
        )
        yield Finding(
            Severity.ERROR if row["waits_ms"] >= HANGING_LONG_MS else Severity.WARNING,
            f"group {row['group']}",
            f"waits {duration(row['waits_ms'] / 1000)} already {phase}: {listed(map(_named, row['waited_for']))}",
            why + (f" {row['advice']}" if row["advice"] else ""),
            _removal(row),
            int(health["time_ms"] - row["waits_ms"]),
        )


def _removal(row: Row) -> tuple[str, ...]:
    words: list[str] = []
    for member in row["waited_for"]:
        static = member["instance_id"] is not None
        words += ["--instance", member["instance_id"]] if static else ["--member", member["member_id"]]
    return command_of("groups remove", [row["group"]], *words)


def _named(member: Row) -> str:
    return f"{member['instance_id'] or member['client_id'] or member['member_id']} at {member['host']}"


@check("rebalance storms", "groups that rebalance all the time because members come and go", Needs.HTTP)
def storms(facts: Facts) -> Iterator[Finding]:
    """Where members only come, a group grows; where the last rebalance is long ago, it is over."""
    for health, row in facts.group_rows():
        last_ms = row["last_rebalance_ms"]
        if (
            row["rebalances"] < STORM_COUNT
            or row["departures"] < STORM_DEPARTURES
            or last_ms is None
            or health["time_ms"] - last_ms > STORM_OVER_MS
        ):
            continue
        yield Finding(
            Severity.WARNING,
            f"group {row['group']}",
            f"{counted(row['rebalances'], 'rebalance')} in {STORM_WITHIN_MS // 60_000} minutes; "
            f"{counted(row['departures'], 'member')} left or were thrown out",
            row["advice"] or "In each, nobody reads until all have joined.",
            command_of("groups explain", [row["group"]]),
            health["time_ms"] - STORM_WITHIN_MS,
        )


@check("unread records that go", "unread records that retention deletes soon, or has deleted", Needs.HTTP)
def threatened(facts: Facts) -> Iterator[Finding]:
    """The group loses records."""
    for health, row in facts.group_rows():
        name = row["group"]
        if row["threatened_records"]:
            left_ms = max(row["goes_ms"] - health["time_ms"], 0)
            yield Finding(
                Severity.WARNING if left_ms > HOUR_MS else Severity.ERROR,
                f"group {name}",
                f"retention deletes {counted(row['threatened_records'], 'unread record')} at most, the first in "
                f"{duration(left_ms / 1000)}",
                "The group will never get them. The command lets retention wait for the group, a day at most.",
                _wait_for(facts, row["threatened_topic"], name),
            )
        if row["lost_records_max"]:
            yield Finding(
                Severity.WARNING if row["members"] else Severity.NOTE,
                f"group {name}",
                f"at most {counted(row['lost_records_max'], 'record was', 'records were')} deleted before it read them",
                "They are gone. When its consumers go on, auto.offset.reset decides where; the command begins at the "
                "first records that are left.",
                command_of("offsets set", [name], "--to", "earliest", "--dry-run"),
            )


def _wait_for(facts: Facts, topic: str, group: str) -> tuple[str, ...]:
    known = facts.topic(topic)
    names = known.settings.text("barnabas.retention.wait.for.groups") if known and known.settings else None
    others = [name for name in (names or "").split(",") if name]
    # A list has commas between its names and no blanks around them. In a pattern, `?` stands for any character.
    group = "".join("?" if each == "," or each.isspace() else each for each in group)
    if group in others:
        return command_of("configs set", ["topic", topic, "barnabas.retention.wait.max.ms=172800000"])
    wanted = f"barnabas.retention.wait.for.groups={','.join([*others, group])}"
    return command_of("configs set", ["topic", topic, wanted])
