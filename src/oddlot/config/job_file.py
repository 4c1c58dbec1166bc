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
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from pydantic_core import ErrorDetails, PydanticCustomError

from oddlot.config.dataclass_tables import Change, Maker, as_fault, column, validator
from oddlot.config.overrides import Override, choosers_first
from oddlot.config.strategy_tables import OPTIMIZER, SCHEDULE, STRATEGY, STRATEGY_TABLES
from oddlot.config.toml_errors import KeyPath, Table, at_line, faults, locate, read_table, said, unknown_key
from oddlot.core.errors import UnknownName, UsageError, joined
from oddlot.core.strategy import Strategy
from oddlot.core.validation import ABOVE_ZERO, NOT_NEGATIVE, at_least, hints_of
from oddlot.run.config import RunConfig
from oddlot.workloads.registry import check_workload, load_workload

if TYPE_CHECKING:
    from oddlot.engines.local.config import Local
    from oddlot.engines.ray.config import Ray
    from oddlot.train.job import Job

Count = Annotated[int, AfterValidator(validator(at_least(1)))]
NotNegative = Annotated[float, AfterValidator(validator(NOT_NEGATIVE))]
Positive = Annotated[float, AfterValidator(validator(ABOVE_ZERO))]
Text = Annotated[str, pydantic.Field(min_length=1)]
WORKERS = "a number of at least 1, or a range: [minimum, maximum] in a job file, MINIMUM-MAXIMUM as a flag"
ENGINES = ("local", "ray")
OF_ONE_ENGINE = {"threads": "local"} | dict.fromkeys(
    ("num_cpus", "num_gpus", "resources", "runtime_env", "address", "lost_after_seconds"), "ray"
)
"""Settings that only one engine has, and its kind."""


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


def _known_engine(value: object) -> object:
    with as_fault():
        if isinstance(value, str) and value not in ENGINES:
            raise UnknownName("engine", value, ENGINES)
    return value


def _workers(value: object) -> int | tuple[int, int]:
    """Return a number of workers, or a smallest and a largest one."""
    if type(value) is int and value >= 1:
        return value
    ends = value if isinstance(value, list | tuple) else ()
    if len(ends) == 2 and all(type(end) is int for end in ends) and 1 <= ends[0] <= ends[1]:
        return ends[0], ends[1]
    raise PydanticCustomError("refused", "Input should be {must}", {"must": WORKERS})


class EngineTable(OfJobFile):
    """The workers of `oddlot train`. Of these settings, simulated machines have only `in_flight`."""

    kind: Annotated[Literal["local", "ray"], BeforeValidator(_known_engine)] = "local"
    """Engine: `local` (worker processes of this machine) or `ray` (a Ray cluster)."""
    workers: Annotated[int | tuple[int, int] | None, pydantic.PlainValidator(_workers)] = None
    """Number of workers. On Ray also `[minimum, maximum]`. None: 2."""
    threads: Count | None = None
    """Local only: threads of each worker. None: the CPU cores divided by the workers."""
    num_cpus: NotNegative | None = None
    """Ray only: CPUs that each worker needs, which is also its number of threads. None: 1."""
    num_gpus: NotNegative | None = None
    """Ray only: GPUs that each worker needs. None: 0."""
    resources: dict[str, float] | None = None
    """Ray only: further resources that each worker needs, such as `{ spot = 1 }`."""
    runtime_env: dict[str, pydantic.JsonValue] | None = None
    """Ray only: Ray's runtime environment, such as `{ working_dir = "." }`."""
    address: Text | None = None
    """Ray only: address of the cluster, such as `10.0.0.5:6379` or `auto`. None: that of `$RAY_ADDRESS`."""
    in_flight: Count | None = None
    """Open tasks of each worker. 2 hides the network latency at a staleness of 1. None: 1 locally, 2 on Ray."""
    lost_after_seconds: Positive | None = None
    """Ray only: seconds without a sign of life after which a worker counts as lost. None: 10."""
    respawn: bool | None = None
    """Whether lost workers are replaced. None: true."""
    dollars_per_hour: NotNegative | None = None
    """Price of a worker, in dollars per hour. None: 0."""

    @field_validator("*")
    @classmethod
    def _of_this_engine(cls, value: Any, info: ValidationInfo) -> Any:
        is_complete = info.context is None  # flags may choose another engine than the file alone
        with as_fault():
            if is_complete and (kind := info.data.get("kind")):
                _check_engine(kind, str(info.field_name), value)
        return value


def _check_engine(kind: str, name: str, value: object) -> None:
    """Raise UsageError if the engine of this kind does not have the setting, or not with this value."""
    own = OF_ONE_ENGINE.get(name, kind)
    if own != kind:
        told = f'the {kind} engine has no `{name}`: leave it out, or use kind = "{own}" (--engine {own})'
        raise UsageError(told, "setting_of_another_engine", engine=kind, name=name)
    if kind == "local" and isinstance(value, tuple):
        told = (
            f"`engine.workers` is {list(value)}, but the local engine has a fixed number of workers: use a number "
            '(--workers N), or kind = "ray" (--engine ray)'
        )
        raise UsageError(told, "range_of_workers", engine=kind, given=value)


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
        cls,
        given: str,
        overrides: Sequence[Override] = (),
        before: Mapping[str, Any] | None = None,
        earlier: Sequence[Override] = (),
    ) -> "JobFile":
        """Read a job file or use a workload's name, on top of the settings of an earlier run.

        `before` are its settings, and `earlier` its overrides. Raise UsageError with every fault and its flag, or its
        file and line.
        """
        path = Path(given) if given.endswith(".toml") else None
        text = read_table(path, FileTable)[0] if path else ""
        plain = tomllib.loads(text) if path else deepcopy(dict(before or {}))
        chosen = [] if path else [Override("", ("workload", "name"), given)]
        if before or earlier:
            earlier = _without_other_engine(plain if before else {}, earlier, overrides)
        source = Source(plain, [*earlier, *overrides], path, text)
        for override in sorted([*chosen, *source.overrides], key=choosers_first):
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

    def engine(self) -> "Local | Ray":
        """Return the workers."""
        given = _given(self.table.engine)
        if given.pop("kind") == "ray":
            from oddlot.engines.ray.config import Ray

            return Ray(**given)
        from oddlot.engines.local.config import Local

        return Local(**given)


def _without_other_engine(
    before: dict[str, Any], earlier: Sequence[Override], now: Sequence[Override]
) -> list[Override]:
    """Remove the settings that the engine of now does not have from those of an earlier run."""
    kind = next((each.value for each in reversed(now) if each.keys == ("engine", "kind")), None)
    other = {("engine", name) for name, own in OF_ONE_ENGINE.items() if kind and own != kind}
    for table, name in other:
        if isinstance(before.get(table), dict):
            before[table].pop(name, None)
    return [each for each in earlier if each.keys[:2] not in other]


def _given(table: Table) -> dict[str, Any]:
    """Return the keys that a table has, as keywords."""
    return {name: value for name in type(table).model_fields if (value := getattr(table, name)) is not None}
