"""`barnabas produce`: records from standard input or from the command line."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.cli.json_records import JsonRecord, read
from barnabas.cli.shared import kafka_python
from barnabas.cli.shared.client import connection, reason, told_in_sentences
from barnabas.cli.shared.exits import ExitCode, Failure, fail, key_values, say
from barnabas.cli.shared.rights import asks_for
from barnabas.cli.shared.target import Target, end_at_once, no_time_limit
from barnabas.cli.shared.terminal import INT32_MAX, INT64_MAX, new_app, print_json, progress
from barnabas.cluster.leader_and_isr import NO_LEADER
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted, names_in_a_line

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


class Format(StrEnum):
    """What a line of standard input is."""

    VALUE = "value"
    JSON = "json"


class Acks(StrEnum):
    """Which replicas must have a record before the broker answers."""

    ALL = "all"
    LEADER = "1"
    NOBODY = "0"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is sent: lines of standard input, or one value; and what all records have in common."""

    value: Annotated[str | None, typer.Option(help="Send this instead of the lines of standard input.")] = None
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line is KEY, this text, VALUE; \\t is a tab.")
    ] = None
    lines: Annotated[
        Format,
        typer.Option("--format", help="A line is a value, or a record as JSON, as `consume --format json` prints it."),
    ] = Format.VALUE
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="For every record; repeat.")] = None
    count: Annotated[int, typer.Option(min=1, help="Send --value so many times.")] = 1
    null_value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A value equal to this is sent as null: it deletes its key.")
    ] = None
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Else by the key's hash, or in turn.")
    ] = None
    timestamp: Annotated[
        int | None, typer.Option(min=0, max=INT64_MAX, metavar="MS", help="Milliseconds since 1970; else now.")
    ] = None

    def check(self) -> None:
        """End the command if the options exclude each other."""
        if self.value is None and self.count != 1:
            fail("--count repeats --value: give both.", ExitCode.NOT_VALID)
        if self.key is not None and self.key_separator is not None:
            fail("--key and --key-separator exclude each other.", ExitCode.NOT_VALID)
        if self.lines is Format.JSON:
            excluded = {"--value": self.value, "--key-separator": self.key_separator, "--null-value": self.null_value}
            for option, given in excluded.items():
                if given is not None:
                    fail(f"--format json and {option} exclude each other.", ExitCode.NOT_VALID)
        if self.key_separator == "":
            fail("--key-separator wants a text between key and value, not an empty one.", ExitCode.NOT_VALID)

    def records(self) -> Iterator[tuple[int, JsonRecord]]:
        """Each record with the number of its line, or 0."""
        headers = [(name, os.fsencode(text)) for name, text in key_values(self.header or [], "--header").items()]
        usual = JsonRecord(_bytes(self.key), None, headers, self.partition, self.timestamp)
        null = _bytes(self.null_value)
        if self.value is not None:
            taken = os.fsencode(self.value)
            one = usual._replace(value=None if taken == null else taken)
            return ((0, one) for _ in range(self.count))
        if sys.stdin.isatty():
            say("Each line is a record; end with Ctrl-D.")
        if self.lines is Format.JSON:
            return _json_lines(usual)
        separator = None if self.key_separator is None else _bytes(self.key_separator.replace("\\t", "\t"))
        return _lines(usual, separator, null)


