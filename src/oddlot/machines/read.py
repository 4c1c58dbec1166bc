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

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from oddlot.core.errors import UsageError
from oddlot.core.nearest import or_nearest
from oddlot.machines import delays
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.toml_file import Table, about, placed, read_table

KINDS: dict[str, type[delays.Delay]] = {
    "deterministic": delays.Deterministic,
    "exponential": delays.Exponential,
    "lognormal": delays.Lognormal,
    "erlang": delays.Erlang,
    "shifted_exponential": delays.ShiftedExponential,
    "trace": delays.Trace,
}


class DelayTable(Table):
    """A delay model by its `kind`, with that model's own parameters; a trace may lie in a `file`."""

    kind: str
    cv: float | None = None
    shape: int | None = None
    shift: float | None = None
    multipliers: list[float] | None = None
    file: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _may_be_its_kind_alone(cls, table: Any) -> Any:
        return {"kind": table} if isinstance(table, str) else table

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind not in KINDS:
            raise about("kind", f"unknown kind `{self.kind}`: {or_nearest(self.kind, KINDS)}")
        wanted = {field.name for field in fields(KINDS[self.kind])}
        given = self.model_fields_set & set(DelayTable.model_fields) - {"kind"}
        if self.file is not None and "multipliers" in wanted:
            wanted = {"file"}
        for key in sorted(given - wanted):
            takes = f"takes {', '.join(sorted(wanted))}" if wanted else "takes no parameters"
            raise about(key, f"unknown key `{key}`: the kind {self.kind} {takes}")
        for key in sorted(wanted - given):
            raise about("kind", f"the kind {self.kind} needs `{key}`")
        return self

    def model(self, folder: Path) -> delays.Delay:
        """The delay model; a trace's file is looked for in `folder`."""
        if self.file is not None:
            return delays.Trace(_read_trace(folder / self.file))
        parameters: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(KINDS[self.kind])}
        if self.multipliers is not None:
            parameters["multipliers"] = tuple(self.multipliers)
        return KINDS[self.kind](**parameters)


class LifetimeTable(DelayTable):
    """How long a machine stays: a delay model and its mean."""

    mean_seconds: float


class LinkTable(Table):
    """A link's fields."""

    megabits_per_second: float = math.inf
    latency_milliseconds: float = 0.0


class MachineTable(Table):
    """A machine, or `count` machines numbered from 1."""

    name: str
    count: int | None = None
    seconds_per_sample: float
    delay: DelayTable = DelayTable(kind="deterministic")
    link: LinkTable = LinkTable()
    dollars_per_hour: float = 0.0
    lifetime: LifetimeTable | None = None
    seconds_to_return: float | None = None
    joins_at_seconds: float = 0.0


class MachinesFile(Table):
    """The whole file."""

    machines: list[MachineTable]


def read_machines(path: str | Path) -> list[Machine]:
    """The file's machines in its order, `count` spelled out. UsageError: file, line, and what would help."""
    path = Path(path)
    text, file = read_table(path, MachinesFile)
    machines: dict[str, Machine] = {}
    for index, table in enumerate(file.machines):
        for machine in _expand(table, path.parent, partial(placed, path, text, ("machines", index))):
            if machine.name in machines:
                with placed(path, text, ("machines", index, "name")):
                    raise UsageError(f"a second machine is called {machine.name}: give each its own name")
            machines[machine.name] = machine
    if not machines:
        raise UsageError(f"{path} names no machine: add a table [[machines]] with a name")
    return list(machines.values())


def _expand(
    table: MachineTable, folder: Path, here: Callable[..., AbstractContextManager[None]]
) -> list[Machine]:
    with here("delay"):
        delay = table.delay.model(folder)
    with here("link"):
        link = Link(**table.link.model_dump())
    with here("lifetime"):
        life = table.lifetime
        lifetime = Lifetime(life.mean_seconds, life.model(folder)) if life else None
    with here():
        if table.count is not None and table.count < 1:
            raise UsageError(f"count = {table.count} must be at least 1")
        names = [f"{table.name}{i + 1}" for i in range(table.count)] if table.count else [table.name]
        plain = table.model_dump(exclude={"name", "count", "delay", "link", "lifetime"})
        return [Machine(name, delay=delay, link=link, lifetime=lifetime, **plain) for name in names]


def _read_trace(path: Path) -> tuple[float, ...]:
    """The numbers of a text file, one a line; blank lines are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"file = {str(path)!r} cannot be read as a trace: {error}") from None
    multipliers = []
    for number, line in enumerate(lines, 1):
        try:
            multipliers += [float(line)] if line.strip() else []
        except ValueError:
            raise UsageError(f"file = {str(path)!r}, line {number}: {line!r} is not a number") from None
    return tuple(multipliers)
