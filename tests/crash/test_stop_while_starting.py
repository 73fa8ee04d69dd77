"""A broker that is told to stop while it recovers."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from barnabas.protocol import record_batch
from broker_process import Client, Process, batch

BATCHES = 25_000


def fill(path: Path, size: int) -> None:
    """Write batches as a broker that was killed would have left them. No checksum covers a batch's offset."""
    template = batch([bytes(size)])
    with path.open("wb") as file:
        for offset in range(BATCHES):
            record_batch.patch(template, 0, offset, 0)
            file.write(template)


def wait_for(process: Process, line: str) -> None:
    while line not in process.log.read_text():
        assert process.process.poll() is None, process.log.read_text()[-3000:]
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_recovery_and_the_next_start_recovers_everything(
    start: Callable[..., Process], tmp_path: Path, number: int
) -> None:
    process = start()
    client = Client(process.port)
    assert client.create_topic("t", 1) == 0
    process.end(signal.SIGKILL)
    data = tmp_path / "data"
    log = data / "t-0" / f"{0:020d}.log"
    fill(log, 10_000)
    size = log.stat().st_size
    process = start(log_level="info", wait=False)
    wait_for(process, "the last stop was not clean")
    process.process.send_signal(number)
    process.process.wait(200)
    assert process.process.stdout is not None
    assert process.process.stdout.read() == "", "it never served"
    assert process.process.returncode == 0
    assert "stopped before it served" in process.log.read_text()
    assert not (data / ".kafka_cleanshutdown").exists()
    assert log.stat().st_size == size
    process = start()
    row = Client(process.port).fetch("t", 0, BATCHES - 1)
    assert (row.error_code, row.high_watermark) == (0, BATCHES)
