"""Coroutines: charged at their first step, once, whatever then happens to them, and leaving no trace of ours behind."""

import asyncio
import contextvars
import gc
import inspect
import threading

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import toolguard
from toolguard import Refusal, current_run, metered


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """No test here may bring OpenTelemetry or asyncio to complain."""
    yield
    noisy = [r for r in caplog.get_records("call") if r.name.split(".")[0] in {"opentelemetry", "asyncio"}]
    assert [r.getMessage() for r in noisy if r.levelname in {"WARNING", "ERROR", "CRITICAL"}] == []


@metered(kind="read")
async def look(what=0):
    await asyncio.sleep(0)
    return what


class Gate:
    """A tool that says when it is inside and waits there until it is let go."""

    def __init__(self):
        self.inside, self.go_on = asyncio.Event(), asyncio.Event()

        @metered(kind="read", name="wait")
        async def wait():
            self.inside.set()
            await self.go_on.wait()
            return "let go"

        self.wait = wait


class Pause:
    """Something to await that hands control to whoever drives the coroutine by hand."""

    def __await__(self):
        return (yield "paused")


def outcomes(spans):
    return sorted(span.attributes["toolguard.call.outcome"] for span in spans.calls())


def current_id():
    return trace.get_current_span().get_span_context().span_id


async def in_time(awaitable, seconds):
    async with asyncio.timeout(seconds):
        return await awaitable


# Many at once


@pytest.mark.parametrize("limit", [1, 7, 40])
async def test_of_many_gathered_calls_exactly_as_many_as_the_limit_allows_execute(spans, limit):
    with toolguard.run(per_tool=limit, aggregate=0) as run:
        results = await asyncio.gather(*(look(n) for n in range(50)))
    executed = [result for result in results if not isinstance(result, Refusal)]
    assert executed == list(range(limit))
    assert (run.usage().executed, run.usage().refused) == (limit, 50 - limit)
    assert outcomes(spans) == ["ok"] * limit + ["refused"] * (50 - limit)


async def test_of_tasks_in_a_group_that_fails_each_is_charged_once_and_ended(spans):
    gate = Gate()

    @metered(kind="read")
    async def fail():
        await gate.inside.wait()
        raise ValueError

    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gate.wait())
            tasks.create_task(gate.wait())
            tasks.create_task(fail())

    with toolguard.run() as run:
        with pytest.raises(ExceptionGroup) as caught:
            await group()
        assert current_run() is run
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert outcomes(spans) == ["cancelled", "cancelled", "error"]
    assert run.usage().executed == 3


async def test_runs_in_parallel_tasks_do_not_see_each_other(spans):
    async def agent(name, calls):
        async with toolguard.run(name) as run:
            for n in range(calls):
                await look(n)
                assert current_run() is run
            return run.usage().executed

    assert await asyncio.gather(*(agent(f"a{n}", n) for n in range(10))) == list(range(10))
    runs = {span.attributes["toolguard.run.id"]: span for span in spans.runs()}
    assert len(runs) == 10
    for call in spans.calls():
        assert call.parent.span_id == runs[call.attributes["toolguard.run.id"]].context.span_id


async def test_calls_of_a_task_that_outlives_the_run_are_charged_to_it():
    gate = asyncio.Event()

    async def later():
        await gate.wait()
        return await look(), await look()

    with toolguard.run(per_tool=1) as run:
        task = asyncio.create_task(later())
    gate.set()
    executed, refused = await task
    assert executed == 0
    assert isinstance(refused, Refusal)
    assert (run.usage().executed, run.usage().refused) == (1, 1)


# When it is charged


async def test_a_coroutine_is_charged_when_it_is_first_awaited():
    with toolguard.run() as run:
        made = look()
        assert inspect.iscoroutine(made)
        assert run.usage().executed == 0
        await made
        assert run.usage().executed == 1


async def test_a_coroutine_that_is_closed_unawaited_is_charged_nothing(spans):
    with toolguard.run() as run:
        look().close()
    assert run.usage().executed == 0
    assert spans.calls() == []


def test_a_coroutine_that_is_dropped_unawaited_warns_under_the_tools_name_and_is_charged_nothing(spans):
    with toolguard.run() as run, pytest.warns(RuntimeWarning, match=r"coroutine 'look' was never awaited"):
        look()  # its last reference goes at once
    assert run.usage().executed == 0
    assert spans.calls() == []


def test_coroutines_and_generators_bear_the_name_of_their_function():
    class Box:
        @metered(kind="read")
        async def fetch(self):
            """Return nothing."""

        @metered(kind="read")
        def items(self):
            yield 1

        @metered(kind="read")
        async def later(self):
            yield 1

    with toolguard.run():
        fetching = Box().fetch()
        made = [fetching, Box().items(), Box().later()]
        assert [thing.__name__ for thing in made] == ["fetch", "items", "later"]
        assert [thing.__qualname__ for thing in made] == [f.__qualname__ for f in (Box.fetch, Box.items, Box.later)]
        fetching.close()


