"""What oddlot costs on one machine: beside a plain loop, and beside two-process DDP.

python -m benchmarks.overhead [--quick]

Blocks alternate within one process: while the peer runs, oddlot's hub is held in an observer and its workers have
nothing to do. A block's clock starts after a few steps on either side, so that neither what was computed during the
pause nor cold caches are counted.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import oddlot
from benchmarks.ddp import WARM_STEPS, Group, plain_steps
from benchmarks.report import finish, show, told
from oddlot.core.words import Arrived, Record

FEATURES, CLASSES, ROWS = 64, 10, 20_000


def network(width: int) -> nn.Module:
    """A multilayer perceptron of about 2 width^2 parameters."""
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows: only their number matters here."""
    chance = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, FEATURES, generator=chance), torch.randint(CLASSES, (ROWS,), generator=chance)


def material(width: int, batch: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    """What a plain loop needs."""
    return network(width), *data(), batch


def batch_for(width: int, seconds: float, threads: int) -> int:
    """The batch whose plain step takes about so long with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    batch = 64
    for _ in range(4):
        step = plain_steps(*material(width, batch))
        times = []
        for _ in range(max(5, int(0.4 / seconds))):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        batch = max(8, min(ROWS // 4, round(batch * (seconds / statistics.median(times)) ** 0.9)))
    torch.set_num_threads(before)
    return batch


class Alternation:
    """An observer that lets the peer run after each `block` seconds of oddlot, `count` times.

    Every worker has one answer ready when a block begins and makes as many warm-up steps as the peer.
    """

    def __init__(self, peer: Callable[[float], float], block: float, count: int, workers: int = 1) -> None:
        self.peer, self.block, self.count = peer, block, count
        self.warm = workers * (1 + WARM_STEPS)
        self.ratios: list[float] = []
        self.ours: list[float] = []
        self._began: float | None = None
        self._arrivals = -30
        """the first arrivals warm up"""
        self._updates = 0

    def __call__(self, record: Record) -> None:
        """Count arrivals; switch sides at a block's end."""
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
        """Enough blocks were run."""
        return len(self.ratios) >= self.count


class Enough(Exception):
    """The benchmark has what it wants."""


def run(width: int, batch: int, strategy: Any, on: Any, alternation: Alternation) -> None:
    """Train until the alternation has enough."""
    job = oddlot.Job(
        model=functools.partial(network, width), data=data(), loss=nn.functional.cross_entropy,
        optimizer=oddlot.SGD(lr=0.01, momentum=0.9), batch=batch, device="cpu",
    )  # fmt: skip

    def stop(_: Record) -> None:
        if alternation.done:
            raise Enough

    try:
        oddlot.fit(job, strategy, on, until="epochs>=1000000", observers=[alternation, stop])
    except Enough:
        return


def single(
    width: int, seconds: float, in_flight: int, block: float, count: int, threads: int = 1
) -> Alternation:
    """One worker over a plain loop with the same number of threads."""
    batch = batch_for(width, seconds, threads)
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

    peer(0.5)
    alternation = Alternation(peer, block, count)
    on = oddlot.Local(workers=1, threads=threads, in_flight=in_flight)
    run(width, batch, oddlot.Asynchronous(), on, alternation)
    return alternation


def double(
    width: int, seconds: float, strategies: dict[str, Any], block: float, count: int
) -> dict[str, Alternation]:
    """Two workers over two-process DistributedDataParallel, one thread each."""
    batch = batch_for(width, seconds, 1)
    pair = Group(functools.partial(material, width, batch), (0.0, 0.0))

    def peer(duration: float) -> float:
        steps = max(3, int(duration / seconds / 1.3))  # about as long as a block of ours
        return 2 * steps / pair.seconds(steps)

    peer(0.5)
    results = {}
    for name, strategy in strategies.items():
        results[name] = Alternation(peer, block, count, workers=2)
        run(width, batch, strategy, oddlot.Local(workers=2, threads=1), results[name])
    pair.close()
    return results


GOALS = {
    "single_worker_20ms": 0.92, "single_worker_2ms": 0.80,
    "single_worker_20ms_two_in_flight": 0.97, "single_worker_2ms_two_in_flight": 0.90,
    "sync_over_ddp_30ms": 1.0, "sync_over_ddp_8ms": 1.0,
    "async_over_ddp_30ms": 1.1, "async_over_ddp_8ms": 1.2,
}  # fmt: skip


def measure(quick: bool) -> dict[str, Alternation]:
    """Every figure's blocks."""
    block, count = (0.4, 15) if quick else (1.0, 21)
    ddp_block, ddp_count = (0.5, 9) if quick else (1.5, 15)
    found: dict[str, Alternation] = {
        "single_worker_20ms": single(575, 0.020, 1, block, count),
        "single_worker_2ms": single(205, 0.002, 1, block, count),
        "single_worker_20ms_two_in_flight": single(575, 0.020, 2, block, count),
        "single_worker_2ms_two_in_flight": single(205, 0.002, 2, block, count),
    }
    for name, seconds in (("30ms", 0.030), ("8ms", 0.008)):
        pair = double(
            690, seconds, {"sync": oddlot.Synchronous(), "async": oddlot.Asynchronous()}, ddp_block, ddp_count
        )
        found |= {f"{kind}_over_ddp_{name}": alternation for kind, alternation in pair.items()}
    return found


def main() -> None:
    """Measure, print the table, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="shorter blocks, within 150 s")
    found = measure(parser.parse_args().quick)
    rows = []
    for name, goal in GOALS.items():
        one = found[name]
        rows.append([name, told(one.ratios), f"{goal:.2f}", told(one.ours, 0), str(len(one.ratios))])
    columns = ["figure", "ratio (range)", "goal", "oddlot, steps/s", "blocks"]
    show("oddlot's steps per second over its peer's, paired in turn, one thread a process", columns, rows)
    finish({name: statistics.median(found[name].ratios) for name in GOALS})


if __name__ == "__main__":
    main()
