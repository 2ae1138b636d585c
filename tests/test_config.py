"""Configuration: where it is found, what beats what, and that every mistake is one clear error."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import toolguard
from toolguard import ConfigError, _config
from toolguard._values import PROFILES, canonical
from toolguard.walls import KEYS


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with no configuration in it, and settings that are read anew."""
    folder = tmp_path / "project" / "app"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    _config.replace(None)
    return folder


def write(folder: Path, text: str | bytes, name: str = "pyproject.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems(text: str | bytes, folder: Path, name: str = "pyproject.toml") -> tuple[str, ...]:
    write(folder, text, name)
    with pytest.raises(ConfigError) as caught:
        toolguard.configure()
    return caught.value.problems


def limits(**given: Any) -> Any:
    return _config.resolve(toolguard.settings(), given.pop("agent", None), limits=given).limits


# Discovery ------------------------------------------------------------------------------------------------------------


def test_nothing_found_means_the_defaults_and_one_info_record(here: Path, logged: pytest.LogCaptureFixture) -> None:
    assert toolguard.settings().source is None
    toolguard.settings()
    (record,) = [r for r in logged.records if r.levelno == logging.INFO]
    assert "no configuration found" in record.getMessage()
    assert str(here) in record.getMessage()


def test_a_pyproject_is_found_from_a_folder_below_it(here: Path, logged: pytest.LogCaptureFixture) -> None:
    path = write(here.parent, "[tool.toolguard.limits]\nper_tool = 7\n")
    assert limits()["per_tool"] == 7
    assert toolguard.settings().source == str(path)
    assert [str(path) in r.getMessage() for r in logged.records if r.levelno == logging.INFO] == [True]


def test_a_pyproject_without_our_table_is_passed_over(here: Path) -> None:
    write(here.parent, "[tool.toolguard]\nmode = 'observe'\n")
    write(here, "[tool.other]\nx = 1\n")
    assert toolguard.settings().mode == "observe"


def test_the_nearest_folder_wins(here: Path) -> None:
    write(here.parent, "[tool.toolguard.limits]\nper_tool = 7\n")
    write(here, "[tool.toolguard.limits]\nper_tool = 8\n")
    assert limits()["per_tool"] == 8


def test_toolguard_toml_has_the_keys_without_prefix_and_beats_a_pyproject_beside_it(here: Path) -> None:
    write(here, "[tool.toolguard.limits]\nper_tool = 7\n")
    write(here, "[limits]\nper_tool = 9\n", "toolguard.toml")
    assert limits()["per_tool"] == 9


def test_the_variable_names_a_file_anywhere(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "[tool.toolguard.limits]\nper_tool = 7\n")
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(write(tmp_path, "[limits]\nper_tool = 11\n", "ops.toml")))
    assert limits()["per_tool"] == 11


def test_a_path_given_to_configure_beats_the_variable(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_CONFIG", str(write(tmp_path, "[limits]\nper_tool = 11\n", "ops.toml")))
    toolguard.configure(write(here, "[limits]\nper_tool = 12\n", "mine.toml"))
    assert limits()["per_tool"] == 12


def test_a_named_file_that_is_missing_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"^gone\.toml: does not exist; correct the path"):
        toolguard.configure()


def test_a_named_pyproject_without_our_table_is_an_error(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"pyproject\.toml: has no table \[tool\.toolguard\]; add it"):
        toolguard.configure(write(here, "[tool.other]\n"))


def test_a_required_configuration_that_is_not_there_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_REQUIRE_CONFIG", "1")
    with pytest.raises(ConfigError, match=r"^TOOLGUARD_REQUIRE_CONFIG: no toolguard\.toml and no pyproject\.toml"):
        toolguard.run("assistant")
    monkeypatch.setenv("TOOLGUARD_REQUIRE_CONFIG", "0")
    assert toolguard.settings().source is None


