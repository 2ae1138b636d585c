"""The run's inside: which run is current, how runs nest, and what a call needs to know of its run."""

import logging
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, cast

from toolguard import _collector, _config, _names, _snapshot, _telemetry
from toolguard._clock import Clock, monotonic
from toolguard._identity import Hasher
from toolguard._ledger import Ledger, Past
from toolguard._refusal import Refusal, stop_message
from toolguard._tree import SECTION, Session, totals
from toolguard._values import Refused, Stop
from toolguard.walls import NAMES, TABLE

__all__ = [
    "CURRENT",
    "UNCOUNTED",
    "Frame",
    "RunState",
    "Within",
    "bare",
    "current_state",
    "forget",
    "forget_sessions",
    "harness",
    "log",
    "outside",
    "read_snapshot",
    "refusing",
    "set_clock",
    "uncounted",
]

_logger = logging.getLogger("toolguard")

VERSION: str = "0"
"""Set by the package, which alone knows it."""

CURRENT: Final[ContextVar["RunState | None"]] = ContextVar("toolguard_run", default=None)
UNCOUNTED: Final[ContextVar[bool]] = ContextVar("toolguard_uncounted", default=False)

_KEPT_REFUSALS: Final = 100

_clock: Clock = monotonic


def set_clock(clock: Clock | None) -> Clock:
    """Replace the clock of runs that start from now on and return the former; None: the real one."""
    global _clock
    former, _clock = _clock, clock or monotonic
    return former


def current_state() -> "RunState | None":
    """Return the run of this context: the context variable's or, where that was lost, OpenTelemetry's."""
    run = CURRENT.get()
    if run is None:
        run = _telemetry.carried()
    while run is not None and run._gone:  # noqa: SLF001
        run = run._outer  # noqa: SLF001
    return run


def forget() -> Callable[[], None]:
    """Make this context one without a run, and return what undoes it, by value: it may be undone in another one."""
    run, uncounted, before = CURRENT.get(), UNCOUNTED.get(), _telemetry.current()
    CURRENT.set(None)
    UNCOUNTED.set(False)
    _telemetry.attach(_telemetry.with_run(None, before))

    def remember() -> None:
        CURRENT.set(run)
        UNCOUNTED.set(uncounted)
        _telemetry.attach(before)

    return remember


@contextmanager
def uncounted() -> Iterator[None]:
    """Mark the calls inside as the harness's own: they are traced, charged to nothing, and no wall sees them.

    Also after a stop and outside a run they execute.
    """
    token = UNCOUNTED.set(True)
    try:
        yield
    finally:
        try:
            if not _collector.is_here():
                UNCOUNTED.reset(token)
        except ValueError:
            log(logging.WARNING, "uncounted() was left in another context than it was entered in; put it around the calls")


# Sessions -------------------------------------------------------------------------------------------------------------

_Sessions = OrderedDict[tuple[str | None, str], Session]

_sessions: _Sessions = OrderedDict()


def _session_of(tenant: str | None, name: str | None, most: int) -> Session:
    """Return the session of that name, which at most `most` others were used after; without a name, one of its own."""
    if name is None or not most:
        return Session()
    with SECTION.lock:
        session = _sessions.get((tenant, name))
        if session is None:
            session = _sessions[tenant, name] = Session()
        _sessions.move_to_end((tenant, name))
        while len(_sessions) > most:
            _sessions.popitem(last=False)
        return session


def _take_in(tenant: str | None, name: str | None, most: int, brought: Session) -> Session:
    """Return the session in which a resumed run goes on: the process's own where it is the same one, else `brought`.

    What is brought becomes the process's, unless it has no name or another session of that name is there.
    """
    if name is None or not most:
        return brought
    with SECTION.lock:
        there = _sessions.get((tenant, name))
        if there is not None and there.key != brought.key:
            return brought
        _sessions.setdefault((tenant, name), brought)
        return _session_of(tenant, name, most)


def forget_sessions(instead: _Sessions | None = None) -> _Sessions:
    """Let the process remember other sessions, or none, from now on, and return those that it remembered."""
    global _sessions
    former, _sessions = _sessions, OrderedDict() if instead is None else instead
    return former


