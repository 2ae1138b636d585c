"""Helpers for the tests of programs that use toolguard."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from toolguard import _config, _registry, _session
from toolguard._clock import Clock
from toolguard._refusal import Refusal

__all__ = ["FakeClock", "assert_executed", "assert_refused", "isolated"]


class FakeClock:
    """A clock that stands still until it is told to go on.

    Attributes:
        now: seconds, as the run sees them.
    """

    def __init__(self, now: float = 0.0) -> None:
        """Start at `now` seconds."""
        self.now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds


@contextmanager
def isolated(source: Mapping[str, Any] | None = None, *, clock: Clock | None = None) -> Generator[None]:
    """Run a test apart: with a copy of the registry and no file, environment, session or current run.

    All is restored after.

    Args:
        source: the content of `[tool.toolguard]` for this test; by default nothing is configured.
        clock: the clock of the runs that start inside.

    Raises:
        ConfigError: `source` cannot be used.
    """
    settings = _config.replace(_config.from_mapping(source or {}))
    specs = _registry.replace()
    former = _session.set_clock(clock)
    sessions = _session.forget_sessions()
    remember = _session.forget()
    try:
        yield
    finally:
        remember()
        _session.forget_sessions(sessions)
        _session.set_clock(former)
        _registry.replace(specs)
        _config.replace(settings)


def assert_refused(result: object, reason: str | None = None) -> Refusal:
    """Return `result` as the refusal that it is.

    Args:
        result: what a tool returned.
        reason: the reason it should name.

    Raises:
        AssertionError: it is no refusal, or names another reason.
    """
    if not isinstance(result, Refusal):
        msg = f"expected a refusal, but the call executed and returned {type(result).__name__}"
        raise AssertionError(msg)
    if reason is not None and result.reason != reason:
        msg = f"expected a refusal by {reason}, got one by {result.reason}: {result}"
        raise AssertionError(msg)
    return result


def assert_executed(result: object) -> None:
    """Check that `result` is no refusal.

    Raises:
        AssertionError: it is one; the message is its text.
    """
    if isinstance(result, Refusal):
        msg = f"expected the call to execute, but it was refused: {result}"
        raise AssertionError(msg)
