"""A job file has all settings of a run. Flags of the command line override them.

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
lr = 0.05                                      # other settings stay; `kind` selects another optimizer

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


class OfJobFile(Table):
    """A table of a job file."""

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        """Suggest the table of a key that is in the wrong one."""
        key = str(fault["loc"][0])
        having = [name for name, table in TABLES.items() if key in table.model_fields]
        if fault["type"] != "extra_forbidden" or not having:
            return super()._remedy(fault)
        return unknown_key(key, "", f"It belongs to the table [{having[0]}]", f"{having[0]}.{key}")


class WorkloadTable(Table):
    """A built-in workload, or a function that returns a job. Further keys are its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, pydantic.JsonValue]

    name: str
    """Built-in workload, or import path of a function that returns a `Job`, such as `package.module:function`."""

    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        with as_fault():
            check_workload(value)
        return value

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of the workload's function."""
        return dict(self.__pydantic_extra__)


def _named(value: object) -> object:
    """Accept a string as the name of a workload."""
    return {"name": value} if isinstance(value, str) else value


class JobTable(OfJobFile):
    """Changes to the workload's job."""

    batch_size: Count | None = None
    """Samples of a minibatch. None: the workload's."""
    device: str | None = None
    """Device of the workers: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`. None: the workload's."""
    keep_optimizer: bool | None = None
    """Whether each worker keeps its optimizer state between tasks. None: the workload's."""
    optimizer: Annotated[Maker | Change, BeforeValidator(OPTIMIZER.read)] | None = None
    """Optimizer. Without `kind`, the keys change settings of the workload's optimizer."""
    lr_schedule: Annotated[Maker, BeforeValidator(SCHEDULE.read)] | None = None
    """Learning rate schedule. None: the workload's."""
    max_grad_norm: Positive | None = None
    """Largest norm of a gradient, for gradient clipping. None: the workload's."""


class EngineTable(OfJobFile):
    """The worker processes of `oddlot train`. Of these settings, simulated machines have only `in_flight`."""

    workers: Count | None = None
    """Number of worker processes. None: 2."""
    threads: Count | None = None
    """Threads of each worker. None: the CPU cores divided by the workers."""
    in_flight: Count | None = None
    """Open tasks of each worker. 2 hides the network latency at a staleness of 1. None: 1."""
    respawn: bool | None = None
    """Whether lost workers are replaced. None: true."""
    dollars_per_hour: Price | None = None
    """Price of a worker, in dollars per hour. None: 0."""


class RunPlaces(OfJobFile):
    """The places of a run's files."""

    out: Text | None = None
    """Run folder. None: a new folder below `runs`."""
    checkpoints: Text | None = None
    """Folder or URL for checkpoints, such as `s3://bucket/run`. None: in the run folder."""


def _run_column(name: str, hint: Any) -> Any:
    """Return the column of a run setting. Strings must not be empty."""
    if hints_of(RunConfig)[name] != hint:
        return Annotated[str, BeforeValidator(_checked_text)]
    return Text if hint is str else column(hint)


def _checked_text(value: object, info: ValidationInfo) -> object:
    with as_fault():
        RunConfig.of({info.field_name or "": value})
    return value


_COLUMNS: dict[str, Any] = {
    name: (_run_column(name, hint) | None, None) for name, hint in RunConfig.flags().items()
}
if TYPE_CHECKING:
    RunTable = RunPlaces
else:
    RunTable = create_model("RunTable", __base__=RunPlaces, **_COLUMNS)
    """The run settings, and where the run is saved."""


class FileTable(OfJobFile):
    """A job file."""

    workload: Annotated[WorkloadTable, BeforeValidator(_named)]
    run: RunTable = RunTable()
    engine: EngineTable = EngineTable()
    strategy: Annotated[Maker, BeforeValidator(STRATEGY.read)] = STRATEGY_TABLES["synchronous"]()
    job: JobTable = JobTable()

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        """Suggest `[workload] name` for `task`, which is its former name."""
        if fault["type"] == "extra_forbidden" and fault["loc"] == ("task",):
            return unknown_key("task", "", "Use `name` in the table [workload]", "workload.name")
        return super()._remedy(fault)


TABLES: dict[str, type[Table]] = {"run": RunTable, "engine": EngineTable, "job": JobTable}
"""Tables whose keys are hinted at where they are in another table."""


@dataclass(frozen=True)
class Source:
    """The sources of settings: file, flags, or an earlier run."""

    plain: dict[str, Any]
    overrides: Sequence[Override] = ()
    path: Path | None = None
    text: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """Return the settings that run.json keeps for a resume."""
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
        """Add the place of a UsageError's key in one of these tables, or of the first table.

        The whole file, `()`, has no place.
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
    """A job file, or a workload alone, with the overrides of the command line."""

    table: FileTable
    source: Source

    @classmethod
    def read(
        cls, given: str, overrides: Sequence[Override] = (), before: Mapping[str, Any] | None = None
    ) -> "JobFile":
        """Read a job file or use a workload's name, on top of the settings of an earlier run `before`.

        Raise UsageError with every fault and its flag, or its file and line.
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
        """Return the name for run folders of this workload."""
        return self.source.path.stem if self.source.path else self.table.workload.name.rpartition(":")[2]

    @property
    def out(self) -> str | None:
        """Return the run folder, if it is set."""
        return self.table.run.out

    @property
    def checkpoints(self) -> str | None:
        """Return the place of the checkpoints, if it is set."""
        return self.table.run.checkpoints

    @property
    def strategy_names(self) -> list[str]:
        """Return the names of the strategy and of the wrapped ones."""
        names, table = list[str](), getattr(self.table, "strategy", None)
        while table is not None:
            names.append(table.name)
            table = getattr(table, "inner", None)
        return names

    def strategy(self) -> Strategy:
        """Return the strategy."""
        strategy: Strategy = self.table.strategy.make()
        return strategy

    def job(self) -> "Job":
        """Return the workload's job with its changes. Raise UsageError, or JobError if the workload's code fails."""
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
    """Return the keys that a table has, as keywords."""
    return {name: value for name in type(table).model_fields if (value := getattr(table, name)) is not None}
