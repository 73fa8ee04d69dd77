"""Checks of settings that fight each other: Kafka accepts them, and an operator regrets them.

Each function is given the settings of one broker that answers for all, or of one topic. Settings that differ between
brokers are a finding of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from barnabas.cli.checks.facts import DAY_MS, LONG_MAX, Facts, Settings, Topic
from barnabas.cli.checks.findings import Finding, Needs, Severity, check, listed
from barnabas.cli.checks.starting import OWN, start_again
from barnabas.cli.shared.words import command_of, duration, size
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.config.listeners import is_loopback
from barnabas.config.topic import BROKER_NAMES
from barnabas.runtime.counted import counted
from barnabas.runtime.grouped import grouped

SESSION_DEFAULT_MS = 45_000  # session.timeout.ms of Java's consumer and of librdkafka
POLL_DEFAULT_MS = 300_000
INITIAL_DELAY_LONG_MS = 60_000


def _restart(facts: Facts, changes: Mapping[str, str]) -> tuple[str, ...]:
    """The start of a broker with other settings; every broker needs them."""
    broker = facts.settings[0][0]
    return start_again(facts, broker, changes)


def _better(facts: Facts, severity: Severity, key: str, value: str, said: str, why: str) -> Finding:
    """A setting of the brokers that would better have this value."""
    return Finding(severity, f"setting {key}", said, why, _restart(facts, {key: value}))


def _own(topic: Topic) -> bool:
    """Whether the topic is one of the broker's own."""
    return topic.is_internal or topic.name.startswith("__")


def of_topics(facts: Facts, wrong: Callable[[Topic, Settings], bool]) -> list[Topic]:
    """The topics whose settings are wrong."""
    return [topic for topic in facts.topics if topic.settings is not None and wrong(topic, topic.settings)]


def names(topics: list[Topic]) -> str:
    """`topic a` or `topics a, b`."""
    return ("topic " if len(topics) == 1 else "topics ") + listed(topic.name for topic in topics)


def mended(
    topics: list[Topic], key: str, value: Callable[[Topic], str], by: Callable[[Topic], object] = lambda topic: None
) -> Iterator[tuple[list[Topic], tuple[str, ...]]]:
    """The topics with the command that mends them: one for all that have it from the broker, else one for each.

    `by`: what the value depends on.
    """
    inherited: dict[object, list[Topic]] = {}
    for topic in topics:
        assert topic.settings is not None
        if topic.settings.is_own(key):
            yield [topic], command_of("configs set", ["topic", topic.name, f"{key}={value(topic)}"])
        else:
            inherited.setdefault(by(topic), []).append(topic)
    for found in inherited.values():
        yield found, ("configs", "set", "broker", "default", f"{BROKER_NAMES[key][0]}={value(found[0])}")


@check("in-sync replicas", "min.insync.replicas against the number of replicas", Needs.SETTINGS)
def in_sync_replicas(facts: Facts) -> Iterator[Finding]:
    """More than there are, as many as there are, or one of several."""

    def minimum(topic: Topic, settings: Settings) -> float:
        return settings.number("min.insync.replicas") or 1

    def above(topic: Topic, settings: Settings) -> bool:
        return minimum(topic, settings) >= topic.replication > 1

    def promised(topic: Topic, settings: Settings) -> bool:
        # A minimum of all topics, which the broker has, says nothing of one that was made with one replica.
        return minimum(topic, settings) > topic.replication == 1 and settings.is_own("min.insync.replicas")

    one = of_topics(facts, promised)
    weak = of_topics(facts, lambda topic, settings: topic.replication >= 3 and minimum(topic, settings) == 1)
    for found, command in mended(
        of_topics(facts, above),
        "min.insync.replicas",
        lambda topic: str(topic.replication - 1),
        by=lambda topic: topic.replication,
    ):
        text = "is above" if (found[0].number("min.insync.replicas") or 0) > found[0].replication else "equals"
        what = f"min.insync.replicas {text} the number of replicas ({found[0].replication})"
        why = "Whenever one broker stops, also for an update, writes with acks=all are refused."
        yield Finding(Severity.WARNING, names(found), what, why, command)
    if one and facts.is_cluster:
        yield Finding(
            Severity.WARNING,
            names(one),
            "min.insync.replicas is above 1, and there is one replica",
            "It promises what one replica cannot keep: if its broker is away, so is the topic; if its disk is lost, so "
            "are the records. Make a topic with three replicas and copy it.",
            command_of(
                "topics create",
                [f"{one[0].name}-replicated"],
                *("--partitions", str(len(one[0].partitions))),
                *("--replication-factor", str(min(len(facts.living), 3))),
            ),
        )
    for found, command in mended(weak, "min.insync.replicas", lambda topic: "2"):
        what = f"min.insync.replicas is 1, with {counted(found[0].replication, 'replica')}"
        why = (
            "A record with acks=all may be acknowledged by one broker alone, when the others are behind, and is lost "
            "with its disk."
        )
        yield Finding(Severity.WARNING, names(found), what, why, command)


