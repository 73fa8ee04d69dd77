"""Backups of the embedded tree, taken while it is in use, and a tree that begins from one."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from barnabas.cluster.tree import paths, tree_backup
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.payloads import RestoredTree, encode_cluster_id
from barnabas.cluster.tree.port import ConnectionLossError

Tree = Any

pytestmark = pytest.mark.parametrize("tree", ["embedded"], indirect=True)


async def test_a_backup_has_all_that_was_answered_and_nothing_of_sessions(tree: Tree, tmp_path: Path) -> None:
    session, other = await tree.session(), await tree.session()
    await session.create(paths.CLUSTER_ID, encode_cluster_id("c"), make_parents=True)
    await session.create(f"{paths.TOPICS}/t", b"1", make_parents=True)
    await other.create(paths.broker(1), b"here", ephemeral=True, make_parents=True)
    before = await session.exists(f"{paths.TOPICS}/t")
    taken = await tree_backup.take(tree.env, tree.path)
    assert (taken.cluster_id, taken.topics) == ("c", 1)
    assert await other.exists(paths.broker(1)) is not None, "those that run hear nothing of it"
    assert await other.exists(paths.RESTORED) is None
    await session.create("/later")
    last = await session.exists("/later")

    file = tmp_path / "restored" / "tree"
    file.parent.mkdir()
    file.write_bytes(taken.content)
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    restored = EmbeddedCoordination(tree.env, str(file))
    await restored.look()
    assert await restored.exists(f"{paths.TOPICS}/t") == before
    await restored.start()
    tree.sessions.append(restored)
    assert await restored.children(paths.BROKER_IDS) == []
    assert RestoredTree.decode((await restored.get(paths.RESTORED))[0]) == RestoredTree(taken.taken_ms)
    assert await restored.exists("/later") is None
    await restored.create("/new")
    assert (await restored.exists("/new")).czxid > last.czxid, "no change gets a number that another one had"


async def test_a_backup_of_a_backup_says_when_it_was_taken(tree: Tree) -> None:
    session = await tree.session()
    taken = await tree_backup.take(tree.env, tree.path)
    await session.close()
    Path(tree.path).write_bytes(taken.content)
    await tree.clock.sleep(1000)
    again = await tree_backup.take(tree.env, tree.path)
    Path(tree.path).write_bytes(again.content)
    restored = await tree.session()
    assert RestoredTree.decode((await restored.get(paths.RESTORED))[0]).copied_ms == again.taken_ms > taken.taken_ms


async def test_a_tree_that_is_not_there_or_not_the_one_in_use_has_no_backup(tree: Tree) -> None:
    with pytest.raises(ConnectionLossError, match="there is no tree at"):
        await tree_backup.take(tree.env, tree.path)
    await tree.session()
    path = Path(tree.path)
    content = path.read_bytes()
    path.rename(path.with_name("aside"))
    path.write_bytes(content)
    with pytest.raises(ConnectionLossError, match="was replaced while in use by"):
        await tree_backup.take(tree.env, tree.path)
