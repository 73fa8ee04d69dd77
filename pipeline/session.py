"""The Spark session: what is needed for one, and the settings that the tables want."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from barnabas.pipeline.java_classes import archive_option, java_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17  # of Spark 4
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"  # transformWithState needs it

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # of a task, by day or outcome; without it all rows are sorted
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",  # twice as fast as 3, and no larger
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 costs more, and has no smallest and largest
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else Java is told the line of Python of each column
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
ON_THIS_MACHINE = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # here, a job that lists folders costs more
    # Python's processes keep the memory of one piece of a log for the next one. Else the system clears it each time,
    # which is a sixth of the work of an export. (glibc: what is smaller comes from the heap; so much of it stays.)
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(128 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOGGING_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
SMALL_BYTES = 128 << 20
"""Of so few bytes the fixed cost of a run is most of it."""

# A short run ends before the code that Java's second compiler makes, and a collector in threads, have paid off. Spark's
# own classes need no check. The first compiler alone gets 48 MB for code, which a report fills. What another Java does
# not know it leaves out.
QUICK_JAVA = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:-BytecodeVerificationRemote -XX:ReservedCodeCacheSize=240m"
)
QUICK_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Classes that PySpark names for each column. Java looks for those without a package in all 250 jars, each time.
LOOKED_UP = ("PythonUtils", "PythonSQLUtils", "functions", "org.apache.spark.sql.functions")

# What Java and Spark say at every start, and what nobody has asked for.
_NOISE = re.compile(
    "WARNING: |Picked up J|Setting default log level to |To adjust logging level use |Setting Spark log level to |"
    "Using Spark's default log4j profile|Starting Streaming TransformWithState|Streaming TransformWithState"
)
_LAST_LINES_S = 2.0


def what_is_missing(*modules: str) -> str | None:
    """What must be installed before a session can start, as a sentence; None: nothing. `modules` are needed, too."""
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "numpy", *modules)):
        return "the pipeline needs the extra `spark`: install it with `pip install 'barnabas[spark]'`"
    java = _java_version()
    if java is None:
        return f"Spark needs Java {JAVA_VERSION_MIN} or newer: install it, or let JAVA_HOME name it"
    if java < JAVA_VERSION_MIN:
        return f"Spark needs Java {JAVA_VERSION_MIN} or newer, and this is Java {java}: let JAVA_HOME name a newer one"
    return None if "PYSPARK_GATEWAY_PORT" in os.environ else _what_spark_cannot_use()


def _what_spark_cannot_use() -> str | None:
    """What the environment says of Spark that ends it at its start, with a message that names nothing of this."""
    home = os.environ.get("SPARK_HOME")
    if home:
        spark = version("pyspark")
        names = [path.name for path in Path(home, "jars").glob("spark-core_*.jar")]
        if not names:
            return f"SPARK_HOME is {home}, where there is no Spark: unset it"
        if not any(name.endswith(f"-{spark}.jar") for name in names):
            return f"SPARK_HOME is {home} with {names[0]}, and PySpark is {spark}: unset it"
    folders = [one for one in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if one]
    refused = []
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            refused.append(f"{folder} ({error.strerror})")
    if folders and len(refused) == len(folders):
        return f"SPARK_LOCAL_DIRS names no folder that can be written: {', '.join(refused)}"
    return None


def start_session(name: str, settings: dict[str, str] | None = None, source_bytes: int | None = None) -> "SparkSession":
    """A session on all cores of this machine; under spark-submit the one that it asks for.

    `source_bytes`: how much there is to read, as far as this is known; then a small run starts and ends sooner.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    is_ours = "PYSPARK_GATEWAY_PORT" not in os.environ  # spark-submit sets it, and then says which master
    said = SETTINGS | (settings or {})
    if is_ours:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the sources run in another Python
        is_small = source_bytes is not None and source_bytes < SMALL_BYTES
        own = said.get(JAVA_OPTIONS, "")
        options = (LOGGING_OPTION, QUICK_JAVA if is_small else "", archive_option(own), own)
        said = ON_THIS_MACHINE | said | {JAVA_OPTIONS: " ".join(filter(None, options))}
    for key, value in said.items():
        builder = builder.config(key, value)
    with ctrl_c_waits():
        if is_ours:
            _start_java(name, said)
        return builder.getOrCreate()


def forgets_tables(spark: "SparkSession", table: str) -> bool:
    """Whether a table would be in the catalog that Spark has in memory, of which the next session knows nothing."""
    first, *more = table.replace("`", "").split(".")
    for catalog in (*([first] if more else []), spark.conf.get("spark.sql.defaultCatalog") or "spark_catalog"):
        if spark.conf.get(f"spark.sql.catalog.{catalog}", None):
            return False
    return spark.conf.get("spark.sql.catalogImplementation") == "in-memory"


def _start_java(name: str, settings: dict[str, str]) -> None:
    """Start Java as PySpark would, but without the lines that it and Spark say at every start."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._active_spark_context is not None or SparkContext._gateway is not None:
        return
    conf: SparkConf = SparkConf(loadDefaults=False).setAppName(name)
    for key, value in settings.items():
        conf.set(key, value)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_LAUNCHER)  # a Java that only says how Java is started
    reading, writing = os.pipe()
    passing = threading.Thread(target=pass_on, args=(os.fdopen(reading, "rb"),), daemon=True)
    passing.start()
    try:
        gateway: Any = launch_gateway(conf, {"stderr": writing})
    except BaseException:
        os.close(writing)
        passing.join(_LAST_LINES_S)  # what it said is why
        raise
    os.close(writing)
    for name in LOOKED_UP:
        setattr(gateway.jvm, name, getattr(gateway.jvm, name))
    with SparkContext._lock:
        SparkContext._gateway = gateway
        SparkContext._jvm = gateway.jvm


def pass_on(lines: IO[bytes]) -> None:
    """Pass on what a Java says to standard error, without the noise of each start and the empty lines in it, until it
    ends. A Java that nobody listens to would stand still.
    """
    is_noise = False
    for line in lines:
        text = line.decode(errors="replace")
        is_noise = bool(_NOISE.match(text)) or (is_noise and not text.strip())
        if not is_noise:
            with suppress(OSError, ValueError):  # it was closed
                sys.stderr.write(text)
                sys.stderr.flush()


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C counts when this is over; a second one counts at once. PySpark leaves a Java behind that nobody ends if it
    is interrupted while it waits for that to start.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives Ctrl-C to the main thread
        return
    came = False

    def wait(_number: int, _frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:  # Spark may have set a handler of its own
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _java_version() -> int | None:
    """The major version of the Java that Spark would run; None: there is none."""
    java = java_path()
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
