"""The options of `barnabas start`, and its help."""

import argparse
from functools import partial
from typing import Any, NoReturn

from barnabas.cli.shared.exits import ExitCode, fail

DESCRIPTION = """Serve until Ctrl-C, SIGTERM or SIGHUP. Nothing else needs to run.
What is said later wins: the file, --profile, --set, then --data, --port and --listeners."""

EXAMPLES = """examples:
  barnabas start
  barnabas start --port 0 --data /tmp/try
  barnabas start --config server.properties --set num.partitions=3 --log-file /var/log/barnabas.log
  barnabas start --listeners PLAINTEXT://0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://kafka.example:9092
  barnabas start --brokers 3                         a cluster: ports 9092 to 9094, data in ./data/0 to ./data/2
  barnabas start --profile ci --port 0 --json        for tests: one line of JSON when it serves
  barnabas start --from /var/lib/kafka --port 0      a copy of somebody's data, to look at and to try on

--profile ci changes settings so that tests need not wait, and says which. Without --data its data is in a temporary
directory, which is removed at the end. The broker ends with the process that started it: with the test run, but also
with the shell of `barnabas start --profile ci &`, behind nohup as well. --no-exit-with-parent lets it go on."""

LOG_FILE_BYTES, LOG_FILES_KEPT = 10 << 20, 5


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports errors of usage as the other commands do.

    For each option that it has, argparse asks how wide the terminal is, and imports a lot for it. Only help needs it.
    """

    def error(self, message: str) -> NoReturn:
        fail(f"{message}. (What there is: barnabas start --help)", ExitCode.NOT_VALID)

    def format_help(self) -> str:
        """The help, as wide as the terminal."""
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        return super().format_help()


class Once(argparse.Action):
    """An option of which a second one would be forgotten without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice: give it once.")
        setattr(namespace, self.dest, values)


def parser() -> argparse.ArgumentParser:
    """What reads the words of `barnabas start`."""
    made = Parser(
        prog="barnabas start",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=80),
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--config", type=_said, metavar="FILE", help="a server.properties file, Kafka's own too")
    add(
        "--data",
        type=_said,
        metavar="DIR",
        help="where the data lives (log.dirs); else ./data; --profile ci: temporary",
    )
    add(
        "--from",
        dest="source",
        type=_said,
        metavar="DIR",
        help="serve a copy of this data directory, Kafka's own too; the copy is gone at the end",
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument("-p", "--port", type=_port, metavar="N", help="listen on this port; 0 takes a free one")
    where.add_argument(
        "--listeners", type=_said, metavar="LIST", help="as in Kafka, for example PLAINTEXT://0.0.0.0:9092"
    )
    add("--brokers", type=_count, metavar="N", help="start N broker processes that form a cluster; once is enough")
    add("--restart", action="store_true", help="with --brokers: start a broker that dies again")
    add("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeat")
    unknown = made.add_mutually_exclusive_group()
    unknown.add_argument("--adopt", action="store_true", help="serve the logs here that the tree does not know")
    unknown.add_argument("--set-aside", action="store_true", help="rename their folders to …-stray instead")
    lost = "a data directory that is lost for good, by path or id: its partitions begin empty; repeat"
    add("--give-up", type=_said, metavar="DIR", action="append", default=[], help=lost)
    add(
        "--profile",
        type=_said,
        action=Once,
        metavar="NAME",
        help="ci: for tests, no waiting; docker: as Kafka's images; prints what it changes",
    )
    add("--json", action="store_true", help="print the ready line as JSON")
    secured = "TLS, a login and rules, made anew; the ready line has what clients need (with --json, for tests)"
    add("--secured", action="store_true", help=secured)
    add(
        "--exit-with-parent",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="stop when the process that started this one is gone, whatever ended it; on with --profile ci",
    )
    _add_log_options(made)
    return made


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    levels = ("debug", "info", "warning", "error")
    add("--log-level", default="info", choices=levels, help="what the log says; info, when not given")
    add("--log-file", type=_said, metavar="FILE", help="where the log goes instead of to standard error")
    add(
        "--log-file-bytes",
        type=_count,
        default=LOG_FILE_BYTES,
        metavar="N",
        help="a log file as large as that becomes FILE.1, and a new one begins; %(default)s, when not given",
    )
    add(
        "--log-files-kept",
        type=_count,
        default=LOG_FILES_KEPT,
        metavar="N",
        help="how many of FILE.1, FILE.2, ... are kept; %(default)s, when not given",
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"this wants a number, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _said(text: str) -> str:
    # An empty text comes from a shell variable that is not set. To ignore it would use another folder or file.
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text
