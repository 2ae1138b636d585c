"""The identical call that succeeds, in a row, and brings the same each time."""

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
    "stale_streak": 0,
    "duplicate_send": 0,
    "refused_calls": 0,
    "refused_turns": 0,
    "per_tool": 0,
    "delivery": 0,
    "aggregate": 0,
    "adaptive_soft": 0,
    "output_chars": 0,
    "result_chars": 0,
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


def run_it(times, n=1, do="ok"):
    for _ in range(times):
        assert_executed(look(n, do))


def refused(n=1):
    return assert_refused(look(n), "same_outcome")


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


def together(size, n=0, value="ok"):
    """Let as many twins run, each of which starts before any ends."""
    for flight in [begun(job(n)) for _ in range(size)]:
        flight.end(value)


# The story ------------------------------------------------------------------------------------------------------------


def test_a_model_that_asks_the_same_two_hundred_times_gets_three_answers():
    with toolguard.run() as run:
        answers = [look("pattern", ["line 7"]) for _ in range(200)]
        assert answers[:3] == [["line 7"]] * 3
        for refusal in answers[3:23]:
            assert_refused(refusal, "same_outcome")
        assert run.usage().executed == 3
        assert run.stop_reason == "refused_calls"


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_as_many_in_a_row_run_as_the_limit_says(limit):
    with alone(same_outcome=limit):
        run_it(limit)
        refusal = refused()
        assert (refusal.used, refusal.limit) == (limit, limit)
        for _ in range(5):
            assert refused().used == limit


def test_a_limit_of_0_means_no_limit():
    with alone(same_outcome=0):
        run_it(50)


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_lets_three_run(profile):
    with toolguard.run(profile=profile):
        run_it(3)
        refused()


def test_other_arguments_and_other_tools_run_at_once():
    with alone():
        run_it(3)
        refused()
        assert look(2) == "ok"
        run_it(3)
        refused()
        assert other(1) == "ok"
        run_it(3)
        refused()


def test_a_refusal_charges_nothing():
    with alone() as run:
        run_it(3)
        for _ in range(9):
            refused()
        assert run.usage().executed == 3
        assert run.usage().by_reason == {"same_outcome": 9}


def test_a_refusal_gives_the_numbers_and_the_next_step():
    with alone(same_outcome=4) as run:
        run_it(4)
        refusal = refused()
        assert (refusal.used, refusal.limit, refusal.rule, refusal.retry) == (4, 4, None, "different")
        assert (refusal.tool, refusal.kind, refusal.run_id) == ("look", "read", run.id)
        for part in (
            "look did NOT execute",
            "4 times in a row",
            "limit is 4",
            "use the result that you have",
            "do something else",
        ):
            assert part in refusal


# Another outcome ------------------------------------------------------------------------------------------------------


def test_an_outcome_that_changes_is_never_refused():
    with alone():
        for n in range(20):
            assert look(1, f"pending {n}") == f"pending {n}"


def test_a_changed_outcome_starts_the_count_anew():
    with alone():
        run_it(2, do="a")
        run_it(2, do="b")
        run_it(2, do="a")
        run_it(1, do="a")
        refused()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a", "b"),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [2, 1]),
        (None, ""),
        (b"a", "a"),
        ("x" * 10_000 + "a", "x" * 10_000 + "b"),
        ({"rows": list(range(5000))}, {"rows": [*range(4999), 0]}),
    ],
)
def test_values_that_differ_are_different_outcomes(one, two):
    with alone():
        for _ in range(4):
            assert_executed(look(1, one))
            assert_executed(look(1, two))
        assert_executed(look(1, two))
        assert_executed(look(1, two))
        refused()


def test_equal_values_are_one_outcome_whichever_objects_they_are():
    with alone():
        for _ in range(3):
            assert look(1, lambda: {"b": [1, 2], "a": {"c"}}) == {"a": {"c"}, "b": [1, 2]}
        refused()


def test_outcomes_are_compared_whole_and_not_as_they_were_cut():
    with alone(result_chars=1000):
        for n in range(4):
            assert "cut" in look(1, "x" * 10_000 + "ab"[n % 2])
        assert "cut" in look(1, "x" * 10_000 + "b")
        assert "cut" in look(1, "x" * 10_000 + "b")
        refused()


def test_the_same_failure_is_the_same_outcome_and_another_is_not():
    with alone():
        for _ in range(4):
            for error in ("gone", "away"):
                with pytest.raises(OSError, match=error):
                    look(1, OSError(error))
        for _ in range(2):
            with pytest.raises(OSError, match="away"):
                look(1, OSError("away"))
        refused()


@pytest.mark.parametrize(
    "unmeasured",
    [object, lambda: iter([1]), lambda: [object()], lambda: "x" * ((1 << 20) + 1), lambda: list(range(10_001))],
    ids=["opaque", "open", "opaque within", "too long", "too many"],
)
def test_what_cannot_be_measured_is_new_each_time(unmeasured):
    with alone():
        for _ in range(6):
            assert_executed(look(1, unmeasured))


