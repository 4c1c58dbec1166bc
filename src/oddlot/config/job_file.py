"""The settings of a run: a job file, and what the command line says on top of it.

[workload]
name = "digits"                                # or "package.module:function"
hidden = 128                                   # an option of the workload

[run]
until = "accuracy>=0.98 or epochs>=30"

[engine]
workers = 4

[strategy]
name = "local_sgd"                             # or "package.module:Class"
steps = 8
server = { lr = 0.7, momentum = 0.9, nesterov = true }

[job.optimizer]
lr = 0.05                                      # the rest as the workload has it; with `kind`, another optimizer

[job.lr_schedule]
kind = "cosine"                                # or "linear", "steps"
epochs = 30
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_core import ErrorDetails

from oddlot.config.dataclass_tables import Change, Maker, as_fault, column, validator
from oddlot.config.overrides import Override, choosers_first
from oddlot.config.strategy_tables import OPTIMIZER, SCHEDULE, STRATEGY, STRATEGY_TABLES
from oddlot.config.toml_errors import KeyPath, Table, at_line, faults, locate, read_table, said, unknown_key
from oddlot.core.errors import UsageError, joined
from oddlot.core.strategy import Strategy
from oddlot.core.validation import ABOVE_ZERO, NOT_NEGATIVE, at_least, hints_of
from oddlot.run.config import RunConfig
from oddlot.workloads.registry import check_workload, load_workload

if TYPE_CHECKING:
    from oddlot.engines.local.config import Local
    from oddlot.train.job import Job

Count = Annotated[int, AfterValidator(validator(at_least(1)))]
Price = Annotated[float, AfterValidator(validator(NOT_NEGATIVE))]
Positive = Annotated[float, AfterValidator(validator(ABOVE_ZERO))]
Text = Annotated[str, pydantic.Field(min_length=1)]


class WorkloadTable(Table):
    """A ready-made job, or a user's function that returns one. Further keys are its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, pydantic.JsonValue]

    name: str

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        with as_fault():
            check_workload(value)
        return value

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the workload's function."""
        return dict(self.__pydantic_extra__)


def _named(value: object) -> object:
    """A workload may be its name alone."""
    return {"name": value} if isinstance(value, str) else value


class JobTable(Table):
    """Changes to the workload's job."""

    batch_size: Count | None = None
    device: str | None = None
    keep_optimizer: bool | None = None
    optimizer: Annotated[Maker | Change, BeforeValidator(OPTIMIZER.read)] | None = None
    lr_schedule: Annotated[Maker, BeforeValidator(SCHEDULE.read)] | None = None
    max_grad_norm: Positive | None = None


class EngineTable(Table):
    """The worker processes. A fleet file describes simulated machines; of these settings it leaves `in_flight`."""

    workers: Count | None = None
    threads: Count | None = None
    in_flight: Count | None = None
    respawn: bool | None = None
    dollars_per_hour: Price | None = None


class RunPlaces(Table):
    """Where a run is saved."""

    out: Text | None = None
    checkpoints: Text | None = None


def _run_column(name: str, hint: Any) -> Any:
    """Return the column of a run setting; no text is empty."""
    if hints_of(RunConfig)[name] != hint:
        return Annotated[str, BeforeValidator(_checked_text)]
    return Text if hint is str else column(hint)


def _checked_text(value: object, info: ValidationInfo) -> object:
    with as_fault():
        RunConfig.of({info.field_name or "": value})
    return value


RUN_SETTINGS = {name: hint for name, hint in RunConfig.hints().items() if name not in {"chaos", "about"}}
"""The settings of the table `[run]`; faults are a file of their own."""
_COLUMNS: dict[str, Any] = {
    name: (_run_column(name, hint) | None, None) for name, hint in RUN_SETTINGS.items()
}
if TYPE_CHECKING:
    RunTable = RunPlaces
else:
    RunTable = create_model("RunTable", __base__=RunPlaces, **_COLUMNS)
    """The run settings, and where the run is saved."""


class FileTable(Table):
    """A whole job file."""

    workload: Annotated[WorkloadTable, BeforeValidator(_named)]
    run: RunTable = RunTable()
    engine: EngineTable = EngineTable()
    strategy: Annotated[Maker, BeforeValidator(STRATEGY.read)] = STRATEGY_TABLES["synchronous"]()
    job: JobTable = JobTable()

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        """A key outside its table is named with the table."""
        key = str(fault["loc"][0])
        tables: dict[str, type[Table]] = {"run": RunTable, "engine": EngineTable, "job": JobTable}
        having = [name for name, table in tables.items() if key in table.model_fields]
        if fault["type"] != "extra_forbidden" or not having:
            return super()._remedy(fault)
        return unknown_key(key, "", f"it is a key of the table [{having[0]}]", f"{having[0]}.{key}")


