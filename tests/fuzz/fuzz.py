"""Wrong input of every kind for Barnabas, under a seed.

    python tests/fuzz/fuzz.py                             every target for half a minute
    python tests/fuzz/fuzz.py wire --frames 1000000       as many hostile frames for a broker process
    python tests/fuzz/fuzz.py batches files --seed 7 --minutes 5
    python tests/fuzz/fuzz.py files --seed 7 --case 4711  one case again
    python tests/fuzz/fuzz.py wire --replay HEX_OR_FILE   frames again, one a line

targets: wire (frames over loopback, a well-behaved neighbour beside them), closing (clients that close at any byte of
what they send, and what must have been done of it), batches (record batches and what is compressed in them), files
(damaged logs and checkpoints), tree (a damaged coordination.sqlite), operator (what is done to directories and settings
between two lives of a broker), properties (server.properties), http (requests to the HTTP API), logins (SASL and TLS),
gate (requests of somebody with few rights).
A failure prints the case, the smallest input as hex, and the command that runs it again; the exit code is 1.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path += [str(Path(__file__).parents[1] / "crash"), str(Path(__file__).parents[1])]

import batches
import closing
import files
import gate
import http_requests
import logins
import operator_deeds
import server_properties
import tree
import wire

TARGETS = ("wire", "closing", "batches", "files", "tree", "operator", "properties", "http", "logins", "gate")
CASES = {
    "batches": batches.check,
    "files": files.check,
    "tree": tree.check,
    "operator": operator_deeds.check,
    "properties": server_properties.check,
    "http": http_requests.check,
    "logins": logins.check,
    "gate": gate.check,
}
PROCESSES = {"wire": wire.run, "closing": closing.run}  # these need a broker process
NO_END = 1 << 60
SAID_EVERY_SECONDS = 2.0


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def run_cases(target: str, seed: int, first: int, count: int, seconds: float) -> str | None:
    """Case after case, to the first that fails; what went wrong."""
    logging.disable(logging.CRITICAL)
    check = CASES[target]
    begin = said = time.monotonic()
    number = first
    while number < first + count and time.monotonic() - begin < seconds:
        complaint = check(seed, number)
        if complaint is not None:
            again = f"python tests/fuzz/fuzz.py {target} --seed {seed} --case {number}"
            return f"{target}, seed {seed}, case {number}: {complaint}\n{again}"
        number += 1
        if time.monotonic() - said > SAID_EVERY_SECONDS:
            said = time.monotonic()
            say(f"{target}: {number - first} cases in {said - begin:.0f} s")
    say(f"{target}: {number - first} cases in {time.monotonic() - begin:.0f} s, all well")
    return None


def main() -> int:
    """0 when all is well, 1 at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", "--cases", type=int, help="how many of each target")
    parser.add_argument("--minutes", type=float, help="for each target; without it and --frames half a minute")
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--replay", metavar="HEX_OR_FILE", help="frames for the wire")
    said = parser.parse_args()
    unknown = set(said.targets) - set(TARGETS)
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}")
    if said.replay is not None:
        path = Path(said.replay)
        lines = path.read_text().split() if len(said.replay) < 4096 and path.exists() else [said.replay]
        complaint = wire.replay([bytes.fromhex(line) for line in lines])
        say(complaint or "all well")
        return 1 if complaint else 0
    first = said.case or 0
    count = 1 if said.case is not None else said.frames or NO_END
    minutes = said.minutes or (0.5 if count == NO_END else NO_END)
    for target in said.targets or TARGETS:
        if target in PROCESSES:
            complaint = PROCESSES[target](said.seed, first, count, minutes * 60, say)
        else:
            complaint = run_cases(target, said.seed, first, count, minutes * 60)
        if complaint is not None:
            say(complaint)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
