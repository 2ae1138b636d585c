"""What a call is, and what it came to, in 16 bytes: a keyed digest of typed, canonical content.

Values are rewritten as nested tuples of exact scalars, in which every tuple starts with a tag of ours; these are marshalled
and hashed. Nothing of a value is executed, and nothing raises. What is the same, and what is not:

- Types count: `1`, `True` and `"1"` are three values, and so are bytes and text. `1.0` is `1`, `-0.0` is `0`, NaN is NaN.
- What a model's JSON cannot tell apart is one: a list is a tuple, a float without a fraction an int. Beyond JSON, a set is
  a frozenset (and no list), a bytearray or a memoryview of bytes is bytes; a dict and a set have no order.
- A subclass of a built-in type (a namedtuple, an OrderedDict, a text with methods of its own) is the built-in value that it
  holds. An Enum member is its class and name; a dataclass or a pydantic model is its class and its stored fields.
- An aware datetime is its wall clock and offset. A numpy number is a number; an array is its dtype, shape and bytes. A
  path, URL, UUID or IP address is its type and text. A class or function is its name.
- Anything else is *opaque*: it counts by the name of its type, never by address. So do a bound method and, beside their
  name, a lambda and a local function: what they hold is not in it.

Bounds: 10 000 nodes, 32 levels, and 1 MB of text and bytes, hashed whole up to there since that costs a millisecond. What
is beyond is *cut* to its type, length and ends (a set, which has no ends: its length). A cut dict is read in its own order.
"""

import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from hashlib import blake2b
from itertools import chain, count, islice
from marshal import dumps
from typing import Any, Final, cast

__all__ = ["SIZE", "Hasher", "binder", "has_ordinal", "is_opaque", "new_key"]

_NODES: Final = 10_000
_DEPTH: Final = 32
_CHARS: Final = 1 << 20
_SHORT: Final = 4096  # longer texts are hashed piece by piece, so that no second copy of them is made
_PIECE: Final = 1 << 16
_EDGE: Final = 1 << 14
_ENDS: Final = 64
_WIDE: Final = 1 << 8 * _SHORT
_TOOLS: Final = 1024
SIZE: Final = 16
_OPAQUE: Final = b"?"
_LOST: Final = bytes(SIZE) + _OPAQUE
_PLAIN: Final = 2  # the marshal format without references and interning: equal values give equal bytes
_WHOLE: Final = slice(None)
_TEXTS: Final = {str}

_Encoder = Callable[["_Walk", Any, int], Any]

# Read through the descriptors of `type` itself: `cls.__module__` and the like would ask the class's metaclass.
_lineage: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_namespace: Final[Callable[[type], dict[str, Any]]] = type.__dict__["__dict__"].__get__
_module: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_qualname: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__
_weak: Final[Callable[[type], int]] = type.__dict__["__weakrefoffset__"].__get__


def new_key() -> bytes:
    """Return a fresh key. One key serves one session; without it a digest says nothing about a guessable argument."""
    return os.urandom(SIZE)


def is_opaque(identity: bytes) -> bool:
    """Say whether an opaque or cut value took part, so that an equal identity need not mean equal arguments."""
    return len(identity) > SIZE


def has_ordinal(obj: object) -> bool:
    """Say whether the token of a receiver tells it from others of its type: where it can be referenced weakly."""
    return _weak(type(obj)) != 0


