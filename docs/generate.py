"""Write what the docs take from the code: `python docs/generate.py`, or `--check` to see whether anything is stale."""

import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from toolguard import Refusal, _names
from toolguard._config import OPTIONS
from toolguard._values import PROFILES, Key
from toolguard.testing import isolated
from toolguard.walls import BY_NAME, KEYS, NAMES, TABLE

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE: Final = re.compile(r"^## Example\n.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Parts = dict[str, Callable[[], str]]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
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
    return f'`"{value}"`' if isinstance(value, str) else f"{value:_}".replace("_", " ")


def keys_of(name: str) -> list[Key]:
    """Return the keys of the wall of that name."""
    return [key for wall in TABLE if wall.name == name for key in wall.keys]


def keys(chosen: list[Key]) -> str:
    """Return a row for each of some limits."""
    rows = [
        (f"`{key.name}`", *(shown(value) for value in key.defaults), f"`TOOLGUARD_{key.name.upper()}`", key.doc)
        for key in chosen
    ]
    return table(("key", *PROFILES, "variable", "what it is"), rows)


def limits() -> str:
    """Return the keys of `[tool.toolguard.limits]`."""
    return keys(list(KEYS.values()))


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


def index() -> str:
    """Return the walls with all their keys, a row a name."""
    rows: list[tuple[str, ...]] = []
    for name in NAMES:
        own = keys_of(name)
        numbers = ["<br>".join(shown(key.defaults[i]) for key in own) for i in range(len(PROFILES))]
        cells = (f"[`{name}`](walls/{name}.md)", BY_NAME[name].about, "<br>".join(f"`{key.name}`" for key in own))
        rows.append((*cells, *numbers))
    return table(("wall", "what it counts, and what happens at the limit", "keys", *PROFILES), rows)


def walls() -> str:
    """Return the walls in short: one number each, or one a profile where they differ."""
    rows = []
    for name in NAMES:
        key = KEYS.get(name)  # the one wall without a key of its name goes by several
        defaults = [shown(value) for value in key.defaults] if key else ["adaptive"]
        number = defaults[0] if len(set(defaults)) == 1 else " / ".join(defaults)
        rows.append((f"[`{name}`](docs/walls/{name}.md)", BY_NAME[name].about, number))
    return table(("wall", "what it counts, and what happens at the limit", "default"), rows)


def profiles() -> str:
    """Return the limits in which the profiles differ."""
    rows = [(f"`{key.name}`", *(shown(value) for value in key.defaults)) for key in KEYS.values() if len(set(key.defaults)) > 1]
    return table(("limit", *PROFILES), rows)


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


# A wall's page: what its example produced -----------------------------------------------------------------------------


def example(page: str) -> dict[str, Any]:
    """Run the example of a wall's page, and return the names that it leaves: `run`, and `answer`, which the model reads."""
    code = EXAMPLE.search((ROOT / page).read_text("utf-8"))
    if code is None:
        msg = f"{page} has no example"
        raise ValueError(msg)
    left: dict[str, Any] = {"__name__": "example"}
    logger, quiet = logging.getLogger("toolguard"), logging.NullHandler()
    logger.addHandler(quiet)  # a stopped run is a warning, which nobody here wants to read
    try:
        with isolated():
            exec(compile(code[1], page, "exec", dont_inherit=True), left)  # noqa: S102  it is this project's own
    finally:
        logger.removeHandler(quiet)
    return left


def quoted(text: str) -> str:
    """Return a text as Markdown quotes it, line by line."""
    return "\n".join(f"> {line}" for line in text.splitlines())


def said(page: str) -> str:
    """Return what the model reads in the example, and the user where it ends the run."""
    left = example(page)
    texts = [quoted(str(left["answer"]))]
    if left["run"].stopped:
        texts += ["And the user reads, as `run.stop_message`:", quoted(left["run"].stop_message)]
    return "\n\n".join(texts)


def telemetry(page: str) -> str:
    """Return the attributes of the refused call's span in the example."""
    answer: Refusal = example(page)["answer"]
    fields = answer.to_dict()
    named = {
        _names.REFUSED: True,
        _names.EXECUTED: False,
        _names.OUTCOME: fields["status"],
        _names.REASON: fields["reason"],
        _names.RULE: fields["rule"],
        _names.USED: fields["used"],
        _names.LIMIT: fields["limit"],
        _names.RETRY: fields["retry"],
    }
    rows = [(f"`{name}`", _attribute(value)) for name, value in named.items() if value is not None]
    rows.append((f"`{_names.MESSAGE}`", "the text above"))
    return table(("attribute", "in the example"), rows)


def _attribute(value: object) -> str:
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def page_of(name: str) -> Parts:
    """Return the parts of a wall's page; a wall that refuses nothing has no refused span to show."""
    page = f"docs/walls/{name}.md"
    parts: Parts = {"keys": lambda: keys(keys_of(name)), "refusal": lambda: said(page)}
    if BY_NAME[name].admit or BY_NAME[name].refused:
        parts["telemetry"] = lambda: telemetry(page)
    return parts


PARTS: Final[dict[str, Parts]] = {
    "README.md": {"walls": walls, "profiles": profiles},
    "docs/walls.md": {"walls": index, "profiles": profiles},
    "docs/configuration.md": {"limits": limits, "options": options},
    "docs/attributes.md": {"attributes": attributes, "metrics": metrics},
    **{f"docs/walls/{name}.md": page_of(name) for name in NAMES},
}


def fill(text: str, parts: Parts) -> str:
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
