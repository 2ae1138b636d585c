"""The only reader of files and environment. One table of keys, most of them the walls', drives everything here."""

import logging
import math
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from toolguard import _toml
from toolguard._errors import ConfigError
from toolguard._values import PROFILES, Key, Profile, canonical
from toolguard.walls import KEYS, NAMES

__all__ = [
    "OPTIONS",
    "RunLimits",
    "Settings",
    "configure",
    "from_mapping",
    "is_bare_outside",
    "replace",
    "resolve",
    "settings",
    "settings_outside",
]

_logger = logging.getLogger("toolguard")

Mode = Literal["enforce", "observe"]
OutsideRun = Literal["warn", "allow", "refuse"]
RefusedStatus = Literal["unset", "error"]

_MOST_SHOWN: Final = 60
_MOST_DIGITS: Final = 24
_MOST_BYTES: Final = 1 << 20
_MOST_CALLS: Final = 1 << 63
_RESERVED: Final = frozenset({"CONFIG", "REQUIRE_CONFIG", "SHARED_STORE", "RECORD", "TRACE_URL"})
_PREFIX: Final = "TOOLGUARD_"
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_DEFAULT: Final = "default"
_FILES: Final = ("toolguard.toml", "pyproject.toml")
_BARE: Final = "[A-Za-z0-9_-]+"
_TOOL: Final = "[a-z0-9_]{1,64}"

Notes = list[tuple[int, str]]
"""What there is to log once the settings are in force: level and text."""


# What a value may be --------------------------------------------------------------------------------------------------


class _WrongError(Exception):
    """A value cannot be used; the message says what it should be."""


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_CALLS:
        msg = f"should be a whole number from 0 (off) to 2^63 - 1, not {_shown(value)}"
        raise _WrongError(msg)
    return value


