"""Search of learning rate and momentum on one grid for both sides, before a cluster is started.

oddlot's runs are simulated: two machines with a virtual clock and real gradients. Two workers of Ray Train are
equivalent to one process with minibatches of twice the size.
"""

import json
import warnings
from functools import cache, partial
from math import inf
from statistics import median

import torch

import oddlot
from benchmarks.processes import in_processes
from benchmarks.ray import train_peer
from benchmarks.ray.job import BATCH, EVERY, STEP_SECONDS, TARGET, WORKERS, Rate, job, loss, network
from benchmarks.report import RESULTS, Size, median_and_range, show
from oddlot.machines import Machine
from oddlot.workloads.digits import digits

GRID = [Rate(lr, momentum) for momentum in (0.5, 0.9) for lr in (0.05, 0.1, 0.2, 0.4)]
OURS, THEIRS = "oddlot, asynchronous", "Ray Train"
KEYS = {OURS: ("learning_rate", "momentum"), THEIRS: ("ray_train_learning_rate", "ray_train_momentum")}
SEEDS, EPOCHS = 3, 6


def chosen(size: Size) -> dict[str, Rate]:
    """Return the rate of each side. A quick run uses the saved rates, if there are any. Otherwise search them."""
    path = RESULTS / "ray.json"
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    values = {side: [figures.get(key, {}).get("median") for key in keys] for side, keys in KEYS.items()}
    if size is not Size.QUICK or None in [each for pair in values.values() for each in pair]:
        return search(size)
    found = {side: Rate(*pair) for side, pair in values.items()}
    sides = "; ".join(f"{side} {rate}" for side, rate in found.items())
    print(f"saved learning rate and momentum: {sides}; grid: {'; '.join(map(str, GRID))}", flush=True)
    return found


@cache
def search(size: Size) -> dict[str, Rate]:
    """Return the rate with the least median time to `TARGET` for each side, and print all."""
    epochs = size.pick(1, EPOCHS, EPOCHS)
    asked = [
        (side, rate, seed)
        for side in (OURS, THEIRS)
        for rate in GRID[: size.pick(1, None, None)]
        for seed in range(size.pick(1, SEEDS, SEEDS))
    ]
    times: dict[str, dict[Rate, list[float]]] = {OURS: {}, THEIRS: {}}
    for (side, rate, _), seconds in zip(asked, in_processes(partial(_seconds, epochs), asked), strict=True):
        times[side].setdefault(rate, []).append(seconds)
    title = f"seconds to an accuracy of {TARGET}, undisturbed, {epochs} epochs at most"
    rows = [[str(rate), *(median_and_range(times[side][rate], 1) for side in times)] for rate in times[OURS]]
    show(title, ["learning rate, momentum", *times], rows)
    return {side: min(found, key=lambda rate: median(found[rate])) for side, found in times.items()}


def _seconds(epochs: int, asked: tuple[str, Rate, int]) -> float:
    """Return the seconds to `TARGET`, or infinity if it is not reached."""
    side, rate, seed = asked
    return (_ours if side == OURS else _theirs)(epochs, rate, seed)


def _ours(epochs: int, rate: Rate, seed: int) -> float:
    machines = [Machine(f"m{number}", STEP_SECONDS / BATCH) for number in range(WORKERS)]
    goal = f"accuracy>={TARGET} or epochs>={epochs}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run may diverge
        try:
            run = oddlot.fit(job(loss, rate), oddlot.Asynchronous(), oddlot.Simulated(machines, seed), until=goal,
                             evaluate_every=f"{EVERY} versions", seed=seed, quiet=True)  # fmt: skip
        except oddlot.JobError:
            return inf
    return next((row["seconds"] for row in run.history if row["accuracy"] >= TARGET), inf)


def _theirs(epochs: int, rate: Rate, seed: int) -> float:
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), rate.lr, rate.momentum)
    images, labels = (torch.as_tensor(part) for part in digits().train_data)
    order, rows = train_peer.shuffled(epochs, len(labels), seed), WORKERS * BATCH
    for step in range(1, len(order) // rows + 1):
        some = order[(step - 1) * rows : step * rows]
        optimizer.zero_grad()
        loss(model, (images[some], labels[some])).backward()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        optimizer.step()
        if step * WORKERS % EVERY == 0 and train_peer.accuracy(model) >= TARGET:
            return step * STEP_SECONDS
    return inf
