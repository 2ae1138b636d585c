"""The values that the rooms hand to each other. They decide nothing and import nothing of the package."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

__all__ = [
    "CERTAIN",
    "PROFILES",
    "Call",
    "Flying",
    "Given",
    "Key",
    "Kind",
    "Outcome",
    "Probe",
    "Profile",
    "Reading",
    "Recent",
    "Refused",
    "Retry",
    "Spent",
    "Stop",
    "Tally",
    "Tick",
    "Tool",
    "Trace",
    "Usage",
    "Wall",
    "canonical",
    "unread",
]

Kind = Literal["read", "send"]
Retry = Literal["identical", "different", "later", "never"]
Outcome = Literal["ok", "error", "refused", "not_executed", "cancelled", "closed", "abandoned"]
Profile = Literal["assistant", "coding", "operations"]

CERTAIN: Final = 1 << 20
"""What a `slack` returns while nothing can make its wall refuse: more admissions than it is worth counting."""

PROFILES: Final[tuple[Profile, ...]] = ("assistant", "coding", "operations")


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """What a decorated function is to the walls. Equality is identity: a redefined function is a new tool.

    Attributes:
        name: the registered name, as the model sees it.
        canonical: the name under which counts are kept: lower case, `-` and `.` folded to `_`.
        kind: `read` gathers, `send` delivers.
        limit: the tool's own limit in calls, or None for the wall's.
        polls: an unchanged result is expected and says nothing.
        query: the tool declares a query, so that the query wall counts its shapes.
        delegate: the function is a specialist agent, so that asking it again and again is counted.
        repeatable: an identical send may be repeated.
    """

    name: str
    canonical: str
    kind: Kind
    limit: int | None = None
    polls: bool = False
    query: bool = False
    delegate: bool = False
    repeatable: bool = False


class Refused(NamedTuple):
    """A wall's no, before it becomes a text.

    Attributes:
        reason: the wall's name.
        used: what was charged when it was decided, this call excluded; None where nothing is counted. Calls, but seconds,
            tokens or dollars where the limit is one of these.
        limit: the limit then in force, in the same unit.
        retry: what may be tried again.
        rule: which of the wall's rules fired.
        stops: the wall ends the run that set the limit.
    """

    reason: str
    used: int | float | None
    limit: int | float | None
    retry: Retry
    rule: str | None = None
    stops: bool = False


class Spent(NamedTuple):
    """What the program says it has spent, in tokens and in millionths of a dollar."""

    tokens: int
    micros: int


class Stop(NamedTuple):
    """The end of a run: what decided it, and what the run had done by then.

    Attributes:
        why: the refusal that ended the run; its `reason` is `stop` when the program did.
        calls: charged calls by tool name, at that moment.
        message: the text for the user, where the program gave one.
        nested: charged calls of the runs nested in it, which `calls` does not list.
    """

    why: Refused
    calls: Mapping[str, int]
    message: str | None = None
    nested: int = 0


_NOBODY: Final[frozenset[str]] = frozenset()


class Call:
    """One logical invocation, from the wrapper to its end.

    What most calls never need is a class attribute and costs them nothing; a frozen dataclass would cost 1.9 µs a call.

    Attributes:
        tool: what is called, under the name by which this run counts it.
        plan: the tool's plan in this run; the walls do not look at it.
        identity: digest of tool and canonical arguments; empty where no wall of the plan needs it.
        query: digest of (file reference, SQL shape), or None.
        specialist: digest of the specialist that is asked, where one function serves several; else None.
        turn: the logical time at which the run's turn began in which the call was made; 0 before the first marked turn.
        started: the logical time of entry into the wrapper.
        charged: the call is in the ledger and has not been settled or released.
        outcome: what it came to, once it ended.
        digest: digest of the returned value, or None where it cannot be measured (it then counts as new).
        signature: what a failed call failed with, normalised; None where it did not fail or no wall reads it.
        size: characters of the result that its settlement charges.
        fresh: the run had not seen this outcome of this identity, or it cannot be measured.
        twin: the same outcome of the same identity was settled after this call had started, so that both are one observation.
        news: the same as `fresh`, for the session; only where the call ended well after another one failed.
        now: seconds on the run's clock when it was asked for, where a wall of the plan reads the clock.
        inner: the value is the refusal of an inner call, passed on.
        mine: names of the walls that refused the call and enforce.
        would: the first refusal by a wall that only observes.
        span, context, began: telemetry's: the span, the context that holds it, the time in seconds when it began.
        trace: the refused call's span, opaque to everything but telemetry.
        confirms: `trace` of the refused call that this one repeats on purpose.
        marks: attributes that its span gets at its end.
    """

    charged: bool = False
    outcome: Outcome = "ok"
    digest: bytes | None = None
    signature: str | None = None
    specialist: bytes | None = None
    size: int = 0
    fresh: bool = True
    twin: bool = False
    news: bool = False
    now: float = 0.0
    inner: bool = False
    mine: frozenset[str] = _NOBODY
    would: Refused | None = None
    span: Any = None
    context: Any = None
    began: float = 0.0
    trace: Any = None
    confirms: Any = None
    marks: Mapping[str, Any] | None = None

    def __init__(self, tool: Tool, plan: Any, identity: bytes, query: bytes | None, turn: int, started: int) -> None:
        self.tool = tool
        self.plan = plan
        self.identity = identity
        self.query = query
        self.turn = turn
        self.started = started


T = TypeVar("T")

# What a snapshot of a run does with a slot or a field that is no plain value.
Tick = Annotated[int, "tick"]
"""A logical time, which means nothing in another process but that it is past, and the order; 0: never."""
Flying = Annotated[int, "flying"]
"""A number of calls under way, of which another process will never hear."""
Probe = Annotated[Call | None, "flying"]
"""A call under way that was promised something."""
Trace = Annotated[Any, "trace"]
"""A span's context, for links."""
Given = Annotated[T, "given"]
"""What is not carried, since whoever resumes the run gives it anew."""


