"""What every test shares: the real SDK with spans in memory, and a process that no test leaves changed."""

import gc
import itertools
import logging
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import toolguard.testing

# Providers can be set once a process, so all tests share them; what a test sees is cleared before it.
_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))
trace.set_tracer_provider(_provider)
_reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([_reader]))


# Up to Python 3.11 a finaliser that sets a context variable can crash the process when the collector starts in the middle
# of `ContextVar.set`. toolguard's own do not, but tests abandon other people's spans and contexts on purpose. So the
# collector starts between tests, and where a test asks for it.
if sys.version_info < (3, 12):
    gc.disable()
_COLLECT_EVERY = 20
_tests = itertools.count(1)


class Spans:
    """The spans that ended in this test."""

    def all(self) -> tuple[ReadableSpan, ...]:
        return _exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def calls(self) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name.startswith("execute_tool ")]

    def runs(self) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name.startswith("invoke_agent")]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TOOLGUARD_CONFIG", "TOOLGUARD_REQUIRE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with toolguard.testing.isolated():
        yield
    if not gc.isenabled() and next(_tests) % _COLLECT_EVERY == 0:
        gc.collect()


@pytest.fixture
def spans() -> Spans:
    gc.collect()  # what another test abandoned ends its span now, and not in this one
    _exporter.clear()
    return Spans()


@pytest.fixture
def metric_reader() -> InMemoryMetricReader:
    return _reader


@pytest.fixture
def provider() -> TracerProvider:
    return _provider


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="toolguard")
    return caplog