# Where calls are made -------------------------------------------------------------------------------------------------

_watched = False


def scope() -> _telemetry.Scope:
    """Return tracer and instruments; the calls counter is offered once."""
    global _watched  # noqa: PLW0603  an instrument is made once a process
    if not _watched:
        _watched = True
        _telemetry.watch(VERSION, totals)
    return _telemetry.scope(VERSION)


class Frame:
    """What a call needs to know of the place where it is made: a run or, outside one, what stands in for it.

    Attributes:
        id: the run's id; None outside a run.
        agent: the run's agent.
        marks: attributes that mark the place on every span.
    """

    id: str | None
    agent: str | None
    settings: _config.Settings
    ledger: Ledger
    hasher: Hasher
    clock: Clock
    tracer: Any
    duration: Any
    marks: Mapping[str, Any] | None = None

    def home(self) -> "RunState | None":
        """Return the run that the body of a call made here is in."""
        raise NotImplementedError

    def tell_refusal(self, refusal: Refusal) -> None:
        """Write a refusal to the log."""
        log(logging.INFO, "refused: %s", refusal.reason, extra=refusal.to_dict())


class Loose(Frame):
    """A place without walls: outside a run, or inside `uncounted()`."""

    def __init__(
        self, settings: _config.Settings, run: "RunState | None", why: Refused | None = None, *, traced: bool = True
    ) -> None:
        """Take name and identities from `run` where there is one; `why` refuses everything."""
        self.id, self.agent = (run.id, run.agent) if run else (None, None)
        self._run = run
        self._traced = traced
        self.settings = settings
        self.ledger = Ledger((), {}, session=Session(b""))
        self.hasher = run.hasher if run else self.ledger.session.hasher
        if why is not None:
            self.ledger.set_stop(why)
        self.clock = _clock
        self.find_scope()

    def home(self) -> "RunState | None":
        """Return the run whose own calls are made here, or None."""
        return self._run

    def find_scope(self) -> None:
        """Take up the providers that are set by now."""
        self.tracer, duration = scope() if self._traced else (None, None)
        self.duration = duration if self.settings.duration_histogram else None


OUTSIDE: Final = Refused("outside_run", None, None, "never")

_loose: dict[str, Loose] = {}


def _at_large(name: str, marks: Mapping[str, Any] | None = None, why: Refused | None = None, *, traced: bool = True) -> Loose:
    """Return one of the places outside a run, made anew when the configuration changed."""
    settings = _config.settings_outside()
    place = _loose.get(name)
    if place is None or place.settings is not settings:
        place = _loose[name] = Loose(settings, None, why, traced=traced)
        place.marks = marks
    elif place.tracer is None:
        place.find_scope()
    return place


def outside() -> Loose:
    """Return the place of calls that are made outside a run."""
    return _at_large("outside")


def bare() -> Loose:
    """Return the place of calls outside a run that only a gate sees: `outside_run = "allow"`."""
    return _at_large("bare", traced=False)


def refusing() -> Loose:
    """Return the place in which `outside_run = "refuse"` answers."""
    return _at_large("refusing", None, OUTSIDE)


def harness(run: "RunState | None") -> Loose:
    """Return the place of the harness's own calls."""
    if run is None:
        return _at_large("harness", _UNCOUNTED_MARK)
    if run.harness is None:
        run.harness = Loose(run.settings, run)
        run.harness.marks = _UNCOUNTED_MARK
    return run.harness


_UNCOUNTED_MARK: Final = {_names.UNCOUNTED: True}


def read_snapshot(data: Any) -> _snapshot.Chain:
    """Return the runs that `RunState.written` wrote, to be gone on with."""
    return _snapshot.read(data, VERSION)


