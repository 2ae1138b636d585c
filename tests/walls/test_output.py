"""The cumulative overflow: results are cut to what is left, and replaced only where nothing is."""

import asyncio
import dataclasses
import io
import json
import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolguard
from toolguard import NotExecuted, Refusal, metered
from toolguard.testing import assert_refused, isolated

FLOOR = 256
OPEN = {"same_outcome": 0, "stale_streak": 0, "per_tool": 0, "aggregate": 0}


@metered(kind="read")
def fetch(value):
    """Return what it is given, however long."""
    return value


@metered(kind="read")
def text(size, fill="x"):
    return fill * size


@metered(kind="send")
def mail(body):
    return body


def open_run(**limits):
    return toolguard.run(**{**OPEN, **limits})


def only(spans, name):
    (span,) = [span for span in spans.calls() if span.name == f"execute_tool {name}"]
    return span.attributes


# One result -----------------------------------------------------------------------------------------------------------


def test_a_result_that_fits_is_the_very_object(spans):
    values = ["x" * 1000, ["a"] * 10, {"a": 1}, ("a", 1), None, 7, 1.5, True, {1, 2}]
    with open_run(result_chars=1000, output_chars=10_000):
        for value in values:
            assert fetch(value) is value
    assert not any("toolguard.result.cut" in span.attributes for span in spans.calls())


def test_a_longer_one_is_cut_says_so_and_how_to_narrow():
    with open_run(result_chars=1000):
        answer = text(1001, "0123456789")
    assert type(answer) is str
    assert len(answer) <= 1000
    head, _, notice = answer.partition("\n… [")
    assert ("0123456789" * 101).startswith(head)
    assert len(head) > 700
    assert "cut" in notice
    assert "1010" not in head
    for word in ("filter", "page", "fewer"):
        assert word in notice
    assert str(len(head)) in notice


@pytest.mark.parametrize("limit", [1, 10, 255, 256])
def test_a_limit_with_no_room_for_a_notice_is_taken_as_the_least_that_has(limit):
    with open_run(result_chars=limit):
        assert len(text(256)) == 256
        assert "cut" not in text(256)
        answer = text(257)
        assert len(answer) <= 256
        assert answer.startswith("x")
        assert "cut" in answer


def test_a_limit_of_0_means_no_limit():
    with open_run(result_chars=0, output_chars=0):
        assert len(text(10**6)) == 10**6
    with open_run(result_chars=0, output_chars=2 * 10**6):
        assert len(text(10**6)) == 10**6
    with open_run(result_chars=300, output_chars=0):
        for _ in range(20):
            assert 200 < len(text(1000)) <= 300


@pytest.mark.parametrize("profile", ["assistant", "coding", "operations"])
def test_every_profile_cuts_one_result_at_50_000_and_all_at_500_000(profile):
    with toolguard.run(profile=profile) as run:
        assert len(text(50_000)) == 50_000
        assert 49_900 < len(text(50_001)) <= 50_000
        for n in range(8):
            assert len(text(50_000, chr(97 + n))) == 50_000
        assert 499_900 < run.usage().chars <= 500_000
        assert "DID execute" in text(300)


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 40] * 500,
        [{"id": n, "name": "n" * 30} for n in range(500)],
        ("x" * 40,) * 500,
        {f"key {n}": "v" * 40 for n in range(500)},
        {"head": 1, "body": "b" * 50_000},
        [{"notes": "x" * 50_000}],
        {"rows": [{"id": n} for n in range(2000)]},
    ],
    ids=["texts", "records", "tuple", "dict", "one long field", "one long record", "nested"],
)
def test_a_container_keeps_its_type_and_its_beginning_and_is_not_touched(value):
    before = json.dumps(value)
    with open_run(result_chars=2000):
        answer = fetch(value)
    assert type(answer) is type(value)
    assert json.dumps(value) == before
    written = json.dumps(answer)
    assert "cut" in written
    assert "filter" in written
    assert len(written) < 3000
    if isinstance(value, dict):
        assert next(iter(answer)) == next(iter(value))
    elif isinstance(value[0], str):
        assert answer[0] == value[0]


