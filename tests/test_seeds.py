"""What the three documents behind the walls promise, row by row: the adaptive cap, the four walls, the per-run budgets."""

import asyncio
import itertools

import pytest

import toolguard
from toolguard import ConfigError, Refusal, metered
from toolguard.testing import assert_executed, assert_refused, isolated

# Everything but what a test is about.
OFF = {
    "adaptive_soft": 0,
    "refused_turns": 0,
    "refused_calls": 0,
    "repeat_failure": 0,
    "same_complaint": 0,
    "same_outcome": 0,
    "stale_streak": 0,
    "duplicate_send": 0,
    "query_loop": 0,
    "delegation": 0,
    "per_tool": 0,
    "delivery": 0,
    "call_budget": 0,
    "aggregate": 0,
    "output_chars": 0,
    "result_chars": 0,
    "turn_step": 0,
}


def run(**limits):
    return toolguard.run("agent", **{**OFF, **limits})


@metered(kind="read")
def read_record(number):
    """Return one record."""
    return f"record {number}"


@metered(kind="read")
def look(number=0):
    """Return the same whatever is asked."""
    return "nothing new"


@metered(kind="read")
def list_repositories(number):
    """Return one page of repositories."""
    return f"repositories {number}"


@metered(kind="send")
def send(text):
    """Send one message."""
    return "sent"


def refused(answers):
    return [answer for answer in answers if isinstance(answer, Refusal)]


# The adaptive cap: its two decision tables ----------------------------------------------------------------------------


def test_an_explicit_cap_allows_up_to_and_including_n():
    with run(hard_cap=7) as it:
        assert not refused(read_record(n) for n in range(7))
        assert not it.stopped


def test_an_explicit_cap_halts_the_call_past_n_whatever_its_repetition():
    for numbers in (range(8), [1] * 8):
        with run(hard_cap=7) as it:
            answers = [read_record(n) for n in numbers]
            assert [refusal.rule for refusal in refused(answers)] == ["explicit"]
            assert isinstance(answers[7], Refusal)
            assert it.stopped


def test_by_default_up_to_the_soft_cap_anything_is_allowed():
    with run(adaptive_soft=100, adaptive_repeats=6, adaptive_multiplier=10) as it:
        assert not refused(look() for _ in range(100))
        assert not it.stopped


def test_by_default_past_the_soft_cap_a_run_without_repetition_goes_on():
    with run(adaptive_soft=100, adaptive_repeats=6, adaptive_multiplier=10) as it:
        assert not refused(read_record(n) for n in range(1000))
        assert not it.stopped


@pytest.mark.parametrize("signal", ["unchanged", "any"])
def test_by_default_past_the_soft_cap_a_run_that_repeats_is_halted_as_stuck(signal):
    with run(adaptive_soft=100, adaptive_repeats=6, adaptive_multiplier=10, adaptive_signal=signal) as it:
        for n in range(95):
            assert_executed(read_record(n))
        answers = [look() for _ in range(7)]
        first = refused(answers)[0]
        assert first.rule == "stuck"
        assert it.usage().executed in {100, 101}  # `any` counts the attempt itself, which is then the sixth
        assert it.stopped


def test_by_default_past_the_backstop_any_run_is_halted():
    with run(adaptive_soft=100, adaptive_repeats=6, adaptive_multiplier=10) as it:
        answers = [read_record(n) for n in range(1001)]
        assert [refusal.rule for refusal in refused(answers)] == ["backstop"]
        assert it.usage().executed == 1000
        assert it.stopped


def test_a_soft_cap_of_zero_disables_the_adaptive_cap():
    with run(adaptive_soft=0) as it:
        assert not refused(look() for _ in range(1500))
        assert not it.stopped


def test_a_negative_cap_is_an_error_and_never_means_off():
    with pytest.raises(ConfigError, match="adaptive_soft"):
        run(adaptive_soft=-1)


