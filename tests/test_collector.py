"""Finalisers that the collector calls while a context variable is being set: the process lives and loses nothing."""

import gc
import subprocess
import sys
import threading

import pytest

import toolguard
from toolguard import _collector

# What a stream or a run leaves to a finaliser is made garbage in a cycle, and the collector starts after ever other numbers
# of allocations, so that now and then it is in the middle of `set`. Without `_collector` the streams end in a crash.
STRESS = """
import contextvars, gc, logging, sys
logging.disable(logging.CRITICAL)
import toolguard

kept = contextvars.ContextVar("kept", default=None)
kept.set("kept")
turning = contextvars.ContextVar("turning", default=None)

@toolguard.metered(kind="read")
def stream(n):
    yield n
    yield n

def half_open():
    with toolguard.run():
        yield

class Cycle:
    def __init__(self, held):
        self.held = held
        self.me = self

run = toolguard.run("assistant", per_tool=0, aggregate=0, adaptive_soft=0)
make = {"stream": run.bind(stream), "run": lambda _: half_open()}[sys.argv[1]]
gc.disable()
for i in range(int(sys.argv[2])):
    made = make(i)
    next(made)
    cycle = Cycle(made)
    del made, cycle
    gc.set_threshold(max(1, gc.get_count()[0] - 1 + i % 8))
    gc.enable()
    token = turning.set(i)
    seen = contextvars.copy_context()
    gc.disable()
    assert seen.get(turning) == i and seen.get(kept) == "kept", "a variable was lost"
    turning.reset(token)
print("alive")
"""


@pytest.mark.parametrize("shape", ["stream", "run"])
def test_what_is_abandoned_in_a_cycle_never_harms_the_context_that_the_collector_interrupts(shape):
    done = subprocess.run(
        [sys.executable, "-c", STRESS, shape, "6000"], capture_output=True, text=True, check=False, timeout=100
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


def test_a_run_that_the_collector_left_is_nobodys_outer_run():
    def half_open():
        with toolguard.run("lost"):
            yield

    class Cycle:
        def __init__(self, held):
            self.held = held
            self.me = self

    with toolguard.run("outer") as outer:
        made = half_open()
        next(made)
        Cycle(made)
        del made
        gc.collect()
        assert toolguard.current_run() is outer
        with toolguard.run("inner") as inner:
            assert inner.parent is outer
