"""A refusal is a text that never reads like a success, and data that survives every way a program passes it on."""

import copy
import json
import logging
import pickle
import re
from contextlib import suppress

import pydantic
import pydantic_core
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, Refusal, metered, walls
from toolguard._ledger import BUSY, GATE
from toolguard._refusal import converge, stop_message, stream_cut, withheld
from toolguard._refusal import refusal as worded
from toolguard._session import OUTSIDE
from toolguard._text import counted, times
from toolguard._values import Reading, Refused, Stop
from toolguard.testing import assert_executed, assert_refused, isolated

FIELDS = ["reason", "rule", "tool", "kind", "used", "limit", "retry", "run_id"]


@metered(kind="read")
def read(key: int = 0) -> int:
    return key


@metered(kind="read", name="read_other")
def other(key: int = 0) -> int:
    return key


@metered(kind="send")
def send(body: str = "") -> str:
    return body


@metered(kind="read", query="sql")
def run_sql(sql: str) -> str:
    return sql


@pytest.fixture
def refused():
    with toolguard.run(aggregate=1, run_id="r-1"):
        read(1)
        return assert_refused(read(2), "aggregate")


# Its fields -------------------------------------------------------------------------------------------------------------


def test_the_fields_say_who_refused_what_and_what_may_be_tried(refused):
    assert [getattr(refused, name) for name in FIELDS] == ["aggregate", None, "read", "read", 1, 1, "identical", "r-1"]
    assert refused.executed is False


def test_to_dict_is_every_field_with_status_and_text_as_plain_data(refused):
    assert refused.to_dict() == {
        "status": "refused", "executed": False, "reason": "aggregate", "rule": None, "tool": "read", "kind": "read",
        "used": 1, "limit": 1, "retry": "identical", "run_id": "r-1", "text": str(refused),
    }  # fmt: skip
    assert type(refused.to_dict()["text"]) is str
    assert json.loads(json.dumps(refused.to_dict())) == refused.to_dict()


def test_to_dict_can_be_the_extra_of_a_log_record(refused, caplog):
    with caplog.at_level(logging.INFO):
        logging.getLogger("anybody").info("refused", extra=refused.to_dict())
    (record,) = [record for record in caplog.records if record.name == "anybody"]
    assert (record.reason, record.used, record.text) == ("aggregate", 1, str(refused))


def test_no_field_hides_what_a_text_can_do(refused):
    assert {*FIELDS, "executed", "to_dict"} & set(dir(str)) == set()
    assert refused.count("did NOT execute") == 1
    assert refused.upper() == str(refused).upper()


@pytest.mark.parametrize("name", [*FIELDS, "executed", "anything"])
def test_a_refusal_cannot_be_changed(refused, name):
    with pytest.raises(AttributeError, match="immutable"):
        setattr(refused, name, "changed")
    with pytest.raises(AttributeError, match="immutable"):
        delattr(refused, name)
    assert getattr(refused, name, None) != "changed"


def test_what_to_dict_returns_can_be_changed_without_changing_the_refusal(refused):
    refused.to_dict()["reason"] = "changed"
    assert refused.reason == "aggregate"


def test_a_field_that_was_not_given_is_none():
    bare = Refusal("text")
    assert [getattr(bare, name) for name in FIELDS] == [None] * len(FIELDS)


def test_a_refusal_cannot_be_given_a_field_that_it_does_not_have():
    with pytest.raises(TypeError, match="resaon"):
        Refusal("text", resaon="aggregate")


def test_repr_shows_reason_and_text(refused):
    assert repr(refused) == f"Refusal(aggregate: {str(refused)!r})"


# It is a text -----------------------------------------------------------------------------------------------------------


def test_a_refusal_is_a_text_equal_to_its_text(refused):
    text = str(refused)
    assert type(text) is str
    assert refused == text
    assert text == refused
    assert hash(refused) == hash(text)
    assert {text: 1}[refused] == 1
    assert f"{refused}" == refused[:] == refused + "" == text
    assert refused.encode() == text.encode()


