"""The environment of a real broker process."""

import random

from barnabas.runtime.clock import RealClock
from barnabas.runtime.disk import RealDisk
from barnabas.runtime.network import RealNetwork
from barnabas.runtime.ports import Env


def real() -> Env:
    """Clock, disk and network of this machine."""
    return Env(
        clock=RealClock(), disk=RealDisk(), network=RealNetwork(), rng=random.Random(), secret_rng=random.SystemRandom()
    )
