"""The identical retry that fails the same way again."""

import asyncio
import gc
import threading
import types
from collections import Counter
from contextvars import copy_context

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, current_run, metered, uncounted
from toolguard.testing import assert_executed, assert_refused

OTHERS_OFF = {
    "same_complaint": 0,
    "same_outcome": 0,
    "stale_streak": 0,
    "duplicate_send": 0,
    "refused_calls": 0,
    "refused_turns": 0,
    "per_tool": 0,
    "delivery": 0,
    "aggregate": 0,
    "adaptive_soft": 0,
}


def alone(*, session=None, mode=None, **limits):
    """Open a run in which no other wall refuses; progress forgives nothing unless the test says so."""
    return toolguard.run(session=session, mode=mode, **{**OTHERS_OFF, "progress_clears": False, **limits})


def come_to(do):
    if isinstance(do, BaseException):
        raise do
    return do


@metered(kind="read", ignore="do")
def look(n, do="ok"):
    return come_to(do)


@metered(kind="read", ignore="do")
def other(n, do="ok"):
    return come_to(do)


@metered(kind="send", ignore="do")
def send(n, do="ok"):
    return come_to(do)


@metered(kind="read", polls=True, ignore="do")
def status(n, do="ok"):
    return come_to(do)


@metered(kind="read", ignore="do")
def scratch(n, do="ok"):
    return come_to(do)


@metered(kind="read", ignore="do")
def stream(n, do="ok"):
    yield 1
    yield come_to(do)


def said(call, *arguments):
    """Make a call and return what it came to: the refusal's reason, `failed`, or `ran`."""
    try:
        value = call(*arguments)
    except Exception:  # noqa: BLE001  whatever the test let it raise
        return "failed"
    return value.reason if isinstance(value, toolguard.Refusal) else "ran"


def fail(n, times=1, error="gone", call=look):
    for _ in range(times):
        assert said(call, n, OSError(error)) == "failed"


def refused(n, call=look):
    return assert_refused(call(n), "repeat_failure")


# A call taken step by step: made, begun, ended. That is all that a scheduler can vary.


@types.coroutine
def pause():
    return (yield)


@metered(kind="read")
async def job(n=0):
    return await pause()


class Flight:
    """One call of a coroutine function, in a context of its own as a task has it."""

    def __init__(self, made):
        self.made = made
        self.context = copy_context()

    def _step(self, step, *arguments):
        try:
            self.context.run(step, *arguments)
        except StopIteration as end:
            return end.value
        return None

    def begin(self):
        """Return None, and the call is in flight; or its refusal."""
        return self._step(self.made.send, None)

    def end(self, value="ok"):
        return self._step(self.made.send, value)

    def fail(self, error="gone"):
        with pytest.raises(OSError, match=error):
            self._step(self.made.throw, OSError(error))

    def throw(self, error):
        with pytest.raises(type(error)):
            self._step(self.made.throw, error)

    def close(self):
        self.context.run(self.made.close)


def begun(made):
    flight = Flight(made)
    assert flight.begin() is None
    return flight


def probing(n=0):
    """Bring `job(n)` to its probe, and return it in flight."""
    for _ in range(2):
        begun(job(n)).fail()
    assert_refused(Flight(job(n)).begin(), "repeat_failure")
    return begun(job(n))


# The story ------------------------------------------------------------------------------------------------------------


def test_the_third_identical_failure_is_refused_then_tried_once_and_then_refused_for_good():
    with alone():
        fail(1, times=2)
        refused(1)
        fail(1)
        for _ in range(10):
            assert refused(1).rule == "closed"


def test_a_probe_that_succeeds_lets_the_call_run_as_if_it_had_never_failed():
    with alone():
        fail(1, times=2)
        refused(1)
        assert look(1) == "ok"
        fail(1, times=2)
        refused(1)


def test_corrected_arguments_run_at_once():
    with alone():
        fail(1, times=2)
        refused(1)
        assert look(2) == "ok"
        assert other(1) == "ok"


