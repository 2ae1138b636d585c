"""Time as an argument: what the rest of the package knows of clocks."""

import itertools
import time
from collections.abc import Callable

__all__ = ["Clock", "monotonic", "tick"]

Clock = Callable[[], float]
"""Seconds on a clock that never runs backwards; only differences mean anything."""

monotonic: Clock = time.perf_counter

# One logical clock for the process. It stamps when a call starts and when a refusal or a settlement is handed back, so
# that "started after" is decided by order and never by the resolution of a real clock.
tick: Callable[[], int] = itertools.count(1).__next__
