"""The real world."""

import random

from barnabas.runtime.clock import RealClock
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.network import RealNetwork
from barnabas.runtime.ports import Env


def real() -> Env:
    """The world of a broker process on this machine."""
    return Env(clock=RealClock(), disk=RealDisk(), network=RealNetwork(), rng=random.Random())
