"""One specialist asked again and again."""

import asyncio
import enum
import functools
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, metered
from toolguard._values import Tool
from toolguard.testing import assert_executed, assert_refused
from toolguard.walls import delegation

# What else would see the same question again.
OPEN = {"same_outcome": 0, "stale_streak": 0}


@metered(kind="read", delegate=True)
def lawyer(question):
    return f"it depends: {question}"


@metered(kind="read", delegate=True)
def doctor(question):
    return f"rest: {question}"


@metered(kind="read", delegate="who")
def ask(question, who="lawyer"):
    return f"{who!r} on {question}"


@metered(kind="read")
def look(n):
    return n


@metered(kind="send")
def mail(n):
    return n


# What it refuses ------------------------------------------------------------------------------------------------------


def test_a_specialist_is_asked_four_times_and_not_a_fifth_however_it_is_worded():
    with toolguard.run() as run:
        for n in range(4):
            assert_executed(lawyer(f"wording {n}"))
        for n in range(4, 8):
            refusal = assert_refused(lawyer(f"wording {n}, URGENT"), "delegation")
            assert (refusal.used, refusal.limit, refusal.retry, refusal.rule) == (4, 4, "different", None)
        assert run.usage().by_tool == {"lawyer": 4}


def test_another_specialist_has_a_count_of_its_own():
    with toolguard.run(delegation=2):
        for n in range(2):
            assert_executed(lawyer(n))
            assert_executed(doctor(n))
        assert_refused(lawyer(3), "delegation")
        assert_refused(doctor(3), "delegation")


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_limit_is_the_number_of_calls_that_execute(limit):
    with toolguard.run(delegation=limit):
        for n in range(limit):
            assert_executed(lawyer(n))
        refusal = assert_refused(lawyer(limit), "delegation")
        assert (refusal.used, refusal.limit) == (limit, limit)


def test_a_limit_of_0_means_no_limit():
    with toolguard.run(delegation=0):
        for n in range(40):
            assert_executed(lawyer(n))


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_asks_four_times(profile):
    with toolguard.run(profile=profile) as run:
        for n in range(9):
            lawyer(n)
        assert run.usage().executed == 4


def test_it_is_named_before_the_other_limits_on_reads():
    with toolguard.run(delegation=2, per_tool=2, call_budget=2, aggregate=2):
        lawyer(1)
        lawyer(2)
        assert_refused(lawyer(3), "delegation")


def test_a_delegate_is_a_read_to_the_other_limits():
    with toolguard.run(call_budget=2):
        assert_executed(lawyer(1))
        assert_executed(look(1))
        assert_refused(lawyer(2), "call_budget")
    with toolguard.run(per_tool=2):
        assert_executed(lawyer(1))
        assert_executed(lawyer(2))
        assert_refused(lawyer(3), "per_tool")


def test_a_tools_own_limit_replaces_per_tool_and_not_this_one():
    @metered(kind="read", delegate=True, limit=6)
    def broker(question):
        return question

    @metered(kind="read", delegate=True, limit=0)
    def clerk(question):
        return question

    with toolguard.run(per_tool=1, delegation=8):
        for n in range(6):
            assert_executed(broker(n))
        refusal = assert_refused(broker(6), "per_tool")
        assert refusal.limit == 6
    with toolguard.run(per_tool=1, delegation=3):
        for n in range(3):
            assert_executed(broker(n))
            assert_executed(clerk(n))
        for tool in (broker, clerk):
            assert assert_refused(tool(3), "delegation").limit == 3


def test_an_operators_limit_of_the_tool_does_not_replace_it_either():
    toolguard.configure({"tools": {"lawyer": {"limit": 9}}})
    with toolguard.run(delegation=2):
        lawyer(1)
        lawyer(2)
        assert assert_refused(lawyer(3), "delegation").limit == 2


# One function for several specialists ---------------------------------------------------------------------------------


def test_each_value_of_the_parameter_is_a_specialist():
    with toolguard.run(delegation=2):
        for n in range(2):
            for who in ("lawyer", "doctor", "broker"):
                assert_executed(ask(n, who))
        for who in ("lawyer", "doctor", "broker"):
            assert_refused(ask(9, who), "delegation")
        assert_executed(ask(9, "clerk"))


