"""What the build does beside pyproject.toml: the types of the messages, and with BARNABAS_COMPILE=1 compiled modules.

Before the files of `protocol` are collected, the types of the messages are written (`protocol/stubs.py`). An editable
installation passes there, too: then the types stand in the checkout, for mypy and editors.

`BARNABAS_COMPILE=1 pip install .` compiles the modules of `[tool.barnabas.compiled]` in pyproject.toml with mypyc, from
the same source, and what is in C in `protocol/native/` and `offsets/native/`. It needs a C compiler, and some minutes.
The modules share one library, `barnabas/compiled__mypyc`. Their source is installed, too: another Python than the one
that built them runs it as it stands. With `BARNABAS_OPTIMIZE=0` the compiler takes a tenth of the time, for tests.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
TREE = ROOT / "build" / "compiled"
MYPYC = "mypy[mypyc]>=2.4,<3"
COMPILES = os.environ.get("BARNABAS_COMPILE", "0") != "0"
# Otherwise a frontend asks what the build requires, or for names and versions.
MAKES_WHEEL = "bdist_wheel" in sys.argv


def write_types() -> None:
    """Write the types of the messages."""
    package = ModuleType("barnabas")  # not installed yet: its sub-packages are the folders here
    package.__path__ = [str(ROOT)]
    sys.modules.setdefault("barnabas", package)
    from barnabas.protocol import stubs

    stubs.write(ROOT / "protocol")


class BuildWithTypes(build_py):
    """Collects the files of the packages."""

    def run(self) -> None:
        """Write the types, then build."""
        write_types()
        super().run()


def compiled() -> list[Extension]:
    """The modules to compile, translated to C."""
    import tomllib  # late, as is `chdir`: pip tells an older Python that it is too old, if it comes so far
    from contextlib import chdir

    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit(f"BARNABAS_COMPILE=1 needs {MYPYC}: pip fetches it, unless it is told --no-build-isolation.")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", compiler).split()[0]) is None:
        sys.exit(
            f"BARNABAS_COMPILE=1 needs a C compiler, and there is no {compiler}. Without it, all runs interpreted."
        )
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    write_types()
    shutil.rmtree(TREE, ignore_errors=True)
    for name, folder in settings["setuptools"]["package-dir"].items():  # mypyc takes names of modules from folders
        place = TREE / name.replace(".", "/")
        place.mkdir(parents=True, exist_ok=True)
        for file in (ROOT / folder).glob("*.py*"):
            (place / file.name).symlink_to(file)
    with chdir(TREE):  # tracebacks name files as they are given here
        extensions: list[Extension] = mypycify(
            ["--config-file=", "--ignore-missing-imports", *settings["barnabas"]["compiled"]],
            group_name="barnabas.compiled",
            target_dir=str(TREE / "c"),
            opt_level=os.environ.get("BARNABAS_OPTIMIZE", "2"),
            debug_level="0",
        )
    for extension in extensions:
        # To look for warnings takes longer than to compile. gcc reads a file again for each of its lines that may be
        # indented wrongly, although -w keeps it from telling: of four minutes those were more than two.
        extension.extra_compile_args += ["-w", "-Wno-misleading-indentation"]
        # Nobody outside calls its functions by name: they call each other without a detour, and are inlined.
        extension.extra_compile_args += ["-fvisibility=hidden"]
    sources = sorted(f"protocol/native/{path.name}" for path in (ROOT / "protocol" / "native").glob("*.c"))
    return [
        *extensions,
        Extension(
            "barnabas.protocol.native_codec", sources, depends=["protocol/native/plan.h", "protocol/native/put.h"]
        ),
        Extension("barnabas.offsets.native_packing", ["offsets/native/packing.c"], depends=["protocol/native/put.h"]),
    ]


if COMPILES and "editable_wheel" in sys.argv:
    sys.exit("An editable installation runs the source as it stands: BARNABAS_COMPILE=1 goes without -e.")
setup(
    cmdclass={"build_py": BuildWithTypes},
    setup_requires=[MYPYC] if COMPILES and not MAKES_WHEEL else [],
    ext_modules=compiled() if COMPILES and MAKES_WHEEL else [],
)
