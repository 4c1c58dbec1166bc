"""Observing a run in progress from its folder: new records, its process, and the reason for waiting."""

import platform
import re
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path

from oddlot.checkpoint.local_storage import open_to_read
from oddlot.core.events import Resumed
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.text import duration
from oddlot.history.folder_lock import LOCK, read_holder
from oddlot.history.log import surviving
from oddlot.history.log_follower import LogFollower
from oddlot.history.metrics import Tally, take_into_account
from oddlot.history.peer_logs import PeerLogs, read_run_log, samples_of
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import read_ending

KILLED = "killed or unable to write (no process is running it)"
MIN_STALL_SECONDS = 2.0
USUAL_TIMES = 10
"""Multiple of the usual time between merges until a run counts as waiting."""


@dataclass
class LiveLog:
    """Reads new records of a run's log, or of the logs of all peers."""

    run: RunFolder
    tally: Tally = field(default_factory=Tally)
    records: list[Record] = field(default_factory=list)
    """All records, in the order of the log."""

    def __post_init__(self) -> None:
        self.size = samples_of(self.run)
        self.log: LogFollower | PeerLogs = (
            PeerLogs(self.run) if self.run.is_mesh else LogFollower(self.run.log)
        )
        self._begin()

    def _begin(self) -> None:
        self.records, self.tally = [], Tally(self.size)

    def read(self) -> list[Record]:
        """Return new records, and add them to the tally. Raise CheckpointError if the log is damaged."""
        if isinstance(self.log, PeerLogs):
            return self._read_peers(self.log)
        try:
            new = self.log.read()
        except CheckpointError:
            if not self.log.offset:
                raise
            self.log.begin()  # a resumed run may have replaced a damaged part
            new = None
        if new is None:
            self._begin()
            new = self.log.read() or []
        return self._counted(new)

    def _read_peers(self, logs: PeerLogs) -> list[Record]:
        new = logs.read()
        if not any(isinstance(each.event, Resumed) for each in new):
            return self._counted(new)
        self._begin()  # some counted records are now lost work
        valid = read_run_log(self.run)
        logs.skip(valid)
        return self._counted(valid)

    def _counted(self, new: list[Record]) -> list[Record]:
        self.records += new
        self._count(new)
        return new

    def _count(self, new: list[Record]) -> None:
        if any(isinstance(each.event, Resumed) for each in new):  # some counted records are now lost work
            self.tally = Tally(self.size)
            take_into_account(self.tally, surviving(self.records), self.run.log)
        else:
            take_into_account(self.tally, new, self.run.log)

    @property
    def ended(self) -> str:
        """Return why the run ended. Empty while a process runs it."""
        if ending := read_ending(self.run):
            return str(ending["ended"])
        return "" if is_held(self.run.path) else KILLED


def state_of(folder: Path) -> str:
    """Return the state of a run that has not ended."""
    if not is_held(folder):
        return KILLED
    stopped = stopped_process(folder)
    return f"in progress, but its process {stopped} is stopped" if stopped else "in progress"


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of the run folder."""
    try:
        with open_to_read(folder / LOCK) as file:
            flock(file, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def stopped_process(folder: Path) -> int:
    """Return the id of the run's process if it is on this machine and stopped (SIGSTOP), or else 0."""
    with suppress(OSError):
        holder = re.match(r"process ([0-9]+) on (.*)\n", read_holder(folder))
        if holder and holder[2] == platform.node():
            status = Path(f"/proc/{holder[1]}/stat").read_text("utf-8", "replace").rpartition(")")[2]
            return int(holder[1]) if status.split()[:1] == ["T"] else 0
    return 0


def waits_for(tally: Tally, now: float) -> str:
    """Return the reason for a missing merge. Empty if the pause is not unusual.

    `now` is in seconds of the run's clock.
    """
    usual = (tally.merged_at / tally.versions) if tally.versions else 0.0
    if now - tally.merged_at < max(MIN_STALL_SECONDS, USUAL_TIMES * usual):
        return ""
    here = {name: row for name, row in tally.workers.items() if not row.gone}
    working = sorted((row.since, name) for name, row in here.items() if row.state in {"working", "leaving"})
    if not tally.workers:
        return "starting workers, or writing the first checkpoint"
    if not here:
        return "no worker is available: waiting for one to join"
    if not working:
        return "all workers are idle: no samples are left, or the final version is being evaluated"
    message = [f"{name} (on its task for {duration(now - since)})" for since, name in working[:3]]
    more = f" and {len(working) - 3} more" if len(working) > 3 else ""
    return f"no merge for {duration(now - tally.merged_at)}: waiting for {', '.join(message)}{more}"
