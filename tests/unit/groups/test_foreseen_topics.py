"""What a group is going to read is computed in pieces, and counts only if nothing has changed meanwhile."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.coordinators.groups.consumer import heartbeats
from barnabas.coordinators.groups.consumer.change import Change
from barnabas.coordinators.groups.consumer.group import ConsumerGroup
from barnabas.coordinators.groups.consumer.member import Subscription
from barnabas.coordinators.groups.consumer.records import Kind, Record, ResolvedRegex, encoded
from barnabas.coordinators.groups.consumer.topics import metadata_hash

MEANT = {"a.*": {"a1", "a2"}, "b.*": {"b1"}, "c.*": {"a2", "c1"}}


class Topics(SimpleNamespace):
    """Topics with hashes that change."""

    changes = 1

    def topic_hash(self, topic: str) -> int:
        return hash((topic, self.changes))


def subscribed(names: tuple[str, ...] = (), regex: str = "") -> Subscription:
    return Subscription(None, None, "client", "host", names, regex, 1000, None, None)


def nothing(group: ConsumerGroup, topics: Topics) -> None:
    pass


def a_regex_is_given_up(group: ConsumerGroup, topics: Topics) -> None:
    group.apply([Record(Kind.MEMBER, "m-b.*", None)])


def a_regex_comes(group: ConsumerGroup, topics: Topics) -> None:
    group.apply([Record(Kind.MEMBER, "new", subscribed(regex="d.*"))])


def names_come(group: ConsumerGroup, topics: Topics) -> None:
    group.apply([Record(Kind.MEMBER, "new", subscribed(("z1", "a1")))])


def names_go(group: ConsumerGroup, topics: Topics) -> None:
    group.apply([Record(Kind.MEMBER, "named", subscribed(("n2",)))])


def another_regex_is_resolved(group: ConsumerGroup, topics: Topics) -> None:
    group.apply([Record(Kind.REGEX, "a.*", ResolvedRegex(frozenset({"a9"}), 1, 0))])


def topics_change(group: ConsumerGroup, topics: Topics) -> None:
    topics.changes = 2


@pytest.mark.parametrize(
    "meanwhile",
    [
        nothing,
        a_regex_is_given_up,
        a_regex_comes,
        names_come,
        names_go,
        another_regex_is_resolved,
        topics_change,
    ],
)
@pytest.mark.parametrize("are_named", [False, True])
@pytest.mark.parametrize("before_piece", range(5))
def test_the_topics_of_all_are_those_that_a_look_finds(
    meanwhile: Callable[[ConsumerGroup, Topics], None], are_named: bool, before_piece: int
) -> None:
    group, topics = ConsumerGroup("group"), Topics()
    group.apply(Record(Kind.MEMBER, f"m-{regex}", subscribed(regex=regex)) for regex in MEANT)
    if are_named:
        group.apply([Record(Kind.MEMBER, "named", subscribed(("n1", "n2")))])
    known: Any = topics
    resolved = {regex: ResolvedRegex(frozenset(found), 1, 0) for regex, found in MEANT.items()}
    pieces = heartbeats.foresee(group, resolved, known)
    for piece in range(9):
        if piece == before_piece:
            meanwhile(group, topics)
        try:
            next(pieces)
        except StopIteration as end:
            foreseen = end.value
            break
    with_bytes = {
        regex: (value, encoded("group", Record(Kind.REGEX, regex, value))) for regex, value in resolved.items()
    }
    heartbeats.resolve(Change(group), with_bytes, foreseen, known)
    found = group.subscribed_topics()
    group.apply([Record(Kind.REGEX, "x.*", None)])  # so that it looks again
    assert group.subscribed_topics() == found
    assert group.of_group.metadata_hash == metadata_hash(known, found)
    assert ("b1" in found) == ("m-b.*" in group.members)