class Hasher:
    """Digests under one session's key: they depend on the key and the content, and on nothing of the process."""

    __slots__ = ("_bases", "_key", "_live", "_ordinals", "_outcome")

    def __init__(self, key: bytes) -> None:
        """Hash under `key`, of at most 64 bytes."""
        self._key = blake2b(key=key, digest_size=SIZE)
        self._bases: dict[str, blake2b] = {}
        self._outcome = self._base(None)
        self._live: dict[int, tuple[weakref.ref[object], str]] = {}
        self._ordinals: dict[str, count[int]] = {}

    def identity(self, name: str, values: tuple[Any, ...]) -> bytes:
        """Return the digest of a tool's name and its bound arguments, in signature order.

        Returns:
            16 bytes, or 17 where an opaque or cut value took part; see `is_opaque`. It never raises.
        """
        try:
            for value in values:
                kind = type(value)
                if kind is str or kind is bytes:
                    if len(value) > _SHORT:
                        break
                elif kind is int:
                    if not -_WIDE < value < _WIDE:
                        break
                elif value is not None and kind is not bool:
                    break
            else:
                state = (self._bases.get(name) or self._named(name)).copy()
                state.update(dumps(values, _PLAIN))
                return state.digest()
            return self._walked(name, values)
        except Exception:  # noqa: BLE001 - no argument, whatever it is, may make a call fail
            return _LOST

    def digest(self, value: Any) -> bytes | None:
        """Return the digest of what a tool returned, or None where it cannot be measured: opaque somewhere, or too large.

        An iterator is not consumed. It never raises.
        """
        try:
            kind = type(value)
            if (kind is not str or len(value) > _SHORT) and value is not None and kind is not bool:
                value = _Walk(strict=True).plain(value, 0)
            state = self._outcome.copy()
            state.update(dumps(value, _PLAIN))
            return state.digest()
        except Exception:  # noqa: BLE001 - no result, whatever it is, may make a call fail
            return None

    def receiver(self, obj: object) -> str:
        """Return the token that tells a method's receiver apart: it goes into the name that `identity` gets.

        A live object is an ordinal under the name of its type, in order of first use. One that cannot be weakly referenced
        is the name of its type alone, a class its qualified name.
        """
        known = self._live.get(id(obj))
        if known is not None and known[0]() is obj:
            return known[1]
        return self._introduce(obj)

    def _introduce(self, obj: object) -> str:
        if _is_class(obj):
            return ".".join(_name(cast("type", obj)))
        key, name = id(obj), _name(type(obj))[1]
        try:
            ref = weakref.ref(obj, partial(_forget, self._live, key))
        except TypeError:
            return name
        stale = self._live.get(key)
        if stale is not None and stale[0]() is not obj:
            _forget(self._live, key, stale[0])
        # Two steps that are atomic on their own: of two threads that bring the same object, both get the first one's token.
        ordinal = next(self._ordinals.setdefault(name, count(1)))
        return self._live.setdefault(key, (ref, f"{name} #{ordinal}"))[1]

    def _walked(self, name: str, values: tuple[Any, ...]) -> bytes:
        walk = _Walk(strict=False)
        plain = tuple([walk.plain(value, 0) for value in values])
        state = (self._bases.get(name) or self._named(name)).copy()
        state.update(dumps(plain, _PLAIN))
        return state.digest() + _OPAQUE if walk.opaque else state.digest()

    def _named(self, name: str) -> blake2b:
        if len(self._bases) >= _TOOLS:
            self._bases.clear()
        base = self._bases[name] = self._base(name)
        return base

    def _base(self, name: str | None) -> blake2b:
        state = self._key.copy()
        state.update(dumps(name, _PLAIN))
        return state


def _forget(live: dict[int, tuple[weakref.ref[object], str]], key: int, ref: weakref.ref[object]) -> None:
    known = live.get(key)
    if known is not None and known[0] is ref:
        live.pop(key, None)


class _Source(str):
    """A name that prints as itself: it stands where a signature prints a default."""

    __slots__ = ()
    __repr__ = str.__str__


