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


@pytest.mark.parametrize(
    ("given", "port", "node_id", "advertised"),
    [
        ({}, None, "1", "PLAINTEXT://localhost:9092"),
        ({}, 19092, "1", "PLAINTEXT://localhost:19092"),
        ({}, 0, "1", ""),
        ({"listeners": "OUTSIDE://:9093"}, None, "1", None),
        ({"advertised.listeners": "PLAINTEXT://kafka:9092"}, 19092, "1", "PLAINTEXT://localhost:9092"),  # --set wins
        ({"broker.id": "5"}, None, None, "PLAINTEXT://localhost:9092"),
    ],
)
def test_what_is_said_is_told_to_clients(
    given: dict[str, str], port: int | None, node_id: str | None, advertised: str | None
) -> None:
    settings = profiles.beside(profiles.profile("docker"), given, port).settings
    assert settings.get("node.id") == node_id
    assert settings.get("advertised.listeners") == advertised
