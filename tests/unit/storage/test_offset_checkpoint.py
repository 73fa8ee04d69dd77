"""Offset checkpoints of many logs are written in pieces, and what was collected last is what stays."""

import pytest
from barnabas.runtime.turns import Pieces, chunks
from barnabas.storage import checkpoints
from barnabas.storage.offset_checkpoint import OffsetCheckpoint
from simulator.env import sim_env

PATH = "/offsets"
MANY = {("a-topic", partition): partition for partition in range(10_000)}


class World:
    """A checkpoint of `offsets` on a simulated disk."""

    def __init__(self) -> None:
        self.env = sim_env(0)
        self.offsets = dict(MANY)
        self.is_in_use = True
        self.checkpoint = OffsetCheckpoint(self.env, PATH, self.collect, lambda: self.is_in_use)

    def collect(self) -> Pieces[dict[tuple[str, int], int]]:
        found = {}
        for some in chunks(list(self.offsets), 100):
            found |= {key: self.offsets[key] for key in some}
            yield
        return found

    def raise_all(self) -> None:
        self.offsets = {key: offset + 1 for key, offset in self.offsets.items()}

    def in_file(self) -> dict[tuple[str, int], int]:
        return checkpoints.read_offsets(self.env.disk, PATH)


@pytest.fixture
def world() -> World:
    return World()


def test_many_logs_are_asked_and_many_lines_made_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []
    real = checkpoints.offsets_texts

    def seen(*asked):  # type: ignore[no-untyped-def]
        for piece in real(*asked):
            pieces.append(piece)
            yield piece

    monkeypatch.setattr(checkpoints, "offsets_texts", seen)
    ended = world.checkpoint.write_later()
    assert (pieces, ended.done) == ([], False)
    world.env.clock.advance(1_000)
    assert ended.done
    assert max(piece.count("\n") for piece in pieces) == 1_000
    assert world.in_file() == world.checkpoint.written == MANY


def test_few_lines_are_written_at_once(world: World) -> None:
    world.offsets = {("t", 0): 5}
    world.checkpoint.write_later()
    assert checkpoints.read_offsets(world.env.disk, f"{PATH}.tmp") == {("t", 0): 5}


def test_the_newest_stays(world: World) -> None:
    first = world.checkpoint.write_later()
    world.raise_all()
    second = world.checkpoint.write_later()
    world.env.clock.advance(1_000)
    assert first.done
    assert second.done
    assert world.in_file() == world.checkpoint.written == world.offsets


def test_what_is_written_at_once_is_not_overtaken(world: World) -> None:
    older = world.checkpoint.write_later()
    world.raise_all()
    assert world.checkpoint.write_now() is None
    assert older.done
    world.env.clock.advance(1_000)
    assert world.in_file() == world.checkpoint.written == world.offsets


def test_nothing_is_written_into_a_directory_that_was_given_back(world: World) -> None:
    ended = world.checkpoint.write_later()
    world.is_in_use = False
    world.env.clock.advance(1_000)
    assert ended.done
    assert world.env.disk.list_directory("/") == []


def test_what_has_not_changed_is_not_written_again(world: World) -> None:
    world.checkpoint.write_now()
    world.env.disk.remove(PATH)
    ended = world.checkpoint.write_later()
    world.env.clock.advance(1_000)
    assert ended.done
    assert not world.env.disk.exists(PATH)
