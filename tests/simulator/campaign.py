"""Many seeds of a cluster, one after the other or in two processes, until a seed or a time: how long has it held?

Hours are counted apart: of bad weather, of quiet times, and of calm times with load. A violation ends only its own
seed. Its hours do not count, and it is written into a file, with the seed and the time in the run.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing import Pool
from queue import SimpleQueue
from typing import NamedTuple

from simulator import cluster_world

MS_PER_HOUR = 3_600_000
NICENESS = 10


class Plan(NamedTuple):
    """What each seed runs, as for `cluster_world.run`."""

    minutes: float
    brokers: int
    kinds: tuple[str, ...]
    overlaps: bool
    quiet_hours: float


class Result(NamedTuple):
    """One seed."""

    seed: int
    verdict: str
    violation: str | None
    hours: float
    bad_hours: float
    quiet_hours: float
    troubles: int
    events: int
    processor_hours: float


class Totals(NamedTuple):
    """All seeds that held; the processor's time is of all seeds."""

    seeds: int = 0
    violated: int = 0
    hours: float = 0.0
    bad_hours: float = 0.0
    quiet_hours: float = 0.0
    troubles: int = 0
    events: int = 0
    processor_hours: float = 0.0

    def plus(self, result: Result) -> "Totals":
        """With one more seed."""
        processor_hours = self.processor_hours + result.processor_hours
        if result.violation is not None:
            return self._replace(violated=self.violated + 1, processor_hours=processor_hours)
        return Totals(
            self.seeds + 1,
            self.violated,
            self.hours + result.hours,
            self.bad_hours + result.bad_hours,
            self.quiet_hours + result.quiet_hours,
            self.troubles + result.troubles,
            self.events + result.events,
            processor_hours,
        )

    def __str__(self) -> str:
        rate = self.hours / self.processor_hours if self.processor_hours else 0.0
        return (
            f"{self.seeds} seeds held, {self.violated} violated: {self.hours:.2f} cluster-hours held "
            f"({self.bad_hours:.2f} of bad weather, {self.quiet_hours:.2f} quiet, "
            f"{self.hours - self.bad_hours - self.quiet_hours:.2f} calm), {self.troubles} troubles, "
            f"{self.events} events; {rate:.0f} cluster-hours per processor-hour"
        )


def run_seed(seed: int, plan: Plan) -> Result:
    """Run one seed."""
    began = time.process_time()
    verdict = cluster_world.run(seed, plan.minutes, None, plan.brokers, plan.kinds, plan.overlaps, plan.quiet_hours)
    return Result(
        seed,
        str(verdict),
        None if verdict.violation is None else str(verdict.violation),
        verdict.virtual_ms / MS_PER_HOUR,
        verdict.bad_ms / MS_PER_HOUR,
        verdict.quiet_ms / MS_PER_HOUR,
        sum(verdict.troubles.values()),
        verdict.calls,
        (time.process_time() - began) / 3_600,
    )


def run(seeds: Iterable[int], plan: Plan, until_s: float, processes: int, violations: str | None) -> Totals:
    """Run seeds until there are none, or until so many seconds have passed; print a line for each, and the totals."""
    totals = Totals()
    for result in _results(seeds, plan, until_s, processes):
        totals = totals.plus(result)
        how = "holds" if result.violation is None else f"VIOLATED {result.violation}"
        rate = result.hours / result.processor_hours if result.processor_hours else 0.0
        print(
            f"seed {result.seed}: {how}; {result.hours:.2f} h ({result.bad_hours:.2f} bad, {result.quiet_hours:.2f} "
            f"quiet), {result.troubles} troubles, {result.events} events, {rate:.0f} times; "
            f"so far {totals.hours:.1f} h held, {totals.bad_hours:.1f} of them bad, {totals.violated} violated",
            flush=True,
        )
        if result.violation is not None and violations is not None:
            with open(violations, "a") as file:
                print(f"after {result.hours:.4f} h of {plan}\n{result.verdict}\n", file=file)
    print(totals, flush=True)
    return totals


def _results(seeds: Iterable[int], plan: Plan, until_s: float, processes: int) -> Iterator[Result]:
    ends, left, running = time.monotonic() + until_s, iter(seeds), 0
    ended: SimpleQueue[Result | BaseException] = SimpleQueue()
    with Pool(processes, _be_nice, maxtasksperchild=1) as pool:  # a process a seed gives its memory back
        while True:
            for seed in islice(left, processes - running if time.monotonic() < ends else 0):
                pool.apply_async(run_seed, (seed, plan), callback=ended.put, error_callback=ended.put)
                running += 1
            if not running:
                return
            result = ended.get()
            running -= 1
            if isinstance(result, BaseException):
                raise result
            yield result


def _be_nice() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
