"""Line numbers of the statements of a TOML file. The parser does not keep them."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from oddlot.core.support.errors import UsageError

MAX_PARTS = 64
"""Largest number of parts of a key, because tomllib takes quadratic time."""
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}'  # up to two quotes may precede the closing quotes
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[{]|[\]}]|\n',
    re.DOTALL,
)
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{100}")
"""Matches integers that are too long for Python to format in an error."""
_LONG_KEY = re.compile(rf"(?:\.[\w \t-]*+){{{MAX_PARTS}}}")


class Statement(NamedTuple):
    """A table's heading, or a key and its value."""

    line: int
    """First line, from 1."""
    path: tuple[str | int, ...]
    """Table of the statement, or the table that it starts."""
    text: str
    """Key and value; empty for a heading."""

    def says(self, key: str | int) -> bool:
        """Return whether the statement may contain this key, without parsing it."""
        return str(key) in self.text or "\\" in self.text  # a key in quotes may have escapes


def check_text(text: str) -> None:
    """Raise UsageError if a key has too many parts or an integer too many digits."""
    bare = _STRING.sub("s", text)
    if _LONG_KEY.search(bare):
        message = f"a key has more than {MAX_PARTS} dotted parts"
        raise UsageError(message, "nested_too_deeply", most=MAX_PARTS)
    if _LONG_NUMBER.search(bare):
        raise UsageError("a whole number has too many digits", "too_many_digits")


def text_without_quotes(text: str, fault: str) -> str:
    """Return the value that tomllib's `fault` is about, if it is a string without quotes, as in `until = epochs>=1`."""
    place = re.search(r"Invalid value \(at line (\d+), column (\d+)\)", fault)
    if not place:
        return ""
    line = text.splitlines()[int(place[1]) - 1][int(place[2]) - 1 :]
    value = re.match(r"[A-Za-z_][^\"'#,\[\]{}]*", line)
    return value[0].strip() if value else ""


@lru_cache(maxsize=1)  # all errors of a file are located one after the other
def parsed(text: str) -> tuple[Any, list[Statement]]:
    """Return the contents of valid TOML, and its statements."""
    return tomllib.loads(text), list(_statements(text))


def _statements(text: str) -> Iterator[Statement]:
    path: tuple[str | int, ...] = ()
    counts: Counter[tuple[str | int, ...]] = Counter()
    for line, piece in _pieces(text):
        if is_heading := piece.startswith("["):
            path = _heading(tomllib.loads(piece), counts)
        yield Statement(line, path, "" if is_heading else piece)


def _heading(tree: Any, counts: Counter[tuple[str | int, ...]]) -> tuple[str | int, ...]:
    """Return the table of a heading, or the newest table of an array of tables."""
    path: tuple[str | int, ...] = ()
    while tree:
        ((key, tree),) = tree.items()
        path = (*path, key)
        if isinstance(tree, list):
            counts[path] += 1
            tree = tree[0]
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line of each statement, and its text."""
    line, depth, begin, lines = 1, 0, 0, 0
    for token in _TOKEN.finditer(text):
        what = token[0]
        depth += (what in "[{") - (what in "]}")
        lines += what.count("\n")
        if what == "\n" and not depth:
            if piece := text[begin : token.start()].strip():
                yield line, piece
            begin, line = token.end(), lines + 1
    if piece := text[begin:].strip():
        yield line, piece
