"""Calls outside a run: `warn`, `allow` and `refuse`, for every shape of tool."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import toolguard
from toolguard import Refusal, metered
from toolguard.testing import assert_refused


def tools():
    """Fresh tools of every shape, each with a way to run it to its end and get one value."""

    @metered(kind="read", name="plain")
    def plain(value):
        return raised(value)

    @metered(kind="send", name="coroutine")
    async def coroutine(value):
        await asyncio.sleep(0)
        return raised(value)

    @metered(kind="read", name="generator")
    def generator(value):
        yield raised(value)

    @metered(kind="read", name="async_generator")
    async def async_generator(value):
        yield raised(value)

    class Box:
        @metered(kind="read", name="method")
        def method(self, value):
            return raised(value)

    async def first(stream):
        (item,) = [item async for item in stream]
        return item

    return {
        "plain": (plain, lambda made: made),
        "coroutine": (coroutine, asyncio.run),
        "generator": (generator, lambda made: list(made)[0]),  # noqa: RUF015  it is driven to its end
        "async_generator": (async_generator, lambda made: asyncio.run(first(made))),
        "method": (Box().method, lambda made: made),
    }


def raised(value):
    if isinstance(value, BaseException):
        raise value
    return value


SHAPES = pytest.mark.parametrize("shape", ["plain", "coroutine", "generator", "async_generator", "method"])


def call(shape, value):
    tool, result = tools()[shape]
    return result(tool(value))


def warnings(logged):
    return [record for record in logged.records if record.levelname == "WARNING"]


@SHAPES
def test_by_default_the_call_executes_and_its_span_says_that_the_run_is_missing(shape, spans, logged):
    value = object()
    assert call(shape, value) is value
    (span,) = spans.calls()
    assert span.attributes["toolguard.run.missing"] is True
    assert span.attributes["toolguard.executed"] is True
    assert span.attributes["toolguard.call.outcome"] == "ok"
    assert "toolguard.run.id" not in span.attributes
    assert len(warnings(logged)) == 1


@SHAPES
def test_warn_logs_once_for_each_tool_and_names_the_cure(shape, logged):
    tool, result = tools()[shape]
    for _ in range(5):
        result(tool("x"))
    (record,) = warnings(logged)
    text = record.getMessage()
    assert text.startswith(f"{shape} was called outside a run")
    assert "toolguard.run(" in text
    assert "run.bind(fn)" in text
    assert "outside_run" in text
    other, result = tools()[shape]
    result(other("x"))
    assert len(warnings(logged)) == 2


@pytest.mark.parametrize("policy", ["warn", "allow"])
@SHAPES
def test_an_exception_outside_a_run_is_the_functions_own(shape, policy):
    toolguard.configure({"outside_run": policy})
    error = KeyError("x")
    with pytest.raises(KeyError) as caught:
        call(shape, error)
    assert caught.value is error


@SHAPES
def test_allow_is_the_bare_function_without_span_charge_or_warning(shape, spans, logged):
    toolguard.configure({"outside_run": "allow"})
    value = object()
    tool, result = tools()[shape]
    for _ in range(60):
        assert result(tool(value)) is value
    assert spans.all() == ()
    assert warnings(logged) == []


@SHAPES
def test_refuse_executes_nothing_and_returns_a_refusal(shape, spans):
    toolguard.configure({"outside_run": "refuse"})
    refusal = assert_refused(call(shape, AssertionError("it ran")), "outside_run")
    assert refusal.run_id is None
    assert (refusal.used, refusal.limit, refusal.rule) == (None, None, None)
    assert refusal.retry == "never"
    assert refusal.tool == shape
    assert refusal.startswith(f"{shape} did NOT execute: ")
    (span,) = spans.calls()
    assert span.attributes["toolguard.refused"] is True
    assert span.attributes["toolguard.executed"] is False
    assert span.attributes["toolguard.refusal.reason"] == "outside_run"
    assert span.attributes["toolguard.run.missing"] is True


def test_refuse_still_runs_everything_inside_a_run():
    toolguard.configure({"outside_run": "refuse"})
    with toolguard.run() as run:
        for shape in tools():
            assert call(shape, "x") == "x"
    assert run.usage().executed == 5
    assert isinstance(call("plain", "x"), Refusal)


@pytest.mark.parametrize("policy", ["warn", "allow", "refuse"])
@SHAPES
def test_arguments_that_do_not_bind_raise_the_functions_type_error(shape, policy, spans):
    toolguard.configure({"outside_run": policy})
    tool, _ = tools()[shape]
    with pytest.raises(TypeError, match="argument"):
        tool()
    assert spans.all() == ()


def test_nothing_limits_calls_outside_a_run():
    tool, _ = tools()["plain"]
    assert [tool(7) for _ in range(1500)] == [7] * 1500


def test_the_policy_in_force_is_the_one_of_the_moment():
    tool, _ = tools()["plain"]
    for policy, refused in (("refuse", True), ("allow", False), ("refuse", True), ("warn", False)):
        toolguard.configure({"outside_run": policy})
        assert isinstance(tool("x"), Refusal) is refused, policy


def test_an_unbound_thread_of_a_run_is_outside_it_with_one_warning(spans, logged):
    tool, _ = tools()["plain"]
    with toolguard.run() as run, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tool, range(40))) == list(range(40))
        assert run.usage().executed == 0
    assert {span.attributes["toolguard.run.missing"] for span in spans.calls()} == {True}
    assert 1 <= len(warnings(logged)) <= 4  # of calls that race for the first one each may warn


async def test_an_unbound_executor_of_a_run_is_outside_it_and_refuse_says_so():
    toolguard.configure({"outside_run": "refuse"})
    tool, _ = tools()["plain"]
    with toolguard.run() as run:
        loop = asyncio.get_running_loop()
        assert_refused(await loop.run_in_executor(None, tool, "x"), "outside_run")
        assert await loop.run_in_executor(None, run.bind(tool), "x") == "x"
        assert await asyncio.to_thread(tool, "x") == "x"
    assert run.usage().executed == 2


def test_what_a_tool_outside_a_run_calls_is_outside_too_and_nested_under_its_span(spans):
    inner, _ = tools()["plain"]

    @metered(kind="read", name="outer")
    def outer(value):
        return inner(value)

    assert outer("x") == "x"
    child, parent = spans.calls()
    assert child.parent.span_id == parent.context.span_id
    assert child.attributes["toolguard.run.missing"] is True


def test_a_run_that_a_tool_opens_for_itself_is_a_run():
    inner, _ = tools()["plain"]

    @metered(kind="read", name="agent")
    def agent():
        with toolguard.run(per_tool=1):
            return [isinstance(inner(i), Refusal) for i in range(3)]

    assert agent() == [False, True, True]


def test_many_threads_outside_a_run_are_refused_without_exception():
    toolguard.configure({"outside_run": "refuse"})
    tool, _ = tools()["plain"]
    barrier, results = threading.Barrier(8), []

    def work():
        barrier.wait()
        results.extend([tool(i) for i in range(200)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.reason for result in results] == ["outside_run"] * 1600


def test_a_failing_log_handler_does_not_turn_a_warning_into_an_exception(monkeypatch):
    def fail(_record):
        raise OSError("the log is full")

    monkeypatch.setattr(logging.getLogger("toolguard"), "filters", [fail])
    assert call("plain", "x") == "x"
    toolguard.configure({"outside_run": "refuse"})
    assert_refused(call("plain", "x"), "outside_run")
