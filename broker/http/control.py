"""`/v1/control`: what tests command of a broker (`control.enable`): faults, time, and a record of requests.

Each broker has rules and a record of its own; commands for a cluster go to all its brokers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from barnabas.broker.control.clock import let_pass
from barnabas.broker.control.facts import Facts
from barnabas.broker.control.rules import OF_DISK, OF_MACHINE, ActiveRule, Effect, Role, Rule, Rules, When
from barnabas.broker.http.coordinators import RETRY, no_group, shard_of
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, Parameter, route
from barnabas.broker.http.schemas import anything, array, boolean, integer, number, record, text
from barnabas.broker.requests import TABLE
from barnabas.broker.services import Services
from barnabas.cluster.quota_rates import WAIT_MAX_MS
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.shard import Shard
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.clock import CLOCK_MS_MAX

if TYPE_CHECKING:
    from barnabas.broker.control.gate import ControlledGate
    from barnabas.broker.control.recorder import Exchange, Recorder
    from barnabas.runtime.clock import MovableClock

EXCHANGES_PER_ANSWER = 1_000
NUMBER_DIGITS_MAX = 18  # of a rule
APIS = {key.kafka_name: key for key in ApiKey if key in TABLE}
PLAIN_NAMES = {name.lower(): key for name, key in APIS.items()}

RULE_FIELDS: dict[str, Any] = {
    "api": text(
        "Kafka's name of the API, as OffsetCommit; null: any, with an error any that can answer it.", nullable=True
    ),
    "effect": text("What happens to the request.", one_of=[each.value for each in Effect]),
    "when": text("Whether the request has its effect (after) or not.", one_of=[each.value for each in When]),
    "error": text("effect error: Kafka's name of it.", nullable=True),
    "forced": boolean("effect error: also one that Kafka never answers for this API."),
    "ms": integer("effect delay, throttle: how long.", least=0, most=WAIT_MAX_MS),
    "versions": array(integer("A version.", least=0), "First and last version; empty: all."),
    "client": text("client.id; null: any.", nullable=True),
    "group": text("A group that the request names; null: any.", nullable=True),
    "topic": text("A topic that the request names; null: any.", nullable=True),
    "partition": integer("A partition of that topic; null: any.", nullable=True, least=0),
    "transactional_id": text("A transactional id that the request names; null: any.", nullable=True),
    "role": text(
        "Only where the broker is this for what the request names; null: anywhere.",
        nullable=True,
        one_of=[each.value for each in Role],
    ),
    "nth": integer("The first matching request that it fires for, from 1.", least=1),
    "every": integer("Then it fires for each so many.", least=1),
    "times": integer("How often at most; null: always.", nullable=True, least=0),
    "probability": number("How likely it fires, 0 to 1."),
    "seed": integer("Of these chances."),
}
# Those that `Rule` calls so, too.
SAME_FIELDS = ("group", "topic", "partition", "transactional_id", "nth", "every", "times", "probability", "seed")
RULE_BODY = record(
    "A fault. Of several rules that would fire for a request, the oldest does; errors for other topics join in.",
    optional=RULE_FIELDS.keys() - {"effect"},
    **RULE_FIELDS,
)
ACTIVE_RULE = record(
    "A rule that holds.",
    id=integer("Its number."),
    matched=integer("How many requests have passed its filters."),
    fired=integer("How many of them got the fault."),
    **RULE_FIELDS,
)
RULES = record("Rules.", rules=array(ACTIVE_RULE, "In the order in which they came."))
EXCHANGE = record(
    "A request and its answer.",
    number=integer("Grows with each request."),
    time_ms=integer("When it came; ms since 1970."),
    api=text("Kafka's name of the API."),
    version=integer("Of the API."),
    client_id=text("client.id."),
    client_host=text("Its address."),
    correlation_id=integer("The client's number of the request."),
    groups=array(text("A group."), "The groups that it names."),
    topics=array(text("A topic."), "The topics that it names."),
    transactional_ids=array(text("An id."), "The transactional ids that it names."),
    fate=text("What became of it.", one_of=["waits", "answered", "no answer", "cut"]),
    answered_ms=integer("When; null: it waits.", nullable=True),
    answered_before=integer("The number of the first request that came after the answer.", nullable=True),
    rule=integer("The rule that fired for it.", nullable=True),
    request=anything("Its fields."),
    answer=anything("Its fields; null: there is none."),
    frame=text("With frames=true: what a replay sends, in base64; null: it is not kept.", nullable=True),
)
EXCHANGES = record(
    "Requests of clients, as they came.",
    first=integer("The oldest request that is kept; those before it are gone."),
    next=integer("Ask from here for those that come later."),
    requests=array(EXCHANGE, "At most 1000."),
)
CLOCK = record(
    "The wall clock of a broker.",
    now_ms=integer("What it shows; ms since 1970."),
    moved_ms=integer("How far tests have moved it."),
    stands=boolean("Whether it stands still."),
)
CLOCK_BODY = record(
    "What the wall clock does. Nothing is changed by a field that is left out.",
    optional=("advance_ms", "stands", "sessions"),
    advance_ms=integer("It goes forward so far, and what falls due on the way happens.", least=0, most=CLOCK_MS_MAX),
    stands=boolean("true: it stands still from now on; false: it goes on."),
    sessions=text(
        "Whether group members stay as they are, or all expire, before time passes. Default: keep.",
        one_of=["keep", "expire"],
    ),
)
EXPIRED = record("A member was taken out.", group=text("Its group."), member_id=text("The member."))


def gate_of(services: Services) -> ControlledGate:
    """The gate that can be commanded. HttpError if this broker has another."""
    from barnabas.broker.control.gate import ControlledGate  # late: brokers without control do not import it

    gate = services.request_gate
    if not isinstance(gate, ControlledGate):
        message = "this broker takes no commands: start it with --profile ci, or set control.enable=true."
        raise HttpError(403, "CONTROL_IS_OFF", message)
    return gate


# ------------------------------------------------------------------ faults


@route("GET", "/v1/control/rules", summary="The faults that hold", answer=RULES)
def list_rules(services: Services, request: HttpRequest) -> HttpAnswer:
    """Each rule, and how often it matched and fired."""
    return _rules(gate_of(services).rules)


@route("POST", "/v1/control/rules", summary="A fault for requests of clients", body=RULE_BODY, answer=ACTIVE_RULE)
def add_rule(services: Services, request: HttpRequest) -> HttpAnswer:
    """It holds from now on, until it is deleted. Requests of other brokers never match. The effects disk_full,
    log_failed, tree_unreachable and isolated are for the broker itself, and count what it tries.
    """
    gate = gate_of(services)
    return HttpAnswer.json(row_of(gate.add(_rule_of(request.body))))


@route("DELETE", "/v1/control/rules/{rule}", summary="End one fault", answer=ACTIVE_RULE)
def remove_rule(services: Services, request: HttpRequest) -> HttpAnswer:
    """Answers with the rule, and how often it fired."""
    rules = gate_of(services).rules
    removed = rules.remove(rule_of(rules, request.path["rule"]).number)
    assert removed is not None, "it was there just now"
    return HttpAnswer.json(row_of(removed))


@route("DELETE", "/v1/control/rules", summary="End all faults", answer=RULES)
def remove_rules(services: Services, request: HttpRequest) -> HttpAnswer:
    """No fault holds any more. Answers with those that did, and how often they fired."""
    return _rules(gate_of(services).rules.clear())


def rule_of(rules: Rules, number: str) -> ActiveRule:
    """The rule of that number. HttpError: there is none."""
    is_number = number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX
    found = rules.get(int(number)) if is_number else None
    if found is None:
        raise HttpError(404, "UNKNOWN_RULE", f"there is no rule {number!r}. GET /v1/control/rules lists them.")
    return found


def _rules(rules: Iterable[ActiveRule]) -> HttpAnswer:
    return HttpAnswer.json({"rules": [row_of(each) for each in rules]})


def _rule_of(body: dict[str, Any]) -> Rule:
    """The rule of a body. HttpError if it is none that could ever be carried out."""
    from barnabas.broker.control.errors import may_answer  # late: brokers without control do not import it

    effect = Effect(body["effect"])
    versions = body.get("versions") or [0, 32_767]
    if len(versions) != 2 or versions[0] > versions[1]:
        raise _invalid("versions are two numbers: the first version and the last.")
    if not 0 <= body.get("probability", 1.0) <= 1:
        raise _invalid("probability is a number from 0 to 1.")
    if (effect is Effect.ERROR) != (body.get("error") is not None):
        raise _invalid("error is given for effect error, and for no other.")
    if (effect in (Effect.DELAY, Effect.THROTTLE)) != ("ms" in body):
        raise _invalid("ms is given for effect delay and throttle, and for no other.")
    if body.get("partition") is not None and body.get("topic") is None:
        raise _invalid("partition is given together with topic.")
    _check_machine(effect, body)
    error = _error_of(body["error"]) if effect is Effect.ERROR else ErrorCode.NONE
    key = None if body.get("api") is None else _api_of(body["api"])
    if effect is Effect.STALE_METADATA:
        if key not in (None, ApiKey.METADATA):
            raise _invalid("effect stale_metadata is for the API Metadata.")
        key = ApiKey.METADATA
    forced = body.get("forced", False)
    if key is not None and error is not ErrorCode.NONE and not forced and not may_answer(key, error):
        raise _invalid(
            f"Kafka never answers {key.kafka_name} with {error.name}. To do so all the same, set forced=true."
        )
    return Rule(
        *(effect, When(body.get("when", "before")), error, body.get("ms", 0), key),
        first_version=versions[0],
        last_version=versions[1],
        client_id=body.get("client"),
        role=None if body.get("role") is None else Role(body["role"]),
        forced=forced,
        **{name: body[name] for name in SAME_FIELDS if name in body},
    )


def _check_machine(effect: Effect, body: dict[str, Any]) -> None:
    """What is for the broker itself has no client, and all but logs no topic."""
    if effect in OF_MACHINE:
        allowed = {"effect", "nth", "every", "times", "probability", "seed", "forced"}
        if effect in OF_DISK:
            allowed |= {"topic", "partition"}
        odd = sorted(name for name, value in body.items() if value not in (None, []) and name not in allowed)
        if odd:
            raise _invalid(f"effect {effect.value} is for the broker itself: it goes without {', '.join(odd)}.")
        if effect is Effect.LOG_FAILED and body.get("topic") is None:
            raise _invalid("effect log_failed wants the topic whose logs fail.")


def _invalid(message: str) -> HttpError:
    return HttpError(400, "INVALID_RULE", message)


def _api_of(name: str, refusal: str = "INVALID_RULE") -> ApiKey:
    key = PLAIN_NAMES.get(name.replace("_", "").lower())
    if key is None:
        raise HttpError(400, refusal, f"there is no API {name!r} here. It is one of {', '.join(sorted(APIS))}.")
    return key


def _error_of(name: str) -> ErrorCode:
    found = ErrorCode.__members__.get(name)
    if found is None or found is ErrorCode.NONE:
        raise _invalid(f"Kafka has no error {name!r}. Names are as REBALANCE_IN_PROGRESS.")
    return found


def row_of(active: ActiveRule) -> dict[str, Any]:
    """A rule as the HTTP API shows it."""
    rule = active.rule
    return {
        "id": active.number,
        "matched": active.matched,
        "fired": active.fired,
        "api": None if rule.api_key is None else ApiKey(rule.api_key).kafka_name,
        "effect": rule.effect.value,
        "when": rule.when.value,
        "error": None if rule.error is ErrorCode.NONE else rule.error.name,
        "forced": rule.forced,
        "ms": rule.delay_ms,
        "versions": [rule.first_version, rule.last_version],
        "client": rule.client_id,
        "group": rule.group,
        "topic": rule.topic,
        "partition": rule.partition,
        "transactional_id": rule.transactional_id,
        "role": None if rule.role is None else rule.role.value,
        "nth": rule.nth,
        "every": rule.every,
        "times": rule.times,
        "probability": rule.probability,
        "seed": rule.seed,
    }


# ------------------------------------------------------------------ what was asked


FILTERS = (
    Parameter("api", text("Only this API, by Kafka's name.")),
    Parameter("client", text("Only this client.id.")),
    Parameter("group", text("Only requests that name this group.")),
    Parameter("topic", text("Only requests that name this topic.")),
    Parameter("since", integer("Only from this number on. Default: all that are kept."), default=0),
)


@route(
    "GET",
    "/v1/control/requests",
    summary="What clients have asked, and what they got",
    query=[*FILTERS, Parameter("frames", boolean("With the bytes of each request, for a replay. Default: false."))],
    answer=EXCHANGES,
)
def list_requests(services: Services, request: HttpRequest) -> HttpAnswer:
    """The last 5,000 requests of clients, decoded, in the order in which they came. Records are shown as their size."""
    recorder = gate_of(services).recorder
    return exchanges(recorder, found_exchanges(recorder, request.query), with_frames=bool(request.query["frames"]))


def found_exchanges(recorder: Recorder, query: dict[str, Any]) -> list[Exchange]:
    """Those that these parameters let through."""
    key = None if query["api"] is None else _api_of(query["api"], "INVALID_QUERY")

    def fits(facts: Facts) -> bool:
        return (
            key in (None, facts.api_key)
            and query["client"] in (None, facts.client_id)
            and (query["group"] is None or query["group"] in facts.groups)
            and (query["topic"] is None or query["topic"] in facts.topics)
        )

    return [each for each in recorder.since(query["since"]) if fits(each.facts)]


def exchanges(recorder: Recorder, found: list[Exchange], *, with_frames: bool = False) -> HttpAnswer:
    """The first of these, as an answer."""
    shown = found[:EXCHANGES_PER_ANSWER]
    following = recorder.next_number if len(shown) == len(found) else shown[-1].number + 1
    rows = ({**each.row(), "frame": _frame(each) if with_frames else None} for each in shown)
    return HttpAnswer.json({"first": recorder.first_number, "next": following, "requests": rows})


def _frame(exchange: Exchange) -> str | None:
    return None if exchange.frame is None else base64.b64encode(exchange.frame).decode()


FINDING = record(
    "What a client does that costs more than it must.",
    rule=text("Which kind it is."),
    client_id=text("client.id."),
    about=text("A group; may be empty."),
    times=integer("How often it was seen."),
    message=text("What was seen."),
    setting=text("What mends it."),
)


@route(
    "GET",
    "/v1/control/lint",
    summary="What clients could do better",
    query=[
        Parameter("client", text("Only this client.id.")),
        Parameter("since", integer("Only from this number of a request on. Default: all that are kept."), default=0),
    ],
    answer=record("What was found.", findings=array(FINDING, "By rule and client.")),
)
def lint(services: Services, request: HttpRequest) -> HttpAnswer:
    """Commits of each record, commits that go back, fetches that never wait, metadata storms, producers without
    idempotence or without acks=all, old versions, members that come anew: in the requests that are kept.
    """
    from barnabas.broker.control.lint import findings  # late: brokers without control do not import it

    recorder = gate_of(services).recorder
    since, client_id = request.query["since"], request.query["client"]
    seen = [each for each in recorder.since(since) if client_id in (None, each.facts.client_id)]
    return HttpAnswer.json({"findings": [each._asdict() for each in findings(seen)]})


# ------------------------------------------------------------------ members


@route(
    "POST",
    "/v1/control/groups/{group}/members/{member}/expire",
    summary="Take a member out, as if its session time-out were over",
    answer=EXPIRED,
    of_group=True,
)
def expire_member(services: Services, request: HttpRequest) -> HttpAnswer:
    """The group rebalances without it. The client is told by UNKNOWN_MEMBER_ID when it asks next.

    The member is named by its id, or by its `group.instance.id`.
    """
    gate_of(services)
    name, member_id = request.path["group"], request.path["member"]
    shard = shard_of(services, name)
    consumer = shard.consumer.by_id.get(name)
    if consumer is not None:
        return _expire_consumer(shard, consumer, member_id)
    group = shard.groups.get(name)
    if group is None:
        raise no_group(name)
    members = group.members.by_id
    member = members.get(member_id) or next((m for m in members.values() if m.group_instance_id == member_id), None)
    if member is None:
        raise _no_member(name, member_id)
    if not shard.expire(group, member):
        message = "the member waits for the answer to its JoinGroup or SyncGroup, so it lives. Ask again soon."
        raise HttpError(409, ErrorCode.REBALANCE_IN_PROGRESS.name, message, RETRY)
    return HttpAnswer.json({"group": name, "member_id": member.member_id})


def _expire_consumer(shard: Shard, group: ConsumerGroup, member_id: str) -> HttpAnswer:
    member = group.members.get(member_id) or group.static_member(member_id)
    if member is None:
        raise _no_member(group.group_id, member_id)
    shard.consumer.expire(group, [member.member_id])
    return HttpAnswer.json({"group": group.group_id, "member_id": member.member_id})


def _no_member(group: str, member_id: str) -> HttpError:
    message = f"the group has no member {member_id!r}. GET /v1/groups/{group} lists them."
    return HttpError(404, ErrorCode.UNKNOWN_MEMBER_ID.name, message)


# ------------------------------------------------------------------ time


@route("GET", "/v1/control/clock", summary="The wall clock", answer=CLOCK)
def show_clock(services: Services, request: HttpRequest) -> HttpAnswer:
    """What the wall clock of this broker shows."""
    return _clock_answer(_clock_of(services))


@route("POST", "/v1/control/clock", summary="Let wall time pass, or stand still", body=CLOCK_BODY, answer=CLOCK)
async def set_clock(services: Services, request: HttpRequest) -> HttpAnswer:
    """Retention, compaction, expiry and time-outs of transactions go by the wall clock. Sessions, connections and
    delays do not, so clients notice no jump. The answer comes when what was due has happened. Give all brokers of a
    cluster the same.
    """
    clock, body = _clock_of(services), request.body
    advance_ms, stands = body.get("advance_ms", 0), body.get("stands")
    if clock.moved_ms + advance_ms > CLOCK_MS_MAX:
        raise HttpError(400, "INVALID_BODY", "the clock would be so far ahead that dates could not be told.")
    if stands is not None and stands != clock.stands:
        if stands:
            clock.stand()
        else:
            clock.go_on()
    if body.get("sessions") == "expire":
        for shard in services.group_coordinator.loaded_shards():
            for group in list(shard.groups.values()):
                for member in list(group.members.by_id.values()):
                    shard.expire(group, member)
            for consumer in list(shard.consumer.by_id.values()):
                shard.consumer.expire(consumer, list(consumer.members))
    if advance_ms:
        await let_pass(services.env, clock, advance_ms)
    return _clock_answer(clock)


def _clock_of(services: Services) -> MovableClock:
    gate_of(services)
    return cast("MovableClock", services.env.clock)  # cli/start.py gives it to every broker with such a gate


def _clock_answer(clock: MovableClock) -> HttpAnswer:
    return HttpAnswer.json({"now_ms": clock.now_ms(), "moved_ms": clock.moved_ms, "stands": clock.stands})
