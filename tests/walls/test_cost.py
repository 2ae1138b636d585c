"""Time, tokens and money."""

import asyncio
import threading
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import ConfigError, Refusal, metered
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated


@metered(kind="read")
def look(n=0):
    return n


@metered(kind="send")
def mail(n=0):
    return n


@metered(kind="read")
def scratch(n=0):
    return n


@pytest.fixture
def clock():
    clock = FakeClock(100.0)
    with isolated(clock=clock):
        yield clock


# What is spent: tokens and money --------------------------------------------------------------------------------------


def test_a_run_that_spends_past_its_tokens_is_stopped_at_once():
    with toolguard.run(tokens=1000) as run:
        assert_executed(look(1))
        run.spend(tokens=400)
        run.spend(tokens=600)
        assert not run.stopped
        assert_executed(look(2))
        run.spend(tokens=1)
        assert run.stopped
        assert run.stop_reason == "tokens"
        refusal = assert_refused(look(3), "tokens")
        assert (refusal.used, refusal.limit, refusal.retry) == (1001, 1000, "never")


def test_a_run_that_spends_past_its_dollars_is_stopped_at_once():
    with toolguard.run(cost_usd=0.5) as run:
        run.spend(cost_usd=0.5)
        assert not run.stopped
        run.spend(cost_usd=0.000001)
        assert run.stop_reason == "cost_usd"
        refusal = assert_refused(look(), "cost_usd")
        assert (refusal.used, refusal.limit, refusal.retry) == (0.500001, 0.5, "never")


@pytest.mark.parametrize("limit", [1, 7, 10**6, 10**15])
def test_tokens_up_to_the_limit_are_allowed_and_one_more_is_not(limit):
    with toolguard.run(tokens=limit) as run:
        run.spend(limit)
        assert_executed(look())
        run.spend(1)
        assert_refused(look(), "tokens")


@pytest.mark.parametrize(("limit", "steps", "each"), [(0.3, 3, 0.1), (0.7, 7, 0.1), (1, 100, 0.01), (0.000003, 3, 0.000001)])
def test_money_adds_up_exactly_where_binary_fractions_do_not(limit, steps, each):
    with toolguard.run(cost_usd=limit) as run:
        for _ in range(steps):
            run.spend(cost_usd=each)
        assert not run.stopped
        assert run.usage().cost_usd == limit
        run.spend(cost_usd=0.000001)
        assert run.stopped


def test_money_may_be_a_whole_number_or_a_decimal():
    with toolguard.run(cost_usd=3) as run:
        run.spend(cost_usd=1)
        run.spend(cost_usd=Decimal("1.999999"))
        assert not run.stopped
        assert run.usage().cost_usd == 2.999999
        run.spend(cost_usd=Decimal("0.000002"))
        assert run.stopped


def test_less_than_a_millionth_of_a_dollar_is_rounded_to_the_nearest():
    with toolguard.run() as run:
        run.spend(cost_usd=0.0000004)
        assert run.usage().cost_usd == 0
        run.spend(cost_usd=0.0000006)
        assert run.usage().cost_usd == 0.000001


def test_a_limit_below_a_millionth_of_a_dollar_is_one_and_not_off():
    with toolguard.run(cost_usd=1e-9) as run:
        run.spend(cost_usd=0.000001)
        assert not run.stopped
        run.spend(cost_usd=0.000001)
        assert run.stopped


def test_both_may_be_spent_at_once_and_the_first_of_the_table_is_named():
    with toolguard.run(tokens=10, cost_usd=0.1) as run:
        run.spend(tokens=11, cost_usd=0.2)
        assert run.stop_reason == "tokens"


def test_usage_says_what_was_spent_with_and_without_a_limit():
    with toolguard.run() as run:
        run.spend(tokens=12, cost_usd=0.25)
        run.spend(tokens=3)
        run.spend()
        usage = run.usage()
        assert (usage.tokens, usage.cost_usd) == (15, 0.25)
        assert usage.to_dict()["tokens"] == 15
        assert usage.to_dict()["cost_usd"] == 0.25
        assert not run.stopped


