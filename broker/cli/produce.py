"""`barnabas produce`: records from standard input or from the command line."""

import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from barnabas.broker.cli.client import CONNECT_TIMEOUT_MS, told_in_sentences
from barnabas.broker.cli.exits import ExitCode, fail, key_values, say
from barnabas.broker.cli.terminal import DEFAULT_BOOTSTRAP, Bootstrap, new_app, print_json, progress

app = new_app()

IN_FLIGHT_RECORDS = 10_000  # how many sends may be unanswered: bounds memory when standard input is endless


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Whose answer a send waits for."""

    ALL = "all"
    LEADER = "1"
    NOBODY = "0"


@app.command()
def produce(
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
    partition: Annotated[int | None, typer.Option(min=0, help="Else by the key's hash, or in turn.")] = None,
    timestamp: Annotated[int | None, typer.Option(metavar="MS", help="Milliseconds since 1970; else now.")] = None,
    compression: Annotated[
        Compression, typer.Option(metavar="NAME", help="Of batches: none, gzip, snappy, lz4 or zstd.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option(help="Whose answer to wait for.")] = Acks.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[bool, typer.Option("--json", help="Say where each record went, a line each.")] = False,
) -> None:
    """Send records; each line of standard input is one.

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
    headers = [(name, text.encode()) for name, text in key_values(header or [], "--header").items()]
    separator = key_separator.replace("\\t", "\t").encode() if key_separator is not None else None
    null = null_value.encode() if null_value is not None else None
    records: Iterator[tuple[bytes | None, bytes]]
    if value is not None:
        records = ((_bytes(key), value.encode()) for _ in range(count))
    else:
        if sys.stdin.isatty():
            say("Each line is a record; end with Ctrl-D.")
        records = _lines(key, separator)
    from kafka import KafkaProducer

    with told_in_sentences(bootstrap), progress("sent", count if value is not None else None) as advance:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="barnabas-cli",
            acks=acks.value if acks is Acks.ALL else int(acks.value),
            enable_idempotence=acks is Acks.ALL,
            compression_type=None if compression is Compression.NONE else compression.value,
            linger_ms=5,
            batch_size=131072,
            bootstrap_timeout_ms=CONNECT_TIMEOUT_MS,
            max_block_ms=15_000,
        )
        sent = Sent(as_json, advance)
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
            producer.flush()
            sent.settle()
        except ValueError as error:  # a name that no topic can have, a partition that the topic has not
            fail(f"{error}.", ExitCode.NOT_VALID)
        finally:
            producer.close()
    if not as_json:
        say(f"{sent.count} records to {topic}")


class Sent:
    """The records on their way: in order, reported when answered; the first failure is raised."""

    def __init__(self, as_json: bool, advance: Callable[[int], None]) -> None:
        self.as_json = as_json
        self.advance = advance
        self.count = 0
        self.futures: list[Any] = []

    @property
    def waiting(self) -> int:
        """How many are not reported yet."""
        return len(self.futures)

    def add(self, future: Any) -> None:
        """One more on its way."""
        self.futures.append(future)

    def settle(self) -> None:
        """Wait for all, report them."""
        for future in self.futures:
            metadata = future.get(timeout=60)
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


def _bytes(text: str | None) -> bytes | None:
    return text.encode() if text is not None else None


def _lines(key: str | None, separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            yield _bytes(key), text
            continue
        before, found, after = text.partition(separator)
        if not found:
            fail(f"line {number} has no {separator.decode()!r} between key and value.")
        yield before, after
