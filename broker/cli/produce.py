"""`barnabas produce`: records from standard input or from the command line."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.broker.cli.client import connection, reason, told_in_sentences
from barnabas.broker.cli.exits import ExitCode, fail, key_values, say
from barnabas.broker.cli.target import Target, end_at_once, no_time_limit
from barnabas.broker.cli.terminal import INT32_MAX, INT64_MAX, new_app, print_json, progress
from barnabas.cluster.leader_and_isr import NO_LEADER
from barnabas.protocol.errors import ErrorCode

app = new_app()

# Errors after which the client sends again until the time is over, in words for an operator.
FEW_IN_SYNC = "fewer replicas are in sync than min.insync.replicas asks for"
WORDS = {
    ErrorCode.LEADER_NOT_AVAILABLE: "there is no leader",
    ErrorCode.NOT_ENOUGH_REPLICAS: FEW_IN_SYNC,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: FEW_IN_SYNC,
}
IN_FLIGHT_RECORDS = 10_000  # that are not answered yet; bounds the memory when standard input is endless


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Which replicas must have a record before the broker answers."""

    ALL = "all"
    LEADER = "1"
    NOBODY = "0"


@app.command()
def produce(
    target: Target,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    value: Annotated[str | None, typer.Option(help="Send this instead of the lines of standard input.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line is KEY, this text, VALUE; \\t is a tab.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="For every record; repeat.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Send --value so many times.")] = 1,
    null_value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A value equal to this is sent as null: it deletes its key.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, max=INT32_MAX, help="Else by the key's hash, or in turn.")
    ] = None,
    timestamp: Annotated[
        int | None, typer.Option(min=0, max=INT64_MAX, metavar="MS", help="Milliseconds since 1970; else now.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option(metavar="NAME", help="Of batches: none, gzip, snappy, lz4 or zstd.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option(help="Whose answer to wait for.")] = Acks.ALL,
    as_json: Annotated[bool, typer.Option("--json", help="Say where each record went, a line each.")] = False,
) -> None:
    """Send records; each line of standard input is one.

    --timeout is how long the broker may take for an answer, not how long standard input may take.

    \b
    echo "hello" | barnabas produce orders
    barnabas produce orders --value hello --key 42 --header trace=a1
    printf 'k1:a\\nk2:b\\n' | barnabas produce orders --key-separator :
    barnabas produce orders --value x --count 100000 --compression zstd
    barnabas produce users --key 42 --value "" --null-value ""    delete key 42
    barnabas produce orders < lines.txt --json
    """
    if value is None and count != 1:
        fail("--count repeats --value: give both.", ExitCode.NOT_VALID)
    if key is not None and key_separator is not None:
        fail("--key and --key-separator exclude each other.", ExitCode.NOT_VALID)
    if key_separator == "":
        fail("--key-separator wants a text between key and value, not an empty one.", ExitCode.NOT_VALID)
    headers = [(name, os.fsencode(text)) for name, text in key_values(header or [], "--header").items()]
    separator = _bytes(key_separator.replace("\\t", "\t")) if key_separator is not None else None
    null = _bytes(null_value)
    records: Iterator[tuple[bytes | None, bytes]]
    if value is not None:
        records = ((_bytes(key), os.fsencode(value)) for _ in range(count))
    else:
        if sys.stdin.isatty():
            say("Each line is a record; end with Ctrl-D.")
        records = _lines(key, separator)
    settings = connection(target)
    from kafka import KafkaProducer

    with told_in_sentences(target), progress("sent", count if value is not None else None) as advance:
        producer = KafkaProducer(
            **settings,
            acks=acks.value if acks is Acks.ALL else int(acks.value),
            enable_idempotence=acks is Acks.ALL,
            compression_type=None if compression is Compression.NONE else compression.value,
            linger_ms=5,
            batch_size=131072,
            # Longer than the time limit of the command, which ends it with the usual sentence.
            max_block_ms=2 * int(target.timeout_s * 1000),
            delivery_timeout_ms=max(120_000, 2 * int(target.timeout_s * 1000)),
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so records already read are sent
        sent = Sent(producer, target, as_json, advance)
        target.say_when_late(sent.why_not_taken)
        try:
            for record_key, text in records:
                sent.add(
                    producer.send(
                        topic,
                        value=None if text == null else text,
                        key=record_key,
                        headers=headers,
                        partition=partition,
                        timestamp_ms=timestamp,
                    )
                )
                if sent.waiting >= IN_FLIGHT_RECORDS:
                    sent.settle()
            producer.flush()
            sent.settle()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, end_at_once)
            target.renew()
            producer.flush()
            sent.settle()
        except ValueError as error:  # an invalid topic name, or a partition that the topic does not have
            fail(f"{error}.", ExitCode.NOT_VALID)
        finally:
            producer.close()
    if not as_json:
        say(f"{sent.count} records to {topic}")


class Sent:
    """The records that were sent: each is reported when its answer comes, in order; the first failure is raised."""

    def __init__(self, producer: Any, target: Target, as_json: bool, advance: Callable[[int], None]) -> None:
        self.producer = producer
        self.target = target
        self.as_json = as_json
        self.advance = advance
        self.count = 0
        self.futures: list[Any] = []
        self.answered: dict[Any, int] = {}  # the error code of the last answer, by partition
        self._note_answers()

    def _note_answers(self) -> None:
        """The client sends again after most errors, and tells nobody what they were."""
        complete = self.producer._sender._complete_batch

        def note(batch: Any, answer: Any) -> None:
            self.answered[batch.topic_partition] = answer.error_code
            complete(batch, answer)

        self.producer._sender._complete_batch = note

    def why_not_taken(self) -> str:
        """What brokers said last of the partitions whose records wait. "": they are not refused."""
        from barnabas.storage.directory_contents import names_in_a_line

        metadata = self.producer._metadata
        refused: dict[int, list[str]] = {}
        waiting = {future._produce_future.topic_partition for future in self.futures if not future.is_done}
        for partition in sorted(waiting):
            error_code = self.answered.get(partition, ErrorCode.NONE)
            if metadata.leader_for_partition(partition) == NO_LEADER:
                error_code = ErrorCode.LEADER_NOT_AVAILABLE
            if error_code:
                refused.setdefault(error_code, []).append(f"{partition.topic}-{partition.partition}")
        return "\n".join(
            f"records of {names_in_a_line(names)} are not taken: {_in_words(error_code)}. "
            "`barnabas cluster` shows who leads, and who is in sync."
            for error_code, names in refused.items()
        )

    @property
    def waiting(self) -> int:
        """How many records are not reported yet."""
        return len(self.futures)

    def add(self, future: Any) -> None:
        """Add a record that was sent."""
        self.futures.append(future)

    def settle(self) -> None:
        """Wait for all answers and report them."""
        for future in self.futures:
            metadata = future.get()
            self.target.renew()
            self.count += 1
            if self.as_json:
                print_json(
                    {
                        "topic": metadata.topic,
                        "partition": metadata.partition,
                        "offset": metadata.offset,
                        "timestamp": metadata.timestamp,
                    }
                )
        self.advance(len(self.futures))
        self.futures.clear()


def _in_words(error_code: int) -> str:
    for error, words in WORDS.items():
        if error == error_code:
            return f"{words} ({error.name})"
    return reason(error_code).rstrip(".")


def _bytes(text: str | None) -> bytes | None:
    """The bytes of an argument as they were typed, also if they are not UTF-8."""
    return os.fsencode(text) if text is not None else None


def _lines(key: str | None, separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    number = 0
    while True:
        with no_time_limit():
            line = sys.stdin.buffer.readline()
        if not line:
            return
        number += 1
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            yield _bytes(key), text
            continue
        before, found, after = text.partition(separator)
        if not found:
            fail(f"line {number} has no {separator.decode()!r} between key and value.")
        yield before, after
