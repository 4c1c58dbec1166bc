"""What is to be trained, how and where, checked before anything starts."""

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from oddlot.core.conductor import Conductor
from oddlot.core.errors import InvalidValue, UsageError, short
from oddlot.core.ledger import Ledger
from oddlot.core.spans import Span, minibatch_cuts
from oddlot.core.strategy import Strategy, Traits
from oddlot.core.strategy_wrapper import layers
from oddlot.core.user_warnings import warn
from oddlot.engines.base import EngineConfig
from oddlot.history.metrics import GOAL_FIGURES
from oddlot.history.run_settings import FORMAT
from oddlot.run.config import RunConfig
from oddlot.run.effective_batch import UPDATE, EffectiveBatch, effective_batch
from oddlot.run.goals import Goal
from oddlot.run.shard_count import default_shards, warn_of_shards
from oddlot.train.data import Batches, Cuts, order
from oddlot.train.flat_buffer import Layout
from oddlot.train.job import Job, accuracy, choose_device
from oddlot.train.lr_schedules import Schedule, by_samples, factor_at
from oddlot.train.sharded_data import Shards
from oddlot.wire.codec import Codec, Plain

FEW = 10
"""samples: so few that the data may be something else than was meant"""


@dataclass(frozen=True)
class Recipe:
    """What is to be done, checked before anything starts."""

    job: Job
    strategy: Strategy
    engine: EngineConfig
    config: RunConfig

    def __post_init__(self) -> None:
        _check_job(self.job)
        _check_strategy(self.strategy)
        _check_engine(self.engine)
        _check_codec(self.codec)
        _check_about(self.config.about)
        choose_device(self.job.device)  # raises UsageError now, not later
        self._check_shards()
        self._check_sizes()
        if self.config.chaos is not None:
            self.config.chaos.check_engine(self.engine)
        self.strategy.validate(self.engine.workers, self._measured)
        self._warn_of_shards()
        self._warn_of_no_gradients()
        self._warn_of_unequal_loads()
        self._warn_of_one_minibatch()
        self._warn_of_no_local_steps()
        _check_evaluation(self.job)
        _ = self.goal  # raises UsageError now, not later

    @property
    def codec(self) -> Codec:
        """How updates travel."""
        if self.config.codec is not None:
            return self.config.codec
        from oddlot.wire.nonzero_blocks import NonZero

        return NonZero() if self.job.sparse else Plain()

    def _warn_of_shards(self) -> None:
        """A strategy whose tasks are whole shards needs enough of them, of enough minibatches."""
        if self.traits.whole_shards:
            minibatches = self.samples / self.shards / self.job.batch_size
            warn_of_shards(_name(layers(self.strategy)[-1]), self.shards, self.engine.workers, minibatches)

    def _warn_of_no_gradients(self) -> None:
        """A strategy that adapts to them never would."""
        if self.traits.reads_gradients and not self.engine.computes:
            name = _name(layers(self.strategy)[-1])
            told = (
                f"{name} adapts to gradients, and with computes=False there are none: it stays as it begins"
            )
            warn(told, "no_gradients_to_adapt_to", strategy=name)

    def _warn_of_unequal_loads(self) -> None:
        """A strategy that measures rounds of equal loads would get none to measure."""
        if self.traits.varies_loads and self.traits.measured_loads:
            name = _name(layers(self.strategy)[-1])
            warn(
                f"{name} measures rounds of equal loads, and the strategy around it changes them: use it alone",
                "unequal_loads",
                strategy=name,
            )

    def _warn_of_one_minibatch(self) -> None:
        """A task that ends with its first minibatch in any case cannot be ended by a deadline."""
        traits, batch = self.traits, self.job.batch_size
        if traits.task_samples is None or not traits.hands_over or traits.varies_loads:
            return
        if len(minibatch_cuts(traits.task_samples, batch)) == 2:
            warn(
                f"a deadline ends a task after a minibatch, and here they have no other one ({traits.task_samples} "
                f"samples, batch = {batch}): make strategy.{traits.task_setting} larger",
                "deadline_of_one_minibatch",
                samples=traits.task_samples,
                batch=batch,
                setting=traits.task_setting,
            )

    def _warn_of_no_local_steps(self) -> None:
        """The optimizer of local steps is not used by a strategy whose workers send gradients."""
        batch = self.effective_batch
        unused = [name for name in ("local_optimizer", "keep_optimizer") if getattr(self.job, name)]
        if unused and batch and batch.step == UPDATE:
            name = _name(layers(self.strategy)[-1])
            told = f"{' and '.join(unused)}: not used, since workers of {name} send gradients and take no local steps. "
            told += "Use a strategy such as LocalSGD; the hub steps with Job(optimizer=...)"
            warn(told, "no_local_steps", settings=unused, strategy=name)

    def _check_shards(self) -> None:
        """Where the data lie in parts, these are the shards; elsewhere none has a sample alone."""
        shards, samples, data = self.config.shards, self.samples, self.job.train_data
        if isinstance(data, Shards) and shards not in {None, 1, len(data.parts)}:
            told = f"shards = {shards}: the data lie in {len(data.parts)} parts"
            raise UsageError(told, "shards_beside_parts", "shards", shards=shards, parts=len(data.parts))
        if shards and self.job.batch_size > 1 and 1 < shards <= samples < 2 * shards:
            told = f"shards = {shards} of {samples} samples: a shard would have one alone"
            raise UsageError(told, "shard_of_one_sample", "shards", shards=shards, samples=samples)

    def _check_sizes(self) -> None:
        """An epoch has a sample for everybody and everything."""
        workers = self.engine.workers_setting
        own = {"batch_size": "job.batch_size", workers: workers, "shards": "shards"}
        sizes = {"batch_size": self.job.batch_size, workers: self.engine.workers, "shards": self.shards}
        traits = self.traits
        if traits.task_samples is not None and not traits.local_steps:  # which end with the epoch
            sizes[traits.task_setting] = traits.task_samples
        hint = "; a list is a data set of its items, and a tuple of arrays or tensors one of their rows"
        hint = hint if isinstance(self.job.train_data, list | tuple) and self.samples < FEW else ""
        for name, size in sizes.items():
            if size > self.samples:
                setting = own.get(name, f"strategy.{name}")
                there = f"there are {self.samples}; lower it{hint}"
                raise UsageError(
                    f"{setting} = {size} is more than the samples: {there}",
                    "too_few_samples",
                    name,
                    name=setting,
                    given=size,
                    samples=self.samples,
                )

    @cached_property
    def samples(self) -> int:
        """The samples of an epoch."""
        return len(Batches(self.job.train_data, self.job.collate))

    @cached_property
    def shards(self) -> int:
        """The number of shards: of data in parts, that of the parts."""
        if isinstance(self.job.train_data, Shards):
            return len(self.job.train_data.parts)
        slots = self.engine.workers * self.engine.in_flight
        default = default_shards(self.traits, self.samples, self.job.batch_size, slots)
        return self.config.shards or default

    @property
    def cuts(self) -> Cuts:
        """The shards: where the data lie in parts, these parts."""
        data = self.job.train_data
        return data.cuts if isinstance(data, Shards) else self.shards

    def resuming(self, saved: Any) -> "Recipe":
        """Return this with the `saved` number of shards of the run that it resumes, unless another one is set."""
        if self.config.shards is not None or type(saved) is not int or not 1 <= saved <= self.samples:
            return self  # what does not fit is found when all settings are compared
        return self if saved == self.shards else replace(self, config=replace(self.config, shards=saved))

    @property
    def effective_batch(self) -> EffectiveBatch | None:
        """The samples of one step, where that is known."""
        return effective_batch(self.traits, self.job.batch_size, self.engine.workers)

    @cached_property
    def traits(self) -> Traits:
        """What the strategy says of itself."""
        return self.strategy.traits(self.job.batch_size)

    @cached_property
    def goal(self) -> Goal:
        """When the run ends."""
        until, metrics = self.config.until or self.job.until, self.job.metrics
        if not until:
            told = 'until says when the run ends: "epochs>=10", "accuracy>=0.98 or seconds>=60", ...'
            raise UsageError(told, "missing_setting", name="until")
        goal = Goal.parse(until, metrics, self.job.eval_data is not None)
        for figure, compare, value in goal.terms:
            beyond = {">": value >= 1, ">=": value > 1, "<": value <= 0, "<=": value < 0}[compare]
            if metrics.get(figure) is accuracy and beyond:
                told = f"until = {until!r} never comes: {figure} is a share, from 0 to 1"
                raise UsageError(told, "goal_beyond_share", "until", given=until, figure=figure)
        self._check_reachable(until, goal)
        return goal

    def _check_reachable(self, until: str, goal: Goal) -> None:
        """Some alternative may come true one day."""
        if all(term.figure == "dollars" for term in goal.terms) and not self.engine.dollars_per_hour:
            told = f"until = {until!r} never comes: no machine has a price (dollars_per_hour)"
            raise UsageError(told, "goal_without_price", "until", given=until)
        measured = {"loss", *self.job.metrics}
        if all(term.figure in measured for term in goal.terms) and not self.engine.computes:
            raise UsageError(
                f"until = {until!r} never comes: with computes=False (--no-compute) nothing is trained or measured",
                "goal_without_compute",
                "until",
                given=until,
            )

    @property
    def _measured(self) -> list[str]:
        """What is evaluated."""
        none = self.job.eval_data is None or not self.engine.computes
        return [] if none else ["loss", *self.job.metrics]

    @property
    def rule(self) -> Any:
        """What steps at the hub: the strategy's server rule, or the job's optimizer."""
        return self.traits.server_optimizer or self.job.optimizer

    @property
    def schedule(self) -> Callable[[int], float] | None:
        """The factor on its learning rate, by samples merged."""
        return by_samples(self.job.lr_schedule, self.samples)

    def rows(self, spans: Iterable[Span]) -> list[int]:
        """The samples by their index in the data, which the books do not know."""
        how, size = self.config, self.samples
        parts = [order(how.seed, epoch, size, self.cuts)[start:stop] for epoch, start, stop in spans]
        return sorted(int(row) for part in parts for row in part)

    @property
    def epoch_barrier(self) -> bool:
        """Whether an epoch waits for the one before: the setting, or what the strategy needs."""
        return self.config.epoch_barrier or self.traits.epoch_barrier

    @property
    def settings_anew(self) -> dict[str, int | None]:
        """What of the books' settings a resumed run may change."""
        return {
            "in_flight": self.engine.in_flight,
            "epochs": self.goal.epochs,
            "epoch_barrier": self.epoch_barrier,
            "skip_bad": self.config.skip_bad,
        }

    def conductor(self) -> Conductor:
        """The books of a run that begins."""
        how = self.config
        cuts = list(self.cuts) if isinstance(self.cuts, tuple) else []
        barrier, epochs = self.epoch_barrier, self.goal.epochs
        ledger = Ledger(self.samples, epochs, self.shards, barrier, how.skip_bad, cuts=cuts)
        strategy = deepcopy(self.strategy)  # it gathers state
        scheduled = self.job.lr_schedule is not None
        return Conductor(strategy, ledger, self.job.batch_size, self.engine.in_flight, how.seed, scheduled)

    def identity(self, layout: Layout) -> dict[str, Any]:
        """What a run and its continuation must have in common."""
        job = self.job
        given = {"lr_schedule": _schedule(job.lr_schedule), "max_grad_norm": job.max_grad_norm}
        given |= {"keep_optimizer": job.keep_optimizer or None}
        given |= {"computes": None if self.engine.computes else False}
        return {
            "format": FORMAT,
            "job": self.job.name,
            "parameters": {entry.name: list(entry.shape) for entry in layout.entries},
            "samples": self.samples,
            "batch_size": self.job.batch_size,
            "optimizer": repr(self.job.optimizer),
            **{name: value for name, value in given.items() if value is not None},
            "strategy": _settings(self.strategy),
            "seed": self.config.seed,
            "shards": self.config.shards or self.shards,
        }


