"""Where the statements of a TOML file are, in one pass over its text: the parser forgets the lines."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from oddlot.core.errors import UsageError

MAX_PARTS = 64
"""of a key: tomllib takes time that grows as their square"""
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}'  # up to two quotes may stand before the closing ones
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[{]|[\]}]|\n',
    re.DOTALL,
)
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{100}")
"""Python makes it, and refuses then to write it in an error"""
_LONG_KEY = re.compile(rf"(?:\.[\w \t-]*+){{{MAX_PARTS}}}")


class Statement(NamedTuple):
    """A table's heading, or a key and its value."""

    line: int
    """its first line, from 1"""
    path: tuple[str | int, ...]
    """the table that it is in, or that it begins"""
    text: str
    """a key and its value; empty of a heading"""

    def says(self, key: str | int) -> bool:
        """Whether it may say something of this key of its table; parsing it tells."""
        return str(key) in self.text or "\\" in self.text  # a key in quotes may have escapes


def check_text(text: str) -> None:
    """UsageError: a key has too many parts, or a whole number too many digits."""
    bare = _STRING.sub("s", text)
    if _LONG_KEY.search(bare):
        told = f"a key has more than {MAX_PARTS} parts with dots between them"
        raise UsageError(told, "nested_too_deeply", most=MAX_PARTS)
    if _LONG_NUMBER.search(bare):
        raise UsageError("a whole number has too many digits", "too_many_digits")


def text_without_quotes(text: str, fault: str) -> str:
    """Return the value that tomllib's `fault` is about, if it is a text without quotes, as in `until = epochs>=1`."""
    place = re.search(r"Invalid value \(at line (\d+), column (\d+)\)", fault)
    if not place:
        return ""
    line = text.splitlines()[int(place[1]) - 1][int(place[2]) - 1 :]
    value = re.match(r"[A-Za-z_][^\"'#,\[\]{}]*", line)
    return value[0].strip() if value else ""


@lru_cache(maxsize=1)  # a file's faults are located one after the other
def parsed(text: str) -> tuple[Any, list[Statement]]:
    """What valid TOML says, and its statements."""
    return tomllib.loads(text), list(_statements(text))


def _statements(text: str) -> Iterator[Statement]:
    path: tuple[str | int, ...] = ()
    counts: Counter[tuple[str | int, ...]] = Counter()
    for line, piece in _pieces(text):
        if is_heading := piece.startswith("["):
            path = _heading(tomllib.loads(piece), counts)
        yield Statement(line, path, "" if is_heading else piece)


def _heading(tree: Any, counts: Counter[tuple[str | int, ...]]) -> tuple[str | int, ...]:
    """The table that a heading begins; of an array of tables, the newest one."""
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
    """The first line of each statement, and its text."""
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
