"""A, B, A, B, …: calls that take turns and bring only what was seen before."""

import asyncio
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
    "same_complaint": 0,
    "same_outcome": 0,
    "duplicate_send": 0,
    "refused_calls": 0,
    "refused_turns": 0,
    "per_tool": 0,
    "delivery": 0,
    "aggregate": 0,
    "adaptive_soft": 0,
}


def alone(*, mode=None, **limits):
    """Open a run in which no other wall refuses."""
    return toolguard.run(mode=mode, **{**OTHERS_OFF, **limits})


def come_to(do):
    if isinstance(do, BaseException):
        raise do
    return do() if callable(do) else do


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
def status(n, do="pending"):
    return come_to(do)


@metered(kind="read", ignore="do")
def scratch(n, do="ok"):
    return come_to(do)


@metered(kind="read")
def stream(n):
    yield n


def ask(*arguments, do="ok"):
    for n in arguments:
        assert_executed(look(n, do))


def refused(n=1, call=look):
    return assert_refused(call(n), "stale_streak")


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


def begun(made):
    flight = Flight(made)
    assert flight.begin() is None
    return flight


def together(*arguments):
    """Let calls run of which each starts before any ends."""
    for flight in [begun(job(n)) for n in arguments]:
        flight.end()


# The story ------------------------------------------------------------------------------------------------------------


def test_two_calls_that_take_turns_are_refused_after_six_that_brought_nothing_new():
    with toolguard.run() as run:
        ask(1, 2)
        ask(1, 2, 1, 2, 1, 2)
        refused(1)
        refused(2)
        assert run.usage().executed == 8


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
def test_circles_of_any_size_are_seen(size):
    with alone():
        ask(*range(size))
        ask(*(n % size for n in range(6)))
        for n in range(size):
            refused(n)


@pytest.mark.parametrize("limit", [1, 2, 6, 25])
def test_as_many_in_a_row_run_as_the_limit_says(limit):
    with alone(stale_streak=limit):
        ask(1, 2)
        ask(*(1 + n % 2 for n in range(limit)))
        refusal = refused()
        assert (refusal.used, refusal.limit) == (limit, limit)
        for _ in range(5):
            assert refused(2).used == limit


def test_a_limit_of_0_means_no_limit():
    with alone(stale_streak=0):
        ask(*[1, 2] * 30)


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_lets_six_run(profile):
    with toolguard.run(profile=profile):
        ask(1, 2)
        ask(*[1, 2] * 3)
        refused()


def test_a_new_call_passes_and_starts_the_count_anew():
    with alone():
        ask(1, 2, *[1, 2] * 3)
        refused()
        ask(3)
        ask(1, 2, 3, 1, 2, 3)
        for n in (1, 2, 3):
            refused(n)


def test_a_call_that_was_refused_and_never_ran_is_a_new_call():
    with alone(delivery=1):
        send("spent")
        ask(1)
        assert_refused(look(2, lambda: send(2)), "delivery")
        assert_refused(look(3, NotExecuted("no")), "gate")
        for n in (2, 3):
            ask(*[1] * 6)
            refused(1)
            ask(n)


def test_a_refusal_charges_nothing():
    with alone() as run:
        ask(1, *[1] * 6)
        for _ in range(9):
            refused()
        assert run.usage().executed == 7
        assert run.usage().by_reason == {"stale_streak": 9}


def test_a_refusal_gives_the_numbers_and_the_next_step():
    with alone(stale_streak=4) as run:
        ask(1, *[1] * 4)
        refusal = refused()
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (4, 4, None, "different")
        assert (refusal.tool, refusal.kind, refusal.run_id) == ("look", "read", run.id)
        for part in (
            "look did NOT execute",
            "last 4 calls",
            "limit is 4",
            "You have this result already",
            "a call that has not been made runs",
        ):
            assert part in refusal


def test_the_same_call_in_a_row_is_named_by_the_wall_before_it():
    with alone(same_outcome=3, stale_streak=2):
        ask(1, 1, 1)
        assert_refused(look(1), "same_outcome")
        assert_refused(look(1), "same_outcome")


# What is new ----------------------------------------------------------------------------------------------------------


def test_a_call_whose_result_has_changed_starts_the_count_anew():
    with alone():
        for state in range(5):
            ask(1, 2, do=f"state {state}")
            ask(1, 2, 1, 2, 1, do=f"state {state}")


def test_a_result_that_was_seen_long_ago_is_not_new():
    with alone():
        ask(1, do="red")
        ask(1, do="green")
        for _ in range(3):
            ask(1, do="red")
            ask(1, do="green")
        refused()


def test_the_same_result_of_other_arguments_is_new():
    with alone():
        ask(*range(50))


def test_the_same_failure_again_is_nothing_new_and_another_one_is():
    with alone():
        for error in ("gone", "away"):
            for _ in range(6):
                with pytest.raises(OSError, match=error):
                    look(1, OSError(error))
        with pytest.raises(OSError, match="gone"):
            look(1, OSError("gone"))
        refused()