@pytest.mark.parametrize("again", ["tax-law", "tax_law", "Tax.Law", "TAX_LAW"])
def test_another_spelling_is_the_same_specialist(again):
    with toolguard.run(delegation=1):
        assert_executed(ask(1, "tax_law"))
        assert_refused(ask(2, again), "delegation")


def test_a_default_is_the_value_that_it_stands_for():
    with toolguard.run(delegation=1):
        assert_executed(ask(1))
        assert_refused(ask(2, "lawyer"), "delegation")
        assert_refused(ask(who="lawyer", question=3), "delegation")
        assert_executed(ask(4, who="doctor"))


class Raises(str):
    __slots__ = ()

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None


class Liar:
    @property
    def __class__(self):
        raise RuntimeError


class Desk(enum.Enum):
    LAW = "lawyer"
    TAX = "tax"


class TextDesk(enum.StrEnum):
    LAW = "lawyer"


@metered(kind="read", delegate="who")
def consult_quietly(question, who):
    return question


ODD = {
    "nothing": None,
    "a number": 0,
    "not a number": float("nan"),
    "bytes": b"lawyer",
    "a list": ["lawyer"],
    "a mapping": {"name": "lawyer"},
    "a set": {1, 2},
    "a member": Desk.LAW,
    "an object": object(),
    "an object that lies": Liar(),
    "no text": "",
    "half a character": "\ud800",
}


@pytest.mark.parametrize("what", ODD)
def test_a_specialist_may_be_any_value(what):
    with toolguard.run(delegation=2):
        assert_executed(consult_quietly(1, ODD[what]))
        assert_executed(consult_quietly(2, ODD[what]))
        assert_refused(consult_quietly(3, ODD[what]), "delegation")


def test_a_text_with_methods_of_its_own_is_the_text_that_it_holds():
    with toolguard.run(delegation=2):
        assert_executed(consult_quietly(1, Raises("Lawyer")))
        assert_executed(consult_quietly(2, "lawyer"))
        assert_refused(consult_quietly(3, TextDesk.LAW), "delegation")
        assert_refused(consult_quietly(4, Raises("LAWYER")), "delegation")


def test_members_and_lists_with_other_content_are_other_specialists():
    with toolguard.run(delegation=1):
        for who in (Desk.LAW, Desk.TAX, ["a"], ["b"], {"a": 1}, {"a": 2}):
            assert_executed(ask(1, who))


def test_two_tools_with_other_names_have_other_specialists():
    @metered(kind="read", delegate="who")
    def consult(question, who):
        return question

    with toolguard.run(delegation=1):
        assert_executed(ask(1, "lawyer"))
        assert_executed(consult(1, "lawyer"))
        assert_refused(ask(2, "lawyer"), "delegation")


@pytest.mark.parametrize("delegate", [True, "who"])
def test_two_tools_under_one_folded_name_share_their_specialists(delegate):
    def consult(question, who):
        return question

    one = metered(kind="read", delegate=delegate, name="ask-expert")(consult)
    two = metered(kind="read", delegate=delegate, name="Ask_Expert")(lambda_of(consult))
    with toolguard.run(delegation=2):
        assert_executed(one(1, "lawyer"))
        assert_executed(two(2, "lawyer"))
        assert_refused(one(3, "lawyer"), "delegation")
        assert_refused(two(4, "lawyer"), "delegation")


def lambda_of(function):
    def consult_too(question, who):
        return function(question, who)

    return consult_too


def test_the_parameter_of_a_method_names_the_specialist_whoever_is_the_receiver():
    class Office:
        @metered(kind="read", delegate="who")
        def ask(self, question, who):
            return question

    one, two = Office(), Office()
    with toolguard.run(delegation=2):
        assert_executed(one.ask(1, "lawyer"))
        assert_executed(two.ask(2, who="lawyer"))
        assert_refused(one.ask(3, "lawyer"), "delegation")
        assert_executed(one.ask(3, "doctor"))


def test_a_call_that_its_signature_does_not_describe_counts_for_the_function():
    def wider(function):
        @functools.wraps(function)
        def taking_more(*args, **kwargs):
            return "answer"

        return taking_more

    @metered(kind="read", delegate="who")
    @wider
    def consult(question, who):
        return question

    with toolguard.run(delegation=2, **OPEN):
        assert consult(1, 2, 3, "lawyer") == "answer"
        assert consult(1, 2, 3, "doctor") == "answer"
        assert_refused(consult(1, 2, 3, "broker"), "delegation")
        assert_executed(consult(1, "lawyer"))


