"""Errors for programmers and operators. A refusal is never one of them: it is a value (see `Refusal`)."""

from collections.abc import Sequence

__all__ = ["ConfigError", "MissingExtraError", "NotExecuted"]


class ConfigError(ValueError):
    """The configuration, or the limits given to `run()`, cannot be used as they are.

    Attributes:
        problems: every problem found, one line each, as `place: key: what is wrong (what would be right)`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        """Collect all problems into one message, so that one edit can mend them all."""
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class MissingExtraError(ImportError):
    """A feature was asked for whose optional dependency is not installed.

    The message names the feature and the command that installs it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature and the extra of the distribution `toolguard-otel` that brings it."""
        super().__init__(f"{feature} needs the extra {extra!r}: pip install 'toolguard-otel[{extra}]'")


class NotExecuted(Exception):  # noqa: N818  the design's word: it reports what happened, and is no error of anyone
    """Raised by a tool to say that nothing ran.

    The charge is released and the caller gets a `Refusal` with `reason="gate"` whose text holds the message verbatim.

    Args:
        message: what the model should read: why nothing ran and what to do next.
    """

    def __init__(self, message: str = "") -> None:
        """Keep the message for the refusal's text."""
        self.message = message
        super().__init__(message)
