"""The tables of a job file."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import BeforeValidator, ConfigDict, ValidationInfo, create_model, field_validator
from pydantic_core import ErrorDetails

from oddlot.config.dataclass_tables import Maker, TableChoice, as_fault, table_of
from oddlot.config.strategy_tables import OPTIMIZER, SCHEDULE, STRATEGY, STRATEGY_TABLES
from oddlot.config.toml_errors import Table, unknown_key
from oddlot.core.optimizers import Optimizer
from oddlot.core.support.errors import UsageError
from oddlot.engines.local.config import Local
from oddlot.engines.registry import ENGINES
from oddlot.model.combine import Gate
from oddlot.planner.prediction import Prediction
from oddlot.run.config import TEXTS, RunConfig, RunKeys
from oddlot.train.job_settings import JobSettings
from oddlot.train.lr_schedules import Schedule
from oddlot.wire.registry import CODECS
from oddlot.workloads.registry import check_workload


class OfJobFile(Table):
    """A table of a job file."""

    whose: ClassVar[str] = ""

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        """Suggest the right table for a misplaced key."""
        key = str(fault["loc"][0])
        having = [name for name, keys in TABLES.items() if key in keys]
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


class EngineChoice(TableChoice):
    """The choice of an engine by `kind`."""

    def read(self, value: Any, info: ValidationInfo) -> Table:
        """Return the table of the engine. Raise UsageError for a setting of another engine."""
        if isinstance(value, dict):
            kind = str(value.get(self.chooser, Local.kind))
            with as_fault():
                for name, given in value.items() if kind in self.tables else ():
                    self._check(kind, name, given)
        return super().read(value, info)

    def _check(self, kind: str, name: str, value: object) -> None:
        """Raise UsageError if the engine of this kind does not have the setting, or does not support the value."""
        having = [each for each, table in self.tables.items() if name in table.model_fields]
        if having and kind not in having:
            own = having[0]
            message = (
                f'the {kind} engine has no `{name}`: leave it out, or use kind = "{own}" (--engine {own})'
            )
            raise UsageError(message, "setting_of_another_engine", name, engine=kind, name=name)
        if kind == Local.kind and name == "workers" and isinstance(value, list):
            message = (
                f"`engine.workers` is {value}, but the local engine has a fixed number of workers: use a number "
                '(--workers N), or kind = "ray" (--engine ray)'
            )
            raise UsageError(message, "range_of_workers", name, engine=kind, given=value)


def _of_job_file(of: type, /, **chosen: Any) -> type[Maker]:
    """Return the table of a dataclass as a table of a job file."""
    bases: Any = OfJobFile, table_of(of, **chosen)
    table: type[Maker] = create_model(f"{of.__name__}Table", __base__=bases)
    return table


ENGINE_TABLES = {kind: _of_job_file(each, kind=kind) for kind, each in ENGINES.items()}
ENGINE = EngineChoice("kind", ENGINE_TABLES, ENGINE_TABLES[Local.kind])
JobTable = _of_job_file(JobSettings, choices={Optimizer: OPTIMIZER, Schedule: SCHEDULE}, alone=False)
"""Changes to the workload's job."""


def _checked_text(value: object, info: ValidationInfo) -> object:
    if not (isinstance(value, str) and value in CODECS):  # constructing a codec imports PyTorch
        with as_fault():
            RunConfig.of({info.field_name or "": value})
    return value


_TEXTS = dict.fromkeys(TEXTS, Annotated[str, BeforeValidator(_checked_text)])
_TEXTS[tuple[Gate, ...]] = Annotated[str | list[str], BeforeValidator(_checked_text)]
"""Types of settings that are text in a job file, and of lists of texts."""
RunTable = _of_job_file(RunKeys, choices=_TEXTS, alone=False)
"""The run settings, and the locations of the run."""
PlanTable = _of_job_file(Prediction)
"""The prediction of `oddlot plan`."""


class FileTable(OfJobFile):
    """A job file."""

    workload: Annotated[WorkloadTable, BeforeValidator(_named)]
    run: RunTable = RunTable()  # type: ignore[valid-type]  # made above
    engine: Annotated[Maker, BeforeValidator(ENGINE.read)] = ENGINE_TABLES[Local.kind]()
    strategy: Annotated[Maker, BeforeValidator(STRATEGY.read)] = STRATEGY_TABLES["synchronous"]()
    job: JobTable = JobTable()  # type: ignore[valid-type]  # made above
    plan: PlanTable | None = None  # type: ignore[valid-type]  # made above

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        """Suggest `[workload] name` for its former name, `task`."""
        if fault["type"] == "extra_forbidden" and fault["loc"] == ("task",):
            return unknown_key("task", "", "Use `name` in the table [workload]", "workload.name")
        return super()._remedy(fault)


TABLES: dict[str, Collection[str]] = {
    "run": RunTable.model_fields,
    "engine": {key for table in ENGINE.tables.values() for key in table.model_fields},
    "job": JobTable.model_fields,
    "job.optimizer": (OPTIMIZER.otherwise or Table).model_fields,
}
"""Keys of the tables. An error about a misplaced key suggests its table."""
