"""Allocations without learning."""

from collections.abc import Callable
from itertools import product

import numpy as np

from channel_allocation.controller import Controller
from channel_allocation.plants import Array, Channels, Plant

Allocate = Callable[[Array, np.random.Generator], np.ndarray]
"""Returns the subsystem of each channel, shape (M,), for a state of shape (2N,)."""
MOST_SCHEDULES = 10_000
"""Largest number of schedules that the exhaustive search tries in a step."""


def baselines(plant: Plant, channels: Channels, controller: Controller) -> dict[str, Allocate]:
    """Return the allocations by name. The exhaustive search is left out if there are too many schedules."""
    size, count = plant.subsystems, channels.count
    order = np.argsort(-channels.success, kind="stable")
    chances = plant.radii / plant.radii.sum()
    turn = np.zeros(1, int)

    def uniform(_x: Array, random: np.random.Generator) -> np.ndarray:
        return random.integers(size, size=count)

    def intelligent_random(_x: Array, random: np.random.Generator) -> np.ndarray:
        return random.choice(size, count, p=chances)

    def round_robin(_x: Array, _random: np.random.Generator) -> np.ndarray:
        first = int(turn[0])
        turn[0] = (first + count) % size
        return (first + np.arange(count)) % size

    def largest_norm(x: Array, _random: np.random.Generator) -> np.ndarray:
        norms = np.linalg.norm(x.reshape(size, 2), axis=1)
        found = np.empty(count, int)
        found[order] = np.argsort(-norms, kind="stable")[:count]
        return found

    def greedy(x: Array, _random: np.random.Generator) -> np.ndarray:
        found = np.zeros(count, int)
        rates = np.zeros(size)
        for channel in order:
            after = np.array([_with(rates, one, channels.success[channel]) for one in range(size)])
            found[channel] = int(np.argmin(expected_costs(plant, controller, x, after)))
            rates = after[found[channel]]
        return found

    found: dict[str, Allocate] = {
        "uniform": uniform,
        "intelligent_random": intelligent_random,
        "round_robin": round_robin,
        "largest_norm": largest_norm,
        "greedy": greedy,
    }
    if size**count <= MOST_SCHEDULES:
        found["exhaustive"] = _exhaustive(plant, channels, controller)
    return found


def baseline(plant: Plant, channels: Channels, name: str) -> Callable[[Controller], Allocate]:
    """Return a function that returns an allocation for a controller."""
    return lambda controller: baselines(plant, channels, controller)[name]


def expected_costs(plant: Plant, controller: Controller, x: Array, rates: Array) -> Array:
    """Return the expected costs of the inputs and of the next state by the Riccati matrix, for S schedules. Shape (S,).

    `rates`: probability that each input arrives, independent of each other, shape (S, N).
    """
    u = np.array([controller.inputs(x, one) for one in (rates > 0).astype(float)])
    moved = plant.a @ x + (u * rates) @ plant.b.T
    spread = u**2 * rates * (1 - rates)
    found: Array = ((moved @ controller.p) * moved).sum(axis=1)
    found += spread @ controller.input_weights + plant.input_cost * (u**2 * rates).sum(axis=1)
    return found


def _exhaustive(plant: Plant, channels: Channels, controller: Controller) -> Allocate:
    """Return the search over all N^M schedules."""
    size = plant.subsystems
    schedules = np.array(list(product(range(size), repeat=channels.count)))
    rates = np.array([_rates(one, channels, size) for one in schedules])

    def exhaustive(x: Array, _random: np.random.Generator) -> np.ndarray:
        found: np.ndarray = schedules[int(np.argmin(expected_costs(plant, controller, x, rates)))]
        return found

    return exhaustive


def _rates(schedule: np.ndarray, channels: Channels, size: int) -> Array:
    rates = np.zeros(size)
    for channel, one in enumerate(schedule):
        rates = _with(rates, int(one), channels.success[channel])
    return rates


def _with(rates: Array, one: int, success: float) -> Array:
    """Return the rates after a subsystem has got one more channel."""
    found = rates.copy()
    found[one] = 1 - (1 - rates[one]) * (1 - success)
    return found
