"""The ledger with all walls on and many threads: what holds of every history holds whatever the threads do."""

import itertools
import random
import sys
import threading
from collections import Counter
from typing import NamedTuple

import pytest

from tests.test_ledger_properties import DIGESTS, LOCAL, OFF, OUTCOMES, SIGNATURES, SPEAKING, TOOLS, facts
from tests.test_races import THREADS, Crew
from toolguard._clock import tick
from toolguard._identity import SIZE
from toolguard._ledger import Ledger
from toolguard._tree import totals
from toolguard._values import Call
from toolguard.walls import TABLE

JUDGE = SPEAKING - {"hard_stop", "refused_turns", "refused_calls", "deadline_s", "tokens", "cost_usd"}
X, FAILS = DIGESTS[1], SIGNATURES[0]


@pytest.fixture(autouse=True)
def _many_switches():
    """Let the interpreter switch threads as often as it can."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(former)


def make(ledger, name, argument=b"1", shape=b"s"):
    plan = ledger.plan(TOOLS[name])
    identity, query, specialist = facts(name, argument, shape)
    call = Call(plan.tool, plan, identity, query, ledger.turn, tick())
    call.specialist = specialist
    return call


def end(ledger, call, why, outcome, digest=X, signature=FAILS):
    call.outcome, call.inner = ("ok", True) if outcome == "inner" else (outcome, False)
    call.digest = digest if outcome in {"ok", "error"} and call.plan.digest else None
    call.signature = signature if outcome == "error" and call.plan.signature else None
    ledger.end(call, why)


# All walls ------------------------------------------------------------------------------------------------------------

LIMITS = {
    **OFF,
    "hard_cap": 60,
    "refused_calls": 40,
    "tokens": 10**6,
    "cost_usd": 10**6,
    "deadline_s": 10**6,
    "repeat_failure": 2,
    "progress_clears": True,
    "same_complaint": 3,
    "same_outcome": 1,
    "stale_streak": 2,
    "duplicate_send": 1,
    "query_loop": 5,
    "delegation": 4,
    "per_tool": 9,
    "delivery": 7,
    "call_budget": 14,
    "aggregate": 9,
}


class Did(NamedTuple):
    """What became of one call: its outcome, `flying`, or None and the reason of its refusal."""

    run: Ledger
    call: Call
    outcome: str | None
    reason: str | None


def some_calls(seed, runs, tools):
    """Make calls of these tools and leave the last one in flight."""
    draw, did = random.Random(seed), []
    for number in range(12):
        ledger, name = draw.choice(runs), draw.choice(tools)
        call = make(ledger, name, draw.choice([b"1", b"2", b"?"]), draw.choice([b"s", b"t"]))
        if draw.random() < 0.3:
            ledger.ask(call, call.plan)
        why = ledger.admit(call, call.plan)
        outcome = None if why else "flying" if number == 11 else draw.choice(OUTCOMES)
        if outcome != "flying":
            end(ledger, call, why, outcome or "ok", draw.choice(DIGESTS), draw.choice(SIGNATURES))
        if draw.random() < 0.1:
            ledger.spend(1, 1)
        did.append(Did(ledger, call, outcome, why and why.reason))
    return did


def test_whatever_8_threads_do_charged_is_what_ran_and_is_in_flight_and_no_limit_is_passed():
    draw, reasons = random.Random(0), Counter()
    with Crew() as crew:
        for repetition in range(200):
            before = totals()
            # All walls; or without the widest, which leave the others little to say.
            limits = LIMITS | dict.fromkeys(draw.choice([(), ("aggregate",), ("aggregate", "call_budget", "per_tool")]), 0)
            outer = Ledger(TABLE, limits, local=LOCAL)
            inner = Ledger(TABLE, limits | {"hard_cap": None}, parent=outer, local=LOCAL)
            other = Ledger(TABLE, limits, session=outer.session, local=LOCAL)
            runs = [outer, inner, other, Ledger(TABLE, limits, local=LOCAL)]
            tools = draw.sample(sorted(TOOLS), draw.choice([2, 5]))
            said = crew.all_do(lambda n, at=repetition * THREADS, runs=runs, tools=tools: some_calls(at + n, runs, tools))
            did = list(itertools.chain.from_iterable(said))
            for ledger in runs:
                compare([each for each in did if each.run is ledger], ledger, limits)
            assert outer.tally.tree == outer.tally.external + inner.tally.external <= 60
            for each in did:
                if each.outcome == "flying":
                    end(each.run, each.call, None, "ok")
            assert finished(before, totals()) == Counter(
                "refused" if each.reason else "ok" if each.outcome in {"flying", "inner"} else each.outcome for each in did
            )
            reasons.update(each.reason for each in did if each.reason)
    # Every wall that judges calls was heard of, so they were all on.
    assert set(reasons) >= JUDGE, reasons


def compare(did, ledger, limits):
    """Compare what the threads saw of one run with what it counted."""
    charged = [each for each in did if not each.reason and each.outcome != "not_executed"]
    external = [each.call for each in charged if each.call.tool.name not in LOCAL]
    reads = [call for call in external if call.tool.kind == "read"]
    sends = [call for call in external if call.tool.kind == "send"]
    tally, usage = ledger.sync().tally, ledger.usage()
    by_tool = Counter(call.tool.canonical for call in external)
    assert (tally.external, tally.reads) == (len(external), len(reads))
    assert {name: n for name, n in tally.by_tool.items() if n} == by_tool
    assert tally.sends == sum(call.tool.limit is None for call in sends)
    assert usage.refused == sum(each.reason is not None or each.outcome == "not_executed" for each in did)
    # No limit is passed, whoever raced for the last call.
    assert tally.reads <= (limits["call_budget"] or 999)
    assert tally.sends <= limits["delivery"]
    for call in external:
        common = limits["per_tool" if call.tool.kind == "read" else "delivery"]
        assert by_tool[call.tool.canonical] <= ((common if call.tool.limit is None else call.tool.limit) or 999)
    assert most(call.query for call in external if call.query) <= limits["query_loop"]
    assert most((call.tool, call.specialist) for call in external if call.tool.delegate) <= limits["delegation"]
    arrived = [each.call for each in charged if each.outcome in {"ok", "flying"} and each.call.tool.kind == "send"]
    arrived = [call.identity for call in arrived if not call.tool.repeatable and len(call.identity) == SIZE]
    assert most(arrived) <= limits["duplicate_send"]


def most(things):
    return max(Counter(things).values(), default=0)


def finished(before, after):
    """Return by outcome what the process has finished in between."""
    counts = Counter()
    for (_, _, outcome, _), n in after.items():
        counts[outcome] += n
    for (_, _, outcome, _), n in before.items():
        counts[outcome] -= n
    return +counts


# One at a time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wall", ["repeat_failure", "same_complaint"])
def test_of_8_threads_that_probe_again_and_again_one_at_a_time_is_in_flight(wall):
    with Crew() as crew:
        for _ in range(100):
            ledger = Ledger(TABLE, {**OFF, wall: 1})
            runs = [ledger, Ledger(TABLE, {**OFF, wall: 1}, session=ledger.session)]  # what holds, holds for the session
            for outcome in ("error", None):
                call = make(ledger, "read")
                why = ledger.admit(call, call.plan)
                assert (why is None) == (outcome is not None)
                end(ledger, call, why, outcome)
            lock, flying, most, probes = threading.Lock(), [0], [0], [0]

            def job(n, runs=runs, lock=lock, flying=flying, most=most, probes=probes):
                for number in range(6):
                    call = make(runs[n % 2], "read")
                    why = runs[n % 2].admit(call, call.plan)
                    if why is None:
                        with lock:
                            flying[0] += 1
                            probes[0] += 1
                            most[0] = max(most[0], flying[0])
                        with lock:
                            flying[0] -= 1
                    # The permit comes back whatever becomes of the call, so that the next one may probe.
                    end(runs[n % 2], call, why, ("cancelled", "not_executed", "inner")[number % 3])

            crew.all_do(job)
            assert most == [1]
            assert probes[0] > 1
            held = make(ledger, "read")
            assert ledger.admit(held, held.plan) is None
            said = crew.all_do(lambda _, ledger=ledger: admit_one(ledger))
            assert {why.reason for why in said} == {wall}
            end(ledger, held, None, "ok")
            assert [why for why in crew.all_do(lambda _, ledger=ledger: admit_one(ledger)) if why] == []


def admit_one(ledger, name="read"):
    call = make(ledger, name)
    return ledger.admit(call, call.plan)


def test_of_8_identical_sends_exactly_one_is_in_flight_and_once_one_arrived_none_is():
    with Crew() as crew:
        for _ in range(200):
            ledger, sent = Ledger(TABLE, {**OFF, "duplicate_send": 1, "delivery": 100}), [0]
            for outcome in ("error", "cancelled", "not_executed", "inner", "ok"):
                calls = [make(ledger, "send") for _ in range(THREADS)]
                said = crew.all_do(lambda n, calls=calls, ledger=ledger: ledger.admit(calls[n], calls[n].plan))
                assert [why.rule for why in said if why] == ["flying"] * (THREADS - 1)
                for call, why in zip(calls, said, strict=True):
                    end(ledger, call, why, outcome)
                sent[0] += outcome != "not_executed"
            said = crew.all_do(lambda _, ledger=ledger: admit_one(ledger, "send"))
            assert [why.rule for why in said] == ["sent"] * THREADS
            assert ledger.usage().executed == sent[0]


def test_8_failures_at_once_are_one_observation_and_so_are_8_results():
    with Crew() as crew:
        for _ in range(100):
            limits = {**OFF, "repeat_failure": 2, "same_complaint": 2, "same_outcome": 2}
            for outcome, walls in (("error", {"repeat_failure"}), ("ok", {"same_outcome"})):
                ledger = Ledger(TABLE, limits)
                for _ in range(2):
                    calls = [make(ledger, "read") for _ in range(THREADS)]
                    said = crew.all_do(lambda n, calls=calls, ledger=ledger: ledger.admit(calls[n], calls[n].plan))
                    assert said == [None] * THREADS
                    crew.all_do(lambda n, calls=calls, ledger=ledger, how=outcome: end(ledger, calls[n], None, how))
                said = crew.all_do(lambda _, ledger=ledger: admit_one(ledger))
                assert {why.reason for why in said} == walls


def test_what_8_threads_spend_is_added_up_exactly_and_stops_the_run_that_set_the_limit():
    with Crew() as crew:
        for _ in range(30):
            outer = Ledger(TABLE, {**OFF, "tokens": 8 * 100 - 1})
            inner = [Ledger(TABLE, {**OFF, "cost_usd": 1}, parent=outer) for _ in range(THREADS)]

            def job(n, inner=inner):
                for _ in range(100):
                    inner[n].spend(1, 10_000)

            crew.all_do(job)
            assert (outer.tally.tokens, outer.tally.micros) == (800, 8_000_000)
            assert [run.stopped for run in inner] == [None] * THREADS
            assert outer.stopped.why.reason == "tokens"
            assert all(run.ended_by() is outer.stopped for run in inner)
