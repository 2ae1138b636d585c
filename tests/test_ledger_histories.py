"""Thousands of random histories of the ledger beside the model, and those that it once told otherwise."""

import random
from collections import Counter

from tests.test_ledger_model import ARGUMENTS, CHOICES, DIGESTS, OBSERVABLE, OUTCOMES, SIGNATURES, TOOLS, Both
from toolguard.walls import NAMES


def draw_limits(draw, share):
    """Return the limits of a run in which about this share of the walls is on."""
    limits = {}
    for keys in CHOICES.values():
        if draw.random() < share:
            limits |= {key: draw.choice(values) for key, values in keys.items()}
    return limits


def draw_runs(draw):
    """Return three trees of runs in two sessions and in some of their own, with the same limits or with others."""
    share = draw.choice([0.1, 0.2, 0.4])
    limits = draw_limits(draw, share)
    return [
        {
            "limits": limits if draw.random() < 0.6 else draw_limits(draw, share),
            "above": above,
            "session": session,
            "observe": frozenset(draw.sample(OBSERVABLE, draw.choice([0, 0, 0, 1, 3]))),
            "own": {"read": draw.choice([0, 1, 3]), "send": 2} if draw.random() < 0.1 else None,
        }
        for above, session in ((None, 0), (0, None), (None, draw.choice([0, 1])), (2, 0), (3, None), (None, None))
    ]


VERBS = (
    ["call"] * 16 + ["begin"] * 3 + ["make", "admit", "tell"] + ["end"] * 4 + ["turn"] * 3 + ["spend", "spend", "wait", "look"]
)


def draw_steps(draw, verbs):
    """Return what is done: the name of a method of `Both`, and its arguments."""
    of = draw.choice
    names = draw.sample(sorted(TOOLS), of([1, 2, 4]))  # few, so that calls meet each other
    runs = draw.sample(range(6), of([1, 2, 4]))
    outcomes = of([OUTCOMES, ("ok",), ("error",), ("error", "error", "error", "ok"), ("error", "cancelled")])
    digests = of([DIGESTS, DIGESTS[1:], DIGESTS[1:2]])
    arguments = of([ARGUMENTS, ARGUMENTS[:2], ARGUMENTS[:1]])
    signatures = of([SIGNATURES, SIGNATURES[:2], SIGNATURES[:1]])
    for _ in range(40):
        verb, run, ask = of(verbs), of(runs), draw.random() < 0.2
        what = run, of(names), of(arguments), of([None, b"s", b"s", b"t"])
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
                yield verb, run, of([0, 3, 8]), of([0, 100_000, 250_001])
            case "wait":
                yield verb, of([0.5, 1.0])
            case _:
                yield verb, run


def history(seed):
    """Return one random history: its runs and its steps."""
    draw = random.Random(seed)
    return draw_runs(draw), list(draw_steps(draw, VERBS + ["stop"] * (seed % 10 == 0)))


def play(runs, steps):
    both = Both()
    both.session()
    both.session()
    for run in runs:
        both.open(**run)
    for verb, *rest in steps:
        getattr(both, verb)(*rest)
        both.agree()
    both.agree_at_last()
    return both.heard


def test_in_3000_random_histories_the_ledger_says_what_the_model_says_and_every_wall_speaks():
    heard = Counter()
    for seed in range(3000):
        heard += play(*history(seed))
    assert set(heard) == {"passed", "would", "confirmed", "stop", *NAMES} - {"turn_step", "output_chars", "result_chars"}
    assert min(heard.values()) > 100, heard


# Histories that were told wrong once ----------------------------------------------------------------------------------

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
        assert heard == {"passed": 4, "would": 2, key: 1, "confirmed": 0}


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