async def test_a_task_that_is_cancelled_before_its_first_step_is_charged_nothing(spans):
    with toolguard.run() as run:
        task = asyncio.create_task(look())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert run.usage().executed == 0
    assert spans.calls() == []


async def test_a_task_that_is_cancelled_inside_is_charged_once(spans):
    gate = Gate()
    with toolguard.run() as run:
        task = asyncio.create_task(gate.wait())
        await gate.inside.wait()
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
    assert run.usage().executed == 1
    assert outcomes(spans) == ["cancelled"]


async def test_a_tool_that_swallows_its_cancellation_is_a_success(spans):
    inside = asyncio.Event()

    @metered(kind="read")
    async def stubborn():
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "anyway"

    with toolguard.run() as run:
        task = asyncio.create_task(stubborn())
        await inside.wait()
        task.cancel()
        assert await task == "anyway"
    assert run.usage().executed == 1
    assert outcomes(spans) == ["ok"]


@pytest.mark.parametrize("how", ["wait_for", "timeout"])
async def test_a_call_that_times_out_is_charged_once_and_leaves_the_run_current(spans, how):
    gate = Gate()
    with toolguard.run() as run:
        before = otel_context.get_current()
        with pytest.raises(TimeoutError):
            await (asyncio.wait_for(gate.wait(), 0.001) if how == "wait_for" else in_time(gate.wait(), 0.001))
        assert current_run() is run
        assert otel_context.get_current() is before
        assert await look(1) == 1
    assert run.usage().executed == 2
    assert outcomes(spans) == ["cancelled", "ok"]


async def test_a_shielded_call_goes_on_and_is_settled_when_it_ends(spans):
    gate = Gate()
    with toolguard.run() as run:
        inner = asyncio.ensure_future(gate.wait())
        outer = asyncio.ensure_future(asyncio.shield(inner))
        await gate.inside.wait()
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert spans.calls() == []
        gate.go_on.set()
        assert await inner == "let go"
    assert run.usage().executed == 1
    assert outcomes(spans) == ["ok"]


async def test_a_refused_coroutine_returns_its_refusal_when_it_is_awaited():
    with toolguard.run(per_tool=1) as run:
        one, two = look(1), look(2)
        assert await two == 2
        refused = await one
    assert isinstance(refused, Refusal)
    assert refused.run_id == run.id


async def test_a_coroutine_that_says_nothing_ran_gives_its_charge_back():
    @metered(kind="send")
    async def post(ready):
        await asyncio.sleep(0)
        if not ready:
            raise toolguard.NotExecuted("not yet")
        return "posted"

    with toolguard.run(delivery=1) as run:
        assert (await post(ready=False)).reason == "gate"
        assert run.usage().executed == 0
        assert await post(ready=True) == "posted"
    assert run.usage().executed == 1


# Where it is charged


async def test_a_coroutine_made_in_a_run_is_charged_to_it_wherever_it_is_awaited(spans):
    @metered(kind="read")
    async def outer():
        assert current_run() is run
        return await look(5)

    with toolguard.run() as run:
        made, another = outer(), outer()
    assert await made == 5
    assert current_run() is None
    with toolguard.run() as other:
        assert await another == 5
        assert current_run() is other
    assert other.usage().executed == 0
    assert run.usage().executed == 4
    assert {span.attributes["toolguard.run.id"] for span in spans.calls()} == {run.id}


async def test_a_coroutine_made_outside_a_run_is_not_charged_to_the_one_it_is_awaited_in(spans):
    made = look(3)
    with toolguard.run() as run:
        assert await made == 3
    assert run.usage().executed == 0
    (span,) = spans.calls()
    assert span.attributes["toolguard.run.missing"] is True


async def test_a_coroutine_belongs_to_the_turn_in_which_it_was_made():
    with toolguard.run(aggregate=1) as run:
        run.turn()
        await look(1)
        assert isinstance(await look(2), Refusal)
        twin = look(2)
        run.turn()
        assert isinstance(await twin, Refusal)
        assert await look(2) == 2


async def test_a_bound_coroutine_function_runs_in_its_run_from_any_task():
    async def work(n):
        assert current_run() is run
        return await look(n)

    with toolguard.run() as run:
        bound = run.bind(work)
    assert await asyncio.gather(*(asyncio.create_task(bound(n)) for n in range(5))) == list(range(5))
    assert run.usage().executed == 5
    assert current_run() is None


def test_a_bound_tool_runs_in_its_run_on_a_loop_of_another_thread():
    with toolguard.run() as run:
        bound = run.bind(look)
    results = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(bound(4))))
    thread.start()
    thread.join()
    assert results == [4]
    assert run.usage().executed == 1


# Driven and closed by hand


