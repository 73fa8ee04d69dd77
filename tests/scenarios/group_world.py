"""A group coordinator with nothing around it: virtual time, a log in memory whose commits can be held back, topics
by name. Used by the scenario runner and by the unit tests of groups/."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.cluster.metadata_cache import hash_of_topic
from barnabas.cluster.topic_names import OFFSETS_TOPIC
from barnabas.coordinators.groups.coordinator import GroupCoordinator
from barnabas.offsets.offset_journal import OffsetJournal
from barnabas.protocol import messages, record_batch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.transaction_marker import CONTROL_ABORT, CONTROL_COMMIT, build_marker
from barnabas.runtime.pending import Pending
from barnabas.storage.validation import AppendOrigin, AppendResult
from memory_journal import MemoryJournal
from simulator.coordination import SimCoordination, SimTree
from simulator.env import sim_env

DEFAULTS = {
    "group_consumer_assignment_interval_ms": 0,
    "group_consumer_assignors": ("uniform", "range"),
    "group_consumer_heartbeat_interval_ms": 5000,
    "group_consumer_max_assignment_interval_ms": 15000,
    "group_consumer_max_heartbeat_interval_ms": 15000,
    "group_consumer_max_session_timeout_ms": 60000,
    "group_consumer_max_size": 2**31 - 1,
    "group_consumer_migration_policy": "bidirectional",
    "group_consumer_min_assignment_interval_ms": 0,
    "group_consumer_min_heartbeat_interval_ms": 5000,
    "group_consumer_min_session_timeout_ms": 45000,
    "group_consumer_session_timeout_ms": 45000,
    "group_initial_rebalance_delay_ms": 3000,
    "group_max_session_timeout_ms": 1_800_000,
    "group_max_size": 2**31 - 1,
    "group_min_session_timeout_ms": 6000,
    "offset_metadata_max_bytes": 4096,
    "offsets_commit_required_acks": -1,
    "offsets_commit_timeout_ms": 5000,
    "offsets_load_buffer_size": 5 * 1024 * 1024,
    "offsets_retention_check_interval_ms": 600_000,
    "offsets_retention_minutes": 10080,
    "offsets_storage": "kafka",
    "dual_commit_enabled": False,
    "offsets_topic_compression_codec": 0,
}


PARTS = {  # of the coordinator: which one answers
    "offset_commit": "commits",
    "offset_fetch": "offset_fetches",
    "offset_delete": "removals",
    "delete_groups": "removals",
    "heartbeat_consumer": "consumer",
    "describe_consumer": "consumer",
    "txn_offset_commit": "transactional_commits",
}


class MemoryLog:
    """A `CoordinatorLog` in memory. `held`: the high watermark stands still. `failures`: errors of the next appends."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self.call_soon = call_soon
        self.leader_epoch = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.held = False
        self.shortage = ""
        self.failures: list[ErrorCode] = []
        self.batches: list[tuple[int, bytes]] = []
        self.reads = 0
        self.required_acks: list[int] = []  # of each append
        self._waiters: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def append(
        self, batch: Any, required_acks: int = -1, origin: AppendOrigin = AppendOrigin.COORDINATOR
    ) -> AppendResult:
        self.required_acks.append(required_acks)
        if self.failures:
            return AppendResult(self.failures.pop(0))
        data = bytearray(batch.data if isinstance(batch, record_batch.PlainBatch) else batch)
        header = record_batch.read_header(data)
        record_batch.patch(data, 0, self.log_end_offset, self.leader_epoch)
        base = self.log_end_offset
        self.batches.append((base, bytes(data)))
        self.log_end_offset += header.record_count
        if not self.held:
            self.release()
        return AppendResult(ErrorCode.NONE, base_offset=base, last_offset=self.log_end_offset - 1)

    def park_until(self, offset: int, waiter: Callable[[ErrorCode], None]) -> object:
        if self.high_watermark >= offset:
            self.call_soon(lambda: waiter(ErrorCode.NONE))
        else:
            self._waiters.append((offset, waiter))
        return None

    def release(self, offset: int | None = None) -> None:
        """Let the high watermark move, to the log end or to `offset`."""
        self.high_watermark = self.log_end_offset if offset is None else offset
        due = [waiter for at, waiter in self._waiters if at <= self.high_watermark]
        self._waiters = [entry for entry in self._waiters if entry[0] > self.high_watermark]
        for waiter in due:
            self.call_soon(lambda waiter=waiter: waiter(ErrorCode.NONE))

    def lose_leadership(self) -> None:
        """Lose the leadership, and fail all waiting appends."""
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def read(self, offset: int, max_bytes: int) -> bytes:
        self.reads += 1
        found = b""
        for _, batch in self.batches:
            if record_batch.read_header(batch).next_offset > offset:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return found


