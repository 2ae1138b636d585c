"""Generators driven step by step, so that nothing of ours is current while the consumer has the word."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Protocol

__all__ = ["Step", "adrive", "drive"]


class Step(Protocol):
    """What surrounds a stream and each step of its body.

    A step is entered and left in one thread and task, never across a `yield`. Exactly one of `end` and `fail` is called
    once, and only after `start` let the stream begin.

    Attributes:
        items: how many items the body has handed out.
    """

    items: int

    def start(self) -> Any:
        """Begin at the first step; what is not None is yielded instead of the body."""

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
                    item = body.send(given) if thrown is None else body.throw(thrown)
                except StopIteration as stop:
                    value = stop.value
                    break
            step.items += 1
            given = thrown = None
            try:
                given = yield item
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
    if (answer := step.start()) is not None:
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
                waiting = body.asend((yield item))
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
