"""Members of the classic protocol as clients are, also in groups that are consumer groups meanwhile (KIP-848)."""

from typing import Any

from barnabas.protocol import messages
from barnabas.protocol import records as stored
from barnabas.protocol.errors import ErrorCode
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, answer_of

Owned = dict[bytes, list[int]]


class ClassicMember:
    """One client. With an eager assignor it gives everything up before it joins, else what it must (KIP-429).

    Its leader assigns each partition to whom has it, or to the first member that reads the topic.
    """

    def __init__(self, world: GroupWorld, group: str, topics: list[str], *, eager: bool = True) -> None:
        self.world = world
        self.group = group
        self.topics = topics
        self.eager = eager
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = {}
        self._next = self._join
        self._waiting: tuple[Pending[Any], Any] | None = None

    @property
    def protocol(self) -> str:
        return "range" if self.eager else "cooperative-sticky"

    def send(self) -> None:
        """Take the next step: join, sync, or live."""
        if self._waiting is not None:
            reply, take = self._waiting
            if not reply.done:
                return
            self._waiting = None
            take(answer_of(reply))
        else:
            self._next()

    def _ask(self, name: str, request: Any, version: int, take: Any) -> None:
        reply = self.world.call(name, request, version)
        self.world.settle()
        if isinstance(reply, Pending) and not reply.done:
            self._waiting = (reply, take)
        else:
            take(answer_of(reply) if isinstance(reply, Pending) else reply)

    # ---- join ----

    def _join(self) -> None:
        if self.eager:
            self.owned = {}
        make = stored.ConsumerProtocolSubscription
        names = {self.world.topics.topic_name(topic): partitions for topic, partitions in self.owned.items()}
        owned = [make.TopicPartition(topic=name, partitions=each) for name, each in names.items() if name]
        said = stored.encode_versioned(make(topics=self.topics, owned_partitions=owned), 1)
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(name=self.protocol, metadata=said)
        request = messages.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
        )
        self._ask("join_group", request, 9, self._joined)

    def _joined(self, answer: Any) -> None:
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.lose_all()
        elif not error:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._next = lambda: self._sync(answer)

    # ---- sync ----

    def _sync(self, joined: Any) -> None:
        request = messages.SyncGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation_id=self.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=self._assign(joined.members) if joined.leader == self.member_id else [],
        )
        self._ask("sync_group", request, 5, self._synced)

    def _assign(self, members: list[Any]) -> list[Any]:
        given: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
        subscriptions = {
            member.member_id: stored.decode_versioned(stored.ConsumerProtocolSubscription, member.metadata)[1]
            for member in members
        }
        has = {
            (row.topic, partition): member_id
            for member_id, said in subscriptions.items()
            for row in said.owned_partitions
            for partition in row.partitions
        }
        for topic in sorted({topic for said in subscriptions.values() for topic in said.topics}):
            readers = sorted(member_id for member_id, said in subscriptions.items() if topic in said.topics)
            for partition in range(self.world.topics.partition_count(topic)):
                owner = has.get((topic, partition), readers[partition % len(readers)])
                if owner in readers:
                    given[owner].setdefault(topic, []).append(partition)
        make = stored.ConsumerProtocolAssignment
        return [
            messages.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=stored.encode_versioned(
                    make(
                        assigned_partitions=[
                            make.TopicPartition(topic=topic, partitions=each) for topic, each in topics.items()
                        ]
                    ),
                    1,
                ),
            )
            for member_id, topics in given.items()
        ]

    def _synced(self, answer: Any) -> None:
        error = ErrorCode(answer.error_code)
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.lose_all()
        elif error:
            self._next = self._join
        else:
            found = stored.decode_versioned(stored.ConsumerProtocolAssignment, answer.assignment)[1]
            before = self.owned
            self.owned = {
                self.world.topics.topic_id(row.topic): list(row.partitions) for row in found.assigned_partitions
            }
            given_up = any(set(each) - set(self.owned.get(topic, ())) for topic, each in before.items())
            self._next = self._join if given_up and not self.eager else self._live

    # ---- live ----

    def _live(self) -> None:
        request = messages.HeartbeatRequest(
            group_id=self.group, member_id=self.member_id, generation_id=self.generation
        )
        error = ErrorCode(self.world.ask("heartbeat", request, 4).error_code)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._next = self._join
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.lose_all(keeps_id=error is ErrorCode.ILLEGAL_GENERATION)

    def lose_all(self, *, keeps_id: bool = False) -> None:
        """Fenced: nothing is owned any more, and it joins again."""
        self.owned = {}
        self.generation = -1
        self._next = self._join
        if not keeps_id:
            self.member_id = ""

    def leave(self) -> None:
        """Leave the group."""
        row = messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        self.world.call("leave_group", messages.LeaveGroupRequest(group_id=self.group, members=[row]), 5)
        self.world.settle()
        self.lose_all()
