"""Sessions: what runs of one conversation share, what nobody else sees of it, and how it is forgotten."""

import asyncio
import contextlib
import gc
import itertools
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import context as otel_context

import toolguard
from toolguard import ConfigError, Refusal, metered
from toolguard.testing import assert_refused, isolated

PLACES = {"unnamed": (None, None), "s": (None, "s"), "r": (None, "r"), "s of t": ("t", "s"), "s of u": ("u", "s")}


@metered(kind="read")
def broken(n=0):
    raise OSError(f"always the same: {n}")


@metered(kind="read")
def look(n=0):
    return n


@metered(kind="send")
def mail(n=0):
    return n


def attempt(n=0, tool=broken, **place):
    """One call in a run of its own; say what refused it, or None where it ran."""
    with toolguard.run(**place):
        try:
            answer = tool(n)
        except OSError:
            return None
    return answer.reason if isinstance(answer, Refusal) else None


def fail_twice(n=0, **place):
    """Bring the session to where the next identical attempt is refused."""
    assert [attempt(n, **place) for _ in range(2)] == [None, None]


# What is shared -------------------------------------------------------------------------------------------------------


def test_a_failure_is_remembered_by_the_next_run_of_the_session():
    fail_twice(session="s")
    assert attempt(session="s") == "repeat_failure"
    assert attempt(session="s") is None  # the one probe
    assert attempt(session="s") == "repeat_failure"


def test_a_complaint_is_too():
    for n in range(5):
        assert attempt(n, session="s") is None
    assert attempt(9, session="s") == "same_complaint"


def test_a_success_in_one_run_clears_for_the_next():
    answers = [OSError("down"), OSError("down"), "up"]

    @metered(kind="read")
    def flaky(n):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    fail_twice(session="s")
    assert [attempt(1, flaky, session="s") for _ in range(2)] == [None, None]
    assert attempt(1, flaky, session="s") == "repeat_failure"
    assert attempt(1, flaky, session="s") is None  # the probe is well
    answers[:] = [OSError("down")] * 2
    fail = [attempt(1, flaky, session="s") for _ in range(3)]
    assert fail == [None, None, "repeat_failure"]


def test_runs_that_are_open_at_once_share_it():
    one, two = toolguard.run(session="s"), toolguard.run(session="s")
    with one, pytest.raises(OSError, match="same"):
        broken()
    with two, pytest.raises(OSError, match="same"):
        broken()
    with one:
        assert_refused(broken(), "repeat_failure")


def test_what_is_counted_for_a_run_is_not_shared():
    for _ in range(6):
        with toolguard.run(session="s", per_tool=2, call_budget=2, delivery=1, aggregate=2, hard_cap=3) as run:
            assert [look(1), look(2), mail(1)] == [1, 2, 1]
            assert run.usage().refused == 0
            assert run.usage().executed == 3


def test_repetition_and_duplicates_are_a_matter_of_the_run():
    for _ in range(10):
        with toolguard.run(session="s"):
            assert look(1) == 1
            assert mail(1) == 1


def test_a_stop_is_a_matter_of_the_run():
    with toolguard.run(session="s", hard_cap=1) as run:
        look(1)
        look(2)
        assert run.stopped
    with toolguard.run(session="s") as run:
        assert not run.stopped
        assert look(1) == 1


def test_messages_that_a_program_drops_take_nothing_of_it_along():
    history = [{"role": "tool", "content": attempt(session="s")} for _ in range(2)]
    history.clear()
    gc.collect()
    assert attempt(session="s") == "repeat_failure"


# Who shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", PLACES)
@pytest.mark.parametrize("there", PLACES)
def test_tenant_and_session_together_name_it(here, there):
    places = {name: {"tenant": tenant, "session": session} for name, (tenant, session) in PLACES.items()}
    fail_twice(**places[here])
    shared = here == there != "unnamed"
    assert attempt(**places[there]) == ("repeat_failure" if shared else None)


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "b/c"), ("a/b", "c")), (("a", "\0b"), ("a\0", "b")), (("", "s"), (None, "s"))]
)
def test_no_two_names_can_be_read_as_one_another(one, other):
    fail_twice(tenant=one[0], session=one[1])
    assert attempt(tenant=other[0], session=other[1]) is None
    assert attempt(tenant=one[0], session=one[1]) == "repeat_failure"


def test_a_run_without_a_session_has_one_of_its_own():
    for _ in range(5):
        assert attempt() is None
    with toolguard.run():
        for _ in range(2):
            with pytest.raises(OSError, match="same"):
                broken()
        assert_refused(broken(), "repeat_failure")


def test_an_unnamed_run_that_is_entered_again_is_in_the_session_that_it_was_in():
    run = toolguard.run()
    for _ in range(2):
        with run, pytest.raises(OSError, match="same"):
            broken()
    with run:
        assert_refused(broken(), "repeat_failure")


