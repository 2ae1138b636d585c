"""The decorator on functions: it changes nothing but what a call may come to."""

import asyncio
import copy
import doctest
import functools
import importlib
import inspect
import io
import json
import multiprocessing
import pickle
import pydoc
import sys
import textwrap
import traceback
import types
import typing
import weakref
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from unittest import mock

import pydantic
import pytest

import toolguard
from toolguard import MissingExtraError, NotExecuted, Refusal, metered, spec
from toolguard.testing import assert_executed, assert_refused

# One function of each kind, and one for each odd signature --------------------------------------------------------------


def plain(query: str, limit: int = 20) -> list[str]:
    """Search the mailbox.

    >>> plain("a", 2)
    ['a', 'a']
    """
    return [query] * limit


async def coroutine(query: str, *, deep: bool = False) -> str:
    """Search slowly."""
    return query + str(deep)


def generator(top: int) -> typing.Iterator[int]:
    """Count."""
    yield from range(top)


async def async_generator(top: int) -> typing.AsyncIterator[int]:
    """Count slowly."""
    for number in range(top):
        yield number


def positional_only(a, b=2, /):
    return a, b


def keyword_only(*, a, b=None):
    return a, b


def mixed(a, /, b, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


def awkward_names(self, args, kwargs, fn, wrapped, instance):
    return self, args, kwargs, fn, wrapped, instance


def annotated(query: "typing.Annotated[str, 'what to look for']", options: "dict[str, int] | None" = None) -> "Later":
    return Later()


class Later:
    """Defined after the function that names it."""


def undefined_names(query: "Missing", other: "a b c" = 1) -> "also.missing":  # noqa: F821, F722
    return query, other


BARE = [
    plain, coroutine, generator, async_generator, positional_only, keyword_only, mixed, awkward_names, annotated,
    undefined_names,
]  # fmt: skip


@pytest.fixture(params=BARE, ids=lambda function: function.__name__)
def pair(request):
    return request.param, metered(kind="read")(request.param)


@metered(kind="read")
def tool(query: str, limit: int = 20) -> str:
    """Find it."""
    return f"{query}:{limit}"


def executed(run):
    return run.usage().executed


# What is asked of a function --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["__name__", "__qualname__", "__doc__", "__module__", "__defaults__", "__kwdefaults__", "__code__", "__globals__",
     "__annotations__", "__closure__", "__dict__"],
)  # fmt: skip
def test_a_tool_has_the_attributes_of_its_function(pair, name):
    bare, made = pair
    assert getattr(made, name) == getattr(bare, name)


def test_a_tool_leads_to_its_function(pair):
    bare, made = pair
    assert made.__wrapped__ is bare
    assert inspect.unwrap(made) is bare


def test_a_tool_has_the_signature_of_its_function(pair):
    bare, made = pair
    assert inspect.signature(made) == inspect.signature(bare)
    assert inspect.getfullargspec(made) == inspect.getfullargspec(bare)


def test_a_tool_has_the_type_hints_of_its_function(pair):
    bare, made = pair
    try:
        expected = typing.get_type_hints(bare, include_extras=True)
    except (NameError, SyntaxError) as error:
        with pytest.raises(type(error)):
            typing.get_type_hints(made, include_extras=True)
    else:
        assert typing.get_type_hints(made, include_extras=True) == expected


@pytest.mark.parametrize(
    "ask",
    [
        inspect.isfunction, inspect.isroutine, inspect.ismethod, inspect.isbuiltin, inspect.isclass, inspect.isabstract,
        inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.ismethoddescriptor,
        asyncio.iscoroutinefunction, callable, inspect.getsource, inspect.getdoc, inspect.getfile, inspect.getmodule,
        inspect.getsourcelines, pydoc.plain, pydoc.describe,
    ],
    ids=lambda ask: ask.__name__,
)  # fmt: skip
def test_inspection_says_of_a_tool_what_it_says_of_its_function(pair, ask):
    bare, made = pair
    if ask is pydoc.plain:
        assert ask(pydoc.render_doc(made)) == ask(pydoc.render_doc(bare))
    else:
        assert ask(made) == ask(bare)


def test_a_tool_is_a_function_by_isinstance(pair):
    assert isinstance(pair[1], types.FunctionType)
    assert isinstance(pair[1], typing.Callable)


def test_help_shows_signature_and_docstring(capsys):
    help(tool)
    shown = capsys.readouterr().out
    assert "tool(query: str, limit: int = 20) -> str" in shown
    assert "Find it." in shown


def test_repr_says_that_the_function_is_metered():
    assert repr(tool) == f"<metered {spec(tool).function!r}>"