class RunState(Frame):
    """One agent's work on one request, without its public face."""

    _gone = False
    """The collector left the run and could not make the outer one current again; whoever looks takes that one."""

    def __init__(
        self,
        agent: str | None,
        *,
        session: str | None,
        tenant: str | None,
        run_id: str | None,
        mode: str | None,
        profile: str | None,
        limits: Mapping[str, Any],
    ) -> None:
        """Check the limits now, so that a mistake shows where it was made; everything else waits for the start."""
        self.settings = _config.settings()
        self._session, self._tenant, self._mode = session, tenant, mode
        self._frozen = _config.resolve(self.settings, agent, profile=profile, mode=mode, limits=limits)
        self._lay(uuid.uuid4().hex if run_id is None else run_id, agent)

    def _lay(self, run_id: str, agent: str | None) -> None:
        self.id: str = run_id  # pyright: ignore[reportIncompatibleVariableOverride]
        self.agent = agent
        self.parent: RunState | None = None
        self.harness: Loose | None = None
        self.refused: deque[Refusal] = deque(maxlen=_KEPT_REFUSALS)
        self._starting = threading.Lock()
        self._started = self._open = False
        self._span: _telemetry.RunSpan | None = None
        self._token: Token[RunState | None] | None = None
        self._outer: RunState | None = None
        self._last_trace: Any = None
        self._told: Stop | None = None

    def home(self) -> "RunState":
        """Return itself: a reference kept for it would be a cycle, and every run would wait for the collector."""
        return self

    def start(self) -> "RunState":
        """Take a place below the run that is current now, freeze the limits and open the ledger; once."""
        with self._starting:
            if not self._started:
                self._start(current_state())
                self._started = True
        return self

    def _start(self, parent: "RunState | None") -> None:
        self.parent = parent if parent is not self else None
        above = self.parent
        self.session: str | None = self._session if self._session is not None or above is None else above.session
        self.tenant: str | None = self._tenant if self._tenant is not None or above is None else above.tenant
        self.mode: str = above.mode if above and self._mode is None else self._frozen.mode
        self._open_ledger(self._join(above))

    def _open_ledger(self, session: Session, elapsed: float = 0.0, past: Past | None = None) -> None:
        self.clock = _clock
        self.ledger = Ledger(
            TABLE,
            self._frozen.limits,
            session=session,
            parent=self.parent.ledger if self.parent else None,
            began=self.clock() - elapsed,
            observe=frozenset(NAMES) if self.mode == "observe" else self._frozen.observe,
            local=self.settings.local,
            own=self._frozen.tools,
            strip_prefixes=self.settings.strip_prefixes,
            past=past,
        )
        self.hasher: Hasher = self.ledger.session.hasher
        self.tracer, duration = scope()
        self.duration = duration if self.settings.duration_histogram else None

    def _join(self, above: "RunState | None") -> Session:
        """Return the session that the run belongs to: that of the run around it unless it names another one."""
        if above is not None and (above.tenant, above.session) == (self.tenant, self.session):
            return above.ledger.session
        return _session_of(self.tenant, self.session, self._frozen.limits["sessions"])

    # Leaving the process ----------------------------------------------------------------------------------------------

    def written(self) -> dict[str, Any]:
        """Return the run and all runs around it as plain data."""
        self.start()
        lineage: list[RunState] = [self]
        while (above := lineage[0].parent) is not None:
            lineage.insert(0, above)
        runs = [(run._about(), run.ledger) for run in lineage]  # noqa: SLF001
        with SECTION.settled():
            data = _snapshot.write(VERSION, runs)
        return cast("dict[str, Any]", _snapshot.numbered(data))

    def _about(self) -> _snapshot.About:
        for name in ("id", "agent", "session", "tenant"):
            if not isinstance(value := getattr(self, name), str | None):
                msg = f"snapshot: the run's {name} is a {type(value).__name__}, and only a text can be carried along"
                raise TypeError(msg)
        frozen = self._frozen
        return _snapshot.About(
            self.id,
            self.agent,
            self.session,
            self.tenant,
            cast("Any", self.mode),
            frozen.profile,
            frozen.limits,
            frozen.observe,
            frozen.tools,
            self.settings.local,
            self.settings.strip_prefixes,
            max(0.0, self.clock() - self.ledger.tally.began),
            self._last_trace if self._span is None else self._span.trace,
        )

    def go_on(self, chain: _snapshot.Chain) -> None:
        """Become the innermost run of a chain, below runs of the same class that become the others."""
        settings = _config.settings()  # whatever can fail comes first
        sessions = list(chain.sessions)
        for about, _, shares in chain.runs:
            most = cast("int", about.limits["sessions"])
            sessions[shares] = _take_in(about.tenant, about.session, most, sessions[shares])
        above: RunState | None = None
        for resumed in chain.runs:
            run = self if resumed is chain.runs[-1] else type(self).__new__(type(self))
            run._resume(resumed, sessions[resumed.shares], above, settings)  # noqa: SLF001
            above = run

    def _resume(
        self, resumed: _snapshot.Resumed, session: Session, above: "RunState | None", settings: _config.Settings
    ) -> None:
        about, past, _ = resumed
        self.settings = replace(settings, local=about.local, strip_prefixes=about.strip_prefixes)
        self._lay(about.id, about.agent)
        self.parent = above
        self.session, self.tenant, self.mode = about.session, about.tenant, about.mode
        self._frozen = about.frozen()
        self._open_ledger(session, about.elapsed, past)
        self._last_trace = about.trace
        self._told = self.ledger.stopped  # the other process told it
        self._started = True

    def ended(self) -> Stop | None:
        """Return the stop that holds now; to look may end a run whose time is over."""
        return self.ledger.ended_by(self.clock)

    def __getattr__(self, name: str) -> Any:
        # What only a started run has is asked for: it starts now, wherever it was not entered yet.
        if name in _FROM_THE_START:
            self.start()
            return self.__dict__[name]
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(msg)

    # Entering and leaving ---------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Make the run current in this context and open its span."""
        self.start()
        with self._starting:
            if self._open:
                msg = f"the run {self.id!r} is open already; open another run, or carry this one with run.bind(fn)"
                raise RuntimeError(msg)
            self._open = True
        self._outer = current_state() if CURRENT.get() else None
        self._span = _telemetry.RunSpan(self, self.tracer, self.agent, self._start_attributes(), self._last_trace)
        self._token = CURRENT.set(self)

    def _start_attributes(self) -> dict[str, Any]:
        attributes = {_names.OPERATION: _names.INVOKE_AGENT, _names.RUN_ID: self.id}
        if self.agent is not None:
            attributes[_names.AGENT] = self.agent
        if self.session is not None:
            attributes[_names.CONVERSATION] = self.session
        return attributes

    def leave(self, error: BaseException | None) -> None:
        """Make the outer run current again, whatever happened, and end the span."""
        span, token = self._span, self._token
        if span is None or token is None:
            return
        innermost = self._restore(token)
        span.leave(same_context=innermost)
        self._last_trace = span.trace
        self._span = self._token = None
        self._open = False
        name = _telemetry.type_name(error) if isinstance(error, Exception) else None
        span.end(self._end_attributes(), name)
        if self.ledger.stopped is not None:
            span.tell_delegate(self.ledger.stopped.why.reason)
        self.tell_stop()

    def _restore(self, token: "Token[RunState | None]") -> bool:
        """Undo the entering; True where this context is the one that was entered and nothing else is open in it."""
        if _collector.is_here():
            self._gone = True
            return False
        now = CURRENT.get()
        try:
            CURRENT.reset(token)
        except ValueError:
            if now is self:
                CURRENT.set(self._outer)
            log(
                logging.WARNING,
                "the run %s was left in another context than it was entered in, so calls in between may not have seen it. "
                "Open it where the calls are made (in the endpoint or an async dependency, not in a sync one), "
                "or carry it with run.bind(fn)",
                self.id,
            )
            return False
        if now is self:
            CURRENT.set(self._outer)
            return True
        CURRENT.set(now)  # an inner run is still open; when it is left, it must not bring this one back
        while now is not None and now._outer is not self:  # noqa: SLF001
            now = now._outer  # noqa: SLF001
        if now is not None and now._span is not None and self._span is not None:  # noqa: SLF001
            now._outer = self._outer  # noqa: SLF001
            now._span.take_over(self._span)  # noqa: SLF001
        return False

    def _end_attributes(self) -> dict[str, Any]:
        usage, stop = self.ledger.usage(), self.ended()
        attributes: dict[str, Any] = {
            _names.RUN_CALLS: usage.executed,
            _names.RUN_REFUSALS: usage.refused,
            _names.RUN_STOPPED: stop is not None,
        }
        if stop is not None:
            attributes[_names.STOP_REASON] = stop.why.reason
        if self.ledger.observe:
            attributes[_names.RUN_WOULD_REFUSE] = self.ledger.would
        return attributes

    def place(self) -> Any:
        """Return the OpenTelemetry context for work of this run: the current one, or the run's where it is not current."""
        span = self._span
        if span is not None and current_state() is not self:
            return span.context
        return _telemetry.with_run(self, _telemetry.current())

    # What is told -----------------------------------------------------------------------------------------------------

    def tell_refusal(self, refusal: Refusal) -> None:
        """Keep the refusal, and write it and a stop that it brought to the log."""
        self.refused.append(refusal)
        super().tell_refusal(refusal)
        self.tell_stop()

    def tell_stop(self) -> None:
        """Write the end of this run, and of a run around it that it brought about, to the log, once."""
        self.ledger.sync()
        run: RunState | None = self
        while run is not None:
            stop = run.ledger.stopped
            if stop is not None and run._told is not stop:  # noqa: SLF001
                run._told = stop  # noqa: SLF001
                log(logging.WARNING, "the run %s was stopped by %s: %s", run.id, stop.why.reason, stop_message(stop))
            run = run.parent


