"""The group APIs. Most are answered by a method of the group coordinator, which the function of the row names.

FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15), ListGroups
(16), DeleteGroups (42), OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.access import groups as groups_access
from barnabas.broker.api.failures import each_row
from barnabas.broker.offset_forwarding import forward_offset_fetch, is_forwarded
from barnabas.broker.requests import Method, Reply, RequestContext, api
from barnabas.cluster.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.coordinators.coordinator import coordinator_of
from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.rows import Rows
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.protocol.messages import (
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        OffsetFetchRequest,
        OffsetFetchResponse,
    )

GROUP, TRANSACTION, SHARE = 0, 1, 2
_TOPICS: Final = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
AT_ONCE_MAX: Final = 20  # topics of an OffsetFetch that is answered without a pause
NOT_AVAILABLE_MESSAGE: Final = "The coordinator is not available."
INVALID_REQUEST_MESSAGE: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
_MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: NOT_AVAILABLE_MESSAGE,
    ErrorCode.INVALID_REQUEST: INVALID_REQUEST_MESSAGE,
}


def find_coordinator_failed(request: FindCoordinatorRequest, error: ErrorCode) -> FindCoordinatorResponse:
    """Every key that was asked for, with the error; before version 4 there is one key, and its error is at the top."""
    if not request.coordinator_keys:
        return messages.FindCoordinatorResponse(error_code=error, node_id=-1, port=-1)
    return messages.FindCoordinatorResponse(
        coordinators=[
            messages.FindCoordinatorResponse.Coordinator(key=key, node_id=-1, port=-1, error_code=error)
            for key in request.coordinator_keys
        ]
    )


@api(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    access=groups_access.find_coordinator,
    failure=find_coordinator_failed,
    is_wide=True,
)
def find_coordinator(services: Services, request: FindCoordinatorRequest, context: RequestContext) -> Reply:
    """FindCoordinator (key 10), versions 0-6: the broker that answers for a group.

    The first request creates `__consumer_offsets`, or for a transactional id `__transaction_state`, and its answer
    waits up to half a second for the topic. Left out: share groups (key type 2) are answered INVALID_REQUEST.
    """
    return services.env.turns.run(_find_coordinators(services, request, context))


def _find_coordinators(
    services: Services, request: FindCoordinatorRequest, context: RequestContext
) -> Pieces[FindCoordinatorResponse]:
    topic = _TOPICS.get(request.key_type)
    if topic is not None and not services.metadata_cache.contains(topic):
        services.auto_topics.create(topic)
        yield services.auto_topics.creations_ended([topic])
    if context.api_version < 4:
        error, node_id, host, port = _coordinator(services, request.key, request.key_type, context)
        message = _MESSAGES.get(error, "")
        is_missing = topic is not None and not services.metadata_cache.contains(topic)
        if topic and is_missing and error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            message = f"{message} {services.auto_topics.problem(topic)}".rstrip()
        return messages.FindCoordinatorResponse(
            error_code=error, error_message=message, node_id=node_id, host=host, port=port
        )
    unknown_type = request.key_type not in (GROUP, TRANSACTION, SHARE)
    response = messages.FindCoordinatorResponse()
    for key in request.coordinator_keys:
        yield
        error, node_id, host, port = _coordinator(services, key, request.key_type, context)
        response.coordinators.append(
            messages.FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=node_id,
                host=host,
                port=port,
                error_code=error,
                error_message=INVALID_REQUEST_MESSAGE if unknown_type else "",
            )
        )
    return response


def _coordinator(
    services: Services, key: str, key_type: int, context: RequestContext
) -> tuple[ErrorCode, int, str, int]:
    topic = _TOPICS.get(key_type)
    if topic is None:
        return ErrorCode.INVALID_REQUEST, -1, "", -1
    leader = coordinator_of(services.metadata_cache, topic, key)
    endpoint = None if leader is None else services.addresses.of(leader.broker_id, context)
    if leader is not None and endpoint is not None:
        return ErrorCode.NONE, leader.broker_id, endpoint.host, endpoint.port
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1


@api(ApiKey.JOIN_GROUP, versions=(0, 9), access=groups_access.join_group, comes_in_crowds=True, returns_method=True)
def join_group(services: Services) -> Method:
    """JoinGroup (key 11), versions 0-9: classic membership, also in a group of the consumer protocol (KIP-848)."""
    return services.group_coordinator.join_group


@api(ApiKey.SYNC_GROUP, versions=(0, 5), access=groups_access.member, comes_in_crowds=True, returns_method=True)
def sync_group(services: Services) -> Method:
    """SyncGroup (key 14), versions 0-5: takes the leader's assignment; answers each member with its own part."""
    return services.group_coordinator.sync_group