def test_three_recipients_that_fail_once_each_do_not_keep_a_fourth_from_its_first_try():
    with alone():
        for to in ("a", "b", "c"):
            fail(to, call=send)
        assert send("d") == "ok"
        assert send("a") == "ok"


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_as_many_identical_failures_run_as_the_limit_says(limit):
    with alone(repeat_failure=limit):
        fail(1, times=limit)
        refusal = refused(1)
        assert (refusal.used, refusal.limit) == (limit, limit)
        fail(1)
        refusal = refused(1)
        assert (refusal.used, refusal.limit) == (limit + 1, limit)


def test_a_limit_of_0_means_no_limit():
    with alone(repeat_failure=0):
        fail(1, times=30)


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_lets_two_identical_failures_run(profile):
    with toolguard.run(profile=profile):
        fail(1, times=2)
        refused(1)


def test_sends_and_pollers_fail_like_reads():
    for call in (send, status):
        with alone():
            fail(1, times=2, call=call)
            refused(1, call=call)
            fail(1, call=call)
            assert refused(1, call=call).rule == "closed"


def test_a_refusal_charges_nothing():
    with alone() as run:
        fail(1, times=2)
        for _ in range(9):
            said(look, 1, OSError("gone"))
        assert run.usage().executed == 3
        assert run.usage().by_reason == {"repeat_failure": 8}


def test_it_is_named_before_the_walls_that_see_the_same_loop():
    with toolguard.run(same_outcome=2, per_tool=2, aggregate=2):
        fail(1, times=2)
        refused(1)


# What a refusal says --------------------------------------------------------------------------------------------------


def test_the_first_refusal_gives_the_numbers_and_how_to_have_it_tried():
    with alone(repeat_failure=3) as run:
        fail(1, times=3)
        refusal = refused(1)
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (3, 3, "failing", "later")
        assert (refusal.tool, refusal.kind, refusal.run_id) == ("look", "read", run.id)
        for part in ("look did NOT execute", "failed 3 times", "limit is 3", "change the arguments", "call look once more"):
            assert part in refusal


def test_the_closed_one_says_that_trying_again_is_over():
    with alone():
        fail(1, times=2)
        refused(1)
        fail(1)
        refusal = refused(1)
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (3, 2, "closed", "later")
        for part in ("did NOT execute", "3 times", "limit is 2", "stays refused in this session", "Change the arguments"):
            assert part in refusal
        assert "once more" not in refusal


def test_a_refusal_repeats_no_text_of_the_error():
    with alone():
        fail(1, times=2, error="password hunter2 rejected")
        assert "hunter2" not in refused(1)


def test_the_span_names_wall_and_rule(spans):
    with alone():
        fail(1, times=2)
        refused(1)
        fail(1)
        refused(1)
    told = [span.attributes for span in spans.calls() if span.attributes["toolguard.refused"]]
    assert [one["toolguard.refusal.reason"] for one in told] == ["repeat_failure"] * 2
    assert [one["toolguard.refusal.rule"] for one in told] == ["failing", "closed"]


# What is the same failure ---------------------------------------------------------------------------------------------


def test_another_failure_starts_the_count_anew():
    with alone():
        fail(1, error="gone")
        fail(1, error="away")
        fail(1, error="away")
        refused(1)


def test_failures_that_take_turns_are_never_refused():
    with alone():
        for _ in range(10):
            fail(1, error="gone")
            fail(1, error="away")


def test_the_same_message_from_another_exception_is_another_failure():
    with alone():
        for error in (OSError, ValueError, OSError, ValueError, OSError):
            assert said(look, 1, error("gone")) == "failed"


def test_what_varies_in_a_message_does_not_make_another_failure():
    with alone():
        fail(1, error="Request 17 at 0x7f3a timed out")
        fail(1, error="request 18  at 0x7f3b\ntimed out")
        refused(1)


@pytest.mark.parametrize("value", [{"error": "no such city"}, {"is_error": True}, {"isError": 1, "content": "no"}])
def test_a_returned_failure_counts(value):
    with alone():
        assert look(1, value) == value
        assert look(1, value) == value
        refused(1)


