"""What Spark is told in tests."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Starting takes longer than computing: no compiler that optimizes much, and no checks of Spark's own classes.
# The one compiler has 48 MB for what it makes, as a rule. When that is full, Java interprets.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m "
    "-Xms768m -Xmn448m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
PARTITIONS = "spark.sql.shuffle.partitions"  # each is a task, and to read its plan costs more than its few rows
SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    PARTITIONS: "1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).with_name("worker_start")),
    "spark.sql.streaming.pollingDelay": "200ms",  # how often a query that waits asks its sources; else each 10 ms
}


def start_python(spark: "SparkSession") -> None:
    """Have the first Python process of this Java import everything for the others (`worker_start/`).

    Spark waits for it as long as it takes. For the process of a stream, which is the first one otherwise, it waits ten
    seconds, and the imports may take longer on a busy machine.
    """
    spark.sparkContext.parallelize([0], 1).count()
