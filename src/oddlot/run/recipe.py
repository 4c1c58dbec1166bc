"""The validated inputs of a run: job, strategy, engine and run settings."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from oddlot.core.conductor import Conductor
from oddlot.core.events import NewSegment
from oddlot.core.peers import Peers
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.strategy import Strategy, Traits
from oddlot.core.support.errors import BadSamples, JobError, UsageError
from oddlot.core.support.serialization import to_plain
from oddlot.data.batches import Cuts
from oddlot.data.sample_order import OfSampler, SampleOrder, rows_of
from oddlot.data.seeding import seed_all
from oddlot.data.shards import Shards
from oddlot.engines.base import EngineConfig, RunData
from oddlot.engines.payloads import users_code
from oddlot.history.goals import Goal
from oddlot.history.run_settings import FORMAT
from oddlot.history.segments import HUB_OPTIMIZER, RUN_OPTIONS, SEGMENT_OPTIONS, Segment, settings_of
from oddlot.model.combine import LEAST_UPDATES
from oddlot.model.flat_buffer import Layout
from oddlot.model.rule_names import rule_name
from oddlot.model.tensor_checks import warn_of_extra_state
from oddlot.run.checks import (
    EffectiveBatch,
    check_evaluation,
    check_exact,
    check_goal,
    check_mesh,
    check_scheduler,
    check_shards,
    check_sizes,
    check_types,
    default_shards,
    effective_batch,
    measured,
    warn_of_strategy,
)
from oddlot.run.config import RunConfig
from oddlot.run.rule_checks import check_rules
from oddlot.strategies.groups import Groups
from oddlot.train.devices import choose_device
from oddlot.train.job import Job, made, resolved
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain


@dataclass(frozen=True)
class Recipe:
    """The validated inputs of a run."""

    job: Job
    strategy: Strategy
    engine: EngineConfig
    config: RunConfig

    def __post_init__(self) -> None:
        job, engine, config = self.job, self.engine, self.config
        check_types(job, self.strategy, engine, config.codec, config.about)
        # Raises UsageError now, not later. Workers of Ray without GPUs compute on CPUs.
        on_gpus = engine.is_remote and bool(getattr(engine, "num_gpus", 0))
        device = job.device if on_gpus else "cpu" if engine.is_remote else choose_device(job.device).type
        check_shards(config.shards, self.samples, job)
        check_mesh(job, self.traits, self.strategy)
        check_exact(job, self.traits, self.shards, self.codec, engine, device, skip_bad=config.skip_bad)
        check_rules(config, self.traits, self.strategy, engine, self.in_flight)
        check_sizes(job, engine, self.traits, self.samples, self.shards)
        if config.chaos is not None:
            config.chaos.check_engine(engine, mesh=self.traits.mesh)
        self.strategy.validate(engine.max_workers, measured(job, engine))
        warn_of_strategy(self.strategy, job, engine, self.samples, self.shards)
        check_evaluation(job)
        check_goal(self.goal, self.until, job, engine)

    @property
    def codec(self) -> Codec:
        """Return the codec of updates."""
        if self.config.codec is not None:
            return self.config.codec
        from oddlot.wire.nonzero_blocks import NonZero

        return NonZero() if self.job.sparse else Plain()

    @cached_property
    def samples(self) -> int:
        """Return the number of samples of an epoch, or of its batches with a batch sampler."""
        order = self.job.sample_order()
        if isinstance(order, OfSampler):
            order.check(self.config.seed)
        return order.size

    @cached_property
    def shards(self) -> int:
        """Return the number of shards: the number of parts, if the data have parts."""
        if isinstance(self.job.train_data, Shards):
            return len(self.job.train_data.parts)
        slots = self.engine.max_workers * self.in_flight
        default = default_shards(self.traits, self.samples, self.job.batch_size, slots)
        return self.config.shards or default

    @property
    def cuts(self) -> Cuts:
        """Return the boundaries of the parts, if the data have parts, or else the number of shards."""
        data = self.job.train_data
        return data.cuts if isinstance(data, Shards) else self.shards

    @cached_property
    def order(self) -> SampleOrder:
        """Return the order of the samples in each epoch."""
        return self.job.sample_order(self.cuts)

    def resuming(self, saved: Any) -> "Recipe":
        """Return the recipe with the `saved` number of shards of a resumed run, unless `shards` is set."""
        if self.config.shards is not None or type(saved) is not int or not 1 <= saved <= self.samples:
            return self  # an invalid number is reported when all settings are compared
        return self if saved == self.shards else replace(self, config=replace(self.config, shards=saved))

    @property
    def effective_batch(self) -> EffectiveBatch | None:
        """Return the effective batch, or None if it is unknown."""
        engine = self.engine
        tasks = engine.max_workers * self.in_flight
        is_elastic = engine.min_workers < engine.max_workers
        return effective_batch(self.traits, self.job.batch_size, tasks, is_elastic=is_elastic)

    @property
    def in_flight(self) -> int:
        """Return the number of open tasks per worker. A peer has one."""
        return 1 if self.traits.mesh else self.engine.in_flight

    @cached_property
    def traits(self) -> Traits:
        """Return the traits of the strategy."""
        return self.strategy.traits(self.job.batch_size)

    @property
    def until(self) -> str:
        """Return the goal as text: from the run settings, or else from the job."""
        return self.config.until or self.job.until

    @cached_property
    def goal(self) -> Goal:
        """Return the goal of the run."""
        until, metrics = self.until, self.job.metrics
        if not until:
            message = (
                "until is missing: pass a goal, such as until='epochs>=10' (--until 'epochs>=10') or "
                "'accuracy>=0.98 or seconds>=60'"
            )
            raise UsageError(message, "missing_setting", name="until")
        return Goal.parse(until, metrics, self.job.eval_data is not None)

    @property
    def rule(self) -> Any:
        """Return the optimizer of the hub: from the strategy, or else from the job."""
        return self.traits.server_optimizer or self.job.optimizer

    def new_model(self, where: str) -> nn.Module:
        """Return the model with its initial weights. `where` names the calling process in errors."""
        seed_all(self.config.seed)
        with users_code(where):
            model = made(self.job)
        warn_of_extra_state(model)
        return model

    def resolved(self, model: nn.Module) -> "Recipe":
        """Return the recipe with the optimizer that the job's function makes for its model."""
        job = resolved(self.job, model)
        check_scheduler(job, self.traits, measured(job, self.engine), self.goal.epochs)
        return self if job is self.job else replace(self, job=job)

    def run_data(self, layout: Layout, model: nn.Module, logs: Path | None = None) -> RunData:
        """Return the data that an engine or a peer needs. The layout's constants are read from `model`."""
        how = self.config
        return RunData(
            job=self.job,
            layout=layout,
            constants=layout.constants(model),
            seed=how.seed,
            shards=self.cuts,
            samples=self.samples,
            keep_shards=how.keep_shards,
            codec=self.codec,
            logs=logs,
        )

    def rows(self, spans: Iterable[Span]) -> list[int]:
        """Return the sorted dataset indices of the samples at these positions."""
        return rows_of(self.order, self.config.seed, spans)

    @property
    def epoch_barrier(self) -> bool:
        """Whether epochs do not overlap, because of the setting or the strategy."""
        return self.config.epoch_barrier or self.traits.epoch_barrier

    @property
    def least_slots(self) -> int:
        """Return the smallest number of tasks of all workers at once with which work is assigned."""
        groups = self.strategy.groups if isinstance(self.strategy, Groups) else 1
        return 1 if self.config.combine is None else LEAST_UPDATES * groups

    @property
    def settings_anew(self) -> dict[str, int | None]:
        """Return the conductor's settings that a resumed run may change."""
        return {
            "in_flight": self.in_flight,
            "least_slots": self.least_slots,
            "epochs": self.goal.epochs,
            "epoch_barrier": self.epoch_barrier,
            "skip_bad": self.config.skip_bad,
        }

    @property
    def new_segment(self) -> NewSegment:
        """Return the settings of the conductor that may change in a new segment."""
        return NewSegment(to_plain(self.strategy), self.job.batch_size, self.job.is_scheduled)

    def conductor(self, ledger: SampleLedger | None = None, peers: Peers | None = None) -> Conductor:
        """Return the conductor of a new run or, given `ledger` and `peers`, of one peer."""
        return Conductor(
            deepcopy(self.strategy),  # strategies have state
            ledger or self._ledger(),
            self.job.batch_size,
            self.in_flight,
            self.config.seed,
            self.job.is_scheduled,
            peers=peers or Peers(),
            least_slots=self.least_slots,
        )

    def _ledger(self) -> SampleLedger:
        cuts = list(self.cuts) if isinstance(self.cuts, tuple) else []
        barrier, epochs, skip_bad = self.epoch_barrier, self.goal.epochs, self.config.skip_bad
        return SampleLedger(self.samples, epochs, self.shards, barrier, skip_bad, cuts=cuts)

    def identity(self, layout: Layout) -> dict[str, Any]:
        """Return the settings that must be equal when a run is resumed. `SEGMENT_SETTINGS` may change in a new
        segment."""
        job = self.job
        options = {name: getattr(job, name) for name in (*SEGMENT_OPTIONS, *RUN_OPTIONS)}
        options = {name: value for name, value in options.items() if not _is_default(name, value)}
        return {
            "format": FORMAT,
            "job": self.job.name,
            "parameters": {entry.name: list(entry.shape) for entry in layout.entries},
            "samples": self.samples,
            "batch_size": self.job.batch_size,
            "optimizer": repr(self.job.optimizer),
            **{name: _option(value) for name, value in options.items()},
            **({} if self.engine.computes else {"computes": False}),
            **({} if self.config.combine is None else {"combine": rule_name(self.config.combine)}),
            "strategy": _settings(self.strategy),
            "seed": self.config.seed,
            "shards": self.config.shards or self.shards,
        }

    def segment(self, layout: Layout) -> Segment:
        """Return the settings of the run that may change in a new segment, for run.json."""
        updates = "gradients" if self.traits.server_optimizer is None else "deltas"
        return settings_of(self.identity(layout)) | {
            HUB_OPTIMIZER: f"{type(self.rule).__name__} of {updates}"
        }


