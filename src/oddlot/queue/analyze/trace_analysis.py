"""The figures of the Helios study for any trace (Hu et al. 2021, section 3)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.queue.traces.trace import Trace, TraceJob

Array = NDArray[np.float64]
Point = tuple[float, float]
HOUR, DAY = 3_600.0, 86_400.0
CURVE_POINTS = 200
TOP = 10
"""Number of users and virtual clusters that a table shows."""
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Spread:
    """Summary of values, in their unit."""

    mean: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Array) -> "Spread":
        """Return the summary of at least one value."""
        median, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99))
        return cls(float(values.mean()), float(median), float(p90), float(p99))


@dataclass(frozen=True)
class Group:
    """The jobs of a user, a virtual cluster, a state or a size."""

    name: str
    jobs: int
    unit_hours: float
    """Hours times GPUs."""
    share: float
    """Share of the unit hours of all jobs."""
    mean_seconds: float
    mean_queued: float | None
    """Mean queueing time in seconds. None if the trace has none."""


@dataclass(frozen=True)
class TraceAnalysis:
    """Figures of a trace. Units are GPUs, or cores if no job has a GPU."""

    jobs: int
    left_out: int
    """Number of lines that the reader left out."""
    unit: str
    without_gpu: int
    """Number of jobs without GPU. They are not analyzed, unless no job has a GPU."""
    first: str
    last: str
    """First and last day of submission."""
    users: int
    """Number of users. 0 if the trace has no users."""
    unit_hours: float
    durations: Spread
    """Seconds."""
    units: Spread
    queued: Spread | None
    """Seconds. None if the trace has no queueing times."""
    by_state: tuple[Group, ...]
    by_size: tuple[Group, ...]
    by_user: tuple[Group, ...]
    """Largest first."""
    by_virtual_cluster: tuple[Group, ...]
    top_user_shares: Mapping[str, float]
    """Share of the unit hours of the largest 1 %, 5 % and 20 % of the users."""
    by_hour: tuple[float, ...]
    """Submissions per hour, by the hour of the day (UTC)."""
    by_weekday: tuple[float, ...]
    """Submissions per day, from Monday to Sunday."""
    duration_curve: tuple[Point, ...]
    """Seconds, and the share of the jobs up to them."""
    unit_hours_curve: tuple[Point, ...]
    """Seconds, and the share of the unit hours of jobs up to them."""
    queue_curve: tuple[Point, ...]
    user_curve: tuple[Point, ...]
    """Share of the users, largest first, and their share of the unit hours."""
    in_use: tuple[Point, ...]
    """Seconds since the first submission, and the mean number of units in use."""
    capacity: int | None
    """Units of all machines, if the trace has them."""

    def as_json(self) -> dict[str, Any]:
        """Return all figures as values of JSON."""
        return asdict(self)


def analyze(trace: Trace) -> TraceAnalysis:
    """Return the figures of a trace with at least one job.

    Jobs without queueing time count as started at their submission.
    """
    with_gpu = [job for job in trace.jobs if job.request.gpus]
    jobs = with_gpu or list(trace.jobs)
    seconds = np.array([job.duration for job in jobs])
    units = np.array([float(job.request.units) for job in jobs])
    hours = seconds * units / HOUR
    submitted = np.array([job.request.submitted for job in jobs])
    waited = np.array([np.nan if job.queued is None else job.queued for job in jobs])
    known = waited[np.isfinite(waited)]
    starts = submitted + np.nan_to_num(waited)
    grouped = _Grouping(jobs, seconds, hours, waited)
    users = grouped.by(lambda job: job.request.user)
    users = users if any(one.name for one in users) else ()
    return TraceAnalysis(
        jobs=len(jobs),
        left_out=len(trace.problems),
        unit="GPU" if with_gpu else "core",
        without_gpu=len(trace.jobs) - len(with_gpu) if with_gpu else 0,
        first=_day(submitted.min()),
        last=_day(submitted.max()),
        users=len(users),
        unit_hours=float(hours.sum()),
        durations=Spread.of(seconds),
        units=Spread.of(units),
        queued=Spread.of(known) if len(known) else None,
        by_state=grouped.by(lambda job: job.state or "unknown"),
        by_size=tuple(
            sorted(grouped.by(lambda job: str(_size(job.request.units))), key=lambda one: int(one.name))
        ),
        by_user=users,
        by_virtual_cluster=grouped.by(lambda job: job.request.virtual_cluster),
        top_user_shares=_top_shares(users),
        by_hour=_profile(submitted, HOUR, 24, 0),
        by_weekday=_profile(submitted, DAY, 7, 3),  # 1970-01-01 was a Thursday
        duration_curve=distribution(seconds, np.ones(len(seconds))),
        unit_hours_curve=distribution(seconds, hours),
        queue_curve=distribution(known, np.ones(len(known))),
        user_curve=_user_curve(users),
        in_use=_in_use(starts, starts + seconds, units, float(submitted.min())),
        capacity=sum(trace.nodes.values()) * trace.gpus_per_node if trace.nodes and with_gpu else None,
    )


def distribution(values: Array, weights: Array, points: int = CURVE_POINTS) -> tuple[Point, ...]:
    """Return the cumulative distribution of values as points (value, share of the weights up to it).

    At most `points` are evenly spaced among the values, and as many in their weights.
    """
    if not len(values) or weights.sum() <= 0:
        return ()
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    last = len(order) - 1
    by_weight = np.searchsorted(shares, np.linspace(0, 1, points)).clip(0, last)
    chosen = np.unique(np.concatenate([np.linspace(0, last, points).round().astype(int), by_weight]))
    return tuple((float(values[order[at]]), float(shares[at])) for at in chosen)


class _Grouping:
    """Sums over groups of jobs."""

    def __init__(self, jobs: Sequence[TraceJob], seconds: Array, hours: Array, waited: Array) -> None:
        self.jobs, self.seconds, self.hours, self.waited = jobs, seconds, hours, waited

    def by(self, name: Callable[[TraceJob], str]) -> tuple[Group, ...]:
        """Return the groups, the largest unit hours first."""
        names, index = np.unique([name(job) for job in self.jobs], return_inverse=True)
        counts = np.bincount(index)
        hours = np.bincount(index, self.hours)
        seconds = np.bincount(index, self.seconds) / counts
        known = np.isfinite(self.waited)
        waits = np.bincount(index, np.nan_to_num(self.waited))
        waiting = np.bincount(index, known)
        total = max(float(hours.sum()), 1e-300)
        found = [
            Group(
                str(names[at]),
                int(counts[at]),
                float(hours[at]),
                float(hours[at] / total),
                float(seconds[at]),
                float(waits[at] / waiting[at]) if waiting[at] else None,
            )
            for at in range(len(names))
        ]
        return tuple(sorted(found, key=lambda one: -one.unit_hours))


def _size(units: int) -> int:
    """Return the next power of two."""
    return 1 << (units - 1).bit_length()


def _top_shares(users: Sequence[Group]) -> dict[str, float]:
    if not users:
        return {}
    return {
        f"{share:.0%}": sum(one.share for one in users[: max(1, round(share * len(users)))])
        for share in (0.01, 0.05, 0.2)
    }


def _user_curve(users: Sequence[Group]) -> tuple[Point, ...]:
    shares = np.cumsum([one.share for one in users])
    return tuple((float((at + 1) / len(users)), float(share)) for at, share in enumerate(shares))


def _profile(submitted: Array, length: float, count: int, shift: int) -> tuple[float, ...]:
    """Return the mean number of submissions in each of `count` intervals of a cycle."""
    first, last = np.floor(submitted.min() / length), np.floor(submitted.max() / length)
    index = np.floor(submitted / length).astype(int)
    found = np.bincount((index + shift) % count, minlength=count)
    complete, rest = divmod(int(last - first) + 1, count)
    times = np.full(count, complete)
    times[(int(first) + shift + np.arange(rest)) % count] += 1
    return tuple(float(one) for one in found / np.maximum(times, 1))


def _in_use(starts: Array, ends: Array, units: Array, first: float) -> tuple[Point, ...]:
    """Return the mean number of units in use in equal intervals until the last end."""
    edges = np.linspace(first, max(float(ends.max()), first + 1.0), CURVE_POINTS + 1)
    work = _work_until(edges, starts, units) - _work_until(edges, ends, units)
    means = np.diff(work) / np.diff(edges)
    return tuple((float(at - first), float(mean)) for at, mean in zip(edges[1:], means, strict=True))


def _work_until(times: Array, moments: Array, units: Array) -> Array:
    """Return the unit seconds until each time if units are in use from these moments on."""
    order = np.argsort(moments)
    moments, units = moments[order], units[order]
    counts = np.concatenate([[0.0], np.cumsum(units)])
    sums = np.concatenate([[0.0], np.cumsum(units * (moments - times[0]))])
    place = np.searchsorted(moments, times)
    return np.asarray(counts[place] * (times - times[0]) - sums[place])


def _day(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return f"{at:g} s"


def shown(groups: Iterable[Group]) -> list[Group]:
    """Return the `TOP` largest groups that have a name."""
    return [one for one in groups if one.name][:TOP]
