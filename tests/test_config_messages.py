"""The rarer mistakes of a configuration: each is one error on one line at the right place, and none is passed over."""

import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

import toolguard
from toolguard import ConfigError, _config, _toml
from toolguard.walls import KEYS


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [*os.environ]:
        if name.startswith("TOOLGUARD_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "project" / "app"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    _config.replace(None)
    return folder


def problems(read: Callable[..., Any] = toolguard.configure, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(*args, **kwargs)
    assert all(problem.isprintable() for problem in caught.value.problems)
    return caught.value.problems


def write(text: str | bytes, name: str = "toolguard.toml") -> Path:
    path = Path(name)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path.absolute()


# A file that is there is never passed over ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toolguard.toml", "pyproject.toml"])
def test_what_has_the_name_of_a_configuration_and_cannot_be_read_is_an_error(here: Path, name: str) -> None:
    file = here / name
    file.mkdir()
    assert problems() == (f"{name}: is a directory; name the file in it",)
    file.rmdir()
    file.symlink_to(here / "nothing")
    assert problems() == (f"{name}: is a link to a file that does not exist; mend the link",)
    file.unlink()
    file.symlink_to(file)
    assert problems() == (f"{name}: cannot be read: Too many levels of symbolic links",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO here")
def test_a_fifo_in_the_way_is_an_error_and_not_waited_for(here: Path) -> None:
    os.mkfifo(here / "toolguard.toml")
    assert problems() == ("toolguard.toml: is no regular file; name a TOML file",)


def test_a_file_that_goes_between_looking_and_reading_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    file, look = write("mode = 'observe'"), os.path.lexists

    def look_and_lose(path: Path) -> bool:
        found = look(path)
        file.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(os.path, "lexists", look_and_lose)
    assert problems() == ("toolguard.toml: does not exist; correct the path, or unset it to search for a file",)


def test_a_broken_pyproject_ends_the_search_since_what_it_says_of_limits_is_not_known(here: Path) -> None:
    (here.parent / "toolguard.toml").write_text("mode = 'observe'\n")
    write("[tool.ruff\n", "pyproject.toml")
    (problem,) = problems()
    assert problem.startswith("pyproject.toml:1: is no valid TOML: ")


@pytest.mark.parametrize("text", ["", "[tool.ruff]\n", "tool = 5\n", "[[tool]]\n"])
def test_a_pyproject_that_has_no_table_of_ours_is_passed_over(here: Path, text: str) -> None:
    (here.parent / "toolguard.toml").write_text("mode = 'observe'\n")
    write(text, "pyproject.toml")
    assert toolguard.settings().mode == "observe"


def test_an_empty_toolguard_toml_is_a_configuration(here: Path) -> None:
    (here.parent / "toolguard.toml").write_text("mode = 'observe'\n")
    file = write("")
    assert (toolguard.settings().mode, toolguard.settings().source) == ("enforce", str(file))


def test_a_working_directory_that_was_removed_holds_no_configuration(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here.rmdir()
    assert toolguard.settings().source is None
    monkeypatch.setenv("TOOLGUARD_REQUIRE_CONFIG", "1")
    (problem,) = problems()
    assert problem.startswith("TOOLGUARD_REQUIRE_CONFIG: no toolguard.toml and no pyproject.toml ")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a\0b", "'a\\x00b': is no path: embedded null byte"),
        ("a\nb", "'a\\nb': does not exist; correct the path, or unset it to search for a file"),
        ("a" * 999, f"{'a' * 999}: cannot be read: File name too long"),
        ("", ".: is a directory; name the file in it"),
    ],
    ids=["NUL", "line feed", "long", "empty"],
)
def test_an_odd_path_is_one_problem_on_one_line(path: str, problem: str) -> None:
    assert problems(toolguard.configure, path) == (problem,)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files cannot be listed here")
def test_a_file_that_cannot_be_read_does_not_stay_open(here: Path) -> None:
    (here / "toolguard.toml").mkdir()
    problems()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if str(here) in str(link.readlink())]


# No valid TOML --------------------------------------------------------------------------------------------------------

BROKEN = {
    "at the end": (b'mode = """\n\nx\n', "3: is no valid TOML: Unterminated string"),
    "a key twice": (
        b"mode = 'a'\n\nmode = 'b'\n",
        "3: is no valid TOML: Cannot overwrite a value; a key or table may stand once",
    ),
    "a dotted table and a table": (
        b"limits.per_tool = 1\n[limits]\n",
        "2: is no valid TOML: Cannot declare ('limits',) twice; a key or table may stand once",
    ),
    "a value and a table": (
        b"limits = 1\n[limits.x]\n",
        "2: is no valid TOML: Cannot overwrite a value; a key or table may stand once",
    ),
    "thousands of digits": (b"\nx = " + b"9" * 5000, "2: is no valid TOML: a number has thousands of digits"),
    "nested arrays": (b"\n\nx = " + b"[" * 10**5, " is no valid TOML: values are nested too deeply"),
    "nested tables": (b"\n\nx = " + b"{ a = " * 10**5, " is no valid TOML: values are nested too deeply"),
    "carriage returns": (
        b"\r\n# x\rmode = 'observe'\r",
        "2: is no valid TOML: a line ends with a carriage return alone; save the file with LF or CRLF",
    ),
    "NUL": (b"\n# a \x00 b\n", "2: is no valid TOML: it holds a NUL character; save the file as UTF-8"),
    "UTF-16 without a mark": (
        "mode = 'observe'".encode("utf-16-le"),
        "1: is no valid TOML: it holds a NUL character; save the file as UTF-8",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_toml_is_one_problem_with_its_line_and_hides_none_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    raw, problem = BROKEN[case]
    write(raw)
    monkeypatch.setenv("TOOLGUARD_PER_TOL", "1")
    hint = "TOOLGUARD_PER_TOL: unknown variable (did you mean TOOLGUARD_PER_TOOL?)"
    assert problems() == (f"toolguard.toml:{problem}", hint)


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode(errors="replace"))))
def test_any_bytes_are_settings_or_problems_that_name_the_file(raw: bytes) -> None:
    file = write(raw)
    try:
        found: tuple[str, ...] = ()
        assert toolguard.configure().source == str(file)
    except ConfigError as error:
        found = error.problems
    assert all(problem.isprintable() and problem.startswith("toolguard.toml:") for problem in found)


