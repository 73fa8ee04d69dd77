"""Checks of brokers, replicas, logs and disks."""

import os
from collections.abc import Iterator

from barnabas.cli.checks.facts import DAY_MS, HOUR_MS, Broker, Facts, Partition, Row
from barnabas.cli.checks.findings import Finding, Needs, Severity, check, listed, places
from barnabas.cli.checks.starting import directory_of, start_again
from barnabas.cli.shared.words import command_of, duration, size
from barnabas.cluster.topic_names import TRANSACTIONS_TOPIC
from barnabas.runtime import ports
from barnabas.runtime.counted import counted
from barnabas.runtime.grouped import grouped

READ_ONLY_TEXTS = {os.strerror(number) for number in ports.READ_ONLY}
READ_ONLY = "the broker may write there again: the disk may be mounted read-only, or belong to another user."
NEW_MS = 300_000  # so long after its start a broker may still copy what it has missed
FULL_SOON_MS, FULL_NOW_MS = DAY_MS, HOUR_MS
FREE_PART_LOW, FREE_PART_VERY_LOW = 0.05, 0.01
FREE_BYTES_FOR_A_WRITE = 16 << 20
FREE_BYTES_ENOUGH = 50 << 30  # five per cent of a large disk is not little


def _if_lost(facts: Facts, broker: Broker, directory: str | None) -> str:
    """What to do then. The command does not say it: somebody may run that while a disk is only not mounted."""
    alone = [each.name for _, each in facts.partitions() if tuple(each.replicas) == (broker.node_id,)]
    empty = f" These have no other replica, and begin empty: {listed(alone)}." if alone else ""
    return (
        f"If it is lost for good, add --give-up {directory} to the command: it begins with an empty one, and copies "
        f"what the others have.{empty}"
    )


@check("brokers", "brokers that have replicas and are not registered, or are registered and do not answer")
def broken_brokers(facts: Facts) -> Iterator[Finding]:
    """A broker is away, stands still, or has lost its lease."""
    for broker in facts.brokers:
        where = f"broker {broker.node_id}"
        if not broker.is_registered:
            replicas = [each.name for _, each in facts.partitions() if broker.node_id in each.replicas]
            why = "The others serve, but one more that goes may stop acks=all, commits, or partitions."
            directory = directory_of(facts, broker)
            if directory in facts.missing_directories:
                why += f" Its data directory {directory} is gone: put it back. {_if_lost(facts, broker, directory)}"
            what = f"is not there: {counted(len(replicas), 'replica')} ({listed(replicas)}) are missing"
            command = start_again(facts, broker)
            yield Finding(Severity.ERROR, where, what, why, command, _behind_since(facts, (broker.node_id,)))
        elif not broker.answers:
            what = f"is registered at {broker.host}:{broker.port} and does not answer: {broker.why_not}"
            why = (
                "It stands still (a stopped process, a busy machine), it has no file descriptor or no place for "
                "another connection (its log says so), or the network is cut. What it leads waits."
            )
            command = ("status", "--wait", "10", "--bootstrap", f"{broker.host}:{broker.port}")
            yield Finding(Severity.ERROR, where, what, why, command)
    for broker, health in facts.healths:
        if not health["is_lease_held"] and health["tree_trouble"] is None:
            what = "does not reach the coordination tree, and acknowledges nothing"
            why = "A broker that cannot be sure to lead serves nothing. It goes on when the tree answers again."
            yield Finding(Severity.ERROR, f"broker {broker.node_id}", what, why, ("status",))
        elif health["is_lease_held"] and health["why_not_registered"] is not None:
            what = f"is not registered in the coordination tree: {health['why_not_registered']}"
            why = "It serves nothing that it led. What other brokers say of the cluster may be old."
            yield Finding(Severity.ERROR, f"broker {broker.node_id}", what, why, ("cluster",))


