"""`dual.commit.enabled`: commits go to the topic and to the tree, and the larger offset is read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from tree_world import TreeWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TreeWorld]:
    world = TreeWorld(tmp_path, dual_commit_enabled=True)
    world.settle()
    yield world
    world.env.run(world.tree.close())


def test_a_commit_is_in_the_topic_and_in_the_tree(world: TreeWorld) -> None:
    assert world.commit_tree({0: 5, 1: 6}, version=8) == [0, 0]
    assert (world.node("/consumers/g/offsets/t/0"), world.node("/consumers/g/offsets/t/1")) == (b"5", b"6")
    assert len(world.records()) == 2
    assert world.fetch_tree([0, 1], version=5) == [(5, "n", 0), (6, "n", 0)]
    assert world.fetch_tree([0, 1], version=0) == [(5, "", 0), (6, "", 0)]


def test_the_larger_offset_is_read(world: TreeWorld) -> None:
    assert world.commit_tree({0: 5, 1: 5}, version=8) == [0, 0]
    assert world.commit_tree({0: 9, 1: 3, 2: 1}, version=0) == [0, 0, 0]  # an old consumer went on, or went back
    assert world.fetch_tree([0, 1, 2], version=5) == [(9, "", 0), (5, "n", 0), (1, "", 0)]
    response = world.ask_tree("offset_fetch", messages.OffsetFetchRequest(group_id="g", topics=None), 5)
    assert {row.partition_index: row.committed_offset for row in response.topics[0].partitions} == {0: 9, 1: 5, 2: 1}


def test_a_commit_that_the_tree_did_not_take_is_refused(world: TreeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from barnabas.cluster.tree.port import ConnectionLossError

    async def lost(*_: object) -> None:
        raise ConnectionLossError("", "planted")

    monkeypatch.setattr(world.tree, "multi", lost)
    assert world.commit_tree({0: 5}, version=8) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    monkeypatch.undo()
    assert world.commit_tree({0: 5}, version=8) == [0]
    assert world.node("/consumers/g/offsets/t/0") == b"5"


def test_what_cannot_be_read_in_one_place_is_an_error(world: TreeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from barnabas.cluster.tree.port import ConnectionLossError

    assert world.commit_tree({0: 5}, version=8) == [0]

    async def lost(*_: object) -> None:
        raise ConnectionLossError("", "planted")

    monkeypatch.setattr(world.tree, "get_many", lost)
    make = messages.OffsetFetchRequest
    asked = make(group_id="g", topics=[make.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert world.ask_tree("offset_fetch", asked, 5).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_commit_of_many_partitions_is_few_changes_of_the_tree(world: TreeWorld) -> None:
    changes: list[int] = []
    multi = world.tree.multi

    async def counted(operations: list[object]) -> object:
        changes.append(len(operations))
        return await multi(operations)  # type: ignore[arg-type]

    world.commit_tree({0: 1, 1: 1, 2: 1}, version=0)
    world.tree.multi = counted  # type: ignore[method-assign,assignment]
    assert world.commit_tree({0: 2, 1: 2, 2: 2}, version=0) == [0, 0, 0]
    assert changes == [3]
