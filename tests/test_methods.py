"""The decorator on methods of every kind: each receiver is told apart, and no way to a method goes round the budget."""

import copy
import functools
import gc
import inspect
import pickle
import types
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass

import pytest

import toolguard
from toolguard import metered, spec
from toolguard.testing import assert_executed, assert_refused


class Mailbox:
    kept = "class"

    def __init__(self, owner):
        self.owner = owner

    @metered(kind="read")
    def search(self, query, limit=20):
        """Search it."""
        return self.owner, query, limit

    @metered(kind="send")
    async def send(self, body):
        return self.owner, body

    @metered(kind="read")
    def walk(self, top):
        for number in range(top):
            yield self.owner, number

    @metered(kind="read")
    async def feed(self, top):
        for number in range(top):
            yield self.owner, number

    @metered(kind="read")
    @staticmethod
    def static_below(query, limit=20):
        """Static."""
        return query, limit

    @staticmethod
    @metered(kind="read")
    def static_above(query, limit=20):
        """Static."""
        return query, limit

    @metered(kind="read")
    @classmethod
    def class_below(cls, query, limit=20):
        """Class."""
        return cls, query, limit

    @classmethod
    @metered(kind="read")
    def class_above(cls, query, limit=20):
        """Class."""
        return cls, query, limit


class Bare:
    """The same without a decorator."""

    def search(self, query, limit=20):
        """Search it."""

    @staticmethod
    def static_below(query, limit=20):
        """Static."""

    @classmethod
    def class_below(cls, query, limit=20):
        """Class."""

    static_above, class_above = static_below, class_below


class Shared(Mailbox):
    def search(self, query, limit=20):
        return ("shared", *super().search(query, limit))


class Rewritten(Mailbox):
    @metered(kind="read", name="search_all")
    def search(self, query, limit=20):
        return ("all", *super().search(query, limit))


STATIC = ["static_below", "static_above"]
CLASS = ["class_below", "class_above"]
EVERY = ["search", *STATIC, *CLASS]


@pytest.fixture
def box():
    return Mailbox("ann")


def executed(run):
    return run.usage().executed


# Calls ------------------------------------------------------------------------------------------------------------------


def test_a_method_gets_its_receiver_and_is_charged(box):
    with toolguard.run() as run:
        assert box.search("a") == ("ann", "a", 20)
        assert box.search(query="b", limit=1) == ("ann", "b", 1)
        assert Mailbox.search(box, "c") == ("ann", "c", 20)
        assert run.usage().by_tool == {"search": 3}


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("on", ["class", "instance", "subclass"])
def test_a_static_method_gets_no_receiver_in_either_order(box, name, on):
    holder = {"class": Mailbox, "instance": box, "subclass": Shared}[on]
    with toolguard.run() as run:
        assert getattr(holder, name)("a") == ("a", 20)
        assert getattr(holder, name)(query="a", limit=1) == ("a", 1)
        assert run.usage().by_tool == {name: 2}


@pytest.mark.parametrize("name", CLASS)
@pytest.mark.parametrize("on", ["class", "instance", "subclass", "instance of a subclass"])
def test_a_class_method_gets_the_class_it_was_reached_through_in_either_order(box, name, on):
    holder, expected = {
        "class": (Mailbox, Mailbox), "instance": (box, Mailbox), "subclass": (Shared, Shared),
        "instance of a subclass": (Shared("bob"), Shared),
    }[on]  # fmt: skip
    with toolguard.run() as run:
        assert getattr(holder, name)("a") == (expected, "a", 20)
        assert getattr(holder, name)(query="a", limit=1) == (expected, "a", 1)
        assert run.usage().by_tool == {name: 2}


async def test_methods_of_every_flavour_get_their_receiver(box):
    async with toolguard.run() as run:
        assert await box.send("a") == ("ann", "a")
        assert await Mailbox.send(box, body="b") == ("ann", "b")
        assert list(box.walk(2)) == [("ann", 0), ("ann", 1)]
        assert [item async for item in box.feed(2)] == [("ann", 0), ("ann", 1)]
        assert run.usage().by_tool == {"send": 2, "walk": 1, "feed": 1}


