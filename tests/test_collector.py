"""Finalisers that the collector calls while a context variable is being set: the process lives and loses nothing."""

import gc
import subprocess
import sys
import threading

import pytest

import toolguard
from toolguard import _collector

# Everything that a stream, a coroutine or a run leaves to a finaliser is made garbage in a cycle, with a collector that
# starts after ever other numbers of allocations, while the same context sets variables all the time.
STRESS = """
import contextvars, gc, logging, sys
logging.disable(logging.CRITICAL)
import toolguard

kept = contextvars.ContextVar("kept", default=None)
kept.set("kept")
variables = [contextvars.ContextVar(name, default=None) for name in "abcdefgh"]
a, b, c, d, e, f, g, h = variables

@toolguard.metered(kind="read")
def stream(n):
    try:
        yield n
        yield n
    finally:
        toolguard.current_run()

@toolguard.metered(kind="read")
async def wait(n):
    class Pause:
        def __await__(self):
            yield
    await Pause()

def half_open(run):
    with run:
        yield

def abandon(made, first):
    first(made)
    cycle = [made]
    cycle.append(cycle)

shapes = {
    "stream": lambda: abandon(stream(1), next),
    "bound stream": lambda: abandon(outer.bind(stream)(1), next),
    "coroutine": lambda: abandon(wait(1), lambda made: contextvars.copy_context().run(made.send, None)),
    "run": lambda: abandon(half_open(toolguard.run()), lambda g: contextvars.copy_context().run(next, g)),
}
lose = shapes[sys.argv[1]]
outer = toolguard.run("outer", per_tool=0, aggregate=0, adaptive_soft=0)
with outer:
    for i in range(int(sys.argv[2])):
        gc.disable()
        lose()
        # So that it starts now in this, now in that allocation of `set`.
        gc.set_threshold(gc.get_count()[0] + i % 60)
        gc.enable()
        a.set(i); b.set(i); c.set(i); d.set(i); e.set(i); f.set(i); g.set(i); h.set(i)
        seen = contextvars.copy_context()
        assert all(seen.get(var) == i for var in variables) and seen.get(kept) == "kept", "a variable was lost"
        assert toolguard.current_run() is outer, "the run was lost"
print("alive")
"""


@pytest.mark.parametrize("shape", ["stream", "bound stream", "coroutine", "run"])
def test_what_is_abandoned_in_a_cycle_never_harms_the_context_that_the_collector_interrupts(shape):
    done = subprocess.run(
        [sys.executable, "-c", STRESS, shape, "2000"], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr[-500:]) == (0, "alive\n", "")


class _Ask:
    """Asks, in a finaliser, whether the collector is here."""

    def __init__(self, answers):
        self.answers = answers
        self.me = self

    def __del__(self):
        self.answers.append(_collector.is_here())


def test_the_collector_is_known_to_be_here_only_in_its_own_finalisers():
    answers = []
    _Ask(answers)
    gc.collect()
    alone = _Ask(answers)
    alone.me = None
    del alone  # freed by its last reference, not by the collector
    assert answers == [sys.version_info < (3, 12), False]
    assert not _collector.is_here()


def test_another_thread_is_not_taken_for_the_one_that_collects():
    answers = []

    class Wait(_Ask):
        def __del__(self):
            thread = threading.Thread(target=lambda: answers.append(_collector.is_here()))
            thread.start()
            thread.join()

    Wait(answers)
    gc.collect()
    assert answers == [False]


def test_a_call_made_by_a_finaliser_is_charged_like_any_other():
    @toolguard.metered(kind="read")
    def search():
        return "found"

    class Closes:
        def __init__(self):
            self.me = self

        def __del__(self):
            search()

    with toolguard.run("assistant") as run:
        Closes()
        gc.collect()
        assert run.usage().executed == 1
