"""The commonest loop there is: the identical call that succeeds, in a row, and brings the same each time."""

from collections.abc import Mapping
from typing import Any

from toolguard._values import CERTAIN, Call, Key, Refused, Tally, Tool, Wall


class InARow:
    """What the run's last calls have in common.

    Attributes:
        identity, digest: the last call and its outcome; empty where nothing can repeat.
        times: how often in a row, parallel twins counted once.
        at: logical time at which the last of them was settled.
    """

    __slots__ = ("at", "digest", "identity", "times")

    def __init__(self, _tally: Tally) -> None:
        self.identity = self.digest = b""
        self.times = self.at = 0

    def restart(self) -> None:
        """Let nothing be a repetition."""
        self.identity = self.digest = b""
        self.times = 0


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["same_outcome"] or None


def admit(s: InARow, n: int, call: Call) -> Refused | None:
    if s.times < n or s.identity != call.identity:
        return None
    return Refused("same_outcome", s.times, n, "different")


def settle(s: InARow, n: int, call: Call, at: int) -> bool:
    if call.digest == s.digest and call.identity == s.identity:
        s.times += call.started > s.at
        s.at = at
        return s.times >= n
    tool = call.tool
    if tool.polls:
        if call.fresh:
            s.restart()
    elif tool.kind == "send" or call.digest is None:
        s.restart()
    else:
        s.identity, s.digest, s.times, s.at = call.identity, call.digest, 1, at
    return s.times >= n


def slack(s: InARow, n: int) -> int:
    return CERTAIN if s.times < n else 0


def text(why: Refused, _tool: str) -> str:
    return (
        f"exactly this call has run {why.used} times in a row with the same result and the limit is {why.limit}. "
        "It will not change: use the result that you have, or do something else first."
    )


WALL = Wall(
    name="same_outcome",
    keys=(
        Key(
            "same_outcome",
            (3, 3, 3),
            "Identical calls in a row with an unchanged outcome a run; any other executed call in between starts anew. "
            "Reads only. On recorded runs 3 catches 22 of 22 such loops.",
        ),
    ),
    limit=limit,
    state=InARow,
    about="identical calls in a row that came to the same outcome; at the limit the same call is refused",
    text=text,
    needs=frozenset({"identity", "digest"}),
    admit=admit,
    settle=settle,
    slack=slack,
)
