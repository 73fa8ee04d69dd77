"""A person who deletes a topic and makes it again, and writes a few records into it. Nobody reads them.

What is committed of the topic is inspected (`cluster_inspection.py`).
"""

from typing import Any

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest

from simulator.clients.connection import LostError
from simulator.clients.requests import batch_of, produce_request
from simulator.clients.routed import Routed, errors_in

PHOENIX = "phoenix"
TRIES = 100
RETRY_MS = 50.0


class Phoenix(Routed):
    """Tries each thing for some seconds."""

    async def make(self) -> bool:
        """Whether the topic is there, perhaps since earlier."""
        return await self._make((ErrorCode.TOPIC_ALREADY_EXISTS,))

    async def make_again(self) -> bool:
        """Whether it was made, as soon as the one before had gone."""
        return await self._make(())

    async def _make(self, harmless: tuple[ErrorCode, ...]) -> bool:
        topic = CreateTopicsRequest.CreatableTopic(name=PHOENIX, num_partitions=1, replication_factor=3)
        for _ in range(TRIES):
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            if await self._do(ApiKey.CREATE_TOPICS, 5, request, harmless):
                return True
            await self.sleep(RETRY_MS, RETRY_MS)
        return False

    async def delete(self) -> None:
        """Ask to delete it. That may take until all brokers are there."""
        for _ in range(10):
            request = DeleteTopicsRequest(topic_names=[PHOENIX], timeout_ms=100)
            harmless = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if await self._do(ApiKey.DELETE_TOPICS, 4, request, harmless):
                break

    async def write(self, batches: int) -> None:
        """Write a few records, with acks=all."""
        for number in range(batches):
            data = batch_of(f"phoenix {number}", self.world.clock.now_ms())
            for _ in range(10):
                if await self._do(ApiKey.PRODUCE, 8, produce_request((PHOENIX, 0), data, timeout_ms=2_000)):
                    break
                await self.sleep(2 * RETRY_MS, 2 * RETRY_MS)

    async def _do(self, api: ApiKey, version: int, request: Any, harmless: tuple[ErrorCode, ...] = ()) -> bool:
        try:
            errors = errors_in(await self.ask(api, version, request))
        except LostError:
            self.hang_up()
            await self.sleep(2 * RETRY_MS, 2 * RETRY_MS)
            return False
        if ErrorCode.NOT_CONTROLLER in errors or ErrorCode.NOT_LEADER_OR_FOLLOWER in errors:
            self.hang_up()
        return all(error in harmless for error in errors)
