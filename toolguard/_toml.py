"""TOML with line numbers: which line of a file a key stands on, so that an error can name it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["Document", "TomlError", "parse"]

_PART: Final = r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
_DOTTED: Final = rf"(?:{_PART})(?:[ \t]*\.[ \t]*(?:{_PART}))*"
_HEADER: Final = re.compile(rf"[ \t]*\[\[?[ \t]*({_DOTTED})[ \t]*\]\]?")
_KEY: Final = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_PARTS: Final = re.compile(_PART)
_TRIPLE: Final = re.compile(r"\"\"\"|'''")


class TomlError(ValueError):
    """The text is no TOML.

    Attributes:
        line: the line of the fault, from 1.
        problem: what is wrong.
    """

    def __init__(self, line: int, problem: str) -> None:
        """Keep both; whoever knows the file's name writes the message."""
        super().__init__(problem)
        self.line, self.problem = line, problem


class Document:
    """A parsed file and where its keys stand."""

    def __init__(self, content: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> None:
        """Take what `parse` found."""
        self.content = content
        self._lines = lines

    def line(self, path: Sequence[str]) -> int:
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
    import tomli  # noqa: PLC0415  only where there is a file to read

    try:
        content = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise TomlError(getattr(error, "lineno", 1), str(getattr(error, "msg", error))) from error
    except RecursionError as error:
        problem = "values are nested too deeply"
        raise TomlError(1, problem) from error
    return Document(content, _locate(text))


def _locate(text: str) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    quote = ""  # the triple quote of a string that spans lines, while inside one
    for number, line in enumerate(text.splitlines(), 1):
        if not quote:
            if header := _HEADER.match(line):
                table = _split(header[1])
                found.setdefault(table, number)
            elif key := _KEY.match(line):
                found.setdefault((*table, *_split(key[1])), number)
        for mark in _TRIPLE.findall(line):
            quote = mark if not quote else "" if quote == mark else quote
    return found


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PARTS.findall(dotted))
