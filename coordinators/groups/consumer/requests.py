"""What ConsumerGroupHeartbeat may not say: Kafka's checks of a request alone, and its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.coordinators.groups.consumer.states import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple

if TYPE_CHECKING:
    from barnabas.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

OWN_MEMBER_ID_VERSION = 1  # from this version on the client makes the member id


class Refusal(NamedTuple):
    error: ErrorCode
    message: str | None = None

    def response(self) -> ConsumerGroupHeartbeatResponse:
        """The answer of a heartbeat."""
        return messages.ConsumerGroupHeartbeatResponse(error_code=self.error, error_message=self.message)


def invalid(message: str) -> Refusal:
    """INVALID_REQUEST."""
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> Refusal | None:
    """What is wrong with a request, whatever the group is; None: nothing."""
    if _is_blank(request.member_id) and (version >= OWN_MEMBER_ID_VERSION or request.member_epoch != JOIN_EPOCH):
        return invalid("MemberId can't be empty.")
    for value, name in (
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and _is_blank(value):
            return invalid(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        refusal = _check_join(request)
        if refusal is not None:
            return refusal
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return invalid("InstanceId can't be null.")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        return invalid("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        supported = ", ".join(assignors)
        message = f"ServerAssignor {assignor} is not supported. Supported assignors: {supported}."
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    return None


def _is_blank(text: str) -> bool:
    """Whether there is nothing but spaces and control characters: that is as good as empty to Kafka."""
    return all(character <= " " for character in text)


def _check_join(request: ConsumerGroupHeartbeatRequest) -> Refusal | None:
    if request.rebalance_timeout_ms == -1:
        return invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        return invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    return None
