"""Overhead of oddlot on one machine.

One worker is compared with a plain PyTorch loop, and two workers with DistributedDataParallel (gloo) on two processes.
Both sides train the same network, with one PyTorch thread per process.

python -m benchmarks.overhead [--quick|--smoke] [--save]

Blocks of steps alternate between the two sides. While the other side runs, oddlot's hub waits in a callback and its
workers have no tasks. The clock of each block starts after a few warm-up steps.
"""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import oddlot
from benchmarks.ddp import WARM_STEPS, Group, plain_steps
from benchmarks.figures import OVERHEAD
from benchmarks.report import Size, finish, median_and_range, parse, parser, show
from oddlot.core.events import Arrived
from oddlot.core.records import Record

FEATURES, CLASSES, ROWS = 64, 10, 20_000


def network(width: int) -> nn.Module:
    """Return a multilayer perceptron with about 2 width^2 parameters."""
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and labels."""
    chance = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, FEATURES, generator=chance), torch.randint(CLASSES, (ROWS,), generator=chance)


def material(width: int, batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    """Return the model, inputs, labels and batch size of a plain loop."""
    return network(width), *data(), batch


def batch_for(width: int, seconds: float, threads: int, trial: float) -> int:
    """Return the batch size for a plain step of about `seconds` with `threads` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    batch = 64
    for _ in range(4):
        step = plain_steps(*material(width, batch))
        times = []
        for _ in range(max(5, int(trial / seconds))):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        batch = max(8, min(ROWS // 4, round(batch * (seconds / statistics.median(times)) ** 0.9)))
    torch.set_num_threads(before)
    return batch


class Alternation:
    """A callback that runs the peer after each `block` seconds of oddlot, `count` times.

    When a block starts, every worker has one update ready. It then computes the number of warm-up steps of the peer.
    """

    def __init__(self, peer: Callable[[float], float], block: float, count: int, workers: int = 1) -> None:
        self.peer, self.block, self.count = peer, block, count
        self.warm = workers * (1 + WARM_STEPS)
        self.ratios: list[float] = []
        self.ours: list[float] = []
        self._began: float | None = None
        self._arrivals = -30
        """Negative at first: the first 30 updates warm up."""
        self._updates = 0

    def __call__(self, record: Record) -> None:
        """Count updates, and run the peer at the end of a block."""
        if not isinstance(record.event, Arrived) or self.done:
            return
        self._arrivals += 1
        if self._arrivals <= self.warm:
            return
        now = time.perf_counter()
        if self._began is None:
            self._began, self._updates = now, 0
            return
        self._updates += 1
        if now - self._began >= self.block:
            speed = self._updates / (now - self._began)
            self.ours.append(speed)
            self.ratios.append(speed / self.peer(self.block))
            self._began, self._arrivals = None, 0

    @property
    def done(self) -> bool:
        """Return True after `count` blocks."""
        return len(self.ratios) >= self.count


def run(width: int, batch: int, strategy: Any, on: Any, alternation: Alternation) -> None:
    """Train until the alternation is done."""
    job = oddlot.Job(
        model=functools.partial(network, width), train_data=data(), loss=nn.functional.cross_entropy,
        optimizer=oddlot.SGD(lr=0.01, momentum=0.9), batch_size=batch, device="cpu",
    )  # fmt: skip

    def stop(_: Record) -> None:
        if alternation.done:
            raise oddlot.StopRun

    oddlot.fit(job, strategy, on, until="epochs>=1000000", callbacks=[alternation, stop], quiet=True)


@dataclass(frozen=True)
class Plan:
    """Durations of a benchmark."""

    block: float
    """Seconds of a block in comparison with a plain loop."""
    count: int
    """Number of blocks in comparison with a plain loop."""
    ddp_block: float
    ddp_count: int
    part: int = 1
    """Divisor of the layers' width."""
    trial: float = 0.4
    """Seconds to try each batch size."""
    warm: float = 0.5
    """Seconds of the peer before the first block."""
    pace: float = 1.0
    """Seconds of a step / the seconds in the figure's name."""


PLANS = {
    Size.SMOKE: Plan(0.02, 1, 0.02, 1, part=8, trial=0.0, warm=0.0, pace=0.1),
    Size.QUICK: Plan(0.4, 15, 0.5, 9),
    Size.FULL: Plan(1.0, 21, 1.5, 15),
}


def single(width: int, seconds: float, in_flight: int, plan: Plan, threads: int = 1) -> Alternation:
    """Compare one worker with a plain loop that has the same number of threads."""
    width //= plan.part
    batch = batch_for(width, plan.pace * seconds, threads, plan.trial)
    step = plain_steps(*material(width, batch))

    def peer(duration: float) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        for _ in range(WARM_STEPS):
            step()
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < duration:
            step()
            steps += 1
        speed = steps / (time.perf_counter() - began)
        torch.set_num_threads(before)
        return speed

    peer(plan.warm)
    alternation = Alternation(peer, plan.block, plan.count)
    on = oddlot.Local(workers=1, threads=threads, in_flight=in_flight)
    run(width, batch, oddlot.Asynchronous(), on, alternation)
    return alternation


def double(width: int, seconds: float, strategies: dict[str, Any], plan: Plan) -> dict[str, Alternation]:
    """Compare two workers with DistributedDataParallel on two processes, one thread each."""
    width //= plan.part
    batch = batch_for(width, plan.pace * seconds, 1, plan.trial)
    pair = Group(functools.partial(material, width, batch), 2)

    def peer(duration: float) -> float:
        steps = max(3, int(duration / (plan.pace * seconds) / 1.3))  # about as long as a block of oddlot
        return 2 * steps / pair.seconds(steps, (0.0, 0.0))

    peer(plan.warm)
    results = {}
    for name, strategy in strategies.items():
        results[name] = Alternation(peer, plan.ddp_block, plan.ddp_count, workers=2)
        run(width, batch, strategy, oddlot.Local(workers=2, threads=1), results[name])
    pair.close()
    return results


def measure(plan: Plan) -> dict[str, Alternation]:
    """Run the blocks of all figures."""
    found: dict[str, Alternation] = {
        "single_worker_20ms": single(575, 0.020, 1, plan),
        "single_worker_2ms": single(205, 0.002, 1, plan),
        "single_worker_20ms_two_in_flight": single(575, 0.020, 2, plan),
        "single_worker_2ms_two_in_flight": single(205, 0.002, 2, plan),
    }
    for name, seconds in (("30ms", 0.030), ("8ms", 0.008)):
        strategies = {"sync": oddlot.Synchronous(), "async": oddlot.Asynchronous()}
        pair = double(690, seconds, strategies, plan)
        found |= {f"{kind}_over_ddp_{name}": alternation for kind, alternation in pair.items()}
    return found


def main() -> None:
    """Measure, print the table and the figures."""
    options = parse(parser("overhead", __doc__, "shorter blocks, within 150 s"))
    found = measure(PLANS[options.size])
    rows = []
    for name, one in found.items():
        rows.append(
            [
                name,
                median_and_range(one.ratios),
                OVERHEAD[name].goal,
                median_and_range(one.ours, 0),
                str(len(one.ratios)),
            ]
        )
    columns = ["figure", "ratio (range)", "goal", "oddlot, steps/s", "blocks"]
    show("steps per second, oddlot / peer, in turn, one thread per process", columns, rows)
    finish(options, {name: found[name].ratios for name in OVERHEAD})


if __name__ == "__main__":
    main()