def binder(
    function: Callable[..., Any], signature: inspect.Signature, skip: frozenset[str] = frozenset()
) -> Callable[..., tuple[Any, ...]]:
    """Make a function with `signature` that returns its bound arguments, defaults applied, in the signature's order.

    Args:
        function: whose arguments they are; a call that would not bind raises a TypeError in its name.
        signature: its parameters. Defaults are handed on as they are: never evaluated, compared or printed.
        skip: parameters that are accepted and left out of the result.
    """
    scope: dict[str, Any] = {"__builtins__": {}}
    bare = []
    for i, parameter in enumerate(signature.parameters.values()):
        default: Any = parameter.default
        if default is not parameter.empty:
            default, scope[f"_{i}"] = _Source(f"_{i}"), default
        bare.append(inspect.Parameter(parameter.name, parameter.kind, default=default))
    result = "".join(f"{p.name}, " for p in bare if p.name not in skip)
    source = f"def bind{inspect.Signature(bare)}: return ({result})"
    exec(compile(source, "<toolguard binder>", "exec"), scope)  # noqa: S102 - the source holds names of parameters only
    bind: types.FunctionType = scope["bind"]
    bind.__qualname__ = getattr(function, "__qualname__", bind.__qualname__)
    return bind


class _UnmeasurableError(Exception):
    """A strict walk met something opaque or too large."""


class _Walk:
    """One rewriting of values as tagged tuples, with what is left of its bounds."""

    __slots__ = ("chars", "cuts", "kinds", "nodes", "opaque", "strict")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.nodes = _NODES
        self.chars = _CHARS
        self.cuts = 0
        self.opaque = False
        self.kinds: dict[int, tuple[type, _Encoder]] = {}

    def plain(self, value: Any, depth: int) -> Any:
        """Return the canonical form of `value`. Types are looked up by id, as hashing one would ask its metaclass."""
        kind = type(value)
        if kind is str:
            size = len(value)
            if size <= _SHORT and size <= self.chars:
                self.chars -= size
                return value
        elif value is None or kind is bool or (kind is int and -_WIDE < value < _WIDE):
            return value
        try:
            encode = _ENCODERS.get(id(kind))
            if encode is None:
                known = self.kinds.get(id(kind)) or self.kinds.setdefault(id(kind), (kind, _find(kind)))
                encode = known[1]
            return encode(self, value, depth)
        except _UnmeasurableError:
            raise
        except Exception:  # noqa: BLE001 - what cannot be read counts by its type
            return _opaque(self, value, depth)

    def afford(self, nodes: int, depth: int) -> bool:
        """Take `nodes` from what is left, in advance, so that a walk never visits more than its bound."""
        if nodes > self.nodes or depth >= _DEPTH:
            return False
        self.nodes -= nodes
        return True

    def mark(self, *, cut: bool = False) -> None:
        """Note that something is not in the digest; a strict walk ends here."""
        if self.strict:
            raise _UnmeasurableError
        self.opaque = True
        self.cuts += cut

    def cut(self, tag: str, size: int, ends: Iterable[Any], depth: int) -> tuple[Any, ...]:
        """Return what stands for a container that is too large or too deep: its size and, where affordable, its ends."""
        self.mark(cut=True)
        if not self.afford(4 * _ENDS, depth):
            return ("cut", tag, size)
        return ("cut", tag, size, *[self.plain(value, depth + 1) for value in ends])

    def content(self, tag: str, size: int, take: Callable[[slice], Any]) -> Any:
        """Return a text or bytes as it is when short, else its size and digest. `take` reads a slice of it."""
        if size <= self.chars:
            self.chars -= size
            if size <= _SHORT:
                return take(_WHOLE)
            return (tag, size, _fold(take(slice(at, at + _PIECE)) for at in range(0, size, _PIECE)))
        self.mark(cut=True)
        edge = min(size, _EDGE if self.chars > 2 * _EDGE else _ENDS)
        self.chars = max(0, self.chars - 2 * edge)
        return ("cut", tag, size, _fold((take(slice(edge)), take(slice(size - edge, None)))))


def _fold(pieces: Iterable[Any]) -> bytes:
    state = blake2b(digest_size=SIZE)
    for piece in pieces:
        state.update(piece.encode("utf-8", "surrogatepass") if type(piece) is str else piece)
    return state.digest()


def _same(_: _Walk, value: Any, __: int) -> Any:
    return value


