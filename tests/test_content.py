import dataclasses
import enum
import json
import threading
from collections import OrderedDict, UserDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolguard import _content
from toolguard._content import arguments, result

CANARY = "c4n4ry-Zx81"
LIMIT = 8192


def every(*strategies):
    return lambda law: settings(deadline=None)(given(*strategies)(law))


def shown(value):
    text = result(value)
    assert text.isascii()
    assert len(text) <= LIMIT
    return json.loads(text)


class Hostile:
    def refuse(self, *_args, **_kwargs):
        raise AssertionError("code of the value ran")

    __getattribute__ = __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __iter__ = __len__ = __next__ = refuse
    __format__ = __getitem__ = __int__ = __float__ = __index__ = __copy__ = __deepcopy__ = __reduce_ex__ = refuse


class Meta(type):
    __getattribute__ = __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __repr__ = Hostile.refuse


class Text(str):
    __slots__ = ()
    __getitem__ = __len__ = __str__ = __repr__ = __eq__ = Hostile.refuse
    __hash__ = str.__hash__


class Zone(tzinfo):
    utcoffset = dst = tzname = Hostile.refuse


@dataclasses.dataclass
class Account:
    user: str
    password: str = CANARY
    note: str = dataclasses.field(default=CANARY, repr=False)
    lock: object = dataclasses.field(default_factory=threading.Lock)

    def __repr__(self):
        raise AssertionError("code of the value ran")