@pytest.mark.parametrize("value", [{"exit_code": 1}, {"error": ""}, {"error": None, "isError": False}, "error: no", [1], None])
def test_what_only_looks_like_a_failure_does_not(value):
    with alone():
        for _ in range(6):
            assert look(1, value) == value


def test_the_program_may_say_what_a_failure_is():
    @metered(kind="read", failed=lambda value: value == "n/a")
    def ask(n):
        return "n/a"

    @metered(kind="read", failed=lambda _value: False)
    def read(n):
        return {"error": "it is the name of a column"}

    with alone():
        assert [ask(1), ask(1)] == ["n/a", "n/a"]
        refused(1, call=ask)
        for _ in range(6):
            assert_executed(read(1))


def test_a_predicate_that_fails_makes_no_failure():
    @metered(kind="read", failed=lambda value: value / 0)
    def ask(n):
        return n

    with alone():
        for _ in range(6):
            assert ask(1) == 1


def test_an_exception_whose_text_cannot_be_had_is_a_failure_all_the_same():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    with alone():
        for _ in range(2):
            with pytest.raises(MuteError):
                look(1, MuteError())
        refused(1)


def test_the_exceptions_pass_through_unchanged():
    error = OSError("gone")
    with alone():
        for _ in range(2):
            with pytest.raises(OSError, match="gone") as caught:
                look(1, error)
            assert caught.value is error


# What is the same call ------------------------------------------------------------------------------------------------


class Mailbox:
    @metered(kind="read")
    def fetch(self, n):
        raise OSError(n)


def test_another_receiver_makes_another_call():
    one, two = Mailbox(), Mailbox()
    with alone():
        fail(1, times=2, error="1", call=lambda n, _do: one.fetch(n))
        assert_refused(one.fetch(1), "repeat_failure")
        assert said(two.fetch, 1) == "failed"


def test_ignored_parameters_do_not_tell_two_calls_apart():
    @metered(kind="read", ignore=("timeout", "trace"))
    def fetch(n, timeout=1, trace=None):
        raise TimeoutError

    with alone():
        assert said(fetch, 1, 5, object()) == "failed"
        assert said(fetch, 1, 50) == "failed"
        assert_refused(fetch(1, timeout=500), "repeat_failure")


def test_defaults_given_and_left_out_are_the_same_call():
    @metered(kind="read")
    def fetch(n, page=1):
        raise TimeoutError

    with alone():
        assert said(fetch, 1) == "failed"
        assert said(fetch, 1, 1) == "failed"
        assert_refused(fetch(n=1), "repeat_failure")


# What clears it -------------------------------------------------------------------------------------------------------


def test_any_success_of_the_call_clears_its_count():
    with alone():
        for _ in range(5):
            fail(1)
            assert look(1) == "ok"


def test_a_success_of_another_call_clears_nothing_unless_progress_does():
    with alone():
        fail(1, times=2)
        assert look(2) == "ok"
        refused(1)


def test_fixing_and_running_again_passes_as_long_as_each_fix_brings_something_new():
    with alone(progress_clears=True):
        for attempt in range(8):
            fail("tests", times=2)
            assert other(attempt) == "ok"


def test_running_again_without_a_fix_does_not():
    with alone(progress_clears=True):
        fail("tests", times=2)
        refused("tests")


@pytest.mark.parametrize("profile", ["assistant", "coding"])
def test_progress_clears_in_these_profiles(profile):
    with toolguard.run(profile=profile):
        fail(1, times=2)
        assert other(1) == "ok"
        fail(1)


def test_progress_does_not_clear_in_operations():
    with toolguard.run(profile="operations"):
        fail(1, times=2)
        assert other(1) == "ok"
        refused(1)


def test_progress_clears_closed_calls_too():
    with alone(progress_clears=True):
        fail(1, times=2)
        refused(1)
        fail(1)
        assert refused(1).rule == "closed"
        assert other(1) == "ok"
        fail(1, times=2)
        assert refused(1).rule == "failing"


def test_progress_clears_every_call_at_once():
    with alone(progress_clears=True):
        for n in range(5):
            fail(n, times=2)
        assert other(1) == "ok"
        for n in range(5):
            fail(n)


