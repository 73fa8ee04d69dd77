"""One batch with a flipped bit, anywhere in a log: all others are read, and this one is put aside, never left out."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline import segment_reading
from barnabas.pipeline.segment_reading import READ_BYTES
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, DataDirectory, read_aside
from test_directories import read

COUNT = 8
BITS = {"base offset": 3, "length": 9, "checksum": 18, "last offset delta": 23, "value": 70}


@pytest.mark.parametrize("read_bytes", [100, 200, READ_BYTES])
@pytest.mark.parametrize("damaged", [0, 3, COUNT - 1])
@pytest.mark.parametrize("place", BITS)
def test_one_damaged_batch(
    tmp_path: Path, place: str, damaged: int, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reading, "READ_BYTES", read_bytes)
    directory = DataDirectory(tmp_path / "data")
    log = directory.log("orders")
    for number in range(COUNT):
        directory.append(log, Record(-1, NOW_MS, None, b"value %d" % number))
    path = directory.close()
    (file,) = (tmp_path / "data" / "orders-0").glob("*.log")
    content = bytearray(file.read_bytes())
    size = len(content) // COUNT
    content[damaged * size + BITS[place]] ^= 64
    file.write_bytes(content)
    good = [b"value %d" % number for number in range(COUNT) if number != damaged]
    options = {"path": path, "topics": "orders"}
    assert [row["value"] for row in read("barnabas.records", aside=tmp_path / "aside", **options)] == good
    places = read_aside(str(tmp_path / "aside"))
    first, *others = sorted((int(str(one["position"])), int(str(one["size_bytes"]))) for one in places)
    assert (first[0], first[1] + sum(more for _, more in others)) == (damaged * size, size)
    assert not others or read_bytes < 2 * COUNT * size, "only where a buffer ends in it, it is put aside in parts"
    errors = [row["position"] for row in read("barnabas.batches", **options) if row["error"]]
    assert errors == [position for position, _ in (first, *others)]
    options["aside"] = str(tmp_path / "aside")
    before = read("barnabas.records", where=f"offset < {damaged}", **options)
    behind = read("barnabas.records", where=f"offset > {damaged}", **options)
    assert [row["value"] for row in before + behind] == good


def test_a_topic_with_a_long_name(tmp_path: Path) -> None:
    """Two of its batches are put aside, although the names of the files would be longer than files may have."""
    directory = DataDirectory(tmp_path / "data")
    topic = "t" * 240
    log = directory.log(topic)
    for number in range(4):
        directory.append(log, Record(-1, NOW_MS, None, b"value %d" % number))
    path = directory.close()
    (file,) = (tmp_path / "data" / f"{topic}-0").glob("*.log")
    content = bytearray(file.read_bytes())
    size = len(content) // 4
    for damaged in (1, 2):
        content[damaged * size + BITS["value"]] ^= 64
    file.write_bytes(content)
    for _ in range(2):
        rows = read("barnabas.records", path=path, aside=tmp_path / "aside")
        assert [row["value"] for row in rows] == [b"value 0", b"value 3"]
    assert sorted(int(str(one["position"])) for one in read_aside(str(tmp_path / "aside"))) == [size, 2 * size]
