"""`python -m examples --data ./day`: starts three brokers, fills them with a day, kills one at noon, and stops them."""

import argparse
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from barnabas.runtime.processes import ProcessHandle

from examples.day import plan_day
from examples.fill import fill


class Brokers:
    """`barnabas start --brokers 3`."""

    def __init__(self, data: Path, *more: str) -> None:
        words = ["start", "--brokers", "3", "--restart", "--json", "--exit-with-parent", "--port", "0"]
        words += ["--data", str(data), "--log-level", "warning", *more]
        log = (data.parent / f"{data.name}.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "barnabas", *words], stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the brokers did not start; {log.name} says why.")
        ready = json.loads(line)
        self.bootstrap: str = ready["bootstrap"]
        self._second = ProcessHandle(ready["pids"][1])

    def kill_one(self) -> None:
        """Kill one; the others go on, and it comes back."""
        was_there = self._second.send(signal.SIGKILL)
        print(f"noon: broker 1 {'is killed' if was_there else 'was gone already'}", flush=True)

    def stop(self) -> None:
        """Stop all, and wait until they have."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, help="a new folder for three brokers")
    where.add_argument("--bootstrap", help="fill these brokers, which run already; none is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=int, default=50_000, help="about so many records in the topics")
    parser.add_argument("--commits-every", type=int, default=1, help="most groups commit every so many minutes")
    parser.add_argument("--date", type=date.fromisoformat, help="the day; yesterday if not said")
    parser.add_argument("--truth", type=Path, help="where the truth goes; DATA/truth.json if not said")
    parser.add_argument("--keep", action="store_true", help="start the brokers again, and wait for Ctrl-C")
    options = parser.parse_args()
    if options.commits_every < 1:
        parser.error("--commits-every is 1 or more")
    day = options.date or datetime.now(UTC).date() - timedelta(days=1)
    start_ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    truth_file = options.truth or (options.data or Path()) / "truth.json"

    begun = time.monotonic()
    plan = plan_day(options.seed, start_ms, options.records, options.commits_every)
    if options.bootstrap:
        truth = fill(options.bootstrap, plan, None)
    else:
        if options.data.exists():
            raise SystemExit(f"{options.data} is there already: name a new folder.")
        # Coordinators do not see what is written here, so they would find their journal wrong.
        brokers = Brokers(options.data, "--set", "offsets.journal.enable=false")
        try:
            truth = fill(brokers.bootstrap, plan, brokers.kill_one)
        finally:
            brokers.stop()
    truth_file.write_text(json.dumps(truth, indent=1))
    count = f"{len(plan.events):,} records, commits and rebalances of {day}"
    print(f"{count} in {time.monotonic() - begun:.0f} s; what is true of them: {truth_file}", flush=True)
    if options.keep and options.data:
        brokers = Brokers(options.data)
        print(f"brokers at {brokers.bootstrap} until Ctrl-C", flush=True)
        try:
            brokers.process.wait()
        except KeyboardInterrupt:
            brokers.stop()


if __name__ == "__main__":
    main()
