"""Which assignor a consumer group takes when members name several, as Apache Kafka 4.3.1 does."""

import pytest
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import Subscription
from barnabas.coordinators.groups.consumer.records import Kind, Record


@pytest.mark.parametrize(
    ("named", "asker", "expected"),
    [
        (["range"], None, "range"),
        (["range", "uniform"], "range", "range"),
        (["range", "uniform"], "uniform", "uniform"),
        (["range", "uniform"], None, "uniform"),
        (["range", "range", "uniform", "uniform"], "range", "uniform"),  # another one names it, too
        (["range", "range", "uniform"], "uniform", "range"),
        (["com.example.Mine", "com.example.Mine", "range"], None, "range"),  # a class of the Kafka before
        (["com.example.Mine"], "com.example.Mine", "uniform"),
    ],
)
def test_the_preferred_assignor(named: list[str], asker: str | None, expected: str) -> None:
    group = ConsumerGroup("g")
    group.apply(
        Record(Kind.MEMBER, f"member-{number}", Subscription(assignor=name)) for number, name in enumerate(named)
    )
    assert group.preferred_assignor("uniform", asker) == expected
