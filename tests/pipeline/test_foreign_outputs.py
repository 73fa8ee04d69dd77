"""An output folder that holds something else: files of a person, tables of another cluster, half of a stream's state.

What is not ours stays. What does not fit together is said, and nothing is left out of a table silently.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.offsets.records import CommittedOffset
from barnabas.pipeline.files import LocalFiles
from barnabas.pipeline.history_folder import HistoryFolder
from barnabas.pipeline.jobs.export import PARTITIONED_BY, export
from barnabas.pipeline.local_files import OutError
from barnabas.pipeline.run import Run
from barnabas.pipeline.runs import run_job
from barnabas.pipeline.small_export import small_export
from barnabas.pipeline.source import source_of
from barnabas.pipeline.sources import register
from barnabas.pipeline.streamed import LiveTable, check_place
from barnabas.pipeline.table_folder import write_table
from barnabas.protocol.record_batch import Record
from data_directories import NOW_MS, OFFSETS, DataDirectory
from histories import Tables
from pyspark.sql import DataFrame, SparkSession


def test_a_folder_of_a_person_has_the_name_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    mine = tmp_path / "lag" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(OutError, match=r"notes\.txt"):
            write_table(spark.range(3), str(tmp_path), "lag", "one")
    assert mine.read_text() == "mine"
    mine.unlink()
    assert write_table(spark.range(3), str(tmp_path), "lag", "one").count() == 3
    assert write_table(spark.range(4), str(tmp_path), "lag", "one").count() == 4


def test_a_folder_of_a_person_has_the_name_of_the_history(spark: SparkSession, small: Tables, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "offsets"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutError, match="part-"):
        HistoryFolder(spark, str(tmp_path / "offsets"))
    assert sorted(tmp_path.rglob("*")) == before


def cluster(path: Path, cluster_id: str, offset: int) -> str:
    """The data directory of a cluster in which one group has committed once, and has records."""
    directory = DataDirectory(path)
    directory.commit(directory.log(OFFSETS), "g", {("orders", 0): CommittedOffset(offset)})
    directory.append(directory.log("orders"), Record(-1, NOW_MS, None, b"%d" % offset))
    directory.close()
    (path / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={cluster_id}\n")
    return str(path)


def test_the_history_of_another_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """Its offsets would pass for those that are there already."""
    register(spark)
    one, other = cluster(tmp_path / "one", "first", 5), cluster(tmp_path / "other", "second", 7)
    run = Run(spark, source_of(one), str(tmp_path / "out"))
    assert run_job("offsets", run).sentence.startswith("1 commit added")
    with pytest.raises(OutError, match=r"cluster first.*cluster second"):
        run_job("offsets", Run(spark, source_of(other), str(tmp_path / "out")))
    source = tmp_path / "out" / "offsets" / "_source.json"
    for text in ("", '{"cluster_id"', "[]", '{"other": 1}'):  # a run was killed, or the disk was full
        source.with_name(f".{source.name}.crc").unlink(missing_ok=True)
        source.write_text(text)
        HistoryFolder(spark, str(source.parent), run.source.identity())
        assert json.loads(source.read_text())["cluster_id"] == "first"
    assert run_job("offsets", run).sentence.startswith("0 commits added, 1 in")


def test_data_directories_of_two_clusters(tmp_path: Path) -> None:
    one, other = cluster(tmp_path / "one", "first", 5), cluster(tmp_path / "other", "second", 7)
    with pytest.raises(ValueError, match=r"one of cluster first.*other of cluster second"):
        source_of(f"{one},{other}")
    with pytest.raises(ValueError, match="of cluster second"):
        source_of(str(tmp_path))


@pytest.fixture(scope="module")
def first_export(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic with two records, which are exported. What is written can be copied elsewhere."""
    register(spark)
    folder = tmp_path_factory.mktemp("first")
    directory = DataDirectory(folder / "data")
    add(directory, b"0", b"1")
    rows, live = export_of(spark, folder)
    assert live.add(rows, follow=False) == 2
    directory.close()
    return folder


@pytest.fixture
def exported(spark: SparkSession, first_export: Path, tmp_path: Path) -> tuple[DataDirectory, "DataFrame", LiveTable]:
    """Then the topic gets a third record."""
    shutil.copytree(first_export, tmp_path, dirs_exist_ok=True)
    directory = DataDirectory(tmp_path / "data")
    assert directory.log("orders").log_end_offset == 2
    add(directory, b"2")
    return directory, *export_of(spark, tmp_path)


def export_of(spark: SparkSession, folder: Path) -> tuple[DataFrame, LiveTable]:
    """The stream, and where it goes."""
    records = spark.readStream.format("barnabas.records").option("topics", "orders").load(str(folder / "data"))
    return export(records), LiveTable(spark, str(folder / "out" / "orders"), partitioned_by=PARTITIONED_BY)


def add(directory: DataDirectory, *values: bytes) -> None:
    for value in values:
        directory.append(directory.log("orders"), Record(-1, NOW_MS, None, value))
    directory.manager.checkpoint()