@check(
    "replication",
    "numbers of replicas against the number of brokers: of the internal topics, and of new topics",
    Needs.SETTINGS,
)
def replication(facts: Facts) -> Iterator[Finding]:
    """Too few for the cluster, or more than it has."""
    settings, known = facts.any_settings, len(facts.brokers)
    existing = {topic.name: topic for topic in facts.topics}
    for name, key, effect in (
        (OFFSETS_TOPIC, "offsets.topic.replication.factor", "no group can commit"),
        (TRANSACTIONS_TOPIC, "transaction.state.log.replication.factor", "no transaction can begin"),
    ):
        wanted = settings.number(key)
        topic = existing.get(name)
        if topic is None and wanted is not None and wanted > known and settings.is_set(key):
            said = f"it is {wanted:.0f}, with {counted(known, 'broker')}: {name} cannot be made"
            why = f"As long as the topic is missing, {effect}. Start more brokers, or all with a smaller number."
            severity = Severity.ERROR if name == OFFSETS_TOPIC else Severity.WARNING
            yield _better(facts, severity, key, str(known), said, why)
        if topic is not None and len(facts.brokers) >= 2 and topic.replication == 1:
            what = f"it has one replica, in a cluster of {counted(len(facts.brokers), 'broker')}"
            why = (
                "While one broker is away, "
                + (
                    "the groups it coordinates stand still; if its disk is lost, their offsets are, too. "
                    if name == OFFSETS_TOPIC
                    else "transactions stand still. "
                )
                + "The replicas of a topic cannot be changed yet: keep an export of the offsets."
            )
            yield Finding(Severity.WARNING, f"topic {name}", what, why, command_of("topics describe", [name]))
    default, automatic = settings.number("default.replication.factor"), settings.is_true("auto.create.topics.enable")
    if len(facts.brokers) >= 3 and default == 1:
        also = ", also those that are made when a client names them" if automatic else ""
        said = f"new topics get one replica{also}"
        why = "They are away with their broker, and lost with its disk."
        severity = Severity.WARNING if automatic else Severity.NOTE
        yield _better(facts, severity, "default.replication.factor", "3", said, why)
    single = [topic for topic in facts.topics if topic.replication == 1 and not _own(topic)]
    if single and len(facts.brokers) >= 3:
        what = (
            f"{counted(len(single), 'topic')} with one replica, in a cluster of {counted(len(facts.brokers), 'broker')}"
        )
        why = "They are away with their broker, and lost with its disk. If that is meant, nothing is wrong."
        yield Finding(Severity.NOTE, names(single), what, why, command_of("topics describe", [single[0].name]))
    yield from _transaction_log(facts)


