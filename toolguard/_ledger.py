"""Where counts live: one lock, all walls or none. It knows hooks, and no wall by name.

An admission takes the lock once. Settlements, releases and "a refusal went back" take no lock at all: they are queued and
the next entry drains them, so that a finaliser or a signal handler inside the critical section can lose nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from toolguard._clock import tick
from toolguard._tree import SECTION, Session, Tree
from toolguard._values import (
    CERTAIN,
    Call,
    Outcome,
    Reading,
    Refused,
    Spent,
    Stop,
    Tally,
    Tick,
    Tool,
    Usage,
    Wall,
    canonical,
)

__all__ = ["BUSY", "GATE", "UNBINDABLE", "Ledger", "Note", "Past", "Plan", "keeps"]

BUSY: Final = Refused("busy", None, None, "later")
UNBINDABLE: Final = Refused("unbindable", None, None, "different")
GATE: Final = Refused("gate", None, None, "different")

_ANY_TOOL: Final = Tool("", "", "read")
_MOST_PLANS: Final = 1024
_MICROS: Final = 1_000_000
_NO_LIMIT: Final = 1 << 63


class Seat(NamedTuple):
    """A wall at the table of one run: its state there, the limits in force, and the run that set them."""

    wall: Wall
    state: Any
    limits: Mapping[str, Any]
    owner: "Ledger"


class Place(NamedTuple):
    """A seat whose limit is resolved for one tool."""

    wall: Wall
    state: Any
    n: Any
    owner: "Ledger"


class Note(NamedTuple):
    """What a note is made of: the tightest limit on the whole run, and the walls' own texts."""

    wall: str
    reading: Reading | None
    texts: tuple[str, ...]


class Past(NamedTuple):
    """What a run brings along from another process; the first ten as the ledger's of that name.

    Attributes:
        names: the names of tools by canonical name, for `by_tool`.
        tally: the run's counts.
        states: what its walls remember, in the order of the table, of those that keep something of their own.
    """

    turn: Tick
    turns: int
    would: int
    refused: int
    by_reason: dict[str, int]
    names: dict[str, str]
    stopped: Stop | None
    unheeded: Refused | None
    overrun: frozenset[str]
    tally: Tally
    states: list[tuple[str, Any]]


def keeps(wall: Wall) -> bool:
    """Say whether a wall remembers something of its own for each run, beside the tally."""
    return wall.scope != "session" and type(wall.state(Tally())) is not Tally


class Plan:
    """One tool in one run: the hooks that exist, each with its state and limit looked up once.

    Attributes:
        until: the tree's mileage below which every wall of the plan certainly admits.
        identity, digest, signature, query, specialist, now: which costly facts a wall of the plan reads.
        measured: results are counted by their characters.
        size, chars: a result of up to `size` characters is granted unasked while the run has handed on at most `chars`.
        read, reserve: which counts a charge moves: `reads`, or the common reserve of sends.
        ok: the cell that counts the calls that ended well.
        facts: what telemetry prepared for this tool in this run.
    """

    __slots__ = (
        "admit",
        "charge",
        "chars",
        "digest",
        "external",
        "facts",
        "failed",
        "grant",
        "identity",
        "measured",
        "now",
        "ok",
        "passed",
        "permit",
        "places",
        "query",
        "read",
        "refused",
        "release",
        "repeated",
        "reserve",
        "settle",
        "signature",
        "size",
        "slack",
        "specialist",
        "succeeded",
        "tool",
        "until",
    )

    def __init__(self, tool: Tool, seats: list[Seat], own: int | None, ok: list[int], *, external: bool) -> None:
        self.tool = tool
        self.ok = ok
        self.external = external
        self.until = 0
        self.facts: Any = None
        self.read = external and tool.kind == "read"
        self.reserve = external and tool.kind == "send" and own is None
        self.places = tuple(
            Place(seat.wall, seat.state, n, seat.owner)
            for seat in seats
            if external and (n := seat.wall.limit(tool, seat.limits, own)) is not None
        )
        asked = [place for place in self.places if place.wall.admit]
        self.admit = _rows("admit", self.places)
        self.permit = _rows("permit", self.places)
        self.charge = _rows("charge", self.places)
        self.release = _rows("release", self.places)
        self.settle = _rows("settle", self.places)
        self.repeated = _rows("repeated", self.places)
        self.failed = _rows("failed", self.places)
        self.succeeded = _rows("succeeded", self.places)
        self.passed = _rows("passed", self.places)
        # A wall that only observes cuts nothing.
        cutting = tuple(p for p in self.places if p.wall.name not in p.owner.observe)
        self.measured = any(p.wall.grant for p in self.places)
        self.grant = _rows("grant", cutting)
        easy = [p.wall.easy(p.n) for p in cutting if p.wall.easy]
        self.size = min((size for size, _ in easy), default=_NO_LIMIT)
        self.chars = min((chars for _, chars in easy), default=_NO_LIMIT)
        self.slack = _rows("slack", self.places) if all(place.wall.slack for place in asked) else None
        self.refused = tuple(place for place in self.places if place.wall.refused)
        needs = frozenset[str]().union(*(place.wall.needs for place in self.places))
        self.identity = "identity" in needs
        self.digest = "digest" in needs
        self.signature = "signature" in needs
        self.query = "query" in needs
        self.specialist = "specialist" in needs
        self.now = "now" in needs