@check(
    "tree", "whether the files of the coordination tree are those that the brokers use, and nobody holds it", Needs.HTTP
)
def tree_trouble(facts: Facts) -> Iterator[Finding]:
    """Somebody removed, replaced or holds a file of the tree. One finding for all brokers that say the same."""
    found: dict[tuple[str, bool], list[int]] = {}
    for broker, health in facts.healths:
        if health["tree_trouble"] is not None:
            found.setdefault((health["tree_trouble"], health["is_lease_held"]), []).append(broker.node_id)
    for (trouble, is_lease_held), nodes in found.items():
        goes_on = "They go on, but no broker can start beside them." if is_lease_held else "They acknowledge nothing."
        what = f"{trouble}, as broker {listed(map(str, nodes))} said"
        why = f"{goes_on} Stop all brokers with SIGTERM, put the right file there if it was replaced, and start them."
        yield Finding(Severity.ERROR, "cluster", what, why, ("cluster",))
    for process in sorted({health["tree_held_by"] for _, health in facts.healths} - {None}):
        what = f"{process} is inside a change of the coordination tree, and keeps all others from changing it"
        why = (
            "No topic or setting can be changed, and nobody can be elected leader, until it is done. Let it finish "
            "(VACUUM, a shell of SQLite with an open transaction), or end it."
        )
        yield Finding(Severity.ERROR, "cluster", what, why, ("cluster",))


@check("controller", "whether a broker is controller")
def no_controller(facts: Facts) -> Iterator[Finding]:
    """Nobody decides."""
    if facts.controller is None or all(broker.node_id != facts.controller for broker in facts.living):
        what = "no broker is controller"
        why = "Leaders are not elected, and topics cannot be made, until one is. An election takes a second or two."
        yield Finding(Severity.ERROR, "cluster", what, why, ("cluster",))


@check("told brokers", "brokers that no controller has told of the cluster", Needs.HTTP)
def untold_brokers(facts: Facts) -> Iterator[Finding]:
    """They do not lead, do not follow, and know of no topic."""
    for broker, health in facts.healths:
        if health["is_lease_held"] and health["why_not_registered"] is None and not health["is_told_by_controller"]:
            what = "no controller has told it of the cluster: it knows of no broker and no topic"
            why = (
                "The controller does not reach it, cannot log in, or is refused: its user must be in super.users of "
                f"broker {broker.node_id}. The logs of both say which."
            )
            command = ("configs", "describe", "broker", str(broker.node_id), "super.users")
            yield Finding(Severity.ERROR, f"broker {broker.node_id}", what, why, command)


@check("replicas", "partitions without a leader, with too few replicas in sync, or with some missing")
def replicas_missing(facts: Facts) -> Iterator[Finding]:
    """One finding for each set of missing replicas of a topic."""
    living = {broker.node_id for broker in facts.living}
    new = _new_brokers(facts)
    undecided = _undecided(facts)
    found: dict[tuple[Severity, str, tuple[int, ...]], list[Partition]] = {}
    for topic, partition in facts.partitions():
        missing = tuple(node for node in sorted(partition.replicas) if node not in partition.in_sync)
        minimum = min(int(topic.number("min.insync.replicas") or 1), len(partition.replicas))
        if partition.leader is None or partition.leader not in living:
            kind, severity = "leader", Severity.ERROR
            missing = tuple(node for node in sorted(partition.replicas) if node not in living)
            if partition.name in undecided:
                kind, missing = "undecided", undecided[partition.name]
        elif len(partition.in_sync) < minimum:
            kind, severity = "minimum", Severity.ERROR
        elif missing:
            kind, severity = "replica", Severity.NOTE if all(map(new.__contains__, missing)) else Severity.WARNING
        else:
            continue
        found.setdefault((severity, kind, missing), []).append(partition)
    for (severity, kind, missing), partitions in found.items():
        names = listed(partition.name for partition in partitions)
        many = counted(len(partitions), "partition")
        brokers = f"{'broker' if len(missing) == 1 else 'brokers'} {listed(map(str, missing))}"
        away = [broker for broker in facts.brokers if broker.node_id in missing and not broker.is_registered]
        command = start_again(facts, away[0]) if away else command_of("topics describe", [partitions[0].topic])
        if kind == "leader":
            what, why = (
                f"{many} without a leader: {names}",
                "Nobody can read or write them until a replica that was in sync is back.",
            )
            if not missing and facts.controller is not None:
                why = f"All their replicas are there. The log of broker {facts.controller}, the controller, says why."
            if not away:
                command = ("cluster",)
        elif kind == "undecided":
            what = f"{many} without a leader, because the coordination tree or disks are an older copy: {names}"
            why = (
                f"The logs of the replicas decide who leads, and {brokers} must say first where the logs end. "
                "Start what is away. If a disk is lost, start its broker with an empty one and --give-up. To go on "
                "without, and perhaps without records that are only there, set unclean.leader.election.enable=true "
                "for these topics until they have leaders."
            )
            if not away:
                command = ("cluster",)
        elif kind == "minimum":
            what = f"{many} with fewer replicas in sync than min.insync.replicas: {names}; not in sync: {brokers}"
            why = "Writes with acks=all, and commits where it is __consumer_offsets, are refused."
        else:
            what = f"{many} whose replicas are not all in sync: {names}; not in sync: {brokers}"
            why = "They have less to spare: when one more broker goes, writes may be refused, or records be away."
        where = f"topic {partitions[0].topic}" if len({each.topic for each in partitions}) == 1 else "cluster"
        yield Finding(severity, where, what, why, command, _behind_since(facts, missing))


