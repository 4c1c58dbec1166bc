"""Iterative selection by a deep Q-network (Redder et al., section IV): channel by channel, N outputs instead of N^M.

The network sees the state and the channels that were given away so far, and values each subsystem as the next choice.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from channel_allocation.plants import Array

STATE_SCALE = 5.0
DISCOUNT = 0.95
MAX_GRAD_NORM = 10.0
TARGETS = ("terminal", "chain")
"""Forms of the target of a choice. `terminal`: every choice of a step gets the reward and the value of the next state,
as in the authors' runs. `chain`: a choice gets the value of the next choice, and only the last one the reward."""


@dataclass(frozen=True)
class AgentSettings:
    """Settings of the network and of its training."""

    subsystems: int
    channels: int
    units: int = 256
    targets: str = "terminal"
    learning_rate: float = float(np.exp(-6.5))
    batch_size: int = 32
    memory: int = 75_000
    """Number of choices in the replay memory."""
    target_share: float = 0.005
    """The target network moves this share of the way to the network at each fit."""

    def __post_init__(self) -> None:
        if self.targets not in TARGETS:
            raise ValueError(f"targets is {self.targets!r}: it must be one of {', '.join(TARGETS)}")


class Agent:
    """A Q-network, its target network, its optimizer and its replay memory."""

    def __init__(self, settings: AgentSettings, seed: int) -> None:
        self.settings = settings
        size, count = settings.subsystems, settings.channels
        self.inputs = 2 * size + size * count
        generator = torch.Generator().manual_seed(seed)
        self.network = nn.Sequential(
            nn.Linear(self.inputs, settings.units), nn.ReLU(), nn.Linear(settings.units, size)
        )
        for parameter in self.network.parameters():
            bound = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.0
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), settings.learning_rate, fused=True)
        self.memory = Memory(settings.memory, self.inputs)

    def state(self, x: Array) -> np.ndarray:
        """Return the network's input before any choice. `x`: shape (K, 2N). Shape of the result: (K, inputs)."""
        found = np.zeros((len(x), self.inputs), np.float32)
        found[:, : x.shape[1]] = x / STATE_SCALE
        return found

    def choose(self, state: np.ndarray, explore: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the choices of all channels, shape (K, M), and the inputs before and after each, (M + 1, K, inputs).

        `explore`: subsystems to choose instead of the best ones, shape (K, M), or -1.
        """
        size, count = self.settings.subsystems, self.settings.channels
        rows = np.arange(len(state))
        states, choices = [state], np.empty((len(state), count), int)
        for channel in range(count):
            chosen = explore[:, channel].copy()
            if (chosen < 0).any():
                best = self.values(states[-1]).argmax(axis=1)
                chosen = np.where(chosen < 0, best, chosen)
            choices[:, channel] = chosen
            after = states[-1].copy()
            after[rows, 2 * size + channel * size + chosen] = 1.0
            states.append(after)
        return choices, np.stack(states)

    def remember(self, states: np.ndarray, choices: np.ndarray, reward: np.ndarray, next_x: Array) -> None:
        """Add the choices of a step to the memory.

        `reward`: shape (K,). `next_x`: states after the step, shape (K, 2N).
        """
        count = self.settings.channels
        after = self.state(next_x)
        for channel in range(count):
            is_last = channel == count - 1 or self.settings.targets == "terminal"
            self.memory.add(
                states[channel],
                choices[:, channel],
                reward if is_last else np.zeros_like(reward),
                after if is_last else states[channel + 1],
                np.full(len(reward), DISCOUNT if is_last else 1.0, np.float32),
            )

    def fit(self, generator: torch.Generator) -> None:
        """Make one optimizer step with a minibatch that always has the newest choice, and move the target network."""
        state, choice, reward, after, discount = self.memory.sample(self.settings.batch_size, generator)
        with torch.no_grad():
            goal = reward + discount * self.target(after).amax(dim=1)
        value = self.network(state).gather(1, choice.unsqueeze(1)).squeeze(1)
        loss = nn.functional.mse_loss(value, goal)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, self.settings.target_share)

    def allocate(self, x: Array, _random: np.random.Generator) -> np.ndarray:
        """Return the subsystem of each channel for a state of shape (2N,)."""
        explore = np.full((1, self.settings.channels), -1)
        choices, _ = self.choose(self.state(x[np.newaxis]), explore)
        return choices.reshape(-1)

    def values(self, state: np.ndarray) -> np.ndarray:
        """Return the value of each subsystem as the next choice, shape (K, N). `state`: shape (K, inputs)."""
        with torch.no_grad():
            values: Tensor = self.network(torch.from_numpy(state))
        return np.asarray(values.numpy())


class Memory:
    """A ring of choices: state, choice, reward, state after it, discount of that state's value."""

    def __init__(self, size: int, inputs: int) -> None:
        self.state, self.after = torch.zeros(size, inputs), torch.zeros(size, inputs)
        self.choice = torch.zeros(size, dtype=torch.int64)
        self.reward, self.discount = torch.zeros(size), torch.zeros(size)
        self.added = 0

    def add(
        self,
        state: np.ndarray,
        choice: np.ndarray,
        reward: np.ndarray,
        after: np.ndarray,
        discount: np.ndarray,
    ) -> None:
        """Add K choices, in place of the oldest ones."""
        at = (self.added + torch.arange(len(choice))) % len(self.choice)
        self.state[at], self.after[at] = torch.from_numpy(state), torch.from_numpy(after)
        self.choice[at] = torch.from_numpy(choice)
        self.reward[at], self.discount[at] = torch.from_numpy(reward), torch.from_numpy(discount)
        self.added += len(choice)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return `count` choices: the newest one, and others at random."""
        filled = min(self.added, len(self.choice))
        at = torch.randint(filled, (count,), generator=generator)
        at[0] = (self.added - 1) % len(self.choice)
        return self.state[at], self.choice[at], self.reward[at], self.after[at], self.discount[at]
