"""Speed of the hub's merges.

The hub receives four updates, checks that they are finite, and merges them with `Step` (SGD with momentum) or `Blend`.
The figure is the memory bandwidth of the merge, divided by the bandwidth of a plain copy of 400 MB in the same run. The
worse of `Step` and `Blend` counts.

python -m benchmarks.hub [--quick|--smoke] [--save] [--threads 1]

A merge must read each update once, and read and write the weights (and the momentum) once. Reads of the check are not
counted. The copy is `Tensor.copy_`, measured before and after each merge with the same number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from benchmarks.processes import in_new_process
from benchmarks.report import Measured, Size, finish, median_and_range, parse, parser, show
from oddlot.core.optimizers import SGD
from oddlot.core.tasks import Facts, Kind
from oddlot.model import merging as merge, optimizer_math as rules, vector_ops as kernels
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore

UPDATES = 4
COPY_NUMBERS = 100_000_000
SIZES = {"25m": 25_000_000, "100m": 100_000_000}
KINDS: dict[str, Kind] = {"Step": "gradient", "Blend": "weights"}


@dataclass
class Bench:
    """A store with a model of `numbers` float32 parameters, and four updates that are received repeatedly."""

    numbers: int
    kind: Kind
    held: bool = False
    """True to hold the current version during a merge, so that the next version is written to another block."""
    merges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        layout = Layout.from_module(nn.ParameterList([torch.empty(self.numbers)]))
        self.store = WeightStore(FlatBuffer.empty(layout), SGD(lr=0.01, momentum=0.9))
        self.updates = [FlatBuffer.empty(layout) for _ in range(UPDATES)]
        for update in self.updates:
            update.section(0).uniform_(-0.01, 0.01)

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that one merge must read and write."""
        blocks = UPDATES + (4 if self.kind == "gradient" else 2)
        return 4 * self.numbers * blocks

    def receive(self) -> list[str]:
        """Receive the updates, and return their names."""
        self.merges += 1
        names = [f"w{i}:{self.merges}" for i in range(UPDATES)]
        for name, update in zip(names, self.updates, strict=True):
            self.store.receive(Facts(name, "w", 0, 1, self.kind), Payload(self.kind, update))
        return names

    def merge(self, names: list[str]) -> None:
        """Merge the updates `names` with `Step` or `Blend`."""
        shares = dict.fromkeys(names, 1 / (UPDATES + 1))
        version = self.store.version
        if self.held:
            self.store.acquire(version)
        if self.kind == "gradient":
            self.store.step(shares)
        else:
            self.store.blend(shares)
        if self.held:
            self.store.release(version)


class Copy:
    """A plain copy of `numbers` float32 values."""

    def __init__(self, numbers: int) -> None:
        self.source, self.target = torch.rand(numbers), torch.zeros(numbers)
        self.bytes_moved = 2 * self.source.nbytes

    def __call__(self) -> None:
        self.target.copy_(self.source)


