"""One call: bind → admit → span → body → settle. What can be known at decoration is computed there."""

import inspect
import json
import logging
import re
import types
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from toolguard import _config, _content, _gate, _names, _query, _registry, _signature, _telemetry
from toolguard._clock import tick
from toolguard._errors import MissingExtraError, NotExecuted
from toolguard._identity import binder, has_ordinal
from toolguard._ledger import GATE, UNBINDABLE, Plan
from toolguard._refusal import Refusal, refusal
from toolguard._registry import Spec
from toolguard._results import hand_on, hand_on_item
from toolguard._session import CURRENT, UNCOUNTED, Frame, Within, bare, harness, log, outside, refusing
from toolguard._stream import Step, adrive, drive
from toolguard._values import Call, Kind, Outcome, Refused, Tool, canonical

__all__ = ["NO_HEAD", "Entry", "Options", "Query", "caller", "caller_within"]

Query = str | tuple[str, str] | Callable[[Mapping[str, Any]], Any]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NO_HEAD: Final[tuple[Any, ...]] = ()
"""What a plain call puts before its arguments; a bound one puts its receiver there."""

_TOOL_ERROR: Final = "tool_error"

# What is known of a tool ----------------------------------------------------------------------------------------------


class Options(NamedTuple):
    """What the decorator was told; two decorations of one function must agree."""

    kind: Kind
    name: str | None
    limit: int | None
    query: Query | None
    delegate: bool | str
    polls: bool
    repeatable: bool
    ignore: tuple[str, ...]
    gate: _gate.Gate | None
    failed: Callable[[Any], object] | None


class Entry:
    """Everything about a tool that is known once it is decorated.

    Attributes:
        bind: returns the call's values in the order of `parameters`, defaults included, or raises `TypeError`.
        method: the first parameter is a receiver, which enters the identity as the object that it is.
        warned: the settings under which a call outside a run has been told of.
    """

    def __init__(self, function: Any, options: Options) -> None:
        """Check what the decorator was told and compute what calls need."""
        self.function = function
        self.options = options
        bare = function.__func__ if isinstance(function, types.MethodType) else function
        self.signature = _registry.signature_of(bare)
        self.parameters = tuple(self.signature.parameters)
        self.bind = binder(bare, self.signature)
        self.method = bare is not function or _looks_like_method(bare, self.parameters)
        self.warned: _config.Settings | None = None
        self.tool = _tool(function, options)
        self.failed = options.failed or _reports_failure
        self.counted = _counted(self.parameters, options.ignore)
        self.query = _query_facts(options.query, self.parameters)
        self.specialist = _specialist(options.delegate, self.parameters)
        self.gate = options.gate
        self.enter = _enter if options.gate is None else _enter_gated
        # A plain function's signature is the truth; one that was wrapped may accept what its signature does not say.
        self.truthful = isinstance(bare, types.FunctionType) and not hasattr(bare, "__wrapped__")
        self.truthful = self.truthful and not hasattr(bare, "__signature__")

    @cached_property
    def spec(self) -> Spec[..., Any]:
        """The public description."""
        return Spec(self.tool.name, self.tool.kind, self.function, self.tool)

    def values(self, head: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Unbound | None":
        """Bind where `bind` could not; None: the function itself will raise the `TypeError`."""
        if self.truthful:
            return None
        if self.method and not head:
            head, args = args[:1], args[1:]
        return Unbound((*head, args, dict(kwargs)))


class Unbound(tuple[Any, ...]):
    """The arguments of a call that the signature does not describe: the receiver, if any, then args and kwargs."""

    __slots__ = ()


def _looks_like_method(function: Any, parameters: tuple[str, ...]) -> bool:
    """Say whether a function stands in a class and takes a receiver; another decorator above may hide that later."""
    place = function.__qualname__.rpartition(".")[0]
    return bool(place) and not place.endswith("<locals>") and parameters[:1] in {("self",), ("cls",)}


def _tool(function: Any, options: Options) -> Tool:
    name = options.name if options.name is not None else function.__name__
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        cure = "give it one with name=" if options.name is None else "choose another"
        msg = f"@metered: {name!r} is no tool name; model APIs take 1 to 64 of A-Z a-z 0-9 _ -, so {cure}"
        raise ValueError(msg)
    limit: Any = options.limit  # whatever the program wrote
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 1 << 63):
        msg = f"@metered: limit of {name} must be a whole number of calls from 0 (off), not {limit!r}"
        raise ValueError(msg)
    return Tool(
        name,
        canonical(name),
        options.kind,
        limit,
        polls=options.polls,
        query=options.query is not None,
        delegate=bool(options.delegate),
        repeatable=options.repeatable,
    )


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


