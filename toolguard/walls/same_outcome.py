"""The commonest loop there is: the identical call that succeeds, in a row, and brings the same each time."""

from collections.abc import Mapping
from typing import Any

from toolguard._identity import SIZE
from toolguard._text import times
from toolguard._values import CERTAIN, Call, Key, Refused, Tally, Tool, Wall


class InARow:
    """How often in a row the run's last calls were one identity with one outcome, parallel twins counted once.

    Attributes:
        seen: that identity and outcome; it holds as long as it is the tally's `last`.
    """

    __slots__ = ("seen", "tally", "times")

    seen: bytes
    tally: Tally
    times: int

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.seen = b""
        self.times = 0


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["same_outcome"] or None


def _times(s: InARow) -> int:
    last = s.tally.last
    return s.times if last == s.seen and last else 1


def admit(s: InARow, n: int, call: Call) -> Refused | None:
    last = s.tally.last  # empty, it starts with no identity
    if (times := _times(s)) < n or not last.startswith(call.identity) or len(last) != len(call.identity) + SIZE:
        return None
    return Refused("same_outcome", times, n, "different")


def repeated(s: InARow, n: int, call: Call) -> bool:
    last, before = s.tally.last, s.tally.before
    if not last or call.tool.polls:
        return False
    if last != before:
        s.times = 1
    else:
        s.times = (s.times if s.seen == last else 1) + (not call.twin)
    s.seen = last
    return s.times >= n


def slack(s: InARow, n: int) -> int:
    return CERTAIN if _times(s) < n else 0


def text(why: Refused, _tool: str) -> str:
    return (
        f"exactly this call has run {times(why.used)} in a row with the same result and the limit is {why.limit}. "
        "It will not change: use the result that you have, or do something else first."
    )


WALL = Wall(
    name="same_outcome",
    keys=(
        Key(
            "same_outcome",
            (3, 3, 3),
            "Identical calls in a row, in a run, that may come to the same outcome; any other executed call in between starts "
            "anew. Reads only. On recorded runs 3 catches 22 of 22 such loops.",
        ),
    ),
    limit=limit,
    state=InARow,
    about="identical calls in a row that came to the same outcome; at the limit the same call is refused",
    text=text,
    needs=frozenset({"identity", "digest"}),
    admit=admit,
    repeated=repeated,
    slack=slack,
)
