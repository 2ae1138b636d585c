"""A run as plain data, and back: what another process needs to go on with it, and nothing of what its calls were about.

What an object becomes is read from the annotations of its slots or fields, so that a new wall is carried without a word
here. One that cannot be carried is a `TypeError` at the first snapshot, and in the tests.

A logical time means nothing in another process. There everything in a snapshot is past: the times that occur are numbered
-n … -1 in their order, and every resumption puts them before those of the one before it, so that no two of them are one.
"""

import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from toolguard import _telemetry
from toolguard._config import RunLimits, Settings, resolve
from toolguard._errors import ConfigError
from toolguard._identity import SIZE
from toolguard._ledger import Ledger, Past, keeps
from toolguard._tree import Remembered, Session
from toolguard._values import Profile, Recent, Tally, Trace
from toolguard.walls import BY_NAME, NAMES, TABLE

__all__ = ["FORMAT", "About", "Chain", "Resumed", "form_of", "numbered", "read", "write"]

FORMAT: Final = "toolguard.run/1"

_ERA: Final = 1 << 32
_MOST: Final = 1 << 63
_eras = itertools.count()


class About(NamedTuple):
    """What a run is, beside its counts: what it was opened with and what it froze at its start.

    Attributes:
        id, agent, session, tenant, mode: the run's.
        profile, limits, observe, tools: as in `RunLimits`.
        local, strip_prefixes: as in the settings.
        elapsed: seconds since the run began, as its clock counts them.
        trace: the context of its last span.
    """

    id: str
    agent: str | None
    session: str | None
    tenant: str | None
    mode: Literal["enforce", "observe"]
    profile: Profile
    limits: Mapping[str, int | float | bool | str | None]
    observe: frozenset[str]
    tools: Mapping[str, int]
    local: frozenset[str]
    strip_prefixes: tuple[str, ...]
    elapsed: float
    trace: Trace

    def frozen(self) -> RunLimits:
        """Return what the run froze, as a run that starts would."""
        return RunLimits(self.limits, self.mode, self.observe, self.profile, self.tools)


class Resumed(NamedTuple):
    """One run of a snapshot. `shares` is the place of its session in the chain."""

    about: About
    counts: Past
    shares: int


class Chain(NamedTuple):
    """What a snapshot holds: a run and all runs around it, the outermost first, and their sessions."""

    runs: list[Resumed]
    sessions: list[Session]


# Forms ----------------------------------------------------------------------------------------------------------------


