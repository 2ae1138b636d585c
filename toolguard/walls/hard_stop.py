"""The one wall that ends a run. A cap that somebody set is exact and counts the tree; the adaptive one spares long work."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from toolguard._text import counted
from toolguard._values import Call, Key, Reading, Refused, Tally, Tool, Wall


class Adaptive(NamedTuple):
    """The adaptive rule's numbers: where it starts to look, where it stops regardless (0: never), and what is stuck."""

    soft: int
    hard: int
    repeats: int


class Stuck:
    """How often each identity ran since anything new came back, which is as long as the tally's `news` stand still.

    With the signal `any` the counts are attempts, refused ones included, and nothing clears them.
    """

    __slots__ = ("counts", "news", "tally", "top")

    counts: dict[bytes, int]
    news: int
    tally: Tally
    top: int

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.counts = {}
        self.news = self.top = 0

    def count(self, identity: bytes) -> None:
        """Count one more run of `identity`."""
        # Past this many identities without anything new, the oldest counts say nothing any more.
        if len(self.counts) >= _MOST_COUNTS and identity not in self.counts:
            self.counts.clear()
        self.counts[identity] = n = self.counts.get(identity, 0) + 1
        self.top = max(self.top, n)


_MOST_COUNTS = 4096


def limit_explicit(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    return limits["hard_cap"] or None


def admit_explicit(tally: Tally, n: int, _call: Call) -> Refused | None:
    return Refused("hard_stop", tally.tree, n, "never", "explicit", stops=True) if tally.tree >= n else None


def slack_explicit(tally: Tally, n: int) -> int:
    return n - tally.tree


def reading_explicit(tally: Tally, n: int) -> Reading:
    return Reading(tally.tree, n)


def _limit_adaptive(signal: str, limits: Mapping[str, Any]) -> Adaptive | None:
    soft = limits["adaptive_soft"]
    if limits["hard_cap"] is not None or not soft or limits["adaptive_signal"] != signal:
        return None
    return Adaptive(soft, soft * limits["adaptive_multiplier"], limits["adaptive_repeats"])


def limit_unchanged(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> Adaptive | None:
    return _limit_adaptive("unchanged", limits)


def limit_any(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> Adaptive | None:
    return _limit_adaptive("any", limits)


def _admit_adaptive(s: Stuck, n: Adaptive, top: int) -> Refused | None:
    used = s.tally.external
    if used < n.soft:
        return None
    if n.hard and used >= n.hard:
        return Refused("hard_stop", used, n.hard, "never", "backstop", stops=True)
    if n.repeats and top >= n.repeats:
        return Refused("hard_stop", used, n.soft, "never", "stuck", stops=True)
    return None


def admit_unchanged(s: Stuck, n: Adaptive, _call: Call) -> Refused | None:
    # What was new ran once; only what came after it is counted.
    return _admit_adaptive(s, n, s.top if s.news == s.tally.news else 1)


def admit_any(s: Stuck, n: Adaptive, call: Call) -> Refused | None:
    return _admit_adaptive(s, n, max(s.top, 0 if call.tool.polls else s.counts.get(call.identity, 0) + 1))


def slack_adaptive(s: Stuck, n: Adaptive) -> int:
    return n.soft - s.tally.external


def repeated_unchanged(s: Stuck, _n: Adaptive, call: Call) -> bool:
    if not call.tool.polls:
        if s.news != s.tally.news:
            s.news, s.counts, s.top = s.tally.news, {s.tally.newest: 1}, 1
        s.count(call.identity)
    return False


def charge_any(s: Stuck, _n: Adaptive, call: Call) -> None:
    if not call.tool.polls:
        s.count(call.identity)


def release_any(s: Stuck, _n: Adaptive, call: Call) -> None:
    if s.counts.get(call.identity):
        s.counts[call.identity] -= 1


def refused_any(s: Stuck, n: Adaptive, call: Call, _at: int) -> None:
    charge_any(s, n, call)


def text(why: Refused, _tool: str) -> str:
    match why.rule:
        case "stuck":
            what = f"the run is past {counted(why.limit, 'tool calls')} and keeps repeating calls that bring nothing new"
        case _:
            what = f"the run has made {counted(why.used, 'tool calls')} and its hard limit is {why.limit}"
    return f"{what}. The run is stopped and no further call will run in it. Answer now with what you have."


def ending(why: Refused) -> tuple[str, str]:
    match why.rule:
        case "stuck":
            what = f"past {counted(why.limit, 'calls')} the run kept repeating calls that brought nothing new"
        case "backstop":
            what = f"the run reached the hard limit of {counted(why.limit, 'tool calls')}, which guards against a runaway loop"
        case _:
            what = f"the run reached its hard limit of {counted(why.limit, 'tool calls')}"
    return what, "ask for a smaller part of the task, or raise the run's tool-call limit"


_ABOUT = "all calls of the run and, for a cap that was set, of the runs nested in it; past the limit the run is **stopped**"

HARD_CAP = Wall(
    name="hard_stop",
    keys=(
        Key(
            "hard_cap",
            (None, None, None),
            "Calls that the run and all runs nested in it may make; exactly so many execute, the next stops the run. "
            "Not set: the adaptive rule. 0: no hard stop at all.",
        ),
    ),
    limit=limit_explicit,
    state=lambda tally: tally,
    about=_ABOUT,
    text=text,
    ending=ending,
    scope="tree",
    admit=admit_explicit,
    slack=slack_explicit,
    reading=reading_explicit,
    beyond="then the run ends",
)

UNCHANGED = Wall(
    name="hard_stop",
    keys=(
        Key(
            "adaptive_soft",
            (100, 100, 100),
            "Calls of a run before the adaptive rule looks at all. 0: never. The number is the adaptive cap document's.",
        ),
        Key(
            "adaptive_multiplier",
            (10, 10, 10),
            "Times `adaptive_soft`: calls at which the run is stopped regardless. 0: no such backstop. "
            "The number is the adaptive cap document's.",
        ),
        Key(
            "adaptive_repeats",
            (6, 6, 6),
            "Runs of one identical call, with nothing new in between, that count as stuck. 0: only the backstop. "
            "The number is the adaptive cap document's.",
        ),
        Key(
            "adaptive_signal",
            ("unchanged", "unchanged", "unchanged"),
            "`unchanged`: any new result clears the repeats. `any`: every attempt counts and nothing clears them.",
            choices=("unchanged", "any"),
        ),
    ),
    limit=limit_unchanged,
    state=Stuck,
    about=_ABOUT,
    text=text,
    ending=ending,
    needs=frozenset({"identity", "digest"}),
    admit=admit_unchanged,
    repeated=repeated_unchanged,
    slack=slack_adaptive,
)

ANY = Wall(
    name="hard_stop",
    keys=(),
    limit=limit_any,
    state=Stuck,
    about=_ABOUT,
    text=text,
    ending=ending,
    needs=frozenset({"identity"}),
    admit=admit_any,
    charge=charge_any,
    release=release_any,
    refused=refused_any,
    slack=slack_adaptive,
)
