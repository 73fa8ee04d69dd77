"""Modules in C, built of this source for tests, so that a pure installation can compare them with their twins."""

import shutil
import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

BUILD = """
from glob import glob
from setuptools import Extension, setup
sources = sorted(glob({sources!r}))
warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-UNDEBUG"]
warnings += ["-Wno-cast-function-type"]
setup(name="native", ext_modules=[Extension({name!r}, sources, extra_compile_args=warnings)])
"""


def build(name: str, sources: str, folder: Path) -> Any:
    """The module of these sources (a pattern). Without a C compiler the test is skipped."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs a C compiler ({compiler})")
    (folder / "setup.py").write_text(BUILD.format(name=name, sources=str(ROOT / sources)))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (library,) = [path for path in folder.iterdir() if path.suffix in (".so", ".pyd")]
    spec = spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
