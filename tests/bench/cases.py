"""The cases of one process: providers can be set only once, so each telemetry mode is a process of its own."""

import functools
import gc
import json
import logging
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import wrapt
from opentelemetry import metrics, trace

import toolguard
from tests.bench.timing import Case, measure
from toolguard.testing import isolated

# The assistant profile with nothing switched off: what would come to refuse a read or to cut its result is so high that it
# never does, and what looks for repetitions and failures stays as it is, since the calls here are new and succeed.
HIGH: Final[dict[str, Any]] = {"per_tool": 10**9, "aggregate": 10**9, "adaptive_soft": 10**9, "output_chars": 10**12}
# Besides, all that the profile leaves off. Only the query wall is missing: the tool declares none.
EVERY: Final = HIGH | {"deadline_s": 1e9, "tokens": 10**12, "cost_usd": 1e9, "call_budget": 10**9}

GENERATION = 8192 // 2

ATTRIBUTES: Final[dict[str, Any]] = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "search",
    "gen_ai.tool.type": "function",
    "gen_ai.agent.name": "assistant",
    "gen_ai.tool.call.id": "call_1",
    "toolguard.tool.kind": "read",
    "toolguard.run.id": "0123456789abcdef0123456789abcdef",
    "toolguard.refused": False,
    "toolguard.executed": True,
    "toolguard.call.outcome": "ok",
}


def search(query: str, limit: int = 20) -> str:
    """Return what a small tool returns."""
    return "one line of text"


