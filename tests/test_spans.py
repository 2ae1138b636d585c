"""One span a call, with exactly the attributes of the table; one span a run."""

import asyncio
import contextlib
import gc
import threading
from dataclasses import replace
from types import MappingProxyType

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

import toolguard
from toolguard import _names, _telemetry, metered
from toolguard.testing import FakeClock, isolated

MISSING = object()


@metered(kind="read")
def look(what="x"):
    return what


@metered(kind="send")
def send(to="x"):
    return "sent"


@metered(kind="read")
def raises(error):
    raise error


@metered(kind="read")
def returns(value):
    return value


@metered(kind="read")
async def alook(what="x"):
    await asyncio.sleep(0)
    return what


@metered(kind="read")
def count(n):
    yield from range(n)


@metered(kind="read")
async def acount(n):
    for i in range(n):
        yield i


@metered(kind="read", delegate=True)
def delegate():
    with toolguard.run("specialist") as run:
        run.stop("enough")


class OurError(Exception):
    pass


async def collected(stream):
    return [item async for item in stream]


FORMS = {
    "sync": look,
    "async": lambda: asyncio.run(alook()),
    "generator": lambda: list(count(2)),
    "async generator": lambda: asyncio.run(collected(acount(2))),
}
NAMES = {"sync": "look", "async": "alook", "generator": "count", "async generator": "acount"}


def call_attributes(tool, run, **others):
    base = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "toolguard.tool.kind": "read",
        "toolguard.run.id": run.id,
        "toolguard.refused": False,
        "toolguard.executed": True,
        "toolguard.call.outcome": "ok",
    }
    if run.agent:
        base["gen_ai.agent.name"] = run.agent
    changed = {name.replace("__", "."): value for name, value in others.items()}
    return {name: value for name, value in {**base, **changed}.items() if value is not MISSING}


REFUSED = {
    "toolguard__refused": True,
    "toolguard__executed": False,
    "toolguard__call__outcome": "refused",
}


def only(spans):
    assert len(spans) == 1, [span.name for span in spans]
    return spans[0]


def plain(span):
    """Assert that nothing failed on this span."""
    assert span.status.status_code is StatusCode.UNSET
    assert span.status.description is None
    assert span.events == ()
    return span


# Executed calls


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("agent", [None, "helper"])
def test_an_executed_call_is_one_internal_span_with_exactly_the_attributes_of_the_table(spans, form, agent):
    with toolguard.run(agent) as run:
        FORMS[form]()
    span = plain(only(spans.calls()))
    items = {"toolguard__stream__items": 2} if "generator" in form else {}
    assert span.name == f"execute_tool {NAMES[form]}"
    assert dict(span.attributes) == call_attributes(NAMES[form], run, **items)
    assert span.kind is SpanKind.INTERNAL
    assert span.links == ()


def test_spans_come_from_a_scope_named_after_the_package_with_its_version_and_no_schema(spans):
    with toolguard.run():
        look()
    assert {(s.instrumentation_scope.name, s.instrumentation_scope.version) for s in spans.all()} == {
        ("toolguard", toolguard.__version__)
    }
    assert {s.instrumentation_scope.schema_url or None for s in spans.all()} == {None}
    assert len(spans.all()) == 2


def test_a_tool_with_a_name_of_its_own_is_traced_under_that_name(spans):
    @metered(kind="send", name="post-it")
    def anything():
        return 1

    with toolguard.run() as run:
        anything()
    span = only(spans.calls())
    assert span.name == "execute_tool post-it"
    assert dict(span.attributes) == call_attributes("post-it", run, toolguard__tool__kind="send")


def test_a_tool_decorated_twice_makes_one_span(spans):
    with toolguard.run():
        metered(kind="read")(look)()
    only(spans.calls())


def test_an_override_that_calls_its_overridden_tool_makes_a_span_for_each(spans):
    class Base:
        @metered(kind="read")
        def fetch(self):
            return 1

    class Derived(Base):
        @metered(kind="read", name="fetch_more")
        def fetch(self):
            return 1 + super().fetch()

    with toolguard.run() as run:
        assert Derived().fetch() == 2
    inner, outer = spans.calls()
    assert (inner.name, outer.name) == ("execute_tool fetch", "execute_tool fetch_more")
    assert inner.parent.span_id == outer.context.span_id
    assert run.usage().executed == 2


