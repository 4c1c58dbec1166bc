"""Formats of labels, and examples without labels."""

import numpy as np
import torch

from oddlot.sparse import SGD, Adam, SampledLinear, Uniform
from tests.sparse.layers import COLUMNS, ROWS, a_layer, some_hidden


def test_label_formats_give_the_same_loss() -> None:
    layer, hidden = a_layer(), some_hidden(2)
    losses = [
        float(layer(hidden, labels).detach())
        for labels in (
            torch.tensor([3, 8]),
            torch.tensor([[3, -1], [-1, 8]]),
            (np.array([0, 1, 2]), np.array([3, 8])),
            [3, 8],
        )
    ]
    assert losses == [losses[0]] * 4


def test_batch_without_labels_or_examples_changes_no_weights() -> None:
    layer = a_layer(optimizer=SGD())
    before = layer.weight.detach().clone()
    assert float(layer(some_hidden(2), torch.tensor([[-1], [-1]])).detach()) == 0
    layer(some_hidden(2), torch.tensor([[-1], [-1]])).backward()
    layer(torch.zeros(0, COLUMNS, requires_grad=True), torch.zeros(0, dtype=torch.int64)).backward()
    assert torch.equal(layer.weight, before)


def test_examples_without_labels_do_not_move_rows() -> None:
    """Examples without labels do not move rows, although the optimizer has momentum from an earlier batch."""
    layer = a_layer(Uniform(ROWS), Adam(lr=0.1))
    layer(some_hidden(2), torch.tensor([1, 2])).backward()
    before = layer.weight.detach().clone()
    layer(some_hidden(2), torch.tensor([-1, -1])).backward()
    assert torch.equal(layer.weight, before)
    assert layer.active_rows == 0


def test_empty_list_of_labels_has_zero_loss() -> None:
    assert float(a_layer()(some_hidden(2), ([0, 0, 0], [])).detach()) == 0


def test_nan_in_an_example_without_labels_is_ignored() -> None:
    layer, hidden = SampledLinear(COLUMNS, 500, Uniform(50)), some_hidden(2).detach()
    hidden[1] = torch.nan
    before = layer.weight.detach().clone()
    layer(hidden.requires_grad_(), torch.tensor([[3], [-1]])).backward()
    assert torch.isfinite(layer.weight).all()
    assert not torch.equal(layer.weight, before)
