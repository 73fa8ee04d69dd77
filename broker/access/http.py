"""Rights on paths of the HTTP API: each asks for those of the request of Kafka's protocol that it stands for.

A route without a line here is for super users, and for who has the token of `http.token`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.named_tuple import NamedTuple

Right = tuple[AclOperation, ResourceType, str | None]  # None: on all of the type
CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC


class HttpAccess(NamedTuple):
    """The API of Kafka's that a path stands for, and the rights that a request needs: all of them."""

    api_key: int
    rights: Callable[[Any], Iterable[Right]]


def everybody(api_key: ApiKey) -> HttpAccess:
    """No right; what an answer lists is filtered by its handler."""
    return HttpAccess(api_key, lambda request: ())


def of_path(api_key: ApiKey, operation: AclOperation, type: ResourceType, parameter: str) -> HttpAccess:
    """One right on what a parameter of the path names."""
    return HttpAccess(api_key, lambda request: ((operation, type, request.path[parameter]),))


def of_cluster(api_key: ApiKey, operation: AclOperation) -> HttpAccess:
    return HttpAccess(api_key, lambda request: ((operation, CLUSTER, CLUSTER_NAME),))


def sees_all(api_key: ApiKey) -> HttpAccess:
    """Describe the cluster, and all topics and groups: the answer is of all of them."""
    all_of_them = tuple(
        (AclOperation.DESCRIBE, *each) for each in ((CLUSTER, CLUSTER_NAME), (TOPIC, None), (GROUP, None))
    )
    return HttpAccess(api_key, lambda request: all_of_them)


def of_topics(api_key: ApiKey, on_topic: AclOperation, rows: str, on_group: AclOperation | None = None) -> HttpAccess:
    """A right on the group of the path, if one is named, and on the topic of each row of the body."""

    def rights(request: Any) -> Iterator[Right]:
        if on_group is not None:
            yield on_group, GROUP, request.path["group"]
        for topic in dict.fromkeys(row["topic"] for row in request.body[rows]):
            yield on_topic, TOPIC, topic

    return HttpAccess(api_key, rights)


described_group = of_path(ApiKey.DESCRIBE_GROUPS, AclOperation.DESCRIBE, GROUP, "group")
