"""The same query again and again with other literals."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from tests.limits import QUIET
from toolguard import NotExecuted, metered
from toolguard.testing import assert_executed, assert_refused

pytest.importorskip("sqlglot")


def open_run(*agent, **limits):
    return toolguard.run(*agent, **{**QUIET, **limits})


@metered(kind="read", query=("ref", "sql"))
def ask(ref, sql):
    return sql


@metered(kind="read", query="sql")
def ask_one(sql):
    return sql


def test_the_11th_query_that_differs_in_its_literals_alone_is_refused():
    with open_run() as run:
        said = [ask("events.csv", f"SELECT * FROM t WHERE ts = '{n}' AND n < {n}") for n in range(13)]
        for answer in said[:10]:
            assert_executed(answer)
        for answer in said[10:]:
            assert_refused(answer, "query_loop")
            assert (answer.used, answer.limit, answer.retry) == (10, 10, "different")
        assert run.usage().executed == 10


def test_spacing_case_comments_and_the_length_of_a_list_do_not_hide_a_query():
    spellings = [
        "SELECT a FROM t WHERE b IN (1)",
        "select a  from t where b in (1, 2, 3)",
        "SELECT a FROM t -- the third\nWHERE b IN (4,5)",
        "SELECT a FROM t WHERE b /* again */ IN (6)",
    ]
    with open_run(query_loop=3):
        for sql in spellings[:3]:
            assert_executed(ask_one(sql))
        assert_refused(ask_one(spellings[3]), "query_loop")


def test_another_structure_another_table_and_another_file_are_other_queries():
    with open_run(query_loop=1):
        assert_executed(ask("a.csv", "SELECT a FROM t WHERE b = 1"))
        assert_executed(ask("b.csv", "SELECT a FROM t WHERE b = 1"))
        assert_executed(ask("a.csv", "SELECT a FROM u WHERE b = 1"))
        assert_executed(ask("a.csv", "SELECT a FROM t WHERE b = 1 AND c = 2"))
        assert_executed(ask("a.csv", "SELECT c FROM t WHERE b = 1"))
        assert_refused(ask("a.csv", "SELECT a FROM t WHERE b = 2"), "query_loop")


def test_two_tools_that_ask_the_same_of_the_same_data_share_the_count():
    @metered(kind="read", query=("ref", "sql"))
    def ask_slowly(ref, sql):
        return sql

    with open_run(query_loop=2):
        assert_executed(ask("a.csv", "SELECT a FROM t WHERE b = 1"))
        assert_executed(ask_slowly("a.csv", "SELECT a FROM t WHERE b = 2"))
        assert_refused(ask("a.csv", "SELECT a FROM t WHERE b = 3"), "query_loop")


def test_a_callable_says_what_the_query_is_and_none_means_there_is_none():
    @metered(kind="read", query=lambda given: given["options"].get("sql"))
    def search(options):
        return "rows"

    with open_run(query_loop=1):
        assert_executed(search({"sql": "SELECT 1"}))
        assert_refused(search({"sql": "SELECT 2"}), "query_loop")
        for _ in range(5):
            assert_executed(search({}))


def test_a_declared_query_is_counted_for_a_send_too():
    @metered(kind="send", query="sql")
    def write(sql):
        return sql

    with open_run(query_loop=2, delivery=0):
        assert_executed(write("DELETE FROM t WHERE a = 1"))
        assert_executed(write("DELETE FROM t WHERE a = 2"))
        assert_refused(write("DELETE FROM t WHERE a = 3"), "query_loop")


def test_a_tool_that_declares_no_query_is_not_its_business():
    @metered(kind="read")
    def run_sql(sql):
        return sql

    with open_run(query_loop=1):
        for n in range(12):
            assert_executed(run_sql(f"SELECT {n}"))


def test_a_limit_of_0_means_no_limit():
    with open_run(query_loop=0, per_tool=0, aggregate=0):
        for n in range(50):
            assert_executed(ask_one(f"SELECT {n}"))


def test_a_query_that_says_nothing_ran_is_not_counted():
    left = [3]

    @metered(kind="read", query="sql")
    def picky(sql):
        if left[0]:
            left[0] -= 1
            raise NotExecuted
        return sql

    with open_run(query_loop=1):
        for n in range(3):
            assert_refused(picky(f"SELECT {n}"), "gate")
        assert_executed(picky("SELECT 4"))
        assert_refused(picky("SELECT 5"), "query_loop")


def test_a_failing_query_stays_charged():
    @metered(kind="read", query="sql")
    def broken(sql):
        raise TimeoutError

    with open_run(query_loop=2):
        for n in range(2):
            with pytest.raises(TimeoutError):
                broken(f"SELECT {n}")
        assert_refused(broken("SELECT 3"), "query_loop")


def test_the_text_names_what_was_used_the_limit_and_what_to_ask_instead():
    with open_run(query_loop=2):
        ask_one("SELECT 1")
        ask_one("SELECT 2")
        refusal = ask_one("SELECT 3")
    assert refusal.startswith("ask_one did NOT execute: ")
    assert "has run 2 times" in refusal
    assert "limit is 2" in refusal
    assert "all the values at once (IN, GROUP BY or a join)" in refusal


@settings(max_examples=200, deadline=None)
@given(
    limit=st.integers(0, 3),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["query", "query_send", "read"]),
            st.sampled_from([None, b"a", b"b", b"c"]),
            st.sampled_from(["ok", "error", "cancelled", "not_executed"]),
        ),
        max_size=40,
    ),
)
def test_it_refuses_as_a_plain_count_by_shape_would(lab, tools, limit, calls):
    run, ran = lab(query_loop=limit), Counter()
    for name, shape, outcome in calls:
        counted = limit and name != "read" and shape is not None
        why = run.attempt(getattr(tools, name), query=shape, outcome=outcome)
        if counted and ran[shape] >= limit:
            assert why == ("query_loop", ran[shape], limit, "different", None, False)
        else:
            assert why is None
            if counted:
                ran[shape] += outcome != "not_executed"
