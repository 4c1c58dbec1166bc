"""What every benchmark prints: a table of medians with ranges, and one last line of JSON."""

import json
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table


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