def test_a_refusal_is_true_whatever_its_text(refused):
    assert bool(refused) is True
    assert bool(Refusal("")) is True
    assert (refused or "something else") is refused


def test_a_refusal_is_told_from_the_same_text_by_its_type(refused):
    assert isinstance(refused, Refusal)
    assert not isinstance(str(refused), Refusal)
    match refused:
        case Refusal("per_tool"):
            pytest.fail("the reason is another")
        case Refusal(reason="aggregate", retry="identical"):
            pass
        case _:
            pytest.fail("a refusal matches by reason")
    match refused:
        case Refusal(reason):
            assert reason == "aggregate"


@pytest.mark.parametrize(
    "encoded",
    [json.dumps, lambda value: pydantic_core.to_json(value).decode(), lambda value: json.dumps({"content": value})[12:-1]],
)
def test_a_refusal_is_encoded_to_json_as_its_text(refused, encoded):
    assert json.loads(encoded(refused)) == str(refused)


def test_other_encoders_take_it_for_a_text(refused):
    orjson = pytest.importorskip("orjson")
    assert json.loads(orjson.dumps({"content": refused})) == {"content": str(refused)}


# Copies and pickles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_refusal_survives_pickling_with_all_fields(refused, protocol):
    again = pickle.loads(pickle.dumps([refused, refused], protocol))
    assert type(again[0]) is Refusal
    assert again[0].to_dict() == refused.to_dict()
    assert again[0] is again[1]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: copy.deepcopy({"a": [value]})["a"][0]])
def test_a_copy_of_a_refusal_is_the_refusal(refused, copied):
    assert copied(refused) is refused


def test_a_refusal_is_marked_final_for_type_checkers():
    assert Refusal.__final__


# pydantic and FastAPI ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotation", [Refusal, int | Refusal, str | Refusal, Refusal | str, list[int] | Refusal, Refusal | None]
)
def test_a_field_that_may_be_a_refusal_keeps_the_very_refusal(refused, annotation):
    class Answer(pydantic.BaseModel):
        value: annotation

    assert Answer(value=refused).value is refused
    assert json.loads(Answer(value=refused).model_dump_json()) == {"value": str(refused)}
    assert Answer(value=refused).model_dump() == {"value": refused}
    assert Answer(value=refused).model_copy(deep=True).value is refused


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int | Refusal, 3), (str | Refusal, "found"), (Refusal | str, "found"), (list[int] | Refusal, [1])],
)
def test_a_field_that_may_be_a_refusal_takes_a_value_for_a_value(annotation, value):
    validated = pydantic.TypeAdapter(annotation).validate_python(value)
    assert validated == value
    assert not isinstance(validated, Refusal)


def test_a_text_is_no_refusal_to_pydantic(refused):
    for text in ("text", str(refused)):
        with pytest.raises(pydantic.ValidationError):
            pydantic.TypeAdapter(Refusal).validate_python(text)


