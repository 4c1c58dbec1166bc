"""Machines from a TOML file.

[[machines]]
name = "spot"
count = 8                                       # spot1 ... spot8
seconds_per_sample = 0.002
delay = { kind = "lognormal", cv = 0.3 }        # or { kind = "trace", file = "slowdowns.txt" }
link = { megabits_per_second = 100, latency_milliseconds = 20 }
dollars_per_hour = 0.35
lifetime = { kind = "exponential", mean_seconds = 3600 }
seconds_to_return = 120
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationInfo, create_model

from oddlot.core.checks import AboveZero, AtLeastOne, Seed
from oddlot.core.errors import UsageError
from oddlot.machines import delays
from oddlot.machines.chaos import Chaos, Fault
from oddlot.machines.machine import Lifetime, Machine
from oddlot.machines.tables import Choice, Maker, as_fault, column, given, table_of
from oddlot.machines.toml_file import Table, locate, read_table

MOST_MACHINES = 1_000_000
KINDS: dict[str, type[delays.Delay]] = {
    "deterministic": delays.Deterministic,
    "exponential": delays.Exponential,
    "lognormal": delays.Lognormal,
    "erlang": delays.Erlang,
    "shifted_exponential": delays.ShiftedExponential,
}


def _read_trace(file: object, info: ValidationInfo) -> delays.Trace:
    with as_fault():
        numbers = _read_lines(file, info, "a trace")
        try:
            return delays.Trace(numbers)
        except UsageError as error:
            raise UsageError(f"file = {file!r}: {error}") from None


def _read_times(file: object, info: ValidationInfo) -> tuple[float, ...]:
    """Seconds, one a line; or a preemption trace, of lines `seconds,alive`: each one less alive is a time."""
    with as_fault():
        times = _read_lines(file, info, "times", _times)
        if not times:
            raise UsageError(f"file = {file!r} holds no times: write seconds, one a line")
        return times


def _read_lines(
    file: object,
    info: ValidationInfo,
    what: str,
    read: "Callable[[list[str]], Iterable[float]] | None" = None,
) -> tuple[float, ...]:
    """The numbers of a text file beside the table's own, one a line; blank lines are passed over."""
    if not isinstance(file, str) or not file:
        raise UsageError(f"file = {file!r} must be the path of a text file")
    folder: Path = (info.context or {}).get("folder", Path())
    path = folder / file
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"file = {str(path)!r} cannot be read as {what}: {why}") from None
    try:
        return tuple((read or _numbers)(lines))
    except UsageError as error:
        raise UsageError(f"file = {str(path)!r}: {error}") from None


def _numbers(lines: list[str]) -> Iterator[float]:
    for number, line in enumerate(lines, 1):
        try:
            value = float(line) if line.strip() else None
        except ValueError:
            value = nan
        if value is not None and not 0 <= value < inf:
            raise UsageError(f"line {number}: {line!r} is no number that is finite and not negative")
        if value is not None:
            yield value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _times(lines: list[str]) -> Iterator[float]:
    """How many machines were alive from when on, or simply when."""
    rows = [line.split(",") for line in lines if line.strip()]
    if rows and len(rows[0]) == 2 and not any(map(_is_number, rows[0])):
        rows = rows[1:]  # the columns' names
    if all(len(row) == 1 for row in rows):
        yield from _numbers(lines)
        return
    if any(len(row) != 2 for row in rows):
        raise UsageError("a line has to be `seconds` in all lines, or `seconds,alive` in all")
    times = list(_numbers([time for time, _ in rows]))
    alive = list(_numbers([count for _, count in rows]))
    if any(count != int(count) for count in alive):
        raise UsageError("how many are alive must be a whole number")
    if times != sorted(times):
        raise UsageError("the times of a trace must not go back")
    for time, before, now in zip(times[1:], alive, alive[1:], strict=False):
        yield from [time] * max(0, int(before - now))


