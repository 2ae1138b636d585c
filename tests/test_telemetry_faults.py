"""Telemetry may fail in any way: results, exceptions and charges are those of a run without it."""

import asyncio
import logging
import threading
from contextlib import ExitStack, contextmanager

import pytest
from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler

import toolguard
from toolguard import _session, _telemetry, metered
from toolguard._telemetry import Scope

RESULT = object()
ERROR = RuntimeError("the tool's own")


class FaultError(Exception):
    pass


def broken(*_args, **_kwargs):
    raise FaultError


@metered(kind="read", name="tool")
def plain(fail=False):
    if fail:
        raise ERROR
    return RESULT


@metered(kind="read", name="tool")
async def coroutine(fail=False):
    await asyncio.sleep(0)
    if fail:
        raise ERROR
    return RESULT


@metered(kind="read", name="tool")
def generator(fail=False):
    yield RESULT
    if fail:
        raise ERROR


@metered(kind="read", name="tool")
async def async_generator(fail=False):
    yield RESULT
    await asyncio.sleep(0)
    if fail:
        raise ERROR


async def last(stream):
    return [item async for item in stream][-1]


FORMS = {
    "sync": plain,
    "async": lambda **kwargs: asyncio.run(coroutine(**kwargs)),
    "generator": lambda **kwargs: list(generator(**kwargs))[-1],
    "async generator": lambda **kwargs: asyncio.run(last(async_generator(**kwargs))),
}


def history(form):
    """Make a call that executes, one that raises, one whose value fails and one that is refused; return what was seen."""
    call = FORMS[form]
    ERROR.__traceback__ = None
    with toolguard.run("helper", run_id="r", session="s", per_tool=2) as run:
        assert call() is RESULT
        with pytest.raises(RuntimeError) as caught:
            call(fail=True)
        assert caught.value is ERROR
        refused = call()
        assert type(refused) is toolguard.Refusal
        run.stop("over")
        stopped = call()
    usage = run.usage()
    assert _session.CURRENT.get() is None
    return usage.to_dict(), refused.to_dict(), stopped.to_dict(), run.stop_reason


@contextmanager
def scoped(tracer=None, duration=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_session, "scope", lambda: Scope(tracer, duration))
        yield


def provider_with(*processors, **options):
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


# The faults: each is a context manager in which one thing of telemetry is broken


class BrokenOnStart(SpanProcessor):
    on_start = broken


class BrokenOnEnd(SpanProcessor):
    on_end = broken


class BrokenSampler(Sampler):
    should_sample = broken

    def get_description(self):
        return "broken"


class BrokenExporter(SpanExporter):
    export = broken


class BrokenTracer:
    """Starts real spans with one broken method, or none at all."""

    def __init__(self, method=None):
        self.method = method
        self.tracer = TracerProvider(shutdown_on_exit=False).get_tracer("toolguard")

    def start_span(self, *args, **kwargs):
        if self.method is None:
            raise FaultError
        span = self.tracer.start_span(*args, **kwargs)
        setattr(span, self.method, broken)
        return span


class BrokenHistogram:
    record = broken


@contextmanager
def broken_context(method):
    """Break one method of the context that all of OpenTelemetry stands on."""

    class Broken(ContextVarsRuntimeContext):
        pass

    runtime = Broken()
    working = otel_context._RUNTIME_CONTEXT
    for name in ("attach", "detach", "get_current"):
        setattr(runtime, name, broken if name == method else getattr(working, name))
    before = working.get_current()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otel_context, "_RUNTIME_CONTEXT", runtime)
        tracer = TracerProvider(shutdown_on_exit=False).get_tracer("toolguard")
        try:
            with scoped(tracer):
                yield
        finally:
            working.attach(before)


@contextmanager
def broken_set_value():
    with pytest.MonkeyPatch.context() as patch, scoped(TracerProvider(shutdown_on_exit=False).get_tracer("toolguard")):
        patch.setattr(otel_context, "set_value", broken)
        patch.setattr(trace, "set_span_in_context", broken)
        yield


