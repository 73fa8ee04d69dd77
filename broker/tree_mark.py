"""What this broker knows of the tree, on its disks; above all its mark, a number that it counts up here and there.

A tree that was put back from a backup does not know what has happened since: other replicas may have been in sync, and
have acknowledged what this one, or another, does not have. It does know a smaller mark than the disks. Nothing else
tells it for certain. The numbers of the tree go on from where the copy was, and soon are as large as they were.

So the mark is counted up with each registration, at once when the controller tells something, and now and then in
quiet times: a copy that is older than that is noticed by every broker that has run since. It is written to the tree
first, and to the disks afterwards: a process that dies between the two does not take its tree for an older one.

The tree says as well which mark was synced to the disks last, at each registration and now and then: disks with less
are an older copy, also if the machine has lost its power.

Beside it on the disks is what such a copy would give again: leader epochs, and producer ids (`later_numbers.py`). The
ids are there before they are used, and the epochs are a little behind.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from barnabas.cluster.tree import paths
from barnabas.cluster.tree.payloads import TreeMark
from barnabas.cluster.tree.port import (
    ANY_VERSION,
    Coordination,
    CoordinationError,
    Operation,
    Set,
    get_if_there,
)
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env, File
from barnabas.runtime.turns import ended
from barnabas.runtime.upkeep import Task
from barnabas.storage import checkpoints
from barnabas.storage.checkpoints import TreeKnowledge
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

BETWEEN_MS = 50.0  # so long it waits, at least, until it is counted up again
QUIET_MS = 5_000.0  # how often it is counted up while the controller tells nothing
SYNC_MS = 60_000.0  # how often it is synced


class OwnMark:
    """The mark of this broker.

    It is written only while `is_in_its_tree`: a tree that was put back under the broker, and has its newest mark, could
    not be told from that of before any more. `is_wanted`: whether there are other replicas, or somebody may do so.
    Otherwise it counts when it registers: leader epochs change by that only; and once more when that is synced.
    `leader_epoch`: the largest one of which it was told in this life.
    """

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        node_id: int,
        log_manager: LogManager,
        is_in_its_tree: Callable[[], bool],
        is_wanted: Callable[[], bool],
        leader_epoch: Callable[[], int],
    ) -> None:
        self.path = paths.tree_mark(node_id)
        self._clock = env.clock
        self._disk = env.disk
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._log_manager = log_manager
        self._is_in_its_tree = is_in_its_tree
        self._is_wanted = is_wanted
        self._leader_epoch = leader_epoch
        self._number = 0
        self._largest_in_tree = 0  # that may be there: the answer to a write may be lost
        self._producer_id = -1
        self._restored_ms = -1
        self._durable = 0
        self._durable_in_tree = 0
        self._counted_ms = self._synced_ms = -math.inf
        self._has_news = True
        self._looking: Task[OwnMark] | None = None

    @property
    def on_disk(self) -> int:
        """The last mark that a start has found on this broker's disks, or that was written to them since."""
        return self.known.mark

    @property
    def known(self) -> TreeKnowledge:
        """All that a start has found on this broker's disks, and that it was told since."""
        found = [directory.contents.tree_knowledge for directory in self._log_manager.directories]
        now = TreeKnowledge(self._number, self._leader_epoch(), self._producer_id)
        return TreeKnowledge(*map(max, zip(now, *found)))

    async def in_tree(self) -> tuple[TreeMark, int]:
        """What the tree says of it, and the zxid of that. ValueError if somebody wrote it by hand."""
        node = await get_if_there(self._coordination, self.path)
        if node is None:
            return TreeMark(), 0
        mark = TreeMark.decode(node[0])
        self._restored_ms, self._durable_in_tree = mark.restored_ms, mark.durable
        self._durable = max(self._durable, mark.durable)
        self._largest_in_tree = max(self._largest_in_tree, mark.number)
        return mark, node[1].mzxid

    def setting(self, mark: TreeMark) -> Set:
        """The operation that writes it into the tree."""
        self._largest_in_tree = max(self._largest_in_tree, mark.number)
        return Set(self.path, mark.encode(), ANY_VERSION)

    async def write(self, mark: TreeMark) -> None:
        """Write it into the tree, then to the disks. NoNodeError: the tree is empty, so it is another one."""
        self._largest_in_tree = max(self._largest_in_tree, mark.number)
        await self._coordination.set(self.path, mark.encode())
        self._number, self._restored_ms = max(self._number, mark.number), mark.restored_ms
        self._durable_in_tree = mark.durable
        for file in self._write_down():
            file.close()

    async def count(self) -> None:
        """Count it up, if that is wanted, or the tree does not know yet what is synced."""
        if self._is_in_its_tree() and (self._is_wanted() or self._durable > self._durable_in_tree):
            await self.write(self._next)

    @property
    def _next(self) -> TreeMark:
        """A number that the tree has never had: a copy of it may have the last one, also if the disks have not."""
        number = max(self.on_disk, self._largest_in_tree) + 1
        return TreeMark(number, restored_ms=self._restored_ms, durable=self._durable)

    def counting(self) -> list[Operation]:
        """What counts it up as this broker registers; `registered` is to be called afterwards."""
        return [self.setting(self._next)]

    async def registered(self) -> None:
        """This broker has registered. Returns when a crash of the machine cannot lose that it has."""
        with suppress(ValueError):  # somebody wrote it by hand
            mark, _ = await self.in_tree()  # it was not counted if the registration was there already
            self._number = max(self._number, mark.number)
        await ended(self._keep())

    def given(self, producer_id: int) -> Pending[None]:
        """This broker was given producer ids up to this one. It uses them when a crash cannot lose that."""
        self._producer_id = producer_id
        return self._keep()

    def _keep(self) -> Pending[None]:
        """Write to the disks what is known. A disk that cannot be written to keeps nobody waiting."""
        kept: Pending[None] = Pending()
        self._synced_ms = self._clock.monotonic_ms()
        files, number = self._write_down(), self.on_disk
        folders = [directory.path for directory in self._log_manager.open_directories]

        def synced(error: OSError | None) -> None:
            if error is not None:
                logger.warning("failed to write the tree mark to a disk: %s", error)
            elif len(files) == len(folders) and self._disk.syncs:
                self._durable = max(self._durable, number)
            kept.complete(None)

        self._disk.sync_in_background(files, synced, folders)
        for file in files:
            file.close()
        return kept

    def _write_down(self) -> list[File]:
        paths = [directory.path_of(checkpoints.TREE_MARK) for directory in self._log_manager.open_directories]
        failed = partial(logger.debug, "%s could not be written: %s")
        return checkpoints.write_in_each(self._disk, paths, self.known, failed)

    def start(self) -> None:
        """Count from now on. The tree is not older than the disks any more."""
        self._looking = self._upkeep.every(
            "tree mark", lambda: BETWEEN_MS if self._has_news else QUIET_MS, lambda: [self], OwnMark._look
        )
        self._looking.run_soon()

    def note_news(self) -> None:
        """The controller has told something."""
        self._has_news = True
        if self._looking is not None:
            self._looking.run_soon()

    def stop(self) -> None:
        """Count no more."""
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._counted_ms + BETWEEN_MS:
            return
        self._counted_ms, self._has_news = now_ms, False
        try:
            await self.count()
        except CoordinationError as error:
            logger.debug("failed to count up the tree mark: %s", error)
        if self._is_in_its_tree() and self._is_wanted() and now_ms >= self._synced_ms + SYNC_MS:
            self._keep()