class _GarbledError(Exception):
    """Data is not of its form. The parts of the place, innermost first, are added on the way out."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.parts: list[str] = []


class _Time(int):
    """A logical time that has not been numbered yet."""


class _Reader(NamedTuple):
    """What reading depends on: the era of its logical times, and the tally that the walls of the run read."""

    era: int
    tally: Tally | None = None


class Form(NamedTuple):
    """How values of one type are written and read. What is not carried is read from nothing."""

    write: Callable[[Any], Any]
    read: Callable[[Any, _Reader], Any]
    carried: bool = True


@contextmanager
def _inside(part: str) -> Iterator[None]:
    try:
        yield
    except _GarbledError as error:
        error.parts.append(part)
        raise


def _should(what: str, data: object) -> _GarbledError:
    shown = repr(data) if isinstance(data, (bool, int, float, type(None))) else f"a {type(data).__name__}"
    return _GarbledError(f"should be {what}, not {shown[:40]}")


def _read_count(data: Any, _: _Reader) -> int:
    if type(data) is not int or not 0 <= data < _MOST:
        raise _should("a whole number from 0", data)
    return data


def _read_number(data: Any, _: _Reader) -> float:
    if type(data) not in {int, float} or not 0 <= data < _MOST:
        raise _should("a number from 0", data)
    return cast("float", data)


def _read_flag(data: Any, _: _Reader) -> bool:
    if type(data) is not bool:
        raise _should("true or false", data)
    return data


def _read_text(data: Any, _: _Reader) -> str:
    if type(data) is not str:
        raise _should("a text", data)
    return data


def _read_digest(data: Any, _: _Reader) -> bytes:
    try:
        if len(made := bytes.fromhex(data)) * 2 == len(data):
            return made
    except (TypeError, ValueError):
        pass
    raise _should("a digest in hexadecimal", data)


def _read_time(data: Any, reader: _Reader) -> int:
    if type(data) is not int or not -_ERA < data <= 0:
        raise _should("a whole number up to 0", data)
    return data and data - reader.era * _ERA


def _read_trace(data: Any, _: _Reader) -> Any:
    if data is None:
        return None
    if type(data) is not str or (made := _telemetry.parse_trace(data)) is None:
        raise _should("a traceparent or null", data)
    return made


def _read_scalar(data: Any, reader: _Reader) -> Any:
    if data is None or type(data) in {str, bool}:
        return data
    return _read_number(data, reader)


def _same(value: Any) -> Any:
    return value


_PLAIN: Final[Mapping[Any, Form]] = MappingProxyType(
    {
        int: Form(_same, _read_count),
        float: Form(_same, _read_number),
        bool: Form(_same, _read_flag),
        str: Form(str.__str__, _read_text),
        bytes: Form(bytes.hex, _read_digest),
    }
)
_MARKED: Final[Mapping[Any, Form]] = MappingProxyType(
    {
        "tick": Form(lambda value: value and _Time(value), _read_time),
        "trace": Form(_telemetry.trace_text, _read_trace),
    }
)
_LINK: Final = Form(_same, lambda _, reader: reader.tally, carried=False)
_NONE: Final = Form(_same, lambda _, __: None, carried=False)
_ZERO: Final = Form(_same, lambda _, __: 0, carried=False)
_SCALARS: Final = {int, float, bool, str, type(None)}


@cache
def form_of(hint: Any) -> Form:  # noqa: PLR0911  one kind of annotation after the other
    """Return how a value that is annotated with `hint` is written and read.

    Raises:
        TypeError: a snapshot cannot carry it.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Tally:
        return _LINK
    if origin is typing.Annotated:
        return _MARKED.get(args[1]) or (_ZERO if args[0] is int else _NONE)
    if origin is Literal:
        return _choice(args)
    if origin in {typing.Union, types.UnionType}:
        return _union(args)
    if origin in _COLLECTIONS and args[1:] in {(), (...,)}:
        make, ordered = _COLLECTIONS[origin]
        return _collection(form_of(args[0]), make, ordered=ordered)
    if origin in {dict, Mapping}:
        return _mapping(form_of(args[0]), form_of(args[1]), dict if origin is dict else MappingProxyType)
    if origin is Recent:
        half = _mapping(form_of(args[0]), form_of(args[1]), dict)
        return _object(Recent, {"_new": half, "_old": half, "_size": _PLAIN[int]})
    if isinstance(hint, type) and (hasattr(hint, "_fields") or "__slots__" in vars(hint)):
        return _object(hint, _fields(hint))
    msg = f"a snapshot cannot carry {hint!r}; annotate every slot with a type that it knows"
    raise TypeError(msg)


def _fields(kind: Any) -> dict[str, Form]:
    hints = get_type_hints(kind, include_extras=True)
    if bare := [name for name in getattr(kind, "_fields", None) or kind.__slots__ if name not in hints]:
        msg = f"a snapshot cannot carry {kind.__qualname__}.{bare[0]}, which is not annotated"
        raise TypeError(msg)
    return {name: form_of(hint) for name, hint in hints.items()}


def _choice(choices: tuple[Any, ...]) -> Form:
    def read(data: Any, _: _Reader) -> Any:
        if type(data) is not str or data not in choices:
            raise _should(f"one of {', '.join(choices)}", data)
        return data

    return Form(_same, read)


def _union(args: tuple[Any, ...]) -> Form:
    others = [arg for arg in args if arg is not type(None)]
    if len(others) == 1:
        write, read, *_ = form_of(others[0])
        return Form(
            lambda value: None if value is None else write(value),
            lambda data, reader: None if data is None else read(data, reader),
        )
    if set(args) <= _SCALARS:
        return Form(_same, _read_scalar)
    msg = f"a snapshot cannot carry a union of {args!r}"
    raise TypeError(msg)


_COLLECTIONS: Final[Mapping[Any, tuple[Callable[[Iterable[Any]], Any], bool]]] = MappingProxyType(
    {list: (list, True), tuple: (tuple, True), set: (set, False), frozenset: (frozenset, False)}
)


def _collection(item: Form, make: Callable[[Iterable[Any]], Any], *, ordered: bool) -> Form:
    def write(value: Any) -> list[Any]:
        return [item.write(each) for each in (value if ordered else sorted(value))]

    def read(data: Any, reader: _Reader) -> Any:
        made = make(_each(data, lambda each: item.read(each, reader)))
        if len(made) != len(data):
            raise _GarbledError("lists something twice")
        return made

    return Form(write, read)


def _each(data: Any, read: Callable[[Any], Any]) -> list[Any]:
    if type(data) is not list:
        raise _should("a list", data)
    made: list[Any] = []
    try:
        for each in data:
            made.append(read(each))  # noqa: PERF401  the length is the place where it failed
    except _GarbledError as error:
        error.parts.append(f"[{len(made)}]")
        raise
    return made