# Keys and values ------------------------------------------------------------------------------------------------------

KEYS_AND_VALUES = {
    "[limits]\nmode = 'observe'\n": "2: limits.mode: unknown key (it belongs at the top, before any table)",
    "[limits]\nrefused_status = 'error'\n": "2: limits.refused_status: unknown key (it belongs in [telemetry])",
    "[telemetry]\nper_tool = 1\n": "2: telemetry.per_tool: unknown key (it belongs in [limits])",
    "per_tol = 1\n": "1: per_tol: unknown key (did you mean per_tool?)",
    "duration_histogram = true\n": "1: duration_histogram: unknown key (it belongs in [telemetry])",
    "[agents.mailer]\nprofile = 'coding'\n": (
        "2: agents.mailer.profile: unknown key (it belongs at the top, before any table)"
    ),
    "[tool.toolguard.limits]\nper_tool = 1\n": (
        "1: tool: unknown key (only a file named pyproject.toml has its keys in [tool.toolguard])"
    ),
    '"a b" = 1\n': "1: 'a b': unknown key",
    '[limits]\n"per_tool\\n" = 1\n': "2: limits.'per_tool\\n': unknown key (did you mean per_tool?)",
    "local = ['scratch pad']\n": "1: local: 'scratch pad' is no tool's name: 1 to 64 letters, digits, _ and -",
    "\n[tools.'run sql']\nlimit = 1\n": "2: tools.'run sql': is no tool's name: 1 to 64 letters, digits, _ and -",
    f"[tools.{'a' * 65}]\n": f"1: tools.{'a' * 65}: is no tool's name: 1 to 64 letters, digits, _ and -",
    "[tools.run_sql]\n[tools.Run-SQL]\n": "2: tools.Run-SQL: is the same tool as 'run_sql'",
    "strip_prefixes = ['functions.']\n[tools.run]\n[tools.'functions.run']\n": (
        "3: tools.'functions.run': is the same tool as 'run'"
    ),
    "[[limits]]\n[[limits]]\n": "1: limits: should be a table, not a list",
    "tools.a = 5\n": "1: tools.a: should be a table, not 5",
}


