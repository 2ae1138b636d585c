"""Budgets, refusals and OpenTelemetry traces for the plain functions that an LLM agent calls as tools.

Decorate functions with `@metered(kind="read")` or `@metered(kind="send")` and call them inside `with toolguard.run(...)`.
A call that a budget does not allow is not executed and returns a `Refusal`, which is a text for the model.
"""

from toolguard import _session
from toolguard._config import configure, settings
from toolguard._errors import ConfigError, MissingExtraError, NotExecuted
from toolguard._gate import Call
from toolguard._metered import metered, spec
from toolguard._refusal import Refusal
from toolguard._registry import Spec, registered
from toolguard._run import Run, current_run, resume, run
from toolguard._session import uncounted
from toolguard._values import Usage
from toolguard.walls import Limits

__all__ = [
    "Call",
    "ConfigError",
    "Limits",
    "MissingExtraError",
    "NotExecuted",
    "Refusal",
    "Run",
    "Spec",
    "Usage",
    "configure",
    "current_run",
    "metered",
    "registered",
    "resume",
    "run",
    "settings",
    "spec",
    "uncounted",
]

__version__ = "0.1.0"

_session.VERSION = __version__
