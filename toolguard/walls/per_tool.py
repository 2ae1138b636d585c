"""One tool hammered, whatever its arguments: the enumeration that no comparison of calls can see."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import times
from toolguard._values import Call, Key, Refused, Tally, Tool, Wall


def limit(tool: Tool, limits: Mapping[str, Any], own: int | None) -> int | None:
    if tool.kind == "send":
        return None
    return (limits["per_tool"] if own is None else own) or None


def admit(tally: Tally, n: int, call: Call) -> Refused | None:
    used = tally.by_tool.get(call.tool.canonical, 0)
    return Refused("per_tool", used, n, "different") if used >= n else None


def slack(tally: Tally, n: int) -> int:
    # Of this tool at most all calls of the run were made, so what the whole run has left is certain.
    return n - tally.external


def text(why: Refused, tool: str) -> str:
    return (
        f"it has run {times(why.used)} in this run and its limit is {why.limit}, whatever the arguments. "
        f"Work with what those calls returned or use another tool; {tool} will be refused until the run ends."
    )


WALL = Wall(
    name="per_tool",
    keys=(
        Key(
            "per_tool",
            (40, 0, 0),
            "Calls of one tool a run, arguments ignored; reads only. A tool's own `limit` replaces it. "
            "The number is the four-walls article's.",
        ),
    ),
    limit=limit,
    state=lambda tally: tally,
    about="calls of one tool name, arguments ignored; at the limit further calls of that tool are refused",
    text=text,
    admit=admit,
    slack=slack,
)