def test_doctest_finds_and_runs_the_examples_of_a_tool():
    module = types.ModuleType("with_examples")
    source = '''
        import toolguard

        @toolguard.metered(kind="read")
        def double(n):
            """Double it.

            >>> double(2)
            4
            >>> double(3)
            7
            """
            return 2 * n
        '''
    exec(textwrap.dedent(source), module.__dict__)
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert [test.name for test in found] == ["with_examples.double"]
    results = doctest.DocTestRunner(verbose=False).run(found[0], out=io.StringIO().write)
    assert (results.attempted, results.failed) == (2, 1)


def test_a_weak_reference_to_a_tool_lives_as_long_as_the_tool():
    made = metered(kind="read")(plain)
    ref = weakref.ref(made)
    assert ref() is made
    del made
    assert ref() is None


def test_an_attribute_set_on_a_tool_is_read_back():
    def local():
        return 1

    made = metered(kind="read")(local)
    made.owner = "mail team"
    assert made.owner == "mail team"
    del made.owner
    assert not hasattr(made, "owner")


def test_decorating_leaves_no_attribute_on_the_function():
    def local(a):
        return a

    before = set(dir(local)), dict(vars(local))
    with toolguard.run():
        metered(kind="read")(local)(1)
    assert (set(dir(local)), dict(vars(local))) == before


def test_what_wraps_a_tool_takes_over_its_names_and_nothing_of_ours():
    @functools.wraps(tool)
    def wrapper(*args, **kwargs):
        return tool(*args, **kwargs)

    assert (wrapper.__name__, wrapper.__doc__, vars(wrapper)) == ("tool", "Find it.", {"__wrapped__": tool})
    cached = functools.lru_cache(tool)
    assert (cached.__doc__, cached.__module__, cached.__wrapped__) == ("Find it.", __name__, tool)


def test_decorating_never_evaluates_annotations():
    class Loud(dict):
        def __missing__(self, name):
            raise AssertionError(name)

    module = Loud(metered=metered, __builtins__=__builtins__, __name__="loud")
    exec("from __future__ import annotations\n@metered(kind='read')\ndef f(a: Undefined.name(1) = 3) -> 1/0: return a", module)
    with toolguard.run():
        assert module["f"]() == 3
    assert inspect.signature(module["f"]).return_annotation == "1 / 0"
    with pytest.raises((NameError, AssertionError)):
        typing.get_type_hints(module["f"])


def test_type_hints_resolve_a_forward_reference_in_the_module_of_the_function():
    assert typing.get_type_hints(metered(kind="read")(annotated))["return"] is Later


# What Python and others build on functions ------------------------------------------------------------------------------


@pytest.fixture
@metered(kind="read")
def metered_fixture(request):
    return request.function.__name__


def test_a_tool_can_be_a_fixture(metered_fixture):
    assert metered_fixture == "test_a_tool_can_be_a_fixture"


@pytest.mark.parametrize("number", [1, 2])
@metered(kind="read")
def test_a_tool_can_be_a_parametrized_test(number):
    assert number in {1, 2}


def test_autospec_of_a_tool_knows_its_parameters():
    double = mock.create_autospec(tool, return_value="found")
    assert double("a", limit=3) == "found"
    double.assert_called_once_with("a", limit=3)
    with pytest.raises(TypeError, match="too many positional"):
        double("a", 3, 4)


async def test_autospec_of_a_coroutine_tool_is_awaited():
    double = mock.create_autospec(metered(kind="read")(coroutine), return_value="found")
    assert await double("a") == "found"


def test_a_patched_tool_is_put_back():
    module = types.SimpleNamespace(tool=tool)
    with mock.patch.object(module, "tool", autospec=True) as double:
        double.return_value = "patched"
        assert module.tool("a") == "patched"
        with pytest.raises(TypeError):
            module.tool()
    assert module.tool is tool


def test_a_context_manager_over_a_metered_generator_enters_and_leaves():
    left = []

    @contextmanager
    @metered(kind="read", limit=1)
    def opened(name):
        try:
            yield name
        finally:
            left.append(name)

    with toolguard.run() as run:
        with opened("a") as value:
            assert (value, left) == ("a", [])
        assert left == ["a"]
        with opened("b") as value:
            assert_refused(value, "per_tool")
        assert (left, executed(run)) == (["a"], 1)
        with pytest.raises(KeyError, match="raised inside"), opened("c"):
            raise KeyError("raised inside")


async def test_an_async_context_manager_over_a_metered_generator_sees_what_was_raised_inside():
    seen = []

    @asynccontextmanager
    @metered(kind="read")
    async def opened(name):
        try:
            yield name
        except KeyError as error:
            seen.append(error)

    raised = KeyError("k")
    async with toolguard.run() as run, opened("a") as value:
        assert value == "a"
        raise raised
    assert seen == [raised]
    assert executed(run) == 1


def test_single_dispatch_over_tools_meters_what_it_dispatches_to():
    @functools.singledispatch
    @metered(kind="read", name="show_any")
    def show(value):
        return "any"

    @show.register
    @metered(kind="read", name="show_int")
    def _(value: int):
        return "int"

    with toolguard.run() as run:
        assert (show("a"), show(1)) == ("any", "int")
        assert run.usage().by_tool == {"show_any": 1, "show_int": 1}


