"""What a failure says, without what differs each time."""

import asyncio
import re
import time
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import toolguard
from toolguard import metered
from toolguard._signature import of_error, of_value
from toolguard.testing import assert_refused


def of(message):
    """Return the signature of an error with this message, without its type."""
    return of_error("E", Exception(message)).removeprefix("e:").lstrip()


UUID = "550e8400-e29b-41d4-a716-446655440000"


# What varies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "signature"),
    [
        ("no such table", "no such table"),
        ("", ""),
        ("No Such Table: USERS", "no such table: users"),
        ("Größe ÜBERSCHRITTEN", "größe überschritten"),
        # Digits.
        ("row 7 of 2048", "row # of #"),
        ("took 12.75s", "took #.#s"),
        ("2026-11-30T10:15:00Z", "#-#-#t#:#:#z"),
        ("abc123def", "abc#def"),
        ("-1 is negative", "-# is negative"),
        ("007", "#"),
        ("/tmp/x81/file.py:12", "/tmp/x#/file.py:#"),
        # Addresses.
        ("<Thing at 0x7f3a9c>", "<thing at #>"),
        ("0X7F3A", "#"),
        ("0xzz", "#xzz"),
        ("0x", "#x"),
        # Identifiers.
        (f"job {UUID} is gone", "job # is gone"),
        (f"job {UUID.upper()} is gone", "job # is gone"),
        (f"{{{UUID}}}/{UUID}", "{#}/#"),
        (f"id_{UUID}", "id_#"),
        (UUID[:-1], "#e#-e#b-#d#-a#-#"),
        # Runs of hex digits.
        ("commit deadbeefcafe", "commit #"),
        ("commit DEADBEEFCAFE", "commit #"),
        ("commit deadbeefcaf", "commit deadbeefcaf"),
        ("f" * 11, "f" * 11),
        ("f" * 12, "#"),
        ("f" * 64, "#"),
        ("deadbeef12", "deadbeef#"),
        ("a1b2c3d4e5f6", "#"),
        ("deadbeefcafeg", "#g"),
        # White space.
        ("  a \t b\r\n\n c  ", "a b c"),
        ("a\u00a0b\u2003c", "a b c"),
        ("\n", ""),
    ],
)
def test_a_message_loses_what_varies_and_keeps_the_rest(message, signature):
    assert of(message) == signature


def test_the_exceptions_type_is_part_of_it():
    assert of_error("OSError", OSError("gone")) == "oserror: gone"
    assert of_error("app.errors.Timeout42", OSError("gone")) == "app.errors.timeout#: gone"


@pytest.mark.parametrize("length", [0, 1, 100, 196, 197, 198, 250, 10_000])
def test_it_keeps_200_characters(length):
    assert of_error("E", Exception("x" * length)) == f"e: {'x' * length}"[:200].strip()


def test_what_varies_does_not_move_the_end():
    assert of(f"{UUID} {'x' * 300}") == of(f"7 {'x' * 300}")
    assert of(f"{' ' * 90}{'x' * 300}") == of("x" * 300)


LONG = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9a-f]{12,}")
PIECES = st.sampled_from(
    [UUID, UUID.upper(), "0x7F", "0x", "0xg", "deadbeefcafe", "beef", "12", "9" * 20, "No", "é", "ß-", "(", "_"]
)


@given(
    st.lists(st.tuples(PIECES, st.sampled_from([" ", "\n", ": ", "g", "/", "-"])), max_size=12).map(
        lambda t: "".join(map("".join, t))
    )
)
@example("0x7F-12")
def test_it_is_what_the_rules_make_of_it_one_after_the_other(message):
    plain = re.sub("[0-9]+", "#", LONG.sub("#", f"E: {message}".lower()))
    assert of_error("E", Exception(message)) == " ".join(plain.split())[:200]


@given(st.text(max_size=300))
@example("\u0130" * 250)
@example("\ud800")
@example("\x00\x1b[31m")
def test_any_text_has_one_which_is_short_and_whose_own_is_the_same(message):
    signature = of(message)
    assert len(signature) <= 200
    assert re.search("[0-9]", signature) is None
    assert signature == " ".join(signature.split())
    assert of(message) == signature


