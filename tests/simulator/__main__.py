"""In `tests/`, `python -m simulator --seed N` prints a verdict; on failure the seed, the invariant and the last events.

--seeds A-B    many seeds, to the first that fails      --minutes M   of bad weather, in virtual time, without the
                                                        quiet times in between
--trace FILE   every event, one a line                  --storage     power cuts under a data directory instead
--live-resets  live resets of one group instead           --retention   retention that waits for groups instead
--rights       who may do what, and how much, instead
--tree-accidents  what somebody does by hand to the file of three brokers' tree, instead
--old-disks    the disks of three brokers put back from copies of different ages, instead
--consumer-groups  groups that migrate between the classic and the consumer protocol instead
--brokers N    a cluster of N brokers                   --kinds A,B   only these troubles of a cluster, by name
--quiet-hours H  of a cluster: with quiet times, H hours together
--journal      the brokers keep an offset journal         --transactions  transactional clients instead of others
--migrating    with a group more that migrates between these protocols: one broker, a cluster, retention or rights
--campaign     many seeds of a cluster, through violations, in --processes N, for --until-s S seconds; a line a seed,
               hours of bad weather and of quiet apart; --violations FILE
--fault NAME   with a planted fault                     --faults      each fault under its seed, with it and without
--find NAME    a seed that catches a fault, for its row in faults.py, cluster_faults.py, transaction_faults.py,
               consumer_group_faults.py, access_faults.py or tree_faults.py
"""

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count

from simulator import campaign, cluster_world, consumer_members, planting, storage, world
from simulator.faults import Fault
from simulator.simulation import Verdict
from simulator.violation import Violation


def cut_power(seed: int) -> bool:
    """Run one storage workload with a power cut at every change; returns whether it holds."""
    try:
        print(f"seed {seed}: holds ({storage.run(seed)} crashes)", flush=True)
    except Violation as violation:
        print(f"seed {seed}: VIOLATED {violation}", flush=True)
        return False
    return True


def plant(fault: Fault, seed: int) -> bool:
    """Run a storage workload with a planted fault; returns whether it holds."""
    violation = planting.run_with(fault, seed)
    print(f"seed {seed}: " + ("holds" if violation is None else f"VIOLATED {violation}"), flush=True)
    return violation is None


def run_world(
    seed: int,
    minutes: float,
    trace_path: str | None,
    fault: Fault | None,
    run: Callable[[int, float, Callable[[str], None] | None], Verdict],
) -> bool:
    """Run one world, or one of groups or of retention; returns whether it holds."""
    began = time.perf_counter()
    with open(trace_path, "w") if trace_path else nullcontext() as file:
        trace = (lambda line: print(line, file=file)) if file is not None else None
        with planting.planted(fault) if fault is not None else nullcontext():
            verdict = run(seed, minutes, trace)
    seconds = time.perf_counter() - began
    virtual = verdict.virtual_ms / 1000
    print(f"{verdict}  [{virtual:.0f} s in {seconds:.2f} s: {virtual / seconds:.0f} times]", flush=True)
    return verdict.violation is None


def kinds_of(arguments: argparse.Namespace, fault: Fault | None) -> tuple[str, ...]:
    """Which troubles may come; all, if it is empty."""
    return tuple(name for name in (arguments.kinds or (fault.focus if fault else "")).split(",") if name)


def run_cluster(seed: int, arguments: argparse.Namespace, fault: Fault | None) -> bool:
    """Run one cluster; returns whether it holds."""
    kinds = kinds_of(arguments, fault)
    brokers = max(arguments.brokers, 3) if fault is not None else arguments.brokers
    began, processor_began = time.perf_counter(), time.process_time()
    with open(arguments.trace, "w") if arguments.trace else nullcontext() as file:
        trace = (lambda line: print(line, file=file)) if file is not None else None
        with planting.planted(fault) if fault is not None else nullcontext():
            verdict = cluster_world.run(
                seed,
                arguments.minutes,
                trace,
                brokers,
                kinds,
                arguments.overlap,
                arguments.quiet_hours,
                arguments.journal,
                arguments.acks,
                arguments.transactions or (fault is not None and fault.campaign == "cluster transactions"),
                consumer_members.ConsumerClusterWorld if arguments.migrating else cluster_world.ClusterWorld,
            )
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - processor_began
    virtual = verdict.virtual_ms / 1000
    rate = virtual / processor_seconds
    print(f"{verdict}  [{virtual:.0f} s in {seconds:.2f} s: {rate:.0f} cluster-hours per processor-hour]", flush=True)
    return verdict.violation is None


def run_campaign(first: int, last: int | None, arguments: argparse.Namespace) -> int:
    """Run many seeds of a cluster; returns 1 if one is violated."""
    kinds = tuple(filter(None, arguments.kinds.split(",")))
    plan = campaign.Plan(arguments.minutes, max(arguments.brokers, 3), kinds, arguments.overlap, arguments.quiet_hours)
    seeds = count(first) if last is None else range(first, last + 1)
    # So that its processes end with it.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        totals = campaign.run(seeds, plan, arguments.until_s, arguments.processes, arguments.violations)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if totals.violated else 0


