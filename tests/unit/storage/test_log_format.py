"""The worked example of storage/log_format.md: a log is what it says, and writes what it says."""

import re
from pathlib import Path

import barnabas.storage
from barnabas.protocol.record_batch import Record, build
from barnabas.storage.validation import AppendOrigin

DOCUMENT = (Path(barnabas.storage.__file__).parent / "log_format.md").read_text()
EXAMPLE = re.compile(r"^`(?P<name>[^`]+)`\n\n```(?P<kind>hex|text)\n(?P<body>.*?)```$", re.MULTILINE | re.DOTALL)


def example():
    """Content of each file of the example, by name within the data directory; what follows `|` explains."""
    found = {}
    for match in EXAMPLE.finditer(DOCUMENT):
        body = match["body"]
        if match["kind"] == "hex":
            found[match["name"]] = bytes.fromhex("".join(line.partition("|")[0] for line in body.splitlines()))
        else:
            found[match["name"]] = body.encode()
    return found


def make_example(world):
    world.topics["orders"] = {"index.interval.bytes": "1"}
    manager = world.open()
    log = manager.get_or_create("orders", 0, bytes(range(16)))
    for epoch, sequence, records in (
        (
            0,
            0,
            [
                Record(timestamp=1700000000000, key=b"a", value=b"one"),
                Record(timestamp=1700000000005, value=b"two", headers=[("h", b"x")]),
            ],
        ),
        (3, 2, [Record(timestamp=1700000000010, key=b"a", value=None)]),
    ):
        batch = build(records, producer_id=4711, producer_epoch=0, base_sequence=sequence)
        result = log.append_as_leader(batch, leader_epoch=epoch, origin=AppendOrigin.CLIENT, now_ms=world.now())
        assert result.error == 0
    log.set_high_watermark(3)
    manager.shutdown()


def stored(world):
    found = {}
    for folder in ("", "orders-0/"):
        for name in world.disk.list_directory(f"/data/{folder}"):
            if not world.disk.is_directory(f"/data/{folder}{name}") and name != ".lock":
                found[folder + name] = world.disk.open(f"/data/{folder}{name}").read(0, 10_000)
    return found


def test_the_example_is_what_is_written(world):
    make_example(world)
    written = stored(world)
    told = example()
    assert told.keys() == written.keys()
    for name, content in told.items():
        # A text block ends with a line feed that partition.metadata does not have.
        assert content.rstrip(b"\n") == written[name].rstrip(b"\n"), name


def test_the_example_can_be_opened(world, read):
    world.disk.make_directory("/data/orders-0")
    for name, content in example().items():
        world.disk.open(f"/data/{name}", create=True).write(0, content)
    log = world.open().get("orders", 0)
    assert world.manager.was_clean
    assert read(log) == [(0, b"a", b"one"), (1, None, b"two"), (2, b"a", None)]
    assert log.leader_epochs.entries == [(0, 0), (3, 2)]
    assert (log.high_watermark, log.durability.recovery_point, log.topic_id) == (3, 3, bytes(range(16)))
    entry = log.producers.get(4711)
    assert (entry.producer_epoch, entry.last_sequence) == (0, 2)
    assert log.offset_for_timestamp(1700000000006, 3).offset == 2
