"""Measure what toolguard costs and print it beside the gates: `python -m tests.bench [--rounds N] [ROW ...]`."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

TIMED = ("batch", "every-wall", "no-sdk", "sampled-out", "outside", "many-calls", "threads", "histogram")


class Row(NamedTuple):
    """One line of the table; one without a gate only tells."""

    what: str
    measured: float
    gate: float | None = None
    aim: float = 0.0
    unit: str = ""

    def __str__(self) -> str:
        line = f"{self.what:<66} {self.measured:8.2f}{self.unit:<3}"
        if self.gate is None:
            return line.rstrip()
        verdict = "ok" if self.measured <= self.gate else "MISSED"
        return f"{line} {self.gate:7.2f} {self.aim:7.2f}  {verdict}"


def sample(*command: str) -> dict[str, Any]:
    """Run one process and return the JSON that it prints."""
    # An installed package has its bytecode; a process that may not write it would compile everything each time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rows(name: str, rounds: int) -> Iterator[Row]:
    """Measure one process and return its lines."""
    got = sample("tests.bench.cases", name, str(rounds))
    match name:
        case "batch":
            yield Row("1 SDK + batch processor, over wrapt + a bare span", got["ratio"], 1.25, 1.10)
        case "every-wall":
            yield Row("1 the same with every wall on", got["ratio"])
        case "no-sdk":
            yield Row("2 the same without an SDK", got["ratio"], 1.25, 0.80)
        case "sampled-out":
            yield Row("3 the same, sampled out", got["ratio"], 1.40, 1.10)
        case "outside":
            yield Row("4 outside a run, allow, over functools.wraps", got["allow"], 3.0, 2.0)
            yield Row("4 outside a run, warn, over a bare span", got["warn"], 1.1, 1.0)
        case "many-calls":
            yield Row("5 a call after 100 000 others, over one after 10", got["ratio"], 1.1, 1.0)
            yield Row("5 memory a call", got["bytes_per_call"], 1.0, 1.0, " B")
        case "threads":
            yield Row("6 eight threads on one run, over one, per call", got["ratio"], 1.5, 1.2)
            yield Row("6 limits inexact under eight threads", 1 - got["exact"], 0.0, 0.0)
        case "histogram":
            yield Row("9 the duration histogram adds to row 1", got["added"], 0.3, 0.3)


def first() -> Iterator[Row]:
    """Row 8: the median of nine fresh processes."""
    samples = [sample("tests.bench.first") for _ in range(10)][1:]
    imported = statistics.median(s["import_ms"] for s in samples)
    opened = statistics.median(s["run_ms"] for s in samples)
    yield Row(f"8 import toolguard after {samples[0]['after']}", imported, 60, 25, " ms")
    yield Row("8 the first run with one call", opened, 20, 5, " ms")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=41, help="rounds of interleaved cases (41)")
    parser.add_argument("--peers", action="store_true", help="row 7: the peers that are installed here")
    parser.add_argument("names", nargs="*", metavar="ROW", help=f"only these: {', '.join((*TIMED, 'first'))}")
    chosen = parser.parse_args()
    print(f"Python {platform.python_version()}, {chosen.rounds} rounds; ratios of CPU time, median of rounds")
    print(f"{'':<66} {'measured':>11} {'gate':>7} {'aim':>7}")
    for name in chosen.names or (*TIMED, "first"):
        for row in first() if name == "first" else rows(name, chosen.rounds):
            print(row, flush=True)
    if chosen.peers:
        from tests.bench.peers import peers

        for line in peers(chosen.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
