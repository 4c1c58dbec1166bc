"""Progress of a run in the terminal, as a live view or printed lines, and the summary at its end."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from oddlot.core.events import Arrived, Evaluated, Joined, Lost, Resumed
from oddlot.core.records import Record
from oddlot.core.support.text import (
    availability,
    best_weights,
    combined,
    cost,
    counted,
    duration,
    moment,
    overwritten,
    printable,
    rejected,
    samples,
    traffic,
    went,
)
from oddlot.core.tasks import machine_of
from oddlot.history.callback import Callback, RunProgress
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import EFFECTIVE_BATCH, FILES
from oddlot.history.worker_timeline import WorkerStates
from oddlot.report.progress_line import DRAWS_A_SECOND, Forecast, progress, quality, say

MAX_ROWS = 16
SECONDS_BETWEEN_LINES = 2.0
LONG_ALONE_SECONDS = 60.0
"""Minimum seconds without a worker to report the first worker that joins."""
NO_WORKER = "no worker is available: waiting for one to join"


@contextmanager
def shown(console: Console, title: str, tally: Tally) -> Iterator[Callback]:
    """Yield a callback that updates the tally and shows it, as a live view on a terminal or as lines."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PrintedLines(console, tally, title)
        return
    dots = "dots" if console.encoding.lower().startswith("utf") else "line"
    picture = Picture(title, tally, Spinner(dots))
    with Live(
        get_renderable=picture.draw, console=console, refresh_per_second=DRAWS_A_SECOND, transient=True
    ):
        yield Opening(console, tally, forecast=picture.forecast)


@dataclass
class Opening(Callback):
    """Updates the tally. Prints the title first, and the initial version of a resumed run."""

    console: Console
    tally: Tally
    title: str = ""
    resumed: str = ""
    resumed_at: float = -1.0
    again: int = 0
    """Samples that are computed again after the last resume."""
    forecast: Forecast = field(default_factory=Forecast)

    def on_start(self, run: RunProgress) -> None:
        """Set the goal of the run, and count the records of earlier processes without printing them."""
        self.forecast.goal = run.goal
        for record in run.earlier:
            self._count(record)

    def _count(self, record: Record) -> None:
        """Count a record, and note the version from which a run is resumed."""
        wasted, version = self.tally.samples.wasted.total(), self.tally.versions
        self.tally(record)
        if isinstance(record.event, Resumed):
            earlier = self.again if record.peer and record.now == self.resumed_at else 0
            self.again, self.resumed_at = earlier + self.tally.samples.wasted.total() - wasted, record.now
            self.resumed = (
                f"resuming from version {version:,}, epoch {self.tally.epochs:.1f}, at {duration(record.now)}"
                + f"; {self.again:,} samples since that checkpoint are computed again" * bool(self.again)
            )

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record. Before the first one, print the title."""
        self._count(record)
        for line in filter(None, (self.title, self.resumed)):
            self.say(line)
        self.title = self.resumed = ""

    def on_interrupt(self, run: RunProgress) -> None:
        """Print that the run is stopping."""
        self.say("stopping: saving the newest version. Press Ctrl-C again to kill the run")

    def say(self, line: str) -> None:
        """Print a line."""
        say(self.console, line)


@dataclass
class PrintedLines(Opening):
    """Prints a line after an evaluation, at most every `SECONDS_BETWEEN_LINES`.

    Also prints a line when the first worker joins late, when the last worker is lost, and when updates arrive again.
    """

    next_line: float = 0.0
    alone_at: int = -1
    """Number of updates when the last worker was lost most recently."""
    waits: bool = False
    """Whether missing workers were reported, and no update has arrived since."""

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record, and print a line about it."""
        super().on_record(run, record)
        match record.event:
            case Evaluated() if record.now >= self.next_line:
                self.next_line = record.now + SECONDS_BETWEEN_LINES
                self.say(f"{moment(record.now)}   {progress(self.tally)}   {quality(self.tally)}")
            case Joined() if record.now >= LONG_ALONE_SECONDS and len(self.tally.workers) == 1:
                self.say(f"{moment(record.now)}   first worker joined")
            case Arrived() if self.waits:
                self.waits = False
                self.say(f"{moment(record.now)}   workers are available again")
            case Lost() if self._alone() and self.alone_at != self._received():
                self.alone_at, self.waits = self._received(), True
                self.say(f"{moment(record.now)}   {NO_WORKER}")

    def _received(self) -> int:
        """Return the number of updates, including late updates.

        A loss is reported only if an update has arrived since the previous report.
        """
        return self.tally.updates + self.tally.echoes

    def _alone(self) -> bool:
        return all(row.gone for row in self.tally.workers.values())