_FROM_THE_START: Final = frozenset({"session", "tenant", "mode", "ledger", "hasher", "clock", "tracer", "duration"})


def log(level: int, message: str, *args: Any, extra: Mapping[str, Any] | None = None) -> None:
    """Log without ever raising: a filter or handler of the user's may fail."""
    with suppress(Exception):
        _logger.log(level, message, *args, extra=extra)


class Within:
    """Makes a run and an OpenTelemetry context current for one step, in whatever thread or task the step is made.

    Both roll: a run or a span that the body leaves open is current again in its next step. In a finaliser that the
    collector calls nothing is made current where that is not safe (see `_collector`).

    Attributes:
        items: for streams, the items handed out so far.
        full: for streams, no further item is handed on.
    """

    __slots__ = ("_before", "_context", "_entered", "_otel", "_run", "_token", "full", "items")

    def __init__(self, run: RunState | None, context: Any = None) -> None:
        self._run = run
        self._context = context
        self.items = 0
        self.full = False

    @property
    def whole(self) -> bool:
        """Say that a stream is never cut here."""
        return True

    def start(self) -> Any:
        """Begin a stream: there is nothing to decide."""
        return None

    async def astart(self) -> Any:
        """Begin an async stream."""
        return self.start()

    def hand(self, item: Any) -> Any:
        """Hand on an item as it is."""
        return item

    def end(self, value: Any) -> None:
        """Hear that a stream ended."""

    def fail(self, error: BaseException) -> Any:  # noqa: ARG002  the step's interface
        """Hear that a stream ended early."""
        return None

    def __enter__(self) -> None:
        self._entered = CURRENT.get() if self._run is None else self._run
        self._token = None if _collector.is_here() else CURRENT.set(self._entered)
        self._before = _telemetry.current()
        self._otel = _telemetry.attach(self._context)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None, /
    ) -> None:
        if self._token is None or _collector.is_here():
            return
        run = CURRENT.get()
        try:
            CURRENT.reset(self._token)
        except ValueError:  # a coroutine that is closed or driven from elsewhere: this context is not the one entered
            if run is self._entered:
                CURRENT.set(self._token.old_value if self._token.old_value is not Token.MISSING else None)
            _telemetry.leave(self._context, self._before)
            return
        if run is not self._entered:
            self._run = run
        if self._otel is not None:
            self._context = _telemetry.current()
            _telemetry.detach(self._otel)
