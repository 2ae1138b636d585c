"""The same message twice."""

import asyncio
import threading
from collections import namedtuple
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, current_run, metered
from toolguard.testing import assert_executed, assert_refused


@metered(kind="send")
def mail(to, body="hello", *, cc=()):
    return "sent"


@metered(kind="send")
def post(to, body="hello", *, cc=()):
    return "posted"


@metered(kind="send", repeatable=True)
def beat(n):
    return "tick"


@metered(kind="read")
def look(n):
    return n


# What it refuses ------------------------------------------------------------------------------------------------------


def test_a_send_that_succeeded_is_not_sent_again():
    with toolguard.run() as run:
        assert mail("a", "one") == "sent"
        refusal = assert_refused(mail("a", "one"), "duplicate_send")
        assert (refusal.used, refusal.limit, refusal.retry, refusal.rule) == (1, 1, "different", "sent")
        assert mail("b", "one") == "sent"
        assert run.usage().by_tool == {"mail": 2}


def test_sends_in_between_do_not_free_it():
    with toolguard.run():
        assert mail("ok") == "sent"
        assert mail("other") == "sent"
        assert look(1) == 1
        assert_refused(mail("ok"), "duplicate_send")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_as_many_identical_sends_run_as_the_limit_says(limit):
    with toolguard.run(duplicate_send=limit, delivery=0):
        for _ in range(limit):
            assert_executed(mail("a"))
        refusal = assert_refused(mail("a"), "duplicate_send")
        assert (refusal.used, refusal.limit) == (limit, limit)


def test_a_limit_of_0_means_no_limit():
    with toolguard.run(duplicate_send=0, delivery=0):
        for _ in range(30):
            assert_executed(mail("a"))


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_sends_once(profile):
    with toolguard.run(profile=profile):
        assert_executed(mail("a"))
        assert_refused(mail("a"), "duplicate_send")


def test_however_the_same_arguments_are_written_it_is_the_same_send():
    with toolguard.run():
        assert_executed(mail("a"))
        for again in (
            lambda: mail("a", "hello"),
            lambda: mail(to="a"),
            lambda: mail(body="hello", to="a"),
            lambda: mail("a", cc=[]),
        ):
            assert_refused(again(), "duplicate_send")


def test_another_value_another_type_and_another_tool_are_other_sends():
    with toolguard.run(delivery=0):
        for send in (lambda: mail("1"), lambda: mail(1), lambda: mail("1", "hello "), lambda: mail("1", cc=["b"])):
            assert_executed(send())
        assert_executed(post("1"))


def test_a_refusal_charges_nothing_and_spends_no_delivery():
    with toolguard.run(delivery=2) as run:
        assert_executed(mail("a"))
        for _ in range(10):
            assert_refused(mail("a"), "duplicate_send")
        assert run.usage().by_tool == {"mail": 1}
        assert_executed(mail("b"))
        assert_refused(mail("c"), "delivery")


def test_it_is_named_before_a_spent_delivery_whose_cure_is_another():
    with toolguard.run(delivery=1):
        assert_executed(mail("a"))
        assert_refused(mail("a"), "duplicate_send")
        assert_refused(mail("b"), "delivery")


def test_a_send_with_a_limit_of_its_own_is_sent_once_too():
    @metered(kind="send", limit=5)
    def page(body):
        return body

    with toolguard.run():
        assert_executed(page("x"))
        assert_refused(page("x"), "duplicate_send")


def test_a_new_run_and_a_nested_run_start_clean():
    with toolguard.run(session="s"):
        assert_executed(mail("a"))
        with toolguard.run():
            assert_executed(mail("a"))
            assert_refused(mail("a"), "duplicate_send")
        assert_refused(mail("a"), "duplicate_send")
    with toolguard.run(session="s"):
        assert_executed(mail("a"))


def test_a_run_entered_again_remembers_what_was_sent():
    run = toolguard.run()
    with run:
        assert_executed(mail("a"))
    with run:
        assert_refused(mail("a"), "duplicate_send")