class Reading(NamedTuple):
    """How far a limit is used up."""

    used: int
    limit: int


def canonical(name: str, strip_prefixes: Sequence[str] = ()) -> str:
    """Fold a tool's name to the one under which it is counted.

    Case is folded, `-` and `.` become `_`, and the first of `strip_prefixes` that fits (folded likewise) is removed,
    unless nothing would be left.
    """
    folded = _fold(name)
    for prefix in map(_fold, strip_prefixes):
        if prefix and folded.startswith(prefix) and len(folded) > len(prefix):
            return folded[len(prefix) :]
    return folded


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def unread(text: str) -> bytes:
    """Return what tells an error's text apart from others without saying it, to be kept in its place."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A dict bounded by two generations: what was not touched for a whole generation is forgotten.

    Dropping the oldest key one by one (`pop(next(iter(d)))`) slows down as tombstones gather; this never does.
    """

    __slots__ = ("_new", "_old", "_size")

    def __init__(self, size: int = 4096) -> None:
        """Hold at least the last `size` keys and at most twice as many."""
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._size = size

    def get(self, key: K) -> V | None:
        """Return the value under `key`, or None."""
        value = self._new.get(key)
        return self._old.get(key) if value is None else value

    def put(self, key: K, value: V) -> None:
        """Store `value`, forgetting the older generation when this one is full."""
        if len(self._new) >= self._size and key not in self._new:
            self._old, self._new = self._new, {}
        self._new[key] = value

    def drop(self, key: K) -> None:
        """Forget `key`."""
        self._new.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._new.clear()
        self._old.clear()

    def __len__(self) -> int:
        return len(self._new) + sum(key not in self._new for key in self._old)

    def __iter__(self) -> Iterator[K]:
        yield from self._new
        yield from (key for key in self._old if key not in self._new)


_MOST_SEEN: Final = 8192
_MOST_SHARED: Final = 1024


