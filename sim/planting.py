"""Plants a fault (faults.py) for as long as a context lasts, and tells what its run comes to, with it and without.

A run is a function of the seed and the focus alone, so the planted line is the only difference between the two. A
fault counts as caught when a checker says the one invariant that the row names. Nothing else that goes wrong counts.
"""

import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from barnabas.sim import storage, world
from barnabas.sim.faults import Fault
from barnabas.sim.violation import Violation

SEEDS_MAX = 300


def run(fault: Fault, seed: int) -> Violation | None:
    """What the run in which the fault can show comes to, whether the fault is planted or not."""
    if fault.campaign == "world":
        return world.run(seed, minutes=1).violation
    try:
        storage.run(seed, steps=60 if fault.focus else 40, keep_every=1 if fault.focus else 17, focus=fault.focus)
    except Violation as violation:
        return violation
    return None


def run_with(fault: Fault, seed: int) -> Violation | None:
    """The same with the fault planted."""
    with planted(fault):
        return run(fault, seed)


def is_catch(fault: Fault, violation: Violation | None) -> bool:
    """Whether this is what the fault has to cause."""
    return violation is not None and violation.invariant == fault.invariant


def find_seed(fault: Fault, seeds: Iterable[int]) -> tuple[int | None, dict[str, int]]:
    """The first seed that may stand in the fault's row; and, of the seeds before it, how often each said what else."""
    others: dict[str, int] = {}
    for seed in seeds:
        violation = run_with(fault, seed)
        if is_catch(fault, violation) and run(fault, seed) is None:
            return seed, others
        what = "holds" if violation is None else violation.invariant
        others[what] = others.get(what, 0) + 1
    return None, others


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The product is wrong in this one place. LookupError when the text is not there (once)."""
    owner, name = _find(fault.where)
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(fault.right) != 1:
        raise LookupError(f"{fault.where} has {source.count(fault.right)} times {fault.right!r}")
    code = compile(
        source.replace(fault.right, fault.wrong),
        f"<{fault.name}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    users = [(owner, name)]
    if inspect.ismodule(owner):  # others have imported it by name
        users += [(module, name) for module in _modules() if getattr(module, name, None) is function]
    try:
        for user, attribute in users:
            setattr(user, attribute, made[name])
        yield
    finally:
        for user, attribute in users:
            setattr(user, attribute, function)


def _find(where: str) -> tuple[Any, str]:
    """The module or class, and the name in it."""
    module_name, _, path = where.partition(":")
    owner: Any = import_module(f"barnabas.{module_name}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def _modules() -> list[Any]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("barnabas.")]
