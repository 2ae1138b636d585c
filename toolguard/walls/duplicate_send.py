"""The same message twice: an identical send that succeeded, or is on its way, is not sent again."""

from collections.abc import Mapping
from typing import Any

from toolguard._identity import is_opaque
from toolguard._text import times
from toolguard._values import Call, Flying, Key, Recent, Refused, Tally, Tool, Wall


class Sent:
    """Sends of one identity that succeeded or are in flight, and how many of them are in flight."""

    __slots__ = ("flying", "held")

    flying: Flying
    held: int

    def __init__(self) -> None:
        self.held = self.flying = 0


class Sends:
    """The run's sends by identity."""

    __slots__ = ("sent",)

    sent: Recent[bytes, Sent]

    def __init__(self, _tally: Tally) -> None:
        self.sent = Recent(4096)


def limit(tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["duplicate_send"] or None if tool.kind == "send" and not tool.repeatable else None


def admit(s: Sends, n: int, call: Call) -> Refused | None:
    sent = s.sent.get(call.identity)
    if sent is None or sent.held < n or is_opaque(call.identity):
        return None
    # While one is in flight it may yet fail, and then this one may go.
    return Refused("duplicate_send", sent.held, n, "later" if sent.flying else "different", "flying" if sent.flying else "sent")


def charge(s: Sends, _n: int, call: Call) -> None:
    sent = s.sent.get(call.identity) or Sent()
    s.sent.put(call.identity, sent)
    sent.held += 1
    sent.flying += 1


def release(s: Sends, _n: int, call: Call) -> None:
    _land(s, call, held=False)


def settle(s: Sends, _n: int, call: Call, _at: int) -> None:
    _land(s, call, held=call.outcome == "ok")


def _land(s: Sends, call: Call, *, held: bool) -> None:
    sent = s.sent.get(call.identity)
    if sent is not None and sent.flying:
        sent.flying -= 1
        sent.held -= not held
        if not sent.held:
            s.sent.drop(call.identity)


def text(why: Refused, _tool: str) -> str:
    if why.rule == "flying":
        return (
            "exactly this is being sent at this moment. Wait for its result; only if that fails, send it again. "
            f"An identical send runs {times(why.limit)} at most in a run."
        )
    return (
        f"exactly this was sent already in this run and an identical send runs {times(why.limit)} at most. "
        "It succeeded: do not send it again, and do not reword it for that purpose."
    )


WALL = Wall(
    name="duplicate_send",
    keys=(
        Key(
            "duplicate_send",
            (1, 1, 1),
            "Identical sends a run that may succeed or be in flight. Tools declared `repeatable` are exempt. "
            "On recorded runs 1 touches no success.",
        ),
    ),
    limit=limit,
    state=Sends,
    about="identical sends that succeeded or are in flight; a further one is refused",
    text=text,
    needs=frozenset({"identity"}),
    admit=admit,
    charge=charge,
    release=release,
    settle=settle,
    passed=release,
)
