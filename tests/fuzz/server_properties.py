"""Spoilt server.properties, read as `barnabas start` reads them: an error that names its line and key, or a broker."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path
from random import Random

import barnabas.config
from barnabas.broker.broker import Broker
from barnabas.cli.shared.exits import Failure
from barnabas.cli.start_settings import configure
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.profiles import NO_PROFILE
from barnabas.storage.directory_contents import DataDirectoryError
from mutations import INTEGERS, case, smallest, spoil
from simulator.env import sim_env

PATH = "/etc/server.properties"
SENTENCE = re.compile(rf"barnabas: {PATH}(:\d+: .*|: line \d+: .*|: .*[a-z]\.[a-z.]+.*)")
STARTED = 0.1  # of the files that are taken: a broker is started with them
VALUES = (
    *("", " ", "x", "true", "FALSE", "null", "-", "-0", "+1", "0x10", "1e3", "1.5", "NaN", "Infinity", "١", "1_000"),
    *("PLAINTEXT://:0", "PLAINTEXT://[::1]:1", "A://x:99999", "://", "PLAINTEXT://a:1,PLAINTEXT://b:1", "a:b", ","),
    *(
        "/tmp/a,/tmp/a",
        "\\",
        "\\u00e9",
        "\\uD83D",
        "%s",
        "${x}",
        "compact,delete",
        "producer",
        "127.0.0.1:5",
        "9" * 5000,
    ),
)
ODD_LINES = (
    "=",
    ":",
    "a",
    "\\",
    "#",
    "!x=1",
    "  \t",
    "key\\",
    "\\u12",
    "a\\:b=c",
    "\0",
    "\ufeffnode.id=1",
    "x=" + "y" * 10_000,
)


@cache
def shipped() -> str:
    """The file in the package."""
    return (Path(barnabas.config.__file__).parent / "server.properties").read_text()


def check(seed: int, number: int) -> str | None:
    """One case; what is wrong, if anything."""
    random = case(seed, "properties", number)
    content = hostile(random)
    starts = random.random() < STARTED
    found = complaint(content, starts)
    if found is None:
        return None
    small = smallest(content, lambda shorter: complaint(shorter, starts) is not None)
    return f"{found}\nfile {small.hex()}\n{small!r}"


def complaint(content: bytes, starts: bool) -> str | None:
    """Read it, and perhaps start a broker with it; what is wrong."""
    env = sim_env(1)
    env.disk.make_directory("/etc")
    file = env.disk.open(PATH, create=True)
    file.write(0, content)
    file.close()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            config = configure(env, PATH, NO_PROFILE, {"coordination.path": ":memory:"}, None).config
    except Failure as failure:
        with contextlib.redirect_stderr(said):
            failure.tell(as_json=False)
        lines = said.getvalue().splitlines()
        odd = [line for line in lines if not SENTENCE.fullmatch(line)]  # one line each, whatever is quoted in it
        return f"refused with {odd or 'nothing'}" if odd or not lines else None
    except Exception as error:
        return f"reading it raised {error!r}"
    if starts:
        try:
            broker = Broker(env, config, "/data")
            env.run(broker.start())
            env.run(broker.stop())
        except (DataDirectoryError, OSError):
            return None
        except Exception as error:
            return f"starting with it raised {error!r}"
    return None


def hostile(random: Random) -> bytes:
    """The shipped file with other lines, or other bytes."""
    lines = shipped().splitlines()
    names = list(BROKER_SETTINGS)
    for _ in range(random.choice((0, 1, 1, 3, 10))):
        line = _line(random, names)
        if random.random() < 0.3 and lines:
            lines[random.randrange(len(lines))] = line
        else:
            lines.insert(random.randrange(len(lines) + 1), line)
    text = random.choice(("\n", "\n", "\r\n", "\r")).join(lines)
    content = text.encode(random.choice(("utf-8", "utf-8", "utf-16")), "surrogatepass")
    return spoil(random, content) if random.random() < 0.5 else content


def _line(random: Random, names: list[str]) -> str:
    if random.random() < 0.1:
        return random.choice(ODD_LINES)
    name = random.choice(names)
    default = BROKER_SETTINGS[name].default or ""
    value = random.choice((random.choice(VALUES), str(random.choice(INTEGERS)), default, default))
    return f"{name}{random.choice(('=', ' = ', ':', ' ', ''))}{value}"
