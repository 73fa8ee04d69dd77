"""`barnabas consume`: records to standard output."""

import math
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer
from barnabas.cli.record_places import begin_at, last_or_place
from barnabas.cli.record_printing import printer
from barnabas.cli.shared.client import (
    admin,
    answered,
    await_coordinators,
    connection,
    describe_topics,
    told_in_sentences,
)
from barnabas.cli.shared.exits import ExitCode, fail, say
from barnabas.cli.shared.moments import A_TIME
from barnabas.cli.shared.options import Names
from barnabas.cli.shared.rights import asks_for
from barnabas.cli.shared.target import SECONDS_MAX, Target, end_at_once, no_time_limit
from barnabas.cli.shared.terminal import INT32_MAX, new_app
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.clock import RealClock
from barnabas.runtime.counted import counted

app = new_app()

ANSWER_MARGIN_S = 5  # how much longer than --timeout the broker may take to answer, because --timeout is for records
CLOSE_TIMEOUT_MS = 2_000  # short, because the broker may be gone
LOOK_MS = 5_000  # when no record came for so long, the command tries whether the broker is still there
POLL_MS = 500  # a signal or the time-out is noticed so late at most
POLL_RECORDS = 500


@dataclass(frozen=True, kw_only=True)
class Place(Names):
    """What is read, and from where on."""

    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="Every topic whose name matches.")] = None
    group: Annotated[str | None, typer.Option("--group", "-g", help="Read as a member of a group, and commit.")] = None
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Where the group has committed nothing: from the first record.")
    ] = False
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, metavar="N", help="Only this partition; repeat."),
    ] = None
    offset: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help=f"Begin there: an offset, -N (the last N), earliest, latest, or {A_TIME}."),
    ] = None

    def check(self) -> None:
        """End the command if the options exclude each other."""
        if not self.topics and self.pattern is None:
            fail("name a topic, or a --pattern.", ExitCode.NOT_VALID)
        if self.topics and self.pattern is not None:
            fail("topics and --pattern exclude each other.", ExitCode.NOT_VALID)
        if self.is_placed and (self.group is not None or self.pattern is not None or len(self.topics or ()) != 1):
            fail("--partition and --offset are for one topic, without --group and --pattern.", ExitCode.NOT_VALID)
        if self.offset is not None and self.from_beginning:
            fail("--offset and --from-beginning exclude each other.", ExitCode.NOT_VALID)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            fail(f"--pattern is not a regular expression: {error}.", ExitCode.NOT_VALID)

    @property
    def is_placed(self) -> bool:
        """Whether partitions or an offset are named."""
        return bool(self.partition) or self.offset is not None

    def await_coordinator(self, target: Target) -> None:
        """Wait for the group's coordinator, because kafka-python's consumer asks one that is silent again and again."""
        if self.group is not None:
            asks_for(ErrorCode.GROUP_AUTHORIZATION_FAILED, "read", "group", self.group)
            with admin(target) as client:
                await_coordinators(client, [self.group])

    def consumer(self, settings: dict[str, Any]) -> Any:
        """A consumer that takes every record, and every assignment."""
        from barnabas.cli.shared.kafka_python import read_every_header_name, take_up_every_assignment
        from kafka import KafkaConsumer

        take_up_every_assignment()
        read_every_header_name()
        return KafkaConsumer(
            **settings,
            group_id=self.group,
            auto_offset_reset="earliest" if self.from_beginning else "latest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
        )

    def begin(self, consumer: Any, where: Any, target: Target) -> None:
        """Let a consumer begin there. A topic that does not exist ends the command."""
        for topic in self.topics or ():  # it also fetches the metadata that a group's leader needs to assign
            if not answered(None, partial(consumer.partitions_for_topic, topic)):
                with admin(target) as client:
                    describe_topics(client, [topic])  # it says whether there is none, or a right is missing
        if self.is_placed:
            assert self.topics
            begin_at(consumer, self.topics[0], self.partition or [], where, self.from_beginning)
        else:
            consumer.subscribe(self.topics or (), pattern=self.pattern)


