"""Checks before a run starts."""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass

from oddlot.core.errors import InvalidValue, UsageError, short
from oddlot.core.spans import minibatch_cuts
from oddlot.core.strategy import Strategy, Traits
from oddlot.core.strategy_wrapper import layers
from oddlot.core.user_warnings import warn
from oddlot.engines.base import EngineConfig
from oddlot.history.metrics import GOAL_FIGURES
from oddlot.run.effective_batch import UPDATE, effective_batch
from oddlot.run.goals import Goal
from oddlot.run.shard_count import warn_of_shards
from oddlot.train.data import Batches
from oddlot.train.job import Job, accuracy
from oddlot.train.lr_schedules import factor_at
from oddlot.train.sharded_data import Shards
from oddlot.wire.codec import Codec

FEW_SAMPLES = 10
"""Number of samples below which the data may be misinterpreted."""


def check_types(job: object, strategy: object, engine: object, codec: object, about: object) -> None:
    """Raise UsageError if an argument of a run has the wrong type."""
    _check_job(job)
    _check_strategy(strategy)
    if isinstance(engine, type) or not isinstance(engine, EngineConfig):
        must = "oddlot.Local(workers=2), oddlot.Ray(workers=8) or oddlot.Simulated(machines)"
        raise InvalidValue("engine", engine, must)
    if codec is not None and not isinstance(codec, Codec):
        raise InvalidValue("codec", codec, 'a codec, such as "bf16" or oddlot.codecs.Half("bf16")')
    _check_about(about)


def _check_job(job: object) -> None:
    if not isinstance(job, Job):
        raise InvalidValue("job", job, "an oddlot.Job(model, data, loss)")
    if job.lr_schedule is not None:
        factor_at(job.lr_schedule, 0.0)  # raises JobError now, not later


def _check_strategy(strategy: object) -> None:
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        name = strategy.__name__
        told = f"strategy = {name} is a class: pass an instance, {name}(...)"
        raise UsageError(told, "class_given", "strategy", given=name)
    if not isinstance(strategy, Strategy):
        must = (
            "a strategy, such as oddlot.Synchronous(), or an instance of your own subclass of oddlot.Strategy"
        )
        raise InvalidValue("strategy", strategy, must)
    if not is_dataclass(strategy):
        raise UsageError(
            f"strategy = {short(strategy)} is not a dataclass: add @dataclass to its class. Strategies are copied, "
            "compared and saved",
            "no_dataclass",
            "strategy",
            given=type(strategy).__name__,
        )


def _check_about(about: object) -> None:
    if not isinstance(about, Mapping):
        raise InvalidValue("about", about, "a dict")
    try:
        json.dumps(about)
    except (TypeError, ValueError) as error:
        told = f"about = {short(about)} must be JSON-serializable: {error}"
        raise UsageError(told, "no_plain_data", "about", reason=str(error)) from None


def check_shards(shards: int | None, samples: int, job: Job) -> None:
    """Raise UsageError if the data have another number of parts, or a shard would have a single sample."""
    data = job.train_data
    if isinstance(data, Shards) and shards not in {None, 1, len(data.parts)}:
        told = f"shards = {shards}, but the data have {len(data.parts)} parts: leave shards out"
        raise UsageError(told, "shards_beside_parts", "shards", shards=shards, parts=len(data.parts))
    if shards and job.batch_size > 1 and 1 < shards <= samples < 2 * shards:
        told = f"shards = {shards} is too large for {samples} samples: a shard would have a single sample"
        raise UsageError(told, "shard_of_one_sample", "shards", shards=shards, samples=samples)


def check_sizes(job: Job, engine: EngineConfig, traits: Traits, samples: int, shards: int) -> None:
    """Raise UsageError if an epoch has fewer samples than a minibatch, workers, shards or a task."""
    workers = engine.workers_setting
    own = {"batch_size": "job.batch_size", workers: workers, "shards": "shards"}
    sizes = {"batch_size": job.batch_size, workers: engine.max_workers, "shards": shards}
    if traits.task_samples is not None and not traits.local_steps:  # which end with the epoch
        sizes[traits.task_setting] = traits.task_samples
    hint = ". A list is a dataset of its items; pass a tuple of arrays or tensors for a dataset of their rows"
    hint = hint if isinstance(job.train_data, list | tuple) and samples < FEW_SAMPLES else ""
    for name, size in sizes.items():
        if size > samples:
            setting = own.get(name, f"strategy.{name}")
            raise UsageError(
                f"{setting} = {size} is larger than the dataset, which has {samples} samples: lower it{hint}",
                "too_few_samples",
                name,
                name=setting,
                given=size,
                samples=samples,
            )


