"""`/v1/groups/{group}/lag`: how far a group is behind; `/v1/positions`: what a leader knows of positions."""

from barnabas.broker.access.http import of_path, of_topics
from barnabas.broker.group_lag import lags, positions_of
from barnabas.broker.http.coordinators import group_with_offsets
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import array, boolean, integer, number, record, text
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import AclOperation, ResourceType
from barnabas.offsets.lag import Position, Status, topic_id_of
from barnabas.offsets.lag_history import rates
from barnabas.protocol.api_keys import ApiKey
from barnabas.runtime.turns import Pieces

POSITIONS_MAX = 5_000

_ISOLATION = {
    "records": integer("Records that are not read: no control records, and none that compaction has taken; at most."),
    "records_min": integer("The same, at least."),
    "exact": boolean("Whether all were counted. If not, offsets bound those beyond the first batches."),
    "bytes": integer("Bytes of the log from there on."),
    "seconds": number("How old the next record is; 0 if there is none, null if it is not known.", nullable=True),
}
PARTITION_LAG = record(
    "The lag in one partition.",
    topic=text("The topic."),
    partition=integer("The partition."),
    offset=integer("The committed offset."),
    leader_epoch=integer("The leader epoch of the record before it; -1: the commit did not say."),
    topic_id=text("The topic's id when it was committed; null: the commit did not say.", nullable=True),
    status=text("What the offset means in the log.", one_of=list(Status)),
    leader=integer("The broker that leads the partition.", nullable=True),
    error=text("Why the leader cannot say more (status unknown).", nullable=True),
    log_start_offset=integer("The first offset that is still there.", nullable=True),
    high_watermark=integer("Where read_uncommitted ends.", nullable=True),
    last_stable_offset=integer("Where read_committed ends.", nullable=True),
    log_end_offset=integer("Where the log ends.", nullable=True),
    cut_at=integer("Where the log was cut, below the committed offset (status log_cut).", nullable=True),
    lost_records_max=integer("So many records at most were deleted before the group read them."),
    goes_ms=integer("When retention.ms lets the next record go; ms since 1970.", nullable=True),
    goes_after_bytes=integer("After how many more bytes retention.bytes lets it go.", nullable=True),
    held_until_ms=integer("Retention waits for groups already, until then at most; ms since 1970.", nullable=True),
    read_uncommitted=record("For consumers that read all; null: not known.", nullable=True, **_ISOLATION),
    read_committed=record("For consumers with read_committed; null: not known.", nullable=True, **_ISOLATION),
)
POINT = record(
    "The lag at a time, by offsets.",
    time_ms=integer("When; ms since 1970."),
    records=integer("Offsets between the committed ones and the ends of the logs, without those that are lost."),
    position=integer("The sum of the committed offsets."),
    partitions=integer("In how many partitions."),
    lost=integer("Offsets between the committed ones and the starts of the logs: these records went unread."),
)
GROUP_LAG = record(
    "The lag of a group.",
    node_id=integer("Its coordinator."),
    group=text("Its name."),
    state=text("What it is doing; null: only its offsets are known.", nullable=True),
    members=integer("How many members it has."),
    time_ms=integer("When this was so; ms since 1970."),
    consumed_per_second=number("Records that it read each second, over the last five minutes.", nullable=True),
    produced_per_second=number("Records written for it each second, over the last five minutes.", nullable=True),
    catch_up_seconds=number("When it has read all at these rates; null: never, or not known.", nullable=True),
    partitions=array(
        PARTITION_LAG, "Each partition with a committed offset; other_leader: ask that one by POST /v1/positions."
    ),
    history=array(POINT, "The last day, less and less often with age. Each holds until the next one."),
)


@route(
    "GET",
    "/v1/groups/{group}/lag",
    summary="The lag of a group",
    answer=GROUP_LAG,
    of_group=True,
    access=of_path(ApiKey.OFFSET_FETCH, AclOperation.DESCRIBE, ResourceType.GROUP, "group"),
)
def group_lag(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """Records, bytes and seconds between the committed offsets of a group and the ends of the logs, for both isolation
    levels. It is of now, also for a group whose consumers have stopped.
    """
    name = request.path["group"]
    group, committed = yield from group_with_offsets(services, name)
    rows = yield from lags(services, positions_of(request.seen(committed)))
    now_ms = services.env.clock.now_ms()
    points = services.lag_sampling.histories.of_group(name)
    rate = rates(points, now_ms)
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "group": name,
            "state": None if group is None else group.state,
            "members": 0 if group is None else group.member_count,
            "time_ms": now_ms,
            "consumed_per_second": rate.consumed,
            "produced_per_second": rate.produced,
            "catch_up_seconds": rate.catch_up_seconds,
            "partitions": (row.as_json() for row in rows),
            "history": [point._asdict() for point in points],
        }
    )


POSITIONS = record(
    "Positions in logs.",
    positions=array(
        record(
            "A position, as a group has committed it.",
            topic=text("The topic."),
            partition=integer("The partition.", least=0),
            offset=integer("The next offset to be read.", least=0),
            leader_epoch=integer("The leader epoch of the record before it; -1: not known."),
            topic_id=text("The id of the topic that it was meant for; null: not known.", nullable=True),
            optional=("leader_epoch", "topic_id"),
        ),
        f"At most {POSITIONS_MAX}.",
    ),
)
POSITION_LAGS = record(
    "What this broker knows of the positions.",
    node_id=integer("The broker."),
    time_ms=integer("When this was so; ms since 1970."),
    partitions=array(PARTITION_LAG, "In the order of the positions."),
)


@route(
    "POST",
    "/v1/positions",
    summary="What lies behind positions in logs",
    body=POSITIONS,
    answer=POSITION_LAGS,
    access=of_topics(ApiKey.LIST_OFFSETS, AclOperation.DESCRIBE, "positions"),
)
def look_at_positions(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """What a consumer that continues at a position has before it. Only the leader of a partition knows it: of others
    the answer names the leader. Nothing is changed.
    """
    asked = request.body["positions"]
    if len(asked) > POSITIONS_MAX:
        raise HttpError(413, "TOO_MANY_POSITIONS", f"{len(asked)} positions; ask for {POSITIONS_MAX} at a time.")
    positions = []
    for row in asked:
        yield None
        try:
            topic_id = topic_id_of(row.get("topic_id"))
        except ValueError:
            raise HttpError(400, "INVALID_BODY", f"{row['topic_id']!r} is no topic id.") from None
        epoch = row.get("leader_epoch", -1)
        positions.append(Position(row["topic"], row["partition"], row["offset"], epoch, topic_id))
    rows = yield from lags(services, positions)
    return HttpAnswer.json(
        {
            "node_id": services.node_id,
            "time_ms": services.env.clock.now_ms(),
            "partitions": (row.as_json() for row in rows),
        }
    )
