"""The architecture as a test: who may import whom, and what only runtime/ may ask of the operating system."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from barnabas.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent

# A package imports from packages above it, and from itself. A package inside another is one of its own here.
LAYERS = [
    "protocol",
    "config",
    "runtime",
    "storage",
    "cluster/tree",
    "cluster/security",
    "cluster",
    "replication",
    "controller",
    "coordinators",
    "offsets",
    "coordinators/groups",
    "coordinators/transactions",
    "pipeline",
    "broker",
    "testing",
    "cli",
]
# Packages left of it that a package does not import all the same, and why.
APART = {
    ("controller", "replication"): "the controller reaches replicas by messages only, its own broker's too",
    ("testing", "broker"): "a test starts brokers as processes",
}
STARTS_A_BROKER = {"cli/start.py", "cli/ready.py"}  # all else in cli/ talks to brokers as any client does
# They run in others' processes, which have threads and files of their own: no loop and no Env.
NO_BROKER = ("pipeline", "testing")  # of Spark; of a test

# What to use instead. A name that ends with a dot stands for everything below it.
BANNED = {
    "time.": "env.clock",
    "random.": "env.rng",
    "secrets.": "env.rng",
    "uuid.uuid1": "env.random_uuid()",
    "uuid.uuid4": "env.random_uuid()",
    "datetime.datetime.now": "env.clock.now_ms()",
    "datetime.datetime.utcnow": "env.clock.now_ms()",
    "datetime.datetime.today": "env.clock.now_ms()",
    "datetime.date.today": "env.clock.now_ms()",
    "asyncio.sleep": "env.clock.sleep",
    "asyncio.wait_for": "env.clock.call_later",
    "asyncio.timeout": "env.clock.call_later",
    "asyncio.to_thread": "env.disk.sync_in_background",
    "asyncio.open_connection": "env.network.connect",
    "asyncio.start_server": "env.network.listen",
    "open": "env.disk.open",
    "io.open": "env.disk.open",
    "pathlib.": "env.disk",
    "shutil.": "env.disk",
    "tempfile.": "env.disk",
    "glob.": "env.disk",
    "fcntl.": "env.disk.lock",
    "mmap.": "env.disk",
    "sqlite3.": "env.disk",
    "socket.": "env.network",
    "select.": "env.network",
    "selectors.": "env.network",
    "threading.": "nothing: one loop, one thread",
    "multiprocessing.": "nothing: one loop, one thread",
    "concurrent.": "nothing: one loop, one thread",
    "subprocess.": "nothing: one process",
    "kazoo.": "the coordination port: kazoo has threads of its own",
    "typing.NamedTuple": "barnabas.protocol.named_tuple, which is quick to define",
}

BANNED |= dict.fromkeys(
    (
        f"os.{name}"
        for name in """
    open close read write pread pwrite preadv pwritev fsync fdatasync ftruncate truncate rename replace remove unlink
    mkdir makedirs rmdir removedirs listdir scandir walk stat lstat fstat statvfs utime link symlink access sendfile
    posix_fallocate urandom getrandom path.exists path.lexists path.isfile path.isdir path.islink path.getsize
    path.getmtime path.getctime path.getatime path.realpath path.samefile
    """.split()  # noqa: SIM905
    ),
    "env.disk",
)

# Where a rule does not hold, and why.
ALLOWED = {
    ("protocol/named_tuple.py", "typing.NamedTuple"): "what it stands for",
    ("protocol/stubs.py", "pathlib."): "a development tool, run by hand: a broker does not import it",
    ("cluster/tree/tree_file.py", "sqlite3."): "SQLite does its own file access; its twin is a coordination in memory",
    ("cluster/tree/tree_opening.py", "sqlite3."): "SQLite does its own file access",
    **{
        ("cluster/tree/tree_opening.py", name): "copies for SQLite, which cannot read a log without writing beside it"
        for name in ("shutil.", "tempfile.", "open", "os.truncate", "os.path.getsize")
    },
    **{
        ("cluster/tree/tree_opening.py", f"os.path.{name}"): "where SQLite goes by itself, if a name is a link"
        for name in ("islink", "realpath")
    },
    ("cluster/tree/zookeeper_client.py", "kazoo."): "its thread hands everything over through one queue to the loop",
    ("cluster/tree/zookeeper.py", "kazoo."): "requests of ZooKeeper's protocol, which are values",
    ("cluster/tree/zookeeper_login.py", "kazoo."): "a login, which kazoo's thread makes when it has connected",
    ("cluster/tree/zookeeper_requests.py", "kazoo."): "requests and errors of ZooKeeper's protocol, which are values",
    ("cli/demo.py", "subprocess."): "a client: it starts the broker that it shows",
    ("cli/demo.py", "tempfile."): "a client: data that is gone when the show is over",
    ("cli/demo.py", "shutil."): "a client: data that is gone when the show is over",
    ("cli/backup_file.py", "open"): "a client: the file that a person names",
    **{
        ("cli/backup_file.py", f"os.{name}"): "a client: the file that a person names, whole or not there"
        for name in """
        fsync replace unlink open close access path.exists path.isdir path.isfile path.realpath
        """.split()  # noqa: SIM905
    },
    ("cli/secure.py", "subprocess."): "a client: the broker that it makes users and rules in, for a moment",
    ("cli/shared/login.py", "open"): "a client: the file that a person names",
    (
        "cli/shared/target.py",
        "threading.",
    ): "a client: kafka-python, which does not come back from a broker that closes",
    ("cli/offset_targets.py", "open"): "a client: the file that a person names",
    ("cli/shared/terminal.py", "os.open"): "a client: output goes nowhere when its reader has left",
}


def packages() -> list[str]:
    """The top-level folders that are sub-packages of barnabas."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return [folder for folder in settings["package-dir"].values() if "/" not in folder]


