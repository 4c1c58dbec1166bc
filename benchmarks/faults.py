"""Cost of faults.

Four local workers train a small network on MNIST while faults are injected: a worker is killed every 5 s, one worker is
frozen for 10 s, one worker is 6x slower, the hub is killed and resumed, or all of these together. Each run is compared
with a run without faults, of the same strategy and seed, for `asynchronous` and `fastest_k`. Figures have the value of
the worse strategy.

ODDLOT_DATA=... python -m benchmarks.faults [--quick|--smoke] [--save]

A task computes a real gradient and then waits, to simulate an accelerator. Four workers thus behave like four machines,
even on two cores.

- Goodput is the ideal time divided by the measured time, from the first worker's start to the end of the program. The
  ideal time assumes that each available machine works at the pace of the run without faults. A killed worker is
  unavailable until its replacement has joined, a frozen worker while it is frozen, and a slow worker counts as a sixth
  of a machine. Machines count as available while the hub restarts. `fastest_k` discards the updates of the slower half,
  so its goodput may exceed 1.
- The cost of a hub kill does not grow with the length of the run. The table shows it in seconds beyond the ideal time.
- Wasted work is counted in tasks: lost tasks per killed worker, and tasks since the last checkpoint per killed hub.
- Every run's log must prove that each sample was merged exactly once.

Alternatives: DistributedDataParallel (gloo) with one slow replica, and torchft (gloo, three replicas) with a killed or
a slow replica, if it is installed (`pip install torchft-nightly`).
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import smoke
from benchmarks.ddp import Group
from benchmarks.faults_job import BATCH, STEP_SECONDS, job, material
from benchmarks.report import Measured, Size, finish, median_and_range, parse, parser, show
from oddlot.core.events import FaultInjected, Joined, Lost, Resumed
from oddlot.core.records import Record
from oddlot.core.tasks import machine_of
from oddlot.faults import Fault
from oddlot.history.log import read_log
from oddlot.report.run_report import RunReport

WORKERS, SLOW = 4, 5.0
TORCHFT_SECONDS = 40.0
"""Seconds of a torchft run, about as long as a run of oddlot."""
STRATEGIES = {
    "asynchronous": ["--strategy", "asynchronous"],
    "fastest_k": ["--strategy", "fastest_k", "--set", "strategy.k=2"],
}
SCENARIOS = ("undisturbed", "kill", "freeze", "slow", "hub", "all")


@dataclass(frozen=True)
class Plan:
    """Runs of a benchmark, and the times of their faults."""

    epochs: Mapping[str, int]
    """Epochs by strategy, for equal run times: `fastest_k` discards the updates of the slower half."""
    seeds: int
    ddp_steps: int
    scenarios: Sequence[str] = SCENARIOS
    kill_every: float = 5.0
    freeze_at: float = 4.0
    freeze_seconds: float = 10.0
    hub_at: int = 200
    """Version of the hub's kill."""

    def faults(self, scenario: str) -> list[Fault]:
        """Return the faults of a scenario."""
        kill = Fault("kill", "w1" if scenario == "all" else "", every_seconds=self.kill_every)
        single = {
            "kill": kill,
            "freeze": Fault("freeze", "w3", at_seconds=(self.freeze_at,), for_seconds=self.freeze_seconds),
            "slow": Fault("slow", "w4", at_seconds=(0.0,), factor=SLOW),
            "hub": Fault("kill_hub", at_versions=(self.hub_at,)),
        }
        return [*single.values()] if scenario == "all" else [single[scenario]] if scenario in single else []


EPOCHS = {"asynchronous": 4, "fastest_k": 2}
PLANS = {
    Size.SMOKE: Plan({"fastest_k": 5}, 1, 5, ("undisturbed", "all"), 0.35, 0.2, 0.3, 10),
    Size.QUICK: Plan(EPOCHS, 1, 100),
    Size.FULL: Plan(EPOCHS, 3, 300),
}


@dataclass
class Outcome:
    """Results of one run, from its folder and the wall clock."""

    seconds: float
    """Seconds from the first worker's start to the end of the program, including restarts of the hub."""
    samples: int
    accuracy: float
    proved: bool
    kills: int
    lost_tasks: float
    """Tasks lost with killed workers."""
    resumed_tasks: float
    """Tasks that the hub lost since its last checkpoint."""
    dead_seconds: float
    """Machine-seconds between the loss of a worker and its return."""
    machine_seconds: float
    """Available machine-seconds, in terms of machines without faults."""

    @property
    def rate(self) -> float:
        """Return the samples per machine-second."""
        return self.samples / self.machine_seconds

    def goodput(self, undisturbed: "Outcome") -> float:
        """Return the ideal time divided by the time of this run."""
        return self.rate / undisturbed.rate

    def behind(self, undisturbed: "Outcome") -> float:
        """Return the seconds beyond the ideal time."""
        return self.seconds * (1 - self.goodput(undisturbed))


