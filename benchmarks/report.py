"""Shared code of all benchmarks: sizes, tables, the last line of JSON, and the file that `--save` writes."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.figures import BENCHMARKS, Figure, is_met
from oddlot import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
Value = TypeVar("Value")
Measured = float | Sequence[float] | None
"""A value, or a sequence that gives median and range. None or a missing name: not measured. See `NOT_REACHED`."""
NOT_REACHED = inf
"""The value of a run that did not reach the measured accuracy, error or quality.

It ranks as the worst value of a figure. For figures without a goal where more is better, use `-NOT_REACHED`.
"""


class Size(IntEnum):
    """The size of a benchmark."""

    SMOKE = 0
    """A few seconds on generated data, to test the benchmark. The figures are meaningless."""
    QUICK = 1
    FULL = 2

    def pick(self, smoke: Value, quick: Value, full: Value) -> Value:
        """Return the value for this size."""
        return (smoke, quick, full)[self]


def parser(benchmark: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser with --quick, --smoke and --save, for `parse`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = parser.add_mutually_exclusive_group()
    smoke = "a few seconds on generated data: tests that it runs, measures nothing"
    for name, help_text in (("quick", quick), ("smoke", smoke)):
        sizes.add_argument(
            f"--{name}", dest="size", action="store_const", const=Size[name.upper()], help=help_text
        )
    parser.add_argument("--save", action="store_true", help=f"write docs/results/{benchmark}.json")
    parser.set_defaults(size=Size.FULL, benchmark=benchmark)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line. Exit with an error on `--smoke --save`."""
    options = parser.parse_args()
    if options.save and options.size is Size.SMOKE:
        parser.error("--save: figures of --smoke mean nothing. Use --quick or a full run.")
    return options


def run_parts(
    benchmark: str,
    description: str | None,
    quick: str,
    parts: Mapping[str, Callable[[Size], Mapping[str, Measured]]],
) -> None:
    """Measure the parts of a benchmark that `--only` names, all by default, and finish it."""
    arguments = parser(benchmark, description, quick)
    arguments.add_argument("--only", nargs="+", choices=parts, default=[*parts], metavar="PART")
    options = parse(arguments)
    finish(options, {key: value for part in options.only for key, value in parts[part](options.size).items()})


def median_and_range(values: Sequence[float], digits: int = 3) -> str:
    """Return the median with the range, such as `0.741 (0.702 to 0.768)`, or a single value.

    If some values are `NOT_REACHED`, append the number of reached values: `0.741 (0.702 to 0.768), 2 of 3`.
    """
    reached, middle = [one for one in values if isfinite(one)], median(values)
    text = f"{middle:.{digits}f}" if isfinite(middle) else "not reached"
    if reached and len(values) > 1:
        text += f" ({min(reached):.{digits}f} to {max(reached):.{digits}f})"
    return text if len(reached) == len(values) else f"{text}, {len(reached)} of {len(values)}"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=400).print(table)


def finish(options: argparse.Namespace, figures: Mapping[str, Measured]) -> None:
    """Print the medians as one line of JSON, rounded to four digits. With --save, write them with ranges and goals.

    A figure is null if it was not measured, and `not reached` if its median was not reached.
    """
    values = {name: _values(measured) for name, measured in figures.items()}
    about = BENCHMARKS[options.benchmark].figures
    entries = {name: entry(about.get(name, Figure("")), some) for name, some in values.items()}
    medians = {
        name: "not reached" if one["median"] is None and one["n"] else one["median"]
        for name, one in entries.items()
    }
    if options.save:
        save(options.benchmark, values)
    print(json.dumps(medians), flush=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def save(benchmark: str, values: Mapping[str, Sequence[float]]) -> None:
    """Write the figures of a run. Figures that it did not measure keep their value, and the details of their earlier
    run."""
    path, about = RESULTS / f"{benchmark}.json", BENCHMARKS[benchmark]
    before = json.loads(path.read_text()) if path.exists() else {"figures": {}}
    arguments = [one for one in sys.argv[1:] if one != "--save"]
    command = shlex.join(["python", "-m", f"benchmarks.{benchmark}", *arguments])
    run = {
        "version": __version__,
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": processor(),
        "cores": cores(),
        "command": f"ODDLOT_DATA=... {command}" if about.needs_data else command,
    }
    figures = {}
    for name, figure in about.figures.items():
        old = before["figures"].get(name)
        if values.get(name) or not old or not old["n"]:
            figures[name] = entry(figure, values.get(name, ()))
        else:
            earlier = {key: old.get(key, before.get(key)) for key in run}
            figures[name] = {
                key: value for key, value in earlier.items() if value not in (None, run[key])
            } | {key: value for key, value in old.items() if key not in run}
    text = {"benchmark": benchmark, **run, "figures": figures}
    path.write_text(json.dumps(text, indent=2) + "\n")


def entry(figure: Figure, values: Sequence[float]) -> dict[str, Any]:
    """Return the entry of a figure in a JSON file, with nulls if it was not measured.

    The range covers the values that were reached. If some were not, `reached` is their number. If the median was not
    reached, it is null, and the goal is missed.
    """
    worst = {">=": -inf, "<=": inf}.get(figure.goal.partition(" ")[0])
    ranked = [one if isfinite(one) or worst is None else worst for one in values]
    reached = [one for one in ranked if isfinite(one)]
    of_all = median(ranked) if ranked else inf
    middle = round(of_all, 4) if isfinite(of_all) else None
    low, high = (round(of(reached), 4) for of in (min, max)) if reached else (None, None)
    return {
        "median": middle,
        "low": low,
        "high": high,
        "n": len(values),
        **({"reached": len(reached)} if len(reached) < len(values) else {}),
        "goal": figure.goal or None,
        "met": is_met(figure.goal, middle) if figure.goal and values else None,
        "unit": figure.unit,
    }


def _values(measured: Measured) -> Sequence[float]:
    if measured is None:
        return ()
    return measured if isinstance(measured, Sequence) else (measured,)


SAVED_HERE = ("docs/results", "README.md")
"""Paths that `--save` and `make results` write."""


def commit() -> str:
    """Return the commit of the working tree, with `-dirty` if tracked files other than `SAVED_HERE` have changes."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    asked = (
        ["rev-parse", "--short", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in SAVED_HERE)],
    )
    try:
        name, changes = (
            subprocess.run([*git, *one], check=True, capture_output=True, text=True).stdout.strip()
            for one in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}-dirty" if changes else name


def processor() -> str:
    """Return the model name of the processor, with family and model number on Linux."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    said = {name.strip(): value.strip() for name, _, value in pairs}
    numbers = (
        f"{name.removeprefix('cpu ')} {said[name]}" for name in ("cpu family", "model") if name in said
    )
    return f"{said.get('model name', platform.machine())} ({', '.join(numbers)})"