def test_zero_switches_them_off():
    with toolguard.run(tokens=0, cost_usd=0, deadline_s=0) as run:
        run.spend(tokens=10**12, cost_usd=10**6)
        assert not run.stopped
        assert_executed(look())


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_no_profile_brings_a_limit_of_them(profile, clock):
    with toolguard.run(profile=profile) as run:
        run.spend(tokens=10**12, cost_usd=10**6)
        clock.advance(10**6)
        assert not run.stopped
        assert_executed(look())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": -1},
        {"tokens": 1.0},
        {"tokens": True},
        {"tokens": "10"},
        {"tokens": None},
        {"tokens": 1 << 63},
        {"cost_usd": -0.01},
        {"cost_usd": True},
        {"cost_usd": "1"},
        {"cost_usd": None},
        {"cost_usd": float("nan")},
        {"cost_usd": float("inf")},
        {"cost_usd": Decimal("NaN")},
        {"cost_usd": Decimal("-Infinity")},
        {"cost_usd": 1e300},
        {"cost_usd": 1j},
    ],
    ids=str,
)
def test_what_cannot_have_been_spent_is_an_error_that_changes_nothing(wrong):
    with toolguard.run(tokens=5, cost_usd=5) as run:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            run.spend(**{"tokens": 3, "cost_usd": 3, **wrong})
        assert (run.usage().tokens, run.usage().cost_usd) == (0, 0)
        assert not run.stopped


@pytest.mark.parametrize("name", ["tokens", "cost_usd", "deadline_s"])
@pytest.mark.parametrize("wrong", [-1, True, float("nan"), float("inf"), "5", [5]], ids=str)
def test_a_limit_that_is_no_amount_is_an_error_before_the_run_starts(name, wrong):
    with pytest.raises(ConfigError, match=name):
        toolguard.run(**{name: wrong})


def test_tokens_are_whole_and_the_others_may_be_fractions():
    with pytest.raises(ConfigError, match="tokens"):
        toolguard.run(tokens=1.5)
    toolguard.run(cost_usd=0.25, deadline_s=0.5)
    toolguard.run(cost_usd=1, deadline_s=30)


# Time -----------------------------------------------------------------------------------------------------------------


def test_past_its_deadline_a_run_is_stopped_when_it_is_looked_at(clock):
    with toolguard.run(deadline_s=30) as run:
        clock.advance(29.5)
        assert not run.stopped
        assert_executed(look())
        clock.advance(0.5)
        assert run.stopped
        assert run.stop_reason == "deadline_s"
        refusal = assert_refused(look(), "deadline_s")
        assert (refusal.used, refusal.limit, refusal.retry) == (30.0, 30, "never")


@pytest.mark.parametrize(
    "look_at",
    [
        lambda run: run.stopped,
        lambda run: run.stop_reason == "deadline_s",
        lambda run: "30" in run.stop_message,
        lambda run: isinstance(look(), Refusal),
        lambda run: isinstance(mail(), Refusal),
    ],
    ids=["stopped", "stop_reason", "stop_message", "a read", "a send"],
)
def test_each_way_to_look_stops_it_for_good(clock, look_at):
    with toolguard.run(deadline_s=30) as run:
        clock.advance(31)
        assert look_at(run)
        clock.now = 100.0  # whatever the clock then says
        assert run.stop_reason == "deadline_s"
        assert_refused(look(), "deadline_s")


def test_a_run_that_nobody_looks_at_any_more_is_stopped_when_it_is_left(clock, spans):
    with toolguard.run(deadline_s=30):
        clock.advance(40)
    (span,) = spans.runs()
    assert span.attributes["toolguard.run.stopped"]
    assert span.attributes["toolguard.run.stop.reason"] == "deadline_s"


def test_a_call_that_runs_past_the_deadline_ends_well_and_the_next_does_not_run(clock):
    @metered(kind="read")
    def slow():
        clock.advance(50)
        return "done"

    with toolguard.run(deadline_s=30) as run:
        assert slow() == "done"
        refusal = assert_refused(look(), "deadline_s")
        assert refusal.used == 50
        assert run.usage().executed == 1