@app.command()
def produce(
    target: Target,
    shape: Shape,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
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
    barnabas produce orders --format json < records.jsonl
    """
    shape.check()
    asks_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "write", "topic", topic)
    records = shape.records()
    settings = connection(target)
    kafka_python.send_headers_without_value()
    count = shape.count if shape.value is not None else None
    with told_in_sentences(target), progress("sent", count) as advance:
        producer = kafka_python.new_producer(
            **settings,
            acks=acks.value if acks is Acks.ALL else int(acks.value),
            enable_idempotence=acks is Acks.ALL,
            compression_type=None if compression is Compression.NONE else compression.value,
            value_serializer=kafka_python.null_values(),
            linger_ms=5,
            batch_size=131072,
            # Longer than the time limit of the command, which ends it with the usual sentence.
            max_block_ms=2 * int(target.timeout_s * 1000),
            delivery_timeout_ms=max(120_000, 2 * int(target.timeout_s * 1000)),
        )
        sent = Sent(producer, target, as_json, advance)
        try:
            sent.send(topic, records)
        except Failure:
            if shape.value is None and not as_json:  # else the places were told
                say(f"{counted(sent.count, 'record')} to {topic}, then:")
            raise
        finally:
            producer.close()
    if not as_json:
        say(f"{counted(sent.count, 'record')} to {topic}")


def _begun(producer: Any, topic: str, record: JsonRecord, line: int) -> Any:
    """Begin to send a record. One that kafka-python does not take ends the command."""
    from kafka.errors import MessageSizeTooLargeError

    try:
        return producer.send(
            topic,
            value=kafka_python.NO_VALUE if record.value is None and record.key is None else record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp,
        )
    except (ValueError, MessageSizeTooLargeError) as error:
        why = str(error).rstrip(".")
        if line:
            fail(f"line {line} cannot be sent: {why}.")
        fail(f"{why}.", ExitCode.NOT_VALID)


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
        kafka_python.note_answers(producer, self.answered.__setitem__)

    def why_not_taken(self) -> str:
        """What brokers said last of the partitions whose records wait. "": they are not refused."""
        refused: dict[int, list[str]] = {}
        waiting = {kafka_python.partition_of(future) for future in self.futures if not future.is_done}
        for partition in sorted(waiting):
            error_code = self.answered.get(partition, ErrorCode.NONE)
            if kafka_python.leader_for(self.producer, partition) == NO_LEADER:
                error_code = ErrorCode.LEADER_NOT_AVAILABLE
            if error_code:
                refused.setdefault(error_code, []).append(f"{partition.topic}-{partition.partition}")
        return "\n".join(
            f"records of {names_in_a_line(names)} are not taken: {_in_words(error_code)}. "
            "`barnabas cluster` shows who leads, and who is in sync."
            for error_code, names in refused.items()
        )

    def send(self, topic: str, records: Iterable[tuple[int, JsonRecord]]) -> None:
        """Send them. If one cannot be sent, or Ctrl-C comes, those before it are; so are those that were read."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.target.say_when_late(self.why_not_taken)
        try:
            for number, record in records:
                self.futures.append(_begun(self.producer, topic, record, number))
                if len(self.futures) >= IN_FLIGHT_RECORDS:
                    self.settle()
            self.flush()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, end_at_once)
            self.target.renew()
            self.flush()
        except Failure:
            self.flush()
            raise

    def flush(self) -> None:
        """Have all answered, and report them."""
        self.producer.flush()
        self.settle()

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


def _input() -> Iterator[bytes]:
    """The lines of standard input, without their ends."""
    while True:
        with no_time_limit():
            line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _lines(usual: JsonRecord, separator: bytes | None, null: bytes | None) -> Iterator[tuple[int, JsonRecord]]:
    for number, text in enumerate(_input(), start=1):
        key, value = usual.key, text
        if separator is not None:
            key, found, value = text.partition(separator)
            if not found:
                fail(f"line {number} has no {separator.decode()!r} between key and value.")
        yield number, usual._replace(key=key, value=None if value == null else value)


def _json_lines(usual: JsonRecord) -> Iterator[tuple[int, JsonRecord]]:
    """Records as JSON. What a line does not say is as the options say it for every record."""
    for number, text in enumerate(_input(), start=1):
        if not text.strip():
            continue
        record = read(text, number)
        yield (
            number,
            JsonRecord(
                usual.key if record.key is None else record.key,
                record.value,
                usual.headers if record.headers is None else record.headers,
                usual.partition if record.partition is None else record.partition,
                usual.timestamp if record.timestamp is None else record.timestamp,
            ),
        )