def check_evaluation(job: Job) -> None:
    """Raise UsageError if metrics have no data, or a metric has a reserved name."""
    if job.eval_data is None and job.metrics:
        told = f"the metrics {', '.join(job.metrics)} need evaluation data: pass Job(eval_data=...)"
        raise UsageError(told, "no_evaluation_set", "eval_data", metrics=[*job.metrics])
    if job.eval_data is not None:
        Batches(job.eval_data, job.collate, "the evaluation set")
    taken = job.metrics.keys() & {"loss", *GOAL_FIGURES}
    if taken:
        told = f"metrics: the name {', '.join(sorted(taken))} is reserved: use another name"
        raise UsageError(told, "name_taken", "metrics", names=sorted(taken))


def check_goal(goal: Goal, until: str, job: Job, engine: EngineConfig) -> None:
    """Raise UsageError if the goal, `until` as text, can never be reached."""
    for figure, compare, value in goal.terms:
        beyond = {">": value >= 1, ">=": value > 1, "<": value <= 0, "<=": value < 0}[compare]
        if job.metrics.get(figure) is accuracy and beyond:
            told = f"until = {until!r}: this goal cannot be reached, because {figure} is from 0 to 1"
            raise UsageError(told, "goal_beyond_share", "until", given=until, figure=figure)
    if all(term.figure == "dollars" for term in goal.terms) and not engine.dollars_per_hour:
        told = f"until = {until!r}: this goal cannot be reached, because no machine has a price. Set dollars_per_hour"
        raise UsageError(told, "goal_without_price", "until", given=until)
    if all(term.figure in {"loss", *job.metrics} for term in goal.terms) and not engine.computes:
        raise UsageError(
            f"until = {until!r}: this goal cannot be reached, because computes=False (--no-compute) trains no model",
            "goal_without_compute",
            "until",
            given=until,
        )


def measured(job: Job, engine: EngineConfig) -> list[str]:
    """Return the names of the metrics that are evaluated, `loss` included."""
    return ["loss", *job.metrics] if job.eval_data is not None and engine.computes else []


def warn_of_strategy(strategy: Strategy, job: Job, engine: EngineConfig, samples: int, shards: int) -> None:
    """Warn of settings that make a strategy ineffective."""
    traits, name = strategy.traits(job.batch_size), type(layers(strategy)[-1]).__name__
    if traits.whole_shards:
        warn_of_shards(name, shards, engine.max_workers, samples / shards / job.batch_size)
    if traits.reads_gradients and not engine.computes:
        told = f"{name} adapts to gradients, but computes=False computes none: its settings will not change"
        warn(told, "no_gradients_to_adapt_to", strategy=name)
    if traits.varies_loads and traits.measured_loads:
        told = f"{name} measures rounds of equal loads, but the strategy around it changes the loads: use {name} alone"
        warn(told, "unequal_loads", strategy=name)
    _warn_of_one_minibatch(traits, job.batch_size)
    _warn_of_no_local_steps(traits, name, job, engine.max_workers)


def _warn_of_one_minibatch(traits: Traits, batch: int) -> None:
    """Warn of a deadline on tasks of a single minibatch."""
    if traits.task_samples is None or not traits.hands_over or traits.varies_loads:
        return
    if len(minibatch_cuts(traits.task_samples, batch)) == 2:
        warn(
            f"the deadline has no effect: it ends a task after a minibatch, and tasks have only one "
            f"({traits.task_samples} samples, batch size {batch}). Increase strategy.{traits.task_setting}",
            "deadline_of_one_minibatch",
            samples=traits.task_samples,
            batch=batch,
            setting=traits.task_setting,
        )


def _warn_of_no_local_steps(traits: Traits, name: str, job: Job, workers: int) -> None:
    """Warn of a local optimizer that is not used, because workers send gradients."""
    batch = effective_batch(traits, job.batch_size, workers)
    unused = [name for name in ("local_optimizer", "keep_optimizer") if getattr(job, name)]
    if unused and batch and batch.step == UPDATE:
        told = f"{' and '.join(unused)} have no effect: workers of {name} send gradients and take no local steps. "
        told += "Use a strategy with local steps, such as LocalSGD, or set Job(optimizer=...) for the hub"
        warn(told, "no_local_steps", settings=unused, strategy=name)
