"""Rights on the cluster and its settings."""

from typing import Any

from barnabas.broker.access.rules import CLUSTER, GROUP, MESSAGES, NOT_ASKED, TOPIC, joined, say, then, whole, with_rows
from barnabas.broker.access.topics import cluster_operations
from barnabas.broker.requests import AUTHORIZATION_ERRORS, Access, Asked, Reply
from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation, ResourceType

of_brokers = whole(AclOperation.CLUSTER_ACTION, CLUSTER)
describes_cluster = whole(AclOperation.DESCRIBE, CLUSTER)
alters_cluster = whole(AclOperation.ALTER, CLUSTER)
lists_configs = whole(AclOperation.DESCRIBE_CONFIGS, CLUSTER)
alters_configs_of_cluster = whole(AclOperation.ALTER_CONFIGS, CLUSTER)

# Resources of settings, by their number in requests, that have rights of their own. All others are of the cluster.
OF_A_NAME = {2: TOPIC, 32: GROUP}


def describe_quotas(asked: Asked) -> Reply:
    """The right to describe the settings of the cluster. Kafka says no more than the error here."""
    if asked.may(AclOperation.DESCRIBE_CONFIGS, CLUSTER):
        return asked.handle()
    return asked.refuse(AUTHORIZATION_ERRORS[CLUSTER])


def describe_cluster(asked: Asked) -> Reply:
    """Everybody may ask who the brokers are."""

    def told(answer: Any) -> Any:
        if answer.cluster_authorized_operations != NOT_ASKED:
            answer.cluster_authorized_operations = cluster_operations(asked)
        return answer

    return then(asked.handle(), told)


def _settings(operation: AclOperation) -> Access:
    """One right on each resource whose settings are asked for or changed."""

    def access(asked: Asked) -> Reply:
        refused: dict[ResourceType, list[Any]] = {}
        allowed = []
        for row in asked.request.resources:
            type, name = _resource(row)
            if asked.may(operation, type, name):
                allowed.append(row)
            else:
                refused.setdefault(type, []).append(row)
        if not refused:
            return asked.handle()
        answers = []
        for type, rows in refused.items():
            error = AUTHORIZATION_ERRORS[type]
            answers.append(asked.refuse(error, with_rows(asked.request, "resources", rows)))
            say(answers[-1], MESSAGES[error])

        def with_refused(there: Any) -> Any:
            for answer in answers:
                joined(there, answer)
            return there

        if not allowed:
            return with_refused(answers.pop(0))
        return then(asked.handle(with_rows(asked.request, "resources", allowed)), with_refused)

    return access


def _resource(row: Any) -> tuple[ResourceType, str]:
    """What the right is asked on."""
    type = OF_A_NAME.get(row.resource_type)
    return (CLUSTER, CLUSTER_NAME) if type is None else (type, row.resource_name)


describe_configs = _settings(AclOperation.DESCRIBE_CONFIGS)
alter_configs = _settings(AclOperation.ALTER_CONFIGS)
