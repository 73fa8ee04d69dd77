"""A process with the streaming jobs, for a test that kills it: `python stream_process.py DATA OUT follow|finish`."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from barnabas.pipeline.jobs.export import PARTITIONED_BY, export
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.runs import Run
from barnabas.pipeline.session import start_session
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.pipeline.streamed import LiveTable
from spark_settings import SMALL

EVERY_S = 600
DELAY_S = 3 * 3600
SCHEMA = "payment bigint, amount bigint"
JOBS = ("lag", "health", "export")


def main(data: str, out: str, mode: str) -> None:
    """Run the three jobs until they are killed, or have read everything."""
    spark = start_session("streams", SMALL | {"spark.local.dir": f"{out}.local"})
    register(spark)
    run = Run(spark, Source(directories=(data,)), out)
    commits, groups, batches = run.streams()

    jobs = {
        "lag": (lag_stream(commits, batches, EVERY_S, DELAY_S),),
        "health": (health_stream(commits, groups, batches, EVERY_S, delay_s=DELAY_S),),
        "export": (export(run.stream("records", topics="payments"), SCHEMA), *PARTITIONED_BY),
    }
    queries = []
    for name in JOBS:
        rows, *partitioned_by = jobs[name]
        table = LiveTable(spark, f"{out}/{name}", partitioned_by=tuple(partitioned_by))
        query = table.start(rows, follow=mode == "follow", trigger_s=0)
        # One after the other: Spark waits only ten seconds for the Python processes of a query that starts.
        while query.isActive and not query.lastProgress:
            time.sleep(0.05)
        if query.exception() is not None:
            raise SystemExit(f"{name} has failed")
        queries.append(query)
    if mode == "follow":
        spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
