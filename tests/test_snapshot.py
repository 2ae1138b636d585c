"""A run that is left in one process and gone on with in another: as if nothing had happened between."""

import contextlib
import copy
import json
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext

import toolguard
from tests.test_ledger_properties import LOCAL, OFF, Real, all_counts, history
from toolguard import NotExecuted, Refusal, _session, metered
from toolguard._snapshot import form_of
from toolguard._values import Tally
from toolguard.testing import FakeClock, assert_executed, assert_refused, isolated
from toolguard.walls import BY_NAME, TABLE


@metered(kind="read")
def look(place, wait=0):
    if place == "nowhere":
        msg = f"no such place: {place}"
        raise LookupError(msg)
    return f"seen {place}"


@metered(kind="read", polls=True)
def poll(job):
    return "running"


@metered(kind="send")
def post(text):
    return "posted"


@metered(kind="read", query="sql")
def ask(sql):
    return "rows"


def moved(run, *, forget=True, **options):
    """Return the run as another process would go on with it: through JSON, and without the sessions of this one."""
    text = json.dumps(run.snapshot(), allow_nan=False)
    if forget:
        _session.forget_sessions()
    return toolguard.resume(json.loads(text), **options)


def failing(place="nowhere"):
    with pytest.raises(LookupError):
        look(place)


# What is carried ------------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_same_run():
    with isolated({"agents": {"clerk": {"per_tool": 7}}}):
        with toolguard.run("clerk", session="s", tenant="acme", run_id="r-1", tokens=100) as run:
            look(1)
            post("hi")
            post("hi")
            run.spend(tokens=30, cost_usd=0.25)
        again = moved(run)
        assert (again.id, again.agent, again.session, again.tenant) == ("r-1", "clerk", "s", "acme")
        assert (again.mode, again.parent, again.stopped, again.stop_message) == ("enforce", None, False, "")
        assert again.usage() == run.usage()
        assert again.usage().to_dict()["by_reason"] == {"duplicate_send": 1}


def test_the_limits_are_those_that_the_run_froze_and_not_those_of_the_new_process():
    with isolated({"limits": {"per_tool": 2}}), toolguard.run() as run:
        look(1)
    saved = json.dumps(run.snapshot())
    with isolated({"limits": {"per_tool": 9}}), toolguard.resume(json.loads(saved)):
        assert_executed(look(2))
        assert_refused(look(3), "per_tool")


def test_a_stop_is_carried_with_its_message_and_told_once(caplog):
    with isolated(), toolguard.run() as run:
        look(1)
        run.stop("closed for today")
        again = moved(run)
        caplog.clear()
        with again:
            assert (again.stopped, again.stop_reason, again.stop_message) == (True, "stop", "closed for today")
            assert_refused(look(2), "stop")
        assert not [record for record in caplog.records if "was stopped by" in record.message]


def test_a_stop_of_a_wall_says_in_the_other_process_what_it_said_here():
    with isolated(), toolguard.run(hard_cap=2) as run:
        for place in range(3):
            look(place)
        assert moved(run).stop_message == run.stop_message != ""


def test_observing_goes_on_and_so_does_the_count_of_what_would_have_been_refused(spans):
    with isolated(), toolguard.run(mode="observe", per_tool=1) as run:
        for place in range(3):
            look(place)
        again = moved(run)
        with again:
            assert_executed(look(9))
    assert [span.attributes["toolguard.run.would_refuse"] for span in spans.runs()] == [3, 2]  # the inner one ended first


def test_a_stop_that_was_only_observed_marks_the_first_call_in_the_other_process(spans):
    with isolated({"observe": ["refused_calls"]}), toolguard.run(per_tool=1, refused_calls=2) as run:
        for place in range(3):
            look(place)
        with moved(run):
            poll(1)
            poll(2)
    assert [span.attributes.get("toolguard.would_refuse") for span in spans.calls()[-2:]] == ["refused_calls", None]


def test_the_time_between_does_not_count():
    clock = FakeClock()
    with isolated(clock=clock):
        with toolguard.run(deadline_s=10) as run:
            clock.advance(6)
            saved = run.snapshot()
        clock.advance(3600)
        again = toolguard.resume(saved)
        with again:
            clock.advance(3)
            assert not again.stopped
            clock.advance(1)
            assert again.stop_reason == "deadline_s"


