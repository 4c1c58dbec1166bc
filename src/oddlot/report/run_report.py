"""The contents of a run folder, for reports."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from oddlot.checkpoint.storage import BEST
from oddlot.core.events import FaultInjected
from oddlot.core.records import Record
from oddlot.core.support.text import counted, printable, waste
from oddlot.core.tasks import NodeId
from oddlot.faults.injector import CONTINUED
from oddlot.history.audit import Proof
from oddlot.history.included_samples import IncludedSamples, history_of
from oddlot.history.log import surviving
from oddlot.history.metrics import Tally, take_into_account, tally_of, use_saved_model
from oddlot.history.peer_audit import prove_model, prove_run
from oddlot.history.peer_logs import one_history, read_logs, samples_of
from oddlot.history.run_folder import ABOUT, EFFECTIVE_BATCH, RunFolder
from oddlot.history.run_outcome import (
    INTERRUPTED,
    PEER_RECORDS,
    check_agreed,
    check_whole,
    read_ending,
)
from oddlot.history.run_settings import engine_kind, how_to_resume
from oddlot.report.live_log import KILLED, state_of
from oddlot.strategies.registry import BY_NAME, WRAPPERS


@dataclass(frozen=True)
class RunReport:
    """A run as recorded in its log: in progress, ended or killed."""

    folder: Path
    settings: dict[str, Any]
    """Contents of run.json."""
    records: list[Record]
    """The valid history, without work that was lost at a resume."""
    faults: list[tuple[float, FaultInjected]]
    """Times of injected faults and the faults, including faults in lost work."""
    tally: Tally
    summary: dict[str, Any]
    """Summary as `--json` prints it."""
    proof: Proof

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> "RunReport":
        """Read a run folder. Raise CheckpointError if it has no run or a damaged log."""
        run = RunFolder(folder)
        settings = run.settings()
        ending = read_ending(run)
        logs = read_logs(run)
        check_whole(run, ending, {host: len(log) for host, log in logs.items()})
        log = _until_end(one_history(logs), ending)
        records = surviving(log)
        size = samples_of(run)
        proof = prove_run(run, size, records)
        tally = Tally(max(1, size))
        take_into_account(tally, records, run.log)
        if ending:
            tally.advance(max(tally.seconds, float(ending.get("seconds", 0.0))))
            tally.finish()
            use_saved_model(tally, records, ending.get("peers_averaged") or ())
        tally.samples.lose(proof.lost)
        summary = tally.summary() | {"run_dir": str(run.path)}
        if ending and not proof.faults:  # the audit's faults are more specific than a mismatch
            check_agreed(run, ending, _at_end(run, logs, ending, size) if PEER_RECORDS in ending else summary)
        summary |= {"ended": ending.get("ended") or state_of(run.path)}
        summary |= {"ended_version": ending.get("ended_version", tally.versions), "records": len(log)}
        summary |= {"evaluated_version": ending.get("evaluated_version"), BEST: ending.get(BEST)}
        summary |= {EFFECTIVE_BATCH: settings.get(EFFECTIVE_BATCH)}
        faults = [(record.now, record.event) for record in log if isinstance(record.event, FaultInjected)]
        return cls(run.path, settings, records, faults, tally, summary, proof)

    @property
    def title(self) -> str:
        """Return the names of the job and the strategy."""
        return self.title_of(self.settings)

    @staticmethod
    def title_of(settings: dict[str, Any]) -> str:
        """Return the title from run.json alone."""
        names = {kind.__name__: name for name, kind in {**BY_NAME, **WRAPPERS}.items()}
        kinds = [part.partition("(")[0] for part in settings["strategy"].split("(inner=")]
        return printable(f"{settings['job']} with {' around '.join(names.get(kind, kind) for kind in kinds)}")

    @property
    def verdict(self) -> str:
        """Return a sentence with the result of the audit, the lost workers and the wasted samples."""
        timeline, why = self.tally.timeline, dict(self.tally.samples.wasted)
        repeated = why.pop("late", 0)
        wasted = {reason: count for reason, count in why.items() if count}
        isolated = self.tally.models_rejected.total() if not self.tally.exchanges else 0
        parts = [
            str(self.proof),
            f"all {isolated:,} models of other peers were rejected" if isolated else "",
            _times(timeline.workers_lost, "worker", "lost"),
            _times(timeline.workers_left, "worker", "preempted with notice"),
            _times(timeline.starts_lost, "worker", "lost while starting"),
            _times(repeated, "sample", "computed twice"),
            _times(self.tally.combined.samples, "merged sample", "left out by the rule of the merge"),
            _times(sum(wasted.values()), "sample", "wasted") + (f" ({_why(wasted)})" if wasted else ""),
        ]
        return f"{'; '.join(filter(None, parts))}."

    @property
    def injected_faults(self) -> str:
        """Return the number of injected faults by kind as text. Empty without faults."""
        return faults_text(self.fault_counts) if self.fault_counts else ""

    @property
    def fault_counts(self) -> Counter[str]:
        """Return the number of injected faults by kind."""
        return count_faults(fault for _, fault in self.faults)

    @property
    def to_resume(self) -> str:
        """Return the command that resumes the run if it was killed or interrupted. Empty otherwise."""
        about = self.settings.get(ABOUT)
        if self.summary["ended"] not in {KILLED, INTERRUPTED}:
            return ""
        return how_to_resume(about if isinstance(about, dict) else {}, str(self.folder))

    @property
    def virtual(self) -> bool:
        """Return whether the run was simulated, so its time and cost are virtual."""
        return engine_kind(self.settings) == "simulated"

    @property
    def has_prices(self) -> bool:
        """Return whether the log has prices, so costs are known."""
        bill = self.tally.cost
        prices = (price for account in bill.accounts.values() for _, price in account.prices)
        return bool(self.tally.dollars) or any(prices)

    @property
    def files(self) -> list[str]:
        """Return the names of the files in the run folder."""
        return RunFolder(self.folder).written

    def plain(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        about = {key: value for key, value in self.settings.items() if key != ABOUT}
        proof: dict[str, Any] = {
            "exactly_once": self.proof.is_exactly_once,
            "complete_epochs": self.proof.whole,
        }
        proof |= {"samples_left_out": self.proof.left_out, "peers_missing": list(self.proof.missing)}
        proof |= {"audit_errors": list(map(str, self.proof.faults))}
        return {"settings": about, **self.summary, **proof, "injected_faults": dict(self.fault_counts)}


def _until_end(records: list[Record], ending: Mapping[str, Any]) -> list[Record]:
    """Return the records of a mesh with times capped at the end of the run. Peers log records while they stop."""
    end = float(ending.get("seconds", inf))
    return [record if record.now <= end else replace(record, now=end) for record in records]


def _at_end(
    run: RunFolder, logs: Mapping[NodeId, Sequence[Record]], ending: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """Return the figures of a mesh at the time of its summary. Disconnected peers may have trained longer."""
    until = {node: log[: ending[PEER_RECORDS].get(node, 0)] for node, log in logs.items()}
    tally = tally_of(one_history(until), size)
    included = IncludedSamples(history_of(node, run.log_of(node), log) for node, log in until.items())
    tally.samples.lose(prove_model(included, size, ending).lost)
    return tally.summary()


def count_faults(injected: Iterable[FaultInjected]) -> Counter[str]:
    """Count injected faults by kind. A fault that continues after a resume is counted once."""
    return Counter(fault.kind for fault in injected if not fault.fault.endswith(CONTINUED))


def count_faults_in(records: Iterable[Record]) -> Counter[str]:
    """Count the injected faults of a log by kind."""
    return count_faults(record.event for record in records if isinstance(record.event, FaultInjected))


def faults_text(counts: Mapping[str, int]) -> str:
    """Return injected faults as text: `injected: 3 kill, 1 slow`."""
    return f"injected: {', '.join(f'{count:,} {kind}' for kind, count in sorted(counts.items())) or 'none'}"


def _why(wasted: Mapping[str, int]) -> str:
    """Return the reasons for waste, with counts if there are several reasons."""
    return waste(wasted).partition(" ")[2] if len(wasted) == 1 else waste(wasted)


def _times(count: int, what: str, happened: str) -> str:
    """Return text such as `2 workers were lost`. Empty if `count` is 0."""
    return f"{counted(count, what)} {'were' if count > 1 else 'was'} {happened}" if count else ""
