"""The wrapper: bind → admit → call → settle → span. What can be known at decoration is computed there."""

import inspect
import logging
import re
import types
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, NoReturn, ParamSpec, Protocol, TypeVar, overload

import wrapt

from toolguard import _config, _content, _names, _query, _registry, _telemetry
from toolguard._clock import tick
from toolguard._errors import MissingExtraError, NotExecuted
from toolguard._identity import binder
from toolguard._ledger import GATE, UNBINDABLE, Plan
from toolguard._refusal import Refusal, refusal
from toolguard._registry import Spec
from toolguard._session import CURRENT, UNCOUNTED, Frame, Within, current_state, harness, log, outside, refusing
from toolguard._stream import adrive, drive
from toolguard._values import Call, Kind, Outcome, Refused, Tool, canonical

__all__ = ["Metered", "entry_of", "metered", "spec"]

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")
T = TypeVar("T")

Query = str | tuple[str, str] | Callable[[Mapping[str, Any]], Any]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_HEAD: Final[tuple[Any, ...]] = ()
_TOOL_ERROR: Final = "tool_error"


# Decoration -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """What the decorator was told; two decorations of one function must agree."""

    kind: Kind
    name: str | None
    limit: int | None
    query: Query | None
    polls: bool
    ignore: tuple[str, ...]
    failed: Callable[[Any], object] | None


class Entry:
    """Everything about a tool that is known once it is decorated.

    Attributes:
        bind: returns the call's values in the order of `parameters`, defaults included, or raises `TypeError`.
        method: the first parameter is a receiver, which enters the identity as the object that it is.
        warned: a call outside a run has been told of.
    """

    def __init__(self, function: Any, options: Options) -> None:
        """Check what the decorator was told and compute what calls need."""
        self.function = function
        self.options = options
        self.signature = _registry.signature_of(function)
        self.parameters = tuple(self.signature.parameters)
        self.bind = binder(function, self.signature)
        self.method = False
        self.warned = False
        self.tool = _tool(function, options)
        self.failed = options.failed or _reports_failure
        self.counted = _counted(self.parameters, options.ignore)
        self.query = _query_facts(options.query, self.parameters)
        # A plain function's signature is the truth; one that was wrapped may accept what its signature does not say.
        self.truthful = isinstance(function, types.FunctionType) and not hasattr(function, "__wrapped__")
        self.truthful = self.truthful and not hasattr(function, "__signature__")

    @cached_property
    def spec(self) -> Spec[..., Any]:
        """The public description."""
        return Spec(self.tool.name, self.tool.kind, self.function, self.tool)

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Bind where `bind` could not; None: the function itself will raise the `TypeError`."""
        return None if self.truthful else (args, dict(kwargs))


def _tool(function: Any, options: Options) -> Tool:
    name = options.name if options.name is not None else function.__name__
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        cure = "give it one with name=" if options.name is None else "choose another"
        msg = f"@metered: {name!r} is no tool name; model APIs take 1 to 64 of A-Z a-z 0-9 _ -, so {cure}"
        raise ValueError(msg)
    limit = options.limit
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 1 << 63):
        msg = f"@metered: limit of {name} must be a whole number of calls from 0 (off), not {limit!r}"
        raise ValueError(msg)
    return Tool(name, canonical(name), options.kind, limit, polls=options.polls, query=options.query is not None)


def _counted(parameters: tuple[str, ...], ignore: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any] | None:
    _known("ignore", ignore, parameters)
    if not ignore:
        return None
    kept = [i for i, name in enumerate(parameters) if name not in ignore]
    return lambda values: tuple(values[i] for i in kept)


def _known(option: str, wanted: tuple[str, ...], parameters: tuple[str, ...]) -> None:
    if unknown := [name for name in wanted if name not in parameters]:
        msg = f"@metered: {option}= names no parameter {', '.join(map(repr, unknown))} (known: {', '.join(parameters)})"
        raise ValueError(msg)


def _query_facts(query: Query | None, parameters: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return what finds (file reference, SQL) in bound values."""
    if query is None:
        return None
    if not _query.available():
        feature = "@metered(query=…)"
        raise MissingExtraError(feature, "sql")
    if isinstance(query, str):
        _known("query", (query,), parameters)
        index = parameters.index(query)
        return lambda values: (None, values[index])
    if isinstance(query, tuple):
        _known("query", query, parameters)
        return itemgetter(*(parameters.index(name) for name in query))
    return lambda values: query(types.MappingProxyType(dict(zip(parameters, values, strict=False))))


