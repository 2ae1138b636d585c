"""The ledger beside a plain model of the walls: the same verdict and the same counts at every step of any history."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.test_ledger_properties import (
    ASK,
    ASKED,
    DIGESTS,
    HOW,
    LIMITS,
    LOCAL,
    MICROS,
    OFF,
    RUN,
    SIGNATURES,
    SPEAKING,
    TOKENS,
    TOOLS,
    WHAT,
    WHICH,
    No,
    Play,
    Real,
    facts,
    history,
    observing,
)
from toolguard._identity import SIZE
from toolguard._ledger import GATE
from toolguard._values import Tool

# The model ------------------------------------------------------------------------------------------------------------


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
    number: int
    reason: str = ""
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
    would: int = 0
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
        self.would += bool(said)
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

# The model at play ----------------------------------------------------------------------------------------------------


class Model(Play):
    """Plays in the model."""

    def __init__(self, runs=()):
        self.time = itertools.count(1)
        super().__init__(runs)

    def new_session(self):
        return Shared()

    def open(self, limits, above=None, session=None, observe=frozenset(), own=None):
        outer = None if above is None else self.run(above)
        shared = outer.session if outer else Shared()
        if session is not None:
            shared = self.sessions[session]
        self.runs.append(Run({**OFF, **limits}, outer, shared, observe, own or {}, self.now))
        if outer:
            outer.below.append(self.runs[-1])

    def make(self, which, name, argument, shape):
        run = self.run(which)
        self.number += 1
        number, started = self.number, next(self.time)
        self.made.append(Made(run, TOOLS[name], *facts(name, argument, shape), run.turns, self.now, started, number))

    def admit(self, which=-1, ask=False):
        if not self.made:
            return None
        call = self.take(self.made, which)
        why, would, confirms = call.run.admit(call)
        (self.flying if why is None else self.refused).append(call)
        call.reason = why.reason if why else ""
        return why, would, confirms and confirms.number

    def end(self, which, outcome, digest, signature):
        if self.flying:
            call = self.take(self.flying, which)
            call.outcome, call.signature = outcome, signature
            call.digest = digest if outcome in {"ok", "error"} and call.run.measures() else None
            call.run.end(call, next(self.time))

    def tell(self, which):
        if self.refused:
            call = self.take(self.refused, which)
            call.run.refuse(call, call.reason, next(self.time))

    def turn(self, which):
        self.run(which).begin_turn()

    def spend(self, which, tokens, micros):
        self.run(which).spend(tokens, micros)

    def look(self, which):
        self.run(which).look(self.now)

    def stop(self, which):
        self.run(which).stop(No("stop", None, None, "never"))

    def counts(self, which):
        run = self.runs[which]
        by_tool = Counter(call.tool.canonical for call in run.charged)
        counts = len(run.charged), run.calls_of_tree(), run.reads(), run.sends(), dict(by_tool)
        return *counts, run.spent_by_tree(0), run.spent_by_tree(1), len(run.refused), run.turns, run.would, run.stopped


class Both:
    """The ledger and the model: whatever is done is done to both, and both must say the same."""

    def __init__(self, runs=()):
        self.real, self.model = Real(runs), Model(runs)
        self.heard = Counter()

    def do(self, verb, *arguments, **named):
        told = getattr(self.real, verb)(*arguments, **named)
        assert told == getattr(self.model, verb)(*arguments, **named)
        if told:
            why, would, confirms = told
            self.heard[why.reason if why else "passed"] += 1
            self.heard["would"] += would is not None
            self.heard["confirms"] += confirms is not None

    def agree(self):
        for which in range(len(self.model.runs)):
            assert self.real.counts(which) == self.model.counts(which)

    def agree_at_last(self):
        self.agree()
        flying = Counter(call.run for call in self.model.flying if call.tool.name not in LOCAL)
        for ledger, run in zip(self.real.runs, self.model.runs, strict=True):
            usage = ledger.usage()
            assert (usage.executed, usage.refused) == (len(run.charged), len(run.refused))
            assert usage.by_reason == Counter(run.refused)
            assert sum(usage.by_tool.values()) == usage.executed
            assert (usage.tokens, usage.cost_usd) == (run.spent_by_tree(0), run.spent_by_tree(1) / 1_000_000)
            # Charged is what ran and what is in flight, and nothing else.
            assert len(run.charged) == sum(not call.flying for call in run.charged) + flying[run]


def play(runs, steps):
    both = Both(runs)
    for number, step in enumerate(steps):
        both.do(*step)
        if not number % 4:
            both.agree()
    both.agree_at_last()
    return both.heard


def test_in_3000_random_histories_the_ledger_says_what_the_model_says_and_every_wall_speaks():
    heard = Counter()
    for seed in range(3000):
        heard += play(*history(seed, observable=ASKED))
    assert set(heard) == {"passed", "would", "confirms", "stop", *SPEAKING}
    assert min(heard.values()) > 100, heard


# Any history ----------------------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Trees of runs in which calls are made, admitted and ended in any order; it shrinks what it finds."""

    @initialize(limits=LIMITS)
    def begin(self, limits):
        self.both = Both()
        self.both.do("open", limits, None, 0)

    @precondition(lambda self: len(self.both.model.runs) < 6)
    @rule(limits=LIMITS, above=st.none() | RUN, session=st.none() | st.integers(0, 1), observe=observing(ASKED))
    def open(self, limits, above, session, observe):
        self.both.do("open", limits, above, session, observe)

    @rule(**WHAT)
    def make(self, **what):
        self.both.do("make", **what)

    @rule(which=WHICH, **ASK)
    def admit(self, which, ask):
        self.both.do("admit", which, ask)

    @rule(which=WHICH, **HOW)
    def end(self, which, **how):
        self.both.do("end", which, **how)

    @rule(which=WHICH)
    def tell(self, which):
        self.both.do("tell", which)

    @rule(**WHAT, **HOW, **ASK, times=st.integers(1, 4))
    def call(self, times, **call):
        for _ in range(times):
            self.both.do("call", **call)

    @rule(which=RUN)
    def turn(self, which):
        self.both.do("turn", which)

    @rule(which=RUN, tokens=st.sampled_from(TOKENS), micros=st.sampled_from(MICROS))
    def spend(self, which, tokens, micros):
        self.both.do("spend", which, tokens, micros)

    @rule(seconds=st.sampled_from([0.5, 2.0]), which=RUN)
    def wait_and_look(self, seconds, which):
        self.both.do("wait", seconds)
        self.both.do("look", which)

    @rule(which=RUN)
    def stop(self, which):
        self.both.do("stop", which)

    @invariant()
    def agree(self):
        self.both.agree()

    def teardown(self):
        if hasattr(self, "both"):
            self.both.agree_at_last()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


