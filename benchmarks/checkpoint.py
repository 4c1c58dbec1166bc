"""Cost of checkpoints for a run.

Three costs are measured: the pause of the hub, the throughput of the workers while a checkpoint is written, and the
speed of writing.

python -m benchmarks.checkpoint [--quick|--smoke] [--save]

- Pause: a hub with SGD momentum handles small events continuously and saves checkpoints. The longest gap between two
  events, from the start of a save until it is on disk, is divided by the time of a copy of the same tensors into memory
  that is already mapped.
- Throughput: two local workers compute the gradient of 5 million parameters and then wait, to simulate an accelerator.
  Runs with a checkpoint after every version alternate with runs without checkpoints.
- Writing: bytes per second of a checkpoint (safetensors, checksums, synced to disk), divided by the bytes per second of
  `torch.save` (without a sync).
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch
from torch import Tensor, nn

import oddlot
from benchmarks.report import Size, finish, median_and_range, parse, parser, show
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.checkpoint.format import Snapshot, save
from oddlot.checkpoint.storage import Storage
from oddlot.core.commands import Step
from oddlot.core.conductor import Conductor
from oddlot.core.events import Ticked
from oddlot.core.optimizers import SGD
from oddlot.core.records import HUB, HostState, Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.tasks import TaskId
from oddlot.engines.host import Host
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.weight_store import WeightStore
from oddlot.strategies import Asynchronous

SIZES = {"25m": 25_000_000, "100m": 100_000_000}
STEP_SECONDS, FEATURES = 0.05, 500


@dataclass(frozen=True)
class Plan:
    """Model size and number of measurements."""

    part: int
    """Divisor of the model's number of parameters."""
    blocks: int
    """Number of measured pauses and writes."""
    pairs: int
    """Number of pairs of runs with and without checkpoints."""
    until: str
    """Goal of these runs."""
    warm: float = 1.0
    """Seconds after a run's first merge that are not counted."""


PLANS = {
    Size.SMOKE: Plan(1000, 1, 1, "versions>=8", warm=0.0),
    Size.QUICK: Plan(1, 5, 3, "seconds>=7"),
    Size.FULL: Plan(1, 11, 7, "seconds>=11"),
}


class Nobody:
    """A port without workers."""

    def loaded(self) -> tuple[TaskId, ...]:
        """Return an empty tuple."""
        return ()


class Hub:
    """A hub without workers: ledger and store of a model with `numbers` parameters."""

    def __init__(self, numbers: int) -> None:
        layout = Layout.from_module(nn.ParameterList([torch.empty(numbers)]))
        self.layout = layout
        weights = FlatBuffer.empty(layout)
        weights.section(0).normal_()
        self.store = WeightStore(weights, SGD(lr=0.1, momentum=0.9))
        self.host = Host(Conductor(Asynchronous(), SampleLedger(1000), 8), self.store, Nobody())  # type: ignore[arg-type]  # nothing is sent

    def event(self) -> None:
        """Handle a small event."""
        self.host.handle(Ticked(), perf_counter())

    def snapshot(self, records: int) -> Snapshot:
        """Return the complete state that a checkpoint holds."""
        tensors = self.store.state_tensors([])
        hosts = {HUB: HostState(self.host.conductor.to_plain(), records)}
        return Snapshot(0, records, self.layout.fingerprint, hosts, self.layout.to_json(), tensors)


@contextmanager
def storage() -> Iterator[Storage]:
    """Create a temporary folder for checkpoints."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-benchmark-"))
    try:
        yield Storage(folder)
    finally:
        shutil.rmtree(folder)


def seconds_of_copy(tensors: dict[str, Tensor], copies: list[Tensor]) -> float:
    """Return the seconds of copying `tensors` to `copies`. Their memory is already mapped."""
    start = perf_counter()
    for tensor, copy in zip(tensors.values(), copies, strict=True):
        copy.copy_(tensor)
    return perf_counter() - start


def longest_gap(hub: Hub, saver: BackgroundWriter, records: int) -> float:
    """Return the longest time between two events, in seconds, from the start of a save until it is on disk."""
    longest, last, saving = 0.0, perf_counter(), False
    while not saving or saver.busy:
        hub.event()
        now = perf_counter()
        longest, last = max(longest, now - last), now
        if not saving:
            saving = saver.save(hub.snapshot(records))
    return max(longest, perf_counter() - last)


def pauses(numbers: int, blocks: int) -> tuple[list[float], list[float], list[float]]:
    """Return ratios gap / copy, gaps and times of copies in seconds. The first save, into new memory, is not
    counted."""
    hub = Hub(numbers)
    tensors = dict(hub.store.state_tensors([]))
    copies = [torch.zeros_like(tensor) for tensor in tensors.values()]
    gaps, beside = list[float](), list[float]()
    with storage() as place:
        saver = BackgroundWriter(place, keep=1)
        longest_gap(hub, saver, 0)
        for block in range(blocks):
            before = seconds_of_copy(tensors, copies)
            gaps.append(longest_gap(hub, saver, block + 1))
            beside.append((before + seconds_of_copy(tensors, copies)) / 2)
        problems = saver.close()
    assert not problems, problems
    return [gap / copy for gap, copy in zip(gaps, beside, strict=True)], gaps, beside


def writing(numbers: int, blocks: int) -> tuple[list[float], list[float], list[float]]:
    """Return speed ratios, and bytes per second of a checkpoint and of `torch.save`."""
    snapshot = Hub(numbers).snapshot(0)
    size = sum(tensor.nbytes for tensor in snapshot.tensors.values())
    ours, theirs = list[float](), list[float]()
    # torch.save rejects tensors of several dtypes in one memory block, as in a FlatBuffer.
    apart = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    with storage() as place:
        path = place.local("torch.pt")
        assert path is not None
        path.parent.mkdir(exist_ok=True)
        for block in range(blocks + 1):  # the first iteration is not counted
            start = perf_counter()
            what = Snapshot(0, block, snapshot.job, snapshot.hosts, snapshot.layout, snapshot.tensors)
            name = save(place, what, "000000")
            middle = perf_counter()
            torch.save(apart, path)
            end = perf_counter()
            ours.append(size / (middle - start))
            theirs.append(size / (end - middle))
            place.remove(name)
            path.unlink()
    return [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)], ours[1:], theirs[1:]


class Wide(nn.Module):
    """A model with five million parameters, divided by `part`."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self.table = nn.Linear(FEATURES, 10_000 // part)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the mean of each row's outputs."""
        out: Tensor = self.table(rows).mean(1)
        return out