def test_a_tool_over_single_dispatch_still_registers_and_dispatches():
    @metered(kind="read")
    @functools.singledispatch
    def show(value):
        return "any"

    show.register(int, lambda value: "int")
    with toolguard.run() as run:
        assert (show("a"), show(1)) == ("any", "int")
        assert run.usage().by_tool == {"show": 2}


def test_a_tool_over_a_cache_charges_hits_and_keeps_the_cache_functions():
    ran = []

    @metered(kind="read", limit=3)
    @functools.lru_cache
    def load(key):
        ran.append(key)
        return key * 2

    with toolguard.run(same_outcome=0) as run:
        assert [load(1), load(1), load(1)] == [2, 2, 2]
        assert_refused(load(1), "per_tool")
        assert executed(run) == 3
    assert ran == [1]
    assert load.cache_info().hits == 2
    load.cache_clear()
    assert load.cache_info().currsize == 0


def test_a_cache_over_a_tool_keeps_a_refusal_for_good():
    @functools.lru_cache
    @metered(kind="read", limit=1)
    def load(key):
        return key

    with toolguard.run():
        assert_executed(load(1))
        refused = assert_refused(load(2), "per_tool")
    with toolguard.run():
        assert load(2) is refused


def test_validation_of_arguments_above_a_tool_coerces_them_and_charges_no_call_that_it_rejects():
    @pydantic.validate_call
    @metered(kind="read", limit=1)
    def double(n: int) -> int:
        return 2 * n

    with toolguard.run() as run:
        with pytest.raises(pydantic.ValidationError):
            double("x")
        assert executed(run) == 0
        assert double("2") == 4
        assert_refused(double("3"), "per_tool")
    assert list(inspect.signature(double).parameters) == ["n"]


def test_validation_of_arguments_below_a_tool_is_part_of_the_charged_call():
    @metered(kind="read")
    @pydantic.validate_call
    def double(n: int) -> int:
        return 2 * n

    with toolguard.run() as run:
        assert double("2") == 4
        with pytest.raises(pydantic.ValidationError):
            double("x")
        assert executed(run) == 2


def test_validation_of_the_result_above_a_tool_rejects_a_refusal_unless_it_is_in_the_annotation():
    @metered(kind="read")
    def bare(n: int) -> int:
        return n

    @metered(kind="read")
    def honest(n: int) -> int | Refusal:
        return n

    checked = pydantic.validate_call(validate_return=True)
    with toolguard.run(aggregate=1):
        bare(0)
        with pytest.raises(pydantic.ValidationError):
            checked(bare)(1)
        assert_refused(checked(honest)(2), "aggregate")


def test_pydantic_makes_the_same_schema_of_a_tool_as_of_its_function():
    made = metered(kind="read")(plain)
    assert pydantic.TypeAdapter(made).json_schema() == pydantic.TypeAdapter(plain).json_schema()


# Identity, copies and pickles -------------------------------------------------------------------------------------------


def test_a_tool_equals_itself_and_nothing_else():
    one, other = metered(kind="read")(plain), metered(kind="read")(plain)
    assert one == one  # noqa: PLR0124
    assert not one != one  # noqa: PLR0124, SIM202
    for different in (plain, other, spec(one), None):
        assert one != different
        assert different != one
        assert not one == different  # noqa: SIM201
    assert len({one, other, plain}) == 3


def test_a_registry_keyed_by_functions_never_runs_the_bare_function_for_the_tool():
    made = metered(kind="read", limit=1)(plain)

    @functools.lru_cache
    def prepared(function):
        return functools.partial(function, limit=1)

    prepared(plain)
    with toolguard.run():
        assert prepared(made)("a") == ["a"]
        assert_refused(prepared(made)("b"), "per_tool")
        assert prepared(plain)("c") == ["c"]
    assert {plain: "bare", made: "metered"}[made] == "metered"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: copy.deepcopy([made, made])[1]])
def test_a_copy_of_a_tool_is_the_tool(copied):
    assert copied(tool) is tool
    local = metered(kind="read")(lambda_free())
    assert copied(local) is local


def lambda_free():
    def local():
        return 1

    return local


def test_a_local_tool_cannot_be_pickled_as_a_local_function_cannot():
    def local():
        return 1

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(metered(kind="read")(local))


