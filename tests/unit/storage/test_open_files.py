"""The pool of open files, and the ranges that keep files open."""

import errno
from collections.abc import Callable

import pytest
from barnabas.runtime.ports import File
from barnabas.storage.open_files import FileRange, OpenFiles
from simulator.disk import SimDisk
from simulator.env import sim_env


class World:
    """Files `/a`, `/b`, … of 100 bytes, and what is open of them."""

    def __init__(self, limit: int) -> None:
        self.disk: SimDisk = sim_env().disk
        self.opened: list[File] = []
        self.errors: list[OSError] = []
        for name in "abcdefgh":
            file = self.disk.open(f"/{name}", create=True)
            file.write(0, name.encode() * 100)
            file.close()
        opens = self.disk.open

        def opening(path: str, *, create: bool = False, read_only: bool = False) -> File:
            file = opens(path, create=create, read_only=read_only)
            self.opened.append(file)
            return file

        self.disk.open = opening  # type: ignore[method-assign]
        self.files = OpenFiles(self.disk, limit)

    def reference(self, path: str, position: int = 0, length: int = 100) -> FileRange:
        found = self.files.reference(path, position, length, self.errors.append)
        assert found is not None
        return found

    def open_count(self) -> int:
        count = 0
        for file in self.opened:
            try:
                file.size()
                count += 1
            except OSError:
                pass
        return count


def remove(world: World) -> None:
    world.files.close("/a")
    world.disk.remove("/a")


def rename(world: World) -> None:
    world.files.rename("/a", "/a.deleted")


def replace(world: World) -> None:
    world.files.rename("/b", "/a")


def push_out(world: World) -> None:
    for name in "bcdefgh":
        world.files.get(f"/{name}")


@pytest.mark.parametrize("event", [remove, rename, replace, push_out, lambda world: world.files.close_all()])
def test_a_range_keeps_its_file_open(event: Callable[[World], None]) -> None:
    world = World(limit=4)
    found = world.reference("/a", 10, 50)
    event(world)
    assert len(world.files) == world.open_count() <= 4
    assert found.read(20) == b"a" * 20
    assert len(found) == 30
    found.release()
    found.release()
    world.files.close_all()
    assert len(world.files) == world.open_count() == 0


def test_a_range_that_is_dropped_lets_go_too() -> None:
    world = World(limit=4)
    first, second = world.reference("/a"), world.reference("/a")
    world.files.close("/a")
    del first
    assert world.open_count() == 1
    del second
    assert world.open_count() == 0


@pytest.mark.parametrize(("size", "is_whole"), [(59, False), (60, True), (61, True)])
def test_what_was_cut_off_is_not_read_even_if_something_else_lies_there(size: int, is_whole: bool) -> None:
    world = World(limit=4)
    before = world.reference("/a", 10, 50)
    world.files.cut("/a", size)
    world.files.get("/a").write(size, b"x" * 40)
    assert before.read(50) == (b"a" * 50 if is_whole else None)
    assert world.reference("/a", 10, 80).read(80) == (b"a" * size + b"x" * 40)[10:90]


def test_a_file_that_is_shorter_than_it_was_gives_nothing() -> None:
    world = World(limit=4)
    found = world.reference("/a")
    world.disk.open("/a").truncate(99)  # behind the pool's back
    assert found.read(99) == b"a" * 99
    assert found.read(1) is None


def test_a_disk_that_fails_is_told_of() -> None:
    world = World(limit=4)
    found = world.reference("/a")
    world.disk.fail("read", "/a")
    assert found.read(10) is None
    assert [error.errno for error in world.errors] == [errno.EIO]


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_at_most_half_of_the_files_are_referred_to(limit: int) -> None:
    world = World(limit)
    most = max(1, limit // 2)
    held = [world.reference(f"/{name}") for name in "abcdefgh"[:most]]
    assert world.files.reference("/h", 0, 1, world.errors.append) is None
    assert len(world.reference("/a")) == 100, "one more range of the same file costs nothing"
    for name in "abcdefgh":
        world.files.get(f"/{name}")
        assert world.open_count() <= max(limit, most + 1)
    held[0].release()
    assert world.files.reference("/h", 0, 1, world.errors.append) is not None


def test_when_descriptors_run_out_ranges_keep_theirs() -> None:
    world = World(limit=8)
    held = world.reference("/a")
    for name in "bcdef":
        world.files.get(f"/{name}")
    opens, left = world.disk.open, [1]

    def opening(path: str, *, create: bool = False, read_only: bool = False) -> File:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "too many")
        return opens(path, create=create, read_only=read_only)

    world.disk.open = opening  # type: ignore[method-assign]
    assert world.files.get("/g").size() == 100
    assert len(world.files) <= 4
    assert held.read(100) == b"a" * 100
    held.release()
    for _ in range(2):  # they run out no more: it was once half for good
        world.files.keep_more()
    for name in "abcdefgh":
        world.files.get(f"/{name}")
    assert len(world.files) == 8
