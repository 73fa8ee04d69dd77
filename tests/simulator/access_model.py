"""What clients of the world of rights (access_world.py) may do, by a second reading of Kafka's rules, and since when.

A broker hears of a change a little later than the one that has made it. So a broker that answers may know one of
several states, and is wrong only if it answers as none of them would.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

HEARD_WITHIN_MS = 1_000.0  # by a broker that is there

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL = (
    *(3, 4, 5, 6, 7, 8, 9, 10, 11),
    2,
)
TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
CLUSTER_NAME = "kafka-cluster"
IMPLYING = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}


class Rule(NamedTuple):
    """As requests have it."""

    type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def matches(self, principal: str, host: str, type: int, name: str) -> bool:
        """Whether it says something about this principal and this resource."""
        named = name.startswith(self.name) if self.pattern == PREFIXED else self.name in (name, "*")
        by = self.principal in (principal, "User:*") and self.host in (host, "*")
        return self.type == type and named and by


Rules = frozenset[Rule]


class Right(NamedTuple):
    """What a request asks for."""

    operation: int
    type: int
    name: str


class Asker(NamedTuple):
    """Who asks."""

    principal: str
    host: str

    def may(self, right: Right, rules: Rules) -> bool:
        """By these rules: what is denied is not allowed, and what nothing allows is not, either."""
        told = [rule for rule in rules if rule.matches(*self, right.type, right.name)]
        if any(rule.permission == DENY and rule.operation in (right.operation, ALL) for rule in told):
            return False
        enough = (right.operation, ALL, *IMPLYING.get(right.operation, ()))
        return any(rule.permission == ALLOW and rule.operation in enough for rule in told)


StateT = TypeVar("StateT")


class _State(Generic[StateT]):
    def __init__(self, value: StateT, sent_ms: float, answered_ms: float, by: str) -> None:
        self.value = value
        self.sent_ms = sent_ms
        self.answered_ms = answered_ms
        self.by = by  # the broker that has answered


class Answered(NamedTuple):
    """A request that a broker has answered. `back_ms`: since when the broker has been there without a trouble."""

    broker: str
    sent_ms: float
    answered_ms: float
    back_ms: float


class History(Generic[StateT]):
    """The states of something that one administrator changes, one change after the other."""

    def __init__(self, first: StateT) -> None:
        self._states = [_State(first, 0.0, 0.0, "")]

    @property
    def newest(self) -> StateT:
        """What the administrator wants it to be."""
        return self._states[-1].value

    def change(self, value: StateT, now_ms: float) -> None:
        """A change is asked for."""
        self._states.append(_State(value, now_ms, float("inf"), ""))

    def changed(self, broker: str, now_ms: float) -> None:
        """A broker has said that it is so."""
        self._states[-1].answered_ms, self._states[-1].by = now_ms, broker

    def known_to(self, answered: Answered) -> list[StateT]:
        """Those that the broker may have known when it handled a request."""
        oldest = 0
        for number, state in enumerate(self._states):
            known_ms = state.answered_ms
            if state.by != answered.broker:
                known_ms = max(known_ms, answered.back_ms) + HEARD_WITHIN_MS
            if known_ms <= answered.sent_ms:
                oldest = number
        return [state.value for state in self._states[oldest:] if state.sent_ms <= answered.answered_ms]

    def always(self, answered: Answered, holds: Callable[[StateT], bool]) -> bool:
        """Whether something holds whichever of them the broker knew."""
        return all(holds(state) for state in self.known_to(answered))
