"""`/v1/control/snapshots` and `/v1/control/restore`: note what a broker has, and put it back, in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from barnabas.broker.http.control import gate_of
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import integer, record, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barnabas.broker.services import Services
    from barnabas.runtime.clock import MovableClock
    from barnabas.runtime.lives import Lives, SnapshotError
    from barnabas.runtime.pending import Pending

ROLLED_BYTES = 1 << 20  # a longer segment is ended by a snapshot, so that it is linked and not copied
CHANGED_WITHIN_MS = 300_000.0  # a copy of very much data may take long

SNAPSHOT_BODY = record(
    "Where the snapshot goes.",
    optional=("folder",),
    folder=text("A path on the broker's machine that does not exist yet. Default: one that is gone when it ends."),
)
RESTORE_BODY = record("What to put back.", folder=text("The folder of the snapshot."))
SNAPSHOT = record(
    "A snapshot, and the broker that serves since.",
    folder=text("Where it is."),
    life=integer("Grows with each snapshot and restore."),
    clock_moved_ms=integer("How far tests have moved the wall clock."),
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
    broker serves again, at the same addresses, when the answer comes. Full segments are linked, not copied.
    """

    def note(lives: Lives, directories: list[str]) -> Pending[Path | SnapshotError]:
        noted = lives.snapshot(directories, request.body.get("folder"))
        _end_long_segments(services)
        return noted

    return _changed(services, note)


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
    addresses, when the answer comes. Faults and the record of requests go on. If this fails, all is as it was.
    """
    return _changed(services, lambda lives, directories: lives.restore(directories, request.body["folder"]))


def _changed(
    services: Services, change: Callable[[Lives, list[str]], Pending[Path | SnapshotError]]
) -> Pending[HttpAnswer]:
    from barnabas.runtime import lives as process  # late: brokers without control do not import it

    lives = gate_of(services).lives
    if lives is None:
        raise HttpError(409, "SNAPSHOT_FAILED", "only a broker that `barnabas start` has started can do this.")
    log_manager = services.log_manager
    directories = [each.path for each in log_manager.open_directories]
    if log_manager.failed_directories:
        raise HttpError(409, "SNAPSHOT_FAILED", "a data directory has failed: mend it, and start this broker again.")
    if services.tree_path is None or services.tree_path.rpartition("/")[0] not in directories:
        message = "the tree of this broker is not in its data directories, so other brokers may use it."
        raise HttpError(409, "SNAPSHOT_FAILED", message)

    def answer(outcome: Path | SnapshotError) -> HttpAnswer:
        if isinstance(outcome, process.SnapshotError):
            return HttpError(507, "SNAPSHOT_FAILED", f"{outcome}.").answer
        moved_ms = cast("MovableClock", services.env.clock).moved_ms
        return HttpAnswer.json({"folder": str(outcome), "life": lives.number, "clock_moved_ms": moved_ms})

    try:
        return change(lives, directories).map(answer)
    except process.SnapshotError as error:
        raise HttpError(409, "SNAPSHOT_FAILED", f"{error}.") from None


def _end_long_segments(services: Services) -> None:
    """What ends here need not be copied."""
    for log in services.log_manager.all():
        if log.segments.active.size > ROLLED_BYTES:
            log.roll()
