"""Text volume and trimming: what fits, says so, keeps its type, and runs nothing of the value's own."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import json
import os
import pathlib
import pickle
import time
import uuid
from typing import Any, ClassVar, NamedTuple

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolguard._text import FLOOR, Trimmed, trim, volume

WHY = "results are limited to 50 000 characters"
LONG_WHY = "this clause is longer than there is room for, " * 5


def cut(value: Any, limit: int = FLOOR, why: str = WHY) -> Trimmed:
    """Trim, with what holds for every trimming."""
    trimmed = trim(value, limit, why)
    assert trimmed is not None
    assert volume(trimmed.value) == trimmed.chars <= limit
    assert 0 <= trimmed.kept <= trimmed.of
    assert type(trimmed.value) is type(value)
    return trimmed


def notice_of(value: Any) -> str | None:
    """Return the notice at the end of a trimmed value, if there is one."""
    if isinstance(value, str):
        return value.rpartition("\n… [")[2] if value.endswith("]") and "\n… [cut to" in value else None
    last = list(value.values() if isinstance(value, dict) else value)[-1:]
    if isinstance(value, set | frozenset):
        last = [item for item in value if isinstance(item, str) and "cut to" in item]
    for item in last:
        notice = item.get("cut") if isinstance(item, dict) else item
        if isinstance(notice, str) and "cut to" in notice:
            return notice
    return None


class Point(NamedTuple):
    x: int
    y: str


@dataclasses.dataclass
class Record:
    x: int
    y: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: str


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: str


class Color(enum.Enum):
    RED = "r" * 1000


class Weekday(enum.IntEnum):
    MONDAY = 1


class Level(enum.StrEnum):
    HIGH = "high"


STAT = os.stat_result([10**30] * 10)


class Hostile:
    """Every way in which a value can be asked for something raises and tells."""

    touched: ClassVar[list[str]] = []

    def _raise(self, *_: object) -> Any:
        self.touched.append("hostile")
        raise RuntimeError

    __len__ = __iter__ = __repr__ = __str__ = __eq__ = __hash__ = __getattr__ = __bool__ = __getitem__ = _raise
    __next__ = __index__ = __int__ = __float__ = __contains__ = __reduce_ex__ = __format__ = keys = items = _raise


def hostile(base):
    """Make a subclass of a built-in type, each method of which raises and tells."""

    def method(*_: object, **__: object) -> Any:
        Hostile.touched.append(base.__name__)
        raise RuntimeError

    names = [name for name in dir(base) if callable(getattr(base, name)) and name not in {"__class__", "__new__", "__init__"}]
    return type(base.__name__, (base,), dict.fromkeys([*names, "__getattr__"], method) | {"__init_subclass__": lambda: None})


@pytest.fixture(autouse=True)
def no_code_of_a_value_runs():
    Hostile.touched.clear()
    yield
    assert Hostile.touched == []


# Volume ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "chars"),
    [
        ("", 0),
        ("héllo", 5),
        ("🙂" * 3, 3),
        ("\ud800", 1),
        (True, 4),
        (False, 5),
        (None, 4),
        (0, 1),
        (-120, 4),
        (1.5, 3),
        (float("inf"), 8),
        (float("-inf"), 9),
        (float("nan"), 3),
        ([], 2),
        (["ab", "c"], 2 + 4 + 3),
        (("ab", "c"), 2 + 4 + 3),
        ({"ab", "c"}, 2 + 4 + 3),
        (frozenset({"ab", "c"}), 2 + 4 + 3),
        ({"key": "value", 7: None}, 2 + 12 + 9),
        ([[["a"]]], 4 + 4 + 5),
        (collections.OrderedDict(a="b"), 2 + 6),
        (collections.defaultdict(list, a="b"), 2 + 6),
        (Point(12, "abc"), 2 + 4 + 5),
        (Record(1, "abc"), 2 + 6 + 8),
        (Slotted("abc"), 2 + 8),
        (Level.HIGH, 4),
        (Weekday.MONDAY, 1),
        (Color.RED, 3),
        (dt.date(2026, 1, 1), 10),
        (uuid.UUID(int=7), 36),
        (pathlib.PurePosixPath("/a/b"), 4),
    ],
)
def test_volume_is_what_the_text_in_a_value_comes_to(value, chars):
    assert volume(value) == chars


@pytest.mark.parametrize(
    "value",
    [dt.datetime.now(dt.UTC), dt.time(1), dt.timedelta(1), decimal.Decimal("1.10"), pathlib.Path("/a"), Model(x="a", y="b")],
)
def test_a_value_that_stands_for_a_short_text_is_small(value):
    size = volume(value)
    assert size is not None
    assert 0 < size < 150
    assert volume([value]) == size + 4


def test_a_model_counts_its_fields_and_its_extra_ones():
    assert volume(Model(x="a" * 100, more="b" * 1000)) in range(1100, 1150)


@pytest.mark.parametrize("digits", [1, 9, 18, 19, 20, 100, 4000])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_int_counts_its_digits_or_one_more(digits, sign):
    for value in (10 ** (digits - 1), 10**digits - 1):
        exact = len(str(sign * value))
        assert volume(sign * value) in {exact, exact + (digits > 19)}


def test_an_int_with_more_digits_than_can_be_printed_is_measured_at_once():
    started = time.perf_counter()
    assert volume(10**5000) in {5001, 5002}
    assert volume(1 << 10_000_000) in range(3_010_290, 3_010_310)
    assert time.perf_counter() - started < 0.5


def test_a_decimal_counts_its_digits_roughly():
    size = volume(decimal.Decimal("1" * 100_000))
    assert size is not None
    assert 100_000 <= size < 110_000


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"bytes"),
        memoryview(b"bytes"),
        object(),
        iter([1]),
        range(3),
        len,
        int,
        1j,
        collections.deque([1]),
        {}.keys(),
    ],
)
def test_what_holds_no_text_that_can_be_counted_has_no_volume_and_cannot_be_cut(value):
    for holder in (value, [value], (1, value), {"a": value}, Record(1, value), [[{"x": [value]}]]):
        assert volume(holder) is None
        assert trim(holder, FLOOR, WHY) is None


def test_an_object_of_which_all_raises_has_no_volume():
    for holder in (Hostile(), [Hostile()], {"a": (Hostile(),)}, Record(1, Hostile())):
        assert volume(holder) is None
        assert trim(holder, FLOOR, WHY) is None


def test_a_generator_is_not_consumed():
    generator = (i for i in range(3))
    for holder in (generator, [generator], {"rows": generator}):
        assert volume(holder) is None
        assert trim(holder, FLOOR, WHY) is None
    assert list(generator) == [0, 1, 2]


def test_a_value_that_contains_itself_has_no_volume():
    loop: list[Any] = []
    loop.append(loop)
    ring: dict[str, Any] = {"a": "x" * 1000}
    ring["self"] = [ring]
    for value in (loop, ring):
        assert volume(value) is None
        assert trim(value, FLOOR, WHY) is None


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: Record(1, x)])
def test_a_value_has_a_volume_up_to_32_levels(wrap):
    value: Any = "text"
    for _ in range(32):
        value = wrap(value)
    assert volume(value) is not None
    assert volume(wrap(value)) is None
    for _ in range(100_000):
        value = wrap(value)
    assert volume(value) is None
    assert trim(value, FLOOR, WHY) is None
    while isinstance(value, list | tuple | dict | Record):  # taken apart, as freeing it at once is deep as well
        value = value.y if isinstance(value, Record) else next(iter(value.values() if isinstance(value, dict) else value))


def test_a_value_has_a_volume_up_to_a_million_nodes():
    assert volume([0] * 1_000_000) == 2 + 3 * 1_000_000
    assert volume([0] * 1_000_001) is None
    shared: Any = ["x"] * 10
    for _ in range(20):
        shared = [shared] * 10
    assert volume(shared) is None


def test_ten_thousand_records_are_measured_and_cut_quickly():
    records = [{"id": i, "name": "n" * 80, "ok": True} for i in range(10_000)]
    for value in (records, json.dumps(records), "x" * 1_000_000):
        started = time.thread_time()
        cut(value, 50_000)
        assert time.thread_time() - started < 0.5  # about 0.03; with work that is quadratic, minutes


# Texts ----------------------------------------------------------------------------------------------------------------


def test_a_text_is_cut_to_a_prefix_and_a_last_line_that_says_so():
    text = "0123456789" * 100
    trimmed = cut(text)
    assert trimmed.unit == "characters"
    assert trimmed.of == 1000
    assert trimmed.value == (
        text[: trimmed.kept]
        + f"\n… [cut to {trimmed.kept} of 1000 characters; {WHY}; ask for fewer records, a filter, or a page]"
    )


@given(st.text(min_size=FLOOR + 1), st.integers(FLOOR, 400), st.text())
def test_a_cut_text_is_a_prefix_and_the_notice(text, limit, why):
    trimmed = cut(text * 3, limit, why)
    assert 0 < trimmed.kept < trimmed.of
    assert trimmed.value.startswith((text * 3)[: trimmed.kept] + "\n… [cut to ")
    assert len(trimmed.value) > FLOOR - 64  # nothing is given away but what keeps a character whole


FAMILY = "👩\u200d👩\u200d👧\u200d👦"
CLUSTERS = [FAMILY, "e\u0301", "🇩🇪", "👍🏽", "❤\ufe0f", "🏴\U000e0067\U000e0062\U000e007f", "漢", "🙂", "\r\n", "1\ufe0f\u20e3"]


@pytest.mark.parametrize("offset", range(1, 41))
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_character_falls_apart_wherever_the_cut_is(cluster, offset):
    text = cluster * 300
    trimmed = cut(text, FLOOR + offset)
    assert trimmed.kept % len(cluster) == 0
    assert trimmed.value.startswith(text[: trimmed.kept])
    trimmed.value.encode()


@pytest.mark.parametrize("text", ["\u0301" * 1000, "\u200d" * 1000, "🇩" * 1001, "\udc00" * 1000, "\ud800\udc00" * 500])
def test_a_text_of_nothing_but_joints_is_cut_too(text):
    assert cut(text).kept > 0


def test_a_text_that_encodes_still_encodes_though_the_reason_does_not():
    cut("x" * 1000, why="\ud800" + WHY).value.encode()


def test_a_long_reason_is_shortened_in_the_notice():
    trimmed = cut("x" * 100_000, why=LONG_WHY)
    assert "this clause is longer than there is room for, this" in trimmed.value
    assert "…; ask for fewer" in trimmed.value
    assert trimmed.kept > 40


def test_a_subclass_of_text_is_cut_to_a_text():
    text = hostile(str)("x" * 1000)
    trimmed = trim(text, FLOOR, WHY)
    assert trimmed is not None
    assert type(trimmed.value) is str
    assert len(trimmed.value) == trimmed.chars == volume(trimmed.value)


# Texts that are JSON --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("limit", [FLOOR, 2000, 2001, 4096])
def test_json_of_many_records_stays_json_and_counts_them(limit, indent):
    text = json.dumps([{"id": i, "title": f"record {i}"} for i in range(500)], indent=indent)
    trimmed = cut(text, limit)
    records = json.loads(trimmed.value)
    assert records[:-1] == json.loads(text)[: trimmed.kept]
    assert records[-1] == {
        "cut": f"cut to {trimmed.kept} of 500 items; {WHY}; ask for fewer records, a filter, or a page",
    }
    assert trimmed[2:] == (len(records) - 1, 500, "items")
    assert trimmed.chars > limit - 80  # there was no room for one more


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("offset", range(40))
def test_json_with_one_long_text_is_cut_in_the_text(offset, ascii_only):
    notes = f'{FAMILY}"\\\n\t🙂é' * 3000
    text = json.dumps({"id": 7, "notes": notes, "after": None}, ensure_ascii=ascii_only)
    trimmed = cut(text, 600 + offset)
    fields = json.loads(trimmed.value)
    assert list(fields) == ["id", "notes", "cut"]
    kept, _, mark = fields["notes"].rpartition("… [")
    assert notes.startswith(kept)
    assert mark == f"cut to {len(kept)} of {len(notes)} characters]"
    assert trimmed[2:] == (2, 3, "fields")
    assert kept[-1] != "\u200d"
    trimmed.value.encode()


def test_json_of_one_record_larger_than_the_limit_keeps_the_beginning_of_it():
    trimmed = cut(json.dumps([{"notes": "x" * 50_000}]), 1000)
    record, notice = json.loads(trimmed.value)
    assert record["notes"].startswith("x" * 500)
    assert notice["cut"].startswith("cut to 1 of 1 item, the last one in part;")


def test_json_keeps_its_numbers_and_spacing_to_the_letter():
    text = ' {"total" : 1.10, "big": 1E400,"rows":[' + ", ".join(['{"a":1.50}'] * 500) + "]}"
    trimmed = cut(text, 500)
    assert trimmed.value.startswith('{"total" : 1.10, "big": 1E400,"rows":[{"a":1.50}, {"a":1.50}, ')
    rows = json.loads(trimmed.value)["rows"]
    assert rows[-1] == {"cut": f"cut to {len(rows) - 1} of 500 items"}


def test_json_of_texts_ends_in_a_text():
    items = json.loads(cut(json.dumps(["name"] * 500)).value)
    assert set(items[:-1]) == {"name"}
    assert items[-1].startswith(f"… [cut to {len(items) - 1} of 500 items;")


def test_json_with_a_field_named_cut_keeps_it():
    fields = json.loads(cut(json.dumps({"cut": 1, "cut_": 2, "cut_2": 3, "text": "x" * 1000}), 400).value)
    assert fields["cut"] == 1
    assert fields["cut_3"].startswith("cut to 4 of 4 fields, the last one in part;")


@pytest.mark.parametrize(
    "text", [" " * 5000 + "[1]", '{"a": 1}' + "\n" * 5000, "[1, 2, 3" + " " * 5000 + "]", '{"a": {"b": 1' + " " * 5000 + "}}"]
)
def test_json_that_is_mostly_white_space_loses_only_that_or_says_so(text):
    trimmed = cut(text)
    assert (json.loads(trimmed.value) == json.loads(text)) == ("cut" not in trimmed.value)


@pytest.mark.parametrize(
    "text", ["[not json] " * 100, "{" * 1000, "[" * 100_000, '["' + "x" * 1000 + '"', "[1]" * 500, "[" + "1" * 5000 + "]"]
)
def test_what_only_begins_like_json_is_cut_as_a_text(text):
    trimmed = cut(text)
    assert trimmed.unit == "characters"
    assert trimmed.value.startswith(text[: trimmed.kept] + "\n… [cut to")


def test_json_too_large_to_be_recognised_is_cut_as_a_text():
    assert cut(json.dumps(["x" * 99] * 41_000)).unit == "characters"


def test_deep_json_stays_json():
    depth = 300
    text = "[" * depth + ",".join(["1"] * 1000) + "]" * depth
    assert json.loads(cut(text, 1000).value)[-1]["cut"].startswith("cut to")


def test_json_whose_first_key_leaves_no_room_keeps_only_the_notice():
    trimmed = cut(json.dumps({"k" * 1000: 1}))
    assert list(json.loads(trimmed.value)) == ["cut"]
    assert trimmed.kept == 0


# Containers -----------------------------------------------------------------------------------------------------------


def test_a_list_keeps_whole_records_from_the_front_and_a_last_one_that_says_so():
    records = [{"id": i, "name": "n" * 50} for i in range(100)]
    trimmed = cut(records, 1000)
    *kept, last = trimmed.value
    assert all(a is b for a, b in zip(kept, records, strict=False))
    assert last == {"cut": f"cut to {len(kept)} of 100 items; {WHY}; ask for fewer records, a filter, or a page"}
    assert trimmed[2:] == (len(kept), 100, "items")


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_a_row_of_texts_ends_in_a_text(kind):
    trimmed = cut(kind(f"name {i}" for i in range(500)), 500)
    (notice,) = [item for item in trimmed.value if "cut to" in item]
    assert len(trimmed.value) == trimmed.kept + 1 > 10
    if kind in {list, tuple}:
        assert trimmed.value[-1] == notice


def test_a_set_of_numbers_keeps_numbers():
    trimmed = cut(set(range(1000)))
    assert len([item for item in trimmed.value if type(item) is int]) == trimmed.kept > 5


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_record_larger_than_the_limit_is_cut_inside(kind):
    trimmed = cut(kind([{"notes": "x" * 50_000}]), 1000)
    record, notice = trimmed.value
    assert record["notes"].startswith("x" * 500)
    assert "… [cut to " in record["notes"]
    assert "1 of 1 item, the last one in part" in notice["cut"]


def test_a_dict_keeps_whole_fields_and_cuts_the_first_that_does_not_fit():
    rows = [{"a": i} for i in range(500)]
    trimmed = cut({"total": 500, "rows": rows, "next": 2}, 600)
    value = trimmed.value
    assert list(value) == ["total", "rows", "cut"]
    assert value["rows"][:-1] == rows[: len(value["rows"]) - 1]
    assert value["rows"][-1] == {"cut": f"cut to {len(value['rows']) - 1} of 500 items"}
    assert value["cut"].startswith("cut to 2 of 3 fields, the last one in part;")


def test_a_dict_with_a_key_named_cut_keeps_it():
    for taken, name in ((["cut"], "cut_"), (["cut", "cut_"], "cut_2"), (["cut", "cut_", "cut_2", "cut_3"], "cut_4")):
        value = cut(dict.fromkeys(taken, 1) | {"text": "x" * 1000}, 300).value
        assert [value[key] for key in taken] == [1] * len(taken)
        assert value[name].startswith("cut to ")


def test_a_dict_of_other_keys_takes_a_text_as_key():
    trimmed = cut(dict.fromkeys(range(100), "x" * 20) | {(1, None): 1, None: 2, 1.5: 3})
    assert list(trimmed.value)[:2] == [0, 1]
    assert trimmed.value["cut"].startswith(f"cut to {trimmed.kept} of 103 fields;")


def test_what_cannot_be_cut_is_kept_whole_or_dropped():
    small, large = Record(1, "a"), Record(1, "x" * 1000)
    trimmed = cut([small, large, small])
    assert trimmed.value[0] is small
    assert len(trimmed.value) == 2
    assert cut({"a": small, "b": large, "c": small}).value.keys() == {"a", "cut"}


def test_what_does_not_fit_at_all_is_passed_over_until_something_does():
    large = Record(1, "x" * 1000)
    assert cut([large, large, 7, 8, large, 9]).value[:-1] == [7, 8]
    assert cut({"a": large, "b": 7, "c" * 1000: 1}).value["b"] == 7
    assert cut([large]).kept == 0


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        Record(1, "x" * 1000),
        Slotted("x" * 1000),
        Model(x="x" * 1000),
        Point(1, "x" * 1000),
        STAT,
        decimal.Decimal(1),
        {Color.RED: "x" * 1000},
        {frozenset({"x" * 1000})},
    ],
)
def test_what_has_no_part_to_leave_out_cannot_be_cut(value):
    assert trim(value, FLOOR, WHY) is None


@pytest.mark.parametrize("value", [STAT, Point(1, "x" * 1000), {Color.RED: "x" * 1000}], ids=["stat", "point", "enum keys"])
def test_what_cannot_be_cut_does_not_keep_what_it_is_in_from_being_cut(value):
    assert cut([value, "text"]).value[0] == "text"


class Remembering(list[Any]):
    __slots__ = ("source",)


class Annotated(dict[str, Any]):
    def __init__(self, source: str) -> None:
        self.source = source


def test_a_subclass_is_cut_to_itself_with_what_it_stores():
    rows = Remembering([1] * 1000)
    rows.source = "db"
    assert cut(rows).value.source == "db"
    fields = Annotated("db")
    fields.update(a=1, b="x" * 1000)
    assert cut(fields).value.source == "db"
    counts = collections.defaultdict(list, {str(i): [i] for i in range(100)})
    assert cut(counts).value.default_factory is list
    ordered = cut(collections.OrderedDict(a=1, b="x" * 1000)).value
    ordered.move_to_end("a")
    assert list(ordered) == ["b", "cut", "a"]
    assert cut(collections.Counter("x" * 5 + "y")) == (collections.Counter("xxxxxy"), 2 + 12, 2, 2, "fields")


@pytest.mark.parametrize("levels", range(1, 33))
def test_something_is_kept_of_a_value_in_many_containers(levels):
    for content in ("x" * 1000, [1] * 1000, {"k": "x" * 1000, "l": 1}):
        value: Any = content
        for _ in range(levels - (not isinstance(content, str))):
            value = [value]
        if value is not content:
            assert cut(value, 400).kept == (levels < 32)


# All of it ------------------------------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=200)
    | st.builds(lambda n: "x" * n, st.integers(0, 2000))
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=20) | st.just("cut"), inner, max_size=10),
    max_leaves=60,
)
KEYS = (
    st.text(max_size=20)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.tuples(st.integers(), st.text(max_size=5))
    | st.dates()
)
ATOMS = (
    SCALARS
    | st.decimals()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([Color.RED, Weekday.MONDAY, Level.HIGH, pathlib.PurePosixPath("/a/b"), 10**4000, STAT])
)
MIXED = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.lists(inner, max_size=20).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=10)
        | st.sets(KEYS, max_size=40)
        | st.frozensets(KEYS, max_size=40)
        | st.lists(inner, max_size=10).map(Remembering)
        | st.dictionaries(KEYS, inner, max_size=10).map(collections.OrderedDict)
        | st.builds(Record, st.integers(), inner)
        | st.builds(Point, st.integers(), inner)
        | st.builds(Model, x=st.text(), y=inner)
    ),
    max_leaves=40,
)
LIMITS = st.integers(FLOOR, FLOOR + 20) | st.integers(FLOOR, 3000)


def check(value: Any, limit: int, why: str) -> None:
    size = volume(value)
    before = pickle.dumps(value)
    trimmed = trim(value, limit, why)
    assert pickle.dumps(value) == before
    if trimmed is None:
        return
    assert size is not None
    assert volume(trimmed.value) == trimmed.chars <= limit
    assert type(trimmed.value) is type(value)
    assert 0 <= trimmed.kept <= trimmed.of
    if size <= limit:
        assert trimmed.value is value
        assert trimmed.kept == trimmed.of
    else:
        assert notice_of(trimmed.value) is not None
        assert "ask for fewer" in notice_of(trimmed.value)


@given(JSON, LIMITS, st.just(WHY) | st.text())
@example([["x" * 1000]], FLOOR, WHY)
@example({"cut": "x" * 1000}, FLOOR, LONG_WHY)
def test_any_json_value_fits_its_limit(value, limit, why):
    check(value, limit, why)
    if isinstance(value, str | list | dict):
        assert trim(value, limit, why) is not None


@given(MIXED, LIMITS)
def test_any_value_fits_its_limit(value, limit):
    check(value, limit, WHY)


@given(
    JSON.filter(lambda value: isinstance(value, list | dict)), LIMITS, st.booleans(), st.sampled_from([None, 0, 3]), st.text()
)
@example({"a": "\ud83d\ude00" * 500}, FLOOR, True, None, WHY)
@example({"a": "🙂" * 500}, FLOOR, True, None, WHY)
def test_any_json_text_stays_json_and_a_prefix_of_itself(value, limit, ascii_only, indent, why):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    trimmed = cut(text, limit, why)
    loaded = json.loads(trimmed.value)
    assert type(loaded) is type(value)
    if len(text) <= limit:
        assert trimmed.value is text
        return
    assert trimmed.value[0] == text[0]
    if ascii_only:
        trimmed.value.encode()
    if isinstance(value, list):
        whole = trimmed.kept - ("in part" in str(loaded[-1]))
        assert json.dumps(loaded[:whole]) == json.dumps(value[:whole])
    if json.dumps(loaded) != json.dumps(value):
        assert notice_of(loaded) is not None
        assert "ask for fewer" in notice_of(loaded)


@given(MIXED | JSON.map(json.dumps), st.integers(-1, FLOOR - 1))
def test_nothing_is_cut_below_the_floor(value, limit):
    assert trim(value, limit, WHY) is None


@pytest.mark.parametrize("around", range(-2, 3))
def test_a_value_is_cut_exactly_where_it_is_larger_than_its_limit(around):
    for value in ("x" * 1000, ["x" * 96] * 10 + ["x" * 14], {"k" * 10: "x" * 984}, json.dumps(["x" * 992]).replace(" ", "")):
        size = volume(value)
        assert size in {1000, 998, 996}
        trimmed = cut(value, size + around)
        assert (trimmed.value is value) == (around >= 0)


def test_what_is_cut_can_be_cut_again():
    value: Any = [{"id": i, "tags": {"a", "b"}} for i in range(1000)]
    for limit in (5000, 1000, 500, FLOOR):
        value = cut(value, limit).value
    assert len(value) > 2


# Values with code of their own ----------------------------------------------------------------------------------------


HOSTILE = [
    lambda: hostile(list)(["x" * 100] * 50),
    lambda: hostile(tuple)(["x" * 100] * 50),
    lambda: hostile(dict)((str(i), "x" * 100) for i in range(50)),
    lambda: hostile(set)(str(i) * 20 for i in range(50)),
    lambda: [hostile(list)([hostile(str)("x" * 1000), hostile(int)(7), hostile(float)(7.5)])],
    lambda: hostile(str)("[" + "1," * 1000 + "1]"),
    lambda: {"a": hostile(dict)(b=hostile(list)([hostile(tuple)(["x" * 1000])]))},
    lambda: Record(1, hostile(list)(["x" * 1000])),
]


@pytest.mark.parametrize("make", HOSTILE, ids=itertools.count())
def test_no_method_of_a_subclass_is_called(make):
    value = make()
    assert volume(value) is not None
    trimmed = trim(value, FLOOR, WHY)
    if type(value) is Record:
        assert trimmed is None
    else:
        assert trimmed is not None
        assert volume(trimmed.value) == trimmed.chars <= FLOOR
        assert type(trimmed.value) is (str if issubclass(type(value), str) else type(value))


class Key(str):
    __slots__ = ()

    def __hash__(self):
        Hostile.touched.append("hash")
        return str.__hash__(self)

    def __eq__(self, other):
        Hostile.touched.append("eq")
        return str.__eq__(self, other)


def test_keys_that_hash_by_code_of_their_own_are_not_hashed():
    value = {Key("cut"): "x" * 1000}
    row = {Key("cut"), "x" * 1000}
    Hostile.touched.clear()
    assert volume(value) == 2 + 3 + 4 + 1000
    assert trim(value, FLOOR, WHY) is None
    assert trim(row, FLOOR, WHY) is None
    assert cut([value, 7]).value[0] == 7


def test_a_metaclass_is_not_asked():
    class Meta(type):
        def __getattribute__(cls, name):
            Hostile.touched.append(name)
            return super().__getattribute__(name)

        def __hash__(cls):
            Hostile.touched.append("hash")
            return 1

        def __eq__(cls, other):
            Hostile.touched.append("eq")
            return True

    class Odd(metaclass=Meta):
        __slots__ = ()

    class Row(list, metaclass=Meta):
        __slots__ = ()

    odd, row = Odd(), Row(["x" * 1000])
    Hostile.touched.clear()
    assert volume(odd) is None
    assert volume(row) == 1004
    assert cut([row, 7]).value[-1] != 7


def test_a_class_that_lies_about_itself_is_opaque():
    class Liar:
        @property
        def __class__(self):
            Hostile.touched.append("class")
            return str

        @property
        def __dict__(self):
            Hostile.touched.append("dict")
            return {}

    assert volume(Liar()) is None
    assert trim(Liar(), FLOOR, WHY) is None
