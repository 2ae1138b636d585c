"""The same query again and again with other literals: invisible to names and to arguments, visible in its shape."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import times
from toolguard._values import Call, Key, Recent, Refused, Tally, Tool, Wall


class Shapes:
    """Charged calls by (file reference, query shape), and the highest of these counts."""

    __slots__ = ("counts", "most")

    counts: Recent[bytes, int]
    most: int

    def __init__(self, _tally: Tally) -> None:
        self.counts = Recent(1024)
        self.most = 0


def limit(tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["query_loop"] or None if tool.query else None


def admit(s: Shapes, n: int, call: Call) -> Refused | None:
    used = s.counts.get(call.query) or 0 if call.query is not None else 0
    return Refused("query_loop", used, n, "different") if used >= n else None


def charge(s: Shapes, _n: int, call: Call) -> None:
    if call.query is not None:
        used = (s.counts.get(call.query) or 0) + 1
        s.counts.put(call.query, used)
        s.most = max(s.most, used)


def release(s: Shapes, _n: int, call: Call) -> None:
    if call.query is not None and (used := s.counts.get(call.query)):
        s.counts.put(call.query, used - 1)


def slack(s: Shapes, n: int) -> int:
    return n - s.most


def text(why: Refused, _tool: str) -> str:
    return (
        f"a query of this shape, differing only in its literals, has run {times(why.used)} on this data and the limit is "
        f"{why.limit}. Ask for all the values at once (IN, GROUP BY or a join), or ask something of another structure."
    )


WALL = Wall(
    name="query_loop",
    keys=(
        Key(
            "query_loop",
            (10, 10, 10),
            "Calls of one query shape on one file or database a run; literals, comments and list lengths do not change "
            "the shape. Only tools that declare `query=`. The number is the four-walls article's.",
        ),
    ),
    limit=limit,
    state=Shapes,
    about="one (file, query shape), literals ignored; at the limit queries of that shape are refused",
    text=text,
    needs=frozenset({"query"}),
    admit=admit,
    charge=charge,
    release=release,
    slack=slack,
)
