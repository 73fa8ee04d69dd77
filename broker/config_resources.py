"""Describes, changes and lists the resources that have settings: topics, brokers, loggers, groups, client metrics.

A change goes into the coordination tree and comes back to every broker by a change notice. The client is answered when
this broker has applied the change. Settings of client metrics, of share groups and of streams groups are stored and
described, but nothing uses them yet. The handlers (api/configs.py) import this module on first use, because a start
does not need it.
"""

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from barnabas.broker import loggers
from barnabas.cluster.topic_names import topic_name_problem
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import children_if_there, make_if_missing
from barnabas.config import describe, entities, topic
from barnabas.config.alter import altered, replaced
from barnabas.config.broker import check_dynamic
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.describe import ConfigRow
from barnabas.config.settings import ConfigError, Table
from barnabas.controller.topic_admin import DONE, Outcome
from barnabas.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.services import Services

logger = logging.getLogger("barnabas.broker")

Operation = tuple[str, int, str | None]  # name, ConfigOperation, value
Overrides = Mapping[str, str]


class Resource(IntEnum):
    """Resource types by their number on the wire, in the order in which Kafka lists them."""

    GROUP = 32
    CLIENT_METRICS = 16
    BROKER_LOGGER = 8
    BROKER = 4
    TOPIC = 2


# The type in the coordination tree: `/config/<type>/<name>`.
ENTITY_TYPES = {
    Resource.TOPIC: "topics",
    Resource.BROKER: "brokers",
    Resource.GROUP: "groups",
    Resource.CLIENT_METRICS: "client-metrics",
}
NO_NAME = {  # what is said of a resource that must have a name, and has none
    Resource.TOPIC: "Default topic resources are not allowed.",
    Resource.GROUP: "Default group resources are not allowed.",
    Resource.CLIENT_METRICS: "Subscription name can't be empty",
}
# Resources with settings that are lists: Kafka knows the types of the settings of these two only.
SETTINGS: dict[Resource, Table] = {Resource.TOPIC: topic.TOPIC_SETTINGS, Resource.BROKER: BROKER_SETTINGS}


def refusal(message: str, error: ErrorCode = ErrorCode.INVALID_REQUEST) -> ConfigError:
    """The error for a resource that cannot be described or changed at all."""
    return ConfigError(message, error=error)


