"""Ray workers compared with local workers, and with Ray Train while nodes are lost.

Everything runs on one machine, on clusters of several Ray nodes. A step computes for a quarter of its time and waits
for the rest, to simulate an accelerator.

ODDLOT_DATA=... python -m benchmarks.ray [--quick|--smoke] [--save] [--only PART ...]

- speed: samples per second of two Ray workers / two local workers, in alternating blocks, with two tasks in flight.
- rates: search of learning rate and momentum for the part losses, on one grid for both sides: seconds to an accuracy of
  0.95 without losses, three seeds. oddlot runs on its simulator. Ray Train's side runs in one process with the
  minibatches of both workers. --quick uses the saved values.
- losses: the same job with oddlot and with Ray Train (`pip install "ray[train]"`; TorchTrainer with gloo, its options
  against preemptions enabled; checkpoints every 10 s on both sides), without losses and while nodes are killed without
  notice. Another node joins 10 s after each loss. Seconds are counted from the first step to the last one, or to the
  first model with an accuracy of 0.95.
- trace: nodes come and go as in a recorded spot market. A machine counts from the time when its worker joins.
  Then a worker is killed, and a node is frozen.
"""

import argparse
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isinf

from benchmarks.figures import RAY
from benchmarks.ray import losses, speed, trace, train_peer, tuning
from benchmarks.ray.job import BATCH, COMPUTED, STEP_SECONDS, TARGET, WORKERS, Rate, step_rate
from benchmarks.ray.nodes import cluster
from benchmarks.report import NOT_REACHED, Measured, Size, finish, median_and_range, parse, parser, show
from oddlot.workloads.digits import digits

STORE_BYTES = 2_500_000_000
"""Size of the object store in bytes, for the weights and updates of 25 million parameters."""
SPEED = {"20ms": (1_000_000, 0.02), "200ms": (1_000_000, 0.2), "25m": (25_000_000, 0.2)}
FRACTIONS = {Size.QUICK: (0.25, 0.8), Size.FULL: (0.2, 0.4, 0.6, 0.8)}
EPOCHS = {Size.SMOKE: 1, Size.QUICK: 6, Size.FULL: 12}
"""Epochs of the job with losses: a few seconds, about 30 s, and about 60 s."""
UNDISTURBED_EPOCHS = {Size.QUICK: 4, Size.FULL: 12}
KINDS = {"elastic": True, "fixed": False}
UNDISTURBED_IN_FLIGHT = 2
"""Open tasks per worker in the run without losses."""


