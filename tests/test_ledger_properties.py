"""The ledger against plain models of itself, over histories that nobody thought of."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from toolguard._clock import tick
from toolguard._ledger import Ledger
from toolguard._values import Call, Refused, Tool
from toolguard.walls import KEYS, NAMES, TABLE

OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}
FIRST = 5  # rows of the table that end runs; they come first in every order

TOOLS = {
    tool.name: tool
    for tool in (
        Tool("read", "read", "read"),
        Tool("own_read", "own_read", "read", limit=2),
        Tool("free_read", "free_read", "read", limit=0),
        Tool("polls", "polls", "read", polls=True),
        Tool("send", "send", "send"),
        Tool("own_send", "own_send", "send", limit=1),
        Tool("query", "query", "read", query=True),
        Tool("query_send", "query_send", "send", query=True),
        Tool("local", "local", "read"),
    )
}
SMALL = st.integers(0, 4)
LIMITS = st.fixed_dictionaries(
    {
        "hard_cap": st.none() | st.integers(0, 8),
        "adaptive_soft": st.integers(0, 6),
        "adaptive_multiplier": st.integers(0, 3),
        "adaptive_repeats": st.integers(0, 3),
        "adaptive_signal": st.sampled_from(["unchanged", "any"]),
        "refused_turns": SMALL,
        "refused_calls": st.integers(0, 6),
        "query_loop": SMALL,
        "per_tool": SMALL,
        "delivery": SMALL,
        "aggregate": SMALL,
    }
)
OBSERVE = st.sets(st.sampled_from(NAMES)).map(frozenset) | st.just(frozenset())
OUTCOMES = st.sampled_from(["ok", "ok", "error", "cancelled", "not_executed", "inner"])
RUNS = 4  # one outer run, two nested in it, one nested in the second of these
PARENTS = (None, 0, 0, 2)

# Histories: what is done in which run. `begin` admits a call, `end` ends the oldest one that is open.
CALL = st.tuples(
    st.sampled_from(["call", "call", "call", "begin"]),
    st.integers(0, RUNS - 1),
    st.sampled_from(sorted(TOOLS)),
    st.sampled_from([b"1", b"2", b"3"]),
    st.sampled_from([None, b"x", b"y"]),
    OUTCOMES,
)
STEP = st.one_of(
    CALL,
    CALL,
    CALL,
    st.tuples(st.sampled_from(["turn", "end"]), st.integers(0, RUNS - 1)),
    st.tuples(st.sampled_from(["stop", "turn"]), st.integers(0, RUNS - 1)),
)


def histories(many):
    """Return `many` histories of random runs: what hypothesis draws shrinks well, and what this draws is cheap."""
    outcomes = ["ok", "ok", "error", "cancelled", "not_executed", "inner"]
    for seed in range(many):
        draw = random.Random(seed)
        of = draw.choice
        names = draw.sample(sorted(TOOLS), 3)  # few, so that calls meet each other
        limits = [
            {
                "hard_cap": of([0, 0, 0, 0, None, None, 6, 12]),
                "adaptive_soft": of([0, 3, 6, 9]),
                "adaptive_multiplier": of([0, 2, 3]),
                "adaptive_repeats": of([0, 2, 3]),
                "adaptive_signal": of(["unchanged", "any"]),
                "refused_turns": of([0, 1, 2]),
                "refused_calls": of([0, 0, 0, 3, 6]),
                "query_loop": of([0, 2, 3]),
                "per_tool": of([0, 2, 4]),
                "delivery": of([0, 1, 3]),
                "aggregate": of([0, 2, 4]),
            }
            for _ in range(RUNS)
        ]
        observe = frozenset(draw.sample(NAMES, of([0, 0, 1, 2, len(NAMES)])))
        steps = []
        for _ in range(40):
            verb, run = (
                of(["call"] * 12 + ["begin"] * 4 + ["end"] * 3 + ["turn"] * 3 + ["stop"] * (seed % 3 == 0)),
                of([0, 0, 0, 1, 2, 2, 3]),
            )
            if verb in {"call", "begin"}:
                steps.append((verb, run, of(names), of([b"1", b"2", b"3"]), of([None, b"x", b"y"]), of(outcomes)))
            else:
                steps.append((verb, run))
        yield draw, limits, observe, steps


def open_tree(limits, *, table=TABLE, observe=frozenset()):
    runs = []
    for parent, its in zip(PARENTS, limits, strict=True):
        above = None if parent is None else runs[parent]
        runs.append(Ledger(table, {**OFF, **its}, parent=above, observe=observe, local=frozenset({"local"})))
    return runs


class Player:
    """Plays a history in a tree of runs and writes down what every call was told."""

    def __init__(self, runs, *, shortcut=True):
        self.runs = runs
        self.shortcut = shortcut
        self.open = []
        self.told = []

    def step(self, step):
        verb, run, *rest = step
        ledger = self.runs[run]
        if verb in {"call", "begin"}:
            self.call(ledger, verb, *rest)
        elif verb == "turn":
            ledger.begin_turn()
        elif verb == "stop":
            ledger.stop(Refused("stop", None, None, "never"), "over")
        elif self.open:
            ended, why = self.open.pop(0)
            ended[0].end(ended[1], why)

    def call(self, ledger, verb, name, argument, digest, outcome):
        plan = ledger.plan(TOOLS[name])
        identity = name.encode() + argument
        call = Call(plan.tool, plan, identity, argument if plan.query else None, ledger.turn, tick())
        if not self.shortcut:
            plan.until = 0
        why = ledger.admit(call, plan)
        call.outcome, call.digest, call.inner = ("ok" if outcome == "inner" else outcome), digest, outcome == "inner"
        self.told.append((why, call.would, call.confirms))
        if verb == "call":
            ledger.end(call, why)
        else:
            self.open.append(((ledger, call), why))

    def counts(self):
        return [
            (run.sync().tally.external, run.tally.tree, run.tally.reads, run.tally.sends, dict(run.tally.by_tool), run.would)
            for run in self.runs
        ]


# The shortcut ---------------------------------------------------------------------------------------------------------


def compare_with_no_shortcut(limits, observe, steps):
    quick = Player(open_tree(limits, observe=observe))
    slow = Player(open_tree(limits, observe=observe), shortcut=False)
    for step in steps:
        quick.step(step)
        slow.step(step)
    assert quick.told == slow.told
    assert quick.counts() == slow.counts()
    assert [run.stopped for run in quick.runs] == [run.stopped for run in slow.runs]
    return quick


@settings(max_examples=150, deadline=None)
@given(limits=st.lists(LIMITS, min_size=RUNS, max_size=RUNS), observe=OBSERVE, steps=st.lists(STEP, max_size=60))
def test_what_is_certain_to_pass_would_have_passed_had_every_wall_been_asked(limits, observe, steps):
    compare_with_no_shortcut(limits, observe, steps)


def test_in_2000_random_histories_the_shortcut_changes_no_verdict():
    told = Counter()
    for _, limits, observe, steps in histories(2000):
        for why, would, _ in compare_with_no_shortcut(limits, observe, steps).told:
            told["passed" if why is None else why.reason] += 1
            told["would"] += would is not None
    # The histories are of use only if every wall speaks in them.
    assert set(told) == {"passed", "would", "stop", *NAMES} - {"turn_step"}
    assert min(told.values()) > 100


def test_the_shortcut_is_taken():
    ledger = Ledger(TABLE, {**OFF, "per_tool": 50, "aggregate": 50, "adaptive_soft": 100, "hard_cap": None})
    player, asked = Player([ledger]), 0
    for n in range(50):
        plan = ledger.plan(TOOLS["read"])
        asked += ledger.session.mileage >= plan.until
        player.step(("call", 0, "read", bytes([n]), None, "ok"))
    assert player.told == [(None, None, None)] * 50
    assert asked == 1


# The order of the walls -----------------------------------------------------------------------------------------------


def compare_with_order(limits, observe, order, steps):
    table = (*TABLE[:FIRST], *(TABLE[i] for i in order))
    plain = Player(open_tree(limits, observe=observe))
    permuted = Player(open_tree(limits, observe=observe, table=table))
    for step in steps:
        plain.step(step)
        permuted.step(step)
    renamed = 0
    for (why, would, confirms), (other_why, other_would, other_confirms) in zip(plain.told, permuted.told, strict=True):
        assert (why is None) == (other_why is None)
        assert (would is None) == (other_would is None)
        assert confirms == other_confirms
        if why is not None and why.retry == "never":
            assert other_why == why
        renamed += why != other_why
    assert plain.counts() == permuted.counts()
    assert [run.stopped for run in plain.runs] == [run.stopped for run in permuted.runs]
    return renamed


def test_what_ends_a_run_comes_first():
    assert {wall.name for wall in TABLE[:FIRST]} == {"hard_stop", "refused_turns", "refused_calls"}
    assert not {wall.name for wall in TABLE[FIRST:]} & {"hard_stop", "refused_turns", "refused_calls"}


@settings(max_examples=150, deadline=None)
@given(
    limits=st.lists(LIMITS, min_size=RUNS, max_size=RUNS),
    observe=OBSERVE,
    order=st.permutations(range(FIRST, len(TABLE))),
    steps=st.lists(STEP, max_size=40),
)
def test_the_order_of_the_walls_never_decides_whether_a_call_runs(limits, observe, order, steps):
    compare_with_order(limits, observe, order, steps)


def test_in_3000_random_histories_the_order_of_the_walls_names_a_refusal_and_decides_nothing():
    renamed = 0
    for draw, limits, observe, steps in histories(3000):
        order = draw.sample(range(FIRST, len(TABLE)), len(TABLE) - FIRST)
        renamed += compare_with_order(limits, observe, order, steps)
    assert renamed > 100  # the order mattered to the names, so it was tried


# Observe --------------------------------------------------------------------------------------------------------------


def compare_first_refusal(limits, steps):
    enforced, observed = Player(open_tree(limits)), Player(open_tree(limits, observe=frozenset(NAMES)))
    for step in steps:
        enforced.step(step)
        observed.step(step)
        if enforced.told and enforced.told[-1][0]:
            break
    assert all(why is None for why, _, _ in observed.told)
    refused = [why for why, _, _ in enforced.told]
    marked = [would for _, would, _ in observed.told]
    assert marked == refused
    assert all(run.stopped is None for run in observed.runs)
    return refused[-1].reason if refused and refused[-1] else None


@settings(max_examples=150, deadline=None)
@given(
    limits=st.lists(LIMITS, min_size=RUNS, max_size=RUNS),
    steps=st.lists(STEP.filter(lambda step: step[0] != "stop"), max_size=60),
)
def test_the_first_call_marked_is_the_first_that_enforcement_refuses(limits, steps):
    compare_first_refusal(limits, steps)


def test_in_2000_random_histories_the_first_call_marked_is_the_first_that_enforcement_refuses():
    first = Counter()
    for _, limits, _, steps in histories(2000):
        first[compare_first_refusal(limits, [step for step in steps if step[0] != "stop"])] += 1
    assert set(first) == {*NAMES, None} - {"turn_step"}


@pytest.mark.parametrize("name", ["hard_stop", "query_loop", "per_tool", "delivery", "aggregate"])
def test_a_wall_that_observes_alone_marks_first_what_it_would_have_refused_first(name):
    its = {key.name for wall in TABLE if wall.name == name for key in wall.keys}
    first = Counter()
    for _, limits, _, steps in histories(300):
        alone = [{"hard_cap": 0, **{key: value for key, value in one.items() if key in its}} for one in limits]
        enforced, observed = Player(open_tree(alone)), Player(open_tree(alone, observe=frozenset({name})))
        for step in steps:
            if step[0] == "stop" or step[2:3] in {("own_read",), ("own_send",)}:  # these have a limit in any case
                continue
            enforced.step(step)
            observed.step(step)
            if enforced.told and enforced.told[-1][0]:
                break
        assert [would for _, would, _ in observed.told] == [why for why, _, _ in enforced.told]
        first[enforced.told[-1][0] and enforced.told[-1][0].reason] += 1
    assert first[name] > 10
    assert set(first) <= {name, None}


# Everything at once, against a plain reference ------------------------------------------------------------------------


@dataclass
class Made:
    """What the reference knows of a call."""

    run: int
    tool: Tool
    identity: bytes
    query: bytes | None
    turn: int
    started: int
    charged: bool = False
    mine: set = field(default_factory=set)


@dataclass
class Reference:
    """One run, as plainly as it can be written: it keeps its calls and counts them anew each time it is asked."""

    number: int
    above: "Reference | None"
    limits: dict
    charged: list = field(default_factory=list)
    below: list = field(default_factory=list)
    seen: set = field(default_factory=set)
    unchanged: Counter = field(default_factory=Counter)
    flags: dict = field(default_factory=dict)
    refused: Counter = field(default_factory=Counter)
    turn: int = 0
    calls_in_a_row: int = 0
    turns_in_a_row: int = 0
    turn_refused: bool = False
    turn_ran: bool = False
    stopped: str | None = None

    def lineage(self):
        run = self
        while run is not None:
            yield run
            run = run.above

    def tree(self):
        return len(self.charged) + sum(run.tree() for run in self.below)

    def own(self, tool):
        return sum(call.tool is tool for call in self.charged)

    def reads(self):
        return sum(call.tool.kind == "read" for call in self.charged)

    def sends(self):
        return sum(call.tool.kind == "send" and call.tool.limit is None for call in self.charged)

    def ask(self, call):
        """Return all walls that refuse, and the runs that this stops."""
        stops = [run for run in self.lineage() if run.limits["hard_cap"] and run.tree() >= run.limits["hard_cap"]]
        if self.adaptive_stops():
            stops.append(self)
        rest = [name for name in ("query_loop", "per_tool", "delivery", "aggregate") if getattr(self, name)(call)]
        return ["hard_stop"] * bool(stops) + rest, stops

    def adaptive_stops(self):
        soft, used = self.limits["adaptive_soft"], len(self.charged)
        if self.limits["hard_cap"] is not None or not soft or used < soft:
            return False
        times, repeats = self.limits["adaptive_multiplier"], self.limits["adaptive_repeats"]
        return bool((times and used >= soft * times) or (repeats and max(self.unchanged.values(), default=0) >= repeats))

    def query_loop(self, call):
        n = self.limits["query_loop"]
        return n and call.query is not None and sum(other.query == call.query for other in self.charged) >= n

    def per_tool(self, call):
        n = self.limits["per_tool"] if call.tool.limit is None else call.tool.limit
        return n and call.tool.kind == "read" and self.own(call.tool) >= n

    def delivery(self, call):
        if call.tool.kind == "read":
            return False
        if call.tool.limit is not None:
            return self.own(call.tool) >= call.tool.limit
        return self.limits["delivery"] and self.sends() >= self.limits["delivery"]

    def aggregate(self, call):
        n = self.limits["aggregate"]
        if call.tool.kind == "send" or not n or self.reads() < n:
            return False
        if call.identity not in self.flags:
            return True
        at, turn = self.flags[call.identity]
        return call.started < at or (turn and turn == call.turn)

    def admit(self, call):
        for run in self.lineage():
            if run.stopped:
                return run.stopped
        if call.tool.name == "local":
            return None
        refusing, stops = self.ask(call)
        call.mine = set(refusing)
        for run in stops:
            run.stopped = run.stopped or "hard_stop"
        if refusing:
            return refusing[0]
        self.charged.append(call)
        return None

    def settle(self, call, outcome, digest):
        if outcome == "not_executed":
            if call in self.charged:
                self.charged.remove(call)
            self.refuse(call, "gate")
            return
        if outcome == "inner":
            return
        self.calls_in_a_row, self.turn_ran = 0, True
        if call.tool.name == "local":
            return
        if digest is None or (call.identity, digest) not in self.seen:
            self.unchanged = Counter([call.identity])
        elif not call.tool.polls:
            self.unchanged[call.identity] += 1
        if digest is not None:
            self.seen.add((call.identity, digest))

    def refuse(self, call, reason):
        self.refused[reason] += 1
        if call.tool.name == "local":
            return
        if call.mine == {"aggregate"}:
            self.flags.setdefault(call.identity, (tick(), call.turn))
        if call.turn:
            self.turn_refused = True
        else:
            self.calls_in_a_row += 1
            if self.limits["refused_calls"] and self.calls_in_a_row >= self.limits["refused_calls"]:
                self.stopped = self.stopped or "refused_calls"

    def begin_turn(self):
        if self.turn_ran:
            self.turns_in_a_row = 0
        elif self.turn_refused:
            self.turns_in_a_row += 1
        self.turn_ran = self.turn_refused = False
        if self.limits["refused_turns"] and self.turns_in_a_row >= self.limits["refused_turns"]:
            self.stopped = self.stopped or "refused_turns"
        self.turn += 1


class Runs(RuleBasedStateMachine):
    """A tree of runs in which calls are made, admitted and ended in any order."""

    @initialize(limits=LIMITS)
    def open_outermost(self, limits):
        self.ledgers, self.references = [], []
        self.made, self.running, self.refused = [], [], []
        self._open(None, limits)

    def _open(self, parent, limits):
        limits = {**OFF, **limits, "adaptive_signal": "unchanged"}
        above = None if parent is None else self.references[parent]
        ledger = Ledger(
            TABLE,
            limits,
            parent=None if parent is None else self.ledgers[parent],
            local=frozenset({"local"}),
        )
        reference = Reference(len(self.references), above, limits)
        if above is not None:
            above.below.append(reference)
        self.ledgers.append(ledger)
        self.references.append(reference)

    def _which(self, number, of):
        return number % len(of)

    @precondition(lambda self: len(self.ledgers) < 5)
    @rule(parent=st.integers(0, 4), limits=LIMITS)
    def open_nested(self, parent, limits):
        self._open(self._which(parent, self.ledgers), limits)

    @rule(
        run=st.integers(0, 4),
        name=st.sampled_from(sorted(TOOLS)),
        argument=st.sampled_from([b"1", b"2", b"3"]),
        shape=st.sampled_from([None, b"s", b"t"]),
    )
    def make(self, run, name, argument, shape):
        run = self._which(run, self.ledgers)
        tool, ledger = TOOLS[name], self.ledgers[run]
        plan = ledger.plan(tool)
        query = shape if tool.query and ledger._seats[0].limits["query_loop"] else None
        identity = name.encode() + argument
        call = Call(plan.tool, plan, identity, query, ledger.turn, tick())
        self.made.append((call, Made(run, tool, identity, query, self.references[run].turn, call.started)))

    @precondition(lambda self: self.made)
    @rule(which=st.integers(0, 20))
    def admit(self, which):
        call, made = self.made.pop(self._which(which, self.made))
        why = self.ledgers[made.run].admit(call, call.plan)
        expected = self.references[made.run].admit(made)
        assert (why and why.reason) == expected
        if why is None:
            self.running.append((call, made))
        else:
            assert not call.charged
            self.refused.append((call, made, why))

    @rule(
        run=st.integers(0, 4),
        name=st.sampled_from(sorted(TOOLS)),
        argument=st.sampled_from([b"1", b"2", b"3"]),
        shape=st.sampled_from([None, b"s", b"t"]),
        outcome=OUTCOMES,
        digest=st.sampled_from([None, b"x", b"y"]),
    )
    def call(self, run, name, argument, shape, outcome, digest):
        self.make(run, name, argument, shape)
        self.admit(len(self.made) - 1)
        if self.running and self.running[-1][1].started == self._last_started():
            self._end(len(self.running) - 1, outcome, digest)
        else:
            self.tell(len(self.refused) - 1)

    def _last_started(self):
        newest = [made.started for _, made in self.running] + [made.started for _, made, _ in self.refused]
        return max(newest)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 20), outcome=OUTCOMES, digest=st.sampled_from([None, b"x", b"y"]))
    def end(self, which, outcome, digest):
        self._end(self._which(which, self.running), outcome, digest)

    def _end(self, index, outcome, digest):
        call, made = self.running.pop(index)
        call.outcome, call.inner = ("ok" if outcome == "inner" else outcome), outcome == "inner"
        call.digest = digest
        self.ledgers[made.run].end(call)
        self.references[made.run].settle(made, outcome, digest)

    @precondition(lambda self: self.refused)
    @rule(which=st.integers(0, 20))
    def tell(self, which):
        call, made, why = self.refused.pop(self._which(which, self.refused))
        self.ledgers[made.run].end(call, why)
        self.references[made.run].refuse(made, why.reason)

    @rule(run=st.integers(0, 4))
    def turn(self, run):
        run = self._which(run, self.ledgers)
        self.ledgers[run].begin_turn()
        self.references[run].begin_turn()

    @rule(run=st.integers(0, 4))
    def look(self, run):
        run = self._which(run, self.ledgers)
        usage, reference = self.ledgers[run].usage(), self.references[run]
        assert usage.executed == len(reference.charged)
        assert usage.refused == reference.refused.total()
        assert dict(usage.by_reason) == dict(reference.refused)
        assert dict(usage.by_tool) == dict(Counter(call.tool.name for call in reference.charged))

    @invariant()
    def counts_agree(self):
        for ledger, reference in zip(self.ledgers, self.references, strict=True):
            tally = ledger.sync().tally
            assert tally.external == len(reference.charged)
            assert tally.tree == reference.tree()
            assert tally.reads == reference.reads()
            assert tally.sends == reference.sends()
            assert (ledger.stopped and ledger.stopped.why.reason) == reference.stopped
            assert ledger.turn == reference.turn


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
