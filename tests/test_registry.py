"""What is registered: every tool that can still be reached, each definition once, in the order of decoration."""

import gc
import importlib
import sys
import threading
import weakref

import pytest

import toolguard
from toolguard import metered, registered, spec
from toolguard.testing import assert_refused, isolated


def names():
    return [known.name for known in registered()]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return what imports, or imports anew, a module with the given source."""
    loaded = set()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(name, source):
        (tmp_path / f"{name}.py").write_text(f"from toolguard import metered\n{source}")
        importlib.invalidate_caches()
        module = importlib.reload(sys.modules[name]) if name in loaded else importlib.import_module(name)
        loaded.add(name)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


ONE = "@metered(kind='read')\ndef one(): return 'one'\n"
TWO = "@metered(kind='send')\ndef two(): return 'two'\n"
THREE = "@metered(kind='read')\ndef three(): return 'three'\n"


def test_tools_are_registered_in_the_order_of_decoration(load):
    before = names()
    load("tools_b", TWO + ONE)
    load("tools_a", THREE)
    assert names() == [*before, "two", "one", "three"]


def test_what_is_registered_is_the_spec_of_the_tool(load):
    module = load("tools", ONE)
    known = registered()[-1]
    assert known is spec(module.one)
    assert (known.name, known.kind, known.function()) == ("one", "read", "one")
    assert known.function is module.one.__wrapped__


def test_methods_are_registered_once_however_often_they_are_reached(load):
    source = "class Box:\n    @metered(kind='read')\n    def look(self): return 1\n"
    source += "    @metered(kind='read')\n    @staticmethod\n    def size(): return 2\n"
    module = load("tools", source)
    before = registered()
    for _ in range(3):
        module.Box().look()
        module.Box.size()
        hash(module.Box().look.__func__)
    assert registered() == before
    assert names()[-2:] == ["look", "size"]


def test_a_module_imported_anew_replaces_its_tools_and_keeps_their_order(load):
    load("tools", ONE + TWO + THREE)
    older = registered()
    module = load("tools", TWO + ONE + THREE.replace("'read'", "'send'"))
    assert len(registered()) == len(older)
    assert names() == [known.name for known in older]
    assert registered()[-3:] == (spec(module.one), spec(module.two), spec(module.three))
    assert registered()[-1].kind == "send"


def test_an_older_definition_that_is_still_held_stays_a_tool_of_its_own(load):
    older = load("tools", ONE.replace("kind='read'", "kind='read', limit=1")).one
    newer = load("tools", ONE.replace("'one'", "'newer'")).one
    assert older is not newer
    assert [known.function for known in registered() if known.name == "one"] == [spec(newer).function]
    with toolguard.run() as run:
        assert (older(), newer()) == ("one", "newer")
        assert_refused(older(), "per_tool")
        assert newer() == "newer"
        assert run.usage().by_tool == {"one": 3}
    assert spec(older) is not spec(newer)


def test_functions_of_one_name_in_two_modules_are_both_registered(load):
    load("tools_a", ONE)
    load("tools_b", ONE)
    assert names()[-2:] == ["one", "one"]


def test_two_tools_of_one_name_cannot_be_offered_to_one_run(load):
    one, other = load("tools_a", ONE).one, load("tools_b", ONE.replace("def one", "def One")).One
    with pytest.raises(ValueError, match="two tools of this run have one name") as caught:
        toolguard.run(tools=[one, other])
    assert "tools_a.one" in str(caught.value)
    assert "tools_b.One" in str(caught.value)
    toolguard.run(tools=[one, one])


def test_a_redefinition_in_one_place_replaces_what_the_name_stood_for():
    def first():
        return 1

    def second():
        return 2

    second.__qualname__ = first.__qualname__
    before = len(registered())
    one = metered(kind="read")(first)
    two = metered(kind="read", name="two")(second)
    assert [known.function for known in registered()[before:]] == [second]
    assert (one(), two()) == (1, 2)


def test_a_local_tool_is_registered_as_long_as_somebody_holds_it():
    def local():
        return 1

    tool = metered(kind="read")(local)
    assert spec(tool) in registered()
    ref = weakref.ref(local)
    del tool, local
    gc.collect()
    assert ref() is None
    assert "local" not in names()


def test_a_local_tool_that_calls_itself_is_not_kept_alive():
    def made():
        @metered(kind="read")
        def again(n):
            return n and again(n - 1)

        return again

    tool = made()
    assert tool(2) == 0
    ref = weakref.ref(spec(tool).function)
    del tool
    gc.collect()
    assert ref() is None


def test_local_tools_made_for_every_request_do_not_pile_up():
    before = registered()

    def handle(n):
        @metered(kind="read")
        def answer():
            return n

        with toolguard.run():
            return answer()

    assert [handle(n) for n in range(200)] == list(range(200))
    gc.collect()
    assert registered() == before


def test_the_older_of_two_local_definitions_does_not_unregister_the_newer_when_it_goes():
    def make():
        @metered(kind="read")
        def local():
            return 1

        return local

    older = make()
    newer = make()
    del older
    gc.collect()
    assert spec(newer) in registered()
    assert names().count("local") == 1


def test_an_isolated_test_sees_a_copy_of_the_registry_and_leaves_none_of_its_own(load):
    load("tools_a", ONE)
    before = registered()
    with isolated():
        assert registered() == before
        load("tools_b", TWO)
        assert names()[-1] == "two"
    assert registered() == before


def test_decorating_twice_registers_once():
    def local():
        return 1

    before = len(registered())
    tool = metered(kind="read")(metered(kind="read")(local))
    assert len(registered()) == before + 1
    assert registered()[-1] is spec(tool)


def test_what_cannot_be_decorated_is_not_registered():
    before = registered()
    for function, options in ((names, {"name": "no name"}), (names, {"limit": -1}), (names, {"ignore": ("no",)})):
        with pytest.raises(ValueError, match="@metered"):
            metered(kind="read", **options)(function)
    assert registered() == before


def test_the_registry_can_be_read_while_other_threads_decorate():
    ready = threading.Barrier(5)
    done = threading.Event()
    problems = []

    def decorate():
        ready.wait()
        for _ in range(100):

            def local():
                return 1

            metered(kind="read")(local)

    def read():
        ready.wait()
        while not done.is_set():
            try:
                assert all(known.kind == "read" for known in registered() if known.name == "local")
            except Exception as error:  # noqa: BLE001
                problems.append(error)
                return

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=decorate) for _ in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert problems == []
