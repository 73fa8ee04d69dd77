"""One Spark session for all tests of the pipeline. Without the extra `spark` or Java 17 they are skipped."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from barnabas.pipeline.session import start_session, what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session: two cores, and few partitions, because the tables are small."""
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    session = start_session("tests", settings)
    yield session
    session.stop()
