"""Plants a fault (faults.py) while a context lasts, and runs the simulation with the fault and without it.

A run depends on the seed and the focus alone, so the planted line is the only difference between the two runs. A fault
counts as caught if a checker reports the invariant that the row names. No other violation counts.
"""

import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from barnabas.broker.requests import TABLE

from simulator import (
    access_members,
    access_world,
    cluster_world,
    consumer_groups,
    consumer_members,
    live_resets,
    old_disks,
    retention_holds,
    storage,
    tree_accidents,
    world,
)
from simulator.access_faults import ACCESS_FAULTS
from simulator.cluster_faults import CLUSTER_FAULTS
from simulator.consumer_group_faults import CONSUMER_GROUP_FAULTS
from simulator.faults import FAULTS, Change, Fault
from simulator.transaction_faults import TRANSACTION_FAULTS
from simulator.tree_faults import TREE_FAULTS
from simulator.violation import Violation

SEEDS_MAX = 300
ALL_FAULTS = (*FAULTS, *CLUSTER_FAULTS, *TRANSACTION_FAULTS, *CONSUMER_GROUP_FAULTS, *ACCESS_FAULTS, *TREE_FAULTS)
RUNS = {  # of the campaigns for which a seed says all
    "live resets": live_resets.run,
    "consumer groups": consumer_groups.run,
    "retention": retention_holds.run,
    "rights": access_world.run,
    "retention for members": consumer_members.run_retention,
    "rights of members": access_members.run,
    "tree accidents": tree_accidents.run,
    "old disks": old_disks.run,
}


def run(campaign: str, focus: str, seed: int) -> Violation | None:
    """Run the simulation in which a fault can show, planted or not; returns the violation, or None."""
    if campaign == "world":
        return world.run(seed, minutes=1).violation
    if campaign == "live resets" and focus == "refused appends":
        return live_resets.run(seed, refused_share=0.2).violation
    if campaign == "consumer groups" and focus == "live resets":
        return consumer_groups.ConsumerGroups(seed, with_resets=True).run().violation
    if campaign in RUNS:
        return RUNS[campaign](seed).violation
    if campaign == "journal":
        return world.run(seed, minutes=1, with_journal=True).violation
    kinds = tuple(filter(None, focus.split(",")))
    if campaign == "transactions":
        return world.run(seed, minutes=0.5, with_transactions=True, kinds=kinds).violation
    if campaign == "cluster transactions":
        return cluster_world.run(seed, minutes=0.3, kinds=kinds, with_transactions=True).violation
    if campaign == "cluster":
        return cluster_world.run(seed, minutes=0.4, kinds=kinds).violation
    try:
        storage.run(seed, steps=60 if focus else 40, keep_every=1 if focus else 17, focus=focus)
    except Violation as violation:
        return violation
    return None


@cache
def holds(campaign: str, focus: str, seed: int) -> bool:
    """Whether the run without a fault holds. It depends on these three alone, so many faults share it."""
    return run(campaign, focus, seed) is None


def run_with(fault: Fault, seed: int) -> Violation | None:
    """The same with the fault planted."""
    with planted(fault):
        return run(fault.campaign, fault.focus, seed)


def is_catch(fault: Fault, violation: Violation | None) -> bool:
    """Whether this is the violation that the fault must cause."""
    return violation is not None and violation.invariant == fault.invariant


def find_seed(fault: Fault, seeds: Iterable[int]) -> tuple[int | None, dict[str, int]]:
    """The first seed that catches the fault, and how often the seeds before it gave which other result."""
    others: dict[str, int] = {}
    for seed in seeds:
        violation = run_with(fault, seed)
        if is_catch(fault, violation) and holds(fault.campaign, fault.focus, seed):
            return seed, others
        what = "holds" if violation is None else violation.invariant
        others[what] = others.get(what, 0) + 1
    return None, others


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """While the context lasts, the product is wrong in these places. LookupError unless each text is there once."""
    with ExitStack() as changes:
        for change in (Change(fault.where, fault.right, fault.wrong), *fault.also):
            changes.enter_context(_changed(change, fault.name))
        yield


@contextmanager
def _changed(change: Change, name_of_fault: str) -> Iterator[None]:
    owner, name = _find(change.where)
    original = vars(owner)[name]
    function = getattr(original, "__func__", original)  # of a static method or a class method
    if isinstance(original, property):
        assert original.fget is not None
        function = original.fget
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(change.right) != 1:
        raise LookupError(f"{change.where} has {source.count(change.right)} times {change.right!r}")
    code = compile(
        source.replace(change.right, change.wrong),
        f"<{name_of_fault}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    users: list[tuple[Any, str]] = [(owner, name)]
    if inspect.ismodule(owner):  # other modules have imported the function by name
        users += [(module, name) for module in _modules() if getattr(module, name, None) is original]
        users += [(row, "access") for row in TABLE.values() if row.access is original]
    try:
        for user, attribute in users:
            setattr(user, attribute, made[name])
        yield
    finally:
        for user, attribute in users:
            setattr(user, attribute, original)


def _find(where: str) -> tuple[Any, str]:
    """The module or class, and the name of the function in it."""
    module_name, _, path = where.partition(":")
    owner: Any = import_module(f"barnabas.{module_name}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def _modules() -> list[Any]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(("barnabas.", "simulator."))]
