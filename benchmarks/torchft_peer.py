"""torchft (gloo, three replicas, one lighthouse) on the step of `benchmarks.faults`, with the same kills and slowdowns.

Needs `pip install torchft-nightly`. A killed replica is restarted immediately, by a thread instead of the scheduler
that torchft's documentation describes. Goodput is defined as in `benchmarks.faults`: a replica is unavailable from its
kill until it reports that it is ready again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import torch

REPLICAS = 3
KILL_EVERY_SECONDS = 5.0


def replica(index: int, seconds: float, lighthouse: str, slow: float) -> None:
    """Train for some seconds. Print a line when ready, and after each step the number of committed batches."""
    import torchft
    from torch import distributed

    from benchmarks.faults_job import BATCH, STEP_SECONDS, Step, network

    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    store = distributed.TCPStore(  # type: ignore[attr-defined]  # PyTorch's types do not export it
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        replica_id=f"replica{index}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        timeout=timedelta(seconds=10),
    )
    parallel, steps = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    rows, classes = torch.randint(0, 256, (BATCH, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (BATCH,))
    print(json.dumps({"there": time.time()}), flush=True)
    end = time.time() + seconds
    while time.time() < end:
        steps.zero_grad()
        Step()(parallel, (rows, classes)).backward()  # type: ignore[no-untyped-call]
        time.sleep(slow * STEP_SECONDS)
        steps.step()
        print(json.dumps({"at": time.time(), "batches": manager.batches_committed()}), flush=True)
    os._exit(0)  # do not wait for its threads


class Fleet:
    """Three replicas, each with a thread that reads its output and restarts it."""

    def __init__(self, seconds: float, slow: float) -> None:
        from torchft.coordination import LighthouseServer

        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=200, heartbeat_timeout_ms=1000
        )
        self.end, self.slow = time.time() + seconds, slow
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.commits: list[tuple[float, int]] = []
        self.dead_since: dict[int, float] = {}
        self.dead_seconds = 0.0
        self.there: set[int] = set()
        """Replicas that train. As with oddlot's workers, only these are killed."""
        self.exits = 0
        """Number of unexpected exits."""
        self.threads = [Thread(target=self._live, args=(index,)) for index in range(REPLICAS)]
        for thread in self.threads:
            thread.start()

    def _live(self, index: int) -> None:
        while (left := self.end - time.time()) > 0:
            slow = self.slow if index == REPLICAS - 1 else 0.0
            arguments = [str(index), str(left), self.lighthouse.address(), str(slow)]
            process = self.processes[index] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.torchft_peer", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout
            for line in process.stdout:
                with suppress(json.JSONDecodeError):
                    self._hear(index, json.loads(line))
            process.wait()
            self.exits += process.returncode not in {0, -signal.SIGKILL}

    def _hear(self, index: int, message: dict[str, float]) -> None:
        if "there" in message:
            self.there.add(index)
            self.dead_seconds += message["there"] - self.dead_since.pop(index, message["there"])
        elif "batches" in message:
            self.commits.append((message["at"], int(message["batches"])))

    def kill(self, index: int) -> None:
        """Kill a replica with SIGKILL."""
        self.there.discard(index)
        self.dead_since[index] = time.time()
        self.processes[index].send_signal(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until all replicas have ended."""
        for thread in self.threads:
            thread.join()
        for since in self.dead_since.values():
            self.dead_seconds += self.end - since


def batches_a_machine_second(
    seconds: float, kills: random.Random | None = None, slow: float = 0.0, alive: float = REPLICAS
) -> float:
    """Return the committed batches per machine-second. `alive` is the mean number of machines without kills."""
    fleet = Fleet(seconds, slow)
    while kills and time.time() < fleet.end - 1:
        time.sleep(KILL_EVERY_SECONDS)
        if fleet.there:
            fleet.kill(kills.choice(sorted(fleet.there)))
    fleet.wait()
    if fleet.exits:
        print(f"torchft: {fleet.exits} replicas ended that no one had killed", flush=True)
    commits = sorted(fleet.commits)
    (begin, first), (end, last) = commits[0], max(commits, key=lambda commit: commit[1])
    return (last - first) / ((end - begin) * alive - fleet.dead_seconds)


def goodputs(seconds: float, slow: float, seed: int) -> tuple[float, float]:
    """Return the goodput with random kills, and with one slow replica. Raises ImportError without torchft."""
    os.environ.setdefault("RUST_LOG", "error")
    import torchft  # noqa: F401   # raises ImportError early

    plain = batches_a_machine_second(seconds)
    killed = batches_a_machine_second(seconds, kills=random.Random(seed))
    slowed = batches_a_machine_second(seconds, slow=slow, alive=REPLICAS - slow / (1 + slow))
    return killed / plain, slowed / plain


if __name__ == "__main__":
    number, left, address, factor = sys.argv[1:]
    replica(int(number), float(left), address, float(factor))
