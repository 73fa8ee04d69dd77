"""The pytest plugin of Barnabas: a broker for the whole run, and topics and groups that no other test has.

    def test_orders(barnabas, barnabas_topic):
        barnabas_topic.produce(["a"])

The shared brokers begin to start when a file whose tests name them is about to be imported, or when one of their tests
is collected, so that they are ready when it runs.
`barnabas` is one broker for the run (with pytest-xdist, one for each worker), put back to its start before each test;
`barnabas_cluster` is three.
`@pytest.mark.barnabas(config={…}, fresh=True, brokers=3)` gives a test brokers of its own.
`barnabas_bootstrap` is the address of the shared broker, for fixtures of a whole session.

When a test fails, its report shows what clients have asked meanwhile, what has happened in their groups, and what the
brokers have logged; with `--barnabas-artifacts DIR`, files have all of it. It warns of faults that never fired, and of
members and open transactions that are left. `barnabas_config` and `barnabas_artifacts` may stand in pytest's ini file.
"""

import json
import os
import re
import signal
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from barnabas.protocol.as_json import error_names
from barnabas.runtime.counted import counted
from barnabas.runtime.parent import call_when_parent_is_gone
from barnabas.testing import Barnabas, CommandError, Group, Snapshot, Topic
from barnabas.testing.barnabas import ABORTED_EVERY_S
from barnabas.testing.control import quoted

CLUSTER = 3
# How a file of tests names the fixtures of a number of brokers. It may mean something else: then they end unused.
PARAMETERS = {1: re.compile(rb"\bbarnabas\s*[,:)]"), CLUSTER: re.compile(rb"\bbarnabas_cluster\s*[,:)]")}
OF_EITHER = re.compile(rb"\bbarnabas_(topic|group|bootstrap)\s*[,:)]")
OF_MARKER = frozenset(("config", "fresh", "brokers"))
REQUESTS_SHOWN, LINES_SHOWN = 40, 40
GROUPS_TOLD_MAX = 5


class BarnabasWarning(UserWarning):
    """A test has left something behind, or has asked for a fault that never came."""


