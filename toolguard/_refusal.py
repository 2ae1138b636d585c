"""What the model and the user read: refusals, the last message of a stopped run, and notes."""

from collections.abc import Mapping
from typing import Any, Final, Literal, NoReturn, Self, final

from toolguard._text import counted
from toolguard._values import Kind, Reading, Refused, Retry, Stop
from toolguard.walls import BY_NAME

__all__ = ["Refusal", "converge", "refusal", "stop_message", "stream_cut", "withheld"]

_FIELDS: Final = ("reason", "rule", "tool", "kind", "used", "limit", "retry", "run_id")


@final
class Refusal(str):
    """The answer to a call that did not execute. It is a `str`: the text that the model reads and re-plans from.

    Every SDK and framework passes a `str` on to the model as readable text, which no other shape achieves. Tell it from a
    tool's own text by its type: `isinstance(result, Refusal)`. It is truthy, immutable, picklable and copyable, encodes to
    JSON as its text, and is a valid pydantic type.

    Attributes:
        executed: always `False`.
        reason: the wall's name, or `gate`, `busy`, `outside_run`, `stop`.
        rule: which of the wall's rules fired, or `None`.
        tool: the tool's registered name.
        kind: `read` or `send`.
        used: calls charged when it was decided, this call excluded; `None` where nothing was counted. Seconds, tokens or
            dollars where the reason is `deadline_s`, `tokens` or `cost_usd`.
        limit: the limit then in force, in the same unit; `None` where nothing was counted.
        retry: `identical` (the same call will run when repeated), `different`, `later` or `never`.
        run_id: the run that refused, or `None` outside a run.
    """

    __match_args__ = ("reason",)

    executed: Literal[False] = False
    reason: str
    rule: str | None
    tool: str
    kind: Kind
    used: int | float | None
    limit: int | float | None
    retry: Retry
    run_id: str | None

    def __new__(cls, text: str, **fields: Any) -> Self:
        """Make a refusal with the given text and fields; a missing field is `None`.

        Raises:
            TypeError: there is no such field.
        """
        if unknown := fields.keys() - set(_FIELDS):
            msg = f"a Refusal has no field {', '.join(sorted(unknown))} (fields: {', '.join(_FIELDS)})"
            raise TypeError(msg)
        self = super().__new__(cls, text)
        self.__dict__.update({name: fields.get(name) for name in _FIELDS})
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return every field with `status="refused"` and `text`, as plain data; no key is a `LogRecord` attribute."""
        fields = {name: self.__dict__[name] for name in _FIELDS}
        return {"status": "refused", "executed": False, **fields, "text": str.__str__(self)}

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        return f"Refusal({self.reason}: {str.__repr__(self)})"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        msg = f"a Refusal is immutable: cannot set {name}"
        raise AttributeError(msg)

    def __delattr__(self, name: str) -> NoReturn:
        msg = f"a Refusal is immutable: cannot delete {name}"
        raise AttributeError(msg)

    def __copy__(self) -> "Refusal":
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Refusal":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (str.__str__(self), {name: self.__dict__[name] for name in _FIELDS})

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Validate by type and serialise as the text, so that `R | Refusal` works as a response model."""
        from pydantic_core import core_schema  # noqa: PLC0415  only where pydantic asks for it

        return core_schema.json_or_python_schema(
            json_schema=core_schema.str_schema(),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(_plain, return_schema=core_schema.str_schema()),
        )


def _restore(text: str, fields: Mapping[str, Any]) -> Refusal:
    return Refusal(text, **fields)


def _plain(value: Any) -> str:
    return str.__str__(value)


def refusal(why: Refused, tool: str, kind: Kind, run_id: str | None, message: str | None = None) -> Refusal:
    """Put a refusal into words.

    Args:
        why: what was decided.
        tool: the registered name.
        kind: the tool's kind.
        run_id: the run that refused.
        message: what a gate or a `NotExecuted` said; it is passed on verbatim.
    """
    body = _reason_text(why, tool) if message is None else message
    return Refusal(
        f"{tool} did NOT execute: {body}" if body else f"{tool} did NOT execute.",
        reason=why.reason,
        rule=why.rule,
        tool=tool,
        kind=kind,
        used=why.used,
        limit=why.limit,
        retry=why.retry,
        run_id=run_id,
    )


def _reason_text(why: Refused, tool: str) -> str:
    if wall := BY_NAME.get(why.reason):
        return wall.text(why, tool)
    return _OTHER_REASONS[why.reason]


_OTHER_REASONS: Final = {
    "busy": "the budget was being decided by the very thread that asked. Nothing was charged; try the same call again.",
    "stop": "the run was stopped and no further call will run in it. Answer now with what you have.",
    "outside_run": "no run is open here, and this program runs its tools only inside one. Do not try again; tell the user "
    "that the tool cannot be used.",
    "gate": "it asked not to be run.",
}


def stop_message(stop: Stop) -> str:
    """Write the last assistant message of a stopped run, for the user: what ran, which limit, how to go on."""
    if stop.message is not None:
        return stop.message
    total = sum(stop.calls.values()) + stop.nested
    listed = ", ".join(f"{name} {n}" for name, n in sorted(stop.calls.items(), key=lambda item: (-item[1], item[0])))
    if stop.nested:
        listed += f"{', ' if listed else ''}{stop.nested} by the agents it called"
    done = f"I stopped after {counted(total, 'tool calls')}" + (f" ({listed})" if listed else "")
    wall = BY_NAME.get(stop.why.reason)
    if wall is None or wall.ending is None:
        return f"{done}: the run was stopped. No answer was finished."
    what, cure = wall.ending(stop.why)
    return f"{done}: {what}. No answer was finished. To go on, {cure}."


def withheld(tool: str, size: int, limit: int) -> str:
    """Write what stands for a result once the run's output budget is spent: the call ran, and must not read as refused."""
    return (
        f"{tool} DID execute, but its result of {counted(size, 'characters')} was cut entirely: the results of this run may "
        f"have {counted(limit, 'characters')} and none is left. Do not call it again for the same; answer now with what you "
        "have and say what you could not read."
    )


def stream_cut(tool: str, items: int, chars: int) -> str:
    """Write the last item of a stream of which no more is handed on."""
    return (
        f"[the output of {tool} was cut here, after {counted(items, 'items')} with {counted(chars, 'characters')}; no more may "
        "be handed on. Ask for less: a filter, a page, or fewer fields.]"
    )


def converge(wall: str, reading: Reading) -> str:
    """Write the note for a run that nears a limit: spent, left, and how to end with an answer."""
    left, near = max(0, reading.limit - reading.used), BY_NAME[wall]
    all_of_it, are = counted(reading.limit, near.unit), "is" if reading.used == 1 else "are"
    return (
        f"{reading.used} of the {all_of_it} of this run {are} spent, {left} left; {near.beyond}. "
        "Converge now: answer with what you have, say what you could not check, and suggest a narrower question for the rest."
    )