@contextmanager
def broken_lookup(module, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_telemetry, "_scope", Scope(None, None))
        patch.setattr(module, name, broken)
        yield


@contextmanager
def broken_meter():
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    with pytest.MonkeyPatch.context() as patch:
        meter = provider.get_meter("toolguard")
        meter.create_histogram = meter.create_observable_counter = broken
        patch.setattr(metrics, "get_meter", lambda *_: meter)
        patch.setattr(_telemetry, "_scope", Scope(None, None))
        patch.setattr(_session, "_watched", False)
        yield


@contextmanager
def shut_down():
    provider = provider_with(SimpleSpanProcessor(BrokenExporter()), BatchSpanProcessor(BrokenExporter()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = meters.get_meter("toolguard").create_histogram("h")
    provider.shutdown()
    meters.shutdown()
    with scoped(provider.get_tracer("toolguard"), histogram):
        yield


def traced_by(*processors, **options):
    return scoped(provider_with(*processors, **options).get_tracer("toolguard"))


FAULTS = {
    "processor on_start": lambda: traced_by(BrokenOnStart()),
    "processor on_end": lambda: traced_by(BrokenOnEnd()),
    "sampler": lambda: traced_by(sampler=BrokenSampler()),
    "start_span": lambda: scoped(BrokenTracer()),
    **{
        method: lambda method=method: scoped(BrokenTracer(method))
        for method in (
            "set_attribute",
            "set_attributes",
            "set_status",
            "add_event",
            "end",
            "is_recording",
            "get_span_context",
        )
    },
    "context attach": lambda: broken_context("attach"),
    "context detach": lambda: broken_context("detach"),
    "context get_current": lambda: broken_context("get_current"),
    "context set_value": broken_set_value,
    "get_tracer": lambda: broken_lookup(trace, "get_tracer"),
    "get_tracer_provider": lambda: broken_lookup(trace, "get_tracer_provider"),
    "get_meter_provider": lambda: broken_lookup(metrics, "get_meter_provider"),
    "instruments": broken_meter,
    "histogram": lambda: scoped(None, BrokenHistogram()),
    "exporter": lambda: traced_by(SimpleSpanProcessor(BrokenExporter())),
    "shut down": shut_down,
}
SILENT = {"exporter", "shut down", "context detach", "set_attributes"}
"""Faults that the SDK swallows itself, or that a call without further attributes does not meet."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(_telemetry, "_complained", set())


def complaints(caplog):
    return [r.args[0] for r in caplog.records if r.name == "toolguard" and r.msg.startswith("OpenTelemetry failed in")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_results_exceptions_and_charges_are_those_of_a_run_without_telemetry(fault, form, logged):
    with scoped():
        expected = history(form)
    assert complaints(logged) == []
    with FAULTS[fault]():
        assert history(form) == expected
        _drain_durations()
    said = complaints(logged)
    assert len(said) == len(set(said))
    if fault not in SILENT:
        assert said != []


def _drain_durations():
    while _telemetry._record_next():
        pass


@pytest.mark.parametrize("form", FORMS)
def test_a_failure_is_told_once_with_its_cause_however_often_it_happens(form, logged):
    with traced_by(BrokenOnStart()):
        for _ in range(5):
            history(form)
    (record,) = [r for r in logged.records if "OpenTelemetry failed" in r.message]
    assert record.levelno == logging.WARNING
    assert record.args == ("start_span",)
    assert record.exc_info[0] is FaultError


@pytest.mark.parametrize("fault", ["processor on_start", "end", "context attach", "histogram"])
def test_a_failure_harms_nothing_where_the_log_fails_too(fault, caplog):
    logger = logging.getLogger("toolguard")

    def fail(_record):
        raise FaultError

    with scoped():
        expected = history("sync")
    logger.addFilter(fail)
    try:
        with FAULTS[fault]():
            assert history("sync") == expected
    finally:
        logger.removeFilter(fail)


@pytest.mark.parametrize("method", ["set_attribute", "set_status", "add_event"])
def test_a_span_whose_attributes_or_events_fail_is_still_ended(method):
    ended = []

    class Watch(SpanProcessor):
        def on_end(self, span):
            ended.append(span.name)

    tracer = BrokenTracer(method)
    tracer.tracer = provider_with(Watch()).get_tracer("toolguard")
    with scoped(tracer):
        history("sync")
    assert ended == ["execute_tool tool"] * 4 + ["invoke_agent helper"]


def test_where_an_attribute_fails_the_status_and_the_event_are_kept():
    ended = []

    class Watch(SpanProcessor):
        def on_end(self, span):
            ended.append(span)

    tracer = BrokenTracer("set_attribute")
    tracer.tracer = provider_with(Watch()).get_tracer("toolguard")
    with scoped(tracer):
        history("sync")
    assert ended[1].status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in ended[1].events] == ["exception"]


def test_one_broken_processor_beside_a_working_one_costs_the_caller_nothing():
    with scoped():
        expected = history("sync")
    for broken_one in (BrokenOnStart(), BrokenOnEnd()):
        with traced_by(broken_one, SpanProcessor()):
            assert history("sync") == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through_telemetry_and_the_run_is_left(error):
    class Ending(SpanProcessor):
        def on_end(self, span):
            if span.name.startswith("execute_tool"):
                raise error

    with traced_by(Ending()), toolguard.run() as run:
        with pytest.raises(error):
            plain()
        assert run.usage().executed == 1
    assert toolguard.current_run() is None
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_processor_that_calls_a_tool_is_a_caller_like_any():
    class Caller(SpanProcessor):
        depth = 0

        def on_end(self, span):
            if span.name == "execute_tool tool" and self.depth == 0:
                self.depth = 1
                self.got = plain()

    caller = Caller()
    with traced_by(caller), toolguard.run(per_tool=1) as run:
        assert plain() is RESULT
    assert isinstance(caller.got, toolguard.Refusal)
    assert (run.usage().executed, run.usage().refused) == (1, 1)


@pytest.mark.parametrize("form", FORMS)
def test_an_exporter_that_hangs_holds_up_no_call(form):
    inside, go_on = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans):
            inside.set()
            go_on.wait()
            return SpanExportResult.SUCCESS

    with scoped():
        expected = history(form)
    processor = BatchSpanProcessor(Hanging(), max_queue_size=4, max_export_batch_size=1, schedule_delay_millis=1)
    with ExitStack() as stack:
        stack.callback(processor.shutdown)
        stack.callback(go_on.set)
        stack.enter_context(traced_by(processor))
        with toolguard.run():
            plain()
        inside.wait()
        for _ in range(5):  # more spans than the queue holds
            assert history(form) == expected
        assert not go_on.is_set()


def test_spans_of_a_run_that_began_before_its_provider_was_shut_down_are_lost_alone():
    provider = provider_with(BatchSpanProcessor(BrokenExporter()))
    with scoped(provider.get_tracer("toolguard")), toolguard.run(per_tool=2) as run:
        assert plain() is RESULT
        provider.shutdown()
        assert plain() is RESULT
        assert isinstance(plain(), toolguard.Refusal)
    assert (run.usage().executed, run.usage().refused) == (2, 1)


def test_bound_functions_work_where_the_context_fails():
    for method in ("attach", "detach", "get_current"):
        with broken_context(method), toolguard.run() as run:
            bound = run.bind(plain)
            results = []
            thread = threading.Thread(target=lambda bound=bound, results=results: results.append(bound()))
            thread.start()
            thread.join()
            assert results == [RESULT]
            assert run.usage().executed == 1


def test_the_run_is_known_by_its_own_variable_where_the_context_fails():
    with broken_context("get_current"), toolguard.run() as run:
        assert toolguard.current_run() is run
    assert toolguard.current_run() is None
