"""How a text says how many."""

__all__ = ["counted", "times"]


def counted(n: float | None, things: str) -> str:
    """Return a number with its noun, given in the plural: `2 calls`, and `1 call`."""
    number = f"{n:g}" if isinstance(n, float) else n
    return f"{number} {things.removesuffix('s') if n == 1 else things}"


def times(n: float | None) -> str:
    """Return how often: `once`, or `2 times`."""
    return "once" if n == 1 else counted(n, "times")
