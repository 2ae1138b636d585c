"""Content is in no telemetry unless it is asked for, and then bounded, redacted and valid JSON."""

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import logging
import pathlib
import threading

import pydantic
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

import toolguard
from toolguard import metered
from toolguard.testing import assert_refused, isolated

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
CANARY = "canary-7f3a"


@pytest.fixture
def capture(monkeypatch):
    monkeypatch.setenv(CAPTURE, "SPAN_ONLY")
    toolguard.configure({})


@metered(kind="read")
def echo(value=None):
    return value


@metered(kind="send")
def send(to, body="", *rest, **more):
    return f"sent to {to}"


@metered(kind="read")
def fail(error):
    raise error


@metered(kind="read")
async def aecho(value):
    await asyncio.sleep(0)
    return value


@metered(kind="read")
def stream(value):
    yield value
    yield value


def read(span, name):
    return json.loads(span.attributes[name])


def only(spans):
    (span,) = spans.calls()
    return span


def everything(span):
    """Return all text of a span."""
    return span.to_json() + str(span.status.description) + str([dict(e.attributes) for e in span.events])


# Off


def spill():
    """Make calls of every kind that carry the canary wherever a program can put one."""

    class Carrier:
        def __repr__(self):
            return CANARY

        def __str__(self):
            return CANARY

        @metered(kind="read")
        def method(self, secret):
            return [secret, self]

    class SpillError(Exception):
        pass

    def complain(*_args, **_kwargs):
        raise SpillError(CANARY)

    @metered(kind="read", failed=complain)
    def misjudged(secret):
        return {"secret": secret}

    @metered(kind="read", query=complain)
    def misread(secret):
        return secret

    error = SpillError(CANARY, {"password": CANARY})
    error.add_note(CANARY)
    with toolguard.run("helper", session="s", per_tool=3, delivery=1, query_loop=2):
        for _ in range(5):
            echo(CANARY)
            echo({CANARY: [CANARY, Carrier()]})
        send(CANARY, CANARY, CANARY, key=CANARY)
        assert_refused(send(CANARY, CANARY, CANARY, key=CANARY), "duplicate_send")
        assert_refused(send(CANARY, body=CANARY), "delivery")
        for _ in range(2):
            with pytest.raises(SpillError):
                fail(error)
        assert_refused(fail(error), "repeat_failure")
        echo(value={"error": CANARY})
        list(stream(CANARY))
        half = stream(CANARY)
        next(half)
        half.close()
        asyncio.run(aecho(CANARY))
        Carrier().method(CANARY)
        misjudged(CANARY)
        misread(CANARY)
        with pytest.raises(TypeError):
            echo(CANARY, CANARY)
    with toolguard.run(per_tool=1, same_complaint=1, result_chars=300, output_chars=600):
        assert "[cut" in echo(CANARY * 500)
        with pytest.raises(SpillError):
            fail(error)
        assert_refused(fail(SpillError(CANARY, 2)), "same_complaint")
        assert "[cut" in next(stream(CANARY * 500))
        assert "DID execute" in asyncio.run(aecho(CANARY * 500))
    with pytest.raises(SpillError), toolguard.run():
        raise error
    echo(CANARY)
    with isolated({"outside_run": "refuse"}):
        echo(CANARY)


def test_without_capture_no_argument_result_or_exception_text_is_in_any_telemetry(spans, logged, metric_reader):
    spill()
    assert len(spans.all()) > 20
    for span in spans.all():
        assert CANARY not in everything(span), span.name
        assert ARGUMENTS not in span.attributes
        assert RESULT not in span.attributes
    ours = [record for record in logged.records if record.name == "toolguard"]
    assert len(ours) > 5
    for record in ours:
        assert CANARY not in str(vars(record)), record.getMessage()
        assert CANARY not in record.getMessage()
    assert CANARY not in metric_reader.get_metrics_data().to_json()


