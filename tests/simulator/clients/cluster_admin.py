"""An administrator of a cluster: creates and deletes topics, adds partitions, has preferred leaders elected."""

from typing import TYPE_CHECKING

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)

from simulator.clients.connection import LostError
from simulator.clients.routed import CONTROLLER, Routed
from simulator.observations import Administer, Outcome
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.cluster_world import ClusterWorld

GROWING = "growing"  # its partitions are added to
PARTITIONS_MAX = 6
TOPICS_MAX = 3
_SENSIBLE = frozenset(
    (
        ErrorCode.INVALID_PARTITIONS,  # an earlier request, whose answer was lost, has been done
        ErrorCode.INVALID_REPLICATION_FACTOR,  # too few brokers live
        ErrorCode.KAFKA_STORAGE_ERROR,  # the tree has not answered
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)


class ClusterAdmin(Routed):
    """Does one thing a turn."""

    must_get_on = False

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(world, name)
        self._topics: list[str] = []
        self._made = 0
        self._partitions = 1  # of GROWING, at least

    async def turn(self) -> None:
        await self.sleep(1_000, 12_000)
        if self.world.settling:
            return
        luck = self.rng.random()
        if luck < 0.3 and len(self._topics) < TOPICS_MAX:
            await self._create()
        elif luck < 0.5 and self._topics:
            await self._delete()
        elif luck < 0.65 and self._partitions < PARTITIONS_MAX:
            await self._add_partition()
        else:
            await self._elect()

    async def rest(self) -> None:
        if self.rng.random() < 0.05:
            await self.turn()
        await self.sleep(20_000, 120_000)

    async def _create(self) -> None:
        self._made += 1
        topic = f"{self.name}-{self._made}"
        self._topics.append(topic)
        asked = CreateTopicsRequest.CreatableTopic(
            name=topic, num_partitions=self.rng.randint(1, 2), replication_factor=self.rng.randint(2, 3)
        )
        request = CreateTopicsRequest(topics=[asked], timeout_ms=10_000)
        await self._administer(
            Administer("create topic", topic, asked.num_partitions), ApiKey.CREATE_TOPICS, 5, request
        )

    async def _delete(self) -> None:
        topic = self.rng.choice(self._topics)
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        if await self._administer(Administer("delete topic", topic), ApiKey.DELETE_TOPICS, 4, request):
            self._topics.remove(topic)

    async def _add_partition(self) -> None:
        asked = CreatePartitionsRequest.CreatePartitionsTopic(
            name=GROWING, count=self._partitions + 1, assignments=None
        )
        request = CreatePartitionsRequest(topics=[asked], timeout_ms=10_000)
        operation = Administer("add partitions", GROWING, asked.count)
        if await self._administer(operation, ApiKey.CREATE_PARTITIONS, 2, request):
            self._partitions += 1

    async def _elect(self) -> None:
        request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=10_000)
        operation = Administer("elect leaders", "")
        number = self.began(operation)
        try:
            response = await self.ask(ApiKey.ELECT_LEADERS, 2, request)
        except LostError:
            self.ended(number, Outcome.INFO, operation)
            raise
        self.ended(number, Outcome.FAIL if response.error_code else Outcome.OK, operation)

    async def _administer(self, operation: Administer, api: ApiKey, version: int, request: object) -> bool:
        """Ask the controller; whether the thing is done, now or earlier."""
        number = self.began(operation)
        try:
            response = await self.ask(api, version, request, 40_000)
        except LostError:
            self.ended(number, Outcome.INFO, operation)
            raise
        results = getattr(response, "topics", None) or getattr(response, "responses", None) or response.results
        error = ErrorCode(results[0].error_code)
        self.world.note(f"{self.name}: {operation.request} {operation.topic}: {error.name}")
        if error and error not in _SENSIBLE:
            raise Violation("answers make sense", f"{operation}: {error.name}")
        is_done = error in (
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_PARTITIONS,
        )
        self.ended(number, Outcome.OK if error is ErrorCode.NONE else Outcome.INFO, operation)
        if error is ErrorCode.NOT_CONTROLLER:
            self.forget(CONTROLLER)
        self.progress += is_done
        return is_done