def _mapping(key: Form, value: Form, make: Callable[[Any], Any]) -> Form:
    """Write a mapping as a list of pairs: keys need not be texts, and stores may forget the order of an object's keys."""
    write_key, write_value, read_key, read_value = key.write, value.write, key.read, value.read

    def write(mapping: Any) -> list[list[Any]]:
        return [[write_key(k), write_value(v)] for k, v in mapping.items()]

    def read(data: Any, reader: _Reader) -> Any:
        def pair(each: Any) -> tuple[Any, Any]:
            if type(each) is not list or len(each) != 2:  # noqa: PLR2004  a pair
                raise _should("a pair", each)
            return read_key(each[0], reader), read_value(each[1], reader)

        made = dict(_each(data, pair))
        if len(made) != len(data):
            raise _GarbledError("names a key twice")
        return make(made)

    return Form(write, read)


def _object(kind: Any, forms: Mapping[str, Form]) -> Form:
    """Write slots or fields by their names."""
    names = {name.lstrip("_"): name for name, form in forms.items() if form.carried}
    writers = [(key, name, forms[name].write) for key, name in names.items()]
    left_out = [(name, form.read) for name, form in forms.items() if not form.carried]

    def write(value: Any) -> dict[str, Any]:
        return {key: writer(getattr(value, name)) for key, name, writer in writers}

    def read(data: Any, reader: _Reader) -> Any:
        _check_keys(data, names)
        values: dict[str, Any] = {}
        key = ""
        try:
            for key, name in names.items():
                values[name] = forms[name].read(data[key], reader)
        except _GarbledError as error:
            error.parts.append(f".{key}")
            raise
        for name, nothing in left_out:
            values[name] = nothing(None, reader)
        if hasattr(kind, "_fields"):
            return kind(**values)
        made = kind.__new__(kind)
        for name, value in values.items():
            setattr(made, name, value)
        return made

    return Form(write, read)


def _check_keys(data: Any, keys: Iterable[str]) -> None:
    if type(data) is not dict:
        raise _should("an object", data)
    wanted = set(keys)
    if missing := sorted(wanted - data.keys()):
        raise _GarbledError(f"lacks {', '.join(missing)}")
    if extra := data.keys() - wanted:
        raise _GarbledError(f"has {len(extra)} keys too many; it holds {', '.join(sorted(wanted))}")


# What the walls remember ----------------------------------------------------------------------------------------------


def _states(names_and_forms: list[tuple[str, Form]]) -> Form:
    """Write what walls remember as a list of names and states, in the order of the table."""

    def write(states: Any) -> list[list[Any]]:
        pairs = states.items() if isinstance(states, dict) else states
        return [[name, form.write(state)] for (name, form), (_, state) in zip(names_and_forms, pairs, strict=True)]

    def read(data: Any, reader: _Reader) -> list[tuple[str, Any]]:
        if type(data) is not list or len(data) != len(names_and_forms):
            raise _should(f"a list of {len(names_and_forms)} walls", data)
        made: list[tuple[str, Any]] = []
        for (name, form), each in zip(names_and_forms, data, strict=True):
            with _inside(f"[{len(made)}]"):
                if type(each) is not list or len(each) != 2 or each[0] != name:  # noqa: PLR2004  a pair
                    raise _GarbledError(f"should be {name!r} and what it remembers")
                made.append((name, form.read(each[1], reader)))
        return made

    return Form(write, read)


@cache
def _forms() -> tuple[Form, Form, Form, Form]:
    """Return the forms of: what a run is, its tally, its counts without the tally, and its session."""
    tally = _object(Tally, _fields(Tally))
    own = _states([(wall.name, _form_of_state(wall.state)) for wall in TABLE if keeps(wall)])
    shared = _states([(wall.name, _form_of_state(wall.state)) for wall in TABLE if wall.scope == "session"])
    hints = {name: h for name, h in get_type_hints(Past, include_extras=True).items() if name not in {"tally", "states"}}
    counts = _object(Past, {**{name: form_of(hint) for name, hint in hints.items()}, "tally": _LINK, "states": own})
    hints = {name: h for name, h in get_type_hints(Remembered).items() if name != "states"}
    session = _object(Remembered, {**{name: form_of(hint) for name, hint in hints.items()}, "states": shared})
    return form_of(About), tally, counts, session


def _form_of_state(make: Callable[[Tally], Any]) -> Form:
    kind: Any = type(make(Tally()))
    return form_of(kind)


# Writing --------------------------------------------------------------------------------------------------------------