# Refused calls


def refuse_each_form(form):
    """Spend the one call that the run has, then ask again."""
    with toolguard.run("helper", hard_cap=1) as run:
        look("first")
        FORMS[form]()
    return run


@pytest.mark.parametrize("form", FORMS)
def test_a_refused_call_is_one_span_that_says_why_and_is_no_error(spans, form):
    run = refuse_each_form(form)
    span = plain(spans.calls()[1])
    (refusal,) = run.refusals
    assert dict(span.attributes) == call_attributes(
        NAMES[form],
        run,
        **REFUSED,
        toolguard__refusal__reason="hard_stop",
        toolguard__refusal__rule="explicit",
        toolguard__refusal__used=1,
        toolguard__refusal__limit=1,
        toolguard__refusal__retry="never",
        toolguard__refusal__message=str(refusal),
    )
    assert span.kind is SpanKind.INTERNAL
    assert len(spans.calls()) == 2


def test_a_refusal_by_a_wall_with_one_rule_has_no_rule_attribute(spans):
    with toolguard.run(per_tool=1) as run:
        look(1)
        refused = look(2)
    assert dict(spans.calls()[1].attributes) == call_attributes(
        "look",
        run,
        **REFUSED,
        toolguard__refusal__reason="per_tool",
        toolguard__refusal__used=1,
        toolguard__refusal__limit=1,
        toolguard__refusal__retry="different",
        toolguard__refusal__message=str(refused),
    )


def test_a_refusal_that_counted_nothing_has_no_numbers(spans):
    with toolguard.run() as run:
        run.stop("enough")
        refused = look()
    assert dict(only(spans.calls()).attributes) == call_attributes(
        "look",
        run,
        **REFUSED,
        toolguard__refusal__reason="stop",
        toolguard__refusal__retry="never",
        toolguard__refusal__message=str(refused),
    )


def test_refusals_are_errors_named_by_their_reason_where_the_operator_wants_them_red(spans):
    with isolated({"telemetry": {"refused_status": "error"}}), toolguard.run(per_tool=1):
        look(1)
        look(2)
    executed, refused = spans.calls()
    plain(executed)
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.status.description == "per_tool"
    assert refused.attributes["error.type"] == "per_tool"
    assert refused.events == ()


def test_a_refusal_that_a_body_passes_on_leaves_the_outer_span_executed_and_plain(spans):
    @metered(kind="read")
    def outer():
        return look()

    with toolguard.run(hard_cap=1) as run:
        outer()
    inner, out = spans.calls()
    assert inner.attributes["toolguard.refused"] is True
    assert dict(plain(out).attributes) == call_attributes("outer", run)


# Failures


@pytest.mark.parametrize("form", ["sync", "async", "generator", "async generator"])
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("no"), "ValueError"),
        (OurError("no"), f"{__name__}.OurError"),
        (asyncio.QueueEmpty(), "asyncio.queues.QueueEmpty"),
    ],
    ids=["builtin", "own", "library"],
)
def test_a_raised_exception_is_an_error_with_its_full_type_and_one_event_without_its_text(spans, form, error, name):
    @metered(kind="read", name="tool")
    def plain_tool():
        raise error

    @metered(kind="read", name="tool")
    async def coroutine_tool():
        raise error

    @metered(kind="read", name="tool")
    def generator_tool():
        yield 1
        raise error

    @metered(kind="read", name="tool")
    async def async_generator_tool():
        yield 1
        raise error

    calls = {
        "sync": plain_tool,
        "async": lambda: asyncio.run(coroutine_tool()),
        "generator": lambda: list(generator_tool()),
        "async generator": lambda: asyncio.run(collected(async_generator_tool())),
    }
    with toolguard.run() as run, pytest.raises(type(error)) as caught:
        calls[form]()
    assert caught.value is error
    span = only(spans.calls())
    items = {"toolguard__stream__items": 1} if "generator" in form else {}
    assert dict(span.attributes) == call_attributes("tool", run, toolguard__call__outcome="error", error__type=name, **items)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    (event,) = span.events
    assert event.name == "exception"
    assert dict(event.attributes) == {"exception.type": name}


