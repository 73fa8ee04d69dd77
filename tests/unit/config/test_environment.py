"""Variables of Kafka's images as settings."""

import pytest
from barnabas.config import profiles


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B", "a-b"),
        ("KAFKA_LISTENER_NAME_CLIENT_SASL_ENABLED_MECHANISMS", "listener.name.client.sasl.enabled.mechanisms"),
        ("KAFKA_HEAP_OPTS", None),
        ("NUM_PARTITIONS", None),
    ],
)
def test_a_variable_is_a_setting(variable: str, name: str | None) -> None:
    assert profiles.of_environment({variable: "x"}) == ({} if name is None else {name: "x"})
