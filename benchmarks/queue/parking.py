"""Parking of Philly's machines: settings chosen on November 2017, tested on 2017-12-01 to 14."""

import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.report import Measured, Size
from oddlot.core.support.errors import UsageError
from oddlot.queue.parking.node_series import TICKS_PER_DAY, NodeSeries, read_series
from oddlot.queue.parking.parking_plot import write_plot
from oddlot.queue.parking.rule_choice import Limits, Parts, choose, default_of

FIRST = datetime(2017, 12, 1, tzinfo=UTC)
FILE = "philly_active_nodes_per_minute.csv.gz"
PLOT = Path(__file__).parents[2] / "docs" / "plots" / "queue_parking.svg"


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures of the rules on the days of the test, and draw utilization over wake-ups."""
    parts = _parts(size)
    limits = Limits(50.0, 0.5) if size is Size.SMOKE else Limits()
    chosen = choose(parts, limits)
    if size is not Size.SMOKE:
        write_plot(list(chosen.values()), PLOT)
    print(f"parking: the default is the rule {getattr(default_of(chosen), 'name', None)!r}")
    figures: dict[str, Measured] = {}
    if forecast := chosen.get("forecast"):
        figures |= {
            "utilization_before": forecast.test.utilization_before,
            "utilization_after": forecast.test.utilization_after,
            "wakeups_per_day": forecast.test.wakeups_per_day,
            "unserved_share": forecast.test.unserved_share,
        }
    if peak := chosen.get("peak"):
        figures["utilization_without_forecast"] = peak.test.utilization_after
        figures["wakeups_per_day_without_forecast"] = peak.test.wakeups_per_day
    if published := chosen.get("published"):
        figures["utilization_published"] = published.test.utilization_after
    return figures


def _parts(size: Size) -> Parts:
    if size is Size.SMOKE:
        days = np.arange(20 * TICKS_PER_DAY) / TICKS_PER_DAY
        used = np.round(50 + 20 * np.sin(2 * np.pi * days)).astype(np.int64)
        return Parts.of(NodeSeries(0.0, used, np.full(len(used), 100)), days=5)
    path = Path(os.environ.get("ODDLOT_DATA", "")) / "trace_philly" / FILE
    if not path.is_file():
        raise UsageError(f"$ODDLOT_DATA has no file trace_philly/{FILE}", "no_data", path=str(path))
    return Parts.of(read_series(path), FIRST.timestamp())
