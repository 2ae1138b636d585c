"""Generators driven step by step, so that nothing of ours is current while the consumer has the word."""

from collections.abc import AsyncGenerator, Callable, Generator
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
    """Yield what the body yields, take what it is sent, and return what it returns."""
    if (answer := step.start()) is not None:
        yield answer
        return None
    try:
        with step:
            body = make()
        resume: Any = body.send
        given: Any = None
        while True:
            with step:
                try:
                    item = resume(given)
                except StopIteration as stop:
                    value = stop.value
                    break
            step.items += 1
            try:
                given = yield item
                resume = body.send
            except GeneratorExit:
                with step:
                    body.close()
                raise
            except BaseException as error:  # noqa: BLE001  it is the consumer's `throw`, and the body decides
                given, resume = error, body.throw
    except BaseException as error:
        if (answer := step.fail(error)) is None:
            raise
    else:
        step.end(value)
        return value
    yield answer
    return None


async def adrive(make: Callable[[], AsyncGenerator[Any, Any]], step: Step) -> AsyncGenerator[Any, Any]:
    """Yield what the body yields and take what it is sent."""
    if (answer := step.start()) is not None:
        yield answer
        return
    try:
        with step:
            body = make()
        resume: Any = body.asend
        given: Any = None
        while True:
            with step:
                try:
                    item = await resume(given)
                except StopAsyncIteration:
                    break
            step.items += 1
            try:
                given = yield item
                resume = body.asend
            except GeneratorExit:
                with step:
                    await body.aclose()
                raise
            except BaseException as error:  # noqa: BLE001  it is the consumer's `athrow`, and the body decides
                given, resume = error, body.athrow
    except BaseException as error:
        if (answer := step.fail(error)) is None:
            raise
    else:
        step.end(None)
        return
    yield answer
