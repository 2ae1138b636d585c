"""Where only the API of OpenTelemetry is installed, everything works; an SDK that comes later is taken up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BLOCKED = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["opentelemetry", "sdk"], ["opentelemetry", "exporter"], ["opentelemetry", "proto"]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""

RECORDS = """
import logging

records = []

class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)

logging.getLogger().addHandler(Keep())
logging.getLogger("toolguard").setLevel(logging.DEBUG)
"""

AGENT = """
import asyncio, contextvars, itertools, threading, time
import toolguard
from toolguard import Refusal, metered
from opentelemetry import trace

@metered(kind="read")
def look(what="x"):
    return what

@metered(kind="send")
def send(to):
    return "sent"

@metered(kind="read", delegate=True, gate=lambda call: None if call.arguments["n"] else "not for nothing")
def delegate(n):
    with toolguard.run("specialist") as run:
        answers = [look(i) for i in range(n)]
        run.stop("enough")
    return answers

@metered(kind="read")
async def alook(what="x"):
    await asyncio.sleep(0)
    return look(what)

@metered(kind="read")
def count(n):
    for i in range(n):
        yield i

@metered(kind="read")
async def acount(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i

@metered(kind="read")
def fail():
    raise error

error = ValueError("own")

def raised(fn):
    try:
        fn()
    except ValueError as e:
        return e is error

async def work(run):
    assert await asyncio.gather(alook(1), alook(2)) == [1, 2]
    assert [i async for i in acount(2)] == [0, 1]
    async for i in acount(9):
        break
    assert toolguard.current_run() is run

def agent():
    with toolguard.run("coordinator", session="s", per_tool=6, delivery=1, hard_cap=24, result_chars=300) as run:
        assert toolguard.current_run() is run
        assert look(1) == 1 and send("a") == "sent" and isinstance(send("b"), Refusal)
        assert delegate(2) == [0, 1] and "not for nothing" in delegate(0)
        assert len(look("x" * 1000)) <= 300
        run.spend(tokens=7)
        assert raised(fail)
        assert list(count(3)) == [0, 1, 2]
        half = count(3)
        next(half)
        half.close()
        asyncio.run(work(run))
        thread = threading.Thread(target=run.bind(look), args=(5,))
        thread.start()
        thread.join()
        with toolguard.uncounted():
            assert look(6) == 6
        numbers = itertools.count(10)
        while not isinstance(answer := look(next(numbers)), Refusal):
            pass
        assert answer.reason == "per_tool"
        while not run.stopped:
            send("c"), count(1), fail_quietly()
        assert run.stop_reason in ("hard_stop", "refused_calls")
        assert run.stop_message.startswith("I stopped after")
    assert toolguard.current_run() is None
    assert look("outside") == "outside"
    assert trace.get_current_span() is trace.INVALID_SPAN
    return run.usage().to_dict()

def fail_quietly():
    try:
        fail()
    except ValueError:
        pass

print(sorted(agent().items(), key=str))
"""


def python(code, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TOOLGUARD_"))}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT / "tests", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_whole_agent_runs_on_the_api_alone_as_it_does_with_the_sdk():
    check = """
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
assert [r.getMessage() for r in records if r.name != "toolguard"] == []
assert not [r for r in records if "OpenTelemetry" in r.getMessage()]
"""
    sdk = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
"""
    alone = python(BLOCKED + RECORDS + AGENT + check)
    traced = python(sdk + RECORDS + AGENT + "assert len(exporter.get_finished_spans()) > 20\n")
    assert alone.stdout == traced.stdout
    assert alone.stderr == traced.stderr


def test_what_blocks_the_sdk_really_does():
    done = python(BLOCKED + "try:\n    import opentelemetry.sdk.trace\nexcept ModuleNotFoundError as e:\n    print(e.name)")
    assert done.stdout.strip().startswith("opentelemetry.sdk")


def test_importing_the_package_and_running_an_agent_import_no_sdk_even_where_there_is_one():
    python("import sys\n" + AGENT + "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]")


def test_content_capture_needs_no_sdk():
    python(BLOCKED + AGENT, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")


@pytest.mark.parametrize("how", ["disabled", "no-op"])
def test_a_whole_agent_runs_where_the_sdk_is_switched_off(how):
    provider = {
        "disabled": "from opentelemetry.sdk.trace import TracerProvider as P",
        "no-op": "from opentelemetry.trace import NoOpTracerProvider as P",
    }[how]
    set_up = f"from opentelemetry import trace\n{provider}\ntrace.set_tracer_provider(P())\n"
    environment = {"OTEL_SDK_DISABLED": "true"} if how == "disabled" else {}
    assert python(set_up + AGENT, **environment).stdout == python(AGENT).stdout


LATER = """
import toolguard
from toolguard import metered
from opentelemetry import metrics, trace

@metered(kind="read")
def look(what):
    return what

look(0)
with toolguard.run():
    look(1)
open_run = toolguard.run("open")
with open_run:
    look(2)
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    metrics.set_meter_provider(MeterProvider([reader]))
    look(3)
look(4)
with toolguard.run("late"):
    look(5)

def points(name):
    return [
        point
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]

print([span.name for span in exporter.get_finished_spans()])
print([point.value for point in points("toolguard.tool.calls")])
print(sum(point.count for point in points("gen_ai.execute_tool.duration")))
"""


def test_a_provider_set_later_traces_what_starts_then_and_has_counted_what_was_before():
    spans, calls, _durations = python(LATER).stdout.splitlines()
    assert spans == "['execute_tool look', 'execute_tool look', 'invoke_agent late']"
    assert calls == "[6]"


def test_a_meter_provider_set_later_times_the_calls_outside_a_run_and_of_new_runs():
    assert python(LATER).stdout.splitlines()[2] == "2"