@app.command()
def consume(
    target: Target,
    place: Place,
    limit: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.")] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.001, max=SECONDS_MAX, help="Stop when no record came for so long."
        ),
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
    barnabas consume orders --offset 15m
    barnabas consume orders --offset earliest --format json > records.jsonl
    barnabas consume orders --group billing --max 10 --timeout 30
    barnabas consume --pattern 'orders-.*' --from-beginning --timeout 2 --json
    """
    place.check()
    where = None if place.offset is None else last_or_place(place.offset)
    show = printer(form)
    if as_json or details:
        show = printer("json" if as_json else "details")
    if timeout_s is not None:
        target = replace(target, timeout_s=min(target.timeout_s, timeout_s + ANSWER_MARGIN_S))
    if place.topics is not None and len(place.topics) == 1:
        asks_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "read", "topic", place.topics[0])
    place.await_coordinator(target)
    settings = connection(target)
    with told_in_sentences(target):
        consumer = place.consumer(settings)
        try:
            place.begin(consumer, where, target)
            reading = Reading(consumer, target, limit, timeout_s, show, commits=place.group is not None)
            reading.run()
        finally:
            target.renew()
            consumer.close(autocommit=False, timeout_ms=CLOSE_TIMEOUT_MS)
    reading.check_came()


class Reading:
    """Prints records as they come, until there are enough, none comes any more, nobody answers, or a signal comes."""

    def __init__(
        self,
        consumer: Any,
        target: Target,
        limit: int | None,
        timeout_s: float | None,
        show: Callable[[Any], None],
        *,
        commits: bool,
    ) -> None:
        self._consumer = consumer
        self._target = target
        self._limit = limit
        self._timeout_ms = math.inf if timeout_s is None else timeout_s * 1000
        self._show = show
        self._commits = commits
        self.count = 0
        self.is_stopped = False

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        clock = RealClock()
        last_ms = answered_ms = clock.monotonic_ms()
        while not self.is_stopped and (self._limit is None or self.count < self._limit):
            self._target.renew()
            has_come = self._print_more()
            now_ms = clock.monotonic_ms()
            if has_come:
                last_ms = answered_ms = now_ms
            elif now_ms - last_ms >= self._timeout_ms:
                break
            elif now_ms - answered_ms >= LOOK_MS and self._target.answers():
                answered_ms = now_ms
            elif now_ms - answered_ms >= self._target.timeout_s * 1000:
                self._target.nobody_answers()

    def check_came(self) -> None:
        """End the command with another exit code if the time was over before anything, or enough, had come."""
        is_enough = self.count > 0 if self._limit is None else self.count >= self._limit
        if not self.is_stopped and self._timeout_ms < math.inf and not is_enough:
            came = f"{counted(self.count, 'record')} came, then none" if self.count else "no record came"
            fail(f"{came} for {self._timeout_ms / 1000:g} s.", ExitCode.NOTHING_THERE)

    def _stop(self, number: int, _frame: Any) -> None:
        self.is_stopped = True
        signal.signal(number, end_at_once)  # the second signal ends the command at once

    def _print_more(self) -> bool:
        """Print what has come; False: nothing."""
        from barnabas.cli.shared.kafka_python import NotUtf8
        from kafka.errors import UnknownBrokerIdError

        wanted = POLL_RECORDS if self._limit is None else min(POLL_RECORDS, self._limit - self.count)
        try:
            batches = self._consumer.poll(POLL_MS, max_records=wanted)
        except UnknownBrokerIdError:  # the leader has just left the metadata: the next poll finds another one
            return False
        with no_time_limit():  # the reader of the output may be slow
            for records in batches.values():
                for record in records:
                    self._show(record)
                    if any(isinstance(name, NotUtf8) for name, _ in record.headers):
                        place = f"{record.topic}-{record.partition}, offset {record.offset}"
                        say(f"{place}: the name of a header is not UTF-8; \ufffd stands for what is not.")
                self.count += len(records)
            sys.stdout.flush()
        if batches and self._commits:
            answered(None, self._consumer.commit)
        return bool(batches)