def measure_speed(size: Size) -> dict[str, Measured]:
    """Measure the speed, and count the copies."""
    short, long, count = size.pick((0.5, 0.5, 1), (2.0, 4.0, 2), (8.0, 8.0, 5))
    found: dict[str, Measured] = {}
    part = size.pick(100, 1, 1)
    with cluster(store_bytes=STORE_BYTES):
        for name, (parameters, seconds) in SPEED.items():
            block = short if seconds < 0.1 else long
            found[f"ray_over_local_{name}"] = speed.ratios(parameters // part, seconds, block, count)
        found["copies_per_update_in"], found["copies_per_update_out"] = speed.copies(1_000_000, 20)
    return found


def measure_rates(size: Size) -> dict[str, Measured]:
    """Search learning rate and momentum of both sides."""
    found = tuning.search(size)
    pairs = {tuning.KEYS[side]: (rate.lr, rate.momentum) for side, rate in found.items()}
    return {key: value for keys, values in pairs.items() for key, value in zip(keys, values, strict=True)}


def measure_losses(size: Size) -> dict[str, Measured]:
    """Train with both sides, without and with losses."""
    epochs = EPOCHS[size]
    nominal = epochs * len(digits().train_data[1]) / BATCH / WORKERS * STEP_SECONDS
    rates = tuning.chosen(size)
    if size is Size.SMOKE:
        with losses.fresh() as nodes:
            losses.ours(nodes, epochs, STEP_SECONDS / 10, [], rates[tuning.OURS])
        return {}
    times = [share * nominal for share in FRACTIONS[size]]
    kinds = [kind for kind in KINDS if size is Size.FULL or kind == "elastic"]
    pairs = [_pair(epochs, UNDISTURBED_EPOCHS[size], times, rates, kinds) for _ in range(size.pick(1, 1, 3))]
    return {
        **{name: [found[name] for found in pairs] for name in pairs[0]},
        "exactly_once": 1.0,  # otherwise `ours` raises an error
    }


def _pair(
    epochs: int,
    undisturbed_epochs: int,
    times: Sequence[float],
    rates: Mapping[str, Rate],
    kinds: Sequence[str],
) -> dict[str, float]:
    """Train with both sides, without losses and with losses at `times`. Compare with Ray Train's best kind."""
    rate, their_rate = rates[tuning.OURS], rates[tuning.THEIRS]
    with losses.fresh() as nodes:
        their_plain = {
            kind: losses.theirs(nodes, undisturbed_epochs, STEP_SECONDS, [], KINDS[kind], their_rate)
            for kind in kinds
        }
        plain = losses.ours(nodes, undisturbed_epochs, STEP_SECONDS, [], rate, UNDISTURBED_IN_FLIGHT)
        lost = losses.ours(nodes, epochs, STEP_SECONDS, times, rate)
    their_lost = dict[str, losses.Outcome]()
    for kind in kinds:
        with losses.fresh() as nodes:
            their_lost[kind] = losses.theirs(nodes, epochs, STEP_SECONDS, times, KINDS[kind], their_rate)
    lost_after = ", ".join(f"{at:.0f} s" for at in times)
    show(
        f"{undisturbed_epochs} epochs; {epochs} epochs, nodes lost after {lost_after}",
        ["learning rate, momentum", *(f"{name}{end}" for end in ("", " with losses") for name in COLUMNS)],
        [
            [f"oddlot, in_flight = {UNDISTURBED_IN_FLIGHT}: {rate}", *_cells(plain), *NO_CELLS],
            [f"oddlot, in_flight = 1: {rate}", *NO_CELLS, *_cells(lost)],
            *(
                [f"Ray Train, {kind}: {their_rate}", *_cells(their_plain[kind]), *_cells(their_lost[kind])]
                for kind in kinds
            ),
        ],
    )
    best = min(their_lost.values(), key=lambda one: one.seconds)
    return {
        "async_over_ray_train": step_rate(plain.by_worker)
        / max(step_rate(one.by_worker) for one in their_plain.values()),
        "preempted_time_over_ray_train": lost.seconds / best.seconds,
        "preempted_time_to_accuracy_over_ray_train": sooner(lost, list(their_lost.values())),
        "time_to_accuracy_over_ray_train": sooner(plain, list(their_plain.values())),
        "wasted_tasks_per_loss": lost.repeated / len(times),
        "longest_pause_seconds": lost.longest_pause,
        "ray_train_repeated_steps": best.repeated,
        "accuracy": lost.accuracy,
        "ray_train_accuracy": best.accuracy,
    }


COLUMNS = ("seconds", "steps again", f"seconds to {TARGET}", "accuracy")
NO_CELLS = [""] * len(COLUMNS)


def _cells(one: losses.Outcome) -> list[str]:
    return [
        f"{one.seconds:.1f}",
        f"{one.repeated:.0f}",
        median_and_range([one.reached], 1),
        f"{one.accuracy:.3f}",
    ]


def sooner(own: losses.Outcome, others: Sequence[losses.Outcome]) -> float:
    """Return the time to `TARGET` of `own` / of the best other run. Runs that miss it count with their run time."""
    if isinf(own.reached):
        return NOT_REACHED
    return own.reached / min(min(one.reached, one.seconds) for one in others)


def measure_trace(size: Size) -> dict[str, Measured]:
    """Measure the goodput while nodes join and are lost."""
    if size is Size.SMOKE:
        return {}
    given = trace.counts(trace.data(), size.pick(0.0, 26_100.0, 27_900.0))
    outcome = trace.play(given, size.pick(1.0, 6.0, 16.0))
    return {
        "goodput_trace": outcome.goodput,
        "exactly_once": float(outcome.proved),
        "loss_detected_seconds": outcome.kill_noticed,
        "node_loss_detected_seconds": outcome.freeze_noticed,
    }


PARTS: Mapping[str, Callable[[Size], dict[str, Measured]]] = {
    "rates": measure_rates,
    "speed": measure_speed,
    "losses": measure_losses,
    "trace": measure_trace,
}


def check(size: Size, parts: Collection[str]) -> None:
    """Raise UsageError if a requirement of these parts is missing."""
    if size is not Size.SMOKE and "losses" in parts:
        train_peer.check()
    if size is not Size.SMOKE and "trace" in parts:
        trace.data()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser("ray", __doc__, "jobs of 30 s, two losses, Ray Train elastic only: within 8 minutes")
    options.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    return parse(options)


def main() -> None:
    """Measure, print the tables and the figures."""
    options = arguments()
    parts = options.only or [name for name in PARTS if name != "rates" or options.size is not Size.QUICK]
    check(options.size, parts)
    found: dict[str, Measured] = {}
    proved = list[Measured]()
    for name, part in PARTS.items():
        if name in parts:
            began = time.monotonic()
            found |= part(options.size)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
            proved += [found.pop("exactly_once")] if "exactly_once" in found else []
    if proved:
        found["exactly_once"] = float(all(proved))
    kind = f"{COMPUTED:.0%} computation and {1 - COMPUTED:.0%} wait"
    print(
        f"steps: {kind}; in_flight = {speed.IN_FLIGHT} in the part speed, {UNDISTURBED_IN_FLIGHT} in the undisturbed "
        "run of losses, and 1 in its other runs"
    )
    finish(options, {name: found.get(name) for name in RAY})


if __name__ == "__main__":
    main()
