"""The shape of a query: what stays of its text when the values are taken out.

Two queries have one shape if they differ only in

- literals (text, numbers, hex, bits, bytes, national, dollar-quoted), their sign, and bind placeholders in their place,
- comments, white space, the case of keywords and of unquoted identifiers, a byte order mark, empty statements,
- how many items an `IN (...)`, `VALUES (...), (...)` or `ARRAY[...]` lists, as long as the items are of the same shapes.

Identifiers and structure are the shape. Quoted identifiers keep their case, whichever quotes they wear. TRUE, FALSE and
NULL are structure (`IS NULL`), except as items of such a list. What stands in a template (`{{ ref('orders') }}`) is taken
literally, since it usually names a table. `"x"` is an identifier everywhere, also where a dialect would take it for text.

The dialect is not known, so sqlglot's base tokenizer reads the text, told of the quotes that no dialect contradicts. If it
cannot (an unterminated quote), a reading with backslash escapes is tried, then a plain scanner of our own that knows less.
sqlglot's parser is never used: it recurses and takes seconds where the tokenizer takes milliseconds.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from os import urandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from sqlglot.tokens import Token, Tokenizer

__all__ = ["available", "shape"]

_BOUND: Final = 1 << 16  # characters
_END: Final = 1 << 15
_KEPT: Final = 512
_KEY: Final = urandom(16)
_known: Final[dict[bytes, bytes]] = {}

_VALUE: Final = "?"
_CONSTANTS: Final = frozenset({"null", "true", "false"})
_QUERIES: Final = frozenset({"select", "with", "values", "table", "from"})
_NAMING: Final = frozenset({"from", "join", "into", "update", "table", "."})
_OPENING: Final = frozenset("=<>!~+-*/%^&|,([{:;")
_LEADERS: Final = frozenset(
    "all and any between by case distinct div else escape except for from glob group\x20by having ilike in intersect interval "
    "like limit mod next not offset on or order\x20by partition\x20by qualify regexp return returning rlike select set similar\x20to "
    "some then to top union using values when where with xor".replace("\x20by", "_by").replace("\x20to", "_to").split()
)
