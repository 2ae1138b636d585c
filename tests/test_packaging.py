"""What is shipped is what was promised: names, types, one table of walls, and floors that nobody climbs."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import toolguard
import toolguard.testing
from toolguard import walls
from toolguard._names import ATTRIBUTES
from toolguard._values import PROFILES, Wall

ROOT = Path(__file__).parents[1]
PACKAGE = Path(toolguard.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = [module.name for module in pkgutil.walk_packages(toolguard.__path__, "toolguard.")]


def imported(module):
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:  # of an extra
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("module", ["toolguard", *MODULES])
def test_every_name_that_a_module_lists_exists_once_and_in_order(module):
    listed = getattr(imported(module), "__all__", [])
    assert [name for name in listed if not hasattr(imported(module), name)] == []
    assert len(listed) == len(set(listed))


def test_public_names_are_documented_and_come_from_the_package():
    assert toolguard.__all__ == sorted(toolguard.__all__)
    for name in toolguard.__all__:
        public = getattr(toolguard, name)
        assert public.__doc__, name
        assert public.__module__.startswith("toolguard"), name


def test_nothing_public_is_missing_from_the_list():
    found = {name for name in vars(toolguard) if not name.startswith("_")} - set(MODULES)
    modules = {name.split(".")[1] for name in MODULES}
    assert found - modules == set(toolguard.__all__)


@pytest.mark.parametrize("module", ["toolguard", "toolguard.testing"])
def test_star_import_brings_exactly_the_public_names(module):
    scope = {}
    exec(f"from {module} import *", scope)
    del scope["__builtins__"]
    assert sorted(scope) == sorted(sys.modules[module].__all__)


def test_the_types_are_shipped():
    assert (PACKAGE / "py.typed").is_file()
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["toolguard"]}
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed")
def test_the_wheel_holds_every_module_and_the_types(tmp_path):
    if not (ROOT / "toolguard").is_dir():
        pytest.skip("the sources are not here: the tests run against an installed package")
    script = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    import zipfile

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"toolguard_otel-{toolguard.__version__}-")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("toolguard/")}
    assert held == {f"toolguard/{p.relative_to(PACKAGE)}" for p in PACKAGE.rglob("*") if p.suffix in {".py", ".typed"}}


def test_the_version_is_one_that_package_indexes_take():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", toolguard.__version__)


TYPES = {"count": int, "share": float, "amount": float, "flag": bool}


def test_limits_for_type_checkers_are_the_keys_of_the_walls_with_their_types():
    hints = get_type_hints(toolguard.Limits)
    assert list(hints) == list(walls.KEYS)
    assert toolguard.Limits.__total__ is False
    for name, key in walls.KEYS.items():
        if key.choices:
            assert get_origin(hints[name]) is Literal
            assert get_args(hints[name]) == key.choices
        else:
            assert hints[name] is TYPES[key.kind], name


DEFAULTS = {"count": {int, NoneType}, "share": {float}, "amount": {int, float}, "flag": {bool}}


@pytest.mark.parametrize("key", walls.KEYS.values(), ids=lambda key: key.name)
def test_every_key_says_what_it_is_and_has_a_default_of_its_type_in_every_profile(key):
    assert len(key.defaults) == len(PROFILES)
    assert key.doc.endswith(".")
    for value in key.defaults:
        if key.choices:
            assert value in key.choices
        else:
            assert type(value) in DEFAULTS[key.kind]


def test_no_two_walls_claim_one_key():
    claimed = [key.name for wall in walls.TABLE for key in wall.keys]
    assert len(claimed) == len(set(claimed))


def test_every_module_of_the_walls_is_in_the_table_and_every_wall_is_documented():
    found = [
        wall
        for module in pkgutil.iter_modules(walls.__path__)
        for wall in vars(importlib.import_module(f"toolguard.walls.{module.name}")).values()
        if isinstance(wall, Wall)
    ]
    assert {id(wall) for wall in found} == {id(wall) for wall in walls.TABLE}
    assert len(found) == len(walls.TABLE)
    files = {module.name for module in pkgutil.iter_modules(walls.__path__)}
    assert files == {wall.limit.__module__.rpartition(".")[2] for wall in walls.TABLE}
    assert all(wall.about for wall in walls.TABLE)
    assert {wall.name for wall in walls.TABLE if wall.keys} == set(walls.NAMES)
    assert set(walls.NAMES) == set(walls.BY_NAME) == {wall.name for wall in walls.TABLE}


def test_every_attribute_name_is_listed_once():
    listed = [attribute.name for attribute in ATTRIBUTES]
    assert len(listed) == len(set(listed))


PURE = {"time", "os", "io", "random", "logging", "threading", "opentelemetry"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "walls").glob("*.py")), ids=lambda path: path.stem)
def test_a_wall_imports_no_clock_environment_or_telemetry(path):
    tree = ast.parse(path.read_text())
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert named
    assert {name.partition(".")[0] for name in named} & PURE == set()


@pytest.mark.skipif(find_spec("importlinter") is None, reason="import-linter is not installed")
def test_every_module_imports_only_from_lower_floors():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_package_imports_no_sdk_no_schema_library_and_no_tokenizer():
    heavy = ["pydantic", "opentelemetry.sdk", "sqlglot", "docstring_parser", "numpy"]
    script = f"import toolguard, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_first_call_imports_none_of_them_either():
    heavy = ["pydantic", "opentelemetry.sdk", "sqlglot", "docstring_parser", "numpy"]
    script = f"""
import sys, toolguard
@toolguard.metered(kind="read")
def f(a: "int" = 1) -> "str":
    "Doc."
    return [a]
with toolguard.run(aggregate=1) as run:
    f(), f(2)
    toolguard.spec(f).description, run.usage(), run.notes()
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