def test_without_capture_no_code_of_a_value_runs_for_telemetry(spans):
    class Untouchable:
        def touch(self, *_):
            raise AssertionError("code of the value ran")

        __repr__ = __str__ = __len__ = __iter__ = __bool__ = __eq__ = __format__ = touch
        __hash__ = touch

    value = Untouchable()
    with toolguard.run():
        assert echo(value) is value
        assert asyncio.run(aecho(value)) is value
    assert len(spans.calls()) == 2


# Switching it on


@pytest.mark.parametrize("value", ["SPAN_ONLY", "span_only", " Span_Only ", "SPAN_AND_EVENT", "span_and_event"])
def test_content_is_on_the_span_where_the_variable_says_so(spans, monkeypatch, logged, value):
    monkeypatch.setenv(CAPTURE, value)
    toolguard.configure({})
    with toolguard.run():
        echo("x")
    assert read(only(spans), ARGUMENTS) == {"value": "x"}
    assert read(only(spans), RESULT) == "x"
    assert [r for r in logged.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("value", [None, "", "NO_CONTENT", "no_content", "EVENT_ONLY", "false", "False"])
def test_content_is_nowhere_where_the_variable_says_nothing_else(spans, monkeypatch, logged, value):
    monkeypatch.delenv(CAPTURE, raising=False)
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)
    toolguard.configure({})
    with toolguard.run():
        echo("x")
    assert ARGUMENTS not in only(spans).attributes
    assert RESULT not in only(spans).attributes
    assert [r for r in logged.records if r.levelno >= logging.WARNING] == []


def test_true_is_taken_as_span_only_with_a_warning(spans, monkeypatch, logged):
    monkeypatch.setenv(CAPTURE, "true")
    toolguard.configure({})
    with toolguard.run():
        echo("x")
    assert ARGUMENTS in only(spans).attributes
    (warning,) = [r for r in logged.records if r.levelno >= logging.WARNING]
    assert "SPAN_ONLY" in warning.getMessage()


@pytest.mark.parametrize("value", ["yes", "1", "SPAN", "on"])
def test_a_word_that_is_not_known_captures_nothing_and_says_so(spans, monkeypatch, logged, value):
    monkeypatch.setenv(CAPTURE, value)
    toolguard.configure({})
    with toolguard.run():
        echo("x")
    assert ARGUMENTS not in only(spans).attributes
    (warning,) = [r for r in logged.records if r.levelno >= logging.WARNING]
    assert repr(value.upper()) in warning.getMessage()


# What is recorded


def test_arguments_are_recorded_by_name_with_defaults_and_rest(spans, capture):
    with toolguard.run(delivery=0):
        send("ann")
        send("bob", "hello", 1, 2, cc="eve")
    one, two = spans.calls()
    assert read(one, ARGUMENTS) == {"to": "ann", "body": "", "rest": [], "more": {}}
    assert read(two, ARGUMENTS) == {"to": "bob", "body": "hello", "rest": [1, 2], "more": {"cc": "eve"}}
    assert read(two, RESULT) == "sent to bob"


def test_the_receiver_of_a_method_is_not_recorded(spans, capture):
    class Mailbox:
        @metered(kind="read")
        def fetch(self, n):
            return n

        @metered(kind="read")
        @classmethod
        def open(cls, n):
            return n

        @metered(kind="read")
        @staticmethod
        def close(n):
            return n

    with toolguard.run():
        Mailbox().fetch(1)
        Mailbox.open(2)
        Mailbox().close(3)
    assert [read(span, ARGUMENTS) for span in spans.calls()] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_an_async_call_is_recorded_as_a_plain_one(spans, capture):
    with toolguard.run():
        asyncio.run(aecho({"a": [1, None, True, 2.5]}))
    assert read(only(spans), ARGUMENTS) == {"value": {"a": [1, None, True, 2.5]}}
    assert read(only(spans), RESULT) == {"a": [1, None, True, 2.5]}


