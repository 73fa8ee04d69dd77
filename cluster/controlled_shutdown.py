"""The broker's side of a controlled shutdown: before it stops, the controller gives its leaderships to others."""

import logging
from collections.abc import Callable

from barnabas.cluster.controller_client import ControllerClient
from barnabas.cluster.lease import LeaseView
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ControlledShutdownRequest, ControlledShutdownResponse
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Clock
from barnabas.runtime.turns import ended

logger = logging.getLogger("barnabas.cluster")

VERSION = 3
ANSWER_WITHIN_MS = 10_000.0  # a controller that stands still, or cannot change the tree, must not hold the stop

TopicPartition = tuple[str, int]


async def hand_over(
    clock: Clock,
    config: BrokerConfig,
    node_id: int,
    broker_epoch: Callable[[], int],
    cache: MetadataCache,
    controller: ControllerClient,
    lease: LeaseView,
) -> None:
    """Ask the controller to let this broker go, and again while it still leads partitions that others could lead.

    The broker may lose its session between two tries, and register again in another epoch.

    Kafka waits a fixed time between two tries. Here the next try comes as soon as it can succeed. Partitions whose
    other replicas are all away are not waited for, and nothing is while the tree cannot be used: the controller could
    change nothing. A broker that is alone asks nobody: none could take over.
    """
    if not config.controlled_shutdown_enable or not cache.is_alive(node_id) or len(cache.brokers) == 1:
        return
    for last in [False] * (config.controlled_shutdown_max_retries - 1) + [True]:
        request = ControlledShutdownRequest(broker_id=node_id, broker_epoch=broker_epoch())
        asked, asked_ms = cache.controller_id, clock.monotonic_ms()
        answer = await ended(_in_time(clock, controller.send(request, VERSION)))
        remaining: list[TopicPartition] = []
        if answer is not None and answer.error_code == ErrorCode.NONE:
            remaining = [(row.topic_name, row.partition_index) for row in answer.remaining_partitions]
            if not remaining:
                return
            text = "ControlledShutdown: no other replica of %d partitions that this broker leads is in sync"
            logger.info(text, len(remaining))
        else:
            why = "no answer" if answer is None else ErrorCode.of(answer.error_code).name
            logger.info("ControlledShutdown at controller %d failed: %s", asked, why)
            is_late = clock.monotonic_ms() >= asked_ms + ANSWER_WITHIN_MS
            if len(cache.brokers) == 1 or not lease.holds or (is_late and cache.controller_id == asked):
                return
        if not last:
            await ended(
                cache.wait_for(
                    lambda: _is_worth_a_try(cache, node_id, asked, remaining),  # noqa: B023  (called before the next try)
                    config.controlled_shutdown_retry_backoff_ms,
                )
            )
            if remaining and not _can_be_led_by_others(cache, node_id, remaining):
                return


def _in_time(
    clock: Clock, answer: Pending[ControlledShutdownResponse | None]
) -> Pending[ControlledShutdownResponse | None]:
    """The answer, or None when its time is over."""
    either: Pending[ControlledShutdownResponse | None] = Pending()

    def end(value: ControlledShutdownResponse | None) -> None:
        if not either.done:
            timer.cancel()
            either.complete(value)

    timer = clock.call_later(ANSWER_WITHIN_MS, lambda: end(None))
    answer.then(end)
    return either


def _is_worth_a_try(cache: MetadataCache, node_id: int, asked: int, remaining: list[TopicPartition]) -> bool:
    """Whether something has changed: the controller, or who could lead the remaining partitions."""
    return (
        cache.controller_id != asked
        or any(_in_sync_elsewhere(cache, node_id, partition) for partition in remaining)
        or bool(remaining and not _can_be_led_by_others(cache, node_id, remaining))
    )


def _in_sync_elsewhere(cache: MetadataCache, node_id: int, partition: TopicPartition) -> bool:
    state = cache.partition(*partition)
    return state is not None and any(member != node_id and cache.is_alive(member) for member in state.isr)


def _can_be_led_by_others(cache: MetadataCache, node_id: int, partitions: list[TopicPartition]) -> bool:
    """Whether another replica of one of these lives, which may become in sync soon."""
    return any(
        replica != node_id and cache.is_alive(replica)
        for partition in partitions
        if (state := cache.partition(*partition)) is not None
        for replica in state.replicas
    )