def _schedule(schedule: Schedule | None) -> str | None:
    """A schedule as text; of a function that is its name, since no two processes have it at one address."""
    if schedule is None:
        return None
    if is_dataclass(type(schedule)):
        return repr(schedule)
    return str(getattr(schedule, "__qualname__", type(schedule).__qualname__))


def _name(strategy: object) -> str:
    return type(strategy).__name__


def _given(strategy: Any) -> dict[str, Any]:
    """What it was made with, and dicts and lists of its state."""
    return {f.name: getattr(strategy, f.name) for f in fields(strategy) if not f.metadata.get("state")}


def _settings(strategy: Any) -> str:
    """A strategy that has not begun, as text without its state."""
    told = [
        f"{name}={_settings(value) if is_dataclass(value) else repr(value)}"
        for name, value in _given(strategy).items()
        if value not in ({}, [])
    ]
    return f"{_name(strategy)}({', '.join(told)})"


def _check_job(job: object) -> None:
    if not isinstance(job, Job):
        raise InvalidValue("job", job, "an oddlot.Job, which is made of a model, data and a loss")
    if job.lr_schedule is not None:
        factor_at(job.lr_schedule, 0.0)  # raises JobError now, not later


def _check_strategy(strategy: object) -> None:
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        name = strategy.__name__
        told = f"strategy = {name} is a class: pass one of it, {name}(...)"
        raise UsageError(told, "class_given", "strategy", given=name)
    if not isinstance(strategy, Strategy):
        must = "a strategy, such as oddlot.Synchronous(), or one of your own: a subclass of oddlot.Strategy"
        raise InvalidValue("strategy", strategy, must)
    if not is_dataclass(strategy):
        raise UsageError(
            f"strategy = {short(strategy)} is no dataclass: put @dataclass before its class, so that it can be copied, "
            "compared and saved",
            "no_dataclass",
            "strategy",
            given=_name(strategy),
        )


