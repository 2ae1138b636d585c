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

import json
import re
import sys
import types
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from enum import Enum
from itertools import chain, count
from typing import Any, Final, NamedTuple

__all__ = ["FLOOR", "Trimmed", "trim", "volume"]

# The longest notice, with 80 characters of why, two numbers of 11 digits and its frame, takes 211: there is always room for
# a line of content beside it. A few lines are also the least that is worth a model's reading.
FLOOR: Final = 256

_NODES: Final = 1_000_000
_DEPTH: Final = 32
_PARSED: Final = 4_000_000
_WHY: Final = 80
_BRACKETS: Final = 2
_ELEMENT: Final = 2
_FIELD: Final = 4
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


def volume(value: Any) -> int | None:
    """Return the characters of text in a value, or None where they cannot be counted. It never raises."""
    try:
        return _Walk().size(value, 0)
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
        base = _base(type(value))
        if base is None or limit < FLOOR:
            return None
        walk = _Walk()
        size = walk.size(value, 0)
        if size <= limit:
            of = base.__len__(value)
            return Trimmed(value, size, of, of, _UNITS[base])
        why = "".join(c for c in why if c.isprintable() and c not in '"\\')
        why = (why if len(why) <= _WHY else why[: _WHY - 1] + "…") or "it is too long"
        return (_cut_json(value, limit, why) if base is str else None) or _cut(walk, value, limit, why)
    except Exception:  # noqa: BLE001 - as above
        return None


# Measuring ------------------------------------------------------------------------------------------------------------

_Measure = Callable[["_Walk", Any, int], int]

# Read through the descriptors of `type` itself: `cls.__mro__` and the like would ask the class's metaclass.
_lineage: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_namespace: Final[Callable[[type], dict[str, Any]]] = type.__dict__["__dict__"].__get__


class _UnmeasurableError(Exception):
    """A walk met something that holds no text, or is too large or too deep."""


class _Walk:
    """One measuring of a value: what is left of its bounds, what its containers came to, and how deep it is being cut."""

    __slots__ = ("kinds", "level", "nodes", "sizes")

    def __init__(self) -> None:
        self.nodes = _NODES
        self.level = 0
        self.sizes: dict[int, int] = {}
        self.kinds: dict[int, tuple[type, _Measure]] = {}

    def size(self, value: Any, depth: int) -> int:
        """Return the volume of `value`. Types are looked up by id, as hashing one would ask its metaclass."""
        kind = type(value)
        if kind is str:
            return len(value)
        measure = _MEASURES.get(id(kind))
        if measure is None:
            known = self.kinds.get(id(kind)) or self.kinds.setdefault(id(kind), (kind, _find(kind)))
            measure = known[1]
        return measure(self, value, depth)

    def again(self, value: Any) -> int:
        """Return the volume of a part that was measured before, without walking a container again."""
        known = self.sizes.get(id(value))
        return self.size(value, 0) if known is None else known

    def enter(self, nodes: int, depth: int) -> None:
        """Take the nodes of a container from what is left."""
        self.nodes -= nodes
        if self.nodes < 0 or depth >= _DEPTH:
            raise _UnmeasurableError


def _constant(size: int) -> _Measure:
    return lambda _, __, ___: size


def _int(_: _Walk, value: int, __: int) -> int:
    bits = int.bit_length(value)
    if bits <= 64:  # noqa: PLR2004 - as wide as an int mostly is
        return len(int.__repr__(value))
    return bits * 30103 // 100_000 + 1 + int.__lt__(value, 0)  # log10(2), as writing out the digits would be quadratic


def _float(_: _Walk, value: float, __: int) -> int:
    text = float.__repr__(value)
    return len(text) + 5 if text.endswith("inf") else len(text)  # Infinity


