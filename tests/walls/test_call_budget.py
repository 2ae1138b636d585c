"""The runaway search: a budget for all reads of a run, and an answer at its end."""

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, Refusal, metered
from toolguard._values import Tool
from toolguard.testing import assert_executed, assert_refused
from toolguard.walls import call_budget


@metered(kind="read")
def look(n):
    return n


@metered(kind="read")
def search(n):
    return n


@metered(kind="read", delegate="who")
def ask(n, who):
    return n


@metered(kind="send")
def mail(n):
    return n


# What it refuses ------------------------------------------------------------------------------------------------------


def test_all_reads_of_a_run_draw_on_one_budget_whatever_tool_and_arguments():
    with toolguard.run(call_budget=6) as run:
        for n in range(3):
            assert_executed(look(n))
            assert_executed(search(n))
        for tool in (look, search):
            refusal = assert_refused(tool(99), "call_budget")
            assert (refusal.used, refusal.limit, refusal.retry, refusal.rule) == (6, 6, "different", None)
        assert run.usage().by_tool == {"look": 3, "search": 3}


@pytest.mark.parametrize("limit", [1, 2, 7, 60])
def test_the_limit_is_the_number_of_reads_that_execute(limit):
    with toolguard.run(call_budget=limit, per_tool=0, aggregate=0) as run:
        for n in range(limit):
            assert_executed(look(n))
        refusal = assert_refused(look(limit), "call_budget")
        assert (refusal.used, refusal.limit) == (limit, limit)
        assert run.usage().executed == limit


def test_a_limit_of_0_means_no_limit():
    with toolguard.run(call_budget=0, per_tool=0, aggregate=0):
        for n in range(100):
            assert_executed(look(n))


@pytest.mark.parametrize(("profile", "executed"), [("assistant", 80), ("coding", 80), ("operations", 50)])
def test_only_the_operations_profile_brings_one(profile, executed):
    with toolguard.run(profile=profile, per_tool=0, aggregate=0) as run:
        for n in range(80):
            look(n)
        assert run.usage().executed == executed


def test_sends_spend_nothing_of_it_and_go_out_when_it_is_spent():
    with toolguard.run(call_budget=5, delivery=2):
        assert_executed(mail(0))
        for n in range(5):
            assert_executed(look(n))
        assert_refused(look(5), "call_budget")
        assert_executed(mail(1))
        assert_refused(mail(2), "delivery")
        assert_refused(look(6), "call_budget")


def test_specialists_are_reads():
    with toolguard.run(call_budget=3):
        assert_executed(ask(1, "lawyer"))
        assert_executed(ask(1, "doctor"))
        assert_executed(look(1))
        assert_refused(ask(2, "broker"), "call_budget")


def test_a_tools_own_limit_does_not_take_it_out_of_the_budget():
    @metered(kind="read", limit=0)
    def free(n):
        return n

    with toolguard.run(call_budget=2):
        assert_executed(free(0))
        assert_executed(free(1))
        assert_refused(free(2), "call_budget")


def test_it_is_named_after_the_limits_of_one_tool_and_before_the_soft_one():
    with toolguard.run(call_budget=2, per_tool=2, aggregate=2):
        look(1)
        look(2)
        assert_refused(look(3), "per_tool")
        assert_refused(search(1), "call_budget")


def test_repeating_a_refused_read_confirms_nothing():
    with toolguard.run(call_budget=1, aggregate=1):
        assert_executed(look(1))
        for _ in range(5):
            assert_refused(look(2), "call_budget")


def test_it_stops_no_run():
    with toolguard.run(call_budget=1, refused_calls=0) as run:
        look(1)
        for n in range(50):
            assert_refused(look(n), "call_budget")
        assert not run.stopped
        assert_executed(mail(1))


# Which calls count ----------------------------------------------------------------------------------------------------


def test_a_read_that_failed_is_spent():
    @metered(kind="read")
    def broken(n):
        raise OSError(n)

    with toolguard.run(call_budget=2):
        for n in range(2):
            with pytest.raises(OSError, match=str(n)):
                broken(n)
        assert_refused(look(1), "call_budget")


