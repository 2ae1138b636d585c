"""What a cut value says of itself, and what a text keeps whole at its end."""

import unicodedata
from collections.abc import Iterable
from itertools import chain, count
from typing import Any, Final, NamedTuple

from toolguard._text._measure import derives
from toolguard._text._words import counted

__all__ = ["Trimmed", "clip", "cut_text", "ending_of", "key_of", "notice_of"]

_NARROW: Final = "ask for fewer records, a filter, or a page"


class Trimmed(NamedTuple):
    """A value that was cut, and how far."""

    value: Any
    """What is handed on, of the same type."""
    chars: int
    """Its volume, notice included."""
    kept: int
    """How much was kept; an element or field that was kept in part counts."""
    of: int
    """Of how much."""
    unit: str
    """What is counted: characters of a text, items or fields of a container or of the JSON that a text is."""


def notice_of(kept: int, of: int, unit: str, why: str, *, part: bool = False) -> str:
    """Say what was kept. A part of the value has no `why` of its own, as the whole says that."""
    here = f"cut to {kept} of {counted(of, unit)}{', the last one in part' if part else ''}"
    return f"{here}; {why}; {_NARROW}" if why else here


def ending_of(kept: int, of: int, why: str) -> str:
    line = "\n" if why else ""
    return f"{line}… [{notice_of(kept, of, 'characters', why)}]"


def key_of(names: Iterable[Any]) -> str:
    """Return the name of the field that says so: none that the value has itself."""
    taken = {name if type(name) is str else str.__str__(name) for name in names if derives(type(name), str)}
    return next(name for name in chain(("cut", "cut_"), map("cut_{}".format, count(2))) if name not in taken)


_JOINER: Final = "\u200d"
_BACK: Final = 32


def cut_text(value: str, room: int, why: str) -> Trimmed | None:
    text = str.__str__(value)
    of = len(text)
    kept = clip(text, room - len(ending_of(of, of, why)))
    if kept <= 0:
        return None
    cut = text[:kept] + ending_of(kept, of, why)
    return Trimmed(cut, len(cut), kept, of, "characters")


def clip(text: str, end: int) -> int:
    """Return the last place up to `end`, inside the text, where no character falls apart; where none is near, `end`."""
    for at in range(end, max(end - _BACK, 0), -1):
        if not _joined(text, at):
            return at
    return end


def _joined(text: str, at: int) -> bool:
    before, after = text[at - 1], text[at]
    if _JOINER in (before, after):
        return True
    if after < "\u0300":
        return before == "\r" and after == "\n"
    return (
        unicodedata.category(after)[0] == "M"  # accents and variation selectors
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # colours of skin
        or "\U000e0020" <= after <= "\U000e007f"  # letters of a flag
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or (_is_regional(after) and _regionals(text, at) % 2 == 1)
    )


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"  # two of them are a flag


def _regionals(text: str, at: int) -> int:
    run = 0
    while run < at and _is_regional(text[at - 1 - run]):
        run += 1
    return run
