"""README and docs: every Python block runs as it stands, and what is generated is fresh."""

import contextlib
import importlib.util
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import toolguard
from toolguard import _names
from toolguard._values import PROFILES, Key
from toolguard.walls import KEYS, NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
WALLS = ROOT / "docs" / "walls"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"^<!-- (\w+) -->$.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
HEADINGS = [
    "The loop that it stops",
    "Key, defaults and their source",
    "Example",
    "What the refusal says",
    "What it cannot see",
    "Telemetry",
]
REFUSING = [name for name in NAMES if name not in {"output_chars", "result_chars", "turn_step"}]


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 2
                found.append(pytest.param("\n" * (line - 1) + match[2], page, id=f"{page.name}-{line}"))
    return found


def section(name: str, heading: str) -> str:
    text = (WALLS / f"{name}.md").read_text("utf-8")
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)


def anchors(text: str) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(text)}


def printing() -> list[str]:
    return [match[2] for match in BLOCK.finditer((ROOT / "README.md").read_text("utf-8")) if "print(" in match[2]]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("code", "page"), blocks("python"))
def test_every_python_block_runs(code: str, page: Path) -> None:
    exec(compile(code, str(page), "exec", dont_inherit=True), {"__name__": "example"})


@pytest.mark.parametrize(("text", "page"), blocks("toml"))
def test_every_toml_block_is_a_valid_configuration(text: str, page: Path) -> None:
    del page
    toolguard.configure(tomllib.loads(text)["tool"]["toolguard"])


def test_the_first_example_prints_what_its_comments_say() -> None:
    code = next(iter(BLOCK.finditer((ROOT / "README.md").read_text("utf-8"))))[2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec", dont_inherit=True), {"__name__": "example"})
    counts, text, stop = printed.getvalue().splitlines()
    assert counts == "40 per_tool"
    assert text.startswith("read_mail did NOT execute: ")
    assert stop.startswith("I stopped after 40 tool calls ")
    assert len(code.splitlines()) <= 25


@pytest.mark.parametrize("code", [pytest.param(code, id=f"{n}") for n, code in enumerate(printing())])
def test_an_example_prints_what_its_comments_say(code: str) -> None:
    said = [line.rpartition("  # ")[2] for line in code.splitlines() if line.lstrip().startswith("print(")]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec", dont_inherit=True), {"__name__": "example"})
    for line, comment in zip(printed.getvalue().splitlines(), said, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, comment.split("…"))), line), f"{line!r} is not {comment!r}"


def test_the_generated_parts_are_fresh(generator: ModuleType) -> None:
    assert generator.stale() == []


def test_a_page_without_its_marks_is_an_error(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="marks of 'walls'"):
        generator.fill("no marks here", {"walls": generator.walls})


def test_a_wall_page_without_an_example_is_an_error(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"concepts\.md has no example"):
        generator.example("docs/concepts.md")


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if any(n and type(n) in {int, float} for n in key.defaults)], ids=lambda key: key.name
)
def test_a_key_says_where_its_number_is_from(key: Key) -> None:
    assert re.search(r"the [\w -]+ (article|document)'s\b|this project's own\b|[Rr]ecorded run", key.doc)


# Links ----------------------------------------------------------------------------------------------------------------


def links() -> Iterator[tuple[Path, str, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^):]+)\)", FENCED.sub("", page.read_text("utf-8"))):
            path, _, anchor = target.partition("#")
            yield page, path, anchor


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    for page, path, anchor in links():
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{page.name} links to {path}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    where = [(page, (page.parent / path).resolve()) for page, path, _ in links() if path.endswith(".md")]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for source, target in where if source == page]
    assert set(PAGES) - reached == set()


# The pages of the walls -----------------------------------------------------------------------------------------------


