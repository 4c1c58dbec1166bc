"""Learnt allocation of scarce channels: python -m channel_allocation train|evaluate|plot."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from channel_allocation.evaluation import Cost, evaluate, evaluate_bound
from channel_allocation.plot import save_plot
from channel_allocation.policies import baseline, baselines
from channel_allocation.training import CHECKPOINT, Training, TrainingSettings

COSTS = "costs.json"
SETTINGS = {
    "subsystems": (1, "N", "number of control loops"),
    "channels": (1, "M", "number of channels, fewer than control loops"),
    "plant_seed": (0, "SEED", "seed of the plant"),
    "seed": (0, "SEED", "seed of the training"),
    "epochs": (1, "EPOCHS", "number of epochs"),
    "exploration_epochs": (1, "EPOCHS", "epochs until exploration has fallen to its lowest value"),
    "horizon": (1, "STEPS", "steps of an epoch"),
    "units": (1, "UNITS", "hidden units of the network"),
    "environments": (1, "COUNT", "environments at once, each in a process"),
}
"""Options of `train`: the smallest value, the name of the value, and the help."""
_USUAL = {"channels": "3/4 of N"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit code: 0, 2 after bad input, or 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        _COMMANDS[options.command](options)
    except ValueError as error:
        print(f"channel_allocation: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"channel_allocation: {stop if stop.args else 'stopped'}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m channel_allocation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train an allocation for a random plant")
    for name, (least, metavar, text) in SETTINGS.items():
        usual = _USUAL.get(name, getattr(TrainingSettings, name))
        train.add_argument(
            "--" + name.replace("_", "-"),
            type=_at_least(least),
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=f"{text} (default: {usual})",
        )
    train.add_argument(
        "--targets", default=argparse.SUPPRESS, help="form of the targets: terminal (default) or chain"
    )
    train.add_argument("--out", type=Path, default=Path("runs/allocation"), help="folder of the training")
    train.add_argument(
        "--resume", action="store_true", help="continue the training in the folder, with its settings"
    )
    measure = commands.add_parser("evaluate", help="compare a training with all baselines")
    measure.add_argument("folder", type=Path, nargs="?", default=Path("runs/allocation"))
    measure.add_argument(
        "--subsystems", type=_at_least(1), metavar="N", help="number of loops that the training must have"
    )
    measure.add_argument("--episodes", type=_at_least(1), default=20, help="test episodes (default: 20)")
    plot = commands.add_parser("plot", help="draw trainings that were evaluated")
    plot.add_argument("folders", type=Path, nargs="+")
    plot.add_argument("--out", type=Path, default=Path("allocation.svg"))
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    """Return a type of options: whole numbers from `least` on."""

    def integer(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is too small: it must be at least {least}")
        return value

    return integer


def _train(options: argparse.Namespace) -> None:
    names = {field.name for field in fields(TrainingSettings)}
    given = {name: value for name, value in vars(options).items() if name in names}
    if options.resume:
        training = Training.load(options.out, given)
    elif (options.out / CHECKPOINT).exists():
        raise ValueError(f"{options.out} has a training already: pass --resume, or another --out")
    else:
        training = Training(TrainingSettings(**given))
    epochs = training.settings.epochs
    if (done := len(training.done)) >= epochs:
        print(f"{options.out} is finished: it has {done} epochs. Pass a larger --epochs to continue it")
        return
    try:
        for epoch in training.run(options.out):
            print(
                f"epoch {epoch.number + 1} of {epochs}: cost {epoch.cost:.1f}, exploration {epoch.exploration:.2f}"
                + (f", {epoch.diverged} steps diverged" if epoch.diverged else "")
            )
    except KeyboardInterrupt:
        done = len(training.done)
        advice = (
            f"after epoch {done}: continue with --resume" if done else "before the end of the first epoch"
        )
        raise KeyboardInterrupt(f"stopped {advice}") from None


def _evaluate(options: argparse.Namespace) -> None:
    training = Training.load(options.folder)
    if options.subsystems not in {None, training.settings.subsystems}:
        found = training.settings.subsystems
        raise ValueError(f"{options.folder} was trained with N = {found}, not {options.subsystems}")
    plant, channels = training.plant, training.channels
    costs: dict[str, Cost] = {"perfect channels": evaluate_bound(plant, channels, options.episodes)}
    costs["learnt"] = evaluate(
        plant, channels, lambda _: training.agent.allocate, training.controller(), options.episodes
    )
    for name in baselines(plant, channels, training.controller()):
        costs[name] = evaluate(plant, channels, baseline(plant, channels, name), episodes=options.episodes)
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
