"""One run: its limits, notes, turns, stop and totals, and what runs do to each other."""

import asyncio
import gc
import json
import threading
import weakref

import pytest

import toolguard
from toolguard import ConfigError, NotExecuted, current_run, metered
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated
from toolguard.walls import KEYS


@metered(kind="read")
def search(query: object = None) -> object:
    """Search."""
    return query


@metered(kind="read")
def look(query: object = None) -> object:
    """Look."""
    return query


@metered(kind="send")
def send(text: object = None) -> object:
    """Send."""
    return text


@metered(kind="read")
def scratchpad(text: object = None) -> object:
    """Keep a thought."""
    return text


@metered(kind="read")
async def fetch(query: object = None) -> object:
    """Fetch."""
    await asyncio.sleep(0)
    return query


FREE = {"per_tool": 0, "aggregate": 0, "same_outcome": 0, "stale_streak": 0}


def executed(results):
    return [not isinstance(result, toolguard.Refusal) for result in results]


def stopped_by_hard_cap(**options):
    run = toolguard.run(hard_cap=2, **options)
    with run:
        search(1)
        look(2)
        assert_refused(search(3), "hard_stop")
    return run


# What a run can be made of --------------------------------------------------------------------------------------------


def test_every_wrong_limit_is_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        toolguard.run(per_tol=1, hard_cap=-1, aggregate=True, delivery=float("nan"), query_loop="5", note_at=7, turn_step=1.5)
    problems = caught.value.problems
    assert len(problems) == 7
    assert str(caught.value) == "\n".join(problems)
    for name, words in {
        "per_tol": "did you mean per_tool?",
        "hard_cap": "-1",
        "aggregate": "true",
        "delivery": "nan",
        "query_loop": "'5'",
        "note_at": "from 0 (off) to 1",
        "turn_step": "1.5",
    }.items():
        (problem,) = (line for line in problems if f"run({name}=" in line)
        assert words in problem


@pytest.mark.parametrize("value", [-1, True, False, float("nan"), float("inf"), "5", 2.0, [], 1 << 63])
@pytest.mark.parametrize("name", ["hard_cap", "per_tool", "aggregate", "turn_step", "adaptive_soft"])
def test_a_limit_that_is_no_whole_number_from_zero_is_an_error_before_the_run_starts(name, value):
    with pytest.raises(ConfigError, match=name):
        toolguard.run(**{name: value})
    assert current_run() is None


@pytest.mark.parametrize("option", [{"mode": "watch"}, {"profile": "asistant"}, {"adaptive_signal": "changed"}])
def test_a_word_that_is_no_choice_is_an_error_that_shows_the_choices(option):
    with pytest.raises(ConfigError, match="should be '"):
        toolguard.run(**option)


def test_an_option_that_does_not_exist_is_an_error_that_knows_the_options_too():
    with pytest.raises(ConfigError, match=r"did you mean session\?"):
        toolguard.run(sesion="s")


def test_none_as_a_limit_means_not_given():
    toolguard.configure({"limits": {"hard_cap": 1}})
    with toolguard.run(hard_cap=None, per_tool=None):
        assert executed([search(1), search(2)]) == [True, False]


def test_a_run_has_an_id_of_its_own_or_the_given_one():
    assert toolguard.run().id != toolguard.run().id
    assert toolguard.run(run_id="r-1").id == "r-1"
    assert "r-1" in repr(toolguard.run("assistant", run_id="r-1"))


def test_a_run_without_an_agent_or_session_has_none():
    with toolguard.run() as run:
        assert (run.agent, run.session, run.tenant, run.parent, run.mode) == (None, None, None, None, "enforce")
        assert (run.stopped, run.stop_reason, run.stop_message, run.refusals) == (False, None, "", ())


def test_a_run_can_be_read_before_it_is_entered():
    run = toolguard.run("assistant", session="s", tenant="t")
    assert (run.session, run.tenant, run.mode, run.stopped, run.notes()) == ("s", "t", "enforce", False, [])
    assert run.usage() == toolguard.Usage()
    with run:
        search()
    assert run.usage().executed == 1


def test_zero_switches_every_wall_off():
    @metered(kind="read")
    def fail(query):
        raise OSError("x")

    @metered(kind="read", delegate=True)
    def ask(question):
        return "no"

    clock, large = FakeClock(), "x" * 600_000
    off = {name: 0 for name, key in KEYS.items() if not key.choices and key.kind != "flag"}
    with isolated(clock=clock), toolguard.run(**off) as run:
        assert all(executed(search(1) for _ in range(1200)))
        assert all(executed(send(1) for _ in range(30)))
        assert all(executed(ask("again") for _ in range(9)))
        for n in range(9):
            for _ in range(3):
                with pytest.raises(OSError, match="x"):
                    fail(n)
        assert search(large) is large
        run.spend(tokens=10**12, cost_usd=10**6)
        clock.advance(10**9)
        assert_executed(look())
        assert run.notes() == []
    assert not run.stopped
    assert run.refusals == ()


