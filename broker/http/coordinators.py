"""Which broker answers for a group, where its HTTP API is, and what it has of the group.

Brokers talk to each other in Kafka's messages only: the address is a setting in the other broker's DescribeConfigs.
"""

from typing import Any

from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest
from barnabas.broker.services import Services
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.config.listeners import url_of
from barnabas.coordinators.coordinator import coordinator_of, partition_for
from barnabas.coordinators.groups.shard import Shard
from barnabas.coordinators.groups.views import GroupView, view
from barnabas.offsets.manager import Offsets
from barnabas.offsets.records import GroupOffsets
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from barnabas.runtime.turns import Pieces

PURPOSE = "http-address"
BROKER_RESOURCE = 4
VERSION = 1
ANSWERS_WITHIN_MS = 5_000.0
RETRY = [("Retry-After", "1")]


def check_of_group(services: Services, request: HttpRequest) -> HttpAnswer | Pending[HttpAnswer] | None:
    """None if this broker coordinates the group of the path; else the redirection. HttpError: nobody answers now."""
    group = request.path["group"]
    shard = services.group_coordinator.shard_of(group)
    if not isinstance(shard, ErrorCode):
        return None
    if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        raise still_loading(_reason(services, group))
    if not services.metadata_cache.contains(OFFSETS_TOPIC):
        message = "no group was ever used here, so there is no topic __consumer_offsets and no coordinator yet."
        raise HttpError(404, "GROUP_ID_NOT_FOUND", message)
    leader = coordinator_of(services.metadata_cache, OFFSETS_TOPIC, group)
    if shard is not ErrorCode.NOT_COORDINATOR or leader is None or leader.broker_id == services.node_id:
        message = "no broker coordinates the group now. Ask again soon."
        raise HttpError(503, ErrorCode.COORDINATOR_NOT_AVAILABLE.name, message, RETRY)
    return address_of(services, leader.broker_id).map(lambda address: _redirection(address, leader.broker_id, request))


def shard_of(services: Services, group: str) -> Shard:
    """What this broker has of a group that it coordinates. HttpError: it does no longer."""
    shard = services.group_coordinator.shard_of(group)
    if isinstance(shard, ErrorCode):
        raise HttpError(503, shard.name, "the group moves to another broker. Ask again soon.", RETRY)
    return shard


def group_with_offsets(services: Services, name: str) -> Pieces[tuple[GroupView | None, GroupOffsets]]:
    """A group, if members were ever there, and its committed offsets. HttpError: there is neither."""
    shard = shard_of(services, name)
    reply = services.group_coordinator.offsets.get(shard, name, None)
    found: Offsets = (yield reply) if isinstance(reply, Pending) else reply
    if found.error:
        raise HttpError(503, found.error.name, "the offsets cannot be read now. Ask again soon.")
    group = view(shard, name)
    if group is None and not found.committed:
        raise no_group(name)
    return group, found.committed


def no_group(name: str) -> HttpError:
    """What is answered for a group that does not exist."""
    message = f"there is no group {name!r}. GET /v1/groups of each broker lists what there is."
    return HttpError(404, ErrorCode.GROUP_ID_NOT_FOUND.name, message)


def _reason(services: Services, group: str) -> str:
    """Why the loading of the group's partition does not get further; empty: it does."""
    partition = partition_for(group, services.metadata_cache.partition_count(OFFSETS_TOPIC))
    return next((each.stopped_by for each in services.group_coordinator.loading() if each.partition == partition), "")


def still_loading(why: str = "") -> HttpError:
    """What is answered while this broker loads the group's offsets. `why`: it does not get further."""
    message = "the group's offsets are being loaded" + (f", and that stands still: {why}" if why else "")
    message += ". Ask again soon."
    return HttpError(503, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS.name, message, RETRY)


def address_of(services: Services, broker_id: int) -> Pending[str | None]:
    """The address of another broker's HTTP API: host:port, empty if it has none; None if it does not answer."""
    client = services.broker_clients.to(broker_id, PURPOSE, ANSWERS_WITHIN_MS)
    if client is None:
        return Pending.of(None)
    describe = messages.DescribeConfigsRequest
    resource = describe.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=["http.address"]
    )
    return client.send(describe(resources=[resource]), VERSION).map(_address)


def _address(response: Any) -> str | None:
    if response is None or not response.results or response.results[0].error_code:
        return None
    values = {row.name: row.value for row in response.results[0].configs}
    return values.get("http.address") or ""


def _redirection(address: str | None, broker_id: int, request: HttpRequest) -> HttpAnswer:
    if address is None:
        message = f"broker {broker_id} coordinates the group, and does not answer. Ask again soon."
        raise HttpError(503, ErrorCode.COORDINATOR_NOT_AVAILABLE.name, message, RETRY)
    if not address:
        message = f"broker {broker_id} coordinates the group, and has no HTTP API: set its http.listeners."
        raise HttpError(503, "NO_HTTP_API", message)
    path = "/" + request.target.partition("://")[2].partition("/")[2] if "://" in request.target else request.target
    location = f"{url_of(address)}{path}"
    body = {"error": {"name": ErrorCode.NOT_COORDINATOR.name, "message": f"broker {broker_id} answers at {location}."}}
    return HttpAnswer.json(body, status=307, headers=[("Location", location)])