@pytest.mark.parametrize("name", EVERY)
def test_a_method_call_that_cannot_bind_raises_the_methods_own_error_and_charges_nothing(box, name):
    bare = getattr(Bare(), name)
    for args, kwargs in (((), {}), (("a", 1, 2), {}), (("a",), {"top": 1})):
        with pytest.raises(TypeError) as expected:
            bare(*args, **kwargs)
        with toolguard.run() as run, pytest.raises(TypeError) as caught:
            getattr(box, name)(*args, **kwargs)
        wanted = str(expected.value).replace("Bare.", "Mailbox.")
        assert str(caught.value) == wanted.replace("_below", "_above") if name.endswith("_above") else wanted
        assert caught.value.__context__ is None
        assert executed(run) == 0


def test_a_method_without_a_receiver_raises_the_methods_own_error():
    with toolguard.run() as run, pytest.raises(TypeError, match=r"Mailbox.search\(\) missing 2 required positional arguments"):
        Mailbox.search()
    assert executed(run) == 0


def test_super_reaches_the_tool_of_the_parent_and_charges_it_once():
    with toolguard.run() as run:
        assert Shared("bob").search("a") == ("shared", "bob", "a", 20)
        assert run.usage().by_tool == {"search": 1}


def test_a_metered_override_that_calls_the_metered_parent_is_two_calls_and_two_spans(spans):
    with toolguard.run() as run:
        assert Rewritten("bob").search("a") == ("all", "bob", "a", 20)
        assert run.usage().by_tool == {"search_all": 1, "search": 1}
    outer, inner = spans.named("execute_tool search_all")[0], spans.named("execute_tool search")[0]
    assert inner.parent.span_id == outer.context.span_id


def test_an_abstract_tool_must_be_overridden_and_can_be_called_by_the_override():
    class Source(ABC):
        @abstractmethod
        @metered(kind="read")
        def read(self, key):
            return key

        @metered(kind="read")
        @abstractmethod
        def write(self, key):
            return key

    class File(Source):
        def read(self, key):
            return super().read(key) * 2

        def write(self, key):
            return super().write(key) * 3

    assert Source.__abstractmethods__ == {"read", "write"}
    with pytest.raises(TypeError, match="abstract"):
        Source()
    with toolguard.run() as run:
        assert (File().read(1), File().write(1)) == (2, 3)
        assert executed(run) == 2


def test_a_method_of_a_dataclass_with_slots_is_a_tool():
    @dataclass(slots=True)
    class Point:
        x: int

        @metered(kind="read")
        def moved(self, by):
            return self.x + by

    with toolguard.run() as run:
        assert Point(1).moved(2) == 3
        assert executed(run) == 1


def test_a_property_may_be_a_tool_below():
    class Box:
        @property
        @metered(kind="read", limit=1)
        def size(self):
            return 3

    with toolguard.run():
        assert Box().size == 3
        assert_refused(Box().size, "per_tool")


def test_a_call_on_the_instances_own_dict_is_a_tool(box):
    box.own = metered(kind="read", name="own")(box.__class__.static_below.__wrapped__)
    with toolguard.run() as run:
        assert box.own("a") == ("a", 20)
        assert run.usage().by_tool == {"own": 1}


# What is asked of a method ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("on", ["class", "instance"])
def test_inspection_says_of_a_metered_method_what_it_says_of_the_bare_one(name, on):
    made = getattr(Mailbox if on == "class" else Mailbox("ann"), name)
    bare = getattr(Bare if on == "class" else Bare(), name)
    assert inspect.signature(made) == inspect.signature(bare)
    assert inspect.getfullargspec(made) == inspect.getfullargspec(bare)
    for ask in (inspect.ismethod, inspect.isfunction, inspect.isroutine, inspect.iscoroutinefunction, inspect.getdoc):
        assert ask(made) == ask(bare), ask
    assert made.__name__ == name
    assert made.__qualname__ == f"Mailbox.{name}"
    assert isinstance(made, types.MethodType) == isinstance(bare, types.MethodType)
    assert hasattr(made, "__self__") == hasattr(bare, "__self__")
    assert hasattr(made, "__func__") or not hasattr(bare, "__func__")


async def test_async_and_generator_methods_are_seen_as_such(box):
    assert inspect.iscoroutinefunction(box.send)
    assert inspect.isgeneratorfunction(box.walk)
    assert inspect.isasyncgenfunction(box.feed)
    assert not inspect.iscoroutinefunction(box.walk)


