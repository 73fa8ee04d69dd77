"""A disk of tests that does not sync: all that was written is there, and nobody has waited for it."""

import asyncio
import os
from pathlib import Path

import pytest
from barnabas.config.broker import BrokerConfig
from barnabas.config.profiles import profile
from barnabas.runtime.broken_machine import BreakableDisk


async def written(disk: BreakableDisk, folder: str) -> OSError | None:
    """Write a file, and sync it in every way; returns what the sync in the background ends with."""
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    disk.make_directory(folder)
    file = disk.open(f"{folder}/file", create=True)
    file.write(0, b"abc")
    file.sync()
    disk.sync_directory(folder)
    assert disk.sync_all([f"{folder}/file"], [folder]) == {}
    disk.sync_in_background([file], done.set_result, [folder])
    file.close()
    return await done


@pytest.mark.parametrize("syncs", [True, False])
def test_a_disk_syncs_or_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: bool) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert asyncio.run(written(BreakableDisk(syncs=syncs), f"{tmp_path}/data")) is None
    assert bool(synced) is syncs
    assert Path(tmp_path, "data", "file").read_bytes() == b"abc"


def test_brokers_of_tests_do_not_sync_and_others_do() -> None:
    assert not BrokerConfig.of({"node.id": "1", **profile("ci").settings}).control_sync_enable
    assert BrokerConfig.of({"node.id": "1", "control.enable": "true"}).control_sync_enable
