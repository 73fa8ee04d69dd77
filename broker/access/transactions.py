"""Rights on transactional ids, and on what their transactions write to."""

from typing import Any

from barnabas.broker.access.groups import committed_topics
from barnabas.broker.access.rules import (
    CLUSTER,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    each,
    in_turns,
    itself,
    joined,
    only_with,
    parted,
    whole,
    with_rows,
)
from barnabas.broker.requests import Asked, Reply
from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.turns import Pieces

FIRST_BATCHED_VERSION = 4  # of AddPartitionsToTxn: sent by brokers

end_txn = whole(AclOperation.WRITE, TRANSACTIONAL_ID, "transactional_id")
list_transactions = only_with(
    AclOperation.DESCRIBE, TRANSACTIONAL_ID, "transaction_states", lambda row: row.transactional_id
)
_describe = each(AclOperation.DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", itself)


def init_producer_id(asked: Asked) -> Reply:
    """To write with the transactional id; without one, to write to any topic, or idempotently in the cluster."""
    transactional_id = asked.request.transactional_id
    if transactional_id is not None:
        if asked.may(AclOperation.WRITE, TRANSACTIONAL_ID, transactional_id):
            return asked.handle()
        return asked.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if asked.rights.may_on_any(AclOperation.WRITE, TOPIC) or asked.may(AclOperation.IDEMPOTENT_WRITE, CLUSTER):
        return asked.handle()
    return asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def add_partitions_to_txn(asked: Asked) -> Reply:
    """To write with the transactional id, and to each topic. If one is refused, none is added. Brokers: their right."""
    request = asked.request
    if asked.context.api_version >= FIRST_BATCHED_VERSION:
        if asked.may(AclOperation.CLUSTER_ACTION, CLUSTER):
            return asked.handle()
        answer = asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # also if it names no transaction
        return answer
    if not asked.may(AclOperation.WRITE, TRANSACTIONAL_ID, request.v3_and_below_transactional_id):
        return asked.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    field = "v3_and_below_topics"
    topics = request.v3_and_below_topics
    rest, refused = parted(topics, lambda topic: asked.may(AclOperation.WRITE, TOPIC, topic.name))
    if not refused:
        return asked.handle()
    answer = asked.refuse(ErrorCode.OPERATION_NOT_ATTEMPTED, with_rows(request, field, rest))
    for topic in answer.results_by_topic_v3_and_below:
        for row in topic.results_by_partition:
            if asked.services.metadata_cache.partition(topic.name, row.partition_index) is None:
                row.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return joined(answer, asked.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, with_rows(request, field, refused)))


def _identity_error(asked: Asked) -> ErrorCode:
    """To write with the transactional id, and to read the group."""
    if not asked.may(AclOperation.WRITE, TRANSACTIONAL_ID, asked.request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    may_read = asked.may(AclOperation.READ, GROUP, asked.request.group_id)
    return ErrorCode.NONE if may_read else ErrorCode.GROUP_AUTHORIZATION_FAILED


def add_offsets_to_txn(asked: Asked) -> Reply:
    """To write with the transactional id, and to read the group."""
    error = _identity_error(asked)
    return asked.refuse(error) if error else asked.handle()


def txn_offset_commit(asked: Asked) -> Reply:
    """To write with the transactional id, to read the group, and to read each topic."""
    error = _identity_error(asked)
    return asked.refuse(error) if error else committed_topics(asked)


def describe_transactions(asked: Asked) -> Reply:
    """To describe each transactional id. Topics that may not be described are left out."""

    def told(answer: Any) -> Pieces[Any]:
        for state in answer.transaction_states:
            yield
            state.topics = [row for row in state.topics if asked.rights.may(AclOperation.DESCRIBE, TOPIC, row.topic)]
        return answer

    return in_turns(asked, _describe(asked), told)


def write_txn_markers(asked: Asked) -> Reply:
    """To alter the cluster (an operator's tool), or the right of brokers."""
    if asked.rights.may(AclOperation.ALTER, CLUSTER, CLUSTER_NAME) or asked.may(AclOperation.CLUSTER_ACTION, CLUSTER):
        return asked.handle()
    return asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
