"""Both metrics: exact numbers, whatever became of the runs that made them."""

import asyncio
import gc
import threading

import pytest
from opentelemetry.sdk.metrics.export import Histogram, Sum

import toolguard
from tests.limits import QUIET
from toolguard import _names, _tree, metered
from toolguard.testing import FakeClock, isolated

CALLS, DURATION = "toolguard.tool.calls", "gen_ai.execute_tool.duration"
BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Metrics:
    """What the process has counted, one tool at a time: other tests count too."""

    def __init__(self, reader):
        self.reader = reader

    def metric(self, name):
        data = self.reader.get_metrics_data()
        return next(
            (
                (scope.scope, metric)
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name == name
            ),
            (None, None),
        )

    def points(self, name, tool):
        _, metric = self.metric(name)
        return [p for p in metric.data.data_points if p.attributes["gen_ai.tool.name"] == tool] if metric else []

    def calls(self, tool):
        found = {}
        for point in self.points(CALLS, tool):
            attributes = point.attributes
            key = attributes["toolguard.tool.kind"], attributes["toolguard.call.outcome"]
            reason = attributes.get("toolguard.refusal.reason")
            found[(*key, reason) if reason else key] = point.value
        return found

    def seconds(self, tool):
        return {
            (p.attributes.get("gen_ai.agent.name"), p.attributes.get("error.type")): (p.count, p.sum)
            for p in self.points(DURATION, tool)
        }


@pytest.fixture
def measured(metric_reader):
    return Metrics(metric_reader)


@pytest.fixture
def name(request):
    """Return a tool name that no other test counts under."""
    return f"t{abs(hash(request.node.nodeid)) % 10**12}"


@pytest.fixture
def tool(name):
    @metered(kind="read", name=name)
    def made(error=None):
        if error is not None:
            raise error
        return 1

    return made


# The counter


def test_the_counter_is_a_monotonic_sum_of_calls_from_our_scope(measured, tool):
    with toolguard.run():
        tool()
    scope, metric = measured.metric(CALLS)
    assert (scope.name, scope.version, scope.schema_url or None) == ("toolguard", toolguard.__version__, None)
    assert metric.unit == "{call}"
    assert isinstance(metric.data, Sum)
    assert metric.data.is_monotonic


def test_each_outcome_is_counted_apart(measured, tool, name):
    @metered(kind="send", name=name + "s")
    def stream():
        yield 1
        yield 2

    with toolguard.run(per_tool=8, **QUIET) as run:
        tool()
        tool()
        for error in (ValueError(), KeyError()):
            with pytest.raises(type(error)):
                tool(error)
        with pytest.raises(KeyboardInterrupt):
            tool(KeyboardInterrupt())
        tool(toolguard.NotExecuted())
        list(stream())
        closed = stream()
        next(closed)
        closed.close()
        abandoned = stream()
        next(abandoned)
        del abandoned
        gc.collect()
        for _ in range(4):
            tool()
        run.stop("over")
        tool()
        list(stream())
    assert measured.calls(name) == {
        ("read", "ok"): 5,
        ("read", "error"): 2,
        ("read", "cancelled"): 1,
        ("read", "not_executed", "gate"): 1,
        ("read", "refused", "per_tool"): 1,
        ("read", "refused", "stop"): 1,
    }
    assert measured.calls(name + "s") == {
        ("send", "ok"): 1,
        ("send", "closed"): 1,
        ("send", "abandoned"): 1,
        ("send", "refused", "stop"): 1,
    }


def test_a_point_has_no_attribute_that_names_a_run_a_session_or_content(measured, tool, name):
    with toolguard.run("agent", session="s", per_tool=1):
        tool()
        tool()
    ok, refused = sorted(measured.points(CALLS, name), key=lambda p: p.attributes["toolguard.call.outcome"])
    common = {"gen_ai.tool.name": name, "toolguard.tool.kind": "read"}
    assert dict(ok.attributes) == {**common, "toolguard.call.outcome": "ok"}
    assert dict(refused.attributes) == {
        **common,
        "toolguard.call.outcome": "refused",
        "toolguard.refusal.reason": "per_tool",
    }


def test_calls_of_an_open_run_are_counted_already(measured, tool, name):
    with toolguard.run():
        tool()
        assert measured.calls(name) == {("read", "ok"): 1}
        tool()
        assert measured.calls(name) == {("read", "ok"): 2}
    assert measured.calls(name) == {("read", "ok"): 2}


def test_calls_of_runs_that_are_gone_stay_counted(measured, tool, name):
    for _ in range(30):
        with toolguard.run():
            tool()
    gc.collect()
    assert measured.calls(name) == {("read", "ok"): 30}


