"""Generators and async generators behave as bare ones, are charged at their first step and end their span once."""

import asyncio
import contextvars
import gc
import inspect
import itertools
import threading
import weakref
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import toolguard
from toolguard import Refusal, current_run, metered


class BoomError(Exception):
    pass


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """No test here may bring OpenTelemetry or asyncio to complain."""
    yield
    noisy = [r for r in caplog.get_records("call") if r.name.split(".")[0] in {"opentelemetry", "asyncio"}]
    assert [r.getMessage() for r in noisy if r.levelname in {"WARNING", "ERROR", "CRITICAL"}] == []


@metered(kind="read")
def count(n):
    yield from range(n)
    return "done"


@metered(kind="read")
async def acount(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i


async def collected(stream):
    return [item async for item in stream]


def parent_of(span):
    return span.parent.span_id if span.parent else None


def current_id():
    return trace.get_current_span().get_span_context().span_id


def outcome(spans):
    (span,) = spans.calls()
    return span.attributes["toolguard.call.outcome"], span.attributes["toolguard.stream.items"]


# As the bare generator: whatever is done to it


def body(plan, log):  # noqa: C901  it has an answer to everything
    """Yield once for each pair of the plan, which says how it answers what is thrown and how it answers its closing."""
    for number, (on_error, on_exit) in enumerate(plan):
        try:
            log.append(("got", (yield number)))
        except GeneratorExit:
            log.append("exit")
            if on_exit == "yield":
                log.append(("got", (yield "stubborn")))
            elif on_exit == "return":
                return "closed"
            elif on_exit == "other":
                raise KeyError(number) from None
            else:
                raise
        except Exception as error:
            log.append(("caught", type(error)))
            if on_error == "yield":
                log.append(("got", (yield "after")))
            elif on_error == "return":
                return "early"
            elif on_error == "other":
                raise KeyError(number) from error
            elif on_error == "stop":
                raise StopIteration(number)  # noqa: B904, PLR1708
            elif on_error == "raise":
                raise
    return "done"


async def abody(plan, log):  # noqa: C901  as above
    """Do what `body` does."""
    for number, (on_error, on_exit) in enumerate(plan):
        await asyncio.sleep(0)
        try:
            log.append(("got", (yield number)))
        except GeneratorExit:
            log.append("exit")
            await asyncio.sleep(0)
            if on_exit == "yield":
                log.append(("got", (yield "stubborn")))
            elif on_exit == "return":
                return
            elif on_exit == "other":
                raise KeyError(number) from None
            else:
                raise
        except Exception as error:
            log.append(("caught", type(error)))
            if on_error == "yield":
                log.append(("got", (yield "after")))
            elif on_error == "return":
                return
            elif on_error == "other":
                raise KeyError(number) from error
            elif on_error == "stop":
                raise StopAsyncIteration(number)  # noqa: B904
            elif on_error == "raise":
                raise


plans = st.lists(
    st.tuples(
        st.sampled_from(["swallow", "yield", "return", "other", "stop", "raise"]),
        st.sampled_from(["raise", "raise", "return", "yield", "other"]),
    ),
    max_size=4,
)
steps = st.lists(
    st.one_of(
        st.just(("next", None)),
        st.tuples(st.just("send"), st.sampled_from([None, 7, "x"])),
        st.tuples(
            st.just("throw"), st.sampled_from([BoomError, StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt])
        ),
        st.just(("close", None)),
    ),
    max_size=7,
)


def told(error, thrown):
    """Describe an exception as far as a consumer could tell two apart."""
    chain = type(error.__cause__), type(error.__context__), error.__suppress_context__
    return "raised", type(error), str(error), error is thrown, chain


def perform(stream, script):
    """Do to a generator what the script says, then run it to its end; return what it answered."""
    heard = []
    for what, value in [*script, *[("next", None)] * 12]:
        thrown = value("thrown") if what == "throw" else None
        try:
            if what == "next":
                heard.append(("item", next(stream)))
            elif what == "send":
                heard.append(("item", stream.send(value)))
            elif what == "throw":
                heard.append(("item", stream.throw(thrown)))
            else:
                heard.append(("closed", stream.close()))
        except StopIteration as stop:
            heard.append(("stop", stop.value, stop is thrown))
        except BaseException as error:  # noqa: BLE001
            heard.append(told(error, thrown))
    assert inspect.getgeneratorstate(stream) == inspect.GEN_CLOSED
    return heard


async def aperform(stream, script):
    """Do what `perform` does."""
    heard = []
    for what, value in [*script, *[("next", None)] * 12]:
        thrown = value("thrown") if what == "throw" else None
        try:
            if what == "next":
                heard.append(("item", await anext(stream)))
            elif what == "send":
                heard.append(("item", await stream.asend(value)))
            elif what == "throw":
                heard.append(("item", await stream.athrow(thrown)))
            else:
                heard.append(("closed", await stream.aclose()))
        except StopAsyncIteration as stop:
            heard.append(("stop", stop is thrown))
        except BaseException as error:  # noqa: BLE001
            heard.append(told(error, thrown))
    return heard


scripted = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)