@dataclass(frozen=True)
class Source:
    """Where each setting came from."""

    plain: dict[str, Any]
    overrides: Sequence[Override] = ()
    path: Path | None = None
    text: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """The settings that a run's folder keeps, to resume the run with them."""
        overrides = [[each.flag, list(each.keys), each.value] for each in self.overrides]
        return {"settings": self.plain, "overrides": overrides}

    def placed_at(self, keys: KeyPath, error: UsageError) -> UsageError:
        """Return the error with the flag, or the file and line, that gave these keys; unchanged if neither did."""
        found = said(self.plain, keys)
        for override in reversed(self.overrides):
            depth = min(len(found), len(override.keys))
            if depth and list(override.keys[:depth]) == found[:depth]:
                # a flag has its value with it
                sentence = str(error).removeprefix(f"{error.key} = {override.value!r}: ")
                return error.retold(f"{override.flag}: {sentence}", flag=override.flag)
        return at_line(self.path, locate(self.text, keys), error) if self.path else error

    @contextmanager
    def placed(self, *tables: tuple[str, ...]) -> Iterator[None]:
        """Add the place to a UsageError: that of its key in one of these tables, or else that of the first table.

        The whole file, `()`, is no place.
        """
        try:
            yield
        except UsageError as error:
            keys = next(
                (k for t in tables if said(self.plain, k := (*t, *error.key.split("."))) == [*k]), tables[0]
            )
            raise (self.placed_at(keys, error) if keys else error) from None

    @contextmanager
    def placed_in_any(self) -> Iterator[None]:
        """Add the place to a UsageError about a setting of any table."""
        with self.placed((), *((field,) for field in FileTable.model_fields)):
            yield


@dataclass(frozen=True)
class JobFile:
    """A job file, or a workload alone, with what the command line says on top of it."""

    table: FileTable
    source: Source

    @classmethod
    def read(
        cls, given: str, overrides: Sequence[Override] = (), before: Mapping[str, Any] | None = None
    ) -> "JobFile":
        """Read a job file, or make the settings of a workload, on top of those of a run `before`.

        UsageError: every fault with its flag, or its file and line.
        """
        path = Path(given) if given.endswith(".toml") else None
        text = read_table(path, FileTable)[0] if path else ""
        plain = tomllib.loads(text) if path else deepcopy(dict(before or {}))
        chosen = [] if path else [Override("", ("workload", "name"), given)]
        source = Source(plain, overrides, path, text)
        for override in sorted([*chosen, *overrides], key=choosers_first):
            override.put_into(source.plain)
        try:
            return cls(FileTable.model_validate(source.plain), source)
        except ValidationError as error:
            raise joined([source.placed_at(keys, fault) for keys, fault in faults(error)]) from None

    @property
    def name(self) -> str:
        """The name of the folders of this workload's runs."""
        return self.source.path.stem if self.source.path else self.table.workload.name.rpartition(":")[2]

    @property
    def out(self) -> str | None:
        """The run folder, if it is given."""
        return self.table.run.out

    @property
    def checkpoints(self) -> str | None:
        """The place of the checkpoints, if it is given."""
        return self.table.run.checkpoints

    @property
    def strategy_names(self) -> list[str]:
        """The names of its strategy and of those inside."""
        names, table = list[str](), getattr(self.table, "strategy", None)
        while table is not None:
            names.append(table.name)
            table = getattr(table, "inner", None)
        return names

    def strategy(self) -> Strategy:
        """Make the strategy."""
        strategy: Strategy = self.table.strategy.make()
        return strategy

    def job(self) -> "Job":
        """Make the workload's job with its changes. UsageError, or JobError when the workload's own code fails."""
        with self.source.placed(("workload",)):
            job = load_workload(self.table.workload.name, self.table.workload.options)
        table = self.table.job
        changes: dict[str, Any] = {
            name: value.make() if isinstance(value, Maker) else value
            for name, value in _given(table).items()
            if name != "optimizer"
        }
        if table.optimizer is not None:
            with self.source.placed(("job", "optimizer")):
                rule = table.optimizer
                changes["optimizer"] = rule.make() if isinstance(rule, Maker) else rule.make(job.optimizer)
        with self.source.placed(("job",)):
            return replace(job, **changes)

    def run_settings(self) -> dict[str, Any]:
        """Return the run settings that were given, as keywords of `fit`."""
        return {name: value for name, value in _given(self.table.run).items() if name != "out"}

    def local(self) -> "Local":
        """Return the worker processes."""
        from oddlot.engines.local.config import Local

        return Local(**_given(self.table.engine))


def _given(table: Table) -> dict[str, Any]:
    """Return what a table says."""
    return {name: value for name in type(table).model_fields if (value := getattr(table, name)) is not None}