def _content(tag: str, base: Any, exact: Callable[[Any], Any]) -> _Encoder:
    size_of, item = base.__len__, base.__getitem__
    return lambda walk, value, _: walk.content(tag, size_of(value), lambda part: exact(item(value, part)))


def _memory(walk: _Walk, value: memoryview, _: int) -> Any:
    flat = value.cast("B") if value.nbytes else memoryview(b"")
    content = walk.content("bytes", value.nbytes, lambda part: flat[part].tobytes())
    return content if value.format == "B" and value.ndim == 1 else ("memory", value.format, value.shape, content)


def _int(walk: _Walk, value: int, _: int) -> Any:
    size = int.bit_length(value) // 8
    if size > _SHORT:
        if size > walk.chars:
            walk.mark(cut=True)
            return ("cut", "int", size, int.__rshift__(value, 8 * (size - _ENDS)))
        walk.chars -= size
    return int.__int__(value)


def _float(_: _Walk, value: float, __: int) -> Any:
    exact = float.__float__(value)
    if exact.is_integer():
        return int(exact)
    return exact if exact == exact else ("nan",)  # noqa: PLR0124 - only NaN differs from itself


def _complex(walk: _Walk, value: complex, depth: int) -> Any:
    exact = complex.__complex__(value)
    return ("complex", _float(walk, exact.real, depth), _float(walk, exact.imag, depth))


def _row(base: Any) -> _Encoder:
    size_of, item = base.__len__, base.__getitem__

    def encode(walk: _Walk, value: Any, depth: int) -> Any:
        size = size_of(value)
        if walk.afford(size, depth):
            plain, below = walk.plain, depth + 1
            return ("list", *[plain(each, below) for each in item(value, _WHOLE)])
        return walk.cut("list", size, chain(item(value, slice(_ENDS)), item(value, slice(-_ENDS, None))), depth)

    return encode


def _dict(walk: _Walk, value: dict[Any, Any], depth: int) -> Any:
    size, items = dict.__len__(value), dict.items(value)
    if not walk.afford(2 * size, depth):
        ends = chain(islice(items, _ENDS), islice(reversed(items), _ENDS))
        return walk.cut("dict", size, chain.from_iterable(ends), depth)
    plain, below = walk.plain, depth + 1
    pairs = [(plain(k, below), plain(v, below)) for k, v in list(items)]
    forms = dict(pairs)
    if len(forms) == size and set(map(type, forms)) <= _TEXTS:
        return ("dict", *chain.from_iterable(sorted(pairs)))
    # Forms of other keys do not compare, and two keys may have one form, such as two objects of a type.
    return ("keyed", *chain.from_iterable(sorted((dumps(k, _PLAIN), dumps(v, _PLAIN)) for k, v in pairs)))


def _set(base: Any) -> _Encoder:
    size_of, items_of = base.__len__, base.__iter__

    def encode(walk: _Walk, value: Any, depth: int) -> Any:
        size, cuts = size_of(value), walk.cuts
        if walk.afford(size, depth):
            items = sorted(dumps(walk.plain(item, depth + 1), _PLAIN) for item in list(items_of(value)))
            if walk.cuts == cuts:
                return ("set", *items)
            walk.nodes = walk.chars = 0  # which member was cut hangs on the hash seed: nothing after it may
        return walk.cut("set", size, (), depth)

    return encode


def _parts(tag: str, base: Any) -> _Encoder:
    parts_of = base.__reduce__  # as it is pickled: the state and no method of a subclass

    def encode(walk: _Walk, value: Any, depth: int) -> Any:
        parts = parts_of(value)[1]
        if not walk.afford(len(parts), depth):
            return walk.cut(tag, len(parts), (), depth)
        return (tag, *[walk.plain(part, depth + 1) for part in parts])

    return encode


def _moment(tag: str, base: Any) -> _Encoder:
    def encode(walk: _Walk, value: Any, depth: int) -> Any:
        state, *zone = base.__reduce__(value)[1]
        if not zone:
            return (tag, state)
        offset = None
        if type(zone[0]) is timezone or any(type(zone[0]) is _loaded(*name) for name in _ZONES):
            # Of an exact copy, fold included: a zone asks a subclass for its parts.
            offset = base(*base.__reduce_ex__(value, 4)[1]).utcoffset()
        return (tag, state, walk.plain(zone[0] if offset is None else offset, depth))

    return encode


