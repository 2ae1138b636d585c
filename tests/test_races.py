"""Of N concurrent calls against C left exactly min(N, C) execute, on every repetition."""

import asyncio
import contextvars
import sys
import threading
from collections import Counter

import pytest

import toolguard
from toolguard import Refusal, metered
from toolguard._clock import tick
from toolguard._ledger import Ledger
from toolguard._values import Call, Tool
from toolguard.walls import KEYS, TABLE

OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}
THREADS = 8
OPEN = {"per_tool": 0, "aggregate": 0, "delivery": 0, "query_loop": 0, "hard_cap": 0, "refused_calls": 0}


@pytest.fixture(autouse=True)
def _many_switches():
    """Let the interpreter switch threads as often as it can."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(former)


class Crew:
    """Threads that do one thing together, again and again."""

    def __init__(self, size=THREADS):
        self.size = size
        self.begin, self.done = threading.Barrier(size + 1), threading.Barrier(size + 1)
        self.job, self.said = None, [None] * size
        self.errors = []
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(size)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.job = None
        self.begin.wait(60)
        for thread in self.threads:
            thread.join(60)
        assert not self.errors

    def work(self, n):
        while True:
            self.begin.wait(60)
            if self.job is None:
                return
            try:
                self.said[n] = self.job(n)
            except BaseException as error:  # noqa: BLE001  it is shown by the test's own thread
                self.errors.append(error)
            self.done.wait(60)

    def all_do(self, job):
        """Let every thread do `job(its number)` at once and return what each got."""
        self.job = job
        self.begin.wait(60)
        self.done.wait(60)
        assert not self.errors, self.errors
        return list(self.said)


READ = Tool("read", "read", "read")
SEND = Tool("send", "send", "send")
QUERY = Tool("query", "query", "read", query=True)


def attempt(ledger, tool, identity=b"", query=None, outcome="ok"):
    plan = ledger.plan(tool)
    call = Call(plan.tool, plan, identity, query, ledger.turn, tick())
    why = ledger.admit(call, plan)
    call.outcome = outcome
    ledger.end(call, why)
    return why


# Each wall, thousands of times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "limit", "reason"),
    [
        (READ, "per_tool", "per_tool"),
        (SEND, "delivery", "delivery"),
        (QUERY, "query_loop", "query_loop"),
        (READ, "aggregate", "aggregate"),
        (READ, "hard_cap", "hard_stop"),
    ],
    ids=["per_tool", "delivery", "query_loop", "aggregate", "hard_cap"],
)
def test_of_8_threads_against_a_few_calls_left_exactly_those_execute_on_each_of_2000_repetitions(tool, limit, reason):
    with Crew() as crew:
        for repetition in range(2000):
            left = 1 + repetition % (THREADS + 1)
            ledger = Ledger(TABLE, {**OFF, limit: left})
            said = crew.all_do(lambda n, ledger=ledger: attempt(ledger, tool, bytes([n]), b"shape"))
            executed = sum(why is None for why in said)
            assert executed == min(THREADS, left)
            assert {why.reason for why in said if why} <= {reason}
            assert ledger.usage().executed == executed
            assert ledger.usage().refused == THREADS - executed


def test_a_cap_over_a_tree_of_runs_is_exact_on_each_of_2000_repetitions():
    with Crew() as crew:
        for repetition in range(2000):
            left = repetition % (THREADS + 2)
            outer = Ledger(TABLE, {**OFF, "hard_cap": left + 1})
            attempt(outer, READ)
            inner = [Ledger(TABLE, {**OFF, "hard_cap": None, "adaptive_soft": 100}, parent=outer) for _ in range(4)]
            deep = [Ledger(TABLE, OFF, parent=run) for run in inner[:2]]
            runs = [outer, *inner, *deep, outer]
            said = crew.all_do(lambda n, runs=runs: attempt(runs[n], READ, bytes([n])))
            executed = sum(why is None for why in said)
            assert executed == min(THREADS, left)
            assert outer.sync().tally.tree == executed + 1
            assert sum(run.tally.external for run in [outer, *inner, *deep]) == executed + 1
            assert (outer.stopped is not None) == (left < THREADS)


def test_twins_in_threads_are_refused_together_or_confirm_a_refusal_that_had_returned():
    with Crew() as crew:
        for _ in range(1000):
            ledger = Ledger(TABLE, {**OFF, "aggregate": 1})
            attempt(ledger, READ, b"first")
            ledger.begin_turn()
            # All in one marked turn: no thread may confirm what another was refused.
            said = crew.all_do(lambda _n, ledger=ledger: attempt(ledger, READ, b"twin"))
            assert [why.reason for why in said] == ["aggregate"] * THREADS
            ledger.begin_turn()
            assert attempt(ledger, READ, b"twin") is None


def test_calls_that_give_their_charge_back_never_let_one_too_many_through():
    with Crew() as crew:
        for repetition in range(1000):
            ledger = Ledger(TABLE, {**OFF, "per_tool": 3, "hard_cap": 100, "query_loop": 3})
            running, most, lock = [0], [0], threading.Lock()

            def job(n, ledger=ledger, running=running, most=most, lock=lock):
                plan = ledger.plan(QUERY)
                call = Call(plan.tool, plan, b"", b"shape", 0, tick())
                why = ledger.admit(call, plan)
                if why is None:
                    with lock:
                        running[0] += 1
                        most[0] = max(most[0], running[0])
                    with lock:
                        running[0] -= 1
                    call.outcome = "not_executed" if n % 2 else "ok"
                ledger.end(call, why)
                return why is None and call.outcome == "ok"

            kept = sum(crew.all_do(job))
            assert most[0] <= 3, repetition
            tally = ledger.sync().tally
            assert tally.external == tally.tree == tally.by_tool.get("query", 0) == kept
            shapes = next(seat.state for seat in ledger._seats if seat.wall.name == "query_loop")
            assert (shapes.counts.get(b"shape") or 0) == kept


def test_turns_stops_and_readings_in_between_disturb_no_count():
    with Crew() as crew:
        for _ in range(300):
            ledger = Ledger(TABLE, {**OFF, "per_tool": 30, "refused_turns": 3})

            def job(n, ledger=ledger):
                if n == 0:
                    for _ in range(10):
                        ledger.begin_turn()
                elif n == 1:
                    return max(ledger.usage().executed for _ in range(10))
                return sum(attempt(ledger, READ) is None for _ in range(10)) if n > 1 else 0

            said = crew.all_do(job)
            executed = sum(said[2:])
            assert executed <= 30
            assert said[1] <= 30
            assert ledger.stopped or executed == 30
            usage = ledger.usage()
            assert usage.executed == executed
            assert usage.executed + usage.refused == 60
            assert ledger.turns == 10


def test_a_stop_from_another_thread_holds_from_then_on():
    @metered(kind="read")
    def look(n):
        return n

    with Crew() as crew:
        for _ in range(200):
            with toolguard.run(**OPEN) as run:
                bound = run.bind(look)
                stopped = threading.Event()

                def job(n, run=run, bound=bound, stopped=stopped):
                    if n == 0:
                        run.stop("enough")
                        stopped.set()
                        return []
                    early = [bound(i) for i in range(5)]
                    stopped.wait(60)
                    return early, bound(9)

                for _, late in crew.all_do(job)[1:]:
                    assert isinstance(late, Refusal)
                    assert late.reason == "stop"


# Through the decorator ------------------------------------------------------------------------------------------------


class Spy:
    """Counts the bodies that ran, exactly."""

    def __init__(self):
        self.lock, self.ran = threading.Lock(), 0

    def __call__(self):
        with self.lock:
            self.ran += 1


def test_32_threads_with_a_copy_of_the_runs_context_execute_10_of_10_and_are_refused_22_times():
    spy = Spy()

    @metered(kind="read")
    def search(n):
        spy()
        return n

    with Crew(32) as crew:
        for repetition in range(50):
            spy.ran = 0
            with toolguard.run(**{**OPEN, "per_tool": 10}) as run:
                contexts = [contextvars.copy_context() for _ in range(32)]
                said = crew.all_do(lambda n, contexts=contexts: contexts[n].run(search, n))
                refused = [answer for answer in said if isinstance(answer, Refusal)]
                assert (spy.ran, len(refused)) == (10, 22), repetition
                assert {answer.used for answer in refused} == {10}
                assert run.usage().to_dict() == {
                    "executed": 10,
                    "refused": 22,
                    "by_tool": {"search": 10},
                    "by_reason": {"per_tool": 22},
                    "chars": sum(len(str(answer)) for answer in said if not isinstance(answer, Refusal)),
                    "tokens": 0,
                    "cost_usd": 0.0,
                }


def limits_of(wall):
    return {**OPEN, **{"per_tool": {"per_tool": 6}, "delivery": {"delivery": 6}, "hard_stop": {"hard_cap": 6}}.get(wall, {}),
            **({"aggregate": 6} if wall == "aggregate" else {})}  # fmt: skip


@pytest.mark.parametrize("wall", ["per_tool", "delivery", "aggregate", "hard_stop"])
async def test_of_8_gathered_calls_against_6_exactly_6_bodies_run(wall):
    ran = []

    @metered(kind="send" if wall == "delivery" else "read")
    async def act(n):
        ran.append(n)
        await asyncio.sleep(0)
        return n

    for _ in range(100):
        ran.clear()
        with toolguard.run(**limits_of(wall)) as run:
            said = await asyncio.gather(*(act(n) for n in range(8)))
            assert ran == list(range(6))
            assert said[:6] == list(range(6))
            assert [answer.reason for answer in said[6:]] == [wall] * 2
            assert run.usage().executed == 6


@pytest.mark.parametrize("wall", ["per_tool", "delivery", "aggregate", "hard_stop"])
async def test_tasks_and_threads_mixed_share_one_exact_limit(wall):
    spy, kind = Spy(), "send" if wall == "delivery" else "read"

    @metered(kind=kind, name="act")
    async def in_task(n):
        spy()
        await asyncio.sleep(0)
        return n

    @metered(kind=kind, name="act")
    def in_thread(n):
        spy()
        return n

    for _ in range(30):
        spy.ran = 0
        with toolguard.run(**limits_of(wall)) as run:
            said = await asyncio.gather(
                *(in_task(n) if n % 2 else asyncio.to_thread(in_thread, n) for n in range(12)),
            )
            refused = [answer for answer in said if isinstance(answer, Refusal)]
            assert (spy.ran, len(refused)) == (6, 6)
            assert {answer.reason for answer in refused} == {wall}
            assert run.usage().executed == 6


async def test_three_tools_that_overlap_are_each_charged_on_every_one_of_50_repetitions():
    def make(name):
        @metered(kind="read", name=name)
        async def tool():
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        return tool

    tools = [make(name) for name in ("one", "two", "three")]
    for _ in range(50):
        with toolguard.run() as run:
            await asyncio.gather(*(tool() for tool in tools))
            assert run.usage().by_tool == {"one": 1, "two": 1, "three": 1}


def test_a_limit_of_one_tool_blocks_no_other_in_the_same_batch():
    @metered(kind="read")
    def search(n):
        return n

    @metered(kind="read")
    def calculate(n):
        return n

    with Crew(4) as crew:
        for _ in range(100):
            with toolguard.run(**{**OPEN, "per_tool": 2}) as run:
                tools = [run.bind(search), run.bind(search), run.bind(search), run.bind(calculate)]
                said = crew.all_do(lambda n, tools=tools: tools[n](n))
                assert sum(isinstance(answer, Refusal) for answer in said[:3]) == 1
                assert said[3] == 3


def test_a_tool_that_never_returns_blocks_no_other_call_of_its_run():
    inside, release = threading.Event(), threading.Event()

    @metered(kind="read")
    def hangs():
        inside.set()
        release.wait(60)

    @metered(kind="read")
    def look(n):
        return n

    with toolguard.run() as run:
        hanging = threading.Thread(target=run.bind(hangs))
        hanging.start()
        assert inside.wait(60)
        assert [look(n) for n in range(5)] == list(range(5))
        assert run.usage().executed == 6
        release.set()
        hanging.join(60)


async def test_a_cancelled_batch_charges_what_started_and_nothing_else():
    started, go = [], asyncio.Event()

    @metered(kind="read")
    async def waits(n):
        started.append(n)
        await go.wait()

    with toolguard.run(**{**OPEN, "per_tool": 10}) as run:
        tasks = [asyncio.create_task(waits(n)) for n in range(4)]
        await asyncio.sleep(0)
        never = [asyncio.create_task(waits(n)) for n in range(4, 8)]
        for task in tasks + never:
            task.cancel()
            task.cancel()
        done = await asyncio.gather(*tasks, *never, return_exceptions=True)
        assert Counter(type(error) for error in done) == {asyncio.CancelledError: 8}
        assert started == [0, 1, 2, 3]
        assert run.usage().executed == 4


async def test_a_call_cancelled_in_its_body_is_charged_once_and_nothing_stays_held():
    go = asyncio.Event()

    @metered(kind="read")
    async def waits(n):
        await go.wait()
        return n

    with toolguard.run(**{**OPEN, "per_tool": 2}) as run:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waits(0), 0.001)
        go.set()
        assert await waits(1) == 1
        assert (await waits(2)).reason == "per_tool"
        assert run.usage().executed == 2