def test_a_streak_of_one_tools_name_is_no_signal():
    with run(adaptive_soft=100, adaptive_repeats=6, adaptive_multiplier=10, adaptive_signal="any") as it:
        assert not refused(read_record(n) for n in range(300))
        assert not it.stopped


# The four walls: what each catches, and what it cannot see ------------------------------------------------------------


def test_the_per_tool_budget_catches_one_tool_hammered_with_any_arguments():
    for arguments in (range(60), itertools.repeat(1, 60)):
        with run(per_tool=40) as it:
            answers = [read_record(n) for n in arguments]
            assert {refusal.reason for refusal in refused(answers)} == {"per_tool"}
            assert it.usage().executed == 40


def test_the_per_tool_budget_cannot_see_many_tools_each_under_its_cap():
    tools = [metered(kind="read", name=f"tool_{n}")(read_record.__wrapped__) for n in range(8)]
    with run(per_tool=40) as it:
        assert not refused(tool(n) for tool in tools for n in range(39))
        assert it.usage().executed == 312


def test_the_aggregate_budget_catches_broad_enumeration_across_tools():
    tools = [metered(kind="read", name=f"tool_{n}")(read_record.__wrapped__) for n in range(8)]
    with run(aggregate=40) as it:
        answers = [tool(n) for n in range(39) for tool in tools]
        assert {refusal.reason for refusal in refused(answers)} == {"aggregate"}
        assert it.usage().executed == 40


def test_the_aggregate_budget_lets_an_identical_repeat_through_and_a_loop_cannot_confirm_itself():
    with run(aggregate=1) as it:
        assert_executed(read_record(0))
        assert_refused(read_record(1), "aggregate")
        assert_executed(read_record(1))
        assert len(refused(read_record(n) for n in range(2, 100))) == 98
        assert not it.stopped  # it only refuses: it cannot end a run


def test_the_delivery_reserve_keeps_what_is_needed_to_deliver():
    with run(aggregate=40, per_tool=40, delivery=5):
        for n in range(80):
            read_record(n)
        assert not refused(send(f"part {n}") for n in range(5))
        assert_refused(send("one more"), "delivery")


def test_the_delivery_reserve_cannot_be_confirmed_by_repeating_nor_dodged_by_rewording():
    with run(delivery=1):
        assert_executed(send("hello"))
        assert_refused(send("hello there"), "delivery")
        assert_refused(send("hello there"), "delivery")
        assert_refused(send("good day"), "delivery")


def test_the_delivery_reserve_cannot_see_loops_that_gather():
    with run(delivery=5):
        assert not refused(read_record(n) for n in range(200))


def test_the_query_loop_wall_catches_one_shape_with_rotating_literals():
    @metered(kind="read", query=("file", "sql"))
    def query(file, sql):
        return f"{file} {sql}"

    with run(query_loop=10):
        answers = [query("flights", f"SELECT * FROM t WHERE ts = '{n}'") for n in range(20)]
        assert [refusal.reason for refusal in refused(answers)] == ["query_loop"] * 10


def test_the_query_loop_wall_cannot_see_loops_that_vary_the_structure():
    @metered(kind="read", query=("file", "sql"))
    def query(file, sql):
        return f"{file} {sql}"

    with run(query_loop=10):
        assert not refused(query("flights", f"SELECT c{n} FROM t WHERE ts = '{n}'") for n in range(20))


def test_the_hard_stop_ends_the_run_with_a_message_to_the_user_and_no_exception():
    with run(hard_cap=3) as it:
        answers = [read_record(n) for n in range(5)]
        assert [refusal.retry for refusal in refused(answers)] == ["never", "never"]
        assert it.stop_reason == "hard_stop"
        assert it.stop_message.startswith("I stopped after 3 tool calls")
        assert "limit of 3" in it.stop_message


def test_a_hard_stop_of_zero_is_disabled():
    with run(hard_cap=0) as it:
        assert not refused(read_record(n) for n in range(1200))
        assert not it.stopped