def _undecided(facts: Facts) -> dict[str, tuple[int, ...]]:
    """Partitions that an older tree, or older disks, leave to the logs, and the brokers that they wait for."""
    rows = [row for _, health in facts.healths for row in health["undecided"]]
    return {f"{row['topic']}-{row['partition']}": tuple(sorted(row["waits_for"])) for row in rows}


def _new_brokers(facts: Facts) -> set[int]:
    """Brokers in their first minutes: they still copy what they have missed."""
    return {
        broker.node_id
        for broker, health in facts.healths
        if health["watching_since_ms"] is None or health["time_ms"] - health["watching_since_ms"] < NEW_MS
    }


def _behind_since(facts: Facts, nodes: tuple[int, ...]) -> int | None:
    """Since when these brokers are not in sync, as far as the leaders know."""
    rows = [row for _, health in facts.healths for row in health["behind"] if row["node_id"] in nodes]
    return min((row["since_ms"] for row in rows), default=None)


@check("coordinators", "partitions of coordinators that are not loaded to their end", Needs.HTTP)
def stopped_loads(facts: Facts) -> Iterator[Finding]:
    """Replicas are missing, without which nobody can say what is committed; or the log is damaged."""
    away = [broker for broker in facts.brokers if not broker.is_registered]
    for broker, health in facts.healths:
        found = grouped(((row["topic"], row["why"]), row) for row in health["stopped_loads"])
        for (topic, stopped_by), rows in found.items():
            waiting = [row["waiting_groups"] for row in rows]
            if topic == TRANSACTIONS_TOPIC:
                told = "Transactional producers whose ids are there are told to wait."
            elif None in waiting:
                told = "Their groups are told to wait: who commits, joins, or asks for committed offsets."
            else:
                told = (
                    f"Offsets of {counted(sum(waiting), 'group')} cannot be read, others can. Commits and joins wait."
                )
            what = f"{counted(len(rows), 'partition')} of {topic} not loaded to the end: {places(rows)} ({stopped_by})"
            why = f"It cannot be known what of the end is committed, or it cannot be read. {told}"
            command = start_again(facts, away[0]) if away else ("cluster",)
            yield Finding(Severity.ERROR, f"broker {broker.node_id}", what, why, command)


@check("logs", "logs that failed, or whose last write found no room; directories that cannot be used", Needs.HTTP)
def broken_logs(facts: Facts) -> Iterator[Finding]:
    """The disk refused something."""
    for broker, health in facts.healths:
        where = f"broker {broker.node_id}"
        for directory in health["directories"]:
            if directory["offline"] is not None:
                what = f"the data directory cannot be used: {directory['offline']}"
                why = (
                    "Its partitions are offline here. Mend the disk, then start the broker again; if the directory is "
                    "lost for good, start it once with --give-up."
                )
                yield Finding(Severity.ERROR, f"{where}, {directory['path']}", what, why, start_again(facts, broker))
        if health["failed_logs"]:
            names = places(health["failed"])
            what = f"{counted(health['failed_logs'], 'log')} failed ({health['failed'][0]['why']}): {names}"
            why = (
                "It is not known what of the last writes is on the disk, so they are not written before the next "
                "start. Look after the disk, stop the broker, and start it again."
            )
            yield Finding(Severity.ERROR, where, what, why, start_again(facts, broker))
        if health["write_blocked_logs"]:
            names, logs = places(health["write_blocked"]), counted(health["write_blocked_logs"], "log")
            is_read_only = health["write_blocked"][0]["why"] in READ_ONLY_TEXTS
            what = f"{logs} cannot be written ({health['write_blocked'][0]['why']}): {names}"
            why = "Writes to them are refused, and nothing is lost. They go on by themselves when " + (
                READ_ONLY if is_read_only else "there is room. " + _no_inodes(health) + _largest(broker)
            )
            yield Finding(Severity.ERROR, where, what, why, ("cluster",) if is_read_only else _room(broker))


