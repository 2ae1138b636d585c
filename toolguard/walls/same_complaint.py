"""One tool, other arguments each time, and always the same complaint: what comparing whole calls cannot see."""

from collections.abc import Mapping
from typing import Any, Final

from toolguard._text import counted
from toolguard._values import CERTAIN, Call, Key, Probe, Recent, Refused, Tally, Tick, Tool, Wall, unread

PREFIX: Final = 60
_KEPT: Final = 64


class Complaint:
    """One complaint of one tool.

    Attributes:
        identities, turns: the distinct arguments and the distinct turns that brought it, as many as any limit needs.
        at: logical time at which it was last heard; what was in flight then is the same observation.
    """

    __slots__ = ("at", "identities", "turns")

    at: Tick
    identities: set[bytes]
    turns: set[Tick]

    def __init__(self) -> None:
        self.identities = set()
        self.turns = set()
        self.at = 0

    def hear(self, call: Call, n: int, at: int) -> None:
        """Count a call that failed with it, as far as the limit `n`, or the likely one of another run, needs it."""
        most = max(n, _KEPT)
        if call.started > self.at:
            if len(self.identities) < most:
                self.identities.add(call.identity)
            if len(self.turns) < most:
                # Outside any marked turn a call is a turn of its own. Both are logical times, which differ from each other.
                self.turns.add(call.turn or call.started)
        self.at = at

    @property
    def times(self) -> int:
        """How often it was heard: the lesser of the arguments and the turns."""
        return min(len(self.identities), len(self.turns))


class Complaining:
    """One tool since its last success.

    Attributes:
        complaints: what it complained of, by a digest of the signature's beginning.
        refused: logical time at which a refusal was back with the caller; a call that started later is a probe. None: the
            next call is refused.
        probe: the call in flight that may find out whether the tool works again.
    """

    __slots__ = ("complaints", "probe", "refused")

    complaints: Recent[bytes, Complaint]
    probe: Probe
    refused: Tick | None

    def __init__(self) -> None:
        self.complaints = Recent(64)
        self.refused = None
        self.probe = None

    @property
    def times(self) -> int:
        """How often the most frequent complaint was heard."""
        return max((self.complaints.get(each) or Complaint()).times for each in self.complaints)


class Complaints:
    """The session's complaining tools, and the highest number of times that any complaint was heard."""

    __slots__ = ("most", "tools")

    most: int
    tools: Recent[str, Complaining]

    def __init__(self, _tally: Tally) -> None:
        self.tools = Recent(256)
        self.most = 0


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["same_complaint"] or None


def admit(s: Complaints, n: int, call: Call) -> Refused | None:
    tool = s.tools.get(call.tool.canonical)
    if tool is None or (times := tool.times) < n:
        return None
    if tool.probe is None and tool.refused is not None and call.started > tool.refused:
        return None
    return Refused("same_complaint", times, n, "later")


def permit(s: Complaints, n: int, call: Call) -> None:
    tool = s.tools.get(call.tool.canonical)
    # A call that runs only because the wall observes is no probe.
    if tool is not None and tool.times >= n and admit(s, n, call) is None:
        tool.probe = call


def _give_back(s: Complaints, _n: int, call: Call) -> None:
    tool = s.tools.get(call.tool.canonical)
    if tool is not None and tool.probe is call:
        tool.probe = None


def refused(s: Complaints, n: int, call: Call, at: int) -> None:
    if "same_complaint" in call.mine:
        tool = s.tools.get(call.tool.canonical)
        if tool is not None and tool.refused is None and tool.times >= n:
            tool.refused = at


def succeeded(s: Complaints, _n: int, call: Call, _at: int) -> None:
    if s.most:
        s.tools.drop(call.tool.canonical)
        s.most = s.most if len(s.tools) else 0


def failed(s: Complaints, n: int, call: Call, at: int) -> bool:
    if call.signature is None:
        _give_back(s, n, call)
        return False
    most = s.most
    name, complaint = call.tool.canonical, unread(call.signature[:PREFIX])
    tool = s.tools.get(name) or Complaining()
    s.tools.put(name, tool)
    heard = tool.complaints.get(complaint) or Complaint()
    tool.complaints.put(complaint, heard)
    heard.hear(call, n, at)
    s.most = max(s.most, heard.times)
    if tool.probe is call:
        tool.probe = tool.refused = None
    return s.most > most  # whatever the limit here, another run of the session may have reached its own


def slack(s: Complaints, n: int) -> int:
    return CERTAIN if s.most < n else 0


def text(why: Refused, tool: str) -> str:
    return (
        f"{counted(why.used, 'calls')} of it with different arguments failed with the same complaint and the limit is "
        f"{why.limit}. Another spelling will not help: read the complaint, and ask the user or use another tool. "
        f"If you have found the cause, the next call of {tool} will be tried."
    )


WALL = Wall(
    name="same_complaint",
    keys=(
        Key(
            "same_complaint",
            (5, 5, 5),
            "Failures of one tool with the same complaint, in distinct arguments and distinct turns, in a session; from then "
            "on its calls are refused and tried in turn, until one succeeds. At 5 no successful recorded run is touched, at "
            "3 ten are.",
        ),
    ),
    limit=limit,
    state=Complaints,
    about="one tool failing with the same complaint whatever its arguments; past the limit its calls are refused and tried "
    "in turn, until one succeeds",
    text=text,
    scope="session",
    needs=frozenset({"identity", "signature"}),
    admit=admit,
    permit=permit,
    release=_give_back,
    failed=failed,
    succeeded=succeeded,
    passed=_give_back,
    refused=refused,
    slack=slack,
)
