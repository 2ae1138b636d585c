"""Observing: walls decide and mark, and refuse nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
import toolguard.testing
from toolguard import NotExecuted, Refusal, metered
from toolguard.testing import assert_executed, assert_refused

WOULD = "toolguard.would_refuse"


@metered(kind="read")
def search(query: object = None) -> object:
    """Search."""
    return query


@metered(kind="read")
def look(query: object = None) -> object:
    """Look."""
    return query


@metered(kind="send")
def send(text: object = None) -> object:
    """Send."""
    return text


@metered(kind="read", polls=True)
def status(job: object = None) -> object:
    """Ask for a status."""
    return "running"


@metered(kind="read")
def fail(query: object = None) -> object:
    """Fail."""
    raise OSError(query)


@metered(kind="read")
def ask(query: object = None) -> object:
    """Say that nothing ran."""
    raise NotExecuted("no")


def would(spans):
    return [span.attributes.get(WOULD) for span in spans.calls()]


def test_an_observing_run_executes_everything_and_marks_what_it_would_refuse(spans):
    with toolguard.run(mode="observe", per_tool=2) as run:
        assert [search(i) for i in range(4)] == [0, 1, 2, 3]
    assert would(spans) == [None, None, "per_tool", "per_tool"]
    assert {span.attributes["toolguard.executed"] for span in spans.calls()} == {True}
    assert {span.attributes["toolguard.refused"] for span in spans.calls()} == {False}
    usage = run.usage()
    assert (usage.executed, usage.refused, run.refusals, run.stopped) == (4, 0, (), False)


def test_the_run_span_totals_what_would_have_been_refused(spans):
    with toolguard.run(mode="observe", per_tool=2, delivery=1):
        for i in range(4):
            search(i)
            send(i)
    with toolguard.run(per_tool=2):
        for i in range(4):
            search(i)
    observed, enforced = spans.runs()
    assert observed.attributes["toolguard.run.would_refuse"] == 5
    assert observed.attributes["toolguard.run.refusals"] == 0
    assert "toolguard.run.would_refuse" not in enforced.attributes


def test_an_observing_run_never_stops(spans):
    with toolguard.run(mode="observe", hard_cap=2, per_tool=1, refused_calls=1, refused_turns=1) as run:
        for i in range(30):
            run.turn()
            assert_executed(search(i))
    assert (run.stopped, run.stop_message, run.usage().executed) == (False, "", 30)
    assert would(spans) == [None, "per_tool", *["hard_stop"] * 28]
    assert spans.runs()[0].attributes["toolguard.run.stopped"] is False


def test_the_mark_names_the_first_wall_of_the_table(spans):
    with toolguard.run(mode="observe", per_tool=1, aggregate=1):
        search(1)
        search(2)
    assert would(spans)[1] == "per_tool"


def test_an_observed_refusal_arms_no_confirmation(spans):
    with toolguard.run(mode="observe", aggregate=1, same_outcome=0):
        for _ in range(4):
            search("x")
    assert would(spans) == [None, "aggregate", "aggregate", "aggregate"]


def test_observed_refusals_log_nothing(logged):
    with toolguard.run(mode="observe", per_tool=1):
        for i in range(5):
            search(i)
    assert [record for record in logged.records if record.name == "toolguard"] == []


def test_a_single_wall_may_observe_while_the_others_enforce(spans):
    toolguard.configure({"observe": ["aggregate"]})
    with toolguard.run(per_tool=3, aggregate=2) as run:
        assert_executed(search(1))
        assert_executed(search(2))
        assert_executed(search(3))
        assert_refused(search(4), "per_tool")
        assert_executed(look(1))
    assert would(spans) == [None, None, "aggregate", None, "aggregate"]
    assert dict(run.usage().by_reason) == {"per_tool": 1}
    assert spans.runs()[0].attributes["toolguard.run.would_refuse"] == 2


def test_a_call_that_one_wall_observes_and_another_refuses_is_refused(spans):
    toolguard.configure({"observe": ["per_tool"]})
    with toolguard.run(per_tool=1, aggregate=1) as run:
        assert_executed(search(1))
        assert_refused(search(2), "aggregate")
        assert_executed(search(2))  # aggregate refused alone, so its repeat may confirm; per_tool only observes
    assert would(spans) == [None, None, "per_tool"]
    assert run.usage().refused == 1


def test_an_observed_hard_stop_stops_nothing_and_the_other_walls_go_on():
    toolguard.configure({"observe": ["hard_stop"]})
    with toolguard.run(hard_cap=1, delivery=1) as run:
        assert_executed(search(1))
        assert_executed(search(2))
        assert_executed(send(1))
        assert_refused(send(2), "delivery")
    assert not run.stopped


@pytest.mark.parametrize("wall", ["refused_calls", "refused_turns"])
def test_an_observed_count_of_refusals_stops_nothing(wall):
    toolguard.configure({"observe": [wall]})
    with toolguard.run(per_tool=1, refused_calls=3, refused_turns=2) as run:
        search(0)
        for i in range(9):
            if wall == "refused_turns":
                run.turn()
            assert_refused(search(i), "per_tool")
        run.turn()
        assert not run.stopped


def test_observed_refusals_do_not_count_for_refused_calls():
    toolguard.configure({"observe": ["per_tool"]})
    with toolguard.run(per_tool=1, refused_calls=2, refused_turns=1) as run:
        for i in range(10):
            assert_executed(search(i))
            run.turn()
        assert not run.stopped


def test_the_mode_comes_from_the_configuration_and_the_run_beats_it():
    toolguard.configure({"mode": "observe"})
    with toolguard.run(per_tool=1) as run:
        assert run.mode == "observe"
        assert not isinstance(search(1), Refusal)
        assert not isinstance(search(2), Refusal)
    with toolguard.run(per_tool=1, mode="enforce") as run:
        assert run.mode == "enforce"
        search(1)
        assert_refused(search(2), "per_tool")


def test_an_outer_cap_that_enforces_binds_a_child_that_observes():
    with toolguard.run(hard_cap=2) as outer, toolguard.run(mode="observe", per_tool=1) as inner:
        assert_executed(search(1))
        assert_executed(search(2))
        assert_refused(search(3), "hard_stop")
        assert (outer.stopped, inner.stopped) == (True, True)


def test_an_outer_cap_that_observes_refuses_nothing_in_a_child_that_enforces(spans):
    with toolguard.run(hard_cap=1, mode="observe") as outer, toolguard.run(mode="enforce", per_tool=2, aggregate=0):
        assert_executed(search(1))
        assert_executed(search(2))
        assert_refused(search(3), "per_tool")
        assert not outer.stopped
    assert would(spans) == [None, "hard_stop", None]


def test_observed_calls_settle_like_any_call(spans):
    with toolguard.run(mode="observe", per_tool=1) as run:
        search(1)
        search(2)
        for _ in range(2):
            with pytest.raises(OSError, match="x"):
                fail("x")
        assert_refused(ask(), "gate")
        assert_refused(ask(), "gate")
        usage = run.usage()
    assert dict(usage.by_tool) == {"search": 2, "fail": 2}
    assert dict(usage.by_reason) == {"gate": 2}
    assert would(spans) == [None, "per_tool", None, "per_tool", None, None]
    assert [span.attributes["toolguard.call.outcome"] for span in spans.calls()] == [
        "ok",
        "ok",
        "error",
        "error",
        "not_executed",
        "not_executed",
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([search, look, send, status, fail, ask]), st.integers(0, 2)),
        st.just(None),  # a turn begins
    ),
    min_size=1,
    max_size=60,
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "hard_cap": st.integers(0, 12),
        "adaptive_soft": st.integers(0, 6),
        "adaptive_multiplier": st.integers(0, 3),
        "adaptive_repeats": st.integers(0, 3),
        "adaptive_signal": st.sampled_from(["unchanged", "any"]),
        "per_tool": st.integers(0, 6),
        "delivery": st.integers(0, 3),
        "aggregate": st.integers(0, 8),
    },
)


def first_no(steps, limits, mode):
    """Which step was, or would have been, the first that a wall refuses."""
    with toolguard.run(mode=mode, refused_calls=0, refused_turns=0, **limits) as run:
        for i, step in enumerate(steps):
            if step is None:
                run.turn()
                continue
            tool, value = step
            try:
                result = tool(value)
            except OSError:
                result = None
            if isinstance(result, Refusal) and result.reason != "gate":
                return i
            if run.ledger.would:
                return i
    return None


@given(STEPS, LIMITS)
@settings(deadline=None, max_examples=300)
def test_the_first_observed_refusal_is_exactly_where_enforcement_refuses_first(steps, limits):
    with toolguard.testing.isolated():
        enforced = first_no(steps, limits, "enforce")
        observed = first_no(steps, limits, "observe")
    assert enforced == observed


@given(STEPS, LIMITS)
@settings(deadline=None, max_examples=100)
def test_an_observing_run_returns_what_the_bare_functions_return(steps, limits):
    def outcomes(call):
        results = []
        for step in steps:
            if step is not None:
                try:
                    results.append(call(*step))
                except (OSError, NotExecuted) as error:
                    results.append((type(error), error.args) if isinstance(error, OSError) else "refused")
        return ["refused" if isinstance(result, Refusal) else result for result in results]

    with toolguard.testing.isolated(), toolguard.run(mode="observe", **limits) as run:
        seen = outcomes(lambda tool, value: tool(value))
        assert not run.stopped
    assert seen == outcomes(lambda tool, value: toolguard.spec(tool).function(value))


def test_an_observed_count_of_refusals_marks_the_call_that_the_stop_would_have_refused_first(spans):
    toolguard.configure({"observe": ["refused_calls", "refused_turns"]})
    with toolguard.run(per_tool=1, refused_calls=3) as run:
        search(0)
        for i in range(3):
            search(i)
        look(1)
        look(2)
        assert not run.stopped
    assert would(spans) == [None, None, None, None, "refused_calls", None]
    assert spans.runs()[0].attributes["toolguard.run.would_refuse"] == 1


def test_refusals_by_the_gate_mark_where_an_observing_run_would_have_been_stopped(spans):
    with toolguard.run(mode="observe", refused_turns=2) as run:
        for _ in range(2):
            run.turn()
            ask()
        run.turn()
        search(1)
        search(2)
        assert not run.stopped
    assert would(spans) == [None, None, "refused_turns", None]