def test_nothing_is_read_before_the_first_run(here: Path) -> None:
    path = write(here, "[tool.toolguard.limits]\nper_tool = true\n")
    toolguard.metered(kind="read")(lambda_free)
    path.write_text("[tool.toolguard.limits]\nper_tool = 3\n")
    with toolguard.run() as run:
        assert [type(lambda_tool(i)).__name__ for i in range(4)] == ["int", "int", "int", "Refusal"]
        assert run.usage().executed == 3


def lambda_free(x: int) -> int:
    return x


@toolguard.metered(kind="read", name="counted")
def lambda_tool(x: int) -> int:
    return x


# Precedence and origins -----------------------------------------------------------------------------------------------


def test_each_layer_beats_the_ones_below_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits(agent="mailer")["delivery"] == 5
    monkeypatch.setenv("TOOLGUARD_PROFILE", "coding")
    toolguard.configure()
    assert limits(agent="mailer")["delivery"] == 20
    write(here, "[tool.toolguard.limits]\ndelivery = 6\n")
    toolguard.configure()
    assert limits(agent="mailer")["delivery"] == 6
    write(here, "[tool.toolguard.limits]\ndelivery = 6\n[tool.toolguard.agents.mailer]\ndelivery = 7\n")
    toolguard.configure()
    assert limits(agent="mailer")["delivery"] == 7
    assert limits(agent="other")["delivery"] == 6
    monkeypatch.setenv("TOOLGUARD_DELIVERY", "8")
    toolguard.configure()
    assert limits(agent="mailer")["delivery"] == 8
    assert limits(agent="mailer", delivery=9)["delivery"] == 9


def test_a_profile_given_to_a_run_changes_only_what_nothing_else_sets(here: Path) -> None:
    write(here, "[tool.toolguard.limits]\nper_tool = 6\n")
    toolguard.configure()
    resolved = _config.resolve(toolguard.settings(), None, profile="coding").limits
    assert (resolved["per_tool"], resolved["delivery"]) == (6, 20)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_its_column_of_the_keys(profile: str) -> None:
    resolved = _config.resolve(toolguard.settings(), None, profile=profile)
    assert dict(resolved.limits) == {name: key.defaults[PROFILES.index(profile)] for name, key in KEYS.items()}


def test_every_value_tells_its_origin(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, "[tool.toolguard]\nmode = 'observe'\n\n[tool.toolguard.limits]\nper_tool = 6\n")
    monkeypatch.setenv("TOOLGUARD_DELIVERY", "8")
    made = toolguard.configure()
    assert made.origin("mode") == "pyproject.toml:2"
    assert made.origin("limits.per_tool") == "pyproject.toml:5"
    assert made.origin("limits.delivery") == "TOOLGUARD_DELIVERY"
    assert made.origin("limits.aggregate") == "profile assistant"
    assert made.origin("outside_run") == "default"
    shown = made.to_dict()
    assert shown["limits.delivery"] == {"value": 8, "origin": "TOOLGUARD_DELIVERY"}
    assert shown["observe"] == {"value": [], "origin": "default"}


def test_a_failed_configure_leaves_what_was_in_force(here: Path) -> None:
    toolguard.configure({"limits": {"per_tool": 3}})
    with pytest.raises(ConfigError):
        toolguard.configure({"limits": {"per_tool": 4, "delivery": -1}})
    assert limits()["per_tool"] == 3


def test_the_operators_table_of_a_tool_is_folded_like_its_name(here: Path) -> None:
    toolguard.configure({"tools": {"Run-SQL": {"limit": 2}}, "local": ["Scratch.Pad"]})
    assert toolguard.settings().tools == {"run_sql": 2}
    assert toolguard.settings().local == {"scratch_pad"}


# Variables ------------------------------------------------------------------------------------------------------------


