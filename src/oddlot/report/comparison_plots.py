"""Charts over time, shared by all runs of a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from operator import attrgetter
from typing import Any

from oddlot.history.metrics import VERSION_FIGURES
from oddlot.report.run_report import RunReport
from oddlot.report.svg_charts import Line, Mark, Point, legend_of, legend_text, lines
from oddlot.report.timeline import RunTimeline

ACROSS = ("seconds", "versions", "samples", "dollars")
"""Axes of the charts of loss and metrics."""
AXIS_TITLES = {"seconds": "time"}
LEVELS = {
    "machines": ("machines", -1),
    "dollars_per_hour": ("dollars per hour", 0),
    "results": ("updates per merge", 1),
    "samples": ("samples per update", 1),
}
"""Label by field of `RunTimeline`, and the value that must be exceeded for a chart to be drawn."""
COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#dc2626", "#84cc16", "#a16207", "#db2777")
UNEQUAL = 3.0
"""Minimum ratio of the longest run to the shortest run to draw a chart per run."""
SMALL = 120
"""Height of a run's chart among several runs, in pixels."""


def colors(runs: int) -> list[str]:
    """Return `COLORS`, with further hues a golden angle apart if there are more runs."""
    return [*COLORS, *(f"hsl({137.508 * number % 360:.0f} 55% 45%)" for number in range(len(COLORS), runs))]


