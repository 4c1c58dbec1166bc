"""Training: epochs with falling exploration and learning rate, and a checkpoint after each."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

from channel_allocation.agent import Agent, AgentSettings
from channel_allocation.controller import Controller
from channel_allocation.environment import ChannelEnv
from channel_allocation.plants import Channels, Plant, channels_of, check_scarce, random_plant, usual_channels

RATE_MEMORY = 5
"""Epochs whose success rates count for the controller."""
WARM_UP = 2
"""Epochs of random allocation, from which the controller gets its first success rates."""
LEAST_EXPLORATION = 0.01
RATE_EPOCHS = 7
"""Epochs after which the learning rate is a third."""
LARGEST_COST = 20.0
"""Costs above this multiple of the median cost of random allocation are cut, for the network."""


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a training. The same settings give the same result."""

    subsystems: int = 4
    plant_seed: int = 0
    seed: int = 0
    epochs: int = 20
    exploration_epochs: int = 14
    """Epochs until exploration has fallen to its lowest value."""
    horizon: int = 500
    environments: int = 1
    """Number of environments at once, each in a process of its own if there are several."""
    units: int = 256
    targets: str = "terminal"
    channels: int = 0
    """Number of channels. 0: 3/4 of the subsystems."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", self.channels or usual_channels(self.subsystems))


@dataclass(frozen=True)
class Epoch:
    """What an epoch has given."""

    number: int
    cost: float
    """Mean cost per stage, with exploration."""
    exploration: float
    diverged: int
    """Steps in which a state was cut."""


class Training:
    """A training that can be saved after each epoch, and continued."""

    def __init__(self, settings: TrainingSettings) -> None:
        self.settings = settings
        self.plant: Plant = random_plant(settings.subsystems, settings.plant_seed)
        self.channels: Channels = channels_of(settings.subsystems, settings.channels)
        check_scarce(self.channels.count, settings.subsystems)
        self.agent = Agent(
            AgentSettings(settings.subsystems, self.channels.count, settings.units, settings.targets),
            settings.seed,
        )
        self.chances = self.plant.radii / self.plant.radii.sum()
        """Chance of each subsystem in a random choice, shape (N,)."""
        self.rates: list[list[float]] = []
        """Success rates of the last epochs."""
        self.cost_scale = 0.0
        """Median cost of random allocation. 0: not known yet."""
        self.done: list[Epoch] = []

    def run(self, folder: Path | None = None) -> Iterator[Epoch]:
        """Train the epochs that are left, and yield each. With a folder, a checkpoint is written after each."""
        torch.set_num_threads(1)
        with closing(self._environments()) as environments:
            while len(self.done) < self.settings.epochs:
                epoch = self._epoch(environments)
                self.done.append(epoch)
                if folder is not None:
                    self.save(folder)
                yield epoch

    def controller(self) -> Controller:
        """Return a controller with the success rates so far."""
        rates = np.mean(self.rates, axis=0) if self.rates else first_rates(self.plant, self.channels)
        return Controller(self.plant, rates)

    # --- an epoch ------------------------------------------------------------------------------

    def _environments(self) -> gymnasium.vector.VectorEnv:
        make: Callable[[], ChannelEnv] = partial(
            ChannelEnv,
            self.plant,
            self.channels,
            Controller(self.plant, first_rates(self.plant, self.channels)),
            self._steps() + 1,
        )
        count = self.settings.environments
        if count == 1:
            return gymnasium.vector.SyncVectorEnv([make])
        return gymnasium.vector.AsyncVectorEnv([make] * count, context="spawn")

    def _steps(self) -> int:
        """Return the steps of an epoch in each environment."""
        return max(1, self.settings.horizon // self.settings.environments)

    def _epoch(self, environments: gymnasium.vector.VectorEnv) -> Epoch:
        number, settings = len(self.done), self.settings
        random = np.random.default_rng((settings.seed, number))
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
        exploration = self._exploration(number)
        self._set_learning_rate(number)
        options = {"rates": np.mean(self.rates, axis=0)} if self.rates else None
        x, _ = environments.reset(seed=int(random.integers(2**31)), options=options)
        arrived, costs, diverged = np.zeros(settings.subsystems), [], 0
        for _ in range(self._steps()):
            choices, states = self.agent.choose(self.agent.state(x), self._explored(random, exploration))
            x, reward, _, _, info = environments.step(choices)
            costs += (-reward).tolist()
            arrived += info["arrived"].sum(axis=0)
            diverged += int(info["diverged"].sum())
            if self.cost_scale:
                scaled = np.maximum(reward / self.cost_scale, -LARGEST_COST).astype(np.float32)
                self.agent.remember(states, choices, scaled, x)
                for _ in range(self.channels.count * settings.environments):
                    self.agent.fit(generator)
        if number == WARM_UP - 1:
            self.cost_scale = median(costs)
        self.rates = [*self.rates, (arrived / len(costs)).tolist()][-RATE_MEMORY:]
        return Epoch(number, float(np.mean(costs)), exploration, diverged)

    def _explored(self, random: np.random.Generator, exploration: float) -> np.ndarray:
        """Return the random choices, shape (K, M), proportional to the spectral radii, or -1."""
        shape = self.settings.environments, self.channels.count
        drawn = random.choice(self.plant.subsystems, shape, p=self.chances)
        return np.where(random.random(shape) < exploration, drawn, -1)

    def _exploration(self, number: int) -> float:
        falling = max(1, self.settings.exploration_epochs - WARM_UP)
        passed = max(0.0, number - WARM_UP + 1) / falling
        return max(LEAST_EXPLORATION, LEAST_EXPLORATION**passed) if number >= WARM_UP else 1.0

    def _set_learning_rate(self, number: int) -> None:
        for group in self.agent.optimizer.param_groups:
            group["lr"] = self.agent.settings.learning_rate / 3 ** (number // RATE_EPOCHS)

    # --- checkpoints ---------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint. A training that is killed leaves the last complete one."""
        folder.mkdir(parents=True, exist_ok=True)
        memory = self.agent.memory
        state = {
            "settings": asdict(self.settings),
            "network": self.agent.network.state_dict(),
            "target": self.agent.target.state_dict(),
            "optimizer": self.agent.optimizer.state_dict(),
            "memory": {name: getattr(memory, name)[: memory.added] for name in MEMORY},
            "added": memory.added,
            "rates": self.rates,
            "cost_scale": self.cost_scale,
            "epochs": [asdict(one) for one in self.done],
        }
        new = folder / ".checkpoint.new"
        torch.save(state, new)
        new.replace(folder / CHECKPOINT)

    @classmethod
    def load(cls, folder: Path, given: Mapping[str, Any] | None = None) -> "Training":
        """Return the training of a checkpoint. `given`: settings by name. Only the number of epochs may differ.

        Raise ValueError if there is no checkpoint, if it is damaged, or if it has other settings.
        """
        path = folder / CHECKPOINT
        try:
            state = torch.load(path, weights_only=True)
            known = TrainingSettings(**state["settings"])
        except FileNotFoundError:
            raise ValueError(f"{folder} has no checkpoint: train first") from None
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, UnpicklingError) as error:
            raise ValueError(f"{path} is damaged, or is no checkpoint of this program: {error}") from None
        given = given or {}
        for name, value in given.items():
            if name != "epochs" and value != getattr(known, name):
                raise ValueError(f"{path} was trained with {name} = {getattr(known, name)}, not {value}")
        made = cls(replace(known, epochs=given.get("epochs", known.epochs)))
        made.agent.network.load_state_dict(state["network"])
        made.agent.target.load_state_dict(state["target"])
        made.agent.optimizer.load_state_dict(state["optimizer"])
        made.agent.memory.added = state["added"]
        for name in MEMORY:
            getattr(made.agent.memory, name)[: len(state["memory"][name])] = state["memory"][name]
        made.rates, made.cost_scale = state["rates"], state["cost_scale"]
        made.done = [Epoch(**one) for one in state["epochs"]]
        return made


CHECKPOINT = "checkpoint.pt"
MEMORY = ("state", "choice", "reward", "after", "discount")


def first_rates(plant: Plant, channels: Channels) -> np.ndarray:
    """Return the success rates of allocation at random, proportional to the spectral radii. Shape (N,)."""
    chances = plant.radii / plant.radii.sum()
    fails = np.prod([1 - chances * success for success in channels.success], axis=0)
    found: np.ndarray = 1 - fails
    return found
