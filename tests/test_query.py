import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolguard import _query
from toolguard._query import available, shape

BASE = "SELECT a.id, b.name FROM orders a JOIN people b ON a.who = b.id WHERE b.city = 'Rome' AND a.total > 10"


def every(*strategies):
    return lambda law: settings(deadline=None)(given(*strategies)(law))


def same(*queries):
    return len({shape(query) for query in queries}) == 1


def distinct(*queries):
    return len({shape(query) for query in queries}) == len(queries)


class Hostile(str):
    __slots__ = ()

    def refuse(self, *_args, **_kwargs):
        raise AssertionError("code of the value ran")

    __eq__ = __ne__ = __len__ = __str__ = __repr__ = __getitem__ = __iter__ = __format__ = __contains__ = refuse
    __hash__ = __getattribute__ = encode = casefold = lower = removeprefix = replace = startswith = strip = refuse


class Meta(type):
    __getattribute__ = Hostile.refuse


class Odd(metaclass=Meta):
    pass


# What changes nothing


@pytest.mark.parametrize(
    "literal",
    [
        "'Rome'", "'O''Hara'", "''", "N'Rome'", "n'x'", "E'it\\'s'", "x'1F'", "X'ff'", "b'0101'", "U&'d\\0061t'", "$$it's$$",
        "$tag$ a 'b' $tag$", "7", "-7", "+7", "- 7", "3.14", ".5", "5.", "1e5", "2.5E+10", "-1e-3", "0x1F", "1_000", "1_000.5",
        "10L", "?", "?1", "%s", "%(city)s", ":city", "$1", "$city", "@city", "-:city",
    ],
)  # fmt: skip
def test_any_literal_and_any_placeholder_in_one_place_are_one_shape(literal):
    assert same("SELECT a FROM t WHERE b = 'Oslo' AND c", f"SELECT a FROM t WHERE b = {literal} AND c")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT A FROM T WHERE B = 1",
        "\ufeff ; select\r\n\ta  from t\n\nwhere b=1 ; ;",
        "select a -- all of them\nfrom t where b = 1",
        "select /* a /* nested */ one */ a from t where b = 1 -- end",
        "select /*+ index(t) */ a from t where b = 1",
        "select a from t # as in MySQL\nwhere b = 1",
        b"select a from t where b = 1",
        bytearray(b"select a from t where b = 2"),
    ],
)
def test_white_space_comments_case_and_empty_statements_change_nothing(text):
    assert same("select a from t where b = 3", text)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("a IN (1)", "a IN (1, 2, 3)"),
        ("a NOT IN ('x')", "a not in('x','y')"),
        ("a IN (?)", "a IN (?, ?, ?)"),
        ("a IN (%s)", "a IN (%s, %s)"),
        ("a IN (1, NULL)", "a IN (NULL, TRUE, -3)"),
        ("(a, b) IN ((1, 2))", "(a, b) IN ((1, 2), (3, 4))"),
        ("a IN (lower('x'))", "a IN (lower('x'), lower('y'))"),
        ("a = ANY(ARRAY[1])", "a = ANY(ARRAY[1, 2, 3])"),
        ("a IN (SELECT b FROM u WHERE c IN (1))", "a IN (SELECT b FROM u WHERE c IN (1, 2))"),
    ],
)
def test_the_length_of_a_list_changes_nothing(short, long):
    assert same(f"SELECT * FROM t WHERE {short} AND z = 1", f"SELECT * FROM t WHERE {long} AND z = 2")


def test_the_number_of_rows_changes_nothing_and_their_nulls_are_values():
    head, tail = "INSERT INTO t (a, b) VALUES ", " ON CONFLICT (a) DO UPDATE SET b = 1"
    assert same(*(head + rows + tail for rows in ("(1, 'x')", "(1, 'x'), (2, NULL)", "(NULL, true),(?, ?),(-3, 'z')")))
    assert same("INSERT INTO t VALUES ROW(1, 2)", "INSERT INTO t VALUES ROW(1, 2), ROW(3, 4)")
    assert distinct(head + "(1, 2)", head + "(1, 2, 3)", head + "(1, DEFAULT)", head + "(1, 2)" + tail)


def test_the_quotes_around_a_name_change_nothing_and_its_case_counts():
    assert same('SELECT "Order" FROM t', "SELECT `Order` FROM t", "SELECT [Order] FROM t")
    assert distinct('SELECT "Order" FROM t', 'SELECT "order" FROM t', 'SELECT "Orders" FROM t')
    assert distinct("SELECT a FROM [dbo].[2020]", "SELECT a FROM [dbo].[2021]", "SELECT a FROM [dbo].[my-t]")


def test_a_minus_between_two_operands_is_structure():
    assert same("SELECT a - 1 FROM t", "SELECT a -1 FROM t", "select a-5 from t")
    assert distinct("SELECT a - 1 FROM t", "SELECT a, -1 FROM t", "SELECT a + 1 FROM t")


