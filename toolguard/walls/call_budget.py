"""The runaway search: every call is new and most succeed, and the answer at call 90 is no better than at call 30."""

from collections.abc import Mapping
from typing import Any

from toolguard._text import counted
from toolguard._values import Call, Key, Reading, Refused, Tally, Tool, Wall


def limit(tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["call_budget"] or None if tool.kind != "send" else None


def admit(tally: Tally, n: int, _call: Call) -> Refused | None:
    return Refused("call_budget", tally.reads, n, "different") if tally.reads >= n else None


def slack(tally: Tally, n: int) -> int:
    return n - tally.reads


def reading(tally: Tally, n: int) -> Reading:
    return Reading(tally.reads, n)


def text(why: Refused, _tool: str) -> str:
    return (
        f"this run has made {counted(why.used, 'reads')} and its budget is {why.limit}; no further read will run, sending "
        "still does. Answer now with what you have, say what you could not check, and suggest a narrower question for the rest."
    )


WALL = Wall(
    name="call_budget",
    keys=(
        Key(
            "call_budget",
            (0, 0, 50),
            "Reads of all tools a run; past it no read runs and the model is told to answer. "
            "50 is the per-run budgets document's.",
        ),
    ),
    limit=limit,
    state=lambda tally: tally,
    about="reads of all tools; at the limit further reads are refused, and the model is asked to answer with what it has",
    text=text,
    admit=admit,
    slack=slack,
    reading=reading,
    unit="reads",
    beyond="after that no further read runs",
)
