"""The public run: a context manager that an agent's calls are charged to."""

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, NoReturn, ParamSpec, Self, TypeVar, Unpack, cast

from toolguard._calls import NO_HEAD, caller_within
from toolguard._metered import BoundMetered, Function, Metered, Same, entry_of
from toolguard._refusal import Refusal, converge, stop_message
from toolguard._session import RunState, Within, current_state, read_snapshot
from toolguard._stream import adrive, drive
from toolguard._values import Profile, Refused, Usage, canonical
from toolguard.walls import Limits
from toolguard.walls.cost import MICROS

__all__ = ["Run", "current_run", "resume", "run"]

P = ParamSpec("P")
R = TypeVar("R")

_STOPPED: Final = Refused("stop", None, None, "never")


class Run(RunState):
    """One agent's work on one request. Make it with `toolguard.run(...)` and use it as a context manager.

    Calls made inside the block, in tasks started there, and through `bind` are charged to it, also when they outlive the
    block. Entered again later it goes on counting; a retry or a reset is a new run.

    Attributes:
        id: the run's id, on every span of it.
        agent: the agent that the run works for, or None.
        session: the session, its own or that of the run around it.
        tenant: the tenant, likewise.
        mode: `enforce` or `observe`.
        parent: the run around it, or None.
    """

    parent: "Run | None"  # pyright: ignore[reportIncompatibleVariableOverride]  # only runs are made current
    _tools: Mapping[str, Any] | None = None

    def __init__(self, agent: str | None, *, tools: Iterable[Any] | None = None, **options: Any) -> None:
        """Check limits and tools; the run starts when it is entered or first used."""
        super().__init__(agent, **options)
        self._tools = None if tools is None else _offered(tuple(tools), self.settings.strip_prefixes)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.leave(error)

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.leave(error)

    def __repr__(self) -> str:
        agent = f" agent={self.agent!r}" if self.agent is not None else ""
        return f"<Run {self.id!r}{agent}>"

    @property
    def stopped(self) -> bool:
        """Whether the run is over: its own stop, or that of a run around it. Leave the loop when it is true."""
        return self.ended() is not None

    @property
    def stop_reason(self) -> str | None:
        """The name of the wall that stopped the run, `stop` after `stop()`, or None."""
        stop = self.ended()
        return None if stop is None else stop.why.reason

    @property
    def stop_message(self) -> str:
        """The text for the user of a stopped run, to be its last assistant message; empty until then."""
        stop = self.ended()
        return "" if stop is None else stop_message(stop)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The last 100 refusals, oldest first."""
        return tuple(self.refused)

    def usage(self) -> Usage:
        """Return what the run has used so far."""
        return self.ledger.usage()

    def turn(self) -> None:
        """Begin a model turn: call it once for each message of the model, before its calls are made.

        Parallel calls of one message share a turn. Turns let `refused_turns` judge by turn, keep a call from confirming
        itself within one message, and count towards `turn_step`.
        """
        self.ledger.begin_turn()
        self.tell_stop()

    def spend(self, tokens: int = 0, cost_usd: float | Decimal = 0) -> None:
        """Report what a request to a model cost. It counts for this run and every run around it.

        Past `tokens` or `cost_usd` of one of them that run is stopped at once, with all runs nested in it.

        Args:
            tokens: tokens spent, 0 or more.
            cost_usd: dollars spent, 0 or more; counted in millionths of a dollar, to the nearest.

        Raises:
            ValueError: one of them is no number, or negative.
        """
        self.ledger.spend(_tokens(tokens), _micros(cost_usd))
        self.tell_stop()

    def notes(self) -> list[str]:
        """Return short texts for the model's next request, to be its last content; nothing is due: an empty list.

        From `note_at` of the tightest limit on the whole run every call of this method returns the note; it reads and
        never drains. Put it into no tool result.
        """
        note = self.ledger.note()
        texts = list(note.texts)
        share = self._frozen.limits["note_at"]
        # A division is rounded once; `share * limit` may come out above the whole number that it is.
        if note.reading and share and note.reading.used / note.reading.limit >= share:
            texts.insert(0, converge(note.wall, note.reading))
        return texts

    def stop(self, message: str) -> None:
        """End the run, in observe mode too: every later call is refused.

        Args:
            message: the text for the user, which `stop_message` then returns.
        """
        self.ledger.stop(_STOPPED, message)
        self.tell_stop()

    def snapshot(self) -> dict[str, Any]:
        """Return the run as JSON-able data, from which `toolguard.resume` goes on with it in another process.

        It holds counts, limits, names and keyed digests, of this run, the runs around it and their sessions, and never an
        argument, a result or an error's text; the texts of `stop(message)` are in it. A call under way is carried as
        charged, a send under way as sent, and what comes of either never reaches the resumed run.

        Raises:
            TypeError: a name that the run was opened with is no text.
            RuntimeError: it is asked for in a signal handler or finaliser that interrupted a decision.
        """
        return self.written()

    def bind(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Return `fn` so that it runs inside this run in any thread, executor or task.

        Context variables do not reach `Thread`, `ThreadPoolExecutor.submit` or `loop.run_in_executor`; a bound function
        brings its run along, and its spans keep the parent that is current now, or the run's span where it is not current.

        Args:
            fn: a function of any kind: plain, coroutine, generator or async generator.
        """
        self.start()
        here = self.place()
        inside = functools.partial(Within, self, here)
        return cast("Callable[P, R]", _carrying(fn, inside))