TOOLS_OF_A_PROCESS = """
import toolguard


@toolguard.metered(kind="read", limit=2)
def double(n):
    return 2 * n


class Mailbox:
    def __init__(self, owner):
        self.owner = owner

    @toolguard.metered(kind="read")
    def search(self, query):
        return f"{self.owner}:{query}"

    @toolguard.metered(kind="read")
    @staticmethod
    def size(text):
        return len(text)

    @staticmethod
    @toolguard.metered(kind="read")
    def length(text):
        return len(text)

    @toolguard.metered(kind="read")
    @classmethod
    def kind(cls, text):
        return cls.__name__ + text

    @classmethod
    @toolguard.metered(kind="read")
    def type(cls, text):
        return cls.__name__ + text


def refused():
    with toolguard.run():
        return [double(1), double(2), double(3)]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "tools_of_a_process.py").write_text(TOOLS_OF_A_PROCESS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tools_of_a_process")
    del sys.modules["tools_of_a_process"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_tool_is_pickled_by_its_name(module, protocol):
    data = pickle.dumps(module.double, protocol)
    assert pickle.loads(data) is module.double
    assert len(data) < 100


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["search", "size", "length", "kind", "type"])
def test_every_method_reached_through_class_or_instance_survives_pickling_as_a_tool(module, name, protocol):
    for holder in (module.Mailbox("ann"), module.Mailbox):
        again = pickle.loads(pickle.dumps(getattr(holder, name), protocol))
        assert spec(again).name == name
        bound = again if name != "search" or holder is not module.Mailbox else functools.partial(again, module.Mailbox("ann"))
        with toolguard.run() as run:
            expected = {"search": "ann:ab", "size": 2, "length": 2, "kind": "Mailboxab", "type": "Mailboxab"}[name]
            assert bound("ab") == expected
            assert executed(run) == 1


def test_a_tool_that_its_module_no_longer_holds_is_not_pickled_as_another(module):
    older = module.Mailbox.search
    module.Mailbox.search = metered(kind="read")(lambda_free())
    with pytest.raises(pickle.PicklingError, match="search"):
        pickle.dumps(older)


def test_tools_methods_and_refusals_pass_to_another_process_and_back(module):
    box = module.Mailbox("ann")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(module.double, 3).result() == 6
        assert list(pool.map(module.double, [1, 2])) == [2, 4]
        assert pool.submit(box.search, "q").result() == "ann:q"
        assert pool.submit(module.Mailbox.kind, "x").result() == "Mailboxx"
        assert pool.submit(module.Mailbox.size, "abc").result() == 3
        one, two, refused = pool.submit(module.refused).result()
    assert (one, two) == (2, 4)
    assert assert_refused(refused, "per_tool").to_dict()["limit"] == 2


# What the decorator takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda: metered(plain),
        lambda: metered()(plain),
        lambda: metered("read"),
        lambda: metered(plain, kind="read"),
        lambda: metered(kind="delegate"),
        lambda: metered(kind=None),
        lambda: metered(kind=["read"]),
        lambda: metered(kind=True),
    ],
)
def test_a_missing_or_wrong_kind_is_one_line_that_says_what_to_write(use):
    with pytest.raises(TypeError) as caught:
        use()
    assert str(caught.value).startswith('write @metered(kind="read") or @metered(kind="send")')
    assert "\n" not in str(caught.value)


class CallableInstance:
    def __call__(self, query):
        return query


class WithProperty:
    @property
    def size(self):
        return 1


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda query: query, "a lambda"),
        (functools.lru_cache(lambda query: query), "a lambda"),
        (functools.partial(plain, "a"), "a partial"),
        (functools.partialmethod(plain, "a"), "a partialmethod"),
        (CallableInstance(), "a CallableInstance"),
        (CallableInstance, "a type"),
        (Later, "a type"),
        (staticmethod(CallableInstance()), "a CallableInstance"),
        (classmethod(functools.partial(plain)), "a partial"),
        (WithProperty.size, "a property"),
        (mock.Mock(), "a Mock"),
        (len, "a builtin_function_or_method"),
        ("plain", "a str"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_function_is_refused_with_one_line_that_says_what_to_do(what, said):
    with pytest.raises(TypeError) as caught:
        metered(kind="read", name="fine")(what)
    assert said in str(caught.value)
    assert "write a def" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "fine" not in [known.name for known in toolguard.registered()]


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 64, "-", "read-file"])
def test_a_name_of_1_to_64_letters_digits_and_dashes_is_taken(name):
    assert spec(metered(kind="read", name=name)(lambda_free())).name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a.b", "größe", "a\n", "a/b", "²", 3, b"a", ["a"], True])
def test_any_other_name_is_an_error_that_shows_it(name):
    with pytest.raises(ValueError, match="tool name") as caught:
        metered(kind="read", name=name)(plain)
    assert repr(name) in str(caught.value)


def test_a_function_whose_own_name_cannot_be_used_needs_another():
    def größe():  # noqa: PLC2401
        return 1

    with pytest.raises(ValueError, match="give it one with name="):
        metered(kind="read")(größe)
    assert spec(metered(kind="read", name="groesse")(größe)).name == "groesse"


def test_two_names_that_differ_by_case_and_dashes_share_their_counts():
    one = metered(kind="read", name="Read-File", limit=2)(plain)
    other = metered(kind="read", name="read_file", limit=2)(plain)
    with toolguard.run() as run:
        one("a")
        other("b")
        assert_refused(one("c"), "per_tool")
        assert_refused(other("d"), "per_tool")
        assert executed(run) == 2


def test_two_long_names_that_differ_in_the_middle_alone_are_two_budgets():
    one, other = (metered(kind="read", name="a" * 30 + part + "z" * 30, limit=1)(plain) for part in ("1", "2"))
    with toolguard.run() as run:
        one("a")
        other("a")
        assert_refused(one("b"), "per_tool")
        assert_refused(other("b"), "per_tool")
        assert sorted(run.usage().by_tool.values()) == [1, 1]


@pytest.mark.parametrize("limit", [True, False, -1, 1.0, 2.5, float("nan"), float("inf"), "3", [3], 1 << 63])
def test_a_limit_that_is_no_whole_number_of_calls_is_an_error_that_names_tool_and_value(limit):
    with pytest.raises(ValueError, match="limit of plain") as caught:
        metered(kind="read", limit=limit)(plain)
    assert repr(limit) in str(caught.value)


def test_a_limit_of_0_is_no_limit_and_none_is_that_of_the_run():
    unlimited = metered(kind="read", name="unlimited", limit=0)(positional_only)
    usual = metered(kind="read", name="usual", limit=None)(positional_only)
    with toolguard.run(per_tool=2, aggregate=0) as run:
        for number in range(10):
            assert_executed(unlimited(number))
        assert isinstance(usual(1), tuple)
        assert isinstance(usual(2), tuple)
        assert_refused(usual(3), "per_tool")
        assert executed(run) == 12


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"ignore": ("querry",)}, ValueError, "ignore= names no parameter 'querry' (known: query, limit)"),
        ({"ignore": "querry"}, ValueError, "'querry'"),
        ({"ignore": 3}, TypeError, "ignore= takes names of parameters, not 3"),
        ({"ignore": (3,)}, TypeError, "not (3,)"),
        ({"ignore": None}, TypeError, "not None"),
        ({"query": "sql"}, ValueError, "query= names no parameter 'sql' (known: query, limit)"),
        ({"query": ("path", "query")}, ValueError, "'path'"),
        ({"query": ("query",)}, TypeError, "query= takes"),
        ({"query": ("query", "limit", "more")}, TypeError, "query= takes"),
        ({"query": 3}, TypeError, "query= takes"),
        ({"failed": "yes"}, TypeError, "failed= takes"),
        ({"polls": 1}, TypeError, "polls= takes True or False, not 1"),
        ({"repeatable": "yes"}, TypeError, "repeatable= takes True or False, not 'yes'"),
        ({"delegate": "agent"}, ValueError, "delegate= names no parameter 'agent' (known: query, limit)"),
        ({"delegate": ""}, TypeError, "delegate= takes True or the name of the parameter"),
        ({"delegate": None}, TypeError, "not None"),
        ({"delegate": ("query",)}, TypeError, "not ('query',)"),
        ({"delegate": True, "kind": "send"}, ValueError, 'needs kind="read"'),
        ({"delegate": "query", "kind": "send"}, ValueError, 'needs kind="read"'),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error_at_decoration_that_says_why(options, error, said):
    with pytest.raises(error) as caught:
        metered(**{"kind": "read", **options})(plain)
    assert said in str(caught.value)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="retries"):
        metered(kind="read", retries=3)


def test_a_query_without_its_extra_is_an_error_at_decoration_with_the_command_that_installs_it(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sqlglot", None)
        patch.setitem(sys.modules, "sqlglot.tokens", None)
        patch.setattr("toolguard._query.available", lambda: False)
        with pytest.raises(MissingExtraError, match=r"pip install 'toolguard-otel\[sql\]'"):
            metered(kind="read", query="query")(plain)
        assert_executed(metered(kind="read")(plain)("a"))


def test_what_ignore_names_does_not_tell_two_calls_apart():
    @metered(kind="read", ignore=("timeout",))
    def fetch(url, timeout=1.0):
        return url

    with toolguard.run(aggregate=1):
        fetch("first")
        assert_refused(fetch("a", timeout=1), "aggregate")
        assert fetch("a", timeout=2) == "a"
        assert_refused(fetch("b", timeout=2), "aggregate")


def test_one_call_written_in_any_way_is_one_identity():
    ways = [
        lambda f: f(1, 2),
        lambda f: f(1, b=2),
        lambda f: f(a=1, b=2),
        lambda f: f(b=2, a=1),
        lambda f: f(1, 2, 3),
        lambda f: f(1, 2, c=3),
    ]

    @metered(kind="read")
    def f(a, b, c=3):
        return a, b, c

    for first in ways:
        for second in ways:
            with toolguard.run(aggregate=1):
                f(0, 0)
                assert_refused(first(f), "aggregate")
                assert second(f) == (1, 2, 3)


def test_keywords_that_no_parameter_names_are_one_identity_in_any_order():
    made = metered(kind="read")(mixed)
    with toolguard.run(aggregate=1):
        made(0, 0, d=0)
        assert_refused(made(1, 2, d=0, x=1, y={"p": 1, "q": [2]}), "aggregate")
        assert_executed(made(1, 2, y={"q": [2], "p": 1}, x=1, d=0))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((1, 2), {"d": 0}), ((2, 1), {"d": 0})),
        (((1, 2, 3, 4), {"d": 0}), ((1, 2, 3), {"d": 0})),
        (((1, 2), {"d": 0, "x": 1}), ((1, 2), {"d": 0, "y": 1})),
        (((1, 2), {"d": 0}), ((1, "2"), {"d": 0})),
        (((1, 2), {"d": None}), ((1, 2), {"d": 0})),
        (((1, 2), {"d": 0, "a=b": "1"}), ((1, 2), {"d": 0, "a": "b=1"})),
    ],
)
def test_two_different_calls_are_two_identities(first, second):
    made = metered(kind="read")(mixed)
    with toolguard.run(aggregate=1):
        made(0, 0, d=0)
        assert_refused(made(*first[0], **first[1]), "aggregate")
        assert_refused(made(*second[0], **second[1]), "aggregate")
        assert_executed(made(*first[0], **first[1]))


# Decorating twice -------------------------------------------------------------------------------------------------------


def test_decorating_twice_is_the_same_tool_and_one_charge_and_one_span(spans):
    once = metered(kind="read", limit=5, ignore=("limit",))(plain)
    twice = metered(kind="read", limit=5, ignore="limit")(once)
    assert twice is once
    with toolguard.run() as run:
        twice("a")
        assert executed(run) == 1
    assert len(spans.calls()) == 1


@pytest.mark.parametrize(
    "options",
    [{"kind": "send"}]
    + [
        {"kind": "read", **option}
        for option in (
            {"limit": 3},
            {"name": "other"},
            {"delegate": True},
            {"delegate": "query"},
            {"polls": True},
            {"repeatable": True},
            {"gate": print},
            {"failed": bool},
        )
    ],
    ids=str,
)
def test_decorating_twice_with_other_options_is_an_error_that_names_the_tool(options):
    once = metered(kind="read")(plain)
    with pytest.raises(TypeError, match="plain is metered already, with other options"):
        metered(**options)(once)


# A call -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bare", "args", "kwargs"),
    [
        (plain, ("a",), {}), (plain, ("a",), {"limit": 1}), (plain, (), {"limit": 0, "query": "a"}),
        (positional_only, (1,), {}), (positional_only, (1, 3), {}),
        (keyword_only, (), {"a": 1}), (keyword_only, (), {"a": 0, "b": 0}), (keyword_only, (), {"a": None, "b": None}),
        (mixed, (1, 2), {"d": 4}), (mixed, (1, 2, 3, 4, 5), {"d": 4, "e": 6, "f": 7, "a": 8, "self": 9}),
        (awkward_names, (1, 2, 3, 4, 5, 6), {}),
        (awkward_names, (), dict(self=1, args=2, kwargs=3, fn=4, wrapped=5, instance=6)),  # noqa: C408
    ],
)  # fmt: skip
def test_a_call_returns_what_the_function_returns_whatever_its_parameters(bare, args, kwargs):
    made = metered(kind="read", name="made")(bare)
    expected = bare(*args, **kwargs)
    assert made(*args, **kwargs) == expected
    with toolguard.run() as run:
        assert made(*args, **kwargs) == expected
        assert executed(run) == 1


@pytest.mark.parametrize(
    ("bare", "args", "kwargs"),
    [
        (plain, (), {}), (plain, ("a", 1, 2), {}), (plain, ("a",), {"top": 1}), (plain, ("a",), {"query": "b"}),
        (positional_only, (), {"a": 1}), (keyword_only, (1,), {}), (keyword_only, (), {}), (mixed, (1, 2), {}),
        (coroutine, (), {}), (coroutine, ("a", True), {}), (generator, (), {}), (async_generator, (1, 2), {}),
    ],
)  # fmt: skip
def test_a_call_that_cannot_bind_raises_the_functions_own_error_and_charges_nothing(bare, args, kwargs, spans):
    made = metered(kind="read")(bare)
    with pytest.raises(TypeError) as expected:
        bare(*args, **kwargs)
    with toolguard.run() as run, pytest.raises(TypeError) as caught:
        made(*args, **kwargs)
    assert str(caught.value) == str(expected.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert executed(run) == 0
    assert spans.calls() == []


def test_a_wrapped_function_that_takes_more_than_its_signature_says_still_runs_and_is_told_apart():
    def with_client(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function("client", *args, **kwargs)

        return wrapper

    @metered(kind="read", ignore=("client",))
    @with_client
    def fetch(client, url, deep=0):
        return client, url, deep

    @metered(kind="read")
    @with_client
    def get(client, url, deep=0):
        return client, url, deep

    with toolguard.run(aggregate=1) as run:
        assert fetch(url="first") == ("client", "first", 0)
        for made in (fetch, get):
            assert_refused(made(url="a"), "aggregate")
            assert_refused(made(url="b"), "aggregate")
            assert made(url="a") == ("client", "a", 0)
        assert executed(run) == 3


def test_the_value_that_a_tool_returns_is_the_very_object():
    marker = object()
    made = metered(kind="read")(positional_only)
    with toolguard.run():
        assert made(marker)[0] is marker


def test_recursion_charges_every_level():
    @metered(kind="read")
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    with toolguard.run(aggregate=0, per_tool=0) as run:
        assert down(4) == 4
        assert executed(run) == 5


def test_a_tool_that_calls_a_tool_is_charged_for_both_and_its_span_holds_the_inner_one(spans):
    @metered(kind="read")
    def inner(n):
        return n

    @metered(kind="read")
    def outer(n):
        return inner(n) + inner(n + 1)

    with toolguard.run() as run:
        assert outer(1) == 3
        assert run.usage().by_tool == {"outer": 1, "inner": 2}
    outside = spans.named("execute_tool outer")[0]
    assert [span.parent.span_id for span in spans.named("execute_tool inner")] == [outside.context.span_id] * 2


def test_an_inner_refusal_passes_unchanged_and_the_charge_of_the_outer_call_stays():
    returned = []

    @metered(kind="read", limit=1)
    def inner():
        return 1

    @metered(kind="read")
    def outer():
        returned.append(inner())
        return returned[-1]

    with toolguard.run() as run:
        outer()
        refused = assert_refused(outer(), "per_tool")
        assert refused is returned[1]
        assert refused.tool == "inner"
        assert run.usage().by_tool == {"outer": 2, "inner": 1}
        assert run.usage().by_reason == {"per_tool": 1}


def test_an_inner_refusal_that_is_passed_on_is_no_repeated_outcome_of_the_outer_tool():
    @metered(kind="read", limit=1)
    def inner():
        return 1

    @metered(kind="read")
    def outer():
        return inner()

    with toolguard.run(adaptive_soft=2, adaptive_repeats=3, per_tool=0, aggregate=0) as run:
        outer()
        assert {assert_refused(outer()).tool for _ in range(8)} == {"inner"}
        assert not run.stopped
        assert run.usage().by_tool == {"outer": 9, "inner": 1}


async def test_an_inner_refusal_passes_unchanged_through_a_coroutine():
    @metered(kind="read", limit=1)
    async def inner():
        return 1

    @metered(kind="read")
    async def outer():
        return await inner()

    async with toolguard.run() as run:
        assert await outer() == 1
        assert assert_refused(await outer(), "per_tool").tool == "inner"
        assert run.usage().by_tool == {"outer": 2, "inner": 1}


async def test_a_plain_function_that_returns_an_awaitable_is_charged_when_called_and_returns_that_very_awaitable():
    made = []

    @metered(kind="read", limit=1)
    def lazy(n):
        made.append(coroutine(str(n)))
        return made[-1]

    async with toolguard.run() as run:
        awaitable = lazy(1)
        assert awaitable is made[0]
        assert executed(run) == 1
        assert await awaitable == "1False"
        assert_refused(lazy(2), "per_tool")
    assert len(made) == 1


def test_outside_a_run_where_that_is_allowed_a_tool_is_the_bare_function(spans):
    with toolguard.testing.isolated({"outside_run": "allow"}):
        assert tool("a", limit=1) == "a:1"
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'query'"):
            tool()
    assert spans.all() == ()


# Exceptions -------------------------------------------------------------------------------------------------------------


class CustomError(Exception):
    def __init__(self, code, *, hint):
        super().__init__(code)
        self.code, self.hint = code, hint


class Base(BaseException):
    pass


def error_with_everything(kind):
    cause = KeyError("cause")
    error = CustomError(3, hint="h") if kind is CustomError else kind("text")
    error.add_note("a note")
    error.__cause__ = cause
    return error, cause


@pytest.mark.parametrize(
    "kind", [ValueError, CustomError, Base, KeyboardInterrupt, SystemExit, TimeoutError, StopAsyncIteration]
)
@pytest.mark.parametrize("flavour", ["plain", "coroutine", "generator"])
def test_what_a_tool_raises_is_the_very_exception_with_all_that_it_carries(kind, flavour, spans):
    error, cause = error_with_everything(kind)

    @metered(kind="read", name="failing")
    def failing():
        raise error

    @metered(kind="read", name="failing")
    async def failing_coroutine():
        raise error

    @metered(kind="read", name="failing")
    def failing_generator():
        yield 1
        raise error

    def call():
        match flavour:
            case "plain":
                return failing()
            case "coroutine":
                return failing_coroutine().send(None)
            case _:
                return list(failing_generator())

    with toolguard.run() as run, pytest.raises(kind) as caught:
        call()
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is None
    assert error.__notes__ == ["a note"]
    assert traceback.extract_tb(error.__traceback__)[-1].name.startswith("failing")
    assert executed(run) == 1
    assert len(spans.calls()) == 1


def test_an_exception_raised_while_another_is_handled_keeps_its_context():
    first = KeyError("first")

    @metered(kind="read")
    def failing():
        try:
            raise first
        except KeyError:
            raise ValueError("second")  # noqa: B904

    with toolguard.run(), pytest.raises(ValueError, match="second") as caught:
        failing()
    assert caught.value.__context__ is first


def test_a_raising_tool_has_one_span_and_no_exception_event_twice(spans):
    @metered(kind="read")
    def failing():
        raise ValueError("once")

    with toolguard.run(), pytest.raises(ValueError, match="once"):
        failing()
    (span,) = spans.calls()
    assert len([event for event in span.events if event.name == "exception"]) <= 1
    assert span.attributes["error.type"] == "ValueError"


def test_a_failed_call_stays_charged():
    @metered(kind="read", limit=3)
    def failing():
        raise TimeoutError

    with toolguard.run(repeat_failure=0, same_outcome=0) as run:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                failing()
        assert_refused(failing(), "per_tool")
        assert executed(run) == 3


@pytest.mark.parametrize("message", ["", "ask ann first; {braces} %s\nand a second line", "größer ✓"])
@pytest.mark.parametrize("kind", ["read", "send"])
def test_not_executed_becomes_a_refusal_with_the_message_verbatim_and_gives_the_charge_back(message, kind):
    @metered(kind=kind)
    def hesitant():
        raise NotExecuted(message)

    with toolguard.run(aggregate=2, delivery=2) as run:
        for _ in range(5):
            refused = assert_refused(hesitant(), "gate")
            assert refused.startswith("hesitant did NOT execute")
            assert message in refused
            assert (refused.used, refused.limit, refused.retry) == (None, None, "different")
        assert executed(run) == 0
        assert run.usage().by_reason == {"gate": 5}
        assert len(run.refusals) == 5


async def test_not_executed_becomes_a_refusal_in_every_flavour():
    @metered(kind="read")
    async def hesitant():
        raise NotExecuted("no")

    @metered(kind="read")
    def hesitant_stream():
        yield 1
        raise NotExecuted("no more")

    @metered(kind="read")
    async def hesitant_async_stream():
        raise NotExecuted("none")
        yield 1

    async with toolguard.run() as run:
        assert_refused(await hesitant(), "gate")
        first, last = list(hesitant_stream())
        assert first == 1
        assert_refused(last, "gate")
        (only,) = [item async for item in hesitant_async_stream()]
        assert "none" in assert_refused(only, "gate")
        assert executed(run) == 0


def test_not_executed_outside_a_run_is_a_refusal_too():
    @metered(kind="read")
    def hesitant():
        raise NotExecuted("not now")

    assert assert_refused(hesitant(), "gate").run_id is None


# What is known of a tool ------------------------------------------------------------------------------------------------


def test_the_function_of_a_spec_is_the_bare_function_and_is_never_charged():
    made = metered(kind="read", limit=1)(plain)
    assert spec(made).function is plain
    with toolguard.run() as run:
        for _ in range(3):
            assert spec(made).function("a", 1) == ["a"]
        assert executed(run) == 0


def test_a_spec_knows_name_kind_signature_and_description():
    known = spec(metered(kind="send", name="find")(plain))
    assert (known.name, known.kind) == ("find", "send")
    assert known.signature == inspect.signature(plain)
    assert known.description == inspect.getdoc(plain)
    assert spec(metered(kind="read")(positional_only)).description == ""


def test_the_spec_of_a_spec_is_that_spec():
    assert spec(spec(tool)) is spec(tool)


@pytest.mark.parametrize("what", [plain, CallableInstance(), None, "tool", len])
def test_there_is_no_spec_of_what_is_not_decorated(what):
    with pytest.raises(TypeError, match="is not a tool; decorate it"):
        spec(what)


def test_a_tool_is_encoded_as_what_it_returns():
    with toolguard.run(aggregate=1):
        tool("a")
        assert json.loads(json.dumps({"content": tool("b")}))["content"].startswith("tool did NOT execute")


def test_asking_the_class_of_a_tool_for_annotations_leaves_the_tools_own_in_place():
    tool = metered(kind="read")(plain_one)
    with toolguard.run() as run:
        bound = run.bind(tool)
    for each in (tool, bound):
        assert type(each).__annotations__ == {}
        assert each.__annotations__ == plain_one.__annotations__ == {"x": int, "return": int}
        assert typing.get_type_hints(each) == {"x": int, "return": int}


def plain_one(x: int) -> int:
    return x
