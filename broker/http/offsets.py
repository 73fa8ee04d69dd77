"""`/v1/groups/{group}/offsets-cleanup`: remove committed offsets, also of topics that are gone."""

from barnabas.broker.access.http import of_topics
from barnabas.broker.http.coordinators import no_group, still_loading
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import array, integer, record, text
from barnabas.broker.services import Services
from barnabas.cluster.security.acls import AclOperation
from barnabas.offsets.records import TopicPartition
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.turns import Pieces

SEEN = record(
    "A committed offset as it was seen.",
    topic=text("The topic, which need not exist any more."),
    partition=integer("The partition.", least=0),
    offset=integer("What is committed. With another offset nothing is removed."),
)
BODY = record("What to remove.", offsets=array(SEEN, "Each partition once."))
DONE = record(
    "They are removed.",
    node_id=integer("The coordinator."),
    group=text("Its name."),
    removed=integer("How many."),
)


@route(
    "POST",
    "/v1/groups/{group}/offsets-cleanup",
    summary="Remove committed offsets of a group without members",
    body=BODY,
    answer=DONE,
    of_group=True,
    access=of_topics(ApiKey.OFFSET_DELETE, AclOperation.READ, "offsets", on_group=AclOperation.DELETE),
)
def clean_up(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """All are removed, or none. Topics that do not exist any more may be named, which OffsetDelete refuses."""
    name = request.path["group"]
    seen: dict[TopicPartition, int] = {}
    for row in request.body["offsets"]:
        yield
        seen[row["topic"], row["partition"]] = row["offset"]
    if len(seen) < len(request.body["offsets"]) or not seen:
        raise HttpError(400, "INVALID_REQUEST", "name each partition once in offsets, and at least one.")
    error: ErrorCode = yield services.group_coordinator.removals.cleanup(name, seen, request)
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        raise no_group(name)
    if error is ErrorCode.NON_EMPTY_GROUP:
        raise HttpError(409, error.name, "the group has members. Stop its consumers first. Nothing was removed.")
    if error is ErrorCode.INVALID_REQUEST:
        raise HttpError(409, "CHANGED", "another client has changed these offsets meanwhile. Nothing was removed.")
    if error is ErrorCode.UNSTABLE_OFFSET_COMMIT:
        message = "a transaction is open that commits some of these offsets. Let it end first. Nothing was removed."
        raise HttpError(409, error.name, message)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        raise still_loading()
    if error:
        message = "the coordinator could not write, or has moved to another broker. Look before you try again."
        raise HttpError(503, error.name, message)
    return HttpAnswer.json({"node_id": services.node_id, "group": name, "removed": len(seen)})
