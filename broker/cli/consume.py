"""`barnabas consume`: records to standard output."""

import base64
import re
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.broker.cli.client import admin, answered, await_coordinators, connection, told_in_sentences
from barnabas.broker.cli.exits import ExitCode, fail
from barnabas.broker.cli.target import SECONDS_MAX, Target, end_at_once, no_time_limit
from barnabas.broker.cli.terminal import new_app, print_json
from barnabas.runtime.clock import RealClock

app = new_app()

ANSWER_MARGIN_S = 5  # how much longer than --timeout the broker may take to answer, because --timeout is for records
CLOSE_TIMEOUT_MS = 2_000  # short, because the broker may be gone
LOOK_MS = 5_000  # when no record came for so long, the command tries whether the broker is still there
POLL_MS = 500  # a signal or the time-out is noticed so late at most
POLL_RECORDS = 500


@app.command()
def consume(
    target: Target,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="Every topic whose name matches.")] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Read as a member of a group, and commit.")] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Where the group has committed nothing: from the first record.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, max=SECONDS_MAX, help="Stop when no record came for so long."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Show timestamp, partition, offset, key and headers too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per record.")] = False,
) -> None:
    """Print records as they come, until Ctrl-C, --max or --timeout, or until no broker has answered for 30 seconds.

    Exit code 3 when --timeout passed before any record, or before --max records, had come.

    \b
    barnabas consume orders
    barnabas consume orders --from-beginning --details
    barnabas consume orders --group billing --max 10 --timeout 30
    barnabas consume --pattern 'orders-.*' --from-beginning --timeout 2 --json
    """
    if not topics and pattern is None:
        fail("name a topic, or a --pattern.", ExitCode.NOT_VALID)
    if topics and pattern is not None:
        fail("topics and --pattern exclude each other.", ExitCode.NOT_VALID)
    try:
        re.compile(pattern or "")
    except re.error as error:
        fail(f"--pattern is not a regular expression: {error}.", ExitCode.NOT_VALID)
    if timeout is not None:
        target = replace(target, timeout_s=min(target.timeout_s, timeout + ANSWER_MARGIN_S))
    if group is not None:  # kafka-python's consumer asks a coordinator that does not answer again and again
        with admin(target) as client:
            await_coordinators(client, [group])
    settings = connection(target)
    stopping: list[int] = []
    from kafka import KafkaConsumer
    from kafka.errors import UnknownBrokerIdError

    count = 0
    clock = RealClock()
    show = _show_json if as_json else _show_details if details else _show_value
    with told_in_sentences(target):
        consumer = KafkaConsumer(
            **settings,
            group_id=group,
            auto_offset_reset="earliest" if from_beginning else "latest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
        )
        try:
            if topics:
                _must_exist(consumer, topics)
            consumer.subscribe(topics or (), pattern=pattern)

            def stop(number: int, _frame: Any) -> None:
                stopping.append(number)
                signal.signal(number, end_at_once)  # the second signal ends the command at once

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            last_ms = answered_ms = clock.monotonic_ms()
            while not stopping and (limit is None or count < limit):
                wanted = POLL_RECORDS if limit is None else min(POLL_RECORDS, limit - count)
                target.renew()
                try:
                    batches = consumer.poll(POLL_MS, max_records=wanted)
                except UnknownBrokerIdError:  # the leader has just left the metadata: the next poll finds another one
                    batches = {}
                with no_time_limit():  # the reader of the output may be slow
                    for records in batches.values():
                        for record in records:
                            show(record)
                        count += len(records)
                    sys.stdout.flush()
                if batches and group is not None:
                    answered(None, consumer.commit)
                now_ms = clock.monotonic_ms()
                if batches:
                    last_ms = answered_ms = now_ms
                elif timeout is not None and now_ms - last_ms >= timeout * 1000:
                    break
                elif now_ms - answered_ms >= LOOK_MS and target.answers():
                    answered_ms = now_ms
                elif now_ms - answered_ms >= target.timeout_s * 1000:
                    target.nobody_answers()
        finally:
            target.renew()
            consumer.close(autocommit=False, timeout_ms=CLOSE_TIMEOUT_MS)
    if not stopping and timeout is not None and (count == 0 or (limit is not None and count < limit)):
        came = f"{count} records came, then none" if count else "no record came"
        fail(f"{came} for {timeout:g} s.", ExitCode.NOTHING_THERE)


def _must_exist(consumer: Any, topics: list[str]) -> None:
    """End the command if a topic does not exist. It also fetches the metadata that a group's leader needs to assign."""
    for topic in topics:
        if not answered(None, partial(consumer.partitions_for_topic, topic)):
            fail(f"there is no topic {topic}. (All topics: barnabas topics list)", ExitCode.NOTHING_THERE)


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", "replace")


def _show_value(record: Any) -> None:
    sys.stdout.buffer.write((record.value if record.value is not None else b"null") + b"\n")


def _show_details(record: Any) -> None:
    headers = ",".join(f"{name}={_text(value)}" for name, value in record.headers) or "-"
    print(
        f"{record.timestamp}\t{record.topic}-{record.partition}\t{record.offset}\t"
        f"{'-' if record.key is None else _text(record.key)}\t{headers}\t{_text(record.value)}"
    )


def _show_json(record: Any) -> None:
    print_json(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **_json_bytes("key", record.key),
            **_json_bytes("value", record.value),
            "headers": [{"name": name, **_json_bytes("value", value)} for name, value in record.headers],
        }
    )


def _json_bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """A key or value as JSON: as text under `name`, or as base64 under another name if it is not UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