@pytest.mark.parametrize("value", [[{"id": n, "notes": "n" * 20} for n in range(400)], {"rows": ["r" * 50] * 400, "next": 3}])
@pytest.mark.parametrize("limit", [300, 1000, 5000])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_valid_and_fits(value, limit, indent):
    written = json.dumps(value, indent=indent)
    with open_run(result_chars=limit):
        answer = fetch(written)
    assert len(answer) <= limit
    assert type(json.loads(answer)) is type(value)
    assert "cut" in answer


@pytest.mark.parametrize("value", [[{"notes": "x" * 50_000}], {"k" * 1000: 1}, [1] * 5000], ids=["record", "key", "numbers"])
@pytest.mark.parametrize("limit", [1, 10, 256])
def test_json_stays_valid_under_a_limit_with_no_room_for_a_notice(value, limit):
    with open_run(result_chars=limit):
        answer = fetch(json.dumps(value))
    assert len(answer) <= 256
    assert type(json.loads(answer)) is type(value)
    assert "cut" in answer


@pytest.mark.parametrize("limit", range(256, 296))
def test_no_character_is_cut_in_two(limit):
    whole = "ä€😀👩‍👩‍👧é" * 200
    with open_run(result_chars=limit):
        answer = fetch(whole)
    answer.encode()
    assert whole.startswith(answer.partition("\n… [")[0])
    assert len(answer) <= limit


def test_what_a_failure_returns_is_cut_too_and_stays_a_failure(spans):
    with open_run(result_chars=500):
        answer = fetch({"error": "e" * 5000})
    assert answer["error"].startswith("eeee")
    assert len(answer["error"]) < 500
    assert only(spans, "fetch")["toolguard.call.outcome"] == "error"


def test_what_a_tool_raises_is_not_touched():
    error = OSError("e" * 10_000)

    @metered(kind="read")
    def broken():
        raise error

    with open_run(result_chars=300, output_chars=300) as run:
        with pytest.raises(OSError, match="eee") as caught:
            broken()
        assert caught.value is error
        assert run.usage().chars == 0


@dataclasses.dataclass
class Page:
    body: str


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"x" * 10_000,
        lambda: iter(["x" * 10_000]),
        lambda: (n for n in "x" * 10),
        lambda: io.StringIO("x" * 10_000),
        object,
        lambda: ["x" * 10_000, object()],
        lambda: math,
    ],
    ids=["bytes", "iterator", "generator", "file", "object", "list with an object", "module"],
)
def test_what_cannot_be_measured_is_passed_on_and_marked(spans, make):
    value = make()
    with open_run(result_chars=300, output_chars=300) as run:
        assert fetch(value) is value
        assert run.usage().chars == 0
    attributes = only(spans, "fetch")
    assert attributes["toolguard.result.uncut"] is True
    assert "toolguard.result.cut" not in attributes


def test_an_iterator_is_not_consumed():
    flowing = iter("abc")
    with open_run():
        assert list(fetch(flowing)) == ["a", "b", "c"]


def test_what_has_no_part_to_leave_out_is_passed_on_and_marked_and_charged(spans):
    page = Page("x" * 5000)
    with open_run(result_chars=300, output_chars=20_000) as run:
        assert fetch(page) is page
        assert run.usage().chars >= 5000
    assert only(spans, "fetch")["toolguard.result.uncut"] is True


class Nasty:
    def __len__(self):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError

    def __iter__(self):
        raise RuntimeError

    @property
    def __class__(self):
        raise RuntimeError


class NastyText(str):
    __slots__ = ()

    def __len__(self):
        raise RuntimeError

    def __getitem__(self, _):
        raise RuntimeError