def test_calls_that_end_after_their_run_was_left_and_forgotten_are_counted(measured, tool, name):
    def bound():
        with toolguard.run(per_tool=2) as run:
            return run.bind(tool)

    late = bound()
    for _ in range(3):
        late()
    del late
    gc.collect()
    assert measured.calls(name) == {("read", "ok"): 2, ("read", "refused", "per_tool"): 1}


def test_a_stream_that_outlives_its_run_is_counted_when_it_is_abandoned(measured, name):
    @metered(kind="read", name=name)
    def stream():
        yield 1

    with toolguard.run():
        made = stream()
        next(made)
    assert measured.calls(name) == {}
    del made
    gc.collect()
    assert measured.calls(name) == {("read", "abandoned"): 1}


def test_calls_outside_a_run_of_the_harness_and_of_nested_runs_are_counted(measured, tool, name):
    tool()
    with toolguard.uncounted():
        tool()
    with toolguard.run(), toolguard.uncounted():
        tool()
    with toolguard.run(), toolguard.run():
        tool()
    with isolated({"local": [name]}), toolguard.run(per_tool=1):
        tool()
        tool()
    with isolated({"outside_run": "refuse"}):
        tool()
    with isolated({"outside_run": "allow"}):
        tool()  # the bare function: nothing is counted
    gc.collect()
    assert measured.calls(name) == {("read", "ok"): 6, ("read", "refused", "outside_run"): 1}


def test_a_call_that_cannot_bind_is_no_call(measured, tool, name):
    with toolguard.run(), pytest.raises(TypeError):
        tool(1, 2, 3)
    assert measured.calls(name) == {}


def test_observed_refusals_are_executed_calls(measured, tool, name):
    with toolguard.run(per_tool=1, mode="observe"):
        tool()
        tool()
    assert measured.calls(name) == {("read", "ok"): 2}


def test_calls_of_many_threads_and_runs_are_all_counted_and_a_number_never_goes_down(measured, tool, name):
    threads, runs, calls = 8, 20, 10
    start, over = threading.Barrier(threads + 1), threading.Event()

    def work():
        start.wait()
        for _ in range(runs):
            with toolguard.run(per_tool=calls - 1, **QUIET):
                for _ in range(calls):
                    tool()

    seen = []

    def watch():
        start.wait()
        while not over.is_set():
            seen.append(measured.calls(name).get(("read", "ok"), 0))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    watcher = threading.Thread(target=watch)
    for thread in (*workers, watcher):
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    watcher.join()
    gc.collect()
    total = threads * runs
    assert measured.calls(name) == {("read", "ok"): total * (calls - 1), ("read", "refused", "per_tool"): total}
    assert seen == sorted(seen)
    assert len(seen) > 0


async def test_calls_of_many_tasks_are_all_counted(measured, name):
    @metered(kind="read", name=name)
    async def made(n):
        await asyncio.sleep(0)
        if n % 2:
            raise ValueError
        return n

    with toolguard.run(per_tool=60, aggregate=0, refused_calls=0):
        await asyncio.gather(*(made(n) for n in range(100)), return_exceptions=True)
    assert measured.calls(name) == {("read", "ok"): 30, ("read", "error"): 30, ("read", "refused", "per_tool"): 40}


def test_a_refused_tool_that_never_ran_has_no_other_point(measured, tool, name):
    with toolguard.run() as run:
        run.stop("x")
        tool()
    assert measured.calls(name) == {("read", "refused", "stop"): 1}


def test_totals_that_are_read_from_inside_a_count_are_those_from_before_it(measured, tool, name):
    with toolguard.run():
        tool()
    with _tree.SECTION.lock:
        _tree.SECTION.inside = True  # as a finaliser finds it that runs in the middle of an admission
        try:
            before = measured.calls(name)
        finally:
            _tree.SECTION.inside = False
    assert before == {("read", "ok"): 1}
    with toolguard.run():
        tool()
    assert measured.calls(name) == {("read", "ok"): 2}


# The histogram


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def slow(name, clock):
    """Return a tool that takes as many seconds as it is told, on the clock of the test."""

    @metered(kind="read", name=name)
    def made(seconds, error=None):
        clock.advance(seconds)
        if error is not None:
            raise error
        return {"error": "no"} if seconds == 4 else None

    return made


def test_the_histogram_has_the_unit_and_the_bounds_of_the_conventions(measured, slow, clock, name):
    with isolated(clock=clock), toolguard.run():
        slow(0.25)
    _, metric = measured.metric(DURATION)
    assert metric.unit == "s"
    assert isinstance(metric.data, Histogram)
    (point,) = measured.points(DURATION, name)
    assert tuple(point.explicit_bounds) == BOUNDS
    assert point.bucket_counts[BOUNDS.index(0.32)] == 1
    assert sum(point.bucket_counts) == 1