def test_a_result_that_was_seen_before_is_no_progress():
    with alone(progress_clears=True):
        assert other(1) == "ok"
        fail(1, times=2)
        assert other(1) == "ok"
        refused(1)
        assert other(1, "new") == "new"
        fail(1)


def test_a_result_that_another_run_of_the_session_saw_is_no_progress():
    with alone(session="s", progress_clears=True):
        assert other(1) == "ok"
    with alone(session="s", progress_clears=True):
        fail(1, times=2)
        assert other(1) == "ok"
        refused(1)


def test_progress_in_one_run_forgives_what_failed_in_another():
    with alone(session="s", progress_clears=True):
        fail(1, times=2)
    with alone(session="s", progress_clears=True):
        refused(1)
        assert other(1) == "ok"
        fail(1)


def test_a_run_to_which_progress_says_nothing_leaves_the_sessions_failures_alone():
    with alone(session="s", progress_clears=True):
        fail(1, times=2)
    with alone(session="s", progress_clears=False):
        assert other(1) == "ok"
        refused(1)


def test_a_send_and_a_new_state_of_a_poller_are_progress():
    with alone(progress_clears=True):
        fail(1, times=2)
        assert send(1) == "ok"
        fail(1, times=2)
        assert status(1, "running") == "running"
        fail(1, times=2)
        assert status(1, "running") == "running"
        refused(1)


def test_what_cannot_be_measured_counts_as_progress():
    with alone(progress_clears=True):
        for _ in range(4):
            fail(1, times=2)
            assert_executed(other(1, object()))


def test_a_failure_is_no_progress_however_new_it_is():
    with alone(progress_clears=True):
        fail(1, times=2)
        for n in range(5):
            fail(n, call=other, error=f"other {'x' * n}")
        refused(1)


# What neither counts nor clears ---------------------------------------------------------------------------------------


def test_refusals_open_nothing():
    with alone(call_budget=1):
        assert other(1) == "ok"
        for _ in range(10):
            assert_refused(look(1), "call_budget")
    with alone():
        assert look(1) == "ok"


def test_a_call_that_says_nothing_ran_neither_counts_nor_clears():
    with alone():
        for _ in range(4):
            assert_refused(look(1, NotExecuted("not now")), "gate")
        fail(1)
        assert_refused(look(1, NotExecuted("not now")), "gate")
        fail(1)
        refused(1)


def test_the_refusal_of_an_inner_call_that_is_passed_on_neither_counts_nor_clears():
    @metered(kind="read", ignore="do")
    def outer(n, do=None):
        return send(n) if do is None else come_to(do)

    with alone(delivery=1):
        assert send("x") == "ok"
        fail(1, call=outer)
        for _ in range(4):
            assert_refused(outer(1), "delivery")
        fail(1, call=outer)
        refused(1, call=outer)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()])
def test_an_interrupted_call_neither_counts_nor_clears(error):
    with alone():
        fail(1)
        for _ in range(4):
            with pytest.raises(type(error)):
                look(1, error)
        fail(1)
        refused(1)


def test_a_stream_that_is_left_early_neither_counts_nor_clears():
    with alone():
        for _ in range(4):
            items = stream(1)
            assert next(items) == 1
            items.close()
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                list(stream(1, OSError("gone")))
        (refusal,) = stream(1)
        assert_refused(refusal, "repeat_failure")


def test_local_and_uncounted_calls_neither_count_nor_clear():
    toolguard.configure({"local": ["scratch"]})
    with alone(progress_clears=True):
        fail(1, times=9, call=scratch)
        with uncounted():
            fail(1, times=9)
        fail(1, times=2)
        assert scratch(2) == "ok"
        with uncounted():
            assert look(1) == "ok"
        refused(1)


def test_a_call_that_cannot_bind_neither_counts_nor_is_counted():
    with alone():
        for _ in range(6):
            assert said(look) == "failed"
        assert look(1) == "ok"


# The probe ------------------------------------------------------------------------------------------------------------


def test_while_the_probe_is_in_flight_the_same_call_is_refused():
    with alone():
        probe = probing()
        for _ in range(3):
            assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "failing"
        assert Flight(job(1)).begin() is None
        assert probe.end() == "ok"
        begun(job()).end()


