"""`python -m barnabas.sim --seed N`: a verdict; on failure the seed, the invariant and the last events in order.

--seeds A-B    many seeds, to the first that fails      --minutes M   of bad weather, in virtual time; the quiet
                                                        times between add to them
--trace FILE   every event, one a line                  --fault NAME  with a planted fault (--faults: each)
"""

import argparse
import logging
import sys
import time
from contextlib import nullcontext

from barnabas.sim import faults, storage, world
from barnabas.sim.violation import Violation


def cut_power(seed: int, fault: faults.Fault | None) -> bool:
    """One storage workload, cut at every change; whether it holds."""
    logging.disable(logging.CRITICAL)
    if fault is not None:
        violation = faults.power_cut(fault, seed)
        print(f"seed {seed}: " + ("holds" if violation is None else f"VIOLATED {violation}"), flush=True)
        return violation is None
    try:
        print(f"seed {seed}: holds ({storage.run(seed)} crashes)", flush=True)
    except Violation as violation:
        print(f"seed {seed}: VIOLATED {violation}", flush=True)
        return False
    return True


def plant_all() -> int:
    """Plant each fault; 0 when each is caught."""
    logging.disable(logging.CRITICAL)
    missed = 0
    for fault in faults.FAULTS:
        caught = faults.caught_by(fault, range(1, faults.SEEDS_MAX + 1))
        missed += caught is None
        print(
            f"{fault.name:45} " + ("NOT CAUGHT" if caught is None else f"seed {caught[0]:3}: {caught[1]}"), flush=True
        )
    return 1 if missed else 0


def main() -> int:
    """0 when every run holds, 1 at the first that does not."""
    parser = argparse.ArgumentParser(
        prog="python -m barnabas.sim", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", metavar="A-B")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--trace", metavar="FILE")
    parser.add_argument("--storage", action="store_true", help="power cuts under storage")
    parser.add_argument("--faults", action="store_true", help="plant the faults")
    parser.add_argument("--fault", metavar="NAME", choices=[fault.name for fault in faults.FAULTS])
    parser.add_argument("--go-on", action="store_true", help="do not end at the first violation")
    arguments = parser.parse_args()
    if arguments.faults:
        return plant_all()
    fault = next((fault for fault in faults.FAULTS if fault.name == arguments.fault), None)
    first, _, last = (arguments.seeds or str(arguments.seed)).partition("-")
    is_storage = arguments.storage if fault is None else fault.campaign == "storage"
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        began = time.perf_counter()
        if is_storage:
            with faults.planted(fault) if fault is not None else nullcontext():
                failed += not cut_power(seed, fault)
            if failed and not arguments.go_on:
                break
            continue
        with open(arguments.trace, "w") if arguments.trace else nullcontext() as file:
            trace = (lambda line: print(line, file=file)) if file is not None else None
            with faults.planted(fault) if fault is not None else nullcontext():
                verdict = world.run(seed, arguments.minutes, trace)
        seconds = time.perf_counter() - began
        virtual = verdict.virtual_ms / 1000
        print(f"{verdict}  [{virtual:.0f} s in {seconds:.2f} s: {virtual / seconds:.0f} times]", flush=True)
        if verdict.violation is not None:
            failed += 1
            if not arguments.go_on:
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