def write(version: str, runs: Iterable[tuple[About, Ledger]]) -> dict[str, Any]:
    """Write a run and all runs around it, the outermost first; the ledgers must stand still meanwhile."""
    of_about, of_tally, of_counts, of_session = _forms()
    sessions: list[Session] = []
    written: list[dict[str, Any]] = []
    for about, ledger in runs:
        if ledger.session not in sessions:
            sessions.append(ledger.session)
        counts = of_counts.write(ledger.past())
        written.append(
            {
                "about": of_about.write(about),
                "tally": of_tally.write(ledger.tally),
                "counts": counts,
                "shares": sessions.index(ledger.session),
            }
        )
    shared = [{"key": session.key.hex(), **of_session.write(session.past())} for session in sessions]
    return {"format": FORMAT, "version": version, "runs": written, "sessions": shared}


def numbered(data: Any) -> Any:
    """Return what `write` returned with its logical times numbered; it takes no lock and may take its time."""
    times: set[int] = set()
    _collect(data, times)
    number = {time: i - len(times) for i, time in enumerate(sorted(times))}
    return _number(data, number)


def _collect(data: Any, times: set[int]) -> None:
    kind = type(data)
    if kind is _Time:
        times.add(int(data))
    elif kind is list or kind is dict:
        for each in data if kind is list else data.values():
            _collect(each, times)


def _number(data: Any, number: Mapping[int, int]) -> Any:
    kind = type(data)
    if kind is _Time:
        return number[data]
    if kind is list:
        return [_number(each, number) for each in data]
    if kind is dict:
        return {key: _number(each, number) for key, each in data.items()}
    return data


# Reading --------------------------------------------------------------------------------------------------------------


def read(data: Any, version: str) -> Chain:
    """Return what a snapshot holds. Nothing outside of what is returned changes.

    Raises:
        ValueError: it is no snapshot, or not as it was written; the message names the place and the cure.
    """
    if isinstance(data, (str, bytes, bytearray)):
        msg = "resume: the snapshot is a text; decode it first, such as with json.loads(text)"
        raise ValueError(msg)
    try:
        return _read(data)
    except _GarbledError as error:
        made = data.get("version") if type(data) is dict else None
        cure = "pass what Run.snapshot() returned, unchanged"
        if type(made) is str and made != version:
            cure = f"toolguard {made[:20]} made it and this is {version}: resume it with that version, or open a new run"
        msg = f"resume: snapshot{''.join(reversed(error.parts))} {error.problem}; {cure}"
        raise ValueError(msg) from None


def _read(data: Any) -> Chain:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise _GarbledError(f"should be an object of the format {FORMAT!r}")
    _check_keys(data, ("format", "version", "runs", "sessions"))
    reader = _Reader(next(_eras))
    with _inside(".version"):
        _read_text(data["version"], reader)
    with _inside(".sessions"):
        sessions = _each(data["sessions"], lambda each: _read_session(each, reader))
    with _inside(".runs"):
        runs = _each(data["runs"], lambda each: _read_run(each, reader))
        if not runs or {run.shares for run in runs} != set(range(len(sessions))):
            raise _GarbledError("should be runs of the sessions listed, and all of these")
    return Chain(runs, sessions)


def _read_session(data: Any, reader: _Reader) -> Session:
    _, _, _, of_session = _forms()
    rest = dict(data) if type(data) is dict else data
    key = rest.pop("key", None) if type(rest) is dict else None
    past = of_session.read(rest, reader)
    with _inside(".key"):
        if len(key := _read_digest(key, reader)) != SIZE:
            raise _should(f"a key of {SIZE} bytes", data)
    return Session(key, past._replace(states=dict(past.states)))


def _read_run(data: Any, reader: _Reader) -> Resumed:
    of_about, of_tally, of_counts, _ = _forms()
    _check_keys(data, ("about", "tally", "counts", "shares"))
    with _inside(".about"):
        about: About = of_about.read(data["about"], reader)
        _check_frozen(about)
    with _inside(".tally"):
        tally = of_tally.read(data["tally"], reader)
    with _inside(".counts"):
        counts: Past = of_counts.read(data["counts"], reader._replace(tally=tally))
        for part, why in ((".stopped", counts.stopped and counts.stopped.why), (".unheeded", counts.unheeded)):
            if why is not None and why.reason not in BY_NAME and why.reason != "stop":
                with _inside(part):
                    raise _GarbledError("names no wall")
    with _inside(".shares"):
        return Resumed(about, counts, _read_count(data["shares"], reader))


def _check_frozen(about: About) -> None:
    """Check the limits as those of a run that starts are checked; and every one of them must be there."""
    with _inside(".limits"):
        try:
            frozen = resolve(Settings(), None, profile=about.profile, limits=about.limits)
        except ConfigError as error:
            raise _GarbledError(f"cannot be used ({'; '.join(error.problems)})") from None
        if frozen.limits != dict(about.limits):
            raise _GarbledError("should be all limits of a run")
    with _inside(".observe"):
        if not about.observe <= set(NAMES):
            raise _GarbledError("names no wall")