# What frees it --------------------------------------------------------------------------------------------------------


def test_a_send_that_failed_may_be_tried_again():
    failing = [OSError("gone"), OSError("away")]

    @metered(kind="send")
    def flaky(to):
        if failing:
            raise failing.pop()
        return "sent"

    with toolguard.run(repeat_failure=0):
        for _ in range(2):
            with pytest.raises(OSError, match=r"gone|away"):
                flaky("a")
        assert flaky("a") == "sent"
        assert_refused(flaky("a"), "duplicate_send")


@pytest.mark.parametrize("value", [{"error": "mailbox full"}, {"is_error": True}, {"isError": 1}])
def test_a_send_that_reports_a_failure_may_be_tried_again(value):
    answers = [value, {"id": 1}]

    @metered(kind="send")
    def deliver(to):
        return answers.pop(0)

    with toolguard.run():
        assert deliver("a") == value
        assert deliver("a") == {"id": 1}
        assert_refused(deliver("a"), "duplicate_send")


def test_what_the_program_calls_a_failure_may_be_tried_again():
    answers = ["bounced", "sent"]

    @metered(kind="send", failed=lambda value: value == "bounced")
    def deliver(to):
        return answers.pop(0)

    with toolguard.run():
        assert deliver("a") == "bounced"
        assert deliver("a") == "sent"
        assert_refused(deliver("a"), "duplicate_send")


def test_a_send_that_says_nothing_ran_may_be_tried_again():
    ready = []

    @metered(kind="send")
    def deliver(to):
        if not ready:
            raise NotExecuted
        return "sent"

    with toolguard.run():
        for _ in range(3):
            assert_refused(deliver("a"), "gate")
        ready.append(True)
        assert deliver("a") == "sent"
        assert_refused(deliver("a"), "duplicate_send")


def test_a_send_whose_inner_call_was_refused_may_be_tried_again():
    @metered(kind="send", limit=5)
    def deliver(to):
        return mail(to)

    with toolguard.run(delivery=1) as run:
        assert_executed(mail("b"))
        for _ in range(3):
            assert assert_refused(deliver("a"), "delivery").tool == "mail"
        assert run.usage().by_tool == {"mail": 1, "deliver": 3}


async def test_a_cancelled_send_may_be_tried_again():
    inside = asyncio.Event()
    waits = [True]

    @metered(kind="send")
    async def deliver(to):
        if waits:
            waits.pop()
            inside.set()
            await asyncio.Event().wait()
        return "sent"

    with toolguard.run() as run:
        task = asyncio.create_task(deliver("a"))
        await inside.wait()
        assert assert_refused(await deliver("a"), "duplicate_send").retry == "later"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await deliver("a") == "sent"
        assert_refused(await deliver("a"), "duplicate_send")
        assert run.usage().by_tool == {"deliver": 2}


def test_a_stream_that_sends_is_in_flight_while_it_is_open_and_free_when_it_was_left_early():
    @metered(kind="send")
    def upload(name):
        yield 1
        yield 2

    with toolguard.run():
        first = upload("a")
        assert next(first) == 1
        (refusal,) = upload("a")
        assert assert_refused(refusal, "duplicate_send").retry == "later"
        first.close()
        assert list(upload("a")) == [1, 2]
        (refusal,) = upload("a")
        assert assert_refused(refusal, "duplicate_send").retry == "different"


# In flight ------------------------------------------------------------------------------------------------------------


async def test_of_two_identical_sends_in_one_gather_one_is_sent():
    sent = []

    @metered(kind="send")
    async def deliver(to):
        await asyncio.sleep(0)
        sent.append(to)
        return "sent"

    with toolguard.run() as run:
        run.turn()
        one, two = await asyncio.gather(deliver("x"), deliver("x"))
        assert one == "sent"
        refusal = assert_refused(two, "duplicate_send")
        assert (refusal.retry, refusal.rule) == ("later", "flying")
        assert sent == ["x"]
        assert assert_refused(await deliver("x"), "duplicate_send").retry == "different"


