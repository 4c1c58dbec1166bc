"""Contrastive divergence with one step (CD-1), the direction that pre-trains one layer of a network as an RBM.

Papers: Hinton, "Training products of experts by minimizing contrastive divergence" (Neural Computation 2002), and
Hinton and Salakhutdinov, "Reducing the dimensionality of data with neural networks" (Science 2006).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear


class Rbm(NamedTuple):
    """The parameters of a restricted Boltzmann machine with sigmoid visible units, or their directions."""

    weight: Tensor
    """[hidden, visible]."""
    hidden_bias: Tensor
    visible_bias: Tensor


def reconstructed(rbm: Rbm, hidden: Tensor) -> Tensor:
    """Return the probabilities [n, visible] of visible units for the states [n, hidden] of hidden units."""
    return torch.sigmoid(linear(hidden, rbm.weight.T, rbm.visible_bias))


def activated(rbm: Rbm, visible: Tensor, *, is_linear: bool) -> Tensor:
    """Return the means [n, hidden] of hidden units: probabilities or, for linear units, any numbers."""
    mean = linear(visible, rbm.weight, rbm.hidden_bias)
    return mean if is_linear else torch.sigmoid(mean)


def cd1(rbm: Rbm, visible: Tensor, *, is_linear: bool, weight_decay: float = 0.0) -> tuple[Rbm, Tensor]:
    """Return the mean directions of CD-1 over a batch, and the mean squared error of the reconstruction per sample.

    Stepping against the directions lowers the energy of the data and raises that of its reconstruction. Hidden units
    are sampled once: as bits or, for linear units, with Gaussian noise of variance 1. Visible units are probabilities.

    Args:
        rbm: Parameters.
        visible: Data, float [n, visible] from 0 to 1.
        is_linear: Whether hidden units are linear with unit variance, as those of a code.
        weight_decay: L2 penalty of the weights, without biases.
    """
    mean = activated(rbm, visible, is_linear=is_linear)
    noise = torch.randn_like(mean) if is_linear else torch.rand_like(mean)
    sampled = mean + noise if is_linear else (noise < mean).to(mean.dtype)
    again = reconstructed(rbm, sampled)
    mean_again = activated(rbm, again, is_linear=is_linear)
    weight = torch.addmm(mean_again.T @ again, mean.T, visible, alpha=-1).div_(len(visible))
    weight.add_(rbm.weight, alpha=weight_decay)
    hidden_bias, visible_bias = (mean_again - mean).mean(0), (again - visible).mean(0)
    return Rbm(weight, hidden_bias, visible_bias), (again - visible).square().sum(1).mean()
