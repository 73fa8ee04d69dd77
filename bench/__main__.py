"""`python -m bench`: loads against Barnabas and other brokers, in turn, in several rounds; prints medians and ratios.

python -m bench                              every load, against a Barnabas of this checkout started for it
python -m bench --kafka commit-8 poll        some loads, and Apache Kafka beside it (its jars: apache_kafka.py)
python -m bench --at old=127.0.0.1:9092=PID --at new=127.0.0.1:9192 commit-8        brokers that run already
python -m bench warm [ROW...]                both builds, a Kafka that is really warm, and the limit (warm.py)
python -m bench cpu | stalls                 processor time of one request; how long one thing holds the loop
python -m bench journal [cpu|rate]          commits with the offset journal on, against off
python -m bench secured [ROW...]             TLS and logins, beside Apache Kafka (secured.py)
python -m bench cluster [--kafka]            three brokers (cluster.py)
python -m bench pipeline [ROW...]            the data pipeline on Spark (extra `spark`; pipeline.py)
python -m bench rebalance                    a group of 2,000 members, and what others feel of it
python -m bench loading                      exec to a million committed offsets served, and their memory
python -m bench txn-ids                      exec to 100,000 transactional ids loaded, and their memory
python -m bench testing [ROW...]             what a test waits for: fixtures, resets, copies, time; memory
python -m bench suite [WORDS OF PYTEST...]   the share of broker, waits and resets in the time of 201 tests
python -m bench held                         a request's cost while a million offsets are held, against a thousand
python -m bench scale | startup | memory     many of everything; exec to first answer; resident memory
"""

import argparse
import importlib
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import uvloop

from bench import consumer_members, held, lag, loading, rebalance, scale, startup, transactional_ids, transactions
from bench.apache_kafka import SETTINGS, ApacheKafka
from bench.loads import LOADS as PLAIN_LOADS
from bench.loads import Figures, Row, in_turn
from bench.targets import Barnabas, Target

LOADS = PLAIN_LOADS | consumer_members.LOADS | transactions.LOADS
# Modules with words of their own. They are imported late: `pipeline` needs the extra `spark`.
COMMANDS = ("cpu", "warm", "journal", "cluster", "pipeline", "testing", "suite", "secured", "stalls")
SPECIAL = {
    "lag": lag.main,
    "held": held.main,
    "loading": loading.main,
    "rebalance": rebalance.main,
    "scale": scale.main,
    "startup": startup.main,
    "memory": startup.memory,
    "txn-ids": transactional_ids.main,
}


def main(words: Sequence[str]) -> int:
    """Run the command (see the module); returns the exit code."""
    if words[:1] and words[0] in COMMANDS:
        command = importlib.import_module(f"bench.{words[0]}")
        return int(command.main(words[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=", ".join([*LOADS, *SPECIAL]))
    parser.add_argument("--at", action="append", default=[], metavar="NAME=HOST:PORT[=PID]", help="a running broker")
    parser.add_argument("--kafka", action="store_true", help="start an Apache Kafka too")
    parser.add_argument("--kafka-set", action="append", default=list(SETTINGS), metavar="KEY=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Barnabas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one load against one broker")
    parser.add_argument("--warm-up", action="store_true", help="one more round first, not counted; so with --kafka")
    said = parser.parse_args(words)
    unknown = [name for name in said.loads if name not in LOADS and name not in SPECIAL]
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}")
    for name in said.loads:
        if name in SPECIAL:
            SPECIAL[name](said.kafka)
    loads = [name for name in said.loads or LOADS if name in LOADS]
    if not loads:
        return 0
    targets = [_running(text) for text in said.at]
    warm_up = said.kafka or said.warm_up
    with ExitStack() as started:
        if not targets:
            targets.append(started.enter_context(Barnabas(settings=said.set)))
        if said.kafka:
            targets.append(started.enter_context(ApacheKafka(said.kafka_set)))
        for name in loads:
            row = LOADS[name]
            measured = uvloop.run(in_turn(row.load, targets, said.rounds, said.seconds, warm_up=warm_up))
            _print(name, row, targets, measured)
    return 0


def _running(text: str) -> Target:
    name, _, rest = text.partition("=")
    address, _, pid = rest.partition("=")
    return Target(name, address, int(pid) if pid else None)


def _print(name: str, row: Row, targets: Sequence[Target], measured: Sequence[Sequence[Figures]]) -> None:
    print(f"{name}: {row.work}")
    medians = []
    for target, figures in zip(targets, measured, strict=True):
        median = statistics.median(figure[row.figure] for figure in figures)
        medians.append(median)
        spread = " ".join(_short(figure[row.figure]) for figure in figures)
        others = [key for key in figures[0] if key != row.figure]
        rest = ", ".join(f"{key} {_short(statistics.median(figure[key] for figure in figures))}" for key in others)
        print(f"  {target.name:10} {_short(median):>10} {row.figure:10} ({spread})  {rest}")
    for target, median in zip(targets[1:], medians[1:], strict=True):
        ratio = medians[0] / median if row.more_is_better else median / medians[0]
        print(f"  {targets[0].name} is {ratio:.2f} times as good as {target.name}")
    sys.stdout.flush()


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
