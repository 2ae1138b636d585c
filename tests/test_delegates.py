"""Specialists as tools: their runs, whose stop is whose, and what the coordinator's trace says of it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import ConfigError, Refusal, current_run, metered
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated

CHILD_STOP = "toolguard.child.stop.reason"


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """No test here may bring OpenTelemetry or asyncio to complain."""
    yield
    noisy = [r for r in caplog.get_records("call") if r.name.split(".")[0] in {"opentelemetry", "asyncio"}]
    assert [r.getMessage() for r in noisy if r.levelname in {"WARNING", "ERROR", "CRITICAL"}] == []


@metered(kind="read")
def look(n=0):
    return n


@metered(kind="send")
def mail(n=0):
    return n


def overrun(cap=1, start=0):
    """Work as a specialist that is stopped by its own limit after `cap` reads; say how many ran."""
    with toolguard.run("specialist", hard_cap=cap) as child:
        for n in range(cap + 1):
            look((start, n))
        assert child.stop_reason == "hard_stop"
    return child.usage().executed


def work(reads=1, start=0):
    """Work as a specialist that finishes."""
    with toolguard.run("specialist") as child:
        for n in range(reads):
            look((start, n))
    return child.usage().executed


@metered(kind="read", delegate=True)
def specialist(job, *more):
    return job(*more)


@metered(kind="read", delegate=True)
def other_specialist(job, *more):
    return job(*more)


def stops(spans, name="specialist"):
    """What the spans of the delegate say of its child, in the order in which they began."""
    called = sorted(spans.named(f"execute_tool {name}"), key=lambda span: span.start_time)
    return [span.attributes.get(CHILD_STOP) for span in called]


# Allowances -----------------------------------------------------------------------------------------------------------


def test_each_specialist_has_an_allowance_of_its_own_and_the_coordinator_pays_for_the_asking():
    def job(n):
        with toolguard.run("researcher", per_tool=5):
            return sum(not isinstance(look((n, k)), Refusal) for k in range(5))

    with toolguard.run("coordinator", per_tool=9, hard_cap=0) as run:
        for n in range(6):
            assert_executed(look(n))
        assert [specialist(job, n) for n in range(3)] == [5, 5, 5]
        assert run.usage().by_tool == {"look": 6, "specialist": 3}
        assert run.usage().executed == 9


def test_no_limit_of_the_coordinator_that_is_not_over_the_tree_reaches_its_specialists():
    limits = {"per_tool": 1, "delivery": 1, "call_budget": 1, "aggregate": 1, "delegation": 1, "output_chars": 300}

    def job():
        with toolguard.run("researcher") as child:
            for n in range(3):
                assert_executed(look(n))
                assert_executed(mail(n))
            assert_executed(other_specialist(lambda: "x" * 1000))
            assert child.usage().executed == 7
        return "done"

    with toolguard.run("coordinator", **limits):
        assert specialist(job) == "done"


def test_a_specialist_without_a_run_of_its_own_spends_the_coordinators():
    with toolguard.run("coordinator", call_budget=3) as run:
        assert specialist(lambda: [look(n) for n in range(2)]) == [0, 1]
        assert_refused(look(9), "call_budget")
        assert run.usage().executed == 3


def test_a_limit_that_is_set_for_a_child_holds_in_it_and_an_unknown_one_is_an_error():
    def job(**limits):
        with toolguard.run("researcher", **limits):
            return [isinstance(look(n), Refusal) for n in range(4)]

    with toolguard.run("coordinator"):
        assert specialist(lambda: job(call_budget=2)) == [False, False, True, True]
        with pytest.raises(ConfigError, match="max_calls"):
            specialist(lambda: job(max_calls=2))


def test_the_agents_table_gives_a_specialist_its_limits():
    toolguard.configure({"agents": {"specialist": {"call_budget": 2}}})
    with toolguard.run("coordinator"):
        assert specialist(work, 5) == 2


def test_a_specialist_joins_the_session_tenant_and_mode_of_its_coordinator():
    def job():
        with toolguard.run("researcher") as child:
            return child.session, child.tenant, child.mode, child.parent

    with toolguard.run("coordinator", session="s-1", tenant="t", mode="observe") as run:
        assert specialist(job) == ("s-1", "t", "observe", run)


def test_what_failed_in_one_specialist_is_known_to_the_next():
    toolguard.configure({"limits": {"progress_clears": False}})

    @metered(kind="read")
    def broken():
        raise OSError("always")

    def job():
        with toolguard.run("researcher"):
            try:
                return broken()
            except OSError:
                return "failed"

    with toolguard.run("coordinator"):
        assert [specialist(job) for _ in range(2)] == ["failed"] * 2
        assert_refused(specialist(job), "repeat_failure")


# Limits over the tree -------------------------------------------------------------------------------------------------


def test_an_explicit_hard_cap_counts_the_calls_of_all_below_it():
    with toolguard.run("coordinator", hard_cap=6) as run:
        assert specialist(work, 3) == 3  # with the asking, 4
        assert specialist(work, 3, 1) == 1  # the other two would be the 7th and 8th
        assert run.stop_reason == "hard_stop"
        assert_refused(look(), "hard_stop")
        assert run.usage().executed == 2


def test_a_child_that_meets_the_cap_of_the_tree_is_told_that_cap_and_reads_the_stop_as_its_own():
    seen = []

    def job():
        with toolguard.run("researcher") as child:
            for n in range(10):
                last = look(n)
            seen.append((child.stopped, child.stop_reason, child.usage().executed))
            return last

    with toolguard.run("coordinator", hard_cap=3) as run:
        refusal = assert_refused(specialist(job), "hard_stop")
        assert (refusal.used, refusal.limit, refusal.rule) == (3, 3, "explicit")
        assert run.stopped
    assert seen == [(True, "hard_stop", 2)]


@pytest.mark.parametrize(("name", "amount"), [("tokens", 10), ("cost_usd", 10)])
def test_what_specialists_spend_is_spent_for_the_tree(name, amount):
    def job():
        with toolguard.run("researcher") as child:
            child.spend(**{name: 6})
            return child.stopped

    with toolguard.run("coordinator", **{name: amount}) as run:
        assert specialist(job) is False
        assert specialist(job) is True
        assert run.stop_reason == name
        assert_refused(specialist(job), name)


def test_a_deadline_over_the_tree_ends_the_specialist_with_its_coordinator():
    clock = FakeClock()

    def job():
        with toolguard.run("researcher") as child:
            look(1)
            clock.advance(11)
            return look(2), child.stop_reason

    with isolated(clock=clock), toolguard.run("coordinator", deadline_s=10) as run:
        refusal, reason = specialist(job)
        assert_refused(refusal, "deadline_s")
        assert reason == "deadline_s"
        assert run.stop_reason == "deadline_s"


@pytest.mark.parametrize(
    "limits",
    [{"hard_cap": 100}, {"tokens": 100}, {"cost_usd": 100}, {"deadline_s": 100}],
    ids=lambda limits: next(iter(limits)),
)
def test_no_child_can_widen_what_binds_the_tree(limits):
    clock = FakeClock()
    with isolated(clock=clock), toolguard.run(**dict.fromkeys(limits, 1)) as outer, toolguard.run(**limits) as inner:
        inner.spend(tokens=2, cost_usd=2)
        clock.advance(2)
        look(1)
        look(2)
        assert inner.stopped
        assert outer.stopped
        assert assert_refused(look(3)).limit == 1


# Whose stop is whose --------------------------------------------------------------------------------------------------


def test_the_stop_of_the_coordinator_stops_its_specialists():
    def job(run):
        with toolguard.run("researcher") as child:
            assert_executed(look(1))
            run.stop("the user left")
            assert child.stopped
            assert (child.stop_reason, child.stop_message) == ("stop", "the user left")
            with toolguard.run("deeper") as grandchild:
                assert grandchild.stopped
                assert_refused(mail(1), "stop")
            return look(2)

    with toolguard.run("coordinator") as run:
        assert_refused(specialist(job, run), "stop")
        assert_refused(look(3), "stop")


def test_the_stop_of_a_specialist_stops_neither_coordinator_nor_the_next_one():
    with toolguard.run("coordinator") as run:
        assert specialist(overrun) == 1
        assert not run.stopped
        assert run.stop_message == ""
        assert specialist(work, 3, 1) == 3
        assert_executed(look())


def test_a_stop_in_the_middle_of_three_runs_reaches_down_and_not_up():
    with toolguard.run() as top, toolguard.run(hard_cap=1) as middle, toolguard.run() as bottom:
        look(1)
        assert_refused(look(2), "hard_stop")
        assert [run.stopped for run in (top, middle, bottom)] == [False, True, True]


def test_the_refusals_of_a_stopped_specialist_do_not_stop_its_coordinator():
    def job():
        with toolguard.run("researcher") as child:
            child.stop("done")
            for n in range(50):
                assert_refused(look(n), "stop")
        return "tried"

    with toolguard.run("coordinator") as run:
        assert specialist(job) == "tried"
        assert not run.stopped
        assert run.usage().refused == 0


# What the trace says --------------------------------------------------------------------------------------------------


def test_the_delegates_span_says_what_stopped_its_run(spans):
    with toolguard.run("coordinator"):
        specialist(overrun)
    assert stops(spans) == ["hard_stop"]
    (span,) = spans.named("execute_tool specialist")
    assert span.attributes["toolguard.call.outcome"] == "ok"  # its own call went well
    child, parent = spans.runs()
    assert child.attributes["toolguard.run.stop.reason"] == "hard_stop"
    assert parent.attributes["toolguard.run.stopped"] is False


@pytest.mark.parametrize(
    ("reason", "limits", "do"),
    [
        ("hard_stop", {"hard_cap": 1}, lambda run: [look(n) for n in range(2)]),
        ("refused_calls", {"refused_calls": 2, "call_budget": 1}, lambda run: [look(n) for n in range(3)]),
        ("tokens", {"tokens": 1}, lambda run: run.spend(2)),
        ("cost_usd", {"cost_usd": 1}, lambda run: run.spend(cost_usd=2)),
        ("stop", {}, lambda run: run.stop("enough")),
    ],
)
def test_whichever_wall_it_was(spans, reason, limits, do):
    def job():
        with toolguard.run("researcher", **limits) as child:
            do(child)

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == [reason]


def test_a_deadline_that_nobody_looked_at_again_is_said_too(spans):
    clock = FakeClock()

    def job():
        with toolguard.run("researcher", deadline_s=10):
            clock.advance(20)

    with isolated(clock=clock), toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == ["deadline_s"]


def test_a_specialist_that_finished_is_said_nothing_of(spans):
    with toolguard.run("coordinator"):
        specialist(work, 3)
        specialist(lambda: "no run at all")
    assert stops(spans) == [None, None]


def test_a_specialist_that_was_refused_something_and_not_stopped_is_said_nothing_of(spans):
    def job():
        with toolguard.run("researcher", call_budget=1):
            look(1)
            assert_refused(look(2), "call_budget")

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == [None]


def test_a_stop_of_the_coordinator_is_not_said_to_be_the_specialists(spans):
    def job(run):
        with toolguard.run("researcher"):
            run.stop("the user left")

    with toolguard.run("coordinator") as run:
        specialist(job, run)
    assert stops(spans) == [None]
    assert all(span.attributes["toolguard.run.stop.reason"] == "stop" for span in spans.runs())


def test_a_specialist_that_only_observes_is_not_stopped(spans):
    def job():
        with toolguard.run("researcher", mode="observe", hard_cap=1):
            for n in range(3):
                assert_executed(look(n))

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == [None]


def test_each_span_speaks_of_its_own_specialist(spans):
    with toolguard.run("coordinator"):
        specialist(overrun, 1, 1)
        specialist(work, 1, 2)
        other_specialist(overrun, 1, 3)
        specialist(overrun, 1, 4)
    assert stops(spans) == ["hard_stop", None, "hard_stop"]
    assert stops(spans, "other_specialist") == ["hard_stop"]


@pytest.mark.parametrize(("inner", "outer"), [(True, False), (False, True), (True, True), (False, False)])
def test_of_two_specialists_one_inside_the_other_each_span_speaks_of_its_own(spans, inner, outer):
    def job():
        with toolguard.run("researcher") as child:
            other_specialist(overrun if inner else work)
            if outer:
                child.stop("enough")

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == ["stop" if outer else None]
    assert stops(spans, "other_specialist") == ["hard_stop" if inner else None]


def test_a_run_inside_the_specialists_run_is_not_the_specialists(spans):
    def job():
        with toolguard.run("researcher"):
            overrun()

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == [None]


def test_of_several_runs_of_one_specialist_a_stopped_one_is_said(spans):
    def job():
        work(1, 1)
        overrun(1, 2)
        work(1, 3)

    with toolguard.run("coordinator"):
        specialist(job)
    assert stops(spans) == ["hard_stop"]


def test_a_tool_that_is_no_delegate_is_said_nothing_of(spans):
    @metered(kind="read")
    def ordinary():
        return overrun()

    with toolguard.run("coordinator"):
        ordinary()
        overrun(1, 1)
    assert not any(CHILD_STOP in span.attributes for span in spans.all())


def test_an_ordinary_tool_in_between_does_not_hide_the_specialist(spans):
    @metered(kind="read")
    def ordinary():
        return overrun()

    with toolguard.run("coordinator"):
        specialist(ordinary)
    assert stops(spans) == ["hard_stop"]
    assert stops(spans, "ordinary") == [None]


def test_a_delegate_outside_a_run_says_so_too(spans):
    specialist(overrun)
    assert stops(spans) == ["hard_stop"]


def test_it_is_said_also_where_the_specialist_raises(spans):
    def job():
        with toolguard.run("researcher") as child:
            child.stop("enough")
            raise OSError("lost")

    with toolguard.run("coordinator"), pytest.raises(OSError, match="lost"):
        specialist(job)
    assert stops(spans) == ["stop"]
    assert spans.named("execute_tool specialist")[0].attributes["toolguard.call.outcome"] == "error"


async def test_an_async_specialist_likewise(spans):
    @metered(kind="read", delegate="who")
    async def ask(who, cap):
        async with toolguard.run(who, hard_cap=cap):
            for n in range(2):
                await asyncio.sleep(0)
                look((who, n))
        return who

    with toolguard.run("coordinator"):
        assert await ask("a", 1) == "a"
        assert await ask("b", 5) == "b"
    assert stops(spans, "ask") == ["hard_stop", None]


async def test_specialists_that_work_at_the_same_time_are_told_apart(spans):
    @metered(kind="read", delegate="who")
    async def ask(who, cap):
        async with toolguard.run(f"agent-{who}", hard_cap=cap):
            for n in range(3):
                await asyncio.sleep(0)
                look((who, n))

    with toolguard.run("coordinator"):
        await asyncio.gather(*(ask(n, 2 if n % 3 else 9) for n in range(9)))
    by_span = {span.context.span_id: span.attributes.get(CHILD_STOP) for span in spans.named("execute_tool ask")}
    said = {
        run.name: by_span[run.parent.span_id]
        for run in spans.runs()
        if run.parent is not None and run.parent.span_id in by_span
    }
    assert said == {f"invoke_agent agent-{n}": "hard_stop" if n % 3 else None for n in range(9)}


def test_a_specialist_in_another_thread_reached_through_bind_likewise(spans):
    def job():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(current_run().bind(overrun)).result(), pool.submit(current_run().bind(work), 1, 2).result()

    with toolguard.run("coordinator"):
        assert specialist(job) == (1, 1)
        other_specialist(lambda: None)
    assert stops(spans) == ["hard_stop"]
    assert stops(spans, "other_specialist") == [None]


def test_specialists_asked_from_threads_are_told_apart(spans):
    with toolguard.run("coordinator", delegation=0) as run:
        threads = [threading.Thread(target=run.bind(specialist), args=(overrun if n % 2 else work, 1, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(stops(spans), key=str) == [None] * 3 + ["hard_stop"] * 3


def test_a_specialist_that_streams_likewise(spans):
    @metered(kind="read", delegate=True)
    def stream(cap):
        with toolguard.run("streamer", hard_cap=cap):
            for n in range(2):
                yield look((cap, n))

    with toolguard.run("coordinator"):
        assert isinstance(list(stream(1))[1], Refusal)
        assert list(stream(5)) == [(5, 0), (5, 1)]
        left = stream(1)
        next(left)
        left.close()
    assert stops(spans, "stream") == ["hard_stop", None, None]


async def test_an_async_specialist_that_streams_likewise(spans):
    @metered(kind="read", delegate=True)
    async def stream(cap):
        with toolguard.run("streamer", hard_cap=cap):
            for n in range(2):
                await asyncio.sleep(0)
                yield look((cap, n))

    with toolguard.run("coordinator"):
        assert isinstance([item async for item in stream(1)][1], Refusal)
        assert [item async for item in stream(5)] == [(5, 0), (5, 1)]
    assert stops(spans, "stream") == ["hard_stop", None]


async def test_a_run_that_outlives_the_call_that_asked_for_it_says_nothing_on_an_ended_span(spans, logged):
    go_on = asyncio.Event()
    tasks = []

    async def later():
        with toolguard.run("late") as child:
            await go_on.wait()
            child.stop("too late")

    @metered(kind="read", delegate=True)
    async def ask():
        tasks.append(asyncio.create_task(later()))
        await asyncio.sleep(0)

    with toolguard.run("coordinator"):
        await ask()
        go_on.set()
        await tasks[0]
    assert stops(spans, "ask") == [None]
    assert not [record for record in logged.records if record.name.startswith("opentelemetry")]


def test_a_run_that_is_entered_again_tells_the_specialist_that_entered_it(spans):
    child = toolguard.run("resumed", hard_cap=1)

    def job(n):
        with child:
            look(n)

    with toolguard.run("coordinator"):
        specialist(job, 1)
        specialist(job, 2)
        specialist(job, 3)
    assert stops(spans) == [None, "hard_stop", "hard_stop"]


def test_after_a_specialist_the_coordinators_own_runs_are_not_its(spans):
    with toolguard.run("coordinator"):
        specialist(work)
        overrun(1, 2)
    assert stops(spans) == [None]
    assert current_run() is None


# Histories ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    cap=st.integers(1, 12),
    plan=st.recursive(st.integers(0, 3), lambda inner: st.lists(st.tuples(st.integers(0, 4), inner), max_size=3), max_leaves=6),
)
def test_whatever_asks_whom_a_cap_over_the_tree_is_the_number_of_calls_that_ran(cap, plan):
    ran = []

    @metered(kind="read", delegate=True)
    def ask(inner, own, depth):
        ran.append("ask")
        with toolguard.run(f"depth {depth}", **({"hard_cap": own} if own else {}), delegation=0):
            go(inner, depth + 1)
        return len(ran)

    @metered(kind="read")
    def step(n):
        ran.append("step")
        return n

    def go(plan, depth):
        if isinstance(plan, int):
            for _ in range(plan):
                step(len(ran))
        else:
            for own, inner in plan:
                ask(inner, own, depth)

    with isolated(), toolguard.run(hard_cap=cap, delegation=0) as run:
        go(plan, 0)
        for n in range(cap + 1):
            step(("last", n))
        assert len(ran) == cap
        assert run.stopped
