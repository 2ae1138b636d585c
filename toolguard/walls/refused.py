"""The loop that goes on asking after it was refused. Counted by turn where turns are marked, else by call."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import counted
from toolguard._values import Call, Key, Refused, Tally, Tool, Wall


class InARow:
    """Refusals since the last executed call.

    Attributes:
        calls: refused calls in a row.
        turns: closed turns in a row in which every call was refused.
        refused: refused calls of the open turn.
        settled: executed calls when a refusal last counted, or when the open turn began.
    """

    __slots__ = ("calls", "refused", "settled", "tally", "turns")

    calls: int
    refused: int
    settled: int
    tally: Tally
    turns: int

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.calls = self.turns = self.refused = self.settled = 0


def limit_calls(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["refused_calls"] or None


def refused_calls(s: InARow, n: int, call: Call, _at: int) -> Refused | None:
    if call.turn:  # turns are marked: `refused_turns` counts
        return None
    if s.settled != s.tally.settled:
        s.settled, s.calls = s.tally.settled, 0
    s.calls += 1
    return Refused("refused_calls", s.calls, n, "never", stops=True) if s.calls >= n else None


def limit_turns(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["refused_turns"] or None


def refused_turns(s: InARow, _n: int, call: Call, _at: int) -> None:
    if call.turn:
        s.refused += 1


def turned(s: InARow, n: int) -> Refused | None:
    if s.settled != s.tally.settled:
        s.settled, s.turns = s.tally.settled, 0
    elif s.refused:
        s.turns += 1
    s.refused = 0
    return Refused("refused_turns", s.turns, n, "never", stops=True) if s.turns >= n else None


def _text(unit: str, why: Refused) -> str:
    were = "was" if why.used == 1 else "were"
    return (
        f"{counted(why.used, unit)} in a row {were} refused and nothing ran in between, so the run is stopped (limit "
        f"{why.limit}). No further call will run in it. Answer now with what you have."
    )


def _ending(unit: str, why: Refused) -> tuple[str, str]:
    return (
        f"{counted(why.used, unit)} in a row asked only for calls that were refused",
        "ask for something narrower, or raise the limits that refused the calls",
    )


CALLS = Wall(
    name="refused_calls",
    keys=(
        Key(
            "refused_calls",
            (20, 20, 20),
            "Refused calls in a row that stop the run, where no turn was marked. Any executed call starts it anew. "
            "The number is this project's own, for the loop that goes on asking after it was refused.",
        ),
    ),
    limit=limit_calls,
    state=InARow,
    about="calls in a row that were refused, until the first marked turn; at the limit the run is **stopped**",
    text=lambda why, _tool: _text("calls", why),
    ending=lambda why: _ending("calls", why),
    refused=refused_calls,
)

TURNS = Wall(
    name="refused_turns",
    keys=(
        Key(
            "refused_turns",
            (5, 5, 5),
            "Marked turns in a row in which every call was refused that stop the run. Empty turns neither count nor reset. "
            "The number is this project's own, for the loop that goes on asking after it was refused.",
        ),
    ),
    limit=limit_turns,
    state=InARow,
    about="model turns in a row in which every call was refused; at the limit the run is **stopped**",
    text=lambda why, _tool: _text("turns", why),
    ending=lambda why: _ending("turns", why),
    refused=refused_turns,
    turned=turned,
)