@pytest.mark.parametrize("text", KEYS_AND_VALUES)
def test_a_key_or_name_that_cannot_be_right_is_an_error_that_says_where_it_belongs(text: str) -> None:
    write(text)
    assert problems() == (f"toolguard.toml:{KEYS_AND_VALUES[text]}",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({5: 1}, "5: unknown key"),
        ({None: 1}, "None: unknown key"),
        ({"tools": {5: {"limits": 1}}}, "tools.5.limits: unknown key (did you mean limit?)"),
        ({"agents": {None: {5: 1}}}, "agents.None.5: unknown key"),
    ],
)
def test_keys_of_a_mapping_that_are_no_texts_are_unknown_keys(content: Any, problem: str) -> None:
    assert problems(toolguard.configure, content) == (f"configure(...): {problem}",)


VARIABLES = {
    ("NOTE_AT", "7e-1"): "should be a number from 0 (off) to 1, not '7e-1'",
    ("NOTE_AT", "0_0.5"): "should be a number from 0 (off) to 1, not '0_0.5'",
    ("PER_TOOL", "1_000"): "should be a whole number from 0 (off) to 2^63 - 1, not '1_000'",
    ("PER_TOOL", "\u0666"): "should be a whole number from 0 (off) to 2^63 - 1, not '\u0666'",
    ("COST_USD", "1_0.5"): "should be a number from 0 (off) to 2^63 - 1, not '1_0.5'",
    ("PROGRESS_CLEARS", "yes"): "should be true or false, not 'yes'",
    ("LOCAL", "a b"): "'a b' is no tool's name: 1 to 64 letters, digits, _ and -",
    ("per_tool", "1"): "unknown variable (did you mean TOOLGUARD_PER_TOOL?)",
    ("CONFG", "x"): "unknown variable (did you mean TOOLGUARD_CONFIG?)",
    ("COLOUR", "x"): "unknown variable",
    ("", "x"): "unknown variable",
}


@pytest.mark.parametrize("variable", VARIABLES, ids=map(str, VARIABLES))
def test_a_variable_is_read_strictly_and_its_hint_looks_past_the_common_prefix(
    monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    monkeypatch.setenv(f"TOOLGUARD_{variable[0]}", variable[1])
    assert problems(toolguard.configure, {}) == (f"TOOLGUARD_{variable[0]}: {VARIABLES[variable]}",)


def test_an_unknown_variable_that_is_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_PER_TOL", " ")
    assert toolguard.settings().source is None


# Names of tools -------------------------------------------------------------------------------------------------------


def test_names_of_tools_lose_their_prefixes_wherever_these_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "strip_prefixes": ["Functions."],
        "tools": {"functions.Run-SQL": {"limit": 2}, "search": {}},
        "local": ["functions.pad"],
    }
    made = toolguard.configure(content)
    assert (made.tools, made.local) == ({"run_sql": 2}, {"pad"})
    assert made.to_dict()["tools.run_sql.limit"] == {"value": 2, "origin": "configure(...)"}
    monkeypatch.setenv("TOOLGUARD_STRIP_PREFIXES", "mcp__,functions_run_")
    assert toolguard.configure(content).tools == {"sql": 2}


@toolguard.metered(kind="read", name="functions_find")
def find(x: int) -> int:
    return x


def test_a_limit_in_a_tools_table_holds_for_the_name_with_its_prefix() -> None:
    toolguard.configure({"strip_prefixes": ["functions."], "tools": {"functions.find": {"limit": 2}}})
    with toolguard.run():
        assert [isinstance(find(i), toolguard.Refusal) for i in range(3)] == [False, False, True]


def test_a_local_tool_is_known_by_the_name_with_its_prefix() -> None:
    toolguard.configure({"strip_prefixes": ["functions."], "local": ["functions.find"], "limits": {"per_tool": 1}})
    with toolguard.run() as run:
        assert [find(i) for i in range(3)] == [0, 1, 2]
        assert run.usage().executed == 0


def test_an_agents_value_that_the_environment_beats_is_shown_as_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_PER_TOOL", "3")
    made = toolguard.configure({"agents": {"the mailer": {"per_tool": 2, "delivery": 1}}})
    shown = json.loads(json.dumps(made.to_dict()))
    assert shown["agents.'the mailer'.per_tool"] == {"value": 3, "origin": "TOOLGUARD_PER_TOOL"}
    assert shown["agents.'the mailer'.delivery"] == {"value": 1, "origin": "configure(...)"}
    assert _config.resolve(made, "the mailer").limits["per_tool"] == 3


# The settings of the process ------------------------------------------------------------------------------------------