@dataclass
class OverTime:
    """The charts of `runs`, with `names` as labels."""

    runs: Sequence[RunReport]
    courses: Sequence[RunTimeline]
    names: Sequence[str]

    @property
    def alone(self) -> bool:
        """Return True if there is only one run."""
        return len(self.runs) == 1

    @property
    def legend(self) -> str:
        """Return the shared legend of several runs, or an empty string for one run. The legend stays visible."""
        if self.alone:
            return ""
        entries = legend_of(self._each(lambda _: ()))
        if any(
            moment.training_loss is not None
            for run_timeline in self.courses
            for moment in run_timeline.progress
        ):
            entries.append(("training", "training loss", "dashed"))
        return legend_text(entries, "legend shared")

    def quality(self) -> str:
        """Return the charts of the first metric and of the loss over time."""
        return _grid(self._over(metric, "seconds") for metric in self._main)

    def across(self) -> str:
        """Return the charts of the other metrics over time, and of all metrics over the other axes."""
        rest = [self._over(metric, "seconds") for metric in self._metrics if metric not in self._main]
        return _grid(rest + [self._over(metric, axis) for metric in self._metrics for axis in self._axes[1:]])

    def progress(self) -> str:
        """Return the charts of versions, samples, cost and machines over time."""
        drawn = [self._chart(axis, axis, self._each(_progress(axis)), key=axis) for axis in self._axes[1:]]
        for what, (message, usual) in LEVELS.items():
            steps = self._each(attrgetter(what))
            if max((value for line in steps for _, value in line.points), default=0.0) > usual:
                drawn.append(self._chart(message, message, steps, values=[0.0], key=f"level of {what}"))
        return _grid(drawn)

    def ends(self, axis: str) -> list[float]:
        """Return the end of an axis in each run."""
        axes: dict[str, Callable[[RunReport, RunTimeline], float]] = {
            "seconds": lambda _, run_timeline: run_timeline.seconds,
            "versions": lambda run, _: run.tally.versions,
            "samples": lambda run, _: run.tally.samples.merged,
            "dollars": lambda run, _: run.tally.dollars,
        }
        return [float(axes[axis](*pair)) for pair in zip(self.runs, self.courses, strict=True)]

    def unequal(self, axis: str) -> bool:
        """Return True if the lengths of the runs on this axis differ too much for a shared axis."""
        there = [end for end in self.ends(axis) if end]
        return bool(there) and max(there) > UNEQUAL * min(there)

    @cached_property
    def _axes(self) -> list[str]:
        return [axis for axis in ACROSS if any(self.ends(axis))] or ["seconds"]

    @cached_property
    def _metrics(self) -> list[str]:
        """Return the metrics of all runs, with the loss last."""
        rows = (row for run in self.runs for row in run.tally.quality.history)
        metrics = (name for row in rows for name in row if name not in {*VERSION_FIGURES, "loss"})
        return [*dict.fromkeys(metrics), "loss"]

    @property
    def _main(self) -> list[str]:
        return list(dict.fromkeys([self._metrics[0], "loss"]))

    def _each(self, points: Callable[[RunTimeline], Sequence[Point]]) -> list[Line]:
        """Return a line per run in the color of the run."""
        named = enumerate(zip(self.courses, self.names, strict=True))
        return [Line(name, points(run_timeline), number) for number, (run_timeline, name) in named]

    def _over(self, metric: str, axis: str) -> str:
        drawn = list(self._quality(metric, axis))
        title = f"{_capitalized(metric)} over {AXIS_TITLES.get(axis, axis)}"
        return self._chart(title, metric, drawn, axis, key=f"{metric} over {axis}")

    def _chart(
        self, title: str, up: str, drawn: Sequence[Line], axis: str = "seconds", **options: Any
    ) -> str:
        """Return a chart of all runs or, if their lengths differ much, a small chart of each, with equal heights."""
        title = title if " over " in title else f"{_capitalized(title)} over time"
        ends = self.ends(axis)
        shown = [line for line in drawn if ends[line.color]]
        options |= {"named": self.alone}
        if not self.unequal(axis):
            marks = [mark for number in range(len(ends)) for mark in self._resumes(number, axis)]
            return lines(title, axis, up, shown, max(ends), marks, **options)
        values = [value for line in shown for _, value in line.points]
        options |= {"height": SMALL, "values": [*options.get("values", ()), *values]}
        several = [
            lines(name, axis, up, own, ends[number], self._resumes(number, axis), **options)
            for number, name in enumerate(self.names)
            if (own := [line for line in shown if line.color == number])
        ]
        return f'<div class="group"><h3>{escape(title)}</h3><div class="multiples">{"".join(several)}</div></div>'

    def _resumes(self, number: int, axis: str) -> list[Mark]:
        """Return the resumes of a run, for charts over time only."""
        message = "resumed" if self.alone else f"{self.names[number]}: resumed"
        return [(at, message) for at in self.courses[number].resumed] if axis == "seconds" else []

    def _quality(self, metric: str, axis: str) -> Iterator[Line]:
        """Yield a line per run of a metric and, with the loss, of the training loss, over one of `ACROSS`."""
        for number, (run, run_timeline, name) in enumerate(
            zip(self.runs, self.courses, self.names, strict=True)
        ):
            rows = run.tally.quality.history
            points = [(_place(row, axis, run.tally.size), row[metric]) for row in rows if metric in row]
            moments = run_timeline.progress if metric == "loss" else []
            losses = [
                (float(getattr(m, axis)), m.training_loss) for m in moments if m.training_loss is not None
            ]
            labels = ("evaluation", "training") if self.alone else (name, f"{name}, training")
            if points:
                yield Line(labels[0], points, number)
            if losses:
                yield Line(labels[1], losses, number, dashed=True)


def _grid(charts: Iterator[str] | Sequence[str]) -> str:
    """Return charts in two columns, or in one column on a narrow page. Empty without charts."""
    drawn = "".join(charts)
    return f'<div class="pairs">{drawn}</div>' if drawn else ""


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _progress(axis: str) -> Callable[[RunTimeline], Sequence[Point]]:
    """Return a function that returns a figure over time."""
    return lambda run_timeline: [
        (moment.seconds, float(getattr(moment, axis))) for moment in run_timeline.progress
    ]


def _place(row: Mapping[str, float], axis: str, size: int) -> float:
    """Return the position of an evaluation on an axis. Samples are computed from epochs."""
    return row["epochs"] * size if axis == "samples" else row[axis]
