"""How much text a value holds, and the same value with less of it.

The volume of a value is about the length of its JSON, counted and never written: of a text its characters, of a number
those that it would take, of a container its parts and 2 for its brackets, 2 for each element, 4 for each field. Quotes
and escapes are not counted. Fields are the pairs of a dict and what a dataclass or a pydantic model stores; a subclass of a
built-in type is the built-in value that it holds. Bytes, iterators and whatever else is not known here hold no text that
could be counted without running code of the value's own, and neither does anything that contains them: no volume.

A value is cut at its end, and says so there: a text by its last line, a list by a last element, a dict by a last field.
What is kept of a container are whole elements; only one that leaves no room for a first element, and the next field of a
dict, is cut in part, and then by the same rules. A text that is JSON is cut as text, between two of its own tokens, and the
brackets that are open there are closed: so what was kept is what the tool wrote, to the letter, and it is still JSON.

Bounds: 1 000 000 nodes and 32 levels; JSON is recognised up to 4 000 000 characters. Nothing raises.
"""

from typing import Any, Final

from toolguard._text._cut import UNITS, base_of, cut
from toolguard._text._json import cut_json
from toolguard._text._measure import Walk
from toolguard._text._notice import Trimmed
from toolguard._text._words import counted, times

__all__ = ["FLOOR", "Trimmed", "counted", "times", "trim", "volume"]

# The longest notice, with 80 characters of why, two numbers of 11 digits and its frame, takes 211: there is always room for
# a line of content beside it. A few lines are also the least that is worth a model's reading.
FLOOR: Final = 256

_WHY: Final = 80


def volume(value: Any) -> int | None:
    """Return the characters of text in a value, or None where they cannot be counted. It never raises."""
    try:
        return Walk().size(value, 0)
    except Exception:  # noqa: BLE001 - no result, whatever it is, may make a call fail
        return None


def trim(value: Any, limit: int, why: str) -> Trimmed | None:
    """Cut a value to at most `limit` characters of volume, its notice included. It never raises and modifies nothing.

    Args:
        value: a text, list, tuple, dict, set or frozenset, of any measurable content. One that fits is handed back.
        limit: at least `FLOOR`.
        why: a clause for the notice, of up to 80 characters.

    Returns:
        None where it cannot be cut: not one of these types, not measurable, of keys that run code of their own when they
        are hashed, or with a limit below the floor.
    """
    try:
        base = base_of(type(value))
        if base is None or limit < FLOOR:
            return None
        walk = Walk()
        size = walk.size(value, 0)
        if size <= limit:
            of = base.__len__(value)
            return Trimmed(value, size, of, of, UNITS[base])
        why = "".join(c for c in why if c.isprintable() and c not in '"\\')
        why = (why if len(why) <= _WHY else why[: _WHY - 1] + "…") or "it is too long"
        return (cut_json(value, limit, why) if base is str else None) or cut(walk, value, limit, why)
    except Exception:  # noqa: BLE001 - as above
        return None