def test_every_refusal_says_that_the_call_did_not_execute_and_none_is_an_exception():
    with run(per_tool=1):
        read_record(0)
        refusal = assert_refused(read_record(1), "per_tool")
        assert refusal.startswith("read_record did NOT execute")
        assert refusal.executed is False


def test_a_tool_is_metered_unless_its_canonical_name_is_local():
    with isolated({"local": ["Read-Record"]}), run(per_tool=1, call_budget=1):
        assert not refused(read_record(n) for n in range(50))
        assert_executed(list_repositories(0))
        assert_refused(list_repositories(1))


def test_two_spellings_of_one_tool_share_one_budget():
    first = metered(kind="read", name="read-mail")(read_record.__wrapped__)
    second = metered(kind="read", name="functions_Read_Mail")(list_repositories.__wrapped__)
    with isolated({"strip_prefixes": ["functions_"]}), run(per_tool=1):
        assert_executed(first(0))
        assert_refused(second(1), "per_tool")


def test_what_the_harness_calls_for_itself_never_counts():
    with run(per_tool=1):
        with toolguard.uncounted():
            assert not refused(read_record(n) for n in range(20))
        assert_executed(read_record(0))


def test_the_turn_budget_warns_in_steps_of_fifty_and_gates_nothing():
    noted = []
    with run(turn_step=50) as it:
        for turn in range(1, 152):
            it.turn()
            assert_executed(read_record(turn))
            if it.notes():
                noted.append(turn)
    assert noted == [50, 100, 150]


def test_tokens_money_and_time_are_enforced():
    with isolated(clock=(clock := toolguard.testing.FakeClock())):
        with run(tokens=1000) as it:
            it.spend(1001)
            assert_refused(read_record(0), "tokens")
        with run(cost_usd=0.5) as it:
            it.spend(cost_usd=0.500001)
            assert_refused(read_record(0), "cost_usd")
        with run(deadline_s=60) as it:
            assert_executed(read_record(0))
            clock.advance(60)
            assert_refused(read_record(1), "deadline_s")
            assert it.stopped


# Per-run budgets: the criteria of acceptance, and the loop that was left to the future --------------------------------


def test_a_run_past_its_call_budget_ends_with_an_answer():
    def model(messages):  # it searches until it is told to answer
        return None if any("Answer now" in message for message in messages) else f"query {len(messages)}"

    messages = []
    with run(call_budget=50) as it:
        while (query := model(messages)) is not None:
            it.turn()
            messages.append(str(read_record(query)))
        assert_executed(send("the answer"))
        assert it.usage().executed == 51
    assert "could not check" in messages[-1]
    assert "narrower" in messages[-1]


def test_the_model_is_warned_before_the_budget_is_spent_and_no_result_is_touched():
    with run(call_budget=50) as it:
        for n in range(50):
            due = n >= 35
            assert bool(it.notes()) is due
            assert bool(it.notes()) is due  # for every further request
            assert read_record(n) == f"record {n}"


def test_gate_refusals_are_charged_to_no_budget_and_budget_refusals_are_no_failures():
    @metered(kind="read", gate=lambda call: "ask the owner" if call.arguments["number"] < 0 else None)
    def guarded(number):
        return number

    with run(call_budget=3, per_tool=3, aggregate=3, repeat_failure=2, same_complaint=1) as it:
        assert [guarded(-1) for _ in range(10)] == ["guarded did NOT execute: ask the owner"] * 10
        assert it.usage().executed == 0
        assert [guarded(n) for n in range(3)] == [0, 1, 2]
        for _ in range(10):
            assert_refused(guarded(7), "per_tool")
        assert it.usage().by_reason == {"gate": 10, "per_tool": 10}


def test_a_specialist_asked_again_past_the_limit_is_refused_with_words_for_the_coordinator():
    @metered(kind="read", delegate="name")
    def ask(name, task):
        return f"blocked: awaiting approval ({task})"

    with run(delegation=4):
        for strength in ("please", "now", "at once", "the user already approved"):
            assert_executed(ask("dba", strength))
        refusal = assert_refused(ask("dba", "EXECUTE IT"), "delegation")
        assert "asked this specialist 4 times" in refusal
        assert_executed(ask("network", "please"))


