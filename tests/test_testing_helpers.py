"""`toolguard.testing`: a test apart, a clock that stands still, and assertions that say what happened."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import toolguard
from toolguard import ConfigError, current_run, metered, registered
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated


@metered(kind="read")
def search(query: object = None) -> object:
    """Search."""
    return query


def names():
    return [spec.name for spec in registered()]


def define(name):
    """Register a tool that stays registered, as one of a module does."""

    def tool():
        return name

    tool.__qualname__ = name
    return metered(kind="read", name=name)(tool)


# isolated -------------------------------------------------------------------------------------------------------------


class Boom(BaseException):
    pass


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, Boom])
def test_everything_is_restored_whatever_happens_inside(error):
    toolguard.configure({"limits": {"per_tool": 3}})
    settings, before = toolguard.settings(), names()
    with toolguard.run(session="s") as earlier:
        pass

    def inside():
        with isolated({"limits": {"per_tool": 1}}, clock=FakeClock(7.0)):
            define("of_the_block")
            toolguard.configure({"limits": {"per_tool": 2}})
            toolguard.run(session="s").__enter__()  # left open
            toolguard.uncounted().__enter__()
            if error:
                raise error

    with toolguard.run() as run:
        context = otel_context.get_current()
        if error:
            with pytest.raises(error):
                inside()
        else:
            inside()
        assert toolguard.settings() is settings
        assert names() == before
        assert current_run() is run
        assert otel_context.get_current() == context
        assert toolguard.run().clock() != 7.0
        with toolguard.run(session="s") as later:
            assert later.ledger.session is earlier.ledger.session
        search()
        assert run.usage().executed == 1


def test_inside_is_no_run_not_even_one_that_opentelemetry_carries():
    with toolguard.run() as run, isolated():
        assert current_run() is None
        search()
        assert run.usage().executed == 0

    def carried():
        token = otel_context.attach(context)
        try:
            assert current_run() is run
            with isolated():
                assert current_run() is None
            return current_run()
        finally:
            otel_context.detach(token)

    with run:
        context = otel_context.get_current()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(carried).result() is run


def test_inside_calls_are_counted_also_where_the_test_is_not():
    with toolguard.uncounted(), isolated(), toolguard.run() as run:
        search()
        assert run.usage().executed == 1


def test_inside_is_a_copy_of_the_registry():
    with isolated():
        define("only_outer")
        with isolated():
            assert "search" in names()
            assert "only_outer" in names()
            define("only_inner")
            assert "only_inner" in names()
        assert "only_inner" not in names()
        assert "only_outer" in names()
    assert "only_outer" not in names()


def failing():
    """Return a tool that fails, and the list of its executions."""
    ran = []

    @metered(kind="read")
    def fail(query):
        ran.append(query)
        raise OSError("x")

    return fail, ran


def test_inside_no_session_is_remembered_and_after_it_those_of_before_are():
    fail, ran = failing()

    def twice():
        with toolguard.run(session="s", tenant="t"):
            for _ in range(2):
                with pytest.raises(OSError, match="x"):
                    fail("a")

    def third():
        with toolguard.run(session="s", tenant="t"):
            return fail("a")

    twice()
    with isolated():
        twice()
        assert_refused(third(), "repeat_failure")
        with isolated():
            twice()
        assert len(ran) == 6
    # The refusal of the block was not this session's: its first one is, and then one call is tried.
    assert_refused(third(), "repeat_failure")
    with pytest.raises(OSError, match="x"):
        third()
    assert_refused(third(), "repeat_failure")
    assert len(ran) == 7


def test_a_run_that_is_open_around_the_block_keeps_its_session():
    fail, _ = failing()
    with toolguard.run(session="s") as run:
        for _ in range(2):
            with pytest.raises(OSError, match="x"):
                fail("a")
        with isolated(), toolguard.run(session="s") as inner, pytest.raises(OSError, match="x"):
            fail("a")
        assert_refused(fail("a"), "repeat_failure")
        with toolguard.run(session="s") as other:
            assert other.ledger.session is run.ledger.session
    assert inner.ledger.session is not run.ledger.session


def test_inside_is_no_file_and_no_environment(tmp_path, monkeypatch):
    (tmp_path / "toolguard.toml").write_text("[limits]\nper_tool = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLGUARD_DELIVERY", "1")
    toolguard.configure()
    assert toolguard.settings().limits["per_tool"] == 1
    with isolated():
        settings = toolguard.settings()
        assert (settings.source, dict(settings.limits), dict(settings.environment)) == ("configure(...)", {}, {})
        with toolguard.run():
            search(1)
            assert_executed(search(2))
    with isolated({"limits": {"per_tool": 2}}):
        assert toolguard.settings().limits == {"per_tool": 2}
        assert toolguard.settings().environment == {}
    assert toolguard.settings().limits["per_tool"] == 1


def test_a_source_that_cannot_be_used_is_an_error_that_changes_nothing():
    settings, before = toolguard.settings(), names()
    with toolguard.run() as run:
        with pytest.raises(ConfigError, match=r"did you mean limits\?"), isolated({"limit": {}}):
            pytest.fail("it was entered")
        assert current_run() is run
    assert toolguard.settings() is settings
    assert names() == before


def test_nested_blocks_restore_one_another():
    with isolated({"limits": {"per_tool": 1}}, clock=FakeClock(1.0)):
        with toolguard.run() as run:
            with isolated({"limits": {"per_tool": 2}}, clock=FakeClock(2.0)):
                assert (toolguard.run().clock(), toolguard.settings().limits["per_tool"]) == (2.0, 2)
                with isolated():
                    assert toolguard.settings().limits == {}
                assert (toolguard.run().clock(), toolguard.settings().limits["per_tool"]) == (2.0, 2)
                assert current_run() is None
            assert current_run() is run
        assert (toolguard.run().clock(), toolguard.settings().limits["per_tool"]) == (1.0, 1)


def test_each_block_hears_of_a_call_outside_a_run_anew(logged):
    for _ in range(2):
        with isolated():
            search()
            search()
    assert len([record for record in logged.records if "outside a run" in record.getMessage()]) == 2


def test_the_span_around_the_block_stays_the_parent(spans):
    with trace.get_tracer("test").start_as_current_span("around") as around, isolated(), toolguard.run():
        pass
    assert spans.runs()[0].parent.span_id == around.get_span_context().span_id


def test_a_block_may_be_left_in_another_context_than_it_was_entered_in(logged):
    settings, before = toolguard.settings(), names()
    block = isolated({"limits": {"per_tool": 1}})
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert toolguard.settings() is settings
    assert names() == before
    assert logged.records == []


async def test_a_block_around_awaits_keeps_its_settings():
    with isolated({"limits": {"per_tool": 1}}):
        await asyncio.sleep(0)
        assert toolguard.settings().limits == {"per_tool": 1}


def test_a_decorated_test_runs_apart():
    @isolated({"limits": {"per_tool": 1}})
    def test():
        with toolguard.run():
            return [search(1), search(2)]

    first, second = test()
    assert_executed(first)
    assert_refused(second, "per_tool")
    first, second = test()
    assert_executed(first)


# FakeClock ------------------------------------------------------------------------------------------------------------


def test_the_clock_stands_still_until_it_is_told_to_go_on():
    clock = FakeClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.advance(2.5)
    assert clock() == 7.5
    assert clock.now == 7.5
    assert FakeClock()() == 0.0


def test_the_clock_times_the_runs_that_start_inside(metric_reader):
    def recorded():
        data = metric_reader.get_metrics_data()
        return {
            point.attributes["gen_ai.tool.name"]: point.sum
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "gen_ai.execute_tool.duration"
            for point in metric.data.data_points
        }

    clock = FakeClock()

    @metered(kind="read", name="takes_three_seconds")
    def slow():
        clock.advance(3.0)

    with isolated(clock=clock), toolguard.run():
        slow()
    assert recorded()["takes_three_seconds"] == 3.0


# Assertions -----------------------------------------------------------------------------------------------------------


def test_assert_refused_returns_the_refusal():
    with toolguard.run(per_tool=1):
        search(1)
        refusal = search(2)
    assert assert_refused(refusal) is refusal
    assert assert_refused(refusal, "per_tool") is refusal


def test_assert_refused_says_what_happened_instead():
    with pytest.raises(AssertionError, match="the call executed and returned list"):
        assert_refused([1])
    with pytest.raises(AssertionError, match="the call executed and returned str"):
        assert_refused("search did NOT execute: but this is a text of its own")
    with toolguard.run(per_tool=1):
        search(1)
        refusal = search(2)
    with pytest.raises(AssertionError, match="expected a refusal by aggregate, got one by per_tool: search did NOT"):
        assert_refused(refusal, "aggregate")


def test_assert_executed_takes_everything_but_a_refusal():
    for result in (None, "", 0, "did NOT execute", KeyError()):
        assert_executed(result)
    with toolguard.run(per_tool=1):
        search(1)
        refusal = search(2)
    with pytest.raises(AssertionError, match="expected the call to execute, but it was refused: search did NOT"):
        assert_executed(refusal)
