"""OffsetFetch by any broker (offsets.fetch.forward=true): it asks the coordinators of the groups, and answers for them.

A request that a broker has forwarded is not forwarded again, so that two brokers with different knowledge do not ask
each other for ever: the error of the second goes to the client, who tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from barnabas.broker.requests import RequestContext
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.coordinator import coordinator_of
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces

if TYPE_CHECKING:
    from barnabas.broker.services import Services
    from barnabas.protocol.messages import OffsetFetchRequest, OffsetFetchResponse

PURPOSE = "offset-fetch"
FIRST_VERSION_WITH_GROUPS = 8

# Answers a request with an error for all that was asked.
Failed = Callable[["OffsetFetchRequest", ErrorCode], "OffsetFetchResponse"]


def is_forwarded(context: RequestContext) -> bool:
    """Whether another broker has forwarded the request, as the client id of its connection says."""
    client_id = context.client_id or ""
    return client_id.startswith("broker-") and client_id.endswith(f"-{PURPOSE}")


def forward_offset_fetch(
    services: Services, request: OffsetFetchRequest, context: RequestContext, failed: Failed
) -> Pieces[OffsetFetchResponse]:
    """Answer for all groups: from the own shards, and from the other coordinators, who are asked at the same time."""
    version = context.api_version
    if version < FIRST_VERSION_WITH_GROUPS:
        answer = _ask(services, _coordinator(services, request.group_id), request, context, failed)
        if isinstance(answer, Pending):
            answer = yield answer
        whole: OffsetFetchResponse = answer
        return whole
    asked: list[int] = []  # for each group
    groups: dict[int, list[OffsetFetchRequest.OffsetFetchRequestGroup]] = {}
    for group in request.groups:
        yield
        asked.append(_coordinator(services, group.group_id))
        groups.setdefault(asked[-1], []).append(group)
    answers = {}
    for coordinator_id, its_groups in groups.items():
        part = messages.OffsetFetchRequest(groups=its_groups, require_stable=request.require_stable)
        answers[coordinator_id] = _ask(services, coordinator_id, part, context, failed)
    found: dict[int, Iterator[OffsetFetchResponse.OffsetFetchResponseGroup]] = {}
    for coordinator_id, answer in answers.items():
        if isinstance(answer, Pending):
            answer = yield answer
        found[coordinator_id] = iter(answer.groups)  # in the order of its part; a group may be there twice
    return messages.OffsetFetchResponse(groups=[next(found[coordinator_id]) for coordinator_id in asked])


def _coordinator(services: Services, group_id: str) -> int:
    """The broker that answers for a group; -1: not known. The own id also for what the own gate refuses."""
    if services.group_coordinator.shard_of(group_id) is not ErrorCode.NOT_COORDINATOR:
        return services.node_id
    leader = coordinator_of(services.metadata_cache, OFFSETS_TOPIC, group_id)
    return -1 if leader is None else leader.broker_id


def _ask(
    services: Services, coordinator_id: int, request: OffsetFetchRequest, context: RequestContext, failed: Failed
) -> Any | Pending[Any]:
    if coordinator_id == services.node_id:
        return services.group_coordinator.offset_fetches.offset_fetch(request, context)
    client = services.broker_clients.to(coordinator_id, PURPOSE)
    if client is None:
        return failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer: Pending[Any] = client.send(request, context.api_version)
    return answer.map(
        lambda response: (
            failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if response is None or not _is_whole(request, response)
            else response
        )
    )


def _is_whole(request: OffsetFetchRequest, response: OffsetFetchResponse) -> bool:
    """Whether the answer has all groups. One with an error at the top may have none."""
    return [group.group_id for group in request.groups] == [group.group_id for group in response.groups]