_MOST: Final = 1 << 63


def _tokens(tokens: Any) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens < _MOST:
        msg = f"spend: tokens must be a whole number from 0, not {tokens!r}"
        raise ValueError(msg)
    return tokens


def _micros(cost: Any) -> int:
    # The shortest text of a float is what was written: 0.1 is a tenth, and three of them are exactly 0.3.
    if not isinstance(cost, bool) and isinstance(cost, (int, float, Decimal)):
        exact = Decimal(str(cost)) if isinstance(cost, float) else Decimal(cost)
        if exact.is_finite() and 0 <= exact < _MOST:
            return int((exact * MICROS).to_integral_value())
    msg = f"spend: cost_usd must be a number of dollars from 0, not {cost!r}"
    raise ValueError(msg)


class _Bound(Same, Function):
    """A function that brings its run along. It keeps signature, hints, docs and every predicate of `inspect`."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        msg = f"{self!r} carries its run, which stays in its process; open a run in the other process"
        raise TypeError(msg)

    def __repr__(self) -> str:
        return f"<bound to a run: {self.__wrapped__!r}>"


def _carrying(fn: Callable[..., Any], inside: Callable[[], Within]) -> Callable[..., Any]:
    go = _tool_carrying(fn, inside) if isinstance(fn, (Metered, BoundMetered)) else _plain_carrying(inside)
    return cast("Callable[..., Any]", _Bound(fn, go))


def _tool_carrying(tool: Any, inside: Callable[[], Within]) -> Callable[..., Any]:
    # Turn and time are taken when a tool is called, also of coroutines and generators, which begin later.
    go = caller_within(entry_of(tool), inside)

    def carry(tool: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = tool.__wrapped__
        return go(bound, args, kwargs, (bound.__self__,) if hasattr(bound, "__self__") else NO_HEAD)

    return carry


def _plain_carrying(inside: Callable[[], Within]) -> Callable[..., Any]:
    def carry(fn: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(fn):
            return _named(_task(lambda: fn(*args, **kwargs), inside()), fn)
        with inside():
            made = fn(*args, **kwargs)
        # What makes one of these has run nothing yet.
        if isinstance(made, types.CoroutineType):
            return _named(_task(lambda: made, inside()), made)
        if isinstance(made, types.GeneratorType):
            return drive(lambda: made, inside())
        if isinstance(made, types.AsyncGeneratorType):
            return adrive(lambda: made, inside())
        return made

    return carry


async def _task(make: Callable[[], Awaitable[Any]], step: Within) -> Any:
    with step:
        return await make()


def _named(coroutine: Any, like: Any) -> Any:
    for name in ("__name__", "__qualname__"):
        setattr(coroutine, name, getattr(like, name, coroutine.__name__))
    return coroutine


def _offered(tools: tuple[Any, ...], prefixes: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the tools by canonical name.

    Raises:
        TypeError: one of them is not decorated.
        ValueError: two of them have one name after folding.
    """
    offered: dict[str, Any] = {}
    for tool in tools:
        known = entry_of(tool).tool
        name = canonical(known.canonical, prefixes)
        other = offered.setdefault(name, tool)
        if other != tool:
            msg = (
                f"two tools of this run have one name: {_where(other)} and {_where(tool)}, both {name!r} once case, "
                "'-', '_', '.' and prefixes are folded; give one of them another name="
            )
            raise ValueError(msg)
    return MappingProxyType(offered)