def test_turns_are_counted_on_and_a_call_of_the_resumed_turn_is_of_that_turn():
    with isolated(), toolguard.run(aggregate=1, turn_step=2) as run:
        look(1)
        run.turn()
        assert_refused(look(2), "aggregate")
        with moved(run) as again:
            assert_refused(look(2), "aggregate")  # the turn has not ended: nothing confirms itself in it
            again.turn()
            assert again.notes()
            assert_executed(look(2))


def test_a_refusal_confirms_in_the_other_process_and_its_span_is_linked(spans):
    with isolated(), toolguard.run(aggregate=1) as run:
        look(1)
        assert_refused(look(2), "aggregate")
        with moved(run):
            assert_executed(look(2))
    _, refused, confirming = spans.calls()
    assert [link.context.span_id for link in confirming.links] == [refused.context.span_id]
    assert confirming.links[0].context.trace_id == refused.context.trace_id


def test_the_resumed_runs_span_links_to_the_last_one(spans):
    with isolated():
        with toolguard.run() as run:
            look(1)
        with moved(run):
            look(2)
    first, second = spans.runs()
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert {span.attributes["toolguard.run.id"] for span in (first, second)} == {run.id}


def test_a_receiver_counts_as_the_one_that_was_used_at_the_same_place_in_the_order():
    class Box:
        @metered(kind="send")
        def put(self, text):
            return text

    with isolated(), toolguard.run() as run:
        first, second = Box(), Box()
        first.put("hi")
        second.put("ho")
        with moved(run):
            first, second = Box(), Box()
            assert_refused(first.put("hi"), "duplicate_send")
            assert_refused(second.put("ho"), "duplicate_send")
            assert_executed(second.put("hi"))


def test_tools_of_the_new_process_are_checked_as_in_run():
    with isolated():
        saved = toolguard.run().snapshot()
        with pytest.raises(TypeError, match="is not a tool"):
            toolguard.resume(saved, tools=[print])
        assert toolguard.resume(saved, tools=[look]).id == saved["runs"][0]["about"]["id"]


# Calls under way ------------------------------------------------------------------------------------------------------


def test_a_send_under_way_counts_as_sent():
    saved = {}

    @metered(kind="send")
    def ship(text):
        saved.update(run.snapshot())
        return text

    with isolated():
        with toolguard.run() as run:
            ship("a")
        with toolguard.resume(saved) as again:
            refused = assert_refused(ship("a"), "duplicate_send")
            assert refused.retry != "later"
            assert again.usage().executed == 1


def test_a_probe_under_way_gives_its_permit_back():
    saved = {}

    @metered(kind="read")
    def flaky(x):
        if run.usage().refused and not saved:
            saved.update(run.snapshot())
        msg = "down"
        raise ConnectionError(msg)

    with isolated(), toolguard.run() as run:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                flaky(1)
        assert_refused(flaky(1), "repeat_failure")
        with pytest.raises(ConnectionError):
            flaky(1)
        assert_refused(flaky(1), "repeat_failure")  # closed here
        with toolguard.resume(saved):
            with pytest.raises(ConnectionError):
                flaky(1)  # the probe was under way, and nobody there will hear of it
            assert_refused(flaky(1), "repeat_failure")


def test_what_a_call_under_way_comes_to_never_reaches_the_resumed_run():
    saved = {}

    @metered(kind="read")
    def slow(x):
        saved.update(run.snapshot())
        msg = "nothing ran"
        raise NotExecuted(msg)

    with isolated(), toolguard.run() as run:
        slow(1)
        assert run.usage().executed == 0
        assert toolguard.resume(saved).usage().executed == 1  # used is never less than executed