def test_variables_are_read_as_what_their_key_wants(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "PER_TOOL": " 60 ",
        "NOTE_AT": "0.5",
        "DEADLINE_S": "1.5",
        "COST_USD": "2",
        "PROGRESS_CLEARS": "false",
        "ADAPTIVE_SIGNAL": "any",
        "OBSERVE": "aggregate, delivery",
        "STRIP_PREFIXES": "functions.,tools.",
        "DURATION_HISTOGRAM": "false",
        "REFUSED_STATUS": "error",
        "DELIVERY": "",
    }.items():
        monkeypatch.setenv(f"TOOLGUARD_{name}", text)
    made = toolguard.configure()
    assert made.environment == {
        "per_tool": 60,
        "note_at": 0.5,
        "deadline_s": 1.5,
        "cost_usd": 2,
        "progress_clears": False,
        "adaptive_signal": "any",
    }
    assert made.observe == {"aggregate", "delivery"}
    assert made.strip_prefixes == ("functions.", "tools.")
    assert (made.duration_histogram, made.refused_status) == (False, "error")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PER_TOOL", "6e1", "should be a whole number from 0 (off) to 2^63 - 1, not '6e1'"),
        ("PER_TOOL", "0x3c", "should be a whole number from 0 (off) to 2^63 - 1, not '0x3c'"),
        ("PER_TOOL", "true", "should be a whole number from 0 (off) to 2^63 - 1, not 'true'"),
        ("PER_TOOL", "-1", "should be a whole number from 0 (off) to 2^63 - 1, not '-1'"),
        ("PER_TOOL", "9223372036854775808", "should be a whole number from 0 (off) to 2^63 - 1, not 9223372036854775808"),
        ("NOTE_AT", "nan", "should be a number from 0 (off) to 1, not nan"),
        ("DEADLINE_S", "nan", "should be a number from 0 (off) to 2^63 - 1, not nan"),
        ("DEADLINE_S", "inf", "should be a number from 0 (off) to 2^63 - 1, not inf"),
        ("DEADLINE_S", "-0.5", "should be a number from 0 (off) to 2^63 - 1, not -0.5"),
        ("DEADLINE_S", "1e3", "should be a number from 0 (off) to 2^63 - 1, not '1e3'"),
        ("DEADLINE_S", "90s", "should be a number from 0 (off) to 2^63 - 1, not '90s'"),
        ("TOKENS", "1.5", "should be a whole number from 0 (off) to 2^63 - 1, not '1.5'"),
        ("PROGRESS_CLEARS", "no", "should be true or false, not 'no'"),
        ("PROGRESS_CLEARS", "2", "should be true or false, not '2'"),
        ("MODE", "observ", "should be 'enforce' or 'observe', not 'observ' (did you mean observe?)"),
        ("OBSERVE", "agregate", "names no wall: 'agregate' (did you mean aggregate?)"),
        ("PER_TOL", "3", "unknown variable (did you mean TOOLGUARD_PER_TOOL?)"),
        ("DURATION_HISTOGRAM", "maybe", "should be true or false, not 'maybe'"),
    ],
)
def test_a_wrong_variable_is_an_error_that_names_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(f"TOOLGUARD_{name}", text)
    with pytest.raises(ConfigError) as caught:
        toolguard.configure()
    (problem,) = caught.value.problems
    assert problem.startswith(f"TOOLGUARD_{name}: {message}")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("False", False), ("0", False)])
