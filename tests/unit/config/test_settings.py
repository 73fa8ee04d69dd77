"""Text to values and back; reasons in Kafka's words (asked of Kafka 4.1.0)."""

# ruff: noqa: E501

import math

import pytest
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.settings import ConfigError, Type, parse, read_table, render
from barnabas.config.topic import TOPIC_SETTINGS, validate

REFUSED = [
    ("segment.bytes", "5", "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576"),
    ("segment.bytes", "99999999999", "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT"),
    ("segment.bytes", "1.5", "Invalid value 1.5 for configuration segment.bytes: Not a number of type INT"),
    ("segment.bytes", "2_000_000", "Invalid value 2_000_000 for configuration segment.bytes: Not a number of type INT"),
    ("segment.bytes", "", "Invalid value  for configuration segment.bytes: Not a number of type INT"),
    ("retention.ms", "long", "Invalid value long for configuration retention.ms: Not a number of type LONG"),
    ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    ("min.cleanable.dirty.ratio", "2", "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"),
    ("min.cleanable.dirty.ratio", "x", "Invalid value x for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE"),
    ("compression.type", "GZIP", "Invalid value GZIP for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("cleanup.policy", "nope", "Invalid value nope for configuration cleanup.policy: String must be one of: compact, delete"),
    ("cleanup.policy", "delete,,compact", "Configuration 'cleanup.policy' values must not be empty."),
    ("compression.gzip.level", "0", "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1"),
    ("compression.gzip.level", "10", "Invalid value 10 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1"),
    ("compression.lz4.level", "18", "Invalid value 18 for configuration compression.lz4.level: Value must be no more than 17"),
    ("preallocate", "yes", "Invalid value yes for configuration preallocate: Expected value to be either true or false"),
    (
        "leader.replication.throttled.replicas",
        "1:2,*",
        "Invalid value [1:2, *] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."),
    ("no.such", "1", "Unknown topic config name: no.such"),
    ("message.format.version", "3.0", "Unknown topic config name: message.format.version"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "reason"), REFUSED)
def test_bad_topic_settings_are_refused_in_kafkas_words(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate({name: text})
    assert str(error.value) == reason
    assert error.value.key == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment.bytes", " 2000000 "),
        ("segment.bytes", "+2000000"),
        ("segment.bytes", "1048576"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete, compact"),
        ("compression.gzip.level", "-1"),
        ("compression.gzip.level", "1"),
        ("compression.gzip.level", "9"),
        ("preallocate", "TRUE"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", ""),
        ("leader.replication.throttled.replicas", "1:2,3:4"),
        ("retention.bytes", "-5"),
    ],
)
def test_good_topic_settings_are_taken(name: str, text: str) -> None:
    validate({name: text})


def test_compaction_lags_must_be_in_order() -> None:
    validate({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError) as error:
        validate({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    assert str(error.value) == ("conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)")


@pytest.mark.parametrize("bound", [2**31 - 1, -(2**31)])
def test_numbers_end_where_their_type_ends(bound: int) -> None:
    assert parse("k", str(bound), Type.INT) == bound
    with pytest.raises(ConfigError):
        parse("k", str(bound + (1 if bound > 0 else -1)), Type.INT)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (-5, "-5"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (12345678.5, "1.23456785E7"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (-2e-10, "-2.0E-10"),
        (math.inf, "Infinity"),
    ],
)
def test_values_are_written_as_java_writes_them(value: object, text: str | None) -> None:
    assert render(value) == text  # type: ignore[arg-type]


def test_every_default_passes_its_own_check_and_reads_back() -> None:
    for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        if setting.default is not None:
            assert render(setting.parse(setting.default)) == setting.default, setting.name


def test_a_setting_may_not_stand_twice() -> None:
    with pytest.raises(AssertionError):
        read_table("a | INT | 1 | - | - | -\na | INT | 1 | - | - | -")


def test_what_a_setting_does_is_one_sentence() -> None:
    for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        assert setting.doc.endswith("."), setting.name
        assert len(setting.doc) < 120, setting.name
