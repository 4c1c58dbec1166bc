"""What misfortune costs: `ODDLOT_DATA=... python -m benchmarks.faults [--quick]`.

Four local workers train a small network on MNIST for a fixed number of epochs. A worker's step is its real gradient
and a wait that stands for an accelerator, so that four workers are four machines on two cores. Faults come from
`oddlot.Chaos`: kill -9 of a worker every 5 s; SIGSTOP of one for 10 s; one slow by 5 (it waits five times its step
after each step); kill -9 of the hub and a resume; all together. Each is compared with the undisturbed run of its
strategy and seed.

- Goodput is the ideal time over the time from the first worker's joining to the end of the program. Ideal is what the
  machine-seconds that were alive could do at the undisturbed run's samples per machine-second: a machine is dead
  between `Lost` and the next `Joined` (some tenths of a second), frozen while it is frozen, and a sixth of a machine
  while it is slow; those of a hub that is being restarted count as alive. FastestK throws away what the slower half
  computes, so that it may reach more than 1.
- What a hub's kill costs does not grow with the run: its seconds are the run's time beyond its ideal time.
- Waste is in tasks: those lost with killed workers per kill, and those since the last checkpoint per hub kill.
- Every run's log must prove that each sample was merged exactly once.

Beside it, step and wait being the same: lock-step DistributedDataParallel (gloo) with one slow replica, and torchft
(gloo, three replicas) under the worker kill and with one slow replica, if it is installed (`pip install
torchft-nightly`).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from benchmarks.report import finish, show, told
from oddlot import Fault
from oddlot.core import words as w
from oddlot.log import read_log
from oddlot.report.figures import Figures
from oddlot.tasks import load_task

WORKERS, BATCH, STEP_SECONDS, SLOW = 4, 64, 0.04, 5.0
TORCHFT_SECONDS = 40.0
"""about as long as ours takes"""
FREEZE_AT, FREEZE_SECONDS, HUB_AT = 4.0, 10.0, 200
KILL = Fault("kill", every_seconds=5.0)
FREEZE = Fault("freeze", "w3", at_seconds=(FREEZE_AT,), for_seconds=FREEZE_SECONDS)
SLOWED = Fault("slow", "w4", at_seconds=(0.0,), factor=SLOW)
HUB = Fault("kill_hub", at_versions=(HUB_AT,))
SCENARIOS: dict[str, list[Fault]] = {
    "undisturbed": [],
    "kill": [KILL],
    "freeze": [FREEZE],
    "slow": [SLOWED],
    "hub": [HUB],
    "all": [Fault("kill", "w1", every_seconds=5.0), FREEZE, SLOWED, HUB],
}
STRATEGIES = {
    "asynchronous": ["--strategy", "asynchronous"],
    "fastest_k": ["--strategy", "fastest_k", "--set", "strategy.k=2"],
}


EPOCHS = {"asynchronous": 4, "fastest_k": 2}
"""the same seconds for both, since FastestK throws away what the slower half computes"""


def network() -> nn.Module:
    """A small one, so that the wait is nearly all of a step."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


class Step:
    """A gradient, and a wait that stands for an accelerator."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        time.sleep(STEP_SECONDS)
        return cross_entropy(model(batch[0].float() / 255), batch[1])


def outputs(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """For the accuracy."""
    return model(batch[0].float() / 255), batch[1]


def job() -> oddlot.Job:
    """MNIST. UsageError: its files are not there."""
    task = load_task("mnist", {})
    return oddlot.Job(
        network,
        task.data,
        training_step=Step(),
        evaluation=task.evaluation,
        metrics={"accuracy": oddlot.accuracy},
        predict=outputs,
        optimizer=oddlot.SGD(lr=0.05, momentum=0.9),
        batch=BATCH,
        name="mnist",
        device="cpu",
    )


@dataclass
class Outcome:
    """What became of one run, from its folder and from the clock on the wall."""

    seconds: float
    """from the first worker's joining to the end of the program, a restart of the hub included"""
    samples: int
    accuracy: float
    proved: bool
    kills: int
    lost_tasks: float
    """with killed workers"""
    resumed_tasks: float
    """since the checkpoint that was resumed from"""
    dead_seconds: float
    """machine-seconds between the loss of workers and their return"""
    machine_seconds: float
    """alive, in terms of undisturbed machines"""

    @property
    def rate(self) -> float:
        """Samples a machine-second."""
        return self.samples / self.machine_seconds

    def goodput(self, undisturbed: "Outcome") -> float:
        """Ideal time over time."""
        return self.rate / undisturbed.rate

    def behind(self, undisturbed: "Outcome") -> float:
        """Seconds beyond the ideal time."""
        return self.seconds * (1 - self.goodput(undisturbed))