def _check_evaluation(job: Job) -> None:
    if job.eval_data is None and job.metrics:
        told = f"the metrics {', '.join(job.metrics)} need Job(eval_data=...)"
        raise UsageError(told, "no_evaluation_set", "eval_data", metrics=[*job.metrics])
    if job.eval_data is not None:
        Batches(job.eval_data, job.collate, "the evaluation set")
    taken = job.metrics.keys() & {"loss", *GOAL_FIGURES}
    if taken:
        told = f"metrics: {', '.join(sorted(taken))} is a figure of every run: take another name"
        raise UsageError(told, "name_taken", "metrics", names=sorted(taken))


def _check_codec(codec: object) -> None:
    if isinstance(codec, type) or not hasattr(codec, "encode") or not hasattr(codec, "decode"):
        raise InvalidValue("codec", codec, 'oddlot.Plain(), oddlot.Half("bf16") or oddlot.NonZero()')


def _check_about(about: object) -> None:
    if not isinstance(about, Mapping):
        raise InvalidValue("about", about, "a dict")
    try:
        json.dumps(about)
    except (TypeError, ValueError) as error:
        told = f"about = {short(about)} must be plain data that JSON has: {error}"
        raise UsageError(told, "no_plain_data", "about", reason=str(error)) from None


def _check_engine(engine: object) -> None:
    if isinstance(engine, type) or not isinstance(engine, EngineConfig):
        raise InvalidValue("engine", engine, "oddlot.Local(workers=2) or oddlot.Simulated(machines)")
