"""What a person sees of a run: its figures while it goes on, and a summary when it has ended."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from oddlot.core.events import Arrived, Evaluated, Joined, Lost, Resumed
from oddlot.core.printable import printable
from oddlot.core.records import Record
from oddlot.core.tasks import machine_of
from oddlot.formatting import (
    availability,
    cost,
    duration,
    moment,
    money,
    overwritten,
    rejected,
    samples,
    traffic,
)
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import EFFECTIVE_BATCH, FILES
from oddlot.history.worker_timeline import Worker
from oddlot.run.goals import Goal
from oddlot.run.spec import Recipe

DRAWS_A_SECOND = 4
MAX_ROWS = 16
SECONDS_BETWEEN_LINES = 2.0
LONG_ALONE_SECONDS = 60.0
"""before anybody has come, that it is told"""
NOBODY = "no worker is here: the run waits until one joins"


def say(console: Console, line: str) -> None:
    """Print a line that is neither markup nor cut, with its control characters escaped."""
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown(console: Console, title: str, tally: Tally) -> Iterator[Callable[[Record], None]]:
    """An observer that keeps the tally and shows it: in place on a terminal, elsewhere with a line now and then."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(console, tally, title)
        return
    dots = "dots" if console.encoding.lower().startswith("utf") else "line"
    picture = Picture(title, tally, Spinner(dots))
    with Live(
        get_renderable=picture.draw, console=console, refresh_per_second=DRAWS_A_SECOND, transient=True
    ):
        yield Opening(console, tally, forecast=picture.forecast)


@contextmanager
def progress_line() -> Iterator[Callable[[Record], None]]:
    """An observer that shows a run in one line on the terminal, which stays there when it has ended."""
    console, line = Console(stderr=True), ProgressLine()
    with (
        told(console),
        Live(get_renderable=line.draw, console=console, refresh_per_second=DRAWS_A_SECOND),
    ):
        yield line
        line.forecast.goal = None  # what is drawn last has no time left


@contextmanager
def told(console: Console) -> Iterator[None]:
    """What oddlot's own modules log while inside is shown: that something takes long, before anything is trained."""
    logger, lines = logging.getLogger("oddlot"), _Lines(console)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        say(self.console, record.getMessage())


@dataclass
class Forecast:
    """The goal, and when it will be reached if the run goes on at the speed that it has had."""

    goal: Goal | None = None
    began: tuple[float, float] | None = None
    """seconds on the wall's clock, and the share of the way that was done, when the first worker was here"""

    def __str__(self) -> str:
        return f"until {self.goal}" if self.goal else ""

    def left(self, tally: Tally, now: float | None = None) -> str:
        """The time that is left; empty while that is not known."""
        if self.goal is None:
            return ""
        now = monotonic() if now is None else now
        share = self.goal.share(tally)
        if self.began is None and tally.workers:
            self.began = now, share
        since, before = self.began or (now, share)
        left = (now - since) * (1 - share) / (share - before) if before < share < 1 else 0.0
        return f"about {duration(left)} left" if left else ""


@dataclass
class ProgressLine:
    """One line of a run: how far it is, how good the model is, and when it will end."""

    title: str = ""
    tally: Tally = field(default_factory=Tally)
    forecast: Forecast = field(default_factory=Forecast)

    def begin(self, recipe: Recipe) -> None:
        """What is trained, and until when."""
        self.title = recipe.job.name
        self.tally.size, self.forecast.goal = recipe.samples, recipe.goal

    def __call__(self, record: Record) -> None:
        self.tally(record)

    def draw(self) -> RenderableType:
        """The line of this moment."""
        tally, forecast = self.tally, self.forecast
        parts = [self.title, progress(tally), forecast.left(tally), quality(tally), str(forecast)]
        return Text("   ".join(map(printable, filter(None, parts))), no_wrap=True, overflow="ellipsis")


@dataclass
class Opening:
    """Keeps the tally, and says first of all where a resumed run goes on."""

    console: Console
    tally: Tally
    title: str = ""
    going_on: str = ""
    forecast: Forecast = field(default_factory=Forecast)

    def begin(self, recipe: Recipe) -> None:
        """The goal is known."""
        self.forecast.goal = recipe.goal

    def replay(self, record: Record) -> None:
        """What a resumed run had done before is counted, and not said again."""
        wasted, version = self.tally.samples.wasted.total(), self.tally.versions
        self.tally(record)
        if isinstance(record.event, Resumed):
            again = self.tally.samples.wasted.total() - wasted
            self.going_on = (
                f"going on from version {version:,}, epoch {self.tally.epochs:.1f}, after "
                f"{duration(record.now)}; {again:,} samples merged or under way since are computed again"
            )

    def __call__(self, record: Record) -> None:
        self.tally(record)
        for line in filter(None, (self.title, self.going_on)):
            self.say(line)
        self.title = self.going_on = ""

    def stopping(self) -> None:
        """Somebody has asked the run to stop."""
        self.say("stopping: the newest version is measured and saved; Ctrl-C again ends at once")

    def say(self, line: str) -> None:
        """A line that stays."""
        say(self.console, line)