def test_each_call_has_its_own_probe():
    with alone():
        one, two = probing(1), probing(2)
        one.fail()
        assert two.end() == "ok"
        assert assert_refused(Flight(job(1)).begin(), "repeat_failure").rule == "closed"
        begun(job(2)).end()


EXITS = {
    "cancelled": lambda probe: probe.throw(asyncio.CancelledError()),
    "interrupted": lambda probe: probe.throw(KeyboardInterrupt()),
    "closed": lambda probe: probe.close(),
    "nothing ran": lambda probe: assert_refused(probe._step(probe.made.throw, NotExecuted("no")), "gate"),
    "inner refusal": lambda probe: assert_refused(probe.end(toolguard.Refusal("no", reason="delivery")), "delivery"),
}


@pytest.mark.parametrize("leave", EXITS.values(), ids=EXITS)
def test_a_probe_that_came_to_nothing_gives_its_turn_to_the_next(leave):
    with alone():
        leave(probing())
        second = begun(job())
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "failing"
        second.fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "closed"


def test_a_probe_that_nobody_waits_for_any_more_gives_its_turn_to_the_next():
    with alone():
        probe = probing()
        del probe
        gc.collect()
        begun(job()).end()


def test_a_probe_that_is_made_and_never_begun_takes_no_turn():
    with alone():
        for _ in range(2):
            begun(job()).fail()
        assert_refused(Flight(job()).begin(), "repeat_failure")
        job().close()
        begun(job()).end()


def test_a_stream_keeps_the_turn_while_it_is_open_and_gives_it_back_when_it_is_left():
    with alone():
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                list(stream(1, OSError("gone")))
        assert_refused(next(stream(1)), "repeat_failure")
        probe = stream(1)
        assert next(probe) == 1
        assert_refused(next(stream(1)), "repeat_failure")
        probe.close()
        assert list(stream(1)) == [1, "ok"]


def test_the_turn_is_kept_when_another_wall_refuses_the_call():
    with alone(per_tool=2) as run:
        fail(1, times=2)
        refused(1)
        for _ in range(3):
            assert_refused(look(1), "per_tool")
        assert run.usage().by_reason == {"repeat_failure": 1, "per_tool": 3}
    with alone(session="s"):
        fail(1, times=2)
        refused(1)
    with alone(session="s", call_budget=1):
        assert other(1) == "ok"
        assert_refused(look(1), "call_budget")
    with alone(session="s"):
        assert look(1) == "ok"


def test_the_turn_is_kept_when_a_gate_refuses_the_call():
    answers = []

    @metered(kind="read", ignore="do", gate=lambda _call: answers.pop() if answers else None)
    def guarded(n, do="ok"):
        return come_to(do)

    with alone():
        fail(1, times=2, call=guarded)
        answers.append("not now")
        refused(1, call=guarded)
        assert answers == ["not now"], "a gate is not asked about what a wall refuses"
        assert_refused(guarded(1), "gate")
        assert guarded(1) == "ok"


def test_a_probe_that_fails_in_another_way_starts_the_count_anew():
    with alone():
        fail(1, times=2, error="gone")
        refused(1)
        fail(1, error="away")
        fail(1, error="away")
        assert refused(1).rule == "failing"
        fail(1, error="away")
        assert refused(1).rule == "closed"


def test_refusals_do_not_put_the_probe_off():
    with alone():
        early = [Flight(job()) for _ in range(3)]
        for _ in range(2):
            begun(job()).fail()
        assert_refused(Flight(job()).begin(), "repeat_failure")
        waiting = Flight(job())
        for flight in early:
            assert_refused(flight.begin(), "repeat_failure")
        assert waiting.begin() is None


def test_refusals_during_the_probe_do_not_put_the_next_one_off():
    with alone():
        probe = probing()
        waiting = Flight(job())
        for _ in range(3):
            assert_refused(Flight(job()).begin(), "repeat_failure")
        probe.throw(asyncio.CancelledError())
        assert waiting.begin() is None


