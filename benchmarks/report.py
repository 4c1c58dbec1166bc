"""What benchmarks share: how much is run, and what is printed: tables of medians with ranges, a last line of JSON."""

import argparse
import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

Value = TypeVar("Value")


class Size(IntEnum):
    """How much of a benchmark is run."""

    SMOKE = 0
    """A few seconds on generated data: it tests the benchmark, and its figures mean nothing."""
    QUICK = 1
    FULL = 2

    def pick(self, smoke: Value, quick: Value, full: Value) -> Value:
        """Return this size's value."""
        return (smoke, quick, full)[self]


def parser(description: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a command line with --quick and --smoke; `size` of the parsed arguments is the size asked for."""
    parser = argparse.ArgumentParser(description=description)
    sizes = parser.add_mutually_exclusive_group()
    smoke = "a few seconds on generated data: tests that it runs, measures nothing"
    for name, help_text in (("quick", quick), ("smoke", smoke)):
        sizes.add_argument(
            f"--{name}", dest="size", action="store_const", const=Size[name.upper()], help=help_text
        )
    parser.set_defaults(size=Size.FULL)
    return parser


def told(values: Sequence[float], digits: int = 3) -> str:
    """The median with the range, such as `0.741 (0.702 to 0.768)`; of one value, that."""
    low, high = min(values), max(values)
    if len(values) == 1:
        return f"{low:.{digits}f}"
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=400).print(table)


def finish(figures: Mapping[str, float | None]) -> None:
    """Print the last line: the figures as one JSON object, rounded to four digits; null: not measured."""
    rounded = {name: None if value is None else round(value, 4) for name, value in figures.items()}
    print(json.dumps(rounded), flush=True)
