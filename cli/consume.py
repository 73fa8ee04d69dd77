"""`barnabas consume`: records to standard output."""

import re
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli.record_places import begin_at, last_or_place
from barnabas.cli.record_printing import printer
from barnabas.cli.shared.client import admin, answered, await_coordinators, connection, no_topic, told_in_sentences
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.target import SECONDS_MAX, Target, end_at_once, no_time_limit
from barnabas.cli.shared.terminal import INT32_MAX, new_app
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

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
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, metavar="N", help="Only this partition; repeat."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Begin there: an offset, -N (the last N), earliest, latest, or a time."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, max=SECONDS_MAX, help="Stop when no record came for so long."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Show timestamp, partition, offset, key and headers too.")
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORM",
            help="value, details, json, or a text with {key}, {value}, {headers}, {topic}, {partition}, {offset}, "
            "{timestamp}, \\t and \\n.",
        ),
    ] = "value",
    as_json: Annotated[bool, typer.Option("--json", help="As --format json: one line per record.")] = False,
) -> None:
    """Print records as they come, until Ctrl-C, --max or --timeout, or until no broker has answered for 30 seconds.

    Exit code 3 when --timeout passed before any record, or before --max records, had come.

    \b
    barnabas consume orders
    barnabas consume orders --from-beginning --details
    barnabas consume orders --partition 0 --offset 4711 --max 1
    barnabas consume orders --offset -10 --timeout 1
    barnabas consume orders --offset 2026-03-01T12:00 --format '{key}: {value}'
    barnabas consume orders --offset earliest --format json > records.jsonl
    barnabas consume orders --group billing --max 10 --timeout 30
    barnabas consume --pattern 'orders-.*' --from-beginning --timeout 2 --json
    """
    if not topics and pattern is None:
        fail("name a topic, or a --pattern.", ExitCode.NOT_VALID)
    if topics and pattern is not None:
        fail("topics and --pattern exclude each other.", ExitCode.NOT_VALID)
    is_placed = bool(partition) or offset is not None
    if is_placed and (group is not None or pattern is not None or len(topics or ()) != 1):
        fail("--partition and --offset are for one topic, without --group and --pattern.", ExitCode.NOT_VALID)
    if offset is not None and from_beginning:
        fail("--offset and --from-beginning exclude each other.", ExitCode.NOT_VALID)
    place = None if offset is None else last_or_place(offset)
    show = printer(form)
    if as_json or details:
        show = printer("json" if as_json else "details")
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
    from barnabas.cli.shared.kafka_python import NotUtf8, read_every_header_name, take_up_every_assignment
    from kafka import KafkaConsumer
    from kafka.errors import UnknownBrokerIdError

    take_up_every_assignment()
    read_every_header_name()
    count = 0
    clock = RealClock()
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
            if is_placed:
                assert topics
                begin_at(consumer, topics[0], partition or [], place, from_beginning)
            else:
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
                            if any(isinstance(name, NotUtf8) for name, _ in record.headers):
                                place = f"{record.topic}-{record.partition}, offset {record.offset}"
                                say(f"{place}: the name of a header is not UTF-8; \ufffd stands for what is not.")
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
        came = f"{counted(count, 'record')} came, then none" if count else "no record came"
        fail(f"{came} for {timeout:g} s.", ExitCode.NOTHING_THERE)


def _must_exist(consumer: Any, topics: list[str]) -> None:
    """End the command if a topic does not exist. It also fetches the metadata that a group's leader needs to assign."""
    for topic in topics:
        if not answered(None, partial(consumer.partitions_for_topic, topic)):
            no_topic(topic)