def test_results_with_code_of_their_own_or_without_an_end_harm_nothing():
    nasty, cyclic, knot, deep = Nasty(), [1], {}, []
    cyclic.append(cyclic)
    knot["a"] = knot
    for _ in range(10_000):
        deep = [deep]
    with open_run(result_chars=300, output_chars=1000):
        for value in (cyclic, knot, deep, nasty):
            assert fetch(value) is value
        assert str.__len__(fetch(NastyText("x" * 5000))) <= 300
    while deep:  # freeing it at once would be as deep
        deep = deep.pop()


# All results of a run -------------------------------------------------------------------------------------------------


def test_results_are_cut_to_what_is_left_and_replaced_when_nothing_is():
    with open_run(output_chars=1000, result_chars=600) as run:
        assert len(text(600)) == 600
        second = text(601)
        assert 300 < len(second) <= 400
        assert "cut" in second
        assert "hand on 400 more characters" in second
        left = 1000 - run.usage().chars
        third = text(600)
        assert left < FLOOR
        assert third.startswith("text DID execute")
        assert "cut" in third
        assert "600" in third
        assert "1000" in third


def test_small_results_pass_until_the_last_character_is_spent():
    with open_run(output_chars=1000) as run:
        assert len(text(950)) == 950
        assert text(40) == "x" * 40
        assert "DID execute" in text(11)
        assert text(10) == "x" * 10
        assert run.usage().chars == 1000
        assert "DID execute" in text(1)
        assert fetch("") == ""


def test_with_most_of_it_spent_a_result_of_300_characters_is_never_a_bare_notice():
    with open_run(output_chars=10_000) as run:
        assert len(text(9500)) == 9500
        assert text(300) == "x" * 300
        answer = text(300)  # 200 are left, which is less than is worth reading
        assert "DID execute" in answer
        assert run.usage().chars == 9800
    with open_run(output_chars=10_000):
        text(9700)
        answer = text(400)
        assert answer.startswith("x" * 20)
        assert "cut" in answer


def test_the_text_that_replaces_a_result_reads_as_no_refusal(spans):
    with open_run(output_chars=300) as run:
        text(300)
        answer = text(5000)
        assert not isinstance(answer, Refusal)
        assert type(answer) is str
        assert "DID execute" in answer
        assert "did NOT execute" not in answer
        assert "cut" in answer
        assert "5000 characters" in answer
        assert "300 characters" in answer
        assert "Do not call it again for the same" in answer
        assert "say what you could not read" in answer
        assert run.usage().refused == 0
        assert run.usage().executed == 2
    attributes = spans.calls()[-1].attributes
    assert attributes["toolguard.executed"] is True
    assert attributes["toolguard.refused"] is False
    assert attributes["toolguard.call.outcome"] == "ok"
    assert attributes["toolguard.result.cut"] is True
    assert attributes["toolguard.result.chars"] == 5000
    assert attributes["toolguard.result.handed"] == 0


def test_the_span_of_a_cut_result_has_its_size_and_what_was_handed_on(spans):
    with open_run(result_chars=1000) as run:
        answer = text(4000)
        assert run.usage().chars == len(answer)
    attributes = only(spans, "text")
    assert attributes["toolguard.result.cut"] is True
    assert attributes["toolguard.result.chars"] == 4000
    assert attributes["toolguard.result.handed"] == len(answer)


def test_nothing_is_refused_and_every_call_still_executes():
    ran = []

    @metered(kind="read")
    def note(n):
        ran.append(n)
        return "y" * 500

    with open_run(output_chars=500) as run:
        for n in range(30):
            note(n)
        assert ran == list(range(30))
        assert run.usage().by_reason == {}
        assert not run.stopped


def test_results_of_sends_count_as_those_of_reads():
    with open_run(output_chars=1000):
        mail("m" * 900)
        assert "DID execute" in text(500)
    with open_run(output_chars=1000):
        text(900)
        assert "DID execute" in mail("m" * 500)


def test_numbers_keys_and_structure_are_text_volume_too():
    with open_run(output_chars=10_000) as run:
        fetch([10**9] * 100)
        assert run.usage().chars >= 1000
        before = run.usage().chars
        fetch({"a long key " * 10: None})
        assert run.usage().chars >= before + 110