def charged_and_ended(spans, run, script):
    """Assert that a stream was charged iff it began, and has one ended span iff it was charged."""
    first = next(
        (what, value) for what, value in [*script, ("next", None)] if (what, value) not in [("send", 7), ("send", "x")]
    )
    began = int(first[0] in {"next", "send"})
    assert run.usage().executed == began
    assert len([s for s in spans.calls() if s.attributes["toolguard.run.id"] == run.id]) == began


@scripted
@given(plan=plans, script=steps)
def test_a_generator_answers_any_script_as_the_bare_one_does(spans, plan, script):
    bare_log, log = [], []
    expected = perform(body(plan, bare_log), script)
    with toolguard.run() as run:
        assert perform(metered(kind="read", name="tool")(body)(plan, log), script) == expected
    assert log == bare_log
    charged_and_ended(spans, run, script)


@scripted
@given(plan=plans, script=steps)
def test_an_async_generator_answers_any_script_as_the_bare_one_does(spans, plan, script):
    bare_log, log = [], []

    async def both():
        expected = await aperform(abody(plan, bare_log), script)
        with toolguard.run() as run:
            assert await aperform(metered(kind="read", name="tool")(abody)(plan, log), script) == expected
        return run

    run = asyncio.run(both())
    assert log == bare_log
    charged_and_ended(spans, run, script)


@scripted
@given(plan=plans, script=steps)
def test_a_bound_generator_answers_any_script_as_the_bare_one_does(plan, script):
    bare_log, log = [], []
    expected = perform(body(plan, bare_log), script)
    bound = toolguard.run().bind(body)
    assert perform(bound(plan, log), script) == expected
    assert log == bare_log


def test_yield_from_a_tool_gives_items_and_value():
    def consumer():
        got = yield from count(2)
        yield got

    with toolguard.run():
        assert list(consumer()) == [0, 1, "done"]


def test_what_a_tool_hands_out_is_not_taken_before_it_is_asked_for():
    log = []

    @metered(kind="read")
    def pages():
        for n in range(3):
            log.append(n)
            yield n

    with toolguard.run():
        stream = pages()
        assert log == []
        assert next(stream) == 0
        assert log == [0]
        stream.close()


def test_an_exception_thrown_into_a_stream_is_freed_with_its_last_reference():
    class TrackedError(BoomError):
        pass

    with toolguard.run():
        stream = count(3)
        next(stream)
        gc.disable()
        try:
            error = TrackedError()
            gone = weakref.ref(error)
            with pytest.raises(TrackedError):
                stream.throw(error)
            del error
            assert gone() is None
        finally:
            gc.enable()


# When it is charged


