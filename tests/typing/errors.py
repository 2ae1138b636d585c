"""Mistakes that type checkers must find: every line marked `# wrong`, and no other. Never run."""

from collections.abc import Iterator

import toolguard
from toolguard import Call, Refusal, metered, spec


@metered(kind="read")
def count(query: str) -> int:
    return len(query)


@metered(kind="read")
async def fetch(url: str) -> bytes:
    return url.encode()


@metered(kind="read")
def numbers(top: int) -> Iterator[int]:
    yield top


class Mailbox:
    @metered(kind="send")
    def send(self, body: str) -> list[str]:
        return [body]


def results_that_may_be_refusals(box: Mailbox) -> int:
    box.send("a").append("b")  # wrong
    for number in numbers(3):
        number.bit_length()  # wrong
    return count("a")  # wrong


async def coroutines_that_may_be_refused() -> bytes:
    fetch("a").decode()  # wrong
    return await fetch("a")  # wrong


def arguments(box: Mailbox) -> None:
    count(1)  # wrong
    count()  # wrong
    count("a", limit=3)  # wrong
    box.send()  # wrong
    numbers("3")  # wrong
    spec(count).function(1)  # wrong


def limits() -> None:
    toolguard.run("a", hard_cp=3)  # wrong
    toolguard.run("a", hard_cap="3")  # wrong
    toolguard.run("a", adaptive_signal="some")  # wrong
    toolguard.run("a", deadline="1.5")  # wrong
    toolguard.run("a", deadline_s="1.5")  # wrong
    toolguard.run("a", progress_clears=0)  # wrong
    toolguard.run("a", same_outcome=1.5)  # wrong
    toolguard.run("a", duplicate_sends=1)  # wrong
    toolguard.run("a").spend(tokens=1.5)  # wrong
    toolguard.run("a").spend(cost_usd="1.5")  # wrong
    toolguard.run("a").spend(usd=1.5)  # wrong
    toolguard.run("a", mode="observed")  # wrong
    toolguard.run("a", profile="assistent")  # wrong
    toolguard.run("a", tools=["count"])  # wrong
    toolguard.run("a").bind(count)(1)  # wrong


metered(kind="reed")  # wrong
metered(kind="read", limit="3")  # wrong
metered(kind="read", query=("path", "sql", "more"))  # wrong
metered(kind="read")(3)  # wrong
metered(kind="read", retries=3)  # wrong
metered(kind="read", delegate=3)  # wrong
metered(kind="send", repeatable="yes")  # wrong


def says_yes(call: Call) -> bool:
    return bool(call.tool)


def takes_two(call: Call, amount: int) -> str | None:
    return None if amount else call.tool


metered(kind="send", gate=says_yes)  # wrong
metered(kind="send", gate=takes_two)  # wrong
metered(kind="send", gate="ask")  # wrong


def what_a_gate_is_asked_about_does_not_change(call: Call) -> None:
    call.tool = "other"  # wrong
    call.arguments["amount"] = 3  # wrong


def a_refusal_does_not_change(refusal: Refusal) -> None:
    refusal.executed = True  # wrong
    assert refusal.cause  # wrong


class Special(Refusal):  # wrong
    pass
