"""How a ratio is measured: cases interleaved in random order each round, CPU time of the calling thread."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Case = Callable[[int], None]
"""Makes so many calls."""


class Timing(NamedTuple):
    """One case: microseconds a call (the 10th percentile of the rounds), and each round's."""

    us: float
    rounds: tuple[float, ...]

    def over(self, other: "Timing") -> float:
        """Return the median of the per-round ratios to another case of the same rounds."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))


def measure(
    cases: Mapping[str, Case], *, calls: int, rounds: int, between: Callable[[], None] | None = None
) -> dict[str, Timing]:
    """Time every case in every round; the machine's own swings hit all of them alike.

    Args:
        cases: what to time, by name.
        calls: calls a case and round.
        rounds: how many rounds.
        between: done before each round, outside the timing.
    """
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case(calls)
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        if between is not None:
            between()
        for name in random.sample(list(cases), len(cases)):
            begin = time.thread_time()
            cases[name](calls)
            seen[name].append((time.thread_time() - begin) / calls * 1e6)
    return {name: Timing(sorted(us)[len(us) // 10], tuple(us)) for name, us in seen.items()}