def test_many_threads_read_the_file_once_and_get_the_same(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    write("[limits]\nper_tool = 60\n")
    reads: list[Path] = []
    read, together = _config._read_file, threading.Barrier(8)

    def reading(path: Path) -> _toml.Document:
        reads.append(path)
        return read(path)

    def use(_: int) -> _config.Settings:
        together.wait()
        return toolguard.settings()

    monkeypatch.setattr(_config, "_read_file", reading)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(use, range(8)))
    assert all(one is made[0] for one in made)
    assert len(reads) == len(logged.records) == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_log_handler_may_ask_for_the_settings_in_any_thread(logged: pytest.LogCaptureFixture, elsewhere: bool) -> None:
    seen: list[_config.Settings] = []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if elsewhere:
                with ThreadPoolExecutor(1) as pool:
                    seen.append(pool.submit(toolguard.settings).result(timeout=30))
            else:
                seen.append(toolguard.settings())

    logger, handler = logging.getLogger("toolguard"), Asking()
    logger.addHandler(handler)
    try:
        made = toolguard.settings()
    finally:
        logger.removeHandler(handler)
    assert seen == [made]


# The lines of keys ----------------------------------------------------------------------------------------------------

TRICKY = '''\
# [tool.toolguard] """
title = """
[not.a.table]
per_tool = 1 \\""" still inside """
other = \'\'\'
key = 2\'\'\'\'
list = [
  "]", # ]
  { a = "}" },
]

[tool . "toolguard"]   # a comment
mode = "observe"
 limits . per_tool = 60
'quoted.key' = 1
"esc\\u0061ped" = 2

[[tool.shared.budgets]]
name = "a"
[[tool.shared.budgets]]
name = "b"
[tool.shared.budgets.inner]
x = 1
[a.b.c]
'''

PLACES: dict[tuple[str | int, ...], int] = {
    ("title",): 2,
    ("other",): 5,
    ("list",): 7,
    ("tool",): 12,
    ("tool", "toolguard"): 12,
    ("tool", "toolguard", "mode"): 13,
    ("tool", "toolguard", "limits"): 14,
    ("tool", "toolguard", "limits", "per_tool"): 14,
    ("tool", "toolguard", "limits", "per_tool", "deeper"): 14,
    ("tool", "toolguard", "quoted.key"): 15,
    ("tool", "toolguard", "escaped"): 16,
    ("tool", "shared", "budgets", 0, "name"): 19,
    ("tool", "shared", "budgets", 1): 20,
    ("tool", "shared", "budgets", 1, "name"): 21,
    ("tool", "shared", "budgets", 1, "inner", "x"): 23,
    ("a", "b"): 24,
    ("list", 1, "a"): 7,
    ("not", "a", "table"): 1,
}


def test_the_line_of_every_key_is_found_in_a_document_of_every_shape() -> None:
    document = _toml.parse(TRICKY)
    assert {path: document.line(path) for path in PLACES} == PLACES


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x7f"), max_size=6)
VALUES = st.sampled_from(["1", '"x"', "'#'", "[1,\n2]", '"""\na = 1\n"""', "'''\n[b]\n'''", '{ a = "}" }', "[ # ]\n]"])


@given(st.lists(st.tuples(NAMES, VALUES, st.integers(0, 2), st.booleans()), unique_by=lambda entry: entry[0]))
def test_whatever_stands_in_between_a_key_has_the_line_that_it_begins_on(entries: list[tuple[str, str, int, bool]]) -> None:
    text, expected = "", {}
    for name, value, blanks, comment in entries:
        text += "\n" * blanks + ("# x = '''\n" if comment else "")
        expected[name,] = text.count("\n") + 1
        text += f"{json.dumps(name, ensure_ascii=False)} = {value}\n"
    assert {(name,) for name in tomli.loads(text)} == set(expected)
    document = _toml.parse(text)
    assert {path: document.line(path) for path in expected} == expected


def test_a_document_of_many_long_keys_costs_no_more_than_its_length() -> None:
    text = "".join(f"{'.'.join([f'k{i}'] + ['a'] * 500)} = 1\n" for i in range(200))
    assert len(_toml._Locator(text).lines) == 200 * 8


def test_every_key_is_known_to_the_environment_without_a_clash() -> None:
    assert not {name.lower() for name in _config._RESERVED} & {*KEYS, *_config.OPTIONS}
    assert not {*KEYS} & {*_config.OPTIONS}
