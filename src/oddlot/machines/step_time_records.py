"""Readers of public traces of step times on real machines, and simulated machines that replay them.

Each reader returns the times of every machine in their order. Units differ between traces. An invalid file raises
UsageError, with the file, the line and the fault.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError, short
from oddlot.core.support.validation import is_a
from oddlot.machines.delay_models import Trace
from oddlot.machines.machine import Machine
from oddlot.machines.text_files import read_packed

StepTimes = dict[str, tuple[float, ...]]
Rows = Iterator[tuple[int, list[str]]]
COMPUTING = ("forward-compute", "backward-compute")
LONGEST = 1e100
"""Limit of a time. Sums of times below it are finite."""
TIMES = ("us Per Event",)
"""Units of time. All other units are work per second."""


def read_minibatch_times(path: Path | str) -> StepTimes:
    """Return the minibatch times of each worker, from a CSV with the columns worker, time and batch_time_norm.

    The format of Alibaba's `cluster-trace-gpu-v2020/mini-batch-time`.
    """

    def parse(text: str) -> StepTimes:
        rows = _columns(text, "worker", "time", "batch_time_norm")
        return _in_order(
            (_name(worker, at), _number(when, at), _time(time, at)) for at, (worker, when, time) in rows
        )

    return read_packed(path, parse)


def read_operation_times(path: Path | str) -> StepTimes:
    """Return the computation times of each model replica, from a CSV with a line for each operation of each stage.

    A replica (dp_rank) takes as long as its slowest stage. The columns are dp_rank, stage, step, optype and duration:
    the format of ByteDance's traces (Lin et al., "Understanding Stragglers in Large Model Training Using What-if
    Analysis", OSDI 2025).
    """

    def parse(text: str) -> StepTimes:
        sums = defaultdict[tuple[str, str, float], float](float)
        for at, (rank, stage, step, kind, duration) in _columns(
            text, "dp_rank", "stage", "step", "optype", "duration"
        ):
            if kind in COMPUTING:
                sums[_name(rank, at), stage, _number(step, at)] += _time(duration, at)
        slowest = defaultdict[tuple[str, float], float](float)
        for (rank, _, number), seconds in sums.items():
            slowest[rank, number] = max(seconds, slowest[rank, number])
        return _in_order((rank, number, seconds) for (rank, number), seconds in slowest.items())

    return read_packed(path, parse)


def read_vm_times(path: Path | str, suite: str, sku: str, lifespan: str = "long") -> StepTimes:
    """Return the times of a benchmark on each virtual machine. Results in work per second are inverted.

    The columns are test_suite, vm_sku, vm_lifespan, VM_id, starttime, unit and value: the format of Azure's
    `vm-noise-data`. `lifespan` is `"long"` for machines that were measured for months, or `"short"` for machines that
    were measured once.
    """
    words = {"suite": suite, "sku": sku, "lifespan": lifespan}
    for name, word in words.items():
        if not isinstance(word, str):
            raise InvalidValue(name, word, "a string")

    def parse(text: str) -> StepTimes:
        names = "test_suite", "vm_sku", "vm_lifespan", "VM_id", "starttime", "unit", "value"
        found, known = list[tuple[str, str, float]](), list[set[str]]([set(), set(), set()])
        for at, row in _columns(text, *names):
            for values, value in zip(known, row, strict=False):
                values.add(value)
            if row[:3] == [*words.values()]:
                result = _time(row[6], at)
                found.append((_name(row[3], at), row[4], result if row[5] in TIMES else 1 / result))
        for (name, word), values in zip(words.items(), known, strict=True):
            if word not in values:
                raise UnknownName(name, word, values, key=name)
        return _in_order(found)

    return read_packed(path, parse)


def machines_like(
    times: Mapping[str, Sequence[float]], count: int, seconds_per_sample: float = 0.001
) -> list[Machine]:
    """Return `count` machines, m0, m1, ..., that each replay the times of one recorded machine.

    Each replays the recorded times in their order, from a random position. Machines beyond the number of records use
    the first records again. The mean recorded machine takes `seconds_per_sample`. Raise UsageError if `count` is
    below 1, if a record is empty or has a value that is not a time, or if there is no record.
    """
    records = _records(times)
    if not all(_is_time(time) for record in records for time in record):
        raise UsageError("a recorded time must be above 0 and finite", "invalid_duration", "times")
    if not (is_a(count, int) and count >= 1):
        raise InvalidValue("count", count, "a whole number, at least 1")
    if not _is_time(seconds_per_sample):
        raise InvalidValue("seconds_per_sample", seconds_per_sample, "above 0 and finite")
    overall = fmean(fmean(record) for record in records)
    found = []
    for number in range(count):
        record = records[number % len(records)]
        mean = fmean(record)
        trace = Trace(tuple(time / mean for time in record))
        found.append(Machine(f"m{number}", seconds_per_sample * mean / overall, trace))
    return found


def _records(times: Mapping[str, Sequence[float]]) -> list[tuple[float, ...]]:
    if not isinstance(times, Mapping):
        raise InvalidValue("times", times, "a dict from names of machines to lists of times")
    records = [_record(record) for record in times.values()]
    if not records or not all(records):
        raise UsageError("times: there is no record, or one is empty", "empty_record", "times")
    return records


def _record(times: Any) -> tuple[float, ...]:
    try:
        if not isinstance(times, str | bytes | Mapping | set):
            return tuple(times)
    except TypeError:  # a 0-dimensional array claims to be iterable
        pass
    message = f"times: a record must be a list of times, but is {short(times)}"
    raise UsageError(message, "invalid_record", "times", given=times)


def _is_time(value: Any) -> bool:
    return is_a(value, float) and 0 < value < LONGEST


def _columns(text: str, *names: str) -> Rows:
    """Yield the line number and these columns of every row."""
    table = csv.reader(StringIO(text, newline=""))
    try:
        yield from _rows(table, names)
    except csv.Error as error:
        message = f"line {table.line_num}: {error}"
        raise UsageError(message, "invalid_csv", line=table.line_num, reason=str(error)) from None


def _rows(table: Any, names: Sequence[str]) -> Rows:
    heading: list[str] = next(table, [])
    if missing := [name for name in names if name not in heading]:
        message = f"line 1: no column {missing[0]}: the file needs the columns {', '.join(names)}, separated by commas"
        raise UsageError(message, "missing_column", line=1, name=missing[0])
    if twice := [name for name in names if heading.count(name) > 1]:
        message = f"line 1: the column {twice[0]} occurs twice"
        raise UsageError(message, "name_twice", line=1, name=twice[0])
    places = [heading.index(name) for name in names]
    for row in table:
        if row and len(row) != len(heading):
            message = f"line {table.line_num}: expected {len(heading)} columns, but found {len(row)}"
            raise UsageError(message, "wrong_column_count", line=table.line_num, given=len(row))
        if row:
            yield table.line_num, [row[place] for place in places]


def _in_order(rows: Iterable[tuple[str, float | str, float]]) -> StepTimes:
    found = defaultdict[str, list[tuple[float | str, float]]](list)
    for machine, when, time in rows:
        found[machine].append((when, time))
    if not found:
        raise UsageError("the file has no times", "empty_file")
    if not all(time < LONGEST for rows in found.values() for _, time in rows):
        raise UsageError(f"a time is not below {LONGEST:g}", "time_too_long")
    by_time = {name: sorted(rows, key=lambda row: row[0]) for name, rows in found.items()}
    return {name: tuple(time for _, time in rows) for name, rows in by_time.items()}


def _name(text: str, line: int) -> str:
    if not text:
        raise UsageError(f"line {line}: the machine has no name", "missing_name", line=line)
    return text


def _number(text: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = inf
    if not -inf < value < inf:
        raise UsageError(f"line {line}: {text!r} is not a number", "invalid_number", line=line, given=text)
    return value


def _time(text: str, line: int) -> float:
    value = _number(text, line)
    if not 0 < value < LONGEST:
        message = f"line {line}: {text!r} is not a time above 0 and below {LONGEST:g}"
        raise UsageError(message, "invalid_duration", line=line, given=text)
    return value
