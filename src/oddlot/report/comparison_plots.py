"""The charts over time that all runs of a page share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from oddlot.history.metrics import VERSION_FIGURES
from oddlot.report.run_report import Figures
from oddlot.report.svg_charts import WIDTH, Line, Mark, Point, legend_of, legend_told, lines
from oddlot.report.timeline import Course

ACROSS = ("seconds", "versions", "samples", "dollars")
"""Axes of the charts of loss and metrics."""
TOLD = {"seconds": "time"}
LEVELS = {
    "machines": ("machines", -1),
    "dollars_per_hour": ("dollars per hour", 0),
    "results": ("updates per merge", 1),
    "samples": ("samples per update", 1),
}
"""Fields of a `Course`: label, and the value that must be exceeded for a chart to be drawn."""
COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#84cc16", "#a16207", "#db2777")


def colors(runs: int) -> list[str]:
    """Return `COLORS`, with further hues a golden angle apart if there are more runs."""
    return [*COLORS, *(f"hsl({137.508 * number % 360:.0f} 55% 45%)" for number in range(len(COLORS), runs))]


@dataclass
class OverTime:
    """The charts of these runs; `names` are their labels."""

    runs: Sequence[Figures]
    courses: Sequence[Course]
    names: Sequence[str]

    def plots(self) -> Iterator[str]:
        """Yield all charts. Several runs share one legend, which stays visible."""
        if not self.alone:
            legend = legend_of(self._each(lambda _: ()))
            if any(moment.training_loss is not None for course in self.courses for moment in course.progress):
                legend.append(("training", "training loss", "dashed"))
            yield legend_told(legend, "legend shared")
        yield from self._of_quality()
        for figure in self._across[1:]:
            yield self._lines(figure, figure, self._each(_progress(figure)), key=figure)
        for what, (told, usual) in LEVELS.items():
            drawn = self._each(attrgetter(what))
            if max((value for line in drawn for _, value in line.points), default=0.0) > usual:
                yield self._lines(told, told, drawn, from_zero=True, key=f"level of {what}")

    @property
    def alone(self) -> bool:
        """Whether there is only one run."""
        return len(self.runs) == 1

    @cached_property
    def _ends(self) -> dict[str, float]:
        """Return the end of each axis: the maximum over the runs."""
        reached = [
            (course.seconds, run.tally.versions, run.tally.samples.merged, run.tally.dollars)
            for run, course in zip(self.runs, self.courses, strict=True)
        ]
        return dict(zip(ACROSS, map(float, map(max, *reached, (0.0,) * len(ACROSS))), strict=True))

    @property
    def _across(self) -> list[str]:
        return [figure for figure in ACROSS if self._ends[figure]] or ["seconds"]

    @property
    def _resumes(self) -> list[Mark]:
        named = zip(self.courses, self.names, strict=True)
        return [(at, f"{name}: resumed") for course, name in named for at in course.resumed]

    def _each(self, points: Callable[[Course], Sequence[Point]]) -> list[Line]:
        """Return a line per run, in its color."""
        named = enumerate(zip(self.courses, self.names, strict=True))
        return [Line(name, points(course), number) for number, (course, name) in named]

    def _lines(self, title: str, up: str, drawn: Sequence[Line], **options: Any) -> str:
        resumes, end = self._resumes, self._ends["seconds"]
        return lines(
            f"{_capitalized(title)} over time",
            "seconds",
            up,
            drawn,
            end,
            resumes,
            named=self.alone,
            **options,
        )

    def _of_quality(self) -> Iterator[str]:
        """Yield the loss and each metric over each axis with data, in pairs."""
        rows = (row for run in self.runs for row in run.tally.quality.history)
        metrics = (name for row in rows for name in row if name not in VERSION_FIGURES)
        for metric in dict.fromkeys(["loss", *metrics]):
            plots = (
                lines(
                    f"{_capitalized(metric)} over {TOLD.get(figure, figure)}",
                    figure,
                    metric,
                    list(self._quality(metric, figure)),
                    self._ends[figure],
                    self._resumes if figure == "seconds" else (),
                    WIDTH // 2,
                    named=self.alone,
                    key=f"{metric} over {figure}",
                )
                for figure in self._across
            )
            yield f'<div class="pairs">{"".join(plots)}</div>'

    def _quality(self, metric: str, figure: str) -> Iterator[Line]:
        """Yield a line of a metric per run over one of `ACROSS`, and one of the training loss."""
        for number, (run, course, name) in enumerate(zip(self.runs, self.courses, self.names, strict=True)):
            rows = run.tally.quality.history
            points = [(_place(row, figure, run.tally.size), row[metric]) for row in rows if metric in row]
            moments = course.progress if metric == "loss" else []
            losses = [
                (float(getattr(m, figure)), m.training_loss) for m in moments if m.training_loss is not None
            ]
            told = ("evaluation", "training") if self.alone else (name, f"{name}, training")
            if points:
                yield Line(told[0], points, number)
            if losses:
                yield Line(told[1], losses, number, dashed=True)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _progress(figure: str) -> Callable[[Course], Sequence[Point]]:
    """Return a function that yields a figure over time."""
    return lambda course: [(moment.seconds, float(getattr(moment, figure))) for moment in course.progress]


def _place(row: Mapping[str, float], figure: str, size: int) -> float:
    """Return the position of an evaluation on an axis. It has epochs instead of samples."""
    return row["epochs"] * size if figure == "samples" else row[figure]
