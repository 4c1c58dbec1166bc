"""All that a run's folder tells, read once."""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from oddlot.core.errors import CheckpointError
from oddlot.core.words import Record
from oddlot.log import read_header, read_log, surviving
from oddlot.observe import Tally, take_into_account
from oddlot.report.proof import Proof, prove
from oddlot.run_folder import ABOUT, ON, SUMMARY, RunFolder

NOT_ENDED = "not ended"


@dataclass(frozen=True)
class Figures:
    """A run as its log has it, whether it is under way, has ended or was killed."""

    folder: Path
    settings: dict[str, Any]
    """run.json"""
    records: list[Record]
    """the history that holds"""
    tally: Tally
    summary: dict[str, Any]
    """as `--json` printed it or will print it"""
    proof: Proof

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> "Figures":
        """CheckpointError: there is no run, or its log is damaged."""
        run = RunFolder(folder)
        settings = run.settings()
        books = read_header(run.log)["conductor"]
        records = surviving(read_log(run.log))
        size = int(books["ledger"]["size"])
        tally = Tally(size)
        take_into_account(tally, records, run.log)
        proof = prove(records, size)
        ending = _ending(run.path / SUMMARY)
        if ending:
            tally.finish()
        summary = tally.summary() | {"run_dir": str(run.path)}
        summary |= {"ended": ending.get("ended", NOT_ENDED)}
        summary |= {"ended_version": ending.get("ended_version", tally.versions)}
        return cls(run.path, settings, records, tally, summary, proof)

    @property
    def title(self) -> str:
        """Which job by which strategy."""
        return f"{self.settings.get('job')} with {str(self.settings.get('strategy')).partition('(')[0]}"

    @property
    def virtual(self) -> bool:
        """Whether clock and money are a simulated fleet's."""
        return self.settings.get(ON) == "Simulated"

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        about = {key: value for key, value in self.settings.items() if key != ABOUT}
        proof = {"exactly_once": not self.proof.faults, "epochs_whole": self.proof.whole}
        return {"settings": about, **self.summary, **proof, "faults": list(self.proof.faults)}


def _ending(path: Path) -> dict[str, Any]:
    """What the run itself has said at its end; empty while it has not."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        raise CheckpointError(f"{path} is damaged: remove it, and the report is made of the log") from None