def run(strategy: str, scenario: str, seed: int, epochs: int) -> Outcome:
    """One run of the command line, resumed as often as its hub is killed."""
    with tempfile.TemporaryDirectory(prefix="faults-benchmark-") as name:
        folder = Path(name)
        (folder / "chaos.toml").write_text(toml(SCENARIOS[scenario], seed))
        command = [
            sys.executable,
            "-u",
            "-m",
            "oddlot",
            "train",
            "benchmarks.faults:job",
            *STRATEGIES[strategy],
        ]
        command += ["--workers", str(WORKERS), "--until", f"epochs>={epochs}", "--seed", str(seed)]
        command += ["--out", str(folder / "run"), "--chaos", str(folder / "chaos.toml"), "--set", "threads=1"]
        command += ["--checkpoint-every", "0.5 seconds", "--set", f"evaluate_every='{epochs} epochs'"]
        begin, code = 0.0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            resume = ["--resume"] if begin else []
            with subprocess.Popen([*command, *resume], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for _ in process.stdout:
                    begin = begin or time.perf_counter()
            code = process.returncode
        if code:
            raise RuntimeError(f"{strategy} {scenario}: exit code {code}")
        return outcome(folder / "run", time.perf_counter() - begin, SCENARIOS[scenario])


def toml(faults: list[Fault], seed: int) -> str:
    """A chaos file."""
    lines = [f"seed = {seed}"]
    for fault in faults:
        said = {key: value for key, value in asdict(fault).items() if value not in (None, (), "")}
        lines += ["[[faults]]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
    return "\n".join(lines if faults else [*lines, "faults = []"])


def outcome(folder: Path, seconds: float, faults: list[Fault]) -> Outcome:
    """Read a run's folder."""
    figures = Figures.read(folder)
    log = list(read_log(folder / "records.jsonl"))
    missing = {fault.kind for fault in faults} - {struck.kind for _, struck in figures.faults}
    if missing:
        raise RuntimeError(f"the run ended before {', '.join(sorted(missing))} could strike")
    # Of the history that holds, as the waste is.
    kills = sum(isinstance(r.event, w.Struck) and r.event.kind == "kill" for r in figures.records)
    wasted = figures.tally.wasted
    dead = sum(dead_seconds(log))
    alive = WORKERS * seconds - dead
    if FREEZE in faults:
        alive -= min(FREEZE_SECONDS, max(0.0, log[-1].now - FREEZE_AT))
    if SLOWED in faults:
        alive -= seconds * SLOW / (1 + SLOW)
    return Outcome(
        seconds,
        figures.tally.samples_merged,
        figures.tally.metrics["accuracy"],
        figures.proof.whole > 0 and not figures.proof.faults,
        kills,
        wasted["lost"] / BATCH,
        wasted["resumed"] / BATCH,
        dead,
        alive,
    )


def dead_seconds(log: list[w.Record]) -> Iterator[float]:
    """Between a worker's loss and its next life, or the end, in one life of the hub."""
    lost = dict[str, float]()
    for record in log:
        match record.event:
            case w.Lost(node):
                lost[node.partition(".")[0]] = record.now
            case w.Joined(node):
                machine = node.partition(".")[0]
                if machine in lost:
                    yield record.now - lost.pop(machine)
            case w.Resumed():
                lost.clear()
    yield from (log[-1].now - since for since in lost.values())


# --- the alternative ------------------------------------------------------------------------------


def replica(rank: int, slow: bool, steps: int, port: int) -> None:
    """One of four lock-step replicas; the first prints how long the steps after the first took."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows, classes = torch.randint(0, 256, (BATCH, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (BATCH,))
    begin = 0.0
    for _ in range(steps + 1):
        optimizer.zero_grad()
        Step()(model, (rows, classes)).backward()  # type: ignore[no-untyped-call]
        if slow and rank == WORKERS - 1:
            time.sleep(SLOW * STEP_SECONDS)
        optimizer.step()
        begin = begin or time.perf_counter()
    if rank == 0:
        print(json.dumps(time.perf_counter() - begin), flush=True)
    dist.destroy_process_group()


def lock_step_seconds(slow: bool, steps: int) -> float:
    """How long four replicas take."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["slow" if slow else "equal", str(steps), str(port)]
    replicas = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults", "--replica", str(rank), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORKERS)
    ]
    out = [process.communicate()[0] for process in replicas]
    return float(json.loads(out[0]))


# --- the table ------------------------------------------------------------------------------------


@dataclass
class Table:
    """All runs."""

    figures: dict[str, float | None] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)
    proved: bool = True
    drops: list[float] = field(default_factory=list)
    wasted: list[float] = field(default_factory=list)

    def add(self, strategy: str, scenario: str, runs: list[Outcome], undisturbed: list[Outcome]) -> None:
        """A scenario's runs, one a seed, beside the undisturbed ones."""
        pairs = list(zip(runs, undisturbed, strict=True))
        goodputs = [one.goodput(plain) for one, plain in pairs]
        drops = [100 * (plain.accuracy - one.accuracy) for one, plain in pairs]
        per_kill = [one.lost_tasks / one.kills for one in runs if one.kills]
        resumed = [one.resumed_tasks for one in runs]
        self.proved = self.proved and all(one.proved for one in runs)
        if scenario != "undisturbed":
            name = f"goodput_{scenario}"
            before = self.figures.get(name)
            self.figures[name] = min(median(goodputs), 1e9 if before is None else before)
            self.drops.append(median(drops))
            self.wasted += per_kill
        self.rows.append(
            [
                strategy,
                scenario,
                told([one.seconds for one in runs], 1),
                told([one.dead_seconds for one in runs], 1),
                told(goodputs, 3),
                told([one.behind(plain) for one, plain in pairs], 1),
                told([one.accuracy for one in runs], 4),
                told(drops, 2),
                told(per_kill, 2) if per_kill else "",
                told(resumed, 1) if any(resumed) else "",
                "yes" if all(one.proved for one in runs) else "NO",
            ]
        )


