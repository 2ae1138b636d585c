"""The only room that knows OpenTelemetry. Whatever it does may fail, and then loses telemetry and nothing else."""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, ProxyTracerProvider, Span, SpanKind, Status, StatusCode, Tracer

from toolguard import _collector
from toolguard import _names as names

__all__ = [
    "CallFacts",
    "RunSpan",
    "Scope",
    "attach",
    "carried",
    "close_call",
    "current",
    "detach",
    "leave",
    "open_call",
    "parse_trace",
    "record_duration",
    "record_refusal",
    "scope",
    "trace_text",
    "type_name",
    "watch",
    "with_delegate",
    "with_run",
]

_logger = logging.getLogger("toolguard")

_RUN_KEY: Final = otel_context.create_key("toolguard-run")
_DELEGATE_KEY: Final = otel_context.create_key("toolguard-delegate")
# Instrumentations write the plain key, the SDK's own exporters the other one, which is unique in each process.
_SUPPRESS: Final = "suppress_instrumentation"
_SUPPRESS_TOO: Final[str] = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", _SUPPRESS)

_DURATION_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)

_get_current = otel_context.get_current  # looked up once: it is on the path of every call outside a run

_complained: set[str] = set()


def _lost(where: str) -> None:
    """Say once a place that telemetry failed there."""
    if where not in _complained:
        _complained.add(where)
        with suppress(Exception):  # a filter or handler of the user's may fail
            _logger.warning("OpenTelemetry failed in %s; the call went on without it", where, exc_info=True)  # noqa: LOG014  it is called where an exception is handled


class Scope(NamedTuple):
    """The tracer and the instruments that are in force; None where nobody set a provider."""

    tracer: Tracer | None
    duration: metrics.Histogram | None


_scope = Scope(None, None)


def scope(version: str) -> Scope:
    """Look up the providers. It costs about 2 µs, so runs do it once, at their start."""
    global _scope  # noqa: PLW0603  a provider is set once a process, and so is this

    try:
        tracer, duration = _scope
        if tracer is None and not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
            tracer = trace.get_tracer(names.SCOPE, version)
        if duration is None and type(metrics.get_meter_provider()).__name__ != "_ProxyMeterProvider":
            duration = metrics.get_meter(names.SCOPE, version).create_histogram(
                names.DURATION,
                unit="s",
                description="Duration of one tool call, from admission to its end.",
                explicit_bucket_boundaries_advisory=_DURATION_BUCKETS,
            )
        _scope = Scope(tracer, duration)
    except Exception:  # noqa: BLE001
        _lost("get_tracer")
    return _scope


