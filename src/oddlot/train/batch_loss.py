"""The loss of a batch, as a job's functions return it."""

from collections.abc import Mapping
from math import nan
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oddlot.core.support.errors import JobError, short

LOSS = "loss"


class BatchLoss(NamedTuple):
    """The loss of a batch."""

    mean: Tensor
    """Mean loss, as a scalar tensor with its autograd graph."""
    weight: int | None
    """Weight of the batch in means over batches, such as its number of tokens. None: its number of samples."""
    others: Mapping[str, float]
    """Further losses, by name, that are only logged."""


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