class Watch:
    """What happens on brokers while a test uses them."""

    def __init__(self, kafka: Barnabas, next_requests: Mapping[int, int]) -> None:
        self.kafka = kafka
        self._logged = {node_id: _size_of(process.log) for node_id, process in kafka.processes.items()}
        self._next = next_requests

    def requests(self) -> list[dict[str, Any]]:
        """What clients have asked since the test began; less if a broker does not answer."""
        with suppress(OSError, RuntimeError, CommandError):  # the test has stopped it, perhaps
            return self.kafka.requests(since=self._next)
        return []

    def logs(self) -> dict[int, str]:
        """What each broker has logged since the test began."""
        found = {}
        for node_id, process in self.kafka.processes.items():
            with suppress(OSError):  # the test has stopped it, or has removed its folder
                found[node_id] = process.log.read_bytes()[self._logged[node_id] :].decode(errors="replace")
        return found

    def stories(self, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """What has happened in the groups that these requests name, by group; as `barnabas groups explain` has it."""
        groups = dict.fromkeys(group for row in rows for group in row["groups"])
        found = {}
        for group in list(groups)[-GROUPS_TOLD_MAX:]:
            with suppress(OSError, RuntimeError, CommandError):  # it has none, or no broker answers
                found[group] = self.kafka.ask("GET", f"/v1/groups/{quoted(group)}/events")
        return found

    def sections(self) -> Iterator[tuple[str, str]]:
        """The last of it, for a report."""
        rows = self.requests()
        is_single = len(self.kafka.processes) == 1
        lines = [_line(row, "" if is_single else f"broker {row['node_id']}, ") for row in rows[-REQUESTS_SHOWN:]]
        yield "Barnabas: " + _of(len(lines), len(rows), "requests of clients"), "\n".join(lines)
        for group, story in self.stories(rows).items():
            told = "\n".join(_told(story))
            if told:  # a group without members has no story
                yield f"Barnabas: group {group}", told
        for node_id, log in self.logs().items():
            said = log.splitlines()
            title = f"Barnabas: log of broker {node_id}, " + _of(min(len(said), LINES_SHOWN), len(said), "lines")
            yield title, "\n".join(said[-LINES_SHOWN:])

    def leftovers(self) -> Iterator[str]:
        """What the test should not have left, as sentences."""
        open_transactions: list[str] = []
        for node_id in self.kafka.running:
            try:
                left = self.kafka.ask("GET", "/v1/control/leftovers", node_id=node_id)
            except (OSError, CommandError):  # it is ending just now
                continue
            for rule in left["rules"]:
                yield f"the fault {rule['effect']} for {rule['api'] or 'any request'} never fired"
            for group in left["groups"]:
                members = counted(group["members"], "member")
                yield f"the group {group['group']} still has {members}: close its consumers"
            open_transactions += left["transactional_ids"]
        for transactional_id in open_transactions:
            yield f"the transaction of {transactional_id} is still open: commit or abort it"


def _size_of(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0  # a test may have removed it


def _told(story: dict[str, Any]) -> Iterator[str]:
    """The rebalances of a group, and what has happened since."""
    for rebalance in story["rebalances"]:
        generations = f"generation {rebalance['from_generation']} -> {rebalance['generation']}"
        members = counted(rebalance["members"], "member")
        yield f"{_at(rebalance['at_ms'])} {generations}, {members}: {rebalance['cause']}; {rebalance['outcome']}"
        yield from (f"  {_at(event['at_ms'])} {event['text']}" for event in rebalance["events"])
    yield from (f"{_at(event['at_ms'])} {event['text']}" for event in story["since_then"])
    yield from (f"advice: {advice['text']}" for advice in story["advice"])


def _of(shown: int, there: int, what: str) -> str:
    return f"the last {shown} of {there} {what}" if shown < there else f"{there} {what}"


def _line(row: dict[str, Any], where: str) -> str:
    about = " ".join([*row["groups"], *row["topics"], *row["transactional_ids"]])
    what = f"{row['api']} v{row['version']}" + (f" ({about})" if about else "")
    took = "" if row["answered_ms"] is None else f" in {row['answered_ms'] - row['time_ms']} ms"
    errors = "".join(f", {name}" for name in error_names(row["answer"]))
    rule = "" if row["rule"] is None else f", by fault {row['rule']}"
    return f"{_at(row['time_ms'])} {where}{row['client_id']}: {what}: {row['fate']}{took}{errors}{rule}"


def _at(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S,%f")[:-3]  # as in the logs beside it


WATCHES = pytest.StashKey[list[Watch]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("barnabas")
    artifacts = "where failed tests leave requests and logs of brokers"
    group.addoption("--barnabas-artifacts", metavar="DIR", help=artifacts)
    settings = "a setting of the brokers that tests share"
    group.addoption("--barnabas-config", metavar="NAME=VALUE", action="append", default=[], help=settings)
    parser.addini("barnabas_artifacts", artifacts)
    parser.addini("barnabas_config", f"{settings}, one a line: NAME=VALUE", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker, and make place for brokers."""
    config.stash[SHARED] = SharedBrokers(config)
    config.addinivalue_line("markers", "barnabas(config, fresh, brokers): a test's own brokers, with these settings")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test what happened on its brokers."""
    report = yield
    if report.when != "teardown" and report.failed:
        watches = item.stash.get(WATCHES, [])
        folder = item.config.getoption("--barnabas-artifacts") or item.config.getini("barnabas_artifacts")
        for watch in watches:
            report.sections += watch.sections()
            if folder:
                _leave(_place_for(item.nodeid, Path(folder), watch, is_alone=len(watches) == 1), watch)
    return report


def _place_for(test: str, folder: Path, watch: Watch, *, is_alone: bool) -> Path:
    place = folder / "".join(each if each.isalnum() or each in "._-" else "-" for each in test)[-200:]
    count = len(watch.kafka.processes)
    return place if is_alone else place / ("broker" if count == 1 else f"{count}-brokers")


def _leave(place: Path, watch: Watch) -> None:
    place.mkdir(parents=True, exist_ok=True)
    rows = watch.requests()
    (place / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "groups.json").write_text(json.dumps(watch.stories(rows), indent=1))
    for node_id, log in watch.logs().items():
        (place / f"broker-{node_id}.log").write_text(log)


class Shared:
    """Brokers that many tests use, one after the other. They start in a thread; the first test waits for them."""

    def __init__(self, brokers: int, settings: Mapping[str, str]) -> None:
        self.kafka = Barnabas(brokers, settings)
        self._start: Snapshot
        self._is_as_at_start = False
        threads = ThreadPoolExecutor(1, "barnabas")
        self._beginning: Future[None] | None = threads.submit(self._begin)
        threads.shutdown(wait=False)

    def _begin(self) -> None:
        self._start = self.kafka.start_with_snapshot()
        self._is_as_at_start = True

    def end(self) -> None:
        """End them, also while they start."""
        beginning, self._beginning = self._beginning, None
        while beginning is not None and not beginning.done():
            self.kafka.abort_start()
            wait([beginning], ABORTED_EVERY_S)
        self.kafka.stop()

    def address(self) -> str:
        """Where they are, also after each put back."""
        if self._beginning is not None:
            self._beginning.result()
            self._is_as_at_start = False  # a service that is told may write before the first test begins
        return self.kafka.bootstrap

    def put_back(self) -> dict[int, int]:
        """Bring back what a test has ended or paused, end its faults, and put back all data.

        Returns the number of the next request of each broker.
        """
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            beginning.result()
        elif not self.kafka.folder.exists():  # a test has stopped it, or has removed its data, or it could not start
            self.kafka.stop()
            self._begin()
        for process in self.kafka.processes.values():
            process.wake()  # a test may have paused it, or stopped it by its process id
        if not self._is_as_at_start:
            try:
                return self.kafka.restore(self._start, ends_faults=True)
            except (OSError, CommandError):  # a broker is ending just now, or a test has broken its disk
                self.kafka.stop()
                self._begin()
        self._is_as_at_start = False
        return self._start.next_requests


class SharedBrokers:
    """The brokers that many tests use, one cluster for each number of brokers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun: dict[int, Shared] = {}
        self._ends_with_pytest = not hasattr(config, "workerinput")  # as it does, unless it is a worker of pytest-xdist

    def end_with_pytest(self) -> None:
        """Brokers are about to start in this process: it is to end when the pytest that has started it was killed."""
        if not self._ends_with_pytest:
            self._ends_with_pytest = True
            call_when_parent_is_gone(os.getppid(), _end_at_once)

    def of(self, brokers: int) -> Shared:
        """Those of this number, which begin to start if they have not."""
        if brokers not in self._begun:
            self.end_with_pytest()
            lines = (*self._config.getini("barnabas_config"), *self._config.getoption("--barnabas-config"))
            self._begun[brokers] = Shared(brokers, dict(map(_setting, lines)))
        return self._begun[brokers]

    def end(self, *, but: Collection[int] = ()) -> None:
        """End them, but for those of these numbers."""
        for brokers in self._begun.keys() - set(but):
            self._begun.pop(brokers).end()


def _end_at_once() -> None:
    """Nobody waits for a worker of pytest-xdist whose pytest was killed, but it would go on with its test."""
    os.kill(os.getpid(), signal.SIGKILL)


SHARED = pytest.StashKey[SharedBrokers]()


def _shared_by(item: pytest.Item) -> list[int]:
    """The numbers of brokers of the clusters that a test shares with others."""
    fixtures = getattr(item, "fixturenames", ())
    if "_barnabas_of" not in fixtures or _own_settings(item) is not None:  # somebody may have a fixture `barnabas`, too
        return []
    return [brokers for name, brokers in (("barnabas", 1), ("barnabas_cluster", CLUSTER)) if name in fixtures] or [1]


def _own_settings(item: pytest.Item) -> dict[str, Any] | None:
    """What the marker says of a test that has brokers of its own; None: it shares them."""
    marker = item.get_closest_marker("barnabas")
    if marker is None or not (marker.kwargs.get("fresh") or marker.kwargs.keys() & {"config", "brokers"}):
        return None
    return dict(marker.kwargs)


def _check_marker(item: pytest.Item) -> None:
    """UsageError: the marker is not one that means something."""
    marker = item.get_closest_marker("barnabas")
    if marker is None:
        return
    brokers, settings = marker.kwargs.get("brokers", 1), marker.kwargs.get("config") or {}
    is_fine = type(brokers) is int and brokers > 0 and isinstance(settings, Mapping)
    if marker.args or not marker.kwargs.keys() <= OF_MARKER or not is_fine:
        words = [*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())]
        taken = "@pytest.mark.barnabas takes config={…}, fresh=True and brokers=3"
        raise pytest.UsageError(f"{taken}, not {', '.join(words)}")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let brokers begin to start before a file that names them is imported: that takes long, because clients do."""
    if isinstance(collector, pytest.Module) and not collector.config.option.collectonly:
        with suppress(OSError):  # whoever imports it says what is wrong
            text = collector.path.read_bytes()
            named = [brokers for brokers, parameter in PARAMETERS.items() if parameter.search(text)]
            for brokers in named or ([1] if OF_EITHER.search(text) else []):
                collector.config.stash[SHARED].of(brokers)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let brokers begin to start while other tests are collected."""
    if not item.config.option.collectonly:
        for brokers in _shared_by(item):
            item.config.stash[SHARED].of(brokers)


def pytest_collection_finish(session: pytest.Session) -> None:
    """End brokers that only tests wanted that were deselected."""
    session.config.stash[SHARED].end(but={brokers for item in session.items for brokers in _shared_by(item)})


def pytest_unconfigure(config: pytest.Config) -> None:
    """End all brokers, also if no test was run."""
    config.stash[SHARED].end()


@pytest.fixture(scope="session")
def _barnabas_of(pytestconfig: pytest.Config) -> Iterator[Callable[[int], Shared]]:
    """Starts brokers that many tests use, and ends them. All tests with brokers have it, also with their own."""
    shared = pytestconfig.stash[SHARED]
    shared.end_with_pytest()
    yield shared.of
    shared.end()


def _setting(line: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise pytest.UsageError(f"barnabas_config: {line!r} is no setting. Write it as num.partitions=3.")
    return name.strip(), value.strip()


def _given(request: pytest.FixtureRequest, shared_by: Callable[[int], Shared], brokers: int) -> Iterator[Barnabas]:
    _check_marker(request.node)
    settings = _own_settings(request.node)
    if settings is not None:
        with Barnabas(settings.get("brokers", brokers), settings.get("config")) as kafka:
            yield from _watched(request, kafka, {})
        return
    shared = shared_by(brokers)
    next_requests = shared.put_back()
    yield from _watched(request, shared.kafka, next_requests)


def _watched(request: pytest.FixtureRequest, kafka: Barnabas, next_requests: Mapping[int, int]) -> Iterator[Barnabas]:
    watch = Watch(kafka, next_requests)
    request.node.stash.setdefault(WATCHES, []).append(watch)
    yield kafka
    raised = []
    for leftover in watch.leftovers():
        try:
            warnings.warn(leftover, BarnabasWarning, stacklevel=1)
        except BarnabasWarning:  # with -W error
            raised.append(leftover)
    if raised:
        raise BarnabasWarning("; ".join(raised))


@pytest.fixture(scope="session")
def barnabas_bootstrap(_barnabas_of: Callable[[int], Shared]) -> str:
    """The address of the broker that tests share, for fixtures that live longer than a test."""
    return _barnabas_of(1).address()


@pytest.fixture
def barnabas(request: pytest.FixtureRequest, _barnabas_of: Callable[[int], Shared]) -> Iterator[Barnabas]:
    """A broker that serves."""
    yield from _given(request, _barnabas_of, 1)


@pytest.fixture
def barnabas_cluster(request: pytest.FixtureRequest, _barnabas_of: Callable[[int], Shared]) -> Iterator[Barnabas]:
    """Three brokers that serve."""
    yield from _given(request, _barnabas_of, CLUSTER)


@pytest.fixture
def barnabas_topic(request: pytest.FixtureRequest, _barnabas_of: object) -> Topic:
    """A topic of this test alone."""
    return _brokers_of(request).topic(_name_of(request))


@pytest.fixture
def barnabas_group(request: pytest.FixtureRequest, _barnabas_of: object) -> Group:
    """A group of this test alone."""
    return _brokers_of(request).group(_name_of(request))


def _brokers_of(request: pytest.FixtureRequest) -> Barnabas:
    """Those that a test names: the cluster, if it does not name the single one."""
    is_of_cluster = "barnabas_cluster" in request.fixturenames and "barnabas" not in request.fixturenames
    kafka: Barnabas = request.getfixturevalue("barnabas_cluster" if is_of_cluster else "barnabas")
    return kafka


def _name_of(request: pytest.FixtureRequest) -> str:
    name = request.node.originalname if hasattr(request.node, "originalname") else request.node.name
    return "".join(each if (each.isascii() and each.isalnum()) or each in "._-" else "-" for each in name)[:100]