def _row(base: Any) -> _Measure:
    size_of, items_of = base.__len__, base.__iter__

    def measure(walk: _Walk, value: Any, depth: int) -> int:
        total: int = size_of(value)
        walk.enter(total, depth)
        size, below = walk.size, depth + 1
        total = _BRACKETS + _ELEMENT * total
        for each in items_of(value):
            total += len(each) if type(each) is str else size(each, below)
        walk.sizes[id(value)] = total
        return total

    return measure


def _dict(walk: _Walk, value: dict[Any, Any], depth: int) -> int:
    total = dict.__len__(value)
    walk.enter(2 * total, depth)
    size, below = walk.size, depth + 1
    total = _BRACKETS + _FIELD * total
    for key, each in dict.items(value):
        total += len(key) if type(key) is str else size(key, below)
        total += len(each) if type(each) is str else size(each, below)
    walk.sizes[id(value)] = total
    return total


def _fields(kind: type, names: tuple[str, ...]) -> _Measure:
    def measure(walk: _Walk, value: Any, depth: int) -> int:
        walk.enter(len(names), depth)
        stored, total = _stored(value), _BRACKETS
        for name in names:
            each = stored[name] if name in stored else _slot(kind, name, value)
            if each is not _UNSET:
                total += len(name) + _FIELD + walk.size(each, depth + 1)
        walk.sizes[id(value)] = total
        return total

    return measure