@pytest.mark.parametrize("measured", [lambda: "x" * 1_000_000, lambda: list(range(9_000))], ids=["long", "many"])
def test_what_is_large_is_measured(measured):
    with alone():
        run_it(3, do=measured)
        refused()


def test_one_that_cannot_be_measured_starts_the_count_anew():
    with alone():
        run_it(2)
        run_it(1, do=object)
        run_it(3)
        refused()


def test_a_stream_is_new_each_time():
    with alone():
        for _ in range(6):
            assert list(stream(1)) == [1]


# A call in between ----------------------------------------------------------------------------------------------------


def raised(error, call, *arguments):
    with pytest.raises(error):
        call(*arguments)


BETWEEN = {
    "another read": lambda: other(1),
    "the same tool": lambda: look(2),
    "one that failed": lambda: raised(OSError, other, 1, OSError("gone")),
    "one that was interrupted": lambda: raised(KeyboardInterrupt, other, 1, KeyboardInterrupt()),
    "a send": lambda: send(1),
    "a stream": lambda: list(stream(1)),
    "a new state of a poller": lambda: status(1, object),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_an_executed_call_in_between_starts_the_count_anew(between):
    with alone():
        for _ in range(4):
            run_it(2)
            between()
        run_it(3)
        refused()
        between()
        run_it(3)


def _unexecuted(call):
    assert_refused(call(1, NotExecuted("no")), "gate")


def _uncounted():
    with uncounted():
        assert other(1) == "ok"
        assert look(1) == "ok"


NOTHING = {
    "a refusal": lambda: assert_refused(send(9), "delivery"),
    "one that says nothing ran": lambda: _unexecuted(other),
    "itself, and nothing ran": lambda: _unexecuted(look),
    "an uncounted one": _uncounted,
    "a local one": lambda: scratch(1),
    "an unchanged poller": lambda: status(1),
    "one that cannot bind": lambda: raised(TypeError, look),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_what_is_no_executed_call_breaks_no_row(nothing):
    toolguard.configure({"local": ["scratch"]})
    with alone(delivery=1):
        send(1)
        assert status(1) == "pending"
        for _ in range(3):
            nothing()
            run_it(1)
        refused()


def test_a_test_that_is_run_again_between_edits_is_never_refused():
    with alone():
        for n in range(20):
            assert look("tests", "2 failed") == "2 failed"
            assert send(n) == "ok"


def test_two_calls_that_take_turns_are_not_its_business():
    with alone():
        for _ in range(20):
            assert look(1) == "ok"
            assert look(2) == "ok"


# Whose calls it does not see ------------------------------------------------------------------------------------------


def test_sends_are_not_its_business():
    with alone():
        for _ in range(20):
            assert send(1) == "ok"


def test_pollers_are_not_its_business():
    with alone():
        for _ in range(20):
            assert status(1) == "pending"


def test_delegates_are():
    @metered(kind="read", delegate=True)
    def expert(question):
        return "I do not know"

    with alone(delegation=0):
        for _ in range(3):
            assert_executed(expert("why?"))
        assert_refused(expert("why?"), "same_outcome")


def test_a_poller_may_be_asked_about_in_between_without_end():
    with alone():
        for _ in range(20):
            assert status(1) == "pending"
            assert status(2) == "pending"
        run_it(1)
        assert status(1) == "pending"
        run_it(2)
        refused()


# Parallel twins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 9])
def test_twins_that_run_together_are_one(size):
    with alone():
        for _ in range(3):
            together(size)
        assert assert_refused(Flight(job()).begin(), "same_outcome").used == 3


def test_twins_take_nothing_over_from_another_row():
    with alone():
        for _ in range(2):
            begun(job(1)).end()
        together(2, n=2)
        begun(job(2)).end()
        begun(job(2)).end()
        assert assert_refused(Flight(job(2)).begin(), "same_outcome").used == 3


def test_twins_that_come_to_different_outcomes_are_different_observations():
    with alone():
        for _ in range(4):
            one, two = begun(job()), begun(job())
            one.end("a")
            two.end("b")
        begun(job()).end("b")
        begun(job()).end("b")
        assert_refused(Flight(job()).begin(), "same_outcome")


# Runs -----------------------------------------------------------------------------------------------------------------


def test_the_next_run_of_the_session_starts_clean():
    for _ in range(3):
        with toolguard.run(session="s", **OTHERS_OFF):
            run_it(3)
            refused()


def test_a_nested_run_has_a_row_of_its_own_and_breaks_none():
    with alone():
        run_it(2)
        with alone():
            run_it(3)
            refused()
            assert other(1) == "ok"
        run_it(1)
        refused()


def test_a_run_entered_again_goes_on():
    run = alone()
    with run:
        run_it(2)
    with run:
        run_it(1)
        refused()


# Observing ------------------------------------------------------------------------------------------------------------


def test_observing_it_marks_where_it_would_have_refused_and_executes(spans):
    with alone(mode="observe") as run:
        run_it(5)
        assert other(1) == "ok"
        run_it(4)
        assert run.refusals == ()
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None] * 3 + ["same_outcome"] * 2 + [None] * 4 + ["same_outcome"]


def test_a_single_wall_may_observe(spans):
    toolguard.configure({"observe": ["same_outcome"]})
    with alone(per_tool=5):
        run_it(5)
        assert_refused(look(1), "per_tool")
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None] * 3 + ["same_outcome"] * 2 + [None]


