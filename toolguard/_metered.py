"""The decorator and the wrapper that it puts around a function."""

import copy
import inspect
import pickle
import sys
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

import wrapt

from toolguard import _config, _registry, _telemetry
from toolguard._calls import NO_HEAD, Entry, Options, Query, caller
from toolguard._gate import Gate, takes_time
from toolguard._refusal import Refusal
from toolguard._registry import Spec
from toolguard._session import CURRENT, UNCOUNTED

__all__ = ["BoundMetered", "Function", "Metered", "Same", "entry_of", "metered", "spec"]

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")
T = TypeVar("T")

if TYPE_CHECKING:
    Function = wrapt.FunctionWrapper[Any, Any]
    _BoundFunction = wrapt.BoundFunctionWrapper[Any, Any]
else:  # generic in the type stubs alone, in older versions of wrapt
    Function, _BoundFunction = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper

# The wrapper ----------------------------------------------------------------------------------------------------------


class _Annotations:
    """The function's annotations, for tools, and none for the class of a tool.

    Without it, whoever asks the class would leave an empty dict there, which then hides the function's.
    """

    def __get__(self, tool: Any, owner: type | None = None) -> Any:
        return {} if tool is None else tool.__wrapped__.__annotations__

    def __set__(self, tool: Any, annotations: Any) -> None:
        tool.__wrapped__.__annotations__ = annotations


_ANNOTATIONS: Any = _Annotations()


class Same:
    """Identity, copying and pickling of a tool: it is itself, and nothing else is.

    A plain wrapt proxy equals the function that it wraps; a cache keyed by functions would then run the unmetered one.
    """

    __slots__ = ()  # else it would bring a `__dict__` that hides the function's

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__annotations__ = _ANNOTATIONS

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<metered {self.__wrapped__!r}>"  # type: ignore[attr-defined]  # the proxy's own