def test_a_read_that_says_nothing_ran_gives_its_charge_back():
    @metered(kind="read")
    def picky(n):
        if n < 5:
            raise NotExecuted
        return n

    with toolguard.run(call_budget=2):
        for n in range(5):
            assert_refused(picky(n), "gate")
        assert_executed(picky(5))
        assert_executed(picky(6))
        assert_refused(picky(7), "call_budget")


def test_refused_calls_spend_nothing():
    with toolguard.run(call_budget=3, per_tool=1, refused_calls=0) as run:
        assert_executed(look(1))
        for n in range(30):
            assert_refused(look(n), "per_tool")
        assert_executed(search(1))
        assert run.usage().executed == 2


def test_a_call_that_cannot_bind_spends_nothing():
    with toolguard.run(call_budget=1):
        with pytest.raises(TypeError):
            look()
        assert_executed(look(1))
        assert_refused(look(2), "call_budget")


def test_local_and_uncounted_reads_spend_nothing_and_run_when_it_is_spent():
    toolguard.configure({"local": ["search"]})
    with toolguard.run(call_budget=1):
        for n in range(5):
            assert_executed(search(n))
            with toolguard.uncounted():
                assert_executed(look(n))
        assert_executed(look(9))
        assert_refused(look(10), "call_budget")
        assert_executed(search(10))
        with toolguard.uncounted():
            assert_executed(look(10))


def test_a_nested_run_has_a_budget_of_its_own_and_the_outer_one_pays_for_the_specialist_alone():
    @metered(kind="read", delegate=True)
    def researcher(n):
        with toolguard.run("researcher", call_budget=5) as child:
            for k in range(9):
                search((n, k))
            return child.usage().executed

    with toolguard.run(call_budget=9) as run:
        for n in range(6):
            assert_executed(look(n))
        assert [researcher(n) for n in range(3)] == [5, 5, 5]
        assert run.usage().executed == 9
        assert_refused(look(9), "call_budget")


def test_a_run_that_is_entered_again_has_spent_what_it_had_spent():
    run = toolguard.run(call_budget=1)
    with run:
        assert_executed(look(1))
    with run:
        assert_refused(look(2), "call_budget")


def test_ten_runs_in_a_row_have_ten_budgets():
    for _ in range(10):
        with toolguard.run(call_budget=3, session="s") as run:
            assert [look(n) for n in range(3)] == [0, 1, 2]
            assert run.usage().refused == 0


# At the same time -----------------------------------------------------------------------------------------------------


async def test_of_ten_reads_in_one_gather_as_many_run_as_are_left():
    ran = []

    @metered(kind="read")
    async def fetch(n):
        ran.append(n)
        await asyncio.sleep(0)
        return n

    with toolguard.run(call_budget=7):
        for n in range(3):
            assert_executed(look(n))
        said = await asyncio.gather(*(fetch(n) for n in range(10)))
    assert len(ran) == 4
    assert sum(isinstance(answer, Refusal) for answer in said) == 6


