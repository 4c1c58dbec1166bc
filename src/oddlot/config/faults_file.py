"""Reading fault files: see `oddlot.faults.plan`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator, ValidationInfo, create_model

from oddlot.config.dataclass_tables import Maker, as_fault, column, given, table_of
from oddlot.config.fleet_file import CAPACITIES
from oddlot.config.path_arguments import numbers, read_lines
from oddlot.config.toml_errors import Table, at_line, locate, read_table
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import Seed
from oddlot.faults.plan import Chaos, Fault, check_count
from oddlot.machines.market_traces import alive_rows
from oddlot.machines.text_files import checked_path

MAX_LOST = 1_000_000
"""Largest number of machines that a preemption trace may lose."""


def _read_times(file: object, info: ValidationInfo) -> tuple[float, ...]:
    """Read times, in seconds: one per line, or the losses of a preemption trace with lines `seconds,alive`."""
    with as_fault():
        return read_lines(file, info, "times", _times)


def _times(lines: list[str]) -> Iterator[float]:
    """Yield the times of the lines. For a preemption trace, yield one time for each lost machine."""
    if not any("," in line for line in lines):
        yield from numbers(lines)
        return
    rows, total = list(alive_rows(lines)), 0
    for (_, before), (time, now) in pairwise(rows):
        total += (lost := max(0, int(before - now)))
        if total > MAX_LOST:
            message = f"the trace loses more than {MAX_LOST:,} machines: use a smaller trace"
            raise UsageError(message, "too_many_machines", machines=total)
        yield from [time] * lost


class FaultTable(Maker):
    """A fault, whose times may be in a separate file."""

    file: Annotated[tuple[float, ...], PlainValidator(_read_times)] | None = None
    """Text file with one time per line, in seconds, instead of `at_seconds`. A trace of lines `time,alive` gives one
    fault for each machine that it loses. The path is relative to the fault file."""

    def make(self) -> Fault:
        """Return the fault."""
        fault: dict[str, Any] = given(self, Fault)
        if self.file is not None and "at_seconds" in fault:
            message = "a fault has both `at_seconds` and `file`: use one of them"
            raise UsageError(message, "not_one_of", "file", given=["at_seconds", "file"])
        return Fault(**fault) if self.file is None else Fault(**fault, at_seconds=self.file)


def _counted(faults: Any) -> Any:
    """Raise UsageError for a list that is too long, before each table is validated."""
    with as_fault():
        check_count(len(faults) if isinstance(faults, list) else 0)
    return faults


FaultTables: Any = list[create_model("FaultTable", __base__=(FaultTable, table_of(Fault)))]  # type: ignore[misc]  # made here
Faults: Any = Annotated[FaultTables, BeforeValidator(_counted)]
ChaosFile: Any = create_model(
    "ChaosFile",
    __base__=Table,
    faults=(Faults, []),
    seed=(column(Seed), 0),
    capacity=(CAPACITIES.hint, None),
)


def read_chaos(path: str | Path, machines: Sequence[str] | None = None) -> Chaos:
    """Return the faults of a TOML file. With `machines`, faults may name no other machines.

    Raise UsageError, with file and line, if the file is not valid.
    """
    text, file = read_table(checked_path(path), ChaosFile)
    if not file.faults and file.capacity is None:
        message = f"{path} has no faults: add a table [[faults]] or [capacity]"
        raise UsageError(message, "no_faults", path=str(path))
    capacity = None if file.capacity is None else file.capacity.make()
    chaos = Chaos([table.make() for table in file.faults], file.seed, capacity)
    try:
        chaos.check_machines(machines) if machines is not None else None
    except UsageError as error:
        keys = [int(key) if key.isdecimal() else key for key in error.key.split(".")]
        raise at_line(Path(path), locate(text, keys), error) from None
    return chaos
