"""One tool, other arguments each time, always the same complaint."""

import asyncio
import gc
import threading
import types
from contextvars import copy_context

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, metered, uncounted
from toolguard.testing import assert_executed, assert_refused

OTHERS_OFF = {
    "repeat_failure": 0,
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
    """Open a run in which no other wall refuses."""
    return toolguard.run(session=session, mode=mode, **{**OTHERS_OFF, **limits})


def come_to(do):
    if isinstance(do, BaseException):
        raise do
    return do


@metered(kind="read", ignore="do")
def ssh(n, do="ok"):
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


def fail(*arguments, error="permission denied", call=ssh):
    for n in arguments:
        assert said(call, n, OSError(error)) == "failed"


def refused(n="any", call=ssh):
    return assert_refused(call(n), "same_complaint")


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


def probing():
    """Bring `job` to its probe, and return it in flight."""
    for n in range(5):
        begun(job(n)).fail()
    assert_refused(Flight(job(5)).begin(), "same_complaint")
    return begun(job(6))


EXITS = {
    "cancelled": lambda probe: probe.throw(asyncio.CancelledError()),
    "interrupted": lambda probe: probe.throw(KeyboardInterrupt()),
    "closed": lambda probe: probe.close(),
    "nothing ran": lambda probe: assert_refused(probe._step(probe.made.throw, NotExecuted("no")), "gate"),
    "inner refusal": lambda probe: assert_refused(probe.end(toolguard.Refusal("no", reason="delivery")), "delivery"),
}


# The story ------------------------------------------------------------------------------------------------------------


def test_after_five_failures_alike_every_other_call_of_the_tool_is_refused():
    with alone():
        fail(*range(5))
        for n in range(5, 15):
            refused(n)
            fail(n)


def test_a_success_of_the_tool_ends_it():
    with alone():
        fail(*range(5))
        refused(5)
        assert ssh(6) == "ok"
        fail(*range(5))
        refused(5)


def test_any_success_of_the_tool_in_between_starts_the_count_anew():
    with alone():
        for n in range(6):
            fail(*range(4))
            assert ssh(n) == "ok"


@pytest.mark.parametrize("limit", [1, 2, 5, 12, 100])
def test_as_many_failures_alike_run_as_the_limit_says(limit):
    with alone(same_complaint=limit):
        fail(*range(limit))
        refusal = refused(limit)
        assert (refusal.used, refusal.limit) == (limit, limit)


def test_a_limit_of_0_means_no_limit():
    with alone(same_complaint=0):
        fail(*range(40))


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_lets_five_run(profile):
    with toolguard.run(profile=profile):
        fail(*range(5))
        refused(5)


def test_one_tools_complaints_are_no_other_tools():
    with alone():
        fail(*range(5))
        refused(5)
        fail(*range(5), call=other)
        refused(5, call=other)
        assert send(1) == "ok"


def test_the_success_of_one_tool_ends_nothing_for_another():
    with alone():
        for n in range(5):
            begun(job(n)).fail()
        fail(0, call=other)
        assert other(1) == "ok"
        assert_refused(Flight(job(5)).begin(), "same_complaint")
        probe = begun(job(6))
        assert_refused(Flight(job(7)).begin(), "same_complaint")
        probe.end()


def test_tools_under_one_name_share_it():
    def make():
        @metered(kind="read", name="Ssh-Shell", ignore="do")
        def shell(n, do="ok"):
            return come_to(do)

        return shell

    one, two = make(), make()
    with alone():
        fail(*range(3), call=one)
        fail(*range(3, 5), call=two)
        refused(5, call=one)


def test_sends_and_pollers_complain_like_reads():
    for call in (send, status):
        with alone():
            fail(*range(5), call=call)
            refused(5, call=call)
            fail(5, call=call)
            refused(6, call=call)


def test_a_refusal_charges_nothing():
    with alone() as run:
        for n in range(15):
            said(ssh, n, OSError("permission denied"))
        assert run.usage().executed == 10
        assert run.usage().by_reason == {"same_complaint": 5}


def test_identical_retries_are_named_by_the_wall_before_it():
    with alone(repeat_failure=2, same_complaint=2):
        fail(1, 1)
        fail(2)
        assert_refused(ssh(1), "repeat_failure")


# What a refusal says --------------------------------------------------------------------------------------------------


def test_a_refusal_gives_the_numbers_and_how_to_have_it_tried():
    with alone(same_complaint=3) as run:
        fail(*range(3), error="no route to host")
        refusal = refused()
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (3, 3, None, "later")
        assert (refusal.tool, refusal.kind, refusal.run_id) == ("ssh", "read", run.id)
        for part in ("ssh did NOT execute", "3 calls", "limit is 3", "ask the user", "the next call of ssh will be tried"):
            assert part in refusal
        assert "route" not in refusal


# What is the same complaint -------------------------------------------------------------------------------------------


def test_the_first_60_characters_decide():
    start = "oserror: permission denied for the key that was offered, ".ljust(60, "x")
    assert len(start) == 60
    told = start.removeprefix("oserror: ")
    with alone():
        for n in range(5):
            fail(n, error=told + "ghijk"[n] * 30)
        refused()
    with alone():
        for n in range(20):
            fail(n, error=told[:-1] + "abcdefghij"[n % 10] + "y")


def test_complaints_that_differ_are_counted_apart():
    with alone():
        for n in range(4):
            fail(n, error="permission denied")
            fail(n, error="no such host")
        fail(4, error="no such host")
        refused()


def test_another_exception_is_another_complaint():
    with alone():
        for n in range(4):
            assert said(ssh, n, OSError("no")) == "failed"
            assert said(ssh, n, ValueError("no")) == "failed"
        assert ssh(9) == "ok"


def test_what_varies_in_a_complaint_does_not_matter():
    with alone():
        for n in range(5):
            fail(n, error=f"Request {n * 977} at 0x{n}f  timed out")
        refused()


@pytest.mark.parametrize("key", ["error", "is_error", "isError"])
def test_returned_failures_complain_too(key):
    with alone():
        for n in range(5):
            assert_executed(ssh(n, {key: "permission denied", "try": n}))
        refused()


def test_the_texts_of_returned_failures_tell_them_apart():
    with alone():
        for n in range(20):
            assert_executed(ssh(n, {"error": ["permission denied", "no such host", "timed out"][n % 3] + "!" * n}))


def test_the_program_may_say_what_a_failure_is():
    @metered(kind="read", failed=lambda value: value.startswith("E:"))
    def ask(n):
        return f"E: no answer to question {n}"

    with alone():
        for n in range(5):
            assert ask(n).startswith("E:")
        refused(call=ask)


# The lesser of distinct arguments and distinct turns ------------------------------------------------------------------


def test_one_call_repeated_for_ever_is_one_complaint():
    with alone():
        for _ in range(30):
            fail(1)


def test_many_arguments_in_one_turn_are_one_complaint():
    with alone() as run:
        run.turn()
        fail(*range(30))


def test_as_many_turns_as_arguments_are_needed():
    with alone(same_complaint=3) as run:
        for turn in range(2):
            run.turn()
            fail(*range(turn * 4, turn * 4 + 4))
        run.turn()
        fail(0)
        refused()


def test_as_many_arguments_as_turns_are_needed():
    with alone(same_complaint=3) as run:
        for n in [0, 1] * 5:
            run.turn()
            fail(n)
        run.turn()
        fail(2)
        refused()


def test_outside_any_marked_turn_each_call_is_a_turn_of_its_own():
    with alone(same_complaint=3):
        fail(0, 1, 2)
        refused()


def test_calls_before_the_first_turn_and_the_first_turn_are_told_apart():
    with alone(same_complaint=3) as run:
        fail(0)
        run.turn()
        fail(1, 2, 3)
        run.turn()
        fail(4)
        refused()


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_the_turn_is_the_one_in_which_the_call_was_made(limit):
    with alone(same_complaint=limit + 1) as run:
        made = []
        for n in range(limit):
            run.turn()
            made.append(job(n))
        for each in made:
            begun(each).fail()
        assert Flight(job(9)).begin() is None


def test_turns_of_different_runs_are_different_turns():
    for n in range(5):
        with alone(session="s") as run:
            run.turn()
            fail(n)
    with alone(session="s"):
        refused()


# The probe ------------------------------------------------------------------------------------------------------------


def test_while_the_probe_is_in_flight_every_call_of_the_tool_is_refused():
    with alone():
        probe = probing()
        for n in range(9):
            assert_refused(Flight(job(n)).begin(), "same_complaint")
        assert probe.end() == "ok"
        for n in range(9):
            begun(job(n)).end()


@pytest.mark.parametrize("error", ["gone", "away"])
def test_a_probe_that_fails_in_whatever_way_has_the_next_call_refused(error):
    with alone():
        probing().fail(error)
        assert_refused(Flight(job(7)).begin(), "same_complaint")
        begun(job(7)).end()


@pytest.mark.parametrize("leave", EXITS.values(), ids=EXITS)
def test_a_probe_that_came_to_nothing_gives_its_turn_to_the_next(leave):
    with alone():
        leave(probing())
        second = begun(job(7))
        assert_refused(Flight(job(8)).begin(), "same_complaint")
        second.fail()
        assert_refused(Flight(job(8)).begin(), "same_complaint")


def test_a_probe_that_nobody_waits_for_any_more_gives_its_turn_to_the_next():
    with alone():
        probe = probing()
        del probe
        gc.collect()
        begun(job(7)).end()


def test_a_stream_keeps_the_turn_while_it_is_open_and_gives_it_back_when_it_is_left():
    with alone():
        for n in range(5):
            with pytest.raises(OSError, match="gone"):
                list(stream(n, OSError("gone")))
        assert_refused(next(stream(5)), "same_complaint")
        probe = stream(6)
        assert next(probe) == 1
        assert_refused(next(stream(7)), "same_complaint")
        probe.close()
        assert list(stream(8)) == [1, "ok"]


def test_the_turn_is_kept_when_another_wall_refuses_the_call():
    with alone(session="s"):
        fail(*range(5))
        refused()
    with alone(session="s", call_budget=1):
        assert other(1) == "ok"
        for n in range(3):
            assert_refused(ssh(n), "call_budget")
    with alone(session="s"):
        assert ssh(1) == "ok"


def test_the_turn_is_kept_when_a_gate_refuses_the_call():
    answers = []

    @metered(kind="read", ignore="do", gate=lambda _call: answers.pop() if answers else None)
    def guarded(n, do="ok"):
        return come_to(do)

    with alone():
        fail(*range(5), call=guarded)
        answers.append("not now")
        refused(call=guarded)
        assert answers == ["not now"], "a gate is not asked about what a wall refuses"
        assert_refused(guarded(6), "gate")
        assert guarded(7) == "ok"


def test_refusals_during_the_probe_do_not_put_the_next_one_off():
    with alone():
        probe = probing()
        waiting = Flight(job(7))
        for n in range(3):
            assert_refused(Flight(job(n)).begin(), "same_complaint")
        probe.throw(asyncio.CancelledError())
        assert waiting.begin() is None


def test_what_was_made_before_the_refusal_came_back_is_no_probe():
    with alone():
        early = [Flight(job(10 + n)) for n in range(4)]
        for n in range(5):
            begun(job(n)).fail()
        for flight in early:
            assert_refused(flight.begin(), "same_complaint")
        begun(job(20)).end()


LATE = {"fails the same": Flight.fail, "fails otherwise": lambda old: old.fail("away"), **EXITS}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_older_call_comes_to_neither_ends_nor_refuses_the_probe(late):
    with alone():
        old = begun(job(99))
        probe = probing()
        late(old)
        assert_refused(Flight(job(7)).begin(), "same_complaint")
        probe.fail()
        assert_refused(Flight(job(7)).begin(), "same_complaint")
        begun(job(7)).end()


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_what_an_older_call_comes_to_does_not_put_the_next_probe_off(late):
    with alone():
        old = begun(job(99))
        probe = probing()
        late(old)
        probe.close()
        begun(job(7)).end()


# What neither counts nor clears ---------------------------------------------------------------------------------------


def test_refusals_open_nothing():
    with alone(call_budget=1):
        assert other(1) == "ok"
        for n in range(10):
            assert_refused(ssh(n), "call_budget")


@pytest.mark.parametrize("leave", EXITS.values(), ids=EXITS)
def test_a_call_that_came_to_nothing_neither_counts_nor_clears(leave):
    with alone():
        for n in range(10):
            leave(begun(job(n)))
        for n in range(5):
            begun(job(n)).fail()
            leave(begun(job(50 + n))) if n < 4 else None
        assert_refused(Flight(job(9)).begin(), "same_complaint")


def test_local_and_uncounted_calls_neither_count_nor_clear():
    toolguard.configure({"local": ["scratch"]})
    with alone():
        fail(*range(9), call=scratch)
        with uncounted():
            fail(*range(9))
        fail(*range(5))
        with uncounted():
            assert ssh(1) == "ok"
        refused()


def test_progress_elsewhere_clears_no_complaint():
    with alone(progress_clears=True):
        fail(*range(5))
        assert other(1) == "ok"
        refused()


def test_an_unchanged_success_of_the_tool_clears_it_too():
    with alone():
        assert ssh(1) == "ok"
        fail(*range(5))
        refused()
        assert ssh(1) == "ok"
        fail(*range(5))


# Parallel twins -------------------------------------------------------------------------------------------------------


def test_failures_alike_in_one_batch_are_one_observation():
    with alone(same_complaint=2):
        for flight in [begun(job(n)) for n in range(8)]:
            flight.fail()
        for flight in [begun(job(n)) for n in range(8, 16)]:
            flight.fail()
        assert assert_refused(Flight(job(99)).begin(), "same_complaint").used == 2


def test_failures_of_one_batch_with_other_complaints_are_other_observations():
    with alone(same_complaint=2):
        for n in range(2):
            one, two = begun(job((n, 1))), begun(job((n, 2)))
            one.fail("gone")
            two.fail("away")
        assert_refused(Flight(job(99)).begin(), "same_complaint")
        begun(job(99)).end()


# Sessions and runs ----------------------------------------------------------------------------------------------------


def test_the_count_goes_on_in_the_next_run_of_the_session():
    with alone(session="s"):
        fail(*range(4))
    with alone(session="s"):
        fail(4)
        refused()
    with alone(session="s"):
        fail(5)
        refused()
    with alone(session="s"):
        assert ssh(1) == "ok"


def test_another_session_another_tenant_and_no_session_start_clean():
    with alone(session="s"):
        fail(*range(5))
        refused()
    with alone(session="t"):
        fail(*range(5))
    with alone():
        fail(*range(5))
    with toolguard.run(session="s", tenant="acme", **OTHERS_OFF):
        fail(*range(5))


def test_a_nested_run_counts_with_the_run_around_it():
    with alone():
        fail(*range(3))
        with alone():
            fail(3, 4)
            refused()
        assert ssh(1) == "ok"


def test_each_run_of_a_session_refuses_at_its_own_limit():
    with alone(session="s", same_complaint=2) as strict:
        assert other(0) == "ok"
        assert ssh(0) == "ok"
        with alone(session="s", same_complaint=9):
            fail(*range(4))
        refusal = refused()
        assert (refusal.used, refusal.limit) == (4, 2)
        assert strict.usage().executed == 2


def test_a_stricter_run_takes_nothing_from_what_another_counts():
    with alone(session="s", same_complaint=5):
        fail(0, 1)
        with alone(session="s", same_complaint=1):
            refused(2)
            fail(2)
        fail(3, 4)
        assert refused(5).used == 5


def test_a_run_in_which_the_wall_is_off_counts_nothing():
    with alone(session="s", same_complaint=0):
        fail(*range(9))
    with alone(session="s"):
        fail(*range(5))
        refused()


# Observing ------------------------------------------------------------------------------------------------------------


def test_observing_it_marks_where_it_would_have_refused_and_executes(spans):
    with alone(mode="observe") as run:
        fail(*range(8))
        assert run.usage().executed == 8
        assert run.refusals == ()
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None] * 5 + ["same_complaint"] * 3


