"""Producer ids in blocks of 1000 from `/latest_producer_id_block`, taken before they are needed (KIP-98)."""

import asyncio
import logging

from barnabas.coordination import paths
from barnabas.coordination.payloads import ProducerIdBlock
from barnabas.coordination.port import BadVersionError, Coordination, CoordinationError, NodeExistsError, NoNodeError
from barnabas.runtime.ports import Clock

logger = logging.getLogger("barnabas.cluster")

REFILL_BELOW = 500
RETRY_BACKOFF_MS = 100
LARGEST_ID = (1 << 63) - 1


class ProducerIds:
    """Hands ids out of one block and has the next one fetched in time."""

    def __init__(self, clock: Clock, coordination: Coordination, node_id: int) -> None:
        self._clock = clock
        self._coordination = coordination
        self._node_id = node_id
        self._next = 0
        self._end = 0  # one past the last id of the block
        self._spare: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take the first block; `next` says None until it is there."""
        self._refill()

    def next(self) -> int | None:
        """An id that no producer of this cluster had before. None: not ready, ask again soon."""
        if self._next == self._end:
            if self._spare is None:
                self._refill()
                return None
            self._next, self._end = self._spare
            self._spare = None
        producer_id = self._next
        self._next += 1
        if self._end - self._next < REFILL_BELOW and self._spare is None:
            self._refill()
        return producer_id

    def stop(self) -> None:
        """Take no more blocks. The ids that were not handed out are never used."""
        if self._task is not None:
            self._task.cancel()

    def _refill(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._take_block())

    async def _take_block(self) -> None:
        try:
            while self._spare is None:
                try:
                    self._spare = await take_block(self._coordination, self._node_id)
                except CoordinationError:
                    logger.warning("cannot take a block of producer ids, trying again", exc_info=True)
                    await self._clock.sleep(RETRY_BACKOFF_MS)
        finally:
            self._task = None


async def take_block(coordination: Coordination, node_id: int) -> tuple[int, int]:
    """Reserve the next block: (first id, one past the last). Conditional on the node's version, so never twice."""
    while True:
        try:
            data, stat = await coordination.get(paths.PRODUCER_ID_BLOCK)
        except NoNodeError:
            try:
                await coordination.create(paths.PRODUCER_ID_BLOCK, make_parents=True)
            except NodeExistsError:
                continue
            continue
        block = ProducerIdBlock.after(ProducerIdBlock.decode(data), node_id)
        assert block.last <= LARGEST_ID, "the producer ids of this cluster are used up"
        try:
            await coordination.set(paths.PRODUCER_ID_BLOCK, block.encode(), stat.version)
        except BadVersionError:
            continue  # another broker took it; or this one did and its answer was lost, and then nobody uses that block
        logger.info("producer ids %d to %d are ours", block.first, block.last)
        return block.first, block.last + 1