def test_what_was_made_before_the_refusal_came_back_is_no_probe():
    with alone():
        early = Flight(job())
        for _ in range(2):
            begun(job()).fail()
        assert_refused(Flight(job()).begin(), "repeat_failure")
        assert_refused(early.begin(), "repeat_failure")
        begun(job()).end()


def test_a_whole_batch_that_was_made_before_the_refusal_is_refused():
    with alone():
        for _ in range(2):
            begun(job()).fail()
        batch = [Flight(job()) for _ in range(5)]
        for flight in batch:
            assert_refused(flight.begin(), "repeat_failure")
        begun(job()).end()


LATE = {
    "ok": Flight.end,
    "fails the same": Flight.fail,
    "fails otherwise": lambda old: old.fail("away"),
    **EXITS,
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_older_call_comes_to_does_not_end_the_probe(late):
    with alone():
        old = begun(job())
        probe = probing()
        late(old)
        assert_refused(Flight(job()).begin(), "repeat_failure")
        probe.fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "closed"


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_older_call_comes_to_takes_nothing_from_a_probe_that_succeeds(late):
    with alone():
        old = begun(job())
        probe = probing()
        late(old)
        probe.end()
        for _ in range(2):
            begun(job()).fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "failing"


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_older_call_comes_to_opens_no_closed_one(late):
    with alone():
        old = begun(job())
        probing().fail()
        late(old)
        refusal = assert_refused(Flight(job()).begin(), "repeat_failure")
        assert (refusal.rule, refusal.used) == ("closed", 3)


# Parallel twins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 10])
def test_parallel_twins_that_fail_are_one_failure(size):
    with alone():
        batch = [begun(job()) for _ in range(size)]
        for flight in batch:
            flight.fail()
        begun(job()).fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").used == 2


def test_two_batches_are_two_failures():
    with alone():
        for _ in range(2):
            for flight in [begun(job()) for _ in range(3)]:
                flight.fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").used == 2


def test_a_call_that_started_once_the_other_was_over_is_no_twin():
    with alone():
        one, two = begun(job()), begun(job(1))
        one.fail()
        three = begun(job())
        two.fail()
        three.fail()
        assert_refused(Flight(job()).begin(), "repeat_failure")


# Sessions and runs ----------------------------------------------------------------------------------------------------


def test_the_count_goes_on_in_the_next_run_of_the_session():
    with alone(session="s"):
        fail(1)
    with alone(session="s"):
        fail(1)
        refused(1)
    with alone(session="s"):
        fail(1)
    with alone(session="s"):
        assert refused(1).rule == "closed"


def test_another_session_another_tenant_and_no_session_start_clean():
    with alone(session="s"):
        fail(1, times=2)
        refused(1)
    with alone(session="t"):
        assert look(1) == "ok"
    with alone():
        assert look(1) == "ok"
    with toolguard.run(session="s", tenant="acme", **OTHERS_OFF):
        assert look(1) == "ok"


def test_a_nested_run_counts_with_the_run_around_it():
    with alone():
        fail(1)
        with alone():
            fail(1)
            refused(1)
        assert look(1) == "ok", "the refusal was returned in the nested run, the probe may be anybody's"


def test_each_run_of_a_session_refuses_at_its_own_limit():
    with alone(session="s", repeat_failure=2) as strict:
        assert look(0) == "ok"
        with alone(session="s", repeat_failure=4):
            fail(1, times=3)
        refusal = refused(1)
        assert (refusal.used, refusal.limit) == (3, 2)
        assert strict.usage().executed == 1


def test_a_run_in_which_the_wall_is_off_counts_nothing():
    with alone(session="s", repeat_failure=0):
        fail(1, times=9)
    with alone(session="s"):
        fail(1, times=2)
        refused(1)


def test_no_session_outlives_its_run_where_none_is_remembered():
    for _ in range(3):
        with alone(session="s", sessions=0):
            fail(1, times=2)
            refused(1)


# Observing ------------------------------------------------------------------------------------------------------------


def test_observing_it_marks_where_it_would_have_refused_and_executes(spans):
    with alone(mode="observe") as run:
        fail(1, times=5)
        assert run.usage().executed == 5
        assert run.refusals == ()
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None, None, "repeat_failure", "repeat_failure", "repeat_failure"]


