"""The same text, list, set or dict with less of it."""

import types
from collections import OrderedDict
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

from toolguard._text._measure import (
    BRACKETS,
    DEPTH,
    ELEMENT,
    FIELD,
    UNSET,
    Walk,
    derives,
    lineage,
    namespace,
    slot_of,
    stored_of,
)
from toolguard._text._notice import Trimmed, cut_text, key_of, notice_of

__all__ = ["UNITS", "base_of", "cut"]

UNITS: Final[dict[Any, str]] = {
    str: "characters",
    list: "items",
    tuple: "items",
    set: "items",
    frozenset: "items",
    dict: "fields",
}
_BASES: Final = {id(base): base for base in UNITS}


def base_of(kind: type) -> Any:
    """Return the built-in type that values of `kind` are cut as, or None. A namedtuple with less fields would be none."""
    for base in lineage(kind):
        if id(base) in _BASES:
            return base
        if "_fields" in namespace(base):
            return None
    return None


def cut(walk: Walk, value: Any, room: int, why: str = "") -> Trimmed | None:
    """Cut a value, or with no `why` a part of one, of which nothing is kept where no content is left."""
    base = base_of(type(value))
    if base is str:
        return cut_text(value, room, why)
    if base is None or walk.level == DEPTH - 1:  # a notice may lie one level deeper than what it is about
        return None
    walk.level += 1
    try:
        if base is dict:
            return _cut_dict(walk, value, room, why)
        return _cut_row(walk, value, base, room, why)
    except TypeError:  # a type that makes its instances in a way of its own, such as os.stat_result
        return None
    finally:
        walk.level -= 1


class _Choice(NamedTuple):
    parts: list[tuple[int, Any]]  # with their place in the value
    chars: int
    part: bool  # whether the last of them is one
    said: bool  # whether it takes a notice: the one thing of which nothing was left out is a part that says so itself


def _choose(walk: Walk, entries: list[tuple[int, Any]], room: int, notice: int, *, top: bool, row: bool) -> _Choice:
    """Choose what is kept: what comes first, as far as there is room, and the last of it in part.

    Args:
        walk: which measured the values.
        entries: values with what each costs beyond its own volume.
        room: for them and a notice.
        notice: what that takes at most.
        top: whether they always need one.
        row: keep in part only what would else be all.
    """
    parts: list[tuple[int, Any]] = []
    spare = room - notice
    chars, last = 0, len(entries) - 1
    for i, (cost, value) in enumerate(entries):
        size = cost + walk.again(value)
        if size <= spare - chars:
            parts.append((i, value))
            chars += size
            continue
        if not (row and parts):
            quiet = not top and i == last == len(parts)
            found = cut(walk, value, spare - chars - cost + (notice if quiet else 0))
            if found is not None:
                return _Choice([*parts, (i, found.value)], chars + cost + found.chars, part=True, said=not quiet)
        if parts:  # what does not fit at all is passed over until something does
            break
    return _Choice(parts, chars, part=False, said=True)


def _cut_row(walk: Walk, value: Any, base: Any, room: int, why: str) -> Trimmed | None:
    items = list(base.__iter__(value))
    hashed = base is set or base is frozenset
    if hashed and not all(map(_is_plain, items)):
        return None
    texts = hashed or all(type(item) is str for item in items)
    of = len(items)

    def last(kept: int, *, part: bool) -> Any:
        notice = notice_of(kept, of, "items", why, part=part)
        return f"… [{notice}]" if texts else {"cut": notice}

    most = ELEMENT + walk.size(last(of, part=True), 0)
    choice = _choose(walk, [(ELEMENT, item) for item in items], room - BRACKETS, most, top=bool(why), row=True)
    kept, chars = len(choice.parts), BRACKETS + choice.chars
    if not kept and not why:
        return None
    parts = [part for _, part in choice.parts]
    if choice.said:
        parts.append(last(kept, part=choice.part))
        chars += ELEMENT + walk.size(parts[-1], 0)
    return Trimmed(_like(value, base, parts), chars, kept, of, "items")


def _cut_dict(walk: Walk, value: dict[Any, Any], room: int, why: str) -> Trimmed | None:
    fields = list(dict.items(value))
    keys = [key for key, _ in fields]
    if not all(map(_is_plain, keys)):
        return None
    of, name = len(fields), key_of(keys)
    most = len(name) + FIELD + len(notice_of(of, of, "fields", why, part=True))
    entries = [(walk.again(key) + FIELD, each) for key, each in fields]
    choice = _choose(walk, entries, room - BRACKETS, most, top=bool(why), row=False)
    kept, chars = len(choice.parts), BRACKETS + choice.chars
    if not kept and not why:
        return None
    parts = [(keys[i], part) for i, part in choice.parts]
    if choice.said:
        notice = notice_of(kept, of, "fields", why, part=choice.part)
        parts.append((name, notice))
        chars += len(name) + FIELD + len(notice)
    return Trimmed(_like(value, dict, parts), chars, kept, of, "fields")


_HASHED: Final = frozenset(map(id, (str, int, float, bool, type(None), date, timedelta)))


def _is_plain(key: Any) -> bool:
    """Say whether hashing and comparing a key, as a dict does when it takes it, runs no code but built-in code."""
    kind = type(key)
    if kind is str or kind is int:
        return True
    if kind is tuple:
        return all(map(_is_plain, key))
    return all(id(_owner(kind, name)) in _HASHED for name in ("__hash__", "__eq__")) or key is None


def _owner(kind: type, name: str) -> type | None:
    return next((base for base in lineage(kind) if name in namespace(base)), None)


def _like(value: Any, base: Any, parts: list[Any]) -> Any:
    """Return a value of the same type with other content; as a copy would be made, but by the built-in type's methods."""
    kind = type(value)
    if kind is base:
        return base(parts)
    if base is tuple or base is frozenset:
        new = base.__new__(kind, parts)
    else:
        new = base.__new__(kind)
        if base is list:
            list.extend(new, parts)
        elif base is set:
            set.update(new, parts)
        else:
            put = OrderedDict.__setitem__ if derives(kind, OrderedDict) else dict.__setitem__
            for key, part in parts:
                put(new, key, part)
    for descriptor, state in _state(value):
        descriptor.__set__(new, state)
    return new


def _state(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return what an instance of a subclass stores beside its content: its slots and its own dict."""
    for base in lineage(type(value)):
        for name, found in namespace(base).items():
            if type(found) is types.MemberDescriptorType:
                state = slot_of(base, name, value)
                if state is not UNSET:
                    yield found, state
            elif name == "__dict__" and type(found) is types.GetSetDescriptorType:
                yield found, stored_of(value)