def run(strategy: str, faults: Sequence[Fault], seed: int, epochs: int) -> Outcome:
    """Run the command line, and resume it after each kill of its hub."""
    with tempfile.TemporaryDirectory(prefix="faults-benchmark-") as name:
        folder = Path(name)
        command = [sys.executable, "-u", "-m", "oddlot", "train", "benchmarks.faults_job:job"]
        command += [*STRATEGIES[strategy], "--workers", str(WORKERS), "--set", "engine.threads=1"]
        command += ["--until", f"epochs>={epochs}", "--seed", str(seed), "--out", str(folder / "run")]
        command += ["--checkpoint-every", "0.5 seconds", "--evaluate-every", f"{epochs} epochs"]
        if faults:
            (folder / "chaos.toml").write_text(toml(faults, seed))
            command += ["--chaos", str(folder / "chaos.toml")]
        begin, code = 0.0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            resume = ["--resume", "latest"] if begin else []
            with subprocess.Popen([*command, *resume], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for _ in process.stdout:
                    begin = begin or time.perf_counter()
            code = process.returncode
        if code:
            raise RuntimeError(f"{strategy} with {faults}: exit code {code}")
        return outcome(folder / "run", time.perf_counter() - begin, faults)


def toml(faults: Sequence[Fault], seed: int) -> str:
    """Return the text of a faults file."""
    lines = [f"seed = {seed}"]
    for fault in faults:
        said = {key: value for key, value in asdict(fault).items() if value not in (None, (), "")}
        lines += ["[[faults]]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
    return "\n".join(lines)


def outcome(folder: Path, seconds: float, faults: Sequence[Fault]) -> Outcome:
    """Read a run's folder."""
    figures = RunReport.read(folder)
    log = list(read_log(folder / "records.jsonl"))
    missing = {fault.kind for fault in faults} - {struck.kind for _, struck in figures.faults}
    if missing:
        raise RuntimeError(f"the run ended before {', '.join(sorted(missing))} could strike")
    # Count only the history that is kept after a resume, like the wasted samples.
    kills = sum(isinstance(r.event, FaultInjected) and r.event.kind == "kill" for r in figures.records)
    wasted = figures.tally.samples.wasted
    dead = sum(dead_seconds(log))
    alive = WORKERS * seconds - dead
    for fault in faults:
        if fault.kind == "freeze":
            alive -= min(fault.for_seconds or 0.0, max(0.0, log[-1].now - fault.at_seconds[0]))
        elif fault.kind == "slow":
            alive -= seconds * SLOW / (1 + SLOW)
    return Outcome(
        seconds,
        figures.tally.samples.merged,
        figures.tally.quality.metrics["accuracy"],
        figures.proof.whole > 0 and not figures.proof.faults,
        kills,
        wasted["lost"] / BATCH,
        wasted["resumed"] / BATCH,
        dead,
        alive,
    )


def dead_seconds(log: list[Record]) -> Iterator[float]:
    """Yield the seconds from each loss of a worker to its return or to the end. A restart of the hub discards open
    losses."""
    lost = dict[str, float]()
    for record in log:
        match record.event:
            case Lost(node):
                lost[machine_of(node)] = record.now
            case Joined(node):
                machine = machine_of(node)
                if machine in lost:
                    yield record.now - lost.pop(machine)
            case Resumed():
                lost.clear()
    yield from (log[-1].now - since for since in lost.values())


# --- the alternative ------------------------------------------------------------------------------


def lock_step_seconds(steps: int) -> list[float]:
    """Return the seconds of synchronous replicas with equal speeds, and with a slow last replica."""
    group, wait = Group(material, WORKERS), STEP_SECONDS
    seconds = [group.seconds(steps, [wait] * (WORKERS - 1) + [last]) for last in (wait, (1 + SLOW) * wait)]
    group.close()
    return seconds


# --- the table ------------------------------------------------------------------------------------


@dataclass
class Table:
    """The results of all runs."""

    goodputs: dict[str, list[float]] = field(default_factory=dict)
    """Goodput of the worse strategy, by scenario."""
    rows: list[list[str]] = field(default_factory=list)
    proved: bool = True
    drops: list[list[float]] = field(default_factory=list)
    wasted: list[float] = field(default_factory=list)

    def add(self, strategy: str, scenario: str, runs: list[Outcome], undisturbed: list[Outcome]) -> None:
        """Add the runs of a scenario, one per seed, and compare them with the runs without faults."""
        pairs = list(zip(runs, undisturbed, strict=True))
        goodputs = [one.goodput(plain) for one, plain in pairs]
        drops = [100 * (plain.accuracy - one.accuracy) for one, plain in pairs]
        per_kill = [one.lost_tasks / one.kills for one in runs if one.kills]
        resumed = [one.resumed_tasks for one in runs]
        self.proved = self.proved and all(one.proved for one in runs)
        if scenario != "undisturbed":
            self.goodputs[scenario] = min(goodputs, self.goodputs.get(scenario, goodputs), key=median)
            self.drops.append(drops)
            self.wasted += per_kill
        self.rows.append(
            [
                strategy,
                scenario,
                median_and_range([one.seconds for one in runs], 1),
                median_and_range([one.dead_seconds for one in runs], 1),
                median_and_range(goodputs, 3),
                median_and_range([one.behind(plain) for one, plain in pairs], 1),
                median_and_range([one.accuracy for one in runs], 4),
                median_and_range(drops, 2),
                median_and_range(per_kill, 2) if per_kill else "",
                median_and_range(resumed, 1) if any(resumed) else "",
                "yes" if all(one.proved for one in runs) else "NO",
            ]
        )


def measure(size: Size) -> dict[str, Measured]:
    """Run all scenarios, print the table, and return the figures."""
    job()  # raises UsageError early if the data is missing
    plan = PLANS[size]
    seeds, table = range(plan.seeds), Table()
    for strategy, epochs in plan.epochs.items():
        undisturbed = [run(strategy, [], seed, epochs) for seed in seeds]
        table.add(strategy, "undisturbed", undisturbed, undisturbed)
        for scenario in plan.scenarios[1:]:
            runs = [run(strategy, plan.faults(scenario), seed, epochs) for seed in seeds]
            table.add(strategy, scenario, runs, undisturbed)
    equal, slow = lock_step_seconds(plan.ddp_steps)
    alive = WORKERS - SLOW / (1 + SLOW)
    ddp = equal * WORKERS / (slow * alive)
    table.rows.append(["DDP, lock-step", "slow", f"{slow:.1f}", "", f"{ddp:.3f}"])
    torchft = torchft_goodputs(size, TORCHFT_SECONDS, seeds)
    for fault, ratios in torchft.items():
        table.rows.append(
            [
                "torchft",
                fault,
                f"{TORCHFT_SECONDS}",
                "",
                median_and_range(ratios, 3) if ratios else "not measured",
            ]
        )
    columns = ["", "fault", "seconds", "dead machine-s", "goodput", "s behind ideal", "accuracy"]
    columns += ["points lost", "tasks lost/kill", "since checkpoint", "exactly once"]
    show("What faults cost", columns, table.rows)
    return {
        "accuracy_drop_max": max(table.drops, key=median),
        "wasted_tasks_per_kill": max(table.wasted),
        **{f"goodput_{scenario}": table.goodputs.get(scenario) for scenario in SCENARIOS[1:]},
        "exactly_once": float(table.proved),
        "ddp_goodput_slow": ddp,
        **{f"torchft_goodput_{fault}": ratios or None for fault, ratios in torchft.items()},
    }


def torchft_goodputs(size: Size, seconds: float, seeds: range) -> dict[str, list[float]]:
    """Return the goodput by fault, one value per seed. If torchft is missing or fails, print why and return empty
    lists."""
    from benchmarks import torchft_peer

    try:
        if size is Size.SMOKE:
            raise RuntimeError("it takes minutes")
        pairs = [torchft_peer.goodputs(seconds, SLOW, seed) for seed in seeds]
    except Exception as error:  # noqa: BLE001   # the figures of oddlot are printed if the alternative fails
        print(f"torchft is not measured: {error!r}", flush=True)
        return {"kill": [], "slow": []}
    return {"kill": [killed for killed, _ in pairs], "slow": [slowed for _, slowed in pairs]}


def main() -> None:
    """Measure, print the table and the figures."""
    options = parse(parser("faults", __doc__, "one seed instead of three"))
    with smoke.data(options.size, smoke.pictures):
        figures = measure(options.size)
    finish(options, figures)


if __name__ == "__main__":
    main()
