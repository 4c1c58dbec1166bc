"""Gossip on four local processes: bytes counted by the operating system, killed peers, a network partition."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.report import NOT_REACHED, Measured, Size, show
from oddlot import AdaptiveGossip, Gossip, Local, Run, StopRun, Strategy, fit
from oddlot.core.support.errors import JobError
from oddlot.events import FaultInjected, LinkTraffic, ModelReceived, PeerLost, Record
from oddlot.faults import Chaos, Fault
from oddlot.workloads.digits import digits

PEERS = 4
CUT_SECONDS = 7.0
"""Seconds of the partition."""
HEAL_SECONDS = 60.0
"""Maximum seconds after a partition until all peers have exchanged models."""
EXCHANGES = 20
"""Models that each peer receives from each other peer after a partition, before the run ends."""
AGREED = 0.05
"""Largest disagreement at the end: distance from the average model, relative to its norm."""


def trained(
    strategy: Strategy,
    until: str,
    folder: Path | None = None,
    faults: Sequence[Fault] = (),
    seed: int = 0,
    callbacks: Sequence[Callable[[Record], None]] = (),
) -> Run:
    """Train the digits on local processes, and return the run."""
    return fit(
        digits(),
        strategy,
        Local(workers=PEERS, threads=1),
        until=until,
        out=folder,
        seed=seed,
        evaluate_every="1000000 epochs",
        chaos=Chaos(tuple(faults), seed=seed) if faults else None,
        quiet=True,
        callbacks=callbacks,
    )


def measure(size: Size) -> Mapping[str, Measured]:
    """Return the figures."""
    epochs = size.pick(8, 30, 30)
    with TemporaryDirectory(prefix="benchmark-gossip-") as there:
        place = Path(there)
        plain = [
            trained(AdaptiveGossip(), f"epochs>={epochs}", place / f"plain{seed}", seed=seed)
            for seed in range(size.pick(1, 2, 5))
        ]
        ratios = [_os_ratio(run.records) for run in plain]
        killed = [_killed(epochs, seed, place / f"kill{seed}") for seed in range(size.pick(1, 8, 50))]
        healed, story = _partition(size, place)
    survived = [run for run in killed if run is not None]
    usual = fmean(_accuracy(run) for run in plain)
    gaps = [100 * (usual - _accuracy(run)) for run in survived]
    show(
        f"digits, {PEERS} processes",
        ["runs", "accuracy", "peers in the final average"],
        [
            ["undisturbed", f"{usual:.4f}", str(PEERS)],
            *(
                [f"kill -9, seed {seed}", f"{_accuracy(run):.4f}", ", ".join(run.summary["peers_averaged"])]
                for seed, run in enumerate(killed)
                if run is not None
            ),
            ["partition", *story],
        ],
    )
    return {
        "os_bytes_over_log_bytes": ratios,
        "kill_survived_share": len(survived) / len(killed),
        "kill_accuracy_gap_points": fmean(gaps) if gaps else NOT_REACHED,
        "partition_healed": float(healed),
    }


def _accuracy(run: Run) -> float:
    assert run.accuracy is not None
    return run.accuracy


def _os_ratio(records: Sequence[Record]) -> float:
    """Return the bytes counted by the operating system / the bytes in the logs."""
    links = [record.event for record in records if isinstance(record.event, LinkTraffic)]
    counted = sum(link.os_bytes or 0 for link in links)
    return counted / sum(sum(link.bytes.values()) for link in links)


def _killed(epochs: int, seed: int, folder: Path) -> Run | None:
    """Return a run with a random peer killed at a random time, or None if the run failed."""
    total = epochs * 1437 // 32
    version = Random(seed).randrange(PEERS, total * 3 // 4)
    try:
        return trained(
            AdaptiveGossip(), f"epochs>={epochs}", folder, [Fault("kill", at_versions=(version,))], seed
        )
    except JobError:
        return None


class Whole:
    """A callback that stops a run once each peer has received models from all others after a partition."""

    def __init__(self, cut: float) -> None:
        self.cut, self.healed_at = cut, inf
        self.models = Counter[tuple[str | None, str]]()

    def __call__(self, record: Record) -> None:
        match record.event:
            case FaultInjected():
                self.healed_at = record.now + self.cut
            case ModelReceived(model) if record.now > self.healed_at:
                self.models[record.peer, model.sender] += 1
        if len(self.models) == PEERS * (PEERS - 1) and min(self.models.values()) >= EXCHANGES:
            raise StopRun("all have exchanged models")
        if record.now > self.healed_at + HEAL_SECONDS:
            raise StopRun("the halves have not found each other")


def _partition(size: Size, place: Path) -> tuple[bool, list[str]]:
    """Cut off half of the peers for some seconds. Return whether both halves continued and then agreed, and a table
    row."""
    cut = size.pick(5.0, CUT_SECONDS, CUT_SECONDS)
    fault = Fault("partition", at_versions=(100,), for_seconds=cut)
    ends = Whole(cut)
    run = trained(Gossip(period=4), "epochs>=1000000", place / "cut", [fault], callbacks=[ends])
    struck = [record.now for record in run.records if isinstance(record.event, FaultInjected)]
    begin = struck[0] if struck else 0.0
    worked = {
        record.peer
        for record in run.records
        if begin + cut / 4 <= record.now <= begin + cut and record.actions
    }
    noticed = any(isinstance(record.event, PeerLost) for record in run.records)
    together = len(run.summary["peers_averaged"]) == PEERS
    agreed = run.summary["disagreement"] <= AGREED
    healed = bool(struck) and len(worked) == PEERS and noticed and together and agreed
    message = f"disagreement {run.summary['disagreement']:.3f}"
    return healed, [f"{_accuracy(run):.4f}", f"{', '.join(run.summary['peers_averaged'])}; {message}"]
