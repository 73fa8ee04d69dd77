"""Before the build collects the files of `protocol`, it writes the types of the messages (`protocol/stubs.py`).

All else about the build is in pyproject.toml.
"""

import sys
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithStubs(build_py):
    """Also an editable installation passes here: then the types stand in the checkout, for mypy and editors."""

    def run(self) -> None:
        """Write the types, then build."""
        package = ModuleType("barnabas")  # not installed yet: its sub-packages are the folders here
        package.__path__ = [str(ROOT)]
        sys.modules.setdefault("barnabas", package)
        from barnabas.protocol import stubs

        stubs.write(ROOT / "protocol")
        super().run()


setup(cmdclass={"build_py": BuildWithStubs})