def test_an_observed_refusal_arms_no_probe():
    with alone(session="s", mode="observe"):
        fail(*range(8))
    with alone(session="s"):
        refused()
        assert ssh(1) == "ok"


def test_the_refusal_of_another_wall_arms_no_probe_where_this_one_observes():
    toolguard.configure({"observe": ["same_complaint"]})
    with alone(session="s", per_tool=5):
        fail(*range(5))
        assert_refused(ssh(6), "per_tool")
    toolguard.configure({})
    with alone(session="s"):
        refused()
        assert ssh(1) == "ok"


def test_an_observed_call_takes_no_probe_from_others():
    with alone(session="s"):
        probe = probing()
        with alone(session="s", mode="observe"):
            begun(job(7)).throw(asyncio.CancelledError())
        assert_refused(Flight(job(8)).begin(), "same_complaint")
        probe.end()
        begun(job(8)).end()


# What it cannot see ---------------------------------------------------------------------------------------------------


def test_it_cannot_see_a_tool_that_succeeds_in_between():
    with alone():
        for n in range(30):
            fail(n)
            assert ssh(n) == "ok"


def test_it_cannot_see_the_same_result_of_other_arguments():
    with alone():
        for n in range(30):
            assert ssh(n, ["the same", "list"]) == ["the same", "list"]


