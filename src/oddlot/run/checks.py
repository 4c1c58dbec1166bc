"""Checks before a run starts, the default number of shards, and the effective batch size."""

import json
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from math import ceil
from typing import NamedTuple

from oddlot.core.sample_spans import minibatch_cuts
from oddlot.core.strategy import Strategy, Traits
from oddlot.core.strategy_wrapper import layers
from oddlot.core.sum_tree import CHUNK, chunks_of
from oddlot.core.support.errors import InvalidValue, UsageError, short
from oddlot.core.support.text import counted
from oddlot.core.support.user_warnings import warn
from oddlot.data.shards import Shards
from oddlot.engines.base import EngineConfig
from oddlot.history.goals import Goal
from oddlot.history.metrics import GOAL_FIGURES
from oddlot.train.job import Job, accuracy
from oddlot.train.learning_rates import SchedulerRates
from oddlot.train.lr_schedules import factor_at
from oddlot.wire.codec import Codec

MINIBATCHES, LEAST = 10, 5
"""Minibatches per shard: the minimum of the default, and the number below which a warning is shown."""


def default_shards(traits: Traits, samples: int, batch: int, slots: int) -> int:
    """Return the default number of shards.

    For strategies that assign complete shards: one for each task that can run at the same time, or fewer if shards
    would have under 10 minibatches. More shards would shorten the local passes without keeping more workers busy.
    Other strategies have one shard.
    """
    if not traits.shard_tasks:
        return 1
    return max(1, min(max(slots, traits.clients), samples // (MINIBATCHES * batch)))


def warn_of_shards(strategy: str, shards: int, workers: int, minibatches: float) -> None:
    """Warn if there are fewer shards than workers, or if a shard has under 5 minibatches."""
    if shards < workers:
        warn(
            f"{strategy} assigns whole shards, but shards = {shards} is fewer than the {workers} workers: some wait or "
            "train on the same shard. Use fewer workers, a smaller job.batch_size or shards=N (--shards N)",
            "few_shards",
            strategy=strategy,
            shards=shards,
            workers=workers,
        )
    if minibatches < LEAST:
        warn(
            f"a shard has {minibatches:.3g} minibatches: below {LEAST}, {strategy} learns little per epoch. "
            "Use fewer shards or a smaller job.batch_size",
            "small_shards",
            strategy=strategy,
            shards=shards,
            minibatches=minibatches,
        )


UPDATE, LOCAL_STEP = "model update", "local step"


class EffectiveBatch(NamedTuple):
    """The number of samples per step, either of the model at the hub or of a worker's local weights."""

    samples: int
    step: str
    """`UPDATE` or `LOCAL_STEP`."""
    of: str
    """Explanation, such as `2 tasks x batch 32`."""
    is_most: bool = False
    """Whether steps have fewer samples while fewer workers are running."""

    def __str__(self) -> str:
        most = "up to " if self.is_most else ""
        return f"{most}{counted(self.samples, 'sample')} per {self.step} ({self.of})"


def effective_batch(
    traits: Traits, batch: int, tasks: int, *, is_elastic: bool = False
) -> EffectiveBatch | None:
    """Return the effective batch of a run with at most `tasks` open tasks. None if the strategy does not declare it.

    `is_elastic`: whether the run may start with fewer workers. A round that waits for all workers includes all of
    their tasks: with `in_flight=2`, two per worker.
    """
    if traits.local_steps:
        return EffectiveBatch(batch, LOCAL_STEP, f"batch {batch}")
    if traits.step_samples is not None and traits.exact:
        return EffectiveBatch(traits.step_samples, UPDATE, "of all workers together")
    if traits.step_samples is not None:
        return EffectiveBatch(traits.step_samples, UPDATE, "or more, if larger rounds are faster")
    if traits.task_samples is None:
        return None
    updates = ceil(traits.quorum * (tasks if traits.updates is None else traits.updates))
    task = traits.task_samples
    is_most = is_elastic and traits.updates is None and updates > 1
    each = f"batch {task}" if task == batch else f"{task} ({traits.task_setting})"
    return EffectiveBatch(
        updates * task, UPDATE, f"{updates} tasks x {each}" if updates > 1 else each, is_most
    )


FEW_SAMPLES = 10
"""Number of samples below which the error suggests that a list was passed instead of a tuple."""


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
    job.check()
    if job.lr_schedule is not None:
        factor_at(job.lr_schedule, 0.0)  # raises JobError before anything starts


ONLY_WITH_HUB = ("ema_decay", "lr_scheduler", "unfreeze_at")
"""Settings of a job that need a hub."""


def check_mesh(job: Job, traits: Traits, strategy: Strategy) -> None:
    """Raise UsageError if a run on a mesh has a setting that needs a hub."""
    name = next((name for name in ONLY_WITH_HUB if getattr(job, name)), None)
    if traits.mesh and name is not None:
        mesh = type(strategy).__name__
        message = (
            f"{name} needs a hub, but {mesh} runs on a mesh of peers: leave it out, or use another strategy"
        )
        raise UsageError(message, "setting_without_hub", name, name=name, strategy=mesh)


LOSSLESS = ("Plain", "NonZero")
"""Names of the classes of codecs that do not round."""


def check_exact(
    job: Job,
    traits: Traits,
    shards: int,
    codec: Codec,
    engine: EngineConfig,
    device: str,
    *,
    skip_bad: bool,
) -> None:
    """Raise UsageError if exact rounds have a setting with which the model depends on the workers."""
    threads = getattr(engine, "threads", None)
    unfit = {
        "shards": (shards > 1, f"data in {shards} shards"),
        "sparse": (bool(job.sparse), "sampled layers, whose tables belong to a worker"),
        "codec": (
            type(codec).__name__ not in LOSSLESS,
            f"the codec {type(codec).__name__}, which rounds sums",
        ),
        "threads": (threads not in (None, 1), f"{threads} threads for each worker"),
        "skip_bad": (skip_bad, "skipped samples"),
        "precision": (job.precision == "fp16", "fp16, whose loss scale belongs to a worker"),
        "device": (device != "cpu", f"the device {device}, because sums on GPUs may differ"),
    }
    for name, (is_so, why) in unfit.items():
        if traits.exact and is_so:
            raise _not_exact(name, why)


def _not_exact(name: str, why: str) -> UsageError:
    message = f"exact=True does not work with {why}: leave out {name}, or use exact=False"
    return UsageError(message, "setting_not_exact", name, name=name)


MANY_TIMES = 4
"""Planned steps of a scheduler per epoch of the run from which on it is probably meant for one step per version."""


def check_scheduler(job: Job, traits: Traits, measured: Collection[str], epochs: int | None) -> None:
    """Raise UsageError if the scheduler of PyTorch does not fit the strategy, the engine or the metrics.

    Warn if it steps once per epoch and has far more steps than the run has epochs.
    """
    if job.lr_scheduler is None:
        return
    rates = SchedulerRates(job, 1)
    if job.local_optimizer is not None and traits.local_steps:
        message = "lr_scheduler sets the rates of `optimizer`: use lr_schedule with local_optimizer"
        raise UsageError(message, "scheduler_of_local_optimizer", "lr_scheduler")
    planned = rates.planned_steps
    if job.lr_scheduler_every == "epoch" and epochs and planned and planned >= MANY_TIMES * epochs:
        warn(
            f"lr_scheduler is made for {planned:,} steps, but takes one per epoch, {epochs:,} in all. For a step with "
            'each version, set lr_scheduler_every="version"',
            "scheduler_steps_per_epoch",
            planned=planned,
            epochs=epochs,
        )
    if rates.follows_metric and traits.local_steps:
        message = (
            "ReduceLROnPlateau works only with a hub that steps along gradients: use another scheduler, or a strategy "
            "such as Synchronous"
        )
        raise UsageError(message, "scheduler_of_local_steps", "lr_scheduler")
    if rates.follows_metric and traits.exact:
        raise _not_exact(
            "lr_scheduler", "ReduceLROnPlateau, because evaluations end earlier or later in other runs"
        )
    if rates.follows_metric and rates.metric not in measured:
        raise UsageError(
            f"ReduceLROnPlateau needs the metric {rates.metric!r}, but the run evaluates "
            f"{', '.join(measured) or 'nothing'}: set eval_data, metrics and lr_scheduler_metric",
            "scheduler_without_metric",
            "lr_scheduler",
            metric=rates.metric,
            measured=list(measured),
        )


def _check_strategy(strategy: object) -> None:
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        name = strategy.__name__
        message = f"strategy = {name} is a class: pass an instance, {name}(...)"
        raise UsageError(message, "class_given", "strategy", given=name)
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
        message = f"about = {short(about)} must be JSON-serializable: {error}"
        raise UsageError(message, "no_plain_data", "about", reason=str(error)) from None


def check_shards(shards: int | None, samples: int, job: Job) -> None:
    """Raise UsageError if `shards` differs from the number of parts, or a shard would have a single sample."""
    data = job.train_data
    if isinstance(data, Shards) and shards not in {None, 1, len(data.parts)}:
        message = f"shards = {shards}, but the data have {len(data.parts)} parts: leave shards out"
        raise UsageError(message, "shards_beside_parts", "shards", shards=shards, parts=len(data.parts))
    if shards and job.batch_size > 1 and 1 < shards <= samples < 2 * shards:
        message = f"shards = {shards} is too large for {samples} samples: a shard would have a single sample"
        raise UsageError(message, "shard_of_one_sample", "shards", shards=shards, samples=samples)


def check_sizes(job: Job, engine: EngineConfig, traits: Traits, samples: int, shards: int) -> None:
    """Raise UsageError if an epoch has fewer samples than a minibatch, workers, shards or a task."""
    workers = engine.workers_setting
    own = {"batch_size": "job.batch_size", workers: workers, "shards": "shards"}
    sizes = {"batch_size": job.batch_size, workers: engine.max_workers, "shards": shards}
    if traits.task_samples is not None and not traits.local_steps:  # local steps may end with the epoch
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
        message = f"the metrics {', '.join(job.metrics)} need evaluation data: pass Job(eval_data=...)"
        raise UsageError(message, "no_evaluation_set", "eval_data", metrics=[*job.metrics])
    if job.eval_data is not None:
        job.eval_batches()
        if not (job.evaluates_loss or job.metrics):
            message = (
                "an evaluation of a job with direction needs metrics or loss: set one, or leave out eval_data"
            )
            raise UsageError(message, "nothing_to_evaluate", "eval_data")
    taken = job.metrics.keys() & {"loss", *GOAL_FIGURES}
    if taken:
        message = f"metrics: the name {', '.join(sorted(taken))} is reserved: use another name"
        raise UsageError(message, "name_taken", "metrics", names=sorted(taken))


def check_goal(goal: Goal, until: str, job: Job, engine: EngineConfig) -> None:
    """Raise UsageError if the goal, `until` as text, can never be reached."""
    for figure, compare, value in goal.terms:
        if figure == "loss" and not job.evaluates_loss:
            message = f"until = {until!r}: the job has a direction and no loss to evaluate. Set Job(loss=...)"
            raise UsageError(message, "goal_without_loss", "until", given=until, figure=figure)
        beyond = {">": value >= 1, ">=": value > 1, "<": value <= 0, "<=": value < 0}[compare]
        if job.metrics.get(figure) is accuracy and beyond:
            message = f"until = {until!r}: this goal cannot be reached, because {figure} is from 0 to 1"
            raise UsageError(message, "goal_beyond_share", "until", given=until, figure=figure)
    if all(term.figure == "dollars" for term in goal.terms) and not engine.dollars_per_hour:
        message = (
            f"until = {until!r}: this goal cannot be reached, because no machine has a price. Set "
            "dollars_per_hour"
        )
        raise UsageError(message, "goal_without_price", "until", given=until)
    if all(term.figure in {"loss", *job.metrics} for term in goal.terms) and not engine.computes:
        raise UsageError(
            f"until = {until!r}: this goal cannot be reached, because computes=False (--no-compute) trains no model",
            "goal_without_compute",
            "until",
            given=until,
        )


def measured(job: Job, engine: EngineConfig) -> list[str]:
    """Return the names of the metrics that are evaluated, including the loss if the job has one."""
    if job.eval_data is None or not engine.computes:
        return []
    return ["loss", *job.metrics] if job.evaluates_loss else [*job.metrics]


def warn_of_strategy(strategy: Strategy, job: Job, engine: EngineConfig, samples: int, shards: int) -> None:
    """Warn of settings that make a strategy or another setting ineffective."""
    traits, name = strategy.traits(job.batch_size), type(layers(strategy)[-1]).__name__
    if traits.shard_tasks:
        warn_of_shards(name, shards, engine.max_workers, samples / shards / job.batch_size)
    if traits.reads_gradients and not engine.computes:
        message = (
            f"{name} adapts to gradients, but computes=False computes none: its settings will not change"
        )
        warn(message, "no_gradients_to_adapt_to", strategy=name)
    if traits.varies_loads and traits.measured_loads:
        message = (
            f"{name} measures rounds of equal loads, but the strategy around it changes the loads: use {name} "
            "alone"
        )
        warn(message, "unequal_loads", strategy=name)
    if traits.exact and (chunks := chunks_of(traits.task_samples or 0)) < engine.max_workers:
        warn(
            f"an exact round of {traits.task_samples:,} samples has {counted(chunks, 'chunk')} of {CHUNK}, so some "
            f"of the {engine.max_workers} workers are idle. Increase strategy.{traits.task_setting} or job.batch_size",
            "few_chunks",
            chunks=chunks,
            workers=engine.max_workers,
        )
    _warn_of_one_minibatch(traits, job.batch_size)
    _warn_of_no_local_steps(traits, name, job, engine.max_workers)


def _warn_of_one_minibatch(traits: Traits, batch: int) -> None:
    """Warn if a deadline has no effect, because tasks have a single minibatch."""
    if traits.task_samples is None or not traits.hands_over or traits.varies_loads:
        return
    size = CHUNK if traits.exact else batch
    if len(minibatch_cuts(traits.task_samples, size)) == 2:
        warn(
            f"the deadline has no effect: it ends a task after a minibatch, and tasks have only one "
            f"({traits.task_samples} samples, batch size {size}). Increase strategy.{traits.task_setting}",
            "deadline_of_one_minibatch",
            samples=traits.task_samples,
            batch=size,
            setting=traits.task_setting,
        )


def _warn_of_no_local_steps(traits: Traits, name: str, job: Job, workers: int) -> None:
    """Warn of a local optimizer that is not used, because workers send gradients."""
    batch = effective_batch(traits, job.batch_size, workers)
    unused = [name for name in ("local_optimizer", "keep_optimizer") if getattr(job, name)]
    if unused and batch and batch.step == UPDATE:
        message = f"{' and '.join(unused)} have no effect: workers of {name} send gradients and take no local steps. "
        message += "Use a strategy with local steps, such as LocalSGD, or set Job(optimizer=...) for the hub"
        warn(message, "no_local_steps", settings=unused, strategy=name)