def test_a_fraction_of_a_second_is_a_deadline(clock):
    with toolguard.run(deadline_s=0.25):
        clock.advance(0.2)
        assert_executed(look())
        clock.advance(0.05)
        assert_refused(look(), "deadline_s")


def test_a_clock_that_goes_backwards_ends_nothing(clock):
    with toolguard.run(deadline_s=30) as run:
        clock.now = -1e9
        assert_executed(look())
        assert not run.stopped


def test_a_run_that_is_entered_again_began_when_it_began_first(clock):
    run = toolguard.run(deadline_s=30)
    with run:
        clock.advance(20)
    clock.advance(20)
    with run:
        assert_refused(look(), "deadline_s")


def test_time_before_a_run_is_first_used_is_not_counted(clock):
    run = toolguard.run(deadline_s=30)
    clock.advance(1000)
    with run:
        clock.advance(29)
        assert_executed(look())


async def test_a_coroutine_is_judged_by_the_time_of_its_first_step(clock):
    @metered(kind="read")
    async def fetch():
        return "fetched"

    with toolguard.run(deadline_s=30):
        early, late = fetch(), fetch()
        assert await early == "fetched"
        clock.advance(31)
        assert_refused(await late, "deadline_s")


def test_a_generator_is_judged_by_the_time_of_its_first_step_and_then_flows_on(clock):
    @metered(kind="read")
    def stream():
        yield 1
        yield 2

    with toolguard.run(deadline_s=30):
        early, late = stream(), stream()
        assert next(early) == 1
        clock.advance(31)
        assert next(early) == 2
        (refusal,) = late
        assert_refused(refusal, "deadline_s")


def test_a_person_who_decided_too_late_did_not_approve_anything(clock):
    def decide(call):
        clock.advance(3600)

    ran = []

    @metered(kind="send", gate=decide)
    def wire(amount):
        ran.append(amount)

    with toolguard.run(deadline_s=1800) as run:
        refusal = assert_refused(wire(10), "deadline_s")
        assert refusal.used == 3600
        assert run.stopped
    assert ran == []


# The end of the run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "spend", "reason", "figures"),
    [
        ({"tokens": 1000}, {"tokens": 1500}, "tokens", ("spent 1500 tokens", "limit is 1000")),
        ({"cost_usd": 0.25}, {"cost_usd": 0.4}, "cost_usd", ("spent $0.4", "limit is $0.25")),
    ],
)
def test_the_stop_is_told_to_model_and_user_with_the_numbers(limits, spend, reason, figures):
    with toolguard.run(**limits) as run:
        look(1)
        look(2)
        mail(1)
        run.spend(**spend)
        refusal = assert_refused(look(3), reason)
    assert refusal.startswith("look did NOT execute: ")
    for figure in figures:
        assert figure in refusal
        assert figure in run.stop_message
    assert "no further call will run" in refusal
    assert "Answer now with what you have" in refusal
    assert "3 tool calls (look 2, mail 1)" in run.stop_message
    assert "No answer was finished" in run.stop_message
    assert "smaller part of the task" in run.stop_message


def test_the_deadline_is_told_likewise(clock):
    with toolguard.run(deadline_s=30) as run:
        look(1)
        clock.advance(42.5)
        refusal = assert_refused(look(2), "deadline_s")
    for text in (refusal, run.stop_message):
        assert "42.5 seconds" in text
        assert "limit is 30" in text
    assert "raise the run's deadline" in run.stop_message


def test_after_the_stop_everything_is_refused_but_what_the_harness_does():
    toolguard.configure({"local": ["scratch"]})
    with toolguard.run(tokens=1) as run:
        run.spend(2)
        for tool in (look, mail, scratch):
            assert_refused(tool(), "tokens")
        with toolguard.uncounted():
            assert_executed(look())
        run.spend(5)
        assert run.usage().tokens == 7
        assert run.stop_reason == "tokens"


def test_the_stop_is_told_once_as_a_warning_and_at_once(logged):
    with toolguard.run(tokens=10) as run:
        run.spend(11)
        stops = [record for record in logged.records if record.levelname == "WARNING"]
        assert [run.id in record.getMessage() and "tokens" in record.getMessage() for record in stops] == [True]
        run.spend(11)
        look()
    assert [record.levelname for record in logged.records].count("WARNING") == 1


