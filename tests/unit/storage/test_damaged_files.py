"""Files that changed between a stop and the next start: what the fuzz of data directories has found, one by one."""

import logging
import struct

import pytest
from barnabas.protocol.errors import ErrorCode
from barnabas.storage.directory_contents import DataDirectoryError

INDEXED = {"segment_bytes": 2000, "index_interval_bytes": 300}


def content(world, name):
    return world.disk.open(f"/data/t-0/{name}").read(0, 1 << 20)


def rewrite(world, name, data):
    file = world.disk.open(f"/data/t-0/{name}", create=True)
    file.truncate(0)
    file.write(0, data)


def filled(world, count=30):
    """A log of several segments with indexes, closed cleanly; the names of its offset indexes."""
    world.topics["t"] = {"segment.bytes": "1048576"}
    log = world.log(**INDEXED)
    world.fill(log, count)
    world.manager.shutdown()
    return [f"{segment.base_offset:020d}.index" for segment in log.segments]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("offset", "position"), [(0, 1), (1, 0), (0, -1), (3, 180), (0, -(2**31)), (2**30, 0)])
def test_an_index_that_points_elsewhere_is_made_again(world, read, last, offset, position, caplog):
    name = filled(world)[-1 if last else 0]
    entries = list(struct.iter_unpack(">ii", content(world, name)))
    changed = [max(0, entries[-1][0] + offset), max(-(2**31), entries[-1][1] + position)]
    rewrite(world, name, struct.pack(">8i", *[number for entry in entries[:3] for number in entry], *changed))
    log = world.open().get("t", 0)
    world.set(log, **INDEXED)
    assert [number for number, _, _ in read(log)] == list(range(30))
    for wanted in range(30):
        assert read(log, wanted, max_bytes=500)[0][0] == wanted
    world.fill(log, 10)
    assert world.restart().get("t", 0).log_end_offset == 40


def test_what_was_synced_and_is_gone_is_said(world, caplog):
    filled(world)
    world.disk.remove("/data/.kafka_cleanshutdown")
    world.disk.remove(f"/data/t-0/{content_base(world)}.log")
    with caplog.at_level(logging.ERROR):
        log = world.open().get("t", 0)
    assert log.log_end_offset < 30
    assert f"t-0: the log ends at offset {log.log_end_offset}, though all up to 30 was synced" in caplog.text


def content_base(world):
    """The name of the newest segment."""
    return max(name[:20] for name in world.disk.list_directory("/data/t-0") if name.endswith(".log"))


def test_a_segment_of_another_log_is_refused_with_advice(world):
    filled(world)
    base = content_base(world)
    rewrite(world, f"{base}.log", content(world, f"{0:020d}.log"))
    for name in ("index", "timeindex"):
        world.disk.remove(f"/data/t-0/{base}.{name}")
    with pytest.raises(DataDirectoryError, match=r"cannot be in it.*start again to cut the log there, or restore"):
        world.open()


def test_damage_in_the_middle_is_told_to_who_meets_it(world, read):
    """Of what was closed cleanly nothing is read at the start."""
    filled(world)
    name = f"{0:020d}.log"
    data = bytearray(content(world, name))
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second : second + 30] = bytes(30)
    rewrite(world, name, bytes(data))
    for extension in ("index", "timeindex"):
        world.disk.remove(f"/data/t-0/{0:020d}.{extension}")
    log = world.open().get("t", 0)
    assert log.read(0, 1, upper_bound=30, at_least_one=True).error == ErrorCode.NONE
    assert log.read(1, 1, upper_bound=30, at_least_one=True).error == ErrorCode.CORRUPT_MESSAGE
    assert read(log, 25)[-1][0] == 29
    world.fill(log, 1)
    world.set(log, retention_ms=1)
    world.clock.advance(1_000_000)  # retention meets it, too
    assert log.failed is None
    assert log.log_start_offset == 31


@pytest.mark.parametrize("how", ["cut", "version", "order", "offset"])
def test_a_transaction_index_that_cannot_be_right_is_made_again(world, how):
    log = world.log()
    for number in range(3):
        world.append(log, (b"k", b"v"), producer_id=5, producer_epoch=0, base_sequence=number, transactional=True)
        world.marker(log, 5, commit=number == 1)
    log.set_high_watermark(log.log_end_offset)
    expected = log.segments.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 2
    world.manager.shutdown()
    name = f"{0:020d}.txnindex"
    whole = content(world, name)
    damaged = {
        "cut": whole[:-3],
        "version": b"\0\7" + whole[2:],
        "order": whole[34:] + whole[:34],
        "offset": whole[:18] + (-2).to_bytes(8, "big", signed=True) + whole[26:],  # the marker of the first one
    }
    rewrite(world, name, damaged[how])
    log = world.open().get("t", 0)
    assert log.segments.aborted_transactions(0, log.log_end_offset) == expected
    assert content(world, name) == whole


def test_damaged_lines_are_shown_in_part(world):
    filled(world)
    world.disk.open("/data/t-0/partition.metadata").write(0, b"version: 0\ntopic_id: " + b"x" * 100_000)
    with pytest.raises(DataDirectoryError) as raised:
        world.open()
    assert len(str(raised.value)) < 400
