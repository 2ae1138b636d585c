"""Gates: what a program decides of a single call, after every wall and before any charge."""

import asyncio
import functools
import inspect
import logging
import threading
from collections import Counter
from dataclasses import FrozenInstanceError

import pytest
from opentelemetry import trace

import toolguard
from toolguard import NotExecuted, Refusal, current_run, metered
from toolguard.testing import FakeClock, assert_refused, isolated

NO_ANSWERS = {
    "False": False,
    "zero": 0,
    "an empty list": [],
    "NaN": float("nan"),
    "True": True,
    "a number": 7,
    "bytes": b"no",
    "an object": object(),
}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """No test here may bring OpenTelemetry or asyncio to complain."""
    yield
    noisy = [r for r in caplog.get_records("call") if r.name.split(".")[0] in {"opentelemetry", "asyncio"}]
    assert [r.getMessage() for r in noisy if r.levelname in {"WARNING", "ERROR", "CRITICAL"}] == []


class Desk:
    """A person who decides: what was asked, and what is said to it."""

    def __init__(self, *answers):
        self.asked, self.answers = [], list(answers)

    def __call__(self, call):
        self.asked.append(call)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


class SlowDesk(Desk):
    """The same for those who wait."""

    async def __call__(self, call):
        await asyncio.sleep(0)
        return super().__call__(call)


def shapes(gate, ran, kind="read"):
    """A tool of every shape under one gate, each with a way to get its one value."""

    @metered(kind=kind, gate=gate, name="plain")
    def plain(value):
        ran.append(value)
        return value

    @metered(kind=kind, gate=gate, name="coroutine")
    async def coroutine(value):
        await asyncio.sleep(0)
        ran.append(value)
        return value

    @metered(kind=kind, gate=gate, name="generator")
    def generator(value):
        ran.append(value)
        yield value

    @metered(kind=kind, gate=gate, name="async_generator")
    async def async_generator(value):
        ran.append(value)
        yield value

    class Box:
        @metered(kind=kind, gate=gate, name="method")
        def method(self, value):
            ran.append(value)
            return value

        @metered(kind=kind, gate=gate, name="class_method")
        @classmethod
        def class_method(cls, value):
            ran.append(value)
            return value

        @staticmethod
        @metered(kind=kind, gate=gate, name="static_method")
        def static_method(value):
            ran.append(value)
            return value

        @metered(kind=kind, gate=gate, name="coroutine_method")
        async def coroutine_method(self, value):
            ran.append(value)
            return value

    async def only(stream):
        (item,) = [item async for item in stream]
        return item

    box = Box()
    return {
        "plain": (plain, lambda made: made),
        "coroutine": (coroutine, asyncio.run),
        "generator": (generator, lambda made: list(made)[0]),  # noqa: RUF015  it is driven to its end
        "async_generator": (async_generator, lambda made: asyncio.run(only(made))),
        "method": (box.method, lambda made: made),
        "class_method": (box.class_method, lambda made: made),
        "static_method": (box.static_method, lambda made: made),
        "coroutine_method": (box.coroutine_method, asyncio.run),
    }


ALL = list(shapes(None, []))
ASYNC = ["coroutine", "async_generator"]
SHAPES = pytest.mark.parametrize("shape", ALL)


@metered(kind="read")
def look(n=0):
    return n


# Yes and no -----------------------------------------------------------------------------------------------------------


@SHAPES
def test_what_the_gate_lets_through_runs_and_returns_what_it_returns(shape):
    desk, ran = Desk(), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run() as run:
        assert get(tool("a")) == "a"
        assert ran == ["a"]
        assert len(desk.asked) == 1
        assert run.usage().executed == 1


@SHAPES
def test_what_it_does_not_is_refused_with_its_words_after_the_one_sentence(shape):
    desk, ran = Desk("Only with the approval of ann."), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run() as run:
        refusal = assert_refused(get(tool("a")), "gate")
        assert refusal == f"{shape} did NOT execute: Only with the approval of ann."
        assert (refusal.executed, refusal.tool, refusal.kind, refusal.run_id) == (False, shape, "read", run.id)
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (None, None, None, "different")
        assert ran == []
        assert run.usage().to_dict()["executed"] == 0
        assert run.usage().by_reason == {"gate": 1}
        assert run.refusals == (refusal,)


@pytest.mark.parametrize("shape", ASYNC)
def test_an_async_gate_decides_of_async_tools_likewise(shape):
    desk, ran = SlowDesk("no", None), []
    tool, get = shapes_async(desk, ran)[shape]
    with toolguard.run():
        assert assert_refused(get(tool("a")), "gate") == f"{shape} did NOT execute: no"
        assert get(tool("a")) == "a"
    assert ran == ["a"]
    assert len(desk.asked) == 2


def shapes_async(gate, ran):
    @metered(kind="read", gate=gate)
    async def coroutine(value):
        ran.append(value)
        return value

    @metered(kind="read", gate=gate)
    async def async_generator(value):
        ran.append(value)
        yield value

    async def only(stream):
        (item,) = [item async for item in stream]
        return item

    return {
        "coroutine": (coroutine, asyncio.run),
        "async_generator": (async_generator, lambda made: asyncio.run(only(made))),
    }


