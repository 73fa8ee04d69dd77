"""`/v1/control/…/wait`: what tests would poll for, as long polls: groups, topics, transactions, requests and faults.

Each answers as soon as all that is asked for is so. When the time is over, the error (408) says what was seen last.
"""

from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any

from barnabas.broker.group_lag import lags, positions_of
from barnabas.broker.http.control import ACTIVE_RULE, EXCHANGES, FILTERS, exchanges, found_exchanges, gate_of, rule_of
from barnabas.broker.http.control import row_of as row_of_rule
from barnabas.broker.http.coordinators import RETRY, check_of_group, group_with_offsets, shard_of
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, Parameter, route
from barnabas.broker.http.schemas import array, boolean, integer, record, text
from barnabas.broker.log_ranges import log_ends
from barnabas.broker.services import Services
from barnabas.coordinators.groups.explanation import advice, rebalances
from barnabas.coordinators.groups.states import State
from barnabas.coordinators.groups.views import STATES, member_views
from barnabas.coordinators.transactions.states import TransactionState
from barnabas.offsets.records import GroupOffsets
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from barnabas.replication.offset_lookup import EARLIEST, LATEST
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces, ended

Row = dict[str, Any]
Waiting = Coroutine[Any, Any, HttpAnswer]

POLL_MS = 5.0  # how often a wait looks
POLL_OF_OTHERS_MS = 20.0  # where other brokers may have to be asked
WAIT_MS_MAX = 55_000
DEFAULT_WAIT_MS = 10_000
OTHERS_ANSWER_WITHIN_MS = 5_000.0
PURPOSE = "waits"
TRANSACTION_STATES = [each.kafka_name for each in TransactionState if each is not TransactionState.PREPARE_EPOCH_FENCE]
NO_LAG = "; its lag is not known, because it has committed nothing, or a leader does not answer"
TIMEOUT = Parameter(
    "timeout_ms", integer(f"How long to wait: 0 to {WAIT_MS_MAX}. Default: {DEFAULT_WAIT_MS}."), default=DEFAULT_WAIT_MS
)

GROUP_STATE = record(
    "What was waited for.",
    group=text("Its name."),
    state=text("What it is doing.", one_of=STATES),
    generation=integer("Its generation, or the epoch of a consumer group."),
    members=array(text("A member id."), "Its members."),
    lag=integer("Records that it has not read, of all partitions with a committed offset.", nullable=True),
)
TOPIC_STATE = record(
    "What was waited for.",
    topic=text("Its name."),
    exists=boolean("Whether there is such a topic."),
    partitions=integer("How many partitions it has."),
    without_leader=integer("Partitions that nobody leads."),
    in_sync=integer("How many replicas are in sync, in the partition that has the fewest."),
    records=integer("How many consumers can read; null: not asked for, or a leader does not answer.", nullable=True),
)
TRANSACTION_STATE = record(
    "What was waited for.",
    transactional_id=text("Its name."),
    state=text("Kafka's name of its state."),
    producer_id=integer("The id of its producer."),
    producer_epoch=integer("The epoch of its producer."),
)


def _until(request: HttpRequest, services: Services) -> float:
    """When the wait is over, by the monotonic clock. HttpError for a time that nobody waits."""
    timeout_ms: int = request.query["timeout_ms"]
    if not 0 <= timeout_ms <= WAIT_MS_MAX:
        raise HttpError(400, "INVALID_QUERY", f"the parameter timeout_ms is from 0 to {WAIT_MS_MAX}.")
    return services.env.clock.monotonic_ms() + timeout_ms


async def _wait(
    services: Services,
    request: HttpRequest,
    look: Callable[[], Pieces[Row]],
    is_wanted: Callable[[Row], bool],
    told: Callable[[Row], str],
    why: Callable[[], str] = str,
    poll_ms: float = POLL_MS,
) -> HttpAnswer:
    """Look until it is as wanted. `told`: what is seen, in words; `why`: more about it, when the time is over."""
    clock, end_ms = services.env.clock, _until(request, services)
    while True:
        try:
            row = await _done(services, look())
            if is_wanted(row):
                return HttpAnswer.json(row)
            seen = told(row)
        except HttpError as error:
            if error.status == 307:
                raise
            seen = error.message
            try:
                moved = await _moved(services, request, end_ms) if "group" in request.path else None
            except HttpError as no_coordinator:
                moved, seen = None, no_coordinator.message
            if moved is not None:
                return moved
        if clock.monotonic_ms() >= end_ms:
            raise _over(request, seen, why())
        await _look_again(services, poll_ms)