def _rows(hook: str, places: tuple[Place, ...]) -> tuple[tuple[Callable[..., Any], Any, Any], ...]:
    return tuple((fn, p.state, p.n) for p in places if (fn := getattr(p.wall, hook)) is not None)


class Ledger:
    """The counts of one run. Everything that changes them happens under the session's lock.

    Attributes:
        lineage: this run and the runs around it, innermost first.
        plans: the tools that were called, each with its plan; `plan` adds to it.
        observe: names of the walls that only observe here.
        turn: the logical time at which the open turn began; 0 before the first.
        turns: the number of turns begun.
        overrun: names of walls past whose limit a look found the run, so that each ends it, or is marked, once.
        would: calls that an observing wall would have refused.
        unheeded: a stop that a wall only observed, until the next call that it would have refused.
        stopped: the run's own end, or None.
    """

    __slots__ = (
        "__weakref__",
        "_above",
        "_local",
        "_names",
        "_own",
        "_prefixes",
        "_seats",
        "_timed",
        "by_reason",
        "lineage",
        "observe",
        "overrun",
        "plans",
        "refused",
        "session",
        "stopped",
        "tally",
        "tree",
        "turn",
        "turns",
        "unheeded",
        "would",
    )

    def __init__(
        self,
        table: tuple[Wall, ...],
        limits: Mapping[str, Any],
        *,
        session: Session | None = None,
        parent: "Ledger | None" = None,
        began: float = 0.0,
        observe: frozenset[str] = frozenset(),
        local: frozenset[str] = frozenset(),
        own: Mapping[str, int] = MappingProxyType({}),
        strip_prefixes: Sequence[str] = (),
        past: Past | None = None,
    ) -> None:
        """Lay the table of one run.

        Args:
            table: the walls, in the order in which they name a refusal.
            limits: every configuration key with the value frozen for this run.
            session: what the runs of its session share; by default that of `parent`, or one of its own.
            parent: the ledger of the run around this one.
            began: seconds on the run's clock at its start.
            observe: names of walls that decide and refuse nothing.
            local: canonical names of tools that no wall counts.
            own: limits of single tools by canonical name; they beat the decorator's.
            strip_prefixes: prefixes that a tool's canonical name loses.
            past: what the run brings along from another process, made for this table.
        """
        self.tree: Tree = parent.tree if parent else Tree()
        self.session: Session = session or (parent.session if parent else Session())
        self.session.join(self.tree)
        self.tally = Tally(began, self.session.news)
        self.lineage: tuple[Ledger, ...] = (self, *(parent.lineage if parent else ()))
        self._above = self.lineage[1:]
        self.observe: frozenset[str] = observe
        self._local = local
        self._own = own
        self._prefixes = tuple(strip_prefixes)
        self.turn = self.turns = self.would = self.refused = 0
        self.by_reason: dict[str, int] = {}
        self.stopped: Stop | None = None
        self.unheeded: Refused | None = None
        self.overrun: frozenset[str] = frozenset()
        self._names: dict[str, str] = {}
        self.plans: dict[Tool, Plan] = {}
        states = iter([] if past is None else self._go_on(past))
        self._seats = [Seat(wall, self._state(wall, states), limits, self) for wall in table]
        if parent:
            # A limit of a run around this one stands beside this run's own: the order of the table names a refusal.
            self._seats += [seat for seat in parent._seats if seat.wall.scope == "tree"]  # noqa: SLF001
            self._seats.sort(key=lambda seat: table.index(seat.wall) if seat.wall in table else -1)
        self._timed = [Place(wall, s, n, owner) for wall, s, n, owner in self._in_force() if wall.looked]

    def _go_on(self, past: Past) -> list[Any]:
        """Take over the counts, and return what the walls remember."""
        past.tally.began, past.tally.shared = self.tally.began, self.tally.shared
        self.tally = past.tally
        self.turn, self.turns, self.would, self.refused = past.turn, past.turns, past.would, past.refused
        self.by_reason, self._names = past.by_reason, past.names
        self.stopped, self.unheeded, self.overrun = past.stopped, past.unheeded, past.overrun
        self.tree.unheeded |= self.unheeded is not None
        return [state for _, state in past.states]

    def _state(self, wall: Wall, states: Iterator[Any]) -> Any:
        if wall.scope == "session":
            return self.session.state(wall, self.tally)
        made = wall.state(self.tally)
        return made if made is self.tally else next(states, made)

    def past(self) -> Past:
        """Return what another process needs to go on from here, still the ledger's own objects."""
        return Past(
            self.turn,
            self.turns,
            self.would,
            self.refused,
            self.by_reason,
            self._names,
            self.stopped,
            self.unheeded,
            self.overrun,
            self.tally,
            [(seat.wall.name, seat.state) for seat in self._seats if seat.owner is self and keeps(seat.wall)],
        )

    def _in_force(self) -> list[Place]:
        """Return the seats whose limit, as far as no tool changes it, is on."""
        limits = [(seat, seat.wall.limit(_ANY_TOOL, seat.limits, None)) for seat in self._seats]
        return [Place(seat.wall, seat.state, n, seat.owner) for seat, n in limits if n is not None]

    def plan(self, tool: Tool) -> Plan:
        """Return the plan of `tool` in this run, made at its first call."""
        return self.plans.get(tool) or self._make_plan(tool)

    def _make_plan(self, tool: Tool) -> Plan:
        counted = replace(tool, canonical=canonical(tool.canonical, self._prefixes))
        own = self._own.get(counted.canonical, tool.limit)
        ok = SECTION.count((counted.name, counted.kind, "ok", ""))
        made = Plan(counted, self._seats, own, ok, external=counted.canonical not in self._local)
        if len(self.plans) >= _MOST_PLANS:  # a plan holds no count, so dropping them loses nothing
            self.plans = {}
        self._names.setdefault(counted.canonical, tool.name)
        return self.plans.setdefault(tool, made)

    # The hot path -----------------------------------------------------------------------------------------------------

    def admit(self, call: Call, plan: Plan) -> Refused | None:
        """Charge every wall of the plan, or none and say why.

        Returns:
            None: the call is charged and must be ended with `end`. Otherwise the first refusal in table order.
        """
        section = SECTION
        if section.inside:
            section.stand_aside()
        with section.lock:
            if section.inside:
                return BUSY
            try:
                section.inside = True
                if section.late:
                    section.drain_inside()
                tree = self.tree
                if tree.mileage >= plan.until and (why := self._ask(call, plan)):
                    return why
                tree.mileage += 1
                if plan.external:
                    tally = self.tally
                    tally.external += 1
                    tally.tree += 1
                    if plan.read:
                        tally.reads += 1
                    elif plan.reserve:
                        tally.sends += 1
                    name = call.tool.canonical
                    tally.by_tool[name] = tally.by_tool.get(name, 0) + 1
                    for ledger in self._above:
                        ledger.tally.tree += 1
                for charge, s, n in plan.charge:
                    charge(s, n, call)
                call.charged = True
                return None
            finally:
                section.inside = False

    def ask(self, call: Call, plan: Plan) -> Refused | None:
        """Say what `admit` would say, and charge and promise nothing: a gate is asked only of what the walls admit."""
        section = SECTION
        if section.inside:
            section.stand_aside()
        with section.lock:
            if section.inside:
                return BUSY
            try:
                section.inside = True
                section.drain_inside()
                return self._hear(call, plan, charging=False)
            finally:
                section.inside = False

    def end(self, call: Call, why: Refused | None = None) -> None:
        """Queue how an attempt ended: as its `outcome` says, or with the refusal `why` it was not admitted."""
        SECTION.late.append((self, call, why, tick()))

    def grant(self, call: Call, size: int, least: int, handed: int = 0) -> int:
        """Charge the characters of a result, as far as they may be handed on, and return how many these are.

        Args:
            call: the call that returned it.
            size: its characters.
            least: what is worth handing on of a result that must be cut; where there is less room, nothing is.
            handed: characters of the call's result that were handed on before.
        """
        self.sync()
        with SECTION.lock:
            room = min((grant(s, n, handed) for grant, s, n in call.plan.grant), default=_NO_LIMIT)
            granted = size if size <= room else room if room >= least else 0
            self.tally.chars += granted
            return granted

    # Under the lock ---------------------------------------------------------------------------------------------------

    def _ask(self, call: Call, plan: Plan) -> Refused | None:
        why = self._hear(call, plan, charging=True)
        if why is None:
            for permit, s, n in plan.permit:
                permit(s, n, call)
        return why

    def _hear(self, call: Call, plan: Plan, *, charging: bool) -> Refused | None:
        for ledger in self.lineage:
            if ledger.stopped:
                return ledger.stopped.why
        for admit, s, n in plan.admit:
            if admit(s, n, call) is not None:
                return self._ask_all(call, plan, charging=charging)
        if not charging:  # asking makes nothing certain: what the call is to be marked with, its admission must hear
            return None
        if self.tree.unheeded:
            self._mark(call, None)
        return None if plan.slack is None else self._promise(plan, plan.slack)

    def _promise(self, plan: Plan, slacks: tuple[tuple[Callable[..., Any], Any, Any], ...]) -> Refused | None:
        """Let calls pass unasked for as long as no wall of the plan can refuse one."""
        tree = self.tree
        until = tree.mileage + min([slack(s, n) for slack, s, n in slacks], default=CERTAIN)
        tree.horizon = max(tree.horizon, until)
        plan.until = until
        for ledger in self.lineage:  # a signal handler may have ended the run meanwhile, when nothing was certain yet
            if ledger.stopped:
                plan.until = 0
                return ledger.stopped.why
            if ledger.unheeded:
                plan.until = 0
        return None

    def _ask_all(self, call: Call, plan: Plan, *, charging: bool) -> Refused | None:
        """Hear every wall, so that the order names a refusal and decides nothing."""
        said: list[tuple[Refused, Place]] = [
            (why, p) for p in plan.places if p.wall.admit and (why := p.wall.admit(p.state, p.n, call))
        ]
        hard = [(why, p) for why, p in said if p.wall.name not in p.owner.observe]
        if not hard:
            if charging:
                self._mark(call, said[0][0])
            return None
        call.confirms = None
        call.mine = frozenset(p.wall.name for _, p in hard)
        for why, p in hard:
            if why.stops:
                p.owner.set_stop(why)
        return hard[0][0]

    def _mark(self, call: Call, why: Refused | None) -> None:
        """Mark an admitted call that would have been refused, by a wall or by the stop that one only observed."""
        for ledger in self.lineage:
            if ledger.unheeded is not None:
                why, ledger.unheeded = ledger.unheeded, None
        if why is not None:
            call.would = why
            self.would += 1

    def set_stop(self, why: Refused, message: str | None = None) -> None:
        """End the run; the first stop stays."""
        if self.stopped is None:
            nested = self.tally.tree - self.tally.external
            self.stopped = Stop(why, MappingProxyType(self._by_name()), message, nested)
            self.tree.ask_again()

    def close_turn(self, at: int) -> None:
        """Let the walls judge the turn that ends, and begin the next at the logical time `at`."""
        for wall, s, n, owner in self._in_force():
            if wall.turned:
                self._heed(wall, owner, wall.turned(s, n))
        self.turn = at
        self.turns += 1

    def add_spending(self, spent: Spent) -> None:
        """Add what was spent to this run and every run around it, and let the walls judge it."""
        for ledger in self.lineage:
            ledger.tally.tokens += spent.tokens
            ledger.tally.micros += spent.micros
        self.tree.ask_again()
        for wall, s, n, owner in self._in_force():
            if wall.spent:
                self._heed(wall, owner, wall.spent(s, n))

    def settle(self, call: Call, at: int) -> None:
        """Apply how an admitted call ended."""
        call.charged = False
        plan, outcome = call.plan, call.outcome
        if outcome == "not_executed":
            self._release(call, plan)
            self.count_refusal(call, GATE, outcome, at)
            return
        cell = plan.ok if outcome == "ok" else SECTION.count((call.tool.name, call.tool.kind, outcome, ""))
        cell[0] += 1
        tally = self.tally
        if call.size:
            tally.chars += call.size
        if call.inner:  # an inner call's refusal passed on: neither success nor failure to any wall
            for passed, s, n in plan.passed:
                passed(s, n, call)
            return
        tally.settled += 1
        if plan.digest:
            tally.observe(call, at)
        for settle, s, n in plan.settle:
            settle(s, n, call, at)
        if not call.fresh or outcome != "ok" or self.session.troubled:
            self._judge(call, plan, at)

    def _judge(self, call: Call, plan: Plan, at: int) -> None:
        """Tell the walls of what brought nothing new, of what failed, and of what succeeded after failures."""
        again = False
        if not call.fresh:
            for repeated, s, n in plan.repeated:
                again |= repeated(s, n, call)
        if call.outcome != "ok":
            self.session.troubled = True
            for failed, s, n in plan.failed:
                again |= failed(s, n, call, at)
        elif plan.succeeded and self.session.troubled:
            call.news = self.session.is_news(call)
            for succeeded, s, n in plan.succeeded:
                succeeded(s, n, call, at)
        if again:
            self.session.ask_again()

    def _release(self, call: Call, plan: Plan) -> None:
        if plan.external:
            tally = self.tally
            tally.external -= 1
            tally.reads -= plan.read
            tally.sends -= plan.reserve
            tally.by_tool[call.tool.canonical] -= 1
            for ledger in self.lineage:
                ledger.tally.tree -= 1
        for release, s, n in plan.release:
            release(s, n, call)

    def count_refusal(self, call: Call, why: Refused, outcome: Outcome, at: int) -> None:
        """Apply that a call did not execute; `at` is the logical time at which the caller was told."""
        if why is not UNBINDABLE:
            self.refused += 1
            self.by_reason[why.reason] = self.by_reason.get(why.reason, 0) + 1
            SECTION.count((call.tool.name, call.tool.kind, outcome, why.reason))[0] += 1
        for wall, s, n, owner in call.plan.refused:
            assert wall.refused is not None  # noqa: S101  `plan.refused` holds no others
            self._heed(wall, owner, wall.refused(s, n, call, at))

    def _heed(self, wall: Wall, owner: "Ledger", why: Refused | None) -> None:
        if why is None:
            return
        if wall.name not in owner.observe:
            owner.set_stop(why)
        elif owner.stopped is None:
            owner.unheeded, self.tree.unheeded = why, True
            self.tree.ask_again()

    # Reading and steering ---------------------------------------------------------------------------------------------

    def sync(self) -> "Ledger":
        """Bring the counts up to date with everything that has ended."""
        if SECTION.late:
            SECTION.drain()
        return self

    def begin_turn(self) -> None:
        """Close the open turn and begin the next."""
        SECTION.late.append((self, None, None, tick()))
        SECTION.drain()

    def spend(self, tokens: int, micros: int) -> None:
        """Add tokens and millionths of a dollar to what this run and the runs around it have spent."""
        SECTION.late.append((self, None, Spent(tokens, micros), 0))
        SECTION.drain()

    def stop(self, why: Refused, message: str) -> None:
        """End the run on the program's wish, with the text that the user will read."""
        with SECTION.lock:
            self.set_stop(why, message)

    def ended_by(self, clock: Callable[[], float] | None = None) -> Stop | None:
        """Return the stop that holds for this run: its own, or that of a run around it.

        Args:
            clock: seconds; where it is given and a limit depends on it, the look may end the run; or, where the wall only
                observes, mark its next call.
        """
        self.sync()
        if self._timed and clock is not None:
            now = clock()
            with SECTION.lock:
                for wall, s, n, owner in self._timed:
                    assert wall.looked is not None  # noqa: S101  `_timed` holds no others
                    if wall.name not in owner.overrun and (why := wall.looked(s, n, now)):
                        owner.overrun |= {wall.name}
                        self._heed(wall, owner, why)
        return next((ledger.stopped for ledger in self.lineage if ledger.stopped), None)

    def usage(self) -> Usage:
        """Return the counts so far."""
        self.sync()
        with SECTION.lock:
            return Usage(
                executed=self.tally.external,
                refused=self.refused,
                by_tool=MappingProxyType(self._by_name()),
                by_reason=MappingProxyType(dict(self.by_reason)),
                chars=self.tally.chars,
                tokens=self.tally.tokens,
                cost_usd=self.tally.micros / _MICROS,
            )

    def _by_name(self) -> dict[str, int]:
        # A copy, since a signal handler may call a tool of this run meanwhile.
        return {self._names.get(name, name): n for name, n in self.tally.by_tool.copy().items() if n}

    def note(self) -> Note:
        """Return what `notes()` has to say of this moment, before it is put into words."""
        self.sync()
        with SECTION.lock:
            readings: list[tuple[float, str, Reading]] = []
            texts: list[str] = []
            for wall, s, n, owner in self._in_force():
                if wall.reading and wall.name not in owner.observe:  # a wall that only observes will refuse nothing
                    reading: Reading = wall.reading(s, n)
                    readings.append((reading.used / reading.limit, wall.name, reading))
                if wall.note and (text := wall.note(s, n, self.turns)):
                    texts.append(text)
            _, name, tightest = max(readings, key=lambda r: r[0], default=(0.0, "", None))
            return Note(name, tightest, tuple(texts))
