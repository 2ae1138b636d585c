"""Type checkers see what the decorator does: a result may be a refusal, and everything else stays as it was."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TYPING = ROOT / "tests" / "typing"
FILES = ("api.py", "errors.py")
WRONG = {i for i, line in enumerate((TYPING / "errors.py").read_text().splitlines(), 1) if line.endswith("# wrong")}


def checked(command, env=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run(command, cwd=TYPING, env=environment, capture_output=True, text=True, check=False, timeout=110)


def by_mypy():
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--output", "json", *FILES]
    done = checked(command, {"MYPYPATH": str(ROOT)})
    assert not done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [(Path(e["file"]).name, e["line"], e["message"]) for e in found if e["severity"] == "error"]


def by_pyright():
    done = checked([sys.executable, "-m", "pyright", "--project", str(ROOT), "--outputjson", *(str(TYPING / f) for f in FILES)])
    if not done.stdout:
        pytest.skip(f"pyright does not run here: {done.stderr[-200:]}")
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(FILES)
    return [
        (Path(e["file"]).name, e["range"]["start"]["line"] + 1, e["message"])
        for e in found["generalDiagnostics"]
        if e["severity"] == "error"
    ]


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def errors(request):
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    found = {"mypy": by_mypy, "pyright": by_pyright}[request.param]()
    return [error for error in found if error[0] in FILES]


def test_every_use_that_is_right_passes_both_strict_checkers(errors):
    assert [error for error in errors if error[0] == "api.py"] == []


def test_every_line_that_is_wrong_is_an_error_to_both_checkers_and_no_other_is(errors):
    assert len(WRONG) > 20
    assert {line for file, line, _ in errors if file == "errors.py"} == WRONG


def test_the_files_of_the_checkers_check_every_public_name():
    import toolguard

    text = (TYPING / "api.py").read_text()
    assert [name for name in toolguard.__all__ if not re.search(rf"\b{name}\b", text)] == []
