"""Compare EventGraD on the simulated mesh with a plain PyTorch loop."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import EventGrad, Run, UsageError, fit
from oddlot.core.commands import Dispatch
from oddlot.core.events import Changed
from oddlot.data.batches import order
from tests.fits import BATCH, a_job, equals, net, rows
from tests.transcripts import raises

PEERS, SAMPLES, EPOCHS, WARMUP = 4, 96, 10, 5
STEPS = EPOCHS * SAMPLES // PEERS // BATCH
Layers = dict[str, Tensor]


def wide() -> nn.Module:
    """Return the small network in float64, because rounding must not decide whether a layer is sent."""
    return net().double()


def wide_rows() -> tuple[Tensor, Tensor]:
    points, sides = rows(SAMPLES)
    return points.double(), sides


@dataclass
class PlainPeer:
    """A peer of the plain loop, with the statements of the authors' code."""

    number: int
    horizon: float
    constant: float | None
    copies: dict[int, Layers] = field(default_factory=dict)
    """Last received layers of both neighbors."""
    sent: list[tuple[int, str]] = field(default_factory=list)
    """Layers that were sent, each with its step."""

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = wide()
        self.weights = dict(self.model.named_parameters())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.last_norm = dict.fromkeys(self.weights, 0.0)
        self.last_step = dict.fromkeys(self.weights, 1)
        self.threshold = dict.fromkeys(self.weights, 0.0)
        self.slopes: dict[str, tuple[float, float]] = dict.fromkeys(self.weights, (0.0, 0.0))

    @property
    def neighbors(self) -> tuple[int, int]:
        return (self.number - 1) % PEERS, (self.number + 1) % PEERS

    def compute_gradient(self, batch: Tensor) -> None:
        points, sides = wide_rows()
        self.optimizer.zero_grad()
        cross_entropy(self.model(points[batch]), sides[batch]).backward()  # type: ignore[no-untyped-call]

    def layers_due(self, step: int) -> Layers:
        """Return the layers to send before the average of this step."""
        due = Layers()
        for name, weight in self.weights.items():
            norm = weight.detach().norm().item()
            self.threshold[name] *= self.horizon
            limit = self.threshold[name] if self.constant is None else self.constant
            change = abs(norm - self.last_norm[name])
            if change >= limit or step < WARMUP:
                self.slopes[name] = self.slopes[name][1], change / (step - self.last_step[name])
                self.threshold[name] = sum(self.slopes[name]) / 2
                self.last_norm[name], self.last_step[name] = norm, step
                self.sent.append((step, name))
                due[name] = weight.detach().clone()
        return due

    def average_and_step(self) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                for copy in self.copies.values():
                    weight.add_(copy[name])
                weight.div_(3)
        self.optimizer.step()


def plain_loop(horizon: float, constant: float | None) -> list[PlainPeer]:
    """Train all peers in lockstep. Layers sent before an average are part of the neighbors' average.

    No peer sends before step 1, because all have the same weights.
    """
    peers = [PlainPeer(number, horizon, constant) for number in range(PEERS)]
    share = SAMPLES // PEERS
    for peer in peers:
        own = {name: weight.detach().clone() for name, weight in peer.weights.items()}
        peer.copies = {neighbor: dict(own) for neighbor in peer.neighbors}
    for step in range(1, STEPS + 1):
        epoch, turn = divmod(step - 1, share // BATCH)
        for peer in peers:
            first = peer.number * share + turn * BATCH
            peer.compute_gradient(torch.as_tensor(order(0, epoch, SAMPLES)[first : first + BATCH].copy()))
            due = peer.layers_due(step) if step > 1 else {}
            for neighbor in peer.neighbors:
                peers[neighbor].copies[peer.number].update(due)
        for peer in peers:
            peer.average_and_step()
    return peers


def sent_layers(run: Run, peer: str) -> list[tuple[int, str]]:
    """Return the layers sent to the peer's first neighbor, with the step of the average that includes them."""
    names, sent, step = list(dict(net().named_parameters())), [], 1
    for record in run.records:
        if record.peer == peer and isinstance(record.event, Changed):
            step += 1
            for model in [action.model for action in record.actions if isinstance(action, Dispatch)][:1]:
                layers = range(len(names)) if model.layers is None else model.layers
                sent += [(step, names[layer]) for layer in layers]
    return sent


@pytest.mark.parametrize(("horizon", "constant"), [(1.0, None), (0.9, None), (1.0, 0.02)])
def test_event_grad_equals_a_plain_loop(horizon: float, constant: float | None) -> None:
    job = replace(a_job(wide, SAMPLES), train_data=wide_rows())
    strategy = EventGrad(horizon, constant, warmup_steps=WARMUP)
    run = fit(job, strategy, equals(PEERS), until=f"epochs>={EPOCHS}", seed=0)
    loop = plain_loop(horizon, constant)
    for peer in loop:
        sent = [one for one in sent_layers(run, f"m{peer.number}") if one[0] <= STEPS]
        assert sent == peer.sent
        assert len(sent) < 0.8 * STEPS * len(peer.weights)
    for name, value in run.model.state_dict().items():
        mean = torch.stack([peer.weights[name].detach() for peer in loop]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-9, atol=1e-12)


def test_horizon_with_constant_threshold_is_rejected() -> None:
    with raises(UsageError, "not_one_of"):
        EventGrad(horizon=0.9, threshold=0.01)
