"""What a failure says, without what differs each time: so that the same failure looks the same twice."""

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["of_error", "of_value"]

_READ: Final = 4096  # of a message; what a signature keeps is far shorter
_KEPT: Final = 200
# Linear: no two of these can match the same text in more than one way, and the first characters decide each.
_VARIABLE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9a-f]{12,}|\d+", re.ASCII
)


def of_error(name: str, error: BaseException) -> str:
    """Return the signature of an exception whose type is called `name`. Its own `__str__` may fail, which is no matter."""
    try:
        message = str.__str__(str(error))[:_READ]  # what `__str__` returned may have methods of its own
    except Exception:  # noqa: BLE001  it is the user's code
        message = ""
    return _normal(f"{name}: {message}")


def of_value(value: Any) -> str:
    """Return the signature of a returned value that reports a failure: what it says of itself, as far as that is text."""
    said = value
    try:
        if isinstance(value, Mapping):
            said = value.get("error") or value.get("message") or value.get("content") or ""
        if isinstance(said, Mapping):
            said = said.get("message") or said.get("type") or said.get("code") or ""
        text = f"returned: {str.__str__(said)[:_READ] if isinstance(said, str) else type(said).__name__}"
    except Exception:  # noqa: BLE001  it is the user's code, a type's name included
        text = "returned:"
    return _normal(text)


def _normal(text: str) -> str:
    """Lower the case, put `#` for what varies, fold white space and keep the beginning."""
    return " ".join(_VARIABLE.sub("#", text[: 2 * _READ].lower()).split())[:_KEPT]