def test_a_stream_has_its_arguments_and_no_result_and_is_not_consumed(spans, capture):
    with toolguard.run():
        assert list(stream("x")) == ["x", "x"]
        given = iter([1, 2, 3])
        assert echo(given) is given
        assert list(given) == [1, 2, 3]
    streamed, echoed = spans.calls()
    assert read(streamed, ARGUMENTS) == {"value": "x"}
    assert RESULT not in streamed.attributes
    assert "list_iterator" in read(echoed, RESULT)


def test_a_refused_call_has_its_arguments_and_no_result(spans, capture):
    with toolguard.run(per_tool=1):
        echo("x")
        echo("y")
        list(stream("a"))
        (refused_stream,) = list(stream("b"))
    assert isinstance(refused_stream, toolguard.Refusal)
    refused = [span for span in spans.calls() if span.attributes["toolguard.refused"]]
    assert [read(span, ARGUMENTS) for span in refused] == [{"value": "y"}, {"value": "b"}]
    for span in refused:
        assert RESULT not in span.attributes


def test_an_inner_refusal_that_is_passed_on_is_no_result(spans, capture):
    @metered(kind="read")
    def outer():
        return echo("x")

    with toolguard.run(hard_cap=1):
        outer()
    _, out = spans.calls()
    assert out.name == "execute_tool outer"
    assert RESULT not in out.attributes


def test_a_tool_that_raises_or_says_nothing_ran_has_no_result(spans, capture):
    with toolguard.run():
        with pytest.raises(ValueError, match="no"):
            fail(ValueError("no"))
        fail(toolguard.NotExecuted("ask first"))
    for span in spans.calls():
        assert ARGUMENTS in span.attributes
        assert RESULT not in span.attributes


def test_a_value_that_reports_a_failure_is_a_result(spans, capture):
    with toolguard.run():
        echo({"error": "no such file"})
    assert read(only(spans), RESULT) == {"error": "no such file"}


def test_a_call_that_the_harness_makes_is_recorded_too(spans, capture):
    with toolguard.run(), toolguard.uncounted():
        echo("x")
    assert read(only(spans), ARGUMENTS) == {"value": "x"}


def test_a_call_outside_a_run_is_recorded_too(spans, capture):
    echo("x")
    assert read(only(spans), ARGUMENTS) == {"value": "x"}


# Exceptions


def message(span):
    (event,) = span.events
    return event.attributes.get("exception.message")


def test_the_text_of_an_exception_is_recorded_as_it_is_and_nowhere_else(spans, capture):
    with toolguard.run(), pytest.raises(ValueError, match="no such"):
        fail(ValueError('no such "file"\n in ä'))
    span = only(spans)
    assert message(span) == 'no such "file"\n in ä'
    assert set(span.events[0].attributes) == {"exception.type", "exception.message"}
    assert span.status.description is None


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("cannot reach postgres://user:pw-canary@host/db", "pw-canary"),
        ("401 with Authorization: Bearer canary-token", "canary-token"),
        ("password=canary-word is wrong", "canary-word"),
    ],
)
def test_secrets_in_the_text_of_an_exception_are_taken_out(spans, capture, text, secret):
    with toolguard.run(), pytest.raises(ConnectionError):
        fail(ConnectionError(text))
    assert secret not in everything(only(spans))
    assert message(only(spans))


@pytest.mark.parametrize("before", range(440, 520, 5))
def test_a_secret_that_straddles_the_place_of_the_cut_is_taken_out_whole(spans, capture, before):
    text = "x" * before + " postgres://user:canary-canary-canary@host/db " + "y" * 2000
    with toolguard.run(), pytest.raises(ConnectionError):
        fail(ConnectionError(text))
    assert "canary" not in everything(only(spans)).replace("canary-7f3a", "")
    assert len(message(only(spans))) < 1000


def test_the_rejected_input_of_a_validation_is_taken_out(spans, capture):
    class Login(pydantic.BaseModel):
        password: int

    with pytest.raises(pydantic.ValidationError) as caught:
        Login(password="canary-input")
    with toolguard.run(), pytest.raises(pydantic.ValidationError):
        fail(caught.value)
    assert "canary-input" not in everything(only(spans))


