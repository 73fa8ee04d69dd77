"""One Spark session for all tests of the pipeline. Without the extra `spark` or Java 17 they are skipped."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from barnabas.pipeline.session import start_session, what_is_missing

if TYPE_CHECKING:
    from histories import History, Tables
    from pyspark.sql import SparkSession

    from cluster import Cluster

TESTS = Path(__file__).parents[1]
# histories.py; cluster.py (which must come before the package of that name); broker_process.py; examples/
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "cluster"), str(TESTS / "crash"), str(TESTS.parent)]
RANDOM_HISTORIES = 12


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of these tests: who comes after test_prepare.py starts Java with the classes that it has prepared."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _with_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> "Iterator[SparkSession]":
    """The session: two cores, and one partition behind each shuffle, because the tables are small."""
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    folder: Path = tmp_path_factory.mktemp("spark")
    from spark_settings import SMALL, start_python

    folders = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        session = start_session("tests", SMALL | folders)
    for name in ("callSite.short", "callSite.long"):  # else Spark looks for it in the stack, for each step of each plan
        session.sparkContext.setLocalProperty(name, "tests")
    start_python(session)
    yield session
    session.stop()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[], "Cluster"]]:
    """Three brokers. They must not log a traceback."""
    from cluster import Cluster

    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster(tmp_path, {}))
        made[-1].start_all()
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()
        assert not any("Traceback" in log for log in cluster.logs())


@pytest.fixture
def two_partitions(spark: "SparkSession") -> Iterator[None]:
    """What Spark shuffles comes into two partitions: for jobs whose rows must not depend on that."""
    from spark_settings import PARTITIONS, SMALL

    spark.conf.set(PARTITIONS, "2")
    yield
    spark.conf.set(PARTITIONS, SMALL[PARTITIONS])


@pytest.fixture(scope="session")
def day_history() -> "History":
    """The generated day, with few records and all commits."""
    from histories import START_MS, day_history

    from examples.day import plan_day

    return day_history(plan_day(1, START_MS, records=6_000, commits_every=3))


@pytest.fixture(scope="session")
def day(spark: "SparkSession", day_history: "History", tmp_path_factory: pytest.TempPathFactory) -> "Tables":
    """The same as Spark tables."""
    from histories import Tables

    return Tables(spark, tmp_path_factory.mktemp("day"), day_history)


@pytest.fixture(scope="session")
def small_history() -> "History":
    """Many small random histories, side by side."""
    from histories import random_histories

    return random_histories(range(RANDOM_HISTORIES))


@pytest.fixture(scope="session")
def small(spark: "SparkSession", small_history: "History", tmp_path_factory: pytest.TempPathFactory) -> "Tables":
    """The same as Spark tables."""
    from histories import Tables

    return Tables(spark, tmp_path_factory.mktemp("small"), small_history)
