"""The wheel alone, with nothing installed beside it: a budget, a soft limit, a race, repetitions, a long result and a stop."""

import logging
import threading

import toolguard
from toolguard import Refusal, metered

logging.disable(logging.CRITICAL)


@metered(kind="read")
def read(number: int) -> int:
    """Return the number."""
    return number


with toolguard.run("assistant", aggregate=0) as run:
    answers = [read(number) for number in range(55)]
refused = [answer for answer in answers if isinstance(answer, Refusal)]
assert answers[:40] == list(range(40))
assert len(refused) == 15
for refusal in refused:
    assert (refusal.reason, refusal.used, refusal.limit, refusal.executed) == ("per_tool", 40, 40, False)
    assert "did NOT execute" in refusal


def make(name: str):  # noqa: ANN201
    """Return a tool of that name."""

    @metered(kind="read", name=name)
    def tool(number: int) -> int:
        return number

    return tool


tools = [make(f"tool_{letter}") for letter in "abcdefgh"]
with toolguard.run("assistant", refused_calls=0) as run:
    answers = [tool(number) for tool in tools for number in range(39)]
    assert sum(not isinstance(answer, Refusal) for answer in answers) == 40
    refusal = tools[0](1000)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "aggregate"
    assert tools[0](1000) == 1000

for _ in range(200):
    with toolguard.run("assistant", per_tool=10, aggregate=0, refused_calls=0) as run:
        barrier = threading.Barrier(32)

        def race(number: int, barrier: threading.Barrier = barrier) -> None:
            """Call once, together with all others."""
            barrier.wait()
            read(number)

        threads = [threading.Thread(target=run.bind(race), args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (run.usage().executed, run.usage().refused) == (10, 22)


@metered(kind="read")
def page(name: str) -> str:
    """Return more text than one result may have."""
    return f"{name}: " + "x" * 100_000


@metered(kind="send")
def send(text: str) -> str:
    """Send one message."""
    return f"sent {text}"


with toolguard.run("assistant") as run:
    assert [read(7), read(7), read(7)] == [7, 7, 7]
    again = read(7)
    assert isinstance(again, Refusal)
    assert (again.reason, again.used, again.limit, again.retry) == ("same_outcome", 3, 3, "different")
    assert (send("once"), send("twice")) == ("sent once", "sent twice")
    duplicate = send("once")
    assert isinstance(duplicate, Refusal)
    assert (duplicate.reason, duplicate.rule, duplicate.executed) == ("duplicate_send", "sent", False)
    cut = page("front")
    assert not isinstance(cut, Refusal)
    assert cut.startswith("front: xxx")
    assert "cut" in cut.splitlines()[-1]
    assert len(cut) <= 50_000
    assert (run.usage().executed, run.usage().refused) == (6, 2)

with toolguard.run("assistant", hard_cap=12) as run:
    answers = [read(number) for number in range(14)]
    assert [isinstance(answer, Refusal) for answer in answers] == [False] * 12 + [True] * 2
    assert run.stopped
    assert "12" in run.stop_message
    assert "read" in run.stop_message

with toolguard.run("assistant", per_tool=1) as run:
    for _ in range(21):
        read(1)
    assert run.stop_reason == "refused_calls"

print("the wheel alone: ok")