class Tally:
    """What every wall may read and only the ledger writes: each count is kept once.

    Attributes:
        external: charged calls of this run that no configuration calls local.
        tree: the same, with all runs nested below.
        reads: the reads among `external`.
        sends: the sends among `external` that draw on the common reserve: those of tools without a limit of their own.
        by_tool: `external` by canonical tool name.
        settled: calls that ran and ended, local ones included.
        chars: characters of the results that were handed on.
        tokens, micros: what was spent in this run and all runs nested below, in tokens and in millionths of a dollar.
        began: seconds on the run's clock at its start.
        news: ended calls whose outcome was new to the run, or cannot be measured; and `newest`, the identity of the last.
        last: identity and outcome of the call that ended last, where a repetition of it would be one; else empty.
        before: what `last` was before the call that is being settled.
        shared: the outcomes that were new to the run, for the session; its runs add to one list.
    """

    __slots__ = (
        "_new",
        "_old",
        "before",
        "began",
        "by_tool",
        "chars",
        "external",
        "last",
        "micros",
        "newest",
        "news",
        "reads",
        "sends",
        "settled",
        "shared",
        "tokens",
        "tree",
    )

    _new: dict[bytes, Tick]
    _old: dict[bytes, Tick]
    before: bytes
    began: Given[float]
    by_tool: dict[str, int]
    chars: int
    external: int
    last: bytes
    micros: int
    newest: bytes
    news: int
    reads: int
    sends: int
    settled: int
    shared: Given[list[bytes]]
    tokens: int
    tree: int

    def __init__(self, began: float = 0.0, shared: list[bytes] | None = None) -> None:
        self.external = self.tree = self.reads = self.sends = self.settled = 0
        self.chars = self.tokens = self.micros = self.news = 0
        self.began = began
        self.by_tool = {}
        self.newest = self.last = self.before = b""
        self.shared = [] if shared is None else shared
        self._new, self._old = {}, {}

    def observe(self, call: Call, at: int) -> None:
        """Remember the outcome of a call that was settled at the logical time `at`, and say whether it was new.

        One that cannot be measured is always new. Two generations bound the memory; what is forgotten counts as new, so
        that forgetting never refuses.
        """
        tool, identity = call.tool, call.identity
        self.before = self.last
        if call.digest is None:
            self.news += 1
            self.newest, self.last = identity, b""
            return
        seen = identity + call.digest
        new = self._new
        last = new.get(seen)
        if last is None:
            last = self._old.get(seen)
            if len(new) >= _MOST_SEEN:
                self._old, self._new = new, {}
                new = self._new
                del self.shared[:-_MOST_SHARED]
            new[identity] = at
        new[seen] = at
        if last is None:
            self.news += 1
            self.newest = identity
            self.shared.append(seen)
            self.last = b"" if tool.polls or tool.kind == "send" else seen
        else:
            call.fresh, call.twin = False, call.started < last
            if tool.kind == "send":
                self.last = b""
            elif not tool.polls:
                self.last = seen

    def knows(self, identity: bytes) -> bool:
        """Say whether a call with this identity came to a measurable end in this run."""
        return identity in self._new or identity in self._old


class Key(NamedTuple):
    """One configuration key, contributed by a wall.

    Attributes:
        name: as written in `[tool.toolguard.limits]`, in `run(...)` and, upper-cased, after `TOOLGUARD_`.
        defaults: the value in each profile, in the order of `PROFILES`. None: not set.
        doc: one sentence for the configuration page, with unit and source.
        choices: for a key that is a word: what it may be. Empty: the key is a number.
        kind: what the value is: a whole number, a share between 0 and 1, an amount that may be a fraction, or yes or no.
    """

    name: str
    defaults: tuple[Any, Any, Any]
    doc: str
    choices: tuple[str, ...] = ()
    kind: Literal["count", "share", "amount", "flag"] = "count"


