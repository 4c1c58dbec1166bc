"""Short trainings on two slots of a real queue: first come first served against the learnt order.

30 jobs of mixed lengths are submitted at once, twice. The jobs of the first pass, under FIFO, are the history of the
second one. In both passes the server is killed at random times. Each job adds a line to a file at its start, so
double starts are counted apart from the queue's own records.

The jobs are small PyTorch trainings, not `oddlot train`: its start takes longer than the complete training of most
jobs.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import uuid4

from benchmarks.report import Measured, Size, show
from oddlot.queue.server.client import QueueClient
from oddlot.queue.server.queue_folder import QueueFolder

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).parent / "training_job.py"
SLOTS = 2
BLOCKS = 3
"""Number of blocks of submissions. Each has the same jobs in a random order, which spreads the long ones."""
LENGTHS = {
    "evaluate": (6, 100),
    "train small": (2, 300),
    "train medium": (1, 9_000),
    "train large": (1, 72_000),
}
"""Number of jobs in a block, and training steps of each, by name: few jobs need most of the time, as on clusters.

On idle cores they take 3 to 34 s, 3 s of them for imports. The exact order by duration then has a gain of 1.66."""
KILLS = 5
"""Number of kills of the server in each pass."""
FIRST_KILL, LAST_KILL = 1.0, 45.0
"""Earliest and latest time of a kill, in seconds after the submissions."""
PASS_SECONDS = 900.0


@dataclass
class Pass:
    """A pass over all jobs."""

    policy: str
    seconds: list[float] = field(default_factory=list)
    """Completion times of the finished jobs."""
    kills: int = 0
    lost: int = 0
    started_twice: int = 0

    @property
    def mean(self) -> float:
        """Mean completion time of the finished jobs, in seconds."""
        return fmean(self.seconds) if self.seconds else float("nan")


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures: mean completion time under FIFO over the learnt order, and lost and repeated jobs.

    Three runs with other orders, or one if it is not a full run. Kills and jobs are counted over all runs.
    """
    runs = [_run(seed, size) for seed in range(1, size.pick(2, 2, 4))]
    rows = [[each.policy, f"{each.mean:.1f}", f"{each.kills}"] for run in runs for each in run]
    show("Real trainings on two slots", ["policy", "mean completion (s)", "kills of the server"], rows)
    passes = [each for run in runs for each in run]
    return {
        "real_jct_gain": [fifo.mean / learnt.mean for fifo, learnt in runs],
        "server_kills": float(sum(each.kills for each in passes)),
        "jobs_lost": float(sum(each.lost for each in passes)),
        "jobs_started_twice": float(sum(each.started_twice for each in passes)),
    }


def _run(seed: int, size: Size) -> tuple[Pass, Pass]:
    """Return a pass under FIFO, and a pass in the order that was learnt from it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return run_pass(folder, "fifo", seed, size), run_pass(folder, "qssf_backfill", seed, size)


def run_pass(folder: Path, policy: str, seed: int, size: Size) -> Pass:
    """Submit all jobs, kill the server now and then, and wait for their ends."""
    starts = folder / f"{policy}-starts"
    chance = random.Random(seed)
    names = [name for _ in range(size.pick(1, BLOCKS, BLOCKS)) for name in _block(chance, size)]
    kills = size.pick(1, KILLS, KILLS)
    kill_times = sorted(
        chance.uniform(FIRST_KILL, size.pick(2.0, LAST_KILL, LAST_KILL)) for _ in range(kills)
    )
    found, server = Pass(policy), _Server(folder / "queue", policy, "learnt")
    try:
        began = time.monotonic()
        ids = [server.submit(name, starts) for name in names]
        while time.monotonic() - began < PASS_SECONDS:
            if found.kills < kills and time.monotonic() - began >= kill_times[found.kills]:
                server.kill()
                found.kills += 1
            if found.kills == kills and not server.get("/api/queue")["jobs"]:
                break
            time.sleep(0.1)
        ended = [server.get(f"/api/jobs/{job}") for job in ids]
    finally:
        server.stop()
    found.seconds = [job["ended"] - job["submitted"] for job in ended if job["state"] == "finished"]
    found.lost = len(names) - len(found.seconds)
    counts = Counter(int(line.split()[0]) for line in starts.read_text(encoding="utf-8").splitlines())
    found.started_twice = sum(count > 1 for count in counts.values())
    return found


def _block(chance: random.Random, size: Size) -> list[str]:
    """Return the names of the jobs of a block. A test has the shortest ones only."""
    lengths = list(LENGTHS.items())[: size.pick(2, 4, 4)]
    names = [name for name, (count, _) in lengths for _ in range(count)]
    chance.shuffle(names)
    return names


class _Server:
    """A server in its own process. After a kill, it is started again."""

    def __init__(self, path: Path, policy: str, predictor: str) -> None:
        self.folder = QueueFolder(path)
        arguments = ["queue", "serve", "--folder", str(path), "--port", "0", "--cpus", str(SLOTS)]
        self.command = [
            sys.executable,
            "-m",
            "oddlot",
            *arguments,
            "--policy",
            policy,
            "--predictor",
            predictor,
        ]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://"), "the server has printed its address"
        return process

    def kill(self) -> None:
        """Kill the server, and start it again."""
        self._end(signal.SIGKILL)
        self.process = self._start()

    def stop(self) -> None:
        """Stop the server."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.communicate()

    def get(self, path: str) -> Any:
        """Return a reply of the server."""
        return QueueClient.find(self.folder).get(path)

    def submit(self, name: str, starts: Path) -> int:
        """Submit a job, and return its number."""
        command = [sys.executable, str(JOB), str(starts), str(LENGTHS[name][1])]
        kept = {variable: os.environ[variable] for variable in ("PATH", "HOME") if variable in os.environ}
        asked = {"id": uuid4().hex, "command": command, "cwd": "/", "env": kept, "name": name, "cpus": 1}
        return int(QueueClient.find(self.folder).post("/api/jobs", asked)["id"])