def _specialist(delegate: bool | str, parameters: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any] | None:  # noqa: FBT001  it is what the decorator was told
    """Return what finds the specialist's name in bound values, where one function serves several."""
    if isinstance(delegate, bool):
        return None
    _known("delegate", (delegate,), parameters)
    return itemgetter(parameters.index(delegate))


def _folded(name: Any) -> Any:
    """Fold a specialist's name as a tool's is. It may be anything, with methods of its own, none of which is called."""
    return canonical(str.__str__(name)) if issubclass(type(name), str) else name


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


def prepare(entry: Entry, run: Frame, values: tuple[Any, ...], turn: int, started: int, *, method: bool) -> Call:
    """Compute what the walls of the tool's plan read."""
    plan = run.ledger.plans.get(entry.tool) or run.ledger.plan(entry.tool)
    identity, query = b"", None
    if plan.identity or entry.gate is not None:
        name, counted = entry.tool.name, values
        if method and values:  # neither names nor tokens hold a NUL, so that none can pass for another
            name = f"{name}\0{run.hasher.receiver(values[0])}"
            if has_ordinal(values[0]):  # else what it holds is all that tells it apart
                counted = (None, *values[1:])
        if entry.counted is not None and type(values) is not Unbound:
            counted = entry.counted(counted)
        identity = run.hasher.identity(name, counted)
    if plan.query and type(values) is not Unbound:
        query = _shape(entry, run, values)
    call = Call(plan.tool, plan, identity, query, turn, started)
    if plan.specialist and entry.specialist is not None and type(values) is not Unbound:
        call.specialist = run.hasher.identity(f"{plan.tool.canonical}\0", (_folded(entry.specialist(values)),))
    if plan.now:
        call.now = run.clock()
    return call


def _enter(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...]) -> Call | Refusal:
    """Decide and charge one call, and start its span."""
    plan = call.plan
    why = run.ledger.admit(call, plan)
    if why is not None:
        return refuse(entry, run, call, why, values)
    if run.tracer is not None:
        extra = run.marks
        if call.would is not None or run.settings.capture_content:
            extra = {**(extra or {}), **_would(call), **_arguments(entry, run, values)}
        opened = _telemetry.open_call(run.tracer, plan.facts or _facts(run, plan), extra, call.confirms)
        if opened is not None:
            call.span, call.context = opened
        if call.tool.delegate:
            call.context = _telemetry.with_delegate(call.context, call.span)
    if run.duration is not None:
        call.began = run.clock()
    return call


def _enter_gated(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...]) -> Call | Refusal:
    """Ask the walls, then the gate, and then the walls again: a person must not approve what a budget then refuses."""
    assert entry.gate is not None  # noqa: S101  that is why we are here
    if why := run.ledger.ask(call, call.plan):
        return refuse(entry, run, call, why, values)
    answer = _gate.ask(entry.gate, _asked(entry, run, call, values))
    return _decided(entry, run, call, values, answer)


async def _aenter_gated(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...]) -> Call | Refusal:
    """Do the same where the gate may have to be awaited."""
    assert entry.gate is not None  # noqa: S101  that is why we are here
    if why := run.ledger.ask(call, call.plan):
        return refuse(entry, run, call, why, values)
    answer = await _gate.aask(entry.gate, _asked(entry, run, call, values))
    return _decided(entry, run, call, values, answer)


def _asked(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...]) -> _gate.Call:
    names = entry.parameters if type(values) is not Unbound else ("self", "args", "kwargs")[-len(values) :]
    arguments = types.MappingProxyType(dict(zip(names, values, strict=False)))
    return _gate.Call(entry.tool.name, entry.tool.kind, arguments, call.identity.hex(), cast("Any", run.home()))


def _decided(entry: Entry, run: Frame, call: Call, values: tuple[Any, ...], answer: str | None) -> Call | Refusal:
    if answer is not None:
        return refuse(entry, run, call, GATE, values, answer)
    if call.plan.now:
        call.now = run.clock()  # a person may have taken hours
    return _enter(entry, run, call, values)


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
    facts = _telemetry.CallFacts(plan.tool.name, plan.tool.kind, run.agent, run.id)
    plan.facts = facts
    return facts