def watch(version: str, totals: Callable[[], Mapping[tuple[str, str, str, str], int]]) -> None:
    """Offer the calls counter, fed from `totals` when somebody collects: a synchronous counter costs 10 µs a call."""

    def observe(_options: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        while _record_next():
            pass
        for (tool, kind, outcome, reason), n in totals().items():
            attributes = {names.TOOL: tool, names.KIND: kind, names.OUTCOME: outcome}
            if reason:
                attributes[names.REASON] = reason
            yield metrics.Observation(n, attributes)

    try:
        metrics.get_meter(names.SCOPE, version).create_observable_counter(
            names.CALLS, [observe], unit="{call}", description="Tool calls by outcome, refused ones included."
        )
    except Exception:  # noqa: BLE001
        _lost("create_observable_counter")


def type_name(error: BaseException) -> str:
    """Return an exception's type as the conventions want it: with its module, unless that is `builtins`."""
    kind = type(error)
    try:
        return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # noqa: BLE001  a metaclass may answer for the class
        return "_OTHER"


# Context --------------------------------------------------------------------------------------------------------------


def current() -> Context | None:
    """Return the current OpenTelemetry context."""
    try:
        return otel_context.get_current()
    except Exception:  # noqa: BLE001
        _lost("get_current")
        return None


def carried() -> Any:
    """Return the run that the OpenTelemetry context carries, or None."""
    try:
        return _get_current().get(_RUN_KEY)
    except Exception:  # noqa: BLE001
        _lost("get_current")
        return None


def with_run(run: Any, context: Context | None) -> Context | None:
    """Return `context` with `run` in it."""
    try:
        return otel_context.set_value(_RUN_KEY, run, context)
    except Exception:  # noqa: BLE001
        _lost("set_value")
        return None


def with_delegate(context: Context | None, span: Span | None) -> Context | None:
    """Return `context` with the span of a call that asks a specialist, so that its run can say how it ended.

    Without a context it is the current one. A call without a span hides that of the call around it, whose own specialist
    the run is not; where there is none to hide, `context` is returned as it is.
    """
    try:
        if span is None and otel_context.get_value(_DELEGATE_KEY, context) is None:
            return context
        return otel_context.set_value(_DELEGATE_KEY, span, context)
    except Exception:  # noqa: BLE001
        _lost("set_value")
        return context


def attach(context: Context | None) -> Any:
    """Make `context` current; the token goes to `detach` in the same thread or task."""
    if context is None or _collector.is_here():
        return None
    try:
        return otel_context.attach(context)
    except Exception:  # noqa: BLE001
        _lost("attach")
        return None


def detach(token: Any) -> None:
    """Restore what was current before the `attach` that gave `token`."""
    if token is not None and not _collector.is_here():
        try:
            otel_context.detach(token)
        except Exception:  # noqa: BLE001
            _lost("detach")


def leave(context: Context | None, before: Context | None) -> None:
    """Restore `before` by value, where a token comes from another thread or task.

    What was entered there may be left in any context; only where its own is current is there anything to undo.
    """
    if before is not None and current() is context:
        attach(before)


# Calls ----------------------------------------------------------------------------------------------------------------


class CallFacts:
    """What every span of one tool in one run has in common, made once.

    Attributes:
        span: the span's name.
        outside: the calls are made outside a run.
        executed: start attributes of a call that runs; read-only, since samplers see this very mapping.
        metric: attributes of the duration histogram.
    """

    __slots__ = ("executed", "metric", "outside", "span")

    def __init__(self, tool: str, kind: str, agent: str | None, run_id: str | None) -> None:
        self.span = f"{names.EXECUTE_TOOL} {tool}"
        self.outside = run_id is None
        metric = {names.TOOL: tool, names.TOOL_TYPE: "function"}
        if agent is not None:
            metric[names.AGENT] = agent
        start: dict[str, Any] = {names.OPERATION: names.EXECUTE_TOOL, **metric, names.KIND: kind}
        if run_id is None:
            start[names.RUN_MISSING] = True
        else:
            start[names.RUN_ID] = run_id
        self.metric = metric
        self.executed: Mapping[str, Any] = MappingProxyType(start | {names.REFUSED: False, names.EXECUTED: True})


def open_call(
    tracer: Tracer, facts: CallFacts, extra: Mapping[str, Any] | None = None, link: Any = None
) -> tuple[Span, Context] | None:
    """Start the span of a call that will run; None where there is none to be had.

    Args:
        tracer: the run's tracer.
        facts: the tool's standing attributes.
        extra: attributes of this call alone.
        link: the span context of the refused call that this one confirms.
    """
    try:
        now = otel_context.get_current()
        if now.get(_SUPPRESS) or now.get(_SUPPRESS_TOO):
            return None
        span = tracer.start_span(
            facts.span,
            now,
            SpanKind.INTERNAL,
            {**facts.executed, **extra} if extra else facts.executed,
            None if link is None else [Link(link)],
        )
        # A span that nobody records is not made current: what is below it keeps the parent that is recorded, if any.
        # Outside a run there may be none above it, and what is below would begin traces of its own.
        return (span, trace.set_span_in_context(span, now)) if span.is_recording() or facts.outside else None
    except Exception:  # noqa: BLE001
        _lost("start_span")
        return None


def close_call(
    span: Span, outcome: str, *, error: str | None = None, extra: Mapping[str, Any] | None = None, message: str | None = None
) -> None:
    """End the span of a call that ran.

    Args:
        span: the span that `open_call` gave.
        outcome: what the call came to.
        error: the exception's type, or `tool_error` for a value that reports a failure.
        extra: further attributes.
        message: the exception's text, already made safe; empty: it is not recorded. None: nothing was raised.
    """
    try:
        span.set_attribute(names.OUTCOME, outcome)
        if extra:
            span.set_attributes(extra)
    except Exception:  # noqa: BLE001
        _lost("set_attribute")
    if error is not None:
        _mark_failed(span, error, message)
    try:
        span.end()
    except Exception:  # noqa: BLE001
        _lost("end")


def _mark_failed(span: Span, error: str, message: str | None) -> None:
    try:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute(names.ERROR_TYPE, error)
    except Exception:  # noqa: BLE001
        _lost("set_status")
    if message is not None:
        try:
            span.add_event("exception", {"exception.type": error, **({"exception.message": message} if message else {})})
        except Exception:  # noqa: BLE001
            _lost("add_event")


def record_refusal(
    tracer: Tracer, facts: CallFacts, fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None, *, red: bool
) -> Any:
    """Record a call that did not execute as a span of its own.

    Args:
        tracer: the run's tracer.
        facts: the tool's standing attributes.
        fields: `Refusal.to_dict()`.
        extra: further attributes.
        red: mark it as an error, as `refused_status = "error"` asks.

    Returns:
        The span's context, for a confirming call to link to.
    """
    try:
        now = otel_context.get_current()
        if now.get(_SUPPRESS) or now.get(_SUPPRESS_TOO):
            return None
        attributes = {
            **facts.executed,
            names.REFUSED: True,
            names.EXECUTED: False,
            names.OUTCOME: "refused",
            names.REASON: fields["reason"],
            names.RETRY: fields["retry"],
            names.MESSAGE: fields["text"],
            **(extra or {}),
        }
        for attribute, field in ((names.RULE, "rule"), (names.USED, "used"), (names.LIMIT, "limit")):
            if fields[field] is not None:
                attributes[attribute] = fields[field]
        span = tracer.start_span(facts.span, now, SpanKind.INTERNAL, attributes)
    except Exception:  # noqa: BLE001
        _lost("start_span")
        return None
    try:
        if red:
            span.set_status(Status(StatusCode.ERROR, fields["reason"]))
            span.set_attribute(names.ERROR_TYPE, fields["reason"])
    except Exception:  # noqa: BLE001
        _lost("set_status")
    try:
        span.end()
        return span.get_span_context()
    except Exception:  # noqa: BLE001
        _lost("end")
        return None


_TRACE: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def trace_text(context: Any) -> str | None:
    """Write a span's context as W3C Trace Context does; None where there is none worth a link."""
    try:
        if context is not None and context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    except Exception:  # noqa: BLE001
        _lost("get_span_context")
    return None


def parse_trace(text: str) -> Any:
    """Return the span's context that `trace_text` wrote; None: the text is no such thing."""
    found = _TRACE.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    made = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))
    return made if made.is_valid else None


