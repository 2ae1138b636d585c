"""TOML with line numbers: which line of a file a key stands on, so that an error can name it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["Document", "TomlError", "parse"]

_Path = tuple[str | int, ...]

_DEEP: Final = 8
"""Lines are kept for so many levels: a hostile file would otherwise cost the square of its longest key."""

# Patterns are compiled where they are needed: most processes read one small file, or none.
_PLACE: Final = r" \(at (?:line (\d+), column \d+|end of document)\)$"
_DIGITS: Final = r"[0-9_]{4000,}"

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_START: Final = rf"[ \t]*(\[?\[?)[ \t]*({_KEY})"
_TOKEN: Final = (
    r'(?s:"""(?:\\.|[^\\])*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:\\.|[^"\\])*"' + r"|'[^']*'|#[^\n]*|[^\"'#\[\]{}\n]+|.)"
)


class TomlError(ValueError):
    """The text is no TOML.

    Attributes:
        line: the line of the fault, from 1, or None where that is not known.
        problem: what is wrong.
    """

    def __init__(self, line: int | None, problem: str) -> None:
        """Keep both; whoever knows the file's name writes the message."""
        super().__init__(problem)
        self.line, self.problem = line, problem


class Document:
    """A parsed file and where its keys stand."""

    def __init__(self, content: Mapping[str, Any], lines: Mapping[_Path, int]) -> None:
        """Take what `parse` found."""
        self.content = content
        self._lines = lines

    def line(self, path: Sequence[str | int]) -> int:
        """Return the line of the key at `path`, or of the nearest key or table that holds it."""
        key = tuple(path)
        while key and key not in self._lines:
            key = key[:-1]
        return self._lines.get(key, 1)


def parse(text: str) -> Document:
    """Parse TOML.

    Raises:
        TomlError: the text is no TOML.
    """
    text = text.replace("\r\n", "\n")
    for character, problem in _NEVER:
        if (at := text.find(character)) >= 0:
            raise TomlError(text.count("\n", 0, at) + 1, problem)
    return Document(_load(text), _Locator(text).lines)


_NEVER: Final = (
    ("\0", "it holds a NUL character; save the file as UTF-8"),
    ("\r", "a line ends with a carriage return alone; save the file with LF or CRLF"),
)


def _load(text: str) -> dict[str, Any]:
    import tomli  # noqa: PLC0415  only where there is a file to read

    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise _explained(str(error), text) from error
    except RecursionError as error:
        problem = "values are nested too deeply"
        raise TomlError(None, problem) from error
    except ValueError as error:
        # The interpreter refuses to convert a number of thousands of digits, and does not say where it stands.
        found = re.search(_DIGITS, text)
        problem = "a number has thousands of digits"
        raise TomlError(text.count("\n", 0, found.start()) + 1 if found else None, problem) from error


def _explained(message: str, text: str) -> TomlError:
    place = re.search(_PLACE, message)
    line = int(place[1]) if place and place[1] else text.rstrip("\n").count("\n") + 1
    problem = re.sub(_PLACE, "", message)
    return TomlError(line, f"{problem}; a key or table may stand once" if problem.startswith("Cannot") else problem)


class _Locator:
    """Finds the line of every key and table of a text that is TOML; what stands inside a value has its key's line."""

    def __init__(self, text: str) -> None:
        self.lines: dict[_Path, int] = {}
        self._last: dict[_Path, int] = {}
        table: _Path = ()
        for line, opening, key in _statements(text):
            *above, last = _parts(key)
            path: _Path = (*self._below(() if opening else table, above), last)
            if opening == "[[":
                self._last[path] = self._last.get(path, -1) + 1
                path = (*path, self._last[path])
            if opening:
                table = path
            for depth in range(1, min(len(path), _DEEP) + 1):
                self.lines.setdefault(path[:depth], line)

    def _below(self, path: _Path, parts: list[str]) -> _Path:
        for part in parts:
            path = (*path, part)
            if path in self._last:
                path = (*path, self._last[path])
        return path


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, opening brackets of a table (or none) and key of each statement."""
    starting, token = re.compile(_START), re.compile(_TOKEN)
    at, line = 0, 1
    while at < len(text):
        found = starting.match(text, at)
        if found:
            yield line, found[1], found[2]
        after = _after(text, found.end() if found else at, token)
        at, line = after, line + text.count("\n", at, after)


def _after(text: str, at: int, token: re.Pattern[str]) -> int:
    """Return where the line after the statement that goes on at `at` begins."""
    depth = 0
    while found := token.match(text, at):
        at = found.end()
        if found[0] == "\n" and depth <= 0:
            break
        depth += (found[0] in "[{") - (found[0] in "]}")
    return at


def _parts(key: str) -> list[str]:
    if '"' not in key and "'" not in key:
        return [part.strip() for part in key.split(".")]
    parts: list[str] = []
    below: dict[str, Any] | int = _load(f"{key} = 0")
    while isinstance(below, dict):
        part, below = below.popitem()
        parts.append(part)
    return parts
