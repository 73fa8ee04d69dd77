"""The world of rights (access_world.py) with a group whose members migrate between the protocols (KIP-848).

Its members are processes of one user on one machine. Some subscribe to topics by their names, some by an expression. No
two processes have the same expression, so that what it means was found out after its process has begun: it may mean
only topics that the user could see since then. None is static: such a one is given at first what the process before it
had.
"""

from collections.abc import Callable
from typing import Any, cast

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode

from simulator.access_clients import REFUSALS, Question, connect
from simulator.access_model import ALLOW, DESCRIBE, GROUP, LITERAL, READ, TOPIC, Answered, Asker, Right, Rule
from simulator.access_world import SHOWN, TOPICS, AccessWorld
from simulator.clients.connection import Connection
from simulator.clients.consumer_member import ConsumerMember, GroupBook
from simulator.clients.routed import errors_in
from simulator.commits import Commits
from simulator.consumer_members import Alone
from simulator.host import Life
from simulator.ledger import Ledger, TopicPartition
from simulator.simulation import Verdict
from simulator.violation import Violation
from simulator.world import World

KEYS = [(topic, 0) for topic in TOPICS]
ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class GuardedMember(ConsumerMember):
    """A member that has what its user may have."""

    def __init__(self, world: "ConsumerAccessWorld", name: str, book: GroupBook) -> None:
        super().__init__(cast(World, world), name, book, KEYS, None)
        self.rights_world = world
        self._broker = world.names[0]

    def _choose(self) -> None:
        super()._choose()
        world = cast("ConsumerAccessWorld", self.world)
        self._names = self.rng.sample(TOPICS, self.rng.randint(1, 2))
        self._expression = f"(alpha-[a-z]+|beta)({self.name}-{self._starts})?" if self.rng.random() < 0.6 else ""
        self._began_ms, self._back_ms = world.now_ms(), dict(world.back_ms)

    def subscription(self) -> dict[str, Any]:
        if self._expression:
            return {"subscribed_topic_regex": self._expression}
        return {"subscribed_topic_names": self._names}

    async def connected(self) -> Connection:
        if self.connection is None or self.connection.closed:
            world, self.connection = self.rights_world, None
            self._broker = self.rng.choice(world.names)
            user = world.asker.principal.removeprefix("User:")
            self.connection = await connect(world.clock, world.network, self._broker, user, world.asker.host)
        return self.connection

    async def ask(self, api: ApiKey, version: int, message: Any, limit_ms: float = 30_000) -> Any:
        world = self.rights_world
        await self.connected()
        broker, sent_ms = self._broker, world.now_ms()
        answer = await super().ask(api, version, message, limit_ms)
        answered = Answered(broker, sent_ms, world.now_ms(), world.back_ms[broker])
        errors = errors_in(answer)
        if api is ApiKey.OFFSET_COMMIT:
            errors = [error for error in errors if error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        rights = [Right(READ, GROUP, self.group_id)]
        rights += [Right(DESCRIBE, TOPIC, name) for name in getattr(message, "subscribed_topic_names", None) or ()]
        asked = Question(api.name, api, version, message, tuple(rights))
        world.judge(world.asker, answered, asked, errors[0] if errors else 0)
        if not set(errors).isdisjoint(ELSEWHERE):
            self.hang_up()
        return answer

    async def fetch_positions(self, owned: list[TopicPartition]) -> dict[TopicPartition, int] | None:
        return {key: self.positions.get(key, 0) for key in owned}  # what it may commit, others have asked

    def _told(self, error: ErrorCode, what: str) -> None:
        if error in REFUSALS:
            self._forget()
        else:
            super()._told(error, what)

    async def _take(self, assignment: Any) -> None:
        world = self.rights_world
        names = {topic_id: topic for topic, topic_id in world.topic_ids.items()}
        for row in assignment.topic_partitions:
            topic = names[bytes(row.topic_id)]
            world.told += 1
            if not (self._was_seen(topic) if self._expression else topic in self._names):
                raise Violation(SHOWN, f"{self.name}, a member by {self._expression or self._names}, is given {topic}")
        await super()._take(assignment)

    def _was_seen(self, topic: str) -> bool:
        """Whether its user may have seen a topic, as far as some broker knew, since this process began."""
        world, right = self.rights_world, Right(DESCRIBE, TOPIC, topic)
        spans = [Answered(name, self._began_ms, world.now_ms(), self._back_ms[name]) for name in world.names]
        return any(world.asker.may(right, rules) for span in spans for rules in world.rules.known_to(span))


class ConsumerAccessWorld(Alone, AccessWorld):
    """One run."""

    group_id = "alpha-migrating"
    settling = False

    def __init__(self, seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, minutes, trace)
        host = self.hosts[self.names[0]]
        self.ledger = Ledger(Commits(self.clock.monotonic_ms, host.wall_ms, host.wall_peak_ms))
        self.asker = Asker(("User:alice", "User:bob")[seed % 2], "client0")
        self.topic_ids: dict[str, bytes] = {}
        self.told = 0  # topics in assignments

    @property
    def lives(self) -> list[Life]:
        """The processes that live."""
        return [host.life for host in self.hosts.values() if host.life is not None]

    def _some_rule(self) -> Rule:
        luck = self.rng.random()
        if luck < 0.4:  # else these members would do little
            kind, name = (GROUP, self.group_id) if luck < 0.15 else (TOPIC, self.rng.choice(TOPICS))
            return Rule(kind, name, LITERAL, self.asker.principal, "*", READ, ALLOW)
        rule = super()._some_rule()
        if rule.type == GROUP and rule.pattern == LITERAL and rule.name != "*":
            return rule._replace(name=self.group_id)
        return rule

    def begin_more(self) -> None:
        cache = self.lives[0].broker.metadata_cache
        self.topic_ids = {topic: cache.topic_id(topic) for topic in TOPICS}
        for n in range(len(self.books.instance_ids)):
            self.spawn(GuardedMember(self, f"member-migrating{n}", self.book).run())


def run(seed: int, minutes: float = 1.0, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run the world of a seed."""
    return ConsumerAccessWorld(seed, minutes, trace).run()
