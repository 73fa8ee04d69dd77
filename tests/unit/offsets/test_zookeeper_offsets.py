"""The tree as offset storage, on the embedded tree: version 0 requests, and `offsets.storage=zookeeper`."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from barnabas.protocol import messages
from barnabas.protocol.errors import ErrorCode
from group_world import GroupWorld
from tree_world import TreeWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TreeWorld]:
    world = TreeWorld(tmp_path)
    yield world
    world.env.run(world.tree.close())


def test_version_0_goes_to_the_tree_and_not_to_the_log(world: TreeWorld) -> None:
    assert world.commit_tree({0: 5, 1: -7}) == [0, 0]
    assert world.node("/consumers/g/offsets/t/0") == b"5"
    assert world.commit_tree({0: 6}) == [0]
    assert world.fetch_tree([0, 1, 2]) == [(6, "", 0), (-7, "", 0), (-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert world.records() == []
    assert world.fetch("g") == {}


def test_version_0_checks_what_it_can(world: TreeWorld) -> None:
    assert world.commit_tree({9: 1, 0: 2}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert world.commit_tree({0: 1}, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    limit = world.config.offset_metadata_max_bytes
    assert world.commit_tree({0: 3}, metadata="x" * limit) == [0]
    assert world.commit_tree({0: 4}, metadata="x" * (limit + 1)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert world.fetch_tree([0]) == [(3, "", 0)]
    assert world.fetch_tree([0], topic="nowhere") == [(-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def test_version_0_asks_no_coordinator(world: TreeWorld) -> None:
    world.coordinator.unload(0)
    assert world.commit_tree({0: 5}) == [0]
    assert world.fetch_tree([0]) == [(5, "", 0)]


def test_version_0_without_a_group(world: TreeWorld) -> None:
    make = messages.OffsetFetchRequest
    request = make(group_id="", topics=[make.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    response = world.ask_tree("offset_fetch", request, 0)
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_storage_zookeeper_serves_the_newer_versions_too(tmp_path: Path) -> None:
    world = TreeWorld(tmp_path, offsets_storage="zookeeper")
    assert world.commit_tree({0: 5, 1: 6}, version=8) == [0, 0]
    assert world.node("/consumers/g/offsets/t/0") == b"5"
    assert world.fetch_tree([0, 2], version=5) == [(5, "", 0), (-1, "", 0)]
    response = world.ask_tree("offset_fetch", messages.OffsetFetchRequest(group_id="g", topics=None), 5)
    assert [row.partition_index for row in response.topics[0].partitions] == [0, 1]
    world.env.run(world.tree.close())
    world.settle()


@pytest.mark.parametrize("storage", ["kafka", "zookeeper"])
def test_offsets_that_a_changed_setting_hides_are_said(storage: str, caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    world.commit("g", {("t", 0): 5})
    world.config.offsets_storage = storage
    world.restart()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    if storage == "kafka":
        assert warnings == []
    else:
        assert warnings == [
            "offsets partition 0: offsets.storage=zookeeper, so nobody is told the offsets that 1 group has committed "
            "to it. Start with offsets.storage=kafka to use them"
        ]


def test_a_node_that_holds_no_number_is_no_offset(world: TreeWorld) -> None:
    world.env.run(world.tree.create("/consumers/g/offsets/t/0", b"what", make_parents=True))
    assert world.fetch_tree([0]) == [(-1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\nb", "x" * 250])
def test_a_topic_that_cannot_exist_has_no_offset(tmp_path: Path, topic: str) -> None:
    world = TreeWorld(tmp_path, offsets_storage="zookeeper")
    assert world.fetch_tree([0], version=5, topic=topic) == [(-1, "", 0)]
    world.env.run(world.tree.close())
    world.settle()


def test_a_bug_in_the_tree_is_answered_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = TreeWorld(tmp_path, offsets_storage="zookeeper")

    async def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(world.tree, "get_many", broken)
    monkeypatch.setattr(world.tree, "set", broken)
    make = messages.OffsetFetchRequest
    asked = make(group_id="g", topics=[make.OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert world.ask_tree("offset_fetch", asked, 5).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.commit_tree({0: 5}, version=8) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert len([record for record in caplog.records if record.exc_info]) == 2
    world.env.run(world.tree.close())
    world.settle()