def _amount(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST_CALLS:
        msg = f"should be a number from 0 (off) to 2^63 - 1, not {_shown(value)}"
        raise _WrongError(msg)
    return value


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        msg = f"should be a number from 0 (off) to 1, not {_shown(value)}"
        raise _WrongError(msg)
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        msg = f"should be true or false, not {_shown(value)}"
        raise _WrongError(msg)
    return value


def _choice(choices: Iterable[str]) -> Callable[[object], str]:
    allowed = tuple(choices)

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            msg = f"should be {_either(allowed)}, not {_shown(value)}{_hint(value, allowed)}"
            raise _WrongError(msg)
        return value

    return check


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        msg = f"should be a list of texts, not {_shown(value)}"
        raise _WrongError(msg)
    return tuple(value)


def _walls(value: object) -> frozenset[str]:
    names = _texts(value)
    if unknown := [name for name in names if name not in NAMES]:
        listed = ", ".join(f"{name!r}{_hint(name, NAMES)}" for name in unknown)
        msg = f"names no wall: {listed}; the walls are {', '.join(NAMES)}"
        raise _WrongError(msg)
    return frozenset(names)


def _check_of(key: Key) -> Callable[[object], Any]:
    return _choice(key.choices) if key.choices else _CHECKS[key.kind]


_CHECKS: Final[dict[str, Callable[[object], Any]]] = {"count": _number, "share": _share, "amount": _amount, "flag": _flag}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (int, float, str)):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "so large a number"
        return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "…" + text[-1]
    kinds = {list: "a list", dict: "a table", tuple: "a list", type(None): "nothing"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _either(choices: tuple[str, ...]) -> str:
    *first, last = map(repr, choices)
    return f"{', '.join(first)} or {last}" if first else last


def _hint(word: object, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only where something is wrong

    near = get_close_matches(str(word), list(known), n=1, cutoff=0.6) if isinstance(word, str) else []
    return f" (did you mean {near[0]}?)" if near else ""


# The table ------------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """A key that is not a limit.

    Attributes:
        default: the value where nothing sets it.
        check: returns the value as the settings hold it, or says what is wrong.
        table: the table that holds it; empty: the top one.
        doc: one sentence for the configuration page.
    """

    default: Any
    check: Callable[[object], Any]
    table: str
    doc: str


OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {
        "profile": Option("assistant", _choice(PROFILES), "", "The defaults of the limits."),
        "mode": Option(
            "enforce",
            _choice(get_args(Mode)),
            "",
            "`observe`: walls decide and mark the span, and refuse nothing.",
        ),
        "observe": Option(frozenset(), _walls, "", "Single walls that only observe."),
        "outside_run": Option(
            "warn",
            _choice(get_args(OutsideRun)),
            "",
            "What a call outside a run does: `warn` executes, traces and logs once a tool, `allow` is the bare function, "
            "`refuse` refuses.",
        ),
        "local": Option(frozenset(), _texts, "", "Tools that no wall counts, such as a scratch pad."),
        "strip_prefixes": Option((), _texts, "", "Prefixes that a tool's name loses before it is counted."),
        "refused_status": Option(
            "unset",
            _choice(get_args(RefusedStatus)),
            "telemetry",
            "Status of a refused call's span; `error` makes it red and counts it in error rates.",
        ),
        "duration_histogram": Option(
            True,  # noqa: FBT003  a default
            _flag,
            "telemetry",
            "Record `gen_ai.execute_tool.duration`, about 10 µs a call.",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration in force.

    Attributes:
        profile: the defaults of the limits.
        mode: `enforce` or `observe`.
        observe: walls that only observe.
        outside_run: what a call outside a run does.
        local: canonical names of tools that no wall counts.
        strip_prefixes: prefixes that a tool's name loses.
        refused_status: the span status of a refusal.
        duration_histogram: whether durations are recorded.
        limits: the limits that the file's `limits` table sets.
        environment: the limits that environment variables set.
        tools: limits of single tools, by canonical name.
        agents: limits by agent name.
        capture_content: whether spans carry arguments and results.
        source: the file, `configure(...)` for a mapping, or None.
        origins: where each value that is not a default comes from, by dotted key.
    """

    profile: Profile = "assistant"
    mode: Mode = "enforce"
    observe: frozenset[str] = frozenset()
    outside_run: OutsideRun = "warn"
    local: frozenset[str] = frozenset()
    strip_prefixes: tuple[str, ...] = ()
    refused_status: RefusedStatus = "unset"
    duration_histogram: bool = True
    limits: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    environment: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    tools: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    capture_content: bool = False
    source: str | None = None
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def origin(self, key: str) -> str:
        """Return where the value of a key comes from: a file with its line, a variable, the profile or `default`.

        Args:
            key: the dotted key as in the file, such as `limits.per_tool`, `telemetry.refused_status` or `mode`.
        """
        if key in self.origins:
            return self.origins[key]
        return f"profile {self.profile}" if key.startswith("limits.") else _DEFAULT

    def to_dict(self) -> dict[str, Any]:
        """Return every key with its value and origin, as plain data: `{"limits.per_tool": {"value": 40, "origin": …}}`."""
        values: dict[str, Any] = {_dotted(name): getattr(self, name) for name in OPTIONS}
        values |= {f"limits.{name}": value for name, value in resolve(self, None).limits.items()}
        values |= {f"tools.{name}.limit": n for name, n in self.tools.items()}
        for agent, table in self.agents.items():
            values |= {_path(("agents", agent, name)): self.environment.get(name, n) for name, n in table.items()}
        return {key: {"value": _plain(value), "origin": self.origin(key)} for key, value in values.items()}


def _dotted(name: str) -> str:
    table = OPTIONS[name].table
    return f"{table}.{name}" if table else name


def _path(parts: Iterable[object]) -> str:
    return ".".join(part if re.fullmatch(_BARE, part) else repr(part) for part in map(str, parts))


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value


class RunLimits(NamedTuple):
    """What a run freezes at its start.

    Attributes:
        limits: every limit, resolved.
        mode, observe, profile: as in the settings, or as given to the run.
        tools: limits of single tools, by canonical name.
    """

    limits: Mapping[str, Any]
    mode: Mode
    observe: frozenset[str]
    profile: Profile
    tools: Mapping[str, int]


# Reading tables -------------------------------------------------------------------------------------------------------


class _Reader:
    """Collects values, their origins and every problem of one source."""

    def __init__(self, place: Callable[[tuple[str, ...]], str], prefix: str) -> None:
        self.place, self.prefix = place, prefix
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def wrong(self, path: tuple[str, ...], problem: str) -> None:
        self.problems.append(f"{self.place(path)}: {self.prefix}{_path(path)}: {problem}")

    def take(self, path: tuple[str, ...], value: object, check: Callable[[object], Any]) -> Any:
        try:
            taken = check(value)
        except _WrongError as error:
            self.wrong(path, str(error))
            return None
        self.origins[_path(path)] = self.place(path)
        return taken

    def table(self, path: tuple[str, ...], value: object) -> Mapping[str, object]:
        if isinstance(value, Mapping):
            return value
        self.wrong(path, f"should be a table, not {_shown(value)}")
        return {}

    def unknown(self, path: tuple[str, ...], known: Iterable[str]) -> None:
        home = _home(path[-1])
        if home is None or home == ".".join(path[:-1]):
            self.wrong(path, f"unknown key{_hint(path[-1], known)}")
        elif table := f"{self.prefix}{home}".removesuffix("."):
            self.wrong(path, f"unknown key (it belongs in [{table}])")
        else:
            self.wrong(path, "unknown key (it belongs at the top, before any table)")

    def read(self, content: Mapping[str, object]) -> None:
        tops = {name for name, option in OPTIONS.items() if not option.table}
        readers = {"limits": self._limits, "tools": self._tools, "agents": self._agents, "telemetry": self._telemetry}
        for name, value in content.items():
            if name in tops:
                self._option((name,), value)
            elif reader := readers.get(name):
                self.values[name] = reader(self.table((name,), value))
            elif name == "tool" and not self.prefix:
                self.wrong(("tool",), "unknown key (only a file named pyproject.toml has its keys in [tool.toolguard])")
            else:
                self.unknown((name,), (*tops, *readers, *KEYS))

    def _option(self, path: tuple[str, ...], value: object) -> None:
        taken = self.take(path, value, OPTIONS[path[-1]].check)
        if taken is not None:
            self.values[path[-1]] = taken

    def _telemetry(self, table: Mapping[str, object]) -> None:
        known = [name for name, option in OPTIONS.items() if option.table == "telemetry"]
        for name, value in table.items():
            if name in known:
                self._option(("telemetry", name), value)
            else:
                self.unknown(("telemetry", name), known)

    def _limits(self, table: Mapping[str, object], above: tuple[str, ...] = ("limits",)) -> Mapping[str, Any]:
        taken: dict[str, Any] = {}
        for name, value in table.items():
            if key := KEYS.get(name):
                taken[name] = self.take((*above, name), value, _check_of(key))
            else:
                self.unknown((*above, name), KEYS)
        return MappingProxyType(taken)

    def _agents(self, table: Mapping[str, object]) -> Mapping[str, Mapping[str, Any]]:
        read = {agent: self._limits(self.table(("agents", agent), v), ("agents", agent)) for agent, v in table.items()}
        return MappingProxyType(read)

    def _tools(self, table: Mapping[str, object]) -> Mapping[str, int | None]:
        taken: dict[str, int | None] = {}
        for tool, value in table.items():
            taken[tool] = None
            for key, n in self.table(("tools", tool), value).items():
                if key == "limit":
                    taken[tool] = self.take(("tools", tool, key), n, _number)
                else:
                    self.unknown(("tools", tool, key), ("limit",))
        return taken


def _home(name: str) -> str | None:
    """Return the table in which a key stands, or None where it is no key."""
    option = OPTIONS.get(name)
    return option.table if option else "limits" if name in KEYS else None


def _fold(reader: _Reader, values: dict[str, Any], origins: dict[str, str]) -> list[str]:
    """Fold the names of tools as tools are counted, now that file and environment have said which prefixes they lose."""
    prefixes = values.get("strip_prefixes", ())
    tools: dict[str, int] = {}
    spelled: dict[str, str] = {}
    for tool, limit in values.get("tools", {}).items():
        name = canonical(str(tool), prefixes)
        if not re.fullmatch(_TOOL, name):
            reader.wrong(("tools", tool), "is no tool's name: 1 to 64 letters, digits, _ and -")
        if (other := spelled.setdefault(name, tool)) != tool:
            reader.wrong(("tools", tool), f"is the same tool as {other!r}")
        elif limit is not None:
            tools[name] = limit
            origins[f"tools.{name}.limit"] = origins.pop(_path(("tools", tool, "limit")))
    local = frozenset(canonical(name, prefixes) for name in values.get("local", ()))
    values |= {"tools": MappingProxyType(tools), "local": local}
    place = origins.get("local", _DEFAULT)
    label = place if place.startswith(_PREFIX) else f"{place}: {reader.prefix}local"
    return [
        f"{label}: {name!r} is no tool's name: 1 to 64 letters, digits, _ and -"
        for name in local
        if not re.fullmatch(_TOOL, name)
    ]


def _from_environment(values: dict[str, Any], origins: dict[str, str]) -> list[str]:
    """Lay `TOOLGUARD_*` over what a file said; return what is wrong."""
    reader = _Reader(lambda path: f"TOOLGUARD_{path[-1].upper()}", "")
    limits: dict[str, Any] = {}
    for variable, text in sorted(os.environ.items()):
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or not text.strip() or variable.removeprefix(_PREFIX) in _RESERVED:
            continue
        if variable != f"{_PREFIX}{name.upper()}":
            name = ""
        try:
            if option := OPTIONS.get(name):
                values[name] = option.check(_parsed(text.strip(), name))
                origins[_dotted(name)] = variable
            elif key := KEYS.get(name):
                limits[name] = _check_of(key)(_parsed(text.strip(), name))
                origins[f"limits.{name}"] = variable
            else:
                reader.problems.append(f"{variable}: unknown variable{_hint_of_variable(variable)}")
        except _WrongError as error:
            reader.problems.append(f"{variable}: {error}")
    values["environment"] = MappingProxyType(limits)
    return reader.problems


def _hint_of_variable(variable: str) -> str:
    # The prefix that all have in common would make all of them look alike.
    hint = _hint(variable.removeprefix(_PREFIX).upper(), [*(name.upper() for name in (*OPTIONS, *KEYS)), *sorted(_RESERVED)])
    return hint.replace("mean ", f"mean {_PREFIX}", 1)


def _parsed(text: str, name: str) -> object:
    """Read a variable's text as the value that its key wants; what cannot be read stays text and is refused as such."""
    if name in {"observe", "local", "strip_prefixes"}:
        return [part.strip() for part in text.split(",") if part.strip()]
    key = KEYS.get(name)
    if name == "duration_histogram" or (key is not None and key.kind == "flag"):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if key is None or key.choices:
        return text
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    try:
        return float(text) if key.kind != "count" and not re.search("[eE_]", text) else text
    except ValueError:
        return text


def _capture() -> tuple[bool, Notes]:
    value = os.environ.get(_CAPTURE, "").strip().upper()
    if value in {"SPAN_ONLY", "SPAN_AND_EVENT"}:
        return True, []
    if value == "TRUE":
        return True, [(logging.WARNING, f"{_CAPTURE}=true is taken as SPAN_ONLY; write that instead")]
    if value not in {"", "NO_CONTENT", "EVENT_ONLY", "FALSE"}:
        text = f"{_CAPTURE}={value[:40]!a} is not known, so no content is captured; use SPAN_ONLY"
        return False, [(logging.WARNING, text)]
    return False, []


# Finding and loading files --------------------------------------------------------------------------------------------


def _read_file(path: Path) -> _toml.Document:
    """Read one file, or raise the `ConfigError` that names it and the cure."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unusable(path, "is no regular file; name a TOML file")
            data = file.read(_MOST_BYTES + 1)
    except IsADirectoryError:
        raise _unusable(path, "is a directory; name the file in it") from None
    except FileNotFoundError:
        link = "is a link to a file that does not exist; mend the link"
        raise _unusable(path, link if path.is_symlink() else _MISSING) from None
    except PermissionError:
        raise _unusable(path, "may not be read by this process; give it permission") from None
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror or error}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise _unusable(path, f"is no path: {error}") from None
    if len(data) > _MOST_BYTES:
        raise _unusable(path, "is larger than 1 MiB; it cannot be a configuration")
    return _parse(path, data)


_MISSING: Final = "does not exist; correct the path, or unset it to search for a file"


def _at_once(path: str, flags: int) -> int:
    # Opening a FIFO would otherwise wait for a writer for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _parse(path: Path, data: bytes) -> _toml.Document:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError([f"{_relative(path)}:{line}: is not UTF-8; save the file as UTF-8"]) from None
    try:
        return _toml.parse(text)
    except _toml.TomlError as error:
        place = _relative(path) if error.line is None else f"{_relative(path)}:{error.line}"
        raise ConfigError([f"{place}: is no valid TOML: {error.problem}"]) from None


def _unusable(path: Path, problem: str) -> ConfigError:
    return ConfigError([f"{_relative(path)}: {problem}"])


def _relative(path: Path) -> str:
    try:
        shown = str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = str(path)
    return shown if shown.isprintable() else ascii(shown)


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        # The working directory was removed: nothing is in it or above it.
        return Path()


class _Found(NamedTuple):
    path: Path
    document: _toml.Document
    content: object
    above: tuple[str, ...]


def _take(path: Path) -> _Found | None:
    """Read a file; None: it is a pyproject without our table."""
    document = _read_file(path)
    if path.name != "pyproject.toml":
        return _Found(path, document, document.content, ())
    tool = document.content.get("tool")
    content = tool.get("toolguard") if isinstance(tool, Mapping) else None
    return None if content is None else _Found(path, document, content, ("tool", "toolguard"))


def _search() -> _Found | None:
    here = _here()
    for path in (folder / name for folder in (here, *here.parents) for name in _FILES):
        # A directory or a link to nothing is there too: to pass it over would drop every limit without a word.
        if os.path.lexists(path) and (found := _take(path)):
            return found
    return None


def _discover(path: str | os.PathLike[str] | None) -> _Found | None:
    named = path if path is not None else os.environ.get("TOOLGUARD_CONFIG", "").strip() or None
    if named is not None:
        found = _take(Path(named))
        if found is None:
            raise _unusable(Path(named), "has no table [tool.toolguard]; add it, or name another file")
        return found
    found = _search()
    if found is None and os.environ.get("TOOLGUARD_REQUIRE_CONFIG", "").strip() not in {"", "0"}:
        problem = f"no toolguard.toml and no pyproject.toml with [tool.toolguard] in {_here()} or above it"
        raise ConfigError([f"TOOLGUARD_REQUIRE_CONFIG: {problem}; add one, or set TOOLGUARD_CONFIG"])
    return found


def _load(path: str | os.PathLike[str] | None) -> tuple[Settings, Notes]:
    try:
        found = _discover(path)
    except ConfigError as error:
        raise ConfigError([*error.problems, *_from_environment({}, {})]) from None
    if found is None:
        made, notes = _build(_Reader(lambda _: _DEFAULT, ""), None, environment=True)
        text = f"no configuration found in {_here()} or above it; the defaults are in force"
        return made, [(logging.INFO, text), *notes]
    name = _relative(found.path)

    def place(key: tuple[str, ...]) -> str:
        return f"{name}:{found.document.line((*found.above, *key))}"

    reader = _Reader(place, "".join(f"{part}." for part in found.above))
    if isinstance(found.content, Mapping):
        reader.read(found.content)
    else:
        reader.problems.append(f"{place(())}: tool.toolguard: should be a table, not {_shown(found.content)}")
    source = str(found.path.absolute())
    made, notes = _build(reader, source, environment=True)
    return made, [(logging.INFO, f"configuration from {source}"), *notes]


def _build(reader: _Reader, source: str | None, *, environment: bool) -> tuple[Settings, Notes]:
    values, origins = dict(reader.values), dict(reader.origins)
    values.pop("telemetry", None)
    problems = _from_environment(values, origins) if environment else []
    problems += _fold(reader, values, origins)
    if problems := reader.problems + problems:
        raise ConfigError(problems)
    for agent, table in values.get("agents", {}).items():
        overlaid = values.get("environment", {}).keys() & table.keys()
        origins |= {_path(("agents", agent, name)): origins[f"limits.{name}"] for name in overlaid}
    capture, notes = _capture() if environment else (False, [])
    return Settings(**values, capture_content=capture, source=source, origins=MappingProxyType(origins)), notes


def from_mapping(content: Mapping[str, Any]) -> Settings:
    """Return settings from the content of `[tool.toolguard]`, without file and environment.

    Args:
        content: the table.

    Raises:
        ConfigError: the content cannot be used; every problem is listed.
    """
    return _mapped(content, environment=False)[0]


def _mapped(content: Mapping[str, Any], *, environment: bool) -> tuple[Settings, Notes]:
    reader = _Reader(lambda _: "configure(...)", "")
    reader.read(content)
    return _build(reader, "configure(...)", environment=environment)


# The settings of the process ------------------------------------------------------------------------------------------

_settings: Settings | None = None
_instead: Settings | None = None
_lock = threading.RLock()


def configure(source: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> Settings:
    """Read the configuration now, instead of at the first run, and return it.

    Runs that are open keep the limits that they started with. Environment variables go on top of any source.

    Args:
        source: a path to a TOML file; the content of `[tool.toolguard]` as a mapping; None: search for a file.

    Raises:
        ConfigError: it cannot be used; every problem is listed, and what was in force before stays in force.
    """
    made, notes = _mapped(source, environment=True) if isinstance(source, Mapping) else _load(source)
    replace(made)
    _log(notes)
    return made


def settings() -> Settings:
    """Return the configuration in force, read at the first use.

    Raises:
        ConfigError: the file or the environment cannot be used; every problem is listed.
    """
    made = _settings
    return _first() if made is None else made


def _first() -> Settings:
    notes: Notes = []
    with _lock:
        if (made := _settings) is None:
            made, notes = _load(None)
            replace(made)
    _log(notes)
    return made


def _log(notes: Notes) -> None:
    # A handler may call anything, so it is called when the settings are in force and nothing is locked.
    for level, text in notes:
        _logger.log(level, "%s", text)


def settings_outside() -> Settings:
    """Return the settings for a call outside a run, which must not raise.

    A configuration that cannot be used is an error in the log, once, and the defaults hold for such calls; the first run
    raises it.
    """
    global _instead  # noqa: PLW0603  one configuration a process
    if (made := _settings or _instead) is not None:
        return made
    try:
        return settings()
    except ConfigError as error:
        _instead = Settings()
        _log([(logging.ERROR, f"the configuration cannot be used, so calls outside a run go by the defaults: {error}")])
        return _instead


def is_bare_outside() -> bool:
    """Say whether a call outside a run is the bare function: `outside_run = "allow"`."""
    return (_settings or settings_outside()).outside_run == "allow"


def replace(made: Settings | None) -> Settings | None:
    """Put other settings in force (None: read them at the next use) and return the former."""
    global _settings, _instead
    with _lock:
        former, _settings, _instead = _settings, made, None
    return former


def resolve(
    made: Settings,
    agent: str | None,
    *,
    profile: str | None = None,
    mode: str | None = None,
    limits: Mapping[str, object] = MappingProxyType({}),
) -> RunLimits:
    """Return what a run of `agent` freezes: its own limits over environment, agent table, limits table and profile.

    Raises:
        ConfigError: what the run was given cannot be used; every problem is listed.
    """
    reader = _Reader(lambda path: f"run({path[-1]}=…)", "")
    given = {
        name: reader.take((name,), value, OPTIONS[name].check)
        for name, value in (("profile", profile), ("mode", mode))
        if value is not None
    }
    own: dict[str, Any] = {}
    for name, value in limits.items():
        if (key := KEYS.get(name)) is None:
            reader.unknown((name,), (*KEYS, "tools", "session", "tenant", "run_id", "mode", "profile"))
        elif value is not None:
            own[name] = reader.take((name,), value, _check_of(key))
    if reader.problems:
        raise ConfigError([_without_key(problem) for problem in reader.problems])
    chosen = cast("Profile", given.get("profile", made.profile))
    index = PROFILES.index(chosen)
    layers = (  # each beats the ones before it
        {name: key.defaults[index] for name, key in KEYS.items()},
        made.limits,
        made.agents.get(agent, {}) if agent is not None else {},
        made.environment,
        own,
    )
    resolved = {name: value for layer in layers for name, value in layer.items()}
    return RunLimits(MappingProxyType(resolved), cast("Mode", given.get("mode", made.mode)), made.observe, chosen, made.tools)


def _without_key(problem: str) -> str:
    """`run(per_tol=…): per_tol: unknown key` names the key twice."""
    place, _, rest = problem.partition(": ")
    return f"{place}: {rest.partition(': ')[2]}"
