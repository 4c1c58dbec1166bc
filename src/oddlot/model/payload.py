"""The tensors of an update."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oddlot.core.peers import layers_of_both
from oddlot.core.tasks import Kind
from oddlot.model.flat_buffer import FlatBuffer


@dataclass(slots=True)
class Payload:
    """The tensors of an update. `release` returns their memory."""

    kind: Kind
    flat: FlatBuffer
    free: Callable[[], None] | None = None
    layers: tuple[int, ...] | None = None
    """Numbers of the trainable parameters in a peer's model. The others of `flat` are unused. If None, all are used."""

    def corrupt(self) -> None:
        """Fill floating-point tensors with NaN, for fault injection. The padding stays zero.

        This changes a copy, because the memory may be in use.
        """
        flat = FlatBuffer.empty(self.flat.layout, self.flat.memory.device)
        flat.copy_(self.flat)
        self.flat = flat
        for _, view in self.flat.views():
            if view.is_floating_point():
                view.fill_(torch.nan)

    def complete(self, weights: FlatBuffer) -> None:
        """Copy missing layers from these weights. A merge into the weights then does not change these layers."""
        if self.layers is not None:
            for number, entry in enumerate(weights.layout.trainable_entries):
                if number not in self.layers:
                    self.flat.view(entry.name).copy_(weights.view(entry.name))

    def complete_from(self, older: "Payload") -> None:
        """Copy missing layers from an older model of the same peer."""
        self.complete(older.flat)
        self.layers = layers_of_both(self.layers, older.layers)

    def release(self) -> None:
        """Return the memory. A second call does nothing."""
        free, self.free = self.free, None
        if free is not None:
            free()