def _stored(value: Any) -> dict[str, Any]:
    """Return the instance's own dict through its real descriptor, whatever the class calls `__dict__`."""
    for base in _lineage(type(value)):
        found = _namespace(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            return {name: each for name, each in dict.items(found.__get__(value)) if type(name) is str}
    return {}


def _slot(kind: type, name: str, value: Any) -> Any:
    for base in _lineage(kind):
        found = _namespace(base).get(name)
        if type(found) is types.MemberDescriptorType:
            try:
                return found.__get__(value)
            except AttributeError:
                break
    return _UNSET


def _enum(_: _Walk, value: Any, __: int) -> int:
    name = _stored(value).get("_name_")
    return len(name) if type(name) is str else _SMALL


def _decimal(_: _Walk, value: Any, __: int) -> int:
    decimal = sys.modules["decimal"].Decimal
    more: int = decimal.__sizeof__(value) - decimal.__sizeof__(decimal())
    return _SMALL + (more // 8 * 19 if more > 0 else 0)  # a word holds 19 digits, and the first few words are built in


def _path(_: _Walk, value: Any, __: int) -> int:
    return len(str(value))


def _unmeasurable(_: _Walk, __: Any, ___: int) -> int:
    raise _UnmeasurableError


_UNSET: Final = object()
_SMALL: Final = 16
_MEASURES: Final[dict[int, _Measure]] = {
    id(kind): measure
    for kind, measure in (
        (str, lambda _, value, __: str.__len__(value)),
        (bool, lambda _, value, __: 4 if value else 5),
        (type(None), _constant(4)),
        (int, _int),
        (float, _float),
        (list, _row(list)),
        (tuple, _row(tuple)),
        (dict, _dict),
        (set, _row(set)),
        (frozenset, _row(frozenset)),
        (datetime, _constant(32)),
        (date, _constant(10)),
        (time, _constant(_SMALL)),
        (timedelta, _constant(_SMALL)),
    )
}
# Types of modules that are looked at only where a program has imported them.
_LATER: Final[tuple[tuple[str, str, _Measure], ...]] = (
    ("decimal", "Decimal", _decimal),
    ("uuid", "UUID", _constant(36)),
)
_PATHS: Final = tuple(
    (room, name)
    for room in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
)
_MARKS: Final = (("__dataclass_fields__",), ("__pydantic_fields__", "__pydantic_extra__"))


def _find(kind: type) -> _Measure:
    """Return how values of `kind` are measured: as the nearest base that is known, or by their fields, or not at all."""
    lineage = _lineage(kind)
    for base in lineage:
        if id(base) in _MEASURES:
            return _MEASURES[id(base)]
        if base is Enum:
            return _enum
        for module, attribute, measure in _LATER:
            if base is _loaded(module, attribute):
                return measure
    if any(kind is _loaded(*name) for name in _PATHS):  # exactly, since a subclass could print otherwise
        return _path
    for base in lineage:
        for mark, *more in _MARKS:
            fields = _namespace(base).get(mark)
            if type(fields) is dict:
                return _fields(kind, (*(name for name in fields if type(name) is str), *more))
    return _unmeasurable


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


# Notices --------------------------------------------------------------------------------------------------------------


def _notice(kept: int, of: int, unit: str, why: str, *, part: bool = False) -> str:
    """Say what was kept. A part of the value has no `why` of its own, as the whole says that."""
    here = f"cut to {kept} of {of} {unit}{', the last one in part' if part else ''}"
    return f"{here}; {why}; {_NARROW}" if why else here


def _ending(kept: int, of: int, why: str) -> str:
    line = "\n" if why else ""
    return f"{line}… [{_notice(kept, of, 'characters', why)}]"


def _key(names: Iterable[Any]) -> str:
    """Return the name of the field that says so: none that the value has itself."""
    taken = {name if type(name) is str else str.__str__(name) for name in names if _derives(type(name), str)}
    return next(name for name in chain(("cut", "cut_"), map("cut_{}".format, count(2))) if name not in taken)


# Cutting texts --------------------------------------------------------------------------------------------------------

_JOINER: Final = "\u200d"
_BACK: Final = 32


def _cut_text(value: str, room: int, why: str) -> Trimmed | None:
    text = str.__str__(value)
    of = len(text)
    kept = _clip(text, room - len(_ending(of, of, why)))
    if kept <= 0:
        return None
    cut = text[:kept] + _ending(kept, of, why)
    return Trimmed(cut, len(cut), kept, of, "characters")


def _clip(text: str, end: int) -> int:
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


# Cutting containers ---------------------------------------------------------------------------------------------------

_UNITS: Final[dict[Any, str]] = {
    str: "characters",
    list: "items",
    tuple: "items",
    set: "items",
    frozenset: "items",
    dict: "fields",
}
_BASES: Final = {id(base): base for base in _UNITS}


def _base(kind: type) -> Any:
    """Return the built-in type that values of `kind` are cut as, or None. A namedtuple with less fields would be none."""
    for base in _lineage(kind):
        if id(base) in _BASES:
            return base
        if "_fields" in _namespace(base):
            return None
    return None


def _cut(walk: _Walk, value: Any, room: int, why: str = "") -> Trimmed | None:
    """Cut a value, or with no `why` a part of one, of which nothing is kept where no content is left."""
    base = _base(type(value))
    if base is str:
        return _cut_text(value, room, why)
    if base is None or walk.level == _DEPTH - 1:  # a notice may lie one level deeper than what it is about
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


def _choose(walk: _Walk, entries: list[tuple[int, Any]], room: int, notice: int, *, top: bool, row: bool) -> _Choice:
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
            found = _cut(walk, value, spare - chars - cost + (notice if quiet else 0))
            if found is not None:
                return _Choice([*parts, (i, found.value)], chars + cost + found.chars, part=True, said=not quiet)
        if parts:  # what does not fit at all is passed over until something does
            break
    return _Choice(parts, chars, part=False, said=True)


def _cut_row(walk: _Walk, value: Any, base: Any, room: int, why: str) -> Trimmed | None:
    items = list(base.__iter__(value))
    hashed = base is set or base is frozenset
    if hashed and not all(map(_is_plain, items)):
        return None
    texts = hashed or all(type(item) is str for item in items)
    of = len(items)

    def last(kept: int, *, part: bool) -> Any:
        notice = _notice(kept, of, "items", why, part=part)
        return f"… [{notice}]" if texts else {"cut": notice}

    most = _ELEMENT + walk.size(last(of, part=True), 0)
    choice = _choose(walk, [(_ELEMENT, item) for item in items], room - _BRACKETS, most, top=bool(why), row=True)
    kept, chars = len(choice.parts), _BRACKETS + choice.chars
    if not kept and not why:
        return None
    parts = [part for _, part in choice.parts]
    if choice.said:
        parts.append(last(kept, part=choice.part))
        chars += _ELEMENT + walk.size(parts[-1], 0)
    return Trimmed(_like(value, base, parts), chars, kept, of, "items")


def _cut_dict(walk: _Walk, value: dict[Any, Any], room: int, why: str) -> Trimmed | None:
    fields = list(dict.items(value))
    keys = [key for key, _ in fields]
    if not all(map(_is_plain, keys)):
        return None
    of, name = len(fields), _key(keys)
    most = len(name) + _FIELD + len(_notice(of, of, "fields", why, part=True))
    entries = [(walk.again(key) + _FIELD, each) for key, each in fields]
    choice = _choose(walk, entries, room - _BRACKETS, most, top=bool(why), row=False)
    kept, chars = len(choice.parts), _BRACKETS + choice.chars
    if not kept and not why:
        return None
    parts = [(keys[i], part) for i, part in choice.parts]
    if choice.said:
        notice = _notice(kept, of, "fields", why, part=choice.part)
        parts.append((name, notice))
        chars += len(name) + _FIELD + len(notice)
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
    return next((base for base in _lineage(kind) if name in _namespace(base)), None)


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
            put = OrderedDict.__setitem__ if _derives(kind, OrderedDict) else dict.__setitem__
            for key, part in parts:
                put(new, key, part)
    for descriptor, state in _state(value):
        descriptor.__set__(new, state)
    return new


def _state(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return what an instance of a subclass stores beside its content: its slots and its own dict."""
    for base in _lineage(type(value)):
        for name, found in _namespace(base).items():
            if type(found) is types.MemberDescriptorType:
                state = _slot(base, name, value)
                if state is not _UNSET:
                    yield found, state
            elif name == "__dict__" and type(found) is types.GetSetDescriptorType:
                yield found, _stored(value)


def _derives(kind: type, wanted: type) -> bool:
    return kind is wanted or any(base is wanted for base in _lineage(kind))


# Cutting JSON ---------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]|[^\s"\[\]{}:,]+')
# What stands for one character in a JSON string; two escapes can be one.
_UNIT: Final = re.compile(r"[^\\]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.")


class _Open:
    """A bracket that is open where the scan of a JSON text is."""

    __slots__ = ("above", "at_key", "below", "far", "kept", "key", "level", "of", "reachable", "texts", "values", "why")

    def __init__(self, node: Any, parent: "_Open | None", why: str) -> None:
        """Open an array, parsed as a list, or an object, parsed as a tuple of its pairs."""
        self.key = _key([name for name, _ in node]) if type(node) is tuple else None
        self.values = node if self.key is None else [value for _, value in node]
        self.texts = self.key is None and all(type(value) is str for value in node)
        self.at_key = self.key is not None
        self.kept, self.of, self.why = 0, len(node), why
        # What closes the brackets around this one, if the text ends in here: a chain, from the inside out.
        self.above: tuple[str, Any] | None = None
        self.far, self.level, self.reachable, self.below = 0, 0, True, parent
        if parent is not None:
            self.level = parent.level + 1
            self.reachable = parent.divisible and self.level < _DEPTH
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
        notice = _notice(kept, self.of, "items" if self.key is None else "fields", self.why, part=part)
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


def _cut_json(value: str, limit: int, why: str) -> Trimmed | None:
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
    stop = limit - inside.far - len(closing) - len(_ending(len(whole), len(whole), "")) - 1
    ends = []
    for unit in _UNIT.finditer(text, start + 1, end - 1):
        if unit.end() > stop:
            break
        ends.append(unit.end())
    kept = _clip(whole, len(ends))
    if kept > 0:
        mark = f'{_ending(kept, len(whole), "")}"{closing}'
        yield _Ending(ends[kept - 1], mark, inside.above, present)