class TopicList:
    """The metadata cache, as far as the coordinator asks it."""

    def __init__(self, offsets_partitions: int) -> None:
        self.offsets_partitions = offsets_partitions
        self.partitions = {"t": 4, "events": 4, "orders": 4}
        self.changes = self.name_changes = 0
        self.racks: dict[str, list[list[str]]] = {}
        self.lives: dict[str, int] = {}  # how often a topic was made again

    def change(self, topic: str, count: int) -> None:
        """A topic is made, gets partitions, or is deleted (0)."""
        self.changes += 1
        if (topic in self.partitions) != (count > 0):
            self.name_changes += 1
        if count:
            self.partitions[topic] = count
        elif self.partitions.pop(topic, None) is not None:
            self.lives[topic] = self.lives.get(topic, 0) + 1

    def topic_names(self) -> list[str]:
        return list(self.partitions)

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def topic_hash(self, topic: str) -> int:
        racks = self.racks.get(topic) or [[] for _ in range(self.partition_count(topic))]
        return hash_of_topic(self.topic_id(topic), racks) if topic in self.partitions else 0

    def contains(self, topic: str, index: int | None = None) -> bool:
        return topic in self.partitions and (index is None or 0 <= index < self.partitions[topic])

    @property
    def topics(self) -> dict[str, range]:
        return {
            topic: range(count) for topic, count in (*self.partitions.items(), (OFFSETS_TOPIC, self.offsets_partitions))
        }

    def topic_id(self, topic: str) -> bytes:
        if topic not in self.partitions:
            return bytes(16)
        return f"{topic}{self.lives.get(topic, '')}".encode().ljust(16, b"\x01")

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((topic for topic in self.partitions if self.topic_id(topic) == topic_id), None)