def test_attributes_of_the_class_are_what_the_decorators_made():
    assert inspect.isfunction(vars(Mailbox)["search"])
    assert isinstance(vars(Mailbox)["static_below"], staticmethod)
    assert isinstance(vars(Mailbox)["class_below"], classmethod)


# Equality, copies, references -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_method_equals_itself_each_time_it_is_reached(box, name):
    assert getattr(box, name) == getattr(box, name)
    assert hash(getattr(box, name)) == hash(getattr(box, name))
    assert getattr(Mailbox, name) == getattr(Mailbox, name)
    assert len({getattr(box, name), getattr(box, name)}) == 1


def test_a_method_of_another_receiver_another_method_and_the_bare_method_are_different(box):
    other = Mailbox("ann")
    bare = types.MethodType(vars(Mailbox)["search"].__wrapped__, box)
    for different in (other.search, box.send, Mailbox.search, bare, vars(Mailbox)["search"], None):
        assert box.search != different
        assert different != box.search
    assert len({box.search, other.search, Mailbox.search, bare}) == 4


def test_the_class_method_of_a_subclass_is_another():
    assert Mailbox.class_below != Shared.class_below
    assert Mailbox.class_below == Mailbox("ann").class_below


def test_a_cache_keyed_by_methods_never_confuses_metered_and_bare(box):
    bare = types.MethodType(vars(Mailbox)["search"].__wrapped__, box)

    @functools.lru_cache
    def prepared(method):
        return functools.partial(method, limit=1)

    assert prepared(bare)("a") == ("ann", "a", 1)
    with toolguard.run() as run:
        assert prepared(box.search)("a") == ("ann", "a", 1)
        assert executed(run) == 1


@pytest.mark.parametrize("way", ["deepcopy", "deepcopy of the holder", "copy"])
def test_a_copy_of_a_method_is_bound_as_a_copy_of_the_bare_method_is(box, way):
    match way:
        case "deepcopy":
            again = copy.deepcopy(box.search)
        case "deepcopy of the holder":
            box.tools = [box.search]
            holder = copy.deepcopy(box)
            again = holder.tools[0]
            assert again.__self__ is holder
        case _:
            again = copy.copy(box.search)
    assert (again.__self__ is box) == (way == "copy")
    with toolguard.run() as run:
        assert again("a") == ("ann", "a", 20)
        assert executed(run) == 1


@pytest.mark.parametrize("name", [*STATIC, *CLASS])
def test_a_deep_copy_of_a_static_or_class_method_equals_it(name):
    assert copy.deepcopy(getattr(Mailbox, name)) == getattr(Mailbox, name)


def test_a_method_of_a_receiver_that_cannot_be_pickled_is_not_pickled():
    class Local(Mailbox):
        pass

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(Local("a").search)


def test_a_bound_method_keeps_its_receiver_and_nothing_else_does():
    box = Mailbox("ann")
    ref = weakref.ref(box)
    bound = box.search
    del box
    assert bound("a") == ("ann", "a", 20)
    del bound
    gc.collect()
    assert ref() is None


def test_no_tool_and_no_run_keeps_a_receiver_alive():
    box = Mailbox("ann")
    ref = weakref.ref(box)
    with toolguard.run(aggregate=1):
        box.search("a")
        assert_refused(box.search("b"), "aggregate")
        assert_executed(box.search("b"))
        del box
        gc.collect()
        assert ref() is None


# No way round the budget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["search", *CLASS])
def test_the_function_of_a_bound_method_is_metered_too(box, name):
    method = getattr(box, name)
    with toolguard.run(same_outcome=0) as run:
        assert method.__func__(method.__self__, "a") == method("a")
        assert types.MethodType(method.__func__, method.__self__)("a") == method("a")
        assert run.usage().by_tool == {name: 4}


def test_the_function_of_a_bound_method_is_what_the_class_holds(box):
    assert box.search.__func__ is vars(Mailbox)["search"]


@pytest.mark.parametrize("name", ["static_below", "class_below", *STATIC[1:], *CLASS[1:]])
def test_the_function_inside_a_static_or_class_method_is_metered_too(name):
    held = vars(Mailbox)[name]
    args = ("a",) if name.startswith("static") else (Mailbox, "a")
    with toolguard.run() as run:
        assert held.__func__(*args)[-2:] == ("a", 20)
        assert run.usage().by_tool == {name: 1}