@api(ApiKey.HEARTBEAT, versions=(0, 4), access=groups_access.member, returns_method=True)
def heartbeat(services: Services) -> Method:
    """Heartbeat (key 12), versions 0-4."""
    return services.group_coordinator.heartbeat


@api(ApiKey.LEAVE_GROUP, versions=(0, 5), access=groups_access.member, returns_method=True)
def leave_group(services: Services) -> Method:
    """LeaveGroup (key 13), versions 0-5: one member; from version 3 on several, also by instance id alone."""
    return services.group_coordinator.leave_group


@api(
    ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    access=groups_access.describe_groups,
    failure=each_row(value="group_id", groups="groups"),
    is_wide=True,
    returns_method=True,
)
def describe_groups(services: Services) -> Method:
    """DescribeGroups (key 15), versions 0-6: classic groups; others have describe APIs of their own."""
    return services.group_coordinator.describe_groups


@api(ApiKey.LIST_GROUPS, versions=(0, 5), access=groups_access.list_groups, is_wide=True, returns_method=True)
def list_groups(services: Services) -> Method:
    """ListGroups (key 16), versions 0-5: classic and consumer groups."""
    return services.group_coordinator.list_groups


def delete_groups_failed(request: DeleteGroupsRequest, error: ErrorCode) -> DeleteGroupsResponse:
    """Every group that was named, with the error."""
    result = messages.DeleteGroupsResponse.DeletableGroupResult
    return messages.DeleteGroupsResponse(
        results=[result(group_id=group, error_code=error) for group in dict.fromkeys(request.groups_names)]
    )


@api(
    ApiKey.DELETE_GROUPS,
    versions=(0, 2),
    access=groups_access.delete_groups,
    failure=delete_groups_failed,
    returns_method=True,
)
def delete_groups(services: Services) -> Method:
    """DeleteGroups (key 42), versions 0-2: empty groups with all their offsets."""
    return services.group_coordinator.removals.delete_groups


@api(
    ApiKey.OFFSET_COMMIT,
    versions=(0, 10),
    access=groups_access.offset_commit,
    failure=each_row(topics="topics", partitions="partitions"),
    returns_method=True,
)
def offset_commit(services: Services) -> Method:
    """OffsetCommit (key 8), versions 0-10: version 0 writes into the tree, the others where `offsets.storage` says.

    The retention time of versions 2-4 is kept with the offset.
    """
    return services.group_coordinator.commits.offset_commit


def offset_fetch_failed(request: OffsetFetchRequest, error: ErrorCode) -> OffsetFetchResponse:
    """Every group that was named, with the error; before version 2 only the partitions have a field for it."""
    answer = messages.OffsetFetchResponse
    return answer(
        error_code=error,
        topics=[
            answer.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    answer.OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
        groups=[
            messages.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
            for group in request.groups
        ],
    )


def holds_much(answer: OffsetFetchResponse) -> bool:
    """Whether an answer has many structures. Rows that are bytes already are none."""
    if len(answer.groups) > AT_ONCE_MAX:
        return True
    topics: list[Any] = list(answer.topics)
    for group in answer.groups:
        topics += group.topics
    if len(topics) > AT_ONCE_MAX:
        return True
    return any(type(topic.partitions) is not Rows for topic in topics)


@api(
    ApiKey.OFFSET_FETCH,
    versions=(0, 10),
    access=groups_access.offset_fetch,
    failure=offset_fetch_failed,
    is_wide=holds_much,
)
def offset_fetch(services: Services, request: OffsetFetchRequest, context: RequestContext) -> Reply:
    """OffsetFetch (key 9), versions 0-10: version 0 reads from the tree, the others where `offsets.storage` says.

    With offsets.fetch.forward=true other coordinators are asked for their groups. Member id and member epoch
    (version 9) have no meaning in classic groups.
    """
    if services.config.offsets_fetch_forward and context.api_version > 0 and not is_forwarded(context):
        return services.env.turns.run(forward_offset_fetch(services, request, context, offset_fetch_failed))
    return services.group_coordinator.offset_fetches.offset_fetch(request, context)


@api(ApiKey.OFFSET_DELETE, versions=(0, 0), access=groups_access.offset_delete, returns_method=True)
def offset_delete(services: Services) -> Method:
    """OffsetDelete (key 47), version 0: offsets of topics that no active consumer of the group subscribes to."""
    return services.group_coordinator.removals.offset_delete