def _no_topic(name: str) -> ConfigError:
    return refusal(f"The topic '{name}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def entity_path(resource: Resource, name: str) -> str:
    """The path of a resource's own settings below `/config`. Names of groups and subscriptions may be any text."""
    if resource in (Resource.GROUP, Resource.CLIENT_METRICS):
        name = paths.encode_name(name)
    elif resource is Resource.BROKER and name:
        name = str(int(name))  # "01" is broker 1
    return f"{ENTITY_TYPES[resource]}/{name or paths.DEFAULT_ENTITY}"


def check_broker(services: "Services", name: str, also: str = "") -> None:
    """Raise ConfigError unless `name` is this broker's number: each broker answers for itself only."""
    try:
        number = int(name)
    except ValueError:
        raise refusal(f"Broker id must be an integer, but it is: {name}") from None
    if number != services.node_id:
        raise refusal(f"Unexpected broker id, expected {services.node_id}{also}, but received {name}")


# --- describe ---


async def rows_of(services: "Services", resource_type: int, name: str, keys: list[str] | None) -> list[ConfigRow]:
    """The settings of one resource: those in `keys`, or all if there are none. ConfigError for no such resource."""
    if resource_type == Resource.TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise refusal(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if not services.metadata_cache.contains(name):
            raise refusal("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        own = await services.topic_admin.overrides(
            entity_path(Resource.TOPIC, name)
        )  # as another broker has changed them
        return describe.topic_rows(own, services.config, keys)
    if resource_type == Resource.BROKER and not name:
        return describe.cluster_rows(services.config, keys)
    if resource_type == Resource.BROKER:
        check_broker(services, name, " or empty string")
        return describe.broker_rows(services.config, keys)
    if resource_type == Resource.BROKER_LOGGER:
        check_broker(services, name)
        return loggers.rows(keys)
    if resource_type == Resource.GROUP:
        if not name:
            raise refusal("Group name must not be empty")
        own = await services.topic_admin.overrides(entity_path(Resource.GROUP, name))
        return describe.group_rows(own, services.config, keys)
    if not name:
        raise refusal("Client metrics subscription name must not be empty")
    own = await services.topic_admin.overrides(entity_path(Resource.CLIENT_METRICS, name))
    return describe.client_metrics_rows(own, keys)


# --- change ---


async def alter(
    services: "Services", resource_type: int, name: str, entries: list[tuple[str, str | None]], *, validate_only: bool
) -> Outcome:
    """Replace all settings of one resource. Loggers cannot be altered this way."""
    return await _change(services, resource_type, name, lambda settings, current: replaced(entries), validate_only)


async def alter_incrementally(
    services: "Services", resource_type: int, name: str, operations: list[Operation], *, validate_only: bool
) -> Outcome:
    if resource_type == Resource.BROKER_LOGGER:
        return _alter_loggers(services, name, operations, validate_only)
    return await _change(
        services, resource_type, name, lambda settings, current: altered(settings, current, operations), validate_only
    )


async def _change(
    services: "Services",
    resource_type: int,
    name: str,
    change: Callable[[Table, Overrides], dict[str, str]],
    validate_only: bool,
) -> Outcome:
    """Replace a resource's settings by what `change` makes of them, if that is valid."""
    try:
        if resource_type not in ENTITY_TYPES:
            raise refusal(f"Unknown resource type {resource_type}")
        resource = Resource(resource_type)
        table = SETTINGS.get(resource, {})
        if resource is Resource.BROKER and name:
            check_broker(services, name)
        values = change(table, {})  # raises what is wrong with the request itself, first
        _check_name(resource, name)
        if resource is Resource.TOPIC and not services.metadata_cache.contains(name):
            topic.validate(values)
            raise _no_topic(name)

        def valid(current: Overrides) -> dict[str, str]:
            values = change(table, current)
            _validate(services, resource, name, values)
            return values

        path = entity_path(resource, name)
        if validate_only:
            valid(await services.topic_admin.overrides(path))
            return DONE
        await _make_parent(services, resource)
        of = paths.topic(name) if resource is Resource.TOPIC else None
        if not await services.topic_admin.change_overrides(path, valid, of=of):
            raise _no_topic(name)
    except ConfigError as error:
        return error.error, str(error) or None
    await services.config_changes.entity_changed(*path.split("/"))  # the answer does not wait for the notice
    return DONE


def _check_name(resource: Resource, name: str) -> None:
    """Raise ConfigError when no resource of that type can have the name."""
    if not name and resource in NO_NAME:
        raise refusal(NO_NAME[resource])
    if resource is Resource.TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise refusal(problem, ErrorCode.INVALID_TOPIC_EXCEPTION)


def _validate(services: "Services", resource: Resource, name: str, values: Overrides) -> None:
    """Raise ConfigError unless the resource may have exactly these settings."""
    if resource is Resource.TOPIC:
        topic.validate(values)
    elif resource is Resource.BROKER:
        changed = check_dynamic(services.config, values, cluster=not name)
        if services.tls is not None:
            services.tls.check_change(changed)
    elif resource is Resource.GROUP:
        entities.validate_group(values, services.config)
    else:
        entities.validate_client_metrics(values)


async def _make_parent(services: "Services", resource: Resource) -> None:
    """Make the parent node of groups' or client metrics' settings, which Kafka's ZooKeeper tree does not have."""
    path = paths.config(ENTITY_TYPES[resource])
    if await services.coordination.exists(path) is None:
        await make_if_missing(services.coordination, path)


def _alter_loggers(services: "Services", name: str, operations: list[Operation], validate_only: bool) -> Outcome:
    """Change the levels of this process's loggers. Nothing is stored."""
    try:
        check_broker(services, name)
        loggers.check(operations)
    except ConfigError as error:
        return error.error, str(error)
    if not validate_only:
        loggers.apply(operations)
        for changed, _, value in operations:
            logger.info("logger %s now writes from level %s", changed, value or "of its parent")
    return DONE


# --- list ---


async def names_of(services: "Services", resource: Resource) -> list[str]:
    """The names of a type's resources; of groups and client metrics, those that have settings."""
    if resource is Resource.TOPIC:
        return list(services.metadata_cache.topics)
    if resource in (Resource.BROKER, Resource.BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(services.metadata_cache.brokers)]
    children = await children_if_there(services.coordination, paths.config(ENTITY_TYPES[resource]))
    names = [paths.decode_name(child) for child in children]
    return [name for name in names if name and await services.topic_admin.overrides(entity_path(resource, name))]
