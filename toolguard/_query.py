"""The shape of a query: what stays of its text when the values are taken out.

Two queries have one shape if they differ only in

- literals (text, numbers, bits, bytes, national, dollar-quoted), their sign, and bind placeholders in their place,
- comments, white space, the case of keywords and of unquoted names, a byte order mark, empty statements,
- how many items an `IN (...)`, a `VALUES (...), (...)` or an `[...]` of literals lists, items of one shape being one.

Names and structure are the shape. Quoted names keep their case, whichever quotes they wear; `"x"` is a name also where
a dialect would take it for text. TRUE, FALSE and NULL are structure (`IS NULL`), except as items of such a list.
Literals in a template (`{{ ref('orders') }}`) count, since they mostly name tables.

The dialect is not known. sqlglot's base tokenizer, told of the quotes that few dialects contradict, writes the text
again with one kind of quote and no comments, and a scanner of our own reads that. Where the tokenizer fails (a quote
that never ends) it tries once more with backslash escapes; where that fails too, or without sqlglot, the scanner reads
the text as it is. sqlglot's parser is never used: it recurses, and is a hundred times slower.
"""

import re
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from os import urandom
from typing import Any, Final

__all__ = ["available", "shape"]

_BOUND: Final = 1 << 16  # characters, or bytes
_KEPT: Final = 512

_VALUE: Final = "?"
_CONSTANTS: Final = frozenset({"null", "true", "false"})
_QUERIES: Final = frozenset({"select", "with", "from", "table", "values"})
_NAMING: Final = frozenset({"from", "join", "into", "update", "table", "."})
# After these a value follows and no operator: a sign belongs to the number, `%s` is no remainder, `[x]` no index.
_OPENING: Final = frozenset(
    "= < > ! ~ + - * / % ^ & | , ( [ { : ; all and any between by case distinct div else escape except for from "  # noqa: SIM905
    "glob having ilike in intersect interval like limit mod next not offset on or qualify regexp return returning "
    "rlike select set some then to top union using values when where with xor".split()
)
# Each alternative is linear, also where it fails: no two adjacent repeats can take the same characters. The pattern is
# text, which `re` compiles and keeps when first used, since few programs have a tool that declares a query.
_SCAN: Final = r"""(?xsi)
      (?P<gap> \s+ | --[^\n\r]* | /\*.*?(?:\*/|\Z) | \#(?=\s)[^\n\r]* )
    | (?P<word> (?!(?:[bernx]|u&)')[^\W\d][\w$]*+ | [(),=*+<>!&|~^/-] | \.(?![0-9]) )
    | (?P<value> (?:[bernx]|u&)?(?:(?:'[^']*+')++(?:'[^']*\Z)?|'[^']*\Z) | \$(?P<tag>\w*)\$[^$]*+\$(?P=tag)\$
        | 0(?:x[0-9a-f_]+|b[01_]+|o[0-7_]+)\b
        | (?:(?<![\w"'?)\]])\.)?[0-9](?:_?[0-9.])*(?:e[+-]?[0-9]+)?(?:bd|[dflsy])?(?!\w)
        | \?[0-9]* | \$\w+ | (?<![\w"'?)\]:]):\w+ )
    | (?P<variable> (?<![\w"'?)\]@])@\w+ )
    | (?P<format> %s\b | %\(\w+\)s\b )
    | (?P<quoted> "(?:[^"]|"")*+"? | `[^`]*+`?
        | (?:(?<=\.)|(?<=from\s)|(?<=join\s)|(?<=into\s)|(?<=table\s)|(?<=update\s))\[[^\[\]]{1,128}\] )
    | (?P<bracketed> \[[^\W\d][\w\x20]{0,128}\] )
    | (?P<braces> \{[{%] | [}%]\} )
    | (?P<rest> \w[\w$]*+ | . )
"""

_key: Final = urandom(16)  # what was asked must not be guessable from the digests that are kept
_known: Final[dict[bytes, bytes]] = {}

# Read through the descriptors of `type` itself: the plain attributes would ask the class's metaclass.
_module: Final[Callable[[type], Any]] = type.__dict__["__module__"].__get__
_qualname: Final[Callable[[type], str]] = type.__dict__["__qualname__"].__get__


def available() -> bool:
    """Return whether sqlglot is installed, without importing it."""
    try:
        return find_spec("sqlglot") is not None
    except (AttributeError, ImportError, ValueError):
        return False


