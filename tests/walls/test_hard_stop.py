"""The one wall that ends a run: a cap that is exact, and a rule that spares long work."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from tests.limits import QUIET
from toolguard import NotExecuted, metered
from toolguard.testing import assert_executed, assert_refused

# Only the wall that is tested here is on.
ALONE = {**QUIET, "per_tool": 0, "aggregate": 0, "delivery": 0, "refused_calls": 0}


@metered(kind="read")
def look(n):
    return n


@metered(kind="read")
def same(n):
    return "nothing new"


@metered(kind="send")
def send(n):
    return n


# A cap that was set ---------------------------------------------------------------------------------------------------


def test_of_a_hard_cap_of_12_exactly_12_calls_execute_and_the_13th_stops_the_run():
    with toolguard.run(hard_cap=12, **ALONE) as run:
        for n in range(12):
            assert_executed(look(n) if n % 3 else send(n))
            assert not run.stopped
        refusal = assert_refused(look(12), "hard_stop")
        assert (refusal.rule, refusal.used, refusal.limit, refusal.retry) == ("explicit", 12, 12, "never")
        assert run.stopped
        assert run.stop_reason == "hard_stop"
        for n in range(5):
            assert_refused(send(n), "hard_stop")
        assert run.usage().executed == 12


def test_the_cap_counts_reads_and_sends_whatever_other_walls_are_off():
    with toolguard.run(hard_cap=2, **ALONE) as run:
        look(1)
        send(1)
        assert_refused(send(2), "hard_stop")
        assert run.usage().by_tool == {"look": 1, "send": 1}


def test_a_batch_at_the_cap_is_refused_call_by_call_in_order():
    with toolguard.run(hard_cap=100, **ALONE):
        for n in range(98):
            look(n)
        batch = [look(n) for n in range(5)]
    assert batch[:2] == [0, 1]
    for refusal in batch[2:]:
        assert_refused(refusal, "hard_stop")


async def test_a_gathered_batch_at_the_cap_ends_as_a_loop_would():
    @metered(kind="read")
    async def alook(n):
        await asyncio.sleep(0)
        return n

    with toolguard.run(hard_cap=100, **ALONE):
        for n in range(98):
            await alook(n)
        batch = await asyncio.gather(*(alook(n) for n in range(5)))
    assert batch[:2] == [0, 1]
    for refusal in batch[2:]:
        assert_refused(refusal, "hard_stop")


def test_a_stop_is_an_answer_for_the_user_and_no_exception():
    with toolguard.run(hard_cap=3, **ALONE) as run:
        look(1)
        look(2)
        send(1)
        assert run.stop_message == ""
        look(3)
        said = run.stop_message
    assert said.startswith("I stopped after 3 tool calls (look 2, send 1): ")
    assert "hard limit of 3 tool calls" in said
    assert "No answer was finished" in said
    assert "smaller part of the task" in said
    assert "raise the run's tool-call limit" in said


def test_a_refusal_names_what_was_used_the_limit_and_that_the_run_is_over():
    with toolguard.run(hard_cap=1, **ALONE):
        look(1)
        refusal = look(2)
    assert refusal.startswith("look did NOT execute: ")
    assert "made 1 tool call " in refusal
    assert "hard limit is 1" in refusal
    assert "The run is stopped" in refusal
    assert "Answer now with what you have" in refusal


def test_a_cap_of_0_means_no_hard_stop_at_all():
    with toolguard.run(hard_cap=0, **ALONE) as run:
        for n in range(1200):
            assert_executed(same(n % 2))
        assert not run.stopped


def test_a_cap_replaces_the_adaptive_rule():
    with toolguard.run(hard_cap=200, **ALONE) as run:
        for _ in range(200):
            assert_executed(same(1))
        assert_refused(same(1), "hard_stop")
        assert run.refusals[0].rule == "explicit"


def test_a_call_that_says_nothing_ran_is_given_back_to_the_whole_tree():
    @metered(kind="read")
    def declined():
        raise NotExecuted

    with toolguard.run(hard_cap=2, **ALONE) as outer:
        with toolguard.run(**ALONE):
            for _ in range(10):
                assert_refused(declined(), "gate")
            assert look(1) == 1
        assert look(2) == 2
        assert_refused(look(3), "hard_stop")
        assert outer.usage().executed == 1


def test_the_cap_of_an_outer_run_binds_the_runs_below_it_and_a_delegate_ends_with_it():
    @metered(kind="read", name="delegate")
    def delegate(calls):
        with toolguard.run("inner", **ALONE) as run:
            said = [look(n) for n in range(calls)]
            return said, run.stopped, run.stop_reason

    with toolguard.run(hard_cap=5, **ALONE) as outer:
        said, stopped, why = delegate(6)
        assert said[:4] == [0, 1, 2, 3]
        assert_refused(said[4], "hard_stop")
        assert stopped
        assert why == "hard_stop"
        assert outer.stopped
        assert_refused(delegate(1), "hard_stop")
        assert "after 5 tool calls (delegate 1, 4 by the agents it called)" in outer.stop_message


def test_a_cap_of_an_inner_run_leaves_the_outer_one_running():
    with toolguard.run(hard_cap=10, **ALONE) as outer:
        with toolguard.run(hard_cap=1, **ALONE) as inner:
            look(1)
            assert_refused(look(2), "hard_stop")
            assert inner.stopped
        assert not outer.stopped
        assert look(3) == 3


def test_notes_warn_before_the_cap():
    with toolguard.run(hard_cap=10, **ALONE) as run:
        for n in range(6):
            look(n)
        assert run.notes() == []
        look(7)
        (note,) = run.notes()
        assert "7 of the 10" in note
        assert "3 left" in note
        assert "then the run ends" in note


# Without one ----------------------------------------------------------------------------------------------------------


def test_101_distinct_calls_pass_and_so_do_1000_and_the_1001st_stops_the_run():
    with toolguard.run(**ALONE) as run:
        for n in range(1000):
            assert_executed(look(n))
        refusal = assert_refused(look(1000), "hard_stop")
        assert (refusal.rule, refusal.used, refusal.limit, refusal.retry) == ("backstop", 1000, 1000, "never")
        assert run.stopped
        assert "guards against a runaway loop" in run.stop_message


def test_one_identical_call_that_brings_nothing_new_is_stopped_at_101_and_not_before():
    with toolguard.run(**ALONE) as run:
        for _ in range(100):
            assert same(1) == "nothing new"
        refusal = assert_refused(same(1), "hard_stop")
        assert (refusal.rule, refusal.used, refusal.limit) == ("stuck", 100, 100)
        assert "past 100 tool calls" in refusal
        assert "nothing new" in refusal
        assert "kept repeating calls that brought nothing new" in run.stop_message


def test_one_identical_call_that_fails_the_same_way_is_stopped_at_101_too():
    @metered(kind="read")
    def broken(n):
        raise FileNotFoundError(2, "no such file", "data.csv")

    with toolguard.run(**ALONE):
        for _ in range(100):
            with pytest.raises(FileNotFoundError):
                broken(1)
        assert_refused(broken(1), "hard_stop")


def test_a_failure_that_says_something_new_is_something_new():
    failures = iter(range(1000))

    @metered(kind="read")
    def broken(n):
        raise ValueError(next(failures))

    with toolguard.run(**ALONE):
        for _ in range(150):
            with pytest.raises(ValueError, match=r"\d+"):
                broken(1)


def test_two_that_alternate_and_bring_nothing_new_are_stopped_too():
    with toolguard.run(**ALONE) as run:
        for n in range(100):
            assert_executed(same(n % 2))
        assert_refused(same(0), "hard_stop")
        assert run.refusals[0].rule == "stuck"


@pytest.mark.parametrize("repeats", [5, 6])
def test_with_unchanged_results_5_runs_of_one_call_are_not_stuck_and_6_are(repeats):
    with toolguard.run(**ALONE) as run:
        for n in range(100 - repeats):
            assert_executed(look(n))
        for _ in range(repeats):
            assert_executed(same(1))
        following = look(1000)
        assert run.stopped == (repeats == 6)
        if repeats == 6:
            assert assert_refused(following, "hard_stop").rule == "stuck"


def test_anything_new_clears_the_repeats():
    with toolguard.run(**ALONE) as run:
        for n in range(60):
            for _ in range(5):
                assert_executed(same(1))
            assert_executed(look(n))
        assert not run.stopped


def test_one_call_whose_result_changes_is_progress():
    results = iter(range(1000))

    @metered(kind="read")
    def status():
        return f"pending {next(results)}"

    with toolguard.run(**ALONE):
        for _ in range(300):
            assert_executed(status())


def test_a_result_that_cannot_be_measured_is_new():
    @metered(kind="read")
    def opaque():
        return object()

    with toolguard.run(**ALONE):
        for _ in range(150):
            assert_executed(opaque())


def test_results_that_differ_in_their_last_character_are_two_results():
    results = iter(range(1000))

    @metered(kind="read")
    def page():
        return "x" * 10_000 + str(next(results))

    with toolguard.run(**ALONE):
        for _ in range(150):
            assert_executed(page())


def test_what_polls_is_never_stuck_and_still_meets_the_backstop():
    @metered(kind="read", polls=True)
    def status():
        return "pending"

    with toolguard.run(adaptive_soft=20, **ALONE):
        for _ in range(200):
            assert_executed(status())
        assert assert_refused(status(), "hard_stop").rule == "backstop"


def test_polling_between_repeats_neither_counts_nor_clears():
    @metered(kind="read", polls=True)
    def status():
        return "pending"

    with toolguard.run(adaptive_soft=10, **ALONE):
        assert_executed(status())  # a first answer is something new
        for _ in range(5):
            assert_executed(same(1))
            assert_executed(status())
        assert_executed(same(1))
        assert assert_refused(look(1), "hard_stop").rule == "stuck"


def test_finite_work_over_many_files_passes():
    @metered(kind="read")
    def grep(f):
        return []

    @metered(kind="send")
    def move(f):
        return None

    @metered(kind="send")
    def edit(f):
        return None

    with toolguard.run(**ALONE) as run:
        for f in range(40):
            for tool in (grep, move, edit):
                assert_executed(tool(f))
        assert run.usage().executed == 120


def test_with_the_signal_any_every_attempt_counts_this_one_included():
    # 101 calls, one key 6 times: the 101st is the sixth.
    with toolguard.run(adaptive_signal="any", **ALONE):
        for n in range(95):
            assert_executed(look(n))
        for _ in range(5):
            assert_executed(same(1))
        assert assert_refused(same(1), "hard_stop").rule == "stuck"


def test_with_the_signal_any_nothing_clears_the_count():
    with toolguard.run(adaptive_signal="any", **ALONE):
        for _ in range(6):
            assert_executed(same(1))
        for n in range(94):
            assert_executed(look(n))
        assert_refused(look(99), "hard_stop")


def test_with_the_signal_any_polling_counts_no_more_than_otherwise():
    @metered(kind="read", polls=True)
    def status():
        return "pending"

    with toolguard.run(adaptive_signal="any", adaptive_soft=10, **ALONE):
        for _ in range(100):
            assert_executed(status())
        assert assert_refused(status(), "hard_stop").rule == "backstop"


def test_with_the_signal_any_refused_attempts_count_too():
    with toolguard.run(adaptive_signal="any", adaptive_soft=4, **{**ALONE, "per_tool": 1}):
        same(1)
        for _ in range(5):
            assert_refused(same(1), "per_tool")
        for n, tool in enumerate([look, send, send]):
            assert_executed(tool(n))
        assert assert_refused(send(9), "hard_stop").rule == "stuck"


async def test_with_the_signal_any_a_repeated_batch_of_two_is_seen_at_its_11th_call():
    @metered(kind="read")
    async def first(x):
        return x

    @metered(kind="read")
    async def second(y):
        return y

    with toolguard.run(adaptive_signal="any", adaptive_soft=10, **ALONE) as run:
        for _ in range(5):
            for result in await asyncio.gather(first(1), second(1)):
                assert_executed(result)
        for result in await asyncio.gather(first(1), second(1)):
            assert_refused(result, "hard_stop")
        assert run.usage().executed == 10


async def test_a_repeated_batch_of_two_with_unchanged_results_is_seen_once_one_ran_6_times():
    @metered(kind="read")
    async def first(x):
        return x

    @metered(kind="read")
    async def second(y):
        return y

    with toolguard.run(adaptive_soft=10, **ALONE) as run:
        for _ in range(6):
            for result in await asyncio.gather(first(1), second(1)):
                assert_executed(result)
        for result in await asyncio.gather(first(1), second(1)):
            assert_refused(result, "hard_stop")
        assert run.usage().executed == 12


def test_repeats_of_0_leave_only_the_backstop():
    with toolguard.run(adaptive_soft=5, adaptive_repeats=0, **ALONE):
        for _ in range(50):
            assert_executed(same(1))
        assert assert_refused(same(1), "hard_stop").rule == "backstop"


def test_a_multiplier_of_0_leaves_only_the_stuck_rule():
    with toolguard.run(adaptive_soft=5, adaptive_multiplier=0, **ALONE):
        for n in range(300):
            assert_executed(look(n))
        for _ in range(6):
            assert_executed(same(1))
        assert assert_refused(same(1), "hard_stop").rule == "stuck"


def test_a_soft_limit_of_0_switches_the_adaptive_rule_off():
    with toolguard.run(adaptive_soft=0, **ALONE):
        for _ in range(1100):
            assert_executed(same(1))


def test_the_adaptive_rule_counts_its_own_run_alone():
    with toolguard.run(adaptive_soft=3, adaptive_multiplier=1, **ALONE) as outer:
        with toolguard.run(**ALONE):
            for n in range(20):
                assert_executed(look(n))
        for n in range(3):
            assert_executed(look(n))
        assert_refused(look(4), "hard_stop")
        assert outer.stopped


# Against plain models -------------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(["ok", "error", "not_executed"])


@settings(max_examples=200, deadline=None)
@given(
    caps=st.lists(st.sampled_from([None, 0, 1, 2, 3, 5, 8]), min_size=3, max_size=3),
    calls=st.lists(st.tuples(st.integers(0, 2), OUTCOMES), max_size=25),
)
def test_a_cap_holds_as_a_plain_count_over_the_tree_would(lab, tools, caps, calls):
    runs = []
    for depth, cap in enumerate(caps):  # each nested in the one before
        runs.append(lab(parent=runs[depth - 1] if depth else None, hard_cap=cap, adaptive_soft=0))
    ran, stopped = [0, 0, 0], [False, False, False]
    for depth, outcome in calls:
        above = range(depth + 1)
        full = [d for d in above if caps[d] and ran[d] >= caps[d]]
        expected = "hard_stop" if any(stopped[d] for d in above) or full else None
        if not any(stopped[d] for d in above):
            for d in full:
                stopped[d] = True
        assert runs[depth].reason(tools.read, outcome=outcome) == expected
        if expected is None and outcome != "not_executed":
            for d in above:
                ran[d] += 1
        assert [run.ledger.stopped is not None for run in runs] == stopped


CALL = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, b"1", b"2"]), st.booleans(), OUTCOMES)


@settings(max_examples=300, deadline=None)
@given(
    soft=st.integers(0, 6),
    multiplier=st.integers(0, 4),
    repeats=st.integers(0, 4),
    calls=st.lists(CALL, max_size=40),
)
def test_the_adaptive_rule_stops_as_a_plain_model_would(lab, tools, soft, multiplier, repeats, calls):
    run = lab(hard_cap=None, adaptive_soft=soft, adaptive_multiplier=multiplier, adaptive_repeats=repeats)
    ran, seen, unchanged, rule = 0, set(), Counter(), None
    for identity, digest, polls, outcome in calls:
        if rule is None and soft and ran >= soft:
            if multiplier and ran >= soft * multiplier:
                rule = "backstop"
            elif repeats and max(unchanged.values(), default=0) >= repeats:
                rule = "stuck"
        why = run.attempt(tools.polls if polls else tools.read, identity, outcome=outcome, digest=digest)
        assert (why and why.rule) == rule
        if rule is None and outcome != "not_executed":
            ran += 1
            if digest is None or (identity, digest) not in seen:
                unchanged.clear()
                unchanged[identity] = 1
            elif not polls:
                unchanged[identity] += 1
            if digest is not None:
                seen.add((identity, digest))


@settings(max_examples=300, deadline=None)
@given(soft=st.integers(1, 6), repeats=st.integers(1, 5), calls=st.lists(CALL, max_size=40), sends=st.integers(0, 3))
def test_with_the_signal_any_it_stops_as_a_plain_count_of_attempts_would(lab, tools, soft, repeats, calls, sends):
    run = lab(
        hard_cap=None,
        adaptive_soft=soft,
        adaptive_multiplier=0,
        adaptive_repeats=repeats,
        adaptive_signal="any",
        delivery=sends,
    )
    ran, sent, attempts, stopped = 0, 0, Counter(), False
    for identity, digest, is_send, outcome in calls:
        attempts[identity] += 1
        stopped = stopped or (ran >= soft and max(attempts.values()) >= repeats)
        full = is_send and sends and sent >= sends
        reason = run.reason(tools.send if is_send else tools.read, identity, outcome=outcome, digest=digest)
        assert reason == ("hard_stop" if stopped else "delivery" if full else None)
        if reason is None and outcome != "not_executed":
            ran += 1
            sent += is_send
