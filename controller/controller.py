"""The controller: elected through the tree, it decides which broker leads which partition, and tells the brokers.

The rules are those of Kafka's controller in ZooKeeper mode (KafkaController). This module elects, and has the queue of
events; what the elected controller does is in `term.py`. Watches, answers and requests only put events into the queue.
One task handles them, one after the other. An event belongs to one term: when that is over, it is dropped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from barnabas.cluster.features import Update
from barnabas.cluster.leader_and_isr import LeaderAndIsr
from barnabas.cluster.tree import paths, payloads
from barnabas.cluster.tree.port import (
    BadVersionError,
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
    WatchEvent,
    children_if_there,
    get_if_there,
)
from barnabas.config.broker import BrokerConfig
from barnabas.controller.channels import BrokerChannels
from barnabas.controller.leader_elections import ElectionResult, ElectionType
from barnabas.controller.state import TopicPartition
from barnabas.controller.term import Handler, Term
from barnabas.controller.tree import ControllerMovedError, say_unreadable
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from barnabas.runtime.counted import counted
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env, Timer
from barnabas.runtime.upkeep import Task

logger = logging.getLogger("barnabas.controller")

FIRST_BALANCE_MS = 5_000
RETRY_BACKOFF_MS = 100
GIVE_UP_BACKOFF_MS = 1_000
STUCK_MS = 600_000.0  # longest time of one event: to take over many thousand partitions may take a minute

LOOK_MS = 5_000.0  # how often to look for events whose handling was forgotten

R = TypeVar("R")
Event = tuple[Handler, Term | None]  # without a term: an event of any


class Controller:
    """Every broker runs one. The one that made the `/controller` node is active: it has a term.

    A broker need not be registered to be controller: when all brokers were killed at once, each must leave the ISRs
    before it may register, and only a controller can take it out of them.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        node_id: int,
        coordination: Coordination,
        channels: BrokerChannels,
        has_features: Callable[[], bool] = lambda: False,
        heard_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self.term: Term | None = None
        self.controller_epoch = 0
        self.register_again: Callable[[], Awaitable[None]] | None = None  # called before an election after expiry
        self._env = env
        self._config = config
        self._node_id = node_id
        self._coordination = coordination
        self._channels = channels
        self._has_features = has_features  # whether the tree has them, as far as is known here
        self._heard_epoch = heard_epoch  # the largest of a controller that has told this broker something
        self._events: deque[Event] = deque()
        self._must_register = False  # before it may elect
        self._handling: Task[Event] | None = None
        self._balancing: Task[Term] | None = None
        self._balance_timer: Timer | None = None  # for the first balance after taking over
        self._watch: Watch | None = None  # the last one left on `/controller`
        self._unanswered: dict[Callable[[ErrorCode], None], None] = {}  # requests of brokers and clients: how to refuse

    @property
    def active(self) -> bool:
        """Whether this broker is the controller."""
        return self.term is not None

    # --- life ---

    async def start(self) -> None:
        """Take part in elections. Returns when the controller is known; if it is this one, when it has taken over.

        Has no effect when it was called before.
        """
        if self._handling is not None:
            return
        self._coordination.on_session_expired(self.begin_again)
        self._config.on_change.append(self._settings_changed)
        upkeep = self._env.upkeep
        self._handling = upkeep.every(
            "controller", lambda: LOOK_MS, self._due, self._handle, self._recover, wait_max_ms=STUCK_MS
        )
        self._balancing = upkeep.every(
            "leader balance",
            lambda: self._config.leader_imbalance_check_interval_seconds * 1000,
            lambda: [self.term] if self.term is not None else [],
            self._look_around,
        )
        settled = asyncio.Event()

        async def first() -> None:
            try:
                await self._elect()
            finally:
                settled.set()

        self._enqueue(first)
        await settled.wait()

    def _look_around(self, term: Term) -> None:
        self._enqueue(term.tree.put_back_lost_states, term)
        self._enqueue(term.elections.balance, term)

    def retry_offline_partitions(self) -> None:
        """Settings changed: an unclean election may be allowed now."""
        if self.term is not None:
            self._enqueue(self.term.retry_offline_partitions, self.term)

    def _settings_changed(self, names: Collection[str]) -> None:
        if "unclean.leader.election.enable" in names:
            self.retry_offline_partitions()

    async def stop(self) -> None:
        """Handle nothing more; `/controller` goes when the session is closed."""
        if self._handling is not None and self._balancing is not None:
            self._balancing.stop()
            self._handling.stop()
            self._handling = None
        self._resign()

    def _recover(self) -> None:
        """Start again after an event that did not end: `_elect` reads the state from the tree."""
        self._resign()
        self._events.appendleft((self._begin_session if self._must_register else self._elect, None))

    # --- the queue ---

    def _enqueue(self, handler: Handler, term: Term | None = None) -> None:
        self._events.append((handler, term))
        if self._handling is not None:
            self._handling.run_soon()

    def _due(self) -> Iterator[Event]:
        while self._events:
            event = self._events.popleft()
            if event[1] in (None, self.term):
                yield event

    async def _handle(self, event: Event) -> None:
        handler, term = event
        assert term in (None, self.term), "the events of a term end with it"
        try:
            await handler()
        except ControllerMovedError:
            logger.info("another controller was elected: resigning from epoch %d", self.controller_epoch)
            self._resign()
            self._enqueue(self._elect)
        except ConnectionLossError:
            logger.warning("the coordination tree does not answer, trying again")
            await self._env.clock.sleep(RETRY_BACKOFF_MS)
            if term is not None:  # memory may hold half of a change: to take over again reads everything
                self._resign()
                handler = self._elect
            self._events.appendleft((handler, None))
        except SessionExpiredError:
            logger.info("the session with the coordination tree has expired")  # `begin_again` does the rest
        except Exception as error:
            what = (
                "a controller event failed" if isinstance(error, CoordinationError) else "a bug in a controller event"
            )
            logger.exception(what)
            if self.term is not None:  # memory may hold half of a change
                await self._give_up()
            else:
                self._env.clock.call_later(GIVE_UP_BACKOFF_MS, lambda: self._enqueue(self._elect))

    # --- requests to the controller ---

    def alter_partition(self, request: AlterPartitionRequest) -> Pending[AlterPartitionResponse]:
        """A leader wants other ISRs."""
        return self._ask(
            lambda term: term.alterations.alter_partition(request),
            lambda error: AlterPartitionResponse(error_code=error),
        )

    def controlled_shutdown(self, request: ControlledShutdownRequest) -> Pending[ControlledShutdownResponse]:
        """A broker wants to go: its partitions get other leaders, and it leaves the ISRs."""
        return self._ask(
            lambda term: term.controlled_shutdown(request), lambda error: ControlledShutdownResponse(error_code=error)
        )

    def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> Pending[AllocateProducerIdsResponse]:
        """A broker wants a block of producer ids."""
        return self._ask(
            lambda term: term.allocate_producer_ids(request),
            lambda error: AllocateProducerIdsResponse(error_code=error),
        )

    def update_features(
        self, updates: Sequence[Update], *, validate_only: bool
    ) -> Pending[tuple[ErrorCode, str | None]]:
        """A client wants other levels of features: the error, and what is wrong."""
        return self._ask(
            lambda term: term.feature_levels.update(updates, validate_only=validate_only), lambda error: (error, None)
        )

    def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ElectionResult]]:
        """A client wants other leaders. The caller waits until its metadata cache shows them."""
        return self._ask(
            lambda term: term.elections.elect(election_type, partitions),
            lambda error: {partition: ElectionResult(error) for partition in partitions},
        )

    def _ask(self, act: Callable[[Term], Awaitable[R]], refused: Callable[[ErrorCode], R]) -> Pending[R]:
        """Queue a request. NOT_CONTROLLER if this broker is not the controller, or resigns before the answer."""
        if self.term is None:
            return Pending.of(refused(ErrorCode.NOT_CONTROLLER))
        pending: Pending[R] = Pending()
        term = self.term

        def refuse(error: ErrorCode) -> None:
            if self._unanswered.pop(refuse, True) is None:
                pending.complete(refused(error))

        async def handle() -> None:
            try:
                answer = await act(term)
            except (ControllerMovedError, ConnectionLossError, SessionExpiredError):
                refuse(ErrorCode.NOT_CONTROLLER)
                raise
            except Exception:
                refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
                raise
            if self._unanswered.pop(refuse, True) is None:
                pending.complete(answer)

        self._unanswered[refuse] = None
        self._enqueue(handle, term)
        return pending

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
                        Set(paths.CONTROLLER_EPOCH, payloads.encode_number(epoch + 1), version),
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
        if await self._is_on_record() and not self.active:
            # This broker won, but the answer was lost: no other broker can have written the epoch since.
            epoch, version = await self._read_epoch()
            await self._become(epoch, version)

    async def _is_on_record(self, watch: Watch | None = None) -> bool:
        """Whether the node says that this broker is controller, in this session; or is of this session, at least."""
        try:
            data, stat = await self._coordination.get(paths.CONTROLLER, watch)
        except NoNodeError:
            return False
        is_own = stat.ephemeral_owner == self._coordination.session_id
        try:
            return payloads.ControllerNode.decode(data).broker_id == self._node_id and is_own
        except ValueError:
            say_unreadable(
                paths.CONTROLLER, data, "only the broker that made it is controller. Delete it: one is elected"
            )
            return is_own

    async def _read_epoch(self) -> tuple[int, int]:
        """The controller epoch and the version of its node, which is made anew if it was deleted or cannot be read."""
        while True:
            node = await get_if_there(self._coordination, paths.CONTROLLER_EPOCH)
            if node is not None:
                with suppress(ValueError):
                    return payloads.decode_number(node[0]), node[1].version
            epoch = await self._last_epoch()
            data = payloads.encode_number(epoch)
            if node is not None:
                say_unreadable(paths.CONTROLLER_EPOCH, node[0], f"controller epochs continue from {epoch}")
                with suppress(BadVersionError, NoNodeError):
                    await self._coordination.set(paths.CONTROLLER_EPOCH, data, node[1].version)
                continue
            if epoch:
                logger.error("%s was deleted: controller epochs continue from %d", paths.CONTROLLER_EPOCH, epoch)
            with suppress(NodeExistsError):
                await self._coordination.create(paths.CONTROLLER_EPOCH, data)

    async def _last_epoch(self) -> int:
        """The largest epoch of any controller, by what it has told and written. 0: there was none."""
        epochs = [self.controller_epoch, self._heard_epoch()]
        for topic in await children_if_there(self._coordination, paths.TOPICS):
            indexes = await children_if_there(self._coordination, paths.partitions(topic))
            nodes = [paths.partition_state(topic, int(index)) for index in indexes if index.isdecimal()]
            states = map(LeaderAndIsr.of_node, await self._coordination.get_many(nodes))
            epochs += [state.controller_epoch for state in states if state is not None]
        return max(epochs)

    def _watch_controller(self) -> Watch:
        """A watch on `/controller`. Only the last one counts, because it sees every change."""

        def fired(event: WatchEvent) -> None:
            if self._watch is fired:
                self._watch = None
                self._enqueue(self._controller_changed)

        self._watch = fired
        return fired

    async def _controller_changed(self) -> None:
        """`/controller` was made, changed or has gone."""
        if self.active:
            if await self._is_on_record(self._watch_controller()):
                return
            logger.info("/controller no longer names this broker: resigning from epoch %d", self.controller_epoch)
            self._resign()
        await self._elect()

    async def _become(self, epoch: int, epoch_version: int) -> None:
        """Begin a term, and take over."""
        logger.info("broker %d was elected controller, epoch %d", self._node_id, epoch)
        self._resign()
        self.controller_epoch = epoch
        term = Term(
            self._env,
            self._config,
            self._node_id,
            self._coordination,
            self._channels,
            epoch,
            epoch_version,
            self._enqueue,
            self._has_features,
        )
        self.term = term
        began_ms = self._env.clock.monotonic_ms()
        try:
            await term.take_over()
        except ControllerMovedError:
            raise
        except (SessionExpiredError, ConnectionLossError):
            self._resign()
            raise
        except Exception:
            logger.exception("taking over as controller failed")
            await self._give_up()
        else:
            logger.info(
                "took over %s and %s in %.0f ms",
                counted(len(term.state.states), "partition"),
                counted(len(term.state.brokers), "broker"),
                self._env.clock.monotonic_ms() - began_ms,
            )
            self._balance_timer = self._env.clock.call_later(
                FIRST_BALANCE_MS, lambda: self._enqueue(term.elections.balance, term)
            )

    async def _give_up(self) -> None:
        """Resign: after a back-off, remove `/controller` if this term still holds. This broker may win again."""
        term = self.term
        assert term is not None
        self._resign()
        await self._env.clock.sleep(GIVE_UP_BACKOFF_MS)
        try:
            await term.tree.write([Delete(paths.CONTROLLER)])
        except (CoordinationError, ControllerMovedError) as error:
            logger.info("could not remove /controller of epoch %d: %s", term.tree.epoch, error)

    def _resign(self) -> None:
        """End the term, if there is one. Who waits for an answer gets NOT_CONTROLLER."""
        if self.term is None:
            return
        logger.info("broker %d is no longer controller", self._node_id)
        self.term = None
        if self._balance_timer is not None:
            self._balance_timer.cancel()
            self._balance_timer = None
        self._channels.end_term()
        for refuse in list(self._unanswered):
            refuse(ErrorCode.NOT_CONTROLLER)
        assert not self._unanswered, "without a term nothing waits for one"

    def begin_again(self) -> None:
        """The session or the registration is over: drop the events of the term, register again, and elect."""
        self._must_register = True
        self._events = deque((handler, term) for handler, term in self._events if term is None)
        self._enqueue(self._begin_session)

    async def _begin_session(self) -> None:
        self._resign()
        if self.register_again is not None:
            await self.register_again()
        self._must_register = False
        await self._elect()
