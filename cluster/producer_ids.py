"""Producer ids (KIP-98) in blocks from the controller, by AllocateProducerIds."""

import logging
from collections.abc import Callable

from barnabas.cluster.controller_client import AskController
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock, Timer

logger = logging.getLogger("barnabas.cluster")

VERSION = 0
REFILL_BELOW = 500
RETRY_BACKOFF_MS = 100.0
ANSWER_WITHIN_MS = 60_000.0  # afterwards the next request for an id asks again


class ProducerIds:
    """Hands ids out of one block and has the next one fetched before it is needed.

    `given` notes the last id of a block that this broker was given. The block is used when that is complete.
    """

    def __init__(
        self,
        clock: Clock,
        node_id: int,
        broker_epoch: Callable[[], int],
        ask: AskController,
        given: Callable[[int], Pending[None]],
    ) -> None:
        self._clock = clock
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._given = given
        self._next = 0
        self._end = 0  # one past the last id of the block
        self._spare: tuple[int, int] | None = None
        self._asking: object | None = None  # the request under way, or its retry
        self._asked_ms = 0.0
        self._retry: Timer | None = None
        self._is_stopped = False
        self._waiting: dict[Pending[int | None], Timer] = {}

    def next(self) -> int | None:
        """An id that no producer of this cluster had before. None: not ready, ask again soon.

        The first block is taken for the first producer: few brokers of tests have one, and each start would write it.
        """
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

    def next_within(self, timeout_ms: float) -> Pending[int | None]:
        """The next id when there is one; None if there is none in time."""
        pending: Pending[int | None] = Pending()
        pending.on_cancel = lambda: self._waiting.pop(pending).cancel()
        self._waiting[pending] = self._clock.call_later(timeout_ms, lambda: self._end_wait(pending))
        return pending

    def _end_wait(self, pending: Pending[int | None]) -> None:
        self._waiting.pop(pending).cancel()
        pending.complete(self.next())

    def stop(self) -> None:
        """Take no more blocks. The ids that were not handed out are never used."""
        self._is_stopped = True
        if self._retry is not None:
            self._retry.cancel()

    def give_up(self) -> None:
        """Use none of the ids that this broker has: others may have them, too."""
        self._asking = self._spare = None
        self._next = self._end
        self._refill()

    def _refill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._asking is None or now_ms >= self._asked_ms + ANSWER_WITHIN_MS:
            self._asking = object()
            self._asked_ms = now_ms
            self._take_block(self._asking)

    def _take_block(self, asking: object) -> None:
        if self._is_stopped:
            return
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        self._ask(request, VERSION).then(lambda response: self._answered(asking, response))

    def _answered(self, asking: object, response: AllocateProducerIdsResponse | None) -> None:
        if asking is not self._asking:
            return  # given up: nobody uses that block
        if response is None or response.error_code:
            if response is not None:
                logger.debug("AllocateProducerIds failed, trying again: %s", ErrorCode.of(response.error_code).name)
            self._retry = self._clock.call_later(RETRY_BACKOFF_MS, lambda: self._take_block(asking))
            return
        first = response.producer_id_start
        block = (first, first + response.producer_id_len)
        self._given(block[1] - 1).then(lambda _: self._take(asking, block))

    def _take(self, asking: object, block: tuple[int, int]) -> None:
        if asking is not self._asking:
            return
        self._asking, self._spare = None, block
        logger.info("allocated producer ids %d-%d", block[0], block[1] - 1)
        for pending in list(self._waiting):
            self._end_wait(pending)
