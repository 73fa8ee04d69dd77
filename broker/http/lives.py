"""`/v1/control/snapshots` and `/v1/control/restore`: note what brokers have, and put it back, in the same processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from barnabas.broker.http.control import gate_of
from barnabas.broker.http.routes import HttpAnswer, HttpError, HttpRequest, route
from barnabas.broker.http.schemas import array, boolean, integer, record, text
from barnabas.broker.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barnabas.runtime.clock import MovableClock
    from barnabas.runtime.lives import Lives, SharedTree, SnapshotError
    from barnabas.runtime.pending import Pending

ROLLED_BYTES = 1 << 20  # a longer segment is ended by a snapshot, so that it is linked and not copied
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

    def note(lives: Lives, directories: list[str], shared: SharedTree | None) -> Pending[Path | SnapshotError]:
        noted = lives.snapshot(directories, request.body.get("folder"), shared)
        if shared is None:
            for log in services.log_manager.all():
                if log.segments.active.size > ROLLED_BYTES:
                    log.roll()
        return noted

    return _changed(services, request, "snapshot", note)


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

    def put_back(lives: Lives, directories: list[str], shared: SharedTree | None) -> Pending[Path | SnapshotError]:
        return lives.restore(directories, request.body["folder"], shared)

    return _changed(services, request, "restore", put_back)


def _changed(
    services: Services,
    request: HttpRequest,
    what: str,
    change: Callable[[Lives, list[str], SharedTree | None], Pending[Path | SnapshotError]],
) -> Pending[HttpAnswer]:
    from barnabas.runtime import lives as process  # late: brokers without control do not import it

    lives = gate_of(services).lives
    if lives is None:
        raise HttpError(409, "SNAPSHOT_FAILED", "only a broker that `barnabas start` has started can do this.")
    log_manager = services.log_manager
    directories = [each.path for each in log_manager.open_directories]
    shared = _shared_tree(services, directories, request.body.get("brokers"))

    def answer(outcome: Path | SnapshotError) -> HttpAnswer:
        if isinstance(outcome, process.SnapshotError):
            return HttpError(507, "SNAPSHOT_FAILED", f"{outcome}.").answer
        moved_ms = cast("MovableClock", services.env.clock).moved_ms
        gate = gate_of(services)  # of the life before, but its rules and its record go on
        if request.body.get("ends_faults"):
            gate.rules.clear()
        told = {"folder": str(outcome), "life": lives.number, "clock_moved_ms": moved_ms}
        return HttpAnswer.json({**told, "next_request": gate.recorder.next_number})

    try:
        if log_manager.failed_directories:
            raise process.SnapshotError("a data directory has failed: mend it, and start this broker again")
        return change(lives, directories, shared).map(answer)
    except process.SnapshotError as error:
        lives.refuse(what, request.body.get("folder"), shared, str(error))
        raise HttpError(409, "SNAPSHOT_FAILED", f"{error}.") from None


def _shared_tree(services: Services, directories: list[str], node_ids: list[int] | None) -> SharedTree | None:
    """The tree that this broker shares with others; None: it has its own, in a data directory."""
    from barnabas.runtime.lives import SharedTree

    tree, node_id = services.tree_path, services.node_id
    registered = services.metadata_cache.brokers.keys()
    if tree is None:
        raise HttpError(409, "SNAPSHOT_FAILED", "the tree of this broker is in ZooKeeper, which nobody puts back.")
    if tree.rpartition("/")[0] in directories:
        if registered != {node_id}:
            raise HttpError(409, "SNAPSHOT_FAILED", "other brokers use the tree that is in the data of this one.")
        return None
    told = registered if node_ids is None else node_ids
    if node_id not in told:
        raise HttpError(400, "INVALID_BODY", f"brokers are those that are told the same, this one ({node_id}) also.")
    return SharedTree(tree, node_id, tuple(sorted(told)))
