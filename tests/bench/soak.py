"""Many short runs in one process, and what they leave behind: `python -m tests.bench.soak [RUNS] [CALLS]`."""

import gc
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import toolguard
from toolguard.testing import isolated


@toolguard.metered(kind="read")
def read(number: int) -> str:
    """Return a record, now and then one that was seen before, and fail now and then."""
    if number % 7 == 0:
        msg = f"record {number} is locked"
        raise ValueError(msg)
    return f"record {number // 3}"


@toolguard.metered(kind="send")
def send(number: int) -> str:
    """Send one message."""
    return "sent"


def use(call: Callable[[int], Any], number: int) -> None:
    """Call as an agent does, which reads the error and goes on."""
    with suppress(ValueError):
        call(number)


def play(runs: int, calls: int) -> Iterator[int]:
    """Make so many runs, of changing sessions and tenants, each with so many calls."""
    for number in range(runs):
        with toolguard.run("agent", session=f"s{number // 3}", tenant=f"t{number % 5}") as run:
            for n in range(calls):
                use(send if n % 9 == 8 else read, number + n)
            run.turn()
        yield number


def rss_mib() -> float:
    """Return what the process holds now, in MiB."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize() / 2**20


def main(runs: int, calls: int) -> None:
    """Print memory and time in ten parts."""
    logging.disable(logging.CRITICAL)
    part, began = max(1, runs // 10), time.perf_counter()
    with isolated():
        for number in play(runs, calls):
            done = number + 1
            if done % part == 0:
                gc.collect()
                took = time.perf_counter() - began
                print(f"{done:>8} runs, {done * calls:>9} calls: {rss_mib():7.1f} MiB, {took:7.1f} s")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [100_000, 10][len(given) :]))
