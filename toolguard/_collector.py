"""Whether the garbage collector is at work on this thread, where setting a context variable is not safe.

Up to Python 3.11 the collector may start in the middle of `ContextVar.set`. A finaliser that then sets a variable of the
same context frees the memory that is being read, and the process crashes or loses variables. From 3.12 on the collector
starts between two instructions only.
"""

import gc
import sys
from threading import get_ident
from typing import Any

__all__ = ["is_here"]

_thread = 0


def is_here() -> bool:
    """Say whether this very code runs in a finaliser that the collector called."""
    return _thread != 0 and _thread == get_ident()


def _watch(phase: str, _info: dict[str, Any]) -> None:
    global _thread  # noqa: PLW0603  one collection at a time in a process
    _thread = get_ident() if phase == "start" else 0


if sys.version_info < (3, 12):
    gc.callbacks.append(_watch)
