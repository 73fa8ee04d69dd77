"""How this broker registers in the tree, and what happens when its registration or its session is lost."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from barnabas.broker import before_registering
from barnabas.broker.restored_tree import NO_RECORDS, end_of
from barnabas.broker.tree_mark import OwnMark
from barnabas.cluster import registration
from barnabas.cluster.leader_and_isr import LogEnd
from barnabas.cluster.metadata_cache import Endpoint
from barnabas.cluster.tree.port import ConnectionLossError, Coordination, SessionExpiredError
from barnabas.config.broker import BrokerConfig
from barnabas.controller.controller import Controller
from barnabas.replication.replica_manager import ReplicaManager
from barnabas.runtime.ports import Clock, Env
from barnabas.storage.log_manager import LogManager

logger = logging.getLogger("barnabas.broker")

T = TypeVar("T")

TREE_ANSWERS_WITHIN_MS = 5_000  # a start fails when the tree does not answer for so long
TREE_RETRY_BACKOFF_MS = 100


class OwnRegistration:
    """The registration of this broker, now and in every later session."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        coordination: Coordination,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        tree_mark: OwnMark,
        controller: Controller,
    ) -> None:
        self._env = env
        self._config = config
        self._coordination = coordination
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._tree_mark = tree_mark
        self._controller = controller
        self._cluster_id = ""
        self._registration: registration.Registration | None = None  # None: not registered yet
        self._is_loss_settled = False

    async def register(self, cluster_id: str, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker in the tree, now and with every new session, before the election.

        After an unclean stop it may have lost records of which the tree says that it has them. Then it first waits
        until the controller has taken it out. If there is none, it becomes controller itself and does that.
        """
        self._cluster_id = cluster_id
        node_id = self._config.node_id
        place = registration.Registration(
            *(self._env, self._coordination, node_id, endpoints, self._config.broker_rack),
            self._check_tree,
            self._node_deleted,
            self._tree_mark.counting,
        )
        self._registration = place
        if self._log_manager.may_lack_records:
            # What is sent to a former life is refused; that life may still be registered, and this broker controller.
            self._replica_manager.broker_epoch = await until_answered(self._env.clock, place.former_epoch) + 1
            await self._controller.start()
            await before_registering.until_taken_out(
                self._env, self._coordination, node_id, self._loss_of, self._end_of
            )
        self._log_manager.write_boot_ids()
        self._is_loss_settled = True

        async def register(step: Callable[[], Awaitable[int]]) -> None:
            self._log_manager.broker_epoch = self._replica_manager.broker_epoch = await step()
            await self._tree_mark.registered()

        while True:
            await until_answered(self._env.clock, partial(register, place.register))
            self._controller.register_again = partial(register, place.register_again)
            if place.is_of_this_session:
                return

    def stop(self) -> None:
        if self._registration is not None:
            self._registration.stop()

    @property
    def is_loss_unsettled(self) -> bool:
        """Whether this broker may lack records, and the tree may still count on them: its next life must know."""
        return self._log_manager.may_lack_records and not self._is_loss_settled

    @property
    def why_not(self) -> str | None:
        """Why this broker, which was registered, is not any more and serves nothing; None: it is."""
        return None if self._registration is None else self._registration.why_not

    def is_registered(self) -> bool:
        """Whether this broker is registered in the session that is open now: the tree is the one that it knows."""
        place = self._registration
        return place is not None and place.is_present(place.broker_epoch)

    def is_in_its_tree(self) -> bool:
        """Whether the tree is the one in which this broker is: another one is not written to."""
        return self._registration is not None and self._registration.is_of_this_session and not self.why_not

    def is_mark_counted(self) -> bool:
        """Whether the mark is counted: somebody may put an older tree back under this broker, or there are other
        replicas.
        """
        return bool(self._config.zookeeper_connect) or any(
            len(partition.replicas) > 1 for partition in self._replica_manager.partitions.values()
        )

    async def _check_tree(self) -> None:
        """OtherTreeError if this broker must not register in the tree that is there now: it has used another one."""
        found = await registration.cluster_id_in(self._coordination)
        place = f"ZooKeeper at {self._config.zookeeper_connect}" if self._config.zookeeper_connect else "the tree"
        if found is None:
            raise registration.OtherTreeError(
                f"{place} is empty, and had the cluster {self._cluster_id}. Stop all brokers, put its data back, and "
                "start them. If the data are lost for good, start them one after the other with --adopt"
            )
        if found != self._cluster_id:
            raise registration.OtherTreeError(
                f"{place} has the cluster {found} now, and this broker is of {self._cluster_id}. Stop all brokers, and "
                "put the right data back"
            )
        mark, _ = await self._tree_mark.in_tree()
        if mark.number < self._tree_mark.on_disk:
            raise registration.OtherTreeError(
                f"{place} is an older copy than it was: it was put back while this broker ran. Stop all brokers, and "
                "start them again: their logs decide then who leads"
            )

    def session_lost(self) -> None:
        """This is heard a moment after the next session begins, and this broker may have registered in it by then."""
        place = self._registration
        self._replica_manager.suspend(
            is_registered=place is not None and place.is_present(self._replica_manager.broker_epoch)
        )

    def _node_deleted(self) -> None:
        """Others lead what this broker led, so it serves nothing of that until the controller knows it again."""
        self._replica_manager.suspend()
        self._controller.begin_again()

    def _loss_of(self, topic: str, index: int) -> before_registering.Loss:
        """What of a log may be lost here that those who were in sync before this broker was alone still have.

        Nobody has less than an empty disk. An old copy, a log of which somebody has removed records, and one without
        its end may hold what was acknowledged by this broker alone, if min.insync.replicas is 1.
        """
        manager = self._log_manager
        acknowledges_alone = manager.configs.of(topic).min_insync_replicas < 2
        if manager.has_lost(topic, index):
            has_some = manager.get(topic, index) is not None
            return before_registering.Loss.SOME if has_some and acknowledges_alone else before_registering.Loss.ALL
        if manager.may_lack_end(topic, index) and not acknowledges_alone:
            return before_registering.Loss.END
        return before_registering.Loss.NOTHING

    def _end_of(self, topic: str, index: int) -> LogEnd:
        log = self._log_manager.get(topic, index)
        return NO_RECORDS if log is None else end_of(log, is_newer=False)


async def until_answered(clock: Clock, step: Callable[[], Awaitable[T]]) -> T:
    """Do a step of the start; again if the connection to the tree, or the session, is lost meanwhile.

    Every step may be done twice. Slow disks may take the time of a session, and then another one begins.
    """
    give_up_ms: float | None = None  # counted from the first failure: on a slow disk it may come late
    while True:
        try:
            return await step()
        except (ConnectionLossError, SessionExpiredError) as error:
            now_ms = clock.monotonic_ms()
            if give_up_ms is None:
                give_up_ms = now_ms + TREE_ANSWERS_WITHIN_MS
            if now_ms >= give_up_ms:
                raise
            logger.warning("the coordination tree does not answer, trying again: %s", error)
            await clock.sleep(TREE_RETRY_BACKOFF_MS)