def test_a_plain_tool_has_no_inner_function():
    assert not hasattr(vars(Mailbox)["search"], "__func__")
    assert not hasattr(Mailbox.search, "__func__")


@pytest.mark.parametrize("name", ["search", *STATIC, *CLASS])
def test_what_unpacks_a_method_by_any_name_gets_a_tool_or_nothing(box, name):
    for holder in (box, Mailbox):
        function = getattr(getattr(holder, name), "__func__", getattr(holder, name))
        assert spec(function).name == name


# The spec of a method ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("on", ["class", "instance"])
def test_the_spec_of_a_method_takes_the_arguments_that_the_method_takes_and_is_not_charged(box, name, on):
    holder = Mailbox if on == "class" and name != "search" else box
    known = spec(getattr(holder, name))
    assert (known.name, known.kind) == (name, "read")
    assert known.signature == inspect.signature(getattr(holder, name))
    assert known.description == inspect.getdoc(getattr(Bare, name))
    with toolguard.run() as run:
        assert known.function("a")[-2:] == ("a", 20)
        assert executed(run) == 0
        assert known.function("a") == getattr(holder, name)("a")


def test_the_spec_of_an_unbound_method_takes_the_receiver(box):
    assert list(spec(Mailbox.search).signature.parameters) == ["self", "query", "limit"]
    assert spec(Mailbox.search).function(box, "a") == ("ann", "a", 20)


# Who is called is part of what is called --------------------------------------------------------------------------------


def confirmed_by(first, second):
    """Whether a refused `first()` is confirmed by `second()`."""
    with toolguard.run(aggregate=1):
        Mailbox.static_above("spent")
        assert_refused(first(), "aggregate")
        return not isinstance(second(), toolguard.Refusal)


def test_a_call_by_one_receiver_is_not_confirmed_by_another():
    alice, bob = Mailbox("alice"), Mailbox("bob")
    assert confirmed_by(lambda: alice.search("a"), lambda: alice.search("a"))
    assert not confirmed_by(lambda: alice.search("a"), lambda: bob.search("a"))
    assert not confirmed_by(lambda: Mailbox.search(alice, "a"), lambda: Mailbox.search(bob, "a"))


def test_one_call_is_one_call_bound_or_unbound():
    alice = Mailbox("alice")
    assert confirmed_by(lambda: alice.search("a"), lambda: Mailbox.search(alice, "a"))
    assert confirmed_by(lambda: alice.search("a", 20), lambda: alice.search(query="a"))


def test_another_argument_is_another_call_of_the_same_receiver():
    alice = Mailbox("alice")
    assert not confirmed_by(lambda: alice.search("a"), lambda: alice.search("b"))


def test_a_receiver_that_is_equal_to_another_is_still_another():
    @dataclass
    class Account:
        owner: str

        @metered(kind="read")
        def search(self, query):
            return query

    one, twin = Account("ann"), Account("ann")
    assert one == twin
    assert not confirmed_by(lambda: one.search("a"), lambda: twin.search("a"))
    assert confirmed_by(lambda: one.search("a"), lambda: one.search("a"))


def test_a_receiver_that_changes_between_two_calls_is_the_same_receiver():
    box = Mailbox("ann")

    def changed():
        box.owner = "bob"
        return box.search("a")

    assert confirmed_by(lambda: box.search("a"), changed)


@pytest.mark.parametrize("name", CLASS)
def test_the_class_that_a_class_method_is_called_on_is_part_of_the_call(name):
    assert confirmed_by(lambda: getattr(Mailbox, name)("a"), lambda: getattr(Mailbox("b"), name)("a"))
    assert not confirmed_by(lambda: getattr(Mailbox, name)("a"), lambda: getattr(Shared, name)("a"))


@pytest.mark.parametrize("name", STATIC)
def test_what_a_static_method_is_called_on_is_no_part_of_the_call(name):
    assert confirmed_by(lambda: getattr(Mailbox, name)("a"), lambda: getattr(Shared("b"), name)("a"))
    assert not confirmed_by(lambda: getattr(Mailbox, name)("a"), lambda: getattr(Mailbox, name)("b"))