def layer_of(path: str) -> str:
    """The innermost package of LAYERS that a path from the root is in, or an empty string."""
    return max((layer for layer in LAYERS if f"{path}/".startswith(f"{layer}/")), key=len, default="")


def sources() -> list[str]:
    """Every module of the import package, as a path from the root."""
    return sorted(str(path.relative_to(ROOT)) for package in packages() for path in (ROOT / package).rglob("*.py"))


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, also inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def names_used(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and full name of every outside name that is mentioned: `from time import time as t; t()` is time.time."""
    known: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            value: ast.expr = node.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in known:
                yield node.lineno, ".".join([known[value.id], *reversed(parts)])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, known.get(node.func.id, node.func.id)


def guarded_for_types(nodes: Iterable[ast.AST]) -> set[int]:
    """Lines under `if TYPE_CHECKING:`, which never run."""
    return {
        line
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def violations(path: str, text: str) -> list[str]:
    """What a module does that the architecture does not allow."""
    nodes = list(ast.walk(ast.parse(text)))
    package = layer_of(path)
    found = []
    for line, name in imports(nodes):
        top, _, rest = name.partition(".")
        if top == "simulator":
            found.append(f"{path}:{line}: it is for tests only")
        if top != "barnabas":
            continue
        target = layer_of(rest.replace(".", "/"))
        is_below = target in LAYERS and LAYERS.index(target) <= LAYERS.index(package)
        if not is_below or (package, target) in APART:
            found.append(f"{path}:{line}: {package} may not import {name}")
        if package == "cli" and target == "broker" and path not in STARTS_A_BROKER:
            found.append(f"{path}:{line}: only a start imports the broker")
    if package in ("runtime", *NO_BROKER):
        return found
    never_run = guarded_for_types(nodes)
    for line, name in names_used(nodes):
        for banned, instead in BANNED.items():
            if not (name == banned or (banned.endswith(".") and name.startswith(banned))):
                continue
            if (path, banned) not in ALLOWED and line not in never_run and name != "random.Random":
                found.append(f"{path}:{line}: {name} is not for {package}: use {instead}")
    return sorted(set(found))


@pytest.mark.parametrize("path", sources())
def test_a_module_keeps_to_its_layer(path: str) -> None:
    assert violations(path, (ROOT / path).read_text()) == []


def test_every_package_has_its_layer() -> None:
    assert sorted(packages()) == sorted(layer for layer in LAYERS if "/" not in layer)


PACKAGE_MAPS = [f"{folder}/__init__.py" for folder in (*LAYERS, "tests/simulator")]


def test_no_file_is_long() -> None:
    """Who opens a file sees soon what is in it. A longer one has two subjects."""
    long = {path for path in sources() if len((ROOT / path).read_text().splitlines()) > FILE_LINES_MAX}
    assert not long


@pytest.mark.parametrize("path", ["ARCHITECTURE.md", "CONTRIBUTING.md", *PACKAGE_MAPS])
def test_the_map_is_true(path: str) -> None:
    """Every file that a map names is there: seen from the folder of the map, or below a package."""
    named = re.findall(r"`([a-z_/]+\.py)`", (ROOT / path).read_text())
    assert named
    own = str(Path(path).parent)
    for name in named:
        assert any((ROOT / folder / name).is_file() for folder in [own, "", *LAYERS]), f"there is no {name}"


@pytest.mark.parametrize("folder", sorted({str(Path(path).parent) for path in sources()} - {"broker/api"}))
def test_every_file_is_explained(folder: str) -> None:
    """The docstring of a folder says what each file in it is for. Those of APIs and commands have their names."""
    explained = re.findall(r"`(?:[a-z_]+/)?([a-z_0-9]+)\.py`", (ROOT / folder / "__init__.py").read_text())
    files = {path.stem for path in (ROOT / folder).glob("[a-z]*.py")}
    assert files - {*explained, *(COMMANDS if folder == "cli" else ())} == set()


def test_every_folder_is_explained() -> None:
    text = "".join((ROOT / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))
    for folder in [*LAYERS, *(f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir())]:
        assert f"`{folder}/`" in text or folder.endswith("__pycache__"), f"{folder} is not explained"


def test_every_exception_is_still_needed() -> None:
    for path, banned in ALLOWED:
        used = {name for _, name in names_used(list(ast.walk(tree_of(path))))}
        assert any(name == banned or (banned.endswith(".") and name.startswith(banned)) for name in used), path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("protocol/frames.py", "from barnabas.config.broker import BrokerConfig"),
        ("storage/log.py", "import barnabas.cluster.tree.port"),
        ("controller/controller.py", "from barnabas.replication.partition import Partition"),
        ("storage/log.py", "def late():\n    from barnabas.broker.broker import Broker"),
        ("coordinators/groups/classic.py", "from simulator.env import sim_env"),
        ("pipeline/schemas.py", "from barnabas.broker.broker import Broker"),
        ("cli/topics.py", "from barnabas.broker.broker import Broker"),
        ("coordinators/groups/classic.py", "import time\nnow = time.time()"),
        ("coordinators/groups/classic.py", "from time import monotonic as m\nm()"),
        ("coordinators/groups/classic.py", "import random as r\nr.random()"),
        ("broker/broker.py", "import asyncio\nasync def wait():\n    await asyncio.sleep(1)"),
        ("storage/segment.py", "open('x')"),
        ("storage/segment.py", "import os\nos.fsync(3)"),
        ("storage/segment.py", "import os.path\nos.path.exists('x')"),
        ("storage/segment.py", "from os.path import getsize"),
        ("broker/server.py", "import socket\nsocket.socket()"),
        ("offsets/expiry.py", "from datetime import datetime\ndatetime.now()"),
        ("offsets/expiry.py", "import datetime\ndatetime.datetime.now()"),
        ("replication/partition.py", "import sqlite3\nsqlite3.connect('x')"),
        ("broker/server.py", "from threading import Thread"),
    ],
)
def test_a_planted_violation_is_found(path: str, text: str) -> None:
    assert len(violations(path, text)) >= 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("storage/log.py", "from barnabas.protocol.record_batch import read_header"),
        ("broker/broker.py", "from barnabas.runtime.env import real"),
        ("runtime/clock.py", "import time\ntime.time()"),
        ("storage/log.py", "import random\ndef f(rng: random.Random) -> None: ..."),
        ("storage/log.py", "def f(disk):\n    return disk.open('x')"),
        ("cluster/tree/tree_file.py", "import sqlite3\nsqlite3.connect('x')"),
        ("pipeline/schemas.py", "import os\nfrom barnabas.protocol import checksum\nos.listdir('x')"),
        ("storage/log.py", "import os\nos.path.join('a', 'b')"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, text: str) -> None:
    assert violations(path, text) == []


FILE_LINES_MAX = 600
CIRCLE_FILES_MAX = 3


def tree_of(path: str) -> ast.Module:
    # Not kept: all of them are so many objects that each full garbage collection of later tests would take seconds.
    return ast.parse((ROOT / path).read_text())


@cache
def imported_files(path: str) -> set[str]:
    """The files of the import package that a file imports, also inside functions and under TYPE_CHECKING."""
    found = set()
    for _, name in imports(ast.walk(tree_of(path))):
        parts = name.split(".")[1:] if name.startswith("barnabas.") else []
        for places in (parts, parts[:-1]):
            folder = "/".join(places)
            file = next((file for file in (f"{folder}.py", f"{folder}/__init__.py") if (ROOT / file).is_file()), None)
            if file is not None:
                found.add(file)
                break
    return found - {path}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The largest sets of files of which each imports all others, directly or by way of others. Two files or more."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reach = {path: reached(path) for path in graph}
    sets = {frozenset(other for other in reach[path] if path in reach[other]) for path in graph if path in reach[path]}
    return sorted(sorted(each) for each in sets)


def test_few_files_depend_on_each_other_in_a_circle() -> None:
    """A file in a large circle cannot be understood without all others of it."""
    found = circles({path: imported_files(path) for path in sources()})
    assert [each for each in found if len(each) > CIRCLE_FILES_MAX] == []


def test_a_planted_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert circles(graph) == [["a", "b", "c"], ["f", "g"]]


def test_a_handler_does_not_know_the_wiring() -> None:
    """Not even by way of another file: `broker/services.py` says what handlers may use of a broker."""
    graph = {path: imported_files(path) for path in sources()}
    left = [path for path in graph if path.startswith(("broker/api/", "broker/http/"))]
    known = set(left)
    while left:
        new = graph[left.pop()] - known
        known |= new
        left += new
    assert "broker/services.py" in known
    assert "broker/broker.py" not in known


# Loops belong to env.upkeep, where the supervisor sees them. These do something later once, or end by themselves.
ONCE = {
    "broker/http/connection.py": "the answer to a login that failed, after a while",
    "broker/auto_topics.py": "one creation",
    "broker/broker.py": "the wait for the last count of the tree mark",
    "broker/logins.py": "one answer to a login that has failed",
    "broker/control/gate.py": "one delayed request or answer",
    "broker/tree_mark.py": "one write, asked for by the task `tree mark`",
    "broker/restored_tree.py": "one report, asked for by the task `undecided partitions`",
    "coordinators/groups/consumer/runtime.py": "the deadline of a consumer group (the task `group timers`)",
    "coordinators/groups/shard.py": "the deadline of a group (the task `group timers`), of a wait for a held group",
    "broker/answer_writer.py": "the wait of one client that is above a quota",
    "broker/arrivals.py": "the wait of one connection that came too fast",
    "cluster/controlled_shutdown.py": "the end of the wait for one answer",
    "coordinators/loading.py": "one load, tried again, and a line of the log while it waits",
    "coordinators/shard.py": "the deadline of writes under way",
    "coordinators/groups/coordinator.py": "the encoders of records, made once after the start",
    "coordinators/transactions/coordinator.py": "the last record of a transaction, written again",
    "coordinators/transactions/shard.py": "the wait for the markers of the last transaction",
    "coordinators/transactions/markers.py": "markers that were refused, sent again",
    "coordinators/transactions/topic_ages.py": "one read of the tree",
    "coordinators/transactions/verification.py": "one request's question, asked again",
    "offsets/offset_journal.py": "one flush; what it cannot write is looked at by the task `offset journal`",
    "offsets/zookeeper.py": "one commit",
    "controller/channels.py": "one request, sent again",
    "cluster/tree/zookeeper.py": "the deadline of a session that nothing is heard of, and the next one after it",
    "controller/controller.py": "the first balance after taking over, and an election after one that failed",
    "replication/fetching.py": "the end of a long poll",
    "cluster/tree/checkpoints.py": "one checkpoint, begun again by a later poll",
    "cluster/tree/embedded.py": "one repair of the sessions, begun again by a later poll",
    "broker/http/server.py": "one import, a moment after the start of a broker for tests",
    "replication/follower_fetches.py": "the end of a long poll",
    "cluster/broker_client.py": "one attempt to connect; the deadline of the oldest request; the end of a login",
    "cluster/metadata_cache.py": "the end of a request's wait",
    "cluster/registration.py": "one look, asked for by a watch",
    "cluster/lease.py": "one round trip, asked for by the task `lease`",
    "replication/led_states.py": "one read, asked for by the task `led states`",
    "cluster/producer_ids.py": "one block, begun again by the next request",
    "replication/replica_fetcher.py": "the wait after a failure; answers keep it going, and each failure of one waits",
    "replication/replica_wait.py": "the end of a request's wait",
    "storage/durability.py": "a sync that could not begin, tried again",
    "storage/segments.py": "files that go after a delay",
    "storage/log_directory.py": "names that are synced after a delay",
    "storage/log_manager.py": "folders that go after a delay",
}


def test_loops_are_in_the_table_of_the_upkeep() -> None:
    asks = re.compile(r"\.(call_later|call_at|create_task|ensure_future)\(")
    found = {path for path in sources() if asks.search((ROOT / path).read_text())}
    layered = {path for path in found if layer_of(path) not in ("runtime", "cli")}
    assert sorted(layered - ONCE.keys()) == [], "see runtime/upkeep.py; or say here why it is no loop"
