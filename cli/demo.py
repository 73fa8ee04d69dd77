"""`barnabas demo`: a client round trip that a person can watch, on a real broker process of its own."""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import positions, told_in_sentences
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import new_app, print_table
from barnabas.runtime.own_command import OWN_COMMAND

app = new_app()

TOPIC, GROUP = "demo", "demo-readers"
RECORDS = 10
STOP_TIMEOUT_S = 10
TIME_LIMIT_S = 60  # of the whole demo, which takes about three seconds
AGAIN_S = 1  # what ends the demo is raised again as often, because kafka-python's loop may have swallowed it


@app.command()
def demo(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Keep the data there; else it is temporary.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 takes a free one.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the broker running until Ctrl-C.")] = False,
) -> None:
    """Start a broker and watch a round trip.

    Produces, consumes in a group, restarts the broker, and goes on where the group was.

    \b
    barnabas demo
    barnabas demo --keep --port 9092      then point your own client at it
    barnabas demo --data ./data --keep
    """
    if data == "":
        fail("--data wants the name of a directory, not an empty one.", ExitCode.NOT_VALID)
    directory = data or tempfile.mkdtemp(prefix="barnabas-demo-")
    broker = None
    interrupts: list[int] = []
    try:
        with _interruptible(interrupts):
            broker = DemoBroker(directory, port)
            _show(f"A broker serves at {broker.bootstrap} (process {broker.process.pid}, data in {directory}).")
            with told_in_sentences(Target(broker.bootstrap, TIME_LIMIT_S, 0, as_json=False)):
                _produce(broker.bootstrap)
                _consume(broker.bootstrap, RECORDS // 2)
                _show("The broker is stopped and started again.")
                broker.stop()
                broker = DemoBroker(directory, int(broker.bootstrap.rpartition(":")[2]))
                _consume(broker.bootstrap, RECORDS - RECORDS // 2)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _show("The group went on where it was. That is the round trip.")
            if keep:
                say(f"\nThe broker goes on at {broker.bootstrap} until Ctrl-C. In another terminal:")
                say(f"    barnabas consume {TOPIC} --from-beginning --details --bootstrap {broker.bootstrap}")
                broker.process.wait()
    except (KeyboardInterrupt, RuntimeError):  # kafka-python's loop makes a RuntimeError of an interruption
        if not interrupts:
            raise
        if not keep:
            raise KeyboardInterrupt from None
    finally:
        if broker is not None:
            broker.stop()
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
    if not keep:
        say("Start one that stays: barnabas start")


class DemoBroker:
    """A `barnabas start` process that is ready."""

    def __init__(self, directory: str, port: int) -> None:
        command = [*OWN_COMMAND, "start", "--json", "--log-level", "warning"]
        command += ["--exit-with-parent", "--data", directory, "--listeners", f"PLAINTEXT://127.0.0.1:{port}"]
        command += ["--set", "group.initial.rebalance.delay.ms=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            fail("the broker did not start; the line above says why.", ExitCode.FAILED)
        self.bootstrap: str = json.loads(line)["bootstrap"]

    def stop(self) -> None:
        """Stop the broker as Ctrl-C does, and return when its process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def _interruptible(interrupts: list[int]) -> Iterator[None]:
    """Ctrl-C ends what is done inside, and so does the time limit; `interrupts` gets the signals."""

    def interrupt(number: int, _frame: Any) -> None:
        interrupts.append(number)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        raise KeyboardInterrupt

    def ring(_number: int, _frame: Any) -> None:
        if interrupts:
            raise KeyboardInterrupt
        fail(f"the round trip was not done in {TIME_LIMIT_S} s.")

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _show(message: str) -> None:
    print(f"\n{message}", flush=True)


def _produce(bootstrap: str) -> None:
    from barnabas.cli.shared.kafka_python import new_producer, read_without_assertions

    read_without_assertions()
    producer = new_producer(bootstrap_servers=bootstrap, compression_type="gzip")
    sent = [
        producer.send(TOPIC, key=f"key-{number}".encode(), value=f"message {number}".encode())
        for number in range(RECORDS)
    ]
    last = [future.get(timeout=30) for future in sent][-1]
    producer.close()
    where = f"{last.topic}-{last.partition}, offset {last.offset}"
    _show(f"{RECORDS} records went to topic {TOPIC!r}, the last one to {where}.")


def _consume(bootstrap: str, count: int) -> None:
    from barnabas.cli.shared.kafka_python import take_up_every_assignment
    from kafka import KafkaConsumer
    from kafka.admin import KafkaAdminClient

    take_up_every_assignment()
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=count,
        consumer_timeout_ms=20_000,
    )
    records: list[Any] = []
    while len(records) < count:
        polled = consumer.poll(1_000, max_records=count - len(records))
        records += [record for batch in polled.values() for record in batch]
    consumer.commit()
    consumer.close(autocommit=False)
    _show(f"Group {GROUP!r} read and committed:")
    print_table(
        ["topic", "#partition", "#offset", "key", "value"],
        [(each.topic, each.partition, each.offset, each.key.decode(), each.value.decode()) for each in records],
    )
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    row = positions(admin, GROUP)[0]
    admin.close()
    _show(f"Committed offset {row['committed_offset']}, log end {row['log_end_offset']}, lag {row['lag']}.")
