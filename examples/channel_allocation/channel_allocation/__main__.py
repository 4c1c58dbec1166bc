"""Learnt allocation of scarce channels: python -m channel_allocation train|evaluate|plot."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from channel_allocation.evaluation import Cost, evaluate, evaluate_bound
from channel_allocation.plot import save_plot
from channel_allocation.policies import baseline, baselines
from channel_allocation.training import CHECKPOINT, Training, TrainingSettings

COSTS = "costs.json"
SLOW = ("greedy", "exhaustive")
"""Allocations that are evaluated over fewer episodes, because they search in each step."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _COMMANDS[options.command](options)
    except ValueError as error:
        print(f"channel_allocation: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m channel_allocation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train an allocation for a random plant")
    train.add_argument("--subsystems", type=int, default=4, metavar="N", help="number of control loops")
    train.add_argument("--plant-seed", type=int, default=0, metavar="SEED")
    train.add_argument("--seed", type=int, default=0, help="seed of the training")
    train.add_argument("--epochs", type=int, default=20)
    train.add_argument("--horizon", type=int, default=500, help="steps of an epoch")
    train.add_argument("--units", type=int, default=256, help="hidden units of the network")
    train.add_argument("--environments", type=int, default=1, help="environments at once, each in a process")
    train.add_argument("--targets", default="terminal", help="form of the targets: terminal or chain")
    train.add_argument("--out", type=Path, default=Path("runs/allocation"), help="folder of the training")
    train.add_argument("--resume", action="store_true", help="continue the training in the folder")
    measure = commands.add_parser("evaluate", help="compare a training with all baselines")
    measure.add_argument("folder", type=Path, nargs="?", default=Path("runs/allocation"))
    measure.add_argument(
        "--subsystems", type=int, metavar="N", help="number of loops that the training must have"
    )
    measure.add_argument("--episodes", type=int, default=20)
    plot = commands.add_parser("plot", help="draw trainings that were evaluated")
    plot.add_argument("folders", type=Path, nargs="+")
    plot.add_argument("--out", type=Path, default=Path("allocation.svg"))
    return parser


def _train(options: argparse.Namespace) -> None:
    names = ("subsystems", "plant_seed", "seed", "epochs", "horizon", "environments", "units", "targets")
    settings = TrainingSettings(**{name: getattr(options, name) for name in names})
    if options.resume:
        training = Training.load(options.out, settings)
    elif (options.out / CHECKPOINT).exists():
        raise ValueError(f"{options.out} has a training already: pass --resume, or another --out")
    else:
        training = Training(settings)
    for epoch in training.run(options.out):
        print(
            f"epoch {epoch.number + 1} of {settings.epochs}: cost {epoch.cost:.1f}, exploration {epoch.exploration:.2f}"
            + (f", {epoch.diverged} steps diverged" if epoch.diverged else "")
        )


def _evaluate(options: argparse.Namespace) -> None:
    training = Training.load(options.folder)
    if options.subsystems not in {None, training.settings.subsystems}:
        found = training.settings.subsystems
        raise ValueError(f"{options.folder} was trained with N = {found}, not {options.subsystems}")
    plant, channels = training.plant, training.channels
    costs: dict[str, Cost] = {"perfect channels": evaluate_bound(plant, options.episodes)}
    costs["learnt"] = evaluate(
        plant, channels, lambda _: training.agent.allocate, training.controller(), options.episodes
    )
    for name in baselines(plant, channels, training.controller()):
        episodes = max(1, options.episodes // 5) if name in SLOW else options.episodes
        costs[name] = evaluate(plant, channels, baseline(plant, channels, name), episodes=episodes)
    print(f"N = {plant.subsystems}, M = {channels.count}: median cost per stage (diverged episodes)")
    for name, cost in costs.items():
        print(f"  {name:20} {cost.median:10.1f} ({cost.diverged} of {len(cost.episodes)})")
    text = {name: {"median": cost.median, "diverged": cost.diverged} for name, cost in costs.items()}
    (options.folder / COSTS).write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")


def _plot(options: argparse.Namespace) -> None:
    over: dict[str, list[tuple[float, float]]] = {}
    by_size: dict[str, list[tuple[float, float]]] = {}
    for folder in options.folders:
        training = Training.load(folder)
        over[f"N = {training.settings.subsystems} ({folder.name})"] = [
            (one.number + 1, one.cost) for one in training.done
        ]
        path = folder / COSTS
        if not path.is_file():
            raise ValueError(f"{folder} was not evaluated: run evaluate first")
        for name, cost in json.loads(path.read_text(encoding="utf-8")).items():
            by_size.setdefault(name, []).append((training.settings.subsystems, cost["median"]))
    save_plot(options.out, over, {name: sorted(points) for name, points in by_size.items()})
    print(f"written: {options.out}")


_COMMANDS = {"train": _train, "evaluate": _evaluate, "plot": _plot}

if __name__ == "__main__":
    sys.exit(main())
