"""The sum of updates in the order of a tree."""

import torch
from torch import nn

from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.merging import add_in_tree


def test_sum_lacks_the_gradients_that_all_updates_lack() -> None:
    layout = Layout.from_module(nn.Linear(2, 2))
    updates = [(FlatBuffer.empty(layout), 0.5) for _ in range(3)]
    for (flat, _), has_bias in zip(updates, (False, True, False), strict=True):
        flat.without_gradient.copy_(torch.tensor([1, not has_bias]))
        flat.view("bias").fill_(4.0 * has_bias)
    out = FlatBuffer.empty(layout)
    add_in_tree(updates, (0, 1, 1), out)
    assert out.without_gradient.tolist() == [1, 0]
    assert out.view("bias").tolist() == [2.0, 2.0]
