"""The ledger beside a plain model of the walls: the same verdict and the same counts at every step of any history."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolguard._clock import tick
from toolguard._identity import SIZE
from toolguard._ledger import GATE, Ledger
from toolguard._values import Call, Refused, Tool
from toolguard.walls import KEYS, NAMES, TABLE

OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}

TOOLS = {
    tool.name: tool
    for tool in (
        Tool("read", "read", "read"),
        Tool("Read", "read", "read"),
        Tool("own_read", "own_read", "read", limit=2),
        Tool("free_read", "free_read", "read", limit=0),
        Tool("polls", "polls", "read", polls=True),
        Tool("send", "send", "send"),
        Tool("own_send", "own_send", "send", limit=1),
        Tool("free_send", "free_send", "send", limit=0),
        Tool("bell", "bell", "send", repeatable=True),
        Tool("query", "query", "read", query=True),
        Tool("query_send", "query_send", "send", query=True),
        Tool("expert", "expert", "read", delegate=True),
        Tool("desk", "desk", "read", limit=3, delegate=True),
        Tool("local", "local", "read"),
    )
}
LOCAL = frozenset({"local"})

ARGUMENTS = (b"1", b"2", b"3", b"?")  # the last one holds an opaque value
DIGESTS = (None, b"x" * SIZE, b"y" * SIZE)
SIGNATURES = ("a" * 60 + "1", "a" * 60 + "2", "b")  # the first two begin alike as far as a complaint is compared
OUTCOMES = ("ok", "ok", "ok", "error", "error", "cancelled", "closed", "not_executed", "inner")

# What each wall may be set to. A key that a run does not get is off.
CHOICES = {
    "cap": {"hard_cap": [2, 5, 9]},
    "adaptive": {
        "hard_cap": [None],
        "adaptive_soft": [2, 3, 5],
        "adaptive_multiplier": [0, 2, 3],
        "adaptive_repeats": [0, 1, 2, 3],
        "adaptive_signal": ["unchanged", "any"],
    },
    "refused_turns": {"refused_turns": [1, 2]},
    "refused_calls": {"refused_calls": [2, 3]},
    "deadline_s": {"deadline_s": [2.5, 6]},
    "tokens": {"tokens": [10, 25]},
    "cost_usd": {"cost_usd": [0.25, 0.5]},
    "repeat_failure": {"repeat_failure": [1, 2, 2, 3], "progress_clears": [True, False]},
    "same_complaint": {"same_complaint": [1, 2, 3]},
    "same_outcome": {"same_outcome": [1, 2, 3]},
    "stale_streak": {"stale_streak": [1, 2, 3]},
    "duplicate_send": {"duplicate_send": [1, 1, 2]},
    "query_loop": {"query_loop": [1, 2]},
    "delegation": {"delegation": [1, 2]},
    "per_tool": {"per_tool": [1, 2, 4]},
    "delivery": {"delivery": [1, 2, 4]},
    "call_budget": {"call_budget": [2, 5]},
    "aggregate": {"aggregate": [1, 2, 4]},
}
# Walls that may only observe here. What those do that end a run between two calls is a property of its own.
OBSERVABLE = sorted({*NAMES} - {"refused_turns", "refused_calls", "tokens", "cost_usd", "output_chars", "result_chars"})

# The model ------------------------------------------------------------------------------------------------------------


class No(NamedTuple):
    """A refusal, as far as the model foretells it."""

    reason: str
    used: float | None
    limit: float | None
    retry: str = "different"
    rule: str | None = None


@dataclass(eq=False)
class Made:
    """One call, from its making to its end, and what the model knows of it."""

    run: "Run"
    tool: Tool
    identity: bytes
    query: bytes | None
    specialist: bytes | None
    turn: int
    now: float
    started: int
    trace: object
    flying: bool = False
    ended: int = 0  # when
    outcome: str = ""
    digest: bytes | None = None
    signature: str = ""
    new: bool = False  # to its run
    news: bool = False  # to its session
    twin: bool = False
    said: frozenset = frozenset()  # the walls that said no, observing ones included
    mine: frozenset = frozenset()  # without these

    @property
    def own(self):
        """The tool's own limit, which an operator's table beats."""
        return self.run.own.get(self.tool.canonical, self.tool.limit)


@dataclass(eq=False)
class Shared:
    """One session: what happened in it, in order, as (what, call, when), and the outcomes seen in it."""

    log: list = field(default_factory=list)
    outcomes: list = field(default_factory=list)


@dataclass
class Half:
    """What a session's log says of something that fails: refused at the limit, then half-open for one probe at a time."""

    what: bytes | str
    armed: int = 0  # when a refusal was returned
    probe: Made | None = None

    def hear(self, log, wall):
        for event, call, at in log:
            if call.run.limits[wall]:
                getattr(self, event)(call, at, call.run.limits[wall], wall)
                if call is self.probe and event != "admitted":
                    self.probe = None  # the permit comes back whatever became of the call

    def admitted(self, call, _at, limit, wall):
        if self.concerns(call) and self.times >= limit and wall not in call.said:
            self.probe = call

    def refused(self, call, at, limit, wall):
        if self.concerns(call) and self.times >= limit and wall in call.mine:
            self.armed = self.armed or at

    def over(self, call, at, limit, wall):
        """Neither success nor failure."""

    def half_open(self, call):
        return self.probe is None and 0 < self.armed < call.started