def test_a_snapshot_taken_while_threads_call_is_of_one_moment():
    with isolated(), toolguard.run(profile="coding", adaptive_soft=0, aggregate=0) as run:
        begin = threading.Barrier(3)

        def work(who):
            begin.wait()
            for i in range(300):
                look((who, i))
                poll(i)

        threads = [threading.Thread(target=run.bind(work), args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        begin.wait()
        for _ in range(20):
            usage = moved(run, forget=False).usage()
            assert usage.executed == sum(usage.by_tool.values())
        for thread in threads:
            thread.join()
        assert moved(run).usage().executed == 1200


# Runs around, and sessions --------------------------------------------------------------------------------------------


def test_the_runs_around_it_come_along_and_their_limits_hold():
    with isolated(), toolguard.run("outer", hard_cap=3) as outer:
        look(1)
        with toolguard.run("inner") as inner:
            look(2)
        with moved(inner) as again:
            assert again.parent is not None
            assert (again.parent.id, again.parent.agent) == (outer.id, "outer")
            look(3)
            assert_refused(look(4), "hard_stop")
            assert again.parent.stopped
            assert again.stop_message == again.parent.stop_message


def test_a_chain_shares_its_session_and_what_names_its_own_keeps_it():
    with isolated(), toolguard.run(session="one", run_id="a"), toolguard.run(run_id="b"):
        with toolguard.run(session="two", run_id="c") as run:
            pass
        again = moved(run)
        assert [r["shares"] for r in run.snapshot()["runs"]] == [0, 0, 1]
        above = again.parent
        assert above is not None
        assert above.parent is not None
        assert above.ledger.session is above.parent.ledger.session is not again.ledger.session


def test_the_sessions_failures_hold_in_the_other_process_for_its_next_runs_too():
    with isolated():
        with toolguard.run(session="s") as run:
            failing()
            failing()
        moved(run)
        with toolguard.run(session="s"):
            assert_refused(look("nowhere"), "repeat_failure")
        with toolguard.run(session="other"):
            failing()


def test_where_the_session_is_at_home_the_resumed_run_shares_it():
    with isolated():
        with toolguard.run(session="s") as run:
            saved = run.snapshot()
        with toolguard.run(session="s"):
            failing()
            failing()
        with toolguard.resume(saved):
            assert_refused(look("nowhere"), "repeat_failure")


def test_another_session_of_the_same_name_is_neither_touched_nor_shared():
    with isolated():
        with toolguard.run(session="s") as run:
            failing()
            failing()
        saved = run.snapshot()
        _session.forget_sessions()
        with toolguard.run(session="s"):
            failing()
            with toolguard.resume(saved):
                assert_refused(look("nowhere"), "repeat_failure")
        with toolguard.run(session="s"):
            failing()
            assert_refused(look("nowhere"), "repeat_failure")


def test_a_private_session_stays_private():
    with isolated():
        with toolguard.run() as run:
            failing()
            failing()
        with moved(run):
            assert_refused(look("nowhere"), "repeat_failure")
        with toolguard.run():
            failing()


def test_two_resumptions_of_one_snapshot_count_for_themselves():
    with isolated():
        saved = toolguard.run(per_tool=1).snapshot()
        for _ in range(2):
            with toolguard.resume(saved):
                assert_executed(look(1))
                assert_refused(look(2), "per_tool")


# Any history ----------------------------------------------------------------------------------------------------------

CHAIN = ((None, 0), (0, None), (1, 1), (2, None))


class Carried(Real):
    """Plays a chain of real runs that move to another process whenever `move` comes."""

    def __init__(self, runs):
        self.opened = []
        self.moves = 0
        super().__init__(runs)

    def new_session(self):
        return f"session {len(self.sessions)}" if hasattr(self, "sessions") else "session"

    def open(self, limits, above=None, session=None, observe=frozenset(), own=None):
        limits = {key: n for key, n in {**OFF, "progress_clears": False, **limits}.items() if n is not None}
        with isolated({"observe": sorted(observe), "local": sorted(LOCAL), "tools": own_limits(own)}, clock=lambda: self.now):
            run = toolguard.run(session=None if session is None else f"session {session}", **limits)
            if above is not None:
                with _session.Within(self.opened[above]):
                    run.start()
            run.start()
        self.opened.append(run)
        self.runs.append(run.ledger)

    def make(self, *what):
        super().make(*what)
        _, call = self.made[-1]
        call.trace = SpanContext(self.number, 1, is_remote=False)

    def admit(self, which=-1, ask=False):
        told = super().admit(which, ask)
        return told and (*told[:2], told[2] and told[2].trace_id)

    def move(self, draw):
        # What is under way is another test's, since nobody in the new process hears of it.
        while self.flying:
            self.end(-1, "ok", None, None)
        while self.refused:
            self.tell(-1)
        self.made.clear()
        self.moves += 1
        with isolated(clock=lambda: self.now - 1000 * self.moves):
            data = json.dumps(self.opened[-1].snapshot())
        with isolated(clock=lambda: self.now):
            last = toolguard.resume(json.loads(data))
            assert json.dumps(last.snapshot()) == data
        self.opened.clear()
        while last is not None:
            self.opened.insert(0, last)
            last = last.parent
        self.runs = [run.ledger for run in self.opened]


def own_limits(own):
    return {name: {"limit": n} for name, n in (own or {}).items()}


class Uncut(Real):
    """The same in one process, with ledgers alone."""

    def move(self, _):
        while self.flying:
            self.end(-1, "ok", None, None)
        while self.refused:
            self.tell(-1)
        self.made.clear()


def cut(seed):
    draw = random.Random(seed)
    runs, steps = history(seed)
    runs = [{**run, "above": above, "session": session} for run, (above, session) in zip(runs, CHAIN, strict=False)]
    # One process has one configuration: what it says of tools and observing is the same for all runs.
    runs = [{**run, "own": runs[0]["own"], "observe": runs[0]["observe"]} for run in runs]
    for _ in range(draw.choice([1, 1, 2, 5])):
        steps.insert(draw.randrange(len(steps) + 1), ("move", None))
    carried, uncut = Carried(runs), Uncut(runs)
    assert carried.play(steps) == uncut.play(steps)
    assert all_counts(carried) == all_counts(uncut)


def test_in_800_random_histories_a_cut_anywhere_changes_nothing():
    for seed in range(800):
        cut(seed)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(1000, 1 << 30))
def test_a_cut_anywhere_changes_nothing(seed):
    cut(seed)


# What is in it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wall", TABLE, ids=lambda wall: wall.name)
def test_whatever_a_wall_remembers_can_be_carried(wall):
    state = type(wall.state(Tally()))
    assert form_of(state) is form_of(state)


class Odd:
    __slots__ = ("bare", "thing")

    thing: complex


@pytest.mark.parametrize("hint", [complex, dict[str, complex], int | bytes, Odd, list])
def test_what_cannot_be_carried_is_told_at_once(hint):
    with pytest.raises(TypeError, match="a snapshot cannot carry"):
        form_of(hint)


def test_no_argument_result_or_error_text_is_in_it():
    canary = "canary-7f3a"

    @metered(kind="read", delegate="who", query="sql")
    def work(who, sql, more):
        if more:
            msg = f"broken {canary}"
            raise ValueError(msg)
        return [canary]

    with isolated({"telemetry": {}}), toolguard.run(per_tool=3, aggregate=1, session="s") as run:
        for more in (False, False, True, True, True):
            with contextlib.suppress(ValueError):
                work(canary, f"select {canary} from t", more)
        post(canary)
        assert post(canary).reason == "duplicate_send"
        text = json.dumps(run.snapshot())
    assert canary not in text
    assert run.snapshot()["format"] == "toolguard.run/1"


def test_a_run_of_many_calls_has_a_snapshot_of_bounded_size():
    # What walls remember of a run is bounded, so that after some time another call takes the place of an older one.
    with isolated(), toolguard.run(profile="coding", adaptive_soft=0) as run:
        sizes = []
        for i in range(30_000):
            look(i)
            if i % 10_000 == 9_999:
                sizes.append(len(json.dumps(run.snapshot())))
    assert max(sizes) < 2_000_000
    assert sizes[2] < 1.5 * sizes[1]


def test_a_name_that_is_no_text_cannot_be_carried():
    with isolated(), pytest.raises(TypeError, match="the run's tenant is a int"):
        toolguard.run(tenant=7).snapshot()


# What is not one ------------------------------------------------------------------------------------------------------


def sample():
    with isolated(), toolguard.run("a", session="s", hard_cap=9, per_tool=3, aggregate=1) as outer:
        for i in range(4):
            look(i)
        with toolguard.run("b", session="t") as run:
            failing()
            failing()
            assert_refused(look("nowhere"), "repeat_failure")
            ask("select 1")
            post("x")
            run.stop("over")
        assert outer.usage().refused
        return json.loads(json.dumps(run.snapshot()))


def places(data, path=()):
    yield path
    for key, each in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(each, (*path, key))


SAMPLE = sample()
PLACES = [path for path in places(SAMPLE) if path]
WRONG = st.sampled_from(
    [None, True, -1, 0, 1 << 70, 0.5, float("nan"), float("inf"), "", "x", "0g", [], {}, [[]], [1, 2], {"a": 1}]
)


def resumed(data):
    try:
        return toolguard.resume(data), ""
    except ValueError as error:
        return None, str(error)


@settings(max_examples=1000, deadline=None)
@given(path=st.sampled_from(PLACES), wrong=WRONG, how=st.sampled_from(["replace", "replace", "remove", "repeat", "add"]))
def test_garbled_data_is_a_valueerror_of_one_line_or_is_as_good(path, wrong, how):
    data = copy.deepcopy(SAMPLE)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    if how == "replace":
        parent[last] = wrong
    elif how == "remove":
        del parent[last]
    elif isinstance(parent, list):
        parent.insert(last, wrong if how == "add" else copy.deepcopy(parent[last]))
    else:
        parent["more"] = wrong
    before = copy.deepcopy(data)
    with isolated():
        run, says = resumed(data)
        if run is None:
            assert says.startswith("resume: snapshot")
            assert "\n" not in says
            assert not _session.forget_sessions()
        else:
            with run:  # whatever it holds, it is a run that can be used
                assert isinstance(look(7), (str, Refusal))
                assert json.loads(json.dumps(run.snapshot()))
            assert isinstance(run.usage().executed, int)
    assert repr(data) == repr(before)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (json.dumps(SAMPLE), "json.loads"),
        (b"{}", "json.loads"),
        (None, "should be an object of the format 'toolguard.run/1'"),
        ({}, "should be an object of the format 'toolguard.run/1'"),
        ([SAMPLE], "should be an object of the format 'toolguard.run/1'"),
        ({**SAMPLE, "runs": []}, "snapshot.runs should be runs of the sessions listed"),
        ({**SAMPLE, "sessions": []}, "snapshot.runs should be runs of the sessions listed"),
        ({**SAMPLE, "sessions": [{"key": 1}]}, "snapshot.sessions[0]"),
        ({key: SAMPLE[key] for key in ("format", "version", "runs")}, "lacks sessions"),
    ],
)
def test_the_error_names_the_place_and_the_cure(data, says):
    with pytest.raises(ValueError, match=r"^resume: ") as caught:
        toolguard.resume(data)
    assert says in str(caught.value)