def test_an_exception_whose_class_hides_its_name_is_still_the_callers(spans):
    class Hidden(type):
        @property
        def __module__(cls):
            raise OurError

    class OddError(Exception, metaclass=Hidden):
        pass

    error = OddError()
    with toolguard.run(), pytest.raises(OddError) as caught:
        raises(error)
    assert caught.value is error
    assert only(spans.calls()).attributes["error.type"] == "_OTHER"


@pytest.mark.parametrize("value", [{"error": "no"}, {"is_error": True}, {"isError": 1}, MappingProxyType({"error": "no"})])
def test_a_value_that_reports_a_failure_is_an_error_without_an_exception(spans, value):
    with toolguard.run(output_chars=0, result_chars=0) as run:
        assert returns(value) is value
    span = only(spans.calls())
    assert dict(span.attributes) == call_attributes("returns", run, toolguard__call__outcome="error", error__type="tool_error")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert span.events == ()


@pytest.mark.parametrize("value", [{"error": None}, {"error": ""}, {"errors": "no"}, "error", ["error"], None])
def test_a_value_that_reports_no_failure_is_none(spans, value):
    with toolguard.run():
        returns(value)
    assert plain(only(spans.calls())).attributes["toolguard.call.outcome"] == "ok"


def test_the_tool_says_what_a_failed_value_is(spans):
    @metered(kind="read", failed=lambda value: value < 0)
    def level(n):
        return n

    with toolguard.run():
        level(-1)
        level(1)
    assert [s.attributes["toolguard.call.outcome"] for s in spans.calls()] == ["error", "ok"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(0), asyncio.CancelledError()], ids=lambda e: type(e).__name__
)
def test_what_ends_the_program_or_the_task_is_a_cancelled_call_and_no_error(spans, error):
    with toolguard.run() as run, pytest.raises(type(error)) as caught:
        raises(error)
    assert caught.value is error
    assert dict(plain(only(spans.calls())).attributes) == call_attributes("raises", run, toolguard__call__outcome="cancelled")
    plain(only(spans.runs()))


def test_a_closed_stream_is_no_error(spans):
    with toolguard.run() as run:
        stream = count(5)
        next(stream)
        stream.close()
    assert dict(plain(only(spans.calls())).attributes) == call_attributes(
        "count", run, toolguard__call__outcome="closed", toolguard__stream__items=1
    )


def test_an_abandoned_stream_is_no_error(spans):
    with toolguard.run() as run:
        stream = count(5)
        next(stream)
        del stream
        gc.collect()
    assert dict(plain(only(spans.calls())).attributes) == call_attributes(
        "count", run, toolguard__call__outcome="abandoned", toolguard__stream__items=1
    )


def test_a_tool_that_says_nothing_ran_has_a_refused_span_without_its_words(spans):
    with toolguard.run() as run:
        refused = raises(toolguard.NotExecuted("ask the owner first"))
    assert "ask the owner first" in refused
    assert dict(plain(only(spans.calls())).attributes) == call_attributes(
        "raises",
        run,
        toolguard__refused=True,
        toolguard__executed=False,
        toolguard__call__outcome="not_executed",
        toolguard__refusal__reason="gate",
        toolguard__refusal__retry="different",
    )


def test_as_many_spans_are_marked_refused_as_the_run_counts(spans):
    with toolguard.run(per_tool=2) as run:
        for _ in range(3):
            look()
        raises(toolguard.NotExecuted("no"))
    refused = [span for span in spans.calls() if span.attributes["toolguard.refused"]]
    executed = [span for span in spans.calls() if span.attributes["toolguard.executed"]]
    assert (len(executed), len(refused)) == (run.usage().executed, run.usage().refused) == (2, 2)
    assert only(spans.runs()).attributes["toolguard.run.refusals"] == 2


