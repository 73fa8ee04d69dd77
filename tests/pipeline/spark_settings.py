"""What Spark is told in tests."""

from pathlib import Path

# Starting takes longer than computing: no compiler that optimizes much, and no checks of Spark's own classes.
# The one compiler has 48 MB for what it makes, as a rule. When that is full, Java interprets.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m "
    "-Xms768m -Xmn448m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).with_name("worker_start")),
    "spark.sql.streaming.pollingDelay": "200ms",  # how often a query that waits asks its sources; else each 10 ms
}
