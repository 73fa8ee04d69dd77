"""Data of which a part was restored from a backup: the rest is newer, and nothing that is acknowledged may be lost."""

import shutil
from pathlib import Path

from barnabas.protocol import messages
from barnabas.protocol.api_keys import ApiKey
from broker_process import Client, Process, batch


def life(data: Path, *values: bytes) -> list[bytes | None]:
    """Start, let a new idempotent producer write each value, stop. All records of the topic."""
    process = Process(data, log_level="info")
    try:
        client = Client(process.port)
        client.create_topic("orders", 1)  # or it is there
        for value in values:
            producer_id, epoch = client.init_producer_id()
            written = batch([value], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
            assert client.produce("orders", 0, written).error_code == 0
        return client.values("orders", 0)
    finally:
        process.end()


def restore_tree(backup: Path, data: Path) -> None:
    for path in data.glob("coordination.sqlite*"):
        path.unlink()
    shutil.copy(backup, data / "coordination.sqlite")


def test_an_older_tree_gives_no_producer_id_again(tmp_path: Path) -> None:
    data = tmp_path / "d"
    life(data, b"1")
    backup = shutil.copy(data / "coordination.sqlite", tmp_path)
    life(data, b"2", b"3")
    restore_tree(backup, data)
    assert life(data, b"4", b"5") == [b"1", b"2", b"3", b"4", b"5"], "the new producers have new ids"


def test_an_older_tree_does_not_take_leader_epochs_back(tmp_path: Path) -> None:
    data = tmp_path / "d"
    life(data, b"1")
    backup = shutil.copy(data / "coordination.sqlite", tmp_path)
    for value in (b"2", b"3"):
        (data / ".kafka_cleanshutdown").unlink()  # so the next start leads in a new epoch
        life(data, value)
    restore_tree(backup, data)
    life(data, b"4")
    epochs = (data / "orders-0" / "leader-epoch-checkpoint").read_text().split()[2:]
    assert epochs[1::2] == ["0", "1", "2", "3"], "each record in an epoch of its own, and the epochs rise"
    said = (tmp_path / "d.log").read_text()
    assert "The tree knows less than the disks of this broker" in said
    life(data, b"5")
    assert (tmp_path / "d.log").read_text().count("The tree knows less than the disks of this broker") == 1


def seen(data: Path) -> tuple[int, int]:
    """Start, let a client see a producer id and the leader epoch of a partition, and write nothing; stop."""
    process = Process(data)
    try:
        client = Client(process.port)
        client.create_topic("orders", 1)
        request = messages.MetadataRequest
        asked = request(topics=[request.MetadataRequestTopic(name="orders")])
        (partition,) = client.ask(ApiKey.METADATA, 9, asked).topics[0].partitions
        return client.init_producer_id()[0], partition.leader_epoch
    finally:
        process.end()


def test_an_older_tree_gives_nothing_again_that_only_clients_have_seen(tmp_path: Path) -> None:
    """A producer that has its id and has not written, and a leader epoch without records."""
    data = tmp_path / "d"
    seen(data)
    backup = shutil.copy(data / "coordination.sqlite", tmp_path)
    known = []
    for _ in range(3):
        (data / ".kafka_cleanshutdown").unlink()  # so the next start leads in a new epoch
        known.append(seen(data))
    for _ in range(2):
        restore_tree(backup, data)
        known.append(seen(data))
    ids, epochs = zip(*known)
    assert len(set(ids)) == len(ids)
    assert list(epochs) == sorted(epochs)