@pytest.mark.parametrize("make", [count, acount])
def test_a_stream_that_is_never_stepped_is_charged_nothing_and_has_no_span(spans, make):
    with toolguard.run() as run:
        stream = make(3)
        assert run.usage().executed == 0
        del stream
        gc.collect()
    assert run.usage().executed == 0
    assert spans.calls() == []


def test_a_generator_that_is_closed_or_thrown_into_before_its_first_step_is_charged_nothing(spans):
    with toolguard.run() as run:
        count(1).close()
        with pytest.raises(BoomError):
            count(1).throw(BoomError())
        with pytest.raises(TypeError, match="just-started"):
            count(1).send(1)
    assert run.usage().executed == 0
    assert spans.calls() == []


def test_a_generator_is_charged_once_at_its_first_step(spans):
    with toolguard.run() as run:
        stream = count(3)
        next(stream)
        assert run.usage().executed == 1
        assert spans.calls() == []
        next(stream)
        next(stream)
        assert next(stream, "end") == "end"
        assert run.usage().executed == 1
    assert outcome(spans) == ("ok", 3)


def test_a_refused_generator_yields_the_refusal_once(spans):
    with toolguard.run(per_tool=1) as run:
        list(count(1))
        (answer,) = list(count(5))
    assert isinstance(answer, Refusal)
    assert answer.reason == "per_tool"
    assert run.usage().executed == 1
    assert "toolguard.stream.items" not in spans.calls()[1].attributes


async def test_a_refused_async_generator_yields_the_refusal_once(spans):
    with toolguard.run(per_tool=1) as run:
        await collected(acount(1))
        (answer,) = await collected(acount(5))
    assert isinstance(answer, Refusal)
    assert run.usage().executed == 1
    assert len(spans.calls()) == 2


def test_a_refused_generator_may_be_sent_to_thrown_into_and_closed():
    with toolguard.run() as run:
        run.stop("x")
        one, two, three = count(1), count(1), count(1)
        for stream in (one, two, three):
            assert isinstance(next(stream), Refusal)
        with pytest.raises(StopIteration) as stop:
            one.send("ignored")
        assert stop.value.value is None
        with pytest.raises(BoomError):
            two.throw(BoomError())
        assert three.close() is None


def test_streams_made_before_the_limit_are_judged_when_they_are_stepped():
    with toolguard.run(per_tool=2) as run:
        streams = [count(1) for _ in range(5)]
        firsts = [next(stream) for stream in streams]
        assert [isinstance(first, Refusal) for first in firsts] == [False, False, True, True, True]
        for stream in streams:
            stream.close()
    assert (run.usage().executed, run.usage().refused) == (2, 3)


def test_a_generator_that_says_nothing_ran_yields_its_refusal_and_is_not_charged(spans):
    @metered(kind="send")
    def post():
        raise toolguard.NotExecuted("no")
        yield

    with toolguard.run() as run:
        (answer,) = list(post())
    assert answer.reason == "gate"
    assert (run.usage().executed, run.usage().refused) == (0, 1)
    assert outcome(spans) == ("not_executed", 0)


async def test_an_async_generator_that_says_nothing_ran_yields_its_refusal_and_is_not_charged(spans):
    @metered(kind="send")
    async def post():
        raise toolguard.NotExecuted("no")
        yield

    with toolguard.run() as run:
        (answer,) = await collected(post())
    assert answer.reason == "gate"
    assert run.usage().executed == 0
    assert outcome(spans) == ("not_executed", 0)


def test_a_generator_that_says_nothing_ran_while_it_is_closed_is_closed():
    @metered(kind="send")
    def post():
        try:
            yield 1
        finally:
            raise toolguard.NotExecuted

    with toolguard.run() as run:
        stream = post()
        next(stream)
        assert stream.close() is None
    assert run.usage().executed == 0


# Whose span is current


@contextmanager
def asking(provider, name="consumer"):
    with provider.get_tracer("app").start_as_current_span(name) as span:
        yield span.get_span_context().span_id