def plant_all() -> int:
    """Plant each fault under its seed; returns 0 if each is caught, and each run holds without it."""
    logging.disable(logging.CRITICAL)
    wrong = 0
    for fault in planting.ALL_FAULTS:
        violation, control = planting.run_with(fault, fault.seed), planting.run(fault.campaign, fault.focus, fault.seed)
        is_good = planting.is_catch(fault, violation) and control is None
        wrong += not is_good
        print(f"{fault.name:45} seed {fault.seed:3}: " + ("caught" if is_good else "NOT CAUGHT"), flush=True)
        if not is_good:
            print(f"    expected {fault.invariant!r}; with the fault: {violation}; without it: {control}")
    return 1 if wrong else 0


def find(fault: Fault) -> int:
    """Print a seed that catches a fault; returns 1 if none does."""
    logging.disable(logging.CRITICAL)
    seed, others = planting.find_seed(fault, range(1, planting.SEEDS_MAX + 1))
    print(f"{fault.name}: {fault.invariant!r} is said by " + ("no seed" if seed is None else f"seed {seed}"))
    for what, times in others.items():
        print(f"    {times} seeds before it: {what}")
    return 1 if seed is None else 0


def kind_of(arguments: argparse.Namespace, fault: Fault | None) -> str:
    """Which simulation is asked for, or can show the fault."""
    if arguments.brokers > 1:
        return "cluster"
    if fault is not None:
        return fault.campaign
    asked = {
        "storage": arguments.storage,
        "live resets": arguments.live_resets,
        "consumer groups": arguments.consumer_groups,
        "retention for members": arguments.retention and arguments.migrating,
        "rights of members": arguments.rights and arguments.migrating,
        "retention": arguments.retention,
        "rights": arguments.rights,
        "tree accidents": arguments.tree_accidents,
        "old disks": arguments.old_disks,
    }
    return next((kind for kind, is_asked in asked.items() if is_asked), "world")


def main() -> int:
    """Returns 0 if every run holds, 1 at the first that does not."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    faults = {fault.name: fault for fault in planting.ALL_FAULTS}
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", metavar="A-B")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--trace", metavar="FILE")
    parser.add_argument("--brokers", metavar="N", type=int, default=1)
    parser.add_argument("--kinds", metavar="A,B", default="")
    parser.add_argument("--overlap", action="store_true", help="two troubles of a cluster may come together")
    parser.add_argument("--journal", action="store_true", help="the brokers keep an offset journal")
    parser.add_argument("--transactions", action="store_true", help="with transactional clients instead of others")
    parser.add_argument("--migrating", action="store_true", help="with a group that changes its protocol beside others")
    parser.add_argument("--acks", metavar="N", type=int, default=-1, help="offsets.commit.required.acks of a cluster")
    parser.add_argument("--quiet-hours", metavar="H", type=float, default=0.0)
    parser.add_argument("--campaign", action="store_true", help="many seeds of a cluster; A- has no end")
    parser.add_argument("--processes", metavar="N", type=int, default=1)
    parser.add_argument("--until-s", metavar="S", type=float, default=float("inf"), help="begin no seed after this")
    parser.add_argument("--violations", metavar="FILE")
    parser.add_argument("--live-resets", action="store_true", help="live resets of one group")
    parser.add_argument("--consumer-groups", action="store_true", help="groups that change their protocol")
    parser.add_argument("--retention", action="store_true", help="retention that waits for groups")
    parser.add_argument("--rights", action="store_true", help="access rules and quotas")
    parser.add_argument("--tree-accidents", action="store_true", help="somebody changes the tree's file by hand")
    parser.add_argument("--old-disks", action="store_true", help="somebody puts all disks back from copies")
    parser.add_argument("--storage", action="store_true", help="power cuts under storage")
    parser.add_argument("--faults", action="store_true", help="plant the faults")
    parser.add_argument("--fault", metavar="NAME", choices=list(faults))
    parser.add_argument("--find", metavar="NAME", choices=list(faults))
    parser.add_argument("--go-on", action="store_true", help="do not end at the first violation")
    arguments = parser.parse_args()
    if arguments.faults:
        return plant_all()
    if arguments.find is not None:
        return find(faults[arguments.find])
    fault = faults[arguments.fault] if arguments.fault is not None else None
    first, _, last = (arguments.seeds or str(arguments.seed)).partition("-")
    if arguments.campaign:
        return run_campaign(int(first), int(last) if last else None, arguments)
    kind = kind_of(arguments, fault)
    if kind == "storage":
        logging.disable(logging.CRITICAL)
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        if kind in ("cluster", "cluster transactions"):
            holds = run_cluster(seed, arguments, fault)
        elif kind == "storage":
            holds = cut_power(seed) if fault is None else plant(fault, seed)
        else:
            run = planting.RUNS.get(kind) or partial(
                world.run,
                with_journal=arguments.journal or kind == "journal",
                with_transactions=arguments.transactions or kind == "transactions",
                kinds=kinds_of(arguments, fault),
                kind=consumer_members.ConsumerWorld if arguments.migrating else world.World,
            )
            holds = run_world(seed, arguments.minutes, arguments.trace, fault, run)
        failed += not holds
        if failed and not arguments.go_on:
            break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
