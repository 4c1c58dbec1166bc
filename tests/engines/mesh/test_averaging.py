"""The average of all models of a mesh."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from oddlot.core.peers import IncludedModel
from oddlot.engines.mesh.averaging import Averaging
from oddlot.model.flat_buffer import FlatBuffer, Layout


class Counting(nn.Module):
    """A model with a counter that is not named `num_batches_tracked`."""

    def __init__(self, weight: float, count: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), weight))
        self.register_buffer("seen", torch.tensor(count))


def flat(weight: float, count: float) -> FlatBuffer:
    """Return the tensors of a `Counting` model."""
    model = Counting(weight, count)
    block = FlatBuffer.empty(Layout.from_module(model))
    block.gather(model)
    return block


@pytest.mark.parametrize("number", [int, float])
def test_float_weights_are_averaged_and_integers_kept(
    number: Callable[[float], float],
) -> None:
    average = Averaging(1, flat(1.0, number(11)), IncludedModel("w1", 1), ["w2", "w3", "w4"])
    average.add(IncludedModel("w3", 2), flat(2.0, number(33)))
    average.add(IncludedModel("w3", 2), flat(9.0, number(99)))
    average.add(IncludedModel("w2", 3), flat(6.0, number(22)))
    average.lose("w4")
    assert average.is_complete
    assert average.peers == ["w1", "w3", "w2"]
    assert average.mean.view("weight").tolist() == [3.0, 3.0]
    assert int(average.mean.view("seen")) == 11
    spread = (((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3) ** 0.5
    assert abs(average.disagreement - spread / 3) < 1e-6
