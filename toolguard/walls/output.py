"""The cumulative overflow: many results, none of them too large, until the request is. Nothing is refused; results are cut."""

from collections.abc import Mapping
from typing import Any, Final

from toolguard._text import FLOOR
from toolguard._values import Key, Refused, Tally, Tool, Wall

MAX: Final = 1 << 63


def _limit(key: str) -> Any:
    def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
        return limits[key] or None

    return limit


def easy_run(n: int) -> tuple[int, int]:
    # While half of it is left, so many results would have to come at one moment to go past the end.
    return n >> 6, n >> 1


def easy_call(n: int) -> tuple[int, int]:
    return max(n, FLOOR), MAX


def grant_run(tally: Tally, n: int, _handed: int) -> int:
    return n - tally.chars


def grant_call(_tally: Tally, n: int, handed: int) -> int:
    return max(n, FLOOR) - handed  # a cut result must have room to say so


def text(_why: Refused, _tool: str) -> str:
    return ""


RUN = Wall(
    name="output_chars",
    keys=(
        Key(
            "output_chars",
            (500_000, 500_000, 500_000),
            "Characters of all results a run. As it runs out results are cut to what is left; once it is spent they are "
            "replaced by a text. The number is the per-run budgets document's.",
        ),
    ),
    limit=_limit("output_chars"),
    state=lambda tally: tally,
    about="characters of all results; what is left of it bounds each result, and once it is spent a result is replaced by a "
    "text that says that the call DID execute",
    text=text,
    easy=easy_run,
    grant=grant_run,
)

CALL = Wall(
    name="result_chars",
    keys=(
        Key(
            "result_chars",
            (50_000, 50_000, 50_000),
            "Characters of one result; a longer one is cut and says so. On recorded runs this comes before most overflows.",
        ),
    ),
    limit=_limit("result_chars"),
    state=lambda tally: tally,
    about="characters of one result; a longer one is cut and says how to narrow",
    text=text,
    easy=easy_call,
    grant=grant_call,
)