def test_usage_counts_what_was_handed_on():
    with open_run() as run:
        text(100)
        text(50)
        mail("abc")
        assert run.usage().chars == 153
        assert run.usage().to_dict()["chars"] == 153


def test_a_cut_list_is_handed_on_again_where_a_later_one_fits():
    with open_run(output_chars=3000, result_chars=2000) as run:
        first = fetch(["r" * 30] * 200)
        assert len(first) > 30
        second = fetch(["s" * 30] * 200)
        assert 1 < len(second) < len(first)
        assert run.usage().chars <= 3000
        assert isinstance(fetch(["t" * 30] * 200), str)  # replaced: nothing is left


# What is never cut ----------------------------------------------------------------------------------------------------


def spent_run():
    return open_run(output_chars=300, result_chars=300, delivery=1)


def test_a_gates_answer_is_verbatim_however_long_it_is_and_whatever_is_left():
    answer = "Ask the office for form 27b. " * 100

    @metered(kind="read", gate=lambda call: answer)
    def guarded():
        raise AssertionError

    with spent_run() as run:
        text(300)
        refusal = assert_refused(guarded(), "gate")
        assert refusal == f"guarded did NOT execute: {answer}"
        assert run.usage().chars == 300


def test_so_is_what_a_tool_says_that_did_not_run():
    answer = "The door is locked. " * 100

    @metered(kind="read")
    def locked():
        raise NotExecuted(answer)

    with spent_run():
        text(300)
        assert assert_refused(locked(), "gate") == f"locked did NOT execute: {answer}"


def test_refusals_by_walls_are_whole_also_where_a_body_hands_them_on():
    @metered(kind="read")
    def outer():
        return mail("again")

    with spent_run():
        mail("m" * 300)
        refusal = assert_refused(mail("more"), "delivery")
        assert assert_refused(outer(), "delivery") == refusal


def test_local_and_uncounted_results_are_neither_cut_nor_counted():
    toolguard.configure({"local": ["scratchpad"]})

    @metered(kind="read")
    def scratchpad():
        return "s" * 5000

    with open_run(output_chars=300, result_chars=300) as run:
        assert len(scratchpad()) == 5000
        with toolguard.uncounted():
            assert len(text(5000)) == 5000
        assert run.usage().chars == 0
        assert len(text(300)) == 300


def test_outside_a_run_nothing_is_cut():
    toolguard.configure({"outside_run": "allow"})
    assert len(text(10**6)) == 10**6
    toolguard.configure({"outside_run": "warn"})
    assert len(text(10**6)) == 10**6


@pytest.mark.parametrize("whole", [True, False])
def test_where_they_observe_nothing_is_cut_and_all_is_counted(whole):
    if not whole:
        toolguard.configure({"observe": ["output_chars", "result_chars"]})
    with open_run(mode="observe" if whole else None, output_chars=300, result_chars=300) as run:
        for _ in range(3):
            assert len(text(5000)) == 5000
        assert run.usage().chars == 15_000


def test_one_of_them_may_observe_while_the_other_cuts():
    toolguard.configure({"observe": ["output_chars"]})
    with open_run(output_chars=300, result_chars=1000):
        for _ in range(3):
            assert 700 < len(text(5000)) <= 1000


def test_a_nested_run_has_room_of_its_own_and_the_outer_one_pays_for_what_it_is_handed():
    @metered(kind="read")
    def specialist():
        with open_run(output_chars=5000) as child:
            text(4000)
            assert child.usage().chars == 4000
            return "summary"

    with open_run(output_chars=300) as run:
        assert specialist() == "summary"
        assert run.usage().chars == 7


def test_what_a_call_came_to_is_judged_before_it_is_cut():
    @metered(kind="read")
    def log():
        lines.append("line")
        return "x" * 1000 + str(len(lines))

    lines = []
    with toolguard.run(result_chars=300):
        for _ in range(8):  # each differs in what the model does not see
            assert not isinstance(log(), Refusal)


