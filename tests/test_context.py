"""Which run is current, where it goes, and what is current afterwards."""

import asyncio
import contextvars
import copy
import gc
import inspect
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import toolguard
from toolguard import Refusal, current_run, metered
from toolguard.testing import assert_executed, assert_refused


@metered(kind="read")
def search(query: str, limit: int = 20) -> list[str]:
    """Search the mailbox."""
    return [query, str(limit)]


@metered(kind="read")
async def fetch(query: str) -> str:
    """Fetch one page."""
    await asyncio.sleep(0)
    return query


@metered(kind="read")
def lines(query: str):
    """Read line by line."""
    given = yield f"{query}1"
    yield given or f"{query}2"
    return "end"


@metered(kind="read")
async def pages(query: str):
    """Read page by page."""
    given = yield f"{query}1"
    yield given or f"{query}2"


class Mailbox:
    @metered(kind="read", name="find")
    def find(self, query: str) -> str:
        return query

    @metered(kind="read", name="find_later")
    async def find_later(self, query: str) -> str:
        return query

    @metered(kind="read", name="count_all")
    @staticmethod
    def count_all(query: str) -> str:
        return query

    @metered(kind="read", name="opened")
    @classmethod
    def opened(cls, query: str) -> str:
        return f"{cls.__name__}{query}"