def measure(quick: bool) -> None:
    """All scenarios, and print."""
    job()  # UsageError now, not later
    seeds, table = range(1) if quick else range(3), Table()
    for strategy, epochs in EPOCHS.items():
        undisturbed = [run(strategy, "undisturbed", seed, epochs) for seed in seeds]
        for scenario in SCENARIOS:
            again = scenario != "undisturbed"
            runs = [run(strategy, scenario, seed, epochs) for seed in seeds] if again else undisturbed
            table.add(strategy, scenario, runs, undisturbed)
    steps = 100 if quick else 300
    equal, slow = lock_step_seconds(slow=False, steps=steps), lock_step_seconds(slow=True, steps=steps)
    alive = WORKERS - SLOW / (1 + SLOW)
    ddp = equal * WORKERS / (slow * alive)
    table.rows.append(["DDP, lock-step", "slow", f"{slow:.1f}", "", f"{ddp:.3f}"])
    torchft = torchft_goodputs(TORCHFT_SECONDS, seeds)
    for fault, ratios in torchft.items():
        table.rows.append(
            ["torchft", fault, f"{TORCHFT_SECONDS}", "", told(ratios, 3) if ratios else "not measured"]
        )
    columns = ["", "fault", "seconds", "dead machine-s", "goodput", "s behind ideal", "accuracy"]
    columns += ["points lost", "tasks lost/kill", "since checkpoint", "exactly once"]
    show("What misfortune costs", columns, table.rows)
    figures: dict[str, Any] = {
        "accuracy_drop_max": max(table.drops),
        "wasted_tasks_per_kill": max(table.wasted),
    }
    figures |= table.figures | {"exactly_once": float(table.proved), "ddp_goodput_slow": ddp}
    finish(figures | {f"torchft_goodput_{fault}": median(r) if r else None for fault, r in torchft.items()})


def torchft_goodputs(seconds: float, seeds: range) -> dict[str, list[float]]:
    """By fault, one a seed; none, and the reason printed, where torchft is not installed or fails."""
    from benchmarks import torchft_peer

    try:
        pairs = [torchft_peer.goodputs(seconds, SLOW, seed) for seed in seeds]
    except Exception as error:  # noqa: BLE001 - whatever becomes of the alternative, our own figures are printed
        print(f"torchft is not measured: {error!r}", flush=True)
        return {"kill": [], "slow": []}
    return {"kill": [killed for killed, _ in pairs], "slow": [slowed for _, slowed in pairs]}


def main() -> None:
    """Measure and print, or be a part of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed instead of three")
    parser.add_argument("--replica", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replica:
        rank, speed, steps, port = asked.replica
        replica(int(rank), speed == "slow", int(steps), int(port))
    else:
        measure(asked.quick)


if __name__ == "__main__":
    main()