TEXTS = {
    "several lines": "first\nsecond\r\n\tthird ",
    "signs of formatting": "{tool} %s %(x)s {0} {{}}",
    "beyond ASCII": "Nein — frag Zoë 👩‍👩‍👧",
    "half a character": "\ud800",
    "very long": "word " * 100_000,
    "what looks like a result": '{"status": "ok"}',
    "what looks like a refusal": "look did NOT execute: because",
}


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_its_words_reach_the_model_to_the_letter(what, mode):
    @metered(kind="send", gate=lambda call: TEXTS[what])
    def wire():
        raise AssertionError

    with toolguard.run(mode=mode, output_chars=300, result_chars=300):
        assert assert_refused(wire(), "gate") == f"wire did NOT execute: {TEXTS[what]}"


def test_an_empty_answer_is_a_no_without_a_reason():
    @metered(kind="read", gate=lambda call: "")
    def wire():
        raise AssertionError

    with toolguard.run():
        assert assert_refused(wire(), "gate") == "wire did NOT execute."


def test_a_text_with_methods_of_its_own_is_the_text_that_it_holds():
    class Text(str):
        __slots__ = ()

        def __str__(self):
            raise RuntimeError

        def __format__(self, _):
            raise RuntimeError

    @metered(kind="read", gate=lambda call: Text("no"))
    def wire():
        raise AssertionError

    with toolguard.run():
        assert assert_refused(wire(), "gate") == "wire did NOT execute: no"


def test_a_denied_call_is_asked_of_again_and_may_then_run():
    desk = Desk("not now")

    @metered(kind="send", gate=desk)
    def wire(amount):
        return "wired"

    with toolguard.run():
        assert_refused(wire(1), "gate")
        assert wire(1) == "wired"
        assert [call.identity for call in desk.asked] == [desk.asked[0].identity] * 2


def test_a_gate_can_remember_its_own_answers_by_identity():
    answers, asked = {}, []

    def once(call):
        if call.identity not in answers:
            asked.append(dict(call.arguments))
            answers[call.identity] = None if call.arguments["amount"] < 10 else "too much"
        return answers[call.identity]

    @metered(kind="send", repeatable=True, gate=once)
    def wire(amount, note=""):
        return "wired"

    with toolguard.run(delivery=0):
        for _ in range(3):
            assert_refused(wire(50), "gate")
            assert wire(5) == "wired"
            assert wire(amount=5, note="") == "wired"
    assert asked == [{"amount": 50, "note": ""}, {"amount": 5, "note": ""}]


# When it is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "limits", "spend"),
    [
        ("per_tool", {"per_tool": 2}, lambda tool: [tool(1), tool(2)]),
        ("call_budget", {"call_budget": 1}, lambda tool: [tool(1)]),
        ("aggregate", {"aggregate": 1}, lambda tool: [tool(1)]),
        ("hard_stop", {"hard_cap": 1}, lambda tool: [tool(1)]),
        ("same_outcome", {"same_outcome": 2, "stale_streak": 0}, lambda tool: [tool(9), tool(9)]),
        ("stale_streak", {"same_outcome": 0, "stale_streak": 2}, lambda tool: [tool(9), tool(9), tool(9)]),
        ("tokens", {"tokens": 1}, lambda tool: current_run().spend(2)),
        ("cost_usd", {"cost_usd": 1}, lambda tool: current_run().spend(cost_usd=2)),
        ("stop", {}, lambda tool: current_run().stop("enough")),
    ],
)
def test_it_is_asked_of_no_read_that_a_wall_would_refuse(reason, limits, spend):
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run(**limits):
        spend(tool)
        asked = len(desk.asked)
        assert_refused(tool(9), reason)
        assert len(desk.asked) == asked == len(ran)


@pytest.mark.parametrize(("reason", "limits"), [("delivery", {"delivery": 1}), ("duplicate_send", {})])
def test_it_is_asked_of_no_send_that_a_wall_would_refuse(reason, limits):
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran, "send")["plain"]
    with toolguard.run(**limits):
        tool(1)
        assert_refused(tool(1 if reason == "duplicate_send" else 2), reason)
        assert len(desk.asked) == len(ran) == 1


@pytest.mark.parametrize(("reason", "limits"), [("repeat_failure", {}), ("same_complaint", {"same_complaint": 2})])
def test_it_is_asked_of_no_failure_that_a_wall_would_refuse_and_of_the_probe_again(reason, limits):
    desk = Desk()

    @metered(kind="read", gate=desk)
    def broken(n):
        raise OSError("always the same")

    with toolguard.run(**limits) as run:
        for n in range(2):
            run.turn()
            with pytest.raises(OSError, match="always"):
                broken(0 if reason == "repeat_failure" else n)
        run.turn()
        assert_refused(broken(0), reason)
        assert len(desk.asked) == 2
        run.turn()
        desk.answers.append("not today")
        assert_refused(broken(0), "gate")  # it would have been the probe, which it did not use up
        run.turn()
        with pytest.raises(OSError, match="always"):
            broken(0)
        assert len(desk.asked) == 4