# What changes the shape


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t", "SELECT b FROM t"), ("SELECT a FROM t1", "SELECT a FROM t2"), ("", "SELECT 1"),
        ("SELECT a FROM s_2020", "SELECT a FROM s_2021"), ("SELECT a FROM 2020_s", "SELECT a FROM 2021_s"),
        ('SELECT "Col1" FROM t', 'SELECT "Col2" FROM t'), ("SELECT `a b` FROM t", "SELECT `a c` FROM t"),
        ("CALL refund('x', 1)", "CALL charge('x', 1)"), ("EXPLAIN SELECT a FROM t", "EXPLAIN SELECT a FROM u"),
        ("SHOW TABLES LIKE 'x'", "SHOW COLUMNS LIKE 'x'"),
        ("SELECT 1", "SELECT 1; SELECT 1"), ("SELECT f(a, b)", "SELECT f(a), b"), ("SELECT @@version", "SELECT @@rowcount"),
        ("SELECT a FROM t WHERE b IS NULL", "SELECT a FROM t WHERE b IS NOT NULL"),
        ("SELECT a FROM t WHERE b = NULL", "SELECT a FROM t WHERE b = 1"),
        ("SELECT a FROM t WHERE b", "SELECT a FROM t WHERE NOT b"),
        ("SELECT a FROM t WHERE b IN (c)", "SELECT a FROM t WHERE b IN (d)"),
        ("SELECT a FROM t WHERE b IN (1)", "SELECT a FROM t WHERE b IN (SELECT 1)"),
        ("SELECT a FROM {{ ref('orders') }}", "SELECT a FROM {{ ref('people') }}"),
        ("SELECT a FROM @stage1", "SELECT a FROM @stage2"),
        ("SELECT a:b FROM t", "SELECT a:c FROM t"), ("SELECT a::int FROM t", "SELECT a::text FROM t"),
        ("SELECT a % s FROM t", "SELECT a % 2 FROM t"),
        ("SELECT a FROM t", "SELECT a FROM t WHERE b = 1"),
    ],
)  # fmt: skip
def test_names_and_structure_are_the_shape(one, other):
    assert distinct(one, other)


def test_all_of_a_query_counts_up_to_the_bound():
    head = "SELECT " + ", ".join(f"column_{n}" for n in range(450))
    assert len(head) > 5000
    assert distinct(head + " FROM orders", head + " FROM people")


def test_beyond_the_bound_ends_and_length_are_the_shape_and_the_middle_is_not_read():
    filling = "x" * 70_000
    assert same(f"a{filling}1{filling}b", f"a{filling}2{filling}b")
    assert distinct(f"a{filling}", f"b{filling}", f"a{filling}x", f"a{filling[1:]}b")
    assert distinct(f"a{filling}".encode(), f"b{filling}".encode())
    assert distinct("x" * 32_767 + "a" + filling, "x" * 32_767 + "b" + filling, "x" * 32_768 + filling)


# Whatever comes


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "-- only a comment", "/* never ends", "SELECT 'never ends", 'SELECT "never ends', "SELECT $$never ends",
        "SELECT x'zz'", "SELECT \x00 FROM \ud800", "SELECT full\uff37idth FROM t\u3000WHERE \u0131 = 1", "{{ a", "{% if x %}",
        "IN (", "VALUES (1),", "VALUES (1)]", ")]}", "[[", "in (in (in (1", "\\d+ t", "'''", "$$$", "%(", "@@", ":",
        "(" * 5000 + ")" * 5000, "(" * 65536, "SELECT a IN (" * 5000, "[" * 30000 + "]" * 30000, "explain begin " * 4000,
        "SELECT 1 AND " * 5000, "/*" * 30000, "'\\x" * 20000, "$a " * 20000, "x" * 2_000_000, "a IN (" + "1," * 32000 + "1)",
    ],
)  # fmt: skip
def test_every_text_has_a_shape(text):
    assert len(shape(text)) == 16
    assert shape(text) == shape(text)
    assert len(shape(text.encode("utf-8", "surrogatepass"))) == 16


def test_what_cannot_be_tokenised_still_loses_its_literals():
    assert same("SELECT a FROM t WHERE b = 7 AND c = 'never ends", "select a from t where b=8 and c = 'other \n end")
    assert distinct("SELECT a FROM t WHERE b = 'never ends", "SELECT a FROM u WHERE b = 'never ends")
    assert same("SELECT 'it\\'s', 1", "SELECT 'it\\'s not', 2", "SELECT 'x', 3")
    assert same("SELECT 'C:\\'", "SELECT 'D:\\files\\'")


