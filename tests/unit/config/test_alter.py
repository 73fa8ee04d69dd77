"""Incremental and whole changes; reasons are those of Kafka 4.1.0."""

# ruff: noqa: E501

import pytest
from barnabas.config.alter import ConfigOperation, altered, replaced
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError
from barnabas.config.topic import TOPIC_SETTINGS
from barnabas.protocol.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
POLICY = "cleanup.policy"


@pytest.mark.parametrize(
    ("current", "operations", "after"),
    [
        ({}, [("retention.ms", SET, "1")], {"retention.ms": "1"}),
        ({"retention.ms": "1"}, [("retention.ms", SET, "2")], {"retention.ms": "2"}),
        ({"retention.ms": "1", "flush.ms": "3"}, [("retention.ms", DELETE, None)], {"flush.ms": "3"}),
        ({}, [("retention.ms", DELETE, None)], {}),
        ({}, [("retention.ms", DELETE, "ignored")], {}),
        ({}, [(POLICY, APPEND, "compact")], {POLICY: "delete,compact"}),
        ({}, [(POLICY, APPEND, "delete")], {POLICY: "delete"}),
        ({POLICY: "compact"}, [(POLICY, APPEND, "compact,delete,delete")], {POLICY: "compact,delete"}),
        ({POLICY: ""}, [(POLICY, APPEND, "compact")], {POLICY: "compact"}),
        ({}, [(POLICY, APPEND, "compact,,")], {POLICY: "delete,compact"}),
        ({}, [(POLICY, APPEND, ",,")], {POLICY: "delete"}),
        ({}, [(POLICY, APPEND, "")], {POLICY: "delete,"}),
        ({}, [(POLICY, SUBTRACT, "")], {POLICY: "delete"}),
        ({"leader.replication.throttled.replicas": "0:1,"}, [("leader.replication.throttled.replicas", APPEND, ",1:2")], {"leader.replication.throttled.replicas": "0:1,,1:2"}),
        ({POLICY: "delete,compact"}, [(POLICY, SUBTRACT, "delete")], {POLICY: "compact"}),
        ({}, [(POLICY, SUBTRACT, "delete")], {POLICY: ""}),
        ({POLICY: "compact"}, [(POLICY, SUBTRACT, "delete")], {POLICY: "compact"}),
        ({}, [("leader.replication.throttled.replicas", APPEND, "0:1,1:2")], {"leader.replication.throttled.replicas": "0:1,1:2"}),
    ],
)  # fmt: skip
def test_incremental(
    current: dict[str, str], operations: list[tuple[str, int, str | None]], after: dict[str, str]
) -> None:
    before = dict(current)
    assert altered(TOPIC_SETTINGS, current, operations) == after
    assert current == before


@pytest.mark.parametrize(
    ("operations", "reason", "error"),
    [
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], "Error due to duplicate config keys", ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, None)], "Null value not supported for : retention.ms", ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, None), (POLICY, APPEND, None)], "Null value not supported for : retention.ms,cleanup.policy", ErrorCode.INVALID_REQUEST),
        ([("retention.ms", APPEND, "1")], "Can't APPEND to key retention.ms because its type is not LIST.", ErrorCode.INVALID_CONFIG),
        ([("no.such", SUBTRACT, "1")], "Can't SUBTRACT to key no.such because its type is not LIST.", ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 9, "1")], "", ErrorCode.UNKNOWN_SERVER_ERROR),
        ([("retention.ms", -1, "1")], "", ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)  # fmt: skip
def test_incremental_refusals(operations: list[tuple[str, int, str | None]], reason: str, error: ErrorCode) -> None:
    with pytest.raises(ConfigError) as refused:
        altered(TOPIC_SETTINGS, {}, operations)
    assert (str(refused.value), refused.value.error) == (reason, error)


def test_the_refusal_of_a_broker_setting_has_its_own_words() -> None:
    with pytest.raises(ConfigError) as refused:
        altered(BROKER_SETTINGS, {}, [("num.io.threads", APPEND, "1")])
    assert str(refused.value) == "Config value append is not allowed for config key: num.io.threads"
    assert altered(BROKER_SETTINGS, {}, [("log.cleanup.policy", SUBTRACT, "compact,delete")]) == {
        "log.cleanup.policy": ""
    }


def test_whole_replacement() -> None:
    assert replaced([("a", "1"), ("b", "")]) == {"a": "1", "b": ""}
    assert replaced([]) == {}
    with pytest.raises(ConfigError) as twice:
        replaced([("a", "1"), ("a", "2")])
    assert str(twice.value) == "Error due to duplicate config keys"
    with pytest.raises(ConfigError) as null:
        replaced([("retention.ms", None)])
    assert (str(null.value), null.value.error) == (
        "Null value not supported for : retention.ms",
        ErrorCode.INVALID_REQUEST,
    )