def test_an_earlier_stop_stays():
    with toolguard.run(tokens=10) as run:
        run.stop("enough")
        run.spend(20)
        assert run.stop_reason == "stop"
        assert run.stop_message == "enough"


def test_they_spend_no_calls_and_make_no_note():
    with toolguard.run(tokens=10, cost_usd=1, deadline_s=10) as run:
        run.spend(tokens=10, cost_usd=1)
        assert run.notes() == []
        assert run.usage().executed == 0


def test_the_spans_say_which_limit_with_its_numbers(spans):
    with toolguard.run(cost_usd=0.25) as run:
        run.spend(cost_usd=0.5)
        look()
    (call,), (whole,) = spans.calls(), spans.runs()
    assert call.attributes["toolguard.refusal.reason"] == "cost_usd"
    assert (call.attributes["toolguard.refusal.used"], call.attributes["toolguard.refusal.limit"]) == (0.5, 0.25)
    assert whole.attributes["toolguard.run.stop.reason"] == "cost_usd"


# The tree -------------------------------------------------------------------------------------------------------------


def test_what_a_nested_run_spends_counts_for_every_run_around_it():
    with toolguard.run() as outer, toolguard.run() as middle, toolguard.run() as inner:
        inner.spend(tokens=1, cost_usd=0.1)
        middle.spend(tokens=10)
        outer.spend(tokens=100)
        assert [run.usage().tokens for run in (outer, middle, inner)] == [111, 11, 1]
        assert [run.usage().cost_usd for run in (outer, middle, inner)] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("limit", [{"tokens": 100}, {"cost_usd": 100}])
def test_an_overrun_stops_the_run_that_set_the_limit_with_all_below_it_and_none_above(limit):
    name = next(iter(limit))
    with toolguard.run() as top:
        with toolguard.run(**limit) as setter, toolguard.run() as child, toolguard.run() as grandchild:
            grandchild.spend(**{name: 60})
            child.spend(**{name: 41})
            for run in (setter, child, grandchild):
                assert run.stop_reason == name
            refusal = assert_refused(look(), name)
            assert (refusal.used, refusal.limit, refusal.run_id) == (101, 100, grandchild.id)
        assert not top.stopped
        assert_executed(look())


def test_a_child_with_a_limit_of_its_own_stops_alone():
    with toolguard.run(tokens=100) as outer:
        with toolguard.run(tokens=10) as inner:
            inner.spend(11)
            assert inner.stopped
            assert_refused(look(), "tokens")
        assert not outer.stopped
        assert_executed(look())
        outer.spend(89)
        assert not outer.stopped
        outer.spend(1)
        assert outer.stopped


def test_the_wider_limit_of_a_child_does_not_lift_the_parents():
    with toolguard.run(tokens=10) as outer, toolguard.run(tokens=1000) as inner:
        inner.spend(11)
        assert outer.stopped
        assert inner.stopped
        assert assert_refused(look(), "tokens").limit == 10


def test_a_parents_deadline_holds_in_a_child_counted_from_the_parents_start(clock):
    with toolguard.run(deadline_s=30) as outer:
        clock.advance(20)
        with toolguard.run(deadline_s=30) as inner:
            clock.advance(9)
            assert not inner.stopped
            clock.advance(1)
            assert inner.stopped
            assert outer.stop_reason == inner.stop_reason == "deadline_s"
            assert assert_refused(look(), "deadline_s").used == 30


def test_a_childs_deadline_is_its_own(clock):
    with toolguard.run() as outer:
        clock.advance(1000)
        with toolguard.run(deadline_s=5) as inner:
            clock.advance(4)
            assert_executed(look())
            clock.advance(1)
            assert_refused(look(), "deadline_s")
            assert inner.stopped
        assert not outer.stopped
        assert_executed(look())


def test_a_child_that_names_another_session_and_tenant_pays_all_the_same():
    with toolguard.run(tokens=10, session="a") as outer, toolguard.run(session="b", tenant="t") as inner:
        inner.spend(11)
        assert outer.stopped
        assert_refused(look(), "tokens")


