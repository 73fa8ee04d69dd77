"""Brokers that a test puts back together come together at each step, or are told that one has gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from barnabas.runtime import meeting
from barnabas.runtime.meeting import Meeting, MeetingError

ALL = (0, 1, 4)


async def reach(each: Meeting, *steps: Any) -> list[Any]:
    """What one hears at each step; the host acts by counting what has been said."""
    return [await each.reach(said, lambda heard: len("".join(heard.values()))) for said in steps]


async def refused(each: Meeting) -> str:
    with pytest.raises(MeetingError) as error:
        await each.reach()
    return str(error.value)


def meetings(folder: Path, about: str = "restore") -> list[Meeting]:
    return [Meeting(str(folder / "tree.meeting"), about, number, ALL) for number in ALL]


def test_all_come_that_far_and_hear_what_came_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "tree.meeting").touch()  # of a process that was killed
        host, *guests = all_of_them = meetings(tmp_path)
        assert [each.is_host for each in all_of_them] == [True, False, False]
        late = asyncio.ensure_future(reach(guests[0], "a", "bc"))
        heard = await asyncio.gather(reach(guests[1], "", "x"), reach(host, "b", ""), late)
        first, second = ({0: "b", 1: "a", 4: ""}, 2), ({0: "", 1: "bc", 4: "x"}, 3)
        assert heard == [[first, second]] * 3
        for each in all_of_them:
            each.close()
        assert "over" in await refused(host)
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_a_broker_alone_needs_no_socket(tmp_path: Path) -> None:
    alone = Meeting(str(tmp_path / "nowhere" / "tree.meeting"), "restore", 7, [7])
    assert asyncio.run(alone.reach("a", len)) == ({7: "a"}, 1)


@pytest.mark.parametrize("number", [0, 1])
def test_all_are_told_that_one_has_gone(tmp_path: Path, number: int) -> None:
    async def run() -> None:
        all_of_them = meetings(tmp_path)
        await asyncio.gather(*(each.reach() for each in all_of_them))
        gone = all_of_them.pop(number)
        waiting = [asyncio.ensure_future(refused(each)) for each in all_of_them]
        await asyncio.sleep(0)
        gone.close()
        assert all("has gone" in each for each in await asyncio.gather(*waiting))

    asyncio.run(run())


def test_who_was_told_something_else_does_not_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MET_WITHIN_S", 0.3)

    async def run() -> None:
        host, guest, _ = meetings(tmp_path)
        other = meetings(tmp_path, "snapshot")[2]
        host_says, guest_says, other_says = await asyncio.gather(refused(host), refused(guest), refused(other))
        assert "no command has come to broker 4" in host_says
        assert "broker 0 has gone" in guest_says
        assert "broker 0 does not answer" in other_says

    asyncio.run(run())


def test_who_is_turned_away_again_and_again_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 2026-11-30 one of twenty tried for ever: its time was over just when it was turned away."""
    monkeypatch.setattr(meeting, "MET_WITHIN_S", 0.02)
    monkeypatch.setattr(meeting, "TRIED_EVERY_S", 0)

    async def run() -> None:
        for _ in range(60):
            host = meetings(tmp_path)[0]
            other = meetings(tmp_path, "snapshot")[2]
            async with asyncio.timeout(200):
                await asyncio.gather(refused(host), refused(other))

    asyncio.run(run())


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeetingError, match="too long"):
        Meeting(f"{tmp_path}/{'x' * 100}", "restore", 0, [0, 1])
