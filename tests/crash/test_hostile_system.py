"""A real process on a bad day: killed under load, too few open files, a folder that vanishes. It lives on."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from barnabas.protocol.errors import ErrorCode
from broker_process import Client, Process, batch, free_port
from kill_rounds import Options, Rounds


def test_nothing_acknowledged_is_lost_or_there_twice_after_a_kill(tmp_path: Path) -> None:
    options = Options(
        rounds=3, producers=3, committers=2, members=2, partitions=3, librdkafka=False, alive_s=(0.2, 1.0)
    )
    rounds = Rounds(options, tmp_path, print)
    assert rounds.run() == []
    assert min(rounds.books.records, rounds.books.commits, rounds.group.generation) > 0


def test_a_hundred_partitions_with_few_open_files(start: Callable[..., Process]) -> None:
    process = start(open_files=64)
    client = Client(process.port)
    assert client.create_topic("many", 100) == 0
    for turn in range(2):
        assert {client.produce("many", index, batch([b"v"])).error_code for index in range(100)} == {0}, turn
    assert [len(client.values("many", index)) for index in range(0, 100, 9)] == [2] * 12
    process.end()
    assert "offline" not in process.log.read_text()


def test_a_segment_whose_maker_died_before_its_indexes_were_made(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start()
    assert Client(process.port).create_topic("half", 1) == 0
    process.end(signal.SIGKILL)
    assert not (tmp_path / "data" / "half-0" / ("0" * 20 + ".index")).exists(), "an empty segment has none"
    process = start()
    client = Client(process.port)
    assert client.produce("half", 0, batch([b"1"])).error_code == 0
    process.end()
    assert "offline" not in process.log.read_text()
    assert Client(start().port).values("half", 0) == [b"1"]


def test_a_folder_that_vanishes_does_not_take_the_broker_with_it(start: Callable[..., Process], tmp_path: Path) -> None:
    client = Client(start(open_files=64).port)
    assert client.create_topic("gone", 1) == 0
    assert client.create_topic("here", 60) == 0  # so that no file of the first one is still open
    assert client.produce("gone", 0, batch([b"1"])).error_code == 0
    for index in range(60):
        client.produce("here", index, batch([b"1"]))
    shutil.rmtree(tmp_path / "data" / "gone-0")
    answers = [client.produce("gone", 0, batch([b"2"])).error_code for _ in range(3)]
    assert set(answers) <= {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert client.produce("here", 0, batch([b"2"])).error_code == 0


def test_who_connects_before_the_broker_serves_is_answered_when_it_does(start: Callable[..., Process]) -> None:
    for number in range(3):
        process = start(port=free_port(), wait=False)
        while True:
            try:
                client = Client(process.port)
                break
            except OSError:
                assert process.process.poll() is None
        assert client.create_topic(f"early-{number}", 1) == 0
        process.end()
