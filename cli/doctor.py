"""`barnabas doctor`: asks all brokers what they know, lets the checks look at it (`cli/checks/`), prints one page.

What does not answer is a finding, or a check that was not made: it is said, and the others go on.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from barnabas.cli.acls import described_rules
from barnabas.cli.checks.facts import NO_SETTINGS, Broker, Facts, Partition, Setting, Settings, Topic
from barnabas.cli.checks.findings import Finding, Severity
from barnabas.cli.checks.groups import CONFIRMED_MAX, to_confirm
from barnabas.cli.checks.outcomes import Outcome, examine, in_no_cluster
from barnabas.cli.checks.starting import directories_of, directory_of
from barnabas.cli.checks.transactions import DECIDED_LONG_MS
from barnabas.cli.lag import ask
from barnabas.cli.open_transactions import (
    OPEN_STATES,
    Described,
    Open,
    describe_transactions,
    find_hanging,
    list_transactions,
    longest_timeout_ms,
)
from barnabas.cli.shared.client import BROKER_RESOURCE, admin, answered, positions, reason
from barnabas.cli.shared.exits import ExitCode, Failure
from barnabas.cli.shared.http_client import HttpApi
from barnabas.cli.shared.kafka_python import consumer_groups, send
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import AsJson, new_app, print_json, print_paragraph
from barnabas.cli.shared.words import duration, shown
from barnabas.cli.users import described_users
from barnabas.cluster.features import GROUP_VERSION
from barnabas.cluster.security.acls import AclFilter
from barnabas.coordinators.groups.standstill import STALLED_MS
from barnabas.offsets.lag import PartitionLag, Status
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.ports import Disk
from barnabas.storage.checkpoints import CheckpointError
from barnabas.storage.directory_contents import read_meta
from barnabas.storage.disk_space import ENOUGH_MS

T = TypeVar("T")

app = new_app()

TOPIC_RESOURCE = 2
BROKEN = (-1, 56)  # UNKNOWN_SERVER_ERROR, KAFKA_STORAGE_ERROR
TOPICS_AT_ONCE = 200
TRANSACTIONS_MAX = 10_000  # open ones that are looked at
MARKERS_WITHIN_MS = 2_000
PARTITIONS_MAX = 20_000  # that are asked for hanging ones
SETTINGS_WITHIN_MS = 3_000
WITHOUT_HTTP_GROUPS_MAX = 100  # whose offsets are read over Kafka's protocol, where there is no HTTP API
CODES = {Severity.NOTE: ExitCode.DONE, Severity.WARNING: ExitCode.WARNED, Severity.ERROR: ExitCode.TROUBLED}


@app.command()
def doctor(
    target: Target,
    stalled_after: Annotated[
        float,
        typer.Option(
            "--stalled-after", metavar="SECONDS", min=0, max=86_400, help="How long an offset may stand still."
        ),
    ] = STALLED_MS / 1000,
    most: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Findings of each check.")] = 5,
    as_json: AsJson = False,
) -> None:
    """What is wrong with the cluster, or soon will be; each with the command that mends it. Nothing is changed.

    Exit code 0: nothing, or notes only; 4: warnings; 5: errors; 1: no broker
    answers. Brokers know of half a minute ago, and forget the past when they start:
    what they do not know yet is said. Without an HTTP API (Apache Kafka), it says
    which checks were possible.

    \b
    barnabas doctor
    barnabas doctor --stalled-after 120 --limit 20
    barnabas doctor --json
    """
    with admin(target) as client:
        facts = gather(client, HttpApi(client, target), int(stalled_after * 1000), target.renew)
    outcomes = examine(facts, most)
    worst = max((one.worst for one in outcomes if one.worst is not None), default=Severity.NOTE)
    bootstrap = target.bootstrap_option
    if as_json:
        print_json(as_document(facts, outcomes, bootstrap, CODES[worst]))
    else:
        _print(facts, outcomes, bootstrap)
    raise typer.Exit(CODES[worst])


# ------------------------------------------------------------------ asking


def gather(client: Any, api: HttpApi, stalled_ms: int, renew: Callable[[], None]) -> Facts:
    """What the brokers say. Who does not answer is left out, with the reason. `renew`: called as it gets on."""
    cluster = answered(client, client.describe_cluster)
    described = answered(client, client.describe_topics)
    registered = {row["broker_id"]: row for row in cluster["brokers"]}
    assigned = {node for topic in described for row in topic["partitions"] for node in row["replica_nodes"]}
    brokers = []
    for node_id in sorted({*registered, *assigned}):
        renew()
        brokers.append(_broker(client, api, node_id, registered.get(node_id), stalled_ms))
    with_health = [broker.health for broker in brokers if broker.health is not None]
    rows: list[dict[str, Any]] | None = _if_told(client.list_groups)
    groups = None if rows is None else {row["group_id"]: row.get("group_state") or "" for row in rows}
    lags: dict[str, list[PartitionLag]] = {}
    wanted = to_confirm(with_health)
    not_confirmed = wanted[CONFIRMED_MAX:]
    for name in wanted[:CONFIRMED_MAX]:
        renew()
        try:
            lags[name] = ask(api, name).rows
        except Failure:
            not_confirmed.append(name)
    if not with_health:
        lags = _lags_without_http(client, groups, renew)
    renew()
    silent = [broker.node_id for broker in brokers if broker.is_registered and not broker.answers]
    transactions, hanging, not_known = _transactions(client, described, stalled_ms, silent)
    controller = cluster["controller_id"]
    users = _if_told(lambda: described_users(client, None))
    facts = Facts(
        RealClock().now_ms(),
        brokers,
        controller if controller >= 0 else None,
        _topics(client, described),
        groups,
        lags,
        not_confirmed,
        stalled_ms,
        transactions,
        hanging,
        not_known,
        rules=_if_told(lambda: described_rules(client, AclFilter())),
        scram_users=None if users is None else frozenset(result.user for result in users),
        consumer_groups=[row["group_id"] for row in consumer_groups(rows or [])],
        group_version=_level(client, GROUP_VERSION),
    )
    return replace(facts, missing_directories=missing_directories(RealDisk(), facts))


def missing_directories(disk: Disk, facts: Facts) -> frozenset[str]:
    """The directories of brokers that are away, if those of the others are here, and these are not.

    A disk that is only not mounted leaves its mount point.
    """
    for broker, settings in facts.settings:
        try:
            if read_meta(disk, directories_of(settings)).node_id != broker.node_id:
                return frozenset()
        except (OSError, CheckpointError):
            return frozenset()
    places = {directory_of(facts, broker) for broker in facts.brokers if not broker.is_registered}
    return frozenset(place for place in places if place is not None and not disk.exists(place))


def _transactions(
    client: Any, described: Iterable[dict[str, Any]], stalled_ms: int, silent: Sequence[int]
) -> tuple[list[Described], list[Open], str | None]:
    """Those that are open for long, those that hang, and why they are not all known."""
    from kafka.errors import KafkaError

    if silent:  # a coordinator that says nothing may know what seems to hang, and it would be waited for
        return [], [], f"broker {silent[0]} does not answer"
    partitions = [(topic["name"], row["partition_index"]) for topic in described for row in topic["partitions"]]
    some = partitions[:PARTITIONS_MAX]
    try:
        listed = list_transactions(client, states=OPEN_STATES)
        found = describe_transactions(client, listed[:TRANSACTIONS_MAX])
        hanging, unknown = find_hanging(client, some, longest_timeout_ms(client))
    except Failure as failure:
        return [], [], failure.message
    except KafkaError as error:
        return [], [], str(getattr(error, "message", "") or error)
    decided = [one for one in listed if one.transactional_id in found and found[one.transactional_id].is_decided]
    if decided:  # most of them get their markers within milliseconds
        asyncio.run(RealClock().sleep(MARKERS_WITHIN_MS))
        again = describe_transactions(client, decided)
        for one in decided:
            if again.get(one.transactional_id) != found[one.transactional_id]:
                del found[one.transactional_id]
    least_ms = min(stalled_ms, DECIDED_LONG_MS)
    now_ms = RealClock().now_ms()
    old = [one for one in found.values() if one.is_open and now_ms - one.start_ms >= least_ms]
    missing = len(unknown) + len(partitions) - len(some)
    not_known = (
        f"{counted(missing, 'partition was', 'partitions were')} not asked for hanging ones" if missing else None
    )
    if len(listed) > TRANSACTIONS_MAX:
        not_known = f"{len(listed):,} are open, and only {TRANSACTIONS_MAX:,} were looked at"
    return old, hanging, not_known


def _broker(client: Any, api: HttpApi, node_id: int, row: dict[str, Any] | None, stalled_ms: int) -> Broker:
    if row is None:
        return Broker(node_id, is_registered=False)
    host, port = row["host"], row["port"]
    settings, health, untold = NO_SETTINGS, None, None
    try:
        settings = _settings(client, BROKER_RESOURCE, [str(node_id)], node_id).get(str(node_id), NO_SETTINGS)
    except UntoldError as failure:
        untold = failure.message
    except Failure as failure:
        return Broker(node_id, True, host, port, why_not=failure.message)
    has_http = bool(settings.text("http.address") or untold)
    why_not = untold if has_http else "it has no HTTP API"
    if why_not is None:
        try:
            query = {"stalled_ms": stalled_ms}
            health = api.ask("GET", "/v1/health", query=query, node_id=node_id)
        except Failure as failure:
            why_not = failure.message
    return Broker(node_id, True, host, port, settings, health, has_http, why_not, untold)


class UntoldError(Failure):
    """A broker does not tell its settings, which have the address of its HTTP API, too."""


def _settings(client: Any, kind: int, names: Sequence[str], node_id: int | None) -> dict[str, Settings]:
    """The settings of brokers or topics by their names. Failure: there is no answer."""
    from kafka.errors import KafkaError
    from kafka.protocol.admin import DescribeConfigsRequest

    resources = [(kind, name, None) for name in names]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, min_version=1)
    try:
        answer = send(client, request, node_id, SETTINGS_WITHIN_MS)
    except KafkaError as error:
        raise Failure(str(getattr(error, "message", "") or error), ExitCode.FAILED) from None
    if kind == BROKER_RESOURCE and any(result.error_code in BROKEN for result in answer.results):
        raise Failure("it answers with an error, and its log says why", ExitCode.FAILED)
    refused = next((result.error_code for result in answer.results if result.error_code), 0)
    if kind == BROKER_RESOURCE and refused:
        raise UntoldError(
            f"its settings are not told: {reason(refused, asked='describe-configs cluster')}", ExitCode.FAILED
        )
    return {
        result.resource_name: Settings({each.name: Setting(each.value, each.config_source) for each in result.configs})
        for result in answer.results
        if not result.error_code
    }


def _topics(client: Any, described: Iterable[dict[str, Any]]) -> list[Topic]:
    rows = [topic for topic in described if not topic["error_code"]]
    settings: dict[str, Settings] = {}
    for first in range(0, len(rows), TOPICS_AT_ONCE):
        names = [topic["name"] for topic in rows[first : first + TOPICS_AT_ONCE]]
        with suppress(Failure):
            settings |= _settings(client, TOPIC_RESOURCE, names, None)
    return [
        Topic(
            topic["name"],
            [
                Partition(
                    topic["name"],
                    row["partition_index"],
                    row["leader_id"] if row["leader_id"] >= 0 else None,
                    tuple(row["replica_nodes"]),
                    tuple(row["isr_nodes"]),
                )
                for row in topic["partitions"]
            ],
            settings.get(topic["name"]),
            bool(topic["is_internal"]),
        )
        for topic in rows
    ]


def _if_told(ask: Callable[[], T]) -> T | None:
    """What is answered; None: it is not told (no authorizer, no right, an older broker)."""
    from kafka.errors import KafkaError

    try:
        return ask()
    except (Failure, KafkaError):
        return None


def _level(client: Any, feature: str) -> int | None:
    """The level of a feature that holds; None: it is not known, or a broker has no such feature."""
    found = (_if_told(client.describe_features) or {}).get(feature)
    return None if found is None else found.get("finalized", (0, 0))[1]


def _lags_without_http(
    client: Any, groups: dict[str, str] | None, renew: Callable[[], None]
) -> dict[str, list[PartitionLag]]:
    """Commits behind the end, over Kafka's protocol alone."""
    found: dict[str, list[PartitionLag]] = {}
    for name in sorted(groups or ())[:WITHOUT_HTTP_GROUPS_MAX]:
        renew()
        past = [
            PartitionLag(
                row["topic"],
                row["partition"],
                row["committed_offset"],
                -1,
                b"",
                Status.PAST_LOG_END,
                log_end_offset=row["log_end_offset"],
            )
            for row in _if_told(partial(positions, client, name)) or ()
            if row["log_end_offset"] is not None and (row["committed_offset"] or 0) > row["log_end_offset"]
        ]
        if past:
            found[name] = past
    return found


