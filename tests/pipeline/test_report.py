"""The report from the tables of earlier runs, and what a browser makes of the page."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from barnabas.pipeline.jobs import capacity
from barnabas.pipeline.local_files import OutError, check_file, write_file
from barnabas.pipeline.report.charts import WIDE
from barnabas.pipeline.report.colours import COLOURS, DARK, LIGHT
from barnabas.pipeline.report.making import make_report
from barnabas.pipeline.run import Run, Summary
from barnabas.pipeline.runs import RUNS, run_job
from barnabas.pipeline.source import Source
from barnabas.pipeline.table_folder import NoTableError, read_table, write_table
from matplotlib.image import imread
from pyspark.sql import SparkSession
from test_report_page import HOSTILE, Reader, page, report

pytestmark = pytest.mark.timeout(300)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NOBODY = "no Chromium is installed to look at the page"


def make(spark: SparkSession, tables: Path, out: Path, **more: Any) -> Summary:
    settings = {"page": str(out), "pictures": None, "top": 12, "every_s": 60, "free_bytes": None} | more
    return run_job("report", Run(spark, Source(), str(tables), settings))


def test_some_tables_are_there(spark: SparkSession, tmp_path: Path) -> None:
    """`lag` and `capacity` have run, from different sources, `health`, `audit` and `verify` have not."""
    lag = spark.sql(
        "select timestamp_millis(1763769600000 + id * 60000) at, 'billing' group_id, 'orders' topic, 0 partition, "
        "id lag_records, id * 60.0D lag_seconds from range(100)"
    )
    batch = "'orders' topic, 0 partition, 7L record_count, 1000L size_bytes, false is_control, null error"
    times = "timestamp_millis(1763769600000) base_timestamp, timestamp_millis(1763769600000 + id * 86400000)"
    batches = spark.sql(f"select {batch}, {times} max_timestamp from range(3)")
    commits = spark.sql("select 'billing' group_id, timestamp_millis(1763769600000) log_timestamp")
    now = datetime(2025, 11, 23, tzinfo=UTC)
    write_table(lag, str(tmp_path / "in"), "lag", "one")
    write_table(capacity.topics(batches, now), str(tmp_path / "in"), "capacity/topics", "other")
    write_table(capacity.growth(batches, commits), str(tmp_path / "in"), "capacity/growth", "other")
    summary = make(spark, tmp_path / "in", tmp_path / "out" / "report.html", pictures=str(tmp_path / "png"))
    assert "Missing: health, audit, verify." in summary.sentence
    assert not summary.is_empty
    text = Reader((tmp_path / "out" / "report.html").read_text()).text
    for words in (
        "one and other",
        "From one, as it was at",
        "run `barnabas pipeline verify`",
        "2025-11-22 01:39",
        "99",
    ):
        assert words in text
    names = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert names == ["growth.png", "lag.png", "movers.png", "topics.png"]
    assert all(imread(tmp_path / "png" / name).shape[1] == 2 * WIDE for name in names)


def test_brokers_cannot_be_verified_and_the_page_says_so(spark: SparkSession, tmp_path: Path) -> None:
    ran = []

    def job(name: str) -> Callable[[Run], Summary]:
        return lambda one: RUNS[name](one) if name == "verify" else ran.append(name) or Summary(name)

    settings = {"page": str(tmp_path / "report.html"), "pictures": None, "top": 12, "every_s": 60, "free_bytes": None}
    one = Run(spark, Source(brokers=("127.0.0.1:1",)), str(tmp_path / "tables"), settings)
    make_report(one, {name: job(name) for name in RUNS})
    assert ran == ["lag", "health", "audit", "capacity"]
    text = Reader((tmp_path / "report.html").read_text()).text
    assert "127.0.0.1:1" in text
    assert "Missing: verify reads data directories, not brokers." in text


def test_nothing_to_show(spark: SparkSession, tmp_path: Path) -> None:
    summary = make(spark, tmp_path / "nothing", tmp_path / "report.html")
    assert summary.is_empty
    assert "run `barnabas pipeline lag`" in Reader((tmp_path / "report.html").read_text()).text


def test_a_table_that_is_not_whole_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """A run that is killed leaves `_making`, and the table of the run before it."""
    rows = spark.range(5)
    write_table(rows, str(tmp_path), "a/b", "x")
    assert read_table(spark, str(tmp_path), "a/b")[0].count() == 5
    assert not (tmp_path / "_making").exists()
    rows.write.parquet(str(tmp_path / "_making" / "c"))
    with pytest.raises(NoTableError):
        read_table(spark, str(tmp_path), "c")
    rows.write.parquet(str(tmp_path / "c"))  # not by a job
    with pytest.raises(NoTableError):
        read_table(spark, str(tmp_path), "c")
    with pytest.raises(OutError, match="name another --out"):
        write_table(rows, str(tmp_path), "c", "x")
    shutil.rmtree(tmp_path / "c")
    for count in (2, 3):
        assert write_table(spark.range(count), str(tmp_path), "c", "x").count() == count
    assert not (tmp_path / "_making").exists()


def test_a_page_is_whole_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    check_file(str(path))
    assert list(path.parent.iterdir()) == []
    write_file(path, b"1")
    write_file(path, b"2")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert path.read_bytes() == b"2"
    with pytest.raises(OutError, match="is a folder"):
        check_file(str(tmp_path))
    with pytest.raises(OutError, match=r"report\.html/x cannot be written: "):
        check_file(str(path / "x"))


# ------------------------------------------------------------ in a browser


def browse(page_file: Path, *words: str, width: int = 1280) -> subprocess.CompletedProcess[str]:
    """What a browser says of the page. The profile is in the folder of the test, and nothing is fetched."""
    assert CHROMIUM
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
        *("--proxy-server=127.0.0.1:9", "--enable-logging=stderr", f"--window-size={width},3000"),
        f"--user-data-dir={page_file.parent / 'profile'}",
    ]
    done = subprocess.run([*command, *words, page_file.as_uri()], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that has everything, of ordinary names."""
    path = tmp_path_factory.mktemp("page")
    (path / "report.html").write_text(page(report(["billing", "analytics", "search"])))
    return path


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(report(HOSTILE, 9_988))