def test_the_third_identical_failure_is_refused_a_probe_can_reopen_it_and_a_new_error_restarts_the_count():
    problem = ["no permission 17"]

    @metered(kind="read")
    def act(number):
        if problem:
            raise PermissionError(problem[0])
        return number

    with run(repeat_failure=2, progress_clears=False):
        for _ in range(2):
            with pytest.raises(PermissionError):
                act(1)
        assert_refused(act(1), "repeat_failure")
        problem[0] = "no permission 99"  # the same failure: digits do not count
        with pytest.raises(PermissionError):
            act(1)
        assert "stays refused in this session" in assert_refused(act(1), "repeat_failure")
        with pytest.raises(PermissionError):
            act(2)
        problem[0] = "the disk is full"
        for _ in range(2):
            with pytest.raises(PermissionError):
                act(2)
        assert_refused(act(2), "repeat_failure")
        problem.clear()
        assert act(2) == 2  # the probe
        assert act(2) == 2


def test_the_output_of_a_run_is_bounded_and_a_gates_answer_passes_through_a_spent_budget():
    @metered(kind="read", gate=lambda call: "confirmation required: " + "x" * 400 if call.arguments["number"] < 0 else None)
    def dump(number):
        return "line of text\n" * 1000

    with run(output_chars=30_000) as it:
        answers = [dump(n) for n in range(10)]
        assert sum(len(answer) for answer in answers if "DID execute" not in answer) <= 30_000
        assert answers[0] == "line of text\n" * 1000
        assert "cut" in answers[2]
        assert "DID execute" in answers[9]
        assert dump(-1) == "dump did NOT execute: confirmation required: " + "x" * 400
        assert it.usage().chars <= 30_000


@pytest.mark.parametrize("name", [*OFF, "deadline_s", "tokens", "cost_usd", "hard_cap", "note_at", "sessions"])
def test_every_budget_can_be_disabled_with_zero(name):
    with toolguard.run("agent", **{**OFF, "hard_cap": 0, name: 0}) as it:
        assert not refused(look() for _ in range(120))
        it.spend(10**9, 10**6)
        assert not it.stopped


@pytest.mark.parametrize("value", [-1, True, float("nan"), "5", [5]])
@pytest.mark.parametrize("name", [*OFF, "deadline_s", "tokens", "cost_usd", "hard_cap", "note_at", "sessions"])
def test_a_malformed_limit_fails_before_anything_runs(name, value):
    with pytest.raises(ConfigError, match=name):
        toolguard.run("agent", **{name: value})


def test_the_same_complaint_with_new_arguments_each_time_is_caught_and_a_success_clears_it():
    @metered(kind="read")
    def flights(day):
        if "T" not in day:
            msg = f"the date could not be read, since the service wants an ISO timestamp: {day}"
            raise ValueError(msg)
        return day

    spellings = ["2026-04-09", "20260409", "09.04.2026", "2026/04/09", "4-9-2026", "9-4-2026"]
    with run(same_complaint=5, repeat_failure=2):
        for day in spellings[:5]:
            with pytest.raises(ValueError, match="could not be read"):
                flights(day)
        assert_refused(flights(spellings[5]), "same_complaint")
        assert flights("2026-04-09T00:00:00Z") == "2026-04-09T00:00:00Z"
        with pytest.raises(ValueError, match="could not be read"):
            flights(spellings[5])


def test_each_agent_of_a_tree_has_an_allowance_of_its_own():
    @metered(kind="read", delegate=True)
    async def specialist(task):
        with run(call_budget=5):
            return len(refused([read_record(f"{task} {n}") for n in range(8)]))

    async def coordinate():
        with run(call_budget=5) as it:
            return await asyncio.gather(*[specialist(f"task {n}") for n in range(4)]), it.usage().executed

    assert asyncio.run(coordinate()) == ([3, 3, 3, 3], 4)
