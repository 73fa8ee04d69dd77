"""Groups of very many members: their answers are given a few at a time, and nobody is left without one."""

from typing import Any

import pytest
from barnabas.coordinators.groups.rebalance import LINES_MAX
from barnabas.coordinators.shard import AT_ONCE_MAX
from barnabas.protocol import messages
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, join_request

MEMBERS = 3 * AT_ONCE_MAX


def join(world: GroupWorld, answers: list[Any], member_id: str, metadata: bytes) -> None:
    timeouts = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    reply = world.call("join_group", join_request(member_id=member_id, metadata=metadata, **timeouts), 3)
    if isinstance(reply, Pending):
        reply.then(answers.append)
    else:
        answers.append(reply)


def test_all_members_of_a_large_group_are_answered_in_pieces() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=100)
    first: list[Any] = []
    for _ in range(MEMBERS):
        join(world, first, "", b"one")
    world.clock.advance(1_000)
    assert [answer.error_code for answer in first] == [0] * MEMBERS
    members = {answer.member_id: None for answer in first}
    assert len(members) == MEMBERS
    second: list[Any] = []
    for member_id in members:
        join(world, second, member_id, b"two")
    assert len(second) < MEMBERS  # the others wait for their turn
    world.settle()
    assert {answer.generation_id for answer in second} == {first[0].generation_id + 1}
    assert [len(answer.members) for answer in second if answer.members] == [MEMBERS]
    generation = second[0].generation_id
    assigned: list[Any] = []
    for answer in second:
        row = messages.SyncGroupRequest.SyncGroupRequestAssignment
        request = messages.SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=answer.member_id,
            assignments=[row(member_id=one.member_id, assignment=one.member_id.encode()) for one in answer.members],
        )
        reply = world.call("sync_group", request, 2)
        if isinstance(reply, Pending):
            reply.then(lambda found, member_id=answer.member_id: assigned.append((member_id, found)))
        else:
            assigned.append((answer.member_id, reply))
    world.settle()
    assert {member_id: bytes(found.assignment).decode() for member_id, found in assigned} == dict(zip(members, members))


def test_a_large_group_that_is_lost_is_answered_too() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=10_000)
    answers: list[Any] = []
    for _ in range(MEMBERS):
        join(world, answers, "", b"one")
    world.clock.advance(10)
    world.coordinator.shutdown()
    world.settle()
    assert len(answers) == MEMBERS
    assert {answer.error_code for answer in answers} == {16}


def test_the_log_names_only_the_first_members_of_a_join_phase(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=100)
    answers: list[Any] = []
    with caplog.at_level("INFO"):
        for _ in range(MEMBERS):
            join(world, answers, "", b"one")
        world.clock.advance(1_000)
        assert len([line for line in caplog.messages if " joined" in line]) == LINES_MAX + 1  # the first began it
        assert len([line for line in caplog.messages if "too many for the log" in line]) == 1
        assert any(f"with {MEMBERS} members" in line for line in caplog.messages)
        caplog.clear()
        for answer in answers[:]:
            join(world, answers, answer.member_id, b"two")
        world.settle()
        assert len([line for line in caplog.messages if " rejoined" in line]) == LINES_MAX + 1


def subscription(*topics: str, owned: int | None = None) -> bytes:
    """A subscription of version 1, which may name a partition that the member keeps."""
    rows = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    kept = b"\0\0\0\0"
    if owned is not None:
        kept = b"\0\0\0\1\0\1t\0\0\0\1" + owned.to_bytes(4, "big")
    return b"\0\1" + len(topics).to_bytes(4, "big") + rows + b"\xff\xff\xff\xff" + kept


@pytest.mark.parametrize(
    ("subscriptions", "expected"),
    [
        ([subscription("t", owned=number) for number in range(5)], {"t"}),
        (
            [subscription("t", "u", owned=0), subscription("t"), subscription("t", "v"), subscription("t", "u")],
            set("tuv"),
        ),
        ([subscription(), subscription("t"), subscription()], {"t"}),
        ([subscription("t"), subscription("tt"), subscription("t", "t")], {"t", "tt"}),
        ([subscription("t"), b"\0\1\0\0", subscription("t")], None),
        ([subscription("t"), subscription("t")[:8]], None),
    ],
)
def test_the_topics_of_all_members_are_known(subscriptions: list[bytes], expected: set[str] | None) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=100)
    answers: list[Any] = []
    for metadata in subscriptions:
        join(world, answers, "", metadata)
    world.clock.advance(1_000)
    assert len(answers) == len(subscriptions)
    (shard,) = [shard for shard in world.coordinator.loaded_shards() if "g" in shard.groups]
    assert shard.groups["g"].rebalance.subscribed_topics == expected