def _transaction_log(facts: Facts) -> Iterator[Finding]:
    minimum = facts.any_settings.number("transaction.state.log.min.isr")
    of_log = facts.any_settings.number("transaction.state.log.replication.factor")
    if minimum is not None and of_log is not None and minimum > of_log:
        said = f"it is {minimum:.0f}, above transaction.state.log.replication.factor={of_log:.0f}"
        why = "Transactions would need more replicas in sync than there are."
        yield _better(facts, Severity.WARNING, "transaction.state.log.min.isr", f"{of_log:.0f}", said, why)


@check(
    "unclean elections", "unclean.leader.election.enable: replicas that lead although they lack records", Needs.SETTINGS
)
def unclean(facts: Facts) -> Iterator[Finding]:
    """Records that were acknowledged with acks=all can go."""
    found = of_topics(
        facts,
        lambda topic, settings: bool(settings.is_true("unclean.leader.election.enable")) and topic.replication > 1,
    )
    for topics, command in mended(found, "unclean.leader.election.enable", lambda topic: "false"):
        internal = any(_own(topic) for topic in topics)
        what = "unclean.leader.election.enable is true"
        why = (
            "When the replicas in sync are away, another one leads: records that were acknowledged with acks=all are "
            "lost then" + (", and committed offsets go back." if internal else ", and consumers skip or repeat some.")
        )
        yield Finding(Severity.ERROR if internal else Severity.WARNING, names(topics), what, why, command)


@check("retention", "sizes and times of retention against segments, checks, and groups that wait", Needs.SETTINGS)
def retention(facts: Facts) -> Iterator[Finding]:
    """Records stay longer than meant, or go before groups come back."""

    def deletes(settings: Settings) -> bool:
        return "delete" in (settings.text("cleanup.policy") or "")

    large = of_topics(
        facts,
        lambda topic, settings: (
            deletes(settings)
            and 0 < (settings.number("retention.bytes") or -1) < (settings.number("segment.bytes") or 0)
            and not _own(topic)
        ),
    )

    by_sizes = grouped(
        ((topic.number("segment.bytes") or 0, topic.number("retention.bytes") or 0), topic) for topic in large
    )
    for (segment, kept), found in by_sizes.items():
        what = f"segment.bytes ({size(segment)}) is above retention.bytes ({size(kept)})"
        why = (
            f"Only whole segments go: each partition grows to {size(segment)} and more before anything is deleted. "
            "With a smaller segment.bytes, what is above retention.bytes goes earlier. The command shows both."
        )
        command = command_of("configs describe", ["topic", found[0].name, "segment.bytes", "retention.bytes"])
        yield Finding(Severity.WARNING, names(found), what, why, command)
    interval = facts.any_settings.number("log.retention.check.interval.ms")
    if interval is not None:
        short = of_topics(
            facts, lambda topic, settings: deletes(settings) and 0 <= (settings.number("retention.ms") or -1) < interval
        )
        if short:
            assert short[0].settings is not None
            kept = short[0].settings.number("retention.ms") or 0
            what = (
                f"retention.ms ({duration(kept / 1000)}) is below log.retention.check.interval.ms "
                f"({duration(interval / 1000)})"
            )
            why = "Retention looks only so often: records stay up to that much longer."
            command = _restart(facts, {"log.retention.check.interval.ms": str(max(int(kept), 1000))})
            yield Finding(Severity.NOTE, names(short), what, why, command)
        if interval > DAY_MS / 2:
            said = f"retention looks every {duration(interval / 1000)} only"
            why = "Disks may be full before it looks."
            yield _better(facts, Severity.WARNING, "log.retention.check.interval.ms", "300000", said, why)
    yield from _offsets_retention(facts)
    yield from _waits(facts)