def _is_default(name: str, value: Any) -> bool:
    """Return whether a setting of a job has its default value."""
    declared = Job.__dataclass_fields__[name]
    default = declared.default if declared.default_factory is MISSING else declared.default_factory()
    return value is None if default is None else bool(value == default)


def _option(value: Any) -> Any:
    """Return a setting of a job for run.json. Functions and other objects are given by their name: their address
    differs between processes."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(type(value)):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _given(strategy: Any) -> dict[str, Any]:
    """Return the settings of a strategy, without fields marked as state."""
    return {f.name: getattr(strategy, f.name) for f in fields(strategy) if not f.metadata.get("state")}


def _settings(strategy: Any) -> str:
    """Return a strategy as text, without its state."""
    settings = [
        f"{name}={_settings(value) if is_dataclass(value) else repr(value)}"
        for name, value in _given(strategy).items()
        if value not in ({}, [])
    ]
    return f"{type(strategy).__name__}({', '.join(settings)})"


MAX_ROWS = 64
"""Largest number of rows that an error lists."""


@contextmanager
def rows_named(recipe: Recipe) -> Iterator[None]:
    """Raise JobError with the dataset indices of the samples if BadSamples is raised inside."""
    try:
        yield
    except BadSamples as bad:
        rows = recipe.rows(bad.spans)
        more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
        named = ", ".join(map(str, rows[:MAX_ROWS]))
        message = f"some samples {bad.why}\nThese samples are among train_data[{named}{more}]"
        raise JobError(message, bad.code, **bad.fields, rows=rows) from bad
