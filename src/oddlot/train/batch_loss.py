"""The loss or the direction of a batch, as a job's functions return it."""

from collections.abc import Mapping
from math import nan
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError, short
from oddlot.core.support.text import or_nearest

LOSS = "loss"


class BatchLoss(NamedTuple):
    """The loss of a batch."""

    mean: Tensor
    """Mean loss, as a scalar tensor with its autograd graph. With a direction, without a graph; NaN if unknown."""
    weight: int | None
    """Weight of the batch in means over batches, such as its number of tokens. None: its number of samples."""
    others: Mapping[str, float]
    """Further losses, by name, that are only logged."""
    direction: Mapping[str, Tensor] | None = None
    """Direction of the step, by parameter. None: the gradient of the loss."""


def batch_loss(given: Any) -> BatchLoss:
    """Return the loss of a batch, which a job returned as a tensor, a dict with the key "loss", or with a weight.

    Raise JobError if it is not a scalar tensor, or if the weight is not an integer of at least 0. A weight that is not
    an integer may be another loss.
    """
    weight = None
    if isinstance(given, tuple) and len(given) == 2:
        given, weight = given[0], _weight(given[1])
    if isinstance(given, Mapping):
        if LOSS not in given:
            found = [*map(str, given)]
            message = (
                f"a dict of losses needs the key 'loss', the one to minimize. It has: {', '.join(found)}"
            )
            raise JobError(message, "losses_without_loss", found=found)
        others = {str(name): _number(one) for name, one in given.items() if name != LOSS}
        return BatchLoss(_scalar(given[LOSS]), weight, others)
    return BatchLoss(_scalar(given), weight, {})


def batch_direction(given: Any) -> BatchLoss:
    """Return the direction of a batch, which a job returned as a mapping, or with a dict of losses.

    Raise JobError if it is of another type. `Stepper.backward` checks the names, shapes and dtypes.
    """
    direction, losses = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    for what, one in (("direction", direction), ("losses", losses)):
        if not isinstance(one, Mapping):
            raise JobError(
                f"direction(model, batch) must return a dict of tensors by parameter name, or (dict, dict of losses), "
                f"but its {what} are {short(one)}",
                "direction_without_mapping",
                part=what,
                given=one,
            )
    others = {str(name): _number(one) for name, one in losses.items() if name != LOSS}
    mean = _scalar(losses[LOSS]) if LOSS in losses else torch.tensor(nan)
    return BatchLoss(mean, None, others, {str(name): one for name, one in direction.items()})


def check_direction(direction: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """Raise JobError unless a direction has dense tensors with the names, shapes and dtypes of trainable parameters."""
    if not direction:
        message = "direction(model, batch) returned an empty dict: return a tensor for at least one parameter"
        raise JobError(message, "empty_direction")
    for name, one in direction.items():
        if name not in parameters:
            raise JobError(
                f"direction(model, batch) returned {name!r}, which is not a trainable parameter of the model. "
                f"{or_nearest(name, parameters)}",
                "direction_of_unknown_parameter",
                parameter=name,
                known=[*parameters],
            )
        needs, has = _described(parameters[name]), _described(one)
        if has != needs:
            message = f"the direction of {name} must be {needs}, like the parameter, not {has}"
            raise JobError(message, "invalid_direction", parameter=name, given=has, must=needs)


def _described(tensor: Any) -> str:
    """Return the dtype, shape and device of a dense tensor, or else the type."""
    if not isinstance(tensor, Tensor):
        return f"of type {type(tensor).__name__}"
    layout = "" if tensor.layout == torch.strided else f"{tensor.layout} "
    return f"{layout}{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def model_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss that a model computes itself, for `Job(training_step=oddlot.model_loss)`.

    A dict is passed as keyword arguments (`model(**batch)`), a tuple or list as positional ones. The outputs have the
    loss as attribute or key `loss`, as those of Hugging Face's models, or as their first element.

    Raises:
        JobError: The outputs have no loss.
    """
    outputs: Any = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    found = outputs.get(LOSS) if isinstance(outputs, Mapping) else getattr(outputs, LOSS, None)
    if found is None and isinstance(outputs, tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        kind = type(outputs).__name__
        message = f"the model returned {kind} without a loss: pass it labels, or set Job(loss=...)"
        raise JobError(message, "outputs_without_loss", type=kind)
    return found


def _weight(given: Any) -> int:
    try:
        weight = (
            -1 if isinstance(given, bool) or getattr(given, "dtype", None) == torch.bool else index(given)
        )
    except (TypeError, ValueError, RuntimeError):
        weight = -1
    if weight < 0:
        message = f"the weight of a loss must be an integer, 0 or larger, not {short(given)}"
        raise JobError(
            f"{message}: return (loss, int(number of tokens)). Return only the loss if it has no weight",
            "invalid_loss_weight",
            given=given,
        )
    return weight


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise JobError(
            f"the loss of a batch must be a scalar tensor, not {short(loss)}: return what PyTorch computed, without "
            ".item(), .numpy() or float()",
            "loss_without_tensor",
            given=loss,
        )
    if loss.numel() != 1:
        message = f"the loss of a batch must be a scalar tensor, not {tuple(loss.shape)}: take its mean"
        raise JobError(message, "loss_not_scalar", shape=tuple(loss.shape))
    return loss


def _number(loss: Any) -> float:
    """Return a further loss as a number; NaN if it is none."""
    try:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError, RuntimeError):
        return nan