def test_a_nested_run_joins_the_session_of_the_run_around_it_named_or_not():
    for place in ({}, {"session": "s"}, {"session": "s", "tenant": "t"}):
        with toolguard.run(**place) as outer:
            for _ in range(2):
                with toolguard.run() as inner, pytest.raises(OSError, match="same"):
                    broken()
                assert (inner.session, inner.tenant) == (outer.session, outer.tenant)
            assert_refused(broken(), "repeat_failure")


def test_a_nested_run_that_names_the_session_again_joins_it_too():
    with toolguard.run(session="s", tenant="t"):
        for _ in range(2):
            with toolguard.run(session="s"), pytest.raises(OSError, match="same"):
                broken()
        assert_refused(broken(), "repeat_failure")
    assert attempt(session="s", tenant="t") is None  # the probe that the refusal promised
    assert attempt(session="s", tenant="t") == "repeat_failure"


def test_a_nested_run_that_names_another_session_is_in_that_one():
    fail_twice(session="b")
    with toolguard.run(session="a"):
        with toolguard.run(session="b"):
            assert_refused(broken(), "repeat_failure")
        for _ in range(2):
            with pytest.raises(OSError, match="same"):
                broken()
        assert_refused(broken(), "repeat_failure")
        with toolguard.run(session="c"), pytest.raises(OSError, match="same"):
            broken()


def test_a_nested_run_of_another_tenant_keeps_the_name_of_the_session_and_shares_nothing():
    fail_twice(session="s", tenant="t")
    with toolguard.run(session="s", tenant="t"):
        with toolguard.run(tenant="u") as inner, pytest.raises(OSError, match="same"):
            broken()
        assert (inner.session, inner.tenant) == ("s", "u")
        assert_refused(broken(), "repeat_failure")
    assert attempt(session="s", tenant="u") is None
    assert attempt(session="s", tenant="u") == "repeat_failure"


def test_a_run_that_is_entered_inside_another_session_after_it_was_started_stays_in_its_own():
    run = toolguard.run(session="a")
    assert run.session == "a"
    fail_twice(session="b")
    with toolguard.run(session="b"), run, pytest.raises(OSError, match="same"):
        broken()


async def test_tasks_of_different_sessions_share_nothing_and_of_one_everything():
    @metered(kind="read")
    async def fetch():
        await asyncio.sleep(0)
        raise OSError("down")

    async def turn(session):
        async with toolguard.run(session=session):
            try:
                answer = await fetch()
            except OSError:
                return None
            return answer.reason

    for n in range(2):
        assert await asyncio.gather(*(turn(f"s{k}") for k in range(5))) == [None] * 5, n
    said = await asyncio.gather(*(turn(f"s{k}") for k in range(6)))
    assert said == ["repeat_failure"] * 5 + [None]


# The key of its digests -----------------------------------------------------------------------------------------------


def test_runs_of_a_session_have_one_key_and_others_another():
    keys = []
    for tenant, session in ((None, "s"), (None, "s"), (None, "r"), ("t", "s"), (None, None), (None, None)):
        with toolguard.run(tenant=tenant, session=session) as run:
            keys.append(run.hasher.identity("look", (1,)))
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5


def test_a_receiver_is_the_same_one_in_each_run_of_a_session():
    class Box:
        @metered(kind="read")
        def fetch(self):
            raise OSError("down")

    one, two = Box(), Box()

    def turn(box):
        with toolguard.run(session="s"):
            try:
                return box.fetch().reason
            except OSError:
                return None

    assert [turn(box) for box in (one, two, one, two)] == [None] * 4
    assert [turn(box) for box in (one, two)] == ["repeat_failure"] * 2


# Forgetting -----------------------------------------------------------------------------------------------------------


def sessions():
    return toolguard._session._sessions


def test_the_process_remembers_the_512_sessions_that_were_used_last():
    fail_twice(session="first")
    for n in range(511):
        assert attempt(session=f"s{n}", tool=look) is None
    assert len(sessions()) == 512
    assert attempt(session="first") == "repeat_failure"
    for n in range(512):
        attempt(session=f"t{n}", tool=look)
    assert len(sessions()) == 512
    assert attempt(session="first") is None  # forgotten: it starts anew


def test_the_513th_makes_the_one_forgotten_that_was_not_used_for_longest():
    fail_twice(session="old")
    fail_twice(session="next")
    for n in range(510):
        attempt(session=f"s{n}", tool=look)
    with toolguard.run(session="old"):
        pass  # which is a use of it
    attempt(session="the 513th", tool=look)
    assert attempt(session="old") == "repeat_failure"
    assert attempt(session="next") is None


