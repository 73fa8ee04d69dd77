"""Group and client metrics settings; reasons are those of Kafka 4.1.0."""

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.config.entities import validate_client_metrics, validate_group
from barnabas.config.settings import ConfigError
from barnabas.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"consumer.session.timeout.ms": "1"},
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            {"share.session.timeout.ms": "60001"},
            "share.session.timeout.ms must be less than or equal to group.share.max.session.timeout.ms",
        ),
        (
            {"streams.num.standby.replicas": "3"},
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (
            {"share.isolation.level": "x"},
            "Invalid value x for configuration share.isolation.level: String must be one of: "
            "read_committed, read_uncommitted",
        ),
        ({"no.such": "1"}, "Unknown group config name: no.such"),
    ],
)
def test_bad_group_settings(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_group(values, BrokerConfig.of({}))
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    "text", ["x", "by_duration", "by_duration:", "by_duration:x", "by_duration:P", "by_duration:PT"]
)
def test_bad_resets(text: str) -> None:
    with pytest.raises(ConfigError, match="must be either"):
        validate_group({"share.auto.offset.reset": text}, BrokerConfig.of({}))


@pytest.mark.parametrize(
    "text", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H30.5S", "by_duration:-PT5M"]
)
def test_good_resets(text: str) -> None:
    validate_group({"share.auto.offset.reset": text}, BrokerConfig.of({}))


def test_a_session_outlasts_a_heartbeat() -> None:
    config = BrokerConfig.of({"group.consumer.min.session.timeout.ms": "1000"})
    values = {"consumer.session.timeout.ms": "5000"}
    with pytest.raises(ConfigError, match=r"must be greater than consumer\.heartbeat"):
        validate_group(values, config)
    validate_group({"consumer.session.timeout.ms": "5001"}, config)


@pytest.mark.parametrize(
    ("values", "reason", "error"),
    [
        ({"x": "1"}, "Unknown client metrics configuration: x", ErrorCode.INVALID_REQUEST),
        (
            {"interval.ms": "99"},
            "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            ErrorCode.INVALID_REQUEST,
        ),
        (
            {"interval.ms": "x"},
            "Invalid value x for configuration interval.ms: Not a number of type INT",
            ErrorCode.INVALID_CONFIG,
        ),
        ({"match": "foo"}, "Illegal client matching pattern: foo", ErrorCode.INVALID_CONFIG),
        ({"match": "foo=bar"}, "Illegal client matching pattern: foo=bar", ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=["}, "Illegal client matching pattern: client_id=[", ErrorCode.INVALID_CONFIG),
    ],
)
def test_bad_client_metrics(values: dict[str, str], reason: str, error: ErrorCode) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_client_metrics(values)
    assert (str(refused.value), refused.value.error) == (reason, error)


def test_good_client_metrics() -> None:
    validate_client_metrics({"interval.ms": "100", "match": "client_id=a.*, client_software_name=x", "metrics": "a,b"})
