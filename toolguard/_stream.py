"""Generators driven step by step, so that nothing of ours is current while the consumer has the word."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, NoReturn, Protocol

__all__ = ["Step", "adrive", "drive"]


class Step(Protocol):
    """What surrounds a stream and each step of its body.

    A step is entered and left in one thread and task, never across a `yield`. Exactly one of `end` and `fail` is called
    once, and only after `start` let the stream begin.

    Attributes:
        items: how many items the body has handed out.
        full: no further item is handed on.
        whole: the body is run to its end then, and not closed.
    """

    items: int
    full: bool

    @property
    def whole(self) -> bool: ...

    def start(self) -> Any:
        """Begin at the first step; what is not None is yielded instead of the body."""

    async def astart(self) -> Any:
        """Begin likewise, in an async generator."""

    def hand(self, item: Any) -> Any:
        """Return what is handed on of an item."""

    def end(self, value: Any) -> None:
        """Hear that the body returned `value`."""

    def fail(self, error: BaseException) -> Any:
        """Hear what ended the body early; what is not None is yielded last, and nothing is raised."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


def drive(make: Callable[[], Generator[Any, Any, Any]], step: Step) -> Generator[Any, Any, Any]:
    """Yield what the body yields, take what it is sent, and return what it returns.

    What the consumer throws, `GeneratorExit` included, is thrown into the body, which decides.
    """
    if (answer := step.start()) is not None:
        yield answer
        return None
    thrown: BaseException | None = None
    try:
        with step:
            body = make()
        given: Any = None
        while True:
            with step:
                try:
                    item = body.throw(thrown) if thrown is not None else _next(body, given, step)
                except StopIteration as stop:
                    value = stop.value
                    break
            step.items += 1
            given = thrown = None
            try:
                given = yield step.hand(item)
            except BaseException as error:  # noqa: BLE001  it is the consumer's
                thrown = error
    except BaseException as error:
        answer = step.fail(error)
        if answer is None:
            raise
        closed = isinstance(thrown, GeneratorExit)
    else:
        if isinstance(thrown, GeneratorExit):
            step.fail(thrown)
        else:
            step.end(value)
        return value
    finally:
        thrown = None  # it leads to this frame, which would lead back to it
    if not closed:
        yield answer
    return None


async def adrive(make: Callable[[], AsyncGenerator[Any, Any]], step: Step) -> AsyncGenerator[Any, Any]:
    """Yield what the body yields and take what it is sent; `drive` with `await`."""
    if (answer := await step.astart()) is not None:
        yield answer
        return
    thrown: BaseException | None = None
    try:
        with step:
            body = make()
        waiting = _first(body)
        while True:
            with step:
                try:
                    item = await waiting
                except StopAsyncIteration:
                    break
            step.items += 1
            thrown = None
            try:
                waiting = _anext(body, (yield step.hand(item)), step)
            except BaseException as error:  # noqa: BLE001  it is the consumer's
                thrown = error
                waiting = body.athrow(error)
    except BaseException as error:
        answer = step.fail(error)
        if answer is None:
            raise
        closed = isinstance(thrown, GeneratorExit)
    else:
        if isinstance(thrown, GeneratorExit):
            step.fail(thrown)
        else:
            step.end(None)
        return
    finally:
        thrown = None  # it leads to this frame, which would lead back to it
    if not closed:
        yield answer


def _next(body: Generator[Any, Any, Any], given: Any, step: Step) -> Any:
    """Return the body's next item. Where no more is handed on it is closed, or runs to its end, and this is the end."""
    if not step.full:
        return body.send(given)
    if step.whole:
        while True:
            next(body)
    body.close()
    raise StopIteration


def _anext(body: AsyncGenerator[Any, Any], given: Any, step: Step) -> Awaitable[Any]:
    return _arest(body, whole=step.whole) if step.full else body.asend(given)


async def _arest(body: AsyncGenerator[Any, Any], *, whole: bool) -> NoReturn:
    while whole:
        await anext(body)
    await body.aclose()
    raise StopAsyncIteration


def _first(body: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """Return the body's first step, unknown to the event loop.

    A loop closes every generator that it knows, all at once. It knows the one around this body, which closes the body.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return body.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