async def _look_again(services: Services, poll_ms: float) -> None:
    """Return when it is time to look again. HttpError: the life of this broker ends, which is not to wait for waits."""
    await services.env.clock.sleep(poll_ms)
    lives = gate_of(services).lives
    if lives is not None and lives.is_ending:
        raise HttpError(503, "BROKER_NOT_AVAILABLE", "this broker is being put back. Ask again.", RETRY)


async def _moved(services: Services, request: HttpRequest, end_ms: float) -> HttpAnswer | None:
    """The redirection to the broker that coordinates the group, for what is left of the time; None: it is this one.

    HttpError: none does now.
    """
    left_ms = max(int(end_ms - services.env.clock.monotonic_ms()), 0)
    there = copy(request)
    path, _, query = request.target.partition("?")
    others = [each for each in query.split("&") if each and not each.startswith("timeout_ms=")]
    there.target = f"{path}?{'&'.join([*others, f'timeout_ms={left_ms}'])}"
    found = check_of_group(services, there)
    if isinstance(found, Pending):
        answer: HttpAnswer = await ended(found)
        return answer
    return found


def _over(request: HttpRequest, seen: str, why: str = "") -> HttpError:
    message = f"not so within {request.query['timeout_ms']} ms: {seen.rstrip('.')}."
    return HttpError(408, "WAIT_TIMED_OUT", f"{message} {why}".rstrip())


async def _done(services: Services, work: Pieces[Row]) -> Row:
    found = services.env.turns.run(work)
    return await ended(found) if isinstance(found, Pending) else found


# ------------------------------------------------------------------ groups


@route(
    "GET",
    "/v1/control/groups/{group}/wait",
    summary="Wait until a group is as a test wants it",
    query=[
        Parameter("state", text("In this state.", one_of=STATES)),
        Parameter("members", integer("With so many members.")),
        Parameter("lag", integer("With at most so many records that it has not read.")),
        TIMEOUT,
    ],
    answer=GROUP_STATE,
)
def wait_for_group(services: Services, request: HttpRequest) -> Waiting:
    """Answers as soon as all of it is so. If another broker coordinates the group, or does meanwhile, the answer is a
    redirection (307) to that one. If the time is over, the error (408) says what was seen last, and why the group has
    rebalanced last, with advice, as GET /v1/groups/{group}/events.
    """
    gate_of(services)
    query, name = request.query, request.path["group"]
    with_lag = query["lag"] is not None

    def is_wanted(row: Row) -> bool:
        return (
            query["state"] in (None, row["state"])
            and query["members"] in (None, len(row["members"]))
            and (query["lag"] is None or (row["lag"] is not None and row["lag"] <= query["lag"]))
        )

    def told(row: Row) -> str:
        lag = NO_LAG if with_lag else ""
        if row["lag"] is not None:
            lag = f", {counted(row['lag'], 'record')} behind"
        seen = f"{row['state']} with {counted(len(row['members']), 'member')}, generation {row['generation']}{lag}"
        return f"the group {name!r} was last seen {seen}"

    look, why = (lambda: _group_row(services, name, with_lag)), (lambda: _why(services, name))
    return _wait(services, request, look, is_wanted, told, why)


def _why(services: Services, name: str) -> str:
    """What `barnabas groups explain` would say first."""
    events = services.group_coordinator.events.of_group(name)
    story = rebalances(events)
    said = [f"Its last rebalance: {story[-1].cause} ({story[-1].outcome})."] if story else []
    return " ".join([*said, *(text for _, text in advice(events))])


