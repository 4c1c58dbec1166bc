"""Story files: tests of a strategy as lines of events, each followed by the expected decisions.

    # The last straggler is lost: the round closes without its update.
    strategy FastestK(k=2, samples=8)
    data size=64 in_flight=1
    join a
    > assign a:1 8 [0:0-8] v0

A line that starts with `>` is a decision after the event above it. `run_story` writes these lines.
`oddlot.testing.run_scenario` lists the events.
"""

import ast
from collections.abc import Callable, Mapping
from difflib import unified_diff
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oddlot import strategies
from oddlot.core import optimizers as rules
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import OddlotError, UnknownName, UsageError
from oddlot.testing.run_scenario import Data, ScenarioRun, decisions, state_line

Names = Mapping[str, Callable[..., Any]]
NO_NAMES: Names = MappingProxyType({})


def run_story(text: str, names: Names = NO_NAMES) -> str:
    """Run the events of a story file, and return its lines with the actual decisions.

    `names`: your own classes that the file may use, by name. Raise UsageError with the line number if a line is
    invalid.
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
                message = f"line {number}, `{line}`: {error}"
                if isinstance(error, UsageError):
                    raise error.with_message(message, line=number) from error
                raise UsageError(
                    message, "invalid_line", line=number, given=line, reason=str(error)
                ) from error
    return "\n".join(out) + "\n"


def check_story(path: Path | str, rewrite: bool = False, names: Names = NO_NAMES) -> None:
    """Raise AssertionError with a diff unless the decisions in a story file are the actual decisions.

    `rewrite` writes the actual decisions into the file instead. Review them before you keep them.
    """
    path = Path(path).expanduser()
    written = path.read_text(encoding="utf-8")
    comes_out = run_story(written, names)
    if rewrite and comes_out != written:
        path.write_text(comes_out, encoding="utf-8")
    elif comes_out != written:
        difference = unified_diff(
            written.splitlines(), comes_out.splitlines(), "expected", "actual", lineterm=""
        )
        raise AssertionError(f"decisions differ from {path}:\n" + "\n".join(difference))


class _Teller:
    """Runs the lines of a story file: first its strategy and data, then its events."""

    def __init__(self, names: Names) -> None:
        self.known = dict(vars(strategies))
        self.known |= {name: getattr(rules, name) for name in ("SGD", "Adam", "AdamW")} | dict(names)
        self.strategy: Strategy | None = None
        self.data = Data()
        self.play: ScenarioRun | None = None

    def tell(self, line: str) -> list[str]:
        if self.play is None and line.startswith("data"):
            self.data = Data.read(line)
            return []
        if self.play is None and line.startswith("strategy "):
            self.strategy = self._build(ast.parse(line.removeprefix("strategy ").strip(), mode="eval").body)
            return []
        if self.strategy is None:
            message = "the first line must name a strategy, such as `strategy FastestK(k=2)`"
            raise UsageError(message, "missing_strategy")
        if self.play is None:
            self.play = ScenarioRun(self.data.conductor(self.strategy))
        return self._happen(self.play, line)

    def _happen(self, play: ScenarioRun, line: str) -> list[str]:
        lines: list[str] = []
        try:
            for record in play.do(line):
                lines += decisions(record)
        except UsageError:
            raise
        except OddlotError as error:
            lines.append(f"> {type(error).__name__}: {error}")
        return [*lines, state_line(play.conductor)] if line.startswith("show") else lines

    def _build(self, node: ast.expr) -> Any:
        """Return the value of a literal, or of a call of a known name. Other expressions are errors."""
        if not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        name = ast.unparse(node.func)
        if name not in self.known:
            raise UnknownName("name", name, self.known)
        if any(keyword.arg is None for keyword in node.keywords):
            raise UsageError("write every setting as name=value", "setting_without_name")
        values = {str(keyword.arg): self._build(keyword.value) for keyword in node.keywords}
        return self.known[name](*(self._build(value) for value in node.args), **values)