_waiting: deque[tuple[metrics.Histogram, float, Mapping[str, Any], Span | None]] = deque()
_MOST_WAITING: Final = 2048


def record_duration(
    duration: metrics.Histogram, facts: CallFacts, seconds: float, error: str | None, span: Span | None
) -> None:
    """Record how long a call took, in seconds, with its span at hand for an exemplar.

    Recording costs about 10 µs, so it waits until somebody collects; what a collector leaves waiting too long is recorded
    by the calls themselves.
    """
    attributes = facts.metric if error is None else {**facts.metric, names.ERROR_TYPE: error}
    # The span alone waits: the call's context would keep the whole run.
    _waiting.append((duration, seconds, attributes, span))
    if len(_waiting) > _MOST_WAITING:
        _record_next()


def _record_next() -> bool:
    try:
        duration, seconds, attributes, span = _waiting.popleft()
    except IndexError:
        return False
    try:
        duration.record(seconds, attributes, Context() if span is None else trace.set_span_in_context(span, Context()))
    except Exception:  # noqa: BLE001
        _lost("record")
    return True


# Runs -----------------------------------------------------------------------------------------------------------------


def _suppressed(context: Context) -> bool:
    return bool(context.get(_SUPPRESS) or context.get(_SUPPRESS_TOO))


class RunSpan:
    """The span of one run, from entering to leaving, and the context in which its calls are made."""

    __slots__ = ("_before", "_context", "_delegate", "_span", "_token")

    def __init__(self, run: Any, tracer: Tracer | None, agent: str | None, attributes: Mapping[str, Any], link: Any) -> None:
        """Start the span where there is a tracer, and make the run current in the OpenTelemetry context."""
        self._span: Span | None = None
        self._before = current()
        self._context = with_run(run, self._before)
        self._delegate: Any = None if self._before is None else self._before.get(_DELEGATE_KEY)
        if self._delegate is not None and self._context is not None:
            # What runs inside this run is asked by it, and no longer by the specialist's coordinator.
            self._context = with_delegate(self._context, None)
        if tracer is not None and self._before is not None and not _suppressed(self._before):
            self._start(tracer, agent, attributes, link)
        self._token = attach(self._context)

    def _start(self, tracer: Tracer, agent: str | None, attributes: Mapping[str, Any], link: Any) -> None:
        try:
            name = f"{names.INVOKE_AGENT} {agent}" if agent else names.INVOKE_AGENT
            links = None if link is None else [Link(link)]
            self._span = tracer.start_span(name, self._context, SpanKind.INTERNAL, attributes, links)
            self._context = trace.set_span_in_context(self._span, self._context)
        except Exception:  # noqa: BLE001
            _lost("start_span")

    @property
    def context(self) -> Context | None:
        """The context with the run and its span."""
        return self._context

    @property
    def trace(self) -> Any:
        """The span's own context, for links; None without a span."""
        try:
            return self._span.get_span_context() if self._span is not None else None
        except Exception:  # noqa: BLE001
            _lost("get_span_context")
            return None

    def leave(self, *, same_context: bool) -> None:
        """Make current what was current before; from another thread or task there is nothing to undo."""
        if same_context and self._token is not None:
            detach(self._token)
        else:
            leave(self._context, self._before)

    def take_over(self, outer: "RunSpan") -> None:
        """Restore, when left, what `outer` would have restored: it was left first."""
        self._before, self._token = outer._before, None  # noqa: SLF001

    def tell_delegate(self, reason: str) -> None:
        """Say on the span of the call that asked for this run that the run was stopped."""
        if self._delegate is not None:
            try:
                if self._delegate.is_recording():
                    self._delegate.set_attribute(names.CHILD_STOP_REASON, reason)
            except Exception:  # noqa: BLE001
                _lost("set_attribute")

    def end(self, attributes: Mapping[str, Any], error: str | None) -> None:
        """End the span with the run's totals."""
        if self._span is None:
            return
        try:
            self._span.set_attributes(attributes)
            if error is not None:
                self._span.set_attribute(names.ERROR_TYPE, error)
                self._span.set_status(Status(StatusCode.ERROR))
        except Exception:  # noqa: BLE001
            _lost("set_attribute")
        try:
            self._span.end()
        except Exception:  # noqa: BLE001
            _lost("end")