# Which calls count ----------------------------------------------------------------------------------------------------


def test_reads_and_sends_that_ask_nobody_are_not_its_business():
    with toolguard.run(delegation=1, delivery=0):
        for n in range(10):
            assert_executed(look(n))
            assert_executed(mail(n))


def test_the_same_question_asked_again_counts_as_any_other():
    with toolguard.run(delegation=2, **OPEN):
        assert_executed(lawyer("same"))
        assert_executed(lawyer("same"))
        assert_refused(lawyer("same"), "delegation")


def test_a_specialist_that_failed_was_asked():
    @metered(kind="read", delegate=True)
    def broken(question):
        raise OSError(question)

    with toolguard.run(delegation=2):
        for n in range(2):
            with pytest.raises(OSError, match=str(n)):
                broken(n)
        assert_refused(broken(2), "delegation")


def test_one_that_says_that_nothing_ran_was_not():
    asked = []

    @metered(kind="read", delegate="who")
    def consult(question, who):
        asked.append(who)
        if len(asked) <= 5:
            raise NotExecuted
        return question

    with toolguard.run(delegation=1):
        for n in range(5):
            assert_refused(consult(n, "lawyer"), "gate")
        assert_executed(consult(6, "lawyer"))
        assert_refused(consult(7, "lawyer"), "delegation")


def test_one_that_hands_on_an_inner_refusal_was_asked():
    @metered(kind="read", delegate=True)
    def consult(question):
        with toolguard.run(delivery=1):
            mail("first")
            return mail(question)

    with toolguard.run(delegation=2):
        for n in range(2):
            assert_refused(consult(n), "delivery")
        assert_refused(consult(2), "delegation")


def test_refused_questions_charge_nothing():
    with toolguard.run(delegation=1) as run:
        assert_executed(lawyer(0))
        for n in range(1, 9):
            assert_refused(lawyer(n), "delegation")
        assert run.usage().executed == 1


def test_a_nested_run_may_ask_the_same_specialist_anew():
    with toolguard.run(delegation=1):
        assert_executed(lawyer(1))
        with toolguard.run(delegation=1):
            assert_executed(lawyer(2))
            assert_refused(lawyer(3), "delegation")
        assert_refused(lawyer(4), "delegation")


def test_local_and_uncounted_questions_are_not_counted():
    toolguard.configure({"local": ["doctor"]})
    with toolguard.run(delegation=1):
        for n in range(5):
            assert_executed(doctor(n))
            with toolguard.uncounted():
                assert_executed(lawyer(n))
        assert_executed(lawyer(9))
        assert_refused(lawyer(10), "delegation")


def test_a_delegate_that_is_not_declared_is_not_seen():
    @metered(kind="read")
    def consult(question):
        with toolguard.run("specialist"):
            return question

    with toolguard.run(delegation=1):
        for n in range(10):
            assert_executed(consult(n))


# At the same time -----------------------------------------------------------------------------------------------------


async def test_of_ten_questions_in_one_gather_as_many_are_asked_as_the_limit_says():
    asked = []

    @metered(kind="read", delegate="who")
    async def consult(question, who):
        asked.append(question)
        await asyncio.sleep(0)
        return question

    with toolguard.run(delegation=3):
        said = await asyncio.gather(*(consult(n, "lawyer") for n in range(10)))
    assert len(asked) == 3
    assert [getattr(answer, "reason", None) for answer in said] == [None] * 3 + ["delegation"] * 7


