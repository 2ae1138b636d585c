"""An agent over a real database: refused where it runs away, stopped where it does not listen, and still delivering.

    python examples/sql_agent.py [--plain]

prints what ran, what was refused and why, and the spans of each run. With `OTEL_EXPORTER_OTLP_ENDPOINT` set, for
example to http://127.0.0.1:4318, the spans go there instead, and it prints the links that open them in Jaeger. Nothing
else needs a network or a key: a script plays the model, everything around it is real.
"""

import argparse
import json
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import flights
from console import Console, Traces, show_run
from opentelemetry import trace

import toolguard
from toolguard import Refusal, metered

# ---- The tools: plain functions. `kind` says whether one gathers or delivers, and so on which budget it draws. ----

DATABASES: dict[str, Path] = {}
OUTBOX: list[tuple[str, str]] = []

Rows = list[tuple[Any, ...]]


def select(db: str, sql: str, *values: object) -> Rows:
    """Run one query on a connection that cannot write, whatever the model asks for."""
    with closing(sqlite3.connect(f"{DATABASES[db].as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, values).fetchmany(100)


# `query` names the parameters that hold the database and the SQL. Queries that differ in nothing but their literals
# then count as one, which is how a loop over values shows, although no two of its calls are the same.
@metered(kind="read", query=("db", "sql"))
def run_sql(db: str, sql: str) -> Rows:
    """Run a query and return its first 100 rows."""
    return select(db, sql)


@metered(kind="read")
def read_airport(code: str) -> Rows:
    """Return name, position and altitude of the airport with this code."""
    return select("flights", "SELECT name, lat, lon, alt FROM airports WHERE faa = ?", code)


@metered(kind="read")
def read_plane(tailnum: str) -> Rows:
    """Return year, maker and model of the plane with this tail number."""
    return select("flights", "SELECT year, manufacturer, model FROM planes WHERE tailnum = ?", tailnum)


@metered(kind="read")
def read_rows(table: str, offset: int, limit: int = 50) -> Rows:
    """Return some rows of a table."""
    if table not in flights.TABLES:
        message = f"no table {table}; there are {', '.join(flights.TABLES)}"
        raise ValueError(message)
    return select("flights", f"SELECT * FROM {table} LIMIT ? OFFSET ?", limit, offset)  # noqa: S608 - checked above


# A send draws on a reserve of its own, so that no amount of reading can leave the agent unable to deliver.
@metered(kind="send")
def send_report(to: str, body: str) -> str:
    """Send the report."""
    OUTBOX.append((to, body))
    return f"sent to {to}"


TOOLS: dict[str, Callable[..., object]] = {
    "run_sql": run_sql,
    "read_airport": read_airport,
    "read_plane": read_plane,
    "read_rows": read_rows,
    "send_report": send_report,
}

# ---- The agent loop: the one you have already, plus run.turn(), run.notes() and run.stopped. ----

Message = dict[str, Any]


def agent(model: "ScriptedModel", run: toolguard.Run, question: str) -> tuple[str, list[str]]:
    """Let the model call tools until it answers or the run is stopped; return the answer and the notes it was given."""
    messages: list[Message] = [{"role": "user", "content": question}]
    shown: list[str] = []
    while True:
        run.turn()  # the calls of one message share a turn, so that twins in it cannot confirm each other
        if run.stopped:
            # No exception and no special case: the run ends as every run does, with an assistant message.
            messages.append({"role": "assistant", "content": run.stop_message})
            return run.stop_message, shown
        # Notes close the request and are not kept: each request gets the numbers of its moment.
        notes = run.notes()
        shown += notes
        reply = model.complete(messages + [{"role": "user", "content": note} for note in notes])
        messages.append(reply)
        if not reply["tool_calls"]:
            return reply["content"], shown
        for call in reply["tool_calls"]:
            content = execute(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def execute(name: str, arguments: str) -> str:
    """Answer one tool call. Every call gets an answer; a result, an error and a refusal are all text to the model."""
    try:
        result: object = TOOLS[name](**json.loads(arguments))
    except Exception as error:  # noqa: BLE001 - a tool's own exception passes through toolguard and is the model's to read
        return f"error: {error}"
    if isinstance(result, Refusal):
        return result  # it is a str, whose text is written for the model; here is the place to log or count it
    return result if isinstance(result, str) else json.dumps(result)


# ---- The model: a script that sees only text and behaves as real runaways do. ----

# A step is one assistant message: a tool and the arguments of each parallel call. The script gets the answers, as text.
Step = tuple[str, list[dict[str, Any]]]
Script = Generator[Step, list[str], str]


class ScriptedModel:
    """Stands where a chat completion client would: it gets a whole request and answers with one message."""

    def __init__(self, script: Script) -> None:
        """Play the script, one step a request."""
        self._script = script
        self._ids = count(1)
        self._asked: list[str] = []

    def complete(self, request: list[Message]) -> Message:
        """Return the next assistant message: tool calls with ids and JSON arguments, or the final answer."""
        texts = {message["tool_call_id"]: message["content"] for message in request if message["role"] == "tool"}
        answers = [texts[call_id] for call_id in self._asked]
        try:
            tool, calls = self._script.send(answers) if answers else next(self._script)
        except StopIteration as end:
            return {"role": "assistant", "content": end.value, "tool_calls": []}
        self._asked = [f"call_{next(self._ids)}" for _ in calls]
        functions = [{"name": tool, "arguments": json.dumps(arguments)} for arguments in calls]
        tool_calls = [{"id": i, "function": f} for i, f in zip(self._asked, functions, strict=True)]
        return {"role": "assistant", "content": None, "tool_calls": tool_calls}


def analyst() -> Script:
    """Work with good intentions and bad habits: everything is looked up one by one."""
    # One query per airline. No two are the same, so no comparison of calls sees the loop; but their shape is the same.
    (answer,) = yield sql("SELECT carrier, name FROM airlines")
    names = dict(json.loads(answer))
    for codes in fives(names):
        answers = yield sql(*(LATE_FLIGHTS.format(code) for code in codes))
        if any(map(is_refused, answers)):
            break
    # The refusal said to ask for all values at once, and it does. The first try has a slip: an error, and no refusal.
    (answer,) = yield sql("SELECT airline, count(*) FROM flights WHERE arr_delay > 60 GROUP BY airline")
    (answer,) = yield sql("SELECT carrier, count(*) FROM flights WHERE arr_delay > 60 GROUP BY carrier ORDER BY 2 DESC")
    worst, late = json.loads(answer)[0]

    # One read per airport, until that tool's budget is spent. The refusal says to use another tool ...
    (answer,) = yield sql(WHERE_LATE.format(worst))
    places = [place for place, _ in json.loads(answer)]
    for codes in fives(places):
        answers = yield "read_airport", [{"code": code} for code in codes]
        if any(map(is_refused, answers)):
            break

    # ... and it does: one read per plane. Now no tool is over its limit, but the run is. Each new call is refused once,
    # and a loop over records makes nothing but new calls.
    (answer,) = yield sql(LATE_PLANES.format(worst))
    refusals = 0
    for tailnums in fives(tailnum for (tailnum,) in json.loads(answer)):
        answers = yield "read_plane", [{"tailnum": tailnum} for tailnum in tailnums]
        refusals += sum(map(is_refused, answers))
        if refusals > len(answers):  # it takes a second message of refusals to give up; five would have ended the run
            break

    # The one call that the answer really needs is refused once as well. Repeated with the same arguments, it runs.
    (answer,) = yield sql(AGE.format(worst))
    if "repeat it with the same arguments" in answer:
        (answer,) = yield sql(AGE.format(worst))
    ((years,),) = json.loads(answer)

    # Reading has cost all that could be read. The reserve for delivery is untouched.
    report = f"{names[worst]}: {late} flights over an hour late, most to {places[0]}, in planes {years} years old."
    (answer,) = yield "send_report", [{"to": "ops@example.com", "body": report}]
    return f"{report} The report was {answer}. I did not look at every single airport and plane."


def pager() -> Script:
    """Page through a whole table and heed nothing."""
    for offset in range(0, 26_115, 150):
        yield "read_rows", [{"table": "weather", "offset": offset + more} for more in (0, 50, 100)]
    return "I have read all the weather there was."


LATE_FLIGHTS = "SELECT count(*) FROM flights WHERE arr_delay > 60 AND carrier = '{}'"
WHERE_LATE = "SELECT dest, count(*) FROM flights WHERE arr_delay > 60 AND carrier = '{}' GROUP BY dest ORDER BY 2 DESC"
LATE_PLANES = "SELECT DISTINCT tailnum FROM flights WHERE arr_delay > 60 AND carrier = '{}' ORDER BY tailnum"
AGE = "SELECT CAST(avg(2013 - planes.year) AS INT) FROM flights JOIN planes USING (tailnum) WHERE carrier = '{}'"


def sql(*queries: str) -> Step:
    """Ask for some queries in one message."""
    return "run_sql", [{"db": "flights", "sql": query} for query in queries]


def is_refused(answer: str) -> bool:
    """Tell a refusal as a model does: by its words."""
    return "did NOT execute" in answer


def fives(items: Iterable[str]) -> Iterator[list[str]]:
    """Cut a list into the parallel calls of one message each."""
    rest = list(items)
    return (rest[start : start + 5] for start in range(0, len(rest), 5))


# ---- Running it, and looking at what happened. ----


def main() -> None:
    """Let one agent be refused and another be stopped, and show both."""
    parser = argparse.ArgumentParser(description="An agent over a real database, within budgets.")
    parser.add_argument("--plain", action="store_true", help="print plain text although rich is installed")
    console = Console(plain=parser.parse_args().plain)
    traces = Traces()
    logging.getLogger("toolguard").setLevel(logging.ERROR)  # a stop is in the log too; here it is the final message
    # The content of [tool.toolguard], given here so that no file of the current directory matters. The other limits are
    # the defaults: 40 reads a run, 10 queries of one shape, 5 sends.
    toolguard.configure({"limits": {"per_tool": 20}})
    with tempfile.TemporaryDirectory() as folder:
        DATABASES["flights"] = flights.build(Path(folder) / "flights.db")
        console.heading("An agent that is refused, and delivers")
        question = "Which airline is late most, where to, and how old are its planes? Mail it to ops@example.com."
        play(console, traces, toolguard.run("analyst"), analyst(), question)
        console.heading("An agent that does not listen, and is stopped")
        play(console, traces, toolguard.run("pager", hard_cap=12), pager(), "What was the weather like?")
    console.heading("The outbox")
    for to, body in OUTBOX:
        console.say(to, body)
    traces.close()


def play(console: Console, traces: Traces, run: toolguard.Run, script: Script, question: str) -> None:
    """Let one scripted model work within a run and show what came of it."""
    with run:
        trace_id = trace.get_current_span().get_span_context().trace_id
        answer, notes = agent(ScriptedModel(script), run, question)
    console.say("user", question)
    console.say("assistant", answer, "green")
    show_run(console, run, notes)
    traces.show(console, trace_id)


if __name__ == "__main__":
    main()
