"""What type checkers see of the public names. Checked by mypy and pyright, both strict; never run."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, assert_type

import toolguard
from toolguard import Call, NotExecuted, Refusal, Run, Spec, Usage, metered, spec
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated

# Functions of every kind ----------------------------------------------------------------------------------------------


@metered(kind="read")
def count(query: str, /, limit: int = 20, *, exact: bool = False) -> int:
    raise NotExecuted(query)


@metered(kind="read")
def text(query: str) -> str:
    return query


@metered(kind="send", name="post", limit=3, polls=False, ignore=("wait",))
async def post(body: str, wait: float = 1.0) -> list[str]:
    return [body]


@metered(kind="read")
def lines(path: str) -> Iterator[str]:
    yield path


@metered(kind="read")
def echo(first: str) -> Generator[str, int, bool]:
    got = yield first
    return bool(got)


@metered(kind="read")
async def feed(path: str) -> AsyncIterator[str]:
    yield path


@metered(kind="read")
async def channel(path: str) -> AsyncGenerator[str, int]:
    yield path


@metered(kind="read")
def anything(query: str) -> Any:
    return query


@metered(kind="read")
def opaque(query: str) -> object:
    return query


@metered(kind="read")
def nothing(query: str) -> None:
    assert query


@metered(kind="read")
def optional(query: str) -> dict[str, int] | None:
    return {query: 1}


@metered(kind="read", query=("path", "sql"))
def run_sql(path: str, sql: str) -> list[tuple[int, ...]]:
    return [(len(path), len(sql))]


@metered(kind="read", query=lambda arguments: arguments["sql"], failed=lambda value: value is None)
def run_other_sql(sql: str) -> str | None:
    return sql


# mypy picks the overload for coroutines where a generic function could return one, and then reports a false error at the
# call. Annotate a tool's result with what it is, or with `object`; a model's tool is hardly ever generic.
@metered(kind="read")
def listed(item: str) -> list[str]:
    return [item]


def functions() -> None:
    assert_type(count("a"), int | Refusal)
    assert_type(count("a", 3, exact=True), int | Refusal)
    assert_type(text("a"), str | Refusal)
    assert_type(anything("a"), Any)  # type: ignore[no-untyped-call]  # mypy alone; `-> object` spares it
    shown: object = opaque("a")
    assert shown
    assert_type(nothing("a"), Refusal | None)
    assert_type(optional("a"), dict[str, int] | Refusal | None)
    assert_type(run_sql("a", sql="b"), list[tuple[int, ...]] | Refusal)
    assert_type(run_other_sql("a"), str | Refusal | None)
    assert_type(listed("a"), list[str] | Refusal)


def narrowing() -> int:
    result = count("a")
    if isinstance(result, Refusal):
        assert_type(result, Refusal)
        return 0
    assert_type(result, int)
    return result


def narrowing_of_a_text() -> str:
    result = text("a")
    if isinstance(result, Refusal):
        assert_type(result.reason, str)
        return result.tool
    assert_type(result, str)
    return result


def matching() -> int:
    match count("a"):
        case Refusal(reason) as refusal:
            assert_type(reason, str)
            assert_type(refusal, Refusal)
            return 0
        case value:
            assert_type(value, int)
            return value


def fields(refusal: Refusal) -> None:
    assert_type(refusal.executed, Literal[False])
    assert_type(refusal.reason, str)
    assert_type(refusal.rule, str | None)
    assert_type(refusal.tool, str)
    assert_type(refusal.kind, Literal["read", "send"])
    assert_type(refusal.used, int | float | None)
    assert_type(refusal.limit, int | float | None)
    assert_type(refusal.retry, Literal["identical", "different", "later", "never"])
    assert_type(refusal.run_id, str | None)
    assert_type(refusal.to_dict(), dict[str, Any])
    assert_type(refusal.count("a"), int)
    message: dict[str, str] = {"role": "tool", "content": refusal}
    assert message


async def coroutines() -> None:
    assert_type(await post("a"), list[str] | Refusal)
    made: Coroutine[Any, Any, list[str] | Refusal] = post("a", wait=2.0)
    result = await made
    if not isinstance(result, Refusal):
        assert_type(result, list[str])


async def streams() -> None:
    for line in lines("a"):
        assert_type(line, str | Refusal)
    made = echo("a")
    assert_type(made, Generator[str | Refusal, int, bool | None])
    assert_type(made.send(1), str | Refusal)
    async for item in feed("a"):
        assert_type(item, str | Refusal)
    async for piece in channel("a"):
        assert_type(piece, str | Refusal)
    assert_type(await channel("a").asend(1), str | Refusal)


# Gates and specialists ------------------------------------------------------------------------------------------------


def approve(call: Call) -> str | None:
    assert_type(call.tool, str)
    assert_type(call.kind, Literal["read", "send"])
    assert_type(call.arguments, Mapping[str, Any])
    assert_type(call.identity, str)
    assert_type(call.id, str)
    assert_type(call.run, Run | None)
    return None if call.arguments["amount"] < 10 else "ask the owner first"


async def approve_later(call: Call) -> str | None:
    return approve(call)


class Approval:
    def __call__(self, call: Call) -> str | None:
        return approve(call)


@metered(kind="send", gate=approve, repeatable=True)
def pay(amount: int) -> str:
    return str(amount)


@metered(kind="send", gate=approve_later)
async def remit(amount: int) -> str:
    return str(amount)


@metered(kind="send", gate=Approval())
async def settle(amount: int) -> str:
    return str(amount)


@metered(kind="send", gate=lambda call: call.tool)
def donate(amount: int) -> str:
    return str(amount)


@metered(kind="read", delegate=True, polls=True)
def ask(question: str) -> str:
    return question


@metered(kind="read", delegate="agent", limit=2)
async def ask_one(agent: str, question: str) -> str:
    return agent + question


async def gated() -> None:
    assert_type(pay(3), str | Refusal)
    assert_type(await remit(3), str | Refusal)
    assert_type(await settle(3), str | Refusal)
    assert_type(donate(3), str | Refusal)
    assert_type(ask("a"), str | Refusal)
    assert_type(await ask_one("a", question="b"), str | Refusal)
    assert_type(toolguard.Call("pay", "send", {"amount": 3}, "", None).id, str)


# Methods --------------------------------------------------------------------------------------------------------------


class Mailbox:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    @metered(kind="read")
    def search(self, query: str) -> list[str]:
        return [self.owner, query]

    @metered(kind="send")
    async def send(self, body: str) -> int:
        return len(body)

    @metered(kind="read")
    def walk(self, start: int) -> Iterator[int]:
        yield start

    @metered(kind="read")
    @classmethod
    def opened(cls, owner: str) -> "Mailbox":
        return cls(owner)

    @classmethod
    @metered(kind="read")
    def reopened(cls, owner: str) -> "Mailbox":
        return cls(owner)

    @metered(kind="read")
    @staticmethod
    def size(body: str) -> int:
        return len(body)

    @staticmethod
    @metered(kind="read")
    def length(body: str) -> int:
        return len(body)


async def methods(box: Mailbox) -> None:
    assert_type(box.search("a"), list[str] | Refusal)
    assert_type(Mailbox.search(box, query="a"), list[str] | Refusal)
    assert_type(await box.send("a"), int | Refusal)
    for number in box.walk(1):
        assert_type(number, int | Refusal)
    assert_type(Mailbox.opened("a"), Mailbox | Refusal)
    assert_type(box.opened("a"), Mailbox | Refusal)
    assert_type(Mailbox.reopened("a"), Mailbox | Refusal)
    assert_type(box.reopened("a"), Mailbox | Refusal)
    assert_type(Mailbox.size("a"), int | Refusal)
    assert_type(box.size("a"), int | Refusal)
    assert_type(Mailbox.length("a"), int | Refusal)
    assert_type(box.length("a"), int | Refusal)


# What is known of a tool ----------------------------------------------------------------------------------------------


async def specs(box: Mailbox) -> None:
    assert_type(spec(text).function("a"), str)
    assert_type(spec(count).function("a", 3, exact=True), int)
    posted: list[str] = await spec(post).function("a", wait=1.0)  # to mypy, which sees two overloads fit, it is Any
    assert posted
    assert_type(spec(box.search).function("a"), list[str])
    assert_type(spec(echo).function("a"), Generator[str, int, bool])
    for line in spec(lines).function("a"):
        assert_type(line, str)
    async for item in spec(feed).function("a"):
        assert_type(item, str)
    async for piece in spec(channel).function("a"):
        assert_type(piece, str)
    assert_type(spec(spec(text)).function("a"), str)
    assert_type(spec(text).name, str)
    assert_type(spec(text).kind, Literal["read", "send"])
    assert_type(spec(text).description, str)
    assert_type(toolguard.registered(), tuple[Spec[..., Any], ...])


# Runs -----------------------------------------------------------------------------------------------------------------


def runs(box: Mailbox) -> None:
    with toolguard.run(
        "assistant", session="s", tools=[count, post, box.search, Mailbox.size], per_tool=60, note_at=0.5
    ) as run:
        assert_type(run, Run)
        assert_type(run.id, str)
        assert_type(run.agent, str | None)
        assert_type(run.parent, Run | None)
        assert_type(run.stopped, bool)
        assert_type(run.stop_reason, str | None)
        assert_type(run.stop_message, str)
        assert_type(run.refusals, tuple[Refusal, ...])
        assert_type(run.notes(), list[str])
        assert_type(run.usage(), Usage)
        assert_type(run.usage().to_dict(), dict[str, Any])
        assert_type(run.usage().chars, int)
        assert_type(run.usage().tokens, int)
        assert_type(run.usage().cost_usd, float)
        assert_type(run.snapshot(), dict[str, Any])
        assert_type(toolguard.resume(run.snapshot(), tools=[text, box.search]), Run)
        run.spend(tokens=1200)
        run.spend(1200, 0.25)
        run.spend(cost_usd=Decimal("0.1"))
    assert_type(toolguard.current_run(), Run | None)


def limits(chosen: toolguard.Limits) -> None:
    with toolguard.run(**chosen):
        pass
    with toolguard.run(progress_clears=False, deadline_s=1.5, cost_usd=1, tokens=3, same_outcome=0, sessions=8):
        pass
    ours: toolguard.Limits = {"hard_cap": 3, "adaptive_signal": "any", "cost_usd": 0.5}
    with toolguard.run("a", mode="observe", profile="coding", **ours), toolguard.uncounted():
        pass


async def async_runs() -> None:
    async with toolguard.run("assistant") as run:
        assert_type(run, Run)


async def bound(run: Run, box: Mailbox) -> None:
    def plain(a: int, *, b: str = "") -> float:
        return a + len(b)

    assert_type(run.bind(plain)(1, b="c"), float)
    assert_type(run.bind(text)("a"), str | Refusal)
    assert_type(await run.bind(post)("a", wait=1.0), list[str] | Refusal)
    assert_type(run.bind(box.search)("a"), list[str] | Refusal)
    for line in run.bind(lines)("a"):
        assert_type(line, str | Refusal)


# Configuration --------------------------------------------------------------------------------------------------------


def configuration(path: Path) -> tuple[str, ...]:
    toolguard.configure()
    toolguard.configure(path)
    toolguard.configure("toolguard.toml")
    try:
        toolguard.configure({"limits": {"per_tool": 3}})
    except toolguard.MissingExtraError as missing:
        assert_type(str(missing), str)
    except toolguard.ConfigError as error:
        assert_type(error.problems, tuple[str, ...])
        return error.problems
    return tuple(sorted(toolguard.settings().local))


# What users write around tools ----------------------------------------------------------------------------------------


class Search(Protocol):
    def __call__(self, query: str) -> str | Refusal: ...


def taking(search: Search, plain: Callable[[str], str | Refusal], any_tool: Callable[..., Any]) -> None:
    search("a")
    plain("a")
    any_tool("a")


def composed(query: str) -> str | Refusal:
    found = text(query)
    if isinstance(found, Refusal):
        return found
    return found.upper()


def accepted(box: Mailbox) -> None:
    taking(text, text, count)
    taking(box_search_text(box), text, box.search)


def box_search_text(box: Mailbox) -> Search:
    @metered(kind="read")
    def search(query: str) -> str:
        return box.owner + query

    return search


def checked(result: object) -> None:
    assert_type(assert_refused(result, "per_tool"), Refusal)
    assert_executed(result)
    with isolated({"mode": "observe"}, clock=FakeClock()):
        pass