def test_what_is_not_text_counts_by_its_type():
    shapes = [
        shape(value) for value in (None, 7, 1.5, True, object(), ["SELECT 1"], memoryview(b"x"), int, Odd, Odd(), "SELECT 1")
    ]
    assert {len(found) for found in shapes} == {16}
    assert len(set(shapes)) == len(shapes)


def test_values_of_one_type_are_one_shape_and_of_two_types_two():
    assert same(1, 2)
    assert same(Odd(), Odd())


def test_a_subclass_is_read_as_the_text_it_holds_and_none_of_its_code_runs():
    assert shape(Hostile("SELECT 1")) == shape("select 2")


@every(st.one_of(st.text(), st.binary(), st.text(alphabet="'\"`$[](){}%:@?-+*/#\\., \n0xeINVALUESselctfrom;")))
def test_any_text_or_bytes_have_a_shape(sql):
    assert len(shape(sql)) == 16


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_raised_when_reading_fails(monkeypatch, known):
    def fail(_text):
        raise RecursionError

    monkeypatch.setattr(_query, "_rewritten" if known else "_digest", fail)
    assert len(shape(f"SELECT nobody_asked_this_{known}")) == 16


LITERALS = st.one_of(
    st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"])).map(
        lambda text: "'" + text.replace("'", "''") + "'"
    ),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.binary().map(lambda data: f"x'{data.hex()}'"),
    st.sampled_from(["?", "%s", ":name", "$1", "@p"]),
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"n_{name}")


@every(LITERALS, LITERALS)
def test_literals_never_change_the_shape(one, other):
    template = "SELECT a FROM t WHERE b = {} AND c BETWEEN {} AND {} OR f({}, {}) LIMIT {}"
    assert same(template.format(*[one] * 6), template.format(*[other] * 6))


@every(st.lists(st.sampled_from([" ", "\n", "\t ", " /* c */ ", " -- c\n", "\r\n"]), min_size=22, max_size=22))
def test_gaps_never_change_the_shape(gaps):
    assert same(BASE, "".join(word + gap for word, gap in zip(BASE.split(" "), gaps, strict=False)))


@every(st.lists(st.booleans(), min_size=len(BASE), max_size=len(BASE)))
def test_case_never_changes_the_shape(swap):
    assert same(BASE, "".join(c.swapcase() if up else c for c, up in zip(BASE, swap, strict=True)))


@every(st.lists(LITERALS, min_size=1), st.lists(LITERALS, min_size=1))
def test_lists_of_literals_never_change_the_shape(one, other):
    template = "SELECT a FROM t WHERE b IN ({0}) UNION VALUES ({1}) ORDER BY 1"
    assert same(*(template.format(", ".join(items), "), (".join(items)) for items in (one, other)))


@every(NAMES, NAMES, NAMES, NAMES)
def test_table_and_column_names_are_the_shape(table, column, other_table, other_column):
    query = "SELECT {1} FROM {0} WHERE {1} = 1"
    expected = (table, column) == (other_table, other_column)
    assert same(query.format(table, column), query.format(other_table, other_column)) is expected


# The tokenizer


def test_sqlglot_is_found_without_being_imported_and_imported_only_when_a_shape_is_asked_for():
    code = (
        "import sys; from toolguard import _query; assert _query.available(); assert 'sqlglot' not in sys.modules;"
        "_query.shape('SELECT 1'); assert 'sqlglot' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("module", [None, object()])
def test_a_missing_sqlglot_is_told_and_shapes_are_still_told_apart(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "sqlglot", module)
    _query._grammar.cache_clear()
    assert not available()
    assert same("SELECT x FROM bare WHERE b IN (1, -2)", "select X from bare where b in ('it''s') -- 1")
    assert distinct("SELECT x FROM bare_a", "SELECT x FROM bare_b")


def test_a_failed_import_is_tried_again(monkeypatch):
    _query._grammar.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "sqlglot", None)
        assert _query._rewritten("a /* b */") == "a /* b */"
    assert _query._rewritten("a /* b */") == "a"


def test_what_is_remembered_is_bounded_and_holds_no_text():
    for n in range(3 * _query._KEPT):
        shape(f"SELECT column_{n} FROM t")
    assert len(_query._known) <= _query._KEPT
    assert {(type(key), len(key), len(value)) for key, value in _query._known.items()} == {(bytes, 16, 16)}


def test_a_repeated_query_is_not_read_again(monkeypatch):
    first = shape("SELECT asked_twice FROM t")
    monkeypatch.setattr(_query, "_rewritten", None)
    assert shape("SELECT asked_twice FROM t") == first


def test_threads_agree_on_every_shape():
    queries = [f"SELECT c{n % 7} FROM t WHERE a IN ({n}) AND b = '{n}' AND d{n % 3} > {n}" for n in range(400)]
    alone = [shape(query) for query in queries]
    _query._known.clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shape, queries)) == alone
