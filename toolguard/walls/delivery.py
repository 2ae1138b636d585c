"""A reserve for sends, so that reading can never spend what is needed to deliver."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolguard._text import counted
from toolguard._values import Call, Key, Refused, Tally, Tool, Wall


class Reserve(NamedTuple):
    """How many sends, and whether the tool counts alone or out of the common reserve."""

    calls: int
    own: bool


def limit(tool: Tool, limits: Mapping[str, Any], own: int | None) -> Reserve | None:
    if tool.kind != "send":
        return None
    calls = limits["delivery"] if own is None else own
    return Reserve(calls, own is not None) if calls else None


def admit(tally: Tally, n: Reserve, call: Call) -> Refused | None:
    used = tally.by_tool.get(call.tool.canonical, 0) if n.own else tally.sends
    return Refused("delivery", used, n.calls, "different") if used >= n.calls else None


def slack(tally: Tally, n: Reserve) -> int:
    return n.calls - (tally.external if n.own else tally.sends)


def text(why: Refused, tool: str) -> str:
    are = "is" if why.used == 1 else "are"
    return (
        f"{why.used} of {counted(why.limit, 'sends')} {are} used up, and rewording the message does not change that. "
        f"Do not try {tool} again in this run; tell the user what was sent and what was not."
    )


WALL = Wall(
    name="delivery",
    keys=(
        Key(
            "delivery",
            (5, 20, 5),
            "Sends a run, arguments ignored; they never count as reads, nor reads as sends. "
            "5 is the four-walls article's number; coding agents write more often.",
        ),
    ),
    limit=limit,
    state=lambda tally: tally,
    about="all sends, arguments ignored; at the limit further sends are refused. Reads never touch it",
    text=text,
    admit=admit,
    slack=slack,
)
