"""Replica fetchers: they copy the partitions that this broker follows, over few connections.

There are num.replica.fetchers for each leader. A fetcher has one Fetch request under way, in an incremental session
(`leader_session.py`). It goes through the answer in turns with other tasks. What is to be done with a partition is
decided in `follower.py`. A partition that must do something else first leaves the session for that time, and the others
go on: it backs off, cuts its log, or asks for the ends of the leader's log.
"""

import logging
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from barnabas.cluster.broker_client import BrokerClients
from barnabas.cluster.leader_and_isr import NO_LEADER
from barnabas.config.broker import BrokerConfig
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.java_hash import java_hash_code
from barnabas.protocol.messages import FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from barnabas.replication.follower import Action, Backoff, Follower, Verdict, append, handle_answer
from barnabas.replication.leader_session import SESSION_ERRORS, Key, LeaderSession, Limits
from barnabas.replication.offset_lookup import EARLIEST, LATEST
from barnabas.replication.partition import Partition
from barnabas.replication.truncation import bounds_out_of_range, first_truncation
from barnabas.runtime.pending import Pending
from barnabas.runtime.ports import Env, Timer
from barnabas.runtime.turns import Pieces
from barnabas.runtime.upkeep import Task
from barnabas.storage.truncation import Truncation, begin_full_truncation, begin_truncation

logger = logging.getLogger("barnabas.replication")

LIST_OFFSETS_VERSION = 9  # what Apache Kafka 3.9 sends between brokers
LOOK_MS = 5_000.0
WAIT_MAX_MS = 2**31 - 1
# How fast a follower takes records that are committed without it. No producer waits for these; a follower that took
# them as fast as it can would take the processor from those that producers wait for.
CATCH_UP_BYTES_PER_MS = 300_000
REST_MIN_MS = 1.0
LATE_WAIT_MAX_MS = 20  # how long the leader may hold back an answer for partitions that have just been added


class _Lane:
    """One connection of a fetcher, with one request after the other in one session."""

    def __init__(self, name: str, node_id: int, wait_max_ms: int) -> None:
        self.name = name
        self.session = LeaderSession(node_id)
        self.wait_max_ms = wait_max_ms  # replica.fetch.wait.max.ms, if that is less
        self.backoff = Backoff()
        self.is_waiting = False  # for the answer to a request
        self.is_busy = False  # waiting for an answer, or handling it
        self.is_scheduled = False
        self.timer: Timer | None = None
        self.due_ms = 0.0  # when the next request should begin
        self.asked_ms = 0.0  # when the last one began
        self.behind_bytes = 0  # of the last answer, in partitions that are not in sync
        self.is_waited_for = False  # the last answer brought records that were not committed: their producers wait