def test_between_items_the_consumers_span_is_current(spans, provider):
    tracer = provider.get_tracer("app")

    @metered(kind="read")
    def tool():
        for n in range(3):
            tracer.start_span("below tool").end()
            yield n

    with toolguard.run(), asking(provider) as consumer:
        for _ in tool():
            assert current_id() == consumer
            tracer.start_span("below consumer").end()
        assert current_id() == consumer
    (call,) = spans.calls()
    assert [parent_of(s) for s in spans.named("below tool")] == [call.context.span_id] * 3
    assert [parent_of(s) for s in spans.named("below consumer")] == [consumer] * 3
    assert parent_of(call) == consumer


async def test_between_items_of_an_async_generator_the_consumers_span_is_current(spans, provider):
    tracer = provider.get_tracer("app")

    @metered(kind="read")
    async def tool():
        for n in range(3):
            await asyncio.sleep(0)
            tracer.start_span("below tool").end()
            yield n

    with toolguard.run(), asking(provider) as consumer:
        async for _ in tool():
            assert current_id() == consumer
            tracer.start_span("below consumer").end()
    (call,) = spans.calls()
    assert [parent_of(s) for s in spans.named("below tool")] == [call.context.span_id] * 3
    assert [parent_of(s) for s in spans.named("below consumer")] == [consumer] * 3


def test_interleaved_generators_keep_their_spans_apart(spans, provider):
    tracer = provider.get_tracer("app")

    @metered(kind="read")
    def tool(name):
        for _ in range(2):
            tracer.start_span(f"below {name}").end()
            yield name

    with toolguard.run(), asking(provider) as consumer:
        one, two = tool("one"), tool("two")
        assert [next(one), next(two), next(one), next(two)] == ["one", "two", "one", "two"]
        assert list(one) == list(two) == []  # ended in the order in which they began
        assert current_id() == consumer
    first, second = spans.calls()
    assert [parent_of(s) for s in spans.named("below one")] == [first.context.span_id] * 2
    assert [parent_of(s) for s in spans.named("below two")] == [second.context.span_id] * 2


@pytest.mark.parametrize("end", ["exhausted", "closed", "thrown into", "abandoned"])
def test_a_span_that_the_body_holds_open_is_current_whenever_the_body_is(spans, provider, end):
    tracer = provider.get_tracer("app")

    @metered(kind="read")
    def tool():
        with tracer.start_as_current_span("held"):
            yield 1
            tracer.start_span("work").end()
            yield 2
            tracer.start_span("work").end()

    with toolguard.run(), asking(provider) as consumer:
        stream = tool()
        assert next(stream) == 1
        assert current_id() == consumer
        assert next(stream) == 2
        assert current_id() == consumer
        if end == "exhausted":
            assert list(stream) == []
        elif end == "closed":
            stream.close()
        elif end == "thrown into":
            with pytest.raises(BoomError):
                stream.throw(BoomError())
        else:
            del stream
            gc.collect()
        assert current_id() == consumer
    (held,) = spans.named("held")
    (call,) = spans.calls()
    assert {parent_of(s) for s in spans.named("work")} == {held.context.span_id}
    assert parent_of(held) == call.context.span_id


async def test_a_span_that_an_async_body_holds_open_is_current_whenever_the_body_is(spans, provider):
    tracer = provider.get_tracer("app")

    @metered(kind="read")
    async def tool():
        with tracer.start_as_current_span("held"):
            for n in range(3):
                await asyncio.sleep(0)
                tracer.start_span("work").end()
                yield n

    with toolguard.run(), asking(provider) as consumer:
        stream = tool()
        async for n in stream:
            assert current_id() == consumer
            if n == 1:
                break
        await stream.aclose()
        assert current_id() == consumer
    (held,) = spans.named("held")
    assert {parent_of(s) for s in spans.named("work")} == {held.context.span_id}
    assert outcome(spans) == ("closed", 2)