async def test_a_call_that_waits_for_others_and_then_says_nothing_ran_leaves_the_current_span(spans, caplog):
    @metered(kind="send")
    async def pay(amount):
        await asyncio.create_task(asyncio.sleep(0))
        raise toolguard.NotExecuted

    with toolguard.run():
        before = trace.get_current_span()
        assert (await pay(3)).reason == "gate"
        assert trace.get_current_span() is before
    assert only(spans.calls()).attributes["toolguard.call.outcome"] == "not_executed"
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


# Where a call is made


def test_a_call_outside_a_run_says_that_the_run_is_missing(spans, logged):
    look()
    span = plain(only(spans.all()))
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "toolguard.tool.kind": "read",
        "toolguard.run.missing": True,
        "toolguard.refused": False,
        "toolguard.executed": True,
        "toolguard.call.outcome": "ok",
    }


def test_a_call_outside_a_run_that_is_refused_says_both(spans):
    with isolated({"outside_run": "refuse"}):
        refused = look()
    assert dict(plain(only(spans.all())).attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "toolguard.tool.kind": "read",
        "toolguard.run.missing": True,
        "toolguard.refused": True,
        "toolguard.executed": False,
        "toolguard.call.outcome": "refused",
        "toolguard.refusal.reason": "outside_run",
        "toolguard.refusal.retry": "never",
        "toolguard.refusal.message": str(refused),
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_call_outside_a_run_that_is_allowed_has_no_span(spans, form):
    with isolated({"outside_run": "allow"}):
        FORMS[form]()
    assert spans.all() == ()


@pytest.mark.parametrize("form", FORMS)
def test_a_call_of_the_harness_is_marked_and_not_charged(spans, form):
    with toolguard.run("helper") as run, toolguard.uncounted():
        FORMS[form]()
    items = {"toolguard__stream__items": 2} if "generator" in form else {}
    assert dict(plain(only(spans.calls())).attributes) == call_attributes(NAMES[form], run, toolguard__uncounted=True, **items)
    assert run.usage().executed == 0
    assert only(spans.runs()).attributes["toolguard.run.calls"] == 0


def test_a_call_that_an_observing_wall_would_have_refused_names_the_wall(spans):
    with toolguard.run(per_tool=1, mode="observe") as run:
        assert look(1) == 1
        assert look(2) == 2
        assert look(3) == 3
    calls = spans.calls()
    assert dict(plain(calls[0]).attributes) == call_attributes("look", run)
    for span in calls[1:]:
        assert dict(plain(span).attributes) == call_attributes("look", run, toolguard__would_refuse="per_tool")
    assert only(spans.runs()).attributes["toolguard.run.would_refuse"] == 2


def test_a_call_that_confirms_a_refusal_links_to_it_and_no_other_does(spans):
    with toolguard.run(aggregate=1):
        look(1)
        assert isinstance(look(2), toolguard.Refusal)
        assert look(2) == 2
    first, refused, confirming = spans.calls()
    (link,) = confirming.links
    assert link.context.span_id == refused.context.span_id
    assert link.context.trace_id == refused.context.trace_id
    assert first.links == refused.links == ()


# Runs


def test_a_run_is_one_internal_span_with_its_totals(spans):
    with toolguard.run(per_tool=2) as run:
        for _ in range(3):
            look()
    span = plain(only(spans.runs()))
    assert span.name == "invoke_agent"
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "toolguard.run.id": run.id,
        "toolguard.run.calls": 2,
        "toolguard.run.refusals": 1,
        "toolguard.run.stopped": False,
    }


def test_a_run_that_names_agent_session_and_walls_and_stops_says_all_of_it(spans):
    with isolated({"observe": ["per_tool"]}), toolguard.run("helper", session="s-17", run_id="r-1", hard_cap=1, per_tool=1):
        look()
        look()
    span = plain(only(spans.runs()))
    assert span.name == "invoke_agent helper"
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "s-17",
        "toolguard.run.id": "r-1",
        "toolguard.run.calls": 1,
        "toolguard.run.refusals": 1,
        "toolguard.run.stopped": True,
        "toolguard.run.stop.reason": "hard_stop",
        "toolguard.run.would_refuse": 0,
    }


def test_a_run_that_the_program_stopped_says_stop(spans):
    with toolguard.run() as run:
        run.stop("bye")
    assert only(spans.runs()).attributes["toolguard.run.stop.reason"] == "stop"


