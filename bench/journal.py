"""`python -m bench journal`: commits with the offset journal on, against off; two brokers of this checkout, in turn.

Prints the rate of each and their ratio, and the processor time of the broker for one commit, which other processes
disturb less than the rate.
"""

import argparse
import asyncio
import gc
import statistics
from collections.abc import Sequence

import uvloop

from bench.loads import LOADS, Figures
from bench.targets import Barnabas

ROWS = {"commit-8": 0.87, "commit-50": 0.85}  # the aim: at least so much of the rate without a journal


def main(words: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench journal", description=__doc__)
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one load against one broker")
    said = parser.parse_args(words)
    brokers: list[Barnabas] = []
    try:
        brokers += [Barnabas(settings=[f"offsets.journal.enable={is_on}"]) for is_on in ("false", "true")]
        for name in said.rows or ROWS:
            off, on = uvloop.run(_measure(name, brokers, said.rounds, said.seconds))
            key = LOADS[name].figure
            ratios = sorted(with_it[key] / without[key] for with_it, without in zip(on, off, strict=True))
            print(f"{name}: {LOADS[name].work}")
            for word, figures in (("off", off), ("on", on)):
                rate = statistics.median(figure[key] for figure in figures)
                cpu = min(figure["cpu µs"] for figure in figures)
                print(f"  {word:4} {rate:>9,.0f} {key}, {cpu:.1f} µs of the broker's processor for each at best")
            least = min(figure["cpu µs"] for figure in off) / min(figure["cpu µs"] for figure in on)
            print(
                f"  on is {statistics.median(ratios):.2f} of off by rate ({ratios[0]:.2f} to {ratios[-1]:.2f}), ",
                end="",
            )
            print(f"{least:.2f} by processor time; the aim is {ROWS[name]}", flush=True)
    finally:
        for broker in brokers:
            broker.stop()
    return 0


async def _measure(name: str, brokers: Sequence[Barnabas], rounds: int, seconds: float) -> list[list[Figures]]:
    measured: list[list[Figures]] = [[], []]
    gc.disable()  # a collection in the load's process would look like a pause of the broker
    for broker in brokers:
        await LOADS[name].load(broker, 1.0)
    for turn in range(rounds):
        for index in (0, 1) if turn % 2 else (1, 0):
            measured[index].append(await LOADS[name].load(brokers[index], seconds))
            await asyncio.sleep(0.2)
    return measured
