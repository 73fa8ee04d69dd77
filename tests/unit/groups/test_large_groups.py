"""Groups of very many members: their answers are given a few at a time, and nobody is left without one."""

from typing import Any

from barnabas.groups.runtime import AT_ONCE_MAX
from barnabas.protocol import messages
from barnabas.runtime.pending import Pending
from group_world import GroupWorld

MEMBERS = 3 * AT_ONCE_MAX


def join(world: GroupWorld, answers: list[Any], member_id: str, metadata: bytes) -> None:
    protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    request = messages.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[protocol],
    )
    reply = world.call("join_group", request, 3)
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