def test_an_observed_refusal_arms_no_probe():
    with alone(session="s", mode="observe"):
        fail(1, times=3)
    with alone(session="s"):
        refusal = refused(1)
        assert (refusal.rule, refusal.used) == ("failing", 3)
        assert look(1) == "ok"


def test_the_refusal_of_another_wall_arms_no_probe_where_this_one_observes():
    toolguard.configure({"observe": ["repeat_failure"]})
    with alone(session="s", per_tool=2):
        fail(1, times=2)
        assert_refused(look(1), "per_tool")
    toolguard.configure({})
    with alone(session="s"):
        refused(1)
        assert look(1) == "ok"


def test_an_observed_call_takes_no_probe_from_others():
    with alone(session="s") as strict:
        probe = probing()
        with alone(session="s", mode="observe"):
            begun(job()).fail()
        assert current_run() is strict
        assert_refused(Flight(job()).begin(), "repeat_failure")
        probe.fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "closed"


def test_a_single_wall_may_observe(spans):
    toolguard.configure({"observe": ["repeat_failure"]})
    with alone(same_outcome=4):
        fail(1, times=4)
        assert_refused(look(1), "same_outcome")
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None, None, "repeat_failure", "repeat_failure", None]


# What it cannot see ---------------------------------------------------------------------------------------------------


def test_it_cannot_see_a_retry_that_changes_its_arguments():
    with alone():
        for n in range(50):
            fail(n)


def test_it_cannot_see_a_failure_that_words_itself_anew():
    with alone():
        for n in range(50):
            fail(1, error=f"no {chr(ord('a') + n % 26)}{'x' * n}")


def test_it_cannot_see_a_call_that_succeeds_for_nothing():
    with alone():
        for _ in range(50):
            assert look(1) == "ok"


def test_it_cannot_see_calls_each_of_which_starts_before_the_last_one_is_over():
    with alone():
        flight = begun(job())
        for _ in range(50):
            following = begun(job())
            flight.fail()
            flight = following


# Bounds ---------------------------------------------------------------------------------------------------------------


def stored(lab):
    """Return how many failing calls the wall remembers."""
    return next(len(seat.state.failing) for seat in lab.ledger.sync()._seats if seat.wall.name == "repeat_failure")


def test_a_hundred_thousand_failing_calls_leave_a_bounded_state(lab, tools):
    lab = lab(repeat_failure=2)
    for n in range(100_000):
        call = lab.start(tools.read, n.to_bytes(16))
        assert lab.admit(call) is None
        call.signature = "gone"
        lab.end(call, outcome="error")
    assert stored(lab) <= 2048


def test_calls_that_succeed_are_not_stored(lab, tools):
    lab = lab(repeat_failure=2)
    for n in range(100):
        assert lab.attempt(tools.read, n.to_bytes(16)) is None
    assert stored(lab) == 0


def test_forgetting_an_old_failure_only_starts_it_anew():
    with alone():
        fail("old", times=2)
        for n in range(3000):
            said(look, n, OSError("gone"))
        fail("old", times=2)
        refused("old")


# Any history ----------------------------------------------------------------------------------------------------------