def _reports_failure(value: Any) -> object:
    """Say whether a returned value reports a failure: a mapping with a truthy `error` or `is_error`."""
    if isinstance(value, Mapping):
        return value.get("error") or value.get("is_error") or value.get("isError")
    return False


# One call -------------------------------------------------------------------------------------------------------------


def begin(entry: Entry, run: Frame, values: tuple[Any, ...], turn: int, started: int, *, method: bool) -> Call | Refusal:
    """Decide and charge one call, and start its span."""
    plan = run.ledger.plan(entry.tool)
    identity, query = b"", None
    if plan.identity:
        counted = values if entry.counted is None else entry.counted(values)
        if method and counted:
            counted = (run.hasher.receiver(values[0]), *counted[1:])
        identity = run.hasher.identity(entry.tool.name, counted)
    if plan.query:
        query = _shape(entry, run, values)
    call = Call(plan.tool, plan, identity, query, turn, started)
    why = run.ledger.admit(call, plan)
    if why is not None:
        return refuse(entry, run, call, why, values)
    if run.tracer is not None:
        _open_span(entry, run, call, values)
    if run.duration is not None:
        call.began = run.clock()
    return call


def _shape(entry: Entry, run: Frame, values: tuple[Any, ...]) -> bytes | None:
    try:
        found = entry.query(values) if entry.query is not None else None
        if found is None:
            return None
        ref, sql = found if isinstance(found, tuple) else (None, found)
        return run.hasher.identity("query", (ref, _query.shape(sql)))
    except Exception:  # noqa: BLE001  the user's callable failed: the call is judged by the other walls
        log(logging.WARNING, "query= of %s failed, so the query wall did not see the call", entry.tool.name)
        return None


def _facts(run: Frame, plan: Plan) -> _telemetry.CallFacts:
    facts = plan.facts
    if facts is None:
        facts = plan.facts = _telemetry.CallFacts(plan.tool.name, plan.tool.kind, run.agent, run.id)
    return facts  # type: ignore[no-any-return]  the ledger keeps it without looking at it


def _open_span(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...]) -> None:
    assert run.tracer is not None  # noqa: S101  the caller looked
    extra = run.marks
    if call.would is not None or run.settings.capture_content:
        extra = {**(extra or {}), **_content_of(entry, run, values)}
        if call.would is not None:
            extra[_names.WOULD_REFUSE] = call.would.reason
    opened = _telemetry.open_call(run.tracer, _facts(run, call.plan), extra, call.confirms)
    if opened is not None:
        call.span, call.context = opened


def _content_of(entry: Entry, run: Frame, values: tuple[Any, ...]) -> dict[str, Any]:
    if not run.settings.capture_content:
        return {}
    hidden = 1 if entry.method else 0
    return {_names.ARGUMENTS: _content.arguments(dict(zip(entry.parameters[hidden:], values[hidden:], strict=False)))}


def refuse(entry: Entry, run: Frame, call: Call, why: Refused, values: tuple[Any, ...]) -> Refusal:
    """Turn a wall's no into the caller's answer, its span and its log record."""
    answer = refusal(why, entry.tool.name, entry.tool.kind, run.id)
    if run.tracer is not None:
        red = run.settings.refused_status == "error"
        extra = _content_of(entry, run, values)
        call.trace = _telemetry.record_refusal(run.tracer, _facts(run, call.plan), answer.to_dict(), extra, red=red)
    run.ledger.end(call, why)
    run.tell_refusal(answer)
    return answer


