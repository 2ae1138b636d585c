"""A, B, A, B, …: calls that differ from the one before and still bring only what was seen already."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import counted
from toolguard._values import CERTAIN, Call, Key, Refused, Tally, Tool, Wall


class Streak:
    """How many calls in a row brought only what the run had seen; it holds until the tally's `news` go on."""

    __slots__ = ("news", "tally", "times")

    news: int
    tally: Tally
    times: int

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.news = self.times = 0


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["stale_streak"] or None


def _times(s: Streak) -> int:
    return s.times if s.news == s.tally.news else 0


def admit(s: Streak, n: int, call: Call) -> Refused | None:
    if _times(s) < n or call.tool.kind == "send" or call.tool.polls or not s.tally.knows(call.identity):
        return None
    return Refused("stale_streak", s.times, n, "different")


def repeated(s: Streak, n: int, call: Call) -> bool:
    if not call.twin and not call.tool.polls and call.tool.kind != "send":
        s.times, s.news = _times(s) + 1, s.tally.news
    return _times(s) >= n


def slack(s: Streak, n: int) -> int:
    return CERTAIN if _times(s) < n else 0


def text(why: Refused, _tool: str) -> str:
    return (
        f"the last {counted(why.used, 'calls')} brought only results that this run had seen before and the limit is "
        f"{why.limit}. You have this result already. Do something new, or answer with what you have; a call that has not been "
        "made runs."
    )


WALL = Wall(
    name="stale_streak",
    keys=(
        Key(
            "stale_streak",
            (6, 6, 6),
            "Calls in a row that may bring only what the run had seen before; then calls that were made before are refused "
            "and new ones run. Reads only. On recorded runs 6 catches 5 of 5 alternating loops.",
        ),
    ),
    limit=limit,
    state=Streak,
    about="calls in a row that brought only what was seen before; at the limit calls that were made before are refused",
    text=text,
    needs=frozenset({"identity", "digest"}),
    admit=admit,
    repeated=repeated,
    slack=slack,
)
