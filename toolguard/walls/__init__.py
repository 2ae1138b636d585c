"""The walls, in the order in which they name a refusal. A new wall is a file here, a line in the table and its tests."""

from typing import Final, Literal, TypedDict

from toolguard._values import Key, Wall
from toolguard.walls import (
    aggregate,
    call_budget,
    cost,
    delegation,
    delivery,
    duplicate_send,
    hard_stop,
    output,
    per_tool,
    query_loop,
    refused,
    repeat_failure,
    same_complaint,
    same_outcome,
    stale_streak,
    turn_step,
)

__all__ = ["BY_NAME", "KEYS", "NAMES", "NOTE_AT", "SESSIONS", "TABLE", "Limits"]

TABLE: Final[tuple[Wall, ...]] = (
    hard_stop.HARD_CAP,
    hard_stop.UNCHANGED,
    hard_stop.ANY,
    refused.TURNS,
    refused.CALLS,
    cost.DEADLINE,
    cost.TOKENS,
    cost.COST,
    repeat_failure.WALL,
    same_complaint.WALL,
    same_outcome.WALL,
    stale_streak.WALL,
    duplicate_send.WALL,
    query_loop.WALL,
    delegation.WALL,
    per_tool.WALL,
    delivery.WALL,
    call_budget.WALL,
    aggregate.WALL,
    output.RUN,
    output.CALL,
    turn_step.WALL,
)

NOTE_AT: Final = Key(
    "note_at",
    (0.7, 0.7, 0.7),
    "Share of the tightest limit on the whole run from which `run.notes()` asks to converge. 0: no such note. "
    "The number is the per-run budgets document's.",
    kind="share",
)

SESSIONS: Final = Key(
    "sessions",
    (512, 512, 512),
    "Sessions that the process remembers, the last used ones; a forgotten one starts anew. 0: no session outlives its run. "
    "The number is this project's own.",
)

BY_NAME: Final[dict[str, Wall]] = {wall.name: wall for wall in reversed(TABLE)}
NAMES: Final[tuple[str, ...]] = tuple(dict.fromkeys(wall.name for wall in TABLE))
KEYS: Final[dict[str, Key]] = {key.name: key for key in (*(k for wall in TABLE for k in wall.keys), NOTE_AT, SESSIONS)}


class Limits(TypedDict, total=False):
    """What `run()` takes as limits, for editors and type checkers; a test holds it equal to `KEYS`."""

    hard_cap: int
    adaptive_soft: int
    adaptive_multiplier: int
    adaptive_repeats: int
    adaptive_signal: Literal["unchanged", "any"]
    refused_turns: int
    refused_calls: int
    deadline_s: float
    tokens: int
    cost_usd: float
    repeat_failure: int
    progress_clears: bool
    same_complaint: int
    same_outcome: int
    stale_streak: int
    duplicate_send: int
    query_loop: int
    delegation: int
    per_tool: int
    delivery: int
    call_budget: int
    aggregate: int
    output_chars: int
    result_chars: int
    turn_step: int
    note_at: float
    sessions: int
