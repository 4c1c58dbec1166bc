"""Detection of training state outside of the model. Updates do not include such state."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.data.seeding import datasets_of
from oddlot.model.flat_buffer import Layout
from oddlot.model.tensor_checks import is_plain
from oddlot.train.job import Job

DATA = "job.train_data."
"""Prefix of the names of a dataset's attributes."""
MOVES = 5
"""Number of changes in the same direction until a number counts as training state. Other numbers, such as the position
of the last sample, are caches."""


def check_parameters(loss: Tensor, model: nn.Module, job: Job) -> None:
    """Raise JobError if the loss depends on a trainable parameter outside of the model. It would not be trained."""
    known = {id(parameter) for parameter in model.parameters()}
    for parameter in _parameters(loss):
        if id(parameter) not in known:
            shape = tuple(parameter.shape)
            name = next((name for name, one in _tensors(job).items() if one is parameter), "")
            raise JobError(
                f"the loss depends on {name or 'a parameter'} of shape {list(shape)}, which requires gradients but is "
                "not in the model, so it would not be trained. Make it part of the model (a loss can be a module of it "
                "that training_step calls), or freeze it with requires_grad_(False)",
                "parameter_outside_model",
                parameter=name,
                shape=shape,
            )


def kept_tensors(job: Job) -> dict[str, Tensor]:
    """Return the frozen parameters and buffers of a loss or training step that is a module."""
    return {name: one for name, one in _tensors(job).items() if not one.requires_grad and is_plain(one)}


class NumberAttributes:
    """Warns once about each Python attribute with a number that grows or shrinks, or a tensor that changes in place.

    It reads the attributes of the model, the dataset and the job's functions after minibatches 1, 2, 4, 8, ...
    """

    def __init__(self, job: Job, model: nn.Module) -> None:
        self._owners = [*_owners(job, model)]
        self._minibatches = 0
        self._last = self._numbers()
        self._moves: dict[str, int] = {}
        """Number of changes of each attribute, negative if it shrinks."""
        self._ignored: set[str] = set()

    def minibatch(self) -> None:
        """Record the end of a minibatch."""
        self._minibatches += 1
        if self._minibatches & (self._minibatches - 1):
            return
        last, self._last = self._last, self._numbers()
        for name, value in self._last.items():
            before, moves = last.get(name, value), self._moves.get(name, 0)
            direction = (value > before) - (value < before)
            self._moves[name] = moves + direction
            if direction * moves < 0 or name in self._ignored:
                self._ignored.add(name)
            elif abs(moves + direction) == MOVES:
                self._ignored.add(name)
                _warn(name)

    def _numbers(self) -> dict[str, float]:
        """Return the numbers, and the number of in-place changes of each tensor.

        Tensors of datasets are left out, because they are caches. A new tensor in the same attribute has a new key.
        """
        found = dict[str, float]()
        for prefix, owner in self._owners:
            for name, value in vars(owner).items():
                if isinstance(value, Tensor) and prefix != DATA and not value.is_inference():
                    found[f"{prefix}{name} {id(value)}"] = value._version
                elif isinstance(value, int | float) and not isinstance(value, bool):
                    found[f"{prefix}{name}"] = value
        return found


def _warn(key: str) -> None:
    name = key.partition(" ")[0]
    warn(
        f"training changes {name}, a Python attribute. Each worker has its own value, which is neither merged nor "
        "saved, and the final model has the first one. If results depend on it, use a buffer of the model "
        "(register_buffer)",
        "attribute_changed",
        attribute=name,
    )


def _owners(job: Job, model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield each object with attributes, and its prefix, such as `model.encoder.`."""
    own = {f"job.{name}": one for name, one in _functions(job).items()}
    for name, one in {"model": model, **own}.items():
        inner = one.named_modules() if isinstance(one, nn.Module) else [("", one)]
        yield from (
            (f"{name}.{path}." if path else f"{name}.", part) for path, part in inner if _has_own(part)
        )
    for data in datasets_of(job.train_data) or [job.train_data]:
        if _has_own(data):
            yield DATA, data


def _has_own(owner: object) -> bool:
    return hasattr(owner, "__dict__") and not type(owner).__module__.startswith("oddlot.")


def _functions(job: Job) -> Mapping[str, Any]:
    """Return the job's functions by name. A bound method is replaced by its object."""
    given = {
        name: getattr(job, name) for name in ("loss", "training_step", "direction", "predict", "collate")
    }
    return {name: getattr(one, "__self__", one) for name, one in given.items() if one is not None}


def _tensors(job: Job) -> dict[str, Tensor]:
    """Return the parameters and buffers of the job's functions that are modules."""
    return {
        f"job.{name}.{leaf}": tensor
        for name, one in _functions(job).items()
        if isinstance(one, nn.Module)
        for leaf, tensor in (*one.named_parameters(), *one.named_buffers())
    }


def _parameters(loss: Tensor) -> Iterator[nn.Parameter]:
    """Yield the trainable parameters that a loss depends on."""
    seen: set[Any] = set()
    open_: list[Any] = [loss.grad_fn]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        open_ += [inner for inner, _ in node.next_functions]


def tensors_outside(
    model: nn.Module, job: Job, layout: Layout, unsaved: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Return the tensors outside of blocks: frozen parameters, complex and unsaved buffers, and tensors of the job.

    An unsaved buffer with another shape than in `unsaved` is left out, because it is a cache.
    """
    known = dict(model.named_parameters()) | dict(model.named_buffers()) | kept_tensors(job)
    saved = model.state_dict(keep_vars=True)
    return {
        name: tensor
        for name, tensor in known.items()
        if name not in layout.places and (name in saved or tensor.shape == unsaved.get(name))
    }


def unsaved_shapes(model: nn.Module, job: Job) -> dict[str, torch.Size]:
    """Return the shapes of the unsaved buffers that can be compared, and of tensors of the job's functions."""
    saved = model.state_dict(keep_vars=True)
    unsaved = {name: one for name, one in model.named_buffers() if name not in saved and is_plain(one)}
    return {name: one.shape for name, one in (unsaved | kept_tensors(job)).items()}


def copy_constants(model: nn.Module, constants: Mapping[str, Tensor]) -> None:
    """Copy these values into the model's frozen parameters and its buffers outside of blocks."""
    known = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in constants.items():
        known[name].data.copy_(value)