def _where(tool: Any) -> str:
    entry = entry_of(tool)
    return f"{entry.tool.name} ({entry.function.__module__}.{entry.function.__qualname__})"


def run(
    agent: str | None = None,
    *,
    tools: Iterable[Callable[..., Any]] | None = None,
    session: str | None = None,
    tenant: str | None = None,
    run_id: str | None = None,
    mode: Literal["enforce", "observe"] | None = None,
    profile: Profile | None = None,
    **limits: Unpack[Limits],
) -> Run:
    """Open a run, the budget that an agent's calls are charged to: `with toolguard.run("assistant") as run: ...`.

    Runs nest: an inner run has an allowance of its own and inherits session, tenant and mode; an explicit `hard_cap`,
    `deadline_s`, `tokens` or `cost_usd` of an outer run binds all runs below it.

    Args:
        agent: the agent's name, for traces and for its table in the configuration.
        tools: the decorated functions and bound methods that this run is for: each must be decorated and no two may have
            one name. Tools that are not listed are charged all the same.
        session: names what several runs belong to, such as a conversation.
        tenant: names on whose behalf the run works.
        run_id: the run's id; by default a new one.
        mode: `enforce`, or `observe`, in which walls decide, mark the span and refuse nothing.
        profile: `assistant`, `coding` or `operations`: the defaults of the limits.
        limits: any limit of the configuration, such as `per_tool=60`. 0 switches a wall off and never means "none
            allowed", so check a computed rest before you pass it. They beat environment and configuration.

    Returns:
        The run, to be entered with `with` or `async with`.

    Raises:
        ConfigError: a limit is unknown or cannot be used; all problems are listed.
        TypeError: something in `tools` is not decorated.
        ValueError: two of `tools` have one name.
    """
    return Run(
        agent,
        tools=tools,
        session=session,
        tenant=tenant,
        run_id=run_id,
        mode=mode,
        profile=profile,
        limits=cast("Mapping[str, Any]", limits),
    )


def resume(snapshot: Mapping[str, Any], *, tools: Iterable[Callable[..., Any]] | None = None) -> Run:
    """Go on with a run that another process, or this one earlier, left: `with toolguard.resume(saved) as run: ...`.

    The run has the same id, counts, limits and stop; the runs around it come along, closed, and their limits hold. The time
    between does not count towards `deadline_s`. Its span links to the last one of the other process. A session of the same
    tenant and name which is the same one is shared with this process's other runs.

    Every resumption is a run of its own: resume a snapshot once, or what is left of its budget is there twice.

    Args:
        snapshot: what `Run.snapshot()` returned, also after JSON. It holds the key of its digests and its limits, so take
            it from where nobody else can write.
        tools: as for `run`.

    Returns:
        The run, to be entered with `with` or `async with`.

    Raises:
        ConfigError: this process's configuration cannot be used.
        TypeError: something in `tools` is not decorated.
        ValueError: it is no snapshot, or not as it was written, or two of `tools` have one name.
    """
    chain = read_snapshot(snapshot)
    made = Run.__new__(Run)
    if tools is not None:
        made._tools = _offered(tuple(tools), chain.runs[-1].about.strip_prefixes)  # noqa: SLF001
    made.go_on(chain)
    return made


def current_run() -> Run | None:
    """Return the run that a call made here would be charged to, or None."""
    return cast("Run | None", current_state())
