"""The Spark session: what is needed for one, and the settings that the tables want."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

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
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
}


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
            return f"SPARK_HOME names {home}, and there is no Spark: unset it"
        if not any(name.endswith(f"-{spark}.jar") for name in names):
            return f"SPARK_HOME names {home} with {names[0]}, and PySpark is {spark}: unset it"
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


def start_session(name: str, settings: dict[str, str] | None = None) -> "SparkSession":
    """A session on all cores of this machine; under spark-submit the one that it asks for."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it, and then says which master
        builder = builder.master("local[*]")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the sources run in another Python
        settings = ON_THIS_MACHINE | (settings or {})
    for key, value in (SETTINGS | (settings or {})).items():
        builder = builder.config(key, value)
    with ctrl_c_waits():
        return builder.getOrCreate()


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
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