def test_a_nested_run_reads_the_stop_of_the_run_around_it(spans):
    with toolguard.run("outer", hard_cap=1), toolguard.run("inner"):
        look()
        look()
    inner, outer = spans.runs()
    assert (inner.name, outer.name) == ("invoke_agent inner", "invoke_agent outer")
    assert inner.attributes["toolguard.run.stop.reason"] == outer.attributes["toolguard.run.stop.reason"] == "hard_stop"


def test_a_run_that_an_exception_leaves_is_an_error_without_its_text(spans):
    with pytest.raises(OurError), toolguard.run():
        raise OurError("secret")
    span = only(spans.runs())
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert span.attributes["error.type"] == f"{__name__}.OurError"
    assert span.events == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_run_that_is_cancelled_is_no_error(spans, error):
    with pytest.raises(error), toolguard.run():
        raise error
    assert "error.type" not in plain(only(spans.runs())).attributes


def test_an_inner_run_inherits_the_conversation(spans):
    with toolguard.run(session="s-1"), toolguard.run("inner"):
        pass
    assert [span.attributes["gen_ai.conversation.id"] for span in spans.runs()] == ["s-1", "s-1"]


def test_a_run_entered_again_has_a_new_span_that_links_to_its_last(spans):
    run = toolguard.run()
    with run:
        look()
    with run:
        look()
    with run:
        look()
    one, two, three = spans.runs()
    assert one.links == ()
    assert [link.context.span_id for link in two.links] == [one.context.span_id]
    assert [link.context.span_id for link in three.links] == [two.context.span_id]
    assert [span.attributes["toolguard.run.calls"] for span in (one, two, three)] == [1, 2, 3]
    assert {span.attributes["toolguard.run.id"] for span in (one, two, three)} == {run.id}


# Parents


def parent_of(span):
    return span.parent.span_id if span.parent else None


def test_a_call_is_below_its_run_and_the_run_below_what_was_current(spans, provider):
    with provider.get_tracer("app").start_as_current_span("request"), toolguard.run():
        look()
    (request,) = spans.named("request")
    run, call = only(spans.runs()), only(spans.calls())
    assert parent_of(run) == request.context.span_id
    assert parent_of(call) == run.context.span_id
    assert parent_of(request) is None


@pytest.mark.parametrize("form", FORMS)
def test_what_a_tool_does_is_below_its_span(spans, provider, form):
    tracer = provider.get_tracer("app")

    @metered(kind="read", name="outer")
    def outer():
        tracer.start_span("work").end()
        look()

    @metered(kind="read", name="outer")
    async def aouter():
        await asyncio.sleep(0)
        outer.__wrapped__()

    @metered(kind="read", name="outer")
    def gouter():
        yield 1
        outer.__wrapped__()

    @metered(kind="read", name="outer")
    async def agouter():
        yield 1
        await asyncio.sleep(0)
        outer.__wrapped__()

    calls = {
        "sync": outer,
        "async": lambda: asyncio.run(aouter()),
        "generator": lambda: list(gouter()),
        "async generator": lambda: asyncio.run(collected(agouter())),
    }
    with toolguard.run():
        calls[form]()
    (out,) = spans.named("execute_tool outer")
    (inner,) = spans.named("execute_tool look")
    (work,) = spans.named("work")
    assert parent_of(work) == parent_of(inner) == out.context.span_id
    assert parent_of(out) == only(spans.runs()).context.span_id


def test_a_delegates_run_is_below_the_call_that_opened_it(spans):
    @metered(kind="read")
    def delegate():
        with toolguard.run("specialist"):
            look()
        look()

    with toolguard.run("coordinator"):
        delegate()
    inner, outer = spans.runs()
    in_specialist, in_delegate = spans.named("execute_tool look")
    (call,) = spans.named("execute_tool delegate")
    assert parent_of(call) == outer.context.span_id
    assert parent_of(inner) == call.context.span_id
    assert parent_of(in_specialist) == inner.context.span_id
    assert parent_of(in_delegate) == call.context.span_id
    assert in_specialist.attributes["toolguard.run.id"] == inner.attributes["toolguard.run.id"]
    assert in_delegate.attributes["toolguard.run.id"] == outer.attributes["toolguard.run.id"]