@dataclass
class Result:
    """Times of alternating copies and merges."""

    bench_bytes: int
    check_bytes: int
    copy: list[float] = field(default_factory=list)
    """Bytes per second of the copies before and after each merge."""
    check_seconds: list[float] = field(default_factory=list)
    merge_seconds: list[float] = field(default_factory=list)

    def shares(self, checks_counted: bool = False) -> list[float]:
        """Return the bandwidth of each merge / the bandwidth of its copies."""
        moved = self.bench_bytes + (self.check_bytes if checks_counted else 0)
        rows = zip(self.copy, self.check_seconds, self.merge_seconds, strict=True)
        return [moved / (check + merging) / copy for copy, check, merging in rows]

    def row(self, name: str) -> list[str]:
        """Return a row of the table."""
        check = [self.check_bytes / seconds / 1e9 for seconds in self.check_seconds]
        merging = [self.bench_bytes / seconds / 1e9 for seconds in self.merge_seconds]
        return [
            name,
            median_and_range(self.shares()),
            f"{median(self.shares(checks_counted=True)):.3f}",
            median_and_range(check, 1),
            median_and_range(merging, 1),
            median_and_range([rate / 1e9 for rate in self.copy], 1),
        ]


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def measure(bench: Bench, copy: Copy, blocks: int) -> Result:
    """Alternate copies and merges, `blocks` times. The first copy and merge are not counted."""
    result = Result(bench.bytes_moved, UPDATES * 4 * bench.numbers)
    bench.merge(bench.receive())
    seconds_of(copy)
    for _ in range(blocks):
        before = seconds_of(copy)
        start = perf_counter()
        names = bench.receive()
        middle = perf_counter()
        bench.merge(names)
        end = perf_counter()
        after = seconds_of(copy)
        result.copy.append(2 * copy.bytes_moved / (before + after))
        result.check_seconds.append(middle - start)
        result.merge_seconds.append(end - middle)
    return result


def resident_bytes(peak: bool) -> int:
    """Return the resident memory of the process in bytes, current or peak (Linux only)."""
    word = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(word))


def memory_factor(numbers: int, threads: int) -> float:
    """Return peak memory after two merges / size of weights, momentum and updates, without imports. Needs a new
    process."""
    torch.set_num_threads(threads)
    imported = resident_bytes(peak=False)
    bench = Bench(numbers, "gradient")
    for _ in range(2):
        bench.merge(bench.receive())
    return (resident_bytes(peak=True) - imported) / (4 * numbers * (UPDATES + 2))


def with_pytorch_only(bench: Bench, copy: Copy, blocks: int) -> Result:
    """Measure without the compiled loop, for comparison."""
    modules = (merge, rules)
    try:
        for module in modules:
            module.mixer = lambda _: kernels.mix  # type: ignore[attr-defined]  # patched for the comparison
        bench.store = WeightStore(bench.store.weights, SGD(lr=0.01, momentum=0.9))
        return measure(bench, copy, blocks)
    finally:
        for module in modules:
            module.mixer = kernels.mixer  # type: ignore[attr-defined]  # patched for the comparison


def run(size: Size, threads: int) -> dict[str, Measured]:
    """Measure, print the table, and return the figures."""
    part = size.pick(1000, 1, 1)
    memory = partial(memory_factor, SIZES["100m"] // part, threads)
    figures: dict[str, Measured] = {"memory_factor_100m": in_new_process(memory)}
    copy, rows = Copy(COPY_NUMBERS // part), []
    for model, numbers in SIZES.items():
        blocks = size.pick(2, max(9, 300_000_000 // numbers), max(9, 1_500_000_000 // numbers))
        shares = []
        for name, kind in KINDS.items():
            bench = Bench(numbers // part, kind)
            result = measure(bench, copy, blocks)
            shares.append(result.shares())
            rows.append(result.row(f"{name} {model}"))
            if model == "25m":
                rows.append(with_pytorch_only(bench, copy, blocks).row(f"{name} {model}, PyTorch only"))
                bench.held = True
                rows.append(measure(bench, copy, blocks).row(f"{name} {model}, version held"))
        figures[f"merge_bandwidth_share_{model}"] = min(shares, key=median)
    columns = ["merge", "share of copy", "with checks", "check GB/s", "merge GB/s", "copy GB/s"]
    show(f"Merging {UPDATES} updates with {threads} thread(s): median (range)", columns, rows)
    return figures


def main() -> None:
    """Parse the command line, measure, and print the figures."""
    asked = parser("hub", __doc__, "fewer blocks: well under 150 s")
    asked.add_argument("--threads", type=int, default=1, help="of merge and copy; the hub has one")
    options = parse(asked)
    torch.set_num_threads(options.threads)
    finish(options, run(options.size, options.threads))


if __name__ == "__main__":
    main()
