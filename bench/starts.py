"""Starts of a broker that has much to load: how long from exec until all is there, killed or stopped before."""

import signal
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from bench.targets import Barnabas, Target

ROUNDS = 3


def timed_starts(
    broker: Barnabas, folder: str, until: Callable[[Target], Coroutine[Any, Any, None]], what: str
) -> Barnabas:
    """End the broker and start it again, some times each way, and print the figures; returns the last one."""
    for number, how in ((signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "clean stop")):
        spans, processor_seconds = [], []
        for _ in range(ROUNDS):
            broker.stop(number)
            began = time.perf_counter()
            broker = Barnabas(folder)
            uvloop.run(until(broker))
            spans.append(time.perf_counter() - began)
            processor_seconds.append(broker.cpu_seconds())
        print(
            f"  barnabas: exec to all {what}, {how}: {_seconds(spans)}, processor {_seconds(processor_seconds)}",
            flush=True,
        )
    return broker


def _seconds(spans: list[float]) -> str:
    each = " ".join(f"{span:.2f}" for span in spans)
    return f"{statistics.median(spans):.2f} s ({each})"