def test_every_wall_has_a_page_and_every_page_a_wall() -> None:
    assert sorted(path.stem for path in WALLS.glob("*.md")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_wall_has_the_headings_that_all_have(name: str) -> None:
    assert headings((WALLS / f"{name}.md").read_text("utf-8")) == [f"`{name}`", *HEADINGS]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_wall_leads_to_the_walls_that_see_what_it_cannot(name: str) -> None:
    assert re.findall(r"\]\((?!" + name + r"\.md)\w+\.md\)", section(name, "What it cannot see"))


@pytest.mark.parametrize("name", REFUSING)
def test_the_refused_span_has_the_attributes_that_the_page_of_its_wall_shows(name: str, generator: ModuleType, spans) -> None:
    refusal = generator.example(f"docs/walls/{name}.md")["answer"]
    assert refusal.reason == name
    span = next(s for s in spans.calls() if s.attributes.get(_names.MESSAGE) == str(refusal))
    shown = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", section(name, "Telemetry"), re.MULTILINE))
    assert shown.pop(_names.MESSAGE) == "the text above"
    kept = {_names.RUN_ID, _names.KIND, _names.MESSAGE}  # which all calls have, or is the text
    real = {key: value for key, value in span.attributes.items() if key.startswith("toolguard.") and key not in kept}
    assert shown == {key: f"`{str(value).lower()}`" for key, value in real.items()}


@pytest.mark.parametrize("name", ["output_chars", "result_chars"])
def test_the_span_of_a_cut_result_has_the_attributes_that_the_page_names(name: str, generator: ModuleType, spans) -> None:
    generator.example(f"docs/walls/{name}.md")
    named = set(re.findall(r"`(toolguard\.result\.\w+)`", section(name, "Telemetry")))
    found = {key for span in spans.calls() for key in span.attributes if key.startswith("toolguard.result.")}
    assert named == found | {_names.RESULT_UNCUT}


def test_every_attribute_that_a_page_names_exists() -> None:
    known = {attribute.name for attribute in _names.ATTRIBUTES} | {metric.name for metric in _names.METRICS}
    others = {"toolguard.testing", "toolguard.toml"}
    for page in PAGES:
        for name in re.findall(r"`((?:toolguard|gen_ai)\.[a-z_.]+[a-z])(?:=\w+)?`", page.read_text("utf-8")):
            public = hasattr(toolguard, name.removeprefix("toolguard."))
            assert name in known or name in others or public, f"{page.name} names {name}"


def test_every_rule_is_told_of_on_the_page_of_its_wall() -> None:
    rule = next(attribute for attribute in _names.ATTRIBUTES if attribute.name == _names.RULE)
    told = "".join(section(name, "Telemetry") for name in NAMES)
    assert [word for word in re.findall(r"`(\w+)`", rule.meaning) if f"`{word}`" not in told] == []


# Numbers --------------------------------------------------------------------------------------------------------------


def test_a_default_that_prose_puts_behind_its_key_is_the_default_of_the_assistant_profile(generator: ModuleType) -> None:
    checked = 0
    for page in PAGES:
        prose = GENERATED.sub("", FENCED.sub("", page.read_text("utf-8")))
        for name, number in re.findall(r"`(\w+)`\s+\(([\d., ]*\d)\)", prose):
            if name in KEYS:
                checked += 1
                assert number == generator.shown(KEYS[name].defaults[0]), f"{page.name} says {name} ({number})"
    assert checked > 5


def test_a_number_that_stands_for_a_whole_table_is_that_of_the_table(generator: ModuleType) -> None:
    for page in ("README.md", "docs/walls.md"):
        text = (ROOT / page).read_text("utf-8")
        differing = {name for name, key in KEYS.items() if len(set(key.defaults)) > 1}
        shown = text.split("<!-- profiles -->", 1)[1].split("<!-- /profiles -->", 1)[0]
        assert set(re.findall(r"^\| `(\w+)`", shown, re.MULTILINE)) == differing
        for profile in PROFILES:
            assert f"| `{profile}`" in text, f"{page} does not say what {profile} is for"
