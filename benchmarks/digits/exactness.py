"""The bits of weights after runs with other workers, losses, copies of tasks and resumes, and on the simulator."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import show
from oddlot import BackupTasks, Callback, Local, Machine, Run, Simulated, Strategy, Synchronous, fit_stages
from oddlot.core.commands import Abort
from oddlot.core.events import FaultInjected, Lost, Resumed
from oddlot.core.records import Record
from oddlot.faults import Chaos, Fault
from oddlot.history.callback import RunProgress
from oddlot.machines import Exponential
from oddlot.train.stages import Stage
from oddlot.workloads.digit_autoencoder import digit_autoencoder

ROUND = 1_000
"""Samples of a round: eight chunks, the last one of 104 samples."""


STOPS_AFTER = 30
"""Records of a run that is resumed."""


class Stopped(BaseException):
    """The end of a run in mid-training, as by a killed hub."""


@dataclass
class StopAt(Callback):
    """A callback that ends the run after a number of records, without a final checkpoint."""

    records: int

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record, and end the run after the last one."""
        self.records -= 1
        if self.records == 0:
            raise Stopped


@dataclass(frozen=True)
class Case:
    """A run that must end with the same weights as the others."""

    engine: Any
    strategy: Strategy
    settings: Mapping[str, Any]
    needs: Callable[[Run], bool] = lambda _: True
    """Whether what the case is about has happened."""
    resumed_on: Any = None
    """Engine that a resumed run continues on."""


def _lost(run: Run) -> bool:
    return any(isinstance(record.event, Lost) for record in run.records)


def _is_resumed(run: Run) -> bool:
    """Return whether the run was resumed in the middle of a stage."""
    return any(isinstance(record.event, Resumed) and record.event.segment is None for record in run.records)


def _has_aborted(run: Run) -> bool:
    """Return whether a task was aborted because its copy was finished first."""
    return any(isinstance(action, Abort) for record in run.records for action in record.actions)


def cases() -> dict[str, Case]:
    """Return the runs to compare. The first one is computed by one worker of the simulator."""
    exact = Synchronous(samples=ROUND, exact=True)
    kills = Chaos([Fault("kill", at_versions=(2, 5, 9, 14))])
    slow = Chaos([Fault("slow", machine="w2", at_versions=(1, 12), factor=20.0)])
    fleet = [Machine(f"m{at}", 0.001 * (1 + at % 3), Exponential()) for at in range(8)]
    return {
        "simulator, 1 worker": Case(Simulated([Machine("m", 0.001)]), exact, {}),
        "1 worker": Case(Local(1, threads=1), exact, {}),
        "2 workers": Case(Local(2, threads=1), exact, {}),
        "4 workers": Case(Local(4, threads=1), exact, {}),
        "2 workers, 4 kills": Case(Local(2, threads=1), exact, {"chaos": kills}, _lost),
        "4 workers, copies of slow tasks": Case(
            Local(4, threads=1), BackupTasks(exact), {"chaos": slow}, _has_aborted
        ),
        "2 workers, resumed by 4": Case(
            Local(2, threads=1),
            exact,
            {"checkpoint_every": "1 versions"},
            _is_resumed,
            Local(4, threads=1),
        ),
        "simulator, 8 stragglers": Case(Simulated(fleet), BackupTasks(exact), {}),
    }


def bit_identical(options: Mapping[str, Any]) -> float:
    """Print the digest of the weights of each run, and return 1 if they are equal, or else 0.

    Raise RuntimeError if what a case is about has not happened.
    """
    stages = digit_autoencoder(**options)
    rows, found = list[list[str]](), set[str]()
    for name, case in cases().items():
        with TemporaryDirectory(prefix="digits-benchmark-") as folder:
            run = _run(stages, case, Path(folder) / "run")
            if not case.needs(run):
                raise RuntimeError(f"{name}: the fault or the copy did not happen, so nothing was shown")
            faults = sum(isinstance(record.event, FaultInjected) for record in run.records)
        digest = _digest(run)
        found.add(digest)
        rows.append([name, digest[:16], f"{run.summary['versions']:,}", str(faults)])
    show("weights after all stages of digit_autoencoder", ["run", "SHA-256", "versions", "faults"], rows)
    return float(len(found) == 1)


def _run(stages: Sequence[Stage], case: Case, out: Path) -> Run:
    engine = case.engine
    if case.resumed_on is not None:
        stop, engine = StopAt(STOPS_AFTER), case.resumed_on
        with suppress(Stopped):
            fit_stages(
                stages, case.strategy, case.engine, out=out, quiet=True, callbacks=[stop], **case.settings
            )
    return fit_stages(stages, case.strategy, engine, out=out, resume="auto", quiet=True, **case.settings)


def _digest(run: Run) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(run.model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