def test_it_is_asked_of_no_query_and_no_specialist_that_a_wall_would_refuse():
    pytest.importorskip("sqlglot")
    desk = Desk()

    @metered(kind="read", query="sql", gate=desk)
    def ask(sql):
        return sql

    @metered(kind="read", delegate=True, gate=desk)
    def lawyer(question):
        return question

    with toolguard.run(query_loop=1, delegation=1):
        ask("SELECT 1")
        assert_refused(ask("SELECT 2"), "query_loop")
        lawyer(1)
        assert_refused(lawyer(2), "delegation")
    assert len(desk.asked) == 2


def test_it_is_not_asked_past_a_deadline():
    clock, desk = FakeClock(), Desk()
    with isolated(clock=clock):
        tool, _ = shapes(desk, [])["plain"]
        with toolguard.run(deadline_s=10):
            clock.advance(11)
            assert_refused(tool(1), "deadline_s")
    assert desk.asked == []


def test_it_is_asked_once_even_where_several_walls_were():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run(aggregate=1):
        tool(1)
        assert_refused(tool(2), "aggregate")
        assert tool(2) == 2  # the confirming call
        assert len(desk.asked) == 2


def test_a_gate_that_refuses_the_confirming_call_leaves_it_to_be_confirmed():
    desk, ran = Desk(None, "wait"), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run(aggregate=1):
        tool(1)
        assert_refused(tool(2), "aggregate")
        assert_refused(tool(2), "gate")
        assert tool(2) == 2


def test_a_call_that_cannot_bind_is_not_asked_of():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run() as run:
        with pytest.raises(TypeError):
            tool()
        with pytest.raises(TypeError):
            tool(1, 2, 3)
        assert run.usage().refused == 0
    assert desk.asked == []


def test_what_never_begins_is_not_asked_of():
    desk, ran = Desk(), []
    made = shapes(desk, ran)
    with toolguard.run() as run:
        made["coroutine"][0](1).close()
        made["generator"][0](1).close()
        flow = made["generator"][0](2)
        assert desk.asked == []
        assert next(flow) == 2
        assert len(desk.asked) == 1
        assert list(flow) == []
        assert len(desk.asked) == 1
        assert run.usage().executed == 1


# The walls are asked again after it -----------------------------------------------------------------------------------


def test_a_limit_that_was_used_up_while_it_decided_refuses_and_nothing_runs():
    ran = []

    def decide(call):
        for n in range(2):
            look(n)

    @metered(kind="read", gate=decide)
    def fetch():
        ran.append(1)

    with toolguard.run(call_budget=2) as run:
        refusal = assert_refused(fetch(), "call_budget")
        assert (refusal.used, refusal.limit) == (2, 2)
        assert ran == []
        assert run.usage().by_tool == {"look": 2}
        assert run.usage().by_reason == {"call_budget": 1}


def test_a_run_that_was_stopped_while_it_decided_refuses():
    @metered(kind="send", gate=lambda call: call.run.stop("the user left"))
    def wire():
        raise AssertionError

    with toolguard.run() as run:
        assert assert_refused(wire(), "stop").retry == "never"
        assert run.stop_message == "the user left"


async def test_of_two_approved_sends_that_are_one_and_the_same_one_is_sent():
    desk, sent = SlowDesk(), []

    @metered(kind="send", gate=desk)
    async def wire(amount):
        await asyncio.sleep(0)
        sent.append(amount)
        return "wired"

    with toolguard.run() as run:
        said = await asyncio.gather(*(wire(5) for _ in range(4)))
        assert sent == [5]
        assert Counter(getattr(answer, "reason", None) for answer in said) == {None: 1, "duplicate_send": 3}
        assert run.usage().executed == 1


async def test_of_many_approved_calls_against_a_few_left_exactly_those_run():
    desk, ran = SlowDesk(), []

    @metered(kind="read", gate=desk)
    async def fetch(n):
        ran.append(n)
        await asyncio.sleep(0)

    with toolguard.run(call_budget=3) as run:
        await asyncio.gather(*(fetch(n) for n in range(10)))
        assert len(ran) == run.usage().executed == 3
        assert run.usage().by_reason == {"call_budget": 7}


