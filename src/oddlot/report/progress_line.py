"""Progress of a run as one line of the terminal, or as a line every few seconds."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from oddlot.core.records import Record
from oddlot.core.support.text import (
    duration,
    money,
    printable,
    went,
)
from oddlot.history.callback import Callback, RunProgress
from oddlot.history.goals import Goal
from oddlot.history.metrics import Tally

DRAWS_A_SECOND = 4
SECONDS_BETWEEN_PROGRESS = 5.0


def say(console: Console, line: str) -> None:
    """Print a line without markup and without wrapping, with control characters escaped."""
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_line() -> Iterator[Callback]:
    """Yield a callback that shows a run in one line of the terminal. The last line remains after the run."""
    console, line = Console(stderr=True), ProgressLine()
    with (
        shown_messages(console),
        Live(get_renderable=line.draw, console=console, refresh_per_second=DRAWS_A_SECOND),
    ):
        yield line
        line.forecast.goal = None  # the last line shows no remaining time


@contextmanager
def progress_lines() -> Iterator[Callback]:
    """Yield a callback that prints a progress line every `SECONDS_BETWEEN_PROGRESS`, and one when the run ends.

    Lines are printed only when a record arrives.
    """
    console = Console(stderr=True, force_jupyter=False)
    lines = ProgressLines(console=console)
    with shown_messages(console):
        yield lines
        lines.say()


@contextmanager
def shown_messages(console: Console) -> Iterator[None]:
    """Print log messages of oddlot, for example about slow steps before training starts."""
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
    """The goal, and the time until it is reached at the mean speed so far."""

    goal: Goal | None = None
    began: tuple[float, float] | None = None
    """Wall-clock seconds and share done when the first worker joined."""

    def __str__(self) -> str:
        return f"until {self.goal}" if self.goal else ""

    def left(self, tally: Tally, now: float | None = None) -> str:
        """Return the remaining time as text. Empty while it is unknown."""
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
class ProgressLine(Callback):
    """One line about a run: progress, metrics and remaining time."""

    title: str = ""
    tally: Tally = field(default_factory=Tally)
    forecast: Forecast = field(default_factory=Forecast)

    def on_start(self, run: RunProgress) -> None:
        """Set the name of the job and the goal of the run, and count the records of earlier processes."""
        self.title, self.tally.size, self.forecast.goal = run.job, run.samples_per_epoch, run.goal
        for record in run.earlier:
            self.tally(record)

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record."""
        self.tally(record)

    def draw(self) -> RenderableType:
        """Return the current line, cropped to the width of the terminal."""
        return Text(str(self), no_wrap=True, overflow="ellipsis")

    def __str__(self) -> str:
        tally, forecast = self.tally, self.forecast
        parts = [self.title, progress(tally), forecast.left(tally), quality(tally), str(forecast)]
        return "   ".join(map(printable, filter(None, parts)))


@dataclass
class ProgressLines(ProgressLine):
    """Prints the line every few seconds, for notebooks and redirected output."""

    console: Console = field(default_factory=Console)
    clock: Callable[[], float] = monotonic
    printed_at: float = -1.0
    """Time of the last line or of the start."""
    printed: str = ""

    def __post_init__(self) -> None:
        self.printed_at = self.clock()

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Count a record, and print the line if it is due."""
        super().on_record(run, record)
        if self.clock() - self.printed_at >= SECONDS_BETWEEN_PROGRESS:
            self.printed_at = self.clock()
            self.say()

    def say(self) -> None:
        """Print the line, unless it was the last printed line."""
        line = str(self)
        if line != self.printed:
            self.printed = line
            say(self.console, line)


def progress(tally: Tally) -> str:
    """Return epoch, version, cost and lost workers as text."""
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


def quality(tally: Tally) -> str:
    """Return the latest losses and metrics as text."""
    metrics = [f"{name} {value:.4f}" for name, value in dict(tally.quality.metrics).items() if name != "loss"]
    loss = [] if tally.quality.training_loss is None else [f"training loss {tally.quality.training_loss:.4f}"]
    older = metrics and tally.quality.evaluated_version < tally.versions
    of = [f"(evaluated at version {tally.quality.evaluated_version:,})"] if older else []
    return printable("   ".join([*loss, *metrics, *of]))