def test_a_delegate_says_what_stopped_the_run_that_it_opened_and_no_other_call_does(spans):
    @metered(kind="read")
    def plain():
        delegate()

    with toolguard.run("coordinator") as run:
        delegate()
        plain()
        assert not run.stopped
    said = {(s.name, s.attributes.get("toolguard.child.stop.reason")) for s in spans.all()}
    assert said == {
        ("execute_tool delegate", "stop"),
        ("execute_tool plain", None),
        ("invoke_agent specialist", None),
        ("invoke_agent coordinator", None),
    }


def test_a_result_that_was_cut_says_how_much_there_was_and_how_much_was_handed_on(spans):
    with toolguard.run(result_chars=300, output_chars=700) as run:
        whole = returns("x" * 300)
        cut = returns("y" * 1000)
        withheld = returns("z" * 1000)
    assert (len(whole), run.usage().chars) == (300, 300 + len(cut))
    marks = [
        {name: value for name, value in span.attributes.items() if name.startswith("toolguard.result.")}
        for span in spans.calls()
    ]
    known = {"toolguard.result.cut": True, "toolguard.result.chars": 1000}
    assert marks == [{}, {**known, "toolguard.result.handed": len(cut)}, {**known, "toolguard.result.handed": 0}]
    assert "DID execute" in withheld


async def test_gathered_calls_are_siblings_below_the_run(spans):
    @metered(kind="read")
    async def outer(n):
        await asyncio.sleep(0)
        return await alook(n)

    with toolguard.run():
        assert await asyncio.gather(*(outer(n) for n in range(20))) == list(range(20))
    run = only(spans.runs())
    outers = {span.context.span_id for span in spans.named("execute_tool outer")}
    assert len(outers) == 20
    assert {parent_of(span) for span in spans.named("execute_tool outer")} == {run.context.span_id}
    assert {parent_of(span) for span in spans.named("execute_tool alook")} == outers


