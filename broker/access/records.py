"""Rights on records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers."""

from typing import Any

from barnabas.broker.access.rules import CLUSTER, MESSAGES, TOPIC, TRANSACTIONAL_ID, divided, each
from barnabas.broker.requests import CLOSE, Asked, Reply
from barnabas.cluster.security.acls import CLUSTER_NAME, AclOperation
from barnabas.protocol.batch_layout import ATTRIBUTES_AT, TRANSACTIONAL
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.message import Message

LOW_ATTRIBUTES_AT = ATTRIBUTES_AT + 1

list_offsets = each(AclOperation.DESCRIBE, TOPIC, "topics")
delete_records = each(AclOperation.DELETE, TOPIC, "topics")
describe_producers = each(AclOperation.READ, TOPIC, "topics", message=MESSAGES[ErrorCode.TOPIC_AUTHORIZATION_FAILED])


def produce(asked: Asked) -> Reply:
    """To write to each topic; for batches of a transaction, to write with its transactional id, too."""
    request, topic_name = asked.request, asked.services.metadata_cache.topic_name
    if _is_transactional(request) and not (
        request.transactional_id is not None
        and asked.may(AclOperation.WRITE, TRANSACTIONAL_ID, request.transactional_id)
    ):
        return asked.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) if request.acks else CLOSE
    may = asked.rights.may
    for topic in request.topic_data:
        name = topic.name or topic_name(topic.topic_id)
        if name is not None and not may(AclOperation.WRITE, TOPIC, name):
            break
    else:  # nearly always
        return asked.handle()

    def is_allowed(topic: Any) -> bool:
        name = topic.name or topic_name(topic.topic_id)
        return name is None or asked.may(AclOperation.WRITE, TOPIC, name)

    reply = divided(asked, "topic_data", is_allowed, TOPIC)
    return reply if request.acks or not isinstance(reply, Message) else CLOSE


def _is_transactional(request: Any) -> bool:
    """Whether any batch is of a transaction."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is not None and len(records) > LOW_ATTRIBUTES_AT and records[LOW_ATTRIBUTES_AT] & TRANSACTIONAL:
                return True
    return False


def fetch(asked: Asked) -> Reply:
    """A replica needs the right of brokers. Of a consumer the handler asks for each topic of its session."""
    request = asked.request
    if request.replica_id < 0 and request.replica_state.replica_id < 0:
        return asked.handle()
    if asked.may(AclOperation.CLUSTER_ACTION, CLUSTER):
        asked.context.rights = None  # a follower reads every topic
        return asked.handle()
    answer = asked.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    answer.error_code = ErrorCode.NONE if answer.responses else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return answer


def offset_for_leader_epoch(asked: Asked) -> Reply:
    """The right of brokers, or to describe each topic."""
    if asked.rights.may(AclOperation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME):
        return asked.handle()
    return divided(asked, "topics", lambda topic: asked.may(AclOperation.DESCRIBE, TOPIC, topic.topic), TOPIC)