def _would(call: Call) -> dict[str, Any]:
    return {} if call.would is None else {_names.WOULD_REFUSE: call.would.reason}


def _arguments(entry: Entry, run: Frame, values: tuple[Any, ...]) -> dict[str, Any]:
    if not run.settings.capture_content:
        return {}
    hidden = 1 if entry.method else 0
    return {_names.ARGUMENTS: _content.arguments(dict(zip(entry.parameters[hidden:], values[hidden:], strict=False)))}


def refuse(entry: Entry, run: Frame, call: Call, why: Refused, values: tuple[Any, ...], message: str | None = None) -> Refusal:
    """Turn a wall's no, or a gate's with its `message`, into the caller's answer, its span and its log record."""
    answer = refusal(why, entry.tool.name, entry.tool.kind, run.id, message)
    if run.tracer is not None:
        red = run.settings.refused_status == "error"
        extra = {**(run.marks or {}), **_arguments(entry, run, values)}
        facts = call.plan.facts or _facts(run, call.plan)
        fields = answer.to_dict()
        if message is not None:  # it is the program's text and may hold content
            fields["text"] = refusal(why, entry.tool.name, entry.tool.kind, run.id, "")
        call.trace = _telemetry.record_refusal(run.tracer, facts, fields, extra, red=red)
    run.ledger.end(call, why)
    run.tell_refusal(answer)
    return answer


def finish(entry: Entry, run: Frame, call: Call, value: Any) -> Any:
    """Settle a call that returned, end its span, and return what is handed on of its value."""
    error, plan = None, call.plan
    if plan.digest:
        call.digest = run.hasher.digest(value)
    if type(value) not in _NEVER_FAILURES:
        if type(value) is Refusal:
            call.inner = True
        elif _failed(entry, value):
            call.outcome, error = "error", _TOOL_ERROR
    elif entry.options.failed is not None and _failed(entry, value):
        call.outcome, error = "error", _TOOL_ERROR
    if error is not None and plan.signature:
        call.signature = _signature.of_value(value)
    handed = hand_on(run.ledger, call, value) if plan.measured and not call.inner else value
    run.ledger.end(call)
    if run.duration is not None:
        _record_duration(run, call, error)
    if call.span is not None:
        extra = call.marks
        if run.settings.capture_content and not call.inner:
            extra = {**(extra or {}), _names.RESULT: _content.result(value)}
        _telemetry.close_call(call.span, call.outcome, error=error, extra=extra)
    return handed


def finish_stream(run: Frame, call: Call, items: int) -> None:
    """Settle a generator that ran to its end. What it handed out is gone, so its outcome cannot be measured."""
    run.ledger.end(call)
    if run.duration is not None:
        _record_duration(run, call, None)
    if call.span is not None:
        _telemetry.close_call(call.span, call.outcome, extra={**(call.marks or {}), _names.STREAM_ITEMS: items})


_NEVER_FAILURES: Final = frozenset({str, int, float, bool, bytes, list, tuple, set, type(None)})


def _failed(entry: Entry, value: Any) -> bool:
    try:
        return bool(entry.failed(value))
    except Exception:  # noqa: BLE001  a predicate that fails says nothing
        log(logging.WARNING, "failed= of %s failed, so its value counts as a success", entry.tool.name)
        return False


def fail(
    entry: Entry, run: Frame, call: Call, error: BaseException, *, items: int | None = None, abandoned: bool = False
) -> Refusal | None:
    """Settle a call that raised, and end its span; a `NotExecuted` comes back as a refusal."""
    call.outcome = "abandoned" if abandoned else _outcome(error)
    name = _telemetry.type_name(error) if call.outcome == "error" else None
    if name is not None:
        if call.plan.digest and not items:
            # The same failure again is nothing new. What an exception shows of itself may be the user's code; `args` is not.
            call.digest = run.hasher.digest((name, BaseException.args.__get__(error)))  # type: ignore[attr-defined]
        if call.plan.signature:
            call.signature = _signature.of_error(name, error)
    run.ledger.end(call)
    answer = None
    extra: dict[str, Any] = dict(call.marks or {}) if items is None else {**(call.marks or {}), _names.STREAM_ITEMS: items}
    if isinstance(error, NotExecuted):
        answer = refusal(GATE, entry.tool.name, entry.tool.kind, run.id, error.message)
        extra |= {_names.EXECUTED: False, _names.REFUSED: True, _names.REASON: GATE.reason, _names.RETRY: GATE.retry}
        run.tell_refusal(answer)
    elif run.duration is not None:
        _record_duration(run, call, name)
    if call.span is not None:
        message = _message(error) if name and run.settings.capture_content else ""
        _telemetry.close_call(call.span, call.outcome, error=name, extra=extra, message=message)
    return answer


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, NotExecuted):
        return "not_executed"
    if isinstance(error, Exception):
        return "error"
    return "closed" if isinstance(error, GeneratorExit) else "cancelled"