@pytest.mark.parametrize(("profile", "reads", "sends"), [("assistant", 40, 5), ("coding", 60, 20), ("operations", 50, 5)])
def test_a_profile_brings_its_limits(profile, reads, sends):
    toolguard.configure({"profile": "coding" if profile == "assistant" else "assistant"})
    with toolguard.run(profile=profile, refused_calls=0):
        assert sum(executed(search(i) for i in range(60))) == reads
        assert sum(executed(send(i) for i in range(25))) == sends


# Where limits come from -----------------------------------------------------------------------------------------------


def test_each_source_of_a_limit_beats_the_ones_below_it(monkeypatch):
    def limit(agent=None, **limits):
        with toolguard.run(agent, aggregate=0, **limits):
            return sum(executed(search(i) for i in range(45)))

    toolguard.configure({})
    assert limit() == 40
    content = {"limits": {"per_tool": 9}, "agents": {"researcher": {"per_tool": 7}}}
    toolguard.configure(content)
    assert [limit(), limit("writer"), limit("researcher"), limit("researcher", per_tool=3)] == [9, 9, 7, 3]
    monkeypatch.setenv("TOOLGUARD_PER_TOOL", "5")
    toolguard.configure(content)
    assert [limit(), limit("researcher"), limit(per_tool=3)] == [5, 5, 3]


def test_limits_are_frozen_when_the_run_is_made():
    toolguard.configure({"limits": {"hard_cap": 3}, "local": ["scratchpad"], "tools": {"look": {"limit": 1}}})
    run = toolguard.run()
    toolguard.configure({"limits": {"hard_cap": 1}, "mode": "observe", "tools": {"look": {"limit": 9}}})
    with run:
        scratchpad()
        search()
        toolguard.configure({"limits": {"hard_cap": 100}})
        assert executed([look(), look(), search(), search()]) == [True, False, True, False]
    assert run.usage().executed == 3


def test_a_tools_table_beats_the_decorators_limit():
    @metered(kind="read", limit=1)
    def tuned(n):
        return n

    @metered(kind="read", limit=2)
    def untuned(n):
        return n

    toolguard.configure({"tools": {"Tuned": {"limit": 3}}})
    with toolguard.run(per_tool=1):
        assert sum(executed(tuned(i) for i in range(5))) == 3
        assert sum(executed(untuned(i) for i in range(5))) == 2
        assert sum(executed(search(i) for i in range(5))) == 1


def test_a_tools_own_limit_of_zero_is_no_limit():
    @metered(kind="read", limit=0)
    def free(n):
        return n

    with toolguard.run(per_tool=1, aggregate=0):
        assert all(executed(free(i) for i in range(50)))


def test_a_limit_that_was_given_is_hard_and_only_the_default_adapts():
    with toolguard.run(hard_cap=100, **FREE) as run:
        assert executed(search(i) for i in range(101)) == [True] * 100 + [False]
    assert run.stop_reason == "hard_stop"
    with toolguard.run(**FREE) as run:
        assert all(executed(search(i) for i in range(101)))
    assert not run.stopped


# The tools of a run ---------------------------------------------------------------------------------------------------


class Mailbox:
    @metered(kind="read", name="find_mail")
    def find(self, query):
        return query

    @metered(kind="send", name="post_mail")
    def post(self, text):
        return text


def test_tools_may_be_functions_and_bound_methods_also_named_twice():
    box = Mailbox()
    with toolguard.run(tools=(tool for tool in [search, box.find, box.post, search, box.find])):
        assert box.find("x") == "x"


@pytest.mark.parametrize("wrong", [len, lambda x: x, "search", None, toolguard.spec(search).function])
def test_a_tool_that_is_not_decorated_is_a_type_error_that_names_the_cure(wrong):
    with pytest.raises(TypeError, match=r"is not a tool; decorate it with @toolguard.metered"):
        toolguard.run(tools=[search, wrong])


def test_two_tools_with_one_folded_name_are_an_error_that_shows_both():
    @metered(kind="read", name="Find-Mail")
    def other():
        return None

    with pytest.raises(ValueError, match="one name") as caught:
        toolguard.run(tools=[Mailbox().find, other])
    text = str(caught.value)
    assert "find_mail (" in text
    assert "Mailbox.find)" in text
    assert "Find-Mail (" in text
    assert "other)" in text
    assert "name=" in text


def test_one_method_of_two_objects_is_a_clash_too():
    with pytest.raises(ValueError, match="one name"):
        toolguard.run(tools=[Mailbox().find, Mailbox().find])


def test_prefixes_are_folded_before_names_are_compared():
    @metered(kind="read", name="functions_find_mail")
    def prefixed():
        return None

    toolguard.run(tools=[Mailbox().find, prefixed])
    toolguard.configure({"strip_prefixes": ["functions."]})
    with pytest.raises(ValueError, match="'find_mail'"):
        toolguard.run(tools=[Mailbox().find, prefixed])


def test_calls_under_one_folded_name_share_its_counts():
    @metered(kind="read", name="tools_Look-Up")
    def first(n):
        return n

    @metered(kind="read", name="look_up")
    def second(n):
        return n

    toolguard.configure({"strip_prefixes": ["tools."]})
    with toolguard.run(per_tool=3, aggregate=0) as run:
        assert executed([first(1), second(2), first(3), second(4), first(5)]) == [True, True, True, False, False]
    assert sum(run.usage().by_tool.values()) == 3
    assert len(run.usage().by_tool) == 1