def test_a_flag_in_a_variable_is_a_word_or_a_digit(here: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("TOOLGUARD_PROGRESS_CLEARS", text)
    assert limits()["progress_clears"] is value


@pytest.mark.parametrize("name", ["SHARED_STORE", "RECORD", "TRACE_URL"])
def test_reserved_variables_are_no_error(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"TOOLGUARD_{name}", "anything")
    assert toolguard.configure().environment == {}


def test_file_and_environment_report_all_their_problems_together(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_DELIVERY", "many")
    monkeypatch.setenv("TOOLGUARD_NOPE", "1")
    found = problems("[tool.toolguard.limits]\nper_tol = 60\naggregate = -2\n", here)
    assert [p.split(":")[0] for p in found] == ["pyproject.toml"] * 2 + ["TOOLGUARD_DELIVERY", "TOOLGUARD_NOPE"]


@pytest.mark.parametrize(
    ("value", "captures", "warns"),
    [
        ("", False, False),
        ("NO_CONTENT", False, False),
        ("event_only", False, False),
        ("SPAN_ONLY", True, False),
        ("span_and_event", True, False),
        ("true", True, True),
        ("yes please", False, True),
    ],
)
def test_content_is_captured_only_where_the_variable_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, value: str, captures: bool, warns: bool
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    assert toolguard.configure().capture_content is captures
    assert any(r.levelno == logging.WARNING for r in logged.records) is warns


# Messages -------------------------------------------------------------------------------------------------------------

NUMBER = "should be a whole number from 0 (off) to 2^63 - 1, not "
AMOUNT = "should be a number from 0 (off) to 2^63 - 1, not "

MESSAGES: dict[str, tuple[str, str]] = {
    "unknown limit": (
        "[tool.toolguard.limits]\n\nper_tol = 60\n",
        "pyproject.toml:3: tool.toolguard.limits.per_tol: unknown key (did you mean per_tool?)",
    ),
    "unknown top key": (
        "[tool.toolguard]\nprofil = 'coding'\n",
        "pyproject.toml:2: tool.toolguard.profil: unknown key (did you mean profile?)",
    ),
    "a limit outside its table": (
        "[tool.toolguard]\nper_tool = 3\n",
        "pyproject.toml:2: tool.toolguard.per_tool: unknown key (it belongs in [tool.toolguard.limits])",
    ),
    "unknown table": (
        "[tool.toolguard.limit]\nper_tool = 3\n",
        "pyproject.toml:1: tool.toolguard.limit: unknown key (did you mean limits?)",
    ),
    "a bool for a number": (
        "[tool.toolguard.limits]\nper_tool = true\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}true",
    ),
    "a text for a number": (
        "[tool.toolguard.limits]\nper_tool = '60'\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}'60'",
    ),
    "a float for a number": (
        "[tool.toolguard.limits]\nper_tool = 1.0\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}1.0",
    ),
    "a negative number": (
        "[tool.toolguard.limits]\nper_tool = -1\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}-1",
    ),
    "2^63": (
        "[tool.toolguard.limits]\nper_tool = 9223372036854775808\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}9223372036854775808",
    ),
    "10^30": (
        f"[tool.toolguard.limits]\nper_tool = 1{'0' * 30}\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}so large a number",
    ),
    "nan": (
        "[tool.toolguard.limits]\nper_tool = nan\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}nan",
    ),
    "a date": (
        "[tool.toolguard.limits]\nper_tool = 2026-01-01\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}a date",
    ),
    "a list for a number": (
        "[tool.toolguard.limits]\nper_tool = [40]\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}a list",
    ),
    "a share above one": (
        "[tool.toolguard.limits]\nnote_at = 70\n",
        "pyproject.toml:2: tool.toolguard.limits.note_at: should be a number from 0 (off) to 1, not 70",
    ),
    "a negative amount": (
        "[tool.toolguard.limits]\ndeadline_s = -1.5\n",
        f"pyproject.toml:2: tool.toolguard.limits.deadline_s: {AMOUNT}-1.5",
    ),
    "an amount that is nan": (
        "[tool.toolguard.limits]\ncost_usd = nan\n",
        f"pyproject.toml:2: tool.toolguard.limits.cost_usd: {AMOUNT}nan",
    ),
    "an amount without end": (
        "[tool.toolguard.limits]\ndeadline_s = inf\n",
        f"pyproject.toml:2: tool.toolguard.limits.deadline_s: {AMOUNT}inf",
    ),
    "a bool for an amount": (
        "[tool.toolguard.limits]\ndeadline_s = true\n",
        f"pyproject.toml:2: tool.toolguard.limits.deadline_s: {AMOUNT}true",
    ),
    "a text for an amount": (
        "[tool.toolguard.limits]\ncost_usd = '1.5'\n",
        f"pyproject.toml:2: tool.toolguard.limits.cost_usd: {AMOUNT}'1.5'",
    ),
    "a text for a flag": (
        "[tool.toolguard.limits]\nprogress_clears = '1'\n",
        "pyproject.toml:2: tool.toolguard.limits.progress_clears: should be true or false, not '1'",
    ),
    "a number for a flag": (
        "[tool.toolguard.limits]\nprogress_clears = 0\n",
        "pyproject.toml:2: tool.toolguard.limits.progress_clears: should be true or false, not 0",
    ),
    "a wrong word": (
        "[tool.toolguard]\nprofile = 'assistent'\n",
        (
            "pyproject.toml:2: tool.toolguard.profile: should be 'assistant', 'coding' or 'operations', "
            "not 'assistent' (did you mean assistant?)"
        ),
    ),
    "a text for a list": (
        "[tool.toolguard]\nobserve = 'aggregate'\n",
        "pyproject.toml:2: tool.toolguard.observe: should be a list of texts, not 'aggregate'",
    ),
    "a text for a table": (
        "[tool.toolguard]\nlimits = 'many'\n",
        "pyproject.toml:2: tool.toolguard.limits: should be a table, not 'many'",
    ),
    "an unknown key of a tool": (
        "[tool.toolguard.tools.run_sql]\nlimits = 2\n",
        "pyproject.toml:2: tool.toolguard.tools.run_sql.limits: unknown key (did you mean limit?)",
    ),
    "one tool spelled twice": (
        "[tool.toolguard.tools.run_sql]\nlimit = 2\n[tool.toolguard.tools.run-sql]\nlimit = 3\n",
        "pyproject.toml:3: tool.toolguard.tools.run-sql: is the same tool as 'run_sql'",
    ),
    "an unknown key of an agent": (
        "[tool.toolguard.agents.mailer]\nper_tol = 2\n",
        "pyproject.toml:2: tool.toolguard.agents.mailer.per_tol: unknown key (did you mean per_tool?)",
    ),
    "an unknown key of telemetry": (
        "[tool.toolguard.telemetry]\nrefused = 'error'\n",
        "pyproject.toml:2: tool.toolguard.telemetry.refused: unknown key (did you mean refused_status?)",
    ),
    "a key in an inline table": (
        "[tool.toolguard]\ntools = { run_sql = { limit = true } }\n",
        f"pyproject.toml:2: tool.toolguard.tools.run_sql.limit: {NUMBER}true",
    ),
    "a dotted key": (
        "[tool]\ntoolguard.limits.per_tool = true\n",
        f"pyproject.toml:2: tool.toolguard.limits.per_tool: {NUMBER}true",
    ),
    "our table is no table": (
        "[tool]\ntoolguard = 3\n",
        "pyproject.toml:2: tool.toolguard: should be a table, not 3",
    ),
    "a key after a text of many lines": (
        "[tool.other]\nx = '''\n[tool.toolguard.limits]\nper_tool = 1\n'''\n[tool.toolguard.limits]\nper_tool = true\n",
        f"pyproject.toml:7: tool.toolguard.limits.per_tool: {NUMBER}true",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_mistake_in_a_file_is_one_line_with_place_and_cure(here: Path, case: str) -> None:
    text, message = MESSAGES[case]
    assert problems(text, here) == (message,)


BROKEN: dict[str, tuple[bytes, str]] = {
    "no TOML": (b"[tool.toolguard\n", "pyproject.toml:1: is no valid TOML: "),
    "a key twice": (b"[tool.toolguard]\nmode = 'observe'\nmode = 'enforce'\n", "pyproject.toml:3: is no valid TOML: "),
    "a table twice": (b"[tool.toolguard]\n[tool.toolguard]\n", "pyproject.toml:2: is no valid TOML: "),
    "a NUL": (b"[tool.toolguard]\nmode = 'obs\x00erve'\n", "pyproject.toml:2: is no valid TOML: "),
    "Latin-1": (b"[tool.toolguard]\n# caf\xe9\n", "pyproject.toml:2: is not UTF-8; save the file as UTF-8"),
    "UTF-16": ("[tool.toolguard]\n".encode("utf-16"), "pyproject.toml:1: is not UTF-8; save the file as UTF-8"),
    "nested too deeply": (b"[tool.toolguard]\nx = " + b"[" * 100_000, "pyproject.toml:"),
    "too large": (b"# " + b"x" * (1 << 20) + b"\n", "pyproject.toml: is larger than 1 MiB; it cannot be a configuration"),
    "carriage returns alone": (b"[tool.toolguard]\rmode = 'observe'\r", "pyproject.toml:1: is no valid TOML: "),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_read_is_one_error_with_its_place(here: Path, case: str) -> None:
    data, message = BROKEN[case]
    (problem,) = problems(data, here)
    assert problem.startswith(message)
    assert "\n" not in problem


def test_windows_line_ends_and_a_byte_order_mark_are_no_mistake(here: Path) -> None:
    write(here, b"\xef\xbb\xbf[tool.toolguard.limits]\r\nper_tool = 4\r\n")
    assert limits()["per_tool"] == 4


def test_a_directory_is_named_as_such(here: Path) -> None:
    (here / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"^folder: is a directory; name the file in it$"):
        toolguard.configure("folder")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFO here")
def test_a_fifo_is_not_waited_for(here: Path) -> None:
    os.mkfifo(here / "pipe.toml")
    with pytest.raises(ConfigError, match=r"^pipe\.toml: is no regular file; name a TOML file$"):
        toolguard.configure("pipe.toml")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_a_device_is_not_read(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"^/dev/zero: is no regular file"):
        toolguard.configure("/dev/zero")


def test_a_file_that_may_not_be_read_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(here, "[limits]\n", "secret.toml")

    def refuse(*_: object) -> int:  # root may read everything, so the mode of the file would prove nothing
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"^secret\.toml: may not be read by this process; give it permission$"):
        toolguard.configure(path)


def test_every_problem_of_a_file_is_listed_at_once(here: Path) -> None:
    found = problems("[tool.toolguard]\nmod = 'x'\n[tool.toolguard.limits]\nper_tool = -1\ndelivery = 'x'\n", here)
    assert [p.split(":")[1] for p in found] == ["2", "4", "5"]


def test_the_problems_of_all_kinds_of_values_are_listed_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGUARD_DEADLINE_S", "soon")
    monkeypatch.setenv("TOOLGUARD_PROGRESS_CLEARS", "maybe")
    text = "[tool.toolguard.limits]\ntokens = 1.5\ncost_usd = -1\nprogress_clears = 'yes'\nnote_at = 2\n"
    found = problems(f"{text}[tool.toolguard.agents.mailer]\ndeadline_s = false\n", here)
    assert [problem.rpartition(": ")[0].removeprefix("pyproject.toml:") for problem in found] == [
        "2: tool.toolguard.limits.tokens",
        "3: tool.toolguard.limits.cost_usd",
        "4: tool.toolguard.limits.progress_clears",
        "5: tool.toolguard.limits.note_at",
        "7: tool.toolguard.agents.mailer.deadline_s",
        "TOOLGUARD_DEADLINE_S",
        "TOOLGUARD_PROGRESS_CLEARS",
    ]


def test_an_error_shows_long_values_cut(here: Path) -> None:
    (problem,) = problems(f"[tool.toolguard.limits]\nper_tool = '{'x' * 500}'\n", here)
    assert len(problem) < 200


# What a run is given --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [True, -1, 1.0, float("nan"), float("inf"), "40", [40], 1 << 63, 10**5000], ids=lambda v: type(v).__name__
)
def test_a_limit_that_is_no_count_is_an_error_when_the_run_is_made(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^run\(per_tool=…\): should be a whole number from 0"):
        toolguard.run("assistant", per_tool=value)


@pytest.mark.parametrize("value", [0, 3, 0.0, 1.5, 1e-9, (1 << 63) - 1])
@pytest.mark.parametrize("name", ["deadline_s", "cost_usd"])
def test_an_amount_may_be_a_fraction_and_comes_from_a_run_a_mapping_or_a_file(here: Path, name: str, value: float) -> None:
    assert limits(**{name: value})[name] == value
    toolguard.configure({"limits": {name: value}})
    assert limits()[name] == value
    write(here, f"[tool.toolguard.limits]\n{name} = {value!r}\n")
    toolguard.configure()
    assert limits()[name] == value


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), True, False, "1.5", [1.5], 1 << 63, 1e30])
def test_what_is_no_amount_is_an_error_when_the_run_is_made(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^run\(deadline_s=…\): should be a number from 0"):
        toolguard.run("assistant", deadline_s=value)


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_comes_from_a_run_a_mapping_or_a_file(here: Path, value: bool) -> None:
    assert limits(progress_clears=value)["progress_clears"] is value
    toolguard.configure({"limits": {"progress_clears": value}})
    assert limits()["progress_clears"] is value
    write(here, f"[tool.toolguard.limits]\nprogress_clears = {str(value).lower()}\n")
    toolguard.configure()
    assert limits()["progress_clears"] is value


@pytest.mark.parametrize("value", [0, 1, "1", "true", 1.0, []], ids=repr)
def test_what_is_no_flag_is_an_error_when_the_run_is_made(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^run\(progress_clears=…\): should be true or false, not "):
        toolguard.run("assistant", progress_clears=value)


def test_all_problems_of_a_run_are_listed_with_hints() -> None:
    with pytest.raises(ConfigError) as caught:
        toolguard.run("assistant", hard_cp=3, delivery=-1, profile="codng", mode="off", deadline=9, progress_clears="no")
    assert caught.value.problems == (
        "run(profile=…): should be 'assistant', 'coding' or 'operations', not 'codng' (did you mean coding?)",
        "run(mode=…): should be 'enforce' or 'observe', not 'off'",
        "run(hard_cp=…): unknown key (did you mean hard_cap?)",
        "run(delivery=…): should be a whole number from 0 (off) to 2^63 - 1, not -1",
        "run(deadline=…): unknown key (did you mean deadline_s?)",
        "run(progress_clears=…): should be true or false, not 'no'",
    )


def test_none_for_a_limit_means_not_given() -> None:
    toolguard.configure({"limits": {"hard_cap": 4}})
    assert limits(hard_cap=None)["hard_cap"] == 4


@pytest.mark.parametrize(
    ("name", "prefixes", "folded"),
    [
        ("Read-File", (), "read_file"),
        ("read.file", (), "read_file"),
        ("functions.search", ("functions.",), "search"),
        ("functions_search", ("Functions.",), "search"),
        ("mcp__github__search", ("tools.", "mcp__github__"), "search"),
        ("functions", ("functions",), "functions"),
        ("search", ("",), "search"),
    ],
)
def test_names_fold_to_the_one_under_which_they_count(name: str, prefixes: tuple[str, ...], folded: str) -> None:
    assert canonical(name, prefixes) == folded


# At call time --------------------------------------------------------------------------------------------------------


def test_a_broken_configuration_never_raises_at_a_call_and_always_at_a_run(
    here: Path, logged: pytest.LogCaptureFixture
) -> None:
    write(here, "[tool.toolguard]\noutside_run = 'alow'\n")
    assert [lambda_tool(1), lambda_tool(2)] == [1, 2]
    errors = [r.getMessage() for r in logged.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "pyproject.toml:2: tool.toolguard.outside_run: should be" in errors[0]
    with pytest.raises(ConfigError, match=r"outside_run"):
        toolguard.run()
    write(here, "[tool.toolguard]\noutside_run = 'refuse'\n")
    toolguard.configure()
    assert type(lambda_tool(3)).__name__ == "Refusal"