def test_a_receiver_is_told_apart_below_another_decorator_too():
    def retried(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    class Box:
        @retried
        @metered(kind="read")
        def search(self, query):
            return query

    alice, bob = Box(), Box()
    assert confirmed_by(lambda: alice.search("a"), lambda: alice.search("a"))
    assert not confirmed_by(lambda: alice.search("a"), lambda: bob.search("a"))


def test_arguments_stay_apart_where_only_another_argument_is_ignored():
    class Box:
        @metered(kind="read", ignore=("timeout",))
        def fetch(self, url, timeout=1):
            return url

    alice, bob = Box(), Box()
    assert confirmed_by(lambda: alice.fetch("a"), lambda: alice.fetch("a", 2))
    assert not confirmed_by(lambda: alice.fetch("a"), lambda: alice.fetch("b"))
    assert not confirmed_by(lambda: alice.fetch("a"), lambda: bob.fetch("a"))


def test_arguments_stay_apart_where_the_receiver_is_ignored():
    class Box:
        @metered(kind="read", ignore=("self",))
        def fetch(self, url):
            return url

    alice = Box()
    assert confirmed_by(lambda: alice.fetch("a"), lambda: alice.fetch("a"))
    assert not confirmed_by(lambda: alice.fetch("a"), lambda: alice.fetch("b"))


@metered(kind="read")
def lookup(key):
    return key


class Toolbox:
    """Gives a plain tool a name; that makes it no method."""

    lookup = lookup
    static = staticmethod(lookup)


def test_a_class_that_holds_a_plain_tool_does_not_make_its_first_argument_a_receiver():
    for way in (lookup, Toolbox.lookup, Toolbox.static, Toolbox().static):
        assert confirmed_by(lambda way=way: way("a"), lambda way=way: way("a"))
        assert not confirmed_by(lambda way=way: way("a"), lambda way=way: way("b"))


# A bound method, decorated on its own -----------------------------------------------------------------------------------


class Client:
    def __init__(self, host):
        self.host = host

    def fetch(self, path, deep=False):
        """Fetch it."""
        return self.host, path, deep

    @classmethod
    def made(cls, path):
        return cls, path


def test_a_bound_method_of_somebody_elses_object_can_be_made_a_tool():
    client = Client("a")
    fetch = metered(kind="read")(client.fetch)
    assert inspect.signature(fetch) == inspect.signature(client.fetch)
    assert inspect.ismethod(fetch)
    assert spec(fetch).function == client.fetch
    with toolguard.run() as run:
        assert fetch("/") == ("a", "/", False)
        assert fetch(path="/", deep=True) == ("a", "/", True)
        assert metered(kind="read")(Client.made)("x") == (Client, "x")
        assert run.usage().by_tool == {"fetch": 2, "made": 1}
        with pytest.raises(TypeError, match=r"Client\.fetch\(\) missing 1 required positional argument: 'path'"):
            fetch()


def test_bound_methods_of_two_objects_are_two_tools_that_do_not_confirm_each_other():
    one, other = (metered(kind="read")(Client(host).fetch) for host in "ab")
    assert one != other
    assert confirmed_by(lambda: one("/"), lambda: one("/"))
    assert not confirmed_by(lambda: one("/"), lambda: other("/"))
    assert not confirmed_by(lambda: one("/"), lambda: one("/x"))


def test_a_tool_made_of_a_bound_method_keeps_its_object_alive_only_as_long_as_it_lives():
    client = Client("a")
    ref = weakref.ref(client)
    fetch = metered(kind="read")(client.fetch)
    del client
    with toolguard.run():
        assert fetch("/") == ("a", "/", False)
    assert ref() is not None
    del fetch
    gc.collect()
    assert ref() is None


def test_decorating_a_bound_tool_again_is_the_same_tool(box):
    assert metered(kind="read")(box.search) == box.search
    with pytest.raises(TypeError, match="search is metered already"):
        metered(kind="send")(box.search)


@pytest.mark.parametrize("over", [classmethod, staticmethod])
def test_a_decorator_on_both_sides_of_a_class_or_static_method_is_one_tool(over):
    def method(cls="c", x=1):
        return x

    once = metered(kind="read")(method)

    class Box:
        method = metered(kind="read")(over(once))

    with toolguard.run() as run:
        assert Box.method(x=3) == 3
        assert executed(run) == 1
    with pytest.raises(TypeError, match="method is metered already"):
        metered(kind="send")(over(once))
