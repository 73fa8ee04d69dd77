"""A process of its own for test_sink_kills.py: two streaming queries that copy a topic, and what befalls them.

    python sink_job.py BROKERS FOLDER [fail] [kill]

`fail`: in the first epoch each first attempt of a task fails half-way. `kill`: in the second epoch of the query that
writes once, this process and all of Spark are killed half-way (SIGKILL).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from barnabas.pipeline.session import start_session
from barnabas.pipeline.sources import register
from pyspark import TaskContext
from spark_settings import SMALL

ROWS_PER_EPOCH = 200
HALF_WAY = 120
ROWS_TOGETHER = 10


def trouble(words: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What the rows go through before they are written."""
    group = os.getpgrp()

    def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen < HALF_WAY:
                continue
            if "fail" in words and epoch == 0 and not context.attemptNumber():
                time.sleep(0.3)  # so that most of the rows before are sent
                raise RuntimeError("half-way")
            if "kill" in words and epoch == 1:
                time.sleep(0.3)
                os.killpg(group, signal.SIGKILL)  # Python's and Java's process
                os.kill(os.getpid(), signal.SIGKILL)

    return passed_on


def main(brokers: str, folder: str, *words: str) -> None:
    """Run the queries to their end, if nothing kills them."""
    settings = SMALL | {
        "spark.master": "local[1,3]",  # three attempts for each task
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_TOGETHER),
        "spark.local.dir": f"{folder}/local",
    }
    spark = start_session("sink", settings)
    register(spark)
    queries: list[Any] = []
    for once in ("true", "false"):
        stream = spark.readStream.format("barnabas.records").options(brokers=brokers, topics="in")
        rows = stream.option("maxRowsPerTrigger", ROWS_PER_EPOCH).load().select("key", "value", "partition")
        befalls = words if once == "true" else tuple(word for word in words if word != "kill")
        rows = rows.mapInArrow(trouble(befalls), rows.schema)
        writer = rows.writeStream.format("barnabas.records").options(brokers=brokers, topic=f"once-{once}", once=once)
        writer = writer.option("batchBytes", 50_000).option("checkpointLocation", f"{folder}/{once}")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