def test_variables_that_the_body_sets_reach_the_consumer_as_from_a_bare_generator():
    variable = contextvars.ContextVar("variable", default="unset")

    def bare():
        variable.set("by the body")
        got = yield variable.get()
        yield got, variable.get()

    seen = []
    for make in (bare, metered(kind="read")(bare)):

        def consume(make=make):
            stream = make()
            before = next(stream)
            after = variable.get()
            variable.set("by the consumer")
            return before, after, stream.send("sent"), stream.close()

        with toolguard.run():
            seen.append(contextvars.copy_context().run(consume))
    assert seen == [("by the body", "by the body", ("sent", "by the consumer"), None)] * 2


# Which run is current


def test_the_body_is_in_the_run_in_which_the_generator_was_made():
    @metered(kind="read")
    def tool():
        while True:
            yield current_run()

    with toolguard.run() as outer:
        stream = tool()
        assert next(stream) is outer
        with toolguard.run() as inner:
            assert next(stream) is outer
            assert current_run() is inner
    assert next(stream) is outer
    assert current_run() is None
    stream.close()


def test_a_generator_stepped_outside_its_run_is_charged_to_it(spans):
    @metered(kind="read")
    def inner():
        return 1

    @metered(kind="read")
    def tool():
        yield inner()

    with toolguard.run() as run:
        stream = tool()
    assert list(stream) == [1]
    assert run.usage().executed == 2
    assert {span.attributes["toolguard.run.id"] for span in spans.calls()} == {run.id}


async def test_an_async_generator_stepped_outside_its_run_is_in_it():
    @metered(kind="read")
    async def tool():
        yield current_run()
        await asyncio.sleep(0)
        yield current_run()

    with toolguard.run() as run:
        stream = tool()
    assert await collected(stream) == [run, run]
    assert current_run() is None
    assert run.usage().executed == 1


@pytest.mark.parametrize("closing", [False, True], ids=["exhausted", "closed"])
def test_a_run_that_the_body_holds_open_is_current_whenever_the_body_is_and_nowhere_else(spans, closing):
    @metered(kind="read")
    def inner(n):
        return n

    @metered(kind="read")
    def delegate():
        with toolguard.run("specialist"):
            for n in range(3):
                yield inner(n)
        yield inner(3)

    with toolguard.run("coordinator") as outer:
        stream = delegate()
        for n in range(3):
            assert next(stream) == n
            assert current_run() is outer
        if closing:
            stream.close()
        else:
            assert list(stream) == [3]
        assert current_run() is outer
    specialist, coordinator = spans.runs()
    assert specialist.attributes["toolguard.run.calls"] == 3
    assert coordinator.attributes["toolguard.run.calls"] == (1 if closing else 2)
    below = [parent_of(span) for span in spans.named("execute_tool inner")]
    assert below[:3] == [specialist.context.span_id] * 3


# Ended exactly once, however it ends


def test_a_stream_that_ends_is_ended_once(spans):
    with toolguard.run():
        stream = count(2)
        assert list(stream) == [0, 1]
        stream.close()
        assert list(stream) == []
        del stream
        gc.collect()
    assert outcome(spans) == ("ok", 2)


def test_the_span_of_a_stream_lasts_from_its_first_step_to_its_end(spans, monkeypatch):
    clock = itertools.count(1)
    monkeypatch.setattr("opentelemetry.sdk.trace.time_ns", lambda: next(clock))
    seen = {}

    @metered(kind="read")
    def tool():
        for n in range(3):
            seen.setdefault("first", next(clock))
            yield n
        seen["last"] = next(clock)

    with toolguard.run():
        stream = tool()
        made = next(clock)
        assert list(stream) == [0, 1, 2]
        over = next(clock)
    (span,) = spans.calls()
    assert made < span.start_time < seen["first"] < seen["last"] < span.end_time < over
    assert outcome(spans) == ("ok", 3)


