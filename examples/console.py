"""What the example shows: on the terminal with rich where it is installed, else as plain text; and a run's spans."""

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby

from opentelemetry import trace

import toolguard

if find_spec("rich"):
    from rich import box
    from rich.console import Console as Rich
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

if find_spec("opentelemetry.sdk"):
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

__all__ = ["Console", "Traces", "show_run"]

_WIDTH = 100


class Console:
    """What the example prints: headings, paragraphs, links, tables and trees."""

    def __init__(self, *, plain: bool) -> None:
        """Use rich unless `plain` is asked for or rich is missing."""
        self._plain = plain or not find_spec("rich")
        if not self._plain:
            self._rich = Rich(highlight=False)
            self._rich.width = min(self._rich.width, _WIDTH)

    def heading(self, text: str) -> None:
        """Begin a section."""
        if self._plain:
            print(f"\n== {text} ==")
        else:
            self._rich.print()
            self._rich.rule(f"[bold]{text}", align="left")

    def say(self, label: str, text: str, style: str = "") -> None:
        """Print one paragraph under its label."""
        if self._plain:
            print(textwrap.fill(f"{label}: {text}", _WIDTH, subsequent_indent="  ", break_long_words=False))
        else:
            self._rich.print(Text(label, style=f"bold {style}"))
            self._rich.print(Padding(Text(text), (0, 0, 0, 2), expand=False))

    def link(self, label: str, url: str) -> None:
        """Print a link on a line of its own, unbroken however long it is."""
        if self._plain:
            print(f"{label}:\n{url}")
        else:
            self._rich.print(Text(label, style="bold"))
            self._rich.print(Text(url, style="underline"), soft_wrap=True)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print rows, the first of which is the header."""
        if self._plain:
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            print()
            for row in rows:
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            print()
        else:
            table = Table(*rows[0], box=box.SIMPLE_HEAD)
            for row in rows[1:]:
                table.add_row(*row)
            self._rich.print(table)

    def tree(self, root: str, branches: Sequence[tuple[str, str]]) -> None:
        """Print a root and its branches, each a text and a style."""
        if self._plain:
            print()
            print(root, *(f"  - {text}" for text, _ in branches), sep="\n")
        else:
            self._rich.print()
            tree = Tree(Text(root, style="bold"))
            for text, style in branches:
                tree.add(Text(text, style=style))
            self._rich.print(tree)


def show_run(console: Console, run: toolguard.Run, notes: Sequence[str]) -> None:
    """Print what a run executed and refused, the first refusal of each wall, and the notes that its model read."""
    usage = run.usage()
    reasons = Counter((refusal.tool, refusal.reason) for refusal in run.refusals)
    rows = [("tool", "executed", "refused", "by reason")]
    for tool in dict.fromkeys((*usage.by_tool, *(tool for tool, _ in reasons))):
        own = {reason: count for (name, reason), count in reasons.items() if name == tool}
        why = ", ".join(f"{reason} {count}" for reason, count in own.items())
        rows.append((tool, str(usage.by_tool.get(tool, 0)), str(sum(own.values())), why))
    rows.append(("all", str(usage.executed), str(usage.refused), ""))
    console.table(rows)
    first: dict[str, toolguard.Refusal] = {}
    for refusal in run.refusals:
        first.setdefault(refusal.reason, refusal)
    for refusal in first.values():
        console.say(f"the first refusal by {refusal.reason}", refusal, "yellow")
    if notes:
        console.say(f"the first note of {len(notes)}, each at the end of a request", notes[0], "cyan")


class Traces:
    """Where the spans go: to the endpoint that the environment names, else into memory and onto the terminal."""

    def __init__(self) -> None:
        """Set up the SDK. toolguard needs only the API: who runs a program says where its spans go."""
        self._provider = self._memory = None
        if not find_spec("opentelemetry.sdk"):
            return
        os.environ.setdefault("OTEL_SERVICE_NAME", "sql-agent")
        self._provider = TracerProvider()
        if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        else:
            self._memory = InMemorySpanExporter()
            self._provider.add_span_processor(SimpleSpanProcessor(self._memory))
        trace.set_tracer_provider(self._provider)

    def show(self, console: Console, trace_id: int) -> None:
        """Print the spans of one trace as a tree, or the link that opens it with its refused spans highlighted."""
        if self._memory:
            spans = [span for span in self._memory.get_finished_spans() if span.context.trace_id == trace_id]
            _show_spans(console, sorted(spans, key=lambda span: span.start_time or 0))
        elif self._provider:
            base = os.environ.get("TOOLGUARD_TRACE_URL", "http://127.0.0.1:16686")
            link = f"{base}/trace/{trace.format_trace_id(trace_id)}?uiFind=toolguard.refused%3Dtrue"
            console.link("the trace, with its refused spans highlighted", link)
        else:
            console.say("no spans", "pip install 'toolguard-otel[otlp]' to see them")

    def close(self) -> None:
        """Send what is still waiting."""
        if self._provider:
            self._provider.force_flush()
            self._provider.shutdown()


def _show_spans(console: Console, spans: Sequence["ReadableSpan"]) -> None:
    root, *calls = spans
    branches = []
    for (name, fate, style), group in groupby(calls, _look):  # neighbours that look the same share a line
        count = len(list(group))
        branches.append((f"{name} x {count} {fate}" if count > 1 else f"{name} {fate}", style))
    console.tree(root.name, branches)


def _look(span: "ReadableSpan") -> tuple[str, str, str]:
    attributes = span.attributes or {}
    outcome = str(attributes["toolguard.call.outcome"])
    if attributes["toolguard.refused"]:
        return span.name, "REFUSED by " + str(attributes["toolguard.refusal.reason"]), "bold yellow"
    if span.links:
        outcome += ", confirming a refused call"
    return span.name, outcome, "red" if outcome == "error" else "green"