def test_it_cannot_see_a_complaint_that_begins_with_the_arguments():
    with alone():
        for n in range(30):
            fail(n, error=f"{'x' * n}: permission denied")


# Bounds ---------------------------------------------------------------------------------------------------------------


def state(lab):
    return next(seat.state for seat in lab.ledger.sync()._seats if seat.wall.name == "same_complaint")


def failing(lab, tool, identity, signature):
    call = lab.start(tool, identity)
    if lab.admit(call) is None:
        call.signature = signature
        lab.end(call, outcome="error")


@pytest.mark.parametrize("turns", ["one", "many"])
def test_a_hundred_thousand_arguments_leave_a_bounded_state(lab, tools, turns):
    lab = lab(same_complaint=10_000 if turns == "one" else 5)
    for n in range(100_000):
        if n == 0 and turns == "one":
            lab.ledger.begin_turn()
        failing(lab, tools.read, n.to_bytes(16), "gone")
    (tool,) = state(lab).tools
    complaints = state(lab).tools.get(tool).complaints
    (heard,) = [complaints.get(each) for each in complaints]
    assert len(heard.identities) <= 10_000
    assert len(heard.turns) <= 10_000


def test_one_call_in_a_hundred_thousand_turns_leaves_a_bounded_state(lab, tools):
    lab = lab(same_complaint=5)
    for _ in range(100_000):
        failing(lab, tools.read, b"x" * 16, "gone")
    (tool,) = state(lab).tools
    complaints = state(lab).tools.get(tool).complaints
    (heard,) = [complaints.get(each) for each in complaints]
    assert len(heard.turns) < 1000