@pytest.mark.parametrize("most", [1, 2, 7])
def test_sessions_says_how_many(most):
    for n in range(most):
        fail_twice(session=f"s{n}", sessions=most)
    assert [attempt(session=f"s{n}", sessions=most) for n in range(most)] == ["repeat_failure"] * most
    attempt(session="one more", sessions=most)
    assert len(sessions()) == most
    assert attempt(session="s0", sessions=most) is None


def test_sessions_0_lets_no_session_outlive_its_run():
    fail_twice(session="s", sessions=0)
    assert attempt(session="s", sessions=0) is None
    assert len(sessions()) == 0
    with toolguard.run(session="s", sessions=0):
        for _ in range(2):
            with toolguard.run(), pytest.raises(OSError, match="same"):
                broken()
        assert_refused(broken(), "repeat_failure")


def test_a_run_with_sessions_0_neither_reads_nor_writes_what_others_remember():
    fail_twice(session="s")
    assert attempt(session="s", sessions=0) is None
    assert attempt(session="s") == "repeat_failure"


def test_the_configuration_says_how_many_too():
    toolguard.configure({"limits": {"sessions": 1}})
    fail_twice(session="a")
    assert attempt(session="b", tool=look) is None
    assert attempt(session="a") is None


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "512", float("nan")], ids=str)
def test_how_many_is_a_whole_number_from_0(wrong):
    with pytest.raises(ConfigError, match="sessions"):
        toolguard.run(sessions=wrong)


def test_a_run_keeps_its_session_while_the_process_forgets_it():
    run = toolguard.run(session="s", sessions=1)
    with run, pytest.raises(OSError, match="same"):
        broken()
    attempt(session="other", sessions=1)
    # The name is free: whoever takes it now starts anew, and sees nothing of that run's past, nor it of theirs.
    assert [attempt(session="s", sessions=1) for _ in range(3)] == [None, None, "repeat_failure"]
    with run, pytest.raises(OSError, match="same"):
        broken()
    with run:
        with toolguard.run(session="s"):  # inside it the name is its own
            assert_refused(broken(), "repeat_failure")
        with pytest.raises(OSError, match="same"):  # the probe
            broken()
    assert attempt(session="s", sessions=1) is None  # the other one's probe


def test_unnamed_sessions_take_nobodys_place():
    fail_twice(session="s", sessions=1)
    for _ in range(20):
        attempt(tool=look)
    assert attempt(session="s", sessions=1) == "repeat_failure"


def test_a_forgotten_session_is_freed_with_its_last_run():
    run = toolguard.run(session="s", sessions=1)
    with run, pytest.raises(OSError, match="same"):
        broken()
    kept = weakref.ref(run.ledger.session)
    attempt(session="other", sessions=1)
    gc.collect()
    assert kept() is not None
    del run
    gc.collect()
    assert kept() is None


@contextlib.contextmanager
def untraced():
    """Make no spans, which the tests' exporter would keep."""
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        otel_context.detach(token)


def use(names, most):
    """Let a run of each session make a call that is well and one that fails."""
    for n, name in enumerate(names):
        with toolguard.run(session=name, sessions=most):
            look((name, n))
            with contextlib.suppress(OSError):
                broken((name, n))


def room(thing):
    """Return the bytes of what an object leads to, classes, functions and modules left out."""
    seen, waiting, total = set(), [thing], 0
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, (type, types.ModuleType, types.FunctionType)):
            seen.add(id(one))
            total += sys.getsizeof(one)
            waiting += gc.get_referents(one)
    return total


@pytest.mark.parametrize("names", [lambda n: f"s{n}", lambda n: "s"], ids=["many sessions", "one session"])
def test_ten_thousand_runs_take_no_more_room_than_a_few_thousand(names):
    # What is remembered comes and goes by generations, so the most of several moments is compared, and not two moments.
    def most(first, last):
        rooms = []
        for start in range(first, last, 250):
            use([names(n) for n in range(start, start + 250)], 64)
            gc.collect()
            rooms.append(room(sessions()))
        return max(rooms)

    with untraced():
        before, after = most(0, 4000), most(4000, 10_000)
    assert len(sessions()) == len({names(n) for n in range(64)})
    assert after < 1.2 * before


def test_a_test_that_is_isolated_neither_sees_nor_leaves_sessions():
    fail_twice(session="s")
    with isolated():
        assert len(sessions()) == 0
        fail_twice(session="s")
        attempt(session="theirs", tool=look)
    assert attempt(session="s") == "repeat_failure"
    assert [name for _, name in sessions()] == ["s"]


# At the same time -----------------------------------------------------------------------------------------------------


