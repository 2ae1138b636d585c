"""A reserve for sends, which reading can never spend."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import metered
from toolguard.testing import assert_executed, assert_refused


@metered(kind="read")
def look(n):
    return n


@metered(kind="send")
def mail(body):
    return body


@metered(kind="send")
def post(body):
    return body


def test_of_8_sends_5_execute_whatever_tools_and_words_they_use():
    with toolguard.run() as run:
        said = [(mail if n % 2 else post)(f"wording {n}") for n in range(8)]
        assert said[:5] == [f"wording {n}" for n in range(5)]
        for refusal in said[5:]:
            assert_refused(refusal, "delivery")
            assert (refusal.used, refusal.limit, refusal.retry) == (5, 5, "different")
        assert run.usage().by_reason == {"delivery": 3}


def test_reads_never_spend_it():
    with toolguard.run(per_tool=0, aggregate=5, delivery=1):
        said = [look(n) for n in range(6)]
        assert said[:5] == list(range(5))
        assert_refused(said[5], "aggregate")
        assert mail("the answer") == "the answer"
        assert_refused(mail("once more"), "delivery")


def test_sends_never_count_as_reads():
    with toolguard.run(per_tool=3, aggregate=3, delivery=0):
        for n in range(20):
            assert_executed(mail(n))
        assert [look(n) for n in range(3)] == [0, 1, 2]


def test_thousands_of_refused_reads_leave_the_reserve_whole():
    with toolguard.run(per_tool=1, aggregate=1, refused_calls=0, delivery=2):
        for n in range(2000):
            look(n)
        assert [mail(n) for n in range(2)] == [0, 1]
        assert_refused(mail(2), "delivery")


def test_a_send_with_a_limit_of_its_own_is_outside_the_common_reserve():
    @metered(kind="send", limit=2)
    def page(body):
        return body

    with toolguard.run(delivery=1):
        assert [page(n) for n in range(2)] == [0, 1]
        refusal = assert_refused(page(2), "delivery")
        assert (refusal.used, refusal.limit) == (2, 2)
        assert mail(1) == 1
        assert_refused(mail(2), "delivery")
        assert_refused(page(3), "delivery")


def test_a_send_whose_own_limit_is_0_is_never_refused_and_spends_no_reserve():
    @metered(kind="send", limit=0)
    def log_line(body):
        return body

    with toolguard.run(delivery=1):
        assert [log_line(n) for n in range(30)] == list(range(30))
        assert mail(1) == 1


def test_an_operators_limit_takes_a_send_out_of_the_reserve_too():
    toolguard.configure({"tools": {"mail": {"limit": 3}}})
    with toolguard.run(delivery=1):
        assert post(1) == 1
        assert [mail(n) for n in range(3)] == [0, 1, 2]
        assert assert_refused(mail(3), "delivery").limit == 3


def test_a_limit_of_0_means_no_limit():
    with toolguard.run(delivery=0):
        assert [mail(n) for n in range(50)] == list(range(50))


@pytest.mark.parametrize(("profile", "sends"), [("assistant", 5), ("coding", 20), ("operations", 5)])
def test_the_reserve_of_each_profile(profile, sends):
    with toolguard.run(profile=profile) as run:
        for n in range(sends + 3):
            mail(n)
        assert run.usage().executed == sends


def test_a_send_that_failed_stays_charged_because_it_may_have_gone_out():
    @metered(kind="send")
    def broken(body):
        raise TimeoutError(body)

    with toolguard.run(delivery=2):
        for n in range(2):
            with pytest.raises(TimeoutError):
                broken(n)
        assert_refused(broken(2), "delivery")


def test_different_recipients_that_failed_once_each_do_not_block_the_next():
    @metered(kind="send")
    def send(to):
        if to != "d":
            raise OSError(to)
        return to

    with toolguard.run():
        for to in "abc":
            with pytest.raises(OSError, match=to):
                send(to)
        assert send("d") == "d"


def test_the_text_names_what_was_used_the_limit_and_what_to_tell_the_user():
    with toolguard.run(delivery=2):
        mail(1)
        mail(2)
        refusal = mail(3)
    assert refusal.startswith("mail did NOT execute: ")
    assert "2 of 2 sends" in refusal
    assert "Do not try mail again" in refusal
    assert "tell the user what was sent and what was not" in refusal


def test_a_nested_run_has_a_reserve_of_its_own():
    with toolguard.run(delivery=1):
        assert mail(1) == 1
        with toolguard.run(delivery=1):
            assert mail(2) == 2
            assert_refused(mail(3), "delivery")
        assert_refused(mail(4), "delivery")


OWN = {"own_send": 2, "free_send": 0}


@settings(max_examples=200, deadline=None)
@given(
    limit=st.integers(0, 4),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["send", "post", "own_send", "free_send", "read"]),
            st.sampled_from(["ok", "error", "cancelled", "not_executed"]),
        ),
        max_size=40,
    ),
)
def test_it_refuses_as_two_plain_counts_would(lab, tools, limit, calls):
    run, ran = lab(delivery=limit), Counter()
    for name, outcome in calls:
        used = ran[name] if name in OWN else ran["send"] + ran["post"]
        n = 0 if name == "read" else OWN.get(name, limit)
        why = run.attempt(getattr(tools, name), outcome=outcome)
        if n and used >= n:
            assert why == ("delivery", used, n, "different", None, False)
        else:
            assert why is None
            ran[name] += outcome != "not_executed"