def finish(entry: Entry, run: Frame, call: Call, value: Any, *, stream: int | None = None) -> None:
    """Settle a call that returned, and end its span."""
    error = None
    if type(value) is Refusal:
        call.inner = True
    elif stream is None:
        if call.plan.digest:
            call.digest = run.hasher.digest(value)
        if value is not None and type(value) is not str and _failed(entry, value):
            call.outcome, error = "error", _TOOL_ERROR
    run.ledger.end(call)
    if call.span is not None or run.duration is not None:
        _report(run, call, error, _result_of(run, value, stream))


def _failed(entry: Entry, value: Any) -> bool:
    try:
        return bool(entry.failed(value))
    except Exception:  # noqa: BLE001  a predicate that fails says nothing
        log(logging.WARNING, "failed= of %s failed, so its value counts as a success", entry.tool.name)
        return False


def _result_of(run: Frame, value: Any, stream: int | None) -> dict[str, Any] | None:
    if stream is not None:
        return {_names.STREAM_ITEMS: stream}
    if run.settings.capture_content and type(value) is not Refusal:
        return {_names.RESULT: _content.result(value)}
    return None


def fail(
    entry: Entry, run: Frame, call: Call, error: BaseException, *, stream: int | None = None, abandoned: bool = False
) -> Refusal | None:
    """Settle a call that raised, and end its span; a `NotExecuted` comes back as a refusal."""
    call.outcome = "abandoned" if abandoned else _outcome(error)
    name = _telemetry.type_name(error) if call.outcome == "error" else None
    run.ledger.end(call)
    answer = None
    extra: dict[str, Any] = {} if stream is None else {_names.STREAM_ITEMS: stream}
    if isinstance(error, NotExecuted):
        answer = refusal(GATE, entry.tool.name, entry.tool.kind, run.id, error.message)
        extra |= {_names.EXECUTED: False, _names.REASON: GATE.reason, _names.RETRY: GATE.retry}
        run.tell_refusal(answer)
    message = _content.result(str(error)) if name and run.settings.capture_content else ""
    _report(run, call, name, extra, message)
    return answer


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, NotExecuted):
        return "not_executed"
    if isinstance(error, Exception):
        return "error"
    return "closed" if isinstance(error, GeneratorExit) else "cancelled"


def _report(run: Frame, call: Call, error: str | None, extra: Mapping[str, Any] | None, message: str = "") -> None:
    if run.duration is not None and call.outcome != "not_executed":
        seconds = max(0.0, run.clock() - call.began)
        _telemetry.record_duration(run.duration, _facts(run, call.plan), seconds, error, call.context)
    if call.span is not None:
        _telemetry.close_call(call.span, call.outcome, error=error, extra=extra, message=message)


# The four kinds of function; they differ by `await` and `yield` alone ------------------------------------------------


def _sync(entry: Entry) -> Callable[..., Any]:
    bind = entry.bind

    def call_it(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], head: tuple[Any, ...]) -> Any:
        run: Frame | None = CURRENT.get()
        if (run is None or UNCOUNTED.get()) and (run := _elsewhere(entry)) is None:
            return fn(*args, **kwargs)
        try:
            values = bind(*head, *args, **kwargs)
        except TypeError:
            if (values := _rebind(entry, run, args, kwargs)) is None:
                return fn(*args, **kwargs)
        call = begin(entry, run, values, run.ledger.turn, tick(), method=bool(head) or entry.method)
        if type(call) is Refusal:
            return call
        assert type(call) is Call  # noqa: S101
        token = _telemetry.attach(call.context) if call.context is not None else None
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            _telemetry.detach(token)
            answer = fail(entry, run, call, error)
            if answer is not None:
                return answer
            raise
        _telemetry.detach(token)
        finish(entry, run, call, value)
        return value

    return call_it