@dataclass
class Failing(Half):
    """One identity."""

    times: int = 0
    signature: str = ""
    last: int = 0  # when the last failure ended: what started before is its twin
    closed: bool = False

    def concerns(self, call):
        return call.identity == self.what

    def observes(self, call):
        return self.concerns(call) and (call is self.probe or call.started > self.last)

    def ok(self, call, _at, _limit, _wall):
        if (call.news and call.run.limits["progress_clears"]) or self.observes(call):
            self.__init__(self.what)

    def error(self, call, at, _limit, _wall):
        if self.observes(call) and self.times and call.signature == self.signature:
            self.times += 1
            self.closed = self.closed or call is self.probe
        elif self.observes(call):
            self.__init__(self.what, times=1, signature=call.signature)
        if self.concerns(call):
            self.last = at


@dataclass
class Complaining(Half):
    """One tool, by canonical name: each complaint with those who had it, and when they last had it."""

    complaints: dict = field(default_factory=dict)

    def concerns(self, call):
        return call.tool.canonical == self.what

    @property
    def times(self):
        return max((min(len(identities), len(turns)) for identities, turns, _ in self.complaints.values()), default=0)

    def ok(self, call, _at, _limit, _wall):
        if self.concerns(call):
            self.__init__(self.what)

    def error(self, call, at, _limit, _wall):
        if self.concerns(call):
            identities, turns, last = self.complaints.get(call.signature[:60], (set(), set(), 0))
            if call.started > last:
                identities.add(call.identity)
                turns.add((call.run, call.turn) if call.turn else call)  # unmarked, it is a turn of its own
            self.complaints[call.signature[:60]] = identities, turns, at
            if call is self.probe:
                self.armed = 0