# Usage and refusals ---------------------------------------------------------------------------------------------------


def test_usage_counts_what_ran_and_what_was_refused():
    @metered(kind="read")
    def fail():
        raise OSError("x")

    with toolguard.run(per_tool=2, delivery=1) as run:
        before = run.usage()
        search(1), search(2), search(3), send("a"), send("b"), send("c")
        with pytest.raises(OSError, match="x"):
            fail()
        run.spend(tokens=1200, cost_usd=0.25)
        usage = run.usage()
    assert (usage.executed, usage.refused) == (4, 3)
    assert (usage.chars, usage.tokens, usage.cost_usd) == (3, 1200, 0.25)
    assert dict(usage.by_tool) == {"search": 2, "send": 1, "fail": 1}
    assert dict(usage.by_reason) == {"per_tool": 1, "delivery": 2}
    assert before == toolguard.Usage()
    assert json.loads(json.dumps(usage.to_dict())) == {
        "executed": 4,
        "refused": 3,
        "by_tool": {"search": 2, "send": 1, "fail": 1},
        "by_reason": {"per_tool": 1, "delivery": 2},
        "chars": 3,
        "tokens": 1200,
        "cost_usd": 0.25,
    }


def test_usage_cannot_be_changed_from_outside():
    with toolguard.run() as run:
        search(1)
        usage = run.usage()
        with pytest.raises(AttributeError):
            usage.executed = 0
        with pytest.raises(TypeError):
            usage.by_tool["search"] = 0
        usage.to_dict()["by_tool"]["search"] = 99
        assert run.usage().by_tool["search"] == 1


def test_usage_counts_a_call_that_said_nothing_ran_as_refused_by_the_gate():
    @metered(kind="send")
    def ask():
        raise NotExecuted("not today")

    with toolguard.run() as run:
        assert "not today" in assert_refused(ask(), "gate")
        usage = run.usage()
    assert (usage.executed, usage.refused) == (0, 1)
    assert (dict(usage.by_tool), dict(usage.by_reason)) == ({}, {"gate": 1})
    assert [refusal.reason for refusal in run.refusals] == ["gate"]


def test_a_call_that_cannot_bind_raises_like_the_function_and_is_in_no_count():
    with toolguard.run() as run:
        with pytest.raises(TypeError, match="unexpected keyword"):
            search(nothing=1)
        assert run.usage() == toolguard.Usage()
        assert run.refusals == ()


