"""Coupled linear plants, and the channels over which they get their inputs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NOISE_VARIANCE = 0.1
FASTEST, SLOWEST = 1.5, 1.01
"""Range of the poles of unstable subsystems."""
GOOD = (0.1, 0.9, 0.95, 0.75)
BAD = (0.2, 0.8, 0.6, 0.4)
"""A channel: probabilities of good -> bad, of bad -> good, and of success in the good and in the bad state. These are
the older ones of the authors' code."""


@dataclass(frozen=True)
class Plant:
    """N coupled subsystems with two states and one input each: x' = A x + B u + w.

    `a` has shape (2N, 2N), `b` (2N, N). The stage cost is x'Qx + u'Ru with Q = `state_cost` I and R = `input_cost` I.
    """

    a: Array
    b: Array
    state_cost: float = 10.0
    input_cost: float = 5.0

    @property
    def subsystems(self) -> int:
        """N."""
        return int(self.b.shape[1])

    @property
    def radii(self) -> Array:
        """Spectral radius of each subsystem without its neighbours, shape (N,)."""
        blocks = [self.a[2 * one : 2 * one + 2, 2 * one : 2 * one + 2] for one in range(self.subsystems)]
        return np.array([np.abs(np.linalg.eigvals(block)).max() for block in blocks])

    def cost(self, x: Array, u: Array) -> float:
        """Return the cost of a stage."""
        return float(self.state_cost * x @ x + self.input_cost * u @ u)


@dataclass(frozen=True)
class Channels:
    """M channels with two states (Gilbert 1960, Elliott 1963), independent of each other.

    All arrays have shape (M,). The controller does not see the states.
    """

    to_bad: Array
    to_good: Array
    good_success: Array
    bad_success: Array

    def __post_init__(self) -> None:
        rates = np.stack([self.to_bad, self.to_good, self.good_success, self.bad_success])
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError("probabilities of channels must be from 0 to 1")
        if (dead := np.flatnonzero(self.success == 0)).size:
            raise ValueError(f"channel {dead[0]} never succeeds: leave it out")

    @property
    def count(self) -> int:
        """M."""
        return len(self.to_bad)

    @property
    def good_share(self) -> Array:
        """Share of the time that each channel is in its good state. A channel that never changes starts good."""
        changes = self.to_bad + self.to_good
        return np.where(changes > 0, self.to_good / np.where(changes > 0, changes, 1.0), 1.0)

    @property
    def success(self) -> Array:
        """Probability of success of each channel, over a long time."""
        return self.good_share * self.good_success + (1 - self.good_share) * self.bad_success


def usual_channels(subsystems: int) -> int:
    """Return M = 3N/4."""
    return max(1, 3 * subsystems // 4)


def channels_of(subsystems: int, count: int | None = None) -> Channels:
    """Return M channels: a third of them good, the others bad. `count`: M, or None for 3N/4."""
    count = count or usual_channels(subsystems)
    good = max(1, count // 3)
    kinds = np.array([GOOD] * good + [BAD] * (count - good))
    return Channels(*kinds.T)


def random_plant(subsystems: int, seed: int, coupling: float = 0.1) -> Plant:
    """Return a random controllable plant. Half of its subsystems are unstable, with one pole from 1.01 to 1.5.

    `coupling`: standard deviation of the random couplings between subsystems.
    """
    random = np.random.default_rng(seed)
    a = coupling * random.normal(size=(2 * subsystems, 2 * subsystems)) / np.sqrt(subsystems)
    b = np.zeros((2 * subsystems, subsystems))
    for one in range(subsystems):
        rows = slice(2 * one, 2 * one + 2)
        slow = random.uniform(0.2, 0.95)
        fast = random.uniform(SLOWEST, FASTEST) if one < subsystems // 2 else random.uniform(0.2, 0.95)
        turn = np.linalg.qr(random.normal(size=(2, 2)))[0]
        a[rows, rows] = turn @ np.diag([fast, slow]) @ turn.T
        reach = random.uniform(0.5, 1.0, 2) * random.choice((-1, 1), 2)
        b[rows, one] = turn @ reach  # the input moves both modes
    plant = Plant(a, b)
    check_controllable(plant)
    return plant


def check_scarce(channels: int, subsystems: int) -> None:
    """Raise ValueError if each subsystem can have a channel of its own."""
    if channels >= subsystems:
        raise ValueError(
            f"{channels} channels are enough for {subsystems} subsystems: allocation needs fewer channels than "
            "subsystems"
        )


def check_controllable(plant: Plant) -> None:
    """Raise ValueError if an unstable mode of the plant cannot be reached by its inputs (Hautus test)."""
    size = plant.a.shape[0]
    for pole in np.linalg.eigvals(plant.a):
        if (
            abs(pole) >= 1
            and np.linalg.matrix_rank(np.hstack([pole * np.eye(size) - plant.a, plant.b])) < size
        ):
            raise ValueError(
                f"the plant cannot be controlled: no input reaches its mode with the pole {pole:.3g}"
            )
