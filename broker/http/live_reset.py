"""`/v1/groups/{group}/live-reset`: other committed offsets for a group whose members read on."""

from typing import Any

from barnabas.broker.access.http import of_topics
from barnabas.broker.http.coordinators import still_loading
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import array, integer, member, record, text
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import AclOperation
from barnabas.coordinators.groups.live_reset import LiveReset
from barnabas.offsets.records import NO_TOPIC_ID, CommittedOffset, GroupOffsets
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces

OFFSETS_MAX = 5_000  # they are written in one batch

WANTED = record(
    "Where the group reads on.",
    topic=text("The topic."),
    partition=integer("The partition.", least=0),
    offset=integer("The next offset to be read.", least=0),
)
BODY = record("The new offsets.", offsets=array(WANTED, "Each partition once."))
THROWN_OUT = member("A member that must join again.", "The id that it had. It gets another one.")
CHANGED = record(
    "A partition.",
    topic=text("The topic."),
    partition=integer("The partition."),
    before=integer("What was committed; null: nothing.", nullable=True),
    offset=integer("What is committed now."),
)
DONE = record(
    "A live reset that is done: committed, and no commit of before is accepted any more.",
    node_id=integer("The coordinator."),
    group=text("Its name."),
    generation=integer("Members of later generations (or epochs) read on from the new offsets."),
    members=array(THROWN_OUT, "Who was a member. Empty: nobody, so nobody must join again."),
    offsets=array(CHANGED, "The partitions, as they were asked for."),
)


@route(
    "POST",
    "/v1/groups/{group}/live-reset",
    summary="Commit other offsets for a group, and make its members read on from there",
    body=BODY,
    answer=DONE,
    of_group=True,
    access=of_topics(ApiKey.OFFSET_COMMIT, AclOperation.READ, "offsets", on_group=AclOperation.READ),
)
def reset_live(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """All offsets are committed together, or none. Every member is thrown out, and joins again at its next heartbeat.

    Then it fetches the new offsets. Records that a member had before may be processed once more, or once too often.
    """
    name = request.path["group"]
    coordinator = services.group_coordinator
    rows = request.body["offsets"]
    if not rows:
        raise HttpError(400, "INVALID_REQUEST", "name at least one partition in offsets.")
    if len(rows) > OFFSETS_MAX:
        message = f"a live reset is written in one batch, which has room for {OFFSETS_MAX:,} partitions."
        raise HttpError(400, "INVALID_REQUEST", message)
    offsets: GroupOffsets = {}
    now_ms = coordinator.clock.now_ms()
    for row in rows:
        yield
        topic, index = row["topic"], row["partition"]
        if not coordinator.topics.contains(topic, index):
            raise HttpError(404, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, f"there is no partition {topic}-{index}.")
        if index in offsets.get(topic, {}):
            raise HttpError(400, "INVALID_REQUEST", f"{topic}-{index} is there twice.")
        if row["offset"] >= 1 << 63:
            raise HttpError(400, "INVALID_REQUEST", f"the offset of {topic}-{index} does not fit into 64 bits.")
        topic_id = coordinator.topics.topic_id(topic) or NO_TOPIC_ID
        committed = CommittedOffset(row["offset"], commit_timestamp=now_ms, topic_id=topic_id)
        offsets.setdefault(topic, {})[index] = committed
    before = _committed(services, name, rows)
    reply = coordinator.live_resets.begin(name, offsets, request)
    if isinstance(reply, Pending):
        outcome: LiveReset = yield reply
        _raise_unless_done(outcome.error)
    else:
        _raise_unless_done(reply)
        raise AssertionError("a live reset without an outcome")
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "group": name,
            "generation": outcome.generation,
            "members": [member._asdict() for member in outcome.members],
            "offsets": [{**row, "before": was} for row, was in zip(rows, before, strict=True)],
        }
    )


def _committed(services: Services, group: str, rows: list[dict[str, Any]]) -> list[int | None]:
    shard = services.group_coordinator.shard_of(group)
    if isinstance(shard, ErrorCode):
        return [None] * len(rows)
    offsets = shard.offsets.of_group(group)
    found = [offsets.get(row["topic"], {}).get(row["partition"]) for row in rows]
    return [None if committed is None else committed.offset for committed in found]


def _raise_unless_done(error: ErrorCode) -> None:
    if error is ErrorCode.NONE:
        return
    if error is ErrorCode.INVALID_CONFIG:
        message = "the group's offsets are in the coordination tree (offsets.storage, dual.commit.enabled), so they "
        raise HttpError(409, error.name, message + "cannot be changed together with its members. Stop its consumers.")
    if error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        message = (
            "a live reset is not built for share and streams groups. Stop the group's members, then set its offsets "
            "without --live. Nothing was changed."
        )
        raise HttpError(409, error.name, message)
    if error is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        message = "the offsets do not fit into one batch (message.max.bytes). Reset fewer partitions at a time."
        raise HttpError(400, error.name, message)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        raise still_loading()
    message = (
        "the coordinator could not write, or has moved to another broker. The members join again; look at the "
        "committed offsets before you try again: they are all changed, or all unchanged."
    )
    raise HttpError(503, error.name, message)
