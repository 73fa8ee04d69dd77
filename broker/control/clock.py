"""Wall time that tests let pass: what falls due by the wall clock on the way happens, and nobody's session ends by it.

The wall clock decides about retention, compaction lag, expiry of offsets, of producers and of transactional ids, the
time-out of transactions, and the history of lag. Delays, sessions and time-outs between processes are measured by the
monotonic clock, which goes on as it does. So clients that live, and brokers, notice nothing of a jump.
"""

from barnabas.runtime.clock import MovableClock
from barnabas.runtime.ports import Env
from barnabas.runtime.upkeep import Task

# The rows of upkeep that look what is due by the wall clock.
DUE = (
    "late transactions",
    "idle transactional ids",
    "producers",
    "offset expiry",
    "waited groups",
    "retention",
    "cleaner",
    "lag",
)
STEPS_MAX = 24  # a long time passes in so many steps, so that what falls due happens in its order
STEP_MS_MIN = 60_000
ROUND_WITHIN_MS = 30_000.0
POLL_MS = 0.5


async def let_pass(env: Env, clock: MovableClock, total_ms: int) -> None:
    """Move the wall clock forward, step by step. After each step, all that looks at it has looked once."""
    steps = max(min(STEPS_MAX, total_ms // STEP_MS_MIN), 1)
    passed_ms = 0
    for number in range(1, steps + 1):
        until_ms = total_ms * number // steps
        clock.move(until_ms - passed_ms)
        passed_ms = until_ms
        await _round(env)


async def _round(env: Env) -> None:
    """Have all of these rows looked once, from their first item to their last."""
    rows: list[Task[object]] = [task for task in env.upkeep.tasks if task.name in DUE]
    # A row in the middle of a round has looked at some items before: its next round counts.
    wanted = {task: task.rounds + (2 if task.is_running else 1) for task in rows}
    end_ms = env.clock.monotonic_ms() + ROUND_WITHIN_MS
    while wanted and env.clock.monotonic_ms() < end_ms:
        for task in wanted:
            task.run_soon()
        await env.clock.sleep(POLL_MS)
        wanted = {task: rounds for task, rounds in wanted.items() if task.rounds < rounds and task in env.upkeep.tasks}