def test_an_exception_that_cannot_be_printed_has_no_text_and_is_still_the_callers(spans, capture):
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError

    error = OddError()
    with toolguard.run(), pytest.raises(OddError) as caught:
        fail(error)
    assert caught.value is error
    assert message(only(spans)) is None
    assert only(spans).attributes["error.type"].endswith("OddError")


# Safe in every shape


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Job:
    name: str
    lock: object = dataclasses.field(default_factory=threading.Lock)


class Model(pydantic.BaseModel):
    name: str
    key: pydantic.SecretStr = pydantic.SecretStr(CANARY)


SHAPES = {
    "nested": {"a": [1, {"b": (2, None)}]},
    "mixed": [1, "x", None, 2.5, True],
    "none": None,
    "set": {1, 2},
    "object": object(),
    "dataclass with a lock": Job("x"),
    "model": Model(name="x"),
    "enum": Colour.RED,
    "path": pathlib.PurePosixPath("/a/b"),
    "datetime": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "decimal": decimal.Decimal("1.5"),
    "bytes": b"\x00\xff",
    "a very large number": 2**70,
    "more digits than Python prints": 10**5000,
    "lone surrogate": "\ud800",
    "not a number": float("nan"),
    "infinity": float("inf"),
    "odd keys": {1: "a", (2, 3): "b", None: "c", "\udfff": "d"},
    "huge text": "x" * 10**6,
    "huge list": list(range(10**5)),
    "function": print,
    "exception": ValueError(CANARY),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_any_value_becomes_one_bounded_json_text_that_can_be_exported(spans, capture, caplog, shape):
    value = SHAPES[shape]
    with toolguard.run(output_chars=0, result_chars=0):
        assert echo(value) is value
    span = only(spans)
    for name in (ARGUMENTS, RESULT):
        text = span.attributes[name]
        assert type(text) is str
        assert len(text.encode()) <= 8192
        json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    encoded = encode_spans([span]).SerializeToString()
    assert ARGUMENTS.encode() in encoded
    assert CANARY.encode() not in encoded
    assert [r for r in caplog.records if r.name.startswith("opentelemetry")] == []


def test_a_container_that_holds_itself_is_recorded_and_returned(spans, capture):
    value = []
    value.append(value)
    with toolguard.run():
        assert echo(value) is value
    assert type(read(only(spans), RESULT)) is list


def test_a_secret_among_arguments_is_taken_out_by_name_type_and_shape(spans, capture):
    with toolguard.run():
        send(
            "ann",
            api_key="canary-1",
            key=pydantic.SecretStr("canary-2"),
            headers={"Authorization": "Bearer canary-3"},
            text="see https://h/?token=canary-4&x=1",
            rows=[{"password": "canary-5"}, {"name": "ok"}],
        )
    text = only(spans).attributes[ARGUMENTS]
    assert "canary" not in text
    assert json.loads(text)["more"]["rows"][1] == {"name": "ok"}


def test_a_value_whose_code_fails_in_every_way_costs_only_itself(spans, capture):
    class Hostile:
        def fail(self, *_):
            raise RuntimeError(CANARY)

        __repr__ = __str__ = __iter__ = __len__ = __getattr__ = __eq__ = fail
        __hash__ = fail

    value = Hostile()
    with toolguard.run():
        assert echo(value) is value
    assert CANARY not in everything(only(spans))
    assert "Hostile" in read(only(spans), RESULT)


def test_what_is_recorded_does_not_change_with_the_value_afterwards(spans, capture):
    value = {"n": 1}

    @metered(kind="read")
    def change(value):
        value["n"] = 2
        return value

    with toolguard.run():
        change(value)
    value["n"] = 3
    assert read(only(spans), ARGUMENTS) == {"value": {"n": 1}}
    assert read(only(spans), RESULT) == {"n": 2}