# Histories that were told wrong once, or that chance plays too rarely -------------------------------------------------

A = SIGNATURES[0]
X = DIGESTS[1]


def fails(run, argument=b"1", signature=A):
    return "call", run, "read", argument, None, "error", X, signature


def made_and_admitted(run):
    return [("make", run, "read", b"1", None), ("admit", -1)]


def runs_of_one_session(*limits, observe=frozenset()):
    return [{"limits": its, "session": 0, "observe": observe} for its in limits]


def test_a_run_with_a_lower_limit_hears_what_failed_in_a_run_of_its_session_with_a_higher_one():
    for key in ("repeat_failure", "same_complaint"):
        runs = runs_of_one_session({key: 2}, {key: 5})
        arguments = (b"1", b"1", b"1") if key == "repeat_failure" else (b"1", b"2", b"3")
        steps = [fails(which, argument) for which, argument in zip((0, 1, 0), arguments, strict=True)]
        assert play(runs, steps)[key] == 1


def test_complaints_that_one_run_heard_past_its_limit_count_in_a_run_with_a_higher_one():
    runs = runs_of_one_session({"same_complaint": 1}, {"same_complaint": 3})
    arguments = [bytes([n]) for n in range(9)]  # of each two one is refused
    heard = play(runs, [*(fails(0, argument) for argument in arguments), fails(1)])
    assert (heard["passed"], heard["same_complaint"]) == (5, 5)


def test_what_only_runs_because_the_wall_observes_is_no_probe_and_closes_nothing():
    for key in ("repeat_failure", "same_complaint"):
        enforced, observed = runs_of_one_session({key: 1}, {key: 1}, observe=frozenset())
        observed["observe"] = frozenset({key})
        heard = play([enforced, observed], [fails(0), fails(1), fails(1), fails(0), *made_and_admitted(0)])
        assert heard == {"passed": 4, "would": 2, key: 1, "confirms": 0}


def test_a_call_that_another_runs_limit_admits_does_not_give_a_probe_back():
    steps = [
        fails(0),
        fails(0),  # refused
        *made_and_admitted(0),  # the probe
        fails(1),
        *made_and_admitted(0),  # refused, since the probe is still in flight
    ]
    heard = play(runs_of_one_session({"repeat_failure": 1}, {"repeat_failure": 9}), steps)
    assert (heard["passed"], heard["repeat_failure"]) == (3, 2)


