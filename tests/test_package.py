"""What is installed: a wheel that puts `barnabas` and nothing else into its users' environment."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from compiled import make_wheel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel."""
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> set[str]:
    """Names in the wheel."""
    return set(zipfile.ZipFile(wheel_file).namelist())


def test_only_one_name_is_installed(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {re.sub(r"-.*\.dist-info$", ".dist-info", top) for top in tops} == {"barnabas", "barnabas.dist-info"}


def test_pip_can_tell_an_older_python_that_it_is_too_old() -> None:
    """It runs setup.py first, which once had to have what Python has since 3.11."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    imported = {each.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names}
    assert not imported & {"tomllib", "chdir"}


def test_every_module_of_the_tree_is_installed(wheel: set[str]) -> None:
    folders = [path.parent for path in ROOT.glob("*/py.typed")]
    expected = {
        f"barnabas/{path.relative_to(ROOT)}"
        for folder in folders
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in folder.rglob(pattern)
        if path.parent != ROOT / "cli" / "barnabas"  # the modules of `barnabas` itself
    }
    assert "barnabas/cli/start.py" in expected
    assert expected - wheel == set()


def test_the_package_runs_by_its_name(wheel: set[str], wheel_file: Path, tmp_path: Path) -> None:
    assert {"barnabas/__init__.py", "barnabas/__main__.py"} <= wheel
    assert not [name for name in wheel if name.startswith("barnabas/cli/barnabas")]
    zipfile.ZipFile(wheel_file).extractall(tmp_path)
    # -S leaves the environment's own barnabas out; its other packages are needed.
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.path += {[*map(str, sys.path)]!r}; import runpy; "
    code += "sys.argv[1:] = ['start', '--help']; runpy.run_module('barnabas', run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.stdout.startswith("usage: barnabas start"), done


def test_data_is_installed(wheel: set[str]) -> None:
    schemas = {f"barnabas/{path.relative_to(ROOT)}" for path in (ROOT / "protocol/schemas").rglob("*.txt")}
    assert schemas
    assert schemas - wheel == set()
    assert {"barnabas/config/server.properties", "barnabas/pipeline/log4j2.properties"} <= wheel
    assert {"barnabas/protocol/messages.pyi", "barnabas/protocol/records.pyi"} <= wheel


def test_tests_are_not_installed(wheel: set[str]) -> None:
    assert not [name for name in wheel if "tests" in name or "test_" in name or "sim" in name.split("/")]
    assert not [name for name in wheel if "simulator" in name]


def test_the_command_is_installed(wheel: set[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)


def test_each_compiled_module_exists_and_has_a_reason() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    folders = settings["setuptools"]["package-dir"]
    for name, reason in settings["barnabas"]["compiled"].items():
        package, _, file = name.rpartition("/")
        assert (ROOT / folders[package.replace("/", ".")] / file).is_file(), name
        assert reason


def mistranslated(node: ast.AST) -> bool:
    """Whether mypyc takes this for something else: it has no `__slots__`, and an own `__new__` for each class."""
    if isinstance(node, ast.Call):
        is_starred = any(isinstance(each, ast.Starred) for each in node.args)
        return is_starred and ast.unparse(node.func).startswith("super().")
    if isinstance(node, ast.Attribute):
        return node.attr == "__slots__" or ast.unparse(node) == "object.__new__"
    if isinstance(node, ast.ClassDef):  # a method under two names is an attribute of each object
        named = [each for each in node.body if isinstance(each, ast.Assign) and isinstance(each.value, ast.Name)]
        targets = [ast.unparse(each.targets[0]) for each in named]
        return any(name.startswith("__") and name != "__slots__" for name in targets)
    return False


@pytest.mark.parametrize(
    "line",
    ["super().__init__(*words)", "x.__slots__", "new = object.__new__", "class A:\n def f(self): ...\n __del__ = f"],
)
def test_what_mypyc_mistranslates_is_found(line: str) -> None:
    assert any(map(mistranslated, ast.walk(ast.parse(line))))


def test_compiled_modules_have_nothing_that_mypyc_mistranslates() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    folders = settings["setuptools"]["package-dir"]
    for name in settings["barnabas"]["compiled"]:
        package, _, file = name.rpartition("/")
        tree = ast.parse((ROOT / folders[package.replace("/", ".")] / file).read_text())
        assert [ast.unparse(node) for node in ast.walk(tree) if mistranslated(node)] == [], name


def test_no_interpreted_class_derives_from_a_compiled_one() -> None:
    """Python would refuse to make it. (Named tuples and exceptions stay classes as others.)"""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    compiled = {name.removesuffix(".py").replace("/", ".") for name in settings["barnabas"]["compiled"]}
    found = []
    for package, folder in settings["setuptools"]["package-dir"].items():
        for path in (ROOT / folder).glob("*.py"):
            if f"{package}.{path.stem}" in compiled:
                continue
            tree = ast.parse(path.read_text())
            imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module in compiled]
            names = {alias.asname or alias.name for each in imports for alias in each.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                    found += [f"{package}.{path.stem}.{node.name}({base})" for base in bases & names]
    assert found == []
