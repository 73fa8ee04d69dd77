"""A leader whose followers are silent looks in the tree whether another broker leads now.

The controller may move a lead (to the preferred replica, say) while its word does not reach the former leader, whose
session lives on. The new leader acknowledges nothing that the former one has not, until that one has left the ISR, and
that takes replica.lag.time.max.ms. The followers have left the former leader by then. So it has the time to find out,
and serves nothing more until LeaderAndIsr comes: a group's offsets would be older than what was acknowledged since.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree import paths
from barnabas.cluster.tree.port import Coordination, CoordinationError
from barnabas.replication.partition import Partition
from barnabas.runtime.counted import counted
from barnabas.runtime.ports import Env
from barnabas.runtime.turns import chunks
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.replication")

# Shares of replica.lag.time.max.ms. With the time of a round trip their sum must be less than 1.
SILENT, INTERVAL = 1 / 4, 1 / 8
AT_ONCE = 500  # partitions


class LedStates:
    """`led` are the partitions that this broker leads; `overtaken` is told of those that another one leads."""

    def __init__(
        self,
        env: Env,
        coordination: Coordination,
        led: Callable[[], Iterable[Partition]],
        lag_time_max_ms: Callable[[], float],
        overtaken: Callable[[list[Partition]], None],
    ) -> None:
        self._clock = env.clock
        self._turns = env.turns
        self._upkeep = env.upkeep
        self._coordination = coordination
        self._led = led
        self._lag_time_max_ms = lag_time_max_ms
        self._overtaken = overtaken
        self._looking: Task[LedStates] | None = None

    def start(self) -> None:
        self._looking = self._upkeep.every(
            "led states", lambda: self._lag_time_max_ms() * INTERVAL, lambda: [self], LedStates._look
        )

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    async def _look(self) -> None:
        since_ms = self._clock.monotonic_ms() - self._lag_time_max_ms() * SILENT
        pace = self._turns.pace()
        for led in chunks(list(self._led()), AT_ONCE):
            partitions = [partition for partition in led if partition.has_silent_follower(since_ms)]
            overtaken = await self._overtaken_of(partitions) if partitions else []
            if overtaken:
                logger.warning(
                    "%s led here with a later leader epoch in the tree: serving nothing of them until LeaderAndIsr "
                    "comes",
                    counted(len(overtaken), "partition is", "partitions are"),
                )
                self._overtaken(overtaken)
            await pace.rest()

    async def _overtaken_of(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Those that another broker leads by now, as the tree says."""
        epochs = [partition.leader_epoch for partition in partitions]
        try:
            nodes = await self._coordination.get_many(
                [paths.partition_state(partition.topic, partition.index) for partition in partitions]
            )
        except CoordinationError:
            return []  # the lease ends if the tree does not answer for long
        return [
            partition
            for partition, epoch, node in zip(partitions, epochs, nodes)
            if (known := LeaderAndIsr.of_node(node)) is not None
            and partition.is_leader
            and partition.leader_epoch == epoch < known.leader_epoch
        ]