def test_a_twin_that_ends_after_a_new_outcome_leaves_the_row_at_one():
    same = ("call", 0, "read", b"1", None, "ok", X, "")
    steps = [*made_and_admitted(0), same, ("end", 0, "ok", X, ""), same, same]
    heard = play([{"limits": {"same_outcome": 3}}], [*steps, same])
    assert (heard["passed"], heard["same_outcome"]) == (4, 1)
    other = ("call", 0, "read", b"2", None, "ok", X, "")
    heard = play([{"limits": {"same_outcome": 3}}], [other, other, *steps])
    assert heard["same_outcome"] == 0


def test_polls_are_outside_the_stuck_rule_whatever_counts_as_its_signal():
    for signal in ("unchanged", "any"):
        limits = {"hard_cap": None, "adaptive_soft": 2, "adaptive_repeats": 1, "adaptive_signal": signal}
        poll = ("call", 0, "polls", b"1", None, "ok", X, "")
        heard = play([{"limits": limits}], [("call", 0, "local", b"1", None, "ok", X, ""), *[poll] * 4])
        assert heard["hard_stop"] == (2 if signal == "unchanged" else 0)


def works(name="read", argument=b"1"):
    return "call", 0, name, argument, None, "ok", X, ""


def last_is(expected, limits, *steps):
    """Play the steps and say what became of the last one, a call."""
    before, after = play([{"limits": limits}], steps[:-1]), play([{"limits": limits}], steps)
    return (after - before)[expected] == 1


MAKE, ADMIT = made_and_admitted(0)
FAIL, SUCCEED = ("end", 0, "error", X, A), ("end", 0, "ok", None, "")


def test_a_probe_must_have_started_after_the_first_refusal_was_told_and_not_the_last():
    for wall in ("repeat_failure", "same_complaint"):
        two_refused = fails(0), MAKE, MAKE, ("admit", 0), ("admit", 0)
        assert last_is("passed", {wall: 1}, *two_refused, ("tell", 0), MAKE, ("tell", 0), ADMIT)
        assert last_is(wall, {wall: 1}, *two_refused, MAKE, ("tell", 0), ADMIT)


def test_a_refusal_that_is_told_when_all_is_forgiven_promises_no_probe():
    forgiven = "call", 0, "read", b"1", None, "ok", None, ""
    for wall in ("repeat_failure", "same_complaint"):
        arguments = b"1", (b"1" if wall == "repeat_failure" else b"2")
        twice = [fails(0, argument) for argument in arguments]
        late = [MAKE, *twice, MAKE, ADMIT, ADMIT, ("tell", 0), MAKE, ADMIT, ("end", -1, "ok", None, "")]
        assert last_is(wall, {wall: 2}, *late, twice[0], ("tell", 0), twice[1], forgiven)


def test_a_failure_that_began_before_the_last_of_its_twins_ended_is_one_more_twin():
    twins = MAKE, ADMIT, fails(0), MAKE, ADMIT, FAIL, FAIL
    for wall in ("repeat_failure", "same_complaint"):
        assert last_is("passed", {wall: 2}, *twins, fails(0))
    assert last_is("repeat_failure", {"repeat_failure": 2}, *twins, fails(0), fails(0))


def test_what_the_probe_comes_to_counts_even_if_a_call_that_began_later_has_failed_meanwhile():
    runs = runs_of_one_session({"repeat_failure": 1}, {"repeat_failure": 9})
    probing = [fails(0), fails(0), *made_and_admitted(0), fails(1)]
    closed = play(runs, [*probing, FAIL, *[fails(0)] * 3])
    assert closed["repeat_failure"] == 4
    known = ("end", 0, "ok", X, A)  # nothing new, so that it forgives nobody but itself
    forgiven = play(runs, [*probing, known, fails(0)])
    assert forgiven["repeat_failure"] == 1


def test_what_one_run_of_a_session_has_seen_is_no_news_from_another():
    def found(run):
        return "call", run, "read", b"2", None, "ok", X, ""

    limits = {"repeat_failure": 1, "progress_clears": True}
    runs = runs_of_one_session(limits, limits)
    assert play(runs, [fails(0), found(0), fails(0)])["repeat_failure"] == 0
    assert play(runs, [fails(0), found(0), fails(0), found(1), fails(0)])["repeat_failure"] == 1


def test_polls_and_what_a_full_streak_lets_pass_change_nothing_for_what_was_seen():
    for limits in ({"stale_streak": 3}, {"same_outcome": 4}):
        polled = works("polls"), works(), works("polls"), works(), works("polls"), works("polls")
        assert last_is("passed", limits, *polled, works(), works())
        assert last_is(next(iter(limits)), limits, *polled, works(), works(), works())
    full = works(), works(), works()
    new_in_flight = ("make", 0, "read", b"2", None), ADMIT
    assert last_is("stale_streak", {"stale_streak": 2}, *full, *new_in_flight, works())