def test_the_configuration_may_set_them_for_one_agent():
    toolguard.configure({"agents": {"researcher": {"tokens": 10}}})
    with toolguard.run("assistant") as outer:
        with toolguard.run("researcher") as inner:
            inner.spend(11)
            assert inner.stopped
        assert not outer.stopped
        assert outer.usage().tokens == 11


# Observing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["tokens", "cost_usd", "deadline_s"])
def test_where_they_observe_nothing_stops_and_the_spans_say_what_would_have_been(spans, clock, whole, name):
    if not whole:
        toolguard.configure({"observe": [name]})
    with toolguard.run(mode="observe" if whole else None, **{name: 10}) as run:
        assert_executed(look(1))
        run.spend(tokens=11, cost_usd=11)
        clock.advance(11)
        assert not run.stopped
        assert run.stop_message == ""
        assert_executed(look(2))
        assert not run.stopped
    assert [span.attributes.get("toolguard.would_refuse") for span in spans.calls()] == [None, name]
    (span,) = spans.runs()
    assert not span.attributes["toolguard.run.stopped"]
    assert span.attributes["toolguard.run.would_refuse"] == 1


def test_an_outer_limit_that_enforces_stops_a_child_that_observes():
    with toolguard.run(tokens=10) as outer, toolguard.run(mode="observe") as inner:
        inner.spend(11)
        assert outer.stopped
        assert_refused(look(), "tokens")


# At the same time -----------------------------------------------------------------------------------------------------


def test_threads_that_spend_at_once_lose_nothing():
    with toolguard.run(tokens=10**9) as outer, toolguard.run() as inner:

        def job():
            for _ in range(500):
                inner.spend(tokens=3, cost_usd=0.001)

        threads = [threading.Thread(target=job) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for run in (outer, inner):
            assert run.usage().tokens == 9000
            assert run.usage().cost_usd == 3


async def test_tasks_that_wait_are_not_ended_by_the_stop_and_start_nothing_after_it():
    go_on, inside = asyncio.Event(), asyncio.Event()

    @metered(kind="read")
    async def fetch():
        inside.set()
        await go_on.wait()
        return look(1)

    with toolguard.run(tokens=10) as run:
        task = asyncio.create_task(fetch())
        await inside.wait()
        run.spend(11)
        go_on.set()
        assert_refused(await task, "tokens")
        assert run.usage().executed == 1


def test_spending_from_another_thread_and_after_the_block_is_counted():
    with toolguard.run(tokens=10) as run:
        pass
    thread = threading.Thread(target=run.spend, args=(11,))
    thread.start()
    thread.join()
    assert run.stopped
    with run:
        assert_refused(look(), "tokens")


# Histories ------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    limits=st.lists(st.integers(0, 30), min_size=3, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=30),
)
def test_three_nested_runs_stop_as_three_plain_sums_would(limits, steps):
    with isolated():
        outer = toolguard.run(tokens=limits[0])
        with outer, toolguard.run(tokens=limits[1]) as middle, toolguard.run(tokens=limits[2]) as inner:
            runs, spent = [outer, middle, inner], [0, 0, 0]
            over = [False] * 3
            for n, (where, tokens) in enumerate(steps):
                runs[where].spend(tokens)
                for above in range(where + 1):
                    spent[above] += tokens
                    over[above] |= bool(limits[above]) and spent[above] > limits[above]
                assert [run.usage().tokens for run in runs] == spent
                assert [run.stopped for run in runs] == [over[0], any(over[:2]), any(over)]
                assert isinstance(look(n), Refusal) == any(over)


@settings(max_examples=200, deadline=None)
@given(limit=st.integers(1, 20), steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["look", "call"])), max_size=20))
def test_a_deadline_stops_at_the_first_look_that_comes_too_late(limit, steps):
    clock = FakeClock(7.0)
    with isolated(clock=clock), toolguard.run(deadline_s=limit, same_outcome=0, stale_streak=0) as run:
        passed, over = 0, False
        for seconds, what in steps:
            clock.advance(seconds)
            passed += seconds
            over |= passed >= limit
            assert (run.stopped if what == "look" else isinstance(look(), Refusal)) == over