def test_a_bound_function_in_a_thread_makes_spans_below_where_it_was_bound(spans, provider):
    with toolguard.run() as run:
        with provider.get_tracer("app").start_as_current_span("batch"):
            bound = run.bind(look)
        threads = [threading.Thread(target=bound, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (batch,) = spans.named("batch")
    assert [parent_of(span) for span in spans.calls()] == [batch.context.span_id] * 4
    assert run.usage().executed == 4


def test_a_call_leaves_what_was_current_before_it(spans):
    with toolguard.run(per_tool=3):
        before = otel_context.get_current()
        look()
        with pytest.raises(ValueError, match="no"):
            raises(ValueError("no"))
        list(count(1))
        look()
        look()
        assert isinstance(look(), toolguard.Refusal)
        assert otel_context.get_current() is before
    assert trace.get_current_span() is trace.INVALID_SPAN


# Sampling and suppression


class Seen(Sampler):
    """Records what it is asked about; drops names in `dropped`."""

    def __init__(self, dropped=()):
        self.asked = []
        self.dropped = dropped

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        self.asked.append((name, dict(attributes or {}), len(links or ())))
        return SamplingResult(Decision.DROP if name in self.dropped else Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self):
        return "Seen"


@pytest.fixture
def private(monkeypatch):
    """Return what makes toolguard use a provider of this test alone."""

    def use(**options):
        provider, exporter = TracerProvider(**options), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("toolguard")
        monkeypatch.setattr(_telemetry, "_scope", _telemetry.Scope(tracer, None))
        return tracer, exporter

    return use


def test_a_sampler_sees_everything_that_is_known_at_the_start(private):
    sampler = Seen()
    private(sampler=sampler)
    with toolguard.run("helper", session="s", aggregate=1) as run:
        look(1)
        refused = look(2)
        look(2)
    asked_run, executed, asked_refused, confirming = sampler.asked
    assert asked_run == (
        "invoke_agent helper",
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "helper",
            "gen_ai.conversation.id": "s",
            "toolguard.run.id": run.id,
        },
        0,
    )
    known = call_attributes("look", run, toolguard__call__outcome=MISSING)
    assert executed == ("execute_tool look", known, 0)
    assert confirming == ("execute_tool look", known, 1)
    assert asked_refused[1] == call_attributes(
        "look",
        run,
        **REFUSED,
        toolguard__refusal__reason="aggregate",
        toolguard__refusal__used=1,
        toolguard__refusal__limit=1,
        toolguard__refusal__retry="identical",
        toolguard__refusal__message=str(refused),
    )


def test_a_sampler_sees_what_an_observing_wall_would_have_refused(private):
    sampler = Seen()
    private(sampler=sampler)
    with toolguard.run(per_tool=1, mode="observe"):
        look(1)
        look(2)
    assert [attributes.get("toolguard.would_refuse") for name, attributes, _ in sampler.asked if "look" in name] == [
        None,
        "per_tool",
    ]


def test_what_a_sampler_changes_in_its_attributes_reaches_no_other_span(private):
    class Greedy(Seen):
        def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
            with contextlib.suppress(TypeError):
                attributes["greedy"] = True
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    _, exporter = private(sampler=Greedy())
    with toolguard.run():
        look(1)
        look(2)
    calls = [span for span in exporter.get_finished_spans() if "look" in span.name]
    assert ["greedy" in span.attributes for span in calls] == [False, False]


def test_below_a_call_that_is_sampled_out_spans_keep_the_parent_that_is_recorded(private):
    tracer, exporter = private(sampler=Seen(dropped={"execute_tool look"}))

    @metered(kind="read", name="look")
    def outer():
        tracer.start_span("work").end()

    with toolguard.run():
        outer()
    work, run = exporter.get_finished_spans()
    assert (work.name, run.name) == ("work", "invoke_agent")
    assert parent_of(work) == run.context.span_id


class Failing(Seen):
    """Raises where `Seen` would drop."""

    def should_sample(self, parent_context, trace_id, name, *rest, **more):
        if name in self.dropped:
            raise RuntimeError
        return super().should_sample(parent_context, trace_id, name, *rest, **more)


def is_stopped():
    with toolguard.run() as child:
        child.stop("enough")


@metered(kind="read", delegate=True)
def outer(job):
    return job()


@metered(kind="read", delegate=True)
def inner():
    is_stopped()


@metered(kind="read", delegate=True)
async def ainner():
    is_stopped()


@metered(kind="read", delegate=True)
def streaming_inner():
    is_stopped()
    yield 1


@metered(kind="read")
def ordinary():
    is_stopped()


@pytest.mark.parametrize("sampler", [Seen, Failing])
@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("inner", inner),
        ("ainner", lambda: asyncio.run(ainner())),
        ("streaming_inner", lambda: list(streaming_inner())),
    ],
)
def test_a_specialist_without_a_span_does_not_pass_for_the_one_that_asked_it(private, sampler, name, ask):
    _, exporter = private(sampler=sampler(dropped={f"execute_tool {name}"}))
    with toolguard.run():
        outer(ask)
    child, asking, _ = exporter.get_finished_spans()
    assert (child.name, asking.name) == ("invoke_agent", "execute_tool outer")
    assert "toolguard.child.stop.reason" not in asking.attributes
    assert parent_of(child) == asking.context.span_id


def test_an_ordinary_call_without_a_span_passes_what_stopped_its_run_to_the_specialist_around_it(private):
    _, exporter = private(sampler=Seen(dropped={"execute_tool ordinary"}))
    with toolguard.run():
        outer(ordinary)
    said = only([span for span in exporter.get_finished_spans() if span.name == "execute_tool outer"])
    assert said.attributes["toolguard.child.stop.reason"] == "stop"


