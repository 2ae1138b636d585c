"""What is handed on of a result: all of it, less of it, or a text that says that the call did run."""

from types import MappingProxyType
from typing import Any, Final

from toolguard import _names, _text
from toolguard._ledger import Ledger
from toolguard._refusal import Refusal, stream_cut, withheld
from toolguard._tree import SECTION
from toolguard._values import Call

__all__ = ["hand_on", "hand_on_item"]

_UNCUT: Final = MappingProxyType({_names.RESULT_UNCUT: True})
# Ended calls whose results no count holds yet: a batch that ends at one moment must not outrun the limit.
_FEW: Final = 16


def hand_on(ledger: Ledger, call: Call, value: Any) -> Any:
    """Charge a result by its characters and return what may be handed on of it."""
    size = len(value) if type(value) is str else _text.volume(value)
    if size is None:
        call.marks = _UNCUT
        return value
    if size <= call.plan.size and ledger.tally.chars <= call.plan.chars and len(SECTION.late) < _FEW:
        call.size = size
        return value
    granted = ledger.grant(call, size, _text.FLOOR)
    if granted == size:
        return value
    handed, chars = _cut(call, value, size, granted)
    call.size = chars - granted
    return handed


def _cut(call: Call, value: Any, size: int, granted: int) -> tuple[Any, int]:
    """Return what is handed on of a result that is too large, and the characters of it that are charged."""
    limits = {place.wall.name: place.n for place in call.plan.places if place.wall.grant}
    if not granted:
        call.marks = {_names.RESULT_CHARS: size, _names.RESULT_CUT: True, _names.RESULT_HANDED: 0}
        return withheld(call.tool.name, size, limits.get("output_chars", 0)), 0
    if "result_chars" in limits and granted == max(limits["result_chars"], _text.FLOOR):
        why = f"one result may have {granted} characters"
    else:
        why = f"this run may hand on {granted} more characters of results"
    cut = _text.trim(value, granted, why)
    if cut is None:  # it has no part that could be left out
        call.marks = _UNCUT
        return value, size
    call.marks = {_names.RESULT_CHARS: size, _names.RESULT_CUT: True, _names.RESULT_HANDED: cut.chars}
    return cut.value, cut.chars


def hand_on_item(ledger: Ledger, call: Call, item: Any, before: int, handed: int) -> tuple[Any, int, bool]:
    """Charge an item of a stream by its characters.

    Args:
        ledger: the run's.
        call: the call that streams.
        item: what its body yields.
        before: how many items were handed on before.
        handed: the characters of these.

    Returns:
        What is handed on, the characters that were handed on with it, and whether it is the last.
    """
    size = len(item) if type(item) is str else None if type(item) is Refusal else _text.volume(item)
    if size is None:
        if type(item) is not Refusal:
            call.marks = call.marks or _UNCUT
        return item, handed, False
    granted = ledger.grant(call, size, _text.FLOOR, handed)
    if granted == size:
        return item, handed + size, False
    cut = _text.trim(item, granted, "the rest of this stream is not handed on") if granted and type(item) is str else None
    chars = 0 if cut is None else cut.chars
    call.size = chars - granted
    call.marks = {_names.RESULT_CUT: True, _names.RESULT_HANDED: handed + chars}
    if cut is not None:
        return cut.value, handed + chars, True
    notice = stream_cut(call.tool.name, before, handed)
    return {"cut": notice} if isinstance(item, dict) else notice, handed, True
