"""Shapes of honest work and of loops against whole profiles: what one wall lets pass, no other may stop, and the reverse."""

import asyncio
import itertools

import pytest

import toolguard
from tests.limits import QUIET
from toolguard import Refusal, metered
from toolguard.testing import assert_executed, assert_refused


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_a_status_that_changes_each_time_is_never_refused(profile):
    percent = itertools.count()

    @metered(kind="read")
    def status(job):
        return f"{next(percent)} % done"

    with toolguard.run(profile=profile) as run:
        for n in range(20):
            assert status("nightly") == f"{n} % done"
        assert run.refusals == ()


@pytest.mark.parametrize(
    ("profile", "executed", "reason"),
    [("assistant", 40, "per_tool"), ("coding", 1000, "hard_stop"), ("operations", 50, "call_budget")],
)
def test_only_a_budget_ends_the_polling_of_what_never_changes(profile, executed, reason):
    @metered(kind="read", polls=True)
    def status(job):
        return "pending"

    with toolguard.run(profile=profile):
        for _ in range(executed):
            assert status("nightly") == "pending"
        assert_refused(status("nightly"), reason)


@pytest.mark.parametrize("profile", ["assistant", "coding"])
def test_tests_that_go_on_failing_may_be_run_again_after_each_edit(profile):
    @metered(kind="read")
    def run_tests():
        raise AssertionError("2 failed, 31 passed")

    @metered(kind="send")
    def edit(line):
        return "saved"

    with toolguard.run(profile=profile) as run:
        for line in range(5):
            with pytest.raises(AssertionError):
                run_tests()
            assert edit(line) == "saved"
        with pytest.raises(AssertionError):
            run_tests()
        with pytest.raises(AssertionError):
            run_tests()
        assert run.refusals == ()
        assert_refused(run_tests(), "repeat_failure")  # twice in a row without an edit is enough


def test_a_coding_agent_may_search_move_and_edit_file_after_file():
    @metered(kind="read")
    def grep(path):
        return []

    @metered(kind="send", limit=0)
    def move(path):
        return None

    @metered(kind="send", limit=0)
    def edit(path):
        return None

    with toolguard.run(profile="coding") as run:
        for n in range(40):
            for tool in (grep, move, edit):
                assert_executed(tool(f"{n}.py"))
        assert run.usage().executed == 120
        assert run.refusals == ()


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
async def test_a_batch_that_is_asked_again_and_again_is_seen_as_single_calls_would_be(profile):
    @metered(kind="read")
    async def weather(city):
        await asyncio.sleep(0)
        return "rain"

    @metered(kind="read")
    async def news(topic):
        await asyncio.sleep(0)
        return []

    with toolguard.run(profile=profile) as run:
        for _ in range(4):  # the first is new, and the three after it bring the six that were seen before
            run.turn()
            assert await asyncio.gather(weather("Ulm"), news("rain")) == ["rain", []]
        run.turn()
        for answer in await asyncio.gather(weather("Ulm"), news("rain")):
            assert_refused(answer, "stale_streak")
        assert run.usage().by_tool == {"weather": 4, "news": 4}


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_guesses_at_one_closed_door_are_refused_though_each_is_another(profile):
    @metered(kind="read")
    def connect(flag):
        raise PermissionError("permission denied (publickey)")

    with toolguard.run(profile=profile) as run:
        for flag in range(5):
            with pytest.raises(PermissionError):
                connect(flag)
        assert isinstance(connect(5), Refusal)
        assert run.usage().by_reason == {"same_complaint": 1}


@pytest.mark.parametrize(("signal", "before"), [("unchanged", 5), ("any", 0)])
def test_what_was_repeated_in_an_earlier_run_of_the_session_makes_no_later_run_stuck(signal, before):
    @metered(kind="read")
    def page(n):
        return n

    @metered(kind="read")
    def inbox():
        return "no mail"

    def work(*parts):
        for tool, times in parts:
            for n in range(times):
                assert_executed(page(n) if tool is page else inbox())

    limits = {**QUIET, "per_tool": 0, "aggregate": 0, "adaptive_signal": signal}
    with toolguard.run(session="s", **limits):
        work((page, 90), (inbox, 10))
        assert assert_refused(inbox(), "hard_stop").rule == "stuck"
    with toolguard.run(session="s", **limits):
        # To this run the pages are new, so they clear what was repeated before them.
        work((inbox, before), (page, 95 - before), (inbox, 5))
        assert_executed(page(1000))
