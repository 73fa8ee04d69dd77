"""What every simulated run has: a trace, a first violation, tasks of its own, and an end. All depends on one seed."""

import asyncio
import logging
import random
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from simulator.env import sim_env
from simulator.violation import Violation

EVENTS_KEPT = 60
CALLS_PER_SECOND_MAX = 50_000  # in all processes together; the busiest second of a world that holds has 2,000


class Verdict:
    """How a run ended."""

    def __init__(self, simulation: "Simulation", violation: Violation | None) -> None:
        self.seed = simulation.seed
        self.violation = violation
        self.events = list(simulation.events)
        self.digest = simulation.digest
        self.event_count = simulation.event_count
        self.answers = simulation.answers
        self.virtual_ms = simulation.clock.monotonic_ms() - simulation.began_ms
        self.summary = simulation.summary()

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: holds ({self.summary}; trace {self.digest:08x})"
        lines = "\n".join(f"    {line}" for line in self.events)
        return f"seed {self.seed}: VIOLATED {self.violation}\n  last events:\n{lines}"


class _LogEvents(logging.Handler):
    """Puts the product's log lines into the trace."""

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            frames = traceback.extract_tb(record.exc_info[2])
            where = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
            text += f" ({record.exc_info[1]!r}{where})"
        self._simulation.note(f"{record.levelname.lower()} {self._simulation.speaker()}{record.name}: {text}")


class Simulation:
    """One run. A kind of run defines its story and what is looked at; call `run` once.

    `with_journal`: its brokers keep an offset journal.
    """

    def __init__(
        self, seed: int, minutes: float, trace: Callable[[str], None] | None, with_journal: bool = False
    ) -> None:
        self.seed = seed
        self.with_journal = with_journal
        self.minutes = minutes
        env = sim_env(seed)
        self.clock, self.disk, self.network = env.clock, env.disk, env.network
        self.rng = random.Random(f"{seed} weather")
        self.network_rng = random.Random(f"{seed} network")
        self.tree_rng = random.Random(f"{seed} tree")
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.event_count = 0
        self.answers = 0  # that clients got
        self.digest = 0
        self.began_ms = self.clock.monotonic_ms()
        self._second_ends_s = 0.0
        self._calls_before = 0
        self.finished: asyncio.Future[None]
        self.violation: Violation | None = None
        self._trace = trace
        self._tasks: dict[asyncio.Task[Any], None] = {}  # the loop itself would forget them

    # -- what each kind of run defines

    def summary(self) -> str:
        """The numbers of the run, as text."""
        raise NotImplementedError

    def speaker(self) -> str:
        """Who logs now, if several may."""
        return ""

    def prepare(self) -> None:
        """Set up the network and the tree."""

    async def story(self) -> None:
        """What happens, from the first start on; at its end the run holds."""
        raise NotImplementedError

    def after_pass(self) -> None:
        """Look at what may have changed."""

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback or a task has raised."""
        error = context.get("exception")
        self.fail(error if isinstance(error, Violation) else Violation("nothing escapes", f"{context}: {error!r}"))

    def kill_all(self) -> None:
        """End all processes."""

    def verdict(self) -> Verdict:
        """How it ended."""
        return Verdict(self, self.violation)

    # -- the trace

    def note(self, event: str) -> None:
        """Write an event into the trace."""
        line = f"{self.clock.monotonic_ms() - self.began_ms:12.3f} {event}"
        self.event_count += 1
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.events.append(line)
        if self._trace is not None:
            self._trace(line)

    def fail(self, violation: Violation) -> None:
        """Remember the first violation and end the run."""
        if self.violation is None:
            self.violation = violation
            self.note(f"VIOLATED {violation}")
            self.finish()

    def finish(self) -> None:
        """End the run."""
        if not self.finished.done():
            self.finished.set_result(None)

    # -- the run

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of the world itself. What it raises ends the run."""

        async def watched() -> None:
            try:
                await work
            except Violation as violation:
                self.fail(violation)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if self.violation is None:
                    logging.getLogger("simulator").exception("a model failed")
                    self.fail(Violation("the simulation itself", repr(error)))

        self._tasks[self.clock.loop.create_task(watched())] = None

    def run(self) -> Verdict:
        """The verdict."""
        loop = self.clock.loop
        loop.set_exception_handler(self.loop_failed)
        self.finished = loop.create_future()
        self.prepare()
        logger = logging.getLogger("barnabas")
        handler = _LogEvents(self)
        before = (logger.level, logger.propagate)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            self.spawn(self.story())
            loop.after_pass = self._pass_is_over
            loop.run_until_complete(self.finished)
        except RuntimeError as error:
            self.fail(Violation("somebody always has something to do", str(error)))
        finally:
            loop.after_pass = None
            verdict = self.verdict()
            self._sweep()
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
        return verdict

    def _pass_is_over(self) -> None:
        """Look whether time goes on, and at what may have changed."""
        loop = self.clock.loop
        if loop.now >= self._second_ends_s:
            self._second_ends_s, self._calls_before = loop.now + 1.0, loop.calls
        elif loop.calls - self._calls_before > CALLS_PER_SECOND_MAX:
            self.fail(Violation("nobody does the same for ever", f"{CALLS_PER_SECOND_MAX} callbacks within a second"))
        self.after_pass()

    def _sweep(self) -> None:
        """End all tasks and processes of this world."""
        loop = self.clock.loop
        loop.set_exception_handler(lambda loop, context: None)
        self.kill_all()
        for _ in range(3):
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.call_soon(loop.stop)
            loop.run_forever()

    # -- the network's whims

    def latency_ms(self) -> float:
        """The latency of one delivery in a slow network."""
        rng = self.network_rng
        return rng.uniform(0.1, 3.0) if rng.random() < 0.97 else rng.uniform(3.0, 200.0)

    def fragments(self, chunk: bytes) -> Iterable[bytes]:
        """The pieces in which bytes arrive."""
        rng = self.network_rng
        start = 0
        while start < len(chunk):
            end = start + rng.choice((1, 3, 50, 1000, 100_000))
            yield chunk[start:end]
            start = end