class Login(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    user: str
    pin: pydantic.SecretStr
    raw: pydantic.SecretBytes
    box: pydantic.Secret[int]
    note: str = pydantic.Field(CANARY, repr=False)
    old: int = pydantic.Field(1, deprecated=True)
    account: Account | None = None


class Pair(NamedTuple):
    user: str
    password: str | None


Slotted = dataclasses.make_dataclass("Slotted", ["user", ("empty", int, dataclasses.field(init=False))], slots=True)
Colour = enum.Enum("Colour", {"RED": "red"})
Level = enum.IntEnum("Level", {"HIGH": 3})
DAY = datetime(2026, 1, 2)  # noqa: DTZ001


def test_json_is_shown_as_it_is_with_lone_surrogates_escaped():
    value = {"a": [1, -2.5, "x", None, True, False], "b": {"c": {}, "d": []}, "é\u4f60\U0001f600": ""}
    assert shown(value) == value
    assert json.loads(arguments(value)) == value
    assert result("a\ud800") == '"a\\ud800"'


def test_each_known_type_has_its_json():
    known = [
        (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, str(2**63)), (-(2**70), str(-(2**70))),
        (10**5000, "<int: 16610 bits>"), (float("nan"), "nan"), (float("-inf"), "-inf"), (1e300, 1e300),
        (np.float64(1.5), 1.5), (np.int64(3), "<numpy.int64>"), (Colour.RED, "red"), (Level.HIGH, 3), (Text("x"), "x"),
        (b"abc", "<bytes: 3>"), (bytearray(2), "<bytearray: 2>"), (memoryview(b"abcd"), "<memoryview: 4>"),
        (Path("/a/b"), "/a/b"), (PurePosixPath("c"), "c"), (Decimal("1.50"), "1.50"), (UUID(int=7), str(UUID(int=7))),
        (date(2026, 1, 2), "2026-01-02"), (time(3, 4), "03:04:00"), (timedelta(1), "1 day, 0:00:00"),
        (DAY, "2026-01-02T00:00:00"), (DAY.replace(tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (DAY.replace(tzinfo=ZoneInfo("Asia/Tokyo")), "2026-01-02T00:00:00+09:00"),
        (DAY.replace(tzinfo=Zone()), "2026-01-02T00:00:00"), (time(1, tzinfo=timezone(timedelta(hours=2))), "01:00:00+02:00"),
        ((1, 2), [1, 2]), ({1}, [1]), (frozenset({2}), [2]), (deque([3]), [3]), (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=1), {"a": 1}), (Pair("u", None), {"user": "u", "password": None}), (Slotted("u"), {"user": "u"}),
        ({1: "a", None: "b", 2.5: "c", (1,): "d"}, {"1": "a", "null": "b", "2.5": "c", "...": "d"}),
        ({Colour.RED: 1}, {"red": 1}), ({Level.HIGH: Text("y")}, {"3": "y"}),
    ]  # fmt: skip
    for value, expected in known:
        assert shown(value) == expected


def test_any_other_object_is_the_name_of_its_type():
    others = [
        object(), int, len, ..., 1j, Fraction(1), range(3), UserDict(a=1), MappingProxyType({}), np.arange(3), threading.Lock(),
    ]  # fmt: skip
    for value in others:
        assert shown(value) == f"<{type(value).__module__}.{type(value).__qualname__}>"


def test_no_code_of_a_value_or_of_its_class_runs():
    odd = Meta("Odd", (), {"__module__": "there"})
    hostile_list = type("List", (list,), {"__iter__": Hostile.refuse, "__len__": Hostile.refuse, "__getitem__": Hostile.refuse})
    hostile_dict = type("Dict", (dict,), {"items": Hostile.refuse, "__iter__": Hostile.refuse, "get": Hostile.refuse})
    hostile_int = type("Int", (int,), {"__int__": Hostile.refuse, "__repr__": Hostile.refuse, "__index__": Hostile.refuse})
    values = [Hostile(), odd(), hostile_list([1, Hostile()]), hostile_dict(a=hostile_int(5)), Account("u", lock=Hostile())]
    listed = shown(values)
    assert listed[0].endswith("Hostile>")
    assert listed[1:4] == ["<there.Odd>", [1, listed[0]], {"a": 5}]
    assert listed[4]["lock"] == listed[0]


def test_a_generator_is_named_and_not_consumed():
    numbers = (n for n in range(3))
    assert shown([numbers, iter([1])]) == ["<builtins.generator>", "<builtins.list_iterator>"]
    assert list(numbers) == [0, 1, 2]


def test_a_dataclass_is_its_fields_and_may_hold_a_lock():
    assert shown(Account("u")) == {"user": "u", "password": "****", "note": "****", "lock": "<_thread.lock>"}


def test_a_model_is_its_fields_and_extras_without_a_warning():
    model = Login(user="u", pin=CANARY, raw=CANARY.encode(), box=pydantic.Secret[int](7), other=2, api_key=CANARY)
    found = shown([model, model.pin])
    masked = {"pin": "****", "raw": "****", "box": "****", "note": "****", "api_key": "****"}
    assert found == [{"user": "u", "old": 1, "account": None, "other": 2} | masked, "****"]


def test_a_long_text_is_cut_and_says_so():
    cut = shown("x" * 100_000)
    assert cut == "x" * 512 + "... (100000 characters)"
    assert shown(["x" * 512, "x" * 513]) == ["x" * 512, "x" * 512 + "... (513 characters)"]
    assert [len(text) for text in shown(["y" * 500] * 30)] == [500] * 15 + [315, 157, 77, 37, len("...")]


def test_a_large_first_value_does_not_hide_the_others():
    found = json.loads(arguments({"rows": list(range(100_000)), "text": "y" * 9000, "limit": 5}))
    assert found["rows"][:2] == [0, 1]
    assert found["rows"][-1] == "..."
    assert found["text"].startswith("yyy")
    assert found["limit"] == 5


@pytest.mark.parametrize("size", [1, 7, 300, 10_000])
def test_every_result_fits_and_parses(size):
    for leaf in ("x", "\U0001f600" * 600, {"a": ["\ud800" * 90]}, 10**18, {"k" * 400: 1}, [[]], b"", Account("u")):
        shown([leaf] * size)
        many = {f"key{n}": leaf for n in range(size)}
        shown(many)
        assert len(arguments(many)) <= LIMIT


def test_depth_and_cycles_end():
    cycle = []
    cycle.append(cycle)
    assert result(cycle).count("[") <= 10
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert result(deep).count("{") <= 10


def test_a_value_that_fails_costs_only_itself(monkeypatch):
    monkeypatch.setitem(_content._EXACT, id(date), Hostile.refuse)
    assert shown([1, date(2026, 1, 2)]) == [1, "<datetime.date>"]


def test_nothing_is_raised_whatever_fails(monkeypatch):
    monkeypatch.setattr(_content, "_Writer", None)
    assert arguments({"a": 1}) == "{}"
    assert json.loads(result(1)) == "..."


KEYS = st.one_of(st.text(max_size=8), st.integers(), st.none(), st.booleans(), st.floats(), st.binary(max_size=3))
LEAVES = st.one_of(KEYS, st.text(max_size=900), st.dates(), st.decimals(), st.uuids(), st.integers(10**30), st.builds(object))
VALUES = st.recursive(
    LEAVES, lambda some: st.lists(some) | st.dictionaries(KEYS, some) | st.builds(Account, some), max_leaves=50
)


@every(VALUES)
def test_any_value_is_valid_json_within_bounds(value):
    shown(value)


@every(st.dictionaries(st.text(max_size=9), VALUES, max_size=5))
def test_any_arguments_are_a_valid_object_within_bounds(bound):
    text = arguments(bound)
    assert text.isascii()
    assert len(text) <= LIMIT
    assert isinstance(json.loads(text), dict)


NAMES = """
    api_key apikey API-Key X-Api-Key apiKey openai_api_key password passwd db.password PWD passphrase secret client_secret token
    access_token refreshToken Authorization Proxy-Authorization cookie Set-Cookie credentials private_key privateKey access_key
    AWS_SECRET_ACCESS_KEY aws_access_key_id session_id sessionid PHPSESSID auth jwt otp access_tokens signing_key
"""


@pytest.mark.parametrize("key", [*NAMES.split(), Text("password")], ids=str.__str__)
def test_what_stands_under_a_secret_name_is_hidden(key):
    for secret in (CANARY, 123454321, [CANARY], {"x": CANARY}):
        found = result([{key: secret}, {"deep": ({key: secret},)}])
        assert found == f'[{{"{str.__str__(key)}":"****"}},{{"deep":[{{"{str.__str__(key)}":"****"}}]}}]'


def test_what_only_resembles_a_secret_name_is_shown():
    names = "max_tokens input_tokens total_tokens token_count maxTokens tokenizer tokens author key passenger side"
    assert shown(dict.fromkeys(names.split(" "), 17)) == dict.fromkeys(names.split(" "), 17)


def test_names_beside_their_values_hide_them_too():
    assert shown([("X-Api-Key", CANARY), ("Accept", "json")]) == [["X-Api-Key", "****"], ["Accept", "json"]]
    assert shown({"name": "DB_PASSWORD", "value": CANARY}) == {"name": "DB_PASSWORD", "value": "****"}
    assert shown({"name": "colour", "value": "red"}) == {"name": "colour", "value": "red"}
    assert shown(Pair("u", CANARY)) == {"user": "u", "password": "****"}
    assert shown({"password": None}) == {"password": None}


WORD = CANARY.replace("-", "")
TEXTS = [
    f"Authorization: Bearer {CANARY}", f"bearer {CANARY}", f"Basic {CANARY}", f"authorization: Basic {CANARY}==",
    f"Cookie: a=1; s={CANARY}", f"token={CANARY}", f"https://h/p?a=1&access_token={CANARY}&b=2", f"password = {CANARY}",
    f"password: '{CANARY} and more'", f'{{"password": "x\\"{CANARY}", "a": 1}}', f'{{\\"api_key\\": \\"{CANARY}\\"}}',
    f"{{'secret': '{CANARY}'}}", f"PGPASSWORD={CANARY} psql", f"tool --password {CANARY}", f"--api-key={CANARY}",
    f"Server=h;Pwd={CANARY};", f"private_key => {CANARY}", f"session id: {CANARY}", f"postgres://user:{CANARY}@host/db",
    f"redis://:{CANARY}@host", f"https://{CANARY}@host/x", f"amqp://u:a@b/{CANARY}@host", f"sk-{CANARY}", f"sk-proj-{CANARY}",
    f"credentials:\n  password: {CANARY}", f"private_key: -----BEGIN PRIVATE KEY-----\n{WORD}", f'{{"token": ["{WORD}"]}}',
    f"see ghp_{WORD}", f"xoxb-{CANARY}", f"eyJhbGciOi.{CANARY}.sig", f"glpat-{CANARY}", f"sk_live_{WORD}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{WORD}\n-----END RSA PRIVATE KEY-----",
    f"1 validation error\npin\n  too short [type=x, input_value='{CANARY}', input_type=str]",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_inside_a_text_is_hidden(text):
    for value in (text, {"note": text}, {text: 1}, Text(text)):
        assert "****" in result(value)
        assert "c4n4ry" not in result(value)


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_that_lies_across_a_cut_is_not_half_shown(text):
    for size in (*range(430, 520), *range(960, 1030), *range(1980, 2050)):
        for tail in ("", "tail" * 999):
            assert "c4n" not in result("x" * size + " " + text + tail)
            assert "c4n" not in result(("password=y " * size)[:size] + " " + text + tail)


def test_only_the_secret_of_a_text_is_hidden():
    assert shown("id AKIAIOSFODNN7EXAMPLE, ok") == "id ****, ok"
    assert shown("postgres://u:pw@h down, pwd = x, token: 'y'") == "postgres://****@h down, pwd = ****, token: '****'"


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=100, token_count: 3", "http://localhost:8080/x", "mail me@example.com", "basic training", "a - b",
        "risk-averse task-management", "the secret of success", "SELECT token FROM t", "key: value", "https://example.com/@name",
    ],
)  # fmt: skip
def test_an_ordinary_text_is_shown_as_it_is(text):
    assert shown(text) == text


def test_what_is_searched_is_bounded_in_all():
    writer = _content._Writer()
    writer.items(["token=" + "x" * 5000] * 4000, 100_000, 0)
    assert writer._unread > -64 * 6000