# ------------------------------------------------------------------ telling


def as_document(facts: Facts, outcomes: Sequence[Outcome], bootstrap: str | None, code: ExitCode) -> dict[str, Any]:
    """For scripts. docs/doctor.md explains the fields, which stay."""
    return {
        "time_ms": facts.now_ms,
        "exit_code": int(code),
        "errors": _count(outcomes, Severity.ERROR),
        "warnings": _count(outcomes, Severity.WARNING),
        "notes": _count(outcomes, Severity.NOTE),
        "brokers": [
            {
                "node_id": broker.node_id,
                "is_registered": broker.is_registered,
                "answers": broker.answers,
                "answers_http": broker.health is not None,
            }
            for broker in facts.brokers
        ],
        "not_known_yet": not_known_yet(facts),
        "checks": [
            {
                "check": one.check.name,
                "looks_at": one.check.looks_at,
                "found": one.found,
                "left_out": one.left_out,
                "not_made": one.not_made,
            }
            for one in outcomes
        ],
        "findings": [
            {
                "check": one.check.name,
                "severity": finding.severity.name.lower(),
                "where": finding.where,
                "what": finding.what,
                "since_ms": finding.since_ms,
                "why": finding.why,
                "command": finding.command_line(bootstrap),
            }
            for one, finding in _by_severity(outcomes)
        ],
    }


