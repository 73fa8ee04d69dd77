"""Faults by name: which requests get one, how often, and what it is. Pure; `gate.py` carries them out.

A rule counts the requests that it matches. It fires for those that `nth`, `every`, `probability` and `times` leave. Of
several rules that would fire for a request, the oldest does.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from barnabas.broker.control.facts import Facts
from barnabas.protocol.errors import ErrorCode


class Effect(Enum):
    """What happens to a request, or to its answer."""

    ERROR = "error"  # it is answered with an error, and has no effect (or has it, with when=after)
    DELAY = "delay"  # it is handled later, or answered later (when=after)
    DROP_REQUEST = "drop_request"  # it has no effect and gets no answer
    DROP_ANSWER = "drop_answer"  # it has its effect, and gets no answer
    CUT = "cut"  # its connection is closed, before or after it has had its effect
    THROTTLE = "throttle"  # the answer tells its client to be quiet for a while


class When(Enum):
    """Whether the request has its effect."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Rule:
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
    nth: int = 1  # the first request that it may fire for
    every: int = 1  # then each so many
    times: int | None = None  # how often at most; None: always
    probability: float = 1.0
    seed: int = 0
    forced: bool = False  # the error is one that Kafka never answers for this API

    def matches(self, facts: Facts) -> bool:
        """Whether a request passes all filters."""
        return (
            (self.api_key is None or self.api_key == facts.api_key)
            and self.first_version <= facts.version <= self.last_version
            and (self.client_id is None or self.client_id == facts.client_id)
            and (self.group is None or self.group in facts.groups)
            and (self.transactional_id is None or self.transactional_id in facts.transactional_ids)
            and self._matches_topic(facts)
        )

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
        self._random = random.Random(rule.seed)

    def fires(self, facts: Facts) -> bool:
        """Count a request, and say whether it gets the fault."""
        rule = self.rule
        if not rule.matches(facts):
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

    def __iter__(self) -> Iterator[ActiveRule]:
        return iter(list(self._rules.values()))

    def add(self, rule: Rule) -> ActiveRule:
        """From now on the rule holds."""
        active = self._rules[self._next_number] = ActiveRule(self._next_number, rule)
        self._next_number += 1
        return active

    def remove(self, number: int) -> ActiveRule | None:
        """The rule of that number no longer holds; None: there is none."""
        return self._rules.pop(number, None)

    def clear(self) -> list[ActiveRule]:
        """No rule holds any more; returns those that did."""
        removed = list(self)
        self._rules.clear()
        return removed

    def fault_of(self, facts: Facts) -> ActiveRule | None:
        """The first rule that fires for this request."""
        return next((each for each in self if each.fires(facts)), None)