@dataclass
class Picture:
    """The live view: figures and a row per worker. A thread draws it while the tally changes."""

    title: str
    tally: Tally
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    progress: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=5 * DRAWS_A_SECOND))
    """Seconds and merged samples at the most recent draws."""
    forecast: Forecast = field(default_factory=Forecast)

    def draw(self, at: float | None = None) -> RenderableType:
        """Return the current view, or the view `at` a later time of the run's clock."""
        tally = self.tally
        if not tally.samples.merged:
            self.progress.clear()  # no rate while workers start
        self.progress.append((tally.seconds if at is None else at, tally.samples.merged))
        (began, before), (now, after) = self.progress[0], self.progress[-1]
        rate = f"   {(after - before) / (now - began):,.0f} samples/s" if now > began else ""
        self.spinner.update(text=Text(printable(f"{self.title}   {duration(now)}")))
        workers = list(tally.workers.items())  # a copy, because the hub's thread adds workers
        return Group(
            self.spinner,
            Text(progress(tally) + rate),
            Text(quality(tally)),
            *self._forecast(),
            worker_table(workers, now),
            Text(trouble(tally, workers)),
        )

    def _forecast(self) -> list[Text]:
        """Return a line about the goal if the goal is known."""
        message = "   ".join(filter(None, (str(self.forecast), self.forecast.left(self.tally))))
        return [Text(printable(message))] if message else []


def worker_table(workers: list[tuple[str, WorkerStates]], now: float) -> RenderableType:
    """Return a table with a row per worker that was not replaced. After `MAX_ROWS`, the others are counted."""
    workers = sorted(workers, key=lambda worker: (len(machine_of(worker[0])), worker[0]))
    newest = {machine_of(name): (name, row) for name, row in workers}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("worker", "state", "samples"):
        table.add_column(header, justify="right" if header == "samples" else "left")
    for name, row in list(newest.values())[:MAX_ROWS]:
        since = f" for {duration(now - row.since)}" if now - row.since >= 1 else ""
        style = {"lost": "red", "leaving": "yellow", "left": "dim", "waiting": "dim"}.get(row.state, "")
        table.add_row(Text(printable(name)), Text(row.state + since, style), f"{row.samples:,}")
    more = [row.state for _, row in list(newest.values())[MAX_ROWS:]]
    if more:
        counts = ", ".join(f"{more.count(state)} {state}" for state in sorted(set(more)))
        table.add_row(f"{len(more)} more", counts, "")
    return table


def trouble(tally: Tally, workers: list[tuple[str, WorkerStates]]) -> str:
    """Return the reason for missing progress, or the last rejection. Empty if there is neither."""
    if not workers:
        return "starting workers"
    if all(row.gone for _, row in workers):
        return NO_WORKER
    last = printable(tally.last_rejection)
    return f"rejected: {rejected(tally.rejected)}; last: {last}" if tally.rejections else ""


def summary(
    title: str, figures: Mapping[str, Any], virtual: bool, files: Sequence[str] = FILES, verdict: str = ""
) -> Text:
    """Return the summary of a run as text, from `Run.summary`. `virtual`: whether time and cost are simulated."""
    results = {name: value for name, value in figures["metrics"].items() if name != "loss"}
    results |= {"loss": figures["loss"]} if figures["loss"] is not None else {}
    measured = figures.get("evaluated_version")
    measured = figures["ended_version"] if measured is None else measured

    def at(version: int) -> str:
        return f" at version {version:,}" if version < figures["versions"] else ""

    ended_at = "" if results and figures["ended_version"] == measured else at(figures["ended_version"])
    done = f"after {figures['epochs']:.1f} epochs, {counted(figures['versions'], 'version')}"
    rows = {
        "verdict": verdict,
        "ended": f"{figures['ended']}{ended_at}, {done}",
        "time": duration(figures["seconds"])
        + (" simulated" if virtual else "")
        + availability(figures, virtual),
        "cost": cost(figures) if virtual or figures["dollars"] else "",
        "store": overwritten(figures),
        "best": best_weights(figures),
        "batch": figures.get(EFFECTIVE_BATCH) or "",
        "samples": samples(figures),
        "rejected": rejected(figures),
        "combine": combined(figures),
        "traffic": traffic(figures),
        "workers": went(figures["workers_lost"], figures["workers_left"], figures["starts_lost"]),
        "written": f"{figures['run_dir']}: {', '.join(files)}",
    }
    head = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
    head += at(measured) if results else ""
    lines = [Text.assemble((f"  {name:<9}", "dim"), printable(row)) for name, row in rows.items() if row]
    return Text("\n").join([Text(printable(f"{title}: {head}" if head else title), "bold"), *lines])