def _by_severity(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Finding]]:
    pairs = [(one, finding) for one in outcomes for finding in one.findings]
    return sorted(pairs, key=lambda pair: -pair[1].severity)


def _count(outcomes: Sequence[Outcome], severity: Severity) -> int:
    return sum(one.counts.get(severity, 0) for one in outcomes)


def not_known_yet(facts: Facts) -> list[str]:
    """What brokers cannot know, because they have not run for long enough; and what they could not look at."""
    said = []
    for broker, health in facts.healths:
        since_ms = health["watching_since_ms"]
        watched_ms = 0 if since_ms is None else max(health["time_ms"] - since_ms, 0)
        if watched_ms < facts.stalled_ms:
            said.append(
                f"broker {broker.node_id} has watched its groups for {duration(watched_ms / 1000)}: it cannot know yet "
                f"which offsets stand still for {duration(facts.stalled_ms / 1000)}"
            )
        known = [row["known_seconds"] for row in health["directories"] if row["offline"] is None]
        if known and min(known) * 1000 < ENOUGH_MS:
            said.append(
                f"broker {broker.node_id} has watched its disks for {duration(min(known))}: after "
                f"{duration(ENOUGH_MS / 1000)} it knows how fast they fill"
            )
        if health["loading_partitions"]:
            said.append(
                f"broker {broker.node_id} loads {counted(health['loading_partitions'], 'partition')} of "
                "__consumer_offsets: these groups were not looked at"
            )
        if not health["are_all_watched"]:
            said.append(
                f"broker {broker.node_id} has more partitions with unread records than it can watch: of some groups it "
                "does not know whether they stand still"
            )
        if health["groups_left_out"]:
            more = counted(health["groups_left_out"], "more group")
            said.append(f"broker {broker.node_id} has {more} that may have a problem")
    untold = sum(topic.settings is None for topic in facts.topics)
    if untold:
        said.append(f"{counted(untold, 'topic')} whose settings are not told (the right describe-configs)")
    if facts.rules is None and facts.any_settings.text("authorizer.class.name"):
        said.append("the access rules are not told (the right describe on the cluster)")
    if facts.groups is None:
        said.append("the groups could not be listed")
    if facts.transactions_not_known is not None:
        said.append(f"open transactions: {facts.transactions_not_known}")
    if facts.not_confirmed:
        said.append(f"{counted(len(facts.not_confirmed), 'group')} that may have a problem: not looked at more closely")
    return said