def test_a_stream_that_raises_is_ended_once_with_the_items_so_far(spans):
    error = BoomError()

    @metered(kind="read")
    def tool():
        yield 1
        yield 2
        raise error

    with toolguard.run():
        stream = tool()
        assert [next(stream), next(stream)] == [1, 2]
        with pytest.raises(BoomError) as caught:
            next(stream)
        assert caught.value is error
        stream.close()
    assert outcome(spans) == ("error", 2)


def test_a_stream_that_swallows_its_closing_is_closed(spans):
    @metered(kind="read")
    def tool():
        try:
            yield 1
        except GeneratorExit:
            return

    with toolguard.run():
        stream = tool()
        next(stream)
        stream.close()
    assert outcome(spans) == ("closed", 1)


def test_a_stream_that_recovers_from_what_is_thrown_goes_on(spans):
    @metered(kind="read")
    def tool():
        try:
            yield 1
        except BoomError:
            yield "recovered"

    with toolguard.run():
        stream = tool()
        next(stream)
        assert stream.throw(BoomError()) == "recovered"
        assert list(stream) == []
    assert outcome(spans) == ("ok", 2)


@pytest.mark.parametrize("taken", [1, 2])
def test_an_abandoned_generator_is_ended_when_it_is_collected(spans, taken):
    with toolguard.run():
        stream = count(5)
        for _ in range(taken):
            next(stream)
        assert spans.calls() == []
        del stream
        gc.collect()
        assert outcome(spans) == ("abandoned", taken)


def test_a_generator_abandoned_in_a_cycle_is_ended_by_the_collector(spans):
    class Holder:
        pass

    with toolguard.run():
        holder = Holder()
        holder.me, holder.stream = holder, count(5)
        next(holder.stream)
        del holder
        gc.collect()
        assert outcome(spans) == ("abandoned", 1)


@pytest.mark.parametrize("end", ["exhausted", "closed", "abandoned", "never stepped"])
def test_a_bound_tool_that_streams_ends_as_the_tool_does(spans, end):
    with toolguard.run() as run:
        bound = run.bind(count)
    stream = bound(3)
    if end != "never stepped":
        next(stream)
    if end == "exhausted":
        assert list(stream) == [1, 2]
    elif end == "closed":
        stream.close()
    del stream
    gc.collect()
    if end == "never stepped":
        assert spans.calls() == []
    else:
        assert outcome(spans) == ({"exhausted": "ok"}.get(end, end), 3 if end == "exhausted" else 1)
    assert run.usage().executed == (end != "never stepped")


async def test_a_bound_async_stream_that_is_left_early_is_abandoned_once(spans):
    with toolguard.run() as run:
        bound = run.bind(acount)
    async for _ in bound(3):
        break
    gc.collect()
    while not spans.calls():  # noqa: ASYNC110  the loop ends it, and tells nobody
        await asyncio.sleep(0)
    assert outcome(spans) == ("abandoned", 1)
    assert run.usage().executed == 1


def in_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_a_generator_may_change_threads_at_any_item_and_end_in_another(spans, provider):
    with toolguard.run() as run, asking(provider) as consumer:
        stream = count(3)
        assert next(stream) == 0
        assert in_thread(lambda: (next(stream), current_id())) == (1, 0)
        assert next(stream) == 2
        assert in_thread(lambda: (list(stream), current_id())) == ([], 0)
        assert current_id() == consumer
    assert outcome(spans) == ("ok", 3)
    assert run.usage().executed == 1


@pytest.mark.parametrize("how", ["close", "throw", "collect"])
def test_a_generator_may_be_ended_early_in_another_thread(spans, provider, how):
    held = {}

    def end():
        if how == "close":
            held["stream"].close()
        elif how == "throw":
            with pytest.raises(BoomError):
                held["stream"].throw(BoomError())
        held.clear()
        gc.collect()
        return current_id(), current_run()

    with toolguard.run(), asking(provider) as consumer:
        held["stream"] = count(3)
        next(held["stream"])
        assert in_thread(end) == (0, None)
        assert current_id() == consumer
    assert outcome(spans) == ({"close": "closed", "throw": "error", "collect": "abandoned"}[how], 1)


