"""A process with the streaming jobs, for a test that kills it: `python stream_process.py DATA OUT JOB…`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from barnabas.pipeline.jobs.export import PARTITIONED_BY, export
from barnabas.pipeline.jobs.health_stream import health_stream
from barnabas.pipeline.jobs.lag_stream import lag_stream
from barnabas.pipeline.run import Run
from barnabas.pipeline.session import start_session
from barnabas.pipeline.source import Source
from barnabas.pipeline.sources import register
from barnabas.pipeline.streamed import LiveTable
from pyspark.sql import functions as F
from spark_settings import SMALL, start_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

EVERY_S = 600
DELAY_S = 3 * 3600
SCHEMA = "payment bigint, amount bigint"
JOBS = ("lag", "health", "export")


def start_jobs(
    spark: "SparkSession", data: str, out: str, names: Sequence[str] = JOBS, *, follow: bool
) -> "list[StreamingQuery]":
    """Start these jobs, one after the other: Spark waits only ten seconds for the Python processes of a query."""
    run = Run(spark, Source(directories=(data,)), out)
    commits, groups, batches = run.streams()
    jobs = {
        "lag": (by_day(lag_stream(commits, batches, EVERY_S, DELAY_S)), "day"),
        "health": (by_day(health_stream(commits, groups, batches, EVERY_S, delay_s=DELAY_S)), "day"),
        "export": (export(run.stream("records", topics="payments"), SCHEMA), *PARTITIONED_BY),
    }
    queries = []
    for name in names:
        rows, *partitioned_by = jobs[name]
        table = LiveTable(spark, f"{out}/{name}", partitioned_by=tuple(partitioned_by))
        query = table.start(rows, follow=follow, trigger_s=0)
        while query.isActive and not query.lastProgress:
            time.sleep(0.05)
        queries.append(query)
    return queries


def by_day(rows: "DataFrame") -> "DataFrame":
    """As the command writes them."""
    return rows.withColumn("day", F.to_date("at"))


def main(data: str, out: str, *names: str) -> None:
    """Run until somebody kills this process."""
    spark = start_session("streams", SMALL | {"spark.local.dir": f"{out}.local"})
    start_python(spark)
    register(spark)
    start_jobs(spark, data, out, names, follow=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
