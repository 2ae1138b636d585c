"""Broad enumeration over many tools. Past the cap a call must be asked twice, and a loop never asks the same thing twice."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toolguard._text import counted
from toolguard._values import Call, Key, Reading, Recent, Refused, Tally, Tick, Tool, Trace, Wall

_ALONE: Final = frozenset({"aggregate"})


class Flag(NamedTuple):
    """A refusal that an identical call may confirm.

    Attributes:
        at: logical time at which the refusal was back with the caller; only a call that started later confirms.
        turn: the marked turn of the refusal, in which nothing confirms; 0: none was marked.
        trace: the refused call's span, for the confirming call to link to.
    """

    at: Tick
    turn: Tick
    trace: Trace


class Soft:
    """The run's counts, and which identities have been refused once."""

    __slots__ = ("flags", "tally")

    flags: Recent[bytes, Flag]
    tally: Tally

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.flags = Recent()


def limit(tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["aggregate"] or None if tool.kind != "send" else None


def admit(s: Soft, n: int, call: Call) -> Refused | None:
    if s.tally.reads < n:
        return None
    flag = s.flags.get(call.identity)
    if flag is None or call.started < flag.at or (flag.turn and flag.turn == call.turn):
        return Refused("aggregate", s.tally.reads, n, "identical")
    call.confirms = flag.trace
    return None


def refused(s: Soft, _n: int, call: Call, at: int) -> None:
    # Refused alone: where another wall also said no, repeating the call would not make it run.
    if call.mine == _ALONE and s.flags.get(call.identity) is None:
        s.flags.put(call.identity, Flag(at, call.turn, call.trace))


def slack(s: Soft, n: int) -> int:
    return n - s.tally.reads


def reading(s: Soft, n: int) -> Reading:
    return Reading(s.tally.reads, n)


def text(why: Refused, _tool: str) -> str:
    return (
        f"this run has made {counted(why.used, 'reads')} and its soft limit is {why.limit}, from which on each new call is "
        "refused once. If exactly this call is necessary, repeat it with the same arguments in your next turn and it will run. "
        "If you are going through records one by one, stop and answer with what you have."
    )


WALL = Wall(
    name="aggregate",
    keys=(
        Key(
            "aggregate",
            (40, 0, 0),
            "Reads of all tools a run; past it each new call is refused once and runs when repeated identically. "
            "The number is the four-walls article's.",
        ),
    ),
    limit=limit,
    state=Soft,
    about="reads of all tools; past the limit each new call is refused once, and its identical repeat runs",
    text=text,
    needs=frozenset({"identity"}),
    admit=admit,
    refused=refused,
    slack=slack,
    reading=reading,
    unit="reads",
    beyond="after that every new call is refused once",
)