def test_below_a_call_outside_a_run_that_is_sampled_out_no_trace_begins(private):
    tracer, exporter = private(sampler=ParentBased(Seen(dropped={"execute_tool outer"})))

    @metered(kind="read")
    def outer():
        tracer.start_span("work").end()

    outer()
    assert exporter.get_finished_spans() == ()
    tracer.start_span("work").end()
    assert len(exporter.get_finished_spans()) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_is_sampled_out_counts_and_exports_nothing(private, form):
    _, exporter = private(sampler=ALWAYS_OFF)
    with toolguard.run(per_tool=1) as run:
        FORMS[form]()
        FORMS[form]()
    assert exporter.get_finished_spans() == ()
    assert (run.usage().executed, run.usage().refused) == (1, 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "key", ["suppress_instrumentation", otel_context._SUPPRESS_INSTRUMENTATION_KEY], ids=["plain", "unique"]
)
def test_where_instrumentation_is_suppressed_calls_are_charged_and_make_no_span(spans, form, key):
    token = otel_context.attach(otel_context.set_value(key, True))
    try:
        with toolguard.run(per_tool=1) as run:
            FORMS[form]()
            FORMS[form]()
            with pytest.raises(OurError):
                raises(OurError())
    finally:
        otel_context.detach(token)
    assert spans.all() == ()
    assert (run.usage().executed, run.usage().refused) == (2, 1)


# The table


def rich_scenario():
    """Make a call of every kind that the table of attributes tells of."""
    clock = FakeClock()
    with isolated({"telemetry": {"refused_status": "error"}, "observe": ["per_tool"]}, clock=clock):
        with toolguard.run("helper", session="s", hard_cap=9, per_tool=2, delivery=1):
            for n in range(3):
                look(n)
            send("a")
            send("b")
            list(count(2))
            returns({"error": "no"})
            with pytest.raises(OurError):
                raises(OurError())
            raises(toolguard.NotExecuted("no"))
            with toolguard.uncounted():
                look()
            for n in range(9):
                returns(n)
        with toolguard.run(result_chars=300, deadline_s=1.5):
            returns("x" * 1000)
            returns(iter("unmeasured"))
            delegate()
            clock.advance(2.25)
            look()
        look()


@pytest.fixture
def rich(spans, monkeypatch):
    real = toolguard._config.from_mapping

    monkeypatch.setattr(
        toolguard._config, "from_mapping", lambda *args, **kwargs: replace(real(*args, **kwargs), capture_content=True)
    )
    rich_scenario()
    return spans


def test_every_attribute_that_is_seen_is_in_the_table_with_its_type_and_span(rich):
    table = {row.name: row for row in _names.ATTRIBUTES}
    types = {"string": {str}, "boolean": {bool}, "integer": {int}, "number": {int, float}}
    for span in rich.all():
        kind = "run" if span.name.startswith("invoke_agent") else "call"
        for name, value in span.attributes.items():
            assert name in table, name
            assert type(value) in types[table[name].type], (name, value)
            assert kind in table[name].spans, (name, span.name)


def test_every_row_of_the_table_is_seen_on_each_kind_of_span_that_it_names(rich):
    with pytest.raises(OurError), toolguard.run():
        raise OurError
    seen = {
        (name, "run" if span.name.startswith("invoke_agent") else "call") for span in rich.all() for name in span.attributes
    }
    promised = {(row.name, kind) for row in _names.ATTRIBUTES for kind in row.spans.split(", ")}
    assert promised - seen == set()


def test_every_attribute_that_is_promised_always_is_on_every_span_of_its_kind(rich):
    always = {
        kind: {row.name for row in _names.ATTRIBUTES if row.when == "always" and kind in row.spans.split(", ")}
        for kind in ("run", "call")
    }
    for span in rich.all():
        kind = "run" if span.name.startswith("invoke_agent") else "call"
        assert always[kind] <= set(span.attributes), span.name


def test_executed_and_refused_are_opposites_on_every_call(rich):
    marks = [(s.attributes["toolguard.executed"], s.attributes["toolguard.refused"]) for s in rich.calls()]
    assert set(marks) == {(True, False), (False, True)}


def test_no_name_in_the_table_is_in_a_namespace_of_the_conventions_that_they_do_not_have():
    ours = {row.name for row in _names.ATTRIBUTES if row.name.startswith("toolguard.")}
    standard = {row.name for row in _names.ATTRIBUTES} - ours
    assert standard == {
        "gen_ai.operation.name",
        "gen_ai.agent.name",
        "gen_ai.conversation.id",
        "gen_ai.tool.name",
        "gen_ai.tool.type",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "error.type",
    }