@given(st.text(alphabet="ghij (:", max_size=40), st.integers(0), st.integers(0), st.uuids(), st.uuids())
def test_two_messages_that_differ_in_numbers_and_identifiers_alone_have_one(text, one, two, uuid, other):
    assert of(f"{text} {one} {uuid} {id(one):#x}") == of(f"{text} {two} {other} {id(two):#x}")


# Time and size --------------------------------------------------------------------------------------------------------


HOSTILE = {
    "hex": "a",
    "just too short for hex": "abcdefabcde ",
    "half a uuid": "550e8400-e29b-41d4-a716-",
    "almost a uuid": "550e8400-e29b-41d4-a716-44665544000 ",
    "addresses": "0x",
    "digits": "1",
    "digits apart": "1 ",
    "dashes": "-",
    "white space": " \n",
    "text that grows": "\u0130",
    "text": "word ",
}


def seconds(message, make):
    """Return the least time of several that a signature takes."""

    def once():
        began = time.thread_time_ns()
        for _ in range(20):
            make(message)
        return time.thread_time_ns() - began

    return min(once() for _ in range(7)) / 1e9


@pytest.mark.parametrize(
    "make", [of, of_value, lambda text: of_value({"error": text})], ids=["raised", "returned", "in a mapping"]
)
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_it_takes_time_in_proportion_to_the_message_and_a_bounded_one_at_most(unit, make):
    message = unit * 4096
    assert seconds(message[:4000], make) < 12 * seconds(message[:1000], make) + 1e-3
    assert seconds(message * 20, make) < 4 * seconds(message[:4096], make) + 1e-3


def test_a_huge_message_costs_and_keeps_little():
    message = "x" * 10_000_000
    assert len(of(message)) == 200 - len("e: ")
    assert len(of_value({"error": message})) == 200


def test_a_group_of_ten_thousand_is_one_message():
    group = ExceptionGroup("many failed", [ValueError(n) for n in range(10_000)])
    assert of_error("ExceptionGroup", group) == "exceptiongroup: many failed (# sub-exceptions)"


def test_causes_that_go_in_a_circle_are_not_followed():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert of_error("ValueError", one) == "valueerror: one"


def test_a_note_is_no_part_of_it():
    error = ValueError("gone")
    error.add_note(f"request {UUID}")
    assert of_error("ValueError", error) == "valueerror: gone"


# Errors that do not say what they are ---------------------------------------------------------------------------------


class OddText(str):
    __slots__ = ()

    def __getitem__(self, key):
        return OddText("odd")

    def __format__(self, spec):
        raise RuntimeError


def raising(*_arguments):
    raise RuntimeError


@pytest.mark.parametrize(
    ("answer", "signature"),
    [
        (raising, "e:"),
        (lambda _self: 7, "e:"),
        (lambda _self: None, "e:"),
        (str, "e:"),  # which asks itself without end
        (lambda _self: OddText("gone"), "e: gone"),
        (lambda _self: "gone", "e: gone"),
    ],
    ids=["raises", "a number", "nothing", "endless", "odd text", "text"],
)
def test_an_error_whose_text_cannot_be_had_has_the_one_of_its_type(answer, signature):
    error = type("OddError", (Exception,), {"__str__": answer, "__repr__": raising})("secret")
    assert of_error("E", error) == signature


def test_the_representation_of_an_errors_arguments_may_fail():
    odd = type("Odd", (), {"__repr__": raising, "__str__": raising})()
    assert of_error("E", Exception(odd)) == "e:"
    assert of_error("E", Exception(1, odd)) == "e:"


# Returned failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        ({"error": "No such city 7"}, "returned: no such city #"),
        ({"error": {"message": "Rate limited", "type": "rate_limit"}}, "returned: rate limited"),
        ({"error": {"type": "rate_limit", "code": 7}}, "returned: rate_limit"),
        ({"error": {"code": "E42"}}, "returned: e#"),
        ({"is_error": True, "message": "gone"}, "returned: gone"),
        ({"isError": True, "content": "gone"}, "returned: gone"),
        ({"error": "gone", "message": "an error occurred"}, "returned: gone"),
        (MappingProxyType({"error": "gone"}), "returned: gone"),
        ("E: gone", "returned: e: gone"),
        (OddText("gone"), "returned: gone"),
        ("", "returned:"),
        ({}, "returned:"),
        ({"is_error": True}, "returned:"),
    ],
)
def test_a_returned_failure_says_what_its_text_says(value, signature):
    assert of_value(value) == signature


