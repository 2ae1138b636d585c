"""Runs where people open them: in FastAPI endpoints, dependencies, executors and background tasks."""

import asyncio
import warnings
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from fastapi.responses import StreamingResponse

import toolguard
from toolguard import Refusal, current_run, metered

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # which client library it wants is its own affair
    from fastapi.testclient import TestClient


@metered(kind="read")
def search(query: str) -> str:
    """Search."""
    return query


@metered(kind="read")
async def fetch(query: str) -> str:
    """Fetch."""
    await asyncio.sleep(0)
    return query


@pytest.fixture
def app():
    return FastAPI()


@pytest.fixture(params=["TestClient", "ASGITransport"])
def get(request, app):
    """What a GET answers, through either of the clients that people test with."""
    if request.param == "TestClient":
        return lambda path: TestClient(app).get(path).raise_for_status().json()

    async def ask(path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.get(path)).raise_for_status().json()

    return lambda path: asyncio.run(ask(path))


def warned(logged):
    return [record.getMessage() for record in logged.records if record.levelname == "WARNING" and record.name == "toolguard"]


def charged(spans):
    """Whether all calls of this test hang under the one run's span."""
    (run,) = spans.runs()
    return in_one_trace(spans) and {span.parent.span_id for span in spans.calls()} == {run.context.span_id}


def in_one_trace(spans):
    """Whether all calls of this test are the one run's, wherever the server's own spans put them in the trace."""
    (run,) = spans.runs()
    places = {(span.context.trace_id, span.attributes.get("toolguard.run.id")) for span in spans.calls()}
    return places == {(run.context.trace_id, run.attributes["toolguard.run.id"])}


def test_a_run_in_an_async_endpoint_is_charged(app, get, spans, logged):
    @app.get("/")
    async def endpoint():
        with toolguard.run("assistant", hard_cap=2) as run:
            results = [search("a"), await fetch("b"), search("c")]
            return {"executed": run.usage().executed, "refused": isinstance(results[2], Refusal), "text": results[2]}

    answer = get("/")
    assert (answer["executed"], answer["refused"]) == (2, True)
    assert "did NOT execute" in answer["text"]
    assert charged(spans)
    assert current_run() is None
    assert len(warned(logged)) == 1  # the stop


def test_a_run_in_a_sync_endpoint_is_charged(app, get, spans, logged):
    @app.get("/")
    def endpoint():
        with toolguard.run("assistant") as run:
            search("a")
            return run.usage().to_dict()

    assert get("/")["executed"] == 1
    assert charged(spans)
    assert warned(logged) == []


@pytest.mark.parametrize("endpoint_is_async", [True, False])
def test_a_run_in_an_async_yield_dependency_is_visible_in_the_endpoint(app, get, spans, logged, endpoint_is_async):
    left = []

    async def assistant():
        async with toolguard.run("assistant") as run:
            yield run
        left.append(current_run())

    if endpoint_is_async:

        @app.get("/")
        async def endpoint(run: Annotated[toolguard.Run, Depends(assistant)]):
            await fetch("a")
            return {"same": current_run() is run, **run.usage().to_dict()}
    else:

        @app.get("/")
        def endpoint(run: Annotated[toolguard.Run, Depends(assistant)]):
            search("a")
            return {"same": current_run() is run, **run.usage().to_dict()}

    answer = get("/")
    assert answer["same"] is True
    assert answer["executed"] == 1
    assert left == [None]
    assert in_one_trace(spans)
    assert warned(logged) == []


def test_a_run_in_a_sync_yield_dependency_is_not_visible_and_the_log_names_the_cure(app, get, spans, logged):
    def assistant():
        with toolguard.run("assistant") as run:
            yield run

    @app.get("/")
    async def endpoint(run: Annotated[toolguard.Run, Depends(assistant)]):
        search("a")
        return {"visible": current_run() is not None, "executed": run.usage().executed}

    assert get("/") == {"visible": False, "executed": 0}
    outside, cure = warned(logged)
    assert "called outside a run" in outside
    assert "not in a sync one" in cure
    assert "run.bind(fn)" in cure
    assert len(spans.runs()) == 1
    assert [record for record in logged.records if record.name.startswith("opentelemetry")] == []


def test_bind_carries_the_run_of_a_sync_dependency_into_the_endpoint(app, get, spans):
    def assistant():
        with toolguard.run("assistant") as run:
            yield run

    @app.get("/")
    async def endpoint(run: Annotated[toolguard.Run, Depends(assistant)]):
        run.bind(search)("a")
        await run.bind(fetch)("b")
        return run.usage().executed

    assert get("/") == 2
    assert charged(spans)