def test_a_snapshot_of_another_version_that_cannot_be_read_says_so():
    data = copy.deepcopy(SAMPLE)
    data["version"] = "9.9"
    del data["runs"][0]["tally"]["tokens"]
    with pytest.raises(ValueError, match=r"lacks tokens; toolguard 9\.9 made it and this is .*: resume it with that version"):
        toolguard.resume(data)


# Another process, for real --------------------------------------------------------------------------------------------

TOOLS = """
import json, sys, toolguard
@toolguard.metered(kind="read")
def look(place):
    raise LookupError(place)
@toolguard.metered(kind="send")
def post(text):
    return text
def look_again():
    try:
        return look("x")
    except LookupError:
        return "failed once more"
"""
FIRST = f"""{TOOLS}
with toolguard.run("clerk", session="s", per_tool=4) as run:
    post("hi"), look_again(), look_again()
json.dump(run.snapshot(), sys.stdout)
"""
SECOND = f"""{TOOLS}
with toolguard.resume(json.load(sys.stdin)) as run:
    said = [post("hi").reason, look_again().reason, post("ho")]
with toolguard.run(session="s"):
    said.append(look_again())
json.dump([*said, run.usage().to_dict()["by_tool"]], sys.stdout)
"""


def test_a_run_goes_on_in_another_process():
    def process(program, given=""):
        command = [sys.executable, "-W", "error", "-c", program]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout

    said = json.loads(process(SECOND, process(FIRST)))
    assert said == ["duplicate_send", "repeat_failure", "ho", "failed once more", {"look": 2, "post": 2}]


def test_every_wall_that_is_named_in_it_exists():
    names = {name for run in SAMPLE["runs"] for name, _ in run["counts"]["states"]}
    names |= {name for session in SAMPLE["sessions"] for name, _ in session["states"]}
    assert names <= set(BY_NAME)
    assert "repeat_failure" in names
