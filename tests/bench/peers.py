"""Row 7: the same tool under other tracing decorators, each in an environment of its own that is made for it."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.cases import in_run, metered, null_exporter, repeat, search
from tests.bench.timing import measure
from toolguard import _telemetry

ROOT: Final = Path(__file__).resolve().parents[2]


def _plain_provider() -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(null_exporter()))
    return provider


def _traceloop() -> Callable[..., Any]:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from traceloop.sdk import Traceloop
    from traceloop.sdk.decorators import tool

    Traceloop.init(processor=BatchSpanProcessor(null_exporter()), instruments=set(), telemetry_enabled=False)
    return tool(name="search")(search)


def _logfire() -> Callable[..., Any]:
    import logfire
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[BatchSpanProcessor(null_exporter())],
    )
    return logfire.instrument("search")(search)


def _openinference() -> Callable[..., Any]:
    from openinference.instrumentation import OITracer, TraceConfig
    from opentelemetry import trace

    trace.set_tracer_provider(_plain_provider())
    return OITracer(trace.get_tracer("bench"), config=TraceConfig()).tool(search)


def _langfuse() -> Callable[..., Any]:
    from langfuse import Langfuse, observe

    Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", tracer_provider=_plain_provider())
    return observe(as_type="tool")(search)


PEERS: Final[dict[str, tuple[str, Callable[[], Callable[..., Any]], float]]] = {
    "traceloop": ("traceloop-sdk", _traceloop, 0.6),
    "logfire": ("logfire", _logfire, 0.4),
    "openinference": ("openinference-instrumentation", _openinference, 0.25),
    "langfuse": ("langfuse", _langfuse, 0.2),
}


def peers(rounds: int) -> Iterator[str]:
    """Measure every peer and yield a line for each."""
    for name, (distribution, _, gate) in PEERS.items():
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python = str(Path(folder) / "bin" / "python")
            packages = [str(ROOT), distribution, "opentelemetry-sdk", "wrapt", "httpx"]
            done = subprocess.run(
                [python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True, check=False
            )
            command = [python, "-m", "tests.bench.peers", name, str(rounds)]
            if done.returncode == 0:
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
            if done.returncode != 0:
                yield f"7 over {name}: not measured: {(done.stderr.strip().splitlines() or ['no output'])[-1][:90]}"
                continue
            ratio = json.loads(done.stdout.splitlines()[-1])["ratio"]
            verdict = "ok" if ratio <= gate else "MISSED"
            yield f"{f'7 a call in a run, over {name}':<66} {ratio:8.2f}    {gate:7.2f} {'lower':>7}  {verdict}"


def main(name: str, rounds: int) -> None:
    """Measure one peer in this process, and print the ratio."""
    logging.disable(logging.CRITICAL)
    peer = PEERS[name][1]()
    # A peer may have set a provider of its own make; toolguard is measured on the plain SDK, as in row 1.
    _telemetry._scope = _telemetry.Scope(_plain_provider().get_tracer("toolguard"), None)
    with in_run(histogram=False):
        timed = measure({"metered": repeat(metered()), "peer": repeat(peer)}, calls=200, rounds=rounds)
    print(json.dumps({"ratio": timed["metered"].over(timed["peer"]), "peer_us": timed["peer"].us}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
