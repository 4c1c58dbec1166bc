"""Adaptive gossip: a peer averages its model with another peer's when its own model has changed enough."""

from dataclasses import dataclass, field
from math import exp, inf, sqrt
from typing import Annotated, Literal

from oddlot.core.commands import DriftOf
from oddlot.core.events import Changed, ModelReceived
from oddlot.core.peers import Drift
from oddlot.core.strategy import STATE, View
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, Must
from oddlot.strategies.support.peer_averaging import Fraction, PeerAveraging

Rule = Literal["norm", "layer", "path", "lr"]
RULES: tuple[Rule, ...] = ("norm", "layer", "path", "lr")
GAIN, MAX_GAIN = 0.1, 0.5
"""Change of the logarithm of the threshold per exchange above the budget, relative to the budget, and its limit."""
NEAR_ZERO = 0.5
"""Share of the root mean square norm of the layers below which a layer is near zero."""


@dataclass
class AdaptiveGossip(PeerAveraging):
    """Train on every peer, and average models with another peer when its weights have changed enough.

    The change is measured from the weights right after the last exchange. Rules:

    - `norm`: the norm of the change is more than `threshold` times the norm of the weights after the last exchange.
    - `layer`: the same for any one layer. Layers near zero are ignored, such as most biases.
    - `path`: the same for the sum of the norms of all steps since then.
    - `lr`: as `norm`, with a threshold that falls with the learning rate schedule.

    With `norm`, `layer` and `path`, peers exchange often at first and rarely at the end, and their models drift apart:
    the model of the run is the average of all peers.

    Paper: Ho, Wu, Liu, "Adaptive Communication for Distributed Deep Learning on Commodity GPU Cluster" (CCGRID 2018),
    for exchanges by the change of the local model.
    """

    rule: Annotated[Rule, Must(f"one of {', '.join(RULES)}", lambda value: value in RULES)] = "norm"
    """What is compared with the threshold."""
    threshold: AboveZero = 0.12
    """Relative change from which a peer exchanges. With a budget, its value at the start."""
    budget_share: Fraction | None = None
    """Share of steps that are followed by an exchange, to which the threshold is steered. None: no such budget."""
    budget_bytes_per_second: AboveZero | None = None
    """Bytes per second that this peer receives, to which the threshold is steered. None: no such budget."""
    path: float = field(default=0.0, metadata=STATE)
    """Sum of the norms of the steps since the last exchange."""
    steered: float = field(default=0.0, metadata=STATE)
    """Threshold after adaptation to a budget. 0: not adapted yet."""
    seconds_per_step: float = field(default=0.0, metadata=STATE)
    """Running mean of the time between steps, exchanges included."""
    stepped_at: float | None = field(default=None, metadata=STATE)
    """Time of the last step."""
    bytes_per_exchange: float = field(default=0.0, metadata=STATE)
    """Bytes of the last received model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget_share is not None and self.budget_bytes_per_second is not None:
            message = "budget_share and budget_bytes_per_second exclude each other: set one of them"
            raise UsageError(
                message, "not_one_of", "budget_share", given=["budget_share", "budget_bytes_per_second"]
            )

    @property
    def measures(self) -> DriftOf:
        """Return the kind of change that each step must measure."""
        return "layers" if self.rule == "layer" else "model"

    @property
    def window(self) -> int:
        """Return 1 if the norm of each step is needed."""
        return int(self.rule == "path")

    def is_due(self, view: View, changed: Changed | None) -> bool:
        """Return whether the weights have changed enough."""
        if changed is None or changed.drift is None:
            return False
        self.path += changed.norm or 0.0
        is_due = self._change(changed.drift) > self._threshold
        self._steer(view, is_due and not self.awaits)
        return is_due

    def exchanged(self) -> None:
        """Start a new path."""
        self.path = 0.0

    def received(self, event: ModelReceived) -> None:
        """Record the size of the model, for a budget of bytes."""
        self.bytes_per_exchange = float(event.bytes)

    @property
    def _threshold(self) -> float:
        return self.steered or self.threshold

    def _change(self, drift: Drift) -> float:
        match self.rule:
            case "layer":
                small = NEAR_ZERO * drift.marked_norm / sqrt(max(1, len(drift.layers)))
                changes = [
                    layer.distance / layer.marked_norm for layer in drift.layers if layer.marked_norm > small
                ]
                return max(changes, default=drift.relative)
            case "path":
                return self.path / drift.marked_norm if drift.marked_norm else inf
            case "lr":
                return drift.relative / drift.lr_factor if drift.lr_factor else 0.0
            case _:
                return drift.relative

    def _steer(self, view: View, is_due: bool) -> None:
        """Raise the threshold after an exchange, and lower it after a step without one, to meet the budget."""
        share = self._budget(view)
        if share is not None:
            self.steered = self._threshold * exp(min(GAIN / share, MAX_GAIN) * (is_due - share))

    def _budget(self, view: View) -> float | None:
        if self.budget_bytes_per_second is None:
            return self.budget_share
        if self.stepped_at is not None:
            seconds = view.now - self.stepped_at
            before = self.seconds_per_step or seconds
            self.seconds_per_step = before + 0.05 * (seconds - before)
        self.stepped_at = view.now
        if not self.bytes_per_exchange:
            return 1.0
        # With push_pull, other peers start the same number of exchanges with this peer on average.
        models = 2 if self.mode == "push_pull" else 1
        received = models * self.bytes_per_exchange
        return min(1.0, self.budget_bytes_per_second * self.seconds_per_step / received)
