"""What the tests of all walls share: a run without its public face, in which one call is one line."""

from types import SimpleNamespace

import pytest

from toolguard._clock import tick
from toolguard._ledger import Ledger
from toolguard._values import Call, Tool
from toolguard.walls import KEYS, TABLE

# Every limit off, so that a test says which it is about.
OFF = {name: "unchanged" if name == "adaptive_signal" else 0 for name in KEYS}


class Lab:
    """One ledger, and calls in it."""

    def __init__(self, *, parent=None, observe=(), own=None, **limits):
        self.ledger = Ledger(
            TABLE,
            {**OFF, **limits},
            parent=parent.ledger if parent else None,
            observe=frozenset(observe),
            own=own or {},
        )

    def start(self, tool, identity=b"", *, query=None):
        """Return a call that was made and is not admitted yet."""
        plan = self.ledger.plan(tool)
        return Call(plan.tool, plan, identity, query, self.ledger.turn, tick())

    def admit(self, call):
        return self.ledger.admit(call, call.plan)

    def end(self, call, why=None, *, outcome="ok", digest=None, inner=False):
        call.outcome, call.digest, call.inner = outcome, digest, inner
        self.ledger.end(call, why)

    def attempt(self, tool, identity=b"", *, query=None, **end):
        """Make a call from its start to its end; return the refusal, if any."""
        call = self.start(tool, identity, query=query)
        why = self.admit(call)
        self.end(call, why, **end)
        return why

    def reason(self, tool, identity=b"", **more):
        why = self.attempt(tool, identity, **more)
        return None if why is None else why.reason

    @property
    def stopped(self):
        stop = self.ledger.ended_by()
        return stop and stop.why.reason


def tool(name, kind="read", **more):
    return Tool(name, name, kind, **more)


@pytest.fixture(scope="session")
def lab():
    return Lab


@pytest.fixture(scope="session")
def tools():
    return SimpleNamespace(
        read=tool("read"),
        other=tool("other"),
        send=tool("send", "send"),
        post=tool("post", "send"),
        own_read=tool("own_read", limit=3),
        free_read=tool("free_read", limit=0),
        own_send=tool("own_send", "send", limit=2),
        free_send=tool("free_send", "send", limit=0),
        query=tool("query", query=True),
        query_send=tool("query_send", "send", query=True),
        polls=tool("polls", polls=True),
    )