def test_a_call_takes_exactly_the_seconds_between_its_admission_and_its_end(measured, slow, clock, name):
    with isolated(clock=clock), toolguard.run():
        clock.advance(100)
        slow(0.25)
        clock.advance(100)
        slow(2)
    (point,) = measured.points(DURATION, name)
    assert (point.count, point.sum, point.min, point.max) == (2, 2.25, 0.25, 2)
    assert dict(point.attributes) == {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}


def test_seconds_are_kept_apart_by_agent_and_by_what_failed(measured, slow, clock, name):
    with isolated(clock=clock):
        with toolguard.run():
            slow(1)
            slow(4)  # its value reports a failure
            for error in (ValueError(), OSError(), ValueError()):
                with pytest.raises(type(error)):
                    slow(8, error)
            with pytest.raises(KeyboardInterrupt):
                slow(16, KeyboardInterrupt())
        with toolguard.run("helper"):
            slow(2)
    assert measured.seconds(name) == {
        (None, None): (2, 17.0),
        (None, "tool_error"): (1, 4.0),
        (None, "ValueError"): (2, 16.0),
        (None, "OSError"): (1, 8.0),
        ("helper", None): (1, 2.0),
    }


def test_what_did_not_execute_took_no_time(measured, slow, clock, name):
    with isolated(clock=clock), toolguard.run(per_tool=1) as run:
        slow(1, toolguard.NotExecuted())
        assert measured.seconds(name) == {}
        slow(1)
        slow(1)
        run.stop("x")
        slow(1)
    assert measured.seconds(name) == {(None, None): (1, 1.0)}


def test_a_coroutine_takes_time_from_its_first_step_and_a_stream_until_its_end(measured, clock, name):
    @metered(kind="read", name=name + "c")
    async def coroutine():
        clock.advance(2)
        await asyncio.sleep(0)
        clock.advance(3)

    @metered(kind="read", name=name + "g")
    def stream():
        clock.advance(1)
        yield 1
        clock.advance(1)

    with isolated(clock=clock), toolguard.run():
        made, streaming = coroutine(), stream()
        clock.advance(50)
        asyncio.run(made)
        next(streaming)
        clock.advance(10)
        list(streaming)
        half = stream()
        next(half)
        clock.advance(4)
        half.close()
    assert measured.seconds(name + "c") == {(None, None): (1, 5.0)}
    assert measured.seconds(name + "g") == {(None, None): (2, 17.0)}


def test_a_clock_that_goes_back_makes_no_negative_duration(measured, slow, clock, name):
    with isolated(clock=clock), toolguard.run():
        slow(-5)
    assert measured.seconds(name) == {(None, None): (1, 0.0)}


def test_calls_outside_a_run_are_timed_too(measured, slow, clock, name):
    with isolated(clock=clock):
        slow(2)
        with toolguard.uncounted():
            slow(1)
    assert measured.seconds(name) == {(None, None): (2, 3.0)}


def test_no_duration_is_lost_between_two_collections_however_many_there_are(measured, slow, clock, name):
    calls = 5000
    with isolated(clock=clock), toolguard.run(per_tool=0, aggregate=0, adaptive_soft=0, **QUIET):
        for _ in range(calls):
            slow(0.5)
    assert measured.seconds(name) == {(None, None): (calls, calls * 0.5)}


def test_where_the_histogram_is_switched_off_calls_are_counted_and_not_timed(measured, slow, clock, name):
    with isolated({"telemetry": {"duration_histogram": False}}, clock=clock):
        with toolguard.run():
            slow(1)
        slow(1)
    assert measured.seconds(name) == {}
    assert measured.calls(name) == {("read", "ok"): 2}


def test_a_duration_leads_to_the_span_of_its_call(measured, spans, slow, clock, name):
    with isolated(clock=clock), toolguard.run():
        slow(1)
    (point,) = measured.points(DURATION, name)
    (call,) = spans.calls()
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (call.context.trace_id, call.context.span_id)
    assert exemplar.value == 1.0


# The table


def test_the_table_names_both_metrics_with_every_attribute_that_is_seen(measured, slow, clock, name):
    with isolated(clock=clock), toolguard.run("helper", per_tool=2):
        slow(1)
        with pytest.raises(ValueError, match="no"):
            slow(1, ValueError("no"))
        slow(1)
    for row in _names.METRICS:
        _, metric = measured.metric(row.name)
        assert metric.unit == row.unit
        seen = {attribute for point in measured.points(row.name, name) for attribute in point.attributes}
        assert seen == set(row.attributes)
