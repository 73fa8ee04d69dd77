"""Apache Kafka from its Maven artifacts: a broker to compare with, and its load tools.

    python -m bench.apache_kafka fetch            resolve the jars into the user's cache (or KAFKA_JARS, when set)
    python -m bench.apache_kafka start PORT       one KRaft node on loopback, in the foreground
    python -m bench.apache_kafka tool CLASS ...   one of its tools, e.g. org.apache.kafka.tools.ProducerPerformance

KAFKA_VERSION (4.1.0), KAFKA_JARS (a folder that has the jars already), KAFKA_HEAP (1g). Needs java and, to fetch, mvn.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from bench.targets import Barnabas, Target

SETTINGS = ("group.coordinator.append.linger.ms=0",)  # else a commit waits for others
VERSION = os.environ.get("KAFKA_VERSION", "4.1.0")
HEAP = os.environ.get("KAFKA_HEAP", "1g")
START_TIMEOUT_S = 60
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def jars() -> Path:
    """The folder with the jars. They are fetched if they are missing."""
    given = os.environ.get("KAFKA_JARS")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"barnabas-bench-kafka-{VERSION}"
    if not list(cache.glob("kafka_2.13-*.jar")):
        cache.mkdir(parents=True, exist_ok=True)
        goal = ["mvn", "-q", "-B", "-f", str(Path(__file__).with_name("pom.xml")), "dependency:copy-dependencies"]
        options = [f"-Dkafka.version={VERSION}", f"-DoutputDirectory={cache}", "-DincludeScope=runtime"]
        subprocess.run([*goal, *options], check=True)
    return cache


def java(heap: str, *words: str) -> list[str]:
    """The command for one of Kafka's classes."""
    return ["java", f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseG1GC", "-cp", f"{jars()}/*", *words]


def free_port() -> int:
    """A free port, so low that the port 10,000 above it exists."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 50_000:
            return port


class ApacheKafka(Target):
    """One KRaft node that serves, with a data directory of its own, which is removed with it."""

    def __init__(self, settings: Sequence[str] = (), port: int | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="kafka-bench-")
        port = port or free_port()
        properties = Path(self._folder) / "server.properties"
        text = PROPERTIES.format(port=port, controller_port=port + 10_000, data=f"{self._folder}/data")
        properties.write_text(text + "\n".join(settings) + "\n")
        tool = java("256m", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        self.started = time.monotonic()
        with open(f"{self._folder}/log", "w") as log:
            self.process = subprocess.Popen(java(HEAP, "kafka.Kafka", str(properties)), stdout=log, stderr=log)
        super().__init__("kafka", f"127.0.0.1:{port}", self.process.pid)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > self.started + START_TIMEOUT_S:
                    self.process.kill()
                    raise RuntimeError(f"Apache Kafka did not start: {self._folder}/log") from None
                time.sleep(0.005)

    def __enter__(self) -> "ApacheKafka":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it and remove its data."""
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self._folder)


def run_beside(run: Callable[[Target], Coroutine[Any, Any, None]], kafka: bool) -> None:
    """Run it with a Barnabas of this checkout; then, with `kafka`, with an Apache Kafka."""
    with Barnabas() as barnabas:
        uvloop.run(run(barnabas))
    if kafka:
        with ApacheKafka(SETTINGS) as other:
            uvloop.run(run(other))


def produce(
    address: str,
    topic: str,
    records: int,
    record_bytes: int,
    *,
    throughput: int = -1,
    properties: Sequence[str] = (),
    transaction_ms: int = 0,
) -> dict[str, float]:
    """Run ProducerPerformance with acks=all: records/s, MB/s and latencies in ms. It commits every `transaction_ms`."""
    words = [PRODUCER, "--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    words += ["--throughput", str(throughput), "--producer-props", f"bootstrap.servers={address}", "acks=all"]
    words += properties
    if transaction_ms:
        words += ["--transactional-id", topic, "--transaction-duration-ms", str(transaction_ms)]
    output = _run(words)
    last = output.strip().splitlines()[-1]
    found = re.findall(r"([\d.]+) (records/sec|MB/sec|ms avg|ms max|ms 50th|ms 95th|ms 99th|ms 99\.9th)", last)
    if len(found) < 8:
        raise RuntimeError(f"ProducerPerformance said:\n{output[-2000:]}")
    return {name: float(value) for value, name in found}


def consume(address: str, topic: str, records: int, properties: Sequence[str] = ()) -> dict[str, float]:
    """Run ConsumerPerformance from the start of the topic: MB/s and records/s while it fetched."""
    words = [CONSUMER, "--bootstrap-server", address, "--topic", topic, "--messages", str(records)]
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.write("\n".join(properties))
        file.flush()
        words += ["--consumer.config", file.name]
        output = _run([*words, "--timeout", "20000", "--group", f"bench-{time.time_ns()}"])
    names, values = (line.split(", ") for line in output.strip().splitlines()[-2:])
    row = dict(zip(names, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise RuntimeError(f"ConsumerPerformance said:\n{output[-2000:]}")
    return {"MB/s": float(row["fetch.MB.sec"]), "records/s": float(row["fetch.nMsg.sec"])}


def _run(words: Sequence[str]) -> str:
    ended = subprocess.run(java("512m", *words), capture_output=True, text=True, timeout=600)
    if ended.returncode or not ended.stdout.strip():
        raise RuntimeError(f"{words[0]} failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.stdout


def main(words: Sequence[str]) -> int:
    """See the module."""
    match list(words):
        case ["fetch"]:
            print(jars())
        case ["start", port]:
            with suppress(KeyboardInterrupt), ApacheKafka(port=int(port)) as broker:
                print(broker.address, flush=True)
                broker.process.wait()
        case ["tool", *rest]:
            return subprocess.call(java("512m", *rest))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