Hook = Callable[..., Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class Wall:
    """One rule, as data: the ledger knows its hooks and no wall by name. Every hook is pure in its arguments.

    `s` is the wall's own state (or the shared tally), `n` the limit that `limit` resolved. A hook left out costs nothing.
    Equality is identity: a table is searched whenever a nested run opens.

    Attributes:
        name: the reason that refusals and spans show.
        keys: the configuration keys that the wall contributes.
        limit: `(tool, limits, own) -> n`, where `own` is the tool's own limit, from its table or its decorator; None: the
            wall is not in that tool's plan.
        state: `(tally) -> s`, made once for the run or, of a session's wall, once for the session; bounded. It is the tally
            or an object of which every slot is annotated: that is how a snapshot carries it.
        about: what the wall counts and what happens at the limit, for the docs' table.
        text: `(why, tool) -> str`: why, with the numbers, and the next step, for the model. The sentence that the call
            did NOT execute is put in front of it.
        ending: `(why) -> (what happened, how to go on)`, for the user, where the wall can end a run.
        scope: whose calls the state counts: `run`, `tree` with all runs nested below, or `session` with all its runs.
        needs: which costly facts the hooks read: `identity`, `digest`, `signature`, `query`, `specialist`, `now`. Others
            are not computed.
        admit: `(s, n, call) -> Refused | None`; reads only.
        permit: `(s, n, call)`: it was asked and all walls admit the call, which takes what `admit` promised it alone.
        charge: `(s, n, call)`: the call is admitted.
        release: `(s, n, call)`: it was charged and nothing ran.
        settle: `(s, n, call, at)`: it ran and ended at the logical time `at`.
        repeated: `(s, n, call) -> bool`: it came to what the run had seen of it before; true: from now on this wall must be
            asked, whatever its `slack` promised.
        failed: `(s, n, call, at) -> bool`: it ended otherwise than well: `call.signature` says how it failed, None that it
            was cancelled, closed or abandoned; true likewise.
        succeeded: `(s, n, call, at)`: it ended well, in a session in which a call has failed.
        passed: `(s, n, call)`: it ran and handed on the refusal of an inner call, neither success nor failure.
        refused: `(s, n, call, at) -> Refused | None`: a refusal went back to the caller; `call.mine` says whose. What
            it returns ends the run.
        turned: `(s, n) -> Refused | None`: a turn closed; what it returns ends the run.
        spent: `(s, n) -> Refused | None`: tokens or money were spent; what it returns ends the run.
        looked: `(s, n, now) -> Refused | None`: somebody looked whether the run is over; what it returns ends it.
        easy: `(n) -> (size, chars)`: a result of up to `size` characters is granted unasked while the run has handed on no
            more than `chars`. It goes with `grant`.
        grant: `(s, n, handed) -> int`: how many characters the result of a call may still have, `handed` of which were
            handed on before.
        slack: `(s, n) -> int`: admissions of this run's tree that certainly pass, whatever they are, until a `settle`
            says otherwise. None: ask each time.
        reading: `(s, n) -> Reading`, where the limit is one on the whole run and notes should warn of it.
        unit: what the reading counts.
        beyond: what the note says of what follows the limit.
        note: `(s, n, turn) -> str | None`: a text of its own for `notes()`.
    """

    name: str
    keys: tuple[Key, ...]
    limit: Callable[[Tool, Mapping[str, Any], int | None], Any]
    state: Callable[[Tally], Any]
    about: str
    text: Callable[[Refused, str], str]
    ending: Callable[[Refused], tuple[str, str]] | None = None
    scope: Literal["run", "tree", "session"] = "run"
    needs: frozenset[str] = frozenset()
    admit: Hook = None
    permit: Hook = None
    charge: Hook = None
    release: Hook = None
    settle: Hook = None
    repeated: Hook = None
    failed: Hook = None
    succeeded: Hook = None
    passed: Hook = None
    refused: Hook = None
    turned: Hook = None
    spent: Hook = None
    looked: Hook = None
    easy: Hook = None
    grant: Hook = None
    slack: Hook = None
    reading: Hook = None
    unit: str = "tool calls"
    beyond: str = ""
    note: Hook = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run has used so far.

    Attributes:
        executed: calls charged: they ran, are running, or failed; local and uncounted calls excluded.
        refused: calls answered by a `Refusal`.
        by_tool: `executed` by tool name.
        by_reason: `refused` by reason.
        chars: characters of the results that were handed on, where a limit of output is on.
        tokens: what `spend` was told, runs nested below included.
        cost_usd: the same in dollars, exact to a millionth.
    """

    executed: int = 0
    refused: int = 0
    by_tool: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    by_reason: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    chars: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain, JSON-encodable data."""
        return {
            "executed": self.executed,
            "refused": self.refused,
            "by_tool": dict(self.by_tool),
            "by_reason": dict(self.by_reason),
            "chars": self.chars,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
        }
