"""The ledger: one lock, all walls or none, and nothing lost whatever interrupts it."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import tracemalloc
import weakref
from dataclasses import replace

import pytest

import toolguard
from toolguard import NotExecuted, metered
from toolguard import _ledger as ledger_module
from toolguard._clock import tick
from toolguard._ledger import BUSY, Ledger
from toolguard._refusal import stop_message
from toolguard._session import RunState
from toolguard._tree import SECTION, Section, Session, Tree, totals
from toolguard._values import Call, Refused, Tool, Wall
from toolguard.testing import assert_executed, assert_refused
from toolguard.walls import KEYS, NAMES, TABLE

# Every limit off, so that a test says which it is about.
OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}
OPEN = {name: value for name, value in OFF.items() if name not in {"note_at", "adaptive_signal"}}

READ = Tool("read", "read", "read")
OTHER = Tool("other", "other", "read")
SEND = Tool("send", "send", "send")
QUERY = Tool("query", "query", "read", query=True)


def open_ledger(table=TABLE, **options):
    limits = {key: options.pop(key) for key in list(options) if key in OFF}
    return Ledger(table, {**OFF, **limits}, **options)


def attempt(ledger, tool=READ, identity=b"", *, query=None, outcome="ok", digest=None, inner=False, started=None):
    """Admit a call and end it at once; return the refusal, if any."""
    call, why = admit(ledger, tool, identity, query=query, started=started)
    call.outcome, call.digest, call.inner = outcome, digest, inner
    ledger.end(call, why)
    return why


def admit(ledger, tool=READ, identity=b"", *, query=None, started=None):
    plan = ledger.plan(tool)
    call = Call(plan.tool, plan, identity, query, ledger.turn, tick() if started is None else started)
    return call, ledger.admit(call, plan)


def counts(ledger):
    tally = ledger.sync().tally
    return (
        tally.external,
        tally.tree,
        tally.reads,
        tally.sends,
        {name: n for name, n in tally.by_tool.items() if n},
    )


# All walls or none ----------------------------------------------------------------------------------------------------


def wall(name, *, refuses=False, **hooks):
    """Return a wall that counts its charges in a list and refuses where told to."""
    return Wall(
        name=name,
        keys=(),
        limit=lambda _tool, _limits, _own: 1,
        state=lambda _tally: [0],
        about="",
        text=lambda _why, _tool: "",
        admit=(lambda _s, n, _call: Refused(name, 0, n, "different")) if refuses else lambda _s, _n, _call: None,
        **hooks,
    )


def charging(name, log, **options):
    return wall(
        name,
        charge=lambda _s, _n, _call: log.append(("charge", name)),
        release=lambda _s, _n, _call: log.append(("release", name)),
        settle=lambda _s, _n, _call, _at: log.append(("settle", name)),
        **options,
    )


def test_when_one_wall_refuses_every_wall_is_asked_and_none_is_charged():
    log, asked = [], []
    walls = [charging(name, log, refuses=name == "b") for name in "abc"]
    hearing = [
        replace(w, admit=lambda s, n, call, w=w: (asked.append(w.name), w.admit(s, n, call))[1])  # type: ignore[misc]
        for w in walls
    ]
    ledger = open_ledger(tuple(hearing))
    why = attempt(ledger)
    assert why is not None
    assert why.reason == "b"
    assert set(asked) == {"a", "b", "c"}
    assert log == []
    assert counts(ledger) == (0, 0, 0, 0, {})


def test_the_first_wall_of_the_table_names_the_refusal_and_each_that_refused_is_known():
    told = []
    walls = [
        wall(name, refuses=name != "a", refused=lambda _s, _n, call, _at: told.append(call.mine)) for name in ("a", "b", "c")
    ]
    ledger = open_ledger(tuple(walls))
    assert attempt(ledger).reason == "b"
    ledger.sync()
    assert told == [{"b", "c"}] * 3


def test_a_refusal_leaves_every_count_as_it_was():
    ledger = open_ledger(per_tool=2, delivery=1, query_loop=1, hard_cap=None, adaptive_soft=100, adaptive_repeats=6)
    for _ in range(2):
        attempt(ledger, QUERY, b"q", query=b"shape" + bytes([ledger.tally.external]), digest=b"1")
    attempt(ledger, SEND, b"s", digest=b"1")
    before, usage = counts(ledger), ledger.usage()
    states = [
        (seat.state.counts.get(b"shape\x00"), seat.state.most) for seat in ledger._seats if seat.wall.name == "query_loop"
    ]
    for _ in range(5):
        assert attempt(ledger, QUERY, b"q", query=b"shape\x00").reason == "query_loop"
        assert attempt(ledger, SEND, b"t").reason == "delivery"
    assert counts(ledger) == before
    assert states == [
        (seat.state.counts.get(b"shape\x00"), seat.state.most) for seat in ledger._seats if seat.wall.name == "query_loop"
    ]
    after = ledger.usage()
    assert (after.executed, after.by_tool) == (usage.executed, usage.by_tool)
    assert after.refused == 10
    assert after.by_reason == {"query_loop": 5, "delivery": 5}


def test_used_in_a_refusal_is_what_executed_and_never_counts_refusals():
    ledger = open_ledger(per_tool=3)
    said = [attempt(ledger) for _ in range(6)]
    assert [why and (why.used, why.limit) for why in said] == [None] * 3 + [(3, 3)] * 3
    assert ledger.usage().refused == 3


@pytest.mark.parametrize("kind", ["read", "send"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_released_call_gives_back_every_count_and_is_released_once(kind, depth):
    ledgers = [open_ledger(query_loop=5, per_tool=100, delivery=100, hard_cap=100)]
    for _ in range(depth - 1):
        ledgers.append(open_ledger(query_loop=5, per_tool=100, delivery=100, parent=ledgers[-1]))
    innermost = ledgers[-1]
    tool = Tool("query", "query", kind, query=True)
    attempt(innermost, tool, query=b"shape")
    before = [counts(ledger) for ledger in ledgers]
    shapes = next(seat.state for seat in innermost._seats if seat.wall.name == "query_loop")
    assert shapes.counts.get(b"shape") == 1
    call, why = admit(innermost, tool, query=b"shape")
    assert why is None
    assert [counts(ledger) for ledger in ledgers] != before
    assert shapes.counts.get(b"shape") == 2
    call.outcome = "not_executed"
    for _ in range(3):  # however often it is said
        innermost.end(call)
    assert [counts(ledger) for ledger in ledgers] == before
    assert shapes.counts.get(b"shape") == 1
    assert innermost.usage().by_reason == {"gate": 1}


def test_a_settled_call_is_settled_once_and_never_released():
    log = []
    ledger = open_ledger((charging("a", log),))
    call, _ = admit(ledger)
    ledger.end(call)
    ledger.sync()
    call.outcome = "not_executed"
    ledger.end(call)
    ledger.sync()
    assert log == [("charge", "a"), ("settle", "a")]
    assert ledger.tally.external == 1
    assert ledger.tally.settled == 1


@pytest.mark.parametrize("outcome", ["ok", "error", "cancelled", "closed", "abandoned"])
def test_whatever_became_of_a_call_that_ran_it_stays_charged(outcome):
    ledger = open_ledger(per_tool=1)
    assert attempt(ledger, outcome=outcome) is None
    assert attempt(ledger).reason == "per_tool"


def test_the_refusal_of_an_inner_call_passed_on_is_neither_success_nor_failure_and_stays_charged():
    log = []
    ledger = open_ledger((charging("a", log),))
    attempt(ledger, inner=True)
    assert counts(ledger)[0] == 1
    assert ledger.tally.settled == 0
    assert log == [("charge", "a")]


def test_a_local_tool_is_counted_by_no_wall_and_is_refused_after_a_stop():
    ledger = open_ledger(per_tool=1, hard_cap=1, local=frozenset({"read"}))
    for _ in range(5):
        assert attempt(ledger) is None
    assert counts(ledger) == (0, 0, 0, 0, {})
    assert ledger.tally.settled == 5
    assert attempt(ledger, OTHER) is None
    assert attempt(ledger, OTHER).reason == "hard_stop"
    assert attempt(ledger).reason == "hard_stop"


def test_a_prefix_is_stripped_before_anything_is_counted_or_looked_up():
    ledger = open_ledger(per_tool=5, own={"read": 2}, strip_prefixes=("tools.",))
    prefixed = Tool("tools_read", "tools_read", "read")
    assert [attempt(ledger, tool) for tool in (READ, prefixed)] == [None, None]
    assert attempt(ledger).used == 2
    assert attempt(ledger, prefixed).limit == 2
    assert ledger.usage().by_tool == {"read": 2}


def test_more_tools_than_plans_are_kept_lose_no_count():
    ledger = open_ledger(per_tool=1)
    assert attempt(ledger) is None
    for n in range(ledger_module._MOST_PLANS + 10):
        assert attempt(ledger, Tool(f"t{n}", f"t{n}", "read")) is None
    assert len(ledger.plans) <= ledger_module._MOST_PLANS
    assert attempt(ledger).reason == "per_tool"


# Nested runs ----------------------------------------------------------------------------------------------------------


def test_a_cap_of_an_outer_run_counts_and_stops_the_whole_tree():
    outer = open_ledger(hard_cap=4)
    inner = open_ledger(parent=outer)
    sibling = open_ledger(parent=outer)
    for ledger in (outer, inner, inner, sibling):
        assert attempt(ledger) is None
    why = attempt(sibling)
    assert (why.reason, why.used, why.limit, why.retry) == ("hard_stop", 4, 4, "never")
    assert outer.stopped is not None
    assert inner.stopped is None
    assert [attempt(ledger).reason for ledger in (outer, inner, sibling)] == ["hard_stop"] * 3


def test_the_stop_of_an_inner_run_leaves_the_outer_one_alone():
    outer = open_ledger(hard_cap=10)
    inner = open_ledger(hard_cap=1, parent=outer)
    attempt(inner)
    assert attempt(inner).reason == "hard_stop"
    assert inner.stopped
    assert outer.ended_by() is None
    assert attempt(outer) is None


def test_an_inner_run_has_an_allowance_of_its_own_for_what_is_no_explicit_cap():
    outer = open_ledger(per_tool=1, aggregate=1, hard_cap=None, adaptive_soft=1, adaptive_multiplier=1)
    inner = open_ledger(per_tool=2, parent=outer)
    assert attempt(outer) is None
    assert [attempt(inner) for _ in range(2)] == [None, None]
    assert attempt(inner).reason == "per_tool"


def test_where_the_cap_of_an_outer_run_refuses_too_it_names_the_refusal():
    # Otherwise the model would be told to repeat a call in a run that is over.
    outer = open_ledger(hard_cap=1)
    inner = open_ledger(aggregate=1, per_tool=1, parent=outer)
    attempt(inner, identity=b"a")
    why = attempt(inner, identity=b"b")
    assert (why.reason, why.retry) == ("hard_stop", "never")
    assert outer.stopped
    assert attempt(inner, identity=b"b").reason == "hard_stop"


def test_a_run_counts_what_runs_nested_in_it_used_when_it_says_why_it_stopped():
    outer = open_ledger(hard_cap=3)
    inner = open_ledger(parent=outer)
    attempt(outer, OTHER)
    attempt(inner)
    attempt(inner)
    attempt(inner)
    said = stop_message(outer.stopped)
    assert "after 3 tool calls" in said
    assert "other 1" in said
    assert "2 by the agents it called" in said


# Re-entry -------------------------------------------------------------------------------------------------------------


def reentering(act):
    """Return a wall that runs `act` inside the critical section, once."""
    fired = []

    def admit_hook(_s, _n, _call):
        if not fired:
            fired.append(True)
            act()

    return Wall(
        name="reenters",
        keys=(),
        limit=lambda _tool, _limits, _own: 1,
        state=lambda _tally: None,
        about="",
        text=lambda _why, _tool: "",
        admit=admit_hook,
    )


def by_signal(act):
    def in_handler():
        former = signal.signal(signal.SIGUSR1, lambda *_: act())
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, former)

    return in_handler


def by_finaliser(act):
    class Ends:
        def __del__(self):
            act()

    def collects():
        cycle = Ends()
        cycle.me = cycle
        del cycle
        gc.collect()

    return collects


def by_weak_reference(act):
    class Thing:
        pass

    def dies():
        thing = Thing()
        kept = weakref.ref(thing, lambda _: act())
        del thing
        assert kept() is None

    return dies


WAYS = [
    pytest.param(by_signal, id="signal", marks=pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")),
    pytest.param(by_finaliser, id="finaliser"),
    pytest.param(by_weak_reference, id="weakref"),
]


@pytest.mark.parametrize("way", WAYS)
def test_an_admission_inside_an_admission_is_busy_charges_nothing_and_counts_as_refused(way):
    seen = []
    ledger = open_ledger((reentering(way(lambda: seen.append(attempt(ledger, OTHER)))), *TABLE), per_tool=5)
    assert attempt(ledger) is None
    assert seen == [BUSY]
    assert seen[0].retry == "later"
    assert counts(ledger) == (1, 1, 1, 0, {"read": 1})
    assert ledger.usage().by_reason == {"busy": 1}
    assert attempt(ledger, OTHER) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("outcome", ["ok", "not_executed"])
def test_a_settlement_inside_an_admission_is_queued_and_not_lost(way, outcome):
    log = []
    ledger = open_ledger((charging("a", log), reentering(way(lambda: plain.end(running)))))
    plain = open_ledger((charging("a", log),), parent=ledger)  # shares lock and queue, has no wall that re-enters
    running, why = admit(plain)
    assert why is None
    running.outcome = outcome
    assert attempt(ledger) is None
    assert len(SECTION.late) == 2
    ledger.sync()
    assert ("settle" if outcome == "ok" else "release", "a") in log
    assert not running.charged
    assert plain.tally.external == (1 if outcome == "ok" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_begun_inside_an_admission_is_queued_and_not_lost(way):
    ledger = open_ledger((reentering(way(lambda: (ledger.begin_turn(), ledger.begin_turn()))),))
    assert attempt(ledger) is None
    ledger.sync()
    assert ledger.turns == 2


@pytest.mark.parametrize("way", WAYS)
def test_reading_a_run_inside_an_admission_answers(way):
    seen = []
    ledger = open_ledger(
        (reentering(way(lambda: seen.append((ledger.usage().executed, ledger.ended_by(), ledger.note().reading)))),)
    )
    assert attempt(ledger) is None
    assert seen == [(0, None, None)]


@pytest.mark.parametrize("moment", ["admit", "slack"])
def test_a_stop_while_walls_are_asked_holds_for_every_later_call(moment):
    why = Refused("stop", None, None, "never")
    act = reentering(lambda: ledger.stop(why, "over"))
    # Far-reaching slack: what is granted after the stop would let many calls pass unasked.
    ask, grant = act.admit, lambda _s, _n: 1000
    if moment == "slack":
        ask, grant = (lambda _s, _n, _call: None), lambda s, n: (act.admit(s, n, None), 1000)[1]
    ledger = open_ledger((replace(act, admit=ask, slack=grant),))
    other = open_ledger((), parent=ledger)
    attempt(other)  # another plan is certain to pass for long
    attempt(ledger)
    assert ledger.ended_by().message == "over"
    assert [attempt(ledger) for _ in range(3)] == [why] * 3
    assert attempt(other) == why


@pytest.mark.parametrize(("moment", "marked"), [("admit", 0), ("slack", 1)])
def test_an_observed_end_that_a_look_finds_while_walls_are_asked_marks_that_call_or_the_next(moment, marked):
    why = Refused("reenters", None, None, "never", stops=True)
    act = reentering(lambda: ledger.ended_by(lambda: 1.0))
    ask, grant = act.admit, lambda _s, _n: 1000
    if moment == "slack":
        ask, grant = (lambda _s, _n, _call: None), lambda s, n: (act.admit(s, n, None), 1000)[1]
    ledger = open_ledger(
        (replace(act, admit=ask, slack=grant, looked=lambda _s, _n, _now: why),), observe=frozenset({"reenters"})
    )
    assert [admit(ledger)[0].would for _ in range(3)] == [why if call == marked else None for call in range(3)]
    assert ledger.ended_by() is None


@pytest.mark.parametrize("way", WAYS)
def test_totals_that_are_read_inside_an_admission_answer_and_lose_nothing(way):
    name = "read_while_totals_are_read"
    tool = Tool(name, name, "read")
    seen = []
    ledger = open_ledger((reentering(way(lambda: seen.append(totals().get((name, "read", "ok", ""), 0)))),))
    before = totals().get((name, "read", "ok", ""), 0)
    assert attempt(ledger, tool) is None
    assert seen == [before]
    assert totals()[(name, "read", "ok", "")] == before + 1


def test_a_run_inside_whose_admission_another_run_is_called_says_busy_and_nothing_is_charged():
    other, said = open_ledger(), []
    ledger = open_ledger((reentering(lambda: said.append(attempt(other))),))
    assert attempt(ledger) is None
    assert said == [BUSY]
    assert counts(other)[0] == 0
    assert attempt(other) is None


def test_a_tool_called_while_usage_is_read_disturbs_nobody():
    ledger = open_ledger()
    attempt(ledger)

    class Names(dict):
        def get(self, name, default=None):
            attempt(ledger, Tool("new", f"new{len(ledger.tally.by_tool)}", "read"))
            return super().get(name, default)

    ledger._names = Names()
    assert ledger.usage().by_tool["read"] == 1


@pytest.fixture
def entered_by_signal(monkeypatch):
    """Put a wall into every run that raises a signal inside the critical section, once."""
    act = []
    wall_ = reentering(lambda: [a() for a in act])
    monkeypatch.setattr("toolguard._session.TABLE", (wall_, *TABLE))
    return act


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")
def test_a_tool_called_from_a_signal_handler_inside_a_decision_gets_a_refusal_that_says_busy(entered_by_signal):
    @metered(kind="read")
    def outer():
        return "outer"

    @metered(kind="read")
    def in_handler():
        return "inner"

    seen = []
    entered_by_signal.append(by_signal(lambda: seen.append(in_handler())))
    with toolguard.run() as run:
        assert outer() == "outer"
        refusal = assert_refused(seen[0], "busy")
        assert refusal.retry == "later"
        assert "did NOT execute" in refusal
        assert in_handler() == "inner"
        assert run.usage().executed == 2
        assert run.usage().by_reason == {"busy": 1}


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")
def test_a_stream_closed_by_a_signal_handler_inside_a_decision_is_settled(entered_by_signal):
    @metered(kind="read")
    def outer():
        return "outer"

    with toolguard.run() as run:
        outer()  # the wall has fired and found nothing to do

        @metered(kind="read")
        def stream():
            yield 1
            raise NotExecuted

        open_stream = stream()
        next(open_stream)
        entered_by_signal.append(by_signal(open_stream.close))
        # A new run shares no lock; a nested one does, and brings a wall of its own.
        assert run.usage().executed == 2
    with toolguard.run() as outer_run:
        held = stream()
        next(held)
        assert outer_run.usage().executed == 1


# Interrupts -----------------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """What the handler of this test raises, as Ctrl-C raises KeyboardInterrupt."""


_SWEPT = {
    Ledger.admit.__code__,
    Ledger.ask.__code__,
    Ledger._ask.__code__,
    Ledger._hear.__code__,
    Ledger._ask_all.__code__,
    Ledger.set_stop.__code__,
    Ledger.settle.__code__,
    Ledger._judge.__code__,
    Ledger.add_spending.__code__,
    Ledger._release.__code__,
    Ledger.count_refusal.__code__,
    Ledger.close_turn.__code__,
    Section.drain.__code__,
    Section.drain_inside.__code__,
    Section.totals.__code__,
    Session.ask_again.__code__,
    Session.is_news.__code__,
    Tree.ask_again.__code__,
}


def interrupted_at(step, act):
    """Run `act` and let a signal arrive before the instruction number `step` of the swept functions.

    A trace function that raises would interrupt also where no signal can: between a `with` and its release. So the trace
    function only trips the signal, from C, and the interpreter delivers it where it delivers signals.

    Returns:
        The number of instructions if `act` ended before, else None.
    """
    trip = ctypes.pythonapi.PyErr_SetInterruptEx
    trip.argtypes, trip.restype = [ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object], None
    tripping = _Tripping(trip)
    seen = raised = 0

    def handler(*_):
        nonlocal raised
        raised += 1
        if raised == 1:
            raise Interrupted

    def local(frame, event, _arg):
        nonlocal seen
        if event == "opcode":
            seen += 1
            if seen == step:
                return tripping
        return local

    def calls(frame, event, _arg):
        if frame.f_code not in _SWEPT:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    former = signal.signal(signal.SIGINT, handler)
    tracer = sys.gettrace()
    gc.disable()
    try:
        sys.settrace(calls)
        try:
            act()
        finally:
            sys.settrace(tracer)
    except Interrupted:
        return None
    finally:
        signal.signal(signal.SIGINT, former)
        gc.enable()
    return seen if not raised else None


def _Tripping(trip):  # noqa: N802  a class in all but name: a C function that takes what a trace function takes
    import functools

    return functools.partial(trip, int(signal.SIGINT))


def scenario(tree):
    """Return a run with something of everything pending, and what is done in it."""
    outer = open_ledger(hard_cap=50)
    ledger = open_ledger(
        per_tool=3, delivery=2, query_loop=3, aggregate=2, refused_calls=50, refused_turns=50, parent=outer if tree else None
    )
    executed = []

    def one(tool, identity, *, outcome="ok", query=None):
        call, why = admit(ledger, tool, identity, query=query)
        if why is None and outcome != "not_executed":
            executed.append(tool)
        call.outcome = outcome
        ledger.end(call, why)

    def act():
        one(READ, b"a")
        one(QUERY, b"q", query=b"shape", outcome="not_executed")
        one(SEND, b"s", outcome="error")
        one(QUERY, b"q", query=b"shape")
        one(OTHER, b"o")
        one(OTHER, b"o")
        ledger.begin_turn()
        one(READ, b"r")
        ledger.begin_turn()
        one(READ, b"r")
        one(READ, b"r", outcome="error")
        ledger.spend(3, 5)
        totals()

    return outer, ledger, executed, act


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="signals are tripped through the C API")
@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12 may not trace instructions when a trace function asks for it")
@pytest.mark.parametrize("tree", [False, True], ids=["run", "nested"])
def test_a_signal_that_raises_before_any_instruction_leaves_the_lock_free_and_no_call_uncharged(tree):
    step, interrupted = 1, 0
    while True:
        outer, ledger, executed, act = scenario(tree)
        if interrupted_at(step, act) is not None:
            break
        interrupted += 1
        where = f"instruction {step}"
        assert not SECTION.inside, where
        assert is_free(SECTION.lock), where
        tally = ledger.sync().tally
        assert tally.external >= len(executed), where
        assert tally.tree >= len(executed), where
        assert tally.sends >= executed.count(SEND), where
        for tool in (READ, OTHER, QUERY, SEND):
            assert tally.by_tool.get(tool.canonical, 0) >= executed.count(tool), where
        assert attempt(ledger, Tool("later", "later", "send"), b"l") is None, where
        assert attempt(outer, OTHER) is None, where
        step += 1
    assert interrupted > 500


def is_free(lock):
    taken = []
    asker = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False) and (lock.release() or True)))
    asker.start()
    asker.join()
    return taken == [True]


# Fork -----------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_can_use_the_run_although_a_thread_of_the_parent_was_inside():
    held, go = threading.Event(), threading.Event()
    ledger = open_ledger(per_tool=3)
    attempt(ledger)

    def hold():
        with SECTION.lock:
            SECTION.inside = True
            held.set()
            go.wait(60)
            SECTION.inside = False

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    gc.collect()  # the end of another test's run would wait for the lock that is held below
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)

    def child():
        said = [attempt(ledger) for _ in range(3)]
        answers.put(([why and why.reason for why in said], ledger.usage().executed, bool(totals())))

    process = context.Process(target=child)
    process.start()
    process.join(60)
    alive = process.is_alive()
    if alive:
        process.kill()
    go.set()
    holder.join()
    assert not alive
    assert answers.get() == ([None, None, "per_tool"], 3, True)
    assert ledger.usage().executed == 1


# Bounded memory -------------------------------------------------------------------------------------------------------


def grown_by(ledger, rounds, one):
    """Return by how many bytes a run grows over `rounds` calls, after it has filled its tables."""
    for n in range(rounds):
        one(n)
    ledger.sync()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(rounds, 2 * rounds):
            one(n)
        ledger.sync()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


HIGH = {"per_tool": 10**9, "delivery": 10**9, "aggregate": 10**9, "query_loop": 10**9, "refused_calls": 10**9}


@pytest.mark.parametrize("signal_", ["unchanged", "any"])
def test_memory_of_a_run_does_not_grow_with_its_calls(signal_):
    ledger = open_ledger(**HIGH, hard_cap=None, adaptive_soft=10**9, adaptive_repeats=10**9, adaptive_signal=signal_)

    def one(n):
        key = n.to_bytes(16, "big")
        assert attempt(ledger, QUERY, key, query=key, digest=key) is None

    # A second batch as large as the first replaces what the tables hold; it adds nothing that lasts.
    assert grown_by(ledger, 50_000, one) < 2_500_000
    tally = ledger.tally
    assert len(tally._new) + len(tally._old) <= 2 * 8192
    stuck = next(seat.state for seat in ledger._seats if hasattr(seat.state, "top"))
    assert len(stuck.counts) <= 4096
    shapes = next(seat.state for seat in ledger._seats if seat.wall.name == "query_loop")
    assert len(shapes.counts) <= 2048


def test_memory_of_a_run_does_not_grow_with_its_refusals():
    ledger = open_ledger(**{**HIGH, "aggregate": 1})
    attempt(ledger, READ, b"first")

    def one(n):
        assert attempt(ledger, READ, n.to_bytes(16, "big")).reason == "aggregate"

    assert grown_by(ledger, 50_000, one) < 2_500_000
    flags = next(seat.state.flags for seat in ledger._seats if hasattr(seat.state, "flags"))
    assert len(flags) <= 2 * 4096
    assert ledger.usage().refused == 100_000


# Stops ----------------------------------------------------------------------------------------------------------------


def test_a_stop_is_sticky_and_the_first_one_stays():
    ledger = open_ledger(hard_cap=1, per_tool=1)
    attempt(ledger)
    first = attempt(ledger, OTHER)
    ledger.stop(Refused("stop", None, None, "never"), "too late")
    assert [attempt(ledger, tool) for tool in (READ, SEND, OTHER)] == [first] * 3
    assert ledger.stopped.message is None
    assert ledger.stopped.calls == {"read": 1}


def test_a_stop_reaches_a_tool_that_was_certain_to_pass():
    ledger = open_ledger(per_tool=1000)
    attempt(ledger)
    assert ledger.tree.mileage < ledger.plan(READ).until
    ledger.stop(Refused("stop", None, None, "never"), "enough")
    assert attempt(ledger).reason == "stop"


# Observe --------------------------------------------------------------------------------------------------------------


def test_an_observed_wall_refuses_nothing_stops_nothing_and_is_counted():
    ledger = open_ledger(hard_cap=2, refused_calls=1, aggregate=1, observe=frozenset(NAMES))
    for n in range(6):
        call, why = admit(ledger, READ, bytes([n]))
        assert why is None
        assert (call.would and call.would.reason) == (None, "aggregate", *["hard_stop"] * 4)[n]
        ledger.end(call)
    assert ledger.sync().would == 5
    assert ledger.ended_by() is None
    assert counts(ledger)[0] == 6
    flags = next(seat.state.flags for seat in ledger._seats if hasattr(seat.state, "flags"))
    assert len(flags) == 0


def test_of_an_observed_and_an_enforced_wall_the_enforced_one_refuses_and_alone_is_told():
    ledger = open_ledger(aggregate=1, per_tool=1, observe=frozenset({"per_tool"}))
    attempt(ledger, identity=b"a")
    assert attempt(ledger, identity=b"b").reason == "aggregate"
    call, why = admit(ledger, identity=b"b")  # refused alone by what enforces, so its repeat runs
    assert why is None
    assert call.would.reason == "per_tool"


def test_an_observed_limit_gives_no_note_since_nothing_will_be_refused():
    assert open_ledger(aggregate=10).note().reading is not None
    assert open_ledger(aggregate=10, observe=frozenset({"aggregate"})).note().reading is None


# Through the public face ----------------------------------------------------------------------------------------------


def test_a_run_that_was_never_entered_counts_what_is_bound_to_it():
    @metered(kind="read")
    def tool():
        return 1

    run = toolguard.run(per_tool=2)
    bound = run.bind(tool)
    assert [bound(), bound()] == [1, 1]
    assert_refused(bound(), "per_tool")
    assert isinstance(run, RunState)
    assert run.usage().by_tool == {"tool": 2}


def test_counts_of_two_runs_never_mix():
    @metered(kind="read")
    def tool():
        return 1

    for _ in range(3):
        with toolguard.run(per_tool=1):
            assert_executed(tool())
            assert_refused(tool(), "per_tool")
