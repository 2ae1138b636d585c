"""Broad enumeration over many tools: past the cap a call must be asked twice, and a loop never asks twice."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from tests.limits import QUIET
from toolguard import NotExecuted, metered
from toolguard.testing import assert_executed, assert_refused


def open_run(*agent, **limits):
    return toolguard.run(*agent, **{**QUIET, **limits})


def reads(n):
    """Return `n` tools under names of their own."""

    def make(i):
        @metered(kind="read", name=f"tool_{i}")
        def tool(x):
            return x

        return tool

    return [make(i) for i in range(n)]


@metered(kind="read")
def look(n):
    return n


@metered(kind="read")
async def alook(n):
    return n


@metered(kind="send")
def send(n):
    return n


def test_of_8_tools_called_39_times_each_40_calls_execute_and_the_rest_stay_refused():
    with open_run(refused_calls=0) as run:
        said = [tool(n) for n in range(39) for tool in reads(8)]
        assert len(said) == 312
        assert said[:40] == [n // 8 for n in range(40)]
        for refusal in said[40:]:
            assert_refused(refusal, "aggregate")
            assert (refusal.used, refusal.limit, refusal.retry) == (40, 40, "identical")
        assert run.usage().executed == 40
        assert run.usage().by_reason == {"aggregate": 272}
        assert not run.stopped


def test_past_the_cap_a_new_call_is_refused_once_and_its_repeats_run_for_the_rest_of_the_run():
    with open_run(aggregate=3) as run:
        for n in range(3):
            assert look(n) == n
        assert_refused(look(10), "aggregate")
        assert [look(10) for _ in range(5)] == [10] * 5
        assert_refused(look(11), "aggregate")
        assert [look(n) for n in (10, 11, 10)] == [10, 11, 10]
        assert run.usage().executed == 11


def test_a_call_that_ran_before_the_cap_is_refused_once_too():
    with open_run(aggregate=2):
        look(1)
        look(1)
        assert_refused(look(1), "aggregate")
        assert [look(1) for _ in range(3)] == [1] * 3


def test_a_loop_over_fresh_arguments_never_confirms_itself():
    with open_run(aggregate=5, per_tool=0, refused_calls=0) as run:
        for n in range(500):
            look(n)
        assert run.usage().executed == 5


def test_the_same_arguments_to_another_tool_are_another_call():
    first, second = reads(2)
    with open_run(aggregate=1):
        first(1)
        assert_refused(first(7), "aggregate")
        assert_refused(second(7), "aggregate")
        assert first(7) == 7
        assert second(7) == 7


def test_nothing_in_the_arguments_confirms():
    @metered(kind="read")
    def search(q, confirm=False):
        return q

    with open_run(aggregate=1):
        search("a")
        assert_refused(search("b"), "aggregate")
        assert_refused(search("b", confirm=True), "aggregate")
        assert search("b") == "b"


def test_within_the_marked_turn_of_its_refusal_no_repeat_runs():
    with open_run(aggregate=1) as run:
        run.turn()
        look(0)
        run.turn()
        for _ in range(4):
            assert_refused(look(7), "aggregate")
        run.turn()
        assert look(7) == 7
        assert look(7) == 7


@pytest.mark.parametrize("marked", [False, True], ids=["no turns", "turns"])
async def test_two_parallel_twins_do_not_confirm_each_other(marked):
    with open_run(aggregate=1) as run:
        if marked:
            run.turn()
        await alook(0)
        for twin in await asyncio.gather(*(alook(7) for _ in range(6))):
            assert_refused(twin, "aggregate")
        if marked:
            run.turn()
        assert await alook(7) == 7


async def test_a_coroutine_made_before_the_refusal_was_returned_does_not_confirm_it():
    with open_run(aggregate=1):
        await alook(0)
        made_before = alook(7)
        assert_refused(await alook(7), "aggregate")
        assert_refused(await made_before, "aggregate")
        assert await alook(7) == 7


def test_a_generator_made_before_the_refusal_was_returned_does_not_confirm_it():
    @metered(kind="read")
    def stream(n):
        yield n

    with open_run(aggregate=1):
        look(0)
        made_before = stream(7)
        assert_refused(next(stream(7)), "aggregate")
        assert_refused(next(made_before), "aggregate")
        assert list(stream(7)) == [7]


def test_a_refusal_that_another_wall_shares_is_not_confirmed_by_a_repeat():
    with open_run(aggregate=2, per_tool=2) as run:
        look(1)
        look(2)
        for _ in range(3):
            refusal = assert_refused(look(3))
            assert (refusal.reason, refusal.retry) == ("per_tool", "different")
        other = reads(1)[0]
        assert_refused(other(3), "aggregate")
        assert other(3) == 3
        assert run.usage().by_tool == {"look": 2, "tool_0": 1}


def test_a_confirmed_call_that_says_nothing_ran_may_be_repeated_again():
    left = [2]

    @metered(kind="read")
    def picky(n):
        if n and left[0]:
            left[0] -= 1
            raise NotExecuted
        return n

    with open_run(aggregate=1) as run:
        picky(0)
        assert_refused(picky(1), "aggregate")
        assert_refused(picky(1), "gate")
        assert_refused(picky(1), "gate")
        assert picky(1) == 1
        assert run.usage().executed == 2


def test_sends_neither_count_nor_are_refused():
    with open_run(aggregate=2, delivery=0) as run:
        for n in range(5):
            assert_executed(send(n))
        assert [look(n) for n in range(2)] == [0, 1]
        assert_refused(look(2), "aggregate")
        for n in range(5):
            assert_executed(send(n))
        assert run.usage().executed == 12


def test_local_tools_neither_count_nor_are_refused():
    toolguard.configure({"local": ["look"]})
    with open_run(aggregate=1):
        assert [look(n) for n in range(60)] == list(range(60))


def test_a_limit_of_0_means_no_limit():
    with open_run(aggregate=0, per_tool=0):
        assert [look(n) for n in range(80)] == list(range(80))


def test_failing_calls_stay_charged():
    @metered(kind="read")
    def broken(n):
        raise TimeoutError

    with open_run(aggregate=3):
        for n in range(3):
            with pytest.raises(TimeoutError):
                broken(n)
        assert_refused(broken(4), "aggregate")


def test_confirming_calls_meet_the_other_walls():
    with open_run(aggregate=1, per_tool=3, hard_cap=5) as run:
        look(0)
        assert_refused(look(1), "aggregate")
        assert [look(1) for _ in range(2)] == [1, 1]
        assert_refused(look(1), "per_tool")
        other = reads(1)[0]
        other(1)
        assert [other(1) for _ in range(2)] == [1, 1]
        assert_refused(other(1), "hard_stop")
        assert run.stopped


def test_a_nested_run_has_an_allowance_and_flags_of_its_own():
    with open_run(aggregate=1):
        look(0)
        assert_refused(look(1), "aggregate")
        with open_run(aggregate=1):
            assert look(1) == 1
            assert_refused(look(2), "aggregate")
        assert_refused(look(2), "aggregate")
        assert look(1) == 1


def test_the_text_names_what_was_used_the_limit_and_the_two_ways_on():
    with open_run(aggregate=2):
        look(1)
        look(2)
        refusal = look(3)
    assert refusal.startswith("look did NOT execute: ")
    assert "2 reads" in refusal
    assert "limit is 2" in refusal
    assert "repeat it with the same arguments" in refusal
    assert "in your next turn" in refusal
    assert "stop and answer with what you have" in refusal


CALL = st.tuples(
    st.sampled_from(["read", "other", "send"]),
    st.sampled_from([b"1", b"2", b"3"]),
    st.sampled_from(["ok", "error", "not_executed"]),
)


@settings(max_examples=300, deadline=None)
@given(limit=st.integers(0, 4), steps=st.lists(CALL | st.just("turn"), max_size=50))
def test_it_refuses_as_a_plain_model_would(lab, tools, limit, steps):
    run = lab(aggregate=limit)
    ran, turn, first_refused = 0, 0, {}
    for step in steps:
        if step == "turn":
            run.ledger.begin_turn()
            turn += 1
            continue
        name, argument, outcome = step
        identity = name.encode() + argument
        why = run.attempt(getattr(tools, name), identity, outcome=outcome)
        confirmed = identity in first_refused and (turn == 0 or first_refused[identity] != turn)
        if name != "send" and limit and ran >= limit and not confirmed:
            assert why == ("aggregate", ran, limit, "identical", None, False)
            first_refused.setdefault(identity, turn)
        else:
            assert why is None
            ran += name != "send" and outcome != "not_executed"
