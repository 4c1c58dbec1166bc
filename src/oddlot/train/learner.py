"""What a worker does with a task: a gradient, or local steps."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from oddlot.core.errors import JobError, OddlotError
from oddlot.core.tasks import Kind, Task
from oddlot.train.data import Batches, Cuts, Indices, minibatches, move
from oddlot.train.failures import minibatch_failed
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.train.gradient_clipping import clip
from oddlot.train.job import Job
from oddlot.train.local_optimizer import LocalOptimizer, local_optimizer, made
from oddlot.train.lr_schedules import by_samples
from oddlot.train.seeding import generators_of, reseed, seed_all
from oddlot.train.weight_hashes import Unchanged

_Learn = Callable[[Tensor, int], None]
"""takes the loss of a minibatch and its samples"""


@dataclass(frozen=True, slots=True)
class Work:
    """What came of a task: the prefix of its samples that was computed, and their mean loss."""

    samples: int
    loss: float | None
    load_seconds: float
    bytes_data: int = 0
    """of shards that were opened for it"""


@dataclass(slots=True)
class Own:
    """What a worker keeps of its own from task to task, where strategy or job wish it; it is gone with the worker."""

    weights: FlatBuffer | None = None
    """where its last task ended that may be gone on from"""
    optimizer: torch.optim.Optimizer | LocalOptimizer | None = None
    """of its local steps"""


class Learner:
    """Computes tasks on one model. A task is a pure function of (weights, task, seed), on whichever worker.

    `constants` are the hub's values of what no block holds (`Layout.constants`). `shards` is the ledger's. `clock`
    tells seconds, for the times in the facts. Without `keep_shards` each task opens its data anew.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        constants: Mapping[str, Tensor],
        seed: int = 0,
        shards: Cuts = 1,
        device: torch.device | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        keep_shards: bool = True,
    ) -> None:
        self.job, self.seed, self.shards, self.clock = job, seed, shards, clock
        self.device = device or torch.device("cpu")
        self.batches, self.keep_shards = Batches(job.train_data, job.collate), keep_shards
        self.schedule = by_samples(job.lr_schedule, len(self.batches))
        seed_all(seed, self.device)  # as at the hub: what the factory draws by chance is the same everywhere
        self.model = job.model().to(self.device)
        copy_constants(self.model, constants)
        self.weights = FlatBuffer.empty(layout, self.device)
        layout.bind(self.model, self.weights)
        self.names = [name for name, _ in layout.trainable(self.model)]
        self.parameters: list[Tensor] = [parameter for _, parameter in layout.trainable(self.model)]
        self.trains = frozenset(self.names)
        self.places = [parameter.data_ptr() for parameter in self.parameters]
        self.had_gradient = [False] * len(self.parameters)
        """of each, in any step of this task"""
        self.unchanged = Unchanged(
            self.model,
            dict(zip(self.names, self.parameters, strict=True)),
            partial(_kept, self.model, layout),
        )
        self.generators = generators_of(job.train_data)
        self.bound = self._bound()
        self.targets: WeakKeyDictionary[FlatBuffer, list[Tensor]] = WeakKeyDictionary()
        self.holds: int | None = None
        self.own = Own()

    def _bound(self) -> list[tuple[dict[str, Any], str, Tensor]]:
        """Where the model has each buffer, and each parameter that is merged as one; its view of the block."""
        views = {view.data_ptr(): view for name, view in self.weights.views() if name not in self.trains}
        found: list[tuple[dict[str, Any], str, Tensor]] = []
        for owner in self.model.modules():
            for holder in (owner._buffers, owner._parameters):
                for leaf, tensor in holder.items():
                    if tensor is not None and tensor.data_ptr() in views:
                        found.append((holder, leaf, views[tensor.data_ptr()]))
        return found

    def load(self, version: int, weights: FlatBuffer) -> int:
        """Copy these weights into the model unless it has them; returns the bytes copied."""
        if self.holds == version:
            return 0
        self.weights.copy_(weights)
        self.holds = version
        return weights.layout.bytes

    def step(
        self, weights: FlatBuffer, task: Task, out: FlatBuffer, stop: Callable[[], bool] = lambda: False
    ) -> Work | None:
        """Compute the task from `weights`, which are loaded, into `out`, which is written whole.

        `stop()` is asked before each minibatch; what was computed until then is returned, None if that is nothing.
        """
        number = seed_of(self.seed, task)
        seed_all(number, self.device)
        reseed(self.generators, number)
        if task.kind != "gradient" or weights.layout.has_buffers:
            self.holds = None  # from here on the model moves
        if task.pull is not None and self.own.weights is not None:
            self.weights.pull_(self.own.weights, task.pull)
        self.unchanged.begin()
        self.had_gradient = [False] * len(self.parameters)
        try:
            work = self._gradient(task, stop) if task.kind == "gradient" else self._local_steps(task, stop)
        except Exception:
            self._check_parameters()  # this may be why
            raise
        if work is None:
            return None
        self._check_parameters()
        if task.kind == "gradient":
            self.unchanged.check_trainable(local=False)
        self.unchanged.check_constants()
        self._follow_buffers()
        if task.pull is not None:
            self.own.weights = self.own.weights or FlatBuffer.empty(weights.layout, self.device)
            self.own.weights.copy_(self.weights)
        match task.kind:
            case "gradient":
                self._write_gradient(out)
            case "delta":
                out.subtract_trainable_(weights, self.weights)
            case "weights":
                out.copy_trainable_(self.weights)
        out.write_buffers_(weights, self.weights)
        self._write_missing(out, task.kind)
        return work

    def _gradient(self, task: Task, stop: Callable[[], bool]) -> Work | None:
        """Leave the mean gradient over the task's samples in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        batches = self._split(task)
        several = len(batches) > 1  # they add up, each with the weight of its samples

        def learn(loss: Tensor, samples: int) -> None:
            self.unchanged.check_trainable(local=False)
            if self.job.max_grad_norm is None:
                _backward(loss * samples if several else loss)
            else:
                self._add_clipped(loss, samples if several else 1, self.job.max_grad_norm)

        work = self._minibatches(task, batches, stop, learn)
        self._note_gradients()
        if work is not None and several:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], float(work.samples))
        return work

    def _add_clipped(self, loss: Tensor, weight: int, most: float) -> None:
        """Add the clipped gradient of a minibatch, so many times, to what the parameters have."""
        before = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        _backward(loss)
        clip(self.parameters, most)
        for parameter, sum_before in zip(self.parameters, before, strict=True):
            if parameter.grad is None:
                parameter.grad = sum_before
            elif weight != 1 or sum_before is not None:
                parameter.grad.mul_(weight)
                parameter.grad = parameter.grad if sum_before is None else sum_before.add_(parameter.grad)

    def _local_steps(self, task: Task, stop: Callable[[], bool]) -> Work | None:
        """Train on the task's samples, a step a minibatch, with a fresh optimizer or the worker's own.

        To a schedule, the samples that were merged when the task was made and those of the task's own steps count:
        what others do meanwhile has not reached these weights.
        """
        make = self.job.local_optimizer or partial(local_optimizer, self.job.optimizer)
        optimizer = self.own.optimizer
        pace: _Pace | None = None

        def step(loss: Tensor, samples: int) -> None:
            nonlocal optimizer, pace
            self.unchanged.check_trainable(local=True)
            self.unchanged.stepped()
            for parameter in self.parameters:
                parameter.grad = None
            _backward(loss)
            self._note_gradients()
            if self.job.max_grad_norm is not None:
                clip(self.parameters, self.job.max_grad_norm)
            optimizer = optimizer or made(make, self.parameters)
            if self.schedule:
                pace = pace or _Pace(optimizer, self.schedule, task.merged)
                pace.go_on(samples)
            optimizer.step()

        work = self._minibatches(task, self._split(task), stop, step)
        self.own.optimizer = optimizer if self.job.keep_optimizer else None
        return work

    def _split(self, task: Task) -> list[Indices]:
        return minibatches(task.spans, self.job.batch_size, self.seed, len(self.batches), self.shards)

    def _minibatches(
        self, task: Task, batches: list[Indices], stop: Callable[[], bool], learn: _Learn
    ) -> Work | None:
        done, loss_sum, loading = 0, 0.0, 0.0
        shards = self.batches.shards
        had = shards.bytes_opened if shards else 0
        for indices in batches:
            if stop():
                break
            loss, seconds = self._minibatch(task, indices, learn)
            loading += seconds
            done += len(indices)
            loss_sum += loss * len(indices)
        opened = shards.bytes_opened - had if shards else 0
        if shards and not self.keep_shards:
            shards.close()
        if not done:
            return None
        mean = loss_sum / done
        return Work(done, mean if isfinite(mean) else None, loading, opened)

    def _minibatch(self, task: Task, indices: Indices, learn: _Learn) -> tuple[float, float]:
        """Its mean loss, and the seconds of loading. JobError: the job's own code failed."""
        batch = None
        try:
            before = self.clock()
            batch = move(self.batches.fetch(indices), self.device)
            loading = self.clock() - before
            loss = self.job.batch_loss(self.model, batch)
            learn(loss, len(indices))
            return loss.item(), loading
        except OddlotError:
            raise
        except Exception as error:
            raise minibatch_failed(task.node, error, self.batches, indices, batch, self.model) from error

    def _note_gradients(self) -> None:
        """Remember which parameters have a gradient."""
        if not all(self.had_gradient):
            pairs = zip(self.had_gradient, self.parameters, strict=True)
            self.had_gradient = [had or parameter.grad is not None for had, parameter in pairs]

    def _write_missing(self, out: FlatBuffer, kind: Kind) -> None:
        """Note which parameters had no gradient in this task; of a layer that steps itself, which ones stayed.

        Weights are a point that the hub moves towards: all of them count.
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
        """JobError: a parameter was replaced, reshaped, frozen or unfrozen: it would silently stop learning."""
        now = dict(self.model.named_parameters())
        for name, parameter, place in zip(self.names, self.parameters, self.places, strict=True):
            same = now.get(name) is parameter and parameter.data_ptr() == place
            if not same or parameter.shape != self.weights.layout.places[name].shape:
                told = (
                    f"parameter {name} was replaced or changed its shape while training: change it in place"
                )
                raise JobError(told, "parameter_replaced", parameter=name)
        for name, parameter in now.items():
            if parameter.requires_grad != (name in self.trains):
                done = "unfrozen" if parameter.requires_grad else "frozen"
                told = (
                    f"parameter {name} was {done} while training: decide in the model factory what is trained"
                )
                raise JobError(told, "requires_grad_changed", parameter=name, now=done)

    def _follow_buffers(self) -> None:
        """A buffer that was replaced, as by `self.mean = ...`, gives its values to the block and is bound again."""
        for holder, leaf, view in self.bound:
            now = holder.get(leaf)
            if now is not None and now.data_ptr() == view.data_ptr() and now.shape == view.shape:
                continue
            alike = now is not None and now.is_floating_point() == view.is_floating_point()
            if now is None or now.shape != view.shape or not alike:
                before, after = _told(view), _told(now)
                told = f"buffer {leaf} went from {before} to {after}: keep its shape and dtype"
                raise JobError(told, "buffer_reshaped", buffer=leaf, before=before, after=after)
            view.copy_(now.detach())
            if isinstance(now, nn.Parameter):
                now.data = view
            else:
                holder[leaf] = view.data


def _told(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


class _Pace:
    """The learning rates of an optimizer under a schedule."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | LocalOptimizer,
        schedule: Callable[[int], float],
        merged: int | None,
    ) -> None:
        assert merged is not None, "the books tell it where there is a schedule"
        if not all("lr" in group for group in optimizer.param_groups):
            raise JobError(
                f"{type(optimizer).__name__} has no lr that a schedule could change: leave the schedule out, or take "
                "another local_optimizer",
                "optimizer_without_rate",
                optimizer=type(optimizer).__name__,
            )
        self.schedule, self.merged = schedule, merged
        # As PyTorch's schedulers: an optimizer that is kept has had its rates changed before.
        self.rates = [
            (group, group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups
        ]

    def go_on(self, samples: int) -> None:
        """Set them for the next step, which is of so many samples."""
        factor = self.schedule(self.merged)
        for group, rate in self.rates:
            group["lr"] = rate * factor
        self.merged += samples


def _backward(loss: Tensor) -> None:
    if not loss.requires_grad:
        raise JobError(
            "the loss depends on no parameter that is trained: compute it from the model's outputs, without "
            ".detach() or torch.no_grad(), and leave requires_grad of a parameter at True",
            "loss_without_gradient",
        )
    loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's


def _kept(model: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """What a model saves and no block holds: frozen parameters and complex buffers."""
    known = dict(model.named_parameters()) | dict(model.named_buffers())
    saved = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in known.items() if name in saved and name not in layout.places}


def copy_constants(model: nn.Module, constants: Mapping[str, Tensor]) -> None:
    """Give the model these values of its frozen parameters and of the buffers that no block holds."""
    known = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in constants.items():
        known[name].data.copy_(value)


def seed_of(seed: int, task: Task) -> int:
    """One number for (seed, epoch, first position), so that any node computes the same dropout and augmentation."""
    text = f"{seed}:{task.spans[0].epoch}:{task.spans[0].start}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
