"""`/v1/groups/{group}/events`: why the group has rebalanced lately."""

from typing import Any

from barnabas.broker.access.http import described_group
from barnabas.broker.http.coordinators import no_group, shard_of
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, route
from barnabas.broker.http.schemas import array, integer, member, number, record, text
from barnabas.broker.services import Services
from barnabas.coordinators.groups.events import MOVED_MAX, Event, Identity
from barnabas.coordinators.groups.explanation import Rebalance, advice, rebalances, sentence
from barnabas.coordinators.groups.views import view
from barnabas.runtime.turns import Pieces

MEMBER = member("A member.", "Its member id then.", nullable=True)
EVENT = record(
    "Something that has happened.",
    at_ms=integer("When."),
    kind=text("What kind of event it is."),
    member=MEMBER,
    text=text("It, as a sentence."),
)
MOVED = record(
    "A partition that has another owner.",
    topic=text("The topic."),
    partition=integer("The partition."),
    before=MEMBER,
    after=MEMBER,
)
REBALANCE = record(
    "A rebalance.",
    at_ms=integer("When it began."),
    cause=text("Why."),
    outcome=text("How it ended.", one_of=["stable", "empty", "began again", "live reset", "running", "assigned"]),
    from_generation=integer("The generation that it has ended."),
    generation=integer("The generation that it has made.", nullable=True),
    members=integer("How many members that has.", nullable=True),
    protocol=text("The assignor.", nullable=True),
    join_ms=number("How long the join phase took.", nullable=True),
    last_to_join=MEMBER,
    sync_ms=number("How long the leader took to assign.", nullable=True),
    leader=MEMBER,
    moved=array(MOVED, f"At most {MOVED_MAX}; null: not known.", nullable=True),
    moved_count=integer("How many.", nullable=True),
    events=array(EVENT, "What led to it, and what happened in it."),
)
STORY = record(
    "What has happened to a group since this broker coordinates it, as far as it is remembered.",
    node_id=integer("The coordinator."),
    group=text("Its name."),
    since_ms=integer("The oldest event; null: nothing is remembered.", nullable=True),
    rebalances=array(REBALANCE, "The oldest first."),
    since_then=array(EVENT, "What has happened since the last one."),
    advice=array(
        record("Where the cause is a known one.", cause=text("Its name."), text=text("What to do.")), "What to do."
    ),
)


@route(
    "GET",
    "/v1/groups/{group}/events",
    summary="Why a group has rebalanced lately: a timeline with causes, and advice",
    answer=STORY,
    of_group=True,
    access=described_group,
)
def explain_group(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """Events are in memory only, and bounded: a coordinator that starts, or has just taken the group, knows none."""
    name = request.path["group"]
    shard = shard_of(services, name)
    events = [_seen(event, request) for event in services.group_coordinator.events.of_group(name)]
    if not events and view(shard, name) is None and not shard.offsets.of_group(name):
        raise no_group(name)
    story = rebalances(events)
    rows = []
    for rebalance in story:
        yield
        rows.append(_rebalance(rebalance, request))
    told = {id(event) for rebalance in story for event in rebalance.events}
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "group": name,
            "since_ms": events[0].at_ms if events else None,
            "rebalances": rows,
            "since_then": _events([event for event in events if id(event) not in told]),
            "advice": [{"cause": cause, "text": said} for cause, said in advice(events)],
        }
    )


def _seen(event: Event, request: HttpRequest) -> Event:
    """The event without topics that the sender may not describe."""
    topics = event.details.get("topics")
    if not topics or request.rights is None:
        return event
    details = event.details | {"topics": [*request.seen(dict.fromkeys(topics))] or None}
    return Event(event.kind, event.at_ms, event.monotonic_ms, event.member, details)


def _rebalance(rebalance: Rebalance, request: HttpRequest) -> dict[str, Any]:
    moved = rebalance.moved
    if moved is not None:
        may_see = request.seen({topic: None for topic, *_ in moved})
        moved = [row for row in moved if row[0] in may_see]
    return {
        "at_ms": rebalance.at_ms,
        "cause": rebalance.cause,
        "outcome": rebalance.outcome,
        "from_generation": rebalance.from_generation,
        "generation": rebalance.generation,
        "members": rebalance.members,
        "protocol": rebalance.protocol,
        "join_ms": rebalance.join_ms,
        "last_to_join": _member(rebalance.last_to_join),
        "sync_ms": rebalance.sync_ms,
        "leader": _member(rebalance.leader),
        "moved": None
        if moved is None
        else [
            {"topic": topic, "partition": index, "before": _member(before), "after": _member(after)}
            for topic, index, before, after in moved[:MOVED_MAX]
        ],
        "moved_count": None if moved is None else len(moved),
        "events": _events(rebalance.events),
    }


def _events(events: list[Event]) -> list[dict[str, Any]]:
    return [
        {"at_ms": event.at_ms, "kind": event.kind.value, "member": _member(event.member), "text": said}
        for event in events
        if (said := sentence(event)) is not None
    ]


def _member(who: Identity | None) -> dict[str, Any] | None:
    return None if who is None else who._asdict()
