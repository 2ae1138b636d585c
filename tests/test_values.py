"""The values that the rooms hand to each other."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolguard._values import Recent, Tally, Usage, canonical

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


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([None, b"1", b"2"])), max_size=60))
def test_an_outcome_is_fresh_the_first_time_and_always_where_it_cannot_be_measured(seen):
    tally, before = Tally(), set()
    for identity, digest in seen:
        tally.observe(identity, digest)
        assert tally.fresh == (digest is None or (identity, digest) not in before)
        before.add((identity, digest))


def test_what_a_tally_remembers_is_bounded_and_what_it_forgot_is_new():
    tally = Tally()
    outcomes = [n.to_bytes(4, "big") for n in range(20_000)]
    for outcome in outcomes:
        tally.observe(b"id", outcome)
        assert tally.fresh
    for outcome in outcomes[-8192:]:
        tally.observe(b"id", outcome)
        assert not tally.fresh
    tally.observe(b"id", outcomes[0])
    assert tally.fresh
    assert len(tally._new) + len(tally._old) <= 2 * 8192


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
    usage = Usage(2, 1, {"a": 2}, {"per_tool": 1})
    plain = usage.to_dict()
    assert plain == {"executed": 2, "refused": 1, "by_tool": {"a": 2}, "by_reason": {"per_tool": 1}}
    plain["by_tool"]["a"] = 9
    assert usage.by_tool == {"a": 2}
    assert Usage().to_dict() == {"executed": 0, "refused": 0, "by_tool": {}, "by_reason": {}}
