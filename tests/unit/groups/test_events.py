"""The rings of events: their bounds, and how refused requests are counted."""

import tracemalloc

import pytest
from barnabas.coordinators.groups.effects import Effects
from barnabas.coordinators.groups.events import (
    EVENTS_MAX,
    EVENTS_OF_GROUP_MAX,
    Event,
    EventBook,
    Identity,
    Kind,
    cut,
    identity,
)
from barnabas.coordinators.groups.members import Member
from group_world import GroupWorld


def events(count: int, start: int = 0) -> list[Event]:
    who = Identity("c-1", None, "c", "10.0.0.1")
    return [Event(Kind.LEFT, at, float(at), who, {"reason": ""}) for at in range(start, start + count)]


@pytest.mark.parametrize("count", [EVENTS_OF_GROUP_MAX - 1, EVENTS_OF_GROUP_MAX, EVENTS_OF_GROUP_MAX + 1])
def test_a_group_keeps_its_newest_events(count: int) -> None:
    book = EventBook()
    book.note("g", events(count))
    kept = book.of_group("g")
    assert len(kept) == book.count == min(count, EVENTS_OF_GROUP_MAX)
    assert kept[-1].at_ms == count - 1


def test_all_groups_together_are_bounded_and_the_quiet_ones_go_first() -> None:
    book = EventBook(events_max=10)
    book.note("quiet", events(4))
    book.note("busy", events(4))
    book.note("quiet", events(1, 4))
    book.note("third", events(5))
    assert [len(book.of_group(name)) for name in ("busy", "quiet", "third")] == [0, 5, 5]
    assert book.count == 10
    book.forget("quiet")
    book.forget("quiet")
    assert book.count == 5


def test_twenty_thousand_groups_that_rebalance_all_the_time_take_bounded_memory() -> None:
    book = EventBook()
    who = Member("client-" + "1" * 36, None, "client", "/10.0.0.1", 1000, 1000, [])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for turn in range(3):
        for number in range(20_000):
            effects = Effects(turn, float(turn))
            effects.note(Kind.JOINED, who, reason="", protocols=["range"], topics=["orders"])
            effects.note(Kind.REBALANCE, generation=turn, cause=f"member {number} joined", members=1)
            effects.note(Kind.GENERATION, generation=turn, members=1, protocol="range", leader=identity(who))
            book.note(f"group-{number}", effects.events)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert book.count == EVENTS_MAX
    assert used < 50 * 1024 * 1024, f"{used:,} bytes"


def test_refused_requests_of_a_client_are_one_event_until_the_next_rebalance() -> None:
    book = EventBook()
    for at in range(50):
        book.refused("g", "commit", "UNKNOWN_MEMBER_ID", f"c-{at}", ("c", "/h"), (at, float(at)))
    book.refused("g", "commit", "ILLEGAL_GENERATION", "c-1", ("c", "/h"), (50, 50.0))
    book.refused("g", "commit", "UNKNOWN_MEMBER_ID", "c-1", ("d", "/h"), (51, 51.0))
    assert [(one.details["count"], one.details["last_ms"]) for one in book.of_group("g")] == [
        (50, 49),
        (1, 50),
        (1, 51),
    ]
    effects = Effects(60, 60.0)
    effects.note(Kind.REBALANCE, generation=1, cause="", members=1)
    book.note("g", effects.events)
    book.refused("g", "commit", "UNKNOWN_MEMBER_ID", "c-1", ("c", "/h"), (61, 61.0))
    assert [one.kind for one in book.of_group("g")][-2:] == [Kind.REBALANCE, Kind.REFUSED]


def test_texts_of_clients_are_cut() -> None:
    assert cut("x" * 300) == "x" * 255
    assert cut("short") == "short"


def test_heartbeats_and_commits_note_nothing() -> None:
    world = GroupWorld()
    for _ in range(5):
        world.commit("g", {("t", 0): 1})
    assert world.coordinator.events.count == 0
