"""What the disk refused when the controller asked for it, and what is tried again until the disk does it.

Logs that could not be made, for want of room, inodes or descriptors, say; and logs that could not be deleted. When
something is done at last, the controller is told (log_failure_notices.py). It then asks for all replicas here.
"""

import logging
from collections.abc import Callable

from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task
from barnabas.storage.troubles import Troubles

TopicPartition = tuple[str, int]


class DiskRefusals:
    """At most one attempt for each partition: the one that the controller asked for last."""

    def __init__(self, env: Env, troubles: Troubles, again_ms: Callable[[], float], report: Callable[[], None]) -> None:
        self.causes: dict[TopicPartition, OSError] = {}  # why the last attempt failed
        self._upkeep = env.upkeep
        self._troubles = troubles
        self._again_ms = again_ms
        self._report = report  # tells the controller
        self._attempts: dict[TopicPartition, Callable[[], object]] = {}
        self._task: Task[TopicPartition] | None = None

    def start(self) -> None:
        self._task = self._upkeep.every("disk refusals", self._again_ms, lambda: list(self._attempts), self._try)

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self._task = None

    def note(self, partition: TopicPartition, what: str, error: OSError, attempt: Callable[[], object]) -> None:
        """The disk refused something of a partition. `attempt` does it, or raises OSError."""
        if partition not in self.causes:
            text = f"the log cannot be {what}, trying again: {error}"
            self._troubles.tell(what, "{}-{}".format(*partition), text)
        self.causes[partition] = error
        self._attempts[partition] = attempt

    def forget(self, partition: TopicPartition) -> None:
        """It is done, or the controller wants something else."""
        self.causes.pop(partition, None)
        self._attempts.pop(partition, None)

    def _try(self, partition: TopicPartition) -> None:
        attempt = self._attempts.get(partition)
        if attempt is None:
            return
        try:
            attempt()
        except OSError as error:
            self.causes[partition] = error
        else:
            self.forget(partition)
            text = "the disk has done what it refused before: telling the controller"
            self._troubles.tell("done", "{}-{}".format(*partition), text, logging.INFO)
            self._report()
