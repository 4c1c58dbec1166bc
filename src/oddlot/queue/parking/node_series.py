"""Numbers of used machines over time."""

import csv
import io
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.machines.text_files import read_packed
from oddlot.queue.traces.fields import BadRow, count, delimiter_of, time

TICK = 600.0
"""Seconds between two values."""
TICKS_PER_DAY = 144
MAX_TICKS = 1_000_000
COLUMNS = (("used", "total", 1), ("active", "total", 1), ("running_gpu_num", "total_gpu_num", 8))
"""Columns with used and existing machines, and their units per machine."""


@dataclass(frozen=True)
class NodeSeries:
    """Machines in use, a value per tick of 10 minutes."""

    start: float
    """Time of the first tick, in seconds since 1970."""
    used: NDArray[np.int64]
    total: NDArray[np.int64]
    problems: int = 0
    """Number of lines that were left out."""

    def __len__(self) -> int:
        return len(self.used)

    @property
    def times(self) -> NDArray[np.float64]:
        """Start of each tick, in seconds since 1970."""
        return self.start + TICK * np.arange(len(self), dtype=np.float64)


def read_series(path: Path | str) -> NodeSeries:
    """Return the largest number of used machines in each 10 minutes, from a CSV with a line per minute.

    Columns: `time`, `used` (or `active`) and `total`, or Helios' `running_gpu_num` and `total_gpu_num`, which are
    divided by 8 GPUs per machine and rounded up. Minutes without a line keep the values before them. Lines without
    usable numbers are left out and counted. Raise UsageError if no line is usable.
    """
    return read_packed(path, _series)


def _series(text: str) -> NodeSeries:
    delimiter = delimiter_of(text.partition("\n")[0])
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = list(reader.fieldnames or ())
    chosen = next((one for one in COLUMNS if {"time", *one[:2]} <= set(header)), None)
    if chosen is None:
        message = (
            f"line 1: expected the columns time, used and total, but found {', '.join(header[:30]) or 'none'}"
        )
        raise UsageError(message, "missing_column", columns=tuple(header))
    used_name, total_name, units = chosen
    by_tick, bad = dict[int, tuple[int, int]](), 0
    for row in reader:
        try:
            tick = int(time((row["time"] or "").strip() or None, "time") // TICK)
            used, total = (_nodes(row[name], units) for name in (used_name, total_name))
        except BadRow:
            bad += 1
            continue
        if used > total:
            bad += 1
            continue
        before = by_tick.get(tick, (0, 0))
        by_tick[tick] = max(before[0], used), max(before[1], total)
    if not by_tick:
        raise UsageError(
            f"no usable line; {bad} were left out. A line is a time, and two numbers with used <= total",
            "no_series",
            problems=bad,
        )
    first, last = min(by_tick), max(by_tick)
    if last - first >= MAX_TICKS:
        message = (
            f"the times span {last - first:,} ticks of 10 minutes, more than {MAX_TICKS:,}: check the times"
        )
        raise UsageError(message, "series_too_long", ticks=last - first)
    values, held = [], by_tick[first]
    for tick in range(first, last + 1):
        held = by_tick.get(tick, held)
        values.append(held)
    found = np.array(values, dtype=np.int64)
    return NodeSeries(first * TICK, found[:, 0], found[:, 1], bad)


def _nodes(text: str | None, units: int) -> int:
    if text is None or not text.strip():
        raise BadRow("no number of machines")
    return ceil(count(text.strip(), "machines") / units)
