"""`oddlot watch`: follow a run in the terminal, from its folder alone."""

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from oddlot.core.events import Evaluated
from oddlot.core.printable import printable
from oddlot.formatting import moment
from oddlot.history.lock import LOCK
from oddlot.history.run_folder import RunFolder
from oddlot.report.live_log import Follower, is_held, stopped_process, waits_for
from oddlot.report.run_report import Figures
from oddlot.run.live_view import SECONDS_BETWEEN_LINES, Picture, progress, quality, say

LOOKS_A_SECOND = 4
SECONDS_TO_BEGIN = 60.0
"""Seconds that a run may take, after its folder was made, until it has a log."""


class Watch:
    """The state of a run that the terminal shows."""

    def __init__(self, folder: str) -> None:
        run = RunFolder(folder)
        self.title = Figures.title_of(run.settings())
        self.follower = Follower(run)
        self.heard_at = time.monotonic()
        """Time at which the log last grew, on this program's clock."""
        self.waits = ""
        self.stopped = 0
        """Process of the run, if it is stopped; else 0."""
        self.line = ""
        """Line about the newest evaluation, if it was not shown yet."""
        self.waits_line = ""
        """Line about what the run waits for, if it was not shown yet."""
        self.next_line = 0.0
        """Time from which another line may be shown, on this program's clock."""

    def look(self) -> list[str]:
        """Read new records, and return the line to show, if any."""
        new, tally = self.follower.read(), self.follower.tally
        for record in new:
            if isinstance(record.event, Evaluated):
                self.line = f"{moment(tally.seconds)}   {progress(tally)}   {quality(tally)}"
        if new:
            self.heard_at = time.monotonic()
        waits = "" if self.follower.ended else waits_for(tally, self.now)
        stopped = stopped_process(self.follower.run.path) if waits else 0
        if stopped:
            waits = f"the run's process {stopped} is stopped. Continue it with `kill -CONT {stopped}`"
        if not waits:
            self.waits_line = ""
        elif not self.waits or stopped != self.stopped:
            self.waits_line = f"{moment(self.now)}   {waits}"
        self.waits, self.stopped = waits, stopped
        return self._lines()

    def _lines(self) -> list[str]:
        """Return the line to show now. Lines are a few seconds apart."""
        line = self.waits_line or self.line
        if not line or time.monotonic() < self.next_line:
            return []
        self.line = self.waits_line = ""
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        return [line]

    @property
    def now(self) -> float:
        """The time on the run's clock, estimated from the last record."""
        return self.follower.tally.seconds + time.monotonic() - self.heard_at

    def picture(self, spinner: Spinner) -> RenderableType:
        """Return the figures, a row for each worker, and what the run waits for."""
        return Group(
            Picture(self.title, self.follower.tally, spinner).draw(self.now),
            Text(printable(self.waits), "yellow"),
        )


def watch(folder: str, console: Console) -> str:
    """Show the run until it ends, and return how it ended. Raise CheckpointError if no run begins."""
    _wait_for_begin(RunFolder(folder), console)
    seen = Watch(folder)
    if not console.is_terminal or console.is_dumb_terminal:
        say(console, seen.title)
        while not (ended := _look(seen, console)):
            time.sleep(1 / LOOKS_A_SECOND)
        return ended
    spinner = Spinner("dots" if console.encoding.lower().startswith("utf") else "line")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not (ended := seen.follower.ended):
            seen.look()
            live.update(seen.picture(spinner), refresh=True)
            time.sleep(1 / LOOKS_A_SECOND)
    return ended


def _look(seen: Watch, console: Console) -> str:
    ended = seen.follower.ended  # asked first: what was written before is read then
    for line in seen.look():
        say(console, line)
    return ended


def _wait_for_begin(run: RunFolder, console: Console) -> None:
    """Wait while the run's folder is new: its process imports PyTorch, or reads the data."""
    told, began = False, time.monotonic()
    while not _has_log(run) and (is_held(run.path) or _is_empty(run.path)):
        if not is_held(run.path) and time.monotonic() - began > SECONDS_TO_BEGIN:
            return  # nothing will come: reading the folder says why
        if not told:
            told = True
            say(console, f"waiting for a run to start in {run.path}")
        time.sleep(1 / LOOKS_A_SECOND)


def _has_log(run: RunFolder) -> bool:
    """Whether the log of a run, or of one of its peers, has a line."""
    return run.is_begun and any(log.exists() and log.stat().st_size > 0 for log in run.logs().values())


def _is_empty(folder: Path) -> bool:
    """Whether this is a folder with nothing but a lock."""
    return folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())
