"""The tables of a job file."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from oddlot.config.dataclass_tables import Change, Maker, as_fault, column, validator
from oddlot.config.strategy_tables import OPTIMIZER, SCHEDULE, STRATEGY, STRATEGY_TABLES
from oddlot.config.toml_errors import Table, unknown_key
from oddlot.core.errors import UnknownName, UsageError
from oddlot.core.validation import ABOVE_ZERO, NOT_NEGATIVE, at_least, hints_of
from oddlot.run.config import RunConfig
from oddlot.workloads.registry import check_workload

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
        if fault["type"] == "extra_forbidden" and key == "epochs":
            return unknown_key(key, "", 'Use the goal: `run.until = "epochs>=20"`', "run.until")
        if fault["type"] != "extra_forbidden" or not having:
            return super()._remedy(fault)
        return unknown_key(
            key, "", f"It belongs to the table [{having[0]}]: `{having[0]}.{key}`", f"{having[0]}.{key}"
        )


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
    """Open tasks of each worker. 2 hides the network latency at a staleness of 1. None: 1."""
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


TABLES: dict[str, type[Table]] = {
    "run": RunTable,
    "engine": EngineTable,
    "job": JobTable,
    "job.optimizer": OPTIMIZER.otherwise or Table,
}
"""Tables whose keys are hinted at where they are in another table."""