# What it cannot see ---------------------------------------------------------------------------------------------------


def test_it_cannot_see_a_result_that_tells_the_time():
    with alone():
        for n in range(50):
            assert_executed(look(1, {"rows": [], "took_ms": n}))


def test_it_cannot_see_the_same_result_of_other_words():
    with alone():
        for n in range(50):
            assert look(f"question {n}") == "ok"


def test_it_cannot_see_calls_each_of_which_starts_before_the_last_one_is_over():
    with alone():
        flight = begun(job())
        for _ in range(50):
            following = begun(job())
            flight.end()
            flight = following


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_calls_leave_a_bounded_state(lab, tools):
    lab = lab(same_outcome=3)
    for n in range(100_000):
        assert lab.attempt(tools.read, (n // 2).to_bytes(16), digest=b"x" * 16) is None
    tally = lab.ledger.sync().tally
    assert len(tally._new) + len(tally._old) < 40_000


# Any history ----------------------------------------------------------------------------------------------------------


TOOLS = {"look": look, "send": send, "status": status}


class Model:
    """The run's calls in a row, in the words of the design, for calls that come one after the other."""

    def __init__(self, limit):
        self.limit = limit
        self.row = []
        self.seen = set()

    def attempt(self, tool, n, outcome):
        if tool == "look" and len(self.row) >= self.limit and self.row[0][0] == n:
            return "refused"
        new = outcome in {"open", "interrupted"} or (tool, n, outcome) not in self.seen
        self.seen.add((tool, n, outcome))
        if tool == "status" and not new:
            return "ran"
        if tool != "look" or outcome in {"open", "interrupted"}:
            self.row = []
        elif self.row and self.row[0] == (n, outcome):
            self.row.append((n, outcome))
        else:
            self.row = [(n, outcome)]
        return "ran"


DO = {"open": object, "interrupted": KeyboardInterrupt(), "gone": OSError("gone")}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["look", "look", "look", "look", "send", "status"]),
            st.integers(0, 1),
            st.sampled_from(["a", "a", "a", "a", "b", "gone", "open", "interrupted"]),
        ),
        max_size=80,
    ),
)
@example(2, [("look", 0, "gone")] * 3 + [("status", 0, "a"), ("look", 0, "gone"), ("status", 0, "a"), ("look", 0, "gone")])
def test_any_history_of_single_calls_is_judged_as_the_plain_model_does(limit, history):
    model = Model(limit)
    with alone(same_outcome=limit):
        for tool, n, outcome in history:
            try:
                got = "refused" if isinstance(TOOLS[tool](n, DO.get(outcome, outcome)), toolguard.Refusal) else "ran"
            except (OSError, KeyboardInterrupt):
                got = "ran"
            assert got == model.attempt(tool, n, outcome)


# Threads and tasks ----------------------------------------------------------------------------------------------------


async def test_a_gather_of_twins_is_one_and_the_fourth_gather_is_refused():
    @metered(kind="read")
    async def fetch(n):
        await asyncio.sleep(0)
        return "the same"

    with alone() as run:
        for _ in range(3):
            run.turn()
            assert await asyncio.gather(fetch(1), fetch(1), fetch(1)) == ["the same"] * 3
        run.turn()
        for answer in await asyncio.gather(fetch(1), fetch(1), fetch(1)):
            assert assert_refused(answer, "same_outcome").used == 3
        assert run.usage().executed == 9


def test_threads_that_ask_the_same_together_are_one():
    for _ in range(20):
        together, answers = threading.Barrier(5), []

        @metered(kind="read", ignore="wait")
        def fetch(n, wait=None):
            wait.wait(20)  # a wrong answer ends the test and does not hang it
            return "the same"

        with alone() as run:
            for expected in (5, 5, 5, 0):
                answers.clear()

                def work(answers=answers, fetch=fetch, together=together):
                    answers.append(fetch(1, together))

                threads = [threading.Thread(target=run.bind(work)) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert answers.count("the same") == expected


class Mailbox:
    def __init__(self, mails):
        self.mails = mails

    @metered(kind="read")
    def fetch(self):
        return self.mails


def test_each_receiver_has_its_own_results():
    one, two = Mailbox([]), Mailbox([])
    with alone():
        for _ in range(3):
            assert one.fetch() == []
        assert_refused(one.fetch(), "same_outcome")
        assert two.fetch() == []


def test_ignored_parameters_do_not_tell_two_calls_apart():
    @metered(kind="read", ignore=("timeout",))
    def fetch(n, timeout=1):
        return n

    with alone():
        for timeout in range(3):
            assert fetch(1, timeout) == 1
        assert_refused(fetch(1, 99), "same_outcome")


def test_arguments_that_cannot_be_compared_count_by_their_type():
    with alone():
        for _ in range(3):
            assert look(object()) == "ok"
        refused(object())
        assert look(lambda: None) == "ok"