@dataclass(eq=False)
class Run:
    """One run as the design has it, as plainly as it can be written: it keeps lists, and counts anew each time."""

    limits: dict
    above: "Run | None"
    session: Shared
    observe: frozenset
    own: dict
    began: float
    charged: list = field(default_factory=list)  # calls: executed or in flight
    ended: list = field(default_factory=list)  # the external ones that ran and ended, in that order
    attempts: list = field(default_factory=list)
    spent: list = field(default_factory=list)
    below: list = field(default_factory=list)
    flags: dict = field(default_factory=dict)
    refused: list = field(default_factory=list)
    turns: int = 0
    calls_in_a_row: int = 0
    turns_in_a_row: int = 0
    turn_refused: bool = False
    turn_ran: bool = False
    stopped: No | None = None

    def lineage(self):
        return [self, *(self.above.lineage() if self.above else ())]

    def tree(self):
        return [self, *itertools.chain.from_iterable(run.tree() for run in self.below)]

    def calls_of_tree(self):
        return sum(len(run.charged) for run in self.tree())

    def spent_by_tree(self, which):
        return sum(spent[which] for run in self.tree() for spent in run.spent)

    def reads(self):
        return sum(call.tool.kind == "read" for call in self.charged)

    def sends(self):
        return sum(call.tool.kind == "send" and call.own is None for call in self.charged)

    def of_name(self, tool):
        return sum(call.tool.canonical == tool.canonical for call in self.charged)

    # The walls, each in the words of its row. A wall answers with None or with its no.

    def hard_cap(self, _call):
        n = self.limits["hard_cap"]
        used = self.calls_of_tree()
        return No("hard_stop", used, n, "never", "explicit") if n and used >= n else None

    def adaptive(self, call):
        soft, used = self.limits["adaptive_soft"], len(self.charged)
        if self.limits["hard_cap"] is not None or not soft or used < soft:
            return None
        backstop, repeats = soft * self.limits["adaptive_multiplier"], self.limits["adaptive_repeats"]
        if backstop and used >= backstop:
            return No("hard_stop", used, backstop, "never", "backstop")
        counts = self.attempts_of(call) if self.limits["adaptive_signal"] == "any" else self.unchanged()
        if repeats and max(counts.values(), default=0) >= repeats:
            return No("hard_stop", used, soft, "never", "stuck")
        return None

    def attempts_of(self, call):
        """Every attempt, this one included; nothing clears them."""
        return Counter(one.identity for one in [*self.attempts, call] if not one.tool.polls)

    def unchanged(self):
        """How often each identity ran unchanged; anything new clears them all."""
        counts = Counter()
        for one in self.ended:
            if one.new:
                counts = Counter([one.identity])
            elif not one.tool.polls:
                counts[one.identity] += 1
        return counts

    def deadline_s(self, call):
        return self.deadline_at(call.now)

    def deadline_at(self, now):
        n, passed = self.limits["deadline_s"], now - self.began
        return No("deadline_s", passed, n, "never") if n and passed >= n else None

    def tokens(self, _call=None):
        n, spent = self.limits["tokens"], self.spent_by_tree(0)
        return No("tokens", spent, n, "never") if n and spent > n else None

    def cost_usd(self, _call=None):
        n, spent = self.limits["cost_usd"], self.spent_by_tree(1) / 1_000_000
        return No("cost_usd", spent, n, "never") if n and spent > n else None

    def repeat_failure(self, call):
        n, past = self.limits["repeat_failure"], Failing(call.identity)
        past.hear(self.session.log, "repeat_failure")
        if not n or past.times < n or (not past.closed and past.half_open(call)):
            return None
        return No("repeat_failure", past.times, n, "later", "closed" if past.closed else "failing")

    def same_complaint(self, call):
        n, past = self.limits["same_complaint"], Complaining(call.tool.canonical)
        past.hear(self.session.log, "same_complaint")
        return No("same_complaint", past.times, n, "later") if n and past.times >= n and not past.half_open(call) else None

    def same_outcome(self, call):
        n, row = self.limits["same_outcome"], []
        for one in self.ended:
            if one.tool.polls and not one.new:
                continue
            if one.digest is None or one.tool.polls or one.tool.kind == "send":
                row = []
            elif not row or (row[-1].identity, row[-1].digest) != (one.identity, one.digest):
                row = [one]
            elif not one.twin:
                row.append(one)
        if not n or len(row) < n or row[0].identity != call.identity:
            return None
        return No("same_outcome", len(row), n)

    def stale_streak(self, call):
        n, streak = self.limits["stale_streak"], 0
        for one in self.ended:
            if one.new:
                streak = 0
            elif not one.twin and not one.tool.polls and one.tool.kind == "read":
                streak += 1
        known = any(one.identity == call.identity and one.digest is not None for one in self.ended)
        if not n or streak < n or not known or call.tool.polls or call.tool.kind == "send":
            return None
        return No("stale_streak", streak, n)

    def duplicate_send(self, call):
        n = self.limits["duplicate_send"]
        same = [one for one in self.charged if one.identity == call.identity and (one.flying or one.outcome == "ok")]
        if not n or call.tool.kind == "read" or call.tool.repeatable or len(call.identity) > SIZE or len(same) < n:
            return None
        flying = any(one.flying for one in same)
        return No("duplicate_send", len(same), n, *(("later", "flying") if flying else ("different", "sent")))

    def query_loop(self, call):
        n = self.limits["query_loop"]
        used = sum(one.query == call.query for one in self.charged)
        return No("query_loop", used, n) if n and call.query is not None and used >= n else None

    def delegation(self, call):
        n = self.limits["delegation"]
        used = sum((one.tool.canonical, one.specialist) == (call.tool.canonical, call.specialist) for one in self.charged)
        return No("delegation", used, n) if n and call.tool.delegate and used >= n else None

    def per_tool(self, call):
        n = self.limits["per_tool"] if call.own is None else call.own
        used = self.of_name(call.tool)
        return No("per_tool", used, n) if n and call.tool.kind == "read" and used >= n else None

    def delivery(self, call):
        n = self.limits["delivery"] if call.own is None else call.own
        used = self.sends() if call.own is None else self.of_name(call.tool)
        return No("delivery", used, n) if n and call.tool.kind == "send" and used >= n else None

    def call_budget(self, call):
        n, used = self.limits["call_budget"], self.reads()
        return No("call_budget", used, n) if n and call.tool.kind == "read" and used >= n else None

    def aggregate(self, call):
        n, used = self.limits["aggregate"], self.reads()
        if not n or call.tool.kind == "send" or used < n or self.confirmed(call):
            return None
        return No("aggregate", used, n, "identical")

    def confirmed(self, call):
        """Return the refusal that this call repeats after it was returned, and not in the same marked turn."""
        refused = self.flags.get(call.identity)
        if refused is None or call.started < refused.ended or (call.turn and call.turn == refused.turn):
            return None
        return refused

    def ask(self, call):
        """Return what every wall says against the call, in the order of the table, each with the run that set the limit."""
        lineage = self.lineage()
        said = [
            *((run.hard_cap(call), run) for run in lineage),
            (self.adaptive(call), self),
            *((run.deadline_s(call), run) for run in lineage),
            *((run.tokens(call), run) for run in lineage),
            *((run.cost_usd(call), run) for run in lineage),
            *((getattr(self, wall)(call), self) for wall in ROWS),
        ]
        return [(no, run) for no, run in said if no]

    # What happens.

    def stop(self, no):
        self.stopped = self.stopped or no

    def admit(self, call):
        """Return the refusal; or what an observing wall would have said, and the refusal that the call confirms."""
        for run in self.lineage():
            if run.stopped:
                return run.stopped, None, None
        if call.tool.name in LOCAL:
            return None, None, None
        said = self.ask(call)
        hard = [(no, run) for no, run in said if no.reason not in run.observe]
        call.said = frozenset(no.reason for no, _ in said)
        if hard:
            call.mine = frozenset(no.reason for no, _ in hard)
            for no, run in hard:
                if no.retry == "never":
                    run.stop(no)
            return hard[0][0], None, None
        confirms = self.confirmed(call) if self.past_aggregate(call) else None
        self.charged.append(call)
        self.attempts.append(call)
        call.flying = True
        self.session.log.append(("admitted", call, 0))
        return None, said[0][0] if said else None, confirms

    def past_aggregate(self, call):
        n = self.limits["aggregate"]
        return n and call.tool.kind == "read" and self.reads() >= n

    def end(self, call, at):
        """Apply how an admitted call ended."""
        call.flying, call.ended = False, at
        external = call.tool.name not in LOCAL
        if call.outcome == "not_executed":
            if external:
                self.charged.remove(call)
                self.attempts.remove(call)
                self.session.log.append(("over", call, at))
            self.refuse(call, GATE.reason, at)
            return
        if call.outcome == "inner":
            self.session.log.append(("over", call, at))
            return
        self.calls_in_a_row, self.turn_ran = 0, True
        if external:
            self.observe_outcome(call, at)

    def observe_outcome(self, call, at):
        outcome = call.identity, call.digest
        before = [one for one in self.ended if (one.identity, one.digest) == outcome and one.digest is not None]
        call.new = not before
        call.twin = bool(before) and call.started < before[-1].ended
        call.news = call.digest is None or outcome not in self.session.outcomes
        if self.measures():
            self.session.outcomes.append(outcome)
        self.ended.append(call)
        self.session.log.append((call.outcome if call.outcome in {"ok", "error"} else "over", call, at))

    def measures(self):
        """Say whether any wall of the run asks for outcomes; else none is taken."""
        limits = self.limits
        adaptive = limits["hard_cap"] is None and limits["adaptive_soft"] and limits["adaptive_signal"] == "unchanged"
        return adaptive or limits["repeat_failure"] or limits["same_outcome"] or limits["stale_streak"]

    def refuse(self, call, reason, at):
        """A refusal was returned to the caller."""
        self.refused.append(reason)
        call.ended = at
        if call.tool.name in LOCAL:
            return
        self.attempts.append(call)
        self.session.log.append(("refused", call, at))
        if call.mine == {"aggregate"}:
            self.flags.setdefault(call.identity, call)
        if call.turn:
            self.turn_refused = True
            return
        self.calls_in_a_row += 1
        n = self.limits["refused_calls"]
        if n and self.calls_in_a_row >= n:
            self.stop(No("refused_calls", self.calls_in_a_row, n, "never"))

    def begin_turn(self):
        if self.turn_ran:
            self.turns_in_a_row = 0
        elif self.turn_refused:
            self.turns_in_a_row += 1
        self.turn_ran = self.turn_refused = False
        n = self.limits["refused_turns"]
        if n and self.turns_in_a_row >= n:
            self.stop(No("refused_turns", self.turns_in_a_row, n, "never"))
        self.turns += 1

    def spend(self, tokens, micros):
        self.spent.append((tokens, micros))
        for run in self.lineage():
            for no in (run.tokens(), run.cost_usd()):
                if no:
                    run.stop(no)

    def look(self, now):
        for run in self.lineage():
            no = run.deadline_at(now)
            if no and "deadline_s" not in run.observe:
                run.stop(no)
        return next((run.stopped for run in self.lineage() if run.stopped), None)