def _print(facts: Facts, outcomes: Sequence[Outcome], bootstrap: str | None) -> None:
    for one, finding in _by_severity(outcomes):
        since = "" if finding.since_ms is None else f"  (since {_clock(finding.since_ms, facts.now_ms)})"
        print(shown(f"{finding.severity.name}  {finding.where}: {finding.what}{since}"))
        print_paragraph(finding.why, end="\n")
        print(f"    {finding.command_line(bootstrap)}")
        print()
        if one.left_out and finding is one.findings[-1]:
            print(f"       … and {one.left_out:,} more of {one.check.name} (--limit)\n")
    said = not_known_yet(facts)
    not_made = [one for one in outcomes if one.not_made is not None]
    for line in said:
        print(f"Not known yet: {line}.")
    if not_made:
        names = ", ".join(one.check.name for one in not_made)
        which = "Not made everywhere" if facts.healths and in_no_cluster(facts) is None else "Not made"
        why = str(not_made[0].not_made).removesuffix(".")
        print(f"{which}: {names}: {why}.")
    made = sum(one.not_made is None for one in outcomes)
    counts = [(_count(outcomes, each), each.name.lower()) for each in sorted(Severity, reverse=True)]
    found = ", ".join(f"{number:,} {name}{'' if number == 1 else 's'}" for number, name in counts if number)
    brokers, groups = counted(len(facts.living), "broker"), len(facts.groups or ())
    nothing = "Nothing was found" if not_made else "Nothing is wrong"
    print(
        f"{found or nothing}: {made} of {len(outcomes)} checks, {brokers}, "
        f"{counted(len(facts.topics), 'topic')}, {counted(groups, 'group')}."
    )


def _clock(at_ms: int, now_ms: int) -> str:
    there, today = (datetime.fromtimestamp(each / 1000) for each in (at_ms, now_ms))
    return there.strftime("%H:%M:%S" if there.date() == today.date() else "%Y-%m-%d %H:%M")