class ReplicaFetcher:
    """Copies some of the partitions that one broker leads.

    A partition may have to be copied from now on, while the leader holds back its answer until it has news of others.
    It cannot join before that answer, and its producers may wait for this follower. So it begins in a lane of its own,
    and joins the others with their next request.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        clients: BrokerClients,
        leader_id: int,
        number: int,
        epoch: Callable[[], int],
    ) -> None:
        self._env = env
        self._config = config
        self._clients = clients
        self._broker_epoch = epoch
        self.leader_id = leader_id
        self.followers: dict[Key, Follower] = {}  # also those that are not in the session now
        self._main = _Lane(f"fetcher-{number}", config.node_id, WAIT_MAX_MS)
        self._late = _Lane(f"fetcher-{number}-late", config.node_id, LATE_WAIT_MAX_MS)

    def __repr__(self) -> str:
        return f"<ReplicaFetcher {self._main.name} of broker {self.leader_id}, {len(self.followers)} partitions>"

    # --- which partitions ---

    def follow(self, partition: Partition) -> None:
        """Copy a partition, in the present epoch of its leader."""
        follower = Follower(partition)
        key = (follower.topic, follower.index)
        self.stop(key)
        self.followers[key] = follower
        log = partition.log
        if log.finish_truncation is not None:  # of an earlier epoch
            log.finish_truncation()
        self._end_backoff(self._main)  # the controller says that the leader is there
        cut = first_truncation(log.leader_epochs.latest, log.log_end_offset, log.high_watermark)
        if log.missing_from is not None:  # a copy of what the leader has must not leave a hole in the log
            cut, log.missing_from = min(cut, log.missing_from), None
        if cut < log.log_end_offset:
            self._cut(follower, begin_truncation(log, cut))
        else:
            self._resume(follower)

    def stop(self, key: Key) -> None:
        """Do not copy this partition any more. What is still to come of it is ignored."""
        follower = self.followers.pop(key, None)
        if follower is not None:
            follower.has_ended = True
            self._leave(key)

    def _leave(self, key: Key) -> None:
        self._main.session.remove(key)
        self._late.session.remove(key)

    def _resume(self, follower: Follower) -> None:
        """The partition takes part in the session again."""
        if self._is_followed(follower):
            lane = self._late if self._main.is_waiting else self._main
            lane.session.add(follower)
            self._begin_soon(lane)

    def _is_followed(self, follower: Follower) -> bool:
        """Whether a wait has ended for a partition that is still followed in the same epoch."""
        return self.followers.get((follower.topic, follower.index)) is follower and follower.is_current

    # --- one request after the other ---

    def _begin_soon(self, lane: _Lane) -> None:
        """In a later event, because many partitions are told one after the other."""
        if not lane.is_scheduled:
            lane.is_scheduled = True
            lane.due_ms = self._env.clock.monotonic_ms()
            self._env.clock.call_soon(partial(self._begin, lane))

    def _begin(self, lane: _Lane) -> None:
        lane.is_scheduled = False
        session = lane.session
        if lane.is_busy or lane.timer is not None or not session.has_request:
            return
        config = self._config
        client = self._clients.to(self.leader_id, lane.name, config.replica_socket_timeout_ms)
        if client is None:
            session.begin_again()
            if len(session):
                self._back_off(lane)
            return
        limits = Limits(
            min(config.replica_fetch_wait_max_ms, lane.wait_max_ms),
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            config.replica_fetch_max_bytes,
        )
        lane.is_busy = lane.is_waiting = True
        lane.asked_ms = self._env.clock.monotonic_ms()
        lane.behind_bytes = 0
        lane.is_waited_for = False
        try:
            version = session.version
            pending = client.send(session.request(limits, self._broker_epoch()), version)
        except Exception as error:
            self._failed(lane, error)
        else:
            pending.on_failure = partial(self._failed, lane)
            pending.then(partial(self._answered, lane))

    def _answered(self, lane: _Lane, response: FetchResponse | None) -> None:
        lane.is_waiting = False
        if lane is self._main:
            for follower in self._late.session.take_all():
                lane.session.add(follower)
        if response is None:
            logger.debug("%s: no answer to Fetch from broker %d", lane.name, self.leader_id)
            self._begin_again(lane)
            return
        error = lane.session.answered(response)
        if error is not ErrorCode.NONE:
            is_told = error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # by the client, with what to do
            level = logging.DEBUG if is_told else logging.INFO
            logger.log(level, "%s: Fetch from broker %d failed: %s", lane.name, self.leader_id, error.name)
            lane.is_busy = False
            if error in SESSION_ERRORS:
                self._begin_soon(lane)
            else:
                self._back_off(lane)
            return
        lane.backoff.reset()
        try:
            handled = self._env.turns.run(self._handle(lane, response), to_the_end=True)
        except Exception as failure:
            self._failed(lane, failure)
            return
        if isinstance(handled, Pending):
            handled.on_failure = partial(self._failed, lane)
            handled.then(partial(self._handled, lane))
        else:
            self._handled(lane, None)

    def _handled(self, lane: _Lane, _: None) -> None:
        lane.is_busy = False
        if lane.behind_bytes and not lane.is_waited_for and lane.timer is None:
            due_ms = lane.asked_ms + lane.behind_bytes / CATCH_UP_BYTES_PER_MS
            if due_ms >= self._env.clock.monotonic_ms() + REST_MIN_MS:
                self._wait(lane, due_ms)
                return
        self._begin_soon(lane)

    def _failed(self, lane: _Lane, error: Exception) -> None:
        """A bug. The session begins again after a while, and the logs say what they have."""
        logger.error("%s of broker %d failed", lane.name, self.leader_id, exc_info=error)
        self._begin_again(lane)

    def _begin_again(self, lane: _Lane) -> None:
        """Begin a new session after a while."""
        lane.session.begin_again()
        lane.is_busy = lane.is_waiting = False
        self._back_off(lane)

    def _back_off(self, lane: _Lane) -> None:
        """The leader does not answer: wait with all partitions."""
        delay_ms = lane.backoff.next_ms(self._config.replica_fetch_backoff_ms)
        if lane.timer is None:
            self._wait(lane, self._env.clock.monotonic_ms() + delay_ms)

    def _wait(self, lane: _Lane, due_ms: float) -> None:
        """Begin the next request at that time."""
        lane.due_ms = due_ms
        delay_ms = due_ms - self._env.clock.monotonic_ms()
        lane.timer = self._env.clock.call_later(delay_ms, partial(self._try_again, lane))

    def _end_backoff(self, lane: _Lane) -> None:
        lane.backoff.reset()
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
            self._begin_soon(lane)

    def look(self) -> None:
        """Begin again where a request is overdue. A lost timer, or a bug, must not end the copying for good."""
        now_ms = self._env.clock.monotonic_ms()
        for lane in (self._main, self._late):
            if lane.session.has_request and not lane.is_busy and now_ms > lane.due_ms + LOOK_MS:
                logger.warning("%s of broker %d was stuck: restarted it", lane.name, self.leader_id)
                lane.is_scheduled = False
                lane.timer = None
                self._begin_soon(lane)

    def _try_again(self, lane: _Lane) -> None:
        lane.timer = None
        self._begin(lane)

    # --- one partition of an answer ---

    def _handle(self, lane: _Lane, response: FetchResponse) -> Pieces[None]:
        session = lane.session
        for topic in response.responses:
            name = session.topic_of(topic)
            if name is None:
                continue
            for answer in topic.partitions:
                follower = session.member(name, answer.partition_index)
                if follower is not None:
                    self._act(lane, follower, handle_answer(follower, answer), answer)
                    yield None

    def _act(self, lane: _Lane, follower: Follower, verdict: Verdict, answer: FetchResponse.PartitionData) -> None:
        action = verdict.action
        if action is Action.GO_ON:
            follower.backoff.reset()
            lane.session.note(follower)
            if answer.records:
                follower.said = ""
                if follower.partition.log.log_end_offset < answer.high_watermark:
                    lane.behind_bytes += len(answer.records)
                else:
                    lane.is_waited_for = True
            return
        if action is Action.IGNORE:
            lane.session.note(follower)  # what it has now
            return
        key = (follower.topic, follower.index)
        log = follower.partition.log
        is_news = verdict.is_trouble and verdict.why != follower.said
        level = logging.WARNING if is_news else logging.DEBUG
        if is_news:
            follower.said = verdict.why
        logger.log(level, "%s-%d: %s (%s)", *key, action.value, verdict.why)
        if action is Action.GIVE_UP:
            self.stop(key)
            return
        self._leave(key)
        if action is Action.BACK_OFF:
            self._back_off_with(follower)
        elif action is Action.LOOK_UP:
            self._env.turns.begin(self._look_up(follower), failed=partial(self._failed_beside, follower))
        elif action is Action.BEGIN_ANEW:
            self._cut(follower, begin_full_truncation(log, verdict.offset), answer)
        else:
            latest = log.leader_epochs.latest
            truncation = begin_truncation(log, verdict.offset)
            if truncation is None and latest == log.leader_epochs.latest:
                self._back_off_with(follower)  # nothing has changed: the leader would say the same again
            else:
                self._cut(follower, truncation)

    def _back_off_with(self, follower: Follower) -> None:
        """Try again with one partition later."""
        delay_ms = follower.backoff.next_ms(self._config.replica_fetch_backoff_ms)
        self._env.clock.call_later(delay_ms, partial(self._resume, follower))

    # --- cutting the log ---

    def _cut(
        self,
        follower: Follower,
        truncation: Truncation | None,
        answer: FetchResponse.PartitionData | None = None,
    ) -> None:
        """Cut the log beside the session, then fetch on. The records of `answer` are appended behind the cut."""
        if truncation is None:
            self._resume(follower)
        else:
            self._env.turns.begin(
                self._cut_in_turns(follower, truncation, answer), failed=partial(self._failed_beside, follower)
            )

    def _cut_in_turns(
        self, follower: Follower, truncation: Truncation, answer: FetchResponse.PartitionData | None
    ) -> Pieces[None]:
        yield from truncation.in_turns()
        if not self._is_followed(follower):
            return
        if not truncation.has_succeeded:
            self._back_off_with(follower)
            return
        if answer is not None:
            verdict = append(follower, answer)
            if verdict.action is not Action.GO_ON:
                logger.warning("%s-%d: %s", follower.topic, follower.index, verdict.why)
                self._back_off_with(follower)
                return
        self._resume(follower)

    # --- out of range ---

    def _look_up(self, follower: Follower) -> Pieces[None]:
        """The leader does not have our fetch offset: ask where its log ends and begins, and go where both agree."""
        log = follower.partition.log
        latest = yield from self._offset(follower, LATEST)
        earliest = None if latest is None else (yield from self._offset(follower, EARLIEST))
        if not self._is_followed(follower):
            return
        if latest is None or earliest is None:
            self._back_off_with(follower)
            return
        bounds = bounds_out_of_range(log.log_end_offset, earliest, latest)
        text = "%s-%d: the offset %d is not in the leader's log, which has %d to %d"
        logger.info(text, follower.topic, follower.index, log.log_end_offset, earliest, latest)
        if bounds.start_offset is not None:
            self._cut(follower, begin_full_truncation(log, bounds.start_offset))
        elif bounds.end_offset < log.log_end_offset:
            self._cut(follower, begin_truncation(log, bounds.end_offset))
        else:
            begin_truncation(log, bounds.end_offset)  # epochs without records go
            self._back_off_with(follower)

    def _offset(self, follower: Follower, timestamp: int) -> Generator[Any, Any, int | None]:
        """One end of the leader's log."""
        client = self._clients.to(self.leader_id, "offsets", self._config.replica_socket_timeout_ms)
        if client is None:
            return None
        partition = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=follower.index, current_leader_epoch=follower.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._config.node_id,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=follower.topic, partitions=[partition])],
        )
        response: ListOffsetsResponse | None = yield client.send(request, LIST_OFFSETS_VERSION)
        if response is None:
            return None
        (topic,) = response.topics
        (answer,) = topic.partitions
        return None if answer.error_code or answer.offset < 0 else answer.offset

    def _failed_beside(self, follower: Follower, error: Exception) -> None:
        """A bug, or an answer that makes no sense."""
        logger.error(
            "%s-%d: truncating the log, or finding where to, failed", follower.topic, follower.index, exc_info=error
        )
        self._back_off_with(follower)


