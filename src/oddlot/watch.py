"""`oddlot watch`: a run under way in the terminal, from its folder alone."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from oddlot.console import Picture, progress, quality, say
from oddlot.core.printable import printable
from oddlot.core.words import Blend, Evaluated, Step
from oddlot.report.figures import Figures
from oddlot.report.follow import Follower, stopped_process, waits_for
from oddlot.run_folder import RunFolder
from oddlot.units import moment

LOOKS_A_SECOND = 4


class Watch:
    """What is to be seen of a run at this moment."""

    def __init__(self, folder: str) -> None:
        run = RunFolder(folder)
        self.title = Figures.title_of(run.settings())
        self.follower = Follower(run)
        self.merged_at = 0.0
        self.heard_at = time.monotonic()
        """by this program's clock: when the log last grew"""
        self.waits = ""
        self.stopped = 0
        """the run's process, if that is why it waits"""

    def look(self) -> list[str]:
        """Read what is new; the lines that tell of it."""
        new, lines = self.follower.read(), list[str]()
        tally = self.follower.tally
        for record in new:
            if any(isinstance(action, Step | Blend) for action in record.actions):
                self.merged_at = record.now
            if isinstance(record.event, Evaluated):
                lines = [f"{moment(tally.seconds)}   {progress(tally)}   {quality(tally)}"]
        if new:
            self.heard_at = time.monotonic()
        waits = "" if self.follower.ended else waits_for(tally, self.now, self.merged_at)
        stopped = stopped_process(self.follower.run.path) if waits else 0
        if stopped:
            waits = f"the run's process {stopped} is stopped: `kill -CONT {stopped}` lets it go on"
        if waits and (not self.waits or stopped != self.stopped):
            lines.append(f"{moment(self.now)}   {waits}")
        self.waits, self.stopped = waits, stopped
        return lines

    @property
    def now(self) -> float:
        """On the run's clock, as far as that can be known from here."""
        return self.follower.tally.seconds + time.monotonic() - self.heard_at

    def picture(self, spinner: Spinner) -> RenderableType:
        """The figures, a row for every worker, and what the run waits for."""
        return Group(
            Picture(self.title, self.follower.tally, spinner).draw(self.now),
            Text(printable(self.waits), "yellow"),
        )


def watch(folder: str, console: Console) -> str:
    """Show the run until it ends; how it has ended."""
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
