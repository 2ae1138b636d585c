"""Write what the docs take from the code: `python docs/generate.py`, or `--check` to see whether anything is stale."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolguard import _names
from toolguard._config import OPTIONS
from toolguard._values import PROFILES
from toolguard.walls import KEYS, NAMES, TABLE

ROOT: Final = Path(__file__).resolve().parent.parent


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def shown(value: object) -> str:
    """Return a default as the configuration file writes it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, (frozenset, tuple)):
        return "`[]`"
    return f'`"{value}"`' if isinstance(value, str) else str(value)


def limits() -> str:
    """Return the keys of `[tool.toolguard.limits]`."""
    rows = [
        (f"`{key.name}`", *(shown(value) for value in key.defaults), f"`TOOLGUARD_{key.name.upper()}`", key.doc)
        for key in KEYS.values()
    ]
    return table(("key", *PROFILES, "variable", "what it is"), rows)


def options() -> str:
    """Return the keys that are no limits."""
    rows = [
        (
            f"`{option.table}.{name}`" if option.table else f"`{name}`",
            shown(option.default),
            f"`TOOLGUARD_{name.upper()}`",
            option.doc,
        )
        for name, option in OPTIONS.items()
    ]
    return table(("key", "default", "variable", "what it is"), rows)


def walls() -> str:
    """Return the walls, a row a name."""
    rows: list[tuple[str, ...]] = []
    for name in NAMES:
        members = [wall for wall in TABLE if wall.name == name]
        keys = [key for wall in members for key in wall.keys]
        numbers = ["<br>".join(shown(key.defaults[i]) for key in keys) for i in range(len(PROFILES))]
        rows.append((f"`{name}`", members[0].about, "<br>".join(f"`{key.name}`" for key in keys), *numbers))
    return table(("wall", "what it counts, and what happens at the limit", "keys", *PROFILES), rows)


def attributes() -> str:
    """Return the span attributes."""
    rows = [(f"`{a.name}`", a.type, a.spans, a.when, a.meaning) for a in _names.ATTRIBUTES]
    return table(("attribute", "type", "span", "when", "value"), rows)


def metrics() -> str:
    """Return the metrics."""
    rows = [
        (f"`{m.name}`", m.instrument, f"`{m.unit}`", ", ".join(f"`{a}`" for a in m.attributes), m.meaning)
        for m in _names.METRICS
    ]
    return table(("metric", "instrument", "unit", "attributes", "value"), rows)


PARTS: Final[dict[str, dict[str, Callable[[], str]]]] = {
    "README.md": {"walls": walls},
    "docs/walls.md": {"walls": walls},
    "docs/configuration.md": {"limits": limits, "options": options},
    "docs/attributes.md": {"attributes": attributes, "metrics": metrics},
}


def fill(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return `text` with what stands between `<!-- name -->` and `<!-- /name -->` made anew."""
    for name, make in parts.items():
        head, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, tail = rest.partition(f"<!-- /{name} -->")
        if not opening or not closing:
            msg = f"the marks of {name!r} are missing"
            raise ValueError(msg)
        text = f"{head}{opening}\n{make()}\n\n{closing}{tail}"
    return text


def stale() -> list[str]:
    """Return the pages that are not what the code says."""
    return [page for page, parts in PARTS.items() if fill(text := (ROOT / page).read_text("utf-8"), parts) != text]


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that are stale."""
    pages = stale()
    for page in pages:
        if "--check" in arguments:
            print(f"{page} is stale: run python docs/generate.py")
        else:
            path = ROOT / page
            path.write_text(fill(path.read_text("utf-8"), PARTS[page]), "utf-8")
            print(f"wrote {page}")
    return 1 if pages and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
