"""What both storages of committed offsets do alike: the interface of offsets/manager.py, behind a coordinator."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from barnabas.offsets.manager import OffsetManager, Offsets, Partitions
from barnabas.offsets.records import TopicPartition
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from tree_world import TreeWorld

T = TypeVar("T")


@pytest.fixture(params=["kafka", "zookeeper", "dual"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TreeWorld]:
    is_dual = request.param == "dual"
    storage = "kafka" if is_dual else request.param
    world = TreeWorld(tmp_path, offsets_storage=storage, dual_commit_enabled=is_dual)
    world.settle()
    yield world
    world.env.run(world.tree.close())


def manager(world: TreeWorld) -> OffsetManager:
    return world.coordinator.offsets


def shard_of(world: TreeWorld, group: str) -> Any:
    return world.coordinator.shard_of(group)


def wait(world: TreeWorld, condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        world.env.run(world.clock.sleep(1))
    raise AssertionError("did not happen")


def in_loop(world: TreeWorld, call: Callable[[], T]) -> T:
    async def run() -> T:
        return call()

    return world.env.run(run())


def put(world: TreeWorld, group: str, *partitions: TopicPartition, offset: int = 5) -> None:
    """As a client that is no member of the group."""
    commits: dict[str, dict[int, int]] = {}
    for topic, index in partitions:
        commits.setdefault(topic, {})[index] = offset
    for topic, offsets in commits.items():
        assert world.commit_tree(offsets, version=8, topic=topic, group=group) == [ErrorCode.NONE] * len(offsets)


def remove(world: TreeWorld, group: str, partitions: list[TopicPartition] | None) -> ErrorCode:
    told: list[ErrorCode] = []
    in_loop(world, lambda: manager(world).remove(shard_of(world, group), group, partitions, told.append))
    wait(world, lambda: told)
    return told[0]


def held(world: TreeWorld, group: str, partitions: Partitions | None = None) -> dict[TopicPartition, int]:
    told: list[Offsets] = []
    reply = in_loop(world, lambda: manager(world).get(shard_of(world, group), group, partitions))
    if isinstance(reply, Pending):
        reply.then(told.append)
        wait(world, lambda: told)
    else:
        told.append(reply)
    assert told[0].error is ErrorCode.NONE
    return {(topic, index): one.offset for topic, some in told[0].committed.items() for index, one in some.items()}


def test_what_was_put_is_got(world: TreeWorld) -> None:
    assert held(world, "g") == {}
    put(world, "g", ("t", 0), ("t", 1), ("events", 0))
    put(world, "g", ("t", 1), offset=7)
    assert held(world, "g") == {("t", 0): 5, ("t", 1): 7, ("events", 0): 5}
    assert held(world, "g", [("t", [1])])["t", 1] == 7
    assert held(world, "other") == {}


def test_what_was_removed_is_gone(world: TreeWorld) -> None:
    put(world, "g", ("t", 0), ("t", 1), ("events", 0))
    assert remove(world, "g", [("t", 0), ("never", 3)]) is ErrorCode.NONE
    assert held(world, "g") == {("t", 1): 5, ("events", 0): 5}
    assert remove(world, "g", None) is ErrorCode.NONE
    assert held(world, "g") == {}
    assert remove(world, "g", None) is ErrorCode.NONE


def test_offsets_of_topics_that_are_gone_go_in_every_group(world: TreeWorld) -> None:
    groups = ("g", "with/slash", *(f"many-{number}" for number in range(250)))
    for group in groups:
        put(world, group, ("t", 0), ("t", 1), ("events", 0))
    in_loop(world, lambda: world.coordinator.on_partitions_deleted([("t", 0), ("t", 1), ("never", 0)]))
    wait(world, lambda: all(held(world, group) == {("events", 0): 5} for group in groups[::50]))
    assert all(held(world, group) == {("events", 0): 5} for group in groups)


def deleted(world: TreeWorld, group: str) -> int:
    response: Any = world.ask_tree("delete_groups", messages.DeleteGroupsRequest(groups_names=[group]), 2)
    return int(response.results[0].error_code)


def test_a_group_that_only_commits_can_be_deleted(world: TreeWorld) -> None:
    assert deleted(world, "g") == ErrorCode.GROUP_ID_NOT_FOUND
    put(world, "g", ("t", 0))
    assert deleted(world, "g") == ErrorCode.NONE
    assert world.fetch_tree([0], version=5) == [(-1, "", 0)]
    assert deleted(world, "g") == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_that_only_commits_can_be_deleted(world: TreeWorld) -> None:
    make = messages.OffsetDeleteRequest
    row = make.OffsetDeleteRequestPartition(partition_index=0)
    request = make(group_id="g", topics=[make.OffsetDeleteRequestTopic(name="t", partitions=[row])])
    assert world.ask_tree("offset_delete", request, 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    put(world, "g", ("t", 0))
    answer = world.ask_tree("offset_delete", request, 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert world.fetch_tree([0], version=5) == [(-1, "", 0)]


def test_a_topic_that_is_deleted_takes_its_offsets_along(world: TreeWorld) -> None:
    put(world, "g", ("t", 0))
    assert world.commit_tree({1: 3}, version=0) == [0]  # in the tree, whatever the setting is
    in_loop(world, lambda: world.coordinator.on_partitions_deleted([("t", 0), ("t", 1)]))
    wait(world, lambda: world.node("/consumers/g/offsets/t") is None)
    assert world.fetch_tree([0], version=5) == [(-1, "", 0)]
    assert world.fetch_tree([1], version=0)[0][0] == -1
