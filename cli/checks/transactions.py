"""Checks of transactions that are open for too long: consumers with read_committed wait behind them."""

from collections.abc import Iterator

from barnabas.cli.checks.facts import Facts
from barnabas.cli.checks.findings import Finding, Severity, check, listed
from barnabas.cli.open_transactions import Described, abort_words
from barnabas.cli.shared.words import command_of, duration

DECIDED_LONG_MS = 60_000  # so long after its begin a decided one should have all its markers
LATE_MS = 60_000  # coordinators look every ten seconds whose timeout is over


@check("hanging transactions", "partitions with an open transaction that no coordinator will end")
def hanging(facts: Facts) -> Iterator[Finding]:
    """Consumers with read_committed wait there for ever."""
    for one in facts.hanging:
        age = duration(max(facts.now_ms - one.last_timestamp_ms, 0) / 1000)
        yield Finding(
            Severity.ERROR,
            f"partition {one.topic}-{one.partition}",
            f"a transaction of producer {one.producer_id} hangs at offset {one.start_offset}, last record {age} ago",
            "No coordinator has the partition in a transaction of this producer, so none sends a marker. Consumers "
            "with read_committed get nothing from that offset on. The command aborts it.",
            abort_words(one.topic, one.partition, one.start_offset),
            one.last_timestamp_ms,
        )


@check("open transactions", "transactions that are open for long, and what holds up those that are decided")
def open_for_long(facts: Facts) -> Iterator[Finding]:
    """Ended by their timeout, if it is not as long as what waits can bear."""
    for one in facts.transactions:
        age_ms = facts.now_ms - one.start_ms
        age, where = duration(age_ms / 1000), f"transaction {one.transactional_id}"
        places = listed(f"{topic}-{index}" for topic, index in one.partitions) or "no partition yet"
        if one.state != "Ongoing":
            if age_ms >= DECIDED_LONG_MS:
                what = f"{one.state} for {age} at most: its marker is missing in {places}"
                why = (
                    "It is decided, and its coordinator sends the marker again and again. Leaders of these partitions "
                    "do not answer, or refuse it: the log of the coordinator says why."
                )
                yield Finding(Severity.ERROR, where, what, why, ("cluster",), one.start_ms)
            continue
        left_ms = one.timeout_ms - age_ms
        if left_ms < -LATE_MS:
            what = f"open for {age}, its timeout is over"
            yield Finding(Severity.ERROR, where, what, _WHY_LATE, _abort(one), one.start_ms)
        elif age_ms >= facts.stalled_ms:
            what = f"open for {age}, in {places}"
            why = (
                "Consumers with read_committed wait behind it. Its timeout aborts it in "
                f"{duration(max(left_ms, 0) / 1000)}, the command does it now."
            )
            yield Finding(Severity.WARNING, where, what, why, _abort(one), one.start_ms)


_WHY_LATE = "Its coordinator should have aborted it: look at its log. The command asks it to."


def _abort(one: Described) -> tuple[str, ...]:
    return command_of("transactions abort", [one.transactional_id])