class TraceTable(Maker):
    """A trace of its own, or in a file."""

    makes = delays.Trace
    kind: str
    multipliers: Annotated[tuple[float, ...], Field(strict=False)] | None = None
    file: Annotated[delays.Trace, PlainValidator(_read_trace)] | None = None

    def make(self) -> delays.Trace:
        """The trace."""
        if (self.multipliers is None) == (self.file is None):
            raise UsageError("a trace has either `multipliers` or a `file` with them", "kind")
        return self.file or delays.Trace(self.multipliers or ())


class LifetimeTable(Maker):
    """A delay model and its mean."""

    mean_seconds: float

    def make(self) -> Lifetime:
        """The lifetime."""
        return Lifetime(self.mean_seconds, super().make())


DELAY_TABLES = {name: table_of(kind, kind=name) for name, kind in KINDS.items()} | {"trace": TraceTable}
LIFETIME_TABLES = {
    name: create_model(
        "LifetimeTable", __base__=(LifetimeTable, table), mean_seconds=(column(AboveZero), ...)
    )
    for name, table in DELAY_TABLES.items()
}
CHOICES = {delays.Delay: Choice("kind", DELAY_TABLES), Lifetime: Choice("kind", LIFETIME_TABLES)}
MachineTable = create_model(
    "MachineTable",
    __base__=table_of(Machine, choices=CHOICES),
    count=(column(AtLeastOne | None), None),
    seconds_per_sample=(column(AboveZero), ...),
)
"""A machine, or `count` machines numbered from 1."""
Machines: Any = list[MachineTable]  # type: ignore[valid-type]  # made above
MachinesFile: Any = create_model("MachinesFile", __base__=Table, machines=(Machines, ...))


class FaultTable(Maker):
    """A fault, whose times may be in a file of their own."""

    file: Annotated[tuple[float, ...], PlainValidator(_read_times)] | None = None

    def make(self) -> Fault:
        """The fault."""
        fault: dict[str, Any] = given(self, Fault)
        if self.file is not None and "at_seconds" in fault:
            raise UsageError("a fault has either `at_seconds` or a `file` with them", "file")
        return Fault(**fault) if self.file is None else Fault(**fault, at_seconds=self.file)


Faults: Any = list[create_model("FaultTable", __base__=(FaultTable, table_of(Fault)))]  # type: ignore[misc]  # made here
ChaosFile: Any = create_model("ChaosFile", __base__=Table, faults=(Faults, ...), seed=(column(Seed), 0))


def _path(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise UsageError(f"path = {path!r} must be a file's path")
    return Path(path)


def read_chaos(path: str | Path, machines: Sequence[str] | None = None) -> Chaos:
    """What is to go wrong, from a TOML file; with `machines`, to no others than these.

    UsageError: file, line, and what would help.
    """
    text, file = read_table(_path(path), ChaosFile)
    chaos = Chaos([table.make() for table in file.faults], file.seed)
    try:
        chaos.check_machines(machines) if machines is not None else None
    except UsageError as error:
        keys = [int(key) if key.isdecimal() else key for key in error.key.split(".")]
        raise UsageError(f"{path}:{locate(text, keys)}: {error}") from None
    return chaos


def read_machines(path: str | Path) -> list[Machine]:
    """The file's machines in its order, `count` spelled out. UsageError: file, line, and what would help."""
    path = _path(path)
    text, file = read_table(path, MachinesFile)
    machines: dict[str, Machine] = {}
    for index, table in enumerate(file.machines):
        one, count = table.make(), table.count
        if len(machines) + (count or 1) > MOST_MACHINES:
            line = locate(text, ("machines", index, "count"))
            raise UsageError(f"{path}:{line}: these are more than {MOST_MACHINES:,} machines: take fewer")
        for name in [f"{one.name}{i + 1}" for i in range(count)] if count else [one.name]:
            if name in machines:
                line = locate(text, ("machines", index, "name"))
                raise UsageError(f"{path}:{line}: a second machine is called {name}: give each its own name")
            machines[name] = replace(one, name=name)
    if not machines:
        raise UsageError(f"{path} names no machine: add a table [[machines]] with a name")
    return list(machines.values())