def _offsets_retention(facts: Facts) -> Iterator[Finding]:
    minutes = facts.any_settings.number("offsets.retention.minutes")
    if minutes is None:
        return
    kept_ms = minutes * 60_000
    if kept_ms < DAY_MS:
        said = f"offsets of a stopped group are deleted after {duration(kept_ms / 1000)}"
        why = "A group that is stopped over night begins anew, where auto.offset.reset says. Kafka keeps them 7 days."
        yield _better(facts, Severity.WARNING, "offsets.retention.minutes", "10080", said, why)

    def waits_longer(topic: Topic, settings: Settings) -> bool:
        kept, wait = settings.number("retention.ms"), _longest_wait(settings)
        if not settings.text("barnabas.retention.wait.for.groups") or kept is None:
            return False
        return kept < 0 or min(kept + wait, LONG_MAX) > kept_ms

    waiting = of_topics(facts, waits_longer)
    if waiting:
        yield Finding(
            Severity.WARNING,
            names(waiting),
            f"records wait for groups longer than these groups' offsets live ({duration(kept_ms / 1000)})",
            "A group that is away has lost its offsets before its records go: it begins where auto.offset.reset says, "
            "and what was kept for it is not read.",
            _restart(facts, {"offsets.retention.minutes": str(_minutes_enough(waiting))}),
        )


def _longest_wait(settings: Settings | None) -> float:
    """barnabas.retention.wait.max.ms. Brokers do not list it where nobody has set it."""
    found = None if settings is None else settings.number("barnabas.retention.wait.max.ms")
    return DAY_MS if found is None else found