class GroupWorld:
    """One coordinator that owns all `count` offsets partitions, with a journal of them if asked."""

    def __init__(
        self, seed: int = 0, count: int = 1, coordination: Any = None, with_journal: bool = False, **settings: Any
    ) -> None:
        self.env = sim_env(seed)
        self.clock = self.env.clock
        self.config = SimpleNamespace(**DEFAULTS | settings)
        self.topics = TopicList(count)
        self.journal = MemoryJournal(self.topics.topic_id) if with_journal else None
        self.logs = [MemoryLog(self.clock.call_soon) for _ in range(count)]
        self.count = count
        self.coordination = coordination
        if coordination is None:
            self.coordination = SimCoordination(self.clock, SimTree(self.clock))
            self.env.run(self.coordination.start())
        self.lease = SimpleNamespace(holds=True)
        self.parked: list[Pending[Any]] = []  # every answer that was not there at once
        self.verified: ErrorCode | Pending[ErrorCode] = ErrorCode.NONE  # what transaction coordinators say
        self.coordinator = self.make_coordinator()
        self.coordinator.start()
        self.lead_all()

    def make_coordinator(self) -> GroupCoordinator:
        """A coordinator over the same logs, not started."""
        return GroupCoordinator(
            self.env,
            self.config,
            lambda index: self.logs[index],
            self.topics,
            self.coordination,
            self.lease,
            lambda *_: None,
            None if self.journal is None else OffsetJournal(self.env, self.journal),
        )

    def lead_all(self) -> None:
        """Become leader of every offsets partition in the logs' epoch, and load."""
        led = [
            SimpleNamespace(topic=OFFSETS_TOPIC, index=index, leader_epoch=log.leader_epoch)
            for index, log in enumerate(self.logs)
        ]
        self.coordinator.on_leadership(led, [])
        self.settle()

    def restart(self) -> None:
        """Restart the broker: only the logs remain."""
        self.coordinator.shutdown()
        self.settle()
        for log in self.logs:
            log.leader_epoch += 1
        self.coordinator = self.make_coordinator()
        self.coordinator.start()
        self.lead_all()

    def settle(self) -> None:
        """Run what is due now."""
        self.clock.advance(0)

    def call(self, name: str, request: Any, version: int, client_id: str = "client") -> Any:
        """Send a request; returns the answer, or the Pending of it."""
        context = SimpleNamespace(
            api_version=version, client_id=client_id, client_host="/127.0.0.1", principal="User:alice", is_long=False
        )
        more = [lambda index: self.verified] if name == "txn_offset_commit" else []

        async def on_the_loop() -> Any:
            part = PARTS.get(name)
            answerer = self.coordinator if part is None else getattr(self.coordinator, part)
            return getattr(answerer, name.removesuffix("_consumer"))(request, context, *more)

        reply = self.env.run(on_the_loop())
        if isinstance(reply, Pending):
            self.parked.append(reply)
        return reply

    def ask(self, name: str, request: Any, version: int, client_id: str = "client") -> Any:
        """Ask, let what is due run, and return the answer, which must be there by then."""
        reply = self.call(name, request, version, client_id)
        self.settle()
        return answer_of(reply)

    def commit(self, group: str, offsets: dict[tuple[str, int], int], *, version: int = 8, **fields: Any) -> list[int]:
        """Commit without membership (or with, by fields); the errors in the order of the answer."""
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                messages.OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=fields.get("metadata", "")
                )
            )
        request = messages.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=fields.get("generation", -1),
            member_id=fields.get("member_id", ""),
            retention_time_ms=fields.get("retention_time_ms", -1),
            topics=[
                messages.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        response = self.ask("offset_commit", request, version)
        return [partition.error_code for topic in response.topics for partition in topic.partitions]

    def pend(
        self, group: str, producer_id: int, offsets: dict[tuple[str, int], int], *, version: int = 5, **fields: Any
    ) -> list[int]:
        """Commit in a producer's transaction; the errors in the order of the answer."""
        request = pending_commit(group, producer_id, offsets, **fields)
        response = self.ask("txn_offset_commit", request, version)
        return [partition.error_code for topic in response.topics for partition in topic.partitions]

    def end(self, producer_id: int, is_commit: bool = True, index: int = 0) -> ErrorCode:
        """Write the marker that ends a producer's transaction in an offsets partition; what its sender is told."""
        reply = self.send_marker(producer_id, is_commit, index)
        self.settle()
        return answer_of(reply)

    def send_marker(self, producer_id: int, is_commit: bool = True, index: int = 0) -> Pending[ErrorCode]:
        """The same, with the answer still out."""
        batch = build_marker(
            CONTROL_COMMIT if is_commit else CONTROL_ABORT,
            base_offset=0,
            partition_leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp=self.clock.now_ms(),
        )
        origin = AppendOrigin.COORDINATOR
        reply = self.coordinator.write_marker(index, batch, origin, producer_id, is_commit)
        self.parked.append(reply)
        return reply

    def unstable(self, group: str, topic: str = "t", count: int = 4) -> list[int]:
        """The partitions of a topic that a fetch of stable offsets is refused, because a transaction is open."""
        fetched = messages.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=list(range(count)))
        request = messages.OffsetFetchRequest(group_id=group, topics=[fetched], require_stable=True)
        rows = self.ask("offset_fetch", request, 7).topics[0].partitions
        assert {row.error_code for row in rows} <= {ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT}
        return [row.partition_index for row in rows if row.error_code]

    def fetch(self, group: str) -> dict[tuple[str, int], int]:
        """All committed offsets of a group."""
        request = messages.OffsetFetchRequest(group_id=group, topics=None)
        response = self.ask("offset_fetch", request, 5)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in response.topics
            for partition in topic.partitions
        }

    def records(self) -> list[record_batch.Record]:
        """Everything in the logs."""
        return [
            record
            for log in self.logs
            for _, batch in log.batches
            for record in record_batch.records(memoryview(batch), max_bytes=1 << 30)
        ]


def join_request(group: str = "g", *, metadata: bytes = b"", **fields: Any) -> messages.JoinGroupRequest:
    """A consumer wants to join; `fields` are those that matter to the test."""
    protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    return messages.JoinGroupRequest(
        group_id=group, protocol_type="consumer", protocols=[protocol], **timeouts | fields
    )


def pending_commit(
    group: str, producer_id: int, offsets: dict[tuple[str, int], int], **fields: Any
) -> messages.TxnOffsetCommitRequest:
    """A TxnOffsetCommit."""
    make = messages.TxnOffsetCommitRequest
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            make.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=fields.get("metadata", "")
            )
        )
    return make(
        transactional_id=f"id-{producer_id}",
        group_id=group,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id_or_member_epoch=fields.get("generation", -1),
        member_id=fields.get("member_id", ""),
        group_instance_id=fields.get("instance"),
        topics=[make.TxnOffsetCommitRequestTopic(name=topic, partitions=rows) for topic, rows in topics.items()],
    )


def answer_of(reply: Any) -> Any:
    """The value of an answer that is there."""
    if not isinstance(reply, Pending):
        return reply
    found: list[Any] = []
    assert reply.done, "the answer is still parked"
    reply.then(found.append)
    return found[0]
