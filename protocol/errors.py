"""Every error code that a response can carry, and whether a client may try again.

A code is an `int16` on the wire. Names change, but codes keep their meaning (only 13 changed, in Kafka 0.8).
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The code of an error, under the name that Kafka 1.0 and later use. `NONE` is success.

    `retriable` and `doc` come from the table below, so that the members stay plain integers.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136

    @property
    def retriable(self) -> bool:
        """Whether the client may send the same request again, perhaps after it has refreshed its metadata."""
        return self in RETRIABLE

    @property
    def doc(self) -> str:
        """What the error means, in one line for people."""
        return DOCS[self]

    @classmethod
    def of(cls, code: int) -> "ErrorCode":
        """The member for a code read from the wire; UNKNOWN_SERVER_ERROR for a code that is not known."""
        return BY_CODE.get(code, cls.UNKNOWN_SERVER_ERROR)


BY_CODE: dict[int, ErrorCode] = {int(code): code for code in ErrorCode}

REFRESH_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""The client should ask for Metadata before it tries again."""

LEADER_MOVES = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""What brokers answer of a partition while its leader moves, or its topic is being made or deleted."""

FIND_COORDINATOR = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The client should look its coordinator up again before it tries again."""

RETRIABLE = (
    REFRESH_METADATA
    | FIND_COORDINATOR
    | {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
"""The same request may succeed later."""

DOCS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "anything not foreseen",
    ErrorCode.NONE: "success",
    ErrorCode.OFFSET_OUT_OF_RANGE: "offset outside the range from log start to log end",
    ErrorCode.CORRUPT_MESSAGE: "CRC or structure of a batch broken",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "topic or partition not known here; no such topic being created yet",
    ErrorCode.INVALID_FETCH_SIZE: "fetch size <= 0 (old)",
    ErrorCode.LEADER_NOT_AVAILABLE: "partition has no live leader; topic just being created",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker is not leader (or, for a follower fetch, not a replica)",
    ErrorCode.REQUEST_TIMED_OUT: "time in the request ran out: acks, CreateTopics, DeleteTopics, ElectLeaders",
    ErrorCode.BROKER_NOT_AVAILABLE: "broker not alive (ControlledShutdown of unknown id, assignments)",
    ErrorCode.REPLICA_NOT_AVAILABLE: "replica not on this broker",
    ErrorCode.MESSAGE_TOO_LARGE: "batch larger than max.message.bytes",
    ErrorCode.STALE_CONTROLLER_EPOCH: "request from an older controller epoch",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "offset metadata string longer than offset.metadata.max.bytes",
    ErrorCode.NETWORK_EXCEPTION: "client side only: connection lost",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "coordinator is reading its partition",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "coordinator topic missing or leaderless, coordinator stopping",
    ErrorCode.NOT_COORDINATOR: "this broker does not lead the coordinator partition",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "illegal name; operation on an internal topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "sum of batches larger than segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "acks=-1 and ISR too small, nothing written",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "acks=-1, ISR too small after writing",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks not -1, 0, 1",
    ErrorCode.ILLEGAL_GENERATION: "generation older/other than the group's",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "member's protocol type or protocols do not fit the group",
    ErrorCode.INVALID_GROUP_ID: "empty or null group id where not allowed",
    ErrorCode.UNKNOWN_MEMBER_ID: "member id not in the group",
    ErrorCode.INVALID_SESSION_TIMEOUT: "session timeout outside group.min/max.session.timeout.ms",
    ErrorCode.REBALANCE_IN_PROGRESS: "rebalance running: rejoin",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "offset commit record larger than allowed by the offsets topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no permission on topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "no permission on group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "no permission on cluster (broker-to-broker or admin)",
    ErrorCode.INVALID_TIMESTAMP: "record timestamp outside limits, or append-time type from a client",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "SASL mechanism not enabled on this listener",
    ErrorCode.ILLEGAL_SASL_STATE: "SASL request out of order",
    ErrorCode.UNSUPPORTED_VERSION: "request version not supported; ApiVersions answer to an unknown version",
    ErrorCode.TOPIC_ALREADY_EXISTS: "topic exists or is marked for deletion",
    ErrorCode.INVALID_PARTITIONS: "partition count <= 0 or not larger than before",
    ErrorCode.INVALID_REPLICATION_FACTOR: "factor <= 0 or larger than live brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "manual assignment malformed",
    ErrorCode.INVALID_CONFIG: "config name or value refused",
    ErrorCode.NOT_CONTROLLER: "not the active controller (ZooKeeper) / not the leader of the metadata quorum",
    ErrorCode.INVALID_REQUEST: "malformed or contradictory request",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "feature needs magic 2 (transactions, headers) or timestamps",
    ErrorCode.POLICY_VIOLATION: "a configured policy refused; DeleteRecords on a compact-only topic",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "sequence gap",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "sequence already appended but too old to answer with its offsets",
    ErrorCode.INVALID_PRODUCER_EPOCH: "producer epoch older than known (see 90)",
    ErrorCode.INVALID_TXN_STATE: "operation not allowed in the transaction's state",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "producer id does not belong to that transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "transaction timeout > transaction.max.timeout.ms or <= 0",
    ErrorCode.CONCURRENT_TRANSACTIONS: "another operation on the transaction is being completed",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "marker from an older transaction coordinator epoch",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "no permission on transactional id",
    ErrorCode.SECURITY_DISABLED: "ACL or token request without an authorizer",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "not executed because of an earlier error in the batch",
    ErrorCode.KAFKA_STORAGE_ERROR: "disk error; log directory offline",
    ErrorCode.LOG_DIR_NOT_FOUND: "directory not configured",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "credentials wrong",
    ErrorCode.UNKNOWN_PRODUCER_ID: "no state for this producer and sequence != 0 (old brokers; newer accept)",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "partition already being moved",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "tokens not enabled",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "token unknown",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "token owner mismatch",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "token request over a token-authenticated or plaintext connection",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "not allowed for this token",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "token past its expiry",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "principal type not supported",
    ErrorCode.NON_EMPTY_GROUP: "group still has members / offsets in use",
    ErrorCode.GROUP_ID_NOT_FOUND: "consumer-group requests)",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "fetch session gone",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "fetch session epoch not the expected one",
    ErrorCode.LISTENER_NOT_FOUND: "leader has no endpoint on the client's listener",
    ErrorCode.TOPIC_DELETION_DISABLED: "delete.topic.enable=false",
    ErrorCode.FENCED_LEADER_EPOCH: "leader epoch of the request older than the broker's",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "leader epoch of the request newer than the broker's",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "zstd with too old a request version",
    ErrorCode.STALE_BROKER_EPOCH: "broker epoch older than registered",
    ErrorCode.OFFSET_NOT_AVAILABLE: "high watermark has not reached the start of this leader epoch",
    ErrorCode.MEMBER_ID_REQUIRED: "join again with the member id returned",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "preferred replica not live or not in ISR",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "group.max.size reached",
    ErrorCode.FENCED_INSTANCE_ID: "another member took the group instance id",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "unclean election: nobody alive",
    ErrorCode.ELECTION_NOT_NEEDED: "leader is already right",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "nothing to cancel or list",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "offset deletion for a topic still subscribed",
    ErrorCode.INVALID_RECORD: "record or batch violates the format rules, compacted topic without key",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "pending transactional offsets, and the reader asked for stable ones",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "controller mutation quota used up",
    ErrorCode.PRODUCER_FENCED: "newer incarnation of the producer exists",
    ErrorCode.RESOURCE_NOT_FOUND: "entity named in the request does not exist (SCRAM users, config resources",
    ErrorCode.DUPLICATE_RESOURCE: "same entity twice",
    ErrorCode.UNACCEPTABLE_CREDENTIAL: "SCRAM credential below the required strength",
    ErrorCode.INCONSISTENT_VOTER_SET: "voters differ (KRaft)",
    ErrorCode.INVALID_UPDATE_VERSION: "partition epoch in AlterPartition is old",
    ErrorCode.FEATURE_UPDATE_FAILED: "feature level change failed",
    ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: "forwarded principal not readable",
    ErrorCode.SNAPSHOT_NOT_FOUND: "KRaft snapshot missing",
    ErrorCode.POSITION_OUT_OF_RANGE: "KRaft snapshot position outside",
    ErrorCode.UNKNOWN_TOPIC_ID: "topic id unknown here (maybe not yet)",
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "another live process registered this broker id",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "broker id not registered with the controller",
    ErrorCode.INCONSISTENT_TOPIC_ID: "topic id differs from the local log's",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "cluster id differs",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "transactional id unknown (DescribeTransactions)",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "session mixes topic names and ids",
    ErrorCode.INELIGIBLE_REPLICA: "new ISR has fenced or shutting-down brokers",
    ErrorCode.NEW_LEADER_ELECTED: "AlterPartition changed the leader",
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "offset only in tiered storage",
    ErrorCode.FENCED_MEMBER_EPOCH: "member epoch no longer valid: rejoin with epoch 0",
    ErrorCode.UNRELEASED_INSTANCE_ID: "static member's old incarnation not yet released",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "server-side assignor name unknown",
    ErrorCode.STALE_MEMBER_EPOCH: "member epoch not current (OffsetCommit/OffsetFetch)",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: "request to wrong kind of endpoint (broker/controller)",
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "endpoint type unknown",
    ErrorCode.UNKNOWN_CONTROLLER_ID: "controller id unknown",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "client metrics subscription id outdated",
    ErrorCode.TELEMETRY_TOO_LARGE: "telemetry above telemetry.max.bytes",
    ErrorCode.INVALID_REGISTRATION: "KRaft registration inconsistent",
    ErrorCode.TRANSACTION_ABORTABLE: "producer must abort and may go on",
    ErrorCode.INVALID_RECORD_STATE: "share: record not acquired by this member / wrong state",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "share session gone",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "share session epoch wrong",
    ErrorCode.FENCED_STATE_EPOCH: "share partition state epoch old",
    ErrorCode.INVALID_VOTER_KEY: "KRaft voter key mismatch",
    ErrorCode.DUPLICATE_VOTER: "KRaft voter exists",
    ErrorCode.VOTER_NOT_FOUND: "KRaft voter unknown",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "subscription pattern does not compile (RE2)",
    ErrorCode.REBOOTSTRAP_REQUIRED: "client must start again from bootstrap servers",
    ErrorCode.STREAMS_INVALID_TOPOLOGY: "streams group topology invalid",
    ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "streams topology epoch not positive / wrong",
    ErrorCode.STREAMS_TOPOLOGY_FENCED: "streams topology epoch older than the group's",
    ErrorCode.SHARE_SESSION_LIMIT_REACHED: "no more share sessions",
    ErrorCode.GROUP_DELETION_FAILED: "group deletion failed, see message",
    ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: "streams topology description refused",
    ErrorCode.CONTROLLER_ID_NOT_REGISTERED: "controller id not registered",
}


class ProtocolError(Exception):
    """The bytes are no valid message. The connection that they came from is closed."""


class UnsupportedVersionError(Exception):
    """The version of a message does not exist, or it cannot express a value."""


class CorruptBatchError(ProtocolError):
    """A record batch is broken: its header, checksum, compression or records. `error` is the code to answer with."""

    def __init__(self, message: str, error: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(message)
        self.error = error
