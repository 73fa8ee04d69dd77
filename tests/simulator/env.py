"""A world in memory, in virtual time, under a seed."""

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from barnabas.runtime.ports import Env

from simulator.clock import SimClock
from simulator.disk import SimDisk
from simulator.network import SimNetwork

T = TypeVar("T")


class SimEnv(Env):
    """Env with the types of the simulated clock, disk and network, so that tests can control them."""

    __slots__ = ()

    clock: SimClock
    disk: SimDisk
    network: SimNetwork

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in virtual time. RuntimeError when it would wait forever."""
        return self.clock.loop.run_until_complete(coroutine)


def sim_env(seed: int = 0) -> SimEnv:
    """A new world. Its random streams are separate, so that more draws from one do not change the others."""
    clock = SimClock()
    return SimEnv(
        clock=clock,
        disk=SimDisk(clock, random.Random(f"{seed} disk")),
        network=SimNetwork(clock),
        rng=random.Random(seed),
    )
