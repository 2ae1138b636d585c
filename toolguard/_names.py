"""Every span, attribute and metric name, once.

The `gen_ai.*` names follow the GenAI semantic conventions as of mid 2026 (status: Development). They are written out
here because the Python constants are deprecated and no schema URL of a released version exists.
"""

from typing import Final, Literal, NamedTuple

__all__ = ["ATTRIBUTES", "METRICS", "Attribute", "Metric"]


class Attribute(NamedTuple):
    """One attribute, as the attributes page shows it."""

    name: str
    type: Literal["string", "boolean", "integer", "number"]
    spans: Literal["run", "call", "run, call"]
    when: str
    meaning: str


class Metric(NamedTuple):
    """One metric, as the attributes page shows it."""

    name: str
    instrument: str
    unit: str
    attributes: tuple[str, ...]
    meaning: str


SCOPE: Final = "toolguard"

EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
ERROR_TYPE: Final = "error.type"

RUN_ID: Final = "toolguard.run.id"
RUN_MISSING: Final = "toolguard.run.missing"
RUN_CALLS: Final = "toolguard.run.calls"
RUN_REFUSALS: Final = "toolguard.run.refusals"
RUN_WOULD_REFUSE: Final = "toolguard.run.would_refuse"
RUN_STOPPED: Final = "toolguard.run.stopped"
STOP_REASON: Final = "toolguard.run.stop.reason"
KIND: Final = "toolguard.tool.kind"
EXECUTED: Final = "toolguard.executed"
REFUSED: Final = "toolguard.refused"
OUTCOME: Final = "toolguard.call.outcome"
UNCOUNTED: Final = "toolguard.uncounted"
REASON: Final = "toolguard.refusal.reason"
RULE: Final = "toolguard.refusal.rule"
USED: Final = "toolguard.refusal.used"
LIMIT: Final = "toolguard.refusal.limit"
RETRY: Final = "toolguard.refusal.retry"
MESSAGE: Final = "toolguard.refusal.message"
WOULD_REFUSE: Final = "toolguard.would_refuse"
STREAM_ITEMS: Final = "toolguard.stream.items"
CHILD_STOP_REASON: Final = "toolguard.child.stop.reason"
RESULT_CUT: Final = "toolguard.result.cut"
RESULT_CHARS: Final = "toolguard.result.chars"
RESULT_HANDED: Final = "toolguard.result.handed"
RESULT_UNCUT: Final = "toolguard.result.uncut"

DURATION: Final = "gen_ai.execute_tool.duration"
CALLS: Final = "toolguard.tool.calls"

ATTRIBUTES: Final = (
    Attribute(OPERATION, "string", "run, call", "always", "`invoke_agent` on a run, `execute_tool` on a call"),
    Attribute(AGENT, "string", "run, call", "the run names an agent", "the agent that the run works for"),
    Attribute(CONVERSATION, "string", "run", "the run names a session", "the session"),
    Attribute(TOOL, "string", "call", "always", "the registered name of the tool"),
    Attribute(TOOL_TYPE, "string", "call", "always", "`function`"),
    Attribute(ARGUMENTS, "string", "call", "content capture is on", "the bound arguments as bounded JSON, secrets out"),
    Attribute(RESULT, "string", "call", "content capture is on; the call returned", "the result as bounded JSON"),
    Attribute(
        ERROR_TYPE,
        "string",
        "run, call",
        'an exception left the tool or the run; a returned value reports a failure; refused, with `refused_status = "error"`',
        "the exception's type, with its module; `tool_error`; the reason of the refusal",
    ),
    Attribute(RUN_ID, "string", "run, call", "inside a run", "the run's id; never on metrics"),
    Attribute(RUN_MISSING, "boolean", "call", "no run is open and `outside_run` is not `allow`", "always `true`"),
    Attribute(RUN_CALLS, "integer", "run", "at its end", "calls charged to the run"),
    Attribute(RUN_REFUSALS, "integer", "run", "at its end", "calls refused"),
    Attribute(
        RUN_WOULD_REFUSE, "integer", "run", "at its end, where a wall observes", "calls that observing walls would have refused"
    ),
    Attribute(RUN_STOPPED, "boolean", "run", "at its end", "the run was stopped"),
    Attribute(STOP_REASON, "string", "run", "the run was stopped", "the wall that stopped it, or `stop`"),
    Attribute(KIND, "string", "call", "always", "`read` or `send`"),
    Attribute(
        EXECUTED, "boolean", "call", "always", "the function ran; `false` where the call was refused, by the tool itself too"
    ),
    Attribute(REFUSED, "boolean", "call", "always", "the call was refused; the complement of `toolguard.executed`"),
    Attribute(UNCOUNTED, "boolean", "call", "inside `uncounted()`", "always `true`: traced, charged to nothing"),
    Attribute(
        OUTCOME,
        "string",
        "call",
        "at its end",
        "`ok`, `error`, `refused`, `not_executed`, `cancelled`, `closed` or `abandoned`",
    ),
    Attribute(REASON, "string", "call", "refused", "the wall's name, or `gate`, `busy`, `outside_run`, `stop`"),
    Attribute(
        RULE,
        "string",
        "call",
        "refused by a wall with several rules",
        "which rule: `explicit`, `stuck` or `backstop`; `failing` or `closed`; `sent` or `flying`",
    ),
    Attribute(
        USED,
        "number",
        "call",
        "refused by a wall that counts",
        "what was charged, this call excluded: calls; seconds, tokens or dollars where the limit is one of these",
    ),
    Attribute(LIMIT, "number", "call", "refused by a wall that counts", "the limit then in force, in the same unit"),
    Attribute(RETRY, "string", "call", "refused", "`identical`, `different`, `later` or `never`"),
    Attribute(MESSAGE, "string", "call", "refused by toolguard", "the text that the model gets, without content of the call"),
    Attribute(WOULD_REFUSE, "string", "call", "a wall that observes would have refused", "the first such wall"),
    Attribute(STREAM_ITEMS, "integer", "call", "a generator, at its end", "items handed out"),
    Attribute(
        CHILD_STOP_REASON, "string", "call", "a delegate whose run was stopped", "the wall that stopped that run, or `stop`"
    ),
    Attribute(RESULT_CUT, "boolean", "call", "the result was cut or replaced", "always `true`"),
    Attribute(RESULT_CHARS, "integer", "call", "the result was cut or replaced", "its characters before that; not of a stream"),
    Attribute(RESULT_HANDED, "integer", "call", "the result was cut or replaced", "the characters that were handed on"),
    Attribute(
        RESULT_UNCUT,
        "boolean",
        "call",
        "the result was passed on whole, whatever its size",
        "always `true`: it could not be measured, or has no part that can be left out",
    ),
)

METRICS: Final = (
    Metric(
        DURATION,
        "histogram",
        "s",
        (TOOL, TOOL_TYPE, AGENT, ERROR_TYPE),
        "seconds from a call's admission to its end; executed calls only",
    ),
    Metric(CALLS, "observable counter", "{call}", (TOOL, KIND, OUTCOME, REASON), "all calls, refused ones included"),
)
