"""The best momentum on least squares, measured with asynchronous groups and predicted by theorem 7."""

import torch
from torch import Tensor, nn

from benchmarks.report import show
from oddlot import SGD, Job, Machine, Simulated, Synchronous, fit
from oddlot.machines import Exponential
from oddlot.planner.statistical_efficiency import best_momentum, theorem_7_rate, updates_needed
from oddlot.strategies import Groups

LR = 0.25
MOMENTA = tuple(round(-0.9 + 0.1 * number, 1) for number in range(19))
NEAR = 3
"""Steps of the grid that are measured on both sides of the prediction."""


class Quadratic(nn.Module):
    """A weight per curvature. The loss is half the curvature times the weight squared."""

    def __init__(self, curvatures: tuple[float, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(len(curvatures)))
        self.register_buffer("curvatures", torch.tensor(curvatures))

    def forward(self, _: Tensor) -> Tensor:
        """Return the loss."""
        curvatures: Tensor = self.get_buffer("curvatures")
        return 0.5 * (curvatures * self.weight.square()).sum()


def distance(condition: float, groups: int, momentum: float, updates: int, seeds: int) -> float:
    """Return the distance of the mean weights of several runs from the optimum."""
    curvatures = (1.0, 1 / condition)
    job = Job(
        lambda: Quadratic(curvatures),
        (torch.zeros(10_000, 1),),
        training_step=lambda model, batch: model(batch[0]),
        optimizer=SGD(lr=LR, momentum=momentum),
        batch_size=1,
    )
    engine = Simulated([Machine(f"m{number}", 1.0, Exponential()) for number in range(groups)])
    total = torch.zeros(len(curvatures))
    for seed in range(seeds):
        strategy = Groups(Synchronous(), groups=groups)
        run = fit(job, strategy, engine, until=f"versions>={updates}", seed=seed, quiet=True)
        total += run.model.get_parameter("weight").detach()
    return float((total / seeds).norm())


def differences(conditions: tuple[float, ...], groups: tuple[int, ...], seeds: int) -> list[float]:
    """Return the differences between the best measured and the best predicted momentum."""
    found, rows = [], []
    for condition in conditions:
        for count in groups:
            predicted, rate = best_momentum(LR, (1.0, 1 / condition), count, MOMENTA)
            updates = min(300, max(20, round(updates_needed(rate, 0.02))))
            at = MOMENTA.index(predicted)
            tried = MOMENTA[max(0, at - NEAR) : at + NEAR + 1]
            far = {
                each: distance(condition, count, each, updates, 1 if count == 1 else seeds) for each in tried
            }
            measured = min(far, key=far.__getitem__)
            found.append(abs(measured - predicted))
            rates = [theorem_7_rate(LR, each, (1.0, 1 / condition), count) for each in (measured, 0.9)]
            costs = [updates_needed(each, 0.02) / updates_needed(rate, 0.02) for each in rates]
            rows.append(
                [
                    f"{condition:g}",
                    f"{count}",
                    f"{predicted:.1f}",
                    f"{measured:.1f}",
                    *(f"{cost:.2f}" for cost in costs),
                ]
            )
    show(
        f"best momentum at a learning rate of {LR}, {seeds} runs each",
        ["condition", "groups", "theorem 7", "measured", "updates by theorem 7", "... with 0.9"],
        rows,
    )
    return found
