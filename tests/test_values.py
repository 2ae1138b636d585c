"""The values that the rooms hand to each other."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolguard._values import Call, Recent, Tally, Tool, Usage, canonical

# Recent ---------------------------------------------------------------------------------------------------------------

KEYS = st.integers(0, 12)


@given(size=st.integers(1, 5), steps=st.lists(st.tuples(KEYS, st.integers()) | st.just("clear"), max_size=80))
def test_the_last_keys_are_all_there_with_their_last_values_and_never_more_than_twice_as_many(size, steps):
    recent, order, values = Recent(size), OrderedDict(), {}
    for step in steps:
        if step == "clear":
            recent.clear()
            order.clear()
            values.clear()
            assert len(recent) == 0
            continue
        key, value = step
        recent.put(key, value)
        order[key] = values[key] = value
        order.move_to_end(key)
        for kept in list(order)[-size:]:
            assert recent.get(kept) == values[kept]
        held = list(recent)
        assert len(held) == len(set(held)) == len(recent) <= 2 * size
        for known in held:
            assert recent.get(known) == values[known]  # what is remembered is never an older value


def test_a_key_that_was_never_put_or_is_forgotten_has_no_value():
    recent = Recent(2)
    assert recent.get("a") is None
    for key in "abcde":
        recent.put(key, key)
    assert recent.get("a") is None
    assert recent.get("e") == "e"


def test_a_value_of_0_is_a_value():
    recent = Recent(1)
    recent.put("a", 0)
    assert recent.get("a") == 0
    recent.put("b", 1)
    assert recent.get("a") == 0


def test_a_newer_value_hides_the_older_one_of_the_generation_before():
    recent = Recent(1)
    recent.put("a", 1)
    recent.put("b", 1)  # "a" is in the older generation now
    recent.put("a", 2)
    assert recent.get("a") == 2
    assert list(recent).count("a") == 1


# Tally ----------------------------------------------------------------------------------------------------------------


READ = Tool("read", "read", "read")
POLLS = Tool("polls", "polls", "read", polls=True)
SEND = Tool("send", "send", "send")


def settled(tally, digest, identity=b"a", *, at=1, started=None, tool=READ):
    """Observe one call that was settled at `at`; by default it started just before."""
    call = Call(tool, None, identity, None, 0, at - 1 if started is None else started)
    call.digest = digest
    tally.observe(call, at)
    return call


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([None, b"1", b"2"])), max_size=60))
def test_an_outcome_is_fresh_the_first_time_and_always_where_it_cannot_be_measured(seen):
    tally, before, news = Tally(), set(), 0
    for at, (identity, digest) in enumerate(seen, 1):
        fresh = digest is None or (identity, digest) not in before
        assert settled(tally, digest, identity, at=at).fresh == fresh
        news += fresh
        assert tally.news == news
        if digest is not None:
            before.add((identity, digest))
        assert tally.knows(identity) == any(identity == known for known, _ in before)
    assert tally.shared == list(dict.fromkeys(i + d for i, d in seen if d is not None))


def test_what_a_tally_remembers_is_bounded_and_what_it_forgot_is_new():
    tally = Tally()
    outcomes = [n.to_bytes(4, "big") for n in range(20_000)]
    for outcome in outcomes:
        assert settled(tally, outcome, b"id").fresh
    for outcome in outcomes[-8000:]:
        assert not settled(tally, outcome, b"id").fresh
    assert settled(tally, outcomes[0], b"id").fresh
    assert len(tally._new) + len(tally._old) <= 2 * 8192 + 2
    assert len(tally.shared) <= 1024 + 8192


def test_a_call_that_started_before_the_same_outcome_was_settled_is_its_twin():
    tally = Tally()
    assert not settled(tally, b"1", at=5, started=1).twin
    assert settled(tally, b"1", at=9, started=4).twin
    assert settled(tally, b"1", at=12, started=8).twin  # the one before it is the twin, settled at 9
    assert not settled(tally, b"1", at=15, started=13).twin
    assert not settled(tally, b"2", at=16, started=2).twin  # another outcome has no other under its key


def test_only_what_may_be_a_repetition_is_the_last_outcome():
    tally = Tally()
    settled(tally, b"1")
    assert (tally.before, tally.last) == (b"", b"a1")
    settled(tally, b"1", at=2)
    assert (tally.before, tally.last) == (b"a1", b"a1")
    settled(tally, b"5", tool=POLLS, identity=b"p", at=3)
    assert tally.last == b""  # a poll with something new is progress
    settled(tally, b"1", at=4)
    settled(tally, b"5", tool=POLLS, identity=b"p", at=5)
    assert tally.last == b"a1"  # one without is nothing
    settled(tally, b"s", tool=SEND, identity=b"s", at=6)
    assert tally.last == b""
    settled(tally, b"1", at=7)
    settled(tally, None, at=8)
    assert (tally.newest, tally.last) == (b"a", b"")


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prefixes", "folded"),
    [
        ("search", (), "search"),
        ("Search-Mail", (), "search_mail"),
        ("search.mail", (), "search_mail"),
        ("SEARCH_MAIL", (), "search_mail"),
        ("functions.search", ("functions.",), "search"),
        ("functions_search", ("functions.",), "search"),
        ("Functions-Search", ("functions.",), "search"),
        ("tools.functions.search", ("functions.", "tools."), "functions_search"),
        ("functions.", ("functions.",), "functions_"),
        ("search", ("",), "search"),
        ("mcp__files__read", ("mcp__files__",), "read"),
        ("research", ("search",), "research"),
    ],
)
def test_a_name_is_folded_to_the_one_it_is_counted_under(name, prefixes, folded):
    assert canonical(name, prefixes) == folded


NAME = st.text("abAB-_.", min_size=1, max_size=12)


@given(name=NAME, prefixes=st.lists(st.text("abAB-_.", max_size=4), max_size=3))
def test_no_spelling_of_a_name_escapes_its_count(name, prefixes):
    folded = canonical(name, prefixes)
    assert folded
    for spelling in (name.upper(), name.lower(), name.replace("-", "."), name.replace("_", "-")):
        assert canonical(spelling, prefixes) == folded


@given(NAME)
def test_folding_a_folded_name_changes_nothing(name):
    assert canonical(canonical(name)) == canonical(name)


# Usage ----------------------------------------------------------------------------------------------------------------


def test_usage_as_a_dict_is_plain_and_a_copy():
    usage = Usage(2, 1, {"a": 2}, {"per_tool": 1}, 30, 4, 0.5)
    plain = usage.to_dict()
    counts = {"executed": 2, "refused": 1, "by_tool": {"a": 2}, "by_reason": {"per_tool": 1}}
    assert plain == {**counts, "chars": 30, "tokens": 4, "cost_usd": 0.5}
    plain["by_tool"]["a"] = 9
    assert usage.by_tool == {"a": 2}
    nothing = {"executed": 0, "refused": 0, "by_tool": {}, "by_reason": {}}
    assert Usage().to_dict() == {**nothing, "chars": 0, "tokens": 0, "cost_usd": 0.0}
