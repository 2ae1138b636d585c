"""The walls, in the order in which they name a refusal. A new wall is a file here, a line in the table and its tests."""

from typing import Final, Literal, TypedDict

from toolguard._values import Key, Wall
from toolguard.walls import aggregate, delivery, hard_stop, per_tool, query_loop, refused, turn_step

__all__ = ["BY_NAME", "KEYS", "NAMES", "NOTE_AT", "TABLE", "Limits"]

TABLE: Final[tuple[Wall, ...]] = (
    hard_stop.HARD_CAP,
    hard_stop.UNCHANGED,
    hard_stop.ANY,
    refused.TURNS,
    refused.CALLS,
    query_loop.WALL,
    per_tool.WALL,
    delivery.WALL,
    aggregate.WALL,
    turn_step.WALL,
)

NOTE_AT: Final = Key(
    "note_at",
    (0.7, 0.7, 0.7),
    "Share of the tightest limit on the whole run from which `run.notes()` asks to converge. 0: no such note.",
    share=True,
)

BY_NAME: Final[dict[str, Wall]] = {wall.name: wall for wall in reversed(TABLE)}
NAMES: Final[tuple[str, ...]] = tuple(dict.fromkeys(wall.name for wall in TABLE))
KEYS: Final[dict[str, Key]] = {key.name: key for key in (*(k for wall in TABLE for k in wall.keys), NOTE_AT)}


class Limits(TypedDict, total=False):
    """What `run()` takes as limits, for editors and type checkers; a test holds it equal to `KEYS`."""

    hard_cap: int
    adaptive_soft: int
    adaptive_multiplier: int
    adaptive_repeats: int
    adaptive_signal: Literal["unchanged", "any"]
    refused_turns: int
    refused_calls: int
    query_loop: int
    per_tool: int
    delivery: int
    aggregate: int
    turn_step: int
    note_at: float