def _message(error: BaseException) -> str:
    try:
        text: str = json.loads(_content.result(str(error)))
        return text.encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001  an exception's own `__str__` may raise
        return ""


def _record_duration(run: Frame, call: Call, error: str | None) -> None:
    seconds = max(0.0, run.clock() - call.began)
    _telemetry.record_duration(run.duration, call.plan.facts or _facts(run, call.plan), seconds, error, call.span)


# The four kinds of function; they differ by `await` and `yield` alone -------------------------------------------------


def _sync(entry: Entry) -> Callable[..., Any]:
    bind, get_run, get_uncounted, enter = entry.bind, CURRENT.get, UNCOUNTED.get, entry.enter

    def call_it(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], head: tuple[Any, ...]) -> Any:
        run: Frame | None = get_run()
        if (run is None or get_uncounted()) and (run := _elsewhere(entry)) is None:
            return fn(*args, **kwargs)
        values: tuple[Any, ...] | None
        try:
            values = bind(*head, *args, **kwargs)
        except TypeError:
            values = None  # what the function raises must not have this error as its context
        if values is None and (values := _rebind(entry, run, head, args, kwargs)) is None:
            return fn(*args, **kwargs)
        call: Any = prepare(entry, run, values, run.ledger.turn, tick(), method=entry.method or head is not NO_HEAD)
        call = enter(entry, run, call, values)
        if type(call) is Refusal:
            return call
        token = _telemetry.attach(call.context) if call.context is not None else None
        try:
            value = fn(*args, **kwargs)
        except BaseException as error:
            _telemetry.detach(token)
            answer = fail(entry, run, call, error)
            if answer is not None:
                return answer
            raise
        if token is not None:
            _telemetry.detach(token)
        return finish(entry, run, call, value)

    return call_it