def test_an_endpoint_that_raises_leaves_its_run(app, spans):
    seen = []

    async def assistant():
        try:
            with toolguard.run("assistant") as run:
                yield run
        finally:
            seen.append(current_run())

    @app.get("/")
    async def endpoint(_run: Annotated[toolguard.Run, Depends(assistant)]):
        search("a")
        raise KeyError("x")

    with pytest.raises(KeyError):
        TestClient(app).get("/")
    assert seen == [None]
    (run,) = spans.runs()
    assert run.attributes["error.type"] == "KeyError"


@pytest.mark.parametrize("bound", [True, False])
def test_run_in_executor_is_charged_when_bound_and_outside_the_run_when_not(app, get, spans, bound):
    def work():
        return search("a"), search("b")

    @app.get("/")
    async def endpoint():
        with toolguard.run("assistant") as run:
            await asyncio.get_running_loop().run_in_executor(None, run.bind(work) if bound else work)
            return run.usage().executed

    assert get("/") == (2 if bound else 0)
    assert [("toolguard.run.missing" in span.attributes) for span in spans.calls()] == [not bound] * 2
    assert not bound or charged(spans)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_bound_background_task_is_charged_after_the_run(app, get, spans, logged, kind):
    runs = []

    def in_thread(query):
        return [search(query) for _ in range(3)]

    async def in_loop(query):
        return [await fetch(query) for _ in range(3)]

    @app.get("/")
    async def endpoint(tasks: BackgroundTasks):
        with toolguard.run("assistant", hard_cap=2) as run:
            runs.append(run)
            tasks.add_task(run.bind(in_thread if kind == "sync" else in_loop), "a")
        return run.usage().executed

    assert get("/") == 0
    (run,) = runs
    assert (run.usage().executed, run.usage().refused, run.stop_reason) == (2, 1, "hard_stop")
    assert charged(spans)
    assert current_run() is None
    (stop,) = warned(logged)
    assert "was stopped by hard_stop" in stop


def test_a_background_task_that_is_not_bound_is_outside_the_run(app, get, spans):
    @app.get("/")
    async def endpoint(tasks: BackgroundTasks):
        with toolguard.run("assistant"):
            tasks.add_task(search, "a")

    get("/")
    assert spans.calls()[0].attributes["toolguard.run.missing"] is True


def test_a_task_made_in_the_endpoint_outlives_the_run_and_is_charged_to_it(app, get):
    runs = []

    async def work(go):
        await go.wait()
        return await fetch("a")

    @app.get("/")
    async def endpoint():
        go = asyncio.Event()
        with toolguard.run("assistant") as run:
            runs.append(run)
            task = asyncio.create_task(work(go))
        go.set()
        return await task

    assert get("/") == "a"
    assert runs[0].usage().executed == 1


def test_requests_at_once_have_a_run_each(app):
    @app.get("/{n}")
    async def endpoint(n: int):
        with toolguard.run("assistant", hard_cap=n):
            results = [await fetch(str(i)) for i in range(8)]
            return sum(not isinstance(result, Refusal) for result in results)

    async def everything():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [reply.json() for reply in await asyncio.gather(*(client.get(f"/{n}") for n in range(1, 9)))]

    assert asyncio.run(everything()) == list(range(1, 9))


def test_a_run_in_the_lifespan_is_not_the_run_of_a_request(app, spans):
    seen = []

    @asynccontextmanager
    async def lifespan(_app):
        with toolguard.run("service") as run:
            yield
            seen.append((current_run() is run, run.usage().executed))

    app.router.lifespan_context = lifespan

    @app.get("/")
    async def endpoint():
        with toolguard.run("assistant") as run:
            search("a")
            return run.parent is None or run.parent.agent

    with TestClient(app) as client:
        assert client.get("/").json() in {True, "service"}
    assert seen == [(True, 0)]


def test_a_streamed_answer_is_charged_to_the_run_that_its_generator_opens(app, get, spans, logged):
    runs = []

    async def stream():
        async with toolguard.run("assistant") as run:
            runs.append(run)
            yield "["
            yield f'"{await fetch("a")}"'
            yield "]"

    @app.get("/")
    async def endpoint():
        return StreamingResponse(stream(), media_type="application/json")

    assert get("/") == ["a"]
    assert runs[0].usage().executed == 1
    assert charged(spans)
    assert warned(logged) == []


def test_a_refusal_passes_a_response_model(app, get):
    @app.get("/")
    async def endpoint() -> str | Refusal:
        with toolguard.run(hard_cap=1):
            search("a")
            return search("b")

    assert get("/").startswith("search did NOT execute: ")


def test_a_metered_function_may_be_a_dependency(app, get):
    @metered(kind="read")
    def settings_of(tenant: str = "acme") -> str:
        return tenant

    @app.get("/")
    async def endpoint(settings: Annotated[object, Depends(settings_of)]):
        return settings

    toolguard.configure({"outside_run": "allow"})
    assert get("/?tenant=other") == "other"
