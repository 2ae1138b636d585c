"""How much text a value holds, found without running code of the value's own."""

import sys
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any, Final

__all__ = ["BRACKETS", "DEPTH", "ELEMENT", "FIELD", "UNSET", "Walk", "derives", "lineage", "namespace", "slot_of", "stored_of"]

_NODES: Final = 1_000_000
DEPTH: Final = 32
BRACKETS: Final = 2
ELEMENT: Final = 2
FIELD: Final = 4

_Measure = Callable[["Walk", Any, int], int]

# Read through the descriptors of `type` itself: `cls.__mro__` and the like would ask the class's metaclass.
lineage: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
namespace: Final[Callable[[type], dict[str, Any]]] = type.__dict__["__dict__"].__get__


class _UnmeasurableError(Exception):
    """A walk met something that holds no text, or is too large or too deep."""


class Walk:
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
        if self.nodes < 0 or depth >= DEPTH:
            raise _UnmeasurableError


def _constant(size: int) -> _Measure:
    return lambda _, __, ___: size


def _int(_: Walk, value: int, __: int) -> int:
    bits = int.bit_length(value)
    if bits <= 64:  # noqa: PLR2004 - as wide as an int mostly is
        return len(int.__repr__(value))
    return bits * 30103 // 100_000 + 1 + int.__lt__(value, 0)  # log10(2), as writing out the digits would be quadratic


def _float(_: Walk, value: float, __: int) -> int:
    text = float.__repr__(value)
    return len(text) + 5 if text.endswith("inf") else len(text)  # Infinity


def _row(base: Any) -> _Measure:
    size_of, items_of = base.__len__, base.__iter__

    def measure(walk: Walk, value: Any, depth: int) -> int:
        total: int = size_of(value)
        walk.enter(total, depth)
        size, below = walk.size, depth + 1
        total = BRACKETS + ELEMENT * total
        for each in items_of(value):
            total += len(each) if type(each) is str else size(each, below)
        walk.sizes[id(value)] = total
        return total

    return measure


def _dict(walk: Walk, value: dict[Any, Any], depth: int) -> int:
    total = dict.__len__(value)
    walk.enter(2 * total, depth)
    size, below = walk.size, depth + 1
    total = BRACKETS + FIELD * total
    for key, each in dict.items(value):
        total += len(key) if type(key) is str else size(key, below)
        total += len(each) if type(each) is str else size(each, below)
    walk.sizes[id(value)] = total
    return total


def _fields(kind: type, names: tuple[str, ...]) -> _Measure:
    def measure(walk: Walk, value: Any, depth: int) -> int:
        walk.enter(len(names), depth)
        stored, total = stored_of(value), BRACKETS
        for name in names:
            each = stored[name] if name in stored else slot_of(kind, name, value)
            if each is not UNSET:
                total += len(name) + FIELD + walk.size(each, depth + 1)
        walk.sizes[id(value)] = total
        return total

    return measure


def stored_of(value: Any) -> dict[str, Any]:
    """Return the instance's own dict through its real descriptor, whatever the class calls `__dict__`."""
    for base in lineage(type(value)):
        found = namespace(base).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            return {name: each for name, each in dict.items(found.__get__(value)) if type(name) is str}
    return {}


def slot_of(kind: type, name: str, value: Any) -> Any:
    for base in lineage(kind):
        found = namespace(base).get(name)
        if type(found) is types.MemberDescriptorType:
            try:
                return found.__get__(value)
            except AttributeError:
                break
    return UNSET


def _enum(_: Walk, value: Any, __: int) -> int:
    name = stored_of(value).get("_name_")
    return len(name) if type(name) is str else _SMALL


def _decimal(_: Walk, value: Any, __: int) -> int:
    decimal = sys.modules["decimal"].Decimal
    more: int = decimal.__sizeof__(value) - decimal.__sizeof__(decimal())
    return _SMALL + (more // 8 * 19 if more > 0 else 0)  # a word holds 19 digits, and the first few words are built in


def _path(_: Walk, value: Any, __: int) -> int:
    return len(str(value))


def _unmeasurable(_: Walk, __: Any, ___: int) -> int:
    raise _UnmeasurableError


UNSET: Final = object()
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
    bases = lineage(kind)
    for base in bases:
        if id(base) in _MEASURES:
            return _MEASURES[id(base)]
        if base is Enum:
            return _enum
        for module, attribute, measure in _LATER:
            if base is _loaded(module, attribute):
                return measure
    if any(kind is _loaded(*name) for name in _PATHS):  # exactly, since a subclass could print otherwise
        return _path
    for base in bases:
        for mark, *more in _MARKS:
            fields = namespace(base).get(mark)
            if type(fields) is dict:
                return _fields(kind, (*(name for name in fields if type(name) is str), *more))
    return _unmeasurable


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def derives(kind: type, wanted: type) -> bool:
    return kind is wanted or any(base is wanted for base in lineage(kind))
