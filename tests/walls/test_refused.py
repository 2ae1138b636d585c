"""The loop that goes on asking after it was refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from tests.limits import QUIET
from toolguard import NotExecuted, Refusal, metered
from toolguard.testing import assert_executed, assert_refused


@metered(kind="read", limit=1)
def once(n):
    return n


@metered(kind="read")
def look(n):
    return n


@metered(kind="read")
def declined(n):
    raise NotExecuted


def exhausted(**limits):
    """Open a run in which `once` has no call left."""
    return toolguard.run(per_tool=0, aggregate=0, **{**QUIET, **limits})


def test_the_20th_refused_call_in_a_row_keeps_its_reason_and_stops_the_run():
    with exhausted() as run:
        once(0)
        for n in range(19):
            assert_refused(once(n), "per_tool")
            assert not run.stopped
        last = assert_refused(once(19), "per_tool")
        assert last.retry == "different"
        assert run.stopped
        assert run.stop_reason == "refused_calls"
        after = assert_refused(look(1), "refused_calls")
        assert (after.used, after.limit, after.retry) == (20, 20, "never")


def test_30_calls_of_a_refused_tool_end_the_run_with_bounded_counts():
    with exhausted() as run:
        for n in range(31):
            once(n)
        assert run.usage().executed == 1
        assert run.usage().by_reason == {"per_tool": 20, "refused_calls": 10}


@pytest.mark.parametrize("resets", ["executed", "failed", "local", "send"])
def test_any_executed_call_starts_the_count_anew(resets):
    @metered(kind="read")
    def fails():
        raise TimeoutError

    @metered(kind="read")
    def scratchpad():
        return "noted"

    @metered(kind="send")
    def send():
        return "sent"

    def reset():
        if resets == "failed":
            with pytest.raises(TimeoutError):
                fails()
        else:
            assert_executed({"executed": lambda: look(1), "local": scratchpad, "send": send}[resets]())

    toolguard.configure({"local": ["scratchpad"]})
    with exhausted(refused_calls=3, delivery=0) as run:
        once(0)
        for _ in range(10):
            once(1)
            once(1)
            reset()
        assert not run.stopped
        for _ in range(3):
            once(1)
        assert run.stopped


def test_a_call_that_only_passed_an_inner_refusal_on_resets_nothing():
    @metered(kind="read")
    def composite(n):
        return once(n)

    with exhausted(refused_calls=4) as run:
        once(0)
        for n in range(4):
            assert isinstance(composite(n), Refusal)
        assert run.stop_reason == "refused_calls"


def test_calls_that_said_nothing_ran_count_as_refused():
    with exhausted(refused_calls=3) as run:
        for n in range(3):
            assert not run.stopped
            assert_refused(declined(n), "gate")
        assert run.stop_reason == "refused_calls"


def test_a_limit_of_0_never_stops():
    with exhausted(refused_calls=0, refused_turns=0) as run:
        for n in range(200):
            once(n)
        for _ in range(20):
            run.turn()
            once(1)
        run.turn()
        assert not run.stopped


def test_once_a_turn_was_marked_turns_count_and_calls_do_not():
    with exhausted(refused_calls=3, refused_turns=2) as run:
        once(0)
        run.turn()
        for n in range(50):
            once(n)
        assert not run.stopped
        run.turn()
        once(1)
        assert not run.stopped
        run.turn()
        assert run.stop_reason == "refused_turns"


def test_the_5th_turn_in_which_every_call_was_refused_stops_the_run_when_it_closes():
    with exhausted() as run:
        once(0)
        for _ in range(5):
            run.turn()
            assert not run.stopped
            assert_refused(once(1), "per_tool")
            assert_refused(once(2), "per_tool")
        assert not run.stopped
        run.turn()
        assert run.stop_reason == "refused_turns"
        refusal = assert_refused(look(1), "refused_turns")
        assert (refusal.used, refusal.limit, refusal.retry) == (5, 5, "never")


def test_one_executed_call_in_a_turn_starts_the_count_of_turns_anew():
    with exhausted(refused_turns=2) as run:
        once(0)
        for _ in range(10):
            run.turn()
            once(1)
            run.turn()
            once(1)
            look(1)
        run.turn()
        assert not run.stopped


def test_empty_turns_neither_count_nor_reset():
    with exhausted(refused_turns=2) as run:
        once(0)
        run.turn()
        once(1)
        for _ in range(10):
            run.turn()
        assert not run.stopped
        once(1)
        run.turn()
        assert run.stop_reason == "refused_turns"


def test_observed_walls_stop_nothing():
    toolguard.configure({"observe": ["refused_calls", "refused_turns"]})
    with exhausted(refused_calls=2, refused_turns=2) as run:
        for n in range(10):
            once(n)
        for _ in range(10):
            run.turn()
            once(1)
        assert not run.stopped


def test_what_an_observed_wall_would_refuse_does_not_count():
    toolguard.configure({"observe": ["per_tool"]})
    with exhausted(refused_calls=2) as run:
        for n in range(10):
            assert once(n) == n
        assert not run.stopped


def test_a_nested_runs_refusals_stop_that_run_alone():
    with exhausted() as outer:
        with exhausted(refused_calls=2) as inner:
            for n in range(3):
                once(n)
            assert inner.stopped
        assert not outer.stopped
        assert look(1) == 1


def test_the_texts_name_count_limit_and_what_to_do():
    with exhausted(refused_calls=2) as run:
        for n in range(3):
            once(n)
        refusal = once(4)
        assert refusal.startswith("once did NOT execute: 2 calls in a row were refused")
        assert "limit 2" in refusal
        assert "Answer now with what you have" in refusal
        assert "2 calls in a row asked only for calls that were refused" in run.stop_message
        assert "after 1 tool call (once 1)" in run.stop_message
        assert "raise the limits that refused the calls" in run.stop_message
    with exhausted(refused_turns=2) as run:
        once(0)
        for _ in range(3):
            run.turn()
            once(1)
        refusal = once(2)
        assert refusal.startswith("once did NOT execute: 2 turns in a row were refused")
        assert "2 turns in a row asked only for calls that were refused" in run.stop_message


class Model:
    """The two rules, written down plainly."""

    def __init__(self, calls, turns):
        self.limits = {"refused_calls": calls, "refused_turns": turns}
        self.in_a_row = {"refused_calls": 0, "refused_turns": 0}
        self.turn = 0
        self.refused, self.ran = False, True
        self.stopped = None

    def see(self, step):
        if step == "turn":
            if self.ran:
                self.in_a_row["refused_turns"] = 0
            elif self.refused and self.turn:
                self.in_a_row["refused_turns"] += 1
            self.judge("refused_turns")
            self.turn += 1
            self.refused = self.ran = False
        elif step in {"refused", "gate"}:
            self.refused = True
            self.in_a_row["refused_calls"] += not self.turn
            self.judge("refused_calls")
        elif step != "inner":
            self.ran = True
            self.in_a_row["refused_calls"] = 0

    def judge(self, wall):
        if self.limits[wall] and self.in_a_row[wall] >= self.limits[wall]:
            self.stopped = wall


STEP = st.sampled_from(["turn", "refused", "gate", "ok", "error", "inner"])


@settings(max_examples=300, deadline=None)
@given(calls=st.integers(0, 4), turns=st.integers(0, 3), steps=st.lists(STEP, max_size=40))
def test_it_stops_as_a_plain_model_would(lab, tools, calls, turns, steps):
    run, model = lab(refused_calls=calls, refused_turns=turns, delivery=1), Model(calls, turns)
    run.attempt(tools.send)  # from now on a send is refused
    for step in steps:
        before = model.stopped
        if before is None:
            model.see(step)
        if step == "turn":
            run.ledger.begin_turn()
        else:
            tool = tools.send if step == "refused" else tools.read
            outcome = {"gate": "not_executed", "error": "error"}.get(step, "ok")
            reason = run.reason(tool, outcome=outcome, inner=step == "inner")
            assert reason == (before or ("delivery" if step == "refused" else None))
        assert run.stopped == model.stopped