class Model:
    """One identity, in the words of the design, for calls that come one after the other."""

    def __init__(self, limit):
        self.limit = limit
        self.clear()

    def clear(self):
        self.signature, self.times, self.state = None, 0, "shut"

    def admits(self):
        return self.times < self.limit or self.state == "half-open"

    def attempt(self, outcome):
        if not self.admits():
            self.state = "half-open" if self.state == "shut" else self.state
            return "repeat_failure"
        if outcome == "ok":
            self.clear()
        elif outcome == self.signature:
            self.state = "closed" if self.times >= self.limit else self.state
            self.times += 1
        elif outcome != "cancelled":
            self.clear()
            self.signature, self.times = outcome, 1
        return "ran" if outcome == "ok" else "failed"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ok", "gone", "gone", "gone", "away", "cancelled"])), max_size=60),
)
@example(2, False, [(0, "gone")] * 6 + [(1, "ok"), (0, "ok")])
def test_any_history_of_single_calls_is_judged_as_the_plain_model_does(limit, progress, history):
    models = [Model(limit) for _ in range(3)]
    seen = set()
    with alone(repeat_failure=limit, progress_clears=progress):
        for n, outcome in history:
            try:
                got = said(look, n, {"ok": "ok", "cancelled": KeyboardInterrupt()}.get(outcome, OSError(outcome)))
            except KeyboardInterrupt:
                got = "failed"
            assert got == models[n].attempt(outcome)
            if got == "ran" and n not in seen:
                seen.add(n)
                for model in models if progress else ():
                    model.clear()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(["make", "begin", "begin", *EXITS]), st.integers(0, 9)), max_size=50),
)
def test_whatever_the_order_one_probe_runs_at_a_time_and_its_turn_is_never_lost(limit, early, history):
    with alone(repeat_failure=limit):
        for _ in range(limit):
            begun(job()).fail()
        made = [(Flight(job()), False) for _ in range(early)]
        assert_refused(Flight(job()).begin(), "repeat_failure")
        probe = None
        for step, which in history:
            if step == "make":
                made.append((Flight(job()), True))
            elif step == "begin" and made:
                flight, in_time = made.pop(which % len(made))
                refusal = flight.begin()
                assert (refusal is None) == (in_time and probe is None)
                probe = flight if refusal is None else probe
            elif step in EXITS and probe is not None:
                EXITS[step](probe)
                probe = None
        (probe or begun(job())).fail()
        assert assert_refused(Flight(job()).begin(), "repeat_failure").rule == "closed"
        for flight, _ in made:
            assert_refused(flight.begin(), "repeat_failure")


# Threads and tasks ----------------------------------------------------------------------------------------------------


async def test_of_many_tasks_that_try_again_together_one_does():
    for size in (2, 5, 20):
        inside = []

        @metered(kind="read", ignore="inside")
        async def fetch(n, inside=inside):
            inside.append(n)
            await asyncio.sleep(0)
            raise TimeoutError

        with alone(session=f"{size}"):
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await fetch(1)
            assert_refused(await fetch(1), "repeat_failure")
            answers = await asyncio.gather(*(fetch(1) for _ in range(size)), return_exceptions=True)
        assert inside == [1, 1, 1]
        assert sum(isinstance(answer, TimeoutError) for answer in answers) == 1
        assert sum(isinstance(answer, toolguard.Refusal) for answer in answers) == size - 1


async def test_a_gather_of_twins_is_one_failure_and_the_next_gather_the_second():
    @metered(kind="read")
    async def fetch(n):
        await asyncio.sleep(0)
        raise TimeoutError

    with alone() as run:
        for _ in range(2):
            run.turn()
            answers = await asyncio.gather(fetch(1), fetch(1), fetch(1), return_exceptions=True)
            assert {type(answer) for answer in answers} == {TimeoutError}
        run.turn()
        for answer in await asyncio.gather(fetch(1), fetch(1), fetch(1)):
            assert assert_refused(answer, "repeat_failure").used == 2


def test_of_many_threads_that_try_again_together_one_does():
    for _ in range(30):
        ran, answers, barrier = [], [], threading.Barrier(6)

        @metered(kind="read", ignore=("wait", "ran"))
        def fetch(n, wait=None, ran=ran):
            ran.append(n)
            if wait:
                wait.wait(20)  # a wrong answer ends the test and does not hang it
            raise TimeoutError

        with alone() as run:
            fail(1, times=2, call=lambda n, _do, fetch=fetch: fetch(n))
            assert_refused(fetch(1), "repeat_failure")
            done = threading.Event()

            def job(barrier=barrier, answers=answers, fetch=fetch, done=done):
                barrier.wait()
                answers.append(said(fetch, 1, done))
                if len(answers) == 5:
                    done.set()

            threads = [threading.Thread(target=run.bind(job)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(ran) == 3
        assert Counter(answers) == {"failed": 1, "repeat_failure": 5}
