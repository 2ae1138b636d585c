"""Time, tokens and money: what a run may cost, with all runs nested in it. Past the limit the run ends."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from toolguard._text import counted
from toolguard._values import CERTAIN, Call, Key, Refused, Tally, Tool, Wall

MICROS: Final = 1_000_000


def _limit(key: str) -> Callable[[Tool, Mapping[str, Any], int | None], Any]:
    return lambda _tool, limits, _own: limits[key] or None


def limit_cost(_tool: Tool, limits: Mapping[str, Any], _own: int | None) -> int | None:
    usd = limits["cost_usd"]
    return max(1, round(usd * MICROS)) if usd else None


def looked_deadline(tally: Tally, n: float, now: float) -> Refused | None:
    passed = now - tally.began
    return Refused("deadline_s", round(passed, 3), n, "never", stops=True) if passed >= n else None


def admit_deadline(tally: Tally, n: float, call: Call) -> Refused | None:
    return looked_deadline(tally, n, call.now)


def spent_tokens(tally: Tally, n: int) -> Refused | None:
    return Refused("tokens", tally.tokens, n, "never", stops=True) if tally.tokens > n else None


def spent_cost(tally: Tally, n: int) -> Refused | None:
    if tally.micros <= n:
        return None
    return Refused("cost_usd", tally.micros / MICROS, n / MICROS, "never", stops=True)


def admit_tokens(tally: Tally, n: int, _call: Call) -> Refused | None:
    return spent_tokens(tally, n)


def slack_tokens(tally: Tally, n: int) -> int:
    return 0 if spent_tokens(tally, n) else CERTAIN


def admit_cost(tally: Tally, n: int, _call: Call) -> Refused | None:
    return spent_cost(tally, n)


def slack_cost(tally: Tally, n: int) -> int:
    return 0 if spent_cost(tally, n) else CERTAIN


def _text(what: Callable[[Refused], str]) -> Callable[[Refused, str], str]:
    return lambda why, _tool: (
        f"{what(why)}. The run is stopped and no further call will run in it. Answer now with what you have."
    )


def _ending(what: Callable[[Refused], str], more: str) -> Callable[[Refused], tuple[str, str]]:
    return lambda why: (what(why), f"ask for a smaller part of the task, or {more}")


def _deadline(why: Refused) -> str:
    return f"the run has taken {counted(why.used, 'seconds')} and its limit is {why.limit:g}"


def _tokens(why: Refused) -> str:
    return f"the run has spent {counted(why.used, 'tokens')} and its limit is {why.limit}"


def _cost(why: Refused) -> str:
    return f"the run has spent {_dollars(why.used)} and its limit is {_dollars(why.limit)}"


def _dollars(amount: float | None) -> str:
    """Write an amount to the cent, and beyond as far as it goes."""
    whole, _, parts = f"{amount:.6f}".partition(".")
    return f"${whole}.{parts.rstrip('0').ljust(2, '0')}"


DEADLINE = Wall(
    name="deadline_s",
    keys=(
        Key(
            "deadline_s",
            (0, 0, 0),
            "Seconds from the run's start, nested runs included. 0: no deadline, so check a computed rest before you pass it.",
            kind="amount",
        ),
    ),
    limit=_limit("deadline_s"),
    state=lambda tally: tally,
    about="seconds since the run began; at the limit the run is **stopped** when it is next looked at",
    text=_text(_deadline),
    ending=_ending(_deadline, "raise the run's deadline"),
    scope="tree",
    needs=frozenset({"now"}),
    admit=admit_deadline,
    looked=looked_deadline,
)

TOKENS = Wall(
    name="tokens",
    keys=(
        Key(
            "tokens",
            (0, 0, 0),
            "Tokens that the run and all runs nested in it may spend, as `run.spend()` is told. 0: no limit.",
        ),
    ),
    limit=_limit("tokens"),
    state=lambda tally: tally,
    about="tokens, as the program reports them with `run.spend()`; past the limit the run is **stopped**",
    text=_text(_tokens),
    ending=_ending(_tokens, "raise the run's token limit"),
    scope="tree",
    admit=admit_tokens,
    spent=spent_tokens,
    slack=slack_tokens,
)

COST = Wall(
    name="cost_usd",
    keys=(
        Key(
            "cost_usd",
            (0, 0, 0),
            "Dollars that the run and all runs nested in it may spend, as `run.spend()` is told; counted in millionths. "
            "0: no limit.",
            kind="amount",
        ),
    ),
    limit=limit_cost,
    state=lambda tally: tally,
    about="dollars, as the program reports them with `run.spend()`; past the limit the run is **stopped**",
    text=_text(_cost),
    ending=_ending(_cost, "raise the run's cost limit"),
    scope="tree",
    admit=admit_cost,
    spent=spent_cost,
    slack=slack_cost,
)
