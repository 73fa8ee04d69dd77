"""The controller: elected through the tree, it decides which broker leads which partition, and tells the brokers.

The rules are those of Kafka's controller in ZooKeeper mode (KafkaController). Watches and answers only put events
into one queue. One task handles the events, one after the other. The handler of an event reads the tree afresh, so a
doubled or late event does no harm. Every write is fenced by the controller's epoch; a fence that fails ends the
controllership.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from barnabas.cluster.registration import LiveBroker, decode_broker
from barnabas.config.broker import BrokerConfig
from barnabas.config.topic import TopicConfig
from barnabas.controller import election
from barnabas.controller.channels import BrokerChannel
from barnabas.controller.requests import RequestBatch
from barnabas.controller.state import (
    ControllerState,
    PartitionState,
    Replica,
    ReplicaState,
    TopicPartition,
)
from barnabas.controller.state_machines import StateMachines
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.tree import ControllerMovedError, ControllerTree
from barnabas.coordination import paths, payloads
from barnabas.coordination.port import (
    BadVersionError,
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
    WatchEvent,
)
from barnabas.runtime.ports import Env, Timer
from barnabas.runtime.upkeep import Follower, Task

logger = logging.getLogger("barnabas.controller")

FIRST_BALANCE_MS = 5_000
REPLICAS_NAMED_MAX = 10  # a line of the log names no more replicas
RETRY_BACKOFF_MS = 100
GIVE_UP_BACKOFF_MS = 1_000
STUCK_MS = 600_000.0  # longest time of one event: to take over many thousand partitions may take a minute
NO_CONTROLLER = -1

Handler = Callable[[], Awaitable[None]]


class Controller:
    """Every broker runs one. The one that made the `/controller` node is active."""

    def __init__(
        self, env: Env, config: BrokerConfig, node_id: int, coordination: Coordination, channel: BrokerChannel
    ) -> None:
        self.active = False
        self.controller_id = NO_CONTROLLER  # as this broker last read it
        self.controller_epoch = 0
        self.register_again: Callable[[], Awaitable[None]] | None = None  # called before an election after expiry
        self._env = env
        self._config = config
        self._node_id = node_id
        self._coordination = coordination
        self._channel = channel
        self._events: deque[tuple[Handler, bool]] = deque()
        self._wakeup = asyncio.Event()
        self._is_handling = False
        self._following: Follower | None = None
        self._balancing: Task[Controller] | None = None
        self._balance_timer: Timer | None = None  # for the first balance after taking over
        self._watches: dict[str, Watch] = {}  # the last one left on each path
        self._forget_everything()

    # --- life ---

    async def start(self) -> None:
        """Take part in elections. Returns when the controller is known; if it is this one, when it has taken over."""
        self._coordination.on_session_expired(self._session_expired)
        self._config.on_change.append(self._settings_changed)
        upkeep = self._env.upkeep
        self._following = upkeep.follow(
            "controller", self._run, lambda: self._is_handling or bool(self._events), self._recover, late_ms=STUCK_MS
        )
        self._balancing = upkeep.every(
            "leader balance",
            lambda: self._config.leader_imbalance_check_interval_seconds * 1000,
            lambda: [self] if self.active else [],
            Controller.balance_leaders,
        )
        settled = asyncio.Event()

        async def first() -> None:
            try:
                await self._elect()
            finally:
                settled.set()

        self._enqueue(first, only_active=False)
        await settled.wait()

    def retry_offline_partitions(self) -> None:
        """Settings changed: an unclean election may be allowed now."""
        self._enqueue(self._bring_online)

    async def _bring_online(self) -> None:
        await self._machines.bring_online(self._state.in_states(PartitionState.NEW, PartitionState.OFFLINE))

    def _settings_changed(self, names: Collection[str]) -> None:
        if "unclean.leader.election.enable" in names:
            self.retry_offline_partitions()

    async def stop(self) -> None:
        """Handle nothing more; `/controller` goes when the session is closed."""
        following, self._following = self._following, None
        if following is not None and self._balancing is not None:
            self._balancing.stop()
            await following.stop()
        self._resign()

    def _recover(self) -> None:
        """Start again after an event that did not end: `_elect` reads the state from the tree."""
        self._is_handling = False
        self._resign()
        self._events.appendleft((self._elect, False))
        self._wakeup.set()

    async def idle(self) -> None:
        """Return when the events that are queued now have been handled."""
        done = asyncio.Event()

        async def mark() -> None:
            done.set()

        self._enqueue(mark, only_active=False)
        await done.wait()

    def _enqueue(self, handler: Handler, *, only_active: bool = True) -> None:
        self._events.append((handler, only_active))
        self._wakeup.set()

    def _watch(self, path: str, handler: Handler, *, only_active: bool = True) -> Watch:
        """A watch that queues `handler`. Of several watches on one path only the last counts: it sees every change."""

        def fired(event: WatchEvent) -> None:
            if self._watches.get(path) is fired:
                del self._watches[path]
                self._enqueue(handler, only_active=only_active)

        self._watches[path] = fired
        return fired

    async def _run(self) -> None:
        while True:
            await self._wakeup.wait()
            while self._events:
                handler, only_active = self._events.popleft()
                if self.active or not only_active:
                    self._is_handling = True
                    await self._handle(handler, only_active)
                    self._is_handling = False
                if self._following is not None:
                    self._following.note_event()
            self._wakeup.clear()

    async def _handle(self, handler: Handler, only_active: bool) -> None:
        try:
            await handler()
        except ControllerMovedError:
            logger.info("another controller was elected, epoch %d is over", self.controller_epoch)
            self._resign()
            self._enqueue(self._elect, only_active=False)
        except ConnectionLossError:
            logger.warning("the coordination tree does not answer, trying again")
            await self._env.clock.sleep(RETRY_BACKOFF_MS)
            if only_active:  # memory may hold half of a change: to take over again reads everything
                self._resign()
                handler = self._elect
            self._events.appendleft((handler, False))
        except SessionExpiredError:
            logger.info("the session with the coordination tree has expired")  # `_session_expired` does the rest
        except CoordinationError:
            logger.exception("a controller event failed")
        except Exception:
            logger.exception("a bug in a controller event")
            if self.active:
                await self._give_up()

    # --- election ---

    async def _elect(self) -> None:
        """Read which broker is controller. If there is none, try to become it."""
        while await self._coordination.exists(paths.CONTROLLER, self._watch_controller()) is None:
            epoch, version = await self._read_epoch()
            data = payloads.ControllerNode(self._node_id, self._env.clock.now_ms()).encode()
            try:
                results = await self._coordination.multi(
                    [
                        Create(paths.CONTROLLER, data, ephemeral=True),
                        Set(paths.CONTROLLER_EPOCH, payloads.encode_controller_epoch(epoch + 1), version),
                    ]
                )
            except MultiError as error:
                if not isinstance(error.cause, NodeExistsError | BadVersionError):
                    raise
                continue  # another broker was faster: read again
            stat = results[1]
            assert isinstance(stat, Stat)
            await self._become(epoch + 1, stat.version)
            return
        if await self._read_controller() and not self.active:
            # This broker won, but the answer was lost: no other broker can have written the epoch since.
            epoch, version = await self._read_epoch()
            await self._become(epoch, version)

    async def _read_controller(self, watch: Watch | None = None) -> bool:
        """Remember which broker is controller; True if it is this broker in this session."""
        try:
            data, stat = await self._coordination.get(paths.CONTROLLER, watch)
        except NoNodeError:
            self.controller_id = NO_CONTROLLER
            return False
        self.controller_id = payloads.ControllerNode.decode(data).broker_id
        return self.controller_id == self._node_id and stat.ephemeral_owner == self._coordination.session_id

    async def _read_epoch(self) -> tuple[int, int]:
        while True:
            try:
                data, stat = await self._coordination.get(paths.CONTROLLER_EPOCH)
                return payloads.decode_controller_epoch(data), stat.version
            except NoNodeError:
                try:
                    await self._coordination.create(paths.CONTROLLER_EPOCH, payloads.encode_controller_epoch(0))
                except NodeExistsError:
                    continue

    def _watch_controller(self) -> Watch:
        return self._watch(paths.CONTROLLER, self._controller_changed, only_active=False)

    async def _controller_changed(self) -> None:
        """`/controller` was made, changed or has gone."""
        if self.active:
            if await self._read_controller(self._watch_controller()):
                return
            logger.info("the controllership was taken away, epoch %d is over", self.controller_epoch)
            self._resign()
        await self._elect()

    async def _become(self, epoch: int, epoch_version: int) -> None:
        """Take over: leave watches, read everything, tell all brokers, elect where partitions are offline."""
        logger.info("broker %d is controller, epoch %d", self._node_id, epoch)
        self._forget_everything()
        self.active = True
        self.controller_id = self._node_id
        self.controller_epoch = epoch
        self._tree = ControllerTree(self._coordination, self._env.clock, self._state, epoch, epoch_version)
        self._machines = StateMachines(self._state, self._env.turns, self._tree, self._batch, self._unclean_topics)
        self._deletion = TopicDeletion(self._state, self._tree, self._batch, self._machines)
        try:
            await self._take_over()
        except ControllerMovedError:
            raise
        except (SessionExpiredError, ConnectionLossError):
            self._resign()
            raise
        except Exception:
            logger.exception("taking over as controller failed")
            await self._give_up()

    async def _take_over(self) -> None:
        state = self._state
        for folder, handler in (
            (paths.ISR_CHANGES, self._isr_changed),
            (paths.LOG_DIR_EVENTS, self._log_dir_failed),
        ):
            names = await self._children(folder, handler)
            await self._tree.delete_all([f"{folder}/{name}" for name in names])
        await self._load_brokers(await self._children(paths.BROKER_IDS, self._brokers_changed))
        await self._load_topics(await self._children(paths.TOPICS, self._topics_changed))
        await self._tree.read_states(list(state.all_partitions()))
        deleted = await self._children(paths.DELETE_TOPICS, self._deletions_changed)
        if self._config.delete_topic_enable:
            state.topics_to_delete.update((topic, None) for topic in deleted if topic in state.assignments)
        self._batch.add_update_metadata(state.brokers, ())
        await self._batch.send(self.controller_epoch)
        state.begin()
        online = [r for r, known in state.replica_states.items() if known is ReplicaState.ONLINE]
        offline = [r for r, known in state.replica_states.items() if known is ReplicaState.OFFLINE]
        self._batch.add_update_metadata(state.brokers, state.all_partitions())
        await self._machines.move_replicas(online, ReplicaState.ONLINE)
        await self._machines.move_replicas(offline, ReplicaState.OFFLINE)
        await self._bring_online()
        await self._machines.move_replicas(self._state.just_created(), ReplicaState.ONLINE)
        await self._forget_unknown_deletions(deleted)
        await self._deletion.resume()
        self._balance_timer = self._env.clock.call_later(FIRST_BALANCE_MS, self.balance_leaders)

    async def _give_up(self) -> None:
        """Resign: after a back-off, remove `/controller` if it is still ours. This broker may win the next election."""
        epoch = self.controller_epoch
        self._resign()
        await self._env.clock.sleep(GIVE_UP_BACKOFF_MS)
        try:
            if await self._read_controller():
                await self._coordination.delete(paths.CONTROLLER)
        except CoordinationError:
            logger.info("could not remove /controller of epoch %d", epoch)

    def _resign(self) -> None:
        if self.active:
            logger.info("broker %d is no longer controller", self._node_id)
        self.active = False
        if self._balance_timer is not None:
            self._balance_timer.cancel()
            self._balance_timer = None
        self._forget_everything()

    def _forget_everything(self) -> None:
        self._watches = {path: watch for path, watch in self._watches.items() if path == paths.CONTROLLER}
        self._state = ControllerState()
        self._channel.end_term()
        self._batch = RequestBatch(
            self._state,
            self._env.turns,
            self._channel,
            self._node_id,
            self._log_failures_answered,
            self._deletions_answered,
        )

    def _session_expired(self) -> None:
        """Drop the queued events, because their session is over; then register again, and elect."""
        self._events.clear()
        self._enqueue(self._begin_session, only_active=False)

    async def _begin_session(self) -> None:
        self._resign()
        if self.register_again is not None:
            await self.register_again()
        await self._elect()

    # --- reading the tree ---

    async def _children(self, path: str, handler: Handler) -> list[str]:
        try:
            return await self._coordination.children(path, self._watch(path, handler))
        except NoNodeError:
            await self._coordination.create(path, make_parents=True)
            return await self._coordination.children(path, self._watch(path, handler))

    async def _get(self, path: str, handler: Handler) -> tuple[bytes, Stat] | None:
        """Read a node and leave a watch on it. None, and no watch, when there is no such node."""
        try:
            return await self._coordination.get(path, self._watch(path, handler))
        except NoNodeError:
            self._watches.pop(path, None)
            return None

    async def _read_broker(self, broker_id: int) -> LiveBroker | None:
        async def changed() -> None:
            await self._broker_changed(broker_id)

        node = await self._get(paths.broker(broker_id), changed)
        return None if node is None else decode_broker(broker_id, *node)

    async def _load_brokers(self, names: Iterable[str]) -> None:
        for broker_id in sorted(map(int, names)):
            broker = await self._read_broker(broker_id)
            if broker is not None:
                self._state.brokers[broker_id] = broker
        self._channel.set_live_brokers(self._state.brokers)

    async def _load_topics(self, topics: Iterable[str]) -> list[str]:
        """Read the assignments of topics, leave watches, give ids to topics without. Returns the topics found."""
        loaded = []
        for topic in topics:
            node = await self._read_topic(topic)
            if node is None:
                continue
            topic_node, stat = node
            if topic_node.topic_id is None:
                topic_node = topic_node._replace(topic_id=self._env.random_uuid())
                await self._tree.write([Set(paths.topic(topic), topic_node.encode(), stat.version)])
            self._state.assignments[topic] = dict(topic_node.partitions)
            if topic_node.topic_id is not None:
                self._state.topic_ids[topic] = topic_node.topic_id
            loaded.append(topic)
        return loaded

    async def _read_topic(self, topic: str) -> tuple[payloads.TopicAssignment, Stat] | None:
        async def changed() -> None:
            await self._topic_changed(topic)

        node = await self._get(paths.topic(topic), changed)
        if node is None:
            return None
        try:
            return payloads.TopicAssignment.decode(node[0]), node[1]
        except ValueError as error:  # somebody wrote it by hand: the topic is served when its node is mended
            logger.error("topic %s cannot be read from the tree: %s", topic, error)
            return None

    async def _unclean_topics(self, topics: Collection[str]) -> set[str]:
        """The topics among these that allow a leader from outside the ISR, which may lack records."""
        names = sorted(topics)
        nodes = await self._coordination.get_many([paths.topic_config(topic) for topic in names])
        allowed = set()
        for topic, node in zip(names, nodes):
            overrides = {} if node is None else payloads.decode_config(node[0])
            if TopicConfig.of(overrides, self._config).unclean_leader_election_enable:
                allowed.add(topic)
        return allowed

    # --- brokers ---

    async def _brokers_changed(self) -> None:
        """`/brokers/ids` has other children: brokers came, went, or did both."""
        names = await self._children(paths.BROKER_IDS, self._brokers_changed)
        state = self._state
        found: dict[int, LiveBroker] = {}
        for broker_id in sorted(map(int, names)):
            broker = await self._read_broker(broker_id)
            if broker is not None:
                found[broker_id] = broker
        dead = [broker_id for broker_id in state.brokers if broker_id not in found]
        bounced = [b for b in found if b in state.brokers and found[b].epoch > state.brokers[b].epoch]
        new = [broker_id for broker_id in found if broker_id not in state.brokers]
        for broker_id in dead + bounced:
            del state.brokers[broker_id]
            state.failed_logs.pop(broker_id, None)
        self._channel.set_live_brokers(state.brokers)
        if dead or bounced:
            logger.info("brokers %s are gone", sorted(dead + bounced))
            await self._brokers_failed(dead + bounced)
        started = new + bounced
        for broker_id in started:
            state.brokers[broker_id] = found[broker_id]
        self._channel.set_live_brokers(state.brokers)
        if started:
            logger.info("brokers %s have started", sorted(started))
            await self._brokers_started(started)

    async def _brokers_started(self, broker_ids: Sequence[int]) -> None:
        state = self._state
        self._batch.add_update_metadata([b for b in state.brokers if b not in broker_ids], ())
        self._batch.add_update_metadata(broker_ids, state.all_partitions())
        await self._batch.send(self.controller_epoch)
        replicas = [r for r in state.replicas_on(broker_ids) if state.is_online(r[2], r[:2])]
        existing = [r for r in replicas if r[:2] in state.states and not state.is_being_deleted(r[0])]
        await self._machines.move_replicas(existing, ReplicaState.ONLINE)
        await self._bring_online()
        await self._machines.move_replicas(self._state.just_created(), ReplicaState.ONLINE)
        await self._deletion.retry({replica[0] for replica in replicas if state.is_being_deleted(replica[0])})

    async def _brokers_failed(self, broker_ids: Sequence[int]) -> None:
        await self._replicas_failed(self._state.replicas_on(broker_ids))
        self._batch.add_update_metadata(self._state.brokers, ())
        await self._batch.send(self.controller_epoch)

    async def _replicas_failed(self, replicas: Sequence[Replica]) -> None:
        """Replicas went offline: elect where they led, take them out of the ISRs."""
        state = self._state
        deleting = [r for r in replicas if state.is_being_deleted(r[0])]
        remaining = [r for r in replicas if not state.is_being_deleted(r[0]) and r[:2] in state.states]
        leaderless = [
            partition
            for partition in dict.fromkeys(r[:2] for r in remaining)
            if state.partition_states.get(partition) is PartitionState.ONLINE and not state.has_online_leader(partition)
        ]
        await self._machines.move_partitions(leaderless, PartitionState.OFFLINE)
        await self._machines.bring_online(leaderless)
        await self._machines.move_replicas(remaining, ReplicaState.OFFLINE)
        if deleting:
            await self._deletion.replicas_failed(deleting)

    async def _broker_changed(self, broker_id: int) -> None:
        """The node of a broker changed: endpoints or rack. `_brokers_changed` sees when it goes."""
        known = self._state.brokers.get(broker_id)
        broker = await self._read_broker(broker_id)
        if known is None or broker is None or broker.epoch != known.epoch or broker == known:
            return
        self._state.brokers[broker_id] = broker
        self._channel.set_live_brokers(self._state.brokers)
        self._batch.add_update_metadata(self._state.brokers, ())
        await self._batch.send(self.controller_epoch)

    # --- topics ---

    async def _topics_changed(self) -> None:
        """`/brokers/topics` has other children."""
        names = await self._children(paths.TOPICS, self._topics_changed)
        state = self._state
        present = set(names)
        for topic in [topic for topic in state.assignments if topic not in present]:
            logger.warning("topic %s has vanished from the tree", topic)
            state.forget_topic(topic)
        loaded = await self._load_topics(topic for topic in names if topic not in state.assignments)
        await self._create_partitions([partition for topic in loaded for partition in state.partitions_of(topic)])

    async def _topic_changed(self, topic: str) -> None:
        """The node of a topic changed: new partitions are made, other changes are ignored."""
        node = await self._read_topic(topic)
        known = self._state.assignments.get(topic)
        if node is None:
            return
        if known is None:  # its node could not be read before
            await self._topics_changed()
            return
        added = {i: replicas for i, replicas in node[0].partitions.items() if i not in known}
        if not added:
            return
        if self._state.is_being_deleted(topic):
            logger.warning("topic %s is being deleted: new partitions %s are refused", topic, sorted(added))
            restored = node[0]._replace(partitions=dict(known))
            await self._tree.write([Set(paths.topic(topic), restored.encode())])
            return
        known.update(added)
        await self._create_partitions([(topic, index) for index in sorted(added)])

    async def _create_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        await self._tree.read_states(partitions)  # an earlier controller may have made these nodes already
        await self._machines.move_partitions(partitions, PartitionState.NEW)
        replicas = self._state.replicas_of(partitions)
        await self._machines.move_replicas(replicas, ReplicaState.NEW)
        await self._machines.bring_online(partitions)
        await self._machines.move_replicas(
            [replica for replica in replicas if replica[:2] in self._state.states], ReplicaState.ONLINE
        )

    async def _deletions_changed(self) -> None:
        """`/admin/delete_topics` has other children."""
        names = await self._children(paths.DELETE_TOPICS, self._deletions_changed)
        await self._forget_unknown_deletions(names)
        known = [t for t in names if t in self._state.assignments and t not in self._state.topics_to_delete]
        if known and self._config.delete_topic_enable:
            await self._deletion.enqueue(known)

    async def _forget_unknown_deletions(self, names: Sequence[str]) -> None:
        unwanted = [t for t in names if t not in self._state.assignments or not self._config.delete_topic_enable]
        if unwanted:
            await self._tree.delete_all([paths.delete_topic(topic) for topic in unwanted])

    # --- notices and answers ---

    async def _isr_changed(self) -> None:
        """Leaders changed ISRs: read the states, and tell all brokers."""
        names = await self._children(paths.ISR_CHANGES, self._isr_changed)
        if not names:
            return
        notices = [f"{paths.ISR_CHANGES}/{name}" for name in names]
        partitions: dict[TopicPartition, None] = {}
        for node in await self._coordination.get_many(notices):
            if node is not None:
                partitions.update(dict.fromkeys(payloads.decode_isr_change(node[0])))
        known = [partition for partition in partitions if partition in self._state.states]
        await self._tree.read_states(known)
        self._batch.add_update_metadata(self._state.brokers, known)
        await self._batch.send(self.controller_epoch)
        await self._tree.delete_all(notices)

    async def _log_dir_failed(self) -> None:
        """A broker lost logs. LeaderAndIsr for all its partitions asks it which ones."""
        names = await self._children(paths.LOG_DIR_EVENTS, self._log_dir_failed)
        if not names:
            return
        notices = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        nodes = await self._coordination.get_many(notices)
        broker_ids = {payloads.decode_log_dir_event(node[0]) for node in nodes if node is not None}
        for topic, index, broker_id in self._state.replicas_on(broker_ids):
            if not self._state.is_being_deleted(topic):
                self._batch.add_leader_and_isr([broker_id], (topic, index))
        await self._batch.send(self.controller_epoch)
        await self._tree.delete_all(notices)

    def _log_failures_answered(self, replicas: list[Replica]) -> None:
        async def handle() -> None:
            fresh = []
            for replica in replicas:
                failed = self._state.failed_logs.setdefault(replica[2], set())
                if replica[2] in self._state.brokers and replica[:2] not in failed:
                    failed.add(replica[:2])
                    fresh.append(replica)
            if fresh:
                logger.warning("%d replicas are offline, their logs failed: %s", len(fresh), fresh[:REPLICAS_NAMED_MAX])
                await self._replicas_failed(fresh)

        self._enqueue(handle)

    def _deletions_answered(self, done: list[Replica], failed: list[Replica]) -> None:
        async def handle() -> None:
            await self._deletion.answered(done, failed)

        self._enqueue(handle)

    # --- balance ---

    def balance_leaders(self) -> None:
        """Queue a look for brokers that lead too few partitions."""
        self._enqueue(self._balance_leaders)

    async def _balance_leaders(self) -> None:
        """Elect preferred replicas again, on brokers that lead too few of the partitions that prefer them."""
        if not self._config.auto_leader_rebalance_enable:
            return
        state = self._state
        candidates = {p: s for p, s in state.states.items() if not state.is_being_deleted(p[0]) and state.replicas(p)}
        shares = election.imbalance([(state.replicas(p)[0], s.leader) for p, s in candidates.items()])
        limit = self._config.leader_imbalance_per_broker_percentage / 100
        brokers = {broker for broker, share in shares.items() if share > limit and broker in state.brokers}
        misled = [
            p for p, s in candidates.items() if state.replicas(p)[0] in brokers and s.leader != state.replicas(p)[0]
        ]
        if misled:
            await self._machines.elect(
                misled, lambda p, known: election.elect_preferred(state.replicas(p), known, state.online_replicas(p))
            )