@check("set aside", "records that nobody can read, because the tree does not know their topics", Needs.HTTP)
def set_aside(facts: Facts) -> Iterator[Finding]:
    """A start has renamed folders of logs, perhaps because the tree is an older copy."""
    for broker, health in facts.healths:
        for row in health["directories"]:
            if row.get("set_aside"):  # earlier releases do not say it
                more = row["set_aside"] - len(row["first_set_aside"])
                names = ", ".join(row["first_set_aside"]) + (f" and {more} more" if more else "")
                what = f"{counted(row['set_aside'], 'folder')} of logs that were set aside: {names}"
                why = (
                    "The tree did not know their topics when the broker started: they were deleted while it was away, "
                    "or the tree is an older copy. How they come back is in docs/coordination-tree.md. A folder that "
                    "nobody wants may be removed."
                )
                yield Finding(Severity.NOTE, f"broker {broker.node_id}, {row['path']}", what, why, ("topics", "list"))


@check("disks", "how much of each disk is free, how fast it fills, and when it will be full", Needs.HTTP)
def disks_filling(facts: Facts) -> Iterator[Finding]:
    """The disk is nearly full, or will be soon."""
    for broker, health in facts.healths:
        for directory in health["directories"]:
            total, free, left_s = directory["bytes"], directory["free_bytes"], directory["full_in_seconds"]
            if total is None or free is None or total <= 0:
                continue
            where = f"broker {broker.node_id}, {directory['path']}"
            part = free / total
            if left_s is not None and left_s * 1000 < FULL_SOON_MS:
                rate = size(directory["filling_bytes_per_second"] or 0)
                severity = Severity.ERROR if left_s * 1000 < FULL_NOW_MS else Severity.WARNING
                what = f"the disk is full in {duration(left_s)}: {size(free)} are free, {rate}/s are written"
            elif part < FREE_PART_VERY_LOW and free < FREE_BYTES_ENOUGH:
                severity, what = Severity.ERROR, f"{size(free)} of {size(total)} are free"
            elif part < FREE_PART_LOW and free < FREE_BYTES_ENOUGH:
                severity, what = Severity.WARNING, f"{size(free)} of {size(total)} are free"
            else:
                continue
            why = "When it is full, writes and commits are refused until there is room. " + _largest(broker)
            yield Finding(severity, where, what, why, _room(broker))


@check("failures", "requests and repeated work that met a bug", Needs.HTTP)
def failures(facts: Facts) -> Iterator[Finding]:
    """The broker has logged tracebacks."""
    for broker, health in facts.healths:
        for name, noun in (("handler_failures", "requests"), ("upkeep_failures", "repeated tasks")):
            if health[name]:
                what = f"{health[name]:,} {noun} failed since it started"
                why = "This is a bug, or a disk or tree that does not work. The broker's log has each with its cause."
                yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, ("status",))


def _topics(broker: Broker) -> list[tuple[str, int]]:
    """Its largest topics: name and bytes."""
    assert broker.health is not None
    rows = [row for directory in broker.health["directories"] for row in directory["largest"]]
    return sorted(((row["topic"], row["bytes"]) for row in rows), key=lambda each: -each[1])


def _largest(broker: Broker) -> str:
    """What takes the room."""
    listing = ", ".join(f"{topic} {size(taken)}" for topic, taken in _topics(broker)[:3])
    return (
        f"Make room, add a disk to log.dirs, or let what is largest ({listing}) keep less: then its oldest records go. "
        "The command shows how much the largest topic keeps now."
    )


def _no_inodes(health: Row) -> str:
    """What else it may be if a disk without room has room."""
    free = [row["free_bytes"] for row in health["directories"] if row["free_bytes"] is not None]
    if not free or min(free) < FREE_BYTES_FOR_A_WRITE or "No space left" not in health["write_blocked"][0]["why"]:
        return ""
    return f"{size(min(free))} are free: perhaps it has no inodes left, because there are too many files (`df -i`). "


def _room(broker: Broker) -> tuple[str, ...]:
    """The command that shows what the largest topic of clients keeps. To keep less is for its owner to decide."""
    for topic, taken in _topics(broker):
        if not topic.startswith("__") and taken:
            return command_of("configs describe", ["topic", topic, "retention.bytes", "retention.ms"])
    return ("cluster",)
