"""Learnt allocation of scarce channels (DIRA): the example `examples/channel_allocation`.

Median costs per stage of the learnt allocation over those of baselines, on random plants with the seeds 0, 1, 2, ...
A diverged training counts like any other. Each ratio is of one plant, and the figure is the median over the plants.

python -m benchmarks.allocation [--quick|--smoke] [--save]
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import Measured, Size, cores, finish, median_and_range, parse, parser, show

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "channel_allocation"))

from channel_allocation.agent import Agent, AgentSettings
from channel_allocation.evaluation import evaluate, evaluate_bound
from channel_allocation.plants import BAD, GOOD, channels_of, random_plant
from channel_allocation.policies import baseline, baselines
from channel_allocation.training import Training, TrainingSettings

BASELINES = ("uniform", "intelligent_random", "round_robin", "largest_norm", "greedy", "exhaustive")
"""The last two know the model of the plant, which the network does not. The last one is for N = 4 only."""
UNITS = 256
DECISIONS = 200


class Plan(NamedTuple):
    """A plant to train on."""

    subsystems: int
    seed: int
    epochs: int
    horizon: int
    episodes: int


def main() -> None:
    """Measure, print the tables and the figures."""
    options = parse(parser("allocation", __doc__, "5 plants at N = 4 and 3 at N = 8, within 6 minutes"))
    size: Size = options.size
    plants = size.pick({4: 1, 8: 1, 12: 1, 16: 1}, {4: 5, 8: 3}, {4: 5, 8: 5, 12: 5, 16: 5})
    epochs, horizon, episodes = size.pick((3, 20, 1), (20, 500, 10), (40, 500, 20))
    plans = [Plan(n, seed, epochs, horizon, episodes) for n, count in plants.items() for seed in range(count)]
    plans.sort(reverse=True)
    with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:
        costs = dict(zip(plans, pool.map(_costs, plans), strict=True))
    found: dict[str, Measured] = {"diverged": float(sum(one["diverged"] for one in costs.values()))}
    for n in plants:
        of_size = [one for plan, one in costs.items() if plan.subsystems == n]
        for key, name in (
            ("random", "intelligent_random"),
            ("largest_norm", "largest_norm"),
            ("bound", "bound"),
            ("greedy", "greedy"),
            ("exhaustive", "exhaustive"),
        ):
            if all(name in one for one in of_size):
                found[f"dira_over_{key}_{n}"] = [one["learnt"] / one[name] for one in of_size]
    found |= {
        "outputs_16": float(_outputs(16)),
        "joint_actions_16": 16.0**12,
        "seconds_per_decision_16": _seconds_per_decision(),
    }
    _show(plans, costs, found)
    finish(options, found)


def _costs(plan: Plan) -> dict[str, float]:
    """Train on a plant, and return the costs by allocation."""
    settings = TrainingSettings(
        plan.subsystems,
        plant_seed=plan.seed,
        epochs=plan.epochs,
        exploration_epochs=7 * plan.epochs // 10,
        horizon=plan.horizon,
        units=UNITS,
    )
    training = Training(settings)
    before = time.perf_counter()
    list(training.run())
    seconds = time.perf_counter() - before
    plant, channels = training.plant, training.channels
    learnt = evaluate(
        plant, channels, lambda _: training.agent.allocate, training.controller(), plan.episodes
    )
    costs = {"seconds": seconds, "learnt": learnt.median, "diverged": float(learnt.diverged > 0)}
    known = baselines(plant, channels, training.controller())
    for name in (one for one in BASELINES if one in known):
        costs[name] = evaluate(
            plant, channels, baseline(plant, channels, name), episodes=plan.episodes
        ).median
    return costs | {"bound": evaluate_bound(plant, channels, plan.episodes).median}


def _outputs(subsystems: int) -> int:
    """Return the number of outputs of the network."""
    agent = Agent(AgentSettings(subsystems, channels_of(subsystems).count, UNITS), 0)
    return int(agent.values(agent.state(np.zeros((1, 2 * subsystems)))).shape[1])


def _seconds_per_decision() -> float:
    """Return the seconds in which an untrained network gives 12 channels to 16 subsystems."""
    agent = Agent(AgentSettings(16, channels_of(16).count, UNITS), 0)
    random = np.random.default_rng(0)
    states = random.normal(size=(DECISIONS, 32))
    before = time.perf_counter()
    for x in states:
        agent.allocate(x, random)
    return (time.perf_counter() - before) / DECISIONS


def _show(plans: list[Plan], costs: dict[Plan, dict[str, float]], found: dict[str, Measured]) -> None:
    plant = random_plant(4, 0)
    print(
        f"channels (good -> bad, bad -> good, success good, bad): a third {GOOD}, the others {BAD}; "
        f"Q = {plant.state_cost:g} I, R = {plant.input_cost:g} I; training seed 0; {UNITS} units"
    )
    names = ("bound", "learnt", *BASELINES, "seconds")
    rows = [
        [
            f"{plan.subsystems}",
            f"{plan.seed}",
            *(f"{costs[plan][name]:.1f}" if name in costs[plan] else "-" for name in names),
        ]
        for plan in sorted(plans)
    ]
    show("Median cost per stage", ["N", "plant", *names], rows)
    shown = [[key, median_and_range(value)] for key, value in found.items() if isinstance(value, list)]
    show("Learnt allocation over others", ["figure", "median (range)"], shown)


if __name__ == "__main__":
    main()
