"""`oddlot watch`: follow a run in the terminal, from its folder."""

import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from oddlot.core.events import Evaluated
from oddlot.core.support.text import moment, printable
from oddlot.history.folder_lock import LOCK
from oddlot.history.run_folder import RunFolder
from oddlot.report.live_log import LiveLog, is_held, stopped_process, waits_for
from oddlot.report.live_view import SECONDS_BETWEEN_LINES, Picture
from oddlot.report.progress_line import progress, quality, say
from oddlot.report.run_report import RunReport

LOOKS_A_SECOND = 4
SECONDS_TO_BEGIN = 60.0
"""Seconds to wait for the log of a run after its folder was created."""


class Watch:
    """The state of a run that the terminal shows."""

    def __init__(self, folder: str) -> None:
        run = RunFolder(folder)
        self.title = RunReport.title_of(run.settings())
        self.follower = LiveLog(run)
        self.heard_at = time.monotonic()
        """Time of the log's last growth, on this program's clock."""
        self.waits = ""
        self.stopped = 0
        """Process of the run, if it is stopped; else 0."""
        self.line = ""
        """Line about the newest evaluation; empty once it was shown."""
        self.waits_line = ""
        """Line with the reason why the run waits; empty once it was shown."""
        self.next_line = 0.0
        """Earliest time of the next line, on this program's clock."""

    def look(self) -> list[str]:
        """Read new records, and return a list with the line to show, or an empty list."""
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
        """Return a list with the line to show now, or an empty list. Lines are a few seconds apart."""
        line = self.waits_line or self.line
        if not line or time.monotonic() < self.next_line:
            return []
        self.line = self.waits_line = ""
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        return [line]

    @property
    def ended(self) -> str:
        """Return why the run ended. Empty while a process runs it, or between two of its stages."""
        ended = self.follower.ended
        is_between = ended.startswith("epochs>=") and bool(self.follower.run.following_stage)
        return "" if is_between and time.monotonic() - self.heard_at < SECONDS_TO_BEGIN else ended

    @property
    def now(self) -> float:
        """The time on the run's clock, estimated from the last record."""
        return self.follower.tally.seconds + time.monotonic() - self.heard_at

    def picture(self, spinner: Spinner) -> RenderableType:
        """Return the metrics, a row for each worker, and the reason why the run waits."""
        return Group(
            Picture(self.title, self.follower.tally, spinner).draw(self.now),
            Text(printable(self.waits), "yellow"),
        )


def watch(folder: str, console: Console) -> str:
    """Show the run until it ends, and return how it ended. Raise CheckpointError if no run starts."""
    _wait_for_begin(RunFolder(folder), console)
    seen = Watch(folder)
    if not console.is_terminal or console.is_dumb_terminal:
        say(console, seen.title)
        while not (ended := _look(seen, console)):
            time.sleep(1 / LOOKS_A_SECOND)
        return ended
    spinner = Spinner("dots" if console.encoding.lower().startswith("utf") else "line")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not (ended := seen.ended):
            seen.look()
            live.update(seen.picture(spinner), refresh=True)
            time.sleep(1 / LOOKS_A_SECOND)
    return ended


def _look(seen: Watch, console: Console) -> str:
    ended = seen.ended  # before the last records are read
    for line in seen.look():
        say(console, line)
    return ended


def _wait_for_begin(run: RunFolder, console: Console) -> None:
    """Wait until a new run has a log. Its process may still import PyTorch or read the data."""
    message, began = False, time.monotonic()
    while not _has_log(run) and (is_held(run.path) or _is_empty(run.path)):
        if not is_held(run.path) and time.monotonic() - began > SECONDS_TO_BEGIN:
            return  # no run will start; reading the folder raises the error
        if not message:
            message = True
            say(console, f"waiting for a run to start in {run.path}")
        time.sleep(1 / LOOKS_A_SECOND)


def _has_log(run: RunFolder) -> bool:
    """Return whether the log of a run, or of one of its peers, has a line."""
    return run.is_begun and any(log.exists() and log.stat().st_size > 0 for log in run.logs().values())


def _is_empty(folder: Path) -> bool:
    """Return whether this is a folder with nothing but a lock."""
    return folder.is_dir() and all(path.name == LOCK for path in folder.iterdir())
