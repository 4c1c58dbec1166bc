"""Costs of allocations over test episodes, with the same noise for all."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from channel_allocation.controller import Controller
from channel_allocation.environment import ChannelEnv
from channel_allocation.plants import Array, Channels, Plant
from channel_allocation.policies import Allocate
from channel_allocation.training import first_rates

HORIZON = 500
ADAPTATIONS = 3
"""Episodes after which the controller takes the success rates of an allocation, before its test."""
TEST_SEED = 10_000


@dataclass(frozen=True)
class Cost:
    """Mean costs per stage of the test episodes."""

    episodes: tuple[float, ...]
    diverged: int
    """Episodes in which a state was cut."""

    @property
    def median(self) -> float:
        """Median over the episodes, diverged ones included."""
        return median(self.episodes)


def evaluate(
    plant: Plant,
    channels: Channels,
    allocation: Callable[[Controller], Allocate],
    controller: Controller | None = None,
    episodes: int = 20,
) -> Cost:
    """Return the costs of an allocation.

    `allocation` returns it for a controller. `controller`: the controller that was adapted in training. Without one,
    the controller is adapted to the success rates of the allocation first.
    """
    if controller is None:
        controller = Controller(plant, first_rates(plant, channels))
        for number in range(ADAPTATIONS):
            environment = ChannelEnv(plant, channels, controller, HORIZON)
            arrived = _episode(environment, allocation(controller), number)[2]
            controller = Controller(plant, arrived)
    return _test(ChannelEnv(plant, channels, controller, HORIZON), allocation(controller), episodes)


def evaluate_bound(plant: Plant, channels: Channels, episodes: int = 20) -> Cost:
    """Return the costs if all inputs arrive always. The noise is the same as in `evaluate`."""
    controller = Controller(plant, np.ones(plant.subsystems))
    environment = ChannelEnv(plant, channels, controller, HORIZON, perfect=True)
    return _test(environment, lambda _x, _random: np.arange(channels.count), episodes)


def _test(environment: ChannelEnv, allocate: Allocate, episodes: int) -> Cost:
    done = [_episode(environment, allocate, TEST_SEED + number) for number in range(episodes)]
    return Cost(tuple(cost for cost, _, _ in done), sum(diverged for _, diverged, _ in done))


def _episode(environment: ChannelEnv, allocate: Allocate, seed: int) -> tuple[float, bool, Array]:
    """Return the mean cost, whether a state was cut, and the success rates."""
    environment.reset(seed=seed)
    random = np.random.default_rng((seed, 1))
    total, is_cut, arrived, steps = 0.0, False, np.zeros(environment.plant.subsystems), 0
    truncated = False
    while not truncated:
        action = allocate(environment.x, random)
        _, reward, _, truncated, info = environment.step(action)
        total -= reward
        is_cut |= info["diverged"]
        arrived += info["arrived"]
        steps += 1
    return total / steps, is_cut, arrived / steps
