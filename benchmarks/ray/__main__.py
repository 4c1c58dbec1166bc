"""What the Ray engine costs beside local workers, and what it saves beside Ray Train while nodes are lost.

Everything runs on this machine, on clusters of several Ray nodes. A step computes for a quarter of its time and waits
for the rest, in place of an accelerator.

ODDLOT_DATA=... python -m benchmarks.ray [--quick|--smoke] [--save] [--only PART ...]

- speed: samples per second of two Ray workers over two local ones, in alternating blocks, with two tasks in flight.
- losses: the same job with oddlot and with Ray Train (`pip install "ray[train]"`; TorchTrainer with gloo, its options
  against preemptions on, checkpoints every 10 s on both sides), undisturbed and while nodes are killed without notice;
  another node joins 10 s after each loss. Seconds are counted from the first step to the last one.
- trace: nodes come and go as in a recorded spot market. A machine counts from when its worker has joined. Then a worker
  is killed, and a node frozen.
"""

import argparse
from collections.abc import Callable, Collection, Mapping

from benchmarks.figures import RAY
from benchmarks.ray import losses, speed, trace, train_peer
from benchmarks.ray.job import BATCH, COMPUTED, STEP_SECONDS
from benchmarks.ray.nodes import cluster
from benchmarks.report import Measured, Size, finish, parse, parser, show
from oddlot.workloads.digits import digits

STORE_BYTES = 2_500_000_000
"""Object store for the weights and updates of 25 million parameters."""
SPEED = {"20ms": (1_000_000, 0.02), "200ms": (1_000_000, 0.2), "25m": (25_000_000, 0.2)}
FRACTIONS = {Size.QUICK: (0.25, 0.8), Size.FULL: (0.2, 0.4, 0.6, 0.8)}
EPOCHS = {Size.SMOKE: 1, Size.QUICK: 6, Size.FULL: 26}
"""Of the job with losses: a few seconds, about 30 s, and about 120 s."""


def measure_speed(size: Size) -> dict[str, Measured]:
    """Measure the speed and count the copies."""
    block, count = size.pick((0.5, 1), (4.0, 2), (8.0, 5))
    found: dict[str, Measured] = {}
    part = size.pick(100, 1, 1)
    with cluster(store_bytes=STORE_BYTES):
        for name, (parameters, seconds) in SPEED.items():
            found[f"ray_over_local_{name}"] = speed.ratios(parameters // part, seconds, block, count)
        found["copies_per_update_in"], found["copies_per_update_out"] = speed.copies(1_000_000, 20)
    return found


def measure_losses(size: Size) -> dict[str, Measured]:
    """Train with both, undisturbed and with losses."""
    epochs = EPOCHS[size]
    minibatches = epochs * len(digits().train_data[1]) / BATCH
    nominal = minibatches / losses.WORKERS * STEP_SECONDS
    if size is Size.SMOKE:
        with losses.fresh() as nodes:
            losses.ours(nodes, epochs, STEP_SECONDS / 10, [])
        return {}
    times = [share * nominal for share in FRACTIONS[size]]
    kinds = {"elastic": True} if size is Size.QUICK else {"elastic": True, "fixed": False}
    with losses.fresh() as nodes:
        peers = {kind: [losses.theirs(nodes, epochs, STEP_SECONDS, [], kinds[kind])] for kind in kinds}
        plain = losses.ours(nodes, epochs, STEP_SECONDS, [])
        lost = losses.ours(nodes, epochs, STEP_SECONDS, times)
    for kind, both in peers.items():
        with losses.fresh() as nodes:
            both.append(losses.theirs(nodes, epochs, STEP_SECONDS, times, kinds[kind]))
    rows = [_row("oddlot, asynchronous", plain, lost)]
    rows += [_row(f"Ray Train, {kind}", *both) for kind, both in peers.items()]
    columns = ["", "seconds", "steps again", "accuracy", "seconds with losses", "steps again", "accuracy"]
    show(f"{epochs} epochs, nodes lost after {', '.join(f'{at:.0f} s' for at in times)}", columns, rows)
    their_plain = min((both[0] for both in peers.values()), key=lambda one: one.seconds)
    their_lost = min((both[1] for both in peers.values()), key=lambda one: one.seconds)
    return {
        "async_over_ray_train": their_plain.seconds / plain.seconds,
        "preempted_time_over_ray_train": lost.seconds / their_lost.seconds,
        "wasted_tasks_per_loss": lost.repeated / len(times),
        "longest_pause_seconds": lost.longest_pause,
        "ray_train_repeated_steps": their_lost.repeated,
        "accuracy": lost.accuracy,
        "ray_train_accuracy": their_lost.accuracy,
        "exactly_once": 1.0,  # `ours` raises an error otherwise
    }


def _row(name: str, plain: losses.Outcome, lost: losses.Outcome) -> list[str]:
    told = [[f"{one.seconds:.1f}", f"{one.repeated:.0f}", f"{one.accuracy:.3f}"] for one in (plain, lost)]
    return [name, *told[0], *told[1]]


def measure_trace(size: Size) -> dict[str, Measured]:
    """Measure the goodput while nodes come and go."""
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
    "speed": measure_speed,
    "losses": measure_losses,
    "trace": measure_trace,
}


def check(size: Size, parts: Collection[str]) -> None:
    """Raise UsageError if something that these parts need is missing."""
    if size is not Size.SMOKE and "losses" in parts:
        train_peer.check()
    if size is not Size.SMOKE and "trace" in parts:
        trace.data()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser("ray", __doc__, "jobs of 30 s, two losses, Ray Train elastic only: within 6 minutes")
    options.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    return parse(options)


def main() -> None:
    """Measure and print."""
    options = arguments()
    parts = options.only or tuple(PARTS)
    check(options.size, parts)
    found: dict[str, Measured] = {}
    proved = list[Measured]()
    for name, part in PARTS.items():
        if name in parts:
            found |= part(options.size)
            proved += [found.pop("exactly_once")] if "exactly_once" in found else []
    if proved:
        found["exactly_once"] = float(all(proved))
    kind = f"{COMPUTED:.0%} computation and {1 - COMPUTED:.0%} wait"
    print(f"steps: {kind}; both engines with in_flight = {speed.IN_FLIGHT}")
    finish(options, {name: found.get(name) for name in RAY})


if __name__ == "__main__":
    main()
