"""The pages of docs/: they build without a warning, and their tables have everything that the code has."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from barnabas.broker.http import routes
from barnabas.broker.http.metric_names import METRICS
from barnabas.broker.refusals import NOT_BUILT
from barnabas.cli.checks.outcomes import TABLE as CHECKS
from barnabas.cli.commands import COMMANDS
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.topic import TOPIC_SETTINGS

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = {"README.md": 150, "ARCHITECTURE.md": 120}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    """What a page shows, without tags."""
    return re.sub(r"<[^>]+>", "", (site / page / "index.html").read_text())


def test_every_page_is_in_the_navigation_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in navigation
        name = "." if page.stem == "index" else page.stem
        built = (site / name / "index.html").read_text()
        assert not re.findall(r'(?:src|<link[^>]* href)="https?://(?!127)[^"]*"', built), page
        assert "<!-- table" not in built


def test_the_tables_have_everything(site: Path) -> None:
    routes.load()
    pages = {
        "command-line": [f"barnabas {name}" for name in COMMANDS],
        "http-api": [path for _, path in routes.TABLE],
        "metrics": list(METRICS),
        "doctor": [check.name for check in CHECKS],
        "differences": [f"({key})" for keys in NOT_BUILT.values() for key in keys],
        "settings": [*BROKER_SETTINGS, *TOPIC_SETTINGS],
    }
    for page, expected in pages.items():
        assert expected
        shown = text_of(site, page)
        assert [one for one in expected if one not in shown] == [], page


@pytest.mark.parametrize("name", LINES_MAX)
def test_what_newcomers_read_first_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= LINES_MAX[name]


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_requests_of_tests_in_any_language_can_be_pasted() -> None:
    """A formatter once made one paragraph of them."""
    page = (ROOT / "docs" / "testing.md").read_text().split("## In any language")[1].split("\n## ")[0]
    lines = "\n".join(line for line in page.splitlines() if line.startswith("    ")).replace("\\\n", " ").splitlines()
    routes.load()
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "curl"
        (url,) = [word for word in words if "://" in word]
        method = "POST" if "-d" in words else "GET"
        paths = [re.sub(r"\{\w+\}", "[^/]+", path) for each, path in routes.TABLE if each == method]
        assert any(re.fullmatch(path, urlsplit(url).path) for path in paths), line
        if method == "POST":
            assert json.loads(words[words.index("-d") + 1])
    assert len(lines) > 5


def test_no_code_is_in_the_midst_of_prose() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        prose = [line for line in page.read_text().splitlines() if not line.startswith((" ", "|", ":"))]
        assert [line for line in prose if re.search(r"\S {4,}\S", line)] == [], page