def test_threads_ask_exactly_as_often_as_the_limit_says():
    for _ in range(50):
        said, barrier = [], threading.Barrier(6)

        def job(run, barrier=barrier, said=said):
            barrier.wait()
            said.extend(getattr(ask((threading.get_ident(), n), "lawyer"), "reason", None) for n in range(2))

        with toolguard.run(delegation=4) as run:
            threads = [threading.Thread(target=run.bind(job), args=(run,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert Counter(said) == {None: 4, "delegation": 8}


# Wrong uses -----------------------------------------------------------------------------------------------------------


def test_a_delegate_must_be_a_read():
    with pytest.raises(ValueError, match='kind="read"'):
        metered(kind="send", delegate=True)
    with pytest.raises(ValueError, match='kind="read"'):
        metered(kind="send", delegate="who")


@pytest.mark.parametrize("wrong", [None, 1, 0, ("who",), "", b"who", 2.0])
def test_delegate_is_true_or_the_name_of_a_parameter(wrong):
    with pytest.raises(TypeError, match="delegate="):
        metered(kind="read", delegate=wrong)


def test_the_parameter_must_be_one_of_the_function():
    with pytest.raises(ValueError, match=r"delegate= names no parameter 'whom' \(known: question, who\)"):

        @metered(kind="read", delegate="whom")
        def consult(question, who):
            return question


def test_delegate_false_is_no_delegate():
    @metered(kind="read", delegate=False)
    def consult(question):
        return question

    with toolguard.run(delegation=1):
        for n in range(5):
            assert_executed(consult(n))


# Observing, texts, telemetry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_where_it_observes_the_specialist_is_asked_and_the_span_says_what_would_have_been(spans, whole):
    if not whole:
        toolguard.configure({"observe": ["delegation"]})
    with toolguard.run(mode="observe" if whole else None, delegation=2):
        for n in range(4):
            assert_executed(lawyer(n))
    assert [span.attributes.get("toolguard.would_refuse") for span in spans.calls()] == [None] * 2 + ["delegation"] * 2


def test_the_text_is_for_the_coordinator():
    with toolguard.run(delegation=2):
        lawyer(1)
        lawyer(2)
        refusal = lawyer(3)
    assert refusal.startswith("lawyer did NOT execute: ")
    assert "asked this specialist 2 times" in refusal
    assert "limit is 2" in refusal
    assert "stronger words does not change what it can do" in refusal
    assert "take its last answer as it is" in refusal
    assert "approval" in refusal
    assert "pass that on to the user" in refusal


def test_neither_text_nor_span_holds_the_specialists_name_where_it_is_an_argument(spans):
    with toolguard.run(delegation=1):
        ask(1, "secret-counsel")
        refusal = ask(2, "secret-counsel")
    assert "secret" not in refusal
    assert not any("secret" in span.to_json() for span in spans.all())
    attributes = spans.calls()[-1].attributes
    assert attributes["toolguard.refusal.reason"] == "delegation"
    assert (attributes["toolguard.refusal.used"], attributes["toolguard.refusal.limit"]) == (1, 1)


# Bounds and histories -------------------------------------------------------------------------------------------------

ONE = Tool("one", "one", "read", delegate=True)
MANY = Tool("many", "many", "read", delegate=True)
PLAIN = Tool("plain", "plain", "read")


def test_it_remembers_the_last_thousand_specialists_and_no_more(lab):
    run = lab(delegation=1)
    for n in range(5000):
        call = run.start(MANY)
        call.specialist = n.to_bytes(16, "big")
        assert run.admit(call) is None
        run.end(call)
    state = next(seat.state for seat in run.ledger._seats if seat.wall.name == "delegation")
    assert len(state.counts) <= 2 * 1024
    call = run.start(MANY)
    call.specialist = (4999).to_bytes(16, "big")
    assert run.admit(call).reason == "delegation"


@settings(max_examples=300, deadline=None)
@given(
    limit=st.integers(0, 3),
    calls=st.lists(
        st.tuples(
            st.sampled_from([ONE, MANY, PLAIN]),
            st.sampled_from([b"a", b"b"]),
            st.sampled_from(["ok", "error", "cancelled", "not_executed"]),
        ),
        max_size=40,
    ),
)
def test_it_refuses_as_a_plain_count_by_specialist_would(lab, limit, calls):
    run, asked = lab(delegation=limit), Counter()
    state = next(seat.state for seat in run.ledger._seats if seat.wall.name == "delegation")
    for tool, who, outcome in calls:
        call = run.start(tool)
        if tool is MANY:
            call.specialist = who
        key = who if tool is MANY else tool.name
        why = run.admit(call)
        if limit and tool.delegate and asked[key] >= limit:
            assert why == ("delegation", asked[key], limit, "different", None, False)
        else:
            assert why is None
            asked[key] += outcome != "not_executed"
        run.end(call, why, outcome=outcome)
        run.ledger.sync()
        if limit:
            left = limit - max((n for key, n in asked.items() if key != "plain"), default=0)
            assert delegation.slack(state, limit) <= left