class Untold:
    """Nobody may look at it."""

    __repr__ = __str__ = __format__ = __iter__ = __len__ = __bool__ = __eq__ = __hash__ = raising


class Nameless(type):
    __name__ = property(raising)


class Disguised:
    @property
    def __class__(self):
        raise RuntimeError


class OddMapping(dict):
    get = __getitem__ = raising


NO_TEXT = {
    "a number": lambda: 7,
    "nothing": lambda: None,
    "bytes": lambda: b"gone",
    "a list": lambda: [7],
    "a tuple": lambda: (7,),
    "a set": lambda: {7},
    "untold": Untold,
    "nameless": Nameless("N", (), {}),
    "disguised": Disguised,
}


@pytest.mark.parametrize("make", NO_TEXT.values(), ids=NO_TEXT)
@pytest.mark.parametrize("within", [lambda value: value, lambda value: {"error": value}], ids=["itself", "in a mapping"])
def test_what_holds_no_text_is_not_looked_into(make, within):
    signature = of_value(within(make()))
    assert signature.startswith("returned:")
    assert "gone" not in signature
    assert signature == of_value(within(make()))


def test_a_mapping_that_fails_to_answer_has_no_text():
    assert of_value(OddMapping(error="gone")) == "returned:"
    assert of_value({"error": OddMapping(message="gone")}) == "returned:"


def test_a_mapping_that_holds_itself_ends():
    value = {}
    value["error"] = value
    assert of_value(value).startswith("returned:")


# In a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        type("MuteError", (Exception,), {"__str__": raising, "__repr__": raising}),
        type("OddError", (Exception,), {"__str__": lambda _self: OddText("gone")}),
        lambda: ExceptionGroup("many", [ValueError(n) for n in range(10_000)]),
        lambda: ValueError("x" * 10_000_000),
        lambda: ValueError("\ud800\x00"),
        lambda: ValueError(Untold()),
    ],
    ids=["mute", "odd text", "group", "huge", "surrogate", "untold"],
)
def test_whatever_a_tool_raises_comes_out_as_it_is_and_counts(error):
    raised = error()

    @metered(kind="read")
    def look():
        raise raised

    with toolguard.run():
        for _ in range(2):
            with pytest.raises(type(raised)) as caught:
                look()
            assert caught.value is raised
        assert_refused(look(), "repeat_failure")


@pytest.mark.parametrize("make", NO_TEXT.values(), ids=NO_TEXT)
@pytest.mark.parametrize("within", [lambda value: value, lambda value: {"error": value}], ids=["itself", "in a mapping"])
def test_whatever_a_tool_returns_as_a_failure_comes_out_as_it_is_and_counts(make, within):
    value = within(make())

    @metered(kind="read", failed=lambda _value: True)
    def look():
        return value

    with toolguard.run(output_chars=0, result_chars=0):
        for _ in range(2):
            assert look() is value
        assert_refused(look(), "repeat_failure")


def test_classes_of_one_name_in_two_modules_are_told_apart():
    one = type("TimeoutError", (Exception,), {"__module__": "sockets"})
    two = type("TimeoutError", (Exception,), {"__module__": "queries"})
    raises = [one, two, one, two, one]

    @metered(kind="read")
    def look():
        raise raises.pop()("gone")

    with toolguard.run():
        for kind in reversed(raises.copy()):
            with pytest.raises(kind):
                look()


async def test_a_failure_that_is_raised_in_a_task_group_counts():
    async def fail(n):
        raise ValueError(n)

    @metered(kind="read")
    async def look():
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(fail(n))

    with toolguard.run():
        for _ in range(2):
            with pytest.raises(ExceptionGroup):
                await look()
        assert_refused(await look(), "repeat_failure")


def test_no_text_of_an_error_is_kept():
    @metered(kind="read")
    def look():
        raise ValueError("password hunter2")

    with toolguard.run() as run:
        with pytest.raises(ValueError, match="hunter2"):
            look()
        states = run.ledger.sync().session.states
        (failing,) = (states["repeat_failure"].failing.get(each) for each in states["repeat_failure"].failing)
        (complaint,) = states["same_complaint"].tools.get("look").complaints
    assert {type(failing.signature), type(complaint)} == {bytes}
    assert {len(failing.signature), len(complaint)} == {16}
