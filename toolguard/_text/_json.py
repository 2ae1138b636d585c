"""A text that is JSON, ended early and still JSON."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from toolguard._text._measure import DEPTH
from toolguard._text._notice import Trimmed, clip, ending_of, key_of, notice_of

__all__ = ["cut_json"]

_PARSED: Final = 4_000_000
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]|[^\s"\[\]{}:,]+')
# What stands for one character in a JSON string; two escapes can be one.
_UNIT: Final = re.compile(r"[^\\]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.")


class _Open:
    """A bracket that is open where the scan of a JSON text is."""

    __slots__ = ("above", "at_key", "below", "far", "kept", "key", "level", "of", "reachable", "texts", "values", "why")

    def __init__(self, node: Any, parent: "_Open | None", why: str) -> None:
        """Open an array, parsed as a list, or an object, parsed as a tuple of its pairs."""
        self.key = key_of([name for name, _ in node]) if type(node) is tuple else None
        self.values = node if self.key is None else [value for _, value in node]
        self.texts = self.key is None and all(type(value) is str for value in node)
        self.at_key = self.key is not None
        self.kept, self.of, self.why = 0, len(node), why
        # What closes the brackets around this one, if the text ends in here: a chain, from the inside out.
        self.above: tuple[str, Any] | None = None
        self.far, self.level, self.reachable, self.below = 0, 0, True, parent
        if parent is not None:
            self.level = parent.level + 1
            self.reachable = parent.divisible and self.level < DEPTH
            closing = parent.closing(part=True) if self.reachable else ""
            self.above, self.far = (closing, parent.above), len(closing) + parent.far

    @property
    def divisible(self) -> bool:
        """Whether the next value may be cut in part: a field, or what would else be all of an array."""
        return self.reachable and (self.key is not None or not self.kept)

    def closing(self, *, part: bool = False) -> str:
        """Return what ends this array or object here, or after the value that follows, which ends in part."""
        kept = self.kept + part
        end = "]" if self.key is None else "}"
        if kept == self.of and not (self.why and part):
            return end
        notice = notice_of(kept, self.of, "items" if self.key is None else "fields", self.why, part=part)
        comma = "," if kept else ""
        if self.texts:
            return f'{comma}"… [{notice}]"{end}'
        if self.key is None:
            return f'{comma}{{"cut":"{notice}"}}{end}'
        return f'{comma}"{self.key}":"{notice}"{end}'


class _Ending(NamedTuple):
    at: int
    text: str
    above: tuple[str, Any] | None
    kept: int


def cut_json(value: str, limit: int, why: str) -> Trimmed | None:
    """Cut a text that is a JSON array or object; None where it is not."""
    if str.__len__(value) > _PARSED:
        return None
    text = str.__str__(value).strip(" \t\r\n")
    if text[:1] not in {"[", "{"} or text[-1] not in "]}":
        return None
    try:
        node = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    root = _Open(node, None, why)
    unit = "items" if root.key is None else "fields"
    if len(text) <= limit:  # what was too much is the white space around it
        return Trimmed(text, len(text), root.of, root.of, unit)
    best = _Ending(1, root.closing(), None, 0)
    for ending in _endings(text, root, limit):
        best = ending
    parts, above = [text[: best.at], best.text], best.above
    while above is not None:
        closing, above = above
        parts.append(closing)
    cut = "".join(parts)
    return Trimmed(cut, len(cut), best.kept, root.of, unit)


def _endings(text: str, root: _Open, limit: int) -> Iterator[_Ending]:
    """Yield where a JSON text can end within its limit, each further on than the one before."""
    inside = root
    for token in _TOKEN.finditer(text, 1):
        start, end = token.span()
        if start >= limit:
            return
        if inside.at_key and text[start] == '"':
            inside.at_key = False
            continue
        if text[start] in "[{":
            inside = _Open(inside.values[inside.kept], inside, "")
            continue
        if text[start] in "]}":
            inside = inside.below or root  # the root's own is the last character, and past the limit
        elif text[start] == '"' and inside.divisible and end + len(inside.closing(part=True)) + inside.far > limit:
            yield from _within(text, token, inside, limit, root.kept + 1)
        inside.kept += 1
        inside.at_key = inside.key is not None
        if inside.reachable:
            closing = inside.closing()
            if end + len(closing) + inside.far <= limit:
                yield _Ending(end, closing, inside.above, root.kept + (inside is not root))


def _within(text: str, token: re.Match[str], inside: _Open, limit: int, present: int) -> Iterator[_Ending]:
    """Yield where a JSON string can end, if it can."""
    start, end = token.span()
    whole, closing = inside.values[inside.kept], inside.closing(part=True)
    stop = limit - inside.far - len(closing) - len(ending_of(len(whole), len(whole), "")) - 1
    ends = []
    for unit in _UNIT.finditer(text, start + 1, end - 1):
        if unit.end() > stop:
            break
        ends.append(unit.end())
    kept = clip(whole, len(ends))
    if kept > 0:
        mark = f'{ending_of(kept, len(whole), "")}"{closing}'
        yield _Ending(ends[kept - 1], mark, inside.above, present)