def waits(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss after a wait that simulates an accelerator."""
    sleep(STEP_SECONDS)
    loss: Tensor = (model(batch[0]) - batch[1]).square().mean()
    return loss


def samples_a_second(folder: Path, every: str, plan: Plan) -> tuple[float, int]:
    """Return the samples per second of the merges after `plan.warm` seconds, and the number of checkpoints seen."""
    torch.manual_seed(0)
    rows = torch.randn(4096, FEATURES)
    job = oddlot.Job(
        partial(Wide, plan.part),
        (rows, rows[:, 0]),
        training_step=waits,
        batch_size=8,
        optimizer=SGD(lr=1e-3, momentum=0.9),
        device="cpu",
    )
    names = set[str]()

    def watch(_: Record) -> None:
        if every == "1 versions":
            names.update(path.name for path in (folder / "checkpoints").glob("0*"))

    run = oddlot.fit(
        job,
        Asynchronous(),
        oddlot.Local(workers=2, threads=1),
        until=plan.until,
        out=folder,
        checkpoint_every=every,
        callbacks=[watch],
    )
    merged = [record.now for record in run.records if any(isinstance(a, Step) for a in record.actions)]
    times = [now for now in merged if now >= merged[0] + plan.warm]
    return job.batch_size * (len(times) - 1) / (times[-1] - times[0]), len(names)


def throughput(plan: Plan) -> tuple[list[float], list[float], list[float], list[int]]:
    """Compare runs with and without checkpoints.

    Return ratios, samples per second with and without checkpoints, and the number of checkpoints of each run.
    """
    writes, quiet, saved = list[float](), list[float](), list[int]()
    for _ in range(plan.pairs):
        with storage() as place:
            folder = place.local("")
            assert folder is not None
            rate, _ = samples_a_second(folder / "quiet", "1000000 versions", plan)
            quiet.append(rate)
            rate, count = samples_a_second(folder / "writes", "1 versions", plan)
            writes.append(rate)
            saved.append(count)
    return [a / b for a, b in zip(writes, quiet, strict=True)], writes, quiet, saved


def main() -> None:
    """Measure, print the table and the figures."""
    options = parse(parser("checkpoint", __doc__, "fewer blocks"))
    plan = PLANS[options.size]
    figures, rows = dict[str, list[float]](), list[list[str]]()
    for name, numbers in SIZES.items():
        ratios, gaps, copies = pauses(numbers // plan.part, plan.blocks)
        figures[f"pause_over_copy_{name}"] = ratios
        rows.append(
            [
                f"longest gap while saving, {name}",
                median_and_range(ratios),
                f"{median_and_range([1e3 * g for g in gaps], 1)} ms",
                f"{median_and_range([1e3 * c for c in copies], 1)} ms warm copy",
            ]
        )
    ratios, writes, quiet, saved = throughput(plan)
    figures["throughput_while_writing"] = ratios
    rows.append(
        [
            f"samples/s, {median(saved):.0f} checkpoints or more",
            median_and_range(ratios),
            median_and_range(writes, 1),
            f"{median_and_range(quiet, 1)} without",
        ]
    )
    ratios, ours, theirs = writing(SIZES["25m"] // plan.part, plan.blocks)
    figures["write_over_torch_save"] = ratios
    rows.append(
        [
            "writing, 25m",
            median_and_range(ratios),
            f"{median_and_range([b / 1e9 for b in ours], 2)} GB/s",
            f"{median_and_range([b / 1e9 for b in theirs], 2)} GB/s torch.save",
        ]
    )
    show("What a checkpoint costs", ["", "ratio", "oddlot", "beside it"], rows)
    finish(options, figures)


if __name__ == "__main__":
    main()