def in_threads(job, n=6):
    """Let threads do a job at once, each in a context of its own."""
    barrier, said = threading.Barrier(n), []

    def go(k):
        barrier.wait(20)
        said.append(job(k))

    threads = [threading.Thread(target=go, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == n
    return said


def test_of_runs_of_one_session_that_try_again_at_once_one_is_the_probe():
    for repetition in range(60):
        name = f"s{repetition}"
        fail_twice(session=name)
        assert attempt(session=name) == "repeat_failure"
        said = in_threads(lambda k, name=name: attempt(session=name))
        assert Counter(said) == {None: 1, "repeat_failure": 5}


async def test_while_a_probe_of_one_run_is_in_flight_no_other_run_has_one():
    go_on, state = asyncio.Event(), {"fails": True}

    @metered(kind="read")
    async def fetch():
        if state["fails"]:
            raise OSError("down")
        await go_on.wait()
        return "up"

    async def turn():
        with toolguard.run(session="s"):
            try:
                return await fetch()
            except OSError:
                return None

    assert [await turn() for _ in range(2)] == [None, None]
    assert_refused(await turn(), "repeat_failure")
    state["fails"] = False
    probe = asyncio.create_task(turn())
    await asyncio.sleep(0)
    for _ in range(5):
        assert assert_refused(await turn(), "repeat_failure").retry == "later"
    go_on.set()
    assert await probe == "up"
    assert await turn() == "up"


async def test_a_probe_that_is_cancelled_gives_its_place_to_another_run():
    state = {"waits": False}

    @metered(kind="read")
    async def fetch():
        if state["waits"]:
            await asyncio.Event().wait()
        raise OSError("down")

    async def turn():
        with toolguard.run(session="s"):
            try:
                answer = await fetch()
            except OSError:
                return None
            return answer.reason

    assert [await turn() for _ in range(3)] == [None, None, "repeat_failure"]
    state["waits"] = True
    probe = asyncio.create_task(turn())
    await asyncio.sleep(0)
    assert await turn() == "repeat_failure"
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    state["waits"] = False
    assert await turn() is None
    assert await turn() == "repeat_failure"


def test_threads_that_open_one_new_session_at_once_are_in_one():
    for repetition in range(200):
        runs = in_threads(lambda k, name=f"s{repetition}": toolguard.run(session=name).start(), 4)
        assert len({id(run.ledger.session) for run in runs}) == 1


def test_threads_of_many_sessions_at_once_keep_them_apart_and_the_bound():
    def job(k):
        for n in range(40):
            with toolguard.run(session=f"{k}-{n}", sessions=16):
                for expected in (None, None, "repeat_failure"):
                    try:
                        answer = broken(n)
                    except OSError:
                        answer = None
                    assert (answer and answer.reason) == expected
        return True

    assert all(in_threads(job))
    assert len(sessions()) <= 16


def test_nested_runs_of_crossed_sessions_in_threads_never_wait_for_each_other():
    def job(k):
        outer, inner = ("a", "b") if k % 2 else ("b", "a")
        for n in range(100):
            with toolguard.run(session=outer):
                look((k, n))
                with toolguard.run(session=inner):
                    look((k, n, "inner"))
        return True

    assert all(in_threads(job))


# Histories ------------------------------------------------------------------------------------------------------------


class Plain:
    """What a session does of one failing call, in the plainest words: fails, fails, refused, probe, then refused for good."""

    def __init__(self):
        self.failed, self.refused, self.closed = 0, False, False

    def attempt(self):
        if self.closed or (self.failed >= 2 and not self.refused):
            self.refused = True
            return "repeat_failure"
        if self.failed >= 2:
            self.closed = True
        self.failed += 1
        return None


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.sampled_from([None, "t"])), max_size=40),
)
def test_whatever_comes_when_it_is_as_in_one_ordered_table_of_plain_sessions(most, steps):
    known = OrderedDict()
    with isolated():
        for session, tenant in steps:
            plain = known.pop((tenant, session), None) or Plain()
            if session is not None and most:
                known[tenant, session] = plain
                while len(known) > most:
                    known.popitem(last=False)
            assert attempt(session=session, tenant=tenant, sessions=most) == plain.attempt()
        assert list(sessions()) == list(known)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=24))
def test_interleaved_sessions_each_go_as_they_would_alone(order):
    with isolated():
        together = {name: [] for name in "abc"}
        for name in order:
            together[name].append(attempt(session=name))
    for name, said in together.items():
        with isolated():
            assert said == [attempt(session=name) for _ in said]


def test_closed_for_the_session_means_for_each_of_its_runs():
    outcomes = [attempt(session="s") for _ in range(8)]
    assert outcomes == [None, None, "repeat_failure", None, *["repeat_failure"] * 4]
    assert list(itertools.islice((attempt(session="other") for _ in itertools.count()), 2)) == [None, None]
