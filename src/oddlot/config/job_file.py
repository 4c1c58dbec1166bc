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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from oddlot.config.dataclass_tables import Maker, PartialTable
from oddlot.config.job_tables import ENGINE, FileTable
from oddlot.config.overrides import CHOOSERS, Override, choosers_first
from oddlot.config.toml_errors import KeyPath, Table, at_line, explain, locate, read_toml, said
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import UsageError
from oddlot.engines.base import EngineConfig
from oddlot.engines.simulated.config import Simulated
from oddlot.machines.market import Fleet
from oddlot.run.config import RunConfig
from oddlot.workloads.registry import load_stages, load_workload

if TYPE_CHECKING:
    from oddlot.train.job import Job
    from oddlot.train.stages import Stage

OF_STAGES = ("optimizer", "lr_schedule")
"""Settings of a job that differ between the stages of a run."""


@dataclass(frozen=True)
class SettingSources:
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
        """Add the flag, or the file and line, that set these keys to an error."""
        found = said(self.plain, keys)
        for override in reversed(self.overrides):
            depth = min(len(found), len(override.keys))
            if depth and list(override.keys[:depth]) == found[:depth]:
                # the flag already shows the value
                sentence = str(error).removeprefix(f"{error.key} = {override.value!r}: ")
                return error.with_message(f"{override.flag}: {sentence}", flag=override.flag)
        return at_line(self.path, locate(self.text, keys), error) if self.path else error

    @contextmanager
    def placed(self, *tables: tuple[str, ...]) -> Iterator[None]:
        """Add the location of its key to a UsageError: in the first table that has the key, or of the first table.

        The complete file, `()`, has no location.
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
        """Add the location to a UsageError about a setting of any table."""
        with self.placed((), *((field,) for field in FileTable.model_fields)):
            yield


@dataclass(frozen=True)
class JobFile:
    """A job file, or a workload alone, with the overrides of the command line."""

    table: FileTable
    source: SettingSources

    @classmethod
    def read(
        cls,
        given: str,
        overrides: Sequence[Override] = (),
        before: Mapping[str, Any] | None = None,
        earlier: Sequence[Override] = (),
    ) -> "JobFile":
        """Read a job file or use the name of a workload.

        `before` has the settings of an earlier run, and `earlier` its overrides. Raise UsageError with all errors, each
        with its flag, or its file and line.
        """
        path = Path(given).expanduser() if given.endswith(".toml") else None
        text, plain = read_toml(path) if path else ("", deepcopy(dict(before or {})))
        chosen = [] if path else [Override("", ("workload", "name"), given)]
        if before or earlier:
            earlier = _without_other_engine(plain if before else {}, earlier, overrides)
            earlier = _without_replaced(plain, earlier, overrides)
        return cls.of(SettingSources(plain, [*earlier, *overrides], path, text), chosen)

    @classmethod
    def of(cls, source: SettingSources, chosen: Sequence[Override] = ()) -> "JobFile":
        """Return the job file with the overrides of `source`, and `chosen` before them. Raise the errors of `read`."""
        for override in sorted([*chosen, *source.overrides], key=choosers_first):
            override.put_into(source.plain)
        try:
            return cls(FileTable.model_validate(source.plain), source)
        except ValidationError as error:
            raise explain(error, source.placed_at, source.path) from None

    @property
    def name(self) -> str:
        """Return the name for run folders of this workload."""
        return self.source.path.stem if self.source.path else self.table.workload.name.rpartition(":")[2]

    @property
    def out(self) -> str | None:
        """Return the run folder, if it is set."""
        return _given(self.table.run).get("out")

    @property
    def checkpoints(self) -> str | None:
        """Return the location of the checkpoints, if it is set."""
        return _given(self.table.run).get("checkpoints")

    @property
    def strategy_names(self) -> list[str]:
        """Return the names of the strategy and of the strategies inside it, from the outside in."""
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
        return self._changed(job)

    def stages(self) -> "Job | Sequence[Stage]":
        """Return the workload's job with its changes, or its stages. Raise UsageError or JobError like `job`."""
        with self.source.placed(("workload",)):
            found = load_stages(self.table.workload.name, self.table.workload.options)
        if not isinstance(found, Sequence):
            return self._changed(found)
        if name := next((name for name in OF_STAGES if name in _given(self.table.job)), ""):
            with self.source.placed(("job", name)):
                message = f"each stage of {self.name} has its own {name}: leave it out, or use options of the workload"
                raise UsageError(message, "setting_of_stages", name)
        return [replace(stage, job=self._changed(stage.job)) for stage in found]

    def _changed(self, job: "Job") -> "Job":
        """Return the job with the settings of the table `[job]`."""
        changes = dict[str, Any]()
        for name, value in _given(self.table.job).items():
            with self.source.placed(("job", name)):
                changes[name] = (
                    value.make(getattr(job, name))
                    if isinstance(value, PartialTable)
                    else value.make()
                    if isinstance(value, Maker)
                    else value
                )
        with self.source.placed(("job",)):
            return replace(job, **changes)

    def run_settings(self) -> dict[str, Any]:
        """Return the given run settings, as keyword arguments of `fit`."""
        return {name: value for name, value in _given(self.table.run).items() if name != "out"}

    def engine(self, fleet: Fleet | None = None, computes: bool = True) -> EngineConfig:
        """Return the engine of the file or, with a fleet, a simulated engine with the settings that apply to it."""
        engine: EngineConfig = self.table.engine.make()
        if fleet is None:
            return engine
        return Simulated.of(
            fleet, self.run_settings().get("seed", RunConfig.seed), engine.in_flight, computes
        )


def _without_other_engine(
    before: dict[str, Any], earlier: Sequence[Override], now: Sequence[Override]
) -> list[Override]:
    """Remove settings that the current engine does not have from `before`, and return `earlier` without them."""
    kind = next((each.value for each in reversed(now) if each.keys == ("engine", "kind")), "")
    if kind not in ENGINE.tables:
        return list(earlier)
    known = ENGINE.tables[kind].model_fields
    if isinstance(engine := before.get("engine"), dict):
        before["engine"] = {name: value for name, value in engine.items() if name in known}
    return [each for each in earlier if each.keys[0] != "engine" or each.keys[1] in known]


def _without_replaced(
    plain: Mapping[str, Any], earlier: Sequence[Override], now: Sequence[Override]
) -> list[Override]:
    """Return `earlier` without the settings of a strategy, optimizer or schedule that `now` replaces by another."""

    def before(keys: tuple[str, ...]) -> Any:
        found: Any = plain
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return next((each.value for each in reversed(earlier) if each.keys == keys), found)

    chosen = (each for each in now if each.keys in CHOOSERS)
    replaced = [each.keys[:-1] for each in chosen if each.value != before(each.keys)]
    return [each for each in earlier if not any(each.keys[: len(table)] == table for table in replaced)]


def _given(table: Table) -> dict[str, Any]:
    """Return the given settings of a table, as keyword arguments."""
    return {name: value for name in type(table).model_fields if (value := getattr(table, name)) is not None}
