"""Spark's classes as Java has them in memory: an archive in the user's cache, from which each Java of a run takes them.

Of a small run, finding, reading and checking some 15,000 classes in Spark's 250 jars is half of the work.
`barnabas pipeline prepare` runs jobs over a small log, and lets that Java write down at its end which classes it had
(Java's own class data sharing). Java looks itself whether an archive fits to it and to the jars, and starts without it
if not.
"""

import os
import shutil
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java says on standard output what it thinks of an archive, and of each class that it does not take up.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"
_AT_EXIT = "-XX:ArchiveClassesAtExit"
_GROUP, _TOPIC = "group", "topic"


def java_path() -> str | None:
    """The Java that Spark runs; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def archive_path() -> Path:
    """The archive of this Java and this Spark."""
    import pyspark

    java = Path(java_path() or "java")
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    of_both = f"{java.resolve()} {java.stat().st_mtime_ns} {spark} {pyspark.__version__}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "barnabas" / f"spark-{blake2b(of_both.encode(), digest_size=8).hexdigest()}.jsa"


def archive_option(options: str) -> str:
    """What lets a Java with these options use the archive, if there is one."""
    if _AT_EXIT in options:
        return ""
    try:
        path = archive_path()
        is_there = path.is_file()
    except (OSError, RuntimeError):  # no such Java, or nobody's home
        return ""
    return f"-XX:SharedArchiveFile={path} {_SILENT}" if is_there and " " not in str(path) else ""


def make_archive(settings: dict[str, str]) -> Path:
    """Make the archive in place of the one that is there. OSError: this cannot be done."""
    from barnabas.pipeline.session import JAVA_OPTIONS, QUICK_LAUNCHER, start_session
    from pyspark import SparkContext

    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        making = Path(folder, path.name)
        # All checks of classes are on, else only a Java without them could take the archive.
        options = f"{_AT_EXIT}={making} {_SILENT} {QUICK_LAUNCHER} {settings.get(JAVA_OPTIONS, '')}"
        spark = start_session("barnabas prepare", settings | {JAVA_OPTIONS: options})
        gateway: Any = SparkContext._gateway
        try:
            _run_jobs(spark, folder)
        finally:
            spark.stop()
            gateway.proc.stdin.close()  # this ends Java
            gateway.proc.wait()
            SparkContext._gateway = SparkContext._jvm = None
        if not making.is_file():
            raise OSError("this Java keeps no archive of classes")
        making.replace(path)
    return path


def _run_jobs(spark: "SparkSession", folder: str) -> None:
    """What small runs do, so that their classes are there."""
    from barnabas.pipeline.run import Run
    from barnabas.pipeline.runs import run_job
    from barnabas.pipeline.source import Source

    data, out = Path(folder, "data"), f"{folder}/out"
    _write_logs(data)
    source = Source(directories=(str(data),))
    for job, words in (("offsets", {}), ("lag", {"every_s": 60})):
        run_job(job, Run(spark, source, out, dict(words)))


def _write_logs(folder: Path) -> None:
    from barnabas.cluster.topic_names import OFFSETS_TOPIC
    from barnabas.offsets.records import CommittedOffset, OffsetCommits
    from barnabas.protocol import record_batch
    from barnabas.protocol.record_batch import PlainRecords

    at_ms = 1_700_000_000_000
    records = PlainRecords()
    records.add(b"key", b"value")
    commits = PlainRecords()
    OffsetCommits(_GROUP, {_TOPIC: {0: CommittedOffset(0, 0, "", at_ms, -1, bytes(16))}}).append_to(commits)
    for topic, some in ((_TOPIC, records), (OFFSETS_TOPIC, commits)):
        log = folder / f"{topic}-0"
        log.mkdir(parents=True)
        (log / f"{0:020d}.log").write_bytes(record_batch.build_plain(some, at_ms).data)
    (folder / "replication-offset-checkpoint").write_text(f"0\n2\n{_TOPIC} 0 1\n{OFFSETS_TOPIC} 0 1\n")
    (folder / "meta.properties").touch()