def _group_row(services: Services, name: str, with_lag: bool) -> Pieces[Row]:
    group, committed = yield from group_with_offsets(services, name)
    lag: int | None = None
    if with_lag:
        lag = yield from _lag(services, committed)
    return {
        "group": name,
        "state": State.EMPTY.value if group is None else group.state,
        "generation": 0 if group is None else group.generation,
        "members": sorted(member.member_id for member in member_views(shard_of(services, name), name)),
        "lag": lag,
    }


def _lag(services: Services, committed: GroupOffsets) -> Pieces[int | None]:
    """Records that are not read. None: nothing is committed, or a leader does not say where its log ends."""
    rows = yield from lags(services, positions_of(committed))
    leaders = {
        (row.topic, row.partition): row.leader
        for row in rows
        if row.leader is not None and row.leader != services.node_id
    }
    ends = yield from log_ends(services.broker_clients, leaders)
    unread = 0
    for row in rows:
        end = ends.get((row.topic, row.partition))
        if row.read_uncommitted is not None:
            unread += row.read_uncommitted.records
        elif row.high_watermark is not None:  # it is behind the end, or of a log that is gone
            unread += max(row.high_watermark - row.offset, 0)
        elif end is not None:
            unread += max(end - row.offset, 0)
        else:
            return None
    return unread if rows else None


# ------------------------------------------------------------------ topics and transactions


@route(
    "GET",
    "/v1/control/topics/{topic}/wait",
    summary="Wait until a topic is as a test wants it",
    query=[
        Parameter("exists", boolean("true: it is there; false: it is not.")),
        Parameter("in_sync", integer("Each partition has a leader, and at least so many replicas in sync.")),
        Parameter("records", integer("With at least so many records.")),
        Parameter("records_at_most", integer("With at most so many records: retention has removed the others.")),
        TIMEOUT,
    ],
    answer=TOPIC_STATE,
)
def wait_for_topic(services: Services, request: HttpRequest) -> Waiting:
    """Any broker answers. Records are counted by offsets, so those that compaction has removed and the markers of
    transactions count as well.
    """
    gate_of(services)
    query, name = request.query, request.path["topic"]
    least, most = query["records"], query["records_at_most"]

    def is_wanted(row: Row) -> bool:
        count = row["records"]
        return (
            row["exists"] is (query["exists"] is not False)
            and (query["in_sync"] is None or (not row["without_leader"] and row["in_sync"] >= query["in_sync"]))
            and (least is None or (count is not None and count >= least))
            and (most is None or (count is not None and count <= most))
        )

    def told(row: Row) -> str:
        if not row["exists"]:
            return f"there is no topic {name!r}"
        partitions, in_sync = counted(row["partitions"], "partition"), counted(row["in_sync"], "replica")
        said = f"the topic {name!r} was last seen with {partitions}, {row['without_leader']} of them"
        said += f" without a leader, {in_sync} in sync where they are fewest"
        return said if row["records"] is None else f"{said}, and {counted(row['records'], 'record')}"

    with_records = least is not None or most is not None
    look = lambda: _topic_row(services, name, with_records)  # noqa: E731
    return _wait(services, request, look, is_wanted, told, poll_ms=POLL_OF_OTHERS_MS)


def _topic_row(services: Services, name: str, with_records: bool) -> Pieces[Row]:
    partitions = services.metadata_cache.topics.get(name)
    count: int | None = None
    if with_records and partitions is not None:
        count = yield from _records(services, name, {index: each.leader_id for index, each in partitions.items()})
    found = list((partitions or {}).values())
    return {
        "topic": name,
        "exists": partitions is not None,
        "partitions": len(found),
        "without_leader": sum(each.leader_id < 0 for each in found),
        "in_sync": min((len(each.isr) for each in found), default=0),
        "records": count,
    }


