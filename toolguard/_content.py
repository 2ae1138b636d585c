"""Arguments and results as bounded JSON, for the spans of those who switch content capture on.

What looks like a secret is replaced by `****`: values under keys that name one, keys of well-known makes, credentials in
URLs and in headers, `password=...` inside texts, pydantic's secret types, fields declared with `repr=False`. This is a best
effort and no promise: a secret that looks like any other word is shown. Where secrets pass through tools, content capture
stays off.

No code of a value is run: it is never printed, compared, copied or iterated unless it is, or derives from, a built-in
container, whose own iteration is then used. Dataclasses and pydantic models are read by their stored fields. Whatever else
there is, generators and streams included, becomes the name of its type.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from json import dumps
from math import isfinite
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final
from uuid import UUID

__all__ = ["arguments", "result"]

_ROOM: Final = 8192  # characters of JSON in all, which are ASCII and so as many bytes
_NAME: Final = 256
_LEAF: Final = 512
_DEPTH: Final = 8
_SMALL: Final = 32  # the least room in which a container is worth opening
_LOOK: Final = 2048  # of a text, what is searched for secrets
_EDGE: Final = 1024  # at the end of that, what is not shown: a secret may begin there that could not be seen whole
_READ: Final = 1 << 15  # of all texts together
_SHORT: Final = 64  # a text that is read even then

_MASK: Final = "****"
_CUT: Final = '"..."'
_HIDDEN: Final = object()

# The patterns are text, which `re` compiles and keeps when first used: 2 ms that an import need not take.
_GIVEAWAY: Final = (
    r"passw(?:or)?d|pass(?:phrase|code)|pwd$|secret|credential|authorization|cookie|(?:api|access|private|signing|encryption)key"
    r"|sess(?:ion)?(?:id|key)|token(?:value)?$|(?:access|api|auth|bearer|id|refresh|session)tokens$|^(?:auth|bearer|cvv|jwt|otp|sid)$"
)
_WORDS: Final = (
    r"(?i:pass(?:words?|wd|phrase|code)|pwd|secret|(?:api|access|private|signing|encryption|secret)[-_\x20]?key(?:[-_\x20]?id)?"
    r"|token|credentials?|sess(?:ion)?[-_\x20]?(?:id|key))[0-9]{0,2}"
)
_IS: Final = r"""["'\\]{0,3}\s{0,4}(?:=>|[:=])\s{0,4}"""
_QUOTED: Final = r"""\\?"((?:[^"\\]|\\.)*)|'((?:[^'\\]|\\.)*)"""
_NOT: Final = rf"-----BEGIN|(?i:authorization|cookie|bearer){_IS}|{_WORDS}{_IS}"  # a heading, as in YAML: no value, but a key
# Each alternative has one group: what to hide. No repeat is unbounded on both sides of another.
_SECRET: Final = rf"""(?xs)
      (?i:authorization|cookie){_IS}(?:{_QUOTED}|([^\r\n"']+))
    | {_WORDS}{_IS}(?!{_NOT})(?:{_QUOTED}|\[([^\]]*)
        |((?:(?i:bearer|basic|digest|token)\s{{1,4}})?(?:[^\s,;&"'<>()\[\]{{}}]|,(?!\s))+))
    | -{_WORDS}\s{{1,4}}(?!--)([^\s"']+)
    | input_value=(.*?)(?=,\x20input_type=|\n|\Z)
    | \b(?i:bearer)\s{{1,4}}([^\s"',;]+)
    | \b(?:Basic|BASIC|basic(?=\s{{1,4}}[a-z]*[A-Z0-9+/=]))\s{{1,4}}([A-Za-z0-9+/=_-]+)
    | (?<=://)([^\s/?\#:@"'<>]{{0,128}}:[^\s"'<>]{{0,512}}|[^\s/?\#:@"'<>]{{1,256}})(?=@)
    | (?<![A-Za-z0-9])(sk-[\w-]{{6,}}|[prs]k_(?:live|test)_\w{{6,}}|gh[oprsu]_\w{{6,}}|github_pat_\w{{6,}}|glpat-[\w-]{{6,}}
        |A(?:KIA|SIA|GPA|IDA|ROA)[A-Z0-9]{{8,}}|xox[a-z]-[\w-]{{6,}}|xapp-[\w-]{{6,}}|eyJ[\w.-]{{8,}}|AIza[\w-]{{16,}}
        |ya29\.[\w-]{{8,}}|hf_[A-Za-z0-9]{{16,}}|npm_\w{{16,}}|pypi-[\w-]{{16,}}|SG\.[\w.-]{{16,}})
    | -----BEGIN\x20[A-Z\x20]{{0,32}}PRIVATE\x20KEY-----([^-]*)
"""

# Read through the descriptors of `type` itself: the plain attributes would ask the class's metaclass.
_lineage: Final[Callable[[type], tuple[type, ...]]] = type.__dict__["__mro__"].__get__
_namespace: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
_module: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_qualname: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__


def arguments(bound: Mapping[str, object]) -> str:
    """Return the bound arguments of a call as the text of a JSON object.

    The text is ASCII, at most 8192 characters, and always parses. Redaction is a best effort; see the module.

    Args:
        bound: the arguments by parameter name.
    """
    try:
        return _Writer().members(list(islice(bound.items(), _ROOM)), _ROOM, 0)
    except Exception:  # noqa: BLE001  telemetry may fail in any way and change nothing
        return "{}"


def result(value: object) -> str:
    """Return what a call returned as JSON text, under the rules of `arguments`.

    Args:
        value: the result; an iterator is named, not consumed.
    """
    try:
        return _Writer().value(value, _ROOM, 0)
    except Exception:  # noqa: BLE001  as above
        return _CUT


def _names_secret(name: str) -> bool:
    return re.search(_GIVEAWAY, re.sub(r"[-_.\s]+", "", name[:_NAME].lower())) is not None


def _masked(text: str, end: int) -> str:
    """Return the text up to `end` without its secrets, those included that only begin before it."""
    parts: list[str] = []
    at = 0
    for match in re.finditer(_SECRET, text):
        start, stop = match.span(match.lastindex or 0)
        if start >= end:
            break
        parts += (text[at:start], _MASK)
        at = stop
    return "".join((*parts, text[at : max(at, end)]))


def _type_name(kind: type) -> str:
    module = _module(kind)
    return f"{module}.{_qualname(kind)}" if type(module) is str else _qualname(kind)


def _named(kind: type) -> str:
    return dumps(f"<{_type_name(kind)[:_NAME]}>")


def _state(value: object) -> dict[str, Any]:
    """Return what an object stores, in its `__dict__` and its slots, past any attribute access of its class."""
    state: dict[str, Any] = {}
    for base in _lineage(type(value)):
        for name, member in _namespace(base).items():
            if type(member) is GetSetDescriptorType and name == "__dict__":
                state |= member.__get__(value)
            elif type(member) is MemberDescriptorType:
                try:
                    state.setdefault(name, member.__get__(value))
                except AttributeError:  # a slot that was never filled
                    continue
    return state


def _fields(value: object) -> list[tuple[object, object]] | None:
    """Return the stored fields of a dataclass or a pydantic model; None for anything else."""
    for base in _lineage(type(value)):
        for mark in ("__dataclass_fields__", "__pydantic_fields__", "model_fields"):
            declared = _namespace(base).get(mark)
            if type(declared) is dict:
                state = _state(value)
                shown = [(name, _shown(field, state[name])) for name, field in declared.items() if name in state]
                extra = state.get("__pydantic_extra__")
                return [*shown, *(extra.items() if type(extra) is dict else ())]
    return None


def _shown(field: object, value: object) -> object:
    return _HIDDEN if _state(field).get("repr") is False else value


class _Writer:
    """Writes JSON into a given room. Every method returns text that is at most as long as its room."""

    __slots__ = ("_unread",)

    def __init__(self) -> None:
        self._unread = _READ

    def value(self, value: object, room: int, depth: int) -> str:
        try:
            text = self._render(value, room, depth)
        except Exception:  # noqa: BLE001  a value that fails, such as one that another thread changes, costs only itself
            text = _named(type(value))
        return text if len(text) <= room else _CUT

    def _render(self, value: object, room: int, depth: int) -> str:
        if value is None or value is True or value is False:
            return dumps(value)
        if value is _HIDDEN:
            return dumps(_MASK)
        kind = type(value)
        if id(kind) in _EXACT:
            return self.text(_EXACT[id(kind)](value), room)
        for base in _lineage(kind):
            if id(base) in _BASES:
                return _BASES[id(base)](self, value, room, depth)
            if _qualname(base) in _SECRETS and _type_name(base).startswith("pydantic."):
                return dumps(_MASK)
        fields = _fields(value)
        return _named(kind) if fields is None else self.members(fields, room, depth)

    def text(self, value: str, room: int, _depth: int = 0) -> str:
        size = str.__len__(value)
        head = str.__getitem__(value, slice(min(_LOOK, max(_SHORT, self._unread))))
        self._unread -= len(head)
        whole = len(head) == size
        shown = _masked(head, size if whole else max(0, len(head) - _EDGE))
        mark = f"... ({size} characters)"
        text = dumps(shown if whole and len(shown) <= _LEAF else shown[:_LEAF] + mark)
        fitting = len(shown[:_LEAF]) * max(0, room - len(mark) - 2) // len(text)
        return text if len(text) <= room else dumps(shown[:fitting] + mark)

    def members(self, pairs: list[tuple[Any, object]], room: int, depth: int) -> str:
        texts = [(key, value) for key, value in pairs if type(key) is str and type(value) is str]
        entry = any(key in ("name", "key") and _names_secret(value) for key, value in texts)
        return self._join(self._named_pairs(pairs, entry=entry), len(pairs), "{}", room, depth)

    def _named_pairs(self, pairs: list[tuple[Any, object]], *, entry: bool) -> Iterator[tuple[str, object]]:
        for key, value in pairs:
            text = str.__getitem__(key, slice(_NAME)) if issubclass(type(key), str) else ""
            hidden = value is not None and (_names_secret(text) or (entry and text == "value"))
            name = self.value(key, _NAME, _DEPTH)
            yield (name if name[0] == '"' else f'"{name}"') + ":", _HIDDEN if hidden else value

    def items(self, values: Iterable[object], room: int, depth: int) -> str:
        found = list(islice(values, room))
        if len(found) == 2 and type(found[0]) is str and _names_secret(found[0]):  # noqa: PLR2004  a header, or an entry of a dict
            found[1] = _HIDDEN
        return self._join((("", value) for value in found), len(found), "[]", room, depth)

    def _join(self, entries: Iterable[tuple[str, object]], size: int, ends: str, room: int, depth: int) -> str:
        if depth >= _DEPTH or room < _SMALL:
            return _CUT
        parts: list[str] = []
        more = _CUT if ends == "[]" else f"{_CUT}:{_CUT}"
        left = room - len(ends) - len(more)
        for at, (name, value) in enumerate(entries):
            space = left - len(name) - 1
            if space < len(_CUT):
                parts.append(more)
                break
            # Half of what is left, so that a large first value does not hide that there are others.
            share = space if at == size - 1 else max(len(_CUT), space // 2)
            parts.append(name + self.value(value, share, depth + 1))
            left -= len(parts[-1]) + 1
            if parts[-1] == _CUT:  # an item that did not fit; a member's text begins with its name
                break
        return ends[0] + ",".join(parts) + ends[1]


def _integer(_writer: _Writer, value: Any, _room: int, _depth: int) -> str:
    number = int.__int__(value)
    if -(1 << 63) <= number < 1 << 63:
        return str(number)
    # A number that no 64 bits hold is lost by exporters; one of many digits takes long to write.
    return dumps(str(number) if number.bit_length() <= _LEAF else f"<int: {number.bit_length()} bits>")


def _real(_writer: _Writer, value: Any, _room: int, _depth: int) -> str:
    number = float.__float__(value)
    return repr(number) if isfinite(number) else dumps(repr(number))


def _sized(kind: Any) -> "_Renderer":
    return lambda _writer, value, _room, _depth: dumps(f"<{kind.__name__}: {kind.__len__(value)}>")


def _listed(kind: Any) -> "_Renderer":
    return lambda writer, value, room, depth: writer.items(kind.__iter__(value), room, depth)


def _tuple(writer: _Writer, value: Any, room: int, depth: int) -> str:
    for base in _lineage(type(value)):
        names = _namespace(base).get("_fields")
        if type(names) is tuple and len(names) == tuple.__len__(value):
            return writer.members(list(zip(names, tuple.__iter__(value), strict=True)), room, depth)
    return writer.items(tuple.__iter__(value), room, depth)


def _dict(writer: _Writer, value: Any, room: int, depth: int) -> str:
    return writer.members(list(islice(dict.items(value), room)), room, depth)


def _moment(value: Any) -> str:
    zone = value.tzinfo
    known = zone is None or _type_name(type(zone)) in ("datetime.timezone", "zoneinfo.ZoneInfo")
    return str((value if known else value.replace(tzinfo=None)).isoformat())


_Renderer = Callable[[_Writer, Any, int, int], str]

# Keyed by `id`, since to look a class up by itself would ask its metaclass for a hash.
_BASES: Final[dict[int, _Renderer]] = {
    id(str): _Writer.text,
    id(int): _integer,
    id(float): _real,
    id(dict): _dict,
    id(tuple): _tuple,
    id(Enum): lambda writer, value, room, depth: writer.value(_state(value)["_value_"], room, depth),
    **{id(kind): _listed(kind) for kind in (list, set, frozenset, deque)},
    **{id(kind): _sized(kind) for kind in (bytes, bytearray, memoryview)},
}
_EXACT: Final[dict[int, Callable[[Any], str]]] = {
    **dict.fromkeys(map(id, (datetime, time)), _moment),
    **dict.fromkeys(map(id, (date, timedelta, Decimal, UUID)), str),
    **dict.fromkeys(map(id, (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)), str),
}
_SECRETS: Final = frozenset({"SecretStr", "SecretBytes", "Secret"})