def test_a_hundred_thousand_complaints_leave_a_bounded_state(lab, tools):
    lab = lab(same_complaint=5)
    for n in range(100_000):
        failing(lab, tools.read, n.to_bytes(16), f"{n:x}")
    assert len(state(lab).tools.get("read").complaints) <= 128


def test_tools_that_never_failed_are_not_stored(lab, tools):
    lab = lab(same_complaint=5)
    for n in range(100):
        lab.attempt(tools.read, n.to_bytes(16))
    assert len(state(lab).tools) == 0


# Any history ----------------------------------------------------------------------------------------------------------


class Model:
    """One tool, in the words of the design, for calls that come one after the other."""

    def __init__(self, limit):
        self.limit = limit
        self.clear()

    def clear(self):
        self.heard, self.told = {}, False

    def attempt(self, identity, turn, outcome):
        open_ = any(min(len({i for i, _ in pairs}), len({t for _, t in pairs})) >= self.limit for pairs in self.heard.values())
        if open_ and not self.told:
            self.told = True
            return "same_complaint"
        if outcome == "ok":
            self.clear()
            return "ran"
        if outcome != "cancelled":
            self.heard.setdefault(outcome, set()).add((identity, turn))
            self.told = False
        return "failed"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 5),
            st.sampled_from(["ok", "gone", "gone", "gone", "gone", "away", "away", "cancelled", "turn"]),
        ),
        max_size=80,
    ),
)
@example(2, [(0, n, "gone") for n in range(6)] + [(0, 0, "ok"), (0, 1, "gone"), (0, 2, "gone"), (0, 3, "ok")])
def test_any_history_of_single_calls_is_judged_as_the_plain_model_does(limit, history):
    tools, models, turn = (ssh, other), (Model(limit), Model(limit)), None
    with alone(same_complaint=limit) as run:
        for at, (which, n, outcome) in enumerate(history):
            if outcome == "turn":
                run.turn()
                turn = f"turn {at}"
                continue
            do = {"ok": "ok", "cancelled": KeyboardInterrupt()}.get(outcome, OSError(outcome))
            try:
                got = said(tools[which], n, do)
            except KeyboardInterrupt:
                got = "failed"
            assert got == models[which].attempt(n, turn or at, outcome)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(["make", "begin", "begin", "fail", *EXITS]), st.integers(0, 9)), max_size=50),
)
def test_whatever_the_order_one_probe_runs_at_a_time_and_its_turn_is_never_lost(limit, early, history):
    with alone(same_complaint=limit):
        for n in range(limit):
            begun(job(n)).fail()
        made = [(Flight(job(n)), 0) for n in range(early)]
        assert_refused(Flight(job(99)).begin(), "same_complaint")
        probe, told, round_ = None, True, 1
        for step, which in history:
            if step == "make":
                made.append((Flight(job(which)), round_ if told else 0))
            elif step == "begin" and made:
                flight, of = made.pop(which % len(made))
                refusal = flight.begin()
                assert (refusal is None) == (probe is None and told and of == round_)
                probe = flight if refusal is None else probe
                round_ += refusal is not None and not told
                told = told or refusal is not None
            elif step == "fail" and probe is not None:
                probe.fail()
                probe, told = None, False
            elif step in EXITS and probe is not None:
                EXITS[step](probe)
                probe = None
        if probe is None and not told:
            assert_refused(Flight(job(99)).begin(), "same_complaint")
        (probe or begun(job(99))).end()
        begun(job(0)).fail()
        for flight, _ in made:
            flight.close()