def _records(services: Services, name: str, leaders: dict[int, int]) -> Pieces[int | None]:
    """How many records consumers can read. None: a leader does not answer."""
    hosted = services.replica_manager.partitions
    total = 0
    elsewhere: dict[tuple[str, int], int] = {}
    for index, leader in leaders.items():
        partition = hosted.get((name, index))
        if partition is not None and partition.is_leader:
            total += partition.log.high_watermark - partition.log.log_start_offset
        elif leader < 0 or leader == services.node_id:
            return None
        else:
            elsewhere[name, index] = leader
    begins = yield from log_ends(services.broker_clients, elsewhere, EARLIEST)
    ends = yield from log_ends(services.broker_clients, elsewhere, LATEST)
    if not elsewhere.keys() <= begins.keys() & ends.keys():
        return None
    return total + sum(ends[key] - begins[key] for key in elsewhere)


@route(
    "GET",
    "/v1/control/transactions/{transactional_id}/wait",
    summary="Wait until a transaction is in a state",
    query=[Parameter("state", text("Kafka's name of it.", one_of=TRANSACTION_STATES)), TIMEOUT],
    answer=TRANSACTION_STATE,
)
def wait_for_transaction(services: Services, request: HttpRequest) -> Waiting:
    """Any broker answers. Without a state: until there is such a transactional id."""
    gate_of(services)
    wanted, name = request.query["state"], request.path["transactional_id"]

    def told(row: Row) -> str:
        return f"the transaction of {name!r} was last seen {row['state']}"

    look = lambda: _transaction_row(services, name)  # noqa: E731
    return _wait(services, request, look, lambda row: wanted in (None, row["state"]), told, poll_ms=POLL_OF_OTHERS_MS)


def _transaction_row(services: Services, name: str) -> Pieces[Row]:
    asked = DescribeTransactionsRequest(transactional_ids=[name])
    for broker_id in sorted(services.metadata_cache.brokers):
        described: DescribeTransactionsResponse | None = yield services.transactions.ask_broker(
            PURPOSE, broker_id, asked, 0, OTHERS_ANSWER_WITHIN_MS
        )
        for row in [] if described is None else described.transaction_states:
            if row.error_code == ErrorCode.NONE:
                return {
                    "transactional_id": name,
                    "state": row.transaction_state,
                    "producer_id": row.producer_id,
                    "producer_epoch": row.producer_epoch,
                }
    raise HttpError(404, "TRANSACTIONAL_ID_NOT_FOUND", f"no coordinator knows the transactional id {name!r}.")


# ------------------------------------------------------------------ requests and faults


@route(
    "GET",
    "/v1/control/requests/wait",
    summary="Wait until clients have asked something",
    query=[
        *FILTERS,
        Parameter("count", integer("So many of these requests have been answered. Default: 1."), default=1),
        TIMEOUT,
    ],
    answer=EXCHANGES,
)
async def wait_for_requests(services: Services, request: HttpRequest) -> HttpAnswer:
    """Of this broker. Answers with the requests that have come; one that waits for its answer does not count yet."""
    recorder, clock = gate_of(services).recorder, services.env.clock
    end_ms, count = _until(request, services), request.query["count"]
    while True:
        found = found_exchanges(recorder, request.query)
        over = sum(each.fate != "waits" for each in found)
        if over >= count:
            return exchanges(recorder, found)
        if clock.monotonic_ms() >= end_ms:
            raise _over(request, f"{over} of {count} such requests were answered, and {len(found)} have come")
        await _look_again(services, POLL_MS)


@route(
    "GET",
    "/v1/control/rules/{rule}/wait",
    summary="Wait until a fault has fired",
    query=[Parameter("fired", integer("So often, at least. Default: 1."), default=1), TIMEOUT],
    answer=ACTIVE_RULE,
)
def wait_for_rule(services: Services, request: HttpRequest) -> Waiting:
    """On this broker."""
    wanted = request.query["fired"]
    rules, number = gate_of(services).rules, request.path["rule"]
    rule_of(rules, number)

    def look() -> Pieces[Row]:
        return row_of_rule(rule_of(rules, number))
        yield

    def told(row: Row) -> str:
        fired, matched = counted(row["fired"], "time"), counted(row["matched"], "request")
        return f"rule {number} has fired {fired}, and {matched} matched it"

    return _wait(services, request, look, lambda row: row["fired"] >= wanted, told)