def _minutes_enough(topics: list[Topic]) -> int:
    longest = 0.0
    for topic in topics:
        kept, wait = topic.number("retention.ms") or 0, _longest_wait(topic.settings)
        longest = max(longest, (30 * DAY_MS if kept < 0 else kept) + wait)
    return min(int(longest // 60_000) + 1440, 2**31 - 1)


def _waits(facts: Facts) -> Iterator[Finding]:
    """Groups that are waited for and that nobody knows."""
    if facts.groups is None:
        return
    for topic in facts.topics:
        text = topic.settings.text("barnabas.retention.wait.for.groups") if topic.settings is not None else None
        wanted = [name for name in (text or "").split(",") if name]
        unknown = [name for name in wanted if not any(fnmatchcase(group, name) for group in facts.groups)]
        named = [name for name in unknown if not set("*?[") & set(name)]
        if unknown:
            what = f"barnabas.retention.wait.for.groups names what is no group: {listed(unknown)}"
            why = (
                "Retention holds everything back for a group that never commits, as long as it waits at most. Look "
                "whether the name is right."
                if named
                else "The pattern fits no group, so retention waits for nobody."
            )
            command = command_of("configs describe", ["topic", topic.name, "barnabas.retention.wait.for.groups"])
            yield Finding(Severity.WARNING if named else Severity.NOTE, f"topic {topic.name}", what, why, command)


@check("sizes", "sizes of messages against those of requests and fetches", Needs.SETTINGS)
def sizes(facts: Facts) -> Iterator[Finding]:
    """A batch that is accepted in one place and not in the next."""
    settings = facts.any_settings
    request, fetch, replica = (
        settings.number(name) for name in ("socket.request.max.bytes", "fetch.max.bytes", "replica.fetch.max.bytes")
    )
    of_topic, of_broker = "max.message.bytes", "message.max.bytes"
    limits = [
        (f"topic {topic.name}", ["topic", topic.name], of_topic, topic.number(of_topic))
        for topic in facts.topics
        if not _own(topic)
    ]
    limits.append((f"setting {of_broker}", ["broker", "default"], of_broker, settings.number(of_broker)))
    for where, entity, key, limit in limits:
        if limit is None:
            continue
        it = f"{key} ({size(limit)})"
        if request is not None and limit > request:
            what = f"{it} is above socket.request.max.bytes ({size(request)})"
            why = "Such a batch never arrives: the connection that sends it is closed."
            command = command_of("configs set", [*entity, f"{key}={int(request) // 2}"])
            yield Finding(Severity.WARNING, where, what, why, command)
        elif fetch is not None and limit > fetch:
            what = f"{it} is above fetch.max.bytes ({size(fetch)})"
            why = "Such a batch is fetched alone, one at a time; that is slow."
            yield Finding(Severity.NOTE, where, what, why, command_of("configs set", [*entity, f"{key}={int(fetch)}"]))
        elif replica is not None and limit > replica and facts.is_cluster and limit > 1048588:
            yield Finding(
                Severity.NOTE,
                where,
                f"{it} is above replica.fetch.max.bytes ({size(replica)})",
                "Followers fetch such a batch alone, one at a time; old ones (before Kafka 0.10.1) stand still at it.",
                _restart(facts, {"replica.fetch.max.bytes": str(int(limit))}),
            )


@check("group settings", "time-outs of sessions and rebalances that consumers meet", Needs.SETTINGS)
def group_settings(facts: Facts) -> Iterator[Finding]:
    """Consumers with their default settings are refused, or wait."""
    settings = facts.any_settings
    least, most = settings.number("group.min.session.timeout.ms"), settings.number("group.max.session.timeout.ms")
    if least is not None and most is not None:
        if least > most:
            yield Finding(
                Severity.ERROR,
                "setting group.min.session.timeout.ms",
                f"it is {least:.0f}, above group.max.session.timeout.ms={most:.0f}",
                "No consumer can join a group: every session.timeout.ms is refused.",
                _restart(facts, {"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000"}),
            )
        elif not least <= SESSION_DEFAULT_MS <= most:
            name, default = (
                ("group.min.session.timeout.ms", "6000")
                if least > SESSION_DEFAULT_MS
                else ("group.max.session.timeout.ms", "1800000")
            )
            said = f"session.timeout.ms must lie between {least:.0f} and {most:.0f}; consumers have 45000 by default"
            why = "Consumers that do not set it cannot join a group (INVALID_SESSION_TIMEOUT)."
            yield _better(facts, Severity.WARNING, name, default, said, why)
    delay = settings.number("group.initial.rebalance.delay.ms")
    if delay is not None and delay >= INITIAL_DELAY_LONG_MS:
        said = f"a group that begins waits {duration(delay / 1000)} for more members"
        why = "Its first member reads nothing meanwhile, after every stop of all members."
        severity = Severity.ERROR if delay >= POLL_DEFAULT_MS else Severity.WARNING
        yield _better(facts, severity, "group.initial.rebalance.delay.ms", "3000", said, why)
    acks = settings.number("offsets.commit.required.acks")
    if acks is not None and acks != -1 and facts.is_cluster:
        said = f"it is {acks:.0f}: a commit counts before the other replicas have it"
        why = "When a coordinator dies, its groups go back to older offsets and read records again."
        yield _better(facts, Severity.WARNING, "offsets.commit.required.acks", "-1", said, why)
    if any(not health["is_journal_on"] for _, health in facts.healths):
        said = "the offset journal is off"
        why = "Nobody can say who moved an offset, and `offsets restore` and `offsets undo` have nothing to go by."
        yield _better(facts, Severity.NOTE, "offsets.journal.enable", "true", said, why)


@check("compaction", "topics that live by compaction, and whether they are compacted", Needs.SETTINGS)
def compaction(facts: Facts) -> Iterator[Finding]:
    """Offsets are deleted by age, or logs grow for ever."""
    lossy = of_topics(
        facts,
        lambda topic, settings: (
            topic.name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
            and "delete" in (settings.text("cleanup.policy") or "compact").split(",")
        ),
    )
    for topic in lossy:
        what = "cleanup.policy deletes by age"
        why = (
            "Committed offsets that nobody renews go after retention.ms, also of groups that still run."
            if topic.name == OFFSETS_TOPIC
            else "The state of transactions goes after retention.ms."
        )
        command = command_of("configs set", ["topic", topic.name, "cleanup.policy=compact"])
        yield Finding(Severity.ERROR, f"topic {topic.name}", what, why, command)
    if facts.any_settings.is_true("log.cleaner.enable") is False:
        compacted = of_topics(facts, lambda topic, settings: "compact" in (settings.text("cleanup.policy") or ""))
        if compacted:
            said = f"compaction is off, and {counted(len(compacted), 'topic')} need it: {names(compacted)}"
            why = "They grow for ever; starts and changes of coordinator take longer and longer."
            yield _better(facts, Severity.ERROR, "log.cleaner.enable", "true", said, why)


@check("time-outs", "time-outs between brokers that contradict each other", Needs.SETTINGS)
def time_outs(facts: Facts) -> Iterator[Finding]:
    """Followers leave and join the ISR all the time."""
    if not facts.is_cluster:
        return
    settings = facts.any_settings
    lag, wait = settings.number("replica.lag.time.max.ms"), settings.number("replica.fetch.wait.max.ms")
    socket = settings.number("replica.socket.timeout.ms")
    if lag is not None and wait is not None and lag < 2 * wait:
        said = f"it is {lag:.0f}, less than twice replica.fetch.wait.max.ms={wait:.0f}"
        why = "Followers of quiet topics leave the replicas in sync and come back, again and again."
        yield _better(facts, Severity.WARNING, "replica.lag.time.max.ms", "30000", said, why)
    if socket is not None and wait is not None and socket <= wait:
        said = f"it is {socket:.0f}, not above replica.fetch.wait.max.ms={wait:.0f}"
        why = "Followers give up every fetch that waits for records, and open a new connection."
        yield _better(facts, Severity.ERROR, "replica.socket.timeout.ms", "30000", said, why)
    for name, least in (("coordination.session.timeout.ms", 2_000), ("zookeeper.session.timeout.ms", 4_000)):
        session = settings.number(name)
        if session is not None and settings.is_set(name) and session < least:
            said = f"it is {session:.0f}"
            why = "A broker that stands still for a moment (a slow disk, a busy machine) counts as dead."
            yield _better(facts, Severity.NOTE, name, "6000", said, why)


@check("settings that differ", "settings that are not the same on all brokers", Needs.SETTINGS)
def differing(facts: Facts) -> Iterator[Finding]:
    """What holds depends on who leads."""
    known = facts.settings
    if len(known) < 2:
        return
    names_of_all = sorted({name for _, settings in known for name in settings.values} - OWN)
    for name in names_of_all:
        if not any(settings.is_set(name) for _, settings in known):
            continue
        values: dict[str, list[int]] = {}
        for broker, settings in known:
            if name in settings.values:
                text = settings.text(name)
                values.setdefault("not set" if text is None else text, []).append(broker.node_id)
        if len(values) < 2:
            continue
        listing = "; ".join(f"{text} on broker {listed(map(str, nodes))}" for text, nodes in values.items())
        common = max(values, key=lambda text: len(values[text]))
        odd = next(broker for broker, settings in known if (settings.text(name) or "not set") != common)
        what = f"differs between brokers: {listing}"
        why = "What holds depends on which broker leads, coordinates, or is controller."
        command = start_again(facts, odd, {name: "" if common == "not set" else common})
        yield Finding(Severity.WARNING, f"setting {name}", what, why, command)


@check("HTTP access", "whether the HTTP API can be reached where it listens", Needs.SETTINGS)
def http_access(facts: Facts) -> Iterator[Finding]:
    """It listens for other hosts, and refuses all of them."""
    for broker, settings in facts.settings:
        listeners = settings.text("http.listeners")
        if not listeners or listeners == "none" or settings.is_set("http.token"):
            continue
        open_to_others = [each for each in listeners.split(",") if not is_loopback(_host(each))]
        if open_to_others:
            what = f"http.listeners has {listed(open_to_others)}, and there is no http.token"
            why = (
                "Requests from other hosts are refused without a token, so the address serves nobody. Put your own "
                "secret in the place of the word."
            )
            command = start_again(facts, broker, {"http.token": "SECRET"})
            yield Finding(Severity.WARNING, f"broker {broker.node_id}", what, why, command)


def _host(listener: str) -> str:
    return listener.partition("://")[2].rpartition(":")[0].strip("[]")
