"""The ledger against itself, over histories that nobody thought of: what must not matter changes no verdict."""

import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolguard._clock import tick
from toolguard._identity import SIZE
from toolguard._ledger import Ledger
from toolguard._values import Call, Refused, Tool
from toolguard.walls import KEYS, NAMES, TABLE

OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}
MUTE = frozenset({"turn_step", "output_chars", "result_chars"})  # they refuse nothing
SPEAKING = frozenset(NAMES) - MUTE
# Walls that say no to a call. The others end a run between two calls.
ASKED = sorted(SPEAKING - {"refused_turns", "refused_calls", "deadline_s", "tokens", "cost_usd"})
FIRST = 8  # rows of the table that end runs; they come first in every order

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

# Histories ------------------------------------------------------------------------------------------------------------

ARGUMENTS = (b"1", b"2", b"3", b"?")  # the last one holds an opaque value
SHAPES = (None, b"s", b"s", b"t")
DIGESTS = (None, b"x" * SIZE, b"y" * SIZE)
SIGNATURES = ("a" * 60 + "1", "a" * 60 + "2", "b")  # the first two begin alike as far as a complaint is compared
OUTCOMES = ("ok", "ok", "ok", "error", "error", "cancelled", "closed", "not_executed", "inner")
TOKENS = (0, 3, 8)
MICROS = (0, 125_000, 250_001)