def in_thread(fn, *args):
    """What `fn` returns or raises in a new thread, whose context is empty."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn, *args).result()


async def drained(stream):
    return [item async for item in stream]


def nothing_is_current():
    return current_run() is None and not trace.get_current_span().get_span_context().is_valid


def parents(spans):
    return {span.name: span.parent and span.parent.span_id for span in spans.all()}


# Restored, however a block ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_the_outer_run_is_current_again_whatever_is_raised(error):
    with toolguard.run() as outer:
        span = trace.get_current_span()
        raised = error("x")
        with pytest.raises(error) as caught, toolguard.run():
            raise raised
        assert caught.value is raised
        assert current_run() is outer
        assert trace.get_current_span() is span
    assert nothing_is_current()


def test_the_outer_run_is_current_again_after_a_return():
    def work():
        with toolguard.run() as inner:
            return inner, current_run()

    with toolguard.run() as outer:
        inner, seen = work()
        assert seen is inner
        assert current_run() is outer
    assert nothing_is_current()


async def test_the_outer_run_is_current_again_after_async_blocks():
    async with toolguard.run() as outer:
        async with toolguard.run() as inner:
            assert current_run() is inner
            assert inner.parent is outer
            await asyncio.sleep(0)
        assert current_run() is outer
    assert nothing_is_current()


async def test_a_cancelled_task_leaves_its_run_and_nothing_stays_current(spans, logged):
    after = []
    entered = asyncio.Event()

    async def work():
        try:
            async with toolguard.run("inner"):
                entered.set()
                await asyncio.Event().wait()
        finally:
            after.append(current_run())

    with toolguard.run("outer") as outer:
        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert after == [outer]
        assert current_run() is outer
    assert [span.name for span in spans.runs()] == ["invoke_agent inner", "invoke_agent outer"]
    assert not logged.records


def test_a_timeout_inside_a_run_passes_through_it():
    async def work():
        async with asyncio.timeout(0), toolguard.run():
            await asyncio.Event().wait()

    async def main():
        with pytest.raises(TimeoutError):
            await work()
        return nothing_is_current()

    assert asyncio.run(main())


def test_a_closed_generator_leaves_the_run_that_it_opened(logged):
    def work():
        with toolguard.run() as inner:
            yield inner

    with toolguard.run() as outer:
        stream = work()
        inner = next(stream)
        assert current_run() is inner  # a plain generator shares the context of its consumer
        stream.close()
        assert current_run() is outer
    assert nothing_is_current()
    assert not logged.records


def test_a_metered_generator_keeps_the_run_that_it_opens_to_its_own_steps():
    seen = []

    @metered(kind="read")
    def agent():
        with toolguard.run() as inner:
            yield 1
            seen.append(current_run() is inner)
            yield 2

    with toolguard.run() as outer:
        stream = agent()
        next(stream)
        assert current_run() is outer
        next(stream)
        assert seen == [True]
        assert current_run() is outer
        assert list(stream) == []
        assert current_run() is outer
    assert nothing_is_current()


# Left elsewhere -------------------------------------------------------------------------------------------------------


def the_cure(logged):
    (record,) = logged.records
    assert record.levelname == "WARNING"
    assert record.name == "toolguard"
    assert "another context" in record.getMessage()
    assert "run.bind(fn)" in record.getMessage()


def test_a_run_left_in_another_thread_raises_nothing_and_the_log_names_the_cure(spans, logged):
    run = toolguard.run("assistant")
    here = contextvars.copy_context()
    here.run(run.__enter__)
    in_thread(run.__exit__, None, None, None)
    the_cure(logged)
    assert nothing_is_current()
    assert len(spans.runs()) == 1


def test_a_run_left_in_a_copy_of_its_context_restores_the_outer_run_there(logged):
    def leave(run):
        assert current_run() is run
        run.__exit__(None, None, None)
        return current_run(), trace.get_current_span()

    with toolguard.run() as outer:
        span = trace.get_current_span()
        run = toolguard.run()
        entered_in = contextvars.copy_context()
        entered_in.run(run.__enter__)
        left_in = entered_in.copy()
        assert left_in.run(leave, run) == (outer, span)
        assert current_run() is outer
    the_cure(logged)


async def test_a_run_left_in_another_task_raises_nothing_and_the_log_names_the_cure(logged):
    run = toolguard.run()

    async def enter():
        await run.__aenter__()

    async def leave():
        await run.__aexit__(None, None, None)
        return nothing_is_current()

    await asyncio.create_task(enter())
    assert await asyncio.create_task(leave())
    the_cure(logged)
    assert nothing_is_current()


def test_a_generator_that_holds_a_run_may_be_closed_in_another_thread(spans, logged):
    def work():
        with toolguard.run():
            yield search("x")

    def start():
        stream = work()
        next(stream)
        return stream

    stream = contextvars.copy_context().run(start)
    in_thread(stream.close)
    the_cure(logged)
    assert len(spans.runs()) == 1
    assert nothing_is_current()


async def test_an_async_generator_that_holds_a_run_may_be_closed_in_another_task(logged):
    async def work():
        async with toolguard.run():
            yield 1

    stream = work()
    await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.aclose())
    the_cure(logged)
    assert nothing_is_current()


def test_a_failing_log_filter_does_not_turn_leaving_into_an_exception(logged):
    def fail(_record):
        raise OSError("the log is full")

    logger = logging.getLogger("toolguard")
    logger.addFilter(fail)
    try:
        run = toolguard.run()
        contextvars.copy_context().run(run.__enter__)
        run.__exit__(None, None, None)
    finally:
        logger.removeFilter(fail)
    assert nothing_is_current()


def test_a_run_left_twice_is_left_once(spans, logged):
    with toolguard.run() as run:
        pass
    run.__exit__(None, None, None)
    assert len(spans.runs()) == 1
    assert nothing_is_current()


def test_uncounted_left_in_another_context_raises_nothing_and_the_log_says_so(logged):
    block = toolguard.uncounted()
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    (record,) = logged.records
    assert "uncounted()" in record.getMessage()
    with toolguard.run() as run:
        search("x")
        assert run.usage().executed == 1


# Out of order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_runs_left_in_any_order_leave_nothing_current(order, spans, logged):
    before = otel_context.get_current()
    runs = [toolguard.run("first"), toolguard.run("second")]
    for run in runs:
        run.__enter__()
    left = []
    for i in order:
        runs[i].__exit__(None, None, None)
        left.append(i)
        still = [run for j, run in enumerate(runs) if j not in left]
        assert current_run() is (still[-1] if still else None)
    assert nothing_is_current()
    assert otel_context.get_current() == before
    assert len(spans.runs()) == 2
    assert not logged.records


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_three_runs_left_in_any_order_inside_a_fourth_leave_the_fourth_current(order, logged):
    with toolguard.run() as fourth:
        span = trace.get_current_span()
        context = otel_context.get_current()
        runs = [toolguard.run(str(i)) for i in range(3)]
        for run in runs:
            run.__enter__()
        for n, i in enumerate(order, 1):
            runs[i].__exit__(None, None, None)
            still = [run for j, run in enumerate(runs) if j not in order[:n]]
            assert current_run() is (still[-1] if still else fourth)
        assert trace.get_current_span() is span
        assert otel_context.get_current() == context
    assert nothing_is_current()
    assert not logged.records


def test_after_an_outer_run_was_left_first_calls_are_charged_to_the_inner_one():
    outer, inner = toolguard.run(), toolguard.run()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    search("x")
    assert (outer.usage().executed, inner.usage().executed) == (0, 1)
    inner.__exit__(None, None, None)
    search("x")
    assert (outer.usage().executed, inner.usage().executed) == (0, 1)


# Finding the run ------------------------------------------------------------------------------------------------------


def test_current_run_is_the_innermost():
    assert current_run() is None
    with toolguard.run() as outer:
        assert current_run() is outer
        with toolguard.run() as inner:
            assert current_run() is inner


def test_a_run_that_only_opentelemetry_carries_is_current_and_charged(spans):
    def call():
        token = otel_context.attach(carried)
        try:
            search("x")
            return current_run()
        finally:
            otel_context.detach(token)

    with toolguard.run("assistant") as run:
        carried = otel_context.get_current()
        assert in_thread(call) is run
        assert run.usage().executed == 1
    run_span, call_span = spans.runs()[0], spans.calls()[0]
    assert call_span.parent.span_id == run_span.context.span_id


async def test_a_run_that_only_opentelemetry_carries_is_current_for_coroutines_and_generators_and_inside_them():
    seen = []

    @metered(kind="read")
    async def look():
        await asyncio.sleep(0)
        seen.append(current_run())

    @metered(kind="read")
    def steps():
        yield seen.append(current_run())

    async def everything():
        await look()
        list(steps())

    def call():
        token = otel_context.attach(carried)
        try:
            asyncio.run(everything())
        finally:
            otel_context.detach(token)

    with toolguard.run() as run:
        carried = otel_context.get_current()
        await asyncio.to_thread(contextvars.Context().run, call)
    assert seen == [run, run]
    assert run.usage().executed == 2


def test_a_nested_run_finds_its_parent_through_opentelemetry_alone():
    def nest():
        token = otel_context.attach(carried)
        try:
            with toolguard.run() as inner:
                assert current_run() is inner
            assert current_run() is outer
            return inner.parent
        finally:
            otel_context.detach(token)

    with toolguard.run(session="s-1") as outer:
        carried = otel_context.get_current()
        assert in_thread(nest) is outer


def test_two_contexts_that_never_saw_a_run_share_no_count():
    for _ in range(2):
        contextvars.copy_context().run(search, "x")
    with toolguard.run() as run:
        usage = run.usage()
        assert (usage.executed, dict(usage.by_tool)) == (0, {})


# Threads and executors ------------------------------------------------------------------------------------------------


def test_an_unbound_thread_sees_no_run(spans):
    with toolguard.run(hard_cap=1) as run:
        assert in_thread(current_run) is None
        assert_executed(in_thread(search, "x"))
        assert run.usage().executed == 0
    assert spans.calls()[0].attributes["toolguard.run.missing"] is True


def is_charged(run, spans, n=1):
    assert run.usage().executed == n
    (run_span,) = spans.runs()
    assert [span.parent.span_id for span in spans.calls()] == [run_span.context.span_id] * n
    assert {span.attributes["toolguard.run.id"] for span in spans.calls()} == {run.id}


def test_a_bound_function_brings_its_run_into_a_thread(spans):
    seen = []

    def work(query, *, limit):
        seen.append((current_run(), search(query, limit)))

    with toolguard.run() as run:
        thread = threading.Thread(target=run.bind(work), args=("x",), kwargs={"limit": 3})
        thread.start()
        thread.join()
    assert seen == [(run, ["x", "3"])]
    is_charged(run, spans)


def test_a_bound_tool_is_charged_from_an_executors_submit_and_map(spans):
    with toolguard.run() as run, ThreadPoolExecutor(4) as pool:
        assert pool.submit(run.bind(search), "x").result() == ["x", "20"]
        assert list(pool.map(run.bind(search), "abc")) == [["a", "20"], ["b", "20"], ["c", "20"]]
    is_charged(run, spans, 4)


async def test_a_bound_tool_is_charged_from_run_in_executor(spans):
    with toolguard.run() as run:
        assert await asyncio.get_running_loop().run_in_executor(None, run.bind(search), "x") == ["x", "20"]
    is_charged(run, spans)


@pytest.mark.parametrize("bound", [False, True])
async def test_to_thread_carries_the_run_bound_or_not(spans, bound):
    with toolguard.run() as run:
        assert await asyncio.to_thread(run.bind(search) if bound else search, "x") == ["x", "20"]
    is_charged(run, spans)


def test_a_bound_thread_leaves_no_run_behind_in_its_thread():
    with toolguard.run() as run, ThreadPoolExecutor(1) as pool:
        pool.submit(run.bind(search), "x").result()
        assert pool.submit(nothing_is_current).result()

        def fail():
            raise KeyError("x")

        with pytest.raises(KeyError):
            pool.submit(run.bind(fail)).result()
        assert pool.submit(nothing_is_current).result()


def test_a_bound_function_runs_in_its_run_inside_another_run():
    with toolguard.run() as first:
        bound = first.bind(search)
    with toolguard.run() as second:
        bound("x")
        assert current_run() is second
    assert (first.usage().executed, second.usage().executed) == (1, 0)


def test_bind_from_where_the_run_is_not_current_hangs_spans_under_the_run(spans):
    with toolguard.run("assistant") as run:
        in_thread(lambda: run.bind(search)("x"))
    is_charged(run, spans)


def test_spans_of_a_bound_function_nest_under_the_span_that_was_current_at_bind(spans):
    tracer = trace.get_tracer("test")
    with toolguard.run() as run:
        with tracer.start_as_current_span("step") as step:
            bound = run.bind(search)
        in_thread(bound, "x")
    assert parents(spans)["execute_tool search"] == step.get_span_context().span_id


async def test_a_bound_coroutine_function_is_charged_in_a_loop_of_another_thread(spans):
    async def work(query):
        assert current_run() is run
        return await fetch(query)

    with toolguard.run() as run:
        bound = run.bind(work)
        assert await asyncio.to_thread(contextvars.Context().run, lambda: asyncio.run(bound("x"))) == "x"
    is_charged(run, spans)


async def test_a_bound_coroutine_tool_is_charged_in_a_loop_of_another_thread(spans):
    with toolguard.run() as run:
        bound = run.bind(fetch)
        assert await asyncio.to_thread(contextvars.Context().run, lambda: asyncio.run(bound("x"))) == "x"
    is_charged(run, spans)


@pytest.mark.parametrize("as_tool", [False, True])
def test_a_bound_generator_is_charged_and_takes_what_it_is_sent(spans, as_tool):
    def plain(query):
        return (yield from lines(query))

    def consume(bound):
        stream = bound("x")
        got = [next(stream), stream.send("sent")]
        assert current_run() is None
        with pytest.raises(StopIteration) as end:
            next(stream)
        return [*got, end.value.value]

    with toolguard.run() as run:
        assert in_thread(consume, run.bind(lines if as_tool else plain)) == ["x1", "sent", "end"]
    is_charged(run, spans)
    assert spans.calls()[0].attributes["toolguard.call.outcome"] == "ok"


@pytest.mark.parametrize("as_tool", [False, True])
def test_a_bound_async_generator_is_charged_and_takes_what_it_is_sent(spans, as_tool):
    async def plain(query):
        stream = pages(query)
        yield await anext(stream)
        yield await stream.asend("sent")
        async for _ in stream:
            pass

    async def consume(bound):
        stream = bound("x")
        got = [await anext(stream), await stream.asend("sent")]
        assert current_run() is None
        return [*got, *(await drained(stream))]

    with toolguard.run() as run:
        bound = run.bind(pages if as_tool else plain)
        assert in_thread(lambda: asyncio.run(consume(bound))) == ["x1", "sent"]
    is_charged(run, spans)


def test_a_bound_function_brings_its_run_into_what_it_returns_unstarted(spans):
    async def work(query):
        return await fetch(query)

    async def stream(query):
        yield search(query)

    with toolguard.run() as run:
        assert in_thread(lambda: asyncio.run(run.bind(lambda: work("x"))())) == "x"
        assert in_thread(lambda: list(run.bind(lambda: (search(q) for q in "ab"))())) == [["a", "20"], ["b", "20"]]
        assert in_thread(lambda: asyncio.run(drained(run.bind(lambda: stream("y"))()))) == [["y", "20"]]
    is_charged(run, spans, 4)


@pytest.mark.parametrize("method", ["find", "count_all", "opened"])
def test_a_bound_method_tool_is_charged(spans, method):
    with toolguard.run() as run:
        assert in_thread(run.bind(getattr(Mailbox(), method)), "x") == ("Mailboxx" if method == "opened" else "x")
        assert in_thread(run.bind(Mailbox.find), Mailbox(), "x") == "x"
    is_charged(run, spans, 2)


def test_receivers_still_tell_bound_method_tools_apart():
    alice, bob = Mailbox(), Mailbox()
    with toolguard.run(aggregate=1) as run:
        run.bind(alice.find)("x")
        assert_refused(run.bind(alice.find)("y"), "aggregate")
        assert_refused(run.bind(bob.find)("y"), "aggregate")
        assert_executed(run.bind(alice.find)("y"))


def test_a_bound_coroutine_method_tool_is_charged(spans):
    with toolguard.run() as run:
        bound = run.bind(Mailbox().find_later)
        assert in_thread(lambda: asyncio.run(bound("x"))) == "x"
    is_charged(run, spans)


def test_a_bound_partial_and_a_bound_callable_object_are_charged(spans):
    class Work:
        def __call__(self, query):
            return search(query)

        async def later(self, query):
            return await fetch(query)

    with toolguard.run() as run:
        assert in_thread(
            run.bind(
                partial(search, "x"),
            )
        ) == ["x", "20"]
        assert in_thread(run.bind(Work()), "x") == ["x", "20"]
        assert in_thread(lambda: asyncio.run(run.bind(partial(Work().later, "x"))())) == "x"
    is_charged(run, spans, 3)


def plain(a: int, /, b: str = "b", *rest: int, c: bool = False) -> str:
    """Say what it is."""
    return f"{a}{b}{rest}{c}"


async def plain_coroutine(a: int) -> int:
    """Say what it is."""
    return a


def plain_generator(a: int):
    """Say what it is."""
    yield a


async def plain_async_generator(a: int):
    """Say what it is."""
    yield a


@pytest.mark.parametrize(
    "fn", [plain, plain_coroutine, plain_generator, plain_async_generator, search, fetch, lines, pages, Mailbox().find]
)
def test_a_bound_function_keeps_name_signature_docs_hints_and_kind(fn):
    bound = toolguard.run().bind(fn)
    assert bound.__name__ == fn.__name__
    assert bound.__qualname__ == fn.__qualname__
    assert bound.__doc__ == fn.__doc__
    assert inspect.signature(bound) == inspect.signature(fn)
    assert inspect.get_annotations(bound) == inspect.get_annotations(fn)
    for is_kind in (
        inspect.iscoroutinefunction,
        asyncio.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.isfunction,
        inspect.ismethod,
    ):
        assert is_kind(bound) == is_kind(fn), is_kind


def test_a_bound_function_is_another_function_than_the_one_it_binds():
    run = toolguard.run()
    bound = run.bind(search)
    assert bound != search
    assert len({bound, search, run.bind(search)}) == 3
    assert copy.deepcopy(bound) is bound


def test_a_bound_function_says_why_it_cannot_leave_its_process():
    with pytest.raises(TypeError, match="open a run in the other process"):
        pickle.dumps(toolguard.run().bind(search))


def test_a_bound_function_bound_once_more_is_charged_to_the_last_run():
    first, second = toolguard.run(), toolguard.run()
    second.bind(first.bind(search))("x")
    assert (first.usage().executed, second.usage().executed) == (1, 0)  # the innermost binding is nearest to the call


def test_a_bound_function_that_raises_raises_the_same_exception():
    error = KeyError("x")

    def fail():
        raise error

    async def fail_later():
        raise error

    run = toolguard.run()
    with pytest.raises(KeyError) as caught:
        run.bind(fail)()
    assert caught.value is error
    with pytest.raises(KeyError) as caught:
        asyncio.run(run.bind(fail_later)())
    assert caught.value is error
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        run.bind(search)()


@pytest.mark.parametrize("bound", [False, True])
async def test_coroutines_made_together_do_not_confirm_each_other(bound):
    with toolguard.run(aggregate=1) as run:
        call = run.bind(fetch) if bound else fetch
        await call("first")
        twins = await asyncio.gather(call("x"), call("x"))
        assert [type(result) for result in twins] == [Refusal, Refusal]
        assert_executed(await call("x"))


@pytest.mark.parametrize("bound", [False, True])
async def test_a_coroutine_belongs_to_the_turn_in_which_it_was_made(bound):
    with toolguard.run(aggregate=1) as run:
        call = run.bind(fetch) if bound else fetch
        run.turn()
        await call("first")
        made = call("x")
        run.turn()
        assert_refused(await made, "aggregate")  # turn 1
        assert_executed(await call("x"))  # turn 2 may confirm what turn 1 was refused


@pytest.mark.parametrize("bound", [False, True])
def test_generators_made_together_do_not_confirm_each_other(bound):
    with toolguard.run(aggregate=1) as run:
        call = run.bind(lines) if bound else lines
        search("first")
        twins = [call("x"), call("x")]
        assert [type(next(stream)) for stream in twins] == [Refusal, Refusal]
        assert_executed(next(call("x")))


def test_a_bound_coroutine_that_is_never_awaited_is_charged_nothing(spans):
    with toolguard.run() as run:
        run.bind(fetch)("x").close()
        run.bind(lines)("x").close()
        run.bind(pages)("x")
        gc.collect()
        assert run.usage().executed == 0
    assert spans.calls() == []


async def test_a_bound_coroutine_cancelled_before_its_first_step_is_charged_nothing():
    async def work():
        return await fetch("x")

    with toolguard.run() as run:
        for fn in (fetch, work):
            task = asyncio.create_task(run.bind(fn)(*(("x",) if fn is fetch else ())))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gc.collect()
        assert run.usage().executed == 0


@pytest.mark.parametrize("policy", ["warn", "allow", "refuse"])
def test_a_bound_tool_is_charged_under_every_policy_for_calls_outside(policy):
    toolguard.configure({"outside_run": policy})
    with toolguard.run(hard_cap=1) as run:
        bound = run.bind(search)
    assert_executed(in_thread(bound, "x"))
    assert_refused(in_thread(bound, "x"), "hard_stop")
    assert run.usage().executed == 1


# Beyond the block -----------------------------------------------------------------------------------------------------


async def test_a_task_that_outlives_its_run_is_charged_to_it_limits_and_stop_included():
    leave = asyncio.Event()

    async def work():
        await leave.wait()
        return [await fetch(q) for q in "abc"]

    with toolguard.run(hard_cap=2) as run:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
    leave.set()
    results = await task
    assert results[:2] == ["a", "b"]
    assert_refused(results[2], "hard_stop")
    assert run.stopped
    assert run.usage().executed == 2
    assert nothing_is_current()


def test_a_bound_function_called_after_the_block_is_charged_to_the_run_limits_and_stop_included(spans):
    with toolguard.run(per_tool=2) as run:
        bound = run.bind(search)
        bound("a")
    in_thread(bound, "b")
    assert_refused(in_thread(bound, "c"), "per_tool")
    run.stop("That is enough.")
    assert assert_refused(in_thread(run.bind(search), "d"), "stop").retry == "never"
    assert run.usage().executed == 2
    (run_span,) = spans.runs()
    assert spans.calls()[1].parent.span_id == run_span.context.span_id


async def test_a_coroutine_made_inside_the_block_is_charged_to_its_run_when_it_is_awaited_outside():
    with toolguard.run() as run:
        made, stream = fetch("x"), lines("x")
    await made
    list(stream)
    assert run.usage().executed == 2


async def test_a_coroutine_made_outside_a_run_stays_outside_when_it_is_awaited_inside():
    made = fetch("x")
    with toolguard.run() as run:
        await made
        assert run.usage().executed == 0


async def test_runs_of_tasks_that_take_turns_do_not_mix():
    async def agent(name, n):
        with toolguard.run(name, hard_cap=n) as run:
            results = []
            for i in range(6):
                results.append(await fetch(f"{name}{i}"))
                assert current_run() is run
                await asyncio.sleep(0)
            return [type(result) is Refusal for result in results]

    counts = range(1, 7)
    got = await asyncio.gather(*(agent(f"a{n}", n) for n in counts))
    assert got == [[i >= n for i in range(6)] for n in counts]
    assert nothing_is_current()


def test_runs_of_many_threads_do_not_mix():
    barrier = threading.Barrier(8)

    def agent(n):
        barrier.wait()
        with toolguard.run(hard_cap=n, per_tool=0, aggregate=0) as run:
            results = [search(str(i)) for i in range(300)]
            return run.usage().executed, sum(type(result) is Refusal for result in results)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(agent, range(100, 108))) == [(n, 300 - n) for n in range(100, 108)]