def _rebind(entry: Entry, run: Frame, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return other values to judge the call by, or None: it cannot be called like that, which is told to the ledger."""
    values = entry.values(args, kwargs)
    if values is None:
        plan = run.ledger.plan(entry.tool)
        run.ledger.end(Call(plan.tool, plan, b"", None, run.ledger.turn, tick()), UNBINDABLE)
    return values


class _Made(NamedTuple):
    """A call that was made and has not begun: coroutines and generators are charged at their first step."""

    entry: Entry
    run: Frame
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: tuple[Any, ...]
    turn: int
    started: int
    method: bool

    def begin(self) -> Call | Refusal:
        return begin(self.entry, self.run, self.values, self.turn, self.started, method=self.method)

    def body(self) -> Any:
        return self.fn(*self.args, **self.kwargs)


def _starting(entry: Entry, start: Callable[[_Made], Any]) -> Callable[..., Any]:
    """Take run, turn and time when the call is made."""
    bind = entry.bind

    def call_it(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], head: tuple[Any, ...]) -> Any:
        run: Frame | None = CURRENT.get()
        if (run is None or UNCOUNTED.get()) and (run := _elsewhere(entry)) is None:
            return fn(*args, **kwargs)
        try:
            values = bind(*head, *args, **kwargs)
        except TypeError:
            if (values := _rebind(entry, run, args, kwargs)) is None:
                return fn(*args, **kwargs)
        method = bool(head) or entry.method
        return start(_Made(entry, run, fn, args, kwargs, values, run.ledger.turn, tick(), method))

    return call_it


async def _coroutine(made: _Made) -> Any:
    call = made.begin()
    if isinstance(call, Refusal):
        return call
    try:
        with Within(made.run.inside, call.context):
            value = await made.body()
    except BaseException as error:
        answer = fail(made.entry, made.run, call, error)
        if answer is not None:
            return answer
        raise
    finish(made.entry, made.run, call, value)
    return value


class _Streamed(Within):
    """A generator's call: it begins at the first step and ends with the body, or when nobody wants more."""

    __slots__ = ("_call", "_made", "me")

    def __init__(self, made: _Made) -> None:
        super().__init__(made.run.inside)
        self._made = made
        self._call: Call | None = None
        self.me: Callable[[], Any] = lambda: self

    def start(self) -> Refusal | None:
        call = self._made.begin()
        if isinstance(call, Refusal):
            return call
        self._call, self._context = call, call.context
        return None

    def end(self, value: Any) -> None:
        assert self._call is not None  # noqa: S101  `start` made it
        finish(self._made.entry, self._made.run, self._call, value, stream=self.items)

    def fail(self, error: BaseException) -> Refusal | None:
        assert self._call is not None  # noqa: S101  `start` made it
        # A finaliser finds the weak reference dead, an explicit close finds it alive.
        abandoned = isinstance(error, GeneratorExit) and self.me() is None
        return fail(self._made.entry, self._made.run, self._call, error, stream=self.items, abandoned=abandoned)


def _stream(made: _Made) -> Any:
    step = _Streamed(made)
    made_of = drive if inspect.isgeneratorfunction(made.entry.function) else adrive
    stream = made_of(made.body, step)
    step.me = weakref.ref(stream)
    return stream


# Outside a run, and calls of the harness ------------------------------------------------------------------------------


def _elsewhere(entry: Entry) -> Frame | None:
    """Return where a call is made that `CURRENT` does not place; None: the bare function answers it."""
    run = current_state()
    if UNCOUNTED.get():
        return harness(run)
    if run is not None:
        return run
    policy = _config.settings().outside_run
    if policy == "allow":
        return None
    if policy == "refuse":
        return refusing()
    if not entry.warned:
        entry.warned = True
        log(logging.WARNING, _NO_RUN, entry.tool.name)
    return outside()


_NO_RUN: Final = (
    "%s was called outside a run, so nothing limits it: open one with toolguard.run(...), carry it into threads and "
    'executors with run.bind(fn), or set outside_run to "allow" or "refuse"'
)


# The wrapper ----------------------------------------------------------------------------------------------------------


class _Same:
    """Identity, copying and pickling of a tool: it is itself, and nothing else is.

    A plain wrapt proxy equals the function that it wraps; a cache keyed by functions would then run the unmetered one.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self


class BoundMetered(_Same, wrapt.BoundFunctionWrapper):  # type: ignore[misc]  wrapt's stubs call the base a generic Any
    """A tool that was reached through an instance or a class. Each access makes a new one; they are equal by receiver."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        bound = self.__wrapped__
        receiver = getattr(bound, "__self__", _NO_HEAD)
        return self._self_parent._self_go(bound, args, kwargs, _NO_HEAD if receiver is _NO_HEAD else (receiver,))

    def _self_key(self) -> tuple[int, int]:
        return id(self._self_parent), id(getattr(self.__wrapped__, "__self__", None))

    def __eq__(self, other: object) -> bool:
        return type(other) is BoundMetered and self._self_key() == other._self_key()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._self_key())

    def __reduce_ex__(self, protocol: Any) -> Any:
        receiver = getattr(self.__wrapped__, "__self__", None)
        if receiver is None:
            return _qualified_name(self)
        return getattr, (receiver, self.__wrapped__.__name__)