@pytest.mark.parametrize(
    "unmeasured", [object, lambda: iter([1]), lambda: "x" * ((1 << 20) + 1)], ids=["opaque", "open", "long"]
)
def test_what_cannot_be_measured_is_new_each_time(unmeasured):
    with alone(output_chars=0, result_chars=0):
        for _ in range(4):
            ask(1, 2, 1, 2)
            ask(3, do=unmeasured)


def test_a_stream_is_new_each_time():
    with alone():
        for _ in range(20):
            assert list(stream(1)) == [1]


def raised(error, call, *arguments):
    with pytest.raises(error):
        call(*arguments)


def _uncounted():
    with uncounted():
        ask(7, 7, 8)


NOTHING = {
    "a refusal": lambda: assert_refused(send(9), "delivery"),
    "one that says nothing ran": lambda: assert_refused(other(1, NotExecuted("no")), "gate"),
    "uncounted ones": _uncounted,
    "a local one": lambda: scratch(object()),
    "an unchanged poller": lambda: status(1),
    "one that cannot bind": lambda: raised(TypeError, look),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_what_brings_no_outcome_neither_counts_nor_breaks_the_row(nothing):
    toolguard.configure({"local": ["scratch"]})
    with alone(delivery=1):
        send(1)
        status(1)
        ask(1, 2)
        for n in range(6):
            nothing()
            ask(1 + n % 2)
        refused()


def test_an_unchanged_send_neither_counts_nor_breaks_the_row():
    with alone():
        send(1)
        ask(1, 2)
        for n in range(6):
            send(1)
            ask(1 + n % 2)
        refused()


@pytest.mark.parametrize("new", [send, lambda n: status(1, f"done {n}"), other])
def test_a_new_outcome_of_any_tool_starts_the_count_anew(new):
    with alone():
        ask(1, 2)
        for n in range(4):
            ask(*[1, 2] * 3)
            refused(1)
            assert_executed(new(n))
        ask(*[1, 2] * 3)
        refused(2)


# Whose calls it does not see ------------------------------------------------------------------------------------------


def test_sends_neither_count_nor_are_refused():
    with alone():
        for _ in range(20):
            assert send(1) == "ok"
        ask(1, *[1] * 6)
        refused()
        assert send(1) == "ok"
        refused()


def test_pollers_neither_count_nor_are_refused():
    with alone():
        for _ in range(20):
            assert status(1) == "pending"
        ask(1, *[1] * 6)
        refused()
        assert status(1) == "pending"
        refused()


def test_delegates_count():
    @metered(kind="read", delegate=True)
    def expert(question):
        return "I do not know"

    with alone(delegation=0):
        for n in range(8):
            assert_executed(expert(n % 2))
        refused(0, call=expert)


# Parallel twins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 9])
def test_twins_that_run_together_are_one(size):
    with alone():
        together(*[0] * size)
        for _ in range(6):
            together(*[0] * size)
        assert assert_refused(Flight(job()).begin(), "stale_streak").used == 6


def test_different_calls_that_run_together_are_as_many():
    with alone():
        together(0, 1, 2)
        together(0, 1, 2)
        together(0, 1, 2)
        for n in range(3):
            assert_refused(Flight(job(n)).begin(), "stale_streak")


def test_calls_in_flight_are_not_counted_before_they_end():
    with alone(stale_streak=2):
        together(0, 1)
        flights = [begun(job(n % 2)) for n in range(6)]
        for flight in flights:
            flight.end()
        assert_refused(Flight(job()).begin(), "stale_streak")


def test_while_a_new_call_is_in_flight_the_old_ones_stay_refused():
    with alone(stale_streak=2):
        for _ in range(3):
            begun(job(1)).end()
        new = begun(job(2))
        assert_refused(Flight(job(1)).begin(), "stale_streak")
        new.end()
        begun(job(1)).end()


# Runs -----------------------------------------------------------------------------------------------------------------


def test_the_next_run_of_the_session_starts_clean():
    for _ in range(3):
        with toolguard.run(session="s", **OTHERS_OFF):
            ask(1, *[1] * 6)
            refused()


def test_a_nested_run_has_a_streak_of_its_own_and_breaks_none():
    with alone():
        ask(1, 1, 1, 1)
        with alone():
            ask(1, *[1] * 6)
            refused()
            ask(2)
        ask(1, 1, 1)
        refused()


def test_a_run_entered_again_goes_on():
    run = alone()
    with run:
        ask(1, *[1] * 4)
    with run:
        ask(1, 1)
        refused()


# Observing ------------------------------------------------------------------------------------------------------------


def test_observing_it_marks_where_it_would_have_refused_and_executes(spans):
    with alone(mode="observe") as run:
        ask(1, 2, *[1, 2] * 3)
        ask(1, 2, 3, 1)
        assert run.refusals == ()
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None] * 8 + ["stale_streak"] * 2 + [None] * 2


def test_a_single_wall_may_observe(spans):
    toolguard.configure({"observe": ["stale_streak"]})
    with alone(per_tool=9):
        ask(1, *[1] * 8)
        assert_refused(look(1), "per_tool")
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None] * 7 + ["stale_streak"] * 2 + [None]


