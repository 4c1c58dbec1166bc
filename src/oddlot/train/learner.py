"""The computation of tasks: gradients and local steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from oddlot.core.sum_tree import CHUNK, minibatch_size
from oddlot.core.support.errors import JobError, OddlotError
from oddlot.core.tasks import GRADIENT_KINDS, Kind, Task
from oddlot.data.batches import Batches, Cuts, Indices, move
from oddlot.data.load_ahead import Loader
from oddlot.data.sample_order import Minibatch, minibatches
from oddlot.data.seeded_fetch import SeededFetch
from oddlot.data.seeding import number_of, seed_all, seed_of
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.gradient_clipping import clip
from oddlot.train.bound_buffers import BoundBuffers
from oddlot.train.chunk_sums import ChunkMemory, ChunkSums
from oddlot.train.job import without_compiler
from oddlot.train.learner_inputs import LearnerInputs
from oddlot.train.learning_rates import rates_of, rules_of
from oddlot.train.local_optimizer import LocalOptimizer, LocalRates, local_optimizer, made, set_mode
from oddlot.train.outside_state import (
    NumberAttributes,
    check_parameters,
    copy_constants,
    tensors_outside,
    unsaved_shapes,
)
from oddlot.train.sample_failures import minibatch_failed
from oddlot.train.stepper import Losses, Stepper
from oddlot.train.unfreezing import Unfreezing
from oddlot.train.weight_hashes import WeightHashes


@dataclass(frozen=True, slots=True)
class Work:
    """The result of a task, or of its finished part."""

    samples: int
    """Number of computed samples, the first of the task."""
    loss: float | None
    """Mean loss, weighted with the weights of the minibatches. None if it is not finite, or if all weights are 0."""
    weight: int
    """Sum of the weights of the minibatches. A weight is the number of samples unless the job's loss returns it."""
    losses: Mapping[str, float]
    """Further losses of the job, by name."""
    load_seconds: float
    """Time of loading data, in seconds."""
    bytes_data: int = 0
    """Bytes of data that were opened for the task, with `Shards`."""


@dataclass(slots=True)
class Own:
    """State that a worker keeps between tasks, if the strategy or the job needs it. It is lost with the worker."""

    weights: FlatBuffer | None = None
    """Weights at the end of its last task."""
    optimizer: torch.optim.Optimizer | LocalOptimizer | None = None
    """Optimizer of its local steps."""


