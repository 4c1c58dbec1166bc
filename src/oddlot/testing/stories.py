"""Tests as short stories: what happens, line by line, and what the strategy says to it.

    # The last straggler is lost: the round closes with what it has.
    strategy FastestK(k=2, samples=8)
    data size=64 in_flight=1
    join a
    > assign a:1 8 [0:0-8] v0

A line that begins with `>` is what came of the line above it, and `run_story` writes it. `oddlot.testing.play` lists
what can happen.
"""

import ast
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oddlot import strategies
from oddlot.core import optimizers as rules
from oddlot.core.errors import OddlotError, UnknownName, UsageError
from oddlot.core.strategy import Strategy
from oddlot.testing.play import Data, Play, books, told

Names = Mapping[str, Callable[..., Any]]
NO_NAMES: Names = MappingProxyType({})


def run_story(text: str, names: Names = NO_NAMES) -> str:
    """The story as it comes out: its own lines, each followed by what was decided.

    `names` are strategies of your own that the story may use. UsageError, with the line, when it cannot be told.
    """
    teller = _Teller(names)
    out: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(">"):
            continue
        out.append(line)
        if line.strip() and not line.startswith("#"):
            try:
                out += teller.tell(line)
            except (UsageError, ValueError, TypeError, SyntaxError) as error:
                told = f"line {number} of the story, `{line}`: {error}"
                if isinstance(error, UsageError):
                    raise error.retold(told, line=number) from error
                raise UsageError(told, "invalid_line", line=number, given=line, reason=str(error)) from error
    return "\n".join(out) + "\n"


def check_story(path: Path | str, rewrite: bool = False, names: Names = NO_NAMES) -> None:
    """Raise AssertionError with the difference unless the story in this file comes out as it is written there.

    `rewrite` writes what comes out instead: keep it only if you understand what has changed, and why.
    """
    path = Path(path)
    written = path.read_text(encoding="utf-8")
    comes_out = run_story(written, names)
    if rewrite and comes_out != written:
        path.write_text(comes_out, encoding="utf-8")
    elif comes_out != written:
        difference = unified_diff(
            written.splitlines(), comes_out.splitlines(), "written", "comes out", lineterm=""
        )
        raise AssertionError(f"{path} comes out differently:\n" + "\n".join(difference))


class _Teller:
    """Goes through a story: first its strategy and data, then what happens."""

    def __init__(self, names: Names) -> None:
        self.known = {name: getattr(strategies, name) for name in strategies.__all__}
        self.known |= {name: getattr(rules, name) for name in ("SGD", "Adam", "AdamW")} | dict(names)
        self.strategy: Strategy | None = None
        self.data = Data()
        self.play: Play | None = None

    def tell(self, line: str) -> list[str]:
        if self.play is None and line.startswith("data"):
            self.data = Data.read(line)
            return []
        if self.play is None and line.startswith("strategy "):
            self.strategy = self._build(ast.parse(line.removeprefix("strategy ").strip(), mode="eval").body)
            return []
        if self.strategy is None:
            told = "a story begins with `strategy FastestK(k=2)` or another"
            raise UsageError(told, "missing_strategy")
        if self.play is None:
            self.play = Play(self.data.conductor(self.strategy))
        return self._happen(self.play, line)

    def _happen(self, play: Play, line: str) -> list[str]:
        lines: list[str] = []
        try:
            for record in play.do(line):
                lines += told(record)
        except UsageError:
            raise
        except OddlotError as error:
            lines.append(f"> {type(error).__name__}: {error}")
        return [*lines, books(play.conductor)] if line.startswith("show") else lines

    def _build(self, node: ast.expr) -> Any:
        """The value of literals and of calls of known names; nothing else is looked at."""
        if not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        name = ast.unparse(node.func)
        if name not in self.known:
            raise UnknownName("name", name, self.known)
        if any(keyword.arg is None for keyword in node.keywords):
            raise UsageError("write every setting as name=value", "setting_without_name")
        values = {str(keyword.arg): self._build(keyword.value) for keyword in node.keywords}
        return self.known[name](*(self._build(value) for value in node.args), **values)