class BoundMetered(Same, _BoundFunction):
    """A tool that was reached through an instance or a class. Each access makes a new one; they are equal by receiver."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        bound = self.__wrapped__
        receiver = getattr(bound, "__self__", NO_HEAD)
        return self._self_parent._self_go(bound, args, kwargs, NO_HEAD if receiver is NO_HEAD else (receiver,))

    @property
    def __func__(self) -> Any:
        # What rebinds a method takes its `__func__`; the bare function's would be a way round the budget.
        if not isinstance(self.__wrapped__, types.MethodType):
            raise AttributeError(name="__func__", obj=self)
        return self._self_parent._self_unbound()

    def _self_key(self) -> tuple[int, int]:
        return id(self._self_parent), id(getattr(self.__wrapped__, "__self__", None))

    def __eq__(self, other: object) -> bool:
        return type(other) is BoundMetered and self._self_key() == other._self_key()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._self_key())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        receiver = getattr(self.__wrapped__, "__self__", None)
        if receiver is None or isinstance(receiver, type):
            return self
        return self._self_parent.__get__(copy.deepcopy(receiver, memo), type(receiver))

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = self.__wrapped__.__name__
        receiver = getattr(self.__wrapped__, "__self__", None)
        if receiver is None:
            receiver = _owner_of(self)
            if getattr(receiver, name, None) != self:
                msg = f"cannot pickle {self!r}: it is not what {self.__module__} holds as {self.__qualname__}"
                raise pickle.PicklingError(msg)
        return getattr, (receiver, name)


class Metered(Same, Function):
    """A decorated function. It keeps signature, hints, docs and every predicate of `inspect`."""

    __bound_function_wrapper__ = BoundMetered

    def __init__(self, wrapped: Any, entry: Entry) -> None:
        super().__init__(wrapped, _never)
        self._self_entry = entry
        self._self_inner: Metered | None = None
        self._self_go = caller(entry)

    def __set_name__(self, owner: type, name: str) -> None:
        # Not where a class only gives a name to a function that was defined elsewhere.
        if self.__qualname__.rpartition(".")[0] == owner.__qualname__:
            self._self_entry.method = not isinstance(self.__wrapped__, staticmethod)

    @property
    def __func__(self) -> Any:
        # As above, for what unpacks class and static methods.
        if not hasattr(self.__wrapped__, "__func__"):
            raise AttributeError(name="__func__", obj=self)
        return self._self_unbound()

    def _self_unbound(self) -> "Metered":
        function = getattr(self.__wrapped__, "__func__", None)
        if function is None:
            return self
        if self._self_inner is None:
            self._self_inner = _wrap(function, self._self_entry)
        return self._self_inner

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _qualified_name(self)


def _wrap(function: Any, entry: Entry) -> Metered:
    """Put the wrapper around a function: a class of its own, whose `__call__` holds all that it needs.

    Looking the same up on the instance would cost every call 0.2 µs.
    """
    get_run, get_uncounted = CURRENT.get, UNCOUNTED.get
    allowed, carried = _config.is_bare_outside, _telemetry.carried
    head = (function.__self__,) if isinstance(function, types.MethodType) else NO_HEAD

    ungated = entry.gate is None

    def __call__(_self: Metered, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  it becomes the class's
        if ungated and get_run() is None and allowed() and carried() is None and not get_uncounted():
            return function(*args, **kwargs)
        return go(function, args, kwargs, head)

    made: Any = type("Metered", (Metered,), {"__call__": __call__, "__module__": __name__})(function, entry)
    go = made._self_go
    return cast("Metered", made)


def _qualified_name(tool: Any) -> str:
    name: str = tool.__qualname__  # pickle looks it up in the tool's module and checks that it finds this very object
    return name


def _owner_of(tool: Any) -> Any:
    """Return the class in which a tool was defined, or None where it cannot be found by name."""
    try:
        return attrgetter(tool.__qualname__.rpartition(".")[0])(sys.modules[tool.__module__])
    except (AttributeError, KeyError):
        return None


def _never(*_: Any) -> NoReturn:
    msg = "the wrapper calls its function itself"
    raise AssertionError(msg)


# The decorator --------------------------------------------------------------------------------------------------------


class _OnlyAny:
    """A type that no program has, so that only a function returning `Any` matches it."""


class Decorator(Protocol):
    """What `metered(...)` returns: it adds `Refusal` to what a function returns or yields."""

    # The overloads overlap on purpose: the first that fits is the narrowest.
    @overload
    def __call__(  # type: ignore[overload-overlap]  # see above
        self, function: Callable[P, _OnlyAny], /
    ) -> Callable[P, Any]: ...
    @overload
    def __call__(self, function: "classmethod[T, P, R]", /) -> "classmethod[T, P, R | Refusal]": ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # see above
        self, function: "staticmethod[P, R]", /
    ) -> "staticmethod[P, R | Refusal]": ...
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
    delegate: bool | str = False,
    polls: bool = False,
    repeatable: bool = False,
    ignore: tuple[str, ...] = (),
    gate: Gate | None = None,
    failed: Callable[[Any], object] | None = None,
) -> Decorator:
    """Make a plain function an agent's tool: registered, charged to the current run, traced, and never raising a refusal.

    The tool returns what the function returns, raises what it raises, and returns a `Refusal` instead of running where a
    wall of the run says no. A coroutine function returns it when awaited; a generator yields it once. A plain function
    that returns an awaitable is charged when it is called, and its refusal is the refusal itself.

    Put caches and result validation below: a cache above keeps a refusal for good, and a validator of results above rejects
    it unless the annotation says `R | Refusal`.

    Args:
        misused: nothing; it is here to explain `@metered` without parentheses.
        kind: `"read"` for what gathers, `"send"` for what delivers (mails, posts, writes). Required.
        name: the tool's name, 1 to 64 of `A-Z a-z 0-9 _ -`; by default the function's.
        limit: this tool's own limit, in calls a run: it replaces `per_tool` for a read, and takes a send out of the
            common reserve of `delivery`. 0: no limit.
        query: which parameters hold a query: `("file_ref", "sql")`, `"sql"`, or a callable that gets the bound arguments
            as a mapping and returns `(file_ref, sql)`, the SQL alone, or None. Needs the extra `sql`.
        delegate: the function is a specialist agent: `True`, or the name of the parameter that says which of several. It
            must be a read.
        polls: an unchanged result is expected, as of a status that is asked again and again.
        repeatable: an identical send may be repeated, as of a tick or a heartbeat.
        ignore: parameters that do not tell two calls apart, such as a timeout.
        gate: decides of each single call that every wall would admit: it gets a `Call` and returns None, or the text that the
            model reads instead of a result. It is charged to nothing, and always asked, in observe mode and outside a run
            too. One that raises refuses. For async tools it may be async.
        failed: says of a returned value whether it reports a failure; by default a mapping with a truthy `error`,
            `is_error` or `isError` does.

    Returns:
        The decorator.

    Raises:
        TypeError: `kind` is missing or wrong, what is decorated is no function, or a plain function has an async gate.
        ValueError: a name, limit or parameter name cannot be used.
        MissingExtraError: `query` is given and the extra `sql` is not installed.
    """
    if misused or kind is None or kind not in ("read", "send"):
        given = "" if misused or kind is None else f", not {kind!r}"
        msg = f'write @metered(kind="read") or @metered(kind="send"){given}'
        raise TypeError(msg)
    _check(query, gate, failed)
    _check_delegate(delegate, kind)
    _check_flags(polls=polls, repeatable=repeatable)
    options = Options(kind, name, limit, query, delegate, polls, repeatable, _names_of(ignore), gate, failed)

    def decorate(function: Any) -> Any:
        if isinstance(tool := _underlying(function), (Metered, BoundMetered)):
            _same_options(tool, options)
            return function
        _must_be_function(function)
        _must_wait(function, gate)
        tool = _wrap(function, Entry(_underlying(function), options))
        _registry.add(tool, tool._self_entry.spec)
        return tool

    return decorate


def _check_delegate(delegate: Any, kind: str) -> None:
    if not isinstance(delegate, (bool, str)) or delegate == "":
        msg = f"@metered: delegate= takes True or the name of the parameter that says which specialist, not {delegate!r}"
        raise TypeError(msg)
    if delegate and kind != "read":
        msg = '@metered: a delegate gathers an answer, so it needs kind="read"; what it sends is charged to its own run'
        raise ValueError(msg)


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            msg = f"@metered: {name}= takes True or False, not {value!r}"
            raise TypeError(msg)


def _must_wait(function: Any, gate: Gate | None) -> None:
    inner = _underlying(function)
    waits = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
    if gate is not None and takes_time(gate) and not waits:
        msg = f"@metered: {inner.__name__} is a plain function and cannot wait for an async gate; make one of them the other"
        raise TypeError(msg)


def _check(query: Any, gate: Any, failed: Any) -> None:
    if not (query is None or isinstance(query, str) or callable(query) or (isinstance(query, tuple) and _are_two_names(query))):
        msg = f'@metered: query= takes "sql_parameter", ("file_parameter", "sql_parameter") or a function, not {query!r}'
        raise TypeError(msg)
    if gate is not None and not callable(gate):
        msg = f"@metered: gate= takes a function of a Call that returns None or a text, not {gate!r}"
        raise TypeError(msg)
    if failed is not None and not callable(failed):
        msg = f"@metered: failed= takes a function of the returned value, not {failed!r}"
        raise TypeError(msg)


def _are_two_names(query: tuple[Any, ...]) -> bool:
    return len(query) == 2 and all(isinstance(name, str) for name in query)  # noqa: PLR2004


def _names_of(ignore: Any) -> tuple[str, ...]:
    """Take one name alone as well; a str is iterable and would be taken letter by letter."""
    names: tuple[Any, ...] = (
        (ignore,) if isinstance(ignore, str) else tuple(ignore) if isinstance(ignore, Iterable) else (None,)
    )
    if not all(isinstance(name, str) for name in names):
        msg = f"@metered: ignore= takes names of parameters, not {ignore!r}"
        raise TypeError(msg)
    return names


def _same_options(tool: Any, options: Options) -> None:
    if entry_of(tool).options != options:
        msg = f"{entry_of(tool).tool.name} is metered already, with other options; decorate the bare function once"
        raise TypeError(msg)


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
    elif _is_plain_method(tool):
        tool = tool.__func__
    if not isinstance(tool, Metered):
        msg = f"{tool!r} is not a tool; decorate it with @toolguard.metered(kind=...)"
        raise TypeError(msg)
    entry: Entry = tool._self_entry
    return entry


def _is_plain_method(tool: Any) -> bool:
    """Say whether a tool is below a classmethod that binds it by itself, as Python does from 3.13 on."""
    return type(tool) is types.MethodType and isinstance(tool.__func__, Metered)


@overload
def spec(tool: Spec[P, R]) -> Spec[P, R]: ...
@overload
def spec(tool: Callable[P, Coroutine[Any, Any, R | Refusal]]) -> Spec[P, Coroutine[Any, Any, R]]: ...
@overload
def spec(  # pyright: ignore[reportOverlappingOverload]  # the first that fits is the narrowest
    tool: Callable[P, Generator[Y | Refusal, S, R | None]],
) -> Spec[P, Generator[Y, S, R]]: ...
@overload
def spec(  # pyright: ignore[reportOverlappingOverload]  # as above
    tool: Callable[P, AsyncGenerator[Y | Refusal, S]],
) -> Spec[P, AsyncGenerator[Y, S]]: ...
@overload
def spec(tool: Callable[P, AsyncIterator[Y | Refusal]]) -> Spec[P, AsyncIterator[Y]]: ...
@overload
def spec(tool: Callable[P, Iterator[Y | Refusal]]) -> Spec[P, Iterator[Y]]: ...
@overload
def spec(tool: Callable[P, R | Refusal]) -> Spec[P, R]: ...
def spec(tool: Any) -> Any:
    """Return what is known of a tool: `name`, `kind`, `signature`, `description`, and `function`, the bare function.

    Raises:
        TypeError: `tool` is not decorated.
    """
    if isinstance(tool, Spec):
        return tool
    known = entry_of(tool).spec
    # What was reached through a receiver takes no receiver.
    if isinstance(tool, BoundMetered):
        return replace(known, function=tool.__wrapped__)
    if _is_plain_method(tool):
        return replace(known, function=types.MethodType(tool.__func__.__wrapped__, tool.__self__))
    return known