def test_threads_with_a_gate_run_exactly_as_often_as_the_limit_says():
    for _ in range(30):
        ran, barrier = [], threading.Barrier(6)

        def decide(call, barrier=barrier):
            if not barrier.broken:
                barrier.wait(20)  # all are asked before any is charged

        @metered(kind="read", gate=decide)
        def fetch(n, ran=ran):
            ran.append(n)

        with toolguard.run(call_budget=4) as run:
            threads = [threading.Thread(target=run.bind(fetch), args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(ran) == run.usage().executed == 4


def test_in_one_session_one_of_many_approved_probes_runs():
    ran, decided = [], threading.Barrier(4)
    probing = []

    def decide(call):
        if probing:
            decided.wait(20)

    @metered(kind="read", gate=decide)
    def broken():
        ran.append(1)
        raise OSError("same")

    def attempt():
        with toolguard.run(session="s"):
            try:
                said.append(broken())
            except OSError as error:
                said.append(error)

    said = []
    for _ in range(3):
        attempt()
    assert [type(answer) for answer in said] == [OSError, OSError, Refusal]
    probing.append(1)
    said.clear()
    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(getattr(answer, "reason", None) for answer in said) == {None: 1, "repeat_failure": 3}
    assert len(ran) == 3


# What it is charged to ------------------------------------------------------------------------------------------------


def test_denials_use_nothing_up():
    desk = Desk("no", "no", RuntimeError("the line is dead"), None, None, None)

    @metered(kind="send", gate=desk)
    def wire(amount):
        return "wired"

    with toolguard.run(delivery=2, hard_cap=100) as run:
        assert [assert_refused(wire(n)).reason for n in range(3)] == ["gate"] * 3
        assert run.usage().executed == 0
        assert [wire(n) for n in range(3, 5)] == ["wired"] * 2
        refusal = assert_refused(wire(6), "delivery")
        assert (refusal.used, refusal.limit) == (2, 2)
        assert len(desk.asked) == 5


def test_denials_are_no_failures_no_repetition_and_no_outcome_to_any_wall():
    desk = Desk(*["no"] * 30)

    @metered(kind="read", gate=desk)
    def fetch(n):
        return n

    with toolguard.run(refused_calls=0, repeat_failure=1, same_complaint=1, same_outcome=1, stale_streak=1, aggregate=1):
        assert [fetch(1).reason for _ in range(30)] == ["gate"] * 30
        assert fetch(1) == 1


def test_a_denial_in_between_breaks_no_row():
    desk = Desk(None, None, "no", None)

    @metered(kind="read", gate=desk)
    def fetch(n):
        return n

    with toolguard.run(same_outcome=3):
        assert [fetch(1), fetch(1)] == [1, 1]
        assert_refused(fetch(1), "gate")
        assert fetch(1) == 1
        assert_refused(fetch(1), "same_outcome")


def test_denials_count_for_refused_calls_and_refused_turns():
    @metered(kind="read", gate=lambda call: "no")
    def fetch(n):
        raise AssertionError

    with toolguard.run(refused_calls=4) as run:
        for n in range(4):
            assert not run.stopped
            assert_refused(fetch(n), "gate")
        assert run.stop_reason == "refused_calls"
    with toolguard.run(refused_turns=3) as run:
        for n in range(3):
            run.turn()
            assert_refused(fetch(n), "gate")
        run.turn()
        assert run.stop_reason == "refused_turns"


def test_a_gate_may_call_tools_of_the_same_run_which_are_charged_as_any_call():
    seen = []

    def decide(call):
        seen.append(current_run())
        return look(5) and "not today"

    @metered(kind="read", gate=decide)
    def fetch():
        raise AssertionError

    with toolguard.run() as run:
        assert_refused(fetch(), "gate")
        assert run.usage().by_tool == {"look": 1}
        assert seen == [run]
        with toolguard.uncounted():
            assert_refused(fetch(), "gate")
        assert run.usage().by_tool == {"look": 1}


def test_a_gate_that_hands_on_the_refusal_of_an_inner_call_refuses_with_its_text():
    @metered(kind="send", gate=lambda call: look(2))
    def wire():
        raise AssertionError

    with toolguard.run(call_budget=1):
        look(1)
        inner = assert_refused(look(2), "call_budget")
        assert assert_refused(wire(), "gate") == f"wire did NOT execute: {inner}"


# Gates that fail ------------------------------------------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("error", [RuntimeError("secret reason"), OSError(), RecursionError("secret"), StopIteration(1)])
def test_a_gate_that_raises_refuses_and_shows_the_model_nothing_of_it(logged, shape, error):
    desk, ran = Desk(error), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run() as run:
        refusal = assert_refused(get(tool(1)), "gate")
        assert refusal.startswith(f"{shape} did NOT execute: ")
        assert "could not decide" in refusal
        assert "secret" not in refusal
        assert run.usage().executed == 0
    assert ran == []
    (warning,) = [record for record in logged.records if record.levelno == logging.WARNING]
    assert type(error).__name__ in warning.getMessage()
    assert shape in warning.getMessage()
    assert "secret" not in warning.getMessage()


@pytest.mark.parametrize("shape", ASYNC)
def test_an_async_gate_that_raises_refuses_too(shape):
    desk, ran = SlowDesk(RuntimeError("secret")), []
    tool, get = shapes_async(desk, ran)[shape]
    with toolguard.run():
        assert "secret" not in assert_refused(get(tool(1)), "gate")
    assert ran == []


@pytest.mark.parametrize("what", NO_ANSWERS)
@pytest.mark.parametrize("shape", ["plain", "coroutine", "generator", "async_generator"])
def test_what_is_neither_none_nor_a_text_is_no_yes(logged, what, shape):
    desk, ran = Desk(lambda: NO_ANSWERS[what]), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run():
        refusal = assert_refused(get(tool(1)), "gate")
    assert "could not decide" in refusal
    assert ran == []
    assert any("return None or a text" in record.getMessage() for record in logged.records)


async def yes():
    return None


@pytest.mark.parametrize("shape", ["plain", "generator", "method"])
def test_an_awaitable_is_no_answer_where_nobody_can_wait(logged, shape):
    desk, ran = Desk(yes), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run():
        refusal = assert_refused(get(tool(1)), "gate")
    assert "could not decide" in refusal
    assert ran == []
    assert any("awaitable" in record.getMessage() for record in logged.records)


@pytest.mark.parametrize("shape", ASYNC)
def test_an_awaitable_is_awaited_where_somebody_can(shape):
    async def no():
        return "no"

    desk, ran = Desk(yes, no), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run():
        assert get(tool(1)) == 1
        assert assert_refused(get(tool(1)), "gate").endswith("no")
    assert ran == [1]


class Liar:
    @property
    def __class__(self):
        raise RuntimeError


@pytest.mark.parametrize("shape", ["plain", "coroutine", "generator", "async_generator"])
def test_an_answer_that_raises_whatever_is_asked_of_it_is_no_yes(shape):
    async def later():
        return Liar()

    desk, ran = Desk(Liar, later), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run():
        for _ in range(2):
            assert "could not decide" in assert_refused(get(tool(1)), "gate")
    assert ran == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("shape", ["plain", "generator", "method"])
def test_what_ends_the_program_passes_and_charges_nothing(spans, shape, error):
    desk, ran = Desk(error), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run() as run:
        with pytest.raises(type(error)) as caught:
            get(tool(1))
        assert caught.value is error
        assert run.usage().to_dict() == toolguard.Usage().to_dict()
        assert get(tool(1)) == 1
    assert ran == [1]
    assert len(spans.calls()) == 1


@pytest.mark.parametrize("shape", ASYNC)
@pytest.mark.parametrize("how", ["cancel", "wait_for"])
async def test_a_call_that_is_cancelled_while_somebody_decides_is_charged_nothing(spans, shape, how):
    asked = asyncio.Event()

    async def decide(call):
        asked.set()
        await asyncio.Event().wait()

    ran = []
    tool, _ = shapes_async(decide, ran)[shape]

    async def go():
        made = tool(1)
        return [item async for item in made] if shape == "async_generator" else await made

    with toolguard.run() as run:
        if how == "cancel":
            task = asyncio.create_task(go())
            await asked.wait()
            task.cancel("the user left")
            with pytest.raises(asyncio.CancelledError, match="the user left"):
                await task
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(go(), 0.001)
        assert run.usage().to_dict() == toolguard.Usage().to_dict()
        assert current_run() is run
    assert ran == []
    assert spans.calls() == []


async def test_a_gate_that_swallows_the_cancelling_decides():
    async def decide(call):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "nobody was there to say yes"

    @metered(kind="send", gate=decide)
    async def wire():
        raise AssertionError

    with toolguard.run():
        task = asyncio.create_task(wire())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        assert_refused(await task, "gate")


# NotExecuted ----------------------------------------------------------------------------------------------------------


@SHAPES
@pytest.mark.parametrize("where", ["gate", "body"])
@pytest.mark.parametrize(("message", "tail"), [("Ask ann first.", ": Ask ann first."), ("", ".")])
def test_a_gate_or_a_body_may_say_that_nothing_ran(spans, shape, where, message, tail):
    ran = Ran(NotExecuted(message)) if where == "body" else []
    tool, get = shapes(Desk(NotExecuted(message) if where == "gate" else None), ran)[shape]
    with toolguard.run() as run:
        refusal = assert_refused(get(tool(1)), "gate")
        assert refusal == f"{shape} did NOT execute{tail}"
        assert (refusal.used, refusal.limit, refusal.retry) == (None, None, "different")
        assert run.usage().executed == 0
        assert run.usage().by_reason == {"gate": 1}
    (span,) = spans.calls()
    assert span.attributes["toolguard.refused"] is True
    assert span.attributes["toolguard.executed"] is False
    assert span.attributes["toolguard.refusal.reason"] == "gate"
    assert span.attributes["toolguard.call.outcome"] == ("refused" if where == "gate" else "not_executed")
    assert "Ask ann" not in span.to_json()


class Ran(list):
    """What runs, and what it raises when it does."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def append(self, _):
        raise self.error


@pytest.mark.parametrize("shape", ASYNC)
def test_an_async_gate_may_say_so_too(shape):
    tool, get = shapes_async(SlowDesk(NotExecuted("Ask ann first.")), [])[shape]
    with toolguard.run():
        assert assert_refused(get(tool(1)), "gate") == f"{shape} did NOT execute: Ask ann first."


def test_a_body_that_says_so_was_asked_of_and_gives_everything_back():
    desk = Desk()

    @metered(kind="send", gate=desk)
    def wire(amount):
        if len(desk.asked) < 3:
            raise NotExecuted("the line is busy")
        return "wired"

    with toolguard.run(delivery=1, hard_cap=1) as run:
        for _ in range(2):
            assert_refused(wire(1), "gate")
        assert wire(1) == "wired"
        assert len(desk.asked) == 3
        assert run.usage().executed == 1


# Everywhere -----------------------------------------------------------------------------------------------------------


@SHAPES
def test_it_decides_in_observe_mode(shape):
    desk, ran = Desk("no", None, None), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run(mode="observe", call_budget=1, same_outcome=0):
        assert_refused(get(tool(1)), "gate")
        assert get(tool(1)) == 1
        assert get(tool(2)) == 2
    assert len(desk.asked) == 3  # in observe mode no wall would keep the call from running


def test_a_call_that_an_observing_wall_would_refuse_is_asked_of_and_marked_when_it_runs(spans):
    desk, ran = Desk(None, "no", None), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run(mode="observe", call_budget=1):
        tool(1)
        assert_refused(tool(2), "gate")
        tool(3)
    first, denied, second = spans.calls()
    assert "toolguard.would_refuse" not in first.attributes
    assert "toolguard.would_refuse" not in denied.attributes
    assert denied.attributes["toolguard.refusal.reason"] == "gate"
    assert second.attributes["toolguard.would_refuse"] == "call_budget"
    assert spans.runs()[0].attributes["toolguard.run.would_refuse"] == 1


@SHAPES
@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_it_decides_outside_a_run(spans, logged, shape, policy):
    toolguard.configure({"outside_run": policy})
    desk, ran = Desk("no", None), []
    tool, get = shapes(desk, ran)[shape]
    refusal = assert_refused(get(tool(1)), "gate")
    assert refusal == f"{shape} did NOT execute: no"
    assert refusal.run_id is None
    assert ran == []
    assert get(tool(1)) == 1
    assert ran == [1]
    assert [call.run for call in desk.asked] == [None, None]
    if policy == "allow":
        assert spans.calls() == []
    else:
        denied, allowed = spans.calls()
        assert denied.attributes["toolguard.refusal.reason"] == "gate"
        assert denied.attributes["toolguard.run.missing"] is True
        assert allowed.attributes["toolguard.executed"] is True
    assert sum("outside a run" in record.getMessage() for record in logged.records) == (policy == "warn")


@SHAPES
def test_where_nothing_runs_outside_a_run_it_is_not_asked(shape):
    toolguard.configure({"outside_run": "refuse"})
    desk, ran = Desk(), []
    tool, get = shapes(desk, ran)[shape]
    assert_refused(get(tool(1)), "outside_run")
    assert desk.asked == ran == []


@SHAPES
def test_it_decides_of_what_the_harness_does(spans, shape):
    desk, ran = Desk("no", None), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run(call_budget=1) as run:
        look(1)
        with toolguard.uncounted():
            assert_refused(get(tool(1)), "gate")
            assert get(tool(1)) == 1
        assert run.usage().executed == 1
        assert [call.run for call in desk.asked] == [run, run]
        run.stop("enough")
        with toolguard.uncounted():
            assert get(tool(2)) == 2
    assert ran == [1, 2]
    assert all(span.attributes["toolguard.uncounted"] for span in spans.calls() if span.name.endswith(shape))


def test_it_decides_of_the_harnesss_calls_outside_a_run_too():
    desk, ran = Desk("no", None), []
    tool, _ = shapes(desk, ran)["plain"]
    for policy in ("warn", "allow", "refuse"):
        toolguard.configure({"outside_run": policy})
        desk.answers[:] = ["no", None]
        with toolguard.uncounted():
            assert_refused(tool(1), "gate")
            assert tool(1) == 1


def test_it_decides_of_local_tools():
    toolguard.configure({"local": ["plain"]})
    desk, ran = Desk("no", None), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run() as run:
        assert_refused(tool(1), "gate")
        assert tool(1) == 1
        assert run.usage().executed == 0


@SHAPES
def test_a_bound_tool_brings_its_run_along_to_the_gate(shape):
    seen = []

    def decide(call):
        seen.append((call.run, current_run()))

    tool, get = shapes(decide, [])[shape]
    with toolguard.run() as run:
        bound = run.bind(tool)
    assert get(bound(1)) == 1
    assert seen == [(run, run)]


@SHAPES
def test_the_gate_of_a_nested_run_sees_that_run(shape):
    desk = Desk()
    tool, get = shapes(desk, [])[shape]
    with toolguard.run(), toolguard.run("inner") as inner:
        get(tool(1))
    assert [call.run for call in desk.asked] == [inner]


# What it is asked about -----------------------------------------------------------------------------------------------


def test_a_call_has_the_tools_name_and_kind_and_the_run():
    desk = Desk()

    @metered(kind="send", name="wire-money", gate=desk)
    def wire(amount):
        return "wired"

    with toolguard.run("assistant") as run:
        wire(5)
    (call,) = desk.asked
    assert isinstance(call, toolguard.Call)
    assert (call.tool, call.kind) == ("wire-money", "send")
    assert call.run is run
    assert type(call.run) is toolguard.Run


def test_arguments_are_the_objects_that_the_function_gets_with_its_defaults():
    desk, got, to, note = Desk(), [], ["ann"], object()

    @metered(kind="send", gate=desk)
    def wire(to, amount=5, /, *more, note=note, **rest):
        got.append((to, amount, more, note, rest))

    with toolguard.run():
        wire(to, x=1)
        wire(to, 6, 7, 8, note=None)
    first, second = (dict(call.arguments) for call in desk.asked)
    assert first == {"to": to, "amount": 5, "more": (), "note": note, "rest": {"x": 1}}
    assert first["to"] is to is got[0][0]
    assert first["note"] is note is got[0][3]
    assert second == {"to": to, "amount": 6, "more": (7, 8), "note": None, "rest": {}}
    assert list(first) == ["to", "amount", "more", "note", "rest"]


def test_arguments_and_call_cannot_be_changed():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run():
        tool(1)
    (call,) = desk.asked
    with pytest.raises(TypeError):
        call.arguments["value"] = 2
    with pytest.raises((FrozenInstanceError, AttributeError)):
        call.tool = "other"
    assert not hasattr(call.arguments, "update")


def test_what_a_gate_does_to_its_mapping_changes_nothing_that_runs():
    def meddle(call):
        try:
            call.arguments["value"] = "other"
        except TypeError:
            tried.append(call)

    tried = []
    tool, _ = shapes(meddle, [])["plain"]
    with toolguard.run():
        assert tool("mine") == "mine"
    assert len(tried) == 1


def test_a_method_shows_its_receiver_as_the_parameter_that_it_is():
    desk = Desk()

    class Box:
        @metered(kind="read", gate=desk)
        def fetch(self, n=1):
            return n

        @metered(kind="read", gate=desk)
        @classmethod
        def count(cls, n=1):
            return n

        @staticmethod
        @metered(kind="read", gate=desk)
        def ping(n=1):
            return n

    box = Box()
    with toolguard.run():
        box.fetch()
        Box.fetch(box, 2)
        Box.count(3)
        box.ping(4)
    assert [dict(call.arguments) for call in desk.asked] == [
        {"self": box, "n": 1},
        {"self": box, "n": 2},
        {"cls": Box, "n": 3},
        {"n": 4},
    ]


def test_a_call_that_its_signature_does_not_describe_shows_args_and_kwargs():
    desk = Desk()

    def wider(function):
        @functools.wraps(function)
        def taking_more(*args, **kwargs):
            return "fetched"

        return taking_more

    @metered(kind="read", gate=desk)
    @wider
    def fetch(n):
        return n

    with toolguard.run():
        assert fetch(1, 2, key=3) == "fetched"
    assert dict(desk.asked[0].arguments) == {"args": (1, 2), "kwargs": {"key": 3}}


def test_the_text_of_a_call_shows_no_argument():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run():
        tool("secret")
    assert "secret" not in repr(desk.asked[0])
    assert "plain" in repr(desk.asked[0])


def test_equal_calls_have_one_identity_and_others_another():
    desk = Desk()

    @metered(kind="read", gate=desk, ignore="timeout")
    def fetch(n, page=1, timeout=9):
        return n

    @metered(kind="read", gate=desk)
    def other(n, page=1, timeout=9):
        return n

    with toolguard.run(same_outcome=0, stale_streak=0):
        fetch(1)
        fetch(n=1, page=1)
        fetch(1, timeout=1)
        fetch(1.0)
        fetch(2)
        fetch("1")
        fetch(1, 2)
        other(1)
    same, rest = desk.asked[:4], desk.asked[4:]
    assert len({call.identity for call in same}) == 1
    assert len({call.identity for call in rest} | {same[0].identity}) == 5
    for call in desk.asked:
        assert type(call.identity) is str
        int(call.identity, 16)


def test_an_identity_is_the_same_in_each_run_of_a_session_and_says_nothing_in_another():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    for session, tenant in (("a", None), ("a", None), ("b", None), ("a", "t"), (None, None), (None, None)):
        with toolguard.run(session=session, tenant=tenant), toolguard.run():
            tool("guessable")
    one, again, *others = [call.identity for call in desk.asked]
    assert one == again
    assert len({one, *others}) == 5


def test_the_harnesss_call_has_the_identity_that_it_would_have_in_the_run():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    for _ in range(2):
        with toolguard.run():
            tool("guessable")
            with toolguard.uncounted():
                tool("guessable")
    first, first_again, second, second_again = [call.identity for call in desk.asked]
    assert first == first_again
    assert second == second_again
    assert first != second


def test_an_identity_is_the_same_where_no_wall_needs_one():
    desk, ran = Desk(), []
    tool, _ = shapes(desk, ran)["plain"]
    off = {"repeat_failure": 0, "same_complaint": 0, "same_outcome": 0, "stale_streak": 0, "aggregate": 0, "hard_cap": 0}
    with toolguard.run(session="s", **off):
        tool(1)
    with toolguard.run(session="s"):
        tool(1)
        tool(2)
    one, again, other = [call.identity for call in desk.asked]
    assert one == again != other
    assert one


def test_two_receivers_have_two_identities_and_one_has_one():
    desk = Desk()

    class Box:
        @metered(kind="send", gate=desk, repeatable=True)
        def send(self, body):
            return body

    one, two = Box(), Box()
    with toolguard.run(session="s"):
        one.send("hi")
        two.send("hi")
    with toolguard.run(session="s"):
        one.send("hi")
    first, second, again = [call.identity for call in desk.asked]
    assert first == again != second


def test_each_attempt_has_an_id_of_its_own():
    desk, ran = Desk(*["no"] * 5), []
    tool, _ = shapes(desk, ran)["plain"]
    with toolguard.run():
        for _ in range(7):
            tool(1)
    assert len({call.id for call in desk.asked}) == len(desk.asked) >= 7
    assert all(call.id and isinstance(call.id, str) for call in desk.asked)


# Telemetry ------------------------------------------------------------------------------------------------------------


@SHAPES
def test_the_span_of_a_denial_holds_no_word_of_the_gate(spans, shape):
    desk, ran = Desk("ann says: never, her number is ko-47-11"), []
    tool, get = shapes(desk, ran)[shape]
    with toolguard.run():
        get(tool("the argument"))
    (span,) = spans.calls()
    assert span.name == f"execute_tool {shape}"
    attributes = span.attributes
    assert attributes["toolguard.refused"] is True
    assert attributes["toolguard.executed"] is False
    assert attributes["toolguard.call.outcome"] == "refused"
    assert attributes["toolguard.refusal.reason"] == "gate"
    assert attributes["toolguard.refusal.retry"] == "different"
    assert attributes["toolguard.refusal.message"] == f"{shape} did NOT execute."
    assert "toolguard.refusal.used" not in attributes
    assert "toolguard.refusal.limit" not in attributes
    assert span.status.is_unset
    assert span.events == ()
    for secret in ("ann says", "ko-47-11", "argument"):
        assert secret not in span.to_json()


def test_an_approved_call_has_one_span_that_says_nothing_of_the_gate(spans):
    tool, _ = shapes(Desk(), [])["plain"]
    with toolguard.run():
        tool(1)
    (span,) = spans.calls()
    assert span.attributes["toolguard.executed"] is True
    assert not any(name.startswith("toolguard.refusal") for name in span.attributes)


async def test_an_async_gate_that_waits_for_another_task_leaves_the_current_span_as_it_was(spans, provider):
    async def colleague():
        with provider.get_tracer("theirs").start_as_current_span("asks around"):
            await asyncio.sleep(0)
        return "no"

    async def decide(call):
        return await asyncio.create_task(colleague())

    tool, _ = shapes_async(decide, [])["coroutine"]
    with provider.get_tracer("mine").start_as_current_span("outer") as outer, toolguard.run() as run:
        inside = trace.get_current_span()
        assert_refused(await tool(1), "gate")
        assert trace.get_current_span() is inside
        assert current_run() is run
    assert outer is not inside
    (span,) = spans.calls()
    assert span.attributes["toolguard.call.outcome"] == "refused"
    assert span.end_time is not None


def test_the_time_that_a_person_takes_is_not_the_tools(metric_reader):
    clock = FakeClock()

    def decide(call):
        clock.advance(3600)

    with isolated(clock=clock), toolguard.run("timed"):

        @metered(kind="read", name="timed_by_itself", gate=decide)
        def fetch():
            clock.advance(2)

        fetch()
    points = [
        point
        for resource in metric_reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.execute_tool.duration"
        for point in metric.data.data_points
        if point.attributes.get("gen_ai.tool.name") == "timed_by_itself"
    ]
    assert [point.sum for point in points] == [2]


def test_a_denial_is_one_record_in_the_log_with_its_fields(logged):
    tool, _ = shapes(Desk("no"), [])["plain"]
    with toolguard.run():
        tool(1)
    (record,) = [record for record in logged.records if record.getMessage().startswith("refused")]
    assert record.levelno == logging.INFO
    assert record.reason == "gate"
    assert record.text == "plain did NOT execute: no"


# Wrong uses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["yes", 1, True, ("a",), {}, b""])
def test_a_gate_must_be_callable(wrong):
    with pytest.raises(TypeError, match="gate= takes a function"):
        metered(kind="read", gate=wrong)


async def waits(call):
    return None


class Waits:
    async def __call__(self, call):
        return None


class WaitsInside:
    async def decide(self, call):
        return None


@pytest.mark.parametrize(
    "gate", [waits, Waits(), WaitsInside().decide, functools.partial(waits)], ids=["function", "object", "method", "partial"]
)
def test_an_async_gate_cannot_decide_of_a_plain_function(gate):
    def plain():
        return 1

    def stream():
        yield 1

    async def coroutine():
        return 1

    async def astream():
        yield 1

    for function in (plain, stream, classmethod(plain), staticmethod(stream)):
        with pytest.raises(TypeError, match="cannot wait for an async gate"):
            metered(kind="read", gate=gate)(function)
    for function in (coroutine, astream, staticmethod(coroutine)):
        metered(kind="read", gate=gate)(function)


def test_a_tool_decorated_twice_must_have_one_gate():
    desk = Desk()

    def fetch():
        return 1

    tool = metered(kind="read", gate=desk)(fetch)
    assert metered(kind="read", gate=desk)(tool) is tool
    with pytest.raises(TypeError, match="other options"):
        metered(kind="read", gate=Desk())(tool)


def test_a_tool_with_a_gate_is_to_inspect_what_its_function_is():
    made = shapes(Desk(), [])
    assert inspect.iscoroutinefunction(made["coroutine"][0])
    assert inspect.isgeneratorfunction(made["generator"][0])
    assert inspect.isasyncgenfunction(made["async_generator"][0])
    assert not inspect.iscoroutinefunction(made["plain"][0])