def paused_tool(provider=None):
    @metered(kind="read")
    async def tool():
        if provider is not None:
            with provider.get_tracer("app").start_as_current_span("held"):
                await Pause()
        else:
            await Pause()
        return "went on"

    return tool()


@pytest.mark.parametrize("held", [False, True], ids=["plain", "with a span open"])
@pytest.mark.parametrize("how", ["close", "throw", "collect"])
def test_a_coroutine_ended_half_way_leaves_the_current_span_and_run_clean(spans, provider, held, how):
    with toolguard.run() as run:
        before = otel_context.get_current()
        made = paused_tool(provider if held else None)
        assert made.send(None) == "paused"
        if how == "close":
            made.close()
        elif how == "throw":
            with pytest.raises(ValueError, match="stop"):
                made.throw(ValueError("stop"))
        else:
            del made
            gc.collect()
        assert otel_context.get_current() is before
        assert current_run() is run
    assert outcomes(spans) == ["error" if how == "throw" else "closed"]
    assert run.usage().executed == 1


def test_a_coroutine_made_in_a_run_and_closed_half_way_outside_leaves_no_run_behind(spans):
    with toolguard.run() as run:
        made = paused_tool()
    assert made.send(None) == "paused"
    made.close()
    assert current_run() is None
    assert current_id() == 0
    assert run.usage().executed == 1


@pytest.mark.parametrize("how", ["close", "go on", "throw"])
def test_a_coroutine_that_is_driven_in_another_context_ends_as_it_should_and_spoils_neither(spans, how):
    with toolguard.run() as run:
        here, there = contextvars.copy_context(), contextvars.copy_context()
        made = paused_tool()
        assert here.run(made.send, None) == "paused"

        def end():
            if how == "close":
                made.close()
            elif how == "throw":
                with pytest.raises(ValueError, match="stop"):
                    made.throw(ValueError("stop"))
            else:
                with pytest.raises(StopIteration) as stop:
                    made.send(None)
                assert stop.value.value == "went on"
            return current_run(), current_id()

        before = current_run(), current_id()
        assert there.run(end) == before
        assert (current_run(), current_id()) == before
    assert outcomes(spans) == [{"close": "closed", "go on": "ok", "throw": "error"}[how]]
    assert run.usage().executed == 1


def test_a_coroutine_closed_in_a_context_that_its_body_copied_leaves_that_one_clean_too(spans):
    copied = []

    @metered(kind="read")
    async def tool():
        copied.append(contextvars.copy_context())
        await Pause()

    with toolguard.run() as run:
        made = tool()
    assert contextvars.copy_context().run(made.send, None) == "paused"
    (inside,) = copied
    assert inside.run(current_run) is run
    assert inside.run(current_id) != 0
    inside.run(made.close)
    assert inside.run(current_run) is None
    assert inside.run(current_id) == 0
    assert outcomes(spans) == ["closed"]


def test_a_coroutine_that_is_closed_in_another_thread_is_ended_once(spans):
    with toolguard.run():
        made = paused_tool()
        contextvars.copy_context().run(made.send, None)
        before = current_run(), current_id()
        seen = []
        thread = threading.Thread(target=lambda: (made.close(), seen.append((current_run(), current_id()))))
        thread.start()
        thread.join()
        assert seen == [(None, 0)]
        assert (current_run(), current_id()) == before
    assert outcomes(spans) == ["closed"]


def test_tasks_that_are_still_pending_when_the_loop_ends_are_charged_once_and_ended(spans):
    held = []

    async def main():
        gate = Gate()
        held.append(asyncio.create_task(gate.wait()))
        await gate.inside.wait()

    with toolguard.run() as run:
        asyncio.run(main())
        assert current_run() is run
    assert held[0].cancelled()
    assert outcomes(spans) == ["cancelled"]
    assert run.usage().executed == 1


# What it is


async def test_an_async_tool_may_be_run_on_a_loop_of_a_worker_thread():
    with toolguard.run() as run:
        assert inspect.iscoroutinefunction(look)
        assert await asyncio.to_thread(lambda: asyncio.run(look(6))) == 6
    assert run.usage().executed == 1


async def test_variables_that_the_body_sets_reach_the_caller_as_from_a_bare_coroutine():
    variable = contextvars.ContextVar("variable", default="unset")

    async def bare():
        await asyncio.sleep(0)
        variable.set("by the body")

    for function in (bare, metered(kind="read")(bare)):
        variable.set("unset")
        with toolguard.run():
            await function()
        assert variable.get() == "by the body"


async def test_an_exception_that_leaves_a_coroutine_is_the_tools_own_object_with_its_cause():
    cause, error = KeyError("cause"), ValueError("own")

    @metered(kind="read")
    async def fail():
        raise error from cause

    with toolguard.run(), pytest.raises(ValueError, match="own") as caught:
        await fail()
    assert caught.value is error
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is None
