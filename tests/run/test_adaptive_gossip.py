"""Compare exchanges of `adaptive_gossip` with a plain loop that applies each rule itself."""

from collections.abc import Callable, Iterator
from math import sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import AdaptiveGossip, Machine, Simulated, fit
from oddlot.core.commands import Request, Step
from oddlot.data.batches import order
from oddlot.lr_schedules import Linear
from oddlot.strategies.adaptive_gossip import NEAR_ZERO, Rule
from tests.fits import BATCH, a_job, net, rows

SAMPLES, EPOCHS, THRESHOLD = 96, 4, 0.1
Weights = list[Tensor]


def trained() -> Iterator[tuple[Weights, float]]:
    """Yield a peer's weights, initially and after each step, with the factor of its learning rate.

    It is the first of two peers.
    """
    torch.manual_seed(0)
    model, (points, sides) = net(), rows(SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done, total, factor = 0, EPOCHS * SAMPLES // 2, 1.0
    yield [one.detach().clone() for one in model.parameters()], factor
    for epoch in range(EPOCHS):
        mine = torch.as_tensor(order(0, epoch, SAMPLES)[: SAMPLES // 2])
        for batch in mine.reshape(-1, BATCH):
            factor = 1 - done / total
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * factor
            optimizer.zero_grad()
            cross_entropy(model(points[batch]), sides[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += len(batch)
            yield [one.detach().clone() for one in model.parameters()], factor


def norm(weights: Weights) -> float:
    """Return the norm of all layers together."""
    return float(torch.cat([one.flatten() for one in weights]).norm())


def moved(weights: Weights, marked: Weights) -> float:
    """Return the distance between two models over all layers together."""
    return norm([one - other for one, other in zip(weights, marked, strict=True)])


def of_layers(weights: Weights, marked: Weights, path: float, factor: float) -> float:
    """Return the largest relative change of a layer, except for layers near zero."""
    small = NEAR_ZERO * norm(marked) / sqrt(len(marked))
    pairs = [(one, other) for one, other in zip(weights, marked, strict=True) if other.norm() > small]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


CHANGES: dict[Rule, Callable[[Weights, Weights, float, float], float]] = {
    "norm": lambda weights, marked, path, factor: moved(weights, marked) / norm(marked),
    "layer": of_layers,
    "path": lambda weights, marked, path, factor: path / norm(marked),
    "lr": lambda weights, marked, path, factor: moved(weights, marked) / norm(marked) / factor,
}


def with_small_biases() -> nn.Module:
    """Return a network with initial biases near zero."""
    model = net()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(parameter, 1e-4)
    return model


def test_small_bias_causes_no_exchange() -> None:
    """The relative change of such a bias is large after the first step, when weights have hardly moved."""
    on = Simulated([Machine(f"m{peer}", 0.01 / BATCH) for peer in range(2)])
    job = a_job(count=SAMPLES, model=with_small_biases)
    run = fit(job, AdaptiveGossip(rule="layer", threshold=0.5), on, until=f"samples>={4 * BATCH}")
    assert run.summary["exchanges"] == 0


@pytest.mark.parametrize("rule", CHANGES)
def test_peer_exchanges_when_its_rule_fires(rule: Rule) -> None:
    """A tiny share of the other model lets each peer train like a single peer."""
    strategy = AdaptiveGossip(rule=rule, threshold=THRESHOLD, share=1e-9)
    on = Simulated([Machine(f"m{peer}", 0.01 / BATCH) for peer in range(2)])
    job = a_job(count=SAMPLES, lr_schedule=Linear(float(EPOCHS)))
    run = fit(job, strategy, on, until=f"epochs>={EPOCHS}")
    actions = [action for record in run.records if record.peer == "m0" for action in record.actions]
    steps, asked = 0, []
    for action in actions:
        steps += isinstance(action, Step)
        asked += [steps] if isinstance(action, Request) else []
    expected, path = [], 0.0
    states = trained()
    marked, _ = before = next(states)
    for step, (weights, factor) in enumerate(states, 1):
        path += moved(weights, before[0])
        before = weights, factor
        if CHANGES[rule](weights, marked, path, factor) > THRESHOLD:
            expected.append(step)
            marked, path = weights, 0.0
    assert 2 < len(expected) < steps
    assert asked == expected
