"""README and docs: every Python block runs as it stands, and what is generated is fresh."""

import contextlib
import importlib.util
import io
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import toolguard

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 2
                found.append(pytest.param("\n" * (line - 1) + match[2], page, id=f"{page.name}-{line}"))
    return found


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


def test_the_generated_parts_are_fresh(generator: ModuleType) -> None:
    assert generator.stale() == []


def test_a_page_without_its_marks_is_an_error(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="marks of 'walls'"):
        generator.fill("no marks here", {"walls": generator.walls})


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