def _rebind(
    entry: Entry, run: Frame, head: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Return other values to judge the call by, or None: it cannot be called like that, which the ledger hears."""
    values = entry.values(head, args, kwargs)
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

    def prepare(self) -> Call:
        return prepare(self.entry, self.run, self.values, self.turn, self.started, method=self.method)

    def begin(self) -> Call | Refusal:
        return self.entry.enter(self.entry, self.run, self.prepare(), self.values)

    async def abegin(self) -> Call | Refusal:
        if self.entry.gate is None:
            return self.begin()
        return await _aenter_gated(self.entry, self.run, self.prepare(), self.values)

    def body(self) -> Any:
        return self.fn(*self.args, **self.kwargs)


def _starting(entry: Entry, start: Callable[[_Made], Any]) -> Callable[..., Any]:
    """Take run, turn and time when the call is made."""
    bind, name, qualname = entry.bind, entry.function.__name__, entry.function.__qualname__

    def call_it(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], head: tuple[Any, ...]) -> Any:
        run: Frame | None = CURRENT.get()
        if (run is None or UNCOUNTED.get()) and (run := _elsewhere(entry)) is None:
            return fn(*args, **kwargs)
        values: tuple[Any, ...] | None
        try:
            values = bind(*head, *args, **kwargs)
        except TypeError:
            values = None  # what the function raises must not have this error as its context
        if values is None and (values := _rebind(entry, run, head, args, kwargs)) is None:
            return fn(*args, **kwargs)
        method = bool(head) or entry.method
        made = start(_Made(entry, run, fn, args, kwargs, values, run.ledger.turn, tick(), method))
        made.__name__, made.__qualname__ = name, qualname  # "coroutine 'search' was never awaited"
        return made

    return call_it


async def _coroutine_within(step: Within, made: _Made) -> Any:
    with step:
        return await _coroutine(made)


async def _coroutine(made: _Made) -> Any:
    call = made.begin() if made.entry.gate is None else await made.abegin()
    if isinstance(call, Refusal):
        return call
    try:
        with Within(made.run.home(), call.context):
            value = await made.body()
    except BaseException as error:
        answer = fail(made.entry, made.run, call, error)
        if answer is not None:
            return answer
        raise
    return finish(made.entry, made.run, call, value)


class _Streamed(Within):
    """A generator's call: it begins at the first step and ends with the body, or when nobody wants more."""

    __slots__ = ("_call", "_handed", "_made", "me")

    def __init__(self, made: _Made) -> None:
        super().__init__(made.run.home())
        self._made = made
        self._call: Call | None = None
        self._handed = 0
        self.me: Callable[[], Any] = lambda: self

    def start(self) -> Refusal | None:
        return self._begun(self._made.begin())

    async def astart(self) -> Refusal | None:
        return self._begun(await self._made.abegin())

    def _begun(self, call: Call | Refusal) -> Refusal | None:
        if isinstance(call, Refusal):
            return call
        self._call, self._context = call, call.context
        return None

    def hand(self, item: Any) -> Any:
        assert self._call is not None  # noqa: S101  `start` made it
        if self._call.plan.measured:
            ledger, before = self._made.run.ledger, self.items - 1
            item, self._handed, self.full = hand_on_item(ledger, self._call, item, before, self._handed)
        return item

    @property
    def whole(self) -> bool:
        return self._made.entry.tool.kind == "send"

    def end(self, value: Any) -> None:  # noqa: ARG002  what a generator returns was handed on already
        assert self._call is not None  # noqa: S101  `start` made it
        finish_stream(self._made.run, self._call, self.items)

    def fail(self, error: BaseException) -> Refusal | None:
        assert self._call is not None  # noqa: S101  `start` made it
        # A finaliser finds the weak reference dead, an explicit close finds it alive.
        abandoned = isinstance(error, GeneratorExit) and self.me() is None
        return fail(self._made.entry, self._made.run, self._call, error, items=self.items, abandoned=abandoned)


def _driver(entry: Entry) -> Callable[[Callable[[], Any], Step], Any]:
    return drive if inspect.isgeneratorfunction(entry.function) else adrive


def _stream(made: _Made) -> Any:
    step = _Streamed(made)
    stream = _driver(made.entry)(made.body, step)
    step.me = weakref.ref(stream)
    return stream


def _stream_within(place: Within, made: _Made) -> Any:
    step = _Streamed(made)
    drive_it = _driver(made.entry)
    stream = drive_it(lambda: drive_it(made.body, step), place)
    step.me = weakref.ref(stream)  # the consumer holds the outer one
    return stream


# Outside a run, and calls of the harness ------------------------------------------------------------------------------


def _elsewhere(entry: Entry) -> Frame | None:
    """Return where a call is made that `CURRENT` does not place; None: the bare function answers it."""
    run = CURRENT.get() or _telemetry.carried()
    if UNCOUNTED.get():
        return harness(run)
    if run is not None:
        return run  # only runs are put there
    settings = _config.settings_outside()
    if settings.outside_run == "allow":
        return None if entry.gate is None else bare()
    if settings.outside_run == "refuse":
        return refusing()
    if entry.warned is not settings:
        entry.warned = settings
        log(logging.WARNING, _NO_RUN, entry.tool.name)
    return outside()


_NO_RUN: Final = (
    "%s was called outside a run, so nothing limits it: open one with toolguard.run(...), carry it into threads and "
    'executors with run.bind(fn), or set outside_run to "allow" or "refuse"'
)


def caller(entry: Entry) -> Callable[..., Any]:
    """Return what makes a call: `(bound function, args, kwargs, head) -> result`, in the shape that the function has."""
    function = entry.function
    if inspect.iscoroutinefunction(function):
        return _starting(entry, _coroutine)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return _starting(entry, _stream)
    return _sync(entry)


def caller_within(entry: Entry, inside: Callable[[], Within]) -> Callable[..., Any]:
    """Return `caller(entry)` for a tool that brings its place along: it is made, and makes every step, `inside`."""
    function = entry.function
    if inspect.iscoroutinefunction(function):
        go = _starting(entry, lambda made: _coroutine_within(inside(), made))
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        go = _starting(entry, lambda made: _stream_within(inside(), made))
    else:
        go = _sync(entry)

    def call_it(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], head: tuple[Any, ...]) -> Any:
        with inside():
            return go(fn, args, kwargs, head)

    return call_it