class Metered(_Same, wrapt.FunctionWrapper):  # type: ignore[misc]  as above
    """A decorated function. It keeps signature, hints, docs and every predicate of `inspect`."""

    __bound_function_wrapper__ = BoundMetered

    def __init__(self, wrapped: Any, entry: Entry) -> None:
        super().__init__(wrapped, _never)
        self._self_entry = entry
        self._self_go = _flavour(entry)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._self_go(self.__wrapped__, args, kwargs, _NO_HEAD)

    def __set_name__(self, owner: type, name: str) -> None:
        self._self_entry.method = not isinstance(self.__wrapped__, staticmethod)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _qualified_name(self)


def _qualified_name(tool: Any) -> str:
    name: str = tool.__qualname__  # pickle looks it up in the tool's module and checks that it finds this very object
    return name


def _never(*_: Any) -> NoReturn:
    msg = "the wrapper calls its function itself"
    raise AssertionError(msg)


def _flavour(entry: Entry) -> Callable[..., Any]:
    function = entry.function
    if inspect.iscoroutinefunction(function):
        return _starting(entry, _coroutine)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return _starting(entry, _stream)
    return _sync(entry)


# The decorator --------------------------------------------------------------------------------------------------------


class _OnlyAny:
    """A type that no program has, so that only a function returning `Any` matches it."""


class Decorator(Protocol):
    """What `metered(...)` returns: it adds `Refusal` to what a function returns or yields."""

    @overload
    def __call__(self, function: Callable[P, _OnlyAny], /) -> Callable[P, Any]: ...
    @overload
    def __call__(self, function: "classmethod[T, P, R]", /) -> "classmethod[T, P, R | Refusal]": ...
    @overload
    def __call__(self, function: "staticmethod[P, R]", /) -> "staticmethod[P, R | Refusal]": ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R | Refusal]]: ...
    @overload
    def __call__(self, function: Callable[P, Generator[Y, S, R]], /) -> Callable[P, Generator[Y | Refusal, S, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncGenerator[Y, S]], /) -> Callable[P, AsyncGenerator[Y | Refusal, S]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[Y]], /) -> Callable[P, AsyncIterator[Y | Refusal]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[Y]], /) -> Callable[P, Iterator[Y | Refusal]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Refusal]: ...


