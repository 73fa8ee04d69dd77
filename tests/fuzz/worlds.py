"""Simulated brokers, each of which some hundred cases share."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from barnabas.broker.broker import Broker
from simulator.env import SimEnv


class World(Protocol):
    """A broker and its world."""

    env: SimEnv
    broker: Broker


W = TypeVar("W", bound=World)


class Worlds(Generic[W]):
    """One after the other."""

    def __init__(self, make: Callable[[], W], cases_max: int) -> None:
        self._make = make
        self._cases_max = cases_max
        self._current: W | None = None
        self._cases = 0

    def next_case(self) -> W:
        """The broker of another case."""
        if self._current is not None and self._cases < self._cases_max:
            self._cases += 1
            return self._current
        if self._current is not None:
            self._current.env.run(self._current.broker.stop())
        self._current, self._cases = self._make(), 0
        return self._current

    def forget(self) -> None:
        """A case has failed: the next has a broker of its own."""
        self._current = None