# What each wall may be set to. A key that a run does not get is off.
CHOICES = {
    "adaptive": {
        "hard_cap": [None],
        "adaptive_soft": [0, 2, 2, 3, 5],
        "adaptive_multiplier": [0, 2, 3],
        "adaptive_repeats": [0, 1, 2, 3],
        "adaptive_signal": ["unchanged", "any"],
    },
    "cap": {"hard_cap": [2, 5, 9]},  # with it the adaptive rule has nothing to say
    "refused_turns": {"refused_turns": [1, 2]},
    "refused_calls": {"refused_calls": [2, 3]},
    "deadline_s": {"deadline_s": [1.5, 3]},
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
# Those of which a history of little else takes the longest to try all that there is.
INTRICATE = ["repeat_failure"] * 5 + ["same_complaint"] * 4 + ["same_outcome", "stale_streak"] * 2
# Three trees of runs, in two sessions and in some of their own: (the run around it, its session).
TREES = ((None, 0), (0, None), (None, 1), (2, 0), (3, None), (None, None))
RUNS = len(TREES)

# How often what is done: mostly whole calls, or mostly calls that overlap.
BETWEEN = ["turn"] * 3 + ["wait", "spend"] * 2 + ["look"]
WHOLE = ["call"] * 16 + ["begin"] * 3 + ["end"] * 4 + ["make", "admit", "tell"] + BETWEEN
OVERLAPPING = ["call"] * 6 + ["begin"] * 8 + ["end"] * 9 + ["make", "admit", "tell"] * 4 + BETWEEN


def draw_limits(draw, share, always=None):
    """Return the limits of a run in which about this share of the walls is on, and one of them always."""
    limits = {}
    for wall, keys in CHOICES.items():
        if draw.random() < share or wall == always:
            limits |= {key: draw.choice(values) for key, values in keys.items()}
    return limits


def draw_runs(draw, trees, observable, *, narrow):
    """Return what the runs are opened with: the same limits or others; narrow: of little but one wall."""
    share, always = (0.02, draw.choice(sorted(CHOICES) + INTRICATE)) if narrow else (draw.choice([0.1, 0.2, 0.4]), None)
    limits = draw_limits(draw, share, always)
    return [
        {
            "limits": limits if draw.random() < 0.6 else draw_limits(draw, share, always),
            "above": above,
            "session": session,
            "observe": frozenset(draw.sample(observable, draw.choice([0, 0, 0, 1, 3]))),
            "own": {"read": draw.choice([0, 1, 3]), "send": 2} if draw.random() < 0.1 else {},
        }
        for above, session in trees
    ]


def draw_steps(draw, runs, tools, *, narrow, stop):
    """Return what is done: the name of a method of `Play`, and its arguments; narrow: little else than one call."""
    of = draw.choice
    names = draw.sample(tools, of([1, 1, 2] if narrow else [1, 2, 4]))  # few, so that calls meet each other
    verbs = (OVERLAPPING if narrow else of([WHOLE, OVERLAPPING])) + ["stop"] * stop
    outcomes = of([OUTCOMES, ("ok",), ("error",), ("error", "error", "ok"), ("error", "cancelled"), ("not_executed",)])
    digests = of([DIGESTS, DIGESTS[1:], DIGESTS[1:2]])
    arguments = of([ARGUMENTS[: 2 if narrow else 4], ARGUMENTS[:2], ARGUMENTS[:1]])
    signatures = of([SIGNATURES, SIGNATURES[:2], SIGNATURES[:1]])
    for _ in range(40):
        verb, run, ask = of(verbs), of(runs), draw.random() < 0.2
        what = run, of(names), of(arguments), of(SHAPES)
        how = of(outcomes), of(digests), of(signatures)
        match verb:
            case "call":
                yield verb, *what, *how, ask
            case "make":
                yield verb, *what
            case "begin":
                yield "make", *what
                yield "admit", -1, ask
            case "admit":
                yield verb, draw.randrange(9), ask
            case "end":
                yield verb, draw.randrange(9), *how
            case "tell":
                yield verb, draw.randrange(9)
            case "spend":
                yield verb, run, of(TOKENS), of(MICROS)
            case "wait":
                yield verb, of([0.5, 1.0])
            case _:
                yield verb, run


def history(seed, *, tools=None, observable=sorted(NAMES)):  # noqa: B008  nobody changes it
    """Return one random history, which is cheap to draw: its runs and its steps."""
    draw = random.Random(seed)
    narrow = seed % 2 == 0
    runs = draw.sample(range(RUNS), draw.choice([1, 1, 2] if narrow else [1, 2, 4]))
    opened = sorted({*runs, *(above for run in runs for above in lineage(run))})  # no others, since they cost time
    trees = [(None if TREES[run][0] is None else opened.index(TREES[run][0]), TREES[run][1]) for run in opened]
    runs = [opened.index(run) for run in runs]
    steps = draw_steps(draw, runs, tools or sorted(TOOLS), narrow=narrow, stop=seed % 10 == 0)
    return draw_runs(draw, trees, observable, narrow=narrow), list(steps)


def lineage(run):
    while run is not None:
        yield run
        run = TREES[run][0]


# The same as strategies, which shrink.
RUN = st.integers(0, RUNS - 1)
WHICH = st.integers(-1, 9)
WHAT = {
    "which": RUN,
    "name": st.sampled_from(sorted(TOOLS)),
    "argument": st.sampled_from(ARGUMENTS),
    "shape": st.sampled_from(SHAPES),
}
HOW = {"outcome": st.sampled_from(OUTCOMES), "digest": st.sampled_from(DIGESTS), "signature": st.sampled_from(SIGNATURES)}
ASK = {"ask": st.booleans()}
LIMITS = st.sets(st.sampled_from(sorted(CHOICES)), max_size=8).flatmap(
    lambda walls: st.fixed_dictionaries(
        {key: st.sampled_from(values) for wall in sorted(walls) for key, values in CHOICES[wall].items()}
    )
)


def observing(names):
    return st.just(frozenset()) | st.sets(st.sampled_from(sorted(names)), max_size=3).map(frozenset)


def step(verb, **arguments):
    return st.tuples(st.just(verb), *arguments.values())


CALL = step("call", **WHAT, **HOW, **ASK)
STEPS = st.lists(
    CALL
    | CALL
    | CALL
    | step("make", **WHAT)
    | step("admit", which=WHICH, **ASK)
    | step("end", which=WHICH, **HOW)
    | step("tell", which=WHICH)
    | step("turn", which=RUN)
    | step("spend", which=RUN, tokens=st.sampled_from(TOKENS), micros=st.sampled_from(MICROS))
    | step("wait", seconds=st.sampled_from([0.5, 1.0]))
    | step("look", which=RUN)
    | step("stop", which=RUN),
    max_size=50,
)
OPENINGS = st.tuples(
    *(
        st.fixed_dictionaries(
            {
                "limits": LIMITS,
                "above": st.just(above),
                "session": st.just(session),
                "observe": observing(NAMES),
                "own": st.sampled_from([{}, {}, {"read": 1, "send": 2}]),
            }
        )
        for above, session in TREES
    )
)


# Playing them ---------------------------------------------------------------------------------------------------------


class No(NamedTuple):
    """A refusal, as far as it is compared."""

    reason: str
    used: float | None
    limit: float | None
    retry: str = "different"
    rule: str | None = None


def plain(why):
    return why and No(why.reason, why.used, why.limit, why.retry, why.rule)


class Play:
    """Plays a history step by step, and says after each admission what the call was told.

    Attributes:
        runs: what plays each run.
        made, flying, refused: calls before they are admitted, in flight, and refused but not told so yet.
    """

    def __init__(self, runs=()):
        self.now = 10.0
        self.runs, self.sessions = [], [self.new_session(), self.new_session()]
        self.made, self.flying, self.refused = [], [], []
        self.number = 0
        for run in runs:
            self.open(**run)

    def play(self, steps):
        """Return what every call was told: its refusal, the mark of an observing wall, and the call that it confirms."""
        told = [getattr(self, verb)(*rest) for verb, *rest in steps]
        return [one for one in told if one is not None]

    def call(self, which, name, argument, shape, outcome, digest, signature, ask=False):
        """Make a whole call."""
        self.make(which, name, argument, shape)
        told = self.admit(ask=ask)
        if told[0] is None:
            self.end(-1, outcome, digest, signature)
        else:
            self.tell(-1)
        return told

    def wait(self, seconds):
        self.now += seconds

    def run(self, which):
        return self.runs[which % len(self.runs)]

    def take(self, calls, which):
        return calls.pop(which % len(calls))


def facts(name, argument, shape):
    """Return identity, query and specialist of a call."""
    identity = (name.encode() + argument).ljust(SIZE, b".") + b"?" * (argument == b"?")
    return identity, shape if TOOLS[name].query else None, name.encode() + argument if name == "desk" else None


class Real(Play):
    """Plays in the ledger."""

    def __init__(self, runs=(), *, table=TABLE, observe=None, shortcut=True, asking=True):
        self.table, self.observe, self.shortcut, self.asking = table, observe, shortcut, asking
        super().__init__(runs)

    def new_session(self):
        return Ledger((), {}).session

    def open(self, limits, above=None, session=None, observe=frozenset(), own=None):
        """Open a run; a nested one is in the session of the run around it unless it names another."""
        self.runs.append(
            Ledger(
                self.table,
                {**OFF, **limits},
                session=None if session is None else self.sessions[session],
                parent=None if above is None else self.run(above),
                began=self.now,
                observe=observe if self.observe is None else self.observe,
                local=LOCAL,
                own=own or {},
            )
        )

    def make(self, which, name, argument, shape):
        """Enter the wrapper."""
        ledger = self.run(which)
        plan = ledger.plan(TOOLS[name])
        identity, query, specialist = facts(name, argument, shape)
        call = Call(plan.tool, plan, identity, query if plan.query else None, ledger.turn, tick())
        call.specialist = specialist if plan.specialist else None
        self.number += 1
        call.now, call.trace = self.now, self.number
        self.made.append((ledger, call))

    def admit(self, which=-1, ask=False):
        """Ask, after a gate has asked or not. What is refused it is the answer; else it must not matter that it asked."""
        if not self.made:
            return None
        ledger, call = self.take(self.made, which)
        if not self.shortcut:
            call.plan.until = 0
        why = ledger.ask(call, call.plan) if ask and self.asking else None
        why = why or ledger.admit(call, call.plan)
        if why is None:
            self.flying.append((ledger, call))
        else:
            assert not call.charged
            self.refused.append((ledger, call, why))
        return plain(why), plain(call.would), None if why else call.confirms

    def end(self, which, outcome, digest, signature):
        """Let an admitted call end."""
        if self.flying:
            ledger, call = self.take(self.flying, which)
            call.outcome, call.inner = ("ok", True) if outcome == "inner" else (outcome, False)
            call.digest = digest if outcome in {"ok", "error"} and call.plan.digest else None
            call.signature = signature if outcome == "error" and call.plan.signature else None
            ledger.end(call)

    def tell(self, which):
        """Let a refusal go back to its caller."""
        if self.refused:
            ledger, call, why = self.take(self.refused, which)
            ledger.end(call, why)

    def turn(self, which):
        self.run(which).begin_turn()

    def spend(self, which, tokens, micros):
        self.run(which).spend(tokens, micros)

    def look(self, which):
        self.run(which).ended_by(lambda: self.now)

    def stop(self, which):
        self.run(which).sync().stop(Refused("stop", None, None, "never"), "over")

    def counts(self, which):
        """Return all that is counted of a run."""
        ledger = self.runs[which].sync()
        tally = ledger.tally
        by_tool = {name: n for name, n in tally.by_tool.items() if n}
        counts = tally.external, tally.tree, tally.reads, tally.sends, by_tool, tally.tokens, tally.micros
        return *counts, ledger.refused, ledger.turns, ledger.would, plain(ledger.stopped and ledger.stopped.why)


def all_counts(play):
    return [play.counts(which) for which in range(len(play.runs))]


# The shortcut, and gates ----------------------------------------------------------------------------------------------


def compare_with(runs, steps, *, asking=False, **different):
    usual, other = Real(runs, asking=asking), Real(runs, asking=False, **different)
    told = usual.play(steps)
    assert other.play(steps) == told
    assert all_counts(other) == all_counts(usual)
    return told


@settings(max_examples=100, deadline=None)
@given(runs=OPENINGS, steps=STEPS)
def test_what_is_certain_to_pass_would_have_passed_had_every_wall_been_asked(runs, steps):
    compare_with(runs, steps, shortcut=False)


def test_in_2000_random_histories_the_shortcut_changes_no_verdict():
    heard = Counter()
    for seed in range(2000):
        for why, would, confirms in compare_with(*history(seed), shortcut=False):
            heard["passed" if why is None else why.reason] += 1
            heard["would"] += would is not None
            heard["confirms"] += confirms is not None
    # The histories are of use only if every wall speaks in them.
    assert set(heard) == {"passed", "would", "confirms", "stop", *SPEAKING}
    assert min(heard.values()) > 50, heard


def test_the_shortcut_is_taken():
    limits = {"per_tool": 50, "aggregate": 50, "adaptive_soft": 100, "hard_cap": None, "repeat_failure": 2}
    play, asked = Real([{"limits": {**limits, "same_complaint": 5, "same_outcome": 3, "stale_streak": 6}}]), 0
    for n in range(50):
        ledger = play.runs[0]
        asked += ledger.tree.mileage >= ledger.plan(TOOLS["read"]).until
        assert play.call(0, "read", bytes([n]), None, "ok", DIGESTS[1], "") == (None, None, None)
    assert asked == 1


@settings(max_examples=50, deadline=None)
@given(runs=OPENINGS, steps=STEPS)
def test_that_a_gate_asked_first_changes_nothing(runs, steps):
    compare_with(runs, steps, asking=True)


def test_in_500_random_histories_that_a_gate_asked_first_changes_nothing():
    for seed in range(500):
        compare_with(*history(seed), asking=True)


# The order of the walls -----------------------------------------------------------------------------------------------


def compare_with_order(runs, steps, order):
    table = (*TABLE[:FIRST], *(TABLE[i] for i in order))
    usual, permuted = Real(runs, asking=False), Real(runs, asking=False, table=table)
    renamed = 0
    for (why, would, confirms), (other, other_would, other_confirms) in zip(
        usual.play(steps), permuted.play(steps), strict=True
    ):
        assert (why is None) == (other is None)
        assert (would is None) == (other_would is None)
        assert confirms == other_confirms
        if why is not None and why.retry == "never":
            assert other == why
        renamed += why != other
    assert all_counts(usual) == all_counts(permuted)
    return renamed


def test_what_ends_a_run_comes_first():
    stops = {"hard_stop", "refused_turns", "refused_calls", "deadline_s", "tokens", "cost_usd"}
    assert {wall.name for wall in TABLE[:FIRST]} == stops
    assert not {wall.name for wall in TABLE[FIRST:]} & stops


@settings(max_examples=100, deadline=None)
@given(runs=OPENINGS, order=st.permutations(range(FIRST, len(TABLE))), steps=STEPS)
def test_the_order_of_the_walls_never_decides_whether_a_call_runs(runs, order, steps):
    compare_with_order(runs, steps, order)


def test_in_3000_random_histories_the_order_of_the_walls_names_a_refusal_and_decides_nothing():
    draw, renamed = random.Random(0), 0
    for seed in range(3000):
        order = draw.sample(range(FIRST, len(TABLE)), len(TABLE) - FIRST)
        renamed += compare_with_order(*history(seed), order)
    assert renamed > 100  # the order mattered to the names, so it was tried


# Observe --------------------------------------------------------------------------------------------------------------


def compare_first_refusal(runs, steps, *, observe=frozenset(NAMES), asking=False):
    """Play until enforcement refuses, and return the reason; the program's own stop holds in observe mode too."""
    enforced, observed = Real(runs, observe=frozenset(), asking=asking), Real(runs, observe=observe, asking=asking)
    for verb, *rest in steps:
        if verb == "stop":
            continue
        told, marked = getattr(enforced, verb)(*rest), getattr(observed, verb)(*rest)
        if told is None:
            continue
        why, _, confirms = told
        refused, would, _ = marked
        assert refused is None
        assert (would is None) == (why is None)
        if why is not None:
            # A stop that came between calls says what was spent by then; and of two only the first one holds.
            assert would == why or would.retry == why.retry == "never"
            assert all(run.stopped is None for run in observed.runs)
            return why.reason
        assert marked == (None, None, confirms)
    assert [counts[:-1] for counts in all_counts(enforced)] == [counts[:-1] for counts in all_counts(observed)]
    return None


LOCALLY = "local", b"1", None, "ok", None, ""


@settings(max_examples=100, deadline=None)
@given(runs=OPENINGS, steps=STEPS)
def test_the_first_call_marked_is_the_first_that_enforcement_refuses(runs, steps):
    compare_first_refusal(runs, steps)


def test_in_2000_random_histories_the_first_call_marked_is_the_first_that_enforcement_refuses():
    first = Counter(compare_first_refusal(*history(seed)) for seed in range(2000))
    assert set(first) == {*SPEAKING, None}
    assert min(first.values()) > 5, first


def test_a_local_call_after_a_look_past_an_observed_deadline_is_marked():
    steps = [("wait", 1.0), ("look", 0), ("call", 0, *LOCALLY)]
    assert compare_first_refusal([{"limits": {"deadline_s": 1}}], steps) == "deadline_s"


@pytest.mark.parametrize("looks", [(0, 0), (0, 1), (1, 0), (1, 2)])
def test_looks_past_an_observed_deadline_mark_one_local_call_in_all_runs_below_it(looks):
    nested = {"limits": {}, "above": 0}
    play = Real([{"limits": {"deadline_s": 1}}, nested, nested], observe=frozenset(NAMES))
    play.wait(1.0)
    marks = []
    for which in looks:
        play.look(which)
        marks += [play.call(which, *LOCALLY)[1] for _ in range(2)]
    assert marks == [No("deadline_s", 1.0, 1, "never"), None, None, None]


def test_a_look_past_an_observed_deadline_marks_no_external_call_twice():
    play = Real([{"limits": {"deadline_s": 1}}], observe=frozenset(NAMES))
    external = "read", b"1", None, "ok", None, ""
    play.wait(1.0)
    play.look(0)
    assert [play.call(0, *what)[1] is not None for what in (external, LOCALLY, external)] == [True, False, True]
    assert play.runs[0].would == 2


def test_each_run_has_its_own_observed_deadline_to_overrun():
    play = Real([{"limits": {"deadline_s": 1}}, {"limits": {"deadline_s": 2}, "above": 0}], observe=frozenset(NAMES))
    marks = []
    for _ in range(3):
        play.wait(1.0)
        play.look(1)
        marks.append(play.call(1, *LOCALLY)[1])
    assert marks == [No("deadline_s", 1.0, 1, "never"), No("deadline_s", 2.0, 2, "never"), None]


def test_asking_for_a_gate_makes_nothing_certain():
    play = Real([{"limits": {"aggregate": 9}}])
    ledger = play.runs[0]
    plan = ledger.plan(TOOLS["read"])
    call = Call(plan.tool, plan, b"1".ljust(SIZE, b"."), None, 0, tick())
    assert ledger.ask(call, plan) is None
    assert plan.until <= ledger.tree.mileage


@pytest.mark.parametrize(
    ("limits", "name", "before"),
    [
        ({"refused_calls": 1}, "read", ("call", 0, "read", b"1", None, "not_executed", None, "")),
        ({"tokens": 8}, "local", ("spend", 0, 9, 0)),
    ],
)
def test_a_gated_call_after_an_observed_stop_is_marked(limits, name, before):
    gated = ("call", 0, name, b"2", None, "ok", None, "", True)
    assert compare_first_refusal([{"limits": limits}], [before, gated], asking=True) in limits


@pytest.mark.parametrize("name", sorted(SPEAKING - {"refused_turns", "refused_calls"}))
def test_a_wall_that_observes_alone_marks_first_what_it_would_have_refused_first(name):
    keys = {key.name for wall in TABLE if wall.name == name for key in wall.keys} - {"hard_cap"}
    free = sorted(name for name, tool in TOOLS.items() if not tool.limit)  # others have a limit in any case
    first = Counter()
    for seed in range(60):
        draw = random.Random(seed)
        runs, steps = history(seed, tools=free)
        its = [{key: value for key, value in draw_limits(draw, 1.0).items() if key in keys} for _ in runs]
        if name == "hard_stop":
            its = [one | {"hard_cap": draw.choice([None, 3])} for one in its]
        runs = [run | {"limits": one, "own": {}} for run, one in zip(runs, its, strict=True)]
        first[compare_first_refusal(runs, steps, observe=frozenset({name}))] += 1
    assert first[name] > 5
    assert set(first) <= {name, None}
