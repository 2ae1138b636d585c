"""The wall that is soft on purpose: a word in every fiftieth turn, which gates nothing."""

from collections.abc import Mapping
from typing import Any

from toolguard._values import Key, Refused, Tally, Tool, Wall


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["turn_step"] or None


def note(_tally: Tally, n: int, turn: int) -> str | None:
    if not turn or turn % n:
        return None
    return f"This is turn {turn} of the run. If the task is nearly done, finish it; if not, say what is still missing."


def text(_why: Refused, _tool: str) -> str:
    return ""


WALL = Wall(
    name="turn_step",
    keys=(
        Key(
            "turn_step",
            (50, 50, 50),
            "Model turns between two reminders. It refuses nothing. The number is the four-walls article's.",
        ),
    ),
    limit=limit,
    state=lambda tally: tally,
    about="model turns; a note in every turn that is a multiple, and nothing is refused",
    text=text,
    note=note,
)
