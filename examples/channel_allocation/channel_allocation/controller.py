"""Linear-quadratic control with success rates (Redder et al., section III)."""

import numpy as np
from scipy.linalg import solve_discrete_are

from channel_allocation.plants import Array, Plant

SMALLEST_RATE = 0.05


def cost_to_go(plant: Plant, rates: Array) -> Array:
    """Return P of the algebraic Riccati equation with the inputs scaled by success rates. Shape (2N, 2N).

    `rates`: share of the steps in which each input arrives, shape (N,).
    """
    scaled = plant.b * np.maximum(rates, SMALLEST_RATE)
    size, inputs = plant.b.shape
    try:
        found: Array = solve_discrete_are(
            plant.a, scaled, plant.state_cost * np.eye(size), plant.input_cost * np.eye(inputs)
        )
    except np.linalg.LinAlgError as error:
        raise ValueError(f"no controller stabilizes this plant: {error}") from None
    return found


class Controller:
    """Computes the inputs of a schedule, for given success rates."""

    def __init__(self, plant: Plant, rates: Array) -> None:
        self.plant, self.rates = plant, rates
        self.p = cost_to_go(plant, rates)
        self.input_weights: Array = np.einsum("ji,jk,ki->i", plant.b, self.p, plant.b)
        """Diagonal of B'PB, shape (N,)."""
        self._gains: dict[bytes, Array] = {}
        """Gains by schedule."""

    def inputs(self, x: Array, scheduled: Array) -> Array:
        """Return the inputs of shape (N,). `scheduled`: 1.0 for each subsystem with a channel, else 0.0, shape (N,)."""
        key = scheduled.tobytes()
        if key not in self._gains:
            self._gains[key] = _gain(self.plant, self.p, self.plant.b * (self.rates * scheduled))
        found: Array = self._gains[key] @ x
        return found


def _gain(plant: Plant, p: Array, b: Array) -> Array:
    weight = b.T @ p @ b + plant.input_cost * np.eye(b.shape[1])
    return -np.linalg.solve(weight, b.T @ p @ plant.a).astype(np.float64)