# Threads and tasks ----------------------------------------------------------------------------------------------------


async def test_a_model_that_guesses_in_batches_is_refused_after_five_turns():
    ran = []

    @metered(kind="read")
    async def connect(port):
        ran.append(port)
        await asyncio.sleep(0)
        raise ConnectionError("connection refused")

    with toolguard.run() as run:
        for turn in range(5):
            run.turn()
            await asyncio.gather(*(connect(turn * 3 + n) for n in range(3)), return_exceptions=True)
        run.turn()
        answers = await asyncio.gather(*(connect(100 + n) for n in range(3)))
        for answer in answers:
            assert_refused(answer, "same_complaint")
        assert len(ran) == 15
        run.turn()
        answers = await asyncio.gather(*(connect(200 + n) for n in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers].count(ConnectionError) == 1
        assert len(ran) == 16


class Host:
    @metered(kind="read")
    def fetch(self, n):
        raise TimeoutError


def test_receivers_are_distinct_arguments_of_one_tool():
    with alone():
        for _ in range(5):
            assert said(Host().fetch, 1) == "failed"
        assert_refused(Host().fetch(1), "same_complaint")


def test_ignored_parameters_are_no_distinct_arguments():
    @metered(kind="read", ignore=("timeout",))
    def fetch(n, timeout=1):
        raise TimeoutError

    with alone():
        for timeout in range(20):
            assert said(fetch, 1, timeout) == "failed"


def test_of_many_threads_that_try_together_one_is_the_probe():
    for _ in range(30):
        ran, answers, barrier, done = [], [], threading.Barrier(6), threading.Event()

        @metered(kind="read", ignore=("wait", "ran"))
        def fetch(n, wait=None, ran=ran):
            ran.append(n)
            if wait:
                wait.wait(20)  # a wrong answer ends the test and does not hang it
            raise TimeoutError

        with alone() as run:
            for n in range(5):
                assert said(fetch, n) == "failed"
            assert_refused(fetch(5), "same_complaint")

            def work(barrier=barrier, answers=answers, fetch=fetch, done=done):
                n = barrier.wait()
                answers.append(said(fetch, 10 + n, done))
                if len(answers) == 5:
                    done.set()

            threads = [threading.Thread(target=run.bind(work)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(ran) == 6
        assert sorted(answers) == ["failed", *["same_complaint"] * 5]