@pytest.mark.skipif(CHROMIUM is None, reason=NOBODY)
def test_a_browser_reads_it_without_errors(made: Path) -> None:
    done = browse(made / "report.html", "--dump-dom")
    text = Reader(done.stdout).text
    for word in ("Lag over time", "Top movers", "analytics", "STALL", "What is missing", "Written by day"):
        assert word in text
    assert "CONSOLE" not in done.stderr, "errors and warnings of the page"


@pytest.mark.skipif(CHROMIUM is None, reason=NOBODY)
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("side", [LIGHT, DARK])
def test_how_it_looks(made: Path, tmp_path: Path, width: int, side: int) -> None:
    shot = tmp_path / "shot.png"
    scheme = "--blink-settings=preferredColorScheme=" + ("1", "0")[side]
    browse(made / "report.html", scheme, f"--screenshot={shot}", width=width)
    pixels = imread(shot)[:, :, :3]
    assert pixels.shape[:2] == (3000, width)
    colour = COLOURS["page"][side]
    background = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    is_page = (abs(pixels - background) < 0.02).all(axis=2)
    assert is_page[:5].all(), "the margin"
    assert 0.6 < is_page.mean() < 0.97, "something is drawn, and charts have the page's colour"


@pytest.mark.skipif(CHROMIUM is None, reason=NOBODY)
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_and_no_picture_is_broken(made: Path, hostile: str, tmp_path: Path, width: int) -> None:
    """In a frame of that width, a copy that may run the script which measures it: the page itself lets none run."""
    measure = """<meta charset="utf-8"><body><script>
        const frame = document.createElement("iframe");
        frame.width = WIDTH; frame.height = 800; frame.style.border = 0; frame.srcdoc = CONTENT;
        frame.onload = () => {
            const page = frame.contentDocument, look = frame.contentWindow;
            page.querySelectorAll("details").forEach(one => one.open = true);
            const broken = [...page.images].filter(one => !one.complete || one.naturalWidth < 100).length;
            const small = [...page.querySelectorAll("p,td,li,dd")].filter(
                one => parseFloat(look.getComputedStyle(one).fontSize) < 12).length;
            const found = [page.documentElement.scrollWidth, look.innerWidth, broken, small, page.images.length];
            document.body.dataset.measured = found.join(" ");
        };
        document.body.append(frame);
    </script></body>"""
    for name, content in (("day", (made / "report.html").read_text()), ("hostile", hostile)):
        open_page, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", content)
        assert count == 1
        path = tmp_path / f"{name}.html"
        quoted = json.dumps(open_page).replace("</", "<\\/").replace("<!", "<\\!")
        path.write_text(measure.replace("WIDTH", str(width)).replace("CONTENT", quoted))
        done = browse(path, "--dump-dom", "--virtual-time-budget=5000")
        found = re.search(r'data-measured="([0-9 ]+)"', done.stdout)
        assert found, done.stderr[-2000:]
        scroll_width, inner_width, broken, small, pictures = map(int, found[1].split())
        assert inner_width == width
        assert scroll_width <= width, f"{name} scrolls sideways"
        assert (broken, small, pictures) == (0, 0, 5)


@pytest.mark.skipif(CHROMIUM is None, reason=NOBODY)
def test_a_browser_runs_nothing_that_a_name_holds(hostile: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile)
    done = browse(path, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert {tag for tag, _ in Reader(done.stdout).elements}.isdisjoint({"script", "iframe"})
