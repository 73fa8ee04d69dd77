"""What a client of a coordinator is told when a record could not be appended. Other errors are passed on."""

from collections.abc import Mapping
from typing import Final

from barnabas.protocol.errors import ErrorCode

Errors = Mapping[ErrorCode, ErrorCode]

OF_PARTITION: Final[Errors] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
MAY_PASS: Final = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)  # the next append may succeed

_OF_COMMIT: Final[Errors] = {
    **OF_PARTITION,
    **dict.fromkeys(TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_OF_GROUP: Final[Errors] = {
    **OF_PARTITION,
    **dict.fromkeys(TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
}
_OF_TRANSACTION: Final[Errors] = {
    **OF_PARTITION,
    **dict.fromkeys(TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def commit_error(error: ErrorCode) -> ErrorCode:
    """For a client whose offsets could not be appended."""
    return _OF_COMMIT.get(error, error)


def group_error(error: ErrorCode) -> ErrorCode:
    """For members whose group could not be appended."""
    return _OF_GROUP.get(error, error)


def transaction_error(error: ErrorCode) -> ErrorCode:
    """For a producer whose transaction could not be appended."""
    return _OF_TRANSACTION.get(error, error)


consumer_error = transaction_error  # for members of the consumer protocol (KIP-848), whose group could not be appended