def _timezone(walk: _Walk, value: timezone, depth: int) -> Any:
    return ("timezone", walk.plain(value.utcoffset(None), depth))


def _decimal(walk: _Walk, value: Any, _: int) -> Any:
    base = sys.modules["decimal"].Decimal
    if base.__sizeof__(value) > walk.chars:
        walk.mark(cut=True)
        return ("cut", "decimal", base.adjusted(value))
    sign, digits, exponent = base.as_tuple(value)
    return ("decimal", sign, bytes(digits), exponent)


def _uuid(_: _Walk, value: Any, __: int) -> Any:
    return ("uuid", sys.modules["uuid"].UUID.int.__get__(value))


def _printed(walk: _Walk, value: Any, _: int) -> Any:
    text = str(value)
    name = _name(type(value))[1].removeprefix("Pure")
    return ("printed", name, walk.content("str", len(text), text.__getitem__))


def _enum(walk: _Walk, value: Any, depth: int) -> Any:
    stored = _stored(value)
    name = stored.get("_name_")  # None for flags that have none
    return ("enum", *_name(type(value)), name if type(name) is str else ("value", walk.plain(stored["_value_"], depth)))


def _class(walk: _Walk, value: Any, _: int) -> Any:
    return _label(walk, *_name(value))


def _function(walk: _Walk, value: types.FunctionType, _: int) -> Any:
    module = value.__module__
    return _label(walk, module if type(module) is str else "", str.__str__(value.__qualname__))


def _builtin(walk: _Walk, value: types.BuiltinFunctionType, depth: int) -> Any:
    if type(value.__self__) is not types.ModuleType:
        return _opaque(walk, value, depth)
    return _label(walk, value.__module__, value.__name__)


def _label(walk: _Walk, module: str, name: str) -> Any:
    if "<" in name:
        walk.mark()
    return ("name", module, name)


def _fields(kind: type, names: tuple[str, ...]) -> _Encoder:
    form = ("fields", *_name(kind))

    def encode(walk: _Walk, value: Any, depth: int) -> Any:
        if not walk.afford(len(names), depth):
            return walk.cut("fields", len(names), (), depth)
        stored = _stored(value)
        found = [(name, stored[name] if name in stored else _slot(kind, name, value)) for name in names]
        parts = [(name, walk.plain(each, depth + 1)) for name, each in found if each is not _UNSET]
        return (*form, *chain.from_iterable(parts))

    return encode


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


