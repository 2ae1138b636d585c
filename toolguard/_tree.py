"""What the runs of one tree share: the lock, the queue of what has ended, and the counts that metrics read."""

import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from toolguard._values import Call, Outcome, Refused

__all__ = ["Counts", "Session", "totals"]

_YIELDS: Final = 200

Counts = dict[tuple[str, str, str, str], int]
"""Finished calls by (tool, kind, outcome, reason), for metrics."""


class Account(Protocol):
    """What the queue needs of a run's ledger; each is called inside the critical section."""

    def close_turn(self) -> None:
        """Let the walls judge the turn that ends, and begin the next."""

    def count_refusal(self, call: Call, why: Refused, outcome: Outcome, at: int) -> None:
        """Apply that a call did not execute."""

    def settle(self, call: Call, at: int) -> None:
        """Apply how an admitted call ended."""


class Session:
    """What the runs of one tree share: the lock, the queue, and how long nobody needs to be asked.

    Attributes:
        mileage: admissions so far. A plan whose `until` lies ahead of it is certain to pass.
        unheeded: in some run a stop was only observed.
        horizon: the furthest `until` ever granted; moving the mileage there makes every plan ask again.
    """

    __slots__ = ("__weakref__", "counts", "horizon", "inside", "late", "lock", "mileage", "unheeded")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.inside = self.unheeded = False
        self.late: deque[tuple[Account, Call | None, Refused | None, int]] = deque()
        self.mileage = self.horizon = 0
        self.counts: dict[tuple[str, str, str, str], list[int]] = {}
        _sessions.add(self)

    def stand_aside(self) -> None:
        """Let the thread that is inside finish.

        Under the GIL a blocking lock makes threads queue up behind each switch (8 threads then cost twice one); giving
        the processor away a few times first does not.
        """
        for _ in range(_YIELDS):
            if not self.inside:
                return
            time.sleep(0)  # noqa: TID251  it yields and waits for nothing

    def ask_again(self) -> None:
        """Make every plan ask its walls at the next admission."""
        self.mileage = max(self.mileage, self.horizon)

    def drain(self) -> bool:
        """Bring the counts up to date; False where this thread is inside already."""
        if self.inside:
            self.stand_aside()
        with self.lock:
            if self.inside:
                return False
            try:
                self.inside = True
                self.drain_inside()
            finally:
                self.inside = False
            return True

    def drain_inside(self) -> None:
        """Drain, inside the critical section."""
        late = self.late
        while late:
            ledger, call, why, at = late.popleft()
            if call is None:
                ledger.close_turn()
            elif why is not None:
                ledger.count_refusal(call, why, "refused", at)
            elif call.charged:
                ledger.settle(call, at)

    def take(self) -> Counts:
        """Return the counts gathered since they were last taken."""
        with self.lock:
            if self.inside:
                return {}
            try:
                self.inside = True
                taken = {key: cell[0] for key, cell in list(self.counts.items()) if cell[0]}
                for key in taken:
                    self.counts[key][0] = 0
                return taken
            finally:
                self.inside = False

    def count(self, key: tuple[str, str, str, str]) -> list[int]:
        """Return the cell in which calls of this kind are counted."""
        return self.counts.setdefault(key, [0])

    def __del__(self) -> None:
        # The last run of the session is gone; what ended after it was left must still reach the totals.
        with suppress(Exception):  # at the interpreter's end there may be nobody left to count for
            self.drain_inside()
            _add(self.take())


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()
_totals: Counts = {}
_totals_lock = threading.RLock()


def _live_sessions() -> list[Session]:
    while True:
        try:
            return list(_sessions)
        except RuntimeError:  # a session was born or died meanwhile
            continue


_untotalled: deque[Counts] = deque()
_totalling = False


def _add(counts: Counts) -> None:
    global _totalling  # noqa: PLW0603  it goes with the lock
    with _totals_lock:
        _untotalled.append(counts)
        if _totalling:  # a finaliser in the middle of an addition of its own thread, which will find it
            return
        try:
            _totalling = True
            while _untotalled:
                for key, n in _untotalled.popleft().items():
                    _totals[key] = _totals.get(key, 0) + n
        finally:
            _totalling = False


def totals() -> Counts:
    """Return all finished calls of the process; a number never goes down."""
    for session in _live_sessions():
        session.drain()
        _add(session.take())
    with _totals_lock:
        return dict(_totals)


def _after_fork() -> None:
    # Another thread of the parent may have held a lock that nobody in the child will ever release.
    global _totals_lock, _totalling
    _totals_lock, _totalling = threading.RLock(), False
    for session in _live_sessions():
        session.lock = threading.RLock()
        session.inside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