class Learner:
    """Computes tasks on one model. The update is a pure function of (weights, task, seed), on any worker.

    `clock` returns the time in seconds, for measurements.
    """

    def __init__(
        self,
        inputs: LearnerInputs,
        device: torch.device | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        job, layout, seed = inputs.job, inputs.layout, inputs.seed
        self.job, self.seed, self.clock = job, seed, clock
        self.device = device or torch.device("cpu")
        self.batches, self.keep_shards = job.train_batches(), inputs.keep_shards
        self.rows = len(self.batches)
        self.shards, self.order = inputs.shards, job.sample_order(inputs.shards)
        self.samples = self.order.size if inputs.samples is None else inputs.samples
        self.batches.check_length(self.samples, self.order.size)
        self.rates = rates_of(job, self.samples)
        seed_all(seed, self.device)  # the factory draws the same random numbers as at the hub
        self.forward = job.model().to(self.device)
        self.model = without_compiler(self.forward)
        self.unfreezing = Unfreezing(job.unfreeze_at, self.model)
        copy_constants(self.model, inputs.constants)
        self.weights = FlatBuffer.empty(layout, self.device)
        layout.bind(self.model, self.weights)
        self.names = [name for name, _ in layout.trainable(self.model)]
        self.parameters: list[Tensor] = [parameter for _, parameter in layout.trainable(self.model)]
        self.trains = self.trainable = frozenset(self.names)
        """Names of the parameters of the layout, and of those that are trained in this task."""
        self.places = [parameter.data_ptr() for parameter in self.parameters]
        self.stepper = Stepper(job, self.forward, self.parameters, self.device)
        self.part: tuple[Indices, Any] = np.empty(0, dtype=np.int64), None
        """Rows that are being computed, and their batch once it is loaded."""
        self.loading = 0.0
        """Seconds of loading data, in this task."""
        self.had_gradient = [False] * len(self.parameters)
        """Whether each parameter had a gradient in at least one step of this task."""
        self.unchanged = WeightHashes(
            self.model,
            dict(zip(self.names, self.parameters, strict=True)),
            partial(tensors_outside, self.model, job, layout, unsaved_shapes(self.model, job)),
        )
        self.attributes = NumberAttributes(job, self.model)
        self.loader_of: Callable[[SeededFetch], Loader] = lambda fetch: fetch
        self.loader: Loader = SeededFetch(self.batches, seed)
        self.evaluation: tuple[Batches, Loader] | None = None
        """The evaluation set and its loader, from the first evaluation on."""
        self.buffers = BoundBuffers(self.model, self.weights, self.trains)
        self.targets: WeakKeyDictionary[FlatBuffer, list[Tensor]] = WeakKeyDictionary()
        self.chunk_memory = ChunkMemory(layout, self.device)
        self.holds: int | None = None
        self.own = Own()

    def set_shards(self, shards: Cuts) -> None:
        """Set the shards of the ledger."""
        if shards != self.shards:
            self.shards, self.order = shards, self.job.sample_order(shards)

    def use_loaders(self, loader_of: Callable[[SeededFetch], Loader]) -> None:
        """Use another loader of minibatches. `loader_of` makes one for the training or evaluation data."""
        self.loader_of = loader_of
        self.loader = loader_of(SeededFetch(self.batches, self.seed))

    def load(self, version: int, weights: FlatBuffer) -> int:
        """Copy these weights into the model unless it has them. Return the number of bytes copied."""
        if self.holds == version:
            return 0
        self.weights.copy_(weights)
        self.holds = version
        return weights.layout.bytes

    def step(
        self, weights: FlatBuffer, task: Task, out: FlatBuffer, stop: Callable[[], bool] = lambda: False
    ) -> Work | None:
        """Compute the task from the loaded `weights`, and write the update into `out`.

        `stop()` is called before each minibatch. If it returns True, write and return the finished part, or return None
        if no minibatch is finished.
        """
        self._begin(task)
        if task.kind not in GRADIENT_KINDS or weights.layout.has_buffers:
            self.holds = None  # the model changes from here on
        if task.pull is not None and self.own.weights is not None:
            self.weights.pull_(self.own.weights, task.pull)
        self.unchanged.begin()
        self.had_gradient = [False] * len(self.parameters)
        try:
            work = self._compute(task, weights, out, stop)
        except Exception:
            self._check_parameters()  # a replaced parameter may be the cause
            raise
        if work is None:
            return None
        self._check_parameters()
        if task.kind in GRADIENT_KINDS:
            self.unchanged.check_trainable(local=False)
        self.unchanged.check_constants()
        self.buffers.follow()
        if task.kind == "sum":
            self.buffers.check_unchanged(weights)
        if task.pull is not None:
            self.own.weights = self.own.weights or FlatBuffer.empty(weights.layout, self.device)
            self.own.weights.copy_(self.weights)
        self._write_change(task.kind, weights, out)
        out.write_buffers_(weights, self.weights)
        self._write_missing(out, task.kind)
        return work

    def _compute(
        self, task: Task, weights: FlatBuffer, out: FlatBuffer, stop: Callable[[], bool]
    ) -> Work | None:
        match task.kind:
            case "gradient":
                return self._gradient(task, weights, stop)
            case "sum":
                return self._sum(task, out, stop)
            case _:
                return self._local_steps(task, stop)

    def _begin(self, task: Task) -> None:
        """Seed all generators for a task, and freeze the parameters that are not trained yet."""
        seed_all(seed_of(self.seed, task), self.device)
        if self.job.unfreeze_at:
            assert task.merged is not None, "tasks have it if parameters are frozen at first"
            self.trainable = self.trains - self.unfreezing.apply(task.merged / self.samples)

    def _gradient(self, task: Task, weights: FlatBuffer, stop: Callable[[], bool]) -> Work | None:
        """Compute the mean gradient over the task's samples, as `grad` of the parameters.

        With fp16, it is computed again with a smaller scale after an overflow.
        """
        batches = self._split(task)
        while True:
            self.stepper.begin(sum(len(one.indices) for one in batches))
            work = self._minibatches(task, batches, stop, partial(self._pass, local=False))
            if work is None or self.stepper.end():
                return work
            self.weights.copy_(weights)  # buffers have changed
            self._begin(task)

    def _sum(self, task: Task, out: FlatBuffer, stop: Callable[[], bool]) -> Work | None:
        """Write the sum of the gradients over the task's chunks into `out`, each times its weight.

        The bits depend only on the weights and the samples: each chunk has its own seed, and one thread computes.
        """
        torch.set_num_threads(1)
        batches, (epoch, start, _) = self._split(task), task.spans[0]
        sums = ChunkSums(len(batches), out, self._chunk, self.chunk_memory)
        seeds = iter(number_of(self.seed, epoch, start + CHUNK * at) for at in range(len(batches)))
        work = self._minibatches(task, batches, stop, lambda chunk: sums.add(chunk, next(seeds)))
        if work is None:
            return None
        samples, losses = sums.summed()
        return replace(work, samples=samples, loss=losses.mean, weight=losses.weight, losses=losses.others)

    def _chunk(self, chunk: Minibatch, seed: int, out: FlatBuffer) -> Losses:
        """Write the gradient of a chunk, times its weight."""
        seed_all(seed, self.device)
        self.stepper.begin(len(chunk.indices), is_sum=True)
        losses = self._pass(chunk, local=False)
        self.stepper.end()
        self._write_gradient(out)
        return losses

    def _local_steps(self, task: Task, stop: Callable[[], bool]) -> Work | None:
        """Train on the task's samples, one step per minibatch, with a new optimizer or the worker's own.

        A schedule counts the samples that were merged when the task was created, and the samples of the task's steps.
        """
        optimizer = self.own.optimizer
        pace: LocalRates | None = None

        if optimizer is not None and set_mode(optimizer, "train"):
            self.unchanged.stepped()  # the change of the mode may change the weights

        def step(minibatch: Minibatch) -> Losses:
            nonlocal optimizer, pace
            while True:
                self.stepper.begin(len(minibatch.indices))
                losses = self._pass(minibatch, local=True)
                if self.stepper.end():
                    break
            if not self.stepper.weight:
                return losses
            if self.job.max_grad_norm is not None:
                clip(self.parameters, self.job.max_grad_norm)
            if optimizer is None:
                optimizer = self._new_optimizer()
                set_mode(optimizer, "train")
            if self.rates is not None:
                pace = pace or LocalRates(optimizer, self.rates, rules_of(self.job.optimizer), task)
                pace.advance(minibatch.positions)
            optimizer.step()
            return losses

        work = self._minibatches(task, self._split(task), stop, step)
        if optimizer is not None:
            set_mode(optimizer, "eval")
        self.own.optimizer = optimizer if self.job.keep_optimizer else None
        return work

    def _new_optimizer(self) -> torch.optim.Optimizer | LocalOptimizer:
        if self.job.local_optimizer is not None:
            return made(self.job.local_optimizer, self.parameters)
        layout, groups = self.weights.layout, dict[int, list[Tensor]]()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            groups.setdefault(layout.sections[layout.places[name].section].group, []).append(parameter)
        rules = rules_of(self.job.optimizer)
        return local_optimizer([(rule, groups.get(group, [])) for group, rule in enumerate(rules)])

    def _split(self, task: Task) -> list[Minibatch]:
        self.batches.check_length(self.rows)
        size = minibatch_size(task.kind, self.job.batch_size)
        batches = minibatches(self.order, self.seed, task.spans, size)
        self.loader.plan(task, batches)
        return batches

    def _minibatches(
        self,
        task: Task,
        batches: Sequence[Minibatch],
        stop: Callable[[], bool],
        compute: Callable[[Minibatch], Losses],
    ) -> Work | None:
        done, losses = 0, Losses()
        shards, self.loading = self.batches.shards, 0.0
        had = shards.bytes_opened if shards else 0
        for minibatch in batches:
            if stop():
                break
            try:
                losses.add(compute(minibatch))
            except OddlotError:
                raise
            except (Exception, SystemExit) as error:
                raise minibatch_failed(task.node, error, self.batches, *self.part, self.model) from error
            self.attributes.minibatch()
            done += minibatch.positions
        opened = shards.bytes_opened - had if shards else 0
        if shards and not self.keep_shards:
            shards.close()
        return Work(done, losses.mean, losses.weight, losses.others, self.loading, opened) if done else None

    def _pass(self, minibatch: Minibatch, *, local: bool) -> Losses:
        """Compute the loss of a minibatch, part by part, and add its gradient."""
        losses = Losses()
        for part in minibatch.parts(self.job.micro_batch_size):
            rows = part.indices
            self.part = rows, None
            before = self.clock()
            batch = move(self.loader(part), self.device)
            self.part = rows, batch
            self.loading += self.clock() - before
            loss = self.stepper.forward(batch)
            if self.unchanged.checks:
                check_parameters(loss.mean, self.model, self.job)
            self.unchanged.check_trainable(local=local)
            if loss.weight != 0:
                if local:
                    self.unchanged.stepped()
                self.stepper.backward(loss, len(rows))
                self._note_gradients()
            losses.add(Losses.of(loss, len(rows)))
        return losses

    def _note_gradients(self) -> None:
        """Record which parameters have a gradient."""
        if not all(self.had_gradient):
            pairs = zip(self.had_gradient, self.parameters, strict=True)
            self.had_gradient = [had or parameter.grad is not None for had, parameter in pairs]

    def _write_change(self, kind: Kind, weights: FlatBuffer, out: FlatBuffer) -> None:
        """Write the parameters of an update. A sum is already written."""
        match kind:
            case "gradient":
                self._write_gradient(out)
            case "delta":
                out.subtract_trainable_(weights, self.weights)
            case "weights":
                out.copy_trainable_(self.weights)

    def _write_missing(self, out: FlatBuffer, kind: Kind) -> None:
        """Write the flags of parameters that had no gradient in this task and did not change.

        In updates of kind `weights`, all flags are 0: every parameter is merged.
        """
        flags = out.without_gradient
        if kind == "weights" or all(self.had_gradient):
            flags.zero_()
            return
        had = dict(zip(self.names, self.had_gradient, strict=True))
        names = [entry.name for entry in self.weights.layout.trainable_entries]  # grouped by dtype
        missing = [not had[name] and not (kind == "delta" and out.view(name).any()) for name in names]
        flags.copy_(torch.tensor(missing, dtype=torch.uint8, device="cpu"))

    def _write_gradient(self, out: FlatBuffer) -> None:
        targets = self.targets.get(out)
        if targets is None:
            targets = self.targets[out] = [out.view(name) for name in self.names]
        gradients = [parameter.grad for parameter in self.parameters]
        if any(gradient is None or gradient.is_sparse for gradient in gradients):
            for target, gradient in zip(targets, gradients, strict=True):
                target.copy_(gradient.to_dense()) if gradient is not None else target.zero_()
        else:
            torch._foreach_copy_(targets, gradients)  # type: ignore[arg-type]  # none of them is None

    def _check_parameters(self) -> None:
        """Raise JobError if a parameter was replaced, reshaped, frozen or unfrozen, because it would not be trained."""
        now = dict(self.model.named_parameters())
        for name, parameter, place in zip(self.names, self.parameters, self.places, strict=True):
            same = now.get(name) is parameter and parameter.data_ptr() == place
            if not same or parameter.shape != self.weights.layout.places[name].shape:
                message = f"parameter {name} was replaced or reshaped during training: change it in place"
                raise JobError(message, "parameter_replaced", parameter=name)
        for name, parameter in now.items():
            if parameter.requires_grad != (name in self.trainable):
                done = "unfrozen" if parameter.requires_grad else "frozen"
                message = (
                    f"parameter {name} was {done} during training: set requires_grad in the model factory"
                )
                raise JobError(message, "requires_grad_changed", parameter=name, now=done)
