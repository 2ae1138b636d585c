"""What many runs leave behind: nothing."""

import gc
import logging
import tracemalloc

import pytest
from opentelemetry import context

from tests.bench.soak import play


def held():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def _silent():
    # Spans in memory and captured log records are what the test itself would keep.
    token = context.attach(context.set_value("suppress_instrumentation", True))
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    context.detach(token)


@pytest.fixture
def _all_known(metric_reader):
    # Durations of other tests wait to be recorded, from before anything was traced. Each call of these runs would put its
    # own, which is traced, in the place of one of them, and that would look like growth. Free lists hold the like.
    metric_reader.get_metrics_data()
    gc.collect()


@pytest.mark.usefixtures("_silent", "_all_known")
def test_past_the_sessions_that_are_remembered_further_runs_leave_no_memory_behind():
    # 512 sessions of three runs each are remembered. Further runs leave what the first ones left.
    runs = play(4000, 6)
    tracemalloc.start()
    try:
        for _ in range(2000):
            next(runs)
        before = held()
        for _ in range(2000):
            next(runs)
        grown = held() - before
    finally:
        tracemalloc.stop()
    assert grown < 2000 * 8  # bytes: less than a reference a run