def test_usage_is_exact_while_threads_call():
    barrier = threading.Barrier(6)
    with toolguard.run(hard_cap=500, refused_calls=0, **FREE) as run:

        def work():
            barrier.wait()
            for i in range(200):
                search(i)
                usage = run.usage()
                assert usage.executed <= 500
                assert sum(usage.by_tool.values()) == usage.executed

        threads = [threading.Thread(target=run.bind(work)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    usage = run.usage()
    assert (usage.executed, usage.refused) == (500, 700)


def test_the_last_hundred_refusals_are_kept_oldest_first():
    with toolguard.run(per_tool=1, refused_calls=0) as run:
        results = [search(i) for i in range(150)]
    assert run.refusals == tuple(results[-100:])
    assert all(kept is result for kept, result in zip(run.refusals, results[-100:], strict=True))
    assert run.usage().refused == 149


def test_a_batch_past_the_limit_is_refused_call_by_call_and_charged_for_what_ran():
    with toolguard.run(per_tool=2) as run:
        results = [search(i) for i in range(3)]
    assert executed(results) == [True, True, False]
    assert run.usage().by_tool["search"] == 2
    assert "did NOT execute" in results[2]


# One run after another ------------------------------------------------------------------------------------------------


def test_ten_runs_in_sequence_are_independent():
    results = []
    for _ in range(10):
        with toolguard.run("assistant", session="s", hard_cap=3):
            results += [search(i) for i in range(3)]
    assert executed(results) == [True] * 30


def test_a_later_run_has_its_own_limit():
    with toolguard.run(hard_cap=1):
        assert executed([search(1), search(2)]) == [True, False]
    with toolguard.run(hard_cap=3):
        assert executed([search(i) for i in range(4)]) == [True, True, True, False]


def test_a_retry_is_a_new_run_and_starts_clean():
    assert stopped_by_hard_cap(session="s").stopped
    with toolguard.run(session="s") as retry:
        assert_executed(search(1))
        assert not retry.stopped
        assert retry.refusals == ()


def test_a_run_entered_again_continues_its_counts():
    run = toolguard.run(hard_cap=1)
    with run:
        assert_executed(search())
    with run:
        assert_refused(search(), "hard_stop")
    assert run.usage().executed == 1
    assert run.usage().refused == 1


async def test_a_run_entered_again_in_another_way_and_place_continues_its_counts():
    run = toolguard.run(hard_cap=2)
    with run:
        search()
    async with run:
        await fetch()

    def again():
        with run:
            return search()

    assert_refused(await asyncio.to_thread(again), "hard_stop")


def test_a_run_entered_again_links_to_its_former_span(spans):
    run = toolguard.run("assistant")
    with run:
        pass
    with run:
        search()
    first, second = spans.runs()
    assert first.links == ()
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert first.attributes["toolguard.run.id"] == second.attributes["toolguard.run.id"]
    assert [first.attributes["toolguard.run.calls"], second.attributes["toolguard.run.calls"]] == [0, 1]


def test_a_run_entered_again_has_the_turns_it_had():
    run = toolguard.run(turn_step=4)
    for _ in range(2):
        with run:
            run.turn()
            run.turn()
    assert run.notes() != []


def test_a_run_entered_while_open_is_an_error_and_stays_open(spans):
    with toolguard.run() as run:
        with pytest.raises(RuntimeError, match="is open already"), run:
            pytest.fail("it was entered")
        assert current_run() is run
        search()
    assert run.usage().executed == 1
    assert current_run() is None
    assert len(spans.runs()) == 1


async def test_a_run_entered_while_open_in_another_task_or_thread_is_an_error():
    async def enter():
        async with run:
            pytest.fail("it was entered")

    with toolguard.run() as run:
        with pytest.raises(RuntimeError, match="is open already"):
            await asyncio.create_task(enter())
        with pytest.raises(RuntimeError, match="is open already"):
            await asyncio.to_thread(run.__enter__)


def test_of_many_threads_that_enter_one_run_at_once_exactly_one_does():
    for _ in range(300):
        run = toolguard.run()
        barrier = threading.Barrier(4)
        entered, failed = [], []

        def enter(run=run, barrier=barrier, entered=entered, failed=failed):
            barrier.wait()
            try:
                entered.append(run.__enter__())
            except RuntimeError as error:
                failed.append(error)

        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(entered), len(failed)) == (1, 3)


# The stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_is_sticky_and_refuses_everything_for_good():
    run = stopped_by_hard_cap()
    with run:
        for call in (search, look, send, scratchpad):
            refusal = assert_refused(call(1), "hard_stop")
            assert refusal.retry == "never"
            assert (refusal.used, refusal.limit, refusal.rule, refusal.run_id) == (2, 2, "explicit", run.id)
    assert run.stopped
    assert run.stop_reason == "hard_stop"
    assert run.usage().executed == 2


def test_a_stop_holds_in_every_thread_and_after_an_inner_run_ends():
    with toolguard.run(hard_cap=1) as run:
        search()
        assert_refused(search(), "hard_stop")
        with toolguard.run():
            assert_refused(search(), "hard_stop")
        for _ in range(50):
            assert_refused(search(), "hard_stop")
        results = []
        thread = threading.Thread(target=lambda: results.append(run.bind(search)()))
        thread.start()
        thread.join()
        assert_refused(results[0], "hard_stop")


def test_the_stop_message_says_how_many_calls_of_which_tools_and_which_limit_and_claims_no_answer():
    message = stopped_by_hard_cap().stop_message
    assert message.startswith("I stopped after 2 tool calls (look 1, search 1): ")
    assert "hard limit of 2 tool calls" in message
    assert "No answer was finished." in message
    assert "To go on, ask for a smaller part of the task, or raise" in message


def test_the_stop_message_keeps_the_numbers_of_the_moment_of_the_stop():
    with toolguard.run() as run:
        search()

        @metered(kind="read")
        def late():
            run.stop("over")
            return 1

        late()
    assert run.usage().executed == 2
    assert run.stop_message == "over"


def test_stop_ends_the_run_with_the_programs_text_and_the_first_stop_stays():
    with toolguard.run() as run:
        search()
        run.stop("The user went away.")
        run.stop("Something else.")
        refusal = assert_refused(search(), "stop")
        assert (refusal.retry, refusal.used, refusal.limit) == ("never", None, None)
        assert "did NOT execute" in refusal
        assert_refused(send(), "stop")
    assert (run.stopped, run.stop_reason, run.stop_message) == (True, "stop", "The user went away.")


def test_a_stop_by_a_wall_is_not_replaced_by_the_programs():
    run = stopped_by_hard_cap()
    run.stop("The user went away.")
    assert run.stop_reason == "hard_stop"
    assert "hard limit" in run.stop_message


def test_stop_also_ends_a_run_that_only_observes():
    with toolguard.run(mode="observe") as run:
        assert_executed(search())
        run.stop("Enough.")
        assert_refused(search(), "stop")
    assert run.stopped


def test_a_stop_is_one_warning_in_the_log_and_a_refusal_one_info_record(logged):
    with toolguard.run(hard_cap=1) as run:
        search()
        search()
        search()
    infos = [record for record in logged.records if record.levelname == "INFO"]
    (warning,) = (record for record in logged.records if record.levelname == "WARNING")
    assert len(infos) == 2
    assert all(record.reason == "hard_stop" and record.status == "refused" for record in infos)
    assert run.id in warning.getMessage()
    assert "hard_stop" in warning.getMessage()


def test_a_stop_by_the_program_or_by_the_end_of_a_turn_is_in_the_log_at_once(logged):
    def warnings():
        return [record.getMessage() for record in logged.records if record.levelname == "WARNING"]

    with toolguard.run() as run:
        run.stop("The user went away.")
        run.stop("Again.")
        assert [text.endswith(f"{run.id} was stopped by stop: The user went away.") for text in warnings()] == [True]
    with toolguard.run(per_tool=1, refused_turns=1) as run:
        search()
        refused_turn(run)
        assert len(warnings()) == 1
        run.turn()
        assert "refused_turns" in warnings()[1]
    assert len(warnings()) == 2


def test_the_run_span_says_how_the_run_ended(spans):
    with toolguard.run("assistant", session="s", hard_cap=1):
        search()
        search()
    with toolguard.run():
        search()
    stopped, ended = spans.runs()
    assert stopped.name == "invoke_agent assistant"
    assert stopped.attributes["gen_ai.conversation.id"] == "s"
    assert stopped.attributes["toolguard.run.calls"] == 1
    assert stopped.attributes["toolguard.run.refusals"] == 1
    assert stopped.attributes["toolguard.run.stopped"] is True
    assert stopped.attributes["toolguard.run.stop.reason"] == "hard_stop"
    assert ended.name == "invoke_agent"
    assert ended.attributes["toolguard.run.stopped"] is False
    assert "toolguard.run.stop.reason" not in ended.attributes


def test_calls_that_already_run_when_the_run_stops_end_well_and_are_counted():
    @metered(kind="read")
    async def slow(event):
        await event.wait()
        return "done"

    async def main():
        event = asyncio.Event()
        with toolguard.run(hard_cap=1) as run:
            task = asyncio.create_task(slow(event))
            await asyncio.sleep(0)
            assert_refused(search(), "hard_stop")
            event.set()
            assert await task == "done"
            return run.usage().executed

    assert asyncio.run(main()) == 1


def test_parallel_coroutines_against_the_last_calls_of_a_run_execute_exactly_those():
    async def main():
        with toolguard.run(hard_cap=5) as run:
            results = await asyncio.gather(*(fetch(i) for i in range(12)))
        return results, run

    results, run = asyncio.run(main())
    assert sum(executed(results)) == 5
    assert run.stop_reason == "hard_stop"


# Runs in runs ---------------------------------------------------------------------------------------------------------


def test_a_nested_run_inherits_session_tenant_and_mode_but_no_limit():
    with toolguard.run("a", session="s", tenant="t", mode="observe", per_tool=1), toolguard.run("b") as inner:
        assert (inner.session, inner.tenant, inner.mode, inner.agent) == ("s", "t", "observe", "b")
    with toolguard.run(per_tool=1, delivery=1, aggregate=1) as outer:
        search(1)
        send(1)
        with toolguard.run() as inner:
            assert inner.parent is outer
            assert all(executed([search(2), search(3), send(2), send(3)]))
        assert_refused(search(4), "per_tool")
        assert_refused(send(4), "delivery")
    assert (outer.usage().executed, inner.usage().executed) == (2, 4)


def test_a_nested_run_may_name_its_own_session_tenant_and_mode():
    with toolguard.run(session="s", tenant="t", mode="observe") as outer:
        with toolguard.run(session="s2", tenant="t2", mode="enforce", hard_cap=1) as inner:
            assert (inner.session, inner.tenant, inner.mode) == ("s2", "t2", "enforce")
            search()
            assert_refused(search(), "hard_stop")
        assert (outer.session, outer.tenant, outer.mode) == ("s", "t", "observe")


def test_an_agents_table_holds_for_its_own_runs_alone():
    toolguard.configure({"agents": {"child": {"per_tool": 1}}})
    with toolguard.run("parent"):
        with toolguard.run("child"):
            assert executed([search(1), search(2)]) == [True, False]
        with toolguard.run():
            assert executed([search(1), search(2)]) == [True, True]


def test_children_start_with_an_allowance_of_their_own():
    with toolguard.run("parent", per_tool=9) as parent:
        for i in range(6):
            search(i)
        children = []
        for _ in range(3):
            with toolguard.run("child", per_tool=5) as child:
                children += [search(i) for i in range(5)]
    assert executed(children) == [True] * 15
    assert child.usage().executed == 5
    assert parent.usage().executed == 6


def test_a_limit_of_a_child_holds_in_the_child():
    with toolguard.run(), toolguard.run(per_tool=2, aggregate=0):
        assert executed(search(i) for i in range(4)) == [True, True, False, False]


def test_a_hard_cap_binds_the_tree_below_it_and_the_children_read_its_stop_as_theirs():
    with toolguard.run("parent", hard_cap=3) as parent:
        search(1)
        with toolguard.run("child") as child, toolguard.run("grandchild") as grandchild:
            results = [search(i) for i in range(10)]
            assert executed(results) == [True, True] + [False] * 8
            assert (results[2].reason, results[2].limit, results[2].used) == ("hard_stop", 3, 3)
            assert results[2].run_id == grandchild.id
        assert_refused(search(2), "hard_stop")
        with toolguard.run() as later:
            assert_refused(search(3), "hard_stop")
    for run in (parent, child, grandchild, later):
        assert run.stopped
        assert run.stop_reason == "hard_stop"
        assert run.stop_message == parent.stop_message
    assert "hard limit of 3" in parent.stop_message
    assert [run.usage().executed for run in (parent, child, grandchild, later)] == [1, 0, 2, 0]


def test_an_outer_stop_by_a_childs_call_is_in_the_log_at_once_and_once(logged):
    with toolguard.run(hard_cap=1) as outer, toolguard.run():
        search(1)
        search(2)
        (record,) = (record for record in logged.records if record.levelname == "WARNING")
        assert outer.id in record.getMessage()
    assert sum(record.levelname == "WARNING" for record in logged.records) == 1


def test_a_childs_own_stop_never_stops_its_parent():
    with toolguard.run(hard_cap=9) as parent:
        with toolguard.run(hard_cap=1) as child:
            search(1)
            assert_refused(search(2), "hard_stop")
        with toolguard.run() as second:
            second.stop("enough")
            assert_refused(search(3), "stop")
        assert (child.stopped, second.stopped, parent.stopped) == (True, True, False)
        assert_executed(search(4))
        assert parent.stop_message == ""
    assert child.stop_reason == "hard_stop"
    assert second.stop_message == "enough"


def test_the_stop_of_a_parent_reaches_a_child_that_is_open():
    with toolguard.run() as parent, toolguard.run() as child:
        parent.stop("The user went away.")
        assert child.stopped
        assert (child.stop_reason, child.stop_message) == ("stop", "The user went away.")
        assert_refused(search(), "stop")


def test_a_default_that_adapts_binds_no_child():
    with toolguard.run(adaptive_soft=2, adaptive_repeats=2, **FREE) as parent:
        with toolguard.run(**FREE):
            assert all(executed(search(1) for _ in range(20)))
        assert not parent.stopped


def test_the_smaller_of_two_hard_caps_holds_and_only_its_run_is_stopped():
    with toolguard.run(hard_cap=10) as parent:
        with toolguard.run(hard_cap=2) as child:
            assert executed(search(i) for i in range(3)) == [True, True, False]
            assert child.refusals[-1].limit == 2
        assert not parent.stopped
        assert executed(search(i) for i in range(9)) == [True] * 8 + [False]
        assert parent.refusals[-1].limit == 10


def test_a_released_call_is_released_in_every_run_of_the_tree():
    @metered(kind="read")
    def ask():
        raise NotExecuted("no")

    with toolguard.run(hard_cap=2):
        with toolguard.run(hard_cap=2):
            for _ in range(5):
                assert_refused(ask(), "gate")
            assert all(executed([search(1), search(2)]))
        assert_refused(search(3), "hard_stop")


def test_a_run_made_before_another_is_opened_is_nested_when_it_is_entered_inside():
    inner = toolguard.run()
    with toolguard.run(hard_cap=1) as outer, inner:
        assert inner.parent is outer
        assert executed([search(1), search(2)]) == [True, False]


def test_nested_runs_make_nested_spans(spans):
    with toolguard.run("outer"):
        search()
        with toolguard.run("inner"):
            look()
    by_name = {span.name: span for span in spans.all()}
    outer, inner = by_name["invoke_agent outer"], by_name["invoke_agent inner"]
    assert outer.parent is None
    assert inner.parent.span_id == outer.context.span_id
    assert by_name["execute_tool search"].parent.span_id == outer.context.span_id
    assert by_name["execute_tool look"].parent.span_id == inner.context.span_id


# Notes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "unit"), [("hard_cap", "tool calls"), ("aggregate", "reads")])
def test_a_note_is_due_from_seven_tenths_of_a_limit_on_the_whole_run_and_then_always(limit, unit):
    with toolguard.run(**{"per_tool": 0, "aggregate": 0, limit: 10}) as run:
        notes = []
        for i in range(10):
            notes.append(run.notes())
            search(i)
        notes.append(run.notes())
    assert [bool(note) for note in notes] == [False] * 7 + [True] * 4
    assert f"7 of the 10 {unit} of this run are spent, 3 left" in notes[7][0]
    assert f"10 of the 10 {unit} of this run are spent, 0 left" in notes[10][0]
    for words in ("Converge now", "could not check", "narrower question"):
        assert words in notes[7][0]


def test_reading_notes_never_drains_them_and_no_result_holds_one():
    with toolguard.run(hard_cap=4) as run:
        results = [search(i) for i in range(3)]
        assert run.notes() == run.notes() != []
    assert results == [0, 1, 2]


def test_a_batch_that_jumps_over_the_mark_makes_the_note_due():
    async def main():
        with toolguard.run(hard_cap=10) as run:
            for i in range(6):
                search(i)
            assert run.notes() == []
            await asyncio.gather(*(fetch(i) for i in range(4)))
            return run.notes()

    assert "10 of the 10" in asyncio.run(main())[0]


def test_the_tightest_limit_makes_the_note():
    with toolguard.run(hard_cap=100, aggregate=10) as run:
        for i in range(8):
            search(i)
        assert "8 of the 10" in run.notes()[0]
        for i in range(79):
            scratchpad(i)
        assert len(run.notes()) == 1


def test_sends_and_single_tools_make_no_note():
    with toolguard.run(delivery=3, per_tool=3, aggregate=0) as run:
        for i in range(3):
            search(i)
            send(i)
        assert run.notes() == []


@pytest.mark.parametrize(("note_at", "first"), [(0, None), (0.5, 5), (0.14, 2), (1, 10), (0.07, 1)])
def test_note_at_says_from_where_and_zero_is_off(note_at, first):
    with toolguard.run(hard_cap=10, note_at=note_at) as run:
        due = []
        for i in range(10):
            search(i)
            due.append(bool(run.notes()))
    assert (due.index(True) + 1 if any(due) else None) == first


@pytest.mark.parametrize(("note_at", "limit", "first"), [(0.07, 100, 7), (0.14, 50, 7), (0.29, 100, 29), (0.7, 30, 21)])
def test_a_note_is_due_at_its_share_and_not_one_call_later(note_at, limit, first):
    with toolguard.run(hard_cap=limit, note_at=note_at, **FREE) as run:
        for i in range(first - 1):
            search(i)
        assert run.notes() == []
        search()
        assert run.notes() != []


def test_a_wall_that_only_observes_makes_no_note_of_what_it_will_not_do():
    toolguard.configure({"observe": ["aggregate"]})
    with toolguard.run(aggregate=2) as run:
        search(1)
        search(2)
        assert run.notes() == []
    with toolguard.run(mode="observe", hard_cap=2, turn_step=1) as run:
        search(1)
        search(2)
        run.turn()
        assert [note[:15] for note in run.notes()] == ["This is turn 1 "]


def test_the_cap_of_an_outer_run_is_in_an_inner_runs_notes():
    with toolguard.run(hard_cap=10) as outer:
        for i in range(4):
            search(i)
        with toolguard.run(**FREE) as inner:
            assert inner.notes() == []
            for i in range(3):
                search(i)
            assert "7 of the 10" in inner.notes()[0]
        assert "7 of the 10" in outer.notes()[0]


# Turns ----------------------------------------------------------------------------------------------------------------


def refused_turn(run):
    run.turn()
    assert_refused(search(object()), "per_tool")


def test_five_turns_in_a_row_of_nothing_but_refusals_stop_the_run_when_the_fifth_closes():
    with toolguard.run(per_tool=1) as run:
        run.turn()
        search(1)
        for _ in range(5):
            refused_turn(run)
            assert not run.stopped
        run.turn()
        assert run.stopped
        assert run.stop_reason == "refused_turns"
        assert assert_refused(look(1), "refused_turns").retry == "never"
    assert run.stop_message.startswith("I stopped after 1 tool call (search 1): 5 turns in a row")


def test_a_turn_with_one_executed_call_starts_the_count_anew():
    with toolguard.run(per_tool=1, aggregate=0) as run:
        search(1)
        for _ in range(4):
            refused_turn(run)
        refused_turn(run)
        send(1)
        for _ in range(4):
            refused_turn(run)
        run.turn()
        assert not run.stopped


def test_empty_turns_neither_count_nor_reset():
    with toolguard.run(per_tool=1) as run:
        search(1)
        for _ in range(30):
            run.turn()
        assert not run.stopped
        for _ in range(4):
            refused_turn(run)
            run.turn()
            run.turn()
        assert not run.stopped
        refused_turn(run)
        run.turn()
        assert run.stop_reason == "refused_turns"


def test_many_refusals_in_one_turn_are_one_refused_turn():
    with toolguard.run(per_tool=1) as run:
        search(0)
        run.turn()
        for i in range(60):
            assert_refused(search(i), "per_tool")
        run.turn()
        assert not run.stopped


def test_without_marked_turns_twenty_refused_calls_in_a_row_stop_the_run():
    with toolguard.run(per_tool=1) as run:
        search(0)
        for i in range(19):
            assert_refused(search(i), "per_tool")
        assert not run.stopped
        assert_refused(search(19), "per_tool")  # the one that reaches the limit keeps its own reason
        assert run.stop_reason == "refused_calls"
        assert_refused(look(), "refused_calls")


def test_an_executed_call_starts_the_refused_calls_anew():
    with toolguard.run(per_tool=1, aggregate=0) as run:
        search(0)
        for text in ("a", "b"):
            for i in range(19):
                assert_refused(search(i), "per_tool")
            assert_executed(send(text))
        assert not run.stopped


def test_refused_calls_count_only_until_the_first_marked_turn():
    with toolguard.run(per_tool=1) as run:
        search(0)
        for i in range(19):
            search(i)
        run.turn()
        for i in range(19):
            search(i)
        assert not run.stopped


def test_calls_that_said_nothing_ran_count_as_refused():
    @metered(kind="read")
    def ask(n):
        raise NotExecuted("no")

    with toolguard.run(refused_calls=3) as run:
        for i in range(3):
            ask(i)
        assert run.stop_reason == "refused_calls"


def test_a_reminder_is_due_in_every_fiftieth_turn_of_the_run_alone():
    due = {}
    with toolguard.run() as run:
        for _ in range(3):  # three requests of one run
            for _ in range(40):
                run.turn()
                if notes := run.notes():
                    due[len(due)] = notes
    assert len(due) == 2
    assert "turn 50 of the run" in due[0][0]
    assert "turn 100 of the run" in due[1][0]


def test_the_reminder_refuses_nothing_and_can_be_switched_off():
    with toolguard.run(turn_step=1) as run:
        run.turn()
        assert_executed(search())
        assert run.notes() != []
    with toolguard.run(turn_step=0) as run:
        for _ in range(50):
            run.turn()
        assert run.notes() == []


def test_a_batch_that_shares_a_turn_cannot_confirm_itself():
    with toolguard.run(aggregate=1) as run:
        run.turn()
        search(1)
        for _ in range(3):
            assert assert_refused(search(2), "aggregate").retry == "identical"
        run.turn()
        assert_executed(search(2))
        assert_executed(search(2))


def test_the_end_of_the_last_turn_is_never_judged():
    with toolguard.run(per_tool=1) as run:
        search(0)
        for _ in range(5):
            refused_turn(run)
    assert not run.stopped


# Local and uncounted calls --------------------------------------------------------------------------------------------


def test_no_wall_sees_a_local_tool_and_it_is_traced(spans):
    toolguard.configure({"local": ["Scratch-Pad", "scratchpad"]})
    with toolguard.run(hard_cap=1, per_tool=1, aggregate=1) as run:
        assert all(executed(scratchpad(1) for _ in range(300)))
        assert run.usage() == toolguard.Usage()
        assert_executed(search())
    assert len(spans.named("execute_tool scratchpad")) == 300


def test_a_local_tool_is_refused_after_a_stop():
    toolguard.configure({"local": ["scratchpad"]})
    with stopped_by_hard_cap() as run:
        assert assert_refused(scratchpad(), "hard_stop").retry == "never"
        assert run.usage().refused == 2


def test_an_executed_local_tool_starts_refused_calls_and_turns_anew():
    toolguard.configure({"local": ["scratchpad"]})
    with toolguard.run(per_tool=1, refused_calls=2) as run:
        search(0)
        for i in range(4):
            search(i)
            scratchpad()
        assert not run.stopped
    with toolguard.run(per_tool=1, refused_turns=2) as run:
        search(0)
        for _ in range(4):
            refused_turn(run)
            scratchpad()
        run.turn()
        assert not run.stopped


def test_an_uncounted_call_is_traced_and_charged_to_nothing(spans):
    with toolguard.run(hard_cap=1, per_tool=1) as run:
        with toolguard.uncounted():
            assert [search(i) for i in range(5)] == [0, 1, 2, 3, 4]
            assert asyncio.run(fetch("x")) == "x"
        assert run.usage() == toolguard.Usage()
        assert_executed(search())
        assert_refused(search(), "hard_stop")
        with toolguard.uncounted():
            assert_executed(search())
        assert run.usage().executed == 1
    marked = [span for span in spans.calls() if "toolguard.uncounted" in span.attributes]
    assert len(marked) == 7
    assert {span.attributes["toolguard.uncounted"] for span in marked} == {True}
    assert {span.attributes["toolguard.run.id"] for span in marked} == {run.id}
    assert {span.parent.span_id for span in marked} == {spans.runs()[0].context.span_id}


def test_an_uncounted_call_runs_outside_a_run_under_every_policy_and_without_a_warning(spans, logged):
    for policy in ("warn", "allow", "refuse"):
        toolguard.configure({"outside_run": policy})
        with toolguard.uncounted():
            assert search(policy) == policy
    assert [span.attributes["toolguard.uncounted"] for span in spans.calls()] == [True] * 3
    assert [record for record in logged.records if record.levelname == "WARNING"] == []


def test_what_an_uncounted_call_calls_is_uncounted_and_nothing_after_the_block():
    @metered(kind="read")
    def both():
        return search(1), look(2)

    with toolguard.run() as run:
        with toolguard.uncounted():
            with toolguard.uncounted():
                both()
            both()
        assert run.usage().executed == 0
        with pytest.raises(KeyError), toolguard.uncounted():
            raise KeyError
        both()
        assert run.usage().executed == 3


def test_uncounted_calls_raise_what_the_tool_raises():
    error = KeyError("x")

    @metered(kind="read")
    def fail():
        raise error

    with toolguard.run(), toolguard.uncounted(), pytest.raises(KeyError) as caught:
        fail()
    assert caught.value is error


def test_uncounted_calls_do_not_interrupt_refused_calls_in_a_row():
    with toolguard.run(per_tool=1, refused_calls=2) as run:
        search(0)
        search(1)
        with toolguard.uncounted():
            search(2)
        search(3)
        assert run.stop_reason == "refused_calls"


def test_a_run_that_nobody_holds_is_freed_at_once():
    gc.collect()
    gc.disable()
    try:
        run = toolguard.run("assistant", per_tool=1)
        gone = weakref.ref(run)
        with run:
            search(1)
            search(2)
        del run
        assert gone() is None
    finally:
        gc.enable()
