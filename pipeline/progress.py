"""What a run is doing, on standard error while it runs, if that is a terminal."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S = 0.3


@contextmanager
def shown(spark: "SparkSession", what: str) -> Iterator[None]:
    """Show how many tasks of Spark are done, of those that it knows of."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def follow() -> None:
        stages_done = 0
        seen: set[int] = set()
        while not ended.wait(EVERY_S):
            active = set(tracker.getActiveStageIds())
            stages_done += len(seen - active)
            seen = active
            stages = [stage for stage in map(tracker.getStageInfo, active) if stage is not None]
            done, total = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
            status.update(f"{what}: {done} of {total} tasks of step {stages_done + 1}")

    with Console(stderr=True).status(f"{what}: Spark plans") as status:
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
