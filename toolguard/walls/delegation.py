"""Asking a specialist again and again: each answer reads differently, and each is the most expensive call there is."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import times
from toolguard._values import Call, Key, Recent, Refused, Tally, Tool, Wall


class Asked:
    """Charged calls by specialist, and the highest of these counts."""

    __slots__ = ("counts", "most")

    counts: Recent[bytes, int]
    most: int

    def __init__(self, _tally: Tally) -> None:
        self.counts = Recent(1024)
        self.most = 0


def limit(tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["delegation"] or None if tool.delegate else None


def _who(call: Call) -> bytes:
    return call.tool.canonical.encode() if call.specialist is None else call.specialist


def admit(s: Asked, n: int, call: Call) -> Refused | None:
    used = s.counts.get(_who(call)) or 0
    return Refused("delegation", used, n, "different") if used >= n else None


def charge(s: Asked, _n: int, call: Call) -> None:
    used = (s.counts.get(_who(call)) or 0) + 1
    s.counts.put(_who(call), used)
    s.most = max(s.most, used)


def release(s: Asked, _n: int, call: Call) -> None:
    if used := s.counts.get(_who(call)):
        s.counts.put(_who(call), used - 1)


def slack(s: Asked, n: int) -> int:
    return n - s.most


def text(why: Refused, _tool: str) -> str:
    return (
        f"you have asked this specialist {times(why.used)} in this run and the limit is {why.limit}. Asking again in stronger "
        "words does not change what it can do: take its last answer as it is. If it said that something is missing, such as "
        "an approval, pass that on to the user; otherwise go on without it."
    )


WALL = Wall(
    name="delegation",
    keys=(
        Key(
            "delegation",
            (4, 4, 4),
            "Times that one specialist may be asked a run; only tools that declare `delegate`. "
            "The number is the per-run budgets document's.",
        ),
    ),
    limit=limit,
    state=Asked,
    about="calls of one specialist agent; at the limit it is not asked again, and the coordinator is told why",
    text=text,
    needs=frozenset({"specialist"}),
    admit=admit,
    charge=charge,
    release=release,
    slack=slack,
)