# What it cannot see ---------------------------------------------------------------------------------------------------


def test_it_cannot_see_a_loop_with_something_new_in_every_round():
    with alone():
        for n in range(30):
            ask(1, 2, 3, 1, 2, f"page {n}")


def test_it_cannot_see_a_result_that_tells_the_time():
    with alone():
        for n in range(50):
            ask(1, do={"rows": [], "took_ms": n})


def test_it_cannot_see_a_loop_whose_calls_are_interrupted():
    with alone():
        for _ in range(20):
            ask(1, 2)
            raised(KeyboardInterrupt, look, 1, KeyboardInterrupt())


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_calls_leave_a_bounded_state_and_forgetting_refuses_nothing(lab, tools):
    lab = lab(stale_streak=6)
    for n in range(100_000):
        assert lab.attempt(tools.read, n.to_bytes(16), digest=b"x" * 16) is None
    tally = lab.ledger.sync().tally
    assert len(tally._new) + len(tally._old) < 40_000
    for n in range(7):
        assert lab.attempt(tools.read, n.to_bytes(16), digest=b"x" * 16) is None


def test_what_was_seen_some_thousand_calls_ago_is_still_known(lab, tools):
    lab = lab(stale_streak=6)
    for n in range(6000):
        assert lab.attempt(tools.read, n.to_bytes(16), digest=b"x" * 16) is None
    for n in range(6):
        assert lab.attempt(tools.read, n.to_bytes(16), digest=b"x" * 16) is None
    assert lab.reason(tools.read, (7).to_bytes(16), digest=b"x" * 16) == "stale_streak"
    assert lab.reason(tools.read, (6001).to_bytes(16), digest=b"x" * 16) is None


# Any history ----------------------------------------------------------------------------------------------------------


TOOLS = {"look": look, "other": other, "send": send, "status": status}
DO = {"open": object, "interrupted": KeyboardInterrupt(), "gone": OSError("gone")}


class Model:
    """The run's outcomes, in the words of the design, for calls that come one after the other."""

    def __init__(self, limit):
        self.limit = limit
        self.streak = 0
        self.seen = set()

    def attempt(self, tool, n, outcome):
        counts = tool in {"look", "other"}
        if counts and self.streak >= self.limit and any(one[:2] == (tool, n) for one in self.seen):
            return "refused"
        if outcome in {"open", "interrupted"}:
            self.streak = 0
        elif (tool, n, outcome) not in self.seen:
            self.seen.add((tool, n, outcome))
            self.streak = 0
        elif counts:
            self.streak += 1
        return "ran"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["look", "look", "look", "other", "send", "status"]),
            st.integers(0, 2),
            st.sampled_from(["a", "a", "a", "a", "a", "b", "gone", "open", "interrupted"]),
        ),
        max_size=80,
    ),
)
@example(2, [("look", 0, "a")] * 3 + [("send", 0, "a")] + [("look", 0, "a")] * 3 + [("send", 0, "a"), ("look", 0, "a")])
def test_any_history_of_single_calls_is_judged_as_the_plain_model_does(limit, history):
    model = Model(limit)
    with alone(stale_streak=limit):
        for tool, n, outcome in history:
            try:
                got = "refused" if isinstance(TOOLS[tool](n, DO.get(outcome, outcome)), toolguard.Refusal) else "ran"
            except (OSError, KeyboardInterrupt):
                got = "ran"
            assert got == model.attempt(tool, n, outcome)


# Threads and tasks ----------------------------------------------------------------------------------------------------


async def test_batches_that_ask_the_same_questions_are_refused_as_a_whole():
    @metered(kind="read")
    async def fetch(n):
        await asyncio.sleep(0)
        return n

    with alone() as run:
        for _ in range(3):
            run.turn()
            assert await asyncio.gather(*map(fetch, range(3))) == [0, 1, 2]
        run.turn()
        for answer in await asyncio.gather(*map(fetch, range(3))):
            assert assert_refused(answer, "stale_streak").used == 6
        run.turn()
        old, new = await asyncio.gather(fetch(0), fetch(3))
        assert_refused(old, "stale_streak")
        assert new == 3


def test_threads_that_ask_the_same_together_are_one():
    for _ in range(20):
        barrier, answers = threading.Barrier(4), []

        @metered(kind="read", ignore="wait")
        def fetch(n, wait=None):
            wait.wait(20)  # a wrong answer ends the test and does not hang it
            return "the same"

        with alone(stale_streak=2) as run:
            for expected in (4, 4, 4, 0):
                answers.clear()

                def work(answers=answers, fetch=fetch, barrier=barrier):
                    answers.append(fetch(1, barrier))

                threads = [threading.Thread(target=run.bind(work)) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert answers.count("the same") == expected


class Mailbox:
    @metered(kind="read")
    def fetch(self):
        return []


def test_each_receiver_is_a_call_of_its_own():
    one, two, three = Mailbox(), Mailbox(), Mailbox()
    with alone():
        for _ in range(4):
            assert one.fetch() == two.fetch() == []
        assert_refused(one.fetch(), "stale_streak")
        assert three.fetch() == []
        assert one.fetch() == []