def metered(
    *misused: Any,
    kind: Literal["read", "send"] | None = None,
    name: str | None = None,
    limit: int | None = None,
    query: Query | None = None,
    polls: bool = False,
    ignore: tuple[str, ...] = (),
    failed: Callable[[Any], object] | None = None,
) -> Decorator:
    """Make a plain function an agent's tool: registered, charged to the current run, traced, and never raising a refusal.

    The tool returns what the function returns, raises what it raises, and returns a `Refusal` instead of running where a
    wall of the run says no. A coroutine function returns it when awaited; a generator yields it once.

    Args:
        misused: nothing; it is here to explain `@metered` without parentheses.
        kind: `"read"` for what gathers, `"send"` for what delivers (mails, posts, writes). Required.
        name: the tool's name, 1 to 64 of `A-Z a-z 0-9 _ -`; by default the function's.
        limit: this tool's own limit, in calls a run: it replaces `per_tool` for a read, and takes a send out of the
            common reserve of `delivery`. 0: no limit.
        query: which parameters hold a query: `("file_ref", "sql")`, `"sql"`, or a callable that gets the bound arguments
            as a mapping and returns `(file_ref, sql)`, the SQL alone, or None. Needs the extra `sql`.
        polls: an unchanged result is expected, as of a status that is asked again and again.
        ignore: parameters that do not tell two calls apart, such as a timeout.
        failed: says of a returned value whether it reports a failure; by default a mapping with a truthy `error`,
            `is_error` or `isError` does.

    Returns:
        The decorator.

    Raises:
        TypeError: `kind` is missing or wrong, or what is decorated is no function.
        ValueError: a name, limit or parameter name cannot be used.
        MissingExtraError: `query` is given and the extra `sql` is not installed.
    """
    if misused or kind not in {"read", "send"}:
        given = "" if misused or kind is None else f", not {kind!r}"
        msg = f'write @metered(kind="read") or @metered(kind="send"){given}'
        raise TypeError(msg)
    options = Options(kind, name, limit, query, polls, (ignore,) if isinstance(ignore, str) else tuple(ignore), failed)

    def decorate(function: Any) -> Any:
        if isinstance(function, (Metered, BoundMetered)):
            return _again(function, options)
        _must_be_function(function)
        tool = Metered(function, Entry(_underlying(function), options))
        _registry.add(tool, tool._self_entry.spec)
        return tool

    return decorate


def _again(tool: Any, options: Options) -> Any:
    if entry_of(tool).options != options:
        msg = f"{entry_of(tool).tool.name} is metered already, with other options; decorate the bare function once"
        raise TypeError(msg)
    return tool


def _underlying(function: Any) -> Any:
    return function.__func__ if isinstance(function, (classmethod, staticmethod)) else function


def _must_be_function(function: Any) -> None:
    inner = _underlying(function)
    plain = isinstance(inner, (types.FunctionType, types.MethodType)) or (
        # A cache or another wrapper that keeps the name and leads to the function that it wraps.
        not isinstance(inner, type) and hasattr(inner, "__wrapped__") and hasattr(inner, "__qualname__")
    )
    if not plain or getattr(inner, "__name__", "") == "<lambda>":
        what = "a lambda" if plain else f"a {type(inner).__name__}"
        msg = f"@metered cannot make {what} a tool: it has no name and no signature of its own; write a def"
        raise TypeError(msg)


def entry_of(tool: Any) -> Entry:
    """Return what was computed for a tool at its decoration.

    Raises:
        TypeError: `tool` is not decorated.
    """
    if isinstance(tool, BoundMetered):
        tool = tool._self_parent
    if not isinstance(tool, Metered):
        msg = f"{tool!r} is not a tool; decorate it with @toolguard.metered(kind=...)"
        raise TypeError(msg)
    entry: Entry = tool._self_entry
    return entry


@overload
def spec(tool: Spec[P, R]) -> Spec[P, R]: ...
@overload
def spec(tool: Callable[P, Coroutine[Any, Any, R | Refusal]]) -> Spec[P, Coroutine[Any, Any, R]]: ...
@overload
def spec(tool: Callable[P, R | Refusal]) -> Spec[P, R]: ...
def spec(tool: Any) -> Any:
    """Return what is known of a tool: `name`, `kind`, `signature`, `description`, and `function`, the bare function.

    Raises:
        TypeError: `tool` is not decorated.
    """
    return tool if isinstance(tool, Spec) else entry_of(tool).spec
