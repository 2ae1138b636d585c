"""The identical retry: a call that failed twice the same way is refused, then tried once more, since conditions change."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolguard._text import times
from toolguard._values import CERTAIN, Call, Key, Probe, Recent, Refused, Tally, Tick, Tool, Wall, unread


class Patience(NamedTuple):
    """How many identical failures run, and whether any success that is new forgives them all."""

    failures: int
    progress_clears: bool


class Failing:
    """How one identity keeps failing.

    Attributes:
        signature: what it failed with last, as a digest: an error's text may hold arguments.
        times: how often in a row, parallel twins counted once.
        at: logical time of the last of these.
        refused: logical time at which its first refusal was back with the caller, None before: only a call that started
            later is a probe.
        probe: the call that may find out whether it works again, while it is in flight. A result counts as the probe's only
            if it is this very call's, so that what an older one comes to changes nothing.
        closed: the probe failed the same way.
    """

    __slots__ = ("at", "closed", "probe", "refused", "signature", "times")

    at: Tick
    closed: bool
    probe: Probe
    refused: Tick | None
    signature: bytes
    times: int

    def __init__(self, signature: bytes, at: int) -> None:
        self.signature = signature
        self.times = 1
        self.at = at
        self.refused = None
        self.probe = None
        self.closed = False


class Failures:
    """The session's failing identities, and the highest number of failures in a row that any of them reached."""

    __slots__ = ("failing", "most")

    failing: Recent[bytes, Failing]
    most: int

    def __init__(self, _tally: Tally) -> None:
        self.failing = Recent(1024)
        self.most = 0


def limit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> Patience | None:
    n = limits["repeat_failure"]
    return Patience(n, limits["progress_clears"]) if n else None


def admit(s: Failures, n: Patience, call: Call) -> Refused | None:
    failing = s.failing.get(call.identity)
    if failing is None or failing.times < n.failures:
        return None
    if not failing.closed and failing.probe is None and failing.refused is not None and call.started > failing.refused:
        return None
    rule = "closed" if failing.closed else "failing"
    return Refused("repeat_failure", failing.times, n.failures, "later", rule)


def permit(s: Failures, n: Patience, call: Call) -> None:
    failing = s.failing.get(call.identity)
    # A call that runs only because the wall observes is no probe.
    if failing is not None and failing.times >= n.failures and admit(s, n, call) is None:
        failing.probe = call


def _give_back(s: Failures, _n: Patience, call: Call) -> None:
    failing = s.failing.get(call.identity)
    if failing is not None and failing.probe is call:
        failing.probe = None


def refused(s: Failures, n: Patience, call: Call, at: int) -> None:
    if "repeat_failure" in call.mine:
        failing = s.failing.get(call.identity)
        if failing is not None and failing.refused is None and failing.times >= n.failures:
            failing.refused = at


def succeeded(s: Failures, n: Patience, call: Call, _at: int) -> None:
    if n.progress_clears and call.news:
        s.failing.clear()
        s.most = 0
        return
    failing = s.failing.get(call.identity)
    if failing is not None and (failing.probe is call or call.started > failing.at):
        s.failing.drop(call.identity)


def failed(s: Failures, n: Patience, call: Call, at: int) -> bool:
    failing, most = s.failing.get(call.identity), s.most
    signature = unread(call.signature) if call.signature is not None else None
    if signature is None:
        _give_back(s, n, call)
    elif failing is None:
        s.failing.put(call.identity, Failing(signature, at))
        s.most = max(s.most, 1)
    elif failing.probe is call or call.started > failing.at:
        if failing.signature != signature:
            s.failing.put(call.identity, Failing(signature, at))
        else:
            if failing.probe is call:
                failing.closed, failing.probe = True, None
            failing.times += 1
            s.most = max(s.most, failing.times)
            failing.at = at
    else:
        failing.at = at  # a parallel twin: the same observation
    return s.most > most  # whatever the limit here, another run of the session may have reached its own


def slack(s: Failures, n: Patience) -> int:
    return CERTAIN if s.most < n.failures else 0


def text(why: Refused, tool: str) -> str:
    what = f"exactly this call has failed {times(why.used)} in the same way and the limit is {why.limit}"
    if why.rule == "closed":
        return (
            f"{what}, the last one a retry after a refusal. It stays refused in this session. "
            "Change the arguments, use another tool, or tell the user what is missing."
        )
    return (
        f"{what}. It needs something that repeating cannot bring: change the arguments, or ask the user for what is missing. "
        f"If you know that the cause is gone, call {tool} once more like this and it will be tried."
    )


WALL = Wall(
    name="repeat_failure",
    keys=(
        Key(
            "repeat_failure",
            (2, 2, 2),
            "Identical calls that may fail the same way, in a session; the next is refused, the one after that is tried. "
            "2 leaves a transient fault its natural retry; it is the per-run budgets document's.",
        ),
        Key(
            "progress_clears",
            (True, True, False),
            "Any success whose result is new to the session forgives all failures, so that fixing and running again passes.",
            kind="flag",
        ),
    ),
    limit=limit,
    state=Failures,
    about="one identical call failing with the same error; past the limit it is refused once, then tried once, and refused "
    "for the session if that fails the same way",
    text=text,
    scope="session",
    needs=frozenset({"identity", "digest", "signature"}),
    admit=admit,
    permit=permit,
    release=_give_back,
    failed=failed,
    succeeded=succeeded,
    passed=_give_back,
    refused=refused,
    slack=slack,
)
