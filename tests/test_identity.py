"""Identity: typed, canonical, bounded, and never an error in a call."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import gc
import inspect
import ipaddress
import itertools
import math
import pathlib
import subprocess
import sys
import threading
import uuid
import weakref
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolguard._identity import Hasher, _Walk, binder, is_opaque, new_key

KEY = b"k" * 16


def identity(*values: Any) -> bytes:
    return Hasher(KEY).identity("tool", values)


def digest(value: Any) -> bytes | None:
    return Hasher(KEY).digest(value)


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int


class Model(pydantic.BaseModel):
    x: int
    y: str = "z"


class Other(pydantic.BaseModel):
    x: int
    y: str = "z"


class Open(pydantic.BaseModel, extra="allow"):
    x: int


class Moment(pydantic.BaseModel):
    at: dt.datetime
    of_day: dt.time
    link: pydantic.HttpUrl


def moment(at: str = "2026-01-01T10:00:00Z", of_day: str = "10:00:00Z", link: str = "https://a.example") -> Moment:
    return Moment.model_validate({"at": at, "of_day": of_day, "link": link})


@dataclasses.dataclass
class Late:
    x: int = 0
    y: object = dataclasses.field(init=False)

    @classmethod
    def with_y(cls, y: object) -> "Late":
        late = cls()
        late.y = y
        return late


@dataclasses.dataclass(slots=True)
class LateSlotted:
    x: int = 0
    y: object = dataclasses.field(init=False)


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Word(enum.StrEnum):
    RED = "red"


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024  the untyped kind is what is tested


# What is the same, and what is not -----------------------------------------------------------------------------------

SAME: list[tuple[Any, Any]] = [
    (1, 1.0),
    (0.0, -0.0),
    (math.nan, float("nan")),
    (math.inf, float("inf")),
    ([1, 2], (1, 2)),
    ({1, 2, 3}, frozenset({3, 2, 1})),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1: "x", "1": "y"}, {"1": "y", 1: "x"}),
    ({"a": [1, {"b": 2.0}]}, {"a": (1, {"b": 2})}),
    (b"x", bytearray(b"x")),
    (b"x", memoryview(b"x")),
    (Pair(1, 2), (1, 2)),
    (collections.OrderedDict(a=1), {"a": 1}),
    (Point(1), Point(1)),
    (Slotted(1), Slotted(1)),
    (Model(x=1), Model(x=1)),
    (np.int64(3), 3),
    (np.float64(1.5), 1.5),
    (np.array([1, 2]), np.array([1, 2])),
    (object(), object()),
    (iter(()), iter(())),
    (pathlib.Path("a/b"), pathlib.Path("a") / "b"),
    (pathlib.PosixPath("a"), pathlib.PurePosixPath("a")),
    (moment(), moment()),
    (Open(x=1, y=2), Open(x=1, y=2)),
    (Rights.READ | Rights.WRITE, Rights(3)),
    (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("10.0.0.1")),
    (np.arange(20)[::2], np.arange(0, 20, 2)),
    (
        dt.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo")),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=9))),
    ),
    (10**5000, 10**5000),
]


@pytest.mark.parametrize(("left", "right"), SAME, ids=lambda value: type(value).__name__)
def test_values_that_say_the_same_have_one_identity(left: Any, right: Any) -> None:
    assert identity(left) == identity(right)


APART: list[Any] = [
    None,
    0,
    1,
    True,
    False,
    "1",
    b"1",
    1.5,
    1 + 2j,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "\ud800",
    "é",
    "e\u0301",
    10**5000,
    10**5000 + 1,
    [],
    [1, 2],
    [[1], 2],
    {1, 2},
    {"a": 1},
    {"a": "1"},
    {1: "a"},
    {"a=b": "1"},
    Point(1),
    Point(2),
    Slotted(1),
    Model(x=1),
    Model(x=2),
    Other(x=1),
    Colour.RED,
    Colour.BLUE,
    Word.RED,
    "red",
    pathlib.PurePosixPath("a"),
    dt.date(2026, 1, 1),
    dt.datetime(2026, 1, 1),  # noqa: DTZ001  naive on purpose
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo")),
    dt.time(1),
    dt.timedelta(1),
    uuid.UUID(int=1),
    decimal.Decimal("1.10"),
    decimal.Decimal("1.1"),
    range(3),
    slice(1, 2),
    ...,
    np.array([1, 2]),
    np.array([1.0, 2.0]),
    np.array([[1, 2]]),
    np.datetime64(5, "ns"),
    np.datetime64(5, "us"),
    np.timedelta64(5, "us"),
    np.arange(30_000),
    np.arange(30_001),
    np.arange(30_000) * (np.arange(30_000) != 15_000),
    5,
    Open(x=1),
    Open(x=1, y=2),
    Open(x=1, y=3),
    Late(),
    Late.with_y(None),
    LateSlotted(1),
    LateSlotted(2),
    Rights(0),
    Rights(4),
    Rights(8),
    Rights.READ,
    Rights.READ | Rights.WRITE,
    moment(),
    moment(at="2026-01-01T10:00:00+02:00"),
    moment(of_day="10:00:00+02:00"),
    moment(link="https://b.example"),
    ipaddress.ip_address("10.0.0.1"),
    ipaddress.ip_address("10.0.0.2"),
    ipaddress.ip_network("10.0.0.0/8"),
    fractions.Fraction(1, 2),
    pathlib.PureWindowsPath("a"),
    int,
    len,
    object(),
    threading.Lock(),
    ("list", 1, 2),
    ("dict", b"x", 1),
    ("opaque", "builtins", "object"),
]


def test_values_that_differ_have_identities_that_differ() -> None:
    seen: dict[bytes, Any] = {}
    for value in APART:
        known = seen.setdefault(identity(value), value)
        assert known is value, f"{known!r} passes for {value!r}"


def test_arguments_do_not_run_into_each_other() -> None:
    assert identity("a,b") != identity("a", "b")
    assert identity("a", "") != identity("", "a")
    assert identity(["a"], "b") != identity("a", ["b"])
    assert identity() != identity(None)


def test_tools_are_told_apart_by_name() -> None:
    hasher = Hasher(KEY)
    assert hasher.identity("a", ("bc",)) != hasher.identity("ab", ("c",))


def test_the_key_decides_the_digest() -> None:
    assert Hasher(new_key()).identity("tool", ("x",)) != Hasher(new_key()).identity("tool", ("x",))


@pytest.mark.parametrize("build", ["dict", "set"])
def test_order_of_insertion_does_not_matter(build: str) -> None:
    items = [1, "1", (1, 2), None, 2.5, b"x", "long" * 50]
    make: Callable[[Any], Any] = dict.fromkeys if build == "dict" else set
    assert len({identity(make(order)) for order in itertools.islice(itertools.permutations(items), 0, 5000, 97)}) == 1


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(SCALARS.filter(lambda v: not isinstance(v, float) or not math.isnan(v)), inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_any_nested_value_has_an_exact_and_repeatable_identity(value: Any) -> None:
    assert identity(value) == identity(value)
    assert len(identity(value)) == 16
    assert digest(value) == digest(value) is not None


@given(st.dictionaries(st.text(), VALUES), st.randoms())
def test_a_shuffled_dict_is_the_same_dict(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert identity(value) == identity(dict(items))


@given(st.lists(SCALARS, max_size=4), st.lists(SCALARS, max_size=4))
def test_two_scalar_calls_are_one_only_where_every_argument_is(left: list[Any], right: list[Any]) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "nan" if math.isnan(value) else int(value) if value.is_integer() else value
        return value

    alike = [(type(plain(v)), plain(v)) for v in left] == [(type(plain(v)), plain(v)) for v in right]
    assert (identity(*left) == identity(*right)) is alike


@given(st.lists(SCALARS, max_size=4))
def test_the_short_way_and_the_long_way_agree(values: list[Any]) -> None:
    hasher = Hasher(KEY)
    assert hasher._walked("tool", tuple(values)) == hasher.identity("tool", tuple(values))


def run_seeded(program: str, seed: str) -> str:
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_identities_are_stable_across_processes_and_hash_seeds() -> None:
    program = (
        "from toolguard._identity import Hasher; h = Hasher(b'k' * 16); "
        "print(h.identity('t', ({'b', 'a', 'c'}, {'x': {1, 2.5}}, frozenset('xyz'))).hex(), h.digest({'b', 'a'}).hex())"
    )
    assert len({run_seeded(program, seed) for seed in ("0", "1", "2")}) == 1


# Opaque and hostile values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [moment(), Open(x=1, y=2), Rights(4), LateSlotted(1), np.arange(3), ipaddress.ip_address("::1"), len, int]
)
def test_values_of_known_types_are_exact(value: Any) -> None:
    assert not is_opaque(identity(value))
    assert digest(value) is not None


def local() -> Any:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    "value",
    [
        [].append,
        local(),
        "x".join,
        Hasher(KEY).digest,
        np.ma.array([1, 2], mask=[0, 1]),
        np.zeros(2, dtype=[("a", "i4")]),
        np.zeros(2, dtype=np.longdouble),
        np.array(["a"], dtype=np.dtypes.StringDType()),
        np.array([object()]),
        np.arange(400_000),
    ],
    ids=repr,
)
def test_values_that_hold_more_than_can_be_read_are_marked(value: Any) -> None:
    assert is_opaque(identity(value))
    assert digest(value) is None


def test_a_large_array_is_told_apart_by_its_ends() -> None:
    left = np.zeros(400_000)
    first, last = left.copy(), left.copy()
    first[0] = last[-1] = 1
    assert len({identity(left), identity(first), identity(last), identity(left[1:])}) == 4


def test_opaque_values_count_by_type_and_are_marked() -> None:
    assert is_opaque(identity(object()))
    assert is_opaque(identity([1, {"a": threading.Lock()}]))
    assert is_opaque(identity(lambda: None))
    assert not is_opaque(identity([1, {"a": "b"}]))
    assert identity(threading.Lock()) != identity(object())


touched: list[str] = []


def trap(name: str) -> Any:
    def method(*_: Any, **__: Any) -> Any:
        touched.append(name)
        msg = f"{name} must not be asked"
        raise RuntimeError(msg)

    return method


TRAPS = [
    "__eq__",
    "__hash__",
    "__repr__",
    "__str__",
    "__iter__",
    "__len__",
    "__bool__",
    "__getattr__",
    "__getattribute__",
    "__index__",
    "__int__",
    "__float__",
    "__contains__",
    "__getitem__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__format__",
    "__next__",
    "__call__",
    "__lt__",
    "__instancecheck__",
    "__array__",
    "keys",
    "items",
    "values",
    "encode",
    "isoformat",
    "model_dump",
]


@pytest.mark.parametrize(
    "base", [object, str, int, float, bytes, list, tuple, dict, set, frozenset, dt.datetime, decimal.Decimal]
)
def test_no_method_of_a_hostile_value_is_called(base: type) -> None:
    bare = base(2026, 1, 1) if base is dt.datetime else base()
    hostile = type("Hostile", (base,), {name: trap(name) for name in TRAPS})
    value = base.__new__(hostile, 2026, 1, 1) if base is dt.datetime else base.__new__(hostile)
    touched.clear()
    made, outcome = identity(value), digest(value)
    assert touched == []
    if base is object:
        assert is_opaque(made)
        assert outcome is None
    else:
        assert made == identity(bare)


def test_a_class_that_lies_about_itself_is_not_believed() -> None:
    class Liar:
        @property
        def __class__(self) -> Any:
            touched.append("__class__")
            return str

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            touched.append("__dict__")
            return {}

    touched.clear()
    assert is_opaque(identity(Liar()))
    assert touched == []


def test_a_metaclass_is_not_asked() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            touched.append(name)
            return super().__getattribute__(name)

        def __hash__(cls) -> int:
            touched.append("hash")
            return 1

        def __eq__(cls, other: object) -> bool:
            touched.append("eq")
            raise RuntimeError

    class Thing(metaclass=Meta):
        pass

    thing, hasher = Thing(), Hasher(KEY)
    touched.clear()
    assert is_opaque(identity(thing))
    assert is_opaque(identity(Thing))
    assert digest(thing) is None
    assert hasher.receiver(thing).endswith("Thing #1")
    assert hasher.receiver(Thing).endswith("Thing")
    assert touched == []


def test_a_path_or_date_of_a_users_own_class_is_not_asked() -> None:
    class Traced(type(pathlib.Path())):  # type: ignore[misc]
        def _format_parsed_parts(self, *_: Any) -> str:
            touched.append("parts")
            return "x"

    class Stamp(dt.datetime):
        def toordinal(self) -> int:
            touched.append("toordinal")
            return 1

    class Zone(dt.tzinfo):
        def utcoffset(self, _: Any) -> dt.timedelta:
            touched.append("utcoffset")
            return dt.timedelta(0)

    path, stamp = Traced("a"), Stamp(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Asia/Tokyo"))
    zoned = dt.datetime(2026, 1, 1, tzinfo=Zone())
    touched.clear()
    assert is_opaque(identity(path))
    assert not is_opaque(identity(stamp))
    assert is_opaque(identity(zoned))
    assert touched == []


def test_a_function_with_a_strange_name_or_module_does_not_spoil_the_others() -> None:
    class Name(str):
        __slots__ = ()
        __contains__ = trap("__contains__")

    def f() -> None: ...

    f.__module__, f.__qualname__ = object(), Name("f")  # type: ignore[assignment]
    touched.clear()
    assert identity(f, 1) != identity(f, 2)
    assert touched == []


def test_a_call_near_the_recursion_limit_still_has_an_identity() -> None:
    def at(depth: int) -> tuple[bytes, bytes | None]:
        return (hasher.identity("tool", values), hasher.digest(values)) if depth == 0 else at(depth - 1)

    hasher, values = Hasher(KEY), ([[[[{"a": [object()]}]]]],)
    room = sys.getrecursionlimit() - len(inspect.stack(0)) - 20
    for spare in range(20):
        made, outcome = at(room - spare)
        assert is_opaque(made)
        assert outcome is None


def test_a_generator_is_not_consumed() -> None:
    numbers = iter([1, 2, 3])
    stream = (n for n in [1, 2])
    identity(numbers, stream)
    digest([numbers, stream])
    assert list(numbers) == [1, 2, 3]
    assert list(stream) == [1, 2]


def test_cyclic_and_deep_values_end() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    loop: dict[str, Any] = {}
    loop["self"] = loop
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    for value in (cyclic, loop, deep):
        assert is_opaque(identity(value))
        assert digest(value) is None


def test_a_dataclass_with_a_lock_is_known_by_its_fields() -> None:
    assert identity(Point(1, threading.Lock())) == identity(Point(1, threading.Lock()))
    assert identity(Point(1, threading.Lock())) != identity(Point(2, threading.Lock()))
    assert is_opaque(identity(Point(1, threading.Lock())))


# Bounds --------------------------------------------------------------------------------------------------------------


def test_a_huge_text_is_told_apart_by_length_and_ends() -> None:
    size = 5_000_000
    base = "x" * size
    assert identity(base) == identity("x" * size)
    assert identity(base) != identity(base + "x")
    assert identity(base) != identity("y" + base[1:])
    assert identity(base) != identity(base[:-1] + "y")
    assert is_opaque(identity(base))


def test_a_text_of_some_kilobytes_counts_whole() -> None:
    left, right = "x" * 100_000 + "a" + "x" * 100_000, "x" * 100_000 + "b" + "x" * 100_000
    assert identity(left) != identity(right)
    assert not is_opaque(identity(left))


@pytest.mark.parametrize(
    "value",
    [
        list(range(1_000_000)),
        set(range(1_000_000)),
        dict.fromkeys(range(1_000_000)),
        [[[n] * 90 for n in range(90)] for _ in range(90)],
        [{"a": [n, (n, {n})]} for n in range(9_000)],
        [Point(n, [n]) for n in range(9_000)],
    ],
    ids=["list", "set", "dict", "nested", "mixed", "fields"],
)
def test_a_walk_visits_no_more_than_its_bound(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visits, plain = itertools.count(), _Walk.plain

    def counting(self: _Walk, each: Any, depth: int) -> Any:
        next(visits)
        return plain(self, each, depth)

    monkeypatch.setattr(_Walk, "plain", counting)
    assert is_opaque(identity(value))
    assert next(visits) <= 10_001


def test_a_doubly_cyclic_value_is_bounded_too() -> None:
    value: list[Any] = []
    value += [value, value, {"again": value}]
    assert is_opaque(identity(value))


def test_a_set_beyond_the_bound_is_the_same_under_every_hash_seed() -> None:
    program = (
        "from toolguard._identity import Hasher; h = Hasher(b'k' * 16); "
        "many = frozenset('abc'[i] * n for i, n in enumerate((700_000, 600_000, 100_000))); "
        "print(h.identity('t', (many, 'x' * 5_000, [1, 2])).hex(), h.identity('t', ({str(n) for n in range(20_000)},)).hex())"
    )
    assert len({run_seeded(program, seed) for seed in ("0", "1", "2", "3")}) == 1


def test_a_container_beyond_the_bound_is_not_walked_whole() -> None:
    many = list(range(20_000))
    middle = many.copy()
    middle[10_000] = -1
    assert is_opaque(identity(many))
    assert identity(many) == identity(middle)
    assert identity(many) != identity([*many, 1])
    assert identity(many) != identity([-1, *many[1:]])
    assert digest(many) is None
    assert digest(many[:9_000]) is not None


def test_an_outcome_beyond_a_megabyte_cannot_be_measured() -> None:
    assert digest("x" * 3_000_000) is None
    assert digest(["x" * 600_000, "y" * 600_000]) is None
    assert digest("x" * 900_000) is not None


def test_two_outcomes_that_differ_at_the_end_are_two() -> None:
    assert digest("x" * 10_000 + "a") != digest("x" * 10_000 + "b")


def test_a_huge_dict_is_left_at_its_ends() -> None:
    huge = {str(n): n for n in range(200_000)}
    assert identity(huge) == identity(dict(huge))
    assert is_opaque(identity(huge))


# Receivers -----------------------------------------------------------------------------------------------------------


class Mailbox:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def test_receivers_are_numbered_in_order_of_first_use() -> None:
    hasher = Hasher(KEY)
    alice, bob = Mailbox(), Mailbox()
    names = [hasher.receiver(box).rpartition(".")[2] for box in (alice, bob, alice)]
    assert [name[-2:] for name in names] == ["#1", "#2", "#1"]
    assert names[0].startswith("Mailbox")


def test_a_receiver_is_not_kept_alive_and_its_number_is_not_given_again() -> None:
    hasher = Hasher(KEY)
    seen = set()
    for _ in range(200):
        box = Mailbox()
        ref = weakref.ref(box)
        seen.add(hasher.receiver(box))
        del box
        gc.collect(0)
        assert ref() is None
    assert len(seen) == 200
    assert hasher._live == {}


def test_a_receiver_that_cannot_be_referenced_weakly_is_its_type() -> None:
    class Bare:
        __slots__ = ()

    hasher = Hasher(KEY)
    assert hasher.receiver(Bare()) == hasher.receiver(Bare())


def test_a_class_is_a_receiver_by_name() -> None:
    assert Hasher(KEY).receiver(Mailbox) == f"{__name__}.Mailbox"


def test_threads_that_bring_one_receiver_get_one_number() -> None:
    for _ in range(200):
        hasher, box, names = Hasher(KEY), Mailbox(), []
        barrier = threading.Barrier(4)

        def ask(hasher: Hasher = hasher, box: Mailbox = box, names: list[str] = names, barrier: Any = barrier) -> None:
            barrier.wait()
            names.append(hasher.receiver(box))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(names)) == 1


# Binding -------------------------------------------------------------------------------------------------------------


def bound(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return binder(function, inspect.signature(function))(*args, **kwargs)


def test_one_call_written_in_four_ways_binds_to_the_same_values() -> None:
    def f(a: int, b: int, c: int = 3) -> None: ...

    assert {bound(f, 1, 2), bound(f, 1, b=2), bound(f, a=1, b=2), bound(f, 1, 2, c=3)} == {(1, 2, 3)}


def test_every_kind_of_parameter_is_bound() -> None:
    def f(a: int, /, b: int, *args: int, c: int = 4, **kwargs: int) -> None: ...

    assert bound(f, 1, 2, 3, c=5, d=6) == (1, 2, (3,), 5, {"d": 6})
    assert bound(f, 1, 2) == (1, 2, (), 4, {})


def test_names_of_parameters_may_be_any() -> None:
    def f(bind: int, _0: int = 1, _1: int = 2, args: int = 3, self: int = 4) -> None: ...

    assert bound(f, 0) == (0, 1, 2, 3, 4)


def test_a_default_is_handed_on_and_never_looked_at() -> None:
    hostile = type("Hostile", (), {name: trap(name) for name in TRAPS if name != "__getattribute__"})()

    def f(a: Any = hostile, *, b: Any = hostile) -> None: ...

    touched.clear()
    values = bound(f)
    assert values[0] is hostile
    assert values[1] is hostile
    assert touched == []


@pytest.mark.parametrize("call", [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"a": 1})])
def test_what_does_not_bind_raises_type_error(call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    def f(a: int, b: int = 2) -> None: ...

    args, kwargs = call
    with pytest.raises(TypeError):
        bound(f, *args, **kwargs)


def test_skipped_parameters_are_accepted_and_left_out() -> None:
    def f(a: int, timeout: int = 5, *, b: int = 1) -> None: ...

    assert binder(f, inspect.signature(f), frozenset({"timeout"}))(1, timeout=9) == (1, 1)
