"""An agent that waits for a person: one process asks and ends, another goes on where it stopped, and the call runs once.

    python examples/approval.py

plays it all in a directory of its own. The steps are commands that you can also give yourself:

    python examples/approval.py ask DIR        the agent wants to refund 200 euros; a gate refuses and the run is saved
    python examples/approval.py approve DIR    a person says yes to that very call
    python examples/approval.py go-on DIR      another process resumes the run, and the model makes the call again

A script plays the model and nothing needs a network or a key.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import toolguard
from toolguard import Refusal, metered

Message = dict[str, Any]

# ---- The tool, and the gate in front of it. ----

HERE = Path()  # where this conversation is kept
APPROVED: set[str] = set()
WAITING: dict[str, str] = {}


def small_or_approved(call: toolguard.Call) -> str | None:
    """Let small refunds pass, and those that a person has approved: these very arguments and no others."""
    if call.arguments["euros"] <= 50 or call.identity in APPROVED:  # noqa: PLR2004 - the example's rule
        return None
    WAITING[call.identity] = f"{call.tool}({dict(call.arguments)})"
    return "a person has to approve it first. You will be told; wait."


@metered(kind="send", gate=small_or_approved)
def refund(order: str, euros: int) -> str:
    """Pay the price of an order back."""
    with (HERE / "refunds.txt").open("a") as book:
        book.write(f"{order} {euros}\n")
    return f"refunded {euros} euros for {order}"


# ---- The agent loop. It ends where it waits for a person, and what it needs to go on is JSON. ----


def agent(run: toolguard.Run, messages: list[Message]) -> None:
    """Let the model call tools until it answers, is stopped, or a person is asked."""
    while not run.stopped:
        run.turn()
        reply = model(messages)
        messages.append(reply)
        if "tool_calls" not in reply:
            return tell("the model answers", reply["content"])
        for call in reply["tool_calls"]:
            content = refund(**json.loads(call["function"]["arguments"]))
            tell("refused by", f"{content.reason}: {content}") if isinstance(content, Refusal) else tell("ran", content)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if WAITING:
            return save(run, messages)
    return tell("stopped", run.stop_message)


def save(run: toolguard.Run, messages: list[Message]) -> None:
    """Write down what the next process needs: no argument is in the snapshot, all of them are in the messages."""
    paused = json.dumps({"messages": messages, "snapshot": run.snapshot(), "waiting": WAITING})
    (HERE / "paused.json").write_text(paused)
    tell("saved", f"{len(messages)} messages and a snapshot, {len(paused)} characters of JSON")


def model(messages: list[Message]) -> Message:
    """Answer as a model that trusts nobody: once the refund has run, it asks for it again to be sure."""
    last = messages[-1]
    if last["role"] == "tool" and "exactly this was sent already" in last["content"]:
        return {"role": "assistant", "content": "The refund of 200 euros for A-18 was made."}
    arguments = json.dumps({"order": "A-18", "euros": 200})
    call = {"id": f"call_{len(messages)}", "type": "function", "function": {"name": "refund", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tell(what: str, more: object) -> None:
    """Print a line of this process."""
    print(f"[process {os.getpid()}] {what}: {more}")


# ---- The three steps. ----


def ask() -> None:
    """Begin the conversation."""
    with toolguard.run("clerk", session="A-18", tools=[refund]) as run:
        agent(run, [{"role": "user", "content": "Order A-18 never arrived. I want my money back."}])


def approve() -> None:
    """Say yes to what is waiting, by the identity that the gate saw."""
    waiting: dict[str, str] = json.loads((HERE / "paused.json").read_text())["waiting"]
    (HERE / "approved.json").write_text(json.dumps(list(waiting)))
    tell("a person approves", ", ".join(waiting.values()))


def go_on() -> None:
    """Resume the run. Whoever renames the file goes on with it, so that a second worker finds nothing."""
    try:
        taken = (HERE / "paused.json").rename(HERE / "taken.json")
    except FileNotFoundError:
        return tell("nothing to do", "another process has taken this conversation")
    paused = json.loads(taken.read_text())
    if (HERE / "approved.json").exists():
        APPROVED.update(json.loads((HERE / "approved.json").read_text()))
    messages = [*paused["messages"], {"role": "user", "content": "A person has looked at your refund. Try it again."}]
    with toolguard.resume(paused["snapshot"], tools=[refund]) as run:
        agent(run, messages)
    return tell("used", run.usage().to_dict())


def main() -> None:
    """Run one step, or all of them, each in a process of its own."""
    global HERE  # noqa: PLW0603 - set once
    parser = argparse.ArgumentParser(description="An agent that waits for a person.")
    parser.add_argument("step", nargs="?", choices=["ask", "approve", "go-on"])
    parser.add_argument("directory", nargs="?", type=Path)
    given = parser.parse_args()
    if given.step:
        if given.directory is None:
            parser.error("which directory is the conversation kept in?")
        HERE = given.directory
        {"ask": ask, "approve": approve, "go-on": go_on}[given.step]()
        return
    with tempfile.TemporaryDirectory() as directory:
        for step in ("ask", "approve", "go-on", "go-on"):
            subprocess.run([sys.executable, __file__, step, directory], check=True)  # noqa: S603 - this very script
        made = (Path(directory) / "refunds.txt").read_text().splitlines()
    print(f"refunds made: {len(made)} ({', '.join(made)})")


if __name__ == "__main__":
    main()
