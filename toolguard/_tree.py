"""What runs share: the one lock with the queue of what has ended, a tree's slack, a session, and the counts for metrics.

The lock is one for the process. A call's own run, the runs around it and their session must be decided together, and a
nested run may name a session that other trees are in, so any finer lock would have to be merged with others in motion. It
is held for microseconds and never while anything but the package's own code runs.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from toolguard._identity import Hasher, new_key
from toolguard._values import Call, Outcome, Refused, Spent, Tally, Wall

__all__ = ["SECTION", "Counts", "Remembered", "Section", "Session", "Tree", "totals"]

_YIELDS: Final = 200
_MOST_SEEN: Final = 1024

Counts = dict[tuple[str, str, str, str], int]
"""Finished calls by (tool, kind, outcome, reason), for metrics."""


class Account(Protocol):
    """What the queue needs of a run's ledger; each is called inside the critical section."""

    def close_turn(self, at: int) -> None:
        """Let the walls judge the turn that ends, and begin the next at the logical time `at`."""

    def add_spending(self, spent: Spent) -> None:
        """Apply what the program says it has spent."""

    def count_refusal(self, call: Call, why: Refused, outcome: Outcome, at: int) -> None:
        """Apply that a call did not execute."""

    def settle(self, call: Call, at: int) -> None:
        """Apply how an admitted call ended."""


class Section:
    """The critical section: who is in it, what waits for the next entry, and what metrics read.

    Attributes:
        inside: a thread is in it. One that finds this true after it took the lock has re-entered: a signal handler, or a
            finaliser.
        late: settlements, refusals that went back, turns and spending, in order, which no lock guards.
    """

    __slots__ = ("_counts", "inside", "late", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.inside = False
        self.late: deque[tuple[Account, Call | None, Refused | Spent | None, int]] = deque()
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}

    def stand_aside(self) -> None:
        """Let the thread that is inside finish.

        Under the GIL a blocking lock makes threads queue up behind each switch (8 threads then cost twice one); giving
        the processor away a few times first does not.
        """
        for _ in range(_YIELDS):
            if not self.inside:
                return
            time.sleep(0)  # noqa: TID251  it yields and waits for nothing

    def drain(self) -> bool:
        """Bring all counts up to date; False where this thread is inside already."""
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

    @contextmanager
    def settled(self) -> Generator[None]:
        """Stay inside with everything settled that has ended, so that what is read is of one moment.

        Raises:
            RuntimeError: this thread is inside already, in the middle of a decision.
        """
        if self.inside:
            self.stand_aside()
        with self.lock:
            if self.inside:
                msg = "a signal handler or finaliser interrupted a decision; do this where the agent's loop is"
                raise RuntimeError(msg)
            try:
                self.inside = True
                self.drain_inside()
                yield
            finally:
                self.inside = False

    def drain_inside(self) -> None:
        """Drain, inside the critical section."""
        late = self.late
        while late:
            ledger, call, why, at = late.popleft()
            if call is None:
                if type(why) is Spent:
                    ledger.add_spending(why)
                else:
                    ledger.close_turn(at)
            elif why is not None:
                assert type(why) is Refused  # noqa: S101  spending has no call
                ledger.count_refusal(call, why, "refused", at)
            elif call.charged:
                ledger.settle(call, at)

    def count(self, key: tuple[str, str, str, str]) -> list[int]:
        """Return the cell in which calls of this kind are counted."""
        return self._counts.get(key) or self._counts.setdefault(key, [0])

    def totals(self) -> Counts:
        """Return all finished calls of the process; a number never goes down."""
        self.drain()
        return {key: cell[0] for key, cell in self._counts.copy().items() if cell[0]}

    def after_fork(self) -> None:
        """Free the lock: the thread of the parent that may have held it will never release it here."""
        self.lock = threading.RLock()
        self.inside = False


SECTION: Final = Section()
totals: Final = SECTION.totals

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SECTION.after_fork)


class Tree:
    """How long nobody needs to be asked in the runs of one tree.

    Attributes:
        mileage: admissions so far. A plan whose `until` lies ahead of it is certain to pass.
        horizon: the furthest `until` ever granted; moving the mileage there makes every plan ask again.
        unheeded: in some run a stop was only observed.
    """

    __slots__ = ("__weakref__", "horizon", "mileage", "unheeded")

    def __init__(self) -> None:
        self.mileage = self.horizon = 0
        self.unheeded = False

    def ask_again(self) -> None:
        """Make every plan ask its walls at the next admission."""
        self.mileage = max(self.mileage, self.horizon)


class Remembered(NamedTuple):
    """What a session brings along from another process.

    Attributes:
        troubled: as the session's.
        new, old: the outcomes that it has looked at, in two generations.
        states: what its walls remember, by name.
    """

    troubled: bool
    new: set[bytes]
    old: set[bytes]
    states: dict[str, Any]


def _nothing() -> Remembered:
    return Remembered(troubled=False, new=set(), old=set(), states={})


class Session:
    """What the runs of one session share: the key and receivers of their digests, and what session-wide walls remember.

    Attributes:
        key: the key of the digests, by which two processes know that they speak of one session.
        hasher: makes the digests.
        states: what session-wide walls remember, by name.
        troubled: a call has failed in it.
        news: outcomes that were new to some run, and that `is_news` has not looked at yet.
    """

    __slots__ = ("__weakref__", "_seen", "_trees", "hasher", "key", "news", "states", "troubled")

    def __init__(self, key: bytes | None = None, past: Remembered | None = None) -> None:
        """Hash under `key`, by default a new one, and go on from `past`."""
        self.key = new_key() if key is None else key
        self.hasher = Hasher(self.key)
        self.troubled, new, old, self.states = past or _nothing()
        self.news: list[bytes] = []
        self._seen: tuple[set[bytes], set[bytes]] = (new, old)
        self._trees: weakref.WeakSet[Tree] = weakref.WeakSet()

    def past(self) -> Remembered:
        """Return what another process needs to go on from here, still the session's own objects."""
        self._remember()
        return Remembered(self.troubled, *self._seen, self.states)

    def join(self, tree: Tree) -> None:
        """Let the runs of a tree take part."""
        self._trees.add(tree)
        self._remember()

    def _remember(self) -> None:
        new, _ = self._seen
        new.update(self.news)
        self.news.clear()
        if len(new) > _MOST_SEEN:
            self._seen = set(), new

    def is_news(self, call: Call) -> bool:
        """Say whether the outcome of the call that was observed last is new to the session."""
        if not call.fresh or call.digest is None:
            return call.fresh
        seen = self.news.pop()
        self._remember()
        new, old = self._seen
        if seen in new or seen in old:
            return False
        new.add(seen)
        return True

    def state(self, wall: Wall, tally: Tally) -> Any:
        """Return what a session-wide wall remembers; the first run that asks makes it."""
        made = self.states.get(wall.name)
        return self.states.setdefault(wall.name, wall.state(tally)) if made is None else made

    def ask_again(self) -> None:
        """Make every plan of every run of the session ask its walls at the next admission."""
        for tree in list(self._trees):
            tree.ask_again()