@dataclass
class Lines(Opening):
    """Says a line after an evaluation, if the last one is a while ago, when the first worker has come late, when the
    last one is gone, if something had come in since somebody joined, and when something comes in again.
    """

    next_line: float = 0.0
    alone_at: int = -1
    """what had been brought when nobody was here the last time"""
    waits: bool = False
    """it was told that nobody is here"""

    def __call__(self, record: Record) -> None:
        super().__call__(record)
        match record.event:
            case Evaluated() if record.now >= self.next_line:
                self.next_line = record.now + SECONDS_BETWEEN_LINES
                self.say(f"{moment(record.now)}   {progress(self.tally)}   {quality(self.tally)}")
            case Joined() if record.now >= LONG_ALONE_SECONDS and len(self.tally.workers) == 1:
                self.say(f"{moment(record.now)}   the first worker is here")
            case Arrived() if self.waits:
                self.waits = False
                self.say(f"{moment(record.now)}   workers are here again")
            case Lost() if self._alone() and self.alone_at != self._brought():
                self.alone_at, self.waits = self._brought(), True
                self.say(f"{moment(record.now)}   {NOBODY}")

    def _brought(self) -> int:
        """Answers of all kinds: lives without any follow each other too fast to be told each time."""
        return self.tally.updates + self.tally.echoes

    def _alone(self) -> bool:
        return all(row.gone for row in self.tally.workers.values())


@dataclass
class Picture:
    """The figures and a row for every worker. Drawn by a thread of its own while the tally goes on."""

    title: str
    tally: Tally
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    progress: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=5 * DRAWS_A_SECOND))
    """(seconds, samples merged) at the last draws"""
    forecast: Forecast = field(default_factory=Forecast)

    def draw(self, at: float | None = None) -> RenderableType:
        """The picture of this moment: of the tally's, or of a later one on the run's clock."""
        tally = self.tally
        if not tally.samples.merged:
            self.progress.clear()  # the workers' start is no training
        self.progress.append((tally.seconds if at is None else at, tally.samples.merged))
        (began, before), (now, after) = self.progress[0], self.progress[-1]
        rate = f"   {(after - before) / (now - began):,.0f} samples/s" if now > began else ""
        self.spinner.update(text=Text(printable(f"{self.title}   {duration(now)}")))
        workers = list(tally.workers.items())  # copied in one go, since the hub's thread adds to it
        return Group(
            self.spinner,
            Text(progress(tally) + rate),
            Text(quality(tally)),
            *self._forecast(),
            worker_table(workers, now),
            Text(trouble(tally, workers)),
        )

    def _forecast(self) -> list[Text]:
        """A line, once the goal is known."""
        told = "   ".join(filter(None, (str(self.forecast), self.forecast.left(self.tally))))
        return [Text(printable(told))] if told else []


def progress(tally: Tally) -> str:
    """How far the run has come, in a few words."""
    cost = [money(tally.dollars)] if tally.dollars else []
    parts = [f"epoch {tally.epochs:.1f}", f"version {tally.versions:,}", *cost]
    return "   ".join(
        filter(
            None,
            [
                *parts,
                went(tally.timeline.workers_lost, tally.timeline.workers_left, tally.timeline.starts_lost),
            ],
        )
    )


def went(lost: int, left: int, starts: int) -> str:
    """How many workers are gone, and how; empty while none is."""
    counts = ((lost, "lost"), (left, "left"), (starts, "lost starting"))
    return ", ".join(f"{count:,} {how}" for count, how in counts if count)


def quality(tally: Tally) -> str:
    """How good the model is, as far as it is known."""
    metrics = [f"{name} {value:.4f}" for name, value in dict(tally.quality.metrics).items() if name != "loss"]
    loss = [] if tally.quality.training_loss is None else [f"training loss {tally.quality.training_loss:.4f}"]
    older = metrics and tally.quality.evaluated_version < tally.versions
    of = [f"(of version {tally.quality.evaluated_version:,})"] if older else []
    return printable("   ".join([*loss, *metrics, *of]))


def worker_table(workers: list[tuple[str, Worker]], now: float) -> RenderableType:
    """A row for every worker that is here or was not replaced; of many, the first ones and a count of the rest."""
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
        table.add_row(f"and {len(more)} more", counts, "")
    return table


def trouble(tally: Tally, workers: list[tuple[str, Worker]]) -> str:
    """Why nothing happens, or what went wrong; mostly nothing."""
    if not workers:
        return "starting the workers"
    if all(row.gone for _, row in workers):
        return NOBODY
    last = printable(tally.last_rejection)
    return f"rejected: {rejected(tally.rejected)}; last: {last}" if tally.rejections else ""


def summary(title: str, figures: Mapping[str, Any], virtual: bool, files: Sequence[str] = FILES) -> Text:
    """The closing figures, as `Run.summary` has them; `virtual`: the clock and the money are a simulated fleet's."""
    results = {name: value for name, value in figures["metrics"].items() if name != "loss"}
    results |= {"loss": figures["loss"]} if figures["loss"] is not None else {}
    early = figures["ended_version"] < figures["versions"]
    of = f" at version {figures['ended_version']:,}" if early else ""
    done = f"after {figures['epochs']:.1f} epochs, {figures['versions']:,} versions"
    rows = {
        "ended": f"{figures['ended']}{'' if results else of}, {done}",
        "time": duration(figures["seconds"])
        + (" on the fleet's clock" if virtual else "")
        + availability(figures, virtual),
        "cost": cost(figures) if virtual or figures["dollars"] else "",
        "store": overwritten(figures),
        "batch": figures.get(EFFECTIVE_BATCH) or "",
        "samples": samples(figures),
        "rejected": rejected(figures),
        "traffic": traffic(figures),
        "workers": went(figures["workers_lost"], figures["workers_left"], figures["starts_lost"]),
        "written": f"{figures['run_dir']}: {', '.join(files)}",
    }
    head = ", ".join(f"{name} {value:.4f}" for name, value in results.items()) + (of if results else "")
    lines = [Text.assemble((f"  {name:<9}", "dim"), printable(row)) for name, row in rows.items() if row]
    return Text("\n").join([Text(printable(f"{title}: {head}" if head else title), "bold"), *lines])