ROWS = (
    "repeat_failure",
    "same_complaint",
    "same_outcome",
    "stale_streak",
    "duplicate_send",
    "query_loop",
    "delegation",
    "per_tool",
    "delivery",
    "call_budget",
    "aggregate",
)

# Both at once ---------------------------------------------------------------------------------------------------------


class Pair:
    """A call of the ledger and the same call of the model."""

    def __init__(self, ledger, real, made):
        self.ledger, self.real, self.made = ledger, real, made
        self.why = None


class Both:
    """Runs of the ledger and of the model. Whatever is done is done to both, and both must say the same.

    Attributes:
        runs: each run's ledger and model.
        touched: the models of which something changed since the counts were last compared.
    """

    def __init__(self):
        self.now, self.time = 0.0, itertools.count(1)
        self.runs, self.sessions, self.touched = [], [], []
        self.made, self.flying, self.refused = [], [], []
        self.heard = Counter()

    def session(self):
        self.sessions.append((Ledger((), {}).session, Shared()))

    def open(self, limits, *, above=None, session=None, observe=frozenset(), own=None):
        """Open a run; a nested one is in the session of the run around it unless it names another."""
        limits, own = {**OFF, **limits}, own or {}
        real, shared = self.sessions[session % len(self.sessions)] if session is not None else (None, None)
        parent, outer = self._run(above) if above is not None else (None, None)
        ledger = Ledger(TABLE, limits, session=real, parent=parent, began=self.now, observe=observe, local=LOCAL, own=own)
        run = Run(limits, outer, shared or (outer.session if outer else Shared()), observe, own, self.now)
        if outer is not None:
            outer.below.append(run)
        self.runs.append((ledger, run))

    def _run(self, which):
        ledger, run = self.runs[which % len(self.runs)]
        self.touched.append(run)
        return ledger, run

    def _take(self, pairs, which):
        pair = pairs.pop(which % len(pairs))
        self.touched.append(pair.made.run)
        return pair, pair.ledger, pair.real, pair.made

    def make(self, which, name, argument, shape):
        """Enter the wrapper."""
        tool, (ledger, run) = TOOLS[name], self._run(which)
        plan = ledger.plan(tool)
        identity = (name.encode() + argument).ljust(SIZE, b".") + b"?" * (argument == b"?")
        query = shape if tool.query else None
        specialist = name.encode() + argument if name == "desk" else None
        real = Call(plan.tool, plan, identity, query if plan.query else None, ledger.turn, tick())
        real.specialist = specialist if plan.specialist else None
        real.now, real.trace = self.now, object()
        made = Made(run, tool, identity, query, specialist, run.turns, self.now, next(self.time), real.trace)
        self.made.append(Pair(ledger, real, made))

    def admit(self, which=-1, ask=False):
        """Ask both. A gate may have asked before: what the walls refused it is the answer, and else it must not matter."""
        if not self.made:
            return None
        pair, ledger, real, made = self._take(self.made, which)
        before = count(ledger)
        pair.why = (ledger.ask(real, real.plan) if ask else None) or ledger.admit(real, real.plan)
        why, would, confirms = made.run.admit(made)
        assert plain(pair.why) == why
        assert plain(real.would) == would
        if why is None:
            assert real.confirms is (confirms and confirms.trace)
            self.flying.append(pair)
        else:
            assert count(ledger) == before
            assert not real.charged
            self.refused.append(pair)
        self.heard[why.reason if why else "passed"] += 1
        self.heard["would"] += would is not None
        self.heard["confirmed"] += confirms is not None
        return why is None

    def end(self, which, outcome, digest, signature):
        """Let an admitted call end."""
        if not self.flying:
            return
        _, ledger, real, made = self._take(self.flying, which)
        measured = outcome in {"ok", "error"}
        real.outcome, real.inner = ("ok", True) if outcome == "inner" else (outcome, False)
        real.digest = digest if measured and real.plan.digest else None
        real.signature = signature if outcome == "error" and real.plan.signature else None
        made.outcome, made.signature = outcome, signature
        made.digest = digest if measured and made.run.measures() else None
        ledger.end(real)
        made.run.end(made, next(self.time))

    def tell(self, which):
        """Let a refusal go back to its caller."""
        if not self.refused:
            return
        pair, ledger, real, made = self._take(self.refused, which)
        ledger.end(real, pair.why)
        made.run.refuse(made, pair.why.reason, next(self.time))

    def call(self, which, name, argument, shape, outcome, digest, signature, ask=False):
        """Make a whole call."""
        self.make(which, name, argument, shape)
        if self.admit(ask=ask):
            self.end(-1, outcome, digest, signature)
        else:
            self.tell(-1)

    def turn(self, which):
        ledger, run = self._run(which)
        ledger.begin_turn()
        run.begin_turn()

    def spend(self, which, tokens, micros):
        ledger, run = self._run(which)
        ledger.spend(tokens, micros)
        run.spend(tokens, micros)

    def wait(self, seconds):
        self.now += seconds

    def look(self, which):
        ledger, run = self._run(which)
        stop = ledger.ended_by(lambda: self.now)
        assert plain(stop and stop.why) == run.look(self.now)

    def stop(self, which):
        ledger, run = self._run(which)
        ledger.sync().stop(Refused("stop", None, None, "never"), "over")
        run.stop(No("stop", None, None, "never"))

    def agree(self):
        """Compare the counts of what was touched, and of the runs around it."""
        runs = {around for run in self.touched for around in run.lineage()}
        self.touched.clear()
        for ledger, run in self.runs:
            if run in runs:
                by_tool = Counter(call.tool.canonical for call in run.charged)
                counts = len(run.charged), run.calls_of_tree(), run.reads(), run.sends(), dict(by_tool)
                assert count(ledger) == (*counts, run.spent_by_tree(0), run.spent_by_tree(1))
                assert plain(ledger.stopped and ledger.stopped.why) == run.stopped
                assert ledger.turns == run.turns
                assert ledger.refused == len(run.refused)

    def agree_at_last(self):
        """Compare all that can be counted."""
        self.touched = [run for _, run in self.runs]
        self.agree()
        flying = Counter(pair.made.run for pair in self.flying if pair.made.tool.name not in LOCAL)
        for ledger, run in self.runs:
            usage = ledger.usage()
            assert (usage.executed, usage.refused) == (len(run.charged), len(run.refused))
            assert usage.by_reason == Counter(run.refused)
            assert sum(usage.by_tool.values()) == usage.executed
            assert (usage.tokens, usage.cost_usd) == (run.spent_by_tree(0), run.spent_by_tree(1) / 1_000_000)
            # Charged is what ran and what is in flight, and nothing else.
            assert len(run.charged) == sum(not call.flying for call in run.charged) + flying[run]