def shape(sql: object) -> bytes:
    """Return the 16-byte digest of a query's shape. It never raises, and runs no code of the value.

    Text of more than 65 536 characters is not read: its first and last 32 768 characters and its length stand for it,
    values included. Bytes are read as UTF-8. Anything that is neither text nor bytes counts by its type.

    Args:
        sql: the query.

    Returns:
        The digest: the same in every process that has the same sqlglot.
    """
    try:
        parts = _excerpt(sql)
        if len(parts) == 1:
            return _recall(parts[0])
        if parts:
            return _digest(b"long", " ".join(parts))
        module = _module(type(sql))
        return _digest(b"type", f"{module if type(module) is str else ''}.{_qualname(type(sql))}")
    except Exception:  # noqa: BLE001  whatever a caller may pass: the guard must not be what fails
        return bytes(16)


def _digest(kind: bytes, text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=kind).digest()


def _excerpt(sql: object) -> tuple[str, ...]:
    """Return the text; or length and ends of a long one; or nothing where there is no text."""
    kind: Any = next((kind for kind in (str, bytes, bytearray) if issubclass(type(sql), kind)), None)
    if kind is None:
        return ()
    size = kind.__len__(sql)
    cuts = (slice(None),) if size <= _BOUND else (slice(_BOUND // 2), slice(-_BOUND // 2, None))
    parts = [kind.__getitem__(sql, cut) for cut in cuts]
    texts = [part if kind is str else part.decode("utf-8", "surrogateescape") for part in parts]
    return (*texts, str(size)) if len(texts) > 1 else tuple(texts)


def _recall(text: str) -> bytes:
    key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=_key).digest()
    known = _known.get(key)
    if known is None:
        known = _digest(b"query", " ".join(_fold(_Scanner().read(_rewritten(text.removeprefix("\ufeff"))))))
        if len(_known) >= _KEPT:
            # Forgetting one by one needs a lock or an order; forgetting all costs one more reading in 512.
            _known.clear()
        _known[key] = known
    return known


@cache
def _grammar() -> tuple[tuple[Callable[[], Any], ...], dict[int, str]]:
    """Return the tokenizers to try, and the quotes in which their tokens are written again."""
    from sqlglot import Tokenizer  # noqa: PLC0415  100 ms, and only for tools that declare a query
    from sqlglot import TokenType as Kind  # noqa: PLC0415  as above

    standard = {
        # A command would take the rest of its statement for a text, and commands in commands overflow the C stack.
        "COMMANDS": set(),
        "SINGLE_TOKENS": {**Tokenizer.SINGLE_TOKENS, "$": Kind.PARAMETER},
        "VAR_SINGLE_TOKENS": {"$"},
        "IDENTIFIERS": ['"', "`"],
        "COMMENTS": ["--", ("/*", "*/"), "# "],
        "RAW_STRINGS": ["$$"],
        "BYTE_STRINGS": [(f"{prefix}'", "'") for prefix in ("b", "B", "e", "E", "r", "R", "u&", "U&", "x", "X")],
        "BYTE_STRING_ESCAPES": ["'", "\\"],
    }
    escaped = {**standard, "STRING_ESCAPES": ["'", "\\"], "NESTED_COMMENTS": False}
    literals = (Kind.STRING, Kind.NATIONAL_STRING, Kind.BYTE_STRING, Kind.RAW_STRING)
    tokenizers = (type("_Standard", (Tokenizer,), standard), type("_Escaped", (Tokenizer,), escaped))
    return tokenizers, {**dict.fromkeys(literals, "'"), Kind.IDENTIFIER: '"'}


def _rewritten(text: str) -> str:
    try:
        tokenizers, quotes = _grammar()
    except Exception:  # noqa: BLE001  not installed, or broken: the scanner still tells shapes apart
        return text
    for tokenizer in reversed(tokenizers) if "\\'" in text else tokenizers:
        try:
            return _rewrite(tokenizer(), text, quotes)
        except Exception:  # noqa: BLE001, S112  not SQL as this tokenizer knows it; the next one may
            continue
    return text


def _rewrite(tokenizer: Any, text: str, quotes: dict[int, str]) -> str:
    """Write the text again with literals in `'`, names in `"`, one space for each gap, and no comments."""
    parts: list[str] = []
    end, before = -1, ""
    for token in tokenizer.tokenize(text):
        quote = quotes.get(token.token_type, "")
        if token.start > end + 1 or (quote and quote == before):
            parts.append(" ")
        end, before = token.end, quote
        parts.append(quote + token.text.replace(quote, quote * 2) + quote if quote else token.text)
    return "".join(parts)


class _Scanner:
    """Turns text into words: a value becomes `?`, a name loses or keeps its case, the rest is as written."""

    __slots__ = ("_template", "_words")

    def __init__(self) -> None:
        self._words: list[str] = []
        self._template = False

    def read(self, text: str) -> list[str]:
        words = self._words
        for match in re.finditer(_SCAN, text):
            kind = match.lastgroup
            if kind == "word":
                words.append(match[0].casefold())
            elif kind != "gap":
                getattr(self, kind or "rest")(match[0])
        return words[:-1] if words and words[-1] == ";" else words

    def _before(self) -> str:
        return self._words[-1] if self._words else ";"

    def value(self, text: str) -> None:
        words = self._words
        if self._template:
            words.append(repr(text))
            return
        while self._before() in ("-", "+") and (len(words) == 1 or words[-2] in _OPENING):
            words.pop()
        words.append(_VALUE)

    def variable(self, text: str) -> None:
        (self.rest if self._before() in _NAMING else self.value)(text)

    def format(self, text: str) -> None:
        if self._before() in _OPENING:
            self.value(text)
        else:
            self._words.extend(("%", text[1:].casefold()))

    def quoted(self, text: str) -> None:
        self._words.append('"' + repr(text[1:-1].replace(text[0] * 2, text[0])))

    def bracketed(self, text: str) -> None:
        if self._before() in _OPENING:
            self.quoted(text)
        else:
            self._words.extend(("[", *text[1:-1].casefold().split(), "]"))

    def braces(self, text: str) -> None:
        self._template = text[0] == "{"
        self._words.append(text)

    def rest(self, text: str) -> None:
        if text != ";" or self._before() != ";":
            self._words.append(text.casefold())


class _List:
    """An open bracket, and where in the output its present item begins."""

    __slots__ = ("kind", "seen", "start")

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind  # "in", "values" (the rows), "row", "[", or "(" for every other
        self.start = start
        self.seen: set[str] = set()

    def end_item(self, out: list[str]) -> None:
        """Keep one word for the item just read, or none if the list has had its like."""
        size = len(out) - self.start
        if self.kind == "row":
            if out[-1] in _CONSTANTS and out[-2] in ("(", ","):
                out[-1] = _VALUE
        elif size and (self.kind in ("in", "values") or (size == 1 and out[-1] == _VALUE)):
            item = out[-1] if size == 1 else "#" + _digest(b"item", " ".join(out[self.start :])).hex()
            del out[self.start :]
            item = _VALUE if item in _CONSTANTS else item
            if item not in self.seen:
                self.seen.add(item)
                out.append(item)
        self.start = len(out)


def _fold(words: list[str]) -> list[str]:
    """Fold each list to its distinct items. However deep the brackets, each word is hashed once."""
    out: list[str] = []
    lists: list[_List] = []
    for at, word in enumerate(words):
        if word in ("(", "["):
            out.append(word)
            lists.append(_List(_kind(words, at, lists), len(out)))
        elif word in (",", ")", "]") and lists:
            lists[-1].end_item(out)
            _go_on(words, at, lists, out)
        else:
            out.append(word)
            if word == "values" and _is_row(words, at + 1):
                lists.append(_List(word, len(out)))
    return out


def _kind(words: list[str], at: int, lists: list[_List]) -> str:
    if lists and lists[-1].kind == "values":
        return "row"
    follows_in = words[at] == "(" and at and words[at - 1] == "in"
    return "in" if follows_in and words[at + 1 : at + 2] and words[at + 1] not in _QUERIES else words[at]


def _is_row(words: list[str], at: int) -> bool:
    return words[at : at + 1] == ["("] or words[at : at + 2] == ["row", "("]


def _go_on(words: list[str], at: int, lists: list[_List], out: list[str]) -> None:
    """Write a comma, unless it parts items that are folded; or close a list, and the rows around it after the last."""
    if words[at] == ",":
        if lists[-1].kind not in ("in", "values", "["):
            out.append(",")
        return
    lists.pop()
    out.append(words[at])
    if lists and lists[-1].kind == "values" and not (words[at + 1 : at + 2] == [","] and _is_row(words, at + 2)):
        lists.pop().end_item(out)
