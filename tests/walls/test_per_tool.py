"""One tool hammered, whatever its arguments."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from tests.limits import QUIET
from toolguard import NotExecuted, metered
from toolguard.testing import assert_refused
from toolguard.walls import per_tool


def open_run(*agent, **limits):
    return toolguard.run(*agent, **{**QUIET, **limits})


@metered(kind="read")
def look(n):
    return n


@metered(kind="read")
def calculate(n):
    return n


@metered(kind="send")
def send(n):
    return n


def test_of_55_calls_of_one_tool_40_execute_and_15_are_refused():
    with open_run(aggregate=0) as run:
        said = [look(n) for n in range(55)]
        assert said[:40] == list(range(40))
        for refusal in said[40:]:
            assert_refused(refusal, "per_tool")
            assert (refusal.used, refusal.limit, refusal.retry) == (40, 40, "different")
        assert run.usage().to_dict() == {
            "executed": 40,
            "refused": 15,
            "by_tool": {"look": 40},
            "by_reason": {"per_tool": 15},
            "chars": 70,
            "tokens": 0,
            "cost_usd": 0.0,
        }


def test_the_same_arguments_count_as_other_ones_do():
    with open_run(per_tool=3, aggregate=0):
        assert [look(1) for _ in range(3)] == [1] * 3
        assert_refused(look(1), "per_tool")
        assert_refused(look(2), "per_tool")


def test_a_throwaway_word_in_each_call_hides_nothing():
    @metered(kind="read")
    def search(q):
        return "nothing"

    with open_run(per_tool=20, aggregate=0) as run:
        said = [search(f"same question {n}") for n in range(50)]
        assert run.usage().executed == 20
        assert [refusal.reason for refusal in said[20:39]] == ["per_tool"] * 19


def test_the_limit_of_one_tool_does_not_touch_another():
    with open_run(per_tool=2, aggregate=0):
        results = [look(1), look(2), look(3), calculate(4)]
    assert results[:2] == [1, 2]
    assert assert_refused(results[2], "per_tool").tool == "look"
    assert results[3] == 4


def test_the_text_of_a_later_refusal_does_not_count_the_refusals_before_it():
    with open_run(per_tool=3, aggregate=0):
        said = [look(n) for n in range(6)]
    assert len({str(refusal) for refusal in said[3:]}) == 1
    assert "3 times" in said[5]


def test_the_text_names_what_was_used_the_limit_and_what_to_do_instead():
    with open_run(per_tool=2, aggregate=0):
        look(1)
        look(2)
        refusal = look(3)
    assert refusal.startswith("look did NOT execute: ")
    assert "2 times" in refusal
    assert "limit is 2" in refusal
    assert "use another tool" in refusal
    assert "look will be refused until the run ends" in refusal


def test_a_tools_own_limit_replaces_that_of_the_run_in_both_directions():
    @metered(kind="read", limit=1)
    def narrow(n):
        return n

    @metered(kind="read", limit=6)
    def wide(n):
        return n

    with open_run(per_tool=3, aggregate=0):
        assert narrow(1) == 1
        assert_refused(narrow(2), "per_tool")
        assert [wide(n) for n in range(6)] == list(range(6))
        assert assert_refused(wide(6), "per_tool").limit == 6


def test_a_tools_own_limit_holds_where_that_of_the_run_is_off():
    @metered(kind="read", limit=2)
    def narrow(n):
        return n

    with open_run(per_tool=0, aggregate=0):
        assert [narrow(n) for n in range(2)] == [0, 1]
        assert_refused(narrow(2), "per_tool")


def test_a_limit_of_0_of_the_tool_means_no_limit():
    @metered(kind="read", limit=0)
    def free(n):
        return n

    with open_run(per_tool=2, aggregate=0):
        assert [free(n) for n in range(100)] == list(range(100))


def test_a_limit_of_0_of_the_run_means_no_limit():
    with open_run(per_tool=0, aggregate=0, hard_cap=0):
        assert [look(n) for n in range(100)] == list(range(100))


def test_an_operators_limit_of_one_tool_beats_the_decorators():
    @metered(kind="read", limit=5)
    def tuned(n):
        return n

    toolguard.configure({"tools": {"tuned": {"limit": 2}}})
    with open_run(aggregate=0):
        assert [tuned(n) for n in range(2)] == [0, 1]
        assert assert_refused(tuned(2), "per_tool").limit == 2


def test_sends_are_not_its_business():
    with open_run(per_tool=1, delivery=0):
        assert [send(n) for n in range(10)] == list(range(10))


def test_failing_calls_stay_charged():
    @metered(kind="read")
    def broken(n):
        raise OSError(n)

    with open_run(per_tool=3, aggregate=0) as run:
        for n in range(3):
            with pytest.raises(OSError, match=str(n)):
                broken(n)
        assert_refused(broken(3), "per_tool")
        assert run.usage().by_tool == {"broken": 3}


def test_a_call_that_says_nothing_ran_gives_its_charge_back():
    asked = []

    @metered(kind="read")
    def picky(n):
        asked.append(n)
        if n < 10:
            raise NotExecuted
        return n

    with open_run(per_tool=2, aggregate=0) as run:
        for n in range(10):
            assert_refused(picky(n), "gate")
        assert picky(10) == 10
        assert picky(11) == 11
        assert_refused(picky(12), "per_tool")
        assert asked == list(range(12))
        assert run.usage().by_tool == {"picky": 2}


def test_retries_inside_one_run_draw_on_one_budget():
    with open_run(per_tool=5, aggregate=0) as run:
        for _ in range(3):
            for n in range(4):
                look(n)
        assert run.usage().executed == 5


def test_a_nested_run_has_a_budget_of_its_own():
    with open_run(per_tool=1, aggregate=0):
        assert look(1) == 1
        with open_run(per_tool=1, aggregate=0):
            assert look(2) == 2
            assert_refused(look(3), "per_tool")
        assert_refused(look(4), "per_tool")


@settings(max_examples=200, deadline=None)
@given(
    limit=st.integers(0, 4),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["read", "other", "own_read", "free_read", "send"]),
            st.sampled_from(["ok", "error", "cancelled", "not_executed"]),
        ),
        max_size=40,
    ),
)
def test_it_refuses_as_a_plain_count_by_name_would(lab, tools, limit, calls):
    run, ran = lab(per_tool=limit), Counter()
    limits = {"read": limit, "other": limit, "own_read": 3, "free_read": 0, "send": 0}
    for name, outcome in calls:
        full = limits[name] and ran[name] >= limits[name]
        why = run.attempt(getattr(tools, name), bytes([len(ran)]), outcome=outcome)
        if full:
            assert why == ("per_tool", ran[name], limits[name], "different", None, False)
        else:
            assert why is None
            ran[name] += outcome != "not_executed"


def test_its_slack_is_never_more_than_the_tool_has_left(lab, tools):
    run = lab(per_tool=10)
    for name in ("read", "other", "read", "send", "read"):
        run.attempt(getattr(tools, name))
        tally = run.ledger.sync().tally
        assert per_tool.slack(tally, 10) <= 10 - max(tally.by_tool.values())
