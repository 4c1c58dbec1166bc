"""How long the steps of real machines took, by public records; and machines that take as long.

Each reader gives the times of every machine in their order, in units that mean nothing beside each other. It raises
UsageError, which names the file, the line and the fault.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from oddlot.core.errors import InvalidValue, UnknownName, UsageError, short
from oddlot.core.validation import is_a
from oddlot.machines.delay_models import Trace
from oddlot.machines.machine import Machine
from oddlot.machines.text_files import read_packed

StepTimes = dict[str, tuple[float, ...]]
Rows = Iterator[tuple[int, list[str]]]
COMPUTING = ("forward-compute", "backward-compute")
LONGEST = 1e100
"""which no time comes to, so that sums of them are numbers"""
TIMES = ("us Per Event",)
"""units of which less is better"""


def read_minibatch_times(path: Path | str) -> StepTimes:
    """The times of workers' minibatches: a CSV with the columns worker, time and batch_time_norm.

    The form of Alibaba's `cluster-trace-gpu-v2020/mini-batch-time`.
    """

    def parse(text: str) -> StepTimes:
        rows = _columns(text, "worker", "time", "batch_time_norm")
        return _in_order(
            (_name(worker, at), _number(when, at), _time(time, at)) for at, (worker, when, time) in rows
        )

    return read_packed(path, parse)


def read_operation_times(path: Path | str) -> StepTimes:
    """How long replicas of a model computed in each step: a CSV with a line for each operation of each stage.

    A replica (dp_rank) takes as long as the slowest of its stages. Columns dp_rank, stage, step, optype and duration:
    the form of ByteDance's traces (Lin et al., "Understanding Stragglers in Large Model Training Using What-if
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
    """How long the same benchmark took on virtual machines, by its results: times, or else work a second.

    A CSV with the columns test_suite, vm_sku, vm_lifespan, VM_id, starttime, unit and value: the form of Azure's
    `vm-noise-data`. `lifespan` is long, for machines that were measured for months, or short, for those that were
    measured once.
    """
    words = {"suite": suite, "sku": sku, "lifespan": lifespan}
    for name, word in words.items():
        if not isinstance(word, str):
            raise InvalidValue(name, word, "a text")

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
    """So many machines, m0, m1, ..., each as one that was recorded: as fast beside the others, and as unsteady.

    Each takes the recorded times in their order, from a place by chance on. More machines than were recorded begin
    again with the first; the mean of those recorded takes `seconds_per_sample`. UsageError: `count` is below 1, or
    there is nothing to be like, or no time.
    """
    records = _records(times)
    if not all(_is_time(time) for record in records for time in record):
        raise UsageError("a time that was recorded must be above 0 and finite", "invalid_duration", "times")
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
        raise InvalidValue("times", times, "records by the names of machines")
    records = [_record(record) for record in times.values()]
    if not records or not all(records):
        raise UsageError("times: a record is empty, or there is none", "empty_record", "times")
    return records


def _record(times: Any) -> tuple[float, ...]:
    try:
        if not isinstance(times, str | bytes | Mapping | set):
            return tuple(times)
    except TypeError:  # an array of no dimension, too, says that it can be passed over
        pass
    told = f"times: a record of {short(times)} must be a list of times"
    raise UsageError(told, "invalid_record", "times", given=times)


def _is_time(value: Any) -> bool:
    return is_a(value, float) and 0 < value < LONGEST


def _columns(text: str, *names: str) -> Rows:
    """The line and these columns of every row."""
    table = csv.reader(StringIO(text, newline=""))
    try:
        yield from _rows(table, names)
    except csv.Error as error:
        told = f"line {table.line_num}: {error}"
        raise UsageError(told, "invalid_csv", line=table.line_num, reason=str(error)) from None


def _rows(table: Any, names: Sequence[str]) -> Rows:
    heading: list[str] = next(table, [])
    if missing := [name for name in names if name not in heading]:
        must = f"of the columns {', '.join(names)} that there must be, with commas between"
        told = f"line 1: no column {missing[0]}, {must}"
        raise UsageError(told, "missing_column", line=1, name=missing[0])
    if twice := [name for name in names if heading.count(name) > 1]:
        told = f"line 1: the column {twice[0]} stands there twice"
        raise UsageError(told, "name_twice", line=1, name=twice[0])
    places = [heading.index(name) for name in names]
    for row in table:
        if row and len(row) != len(heading):
            told = f"line {table.line_num}: {len(row)} columns of {len(heading)}"
            raise UsageError(told, "wrong_column_count", line=table.line_num, given=len(row))
        if row:
            yield table.line_num, [row[place] for place in places]


def _in_order(rows: Iterable[tuple[str, float | str, float]]) -> StepTimes:
    found = defaultdict[str, list[tuple[float | str, float]]](list)
    for machine, when, time in rows:
        found[machine].append((when, time))
    if not found:
        raise UsageError("it holds no times", "empty_file")
    if not all(time < LONGEST for rows in found.values() for _, time in rows):
        raise UsageError("a time is too long for a number", "time_too_long")
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
        raise UsageError(f"line {line}: {text!r} is no number", "invalid_number", line=line, given=text)
    return value


def _time(text: str, line: int) -> float:
    value = _number(text, line)
    if not 0 < value < LONGEST:
        told = f"line {line}: {text!r} is no time above 0 and below {LONGEST:g}"
        raise UsageError(told, "invalid_duration", line=line, given=text)
    return value