def test_strict_validation_takes_a_refusal(refused):
    class Strict(pydantic.BaseModel, strict=True):
        value: int | Refusal

    assert Strict(value=refused).value is refused
    with pytest.raises(pydantic.ValidationError):
        Strict(value=str(refused))


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_json_schema_of_a_refusal_is_a_text(mode):
    assert pydantic.TypeAdapter(Refusal).json_schema(mode=mode) == {"type": "string"}
    assert pydantic.TypeAdapter(int | Refusal).json_schema(mode=mode) == {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def test_an_endpoint_that_answers_with_a_tools_result_answers_with_the_refusals_text():
    app = FastAPI()

    @app.get("/int")
    async def whole() -> int | Refusal:
        return read(1)

    @app.get("/text")
    async def text() -> str | Refusal:
        return send("b")

    @app.get("/model")
    async def inside() -> dict[str, int | Refusal]:
        return {"value": read(1)}

    client = TestClient(app)
    with isolated({"outside_run": "refuse"}):
        for path, tool in (("/int", "read"), ("/text", "send")):
            assert client.get(path).json().startswith(f"{tool} did NOT execute: ")
        assert client.get("/model").json()["value"].startswith("read did NOT execute")
    with isolated({"outside_run": "allow"}):
        assert [client.get(path).json() for path in ("/int", "/text", "/model")] == [1, "b", {"value": 1}]
    assert app.openapi()["paths"]["/int"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"] == [
        {"type": "integer"},
        {"type": "string"},
    ]


# Its text, by reason ----------------------------------------------------------------------------------------------------


def by_per_tool():
    with toolguard.run(per_tool=2, aggregate=0):
        return [read(n) for n in range(3)][-1]


def by_aggregate():
    with toolguard.run(aggregate=2):
        return [read(n) for n in range(3)][-1]


def by_delivery():
    with toolguard.run(delivery=2):
        return [send(str(n)) for n in range(3)][-1]


def by_query_loop():
    pytest.importorskip("sqlglot")
    with toolguard.run(query_loop=2):
        return [run_sql(f"SELECT a FROM t WHERE b = {n}") for n in range(3)][-1]


def by_hard_cap():
    with toolguard.run(hard_cap=2):
        return [read(n) for n in range(3)][-1]


def by_stuck():
    with toolguard.run(adaptive_soft=3, adaptive_repeats=3, aggregate=0, per_tool=0):
        return [read(1) for n in range(4)][-1]


def by_backstop():
    with toolguard.run(adaptive_soft=1, adaptive_multiplier=2, aggregate=0, per_tool=0):
        return [read(n) for n in range(3)][-1]


def by_refused_calls():
    with toolguard.run(per_tool=1, refused_calls=2, aggregate=0):
        return [read(n) for n in range(4)][-1]


def by_refused_turns():
    with toolguard.run(per_tool=1, refused_turns=2, aggregate=0) as run:
        read(0)
        for n in range(2):
            run.turn()
            read(n)
        run.turn()
        return read(3)


def by_deadline():
    with isolated(clock=(clock := toolguard.testing.FakeClock())), toolguard.run(deadline_s=2):
        clock.advance(3)
        return read(1)


def by_tokens():
    with toolguard.run(tokens=2) as run:
        run.spend(3)
        return read(1)


def by_cost():
    with toolguard.run(cost_usd=2) as run:
        run.spend(cost_usd=3)
        return read(1)


def by_repeat_failure(attempts=3):
    @metered(kind="read")
    def fail():
        raise ValueError

    with toolguard.run():
        for _ in range(attempts - 1):
            with suppress(ValueError):
                fail()
        return fail()


def by_a_failed_probe():
    return by_repeat_failure(5)


def by_same_complaint():
    @metered(kind="read")
    def fail(n):
        raise ValueError

    with toolguard.run(same_complaint=2):
        for n in range(2):
            with suppress(ValueError):
                fail(n)
        return fail(2)


def by_same_outcome():
    with toolguard.run(same_outcome=2):
        return [read(1) for _ in range(3)][-1]


def by_stale_streak():
    with toolguard.run(stale_streak=2):
        return [read(n) for n in (1, 2, 1, 2, 1)][-1]


def by_duplicate_send():
    with toolguard.run():
        return [send("a") for _ in range(2)][-1]


def by_a_send_in_flight():
    @metered(kind="send")
    def sends_itself(depth):
        return sends_itself(depth)

    with toolguard.run():
        return sends_itself(0)


def by_delegation():
    @metered(kind="read", delegate=True)
    def ask(n):
        return n

    with toolguard.run(delegation=2):
        return [ask(n) for n in range(3)][-1]


def by_call_budget():
    with toolguard.run(call_budget=2):
        return [read(n) for n in range(3)][-1]


@pytest.mark.parametrize(
    ("made", "reason", "rule", "used", "limit", "retry"),
    [
        (by_deadline, "deadline_s", None, 3, 2, "never"),
        (by_tokens, "tokens", None, 3, 2, "never"),
        (by_cost, "cost_usd", None, 3, 2, "never"),
        (by_repeat_failure, "repeat_failure", "failing", 2, 2, "later"),
        (by_a_failed_probe, "repeat_failure", "closed", 3, 2, "later"),
        (by_same_complaint, "same_complaint", None, 2, 2, "later"),
        (by_same_outcome, "same_outcome", None, 2, 2, "different"),
        (by_stale_streak, "stale_streak", None, 2, 2, "different"),
        (by_delegation, "delegation", None, 2, 2, "different"),
        (by_call_budget, "call_budget", None, 2, 2, "different"),
        (by_per_tool, "per_tool", None, 2, 2, "different"),
        (by_aggregate, "aggregate", None, 2, 2, "identical"),
        (by_delivery, "delivery", None, 2, 2, "different"),
        (by_query_loop, "query_loop", None, 2, 2, "different"),
        (by_hard_cap, "hard_stop", "explicit", 2, 2, "never"),
        (by_stuck, "hard_stop", "stuck", 3, 3, "never"),
        (by_backstop, "hard_stop", "backstop", 2, 2, "never"),
        (by_refused_calls, "refused_calls", None, 2, 2, "never"),
        (by_refused_turns, "refused_turns", None, 2, 2, "never"),
    ],
)
def test_the_text_of_every_wall_says_that_nothing_ran_why_with_the_numbers_and_what_to_do_next(
    made, reason, rule, used, limit, retry
):
    answer = assert_refused(made(), reason)
    assert (answer.rule, answer.used, answer.limit, answer.retry) == (rule, used, limit, retry)
    assert answer.startswith(f"{answer.tool} did NOT execute: ")
    assert str(used) in re.findall(r"\d+", answer)
    assert str(limit) in re.findall(r"\d+", answer)
    advice = {"never": "Answer now with what you have", "identical": "repeat it with the same arguments"}
    assert advice.get(retry, "") in answer
    assert answer.endswith(".")


@pytest.mark.parametrize(
    ("made", "rule", "retry", "advice"),
    [
        (by_duplicate_send, "sent", "different", "do not send it again"),
        (by_a_send_in_flight, "flying", "later", "Wait for its result"),
    ],
)
def test_a_refused_duplicate_says_whether_the_first_has_been_sent_or_is_on_its_way(made, rule, retry, advice):
    answer = assert_refused(made(), "duplicate_send")
    assert (answer.rule, answer.used, answer.limit, answer.retry) == (rule, 1, 1, retry)
    assert "did NOT execute" in answer
    assert "once" in answer
    assert advice in answer


def test_every_wall_that_can_refuse_is_among_those_texts():
    tested = {"per_tool", "aggregate", "delivery", "query_loop", "hard_stop", "refused_calls", "refused_turns"}
    tested |= {"deadline_s", "tokens", "cost_usd", "repeat_failure", "same_complaint", "same_outcome", "stale_streak"}
    tested |= {"duplicate_send", "delegation", "call_budget"}
    assert {wall.name for wall in walls.TABLE if wall.admit or wall.refused} == tested


def by_stop():
    with toolguard.run() as run:
        run.stop("Enough.")
        return read(1)


def by_outside_run():
    with isolated({"outside_run": "refuse"}):
        return read(1)


def by_gate():
    @metered(kind="read")
    def hesitant():
        raise NotExecuted("ask ann first")

    with toolguard.run():
        return hesitant()


@pytest.mark.parametrize(
    ("made", "reason", "retry"),
    [(by_stop, "stop", "never"), (by_outside_run, "outside_run", "never"), (by_gate, "gate", "different")],
)
def test_a_refusal_where_nothing_was_counted_has_no_numbers_and_says_that_nothing_ran(made, reason, retry):
    answer = assert_refused(made(), reason)
    assert (answer.used, answer.limit, answer.rule, answer.retry) == (None, None, None, retry)
    assert " did NOT execute" in answer
    assert re.findall(r"\d", answer) == []


@pytest.mark.parametrize("why", [BUSY, GATE, OUTSIDE], ids=lambda why: why.reason)
def test_every_other_reason_has_words(why):
    answer = worded(why, "read", "read", None)
    assert answer.startswith("read did NOT execute: ")
    assert answer.reason == why.reason
    assert answer.run_id is None


def test_a_refusal_claims_no_success_and_no_result():
    for made in (by_per_tool, by_aggregate, by_delivery, by_hard_cap, by_stop, by_outside_run):
        assert not re.search(r"\b(success|succeeded|done|ok|result is|completed|error)\b", made(), re.IGNORECASE)


@pytest.mark.parametrize("message", ["", "verbatim {} %s ✓\nsecond line"])
def test_the_message_of_a_gate_is_passed_on_verbatim(message):
    answer = worded(Refused("gate", None, None, "different"), "read", "read", "r", message)
    assert str(answer) == (f"read did NOT execute: {message}" if message else "read did NOT execute.")


def test_the_refusals_of_a_run_are_the_very_answers():
    with toolguard.run(per_tool=1, aggregate=0) as run:
        read()
        answers = [read(n) for n in range(3)]
    assert all(kept is answer for kept, answer in zip(run.refusals, answers, strict=True))
    assert {answer.run_id for answer in answers} == {run.id}


def test_an_unbindable_call_never_becomes_a_refusal():
    with toolguard.run() as run:
        with pytest.raises(TypeError):
            read(1, 2)
        assert run.refusals == ()


# Helpers for tests ------------------------------------------------------------------------------------------------------


def test_the_helpers_say_what_came_instead(refused):
    assert assert_refused(refused) is refused
    assert_executed(3)
    with pytest.raises(AssertionError, match="executed and returned int"):
        assert_refused(3)
    with pytest.raises(AssertionError, match="executed and returned str"):
        assert_refused(str(refused))
    with pytest.raises(AssertionError, match="refusal by per_tool, got one by aggregate"):
        assert_refused(refused, "per_tool")
    with pytest.raises(AssertionError, match="did NOT execute"):
        assert_executed(refused)


# Numbers in it ----------------------------------------------------------------------------------------------------------


RULES = [None, "stuck", "backstop", "explicit", "failing", "closed", "flying", "sent"]
ONE_AS_MANY = re.compile(r"(?<![\d.$])1 (?:tool )?(?!has\b|was\b)[a-z]{2,}s\b")


@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from([int, float]))
def test_no_text_of_any_wall_speaks_of_one_as_of_many(used, limit, number):
    texts = []
    for wall in walls.TABLE:
        for rule in RULES:
            why = Refused(wall.name, number(used), number(limit), "never", rule)
            texts += [wall.text(why, "read"), stop_message(Stop(why, {"read": used}, nested=limit))]
        if wall.reading:
            texts.append(converge(wall.name, Reading(used, limit)))
        if wall.note:
            texts.append(wall.note(None, 1, used) or "")
    texts += [withheld("read", used, limit), stream_cut("read", used, limit)]
    assert [text for text in texts if ONE_AS_MANY.search(text)] == []


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (0, "0 calls"),
        (1, "1 call"),
        (2, "2 calls"),
        (1.0, "1 call"),
        (1.5, "1.5 calls"),
        (11, "11 calls"),
        (10**9, f"{10**9} calls"),
    ],
)
def test_a_number_stands_before_its_noun(n, said):
    assert counted(n, "calls") == said


def test_what_happened_once_is_not_said_to_have_happened_1_time():
    assert [times(n) for n in range(3)] == ["0 times", "once", "2 times"]


def test_one_alone_takes_the_verb_of_one():
    why = Refused("refused_turns", 1, 1, "never", stops=True)
    assert "1 turn in a row was refused" in worded(why, "read", "read", None)
    assert "1 of 1 send is used up" in worded(Refused("delivery", 1, 1, "different"), "send", "send", None)
    assert converge("call_budget", Reading(1, 2)).startswith("1 of the 2 reads of this run is spent, 1 left")
    assert converge("call_budget", Reading(2, 2)).startswith("2 of the 2 reads of this run are spent, 0 left")