def null_exporter() -> Any:
    """Return an exporter that takes everything and does nothing."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Null(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    return Null()


def providers(mode: str) -> Callable[[], None] | None:
    """Set what the mode says: nothing, an SDK that samples nothing, one with a batch processor, or that and metrics.

    Returns:
        What collects the metrics, as a reader's own thread does every minute.
    """
    if mode == "no-sdk":
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    provider = TracerProvider(sampler=ALWAYS_OFF if mode == "sampled-out" else ALWAYS_ON)
    provider.add_span_processor(BatchSpanProcessor(null_exporter()))
    trace.set_tracer_provider(provider)
    if mode == "metrics":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        metrics.set_meter_provider(MeterProvider([_reader := InMemoryMetricReader()]))
        return _reader.collect
    return None


def reference() -> Callable[..., Any]:
    """Return the tool under wrapt and a bare span with ten attributes."""
    tracer = trace.get_tracer("reference")

    @wrapt.decorator
    def spanned(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        with tracer.start_as_current_span("execute_tool search", attributes=ATTRIBUTES):
            return wrapped(*args, **kwargs)

    return spanned(search)


def repeat(fn: Callable[..., Any]) -> Case:
    """Call with new arguments each time, as a model does."""
    numbers = iter(range(10**12))

    def case(calls: int) -> None:
        for _ in range(calls):
            fn("invoice", limit=next(numbers))

    return case


@contextmanager
def in_run(limits: Mapping[str, Any] = HIGH, *, histogram: bool = True) -> Iterator[None]:
    """Open a run of the assistant profile with its walls on, and see that none of them refused or cut anything."""
    with isolated({"telemetry": {"duration_histogram": histogram}}), toolguard.run("assistant", **limits) as run:
        yield
    used = run.usage()
    assert (used.refused, used.chars) == (0, used.executed * len(search("")))


def metered() -> Callable[..., Any]:
    """Return the tool as users decorate it."""
    return toolguard.metered(kind="read")(search)


def span_cost(mode: str, rounds: int, limits: Mapping[str, Any] = HIGH) -> dict[str, float]:
    """Rows 1 to 3: a call in a run over the bare span."""
    providers(mode)
    with in_run(limits):
        timed = measure({"metered": repeat(metered()), "bare": repeat(reference())}, calls=200, rounds=rounds)
    return {"ratio": timed["metered"].over(timed["bare"]), "us": timed["metered"].us, "bare_us": timed["bare"].us}


def outside(rounds: int) -> dict[str, float]:
    """Row 4: without a run."""
    providers("batch")

    @functools.wraps(search)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return search(*args, **kwargs)

    tool = metered()
    with isolated({"outside_run": "allow"}):
        allow = measure({"allow": repeat(tool), "wraps": repeat(wrapped)}, calls=2000, rounds=rounds)
    with isolated({"outside_run": "warn"}):
        warn = measure({"warn": repeat(tool), "bare": repeat(reference())}, calls=200, rounds=rounds)
    return {
        "allow": allow["allow"].over(allow["wraps"]),
        "allow_us": allow["allow"].us,
        "warn": warn["warn"].over(warn["bare"]),
        "warn_us": warn["warn"].us,
    }


def many_calls(rounds: int) -> dict[str, float]:
    """Row 5: what the 100 000th call costs over the 10th, in time and memory."""
    tool = metered()
    with isolated():
        old = toolguard.run("old", **HIGH)
        late = repeat(old.bind(tool))
        # What a run has seen is bounded by generations of 8192 entries, two for each new call. Memory is compared at two
        # moments of the same age, both after the first generation was let go: in between it swings by one generation.
        tracemalloc.start()
        late(8 * GENERATION)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        late(16 * GENERATION)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert old.usage().refused == 0
        young = [toolguard.run("young", **HIGH) for _ in range(rounds + 1)]
        for run in young:
            repeat(run.bind(tool))(10)
        waiting = iter([repeat(run.bind(tool)) for run in young])
        timed = measure({"late": late, "early": lambda calls: next(waiting)(calls)}, calls=500, rounds=rounds)  # noqa: PLW0108
    return {"ratio": timed["late"].over(timed["early"]), "bytes_per_call": grown / (16 * GENERATION)}


def threads(rounds: int) -> dict[str, float]:
    """Row 6: eight threads on one run over one thread, wall time per call, and the limit exact meanwhile."""
    providers("batch")
    tool = metered()
    calls = 1000

    def timed(workers: int) -> float:
        with isolated(), toolguard.run("assistant", **HIGH) as run:
            barrier = threading.Barrier(workers + 1)

            def work(number: int) -> None:
                barrier.wait()
                for i in range(calls):
                    tool("invoice", limit=number * calls + i)

            pool = [threading.Thread(target=run.bind(work), args=(n,)) for n in range(workers)]
            for thread in pool:
                thread.start()
            barrier.wait()
            begin = time.perf_counter()
            for thread in pool:
                thread.join()
            spent = time.perf_counter() - begin
            assert run.usage().executed == workers * calls
        return spent / (workers * calls)

    ratios = sorted(timed(8) / timed(1) for _ in range(max(5, rounds // 4)))
    return {"ratio": ratios[len(ratios) // 2], "exact": float(_exact(tool))}


def _exact(tool: Callable[..., Any]) -> bool:
    with isolated(), toolguard.run("assistant", **(HIGH | {"per_tool": 1000, "refused_calls": 0})) as run:
        work = run.bind(lambda number: [tool("invoice", limit=number * 1000 + i) for i in range(1000)])
        pool = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
        return run.usage().executed == 1000 and run.usage().refused == 7000


def histogram(rounds: int) -> dict[str, float]:
    """Row 9: what the duration histogram adds to the ratio of row 1."""
    collect = providers("metrics")
    with in_run(histogram=True):
        cases = {"metered": repeat(metered()), "bare": repeat(reference())}
        on = measure(cases, calls=200, rounds=rounds, between=collect)
    with in_run(histogram=False):
        off = measure({"metered": repeat(metered()), "bare": repeat(reference())}, calls=200, rounds=rounds)
    return {"added": on["metered"].over(on["bare"]) - off["metered"].over(off["bare"])}


MEASURES: dict[str, Callable[[int], dict[str, float]]] = {
    "batch": lambda rounds: span_cost("batch", rounds),
    "every-wall": lambda rounds: span_cost("batch", rounds, EVERY),
    "no-sdk": lambda rounds: span_cost("no-sdk", rounds),
    "sampled-out": lambda rounds: span_cost("sampled-out", rounds),
    "outside": outside,
    "many-calls": many_calls,
    "threads": threads,
    "histogram": histogram,
}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps(MEASURES[sys.argv[1]](int(sys.argv[2]))))
