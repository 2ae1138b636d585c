"""Gates: what a program decides of a single call, before anything is charged. A gate that cannot decide refuses."""

import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from toolguard import _telemetry
from toolguard._errors import NotExecuted
from toolguard._session import log
from toolguard._values import Kind

if TYPE_CHECKING:  # pragma: no cover
    from toolguard._run import Run

__all__ = ["Call", "Gate", "aask", "ask", "takes_time"]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What a gate is asked about.

    Attributes:
        tool: the registered name.
        kind: `read` or `send`.
        arguments: the bound arguments by name, defaults included: the very objects that the function will get.
        identity: digest of the tool and its arguments, in hexadecimal: equal for the same call. It stays the same in other
            runs of the session and where a snapshot of the run is resumed. Arguments that cannot be compared, such as open
            files, count by their type alone.
        id: a new id for each attempt.
        run: the run in which the call is made; None outside one.
    """

    tool: str
    kind: Kind
    arguments: Mapping[str, Any] = field(repr=False)
    identity: str
    run: "Run | None"
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


Gate = Callable[[Call], str | None] | Callable[[Call], Awaitable[str | None]]


def takes_time(gate: Gate) -> bool:
    """Say whether a gate must be awaited."""
    return inspect.iscoroutinefunction(gate) or inspect.iscoroutinefunction(getattr(gate, "__call__", None))  # noqa: B004  a callable object's own


def ask(gate: Gate, call: Call) -> str | None:
    """Return None where the call may run; otherwise what the model is to read."""
    try:
        answer: Any = gate(call)
        must_wait = inspect.isawaitable(answer)
    except Exception as error:  # noqa: BLE001  whatever it is, the gate did not say yes
        return _failed(call, error)
    if must_wait:
        if inspect.iscoroutine(answer):
            answer.close()
        log(logging.WARNING, "the gate of %s returned an awaitable, and only async tools can wait for one", call.tool)
        return _UNDECIDED
    return _checked(call, answer)


async def aask(gate: Gate, call: Call) -> str | None:
    """Return the same for an async tool, whose gate may be async too."""
    try:
        answer: Any = gate(call)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:  # noqa: BLE001  whatever it is, the gate did not say yes
        return _failed(call, error)
    return _checked(call, answer)


_UNDECIDED: Final = "its gate could not decide. Do not try again; tell the user."


def _failed(call: Call, error: Exception) -> str:
    if isinstance(error, NotExecuted):
        return error.message
    # What an exception says may hold arguments; its type does not.
    log(logging.WARNING, "the gate of %s raised %s, so the call was refused", call.tool, _telemetry.type_name(error))
    return _UNDECIDED


def _checked(call: Call, answer: Any) -> str | None:
    if answer is None:
        return None
    if issubclass(type(answer), str):  # `isinstance` would ask the answer for its `__class__`
        return str.__str__(answer)
    kind = type(answer).__name__
    log(logging.WARNING, "the gate of %s returned a %s, so the call was refused; return None or a text", call.tool, kind)
    return _UNDECIDED
