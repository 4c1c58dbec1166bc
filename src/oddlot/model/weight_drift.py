"""Measurement of drift, the distance of the weights from marked weights."""

from collections.abc import Iterable
from math import isfinite, sqrt

import torch
from torch import Tensor

from oddlot.core.peers import Drift, LayerDrift
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.vector_ops import chunks


class DriftMeter:
    """Keeps marked weights, and measures the distance of other weights from them, layer by layer.

    A layer is one trainable parameter. Its number is its index in `Layout.trainable_entries`.
    """

    def __init__(self, weights: FlatBuffer) -> None:
        self._marked = FlatBuffer.empty(weights.layout, weights.memory.device)
        self._layers = weights.layout.trainable_entries
        self._norms = [0.0] * len(self._layers)
        self.mark(weights)

    def mark(self, weights: FlatBuffer) -> None:
        """Mark these weights."""
        for number, layer in enumerate(self._layers):
            marked = self._marked.view(layer.name)
            marked.copy_(weights.view(layer.name))
            self._norms[number] = _norm(marked.view(-1))

    def measure(self, weights: FlatBuffer, by_layer: bool, lr_factor: float) -> Drift | None:
        """Return the drift of these weights, and of each layer if `by_layer`. None if it is not finite."""
        marked_norm = sqrt(sum(norm * norm for norm in self._norms))
        if by_layer:
            layers = tuple(self._layer(number, weights) for number in range(len(self._layers)))
            distance = sqrt(sum(layer.distance**2 for layer in layers))
            sound = all(isfinite(layer.norm) for layer in layers)
        else:
            layers, sound = (), True
            distance = sqrt(sum(self._squares(weights)))
        if not (sound and isfinite(distance) and isfinite(marked_norm)):
            return None
        return Drift(distance, marked_norm, lr_factor, layers)

    def _layer(self, number: int, weights: FlatBuffer) -> LayerDrift:
        name = self._layers[number].name
        now = weights.view(name).view(-1)
        return LayerDrift(_distance(now, self._marked.view(name).view(-1)), self._norms[number], _norm(now))

    def _squares(self, weights: FlatBuffer) -> Iterable[float]:
        """Return the squared distance of each section."""
        for index in weights.layout.of_role("trainable"):
            yield _distance(weights.section(index), self._marked.section(index)) ** 2


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the Euclidean distance of two 1-D tensors, computed chunk by chunk."""
    parts = [_norm(one[span] - other[span]) for span in chunks(one.numel(), one.device)]
    return sqrt(sum(part * part for part in parts))


def _norm(values: Tensor) -> float:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(values, dtype=dtype))
