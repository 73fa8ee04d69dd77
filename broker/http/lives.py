"""`/v1/control/snapshots` and `/v1/control/restore`: note what brokers have, and put it back, in the same processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from barnabas.broker.control import snapshots
from barnabas.broker.http.control import gate_of
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import array, boolean, integer, record, text
from barnabas.broker.services import Services
from barnabas.runtime.lives import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barnabas.runtime.clock import MovableClock
    from barnabas.runtime.pending import Pending

CHANGED_WITHIN_MS = 300_000.0  # a copy of very much data may take long

BROKERS = array(
    integer("A node id."),
    "Of a cluster whose tree is a file: the brokers that are told the same. Default: all that are registered.",
)
SNAPSHOT_BODY = record(
    "Where the snapshot goes.",
    optional=("folder", "brokers"),
    folder=text(
        "A path on the broker's machine that does not exist yet. Default, for one broker: one that is gone when it "
        "ends."
    ),
    brokers=BROKERS,
)
RESTORE_BODY = record(
    "What to put back.",
    optional=("brokers", "ends_faults"),
    folder=text("The folder of the snapshot."),
    brokers=BROKERS,
    ends_faults=boolean("Whether the faults end that hold. Default: they go on."),
)
SNAPSHOT = record(
    "A snapshot, and the broker that serves since.",
    folder=text("Where it is."),
    life=integer("Grows with each snapshot and restore."),
    clock_moved_ms=integer("How far tests have moved the wall clock."),
    next_request=integer("The number of the next request of a client, as `since` of `/v1/control/requests` takes it."),
)


@route(
    "POST",
    "/v1/control/snapshots",
    summary="Note all that the broker has",
    body=SNAPSHOT_BODY,
    answer=SNAPSHOT,
    within_ms=CHANGED_WITHIN_MS,
    ends_life=True,
)
def take_snapshot(services: Services, request: HttpRequest) -> Pending[HttpAnswer]:
    """Records, offsets, groups, transactions, topics and settings, and the time. Connections of clients are cut; the
    broker serves again, at the same addresses, when the answer comes. Full segments are linked, not copied. Of a
    cluster on this machine, tell all brokers at the same time: the snapshot is one of all.
    """

    return _changed(services, request, snapshots.take)


@route(
    "POST",
    "/v1/control/restore",
    summary="Put back all that a snapshot has",
    body=RESTORE_BODY,
    answer=SNAPSHOT,
    within_ms=CHANGED_WITHIN_MS,
    ends_life=True,
)
def restore(services: Services, request: HttpRequest) -> Pending[HttpAnswer]:
    """What came after the snapshot is gone. Connections of clients are cut; the broker serves again, at the same
    addresses, when the answer comes. Faults (unless `ends_faults` says otherwise) and the record of requests go on. If
    this fails, all is as it was. Of a cluster on this machine, tell all brokers at the same time.
    """

    return _changed(services, request, snapshots.put_back)


def _changed(
    services: Services,
    request: HttpRequest,
    change: Callable[[Services, Any, list[int] | None], Pending[Path | SnapshotError]],
) -> Pending[HttpAnswer]:
    gate_of(services)  # says so if tests cannot command this broker
    node_ids = request.body.get("brokers")
    if node_ids is not None and services.node_id not in node_ids:
        message = f"brokers are those that are told the same, this one ({services.node_id}) also."
        raise HttpError(400, "INVALID_BODY", message)

    def answer(outcome: Path | SnapshotError) -> HttpAnswer:
        if isinstance(outcome, SnapshotError):
            return HttpError(507, "SNAPSHOT_FAILED", f"{outcome}.").answer
        moved_ms = cast("MovableClock", services.env.clock).moved_ms
        gate = gate_of(services)  # of the life before, but its rules and its record go on
        assert gate.lives is not None, "a life has ended without another"
        if request.body.get("ends_faults"):
            gate.rules.clear()
        told = {"folder": str(outcome), "life": gate.lives.number, "clock_moved_ms": moved_ms}
        return HttpAnswer.json({**told, "next_request": gate.recorder.next_number})

    try:
        return change(services, request.body.get("folder"), node_ids).map(answer)
    except SnapshotError as error:
        raise HttpError(409, "SNAPSHOT_FAILED", f"{error}.") from None