async def test_of_many_identical_sends_that_wait_together_as_many_run_as_the_limit_says():
    for limit in (1, 2, 7):
        sent = []

        @metered(kind="send", ignore="sent")
        async def deliver(to, sent=sent):
            await asyncio.sleep(0)
            sent.append(to)

        with toolguard.run(duplicate_send=limit, delivery=0, refused_calls=0):
            said = await asyncio.gather(*(deliver("x") for _ in range(20)))
        assert len(sent) == limit
        assert sum(answer is None for answer in said) == limit


async def test_if_the_one_in_flight_fails_a_later_one_runs():
    go_on = asyncio.Event()

    @metered(kind="send")
    async def deliver(to):
        await go_on.wait()
        if not sent:
            sent.append(to)
            raise OSError(to)
        return "sent"

    sent = []
    with toolguard.run():
        first = asyncio.create_task(deliver("x"))
        await asyncio.sleep(0)
        assert_refused(await deliver("x"), "duplicate_send")
        go_on.set()
        with pytest.raises(OSError, match="x"):
            await first
        assert await deliver("x") == "sent"


def test_of_many_threads_that_send_the_same_at_once_one_does():
    for _ in range(100):
        sent, said, barrier = [], [], threading.Barrier(6)

        @metered(kind="send", ignore="sent")
        def deliver(to, sent=sent):
            sent.append(to)

        with toolguard.run() as run:

            def job(barrier=barrier, said=said, deliver=deliver):
                barrier.wait()
                said.append(deliver("x"))

            threads = [threading.Thread(target=run.bind(job)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sent == ["x"]
        assert sum(answer is None for answer in said) == 1
        assert {answer.reason for answer in said if answer is not None} == {"duplicate_send"}


def test_a_tool_that_calls_itself_with_the_same_arguments_is_in_flight():
    @metered(kind="send")
    def deliver(to):
        return deliver(to)

    with toolguard.run():
        refusal = assert_refused(deliver("x"), "duplicate_send")
        assert refusal.retry == "later"


# What tells two sends apart -------------------------------------------------------------------------------------------


class Mailbox:
    def __init__(self, owner):
        self.owner = owner

    @metered(kind="send")
    def send(self, body):
        return f"{self.owner} sent {body}"


class Strict:
    __slots__ = ("owner",)

    def __init__(self, owner):
        self.owner = owner

    @metered(kind="send")
    def send(self, body):
        return f"{self.owner} sent {body}"


@dataclass(slots=True)
class Box:
    owner: str

    @metered(kind="send")
    def send(self, body):
        return f"{self.owner} sent {body}"


class Pair(namedtuple("Pair", "owner domain", defaults=["example.org"])):  # noqa: PYI024  such classes exist
    __slots__ = ()

    @metered(kind="send")
    def send(self, body):
        return f"{self.owner} sent {body}"


@pytest.mark.parametrize("kind", [Mailbox, Strict, Box, Pair])
def test_the_same_message_from_two_objects_is_two_sends(kind):
    alice, bob = kind("alice"), kind("bob")
    with toolguard.run():
        assert alice.send("hi") == "alice sent hi"
        assert bob.send("hi") == "bob sent hi"


@pytest.mark.parametrize("kind", [Mailbox, Box, Pair])
def test_the_same_message_from_one_object_is_one_send(kind):
    alice = kind("alice")
    with toolguard.run():
        assert_executed(alice.send("hi"))
        assert_refused(alice.send("hi"), "duplicate_send")
        assert_refused(kind.send(alice, "hi"), "duplicate_send")


def test_equal_objects_are_two_senders():
    @dataclass(frozen=True)
    class Same:
        owner: str

        @metered(kind="send")
        def send(self, body):
            return body

    one, two = Same("a"), Same("a")
    assert one == two
    with toolguard.run():
        assert_executed(one.send("hi"))
        assert_executed(two.send("hi"))
        assert_refused(one.send("hi"), "duplicate_send")


def test_class_and_static_methods_have_one_sender():
    class Desk:
        @metered(kind="send")
        @classmethod
        def announce(cls, body):
            return body

        @staticmethod
        @metered(kind="send")
        def ring(body):
            return body

    with toolguard.run(delivery=0):
        for send in (Desk.announce, Desk().announce, Desk.ring, Desk().ring):
            send("hi")
        assert_refused(Desk().announce("hi"), "duplicate_send")
        assert_refused(Desk().ring("hi"), "duplicate_send")


def test_arguments_that_cannot_be_compared_never_make_a_duplicate():
    @metered(kind="send")
    def upload(source):
        return "sent"

    thing = object()
    with toolguard.run(delivery=0):
        for _ in range(3):
            assert_executed(upload(thing))
            assert_executed(upload({"file": [thing]}))
            assert_executed(upload(n for n in ()))
            assert_executed(upload(lambda: None))


def test_a_text_too_long_to_be_read_whole_never_makes_a_duplicate():
    with toolguard.run(delivery=0):
        for _ in range(3):
            assert_executed(mail("a", "x" * (2 << 20)))


def test_ignored_parameters_do_not_tell_two_sends_apart():
    @metered(kind="send", ignore=("timeout", "nonce"))
    def deliver(to, timeout=1, nonce=None):
        return "sent"

    with toolguard.run():
        assert_executed(deliver("a", 1, "x"))
        assert_refused(deliver("a", timeout=9), "duplicate_send")
        assert_refused(deliver("a", nonce=object()), "duplicate_send")
        assert_executed(deliver("b"))


def test_a_repeatable_tool_may_send_the_same_again():
    with toolguard.run(delivery=0):
        for _ in range(20):
            assert beat(1) == "tick"


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_repeatable_is_yes_or_no(wrong):
    with pytest.raises(TypeError, match="repeatable"):
        metered(kind="send", repeatable=wrong)


# Whose calls it does not see ------------------------------------------------------------------------------------------


def test_reads_are_not_its_business():
    with toolguard.run(duplicate_send=1, same_outcome=0, stale_streak=0):
        for _ in range(20):
            assert_executed(look(1))


def test_it_cannot_see_a_message_that_is_worded_anew():
    with toolguard.run(delivery=0):
        for n in range(20):
            assert_executed(mail("a", f"as I said: hello{' ' * n}"))


def test_local_and_uncounted_sends_are_not_its_business_and_make_no_duplicate():
    toolguard.configure({"local": ["beep"]})

    @metered(kind="send")
    def beep(n):
        return n

    with toolguard.run():
        assert [beep(1) for _ in range(3)] == [1, 1, 1]
        with toolguard.uncounted():
            assert [mail("a") for _ in range(3)] == ["sent"] * 3
        assert_executed(mail("a"))
        assert_refused(mail("a"), "duplicate_send")
        with toolguard.uncounted():
            assert_executed(mail("a"))


# Observing, texts, telemetry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_where_it_observes_the_send_goes_out_and_its_span_says_what_would_have_been(spans, whole):
    if not whole:
        toolguard.configure({"observe": ["duplicate_send"]})
    with toolguard.run(mode="observe" if whole else None) as run:
        assert [mail("a") for _ in range(3)] == ["sent"] * 3
        assert run.usage().by_tool == {"mail": 3}
    marks = [span.attributes.get("toolguard.would_refuse") for span in spans.calls()]
    assert marks == [None, "duplicate_send", "duplicate_send"]
    assert spans.runs()[0].attributes["toolguard.run.would_refuse"] == 2


def test_the_text_says_that_it_has_arrived_and_not_to_reword_it():
    with toolguard.run():
        mail("a")
        refusal = mail("a")
    assert refusal.startswith("mail did NOT execute: ")
    assert "exactly this was sent already" in refusal
    assert "runs once" in refusal
    assert "do not send it again" in refusal
    assert "do not reword it" in refusal


def test_the_text_of_one_in_flight_claims_no_arrival():
    @metered(kind="send")
    def deliver(to):
        return deliver(to)

    with toolguard.run():
        refusal = deliver("a")
    assert refusal.startswith("deliver did NOT execute: ")
    assert "being sent at this moment" in refusal
    assert "arrived" not in refusal
    assert "only if that fails" in refusal


def test_the_text_has_the_limit_in_it():
    with toolguard.run(duplicate_send=3):
        for _ in range(3):
            mail("a")
        assert "runs 3 times at most" in mail("a")


def test_the_refused_span_says_which_rule_and_nothing_of_the_message(spans):
    with toolguard.run():
        mail("secret-recipient", "secret-body")
        mail("secret-recipient", "secret-body")
    span = spans.calls()[-1]
    assert span.attributes["toolguard.refusal.reason"] == "duplicate_send"
    assert span.attributes["toolguard.refusal.rule"] == "sent"
    assert span.attributes["toolguard.refusal.used"] == span.attributes["toolguard.refusal.limit"] == 1
    assert "secret" not in span.to_json()


# Bounds and histories -------------------------------------------------------------------------------------------------


def sends_of(run):
    return next(seat.state for seat in run.ledger._seats if seat.wall.name == "duplicate_send").sent


def test_it_remembers_the_last_thousands_of_sends_and_no_more(lab, tools):
    run = lab(duplicate_send=1)
    total = 20_000
    for n in range(total):
        assert run.attempt(tools.send, n.to_bytes(4, "big")) is None
    run.ledger.sync()
    assert len(sends_of(run)) <= 2 * 4096
    assert run.reason(tools.send, (total - 4000).to_bytes(4, "big")) == "duplicate_send"
    assert run.reason(tools.send, (0).to_bytes(4, "big")) is None  # forgetting lets pass


def test_what_failed_leaves_nothing_behind(lab, tools):
    run = lab(duplicate_send=1)
    for n in range(1000):
        run.attempt(tools.send, n.to_bytes(4, "big"), outcome="error")
        run.attempt(tools.send, n.to_bytes(4, "big"), outcome="not_executed")
    run.ledger.sync()
    assert len(sends_of(run)) == 0


OUTCOMES = ["ok", "error", "cancelled", "closed", "abandoned", "not_executed", "inner"]


@settings(max_examples=300, deadline=None)
@given(
    limit=st.integers(0, 3),
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.just("start"), st.sampled_from(["send", "own_send", "read"]), st.sampled_from([b"a", b"b", b"?" * 17])
            ),
            st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(OUTCOMES)),
        ),
        max_size=60,
    ),
)
def test_it_refuses_as_two_sets_of_what_was_sent_and_what_flies_would(lab, tools, limit, steps):
    run = lab(duplicate_send=limit, own={"own_send": 0})
    flying, sent, open_calls = [], [], []
    for what, which, more in steps:
        if what == "start":
            call = run.start(getattr(tools, which), more)
            why = run.admit(call)
            used = flying.count(more) + sent.count(more)
            if limit and which != "read" and len(more) <= 16 and used >= limit:
                later = more in flying
                retry, rule = ("later", "flying") if later else ("different", "sent")
                assert why == ("duplicate_send", used, limit, retry, rule, False)
                run.end(call, why)
            else:
                assert why is None
                open_calls.append(call)
                if which != "read":
                    flying.append(more)
        elif open_calls:
            call = open_calls.pop(which % len(open_calls))
            inner = more == "inner"
            run.end(call, outcome="ok" if inner else more, inner=inner)
            if call.tool.kind == "send":
                flying.remove(call.identity)
                if more == "ok":
                    sent.append(call.identity)


def test_the_body_runs_in_the_run_that_charged_it():
    seen = []

    @metered(kind="send")
    def deliver(to):
        seen.append(current_run())

    with toolguard.run() as run:
        deliver("a")
        deliver("a")
    assert seen == [run]