def count(ledger):
    tally = ledger.sync().tally
    by_tool = {name: n for name, n in tally.by_tool.items() if n}
    return tally.external, tally.tree, tally.reads, tally.sends, by_tool, tally.tokens, tally.micros


def plain(why):
    return why and No(why.reason, why.used, why.limit, why.retry, why.rule)


# Any history ----------------------------------------------------------------------------------------------------------

RUN = st.integers(0, 9)
WHICH = st.integers(-1, 9)
LIMITS = st.sets(st.sampled_from(sorted(CHOICES)), max_size=8).flatmap(
    lambda walls: st.fixed_dictionaries(
        {key: st.sampled_from(values) for wall in sorted(walls) for key, values in CHOICES[wall].items()}
    )
)
OBSERVE = st.just(frozenset()) | st.sets(st.sampled_from(OBSERVABLE), max_size=3).map(frozenset)
WHAT = {
    "which": RUN,
    "name": st.sampled_from(sorted(TOOLS)),
    "argument": st.sampled_from(ARGUMENTS),
    "shape": st.sampled_from([None, b"s", b"t"]),
}
HOW = {"outcome": st.sampled_from(OUTCOMES), "digest": st.sampled_from(DIGESTS), "signature": st.sampled_from(SIGNATURES)}


class Histories(RuleBasedStateMachine):
    """Trees of runs in which calls are made, admitted and ended in any order; it shrinks what it finds."""

    @initialize(limits=LIMITS)
    def begin(self, limits):
        self.both = Both()
        self.both.session()
        self.both.session()
        self.both.open(limits, session=0)

    @precondition(lambda self: len(self.both.runs) < 6)
    @rule(limits=LIMITS, above=st.none() | RUN, session=st.none() | st.integers(0, 1), observe=OBSERVE)
    def open(self, limits, above, session, observe):
        self.both.open(limits, above=above, session=session, observe=observe)

    @rule(**WHAT)
    def make(self, **what):
        self.both.make(**what)

    @precondition(lambda self: self.both.made)
    @rule(which=WHICH, ask=st.booleans())
    def admit(self, which, ask):
        self.both.admit(which, ask)

    @precondition(lambda self: self.both.flying)
    @rule(which=WHICH, **HOW)
    def end(self, which, **how):
        self.both.end(which, **how)

    @precondition(lambda self: self.both.refused)
    @rule(which=WHICH)
    def tell(self, which):
        self.both.tell(which)

    @rule(**WHAT, **HOW, ask=st.booleans(), times=st.integers(1, 4))
    def call(self, times, **call):
        for _ in range(times):
            self.both.call(**call)

    @rule(which=RUN)
    def turn(self, which):
        self.both.turn(which)

    @rule(which=RUN, tokens=st.sampled_from([0, 3, 8]), micros=st.sampled_from([0, 100_000, 250_001]))
    def spend(self, which, tokens, micros):
        self.both.spend(which, tokens, micros)

    @rule(seconds=st.sampled_from([0.5, 2.0]), which=RUN, look=st.booleans())
    def wait(self, seconds, which, look):
        self.both.wait(seconds)
        if look:
            self.both.look(which)

    @rule(which=RUN)
    def stop(self, which):
        self.both.stop(which)

    @invariant()
    def agree(self):
        self.both.agree()

    def teardown(self):
        if hasattr(self, "both"):
            self.both.agree_at_last()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