def _array(walk: _Walk, value: Any, depth: int) -> Any:
    array = sys.modules["numpy"].ndarray
    if type(value) is not array or not _is_bare(value.dtype):
        return _opaque(walk, value, depth)  # a subclass, such as a masked array, holds more than its bytes
    flat, item = value.flat, value.dtype.itemsize

    def take(part: slice) -> Any:
        stop = None if part.stop is None else part.stop // item
        return flat[(part.start or 0) // item : stop].tobytes()

    return ("array", value.dtype.str, value.shape, walk.content("bytes", value.nbytes, take))


def _scalar(walk: _Walk, value: Any, depth: int) -> Any:
    generic = sys.modules["numpy"].generic
    dtype = generic.dtype.__get__(value)
    if not _is_bare(dtype):
        return _opaque(walk, value, depth)
    if dtype.kind in "mM":  # as an item it would be a number without its unit
        return ("array", dtype.str, (), generic.tobytes(value))
    return walk.plain(generic.item(value), depth)


def _is_bare(dtype: Any) -> bool:
    """Say whether an item's bytes are its value: no references, no fields, no padding as a long double has."""
    return dtype.itemsize <= _PIECE and (dtype.kind in "biuSUmM" or (dtype.kind, dtype.itemsize) in _FLOATS)


def _opaque(walk: _Walk, value: Any, _: int) -> Any:
    walk.mark()
    return ("opaque", *_name(type(value)))


def _is_class(value: object) -> bool:
    return any(base is type for base in _lineage(type(value)))  # `in` would ask a metaclass whether it is equal


def _name(kind: type) -> tuple[str, str]:
    module = _module(kind)
    return (module if type(module) is str else "", str.__str__(_qualname(kind)))


_UNSET: Final = object()
_FLOATS: Final = frozenset({("f", 2), ("f", 4), ("f", 8), ("c", 8), ("c", 16)})
_ZONES: Final = (
    ("zoneinfo", "ZoneInfo"),
    ("pydantic_core._pydantic_core", "TzInfo"),
)
_PATHS: Final = ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
# Exact types, since a subclass could print otherwise.
_PRINTED: Final = frozenset(
    {
        ("fractions", "Fraction"),
        ("pydantic_core._pydantic_core", "Url"),
        ("pydantic_core._pydantic_core", "MultiHostUrl"),
        *(("ipaddress", f"IPv{v}{what}") for v in (4, 6) for what in ("Address", "Network", "Interface")),
        *((room, path) for room in ("pathlib", "pathlib._local") for path in _PATHS),
    }
)

_BASES: Final[dict[type, _Encoder]] = {
    type(None): _same,
    bool: _same,
    int: _int,
    float: _float,
    complex: _complex,
    str: _content("str", str, str.__str__),
    bytes: _content("bytes", bytes, bytes),
    bytearray: _content("bytes", bytearray, bytes),
    memoryview: _memory,
    list: _row(list),
    tuple: _row(tuple),
    dict: _dict,
    set: _set(set),
    frozenset: _set(frozenset),
    range: _parts("range", range),
    slice: _parts("slice", slice),
    type(Ellipsis): lambda _, __, ___: ("ellipsis",),
    datetime: _moment("datetime", datetime),
    date: _parts("date", date),
    time: _moment("time", time),
    timedelta: _parts("timedelta", timedelta),
    timezone: _timezone,
    types.FunctionType: _function,
    types.BuiltinFunctionType: _builtin,
    type: _class,
}
_ENCODERS: Final[dict[int, _Encoder]] = {id(kind): encode for kind, encode in _BASES.items()}

# Types of modules that are looked at only where a program has imported them.
_LATER: Final[tuple[tuple[str, str, _Encoder], ...]] = (
    ("decimal", "Decimal", _decimal),
    ("uuid", "UUID", _uuid),
    ("numpy", "ndarray", _array),
)


def _find(kind: type) -> _Encoder:
    """Return how values of `kind` are written: as the nearest base that is known, or by their fields, or as opaque."""
    lineage, name = _lineage(kind), _name(kind)
    if _derives(kind, "enum", "Enum"):
        return _enum
    if (name in _PRINTED or name[0] == "pydantic.networks") and _loaded(*name) is kind:
        return _printed
    for base in lineage:
        if id(base) in _ENCODERS:
            return _ENCODERS[id(base)]
        for module, attribute, encode in _LATER:
            if base is _loaded(module, attribute):
                return encode
    return _scalar if _derives(kind, "numpy", "generic") else _find_fields(kind)


_MARKS: Final = (("__dataclass_fields__",), ("__pydantic_fields__", "__pydantic_extra__"))


def _find_fields(kind: type) -> _Encoder:
    for base in _lineage(kind):
        for mark, *more in _MARKS:
            fields = _namespace(base).get(mark)
            if type(fields) is dict:
                return _fields(kind, (*(name for name in fields if type(name) is str), *more))
    form = ("opaque", *_name(kind))

    def encode(walk: _Walk, _: Any, __: int) -> Any:
        walk.mark()
        return form

    return encode


def _derives(kind: type, module: str, name: str) -> bool:
    wanted = _loaded(module, name)
    return any(base is wanted for base in _lineage(kind))


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)
