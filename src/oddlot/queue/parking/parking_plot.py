"""Plot of parking rules: utilization against wake-ups per day, and against the share of unserved ticks."""

from collections.abc import Callable, Sequence
from pathlib import Path

from oddlot.queue.parking.parked_cluster import ParkingFigures
from oddlot.queue.parking.rule_choice import ChosenRule
from oddlot.report.html_page import check_plot_place
from oddlot.report.metric_plot import MetricPlot, Panel, panels_of
from oddlot.report.svg_charts import Line

SHOWN_WAKEUPS = 3.0
"""Most wake-ups per day of a buffer that is drawn."""


def write_plot(chosen: Sequence[ChosenRule], path: Path) -> None:
    """Write the curves of the rules over their buffers as an SVG file. Raise UsageError if that is impossible."""
    check_plot_place(path)
    panels = [
        _panel("Wake-ups", "wake-ups per day", chosen, lambda one: one.wakeups_per_day),
        _panel("Unserved ticks", "% of the ticks", chosen, lambda one: 100 * one.unserved_share),
    ]
    MetricPlot(panels_of("Utilization of parking rules", panels)).save(path)


def _panel(
    title: str, across: str, chosen: Sequence[ChosenRule], value: Callable[[ParkingFigures], float]
) -> Panel:
    drawn = [
        Line(
            one.name,
            sorted(
                (value(figures), 100 * figures.utilization_after)
                for _, figures in one.curve
                if figures.wakeups_per_day <= SHOWN_WAKEUPS
            ),
            number,
            dashed=one.sees_future,
        )
        for number, one in enumerate(chosen)
    ]
    end = max([1.0, *(point[0] for line in drawn for point in line.points)])
    return Panel(title, across, "utilization, %", drawn, end)
