"""What the transaction coordinator does by the clock: two rows of upkeep.

Transactions that are open for too long are aborted; transactional ids that nobody uses are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from barnabas.coordinators.transactions.shard import TransactionShard
from barnabas.coordinators.transactions.states import ONGOING
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime.upkeep import Task

if TYPE_CHECKING:
    from barnabas.coordinators.transactions.coordinator import TransactionCoordinator

logger = logging.getLogger("barnabas.transactions")


class IdInShard(NamedTuple):
    shard: TransactionShard
    transactional_id: str


class Expiry:
    """The two rows."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._tasks: list[Task[IdInShard]] = []
        self._removed = 0  # in the shard that is looked at

    def start(self) -> None:
        coordinator = self._coordinator
        every, config = coordinator.env.upkeep.every, coordinator.config
        self._tasks = [
            every(
                "late transactions",
                lambda: config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                self._open,
                lambda item: coordinator.abort_if_late(*item),
            ),
            every(
                "idle transactional ids",
                lambda: config.transaction_remove_expired_transaction_cleanup_interval_ms,
                self._all,
                self._remove_if_idle,
            ),
        ]

    def stop(self) -> None:
        for task in self._tasks:
            task.stop()
        self._tasks = []

    def _open(self) -> Iterator[IdInShard]:
        for shard in self._coordinator.loaded_shards():
            for entry in shard.entries.in_use():
                if entry.transaction.state is ONGOING:
                    yield IdInShard(shard, entry.transaction.transactional_id)

    def _all(self) -> Iterator[IdInShard]:
        for shard in self._coordinator.loaded_shards():
            self._removed = 0
            for transactional_id in shard.entries.ids():
                yield IdInShard(shard, transactional_id)
            if self._removed:  # one line: there may be a hundred thousand
                text = "transactions partition %d: %d transactional ids that were not used for %d ms are removed"
                logger.info(
                    text, shard.partition, self._removed, self._coordinator.config.transactional_id_expiration_ms
                )

    def _remove_if_idle(self, item: IdInShard) -> None:
        self._removed += self._coordinator.remove_if_idle(*item)
