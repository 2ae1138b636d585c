"""What was decorated. It knows nothing of decorators and keeps no local function alive."""

import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

from toolguard._values import Kind, Tool

__all__ = ["Spec", "add", "registered", "replace", "signature_of"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Spec(Generic[P, R]):
    """What is known of a tool.

    Attributes:
        name: the registered name, as the model sees it.
        kind: `read` or `send`.
        function: the bare, typed function, for Python that needs the real return type. It is not metered.
        tool: what the walls know of it.
    """

    name: str
    kind: Kind
    function: Callable[P, R] = field(repr=False)
    tool: Tool = field(repr=False)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature."""
        return signature_of(self.function)

    @cached_property
    def description(self) -> str:
        """The function's docstring, cleaned; empty where it has none."""
        return inspect.getdoc(self.function) or ""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without evaluating annotations."""
    if sys.version_info >= (3, 14):  # pragma: no cover  annotations are evaluated on demand there
        import annotationlib  # noqa: PLC0415

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


Found = Callable[[], "Spec[..., Any] | None"]
_specs: dict[tuple[str, str], Found] = {}


def add(owner: Any, spec: Spec[..., Any]) -> None:
    """Register `spec`; a newer definition of the same module and qualified name replaces the older one.

    Args:
        owner: the decorated tool. A local function, or a method with its receiver, is found through it only as long as
            somebody else holds it.
        spec: what is known of it; `owner` holds it.
    """
    name = getattr(spec.function, "__qualname__", spec.name)
    key = (getattr(spec.function, "__module__", ""), name)
    if "<locals>" in name or isinstance(spec.function, types.MethodType):
        ref = weakref.ref(owner, lambda _: _forget(key, ref))
        _specs[key] = _Local(ref)
    else:
        _specs[key] = lambda: spec


class _Local:
    """A spec that is reached through a weakly held tool."""

    __slots__ = ("ref",)

    def __init__(self, ref: "weakref.ref[Any]") -> None:
        self.ref = ref

    def __call__(self) -> "Spec[..., Any] | None":
        owner = self.ref()
        return None if owner is None else owner._self_entry.spec  # noqa: SLF001


def _forget(key: tuple[str, str], ref: "weakref.ref[Any]") -> None:
    found = _specs.get(key)
    if isinstance(found, _Local) and found.ref is ref:
        _specs.pop(key, None)


def registered() -> tuple[Spec[..., Any], ...]:
    """Return what is registered, in the order of decoration; a redefined function counts once, as its newest self."""
    return tuple(spec for found in list(_specs.values()) if (spec := found()) is not None)


def replace(specs: Mapping[tuple[str, str], Found] | None = None) -> Mapping[tuple[str, str], Found]:
    """Put another registry in place (None: a copy of this one) and return the former, to be put back."""
    global _specs  # noqa: PLW0603  the registry of the process, replaced by tests alone
    former = _specs
    _specs = dict(former if specs is None else specs)
    return former
