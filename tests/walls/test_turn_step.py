"""A word in every fiftieth turn, which gates nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolguard
from toolguard import metered
from toolguard.testing import assert_executed


@metered(kind="read")
def look(n):
    return n


def turns_with_a_note(turns, **limits):
    noted = []
    with toolguard.run(**limits) as run:
        for turn in range(1, turns + 1):
            run.turn()
            if any("turn" in note for note in run.notes()):
                noted.append(turn)
    return noted


def test_it_speaks_in_turns_50_100_and_150():
    assert turns_with_a_note(160) == [50, 100, 150]


def test_a_limit_of_0_is_silent():
    assert turns_with_a_note(120, turn_step=0) == []


@given(step=st.integers(1, 30), turns=st.integers(0, 90))
def test_it_speaks_in_every_turn_that_is_a_multiple_and_in_no_other(lab, step, turns):
    run = lab(turn_step=step)
    for turn in range(turns + 1):
        said = run.ledger.note().texts
        assert bool(said) == (turn > 0 and turn % step == 0)
        run.ledger.begin_turn()


def test_it_says_the_same_however_often_it_is_asked_within_a_turn():
    with toolguard.run(turn_step=2) as run:
        assert run.notes() == []
        run.turn()
        run.turn()
        first = run.notes()
        assert len(first) == 1
        assert run.notes() == first
        run.turn()
        assert run.notes() == []


def test_its_note_says_which_turn_it_is_and_what_to_do():
    with toolguard.run(turn_step=1) as run:
        run.turn()
        (note,) = run.notes()
    assert "turn 1 of the run" in note
    assert "finish it" in note
    assert "what is still missing" in note


def test_it_refuses_nothing_and_stops_nothing():
    with toolguard.run(turn_step=1) as run:
        for n in range(30):
            run.turn()
            assert_executed(look(n))
        assert not run.stopped
        assert run.usage().refused == 0


@pytest.mark.parametrize("turns", [0, 49, 51])
def test_calls_are_no_turns(turns):
    with toolguard.run(per_tool=0, aggregate=0) as run:
        for _ in range(turns):
            run.turn()
        for n in range(50):
            look(n)
        assert run.notes() == []