async def test_an_async_generator_may_be_stepped_and_closed_in_other_tasks(spans, provider):
    with toolguard.run(), asking(provider) as consumer:
        stream = acount(5)
        assert await anext(stream) == 0
        assert await asyncio.create_task(anext_of(stream)) == 1
        await asyncio.create_task(stream.aclose())
        assert current_id() == consumer
    assert outcome(spans) == ("closed", 2)


async def anext_of(stream):
    return await anext(stream)


async def test_leaving_an_async_for_early_ends_the_span_when_the_loop_finalises_the_generator(spans, provider):
    with toolguard.run(), asking(provider) as consumer:
        async for item in acount(5):
            if item == 1:
                break
        gc.collect()
        while not spans.calls():  # noqa: ASYNC110  the loop's own task ends it, and tells nobody
            await asyncio.sleep(0)
        assert current_id() == consumer
    assert outcome(spans) == ("abandoned", 2)


async def test_an_async_generator_that_is_cancelled_is_ended_once(spans):
    started = asyncio.Event()

    @metered(kind="read")
    async def tool():
        yield 1
        started.set()
        await asyncio.Event().wait()
        yield 2

    with toolguard.run() as run:
        task = asyncio.create_task(collected(tool()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert outcome(spans) == ("cancelled", 1)
    assert run.usage().executed == 1


async def test_an_item_that_takes_too_long_cancels_the_stream(spans):
    @metered(kind="read")
    async def tool():
        yield 1
        await asyncio.Event().wait()

    with toolguard.run():
        stream = tool()
        await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        await stream.aclose()
    assert outcome(spans) == ("cancelled", 1)


def test_a_stream_still_open_when_its_loop_ends_is_closed_once_with_its_own_clean_up(spans):
    log, complaints, held = [], [], []

    @metered(kind="read")
    async def tool():
        try:
            for n in range(5):
                yield n
        finally:
            for _ in range(5):  # long enough for a second closing to get in between
                await asyncio.sleep(0)
            log.append("cleaned up")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
        with toolguard.run():
            held.append(tool())
            await anext(held[0])

    asyncio.run(main())
    assert complaints == []
    assert log == ["cleaned up"]
    assert outcome(spans) == ("closed", 1)


def test_an_async_generator_may_be_driven_without_a_loop(spans):
    @metered(kind="read")
    async def tool():
        yield 1
        yield 2

    with toolguard.run():
        stream = tool()
        with pytest.raises(StopIteration) as stop:
            anext(stream).send(None)
        assert stop.value.value == 1
        del stream
        gc.collect()
    assert outcome(spans) == ("abandoned", 1)


def test_thousands_of_streams_ended_in_every_way_are_each_charged_and_ended_once(spans):
    n = 400
    with toolguard.run(per_tool=0, aggregate=0, adaptive_soft=0) as run:
        for i in range(n):
            stream = count(3)
            for _ in range(i % 4):
                next(stream)
            if i % 5 == 0:
                stream.close()
            elif i % 5 == 1:
                list(stream)
            elif i % 5 == 2:
                in_thread(stream.close)
            else:
                del stream
    began = sum(1 for i in range(n) if i % 4 or i % 5 == 1)
    assert run.usage().executed == began
    assert len(spans.calls()) == began


# What it is


@pytest.mark.parametrize(("tool", "predicate"), [(count, inspect.isgeneratorfunction), (acount, inspect.isasyncgenfunction)])
def test_a_streaming_tool_is_to_inspect_what_its_function_is(tool, predicate):
    assert predicate(tool)
    with toolguard.run():
        stream = tool(1)
        assert inspect.isgenerator(stream) or inspect.isasyncgen(stream)