# Batches, threads, histories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("calls", "size"), [(300, 7000), (300, 7812), (40, 7812), (1000, 999), (50, 40_000)])
async def test_a_batch_that_ends_at_one_moment_hands_on_no_more_than_the_limit(calls, size):
    @metered(kind="read")
    async def load(n):
        await asyncio.sleep(0)
        return "x" * size

    with open_run() as run:
        said = await asyncio.gather(*(load(n) for n in range(calls)))
        handed = sum(len(answer) for answer in said if "DID execute" not in answer)
        assert handed == run.usage().chars
        assert handed <= 500_000
        assert handed > 490_000 or calls * size == handed


def test_threads_hand_on_no_more_than_the_limit():
    for _ in range(20):
        said, barrier = [], threading.Barrier(6)

        def job(barrier=barrier, said=said):
            barrier.wait()
            said.extend(text(100 + 57 * n) for n in range(20))

        with open_run(output_chars=20_000, result_chars=900) as run:
            threads = [threading.Thread(target=run.bind(job)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            handed = sum(len(answer) for answer in said if "DID execute" not in answer)
            assert handed == run.usage().chars <= 20_000


@settings(max_examples=150, deadline=None)
@given(
    total=st.integers(0, 5000),
    each=st.integers(0, 2000),
    sizes=st.lists(st.integers(0, 3000), max_size=40),
)
def test_whatever_the_sizes_what_is_handed_on_is_what_a_plain_sum_allows(total, each, sizes):
    with isolated(), open_run(output_chars=total, result_chars=each, hard_cap=0) as run:
        handed = 0
        for n, size in enumerate(sizes):
            answer = text(size, chr(0x4E00 + n))
            room = min(total - handed if total else math.inf, max(each, FLOOR) if each else math.inf)
            if size <= room:
                assert len(answer) == size
                handed += size
            elif room < FLOOR:
                assert "DID execute" in answer
            else:
                assert FLOOR - 64 <= len(answer) <= room
                assert answer.startswith(chr(0x4E00 + n))
                assert "cut" in answer
                handed += len(answer)
            assert run.usage().chars == (handed if total or each else 0)


# Streams --------------------------------------------------------------------------------------------------------------


class Source:
    """Bodies that write down how far they came and how they ended."""

    def __init__(self):
        self.given, self.ended = [], None

    def items(self, items):
        self.ended = "open"
        try:
            for item in items:
                self.given.append(item)
                yield item
            self.ended = "done"
        except GeneratorExit:
            self.ended = "closed"
            raise

    async def aitems(self, items):
        self.ended = "open"
        try:
            for item in items:
                await asyncio.sleep(0)
                self.given.append(item)
                yield item
            self.ended = "done"
        except GeneratorExit:
            self.ended = "closed"
            raise


SOURCES = {}


@metered(kind="read")
def stream(key, items):
    yield from SOURCES[key].items(items)


@metered(kind="send")
def upload(key, items):
    yield from SOURCES[key].items(items)


@metered(kind="read")
async def astream(key, items):
    inner = SOURCES[key].aitems(items)
    try:
        async for item in inner:
            yield item
    finally:
        await inner.aclose()


@metered(kind="send")
async def aupload(key, items):
    inner = SOURCES[key].aitems(items)
    try:
        async for item in inner:
            yield item
    finally:
        await inner.aclose()


@pytest.fixture
def source():
    SOURCES[0] = Source()
    yield SOURCES[0]
    SOURCES.clear()


async def collect(flow):
    if hasattr(flow, "__aiter__"):
        return [item async for item in flow]
    return list(flow)


READS, SENDS = [stream, astream], [upload, aupload]


@pytest.mark.parametrize("tool", READS + SENDS, ids=lambda tool: tool.__name__)
async def test_a_stream_that_fits_is_handed_on_item_by_item(spans, source, tool):
    items = ["a" * 100, ["b"], {"c": 1}, None, 7]
    with open_run(result_chars=1000) as run:
        got = await collect(tool(0, items))
        assert all(one is other for one, other in zip(got, items, strict=True))
        assert 100 < run.usage().chars < 140
    assert source.ended == "done"
    assert spans.calls()[0].attributes["toolguard.stream.items"] == 5
    assert "toolguard.result.cut" not in spans.calls()[0].attributes


def test_a_stream_is_metered_as_it_flows_and_not_before(source):
    with open_run(output_chars=10_000) as run:
        flow = stream(0, ["x" * 100] * 5)
        for n in range(1, 4):
            next(flow)
            assert len(source.given) == n
            assert run.usage().chars == 100 * n
        flow.close()
        assert run.usage().chars == 300


@pytest.mark.parametrize("tool", READS, ids=lambda tool: tool.__name__)
async def test_past_its_limit_the_last_item_says_so_and_the_body_of_a_read_is_closed(spans, source, tool):
    with open_run(result_chars=1000) as run:
        got = await collect(tool(0, [f"{n:100}" for n in range(100)]))
        assert got[:10] == [f"{n:100}" for n in range(10)]
        assert len(got) == 11
        assert "cut" in got[-1]
        assert "10 items" in got[-1]
        assert "1000 characters" in got[-1]
        assert "filter" in got[-1]
        assert run.usage().chars == 1000
    assert source.ended == "closed"
    assert len(source.given) == 11
    (span,) = spans.calls()
    assert span.attributes["toolguard.call.outcome"] == "ok"
    assert span.attributes["toolguard.result.cut"] is True
    assert span.attributes["toolguard.result.handed"] == 1000
    assert span.attributes["toolguard.stream.items"] == 11


@pytest.mark.parametrize("tool", SENDS, ids=lambda tool: tool.__name__)
async def test_the_body_of_a_send_runs_to_its_end(spans, source, tool):
    with open_run(result_chars=1000, output_chars=0):
        got = await collect(tool(0, [f"{n:100}" for n in range(100)]))
    assert len(got) == 11
    assert "cut" in got[-1]
    assert source.ended == "done"
    assert len(source.given) == 100
    assert spans.calls()[0].attributes["toolguard.call.outcome"] == "ok"


def test_a_long_text_is_handed_on_in_part_and_is_the_last_item(source):
    with open_run(result_chars=1000) as run:
        got = list(stream(0, ["a" * 300, "b" * 5000, "c"]))
        assert len(got) == 2
        assert got[1].startswith("b" * 400)
        assert "cut" in got[1]
        assert len(got[0]) + len(got[1]) <= 1000
        assert run.usage().chars == len(got[0]) + len(got[1])
    assert source.ended == "closed"


def test_the_last_item_of_a_stream_of_records_is_a_record(source):
    with open_run(result_chars=400):
        got = list(stream(0, [{"row": n, "text": "t" * 90} for n in range(20)]))
    assert got[0] == {"row": 0, "text": "t" * 90}
    assert list(got[-1]) == ["cut"]
    assert "filter" in got[-1]["cut"]


@pytest.mark.parametrize("tool", READS, ids=lambda tool: tool.__name__)
async def test_streams_and_results_draw_on_one_room(source, tool):
    with open_run(output_chars=1000) as run:
        text(850)
        got = await collect(tool(0, ["s" * 50] * 10))
        assert got[:3] == ["s" * 50] * 3
        assert "cut" in got[3]
        assert run.usage().chars == 1000
        assert "DID execute" in text(300)
    assert len(got) == 4


def test_a_stream_that_begins_when_nothing_is_left_says_so_at_its_first_item(source):
    with open_run(output_chars=300):
        text(300)
        (item,) = stream(0, ["s" * 50] * 10)
        assert "cut" in item
        assert "0 items" in item


def test_two_open_streams_share_what_is_left():
    SOURCES.update({1: Source(), 2: Source()})
    with open_run(output_chars=1000) as run:
        one, two = stream(1, ["a" * 100] * 20), stream(2, ["b" * 100] * 20)
        got = [next(flow) for _ in range(5) for flow in (one, two)]
        assert [len(item) for item in got] == [100] * 10
        assert "cut" in next(one)
        assert "cut" in next(two)
        assert run.usage().chars == 1000
        assert list(one) == list(two) == []
    SOURCES.clear()


@pytest.mark.parametrize("tool", READS, ids=lambda tool: tool.__name__)
async def test_items_that_cannot_be_measured_pass_and_mark_the_span(spans, source, tool):
    thing = object()
    items = [b"x" * 10_000, thing, "a" * 100]
    with open_run(result_chars=300, output_chars=300) as run:
        assert await collect(tool(0, items)) == items
        assert run.usage().chars == 100
    assert spans.calls()[0].attributes["toolguard.result.uncut"] is True
    assert source.ended == "done"


def test_a_stream_that_exactly_fills_its_room_is_not_cut(source):
    with open_run(result_chars=1000):
        assert list(stream(0, ["x" * 100] * 10)) == ["x" * 100] * 10
    assert source.ended == "done"


def test_what_the_consumer_sends_and_the_body_returns_flows_as_before():
    @metered(kind="read")
    def talk():
        first = yield "go on"
        second = yield "go on"
        third = yield "go on"
        return [first, second, third]

    def conversation():
        return (yield from talk())

    with open_run(result_chars=300):
        flow = conversation()
        assert next(flow) == "go on"
        assert flow.send(1) == "go on"
        assert flow.send(2) == "go on"
        with pytest.raises(StopIteration) as end:
            flow.send(3)
    assert end.value.value == [1, 2, 3]


def test_what_the_rest_of_a_send_raises_reaches_the_consumer(spans):
    @metered(kind="send")
    def broken():
        yield "x" * 5000
        yield "y"
        raise OSError("late")

    with open_run(result_chars=300):
        flow = broken()
        assert "cut" in next(flow)
        with pytest.raises(OSError, match="late"):
            next(flow)
    assert spans.calls()[0].attributes["toolguard.call.outcome"] == "error"


def test_a_cut_stream_that_is_left_there_is_closed(spans, source):
    with open_run(result_chars=300):
        flow = upload(0, ["x" * 200] * 5)
        next(flow)
        assert "cut" in next(flow)
        flow.close()
    assert source.ended == "closed"
    assert spans.calls()[0].attributes["toolguard.call.outcome"] == "closed"


@pytest.mark.parametrize("whole", [True, False])
def test_where_they_observe_a_stream_is_not_cut(source, whole):
    if not whole:
        toolguard.configure({"observe": ["output_chars", "result_chars"]})
    with open_run(mode="observe" if whole else None, output_chars=300, result_chars=300) as run:
        assert list(stream(0, ["x" * 200] * 5)) == ["x" * 200] * 5
        assert run.usage().chars == 1000
    assert source.ended == "done"


def test_a_refusal_among_the_items_is_whole(source):
    with open_run(output_chars=300, delivery=1):
        mail("m" * 300)
        refusal = assert_refused(mail("more"), "delivery")
        assert list(stream(0, [refusal])) == [refusal]
    assert source.ended == "done"


@settings(max_examples=100, deadline=None)
@given(total=st.integers(1, 3000), each=st.integers(1, 2000), sizes=st.lists(st.integers(0, 900), max_size=20))
def test_whatever_the_sizes_a_stream_hands_on_what_a_plain_sum_allows(total, each, sizes):
    key = object()
    SOURCES[key] = Source()
    with isolated(), open_run(output_chars=total, result_chars=each) as run:
        got = list(stream(key, ["i" * size for size in sizes]))
        room, handed = min(total, max(each, FLOOR)), 0
        for n, size in enumerate(sizes):
            if handed + size > room:
                assert "cut" in got[n]
                assert len(got) == n + 1
                if room - handed >= FLOOR:
                    assert len(got[n]) <= room - handed
                    handed += len(got[n])
                break
            assert got[n] == "i" * size
            handed += size
        else:
            assert len(got) == len(sizes)
        assert run.usage().chars == handed
    del SOURCES[key]
