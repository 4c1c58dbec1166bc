"""The control loops as a gymnasium environment. An action gives each channel a subsystem."""

from typing import Any

import gymnasium
import numpy as np

from channel_allocation.controller import Controller
from channel_allocation.plants import NOISE_VARIANCE, Array, Channels, Plant, check_scarce

LIMIT = 30.0
"""Largest absolute value of a state. Larger ones are cut, and counted as divergence."""


class ChannelEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Channels carry inputs of linear plants.

    - Observation: the state, float32, shape (2N,).
    - Action: for each of the M channels the number of the subsystem whose input it carries, shape (M,). An input
      arrives if one of its channels succeeds.
    - Reward: minus the cost of the stage, x'Qx + u'Ru, with the inputs that have arrived.
    - Info: `arrived`, shape (N,), and `diverged`, whether a state was cut.

    An episode has no end of its own: it is truncated after `horizon` steps. With `perfect`, all inputs arrive in each
    step, whatever the action. The noise is the same.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's name and form

    def __init__(
        self,
        plant: Plant,
        channels: Channels,
        controller: Controller,
        horizon: int = 500,
        *,
        perfect: bool = False,
    ) -> None:
        size = plant.subsystems
        check_scarce(channels.count, size)
        self.plant, self.channels, self.controller, self.horizon = plant, channels, controller, horizon
        self.perfect = perfect
        self.observation_space = gymnasium.spaces.Box(-LIMIT, LIMIT, (2 * size,), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([size] * channels.count)
        self.x: Array = np.zeros(2 * size)
        self.good = np.ones(channels.count, bool)
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a state and the states of the channels. `options["rates"]`: success rates for the controller, (N,)."""
        super().reset(seed=seed)
        if options and "rates" in options:
            self.controller = Controller(self.plant, np.asarray(options["rates"], float))
        self.x = np.clip(self.np_random.normal(size=len(self.x)), -LIMIT, LIMIT)
        self.good = self.np_random.random(self.channels.count) < self.channels.good_share
        self.steps = 0
        return self.x.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Send the inputs over the channels."""
        size, random = self.plant.subsystems, self.np_random
        scheduled = np.full(size, float(self.perfect))
        scheduled[action] = 1.0
        u = self.controller.inputs(self.x, scheduled)
        channels = self.channels
        succeeds = random.random(channels.count) < np.where(
            self.good, channels.good_success, channels.bad_success
        )
        arrived = np.full(size, float(self.perfect))
        arrived[action[succeeds]] = 1.0
        cost = self.plant.cost(self.x, u * arrived)
        noise = np.sqrt(NOISE_VARIANCE) * random.normal(size=2 * size)
        free = self.plant.a @ self.x + self.plant.b @ (u * arrived) + noise
        self.x = np.clip(free, -LIMIT, LIMIT)
        change = random.random(channels.count)
        self.good = np.where(self.good, change >= channels.to_bad, change < channels.to_good)
        self.steps += 1
        info = {"arrived": arrived, "diverged": bool((np.abs(free) > LIMIT).any())}
        return self.x.astype(np.float32), -cost, False, self.steps >= self.horizon, info
