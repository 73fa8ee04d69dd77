"""Topics that are made because a client asked for them with Metadata, and the coordinators' topics on first use."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.cluster.topic_names import JOURNAL_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, topic_name_problem
from barnabas.cluster.tree.port import CoordinationError
from barnabas.config.broker import BrokerConfig
from barnabas.controller.topic_admin import UNSET, TopicAdmin
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import ended

logger = logging.getLogger("barnabas.broker")

FACTOR_SETTINGS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    JOURNAL_TOPIC: "the number of replicas of __consumer_offsets",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}
CREATIONS_MAX = 1_000  # at a time; beyond it, nothing is begun until the client asks again
MADE_WITHIN_MS = 500  # how long a client waits for topics that it made by asking; most take a few milliseconds
BROKERS_START_WITHIN_MS = 10_000.0  # while a cluster starts, topics wait for its brokers
ANY_TIME_MS = (1 << 63) - 1


class AutoTopics:
    """Starts creations in the background, each name once at a time. A client may wait a moment for them."""

    def __init__(
        self, clock: Clock, config: BrokerConfig, metadata_cache: MetadataCache, topic_admin: TopicAdmin
    ) -> None:
        self._clock = clock
        self._config = config
        self._metadata_cache = metadata_cache
        self._topic_admin = topic_admin
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._waits_since_ms: dict[str, float] = {}  # topics for which there are too few brokers
        self._told: dict[str, str] = {}  # topic -> the last problem of it that was logged

    def create(self, name: str, may_change: Callable[[int], bool] = lambda partitions: True) -> ErrorCode:
        """Begin to create a topic with the broker's defaults, and return the error that Metadata answers meanwhile.

        `may_change`: whether the quota of who asks for it allows so many partitions.
        UNKNOWN_TOPIC_OR_PARTITION: the creation has begun, or CREATIONS_MAX are under way, or there is no quota left.
        INVALID_TOPIC_EXCEPTION: no topic can have this name. INVALID_REPLICATION_FACTOR: there are fewer brokers than
        replicas to place.
        """
        error = absence_error(name)
        if error is ErrorCode.INVALID_TOPIC_EXCEPTION:
            return error
        partitions, factor = self._sizes(name)
        problem = self.problem(name)
        if problem:
            self._wait_for_brokers(name, problem)
            return ErrorCode.INVALID_REPLICATION_FACTOR
        self._waits_since_ms.pop(name, None)
        if name not in self._creating and len(self._creating) < CREATIONS_MAX and may_change(partitions):
            task = asyncio.ensure_future(self._create(name, partitions, factor))
            self._creating[name] = task
            task.add_done_callback(lambda _: self._creating.pop(name, None))
        return error

    def problem(self, name: str) -> str:
        """Why the topic cannot be made now, and what to do; empty when it can be."""
        _, factor = self._sizes(name)
        live = len(self._metadata_cache.brokers)
        if factor <= live:
            return ""
        setting = FACTOR_SETTINGS.get(name, "default.replication.factor")
        registered = counted(live, "broker is", "brokers are")
        return (
            f"{setting} is {factor}, and {registered} registered. Set it to at most {live} in the settings that the "
            "broker starts with, or start more brokers."
        )

    def _sizes(self, name: str) -> tuple[int, int]:
        config = self._config
        if name == OFFSETS_TOPIC:
            return config.offsets_topic_num_partitions, config.offsets_topic_replication_factor
        if name == TRANSACTIONS_TOPIC:
            return config.transaction_state_log_num_partitions, config.transaction_state_log_replication_factor
        if name == JOURNAL_TOPIC:
            assignment = self._assignment(name)
            return len(assignment), max(map(len, assignment.values()), default=1)
        return config.num_partitions, config.default_replication_factor

    def _assignment(self, name: str) -> dict[int, Sequence[int]]:
        """The replicas of a topic that is placed as another one; empty for all others.

        The offset journal has those of the offsets topic, so that both have the same leaders while all brokers live.
        """
        if name != JOURNAL_TOPIC:
            return {}
        placed = self._metadata_cache.topics.get(OFFSETS_TOPIC, {})
        return {index: partition.replicas for index, partition in sorted(placed.items())}

    def creations_ended(self, names: Iterable[str]) -> Pending[None]:
        """Completed when no creation of these topics is under way any more, whether it succeeded or not.

        It is completed after MADE_WITHIN_MS in any case: then the creations go on, and the client asks again.
        """
        pending: Pending[None] = Pending()
        tasks = {self._creating[name] for name in names if name in self._creating}

        def task_ended(task: "asyncio.Task[None]") -> None:
            tasks.discard(task)
            if not tasks:
                finish()

        def finish() -> None:
            timer.cancel()
            if not pending.done:
                pending.complete(None)

        timer = self._clock.call_later(MADE_WITHIN_MS, finish)
        if not tasks:
            finish()
        for task in tasks:
            task.add_done_callback(task_ended)
        return pending

    async def make(self, name: str) -> None:
        """Create a topic with the broker's defaults if it does not exist, and return when clients can use it.

        It returns after MADE_WITHIN_MS in any case.
        """
        if not self._metadata_cache.contains(name):
            self.create(name)
            await ended(self.creations_ended([name]))

    async def _create(self, name: str, partitions: int, factor: int) -> None:
        placed = self._assignment(name)
        try:
            error, message = await self._topic_admin.create_topic(
                name,
                partition_count=UNSET if placed else partitions,
                replication_factor=UNSET if placed else factor,
                configs=internal_settings(name, self._config),
                assignment=list(placed.items()),
            )
        except CoordinationError as lost:
            error, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(lost)
        if error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._tell(name, message or error.name)
            return
        self._told.pop(name, None)
        cache = self._metadata_cache
        await ended(cache.wait_for(lambda: cache.has_leaders(name, partitions), MADE_WITHIN_MS))

    def missing_brokers(self, name: str) -> int:
        """How many more brokers must register before the topic can be made."""
        return max(self._sizes(name)[1] - len(self._metadata_cache.brokers), 0)

    def _wait_for_brokers(self, name: str, problem: str) -> None:
        """Too few brokers are no problem while they start: only if it goes on."""
        now_ms = self._clock.monotonic_ms()
        if len(self._waits_since_ms) >= CREATIONS_MAX:
            self._waits_since_ms.clear()
        since_ms = self._waits_since_ms.get(name)
        if since_ms is None:
            self._waits_since_ms[name] = now_ms
            logger.info("topic %s waits for %s", name, counted(self.missing_brokers(name), "more broker"))
        elif now_ms >= since_ms + BROKERS_START_WITHIN_MS:
            self._tell(name, problem)

    def _tell(self, name: str, why: str) -> None:
        """Log a problem as a warning once; its repetitions, because clients ask again and again, at debug."""
        level = logging.DEBUG if self._told.get(name) == why else logging.WARNING
        if len(self._told) >= CREATIONS_MAX:
            self._told.clear()
        self._told[name] = why
        logger.log(level, "topic %s cannot be created: %s", name, why)

    def stop(self) -> None:
        for task in list(self._creating.values()):
            task.cancel()


def absence_error(name: str) -> ErrorCode:
    """What Metadata answers for a topic that does not exist and is not created."""
    if topic_name_problem(name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def internal_settings(name: str, config: BrokerConfig) -> dict[str, str]:
    """The settings that a coordinator's topic is made with; none for any other topic."""
    if name == OFFSETS_TOPIC:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
    if name == JOURNAL_TOPIC:
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            # The clock of the broker that writes may be wrong, or that of the journal's leader.
            "message.timestamp.after.max.ms": str(ANY_TIME_MS),
            "message.timestamp.before.max.ms": str(ANY_TIME_MS),
            "retention.bytes": str(config.offsets_journal_retention_bytes),
            "retention.ms": str(config.offsets_journal_retention_ms),
            "segment.bytes": str(config.offsets_journal_segment_bytes),
        }
    if name == TRANSACTIONS_TOPIC:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
    return {}