def test_a_checkpoint_that_was_deleted(exported: tuple[DataDirectory, DataFrame, LiveTable]) -> None:
    """Spark's table would take the new micro-batch 0 for the one that it has, and leave it out."""
    _, rows, live = exported
    shutil.rmtree(live.checkpoint)
    with pytest.raises(OutError, match=r"orders has rows, and .*_checkpoints/orders/offsets, .* is gone"):
        live.add(rows, follow=False)
    assert live.read(rows).count() == 2
    shutil.rmtree(live.path)  # as the message says
    assert live.add(rows, follow=False) == 3


@pytest.mark.parametrize("offsets", [None, 3, 5])
@pytest.mark.parametrize("commits", [None, 3, 4])
@pytest.mark.parametrize("written", [None, 3, 4])
def test_parts_of_a_checkpoint_that_are_gone(
    tmp_path: Path, written: int | None, offsets: int | None, commits: int | None
) -> None:
    """A micro-batch is planned (`offsets`), then its rows are written, then it is done (`commits`)."""
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    for folder, number in (
        (table / "_written", written),
        (checkpoint / "offsets", offsets),
        (checkpoint / "commits", commits),
    ):
        if number is not None:
            folder.mkdir(parents=True)
            (folder / f"{number}").write_text("v1\n{}")
    newest = [-1 if one is None else one for one in (commits, written, offsets)]
    fits = newest == sorted(newest) and (commits is None or written is not None)
    with nullcontext() if fits else pytest.raises(OutError, match=f"{checkpoint}.*[Pp]ut .* back; or remove"):
        check_place(LocalFiles(), str(table), str(checkpoint))


def test_a_table_that_was_deleted(exported: tuple[DataDirectory, DataFrame, LiveTable]) -> None:
    _, rows, live = exported
    shutil.rmtree(live.path)
    with pytest.raises(OutError, match=r"was deleted.*_checkpoints/orders"):
        live.add(rows, follow=False)
    shutil.rmtree(live.checkpoint)
    assert live.add(rows, follow=False) == 3


@pytest.mark.parametrize("which", ["path", "checkpoint"])
def test_a_table_and_a_checkpoint_of_different_age(
    exported: tuple[DataDirectory, DataFrame, LiveTable], tmp_path: Path, which: str
) -> None:
    """One of them was put back from a backup."""
    directory, rows, live = exported
    place = Path(getattr(live, which))
    shutil.copytree(place, tmp_path / "backup")
    assert live.add(rows, follow=False) == 1
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    add(directory, b"3")
    with pytest.raises(OutError, match="micro-batch"):
        live.add(rows, follow=False)


def test_files_of_a_person_where_a_stream_writes(
    exported: tuple[DataDirectory, DataFrame, LiveTable], tmp_path: Path
) -> None:
    _, rows, live = exported
    (tmp_path / "other" / "orders").mkdir(parents=True)
    (tmp_path / "other" / "orders" / "notes.txt").write_text("mine")
    with pytest.raises(OutError, match=r"notes\.txt"):
        LiveTable(live.spark, str(tmp_path / "other" / "orders")).add(rows, follow=False)


def test_an_export_with_another_schema(exported: tuple[DataDirectory, DataFrame, LiveTable], tmp_path: Path) -> None:
    _, rows, live = exported
    records = live.spark.readStream.format("barnabas.records").option("topics", "orders").load(str(tmp_path / "data"))
    with pytest.raises(OutError, match="value is binary there, and struct<a:bigint> now"):
        live.add(export(records, "a bigint"), follow=False)
    assert live.add(rows, follow=False) == 1


def test_a_table_whose_description_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    from barnabas.pipeline.table_folder import ABOUT, NoTableError, read_table

    write_table(spark.range(3), str(tmp_path), "lag", "one")
    for text in ("", "{", "[]", json.dumps({"source": "x"}), json.dumps({"more": 1})):
        (tmp_path / "lag" / f".{ABOUT}.crc").unlink(missing_ok=True)
        (tmp_path / "lag" / ABOUT).write_text(text)
        with pytest.raises(NoTableError, match=ABOUT):
            read_table(spark, str(tmp_path), "lag")


def test_a_table_that_is_still_empty(exported: tuple[DataDirectory, DataFrame, LiveTable], tmp_path: Path) -> None:
    _, rows, live = exported
    late = LiveTable(live.spark, str(tmp_path / "late" / "orders"), partitioned_by=PARTITIONED_BY)
    assert late.add(rows.where("offset > 2"), follow=False) == 0
    add(exported[0], b"3")
    assert late.add(rows.where("offset > 2"), follow=False) == 1


@pytest.mark.parametrize("in_spark", [False, True], ids=["small", "spark"])
def test_an_export_of_another_cluster(spark: SparkSession, tmp_path: Path, in_spark: bool) -> None:
    """A topic of the same name there is another one: its records would come beside those that are here."""
    register(spark)
    one, other = cluster(tmp_path / "one", "first", 5), cluster(tmp_path / "other", "second", 7)
    out, settings = str(tmp_path / "out"), {"topic": "orders", "on_loss": "continue"}

    def run(path: str) -> str:
        if in_spark:
            return run_job("export", Run(spark, source_of(path), out, settings, job="export")).sentence
        summary = small_export(source_of(path), out, settings)
        assert summary is not None
        return summary.sentence

    assert run(one).startswith("1 ")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutError, match=r"orders is of cluster first, and --source is cluster second"):
        run(other)
    assert sorted(tmp_path.rglob("*")) == before
    assert run(one).startswith("0 ")