class ReplicaFetchers:
    """All fetchers of a broker, by leader and number."""

    def __init__(self, env: Env, config: BrokerConfig, clients: BrokerClients, broker_epoch: Callable[[], int]) -> None:
        self._env = env
        self._config = config
        self._clients = clients
        self._broker_epoch = broker_epoch
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetcher_of: dict[Key, ReplicaFetcher] = {}
        self._count = config.num_replica_fetchers
        self._is_shut_down = False
        self._task: Task[ReplicaFetcher] | None = None
        config.on_change.append(self._config_changed)

    def start(self) -> None:
        """Look after the fetchers from now on."""
        self._task = self._env.upkeep.every(
            "replica fetchers", lambda: LOOK_MS, lambda: list(self._fetchers.values()), ReplicaFetcher.look
        )

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Copy each partition from its leader of now. One without a leader waits until the controller names one."""
        if self._is_shut_down:
            return
        for partition in partitions:
            key = (partition.topic, partition.index)
            self._stop(key)
            if partition.leader_id != NO_LEADER and not partition.is_leader and partition.log.failed is None:
                fetcher = self._fetcher(partition)
                self._fetcher_of[key] = fetcher
                fetcher.follow(partition)

    def stop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._stop((partition.topic, partition.index))

    def begin_shutdown(self) -> None:
        """The broker hands its leaderships over: what it is told to follow now, it does not begin to copy."""
        self._is_shut_down = True

    def shutdown(self) -> None:
        """Stop all. No partition is followed any more."""
        self._is_shut_down = True
        if self._task is not None:
            self._task.stop()
        if self._config_changed in self._config.on_change:
            self._config.on_change.remove(self._config_changed)
        for key in list(self._fetcher_of):
            self._stop(key)

    def _stop(self, key: Key) -> None:
        fetcher = self._fetcher_of.pop(key, None)
        if fetcher is not None:
            fetcher.stop(key)

    def _fetcher(self, partition: Partition) -> ReplicaFetcher:
        number = fetcher_number(partition.topic, partition.index, self._count)
        key = (partition.leader_id, number)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = ReplicaFetcher(
                self._env, self._config, self._clients, *key, self._broker_epoch
            )
        return fetcher

    def _config_changed(self, names: frozenset[str]) -> None:
        if self._config.num_replica_fetchers != self._count:
            self._count = self._config.num_replica_fetchers
            followed = [(key, fetcher) for key, fetcher in self._fetcher_of.items() if key in fetcher.followers]
            self.follow([fetcher.followers[key].partition for key, fetcher in followed])


def fetcher_number(topic: str, index: int, count: int) -> int:
    """Which of a leader's fetchers copies a partition, as in Apache Kafka."""
    value = (31 * java_hash_code(topic) + index) & 0xFFFFFFFF
    if value & 0x80000000:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % count
