"""Faults by name: which requests get one, how often, and what it is. Pure; `gate.py` carries them out.

A rule counts the requests that it matches. It fires for those that `nth`, `every`, `probability` and `times` leave. Of
several rules that would fire for a request, the oldest does; errors for other topics of it may join in. What a machine
meets (its disk, its network, the tree) counts as requests do: a write, a connection, a question to the tree.
"""

import random
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

from barnabas.broker.control.errors import OF_REQUEST, may_answer
from barnabas.broker.control.facts import Facts
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.named_tuple import NamedTuple


class Effect(Enum):
    """What happens to a request, or to its answer."""

    ERROR = "error"  # it is answered with an error, and has no effect (or has it, with when=after)
    DELAY = "delay"  # it is handled later, or answered later (when=after)
    DROP_REQUEST = "drop_request"  # it has no effect and gets no answer
    DROP_ANSWER = "drop_answer"  # it has its effect, and gets no answer
    CUT = "cut"  # its connection is closed, before or after it has had its effect
    THROTTLE = "throttle"  # the answer tells its client to be quiet for a while
    HALF_ANSWER = "half_answer"  # it has its effect; the first half of the answer is sent, and the connection closed
    STALE_METADATA = "stale_metadata"  # a Metadata request: the cluster as it was when the fault began
    DISK_FULL = "disk_full"  # writes find no room
    LOG_FAILED = "log_failed"  # writes to a log fail for good: it is offline until the broker starts again
    TREE_UNREACHABLE = "tree_unreachable"  # the broker does not reach the coordination tree
    ISOLATED = "isolated"  # nor the tree, nor another broker, and none of these reaches it; its clients do


class Role(Enum):
    """What a broker is for that which a request names."""

    LEADER = "leader"  # it leads a partition of the request
    COORDINATOR = "coordinator"  # it coordinates a group or transactional id of the request
    CONTROLLER = "controller"


OF_MACHINE = frozenset((Effect.DISK_FULL, Effect.LOG_FAILED, Effect.TREE_UNREACHABLE, Effect.ISOLATED))
OF_DISK = frozenset((Effect.DISK_FULL, Effect.LOG_FAILED))
OF_TREE = frozenset((Effect.TREE_UNREACHABLE, Effect.ISOLATED))
OF_NETWORK = frozenset((Effect.ISOLATED,))


class When(Enum):
    """Whether the request has its effect."""

    BEFORE = "before"
    AFTER = "after"


class Rule(NamedTuple):
    """What was asked for. A filter that is None lets every request through."""

    effect: Effect
    when: When = When.BEFORE
    error: ErrorCode = ErrorCode.NONE
    delay_ms: int = 0  # of a delay; the throttle time of a throttle
    api_key: int | None = None
    first_version: int = 0
    last_version: int = 32_767
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    transactional_id: str | None = None
    role: Role | None = None
    nth: int = 1  # the first request that it may fire for
    every: int = 1  # then each so many
    times: int | None = None  # how often at most; None: always
    probability: float = 1.0
    seed: int = 0
    forced: bool = False  # the error is one that Kafka never answers for this API

    def matches(self, facts: Facts) -> bool:
        """Whether a request passes all filters."""
        return (
            (self._may_answer(facts.api_key) if self.api_key is None else self.api_key == facts.api_key)
            and self.first_version <= facts.version <= self.last_version
            and (self.client_id is None or self.client_id == facts.client_id)
            and (self.group is None or self.group in facts.groups)
            and (self.transactional_id is None or self.transactional_id in facts.transactional_ids)
            and self._matches_topic(facts)
        )

    def _may_answer(self, api_key: int) -> bool:
        """Whether a rule for any API is for this one, because Kafka could answer it so."""
        return self.error is ErrorCode.NONE or self.forced or may_answer(ApiKey(api_key), self.error)

    def _matches_topic(self, facts: Facts) -> bool:
        if self.topic is None:
            return True
        if self.partition is None or not facts.partitions:
            return self.topic in facts.topics
        return (self.topic, self.partition) in facts.partitions


class ActiveRule:
    """A rule, and how often it matched and fired."""

    def __init__(self, number: int, rule: Rule) -> None:
        self.number = number
        self.rule = rule
        self.matched = 0
        self.fired = 0
        self.metadata: Any = None  # the answer to Metadata as it was when this rule began
        self._random = random.Random(rule.seed)

    def fires(self, facts: Facts, has_role: Callable[[Role, Facts], bool]) -> bool:
        """Count a request, and say whether it gets the fault."""
        rule = self.rule
        if not rule.matches(facts) or (rule.role is not None and not has_role(rule.role, facts)):
            return False
        self.matched += 1
        is_its_turn = self.matched >= rule.nth and (self.matched - rule.nth) % rule.every == 0
        if not is_its_turn or (rule.times is not None and self.fired >= rule.times):
            return False
        if rule.probability < 1.0 and self._random.random() >= rule.probability:
            return False
        self.fired += 1
        return True


class Rules:
    """Those of a broker, in the order in which they came."""

    def __init__(self) -> None:
        self._rules: dict[int, ActiveRule] = {}
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[ActiveRule]:
        return iter(list(self._rules.values()))

    def add(self, rule: Rule) -> ActiveRule:
        active = self._rules[self._next_number] = ActiveRule(self._next_number, rule)
        self._next_number += 1
        return active

    def get(self, number: int) -> ActiveRule | None:
        return self._rules.get(number)

    def remove(self, number: int) -> ActiveRule | None:
        """The rule of that number no longer holds; None: there is none."""
        return self._rules.pop(number, None)

    def clear(self) -> list[ActiveRule]:
        """No rule holds any more; returns those that did."""
        removed = list(self)
        self._rules.clear()
        return removed

    def fault_of(self, facts: Facts, has_role: Callable[[Role, Facts], bool]) -> ActiveRule | None:
        """The first rule that fires for this request."""
        requests = (each for each in self if each.rule.effect not in OF_MACHINE)
        return next((each for each in requests if each.fires(facts, has_role)), None)

    def further_fault(
        self, facts: Facts, has_role: Callable[[Role, Facts], bool], before: ActiveRule
    ) -> ActiveRule | None:
        """The next error for another topic of this request, of which `before` has one already."""
        later = (each for each in self if each.number > before.number and each.rule.effect is Effect.ERROR)
        others = (
            each
            for each in later
            if each.rule.topic not in (None, before.rule.topic) and each.rule.error not in OF_REQUEST
        )
        return next((each for each in others if each.fires(facts, has_role)), None)

    def machine_fault(self, effects: Collection[Effect], facts: Facts) -> ActiveRule | None:
        """The first rule of these effects that fires for what the machine does."""
        found = (each for each in self._rules.values() if each.rule.effect in effects)
        return next((each for each in found if each.fires(facts, lambda role, facts: True)), None)

    def is_disk_full(self) -> bool:
        """Whether a rule says so of all writes."""
        rules = (each.rule for each in self._rules.values())
        return any(rule.effect is Effect.DISK_FULL and rule.topic is None and rule.times is None for rule in rules)