def test_threads_read_exactly_as_often_as_the_limit_says():
    for _ in range(50):
        said, barrier = [], threading.Barrier(6)

        def job(barrier=barrier, said=said):
            barrier.wait()
            said.extend(getattr(tool((threading.get_ident(), n)), "reason", None) for n in range(2) for tool in (look, search))

        with toolguard.run(call_budget=11, aggregate=0) as run:
            threads = [threading.Thread(target=run.bind(job)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert Counter(said) == {None: 11, "call_budget": 13}


# Notes ----------------------------------------------------------------------------------------------------------------


def test_from_seven_tenths_on_every_request_is_asked_to_converge():
    with toolguard.run(call_budget=10) as run:
        for n in range(6):
            look(n)
        assert run.notes() == []
        look(6)
        for _ in range(3):
            (note,) = run.notes()
            assert "7 of the 10 reads of this run are spent, 3 left" in note
            assert "no further read runs" in note
            assert "say what you could not check" in note
            assert "narrower question" in note
        look(7)
        assert "8 of the 10 reads" in run.notes()[0]


async def test_a_batch_that_jumps_over_the_mark_makes_the_note_due():
    @metered(kind="read")
    async def fetch(n):
        return n

    with toolguard.run(call_budget=10) as run:
        for n in range(6):
            look(n)
        await asyncio.gather(*(fetch(n) for n in range(4)))
        assert "10 of the 10 reads of this run are spent, 0 left" in run.notes()[0]


def test_the_note_stays_when_the_budget_is_spent_and_sends_do_not_move_it():
    with toolguard.run(call_budget=2) as run:
        look(1)
        mail(1)
        assert run.notes() == []
        look(2)
        look(3)
        assert "2 of the 2 reads" in run.notes()[0]


def test_no_note_is_written_into_a_result():
    with toolguard.run(call_budget=3) as run:
        assert [look("plain") for _ in range(3)] == ["plain"] * 3
        assert run.notes()


# Observing, texts, telemetry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_where_it_observes_the_read_runs_and_its_span_says_what_would_have_been(spans, whole):
    if not whole:
        toolguard.configure({"observe": ["call_budget"]})
    with toolguard.run(mode="observe" if whole else None, call_budget=2) as run:
        assert [look(n) for n in range(4)] == [0, 1, 2, 3]
        assert run.notes() == []
    assert [span.attributes.get("toolguard.would_refuse") for span in spans.calls()] == [None] * 2 + ["call_budget"] * 2


def test_the_text_says_what_was_spent_and_asks_for_an_answer():
    with toolguard.run(call_budget=2):
        look(1)
        look(2)
        refusal = look(3)
    assert refusal.startswith("look did NOT execute: ")
    assert "made 2 reads and its budget is 2" in refusal
    assert "sending still does" in refusal
    assert "Answer now with what you have" in refusal
    assert "say what you could not check" in refusal
    assert "narrower question" in refusal


def test_the_refused_span_has_the_numbers(spans):
    with toolguard.run(call_budget=1):
        look(1)
        look(2)
    attributes = spans.calls()[-1].attributes
    assert attributes["toolguard.refusal.reason"] == "call_budget"
    assert (attributes["toolguard.refusal.used"], attributes["toolguard.refusal.limit"]) == (1, 1)
    assert attributes["toolguard.refusal.retry"] == "different"
    assert not attributes["toolguard.executed"]


# Histories ------------------------------------------------------------------------------------------------------------

TOOLS = [
    Tool("read", "read", "read"),
    Tool("own", "own", "read", limit=9),
    Tool("asked", "asked", "read", delegate=True),
    Tool("send", "send", "send"),
]


@settings(max_examples=300, deadline=None)
@given(
    limit=st.integers(0, 4),
    steps=st.lists(
        st.one_of(
            st.sampled_from(TOOLS),
            st.tuples(st.integers(0, 9), st.sampled_from(["ok", "error", "cancelled", "not_executed"])),
        ),
        max_size=50,
    ),
)
def test_it_refuses_as_one_plain_count_would(lab, limit, steps):
    run, spent, open_calls = lab(call_budget=limit), 0, []
    for step in steps:
        if isinstance(step, Tool):
            call = run.start(step)
            why = run.admit(call)
            if limit and step.kind == "read" and spent >= limit:
                assert why == ("call_budget", spent, limit, "different", None, False)
                run.end(call, why)
            else:
                assert why is None
                open_calls.append(call)
                spent += step.kind == "read"
        elif open_calls:
            call = open_calls.pop(step[0] % len(open_calls))
            run.end(call, outcome=step[1])
            spent -= step[1] == "not_executed" and call.tool.kind == "read"
        tally = run.ledger.sync().tally
        assert tally.reads == spent
        if limit:
            assert call_budget.slack(tally, limit) <= limit - spent
            assert call_budget.reading(tally, limit) == (spent, limit)
