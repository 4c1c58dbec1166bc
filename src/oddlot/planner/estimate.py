"""Estimates of a job's time and cost on a fleet, on spot machines and on demand, over several seeds."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any, Unpack

from rich.table import Table

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import InvalidValue, JobError, UnknownName, UsageError
from oddlot.core.support.text import counted, duration, money, share
from oddlot.core.support.user_warnings import once
from oddlot.engines.simulated.config import Simulated
from oddlot.history.metrics import Tally
from oddlot.history.run_outcome import FAILED, in_short
from oddlot.machines.market import Fleet
from oddlot.run.config import RunSettings
from oddlot.run.fit import Interrupted, fit
from oddlot.run.signals import StopRequest
from oddlot.train.job import Job

FIGURES = (
    *("seconds", "dollars", "dollars_lost", "dollars_per_point", "accuracy", "epochs"),
    *("workers_lost", "starts_lost", "samples_wasted", "samples_returned", "seconds_without_workers"),
    *("availability", "workers_mean"),
)
"""Keys of a run's summary that an estimate includes."""


@dataclass(frozen=True, repr=False)
class Estimate:
    """Results of simulated runs of one job, for one purchase option: spot or on demand."""

    bought: str
    """`spot`, `on demand` or, with a buying policy, its name. Empty: the fleet has no zones."""
    summaries: Sequence[dict[str, Any]]
    """`Run.summary` of each seed."""
    deadline_seconds: float | None = None
    """Deadline of the fleet's buying policy. None: no policy."""

    def __repr__(self) -> str:
        message = [
            f"{name} {tell(value)}"
            for name, (figure, tell) in SHOWN.items()
            if (value := self.median(figure))
        ]
        return f"<Estimate {self.bought or 'runs'}: {len(self.summaries)}, medians: {', '.join(message)}>"

    def values(self, figure: str) -> list[float]:
        """Return the known values of a figure. Raise UsageError if there is no such figure."""
        try:
            return [float(one[figure]) for one in self.summaries if one[figure] is not None]
        except (KeyError, TypeError, ValueError):
            raise UnknownName("figure", str(figure), FIGURES, key="figure") from None

    def median(self, figure: str) -> float | None:
        """Return the median of a figure, or None if it is unknown for all seeds."""
        values = self.values(figure)
        return median(values) if values else None

    @property
    def deadline_met(self) -> float | None:
        """Share of the runs that reached their goal before the deadline, or None without a deadline."""
        if self.deadline_seconds is None:
            return None
        met = sum(seconds <= self.deadline_seconds for seconds in self.values("seconds"))
        return met / len(self.summaries)

    @property
    def ended(self) -> dict[str, int]:
        """Reasons why runs ended, with the number of runs. Failed runs are counted together."""
        whys = (str(one["ended"]) for one in self.summaries)
        return dict(Counter("failed" if why.startswith(FAILED) else why for why in whys))

    @property
    def failure(self) -> str:
        """Why the first run failed, if all runs failed; empty otherwise."""
        whys = [str(one["ended"]) for one in self.summaries]
        return whys[0].removeprefix(FAILED) if all(why.startswith(FAILED) for why in whys) else ""

    def plain(self) -> dict[str, list[Any]]:
        """Return every figure in the order of the seeds, with None for unknown figures."""
        plain = {figure: [one[figure] for one in self.summaries] for figure in ("ended", *FIGURES)}
        return plain if self.deadline_met is None else plain | {"deadline_met": [self.deadline_met]}


class EstimateInterrupted(KeyboardInterrupt):
    """An estimate was stopped by Ctrl-C or SIGTERM. `found` has the estimates of the finished runs."""

    def __init__(self, signal: int, found: "list[Estimate]") -> None:
        done = sum(len(one.summaries) for one in found)
        super().__init__(f"stopped after {counted(done, 'run')}; the attribute `found` has their estimates")
        self.signal, self.found = signal, found


def estimate(
    job: Job,
    strategy: Strategy,
    fleet: Fleet,
    *,
    seeds: int = 5,
    computes: bool = True,
    in_flight: int = 1,
    out: str | PathLike[str] | None = None,
    on_run_start: Callable[[str, int], None] = lambda *_: None,
    **options: Unpack[RunSettings],
) -> list[Estimate]:
    """Estimate time and cost of a job by simulating it on a fleet, several times.

    If the fleet has spot zones, the job is also simulated with all zones bought on demand. If it has a buying policy,
    the job is simulated on spot machines alone, on demand, and with the policy.

    Args:
        job: The job.
        strategy: The strategy.
        fleet: The fleet, for example from `oddlot.read_fleet`.
        seeds: Number of runs for each purchase option.
        computes: Whether the model is trained. False: only time and cost are simulated, for large fleets and goals such
            as "epochs>=20".
        in_flight: Open tasks of each machine.
        out: Parent folder of the run folders. If None, nothing is saved.
        on_run_start: Function that is called before each run with the purchase option and the seed.
        options: Further keywords of `oddlot.fit`. `seed` is the seed of the first run. Later runs use the next seeds.

    Returns:
        An estimate for each purchase option. The summary of a failed run has None for every figure.

    Raises:
        UsageError: as in `fit`, before the first run.
        JobError: the first failure, if all runs fail.
        EstimateInterrupted: after Ctrl-C or SIGTERM, with the finished runs.
    """
    if type(seeds) is not int or seeds < 1:
        raise InvalidValue("seeds", seeds, "a whole number, at least 1")
    if not isinstance(fleet, Fleet):
        raise InvalidValue("fleet", fleet, "a Fleet, for example from oddlot.read_fleet(path)")
    _check_out(out)
    ways = purchase_options(fleet)
    deadline = None if fleet.buying is None else fleet.buying.deadline_seconds
    seed = options.get("seed", 0)
    done, stop = dict[str, list[dict[str, Any]]](), StopRequest()
    failures = list[Exception]()
    with stop.heard(), once():
        for bought, number in product(ways, range(seed, seed + seeds)):
            on_run_start(bought, number)
            folder = (
                None
                if out is None
                else Path(out).expanduser() / f"{bought.replace(' ', '-') or 'seed'}-{number}"
            )
            on = Simulated.of(ways[bought], number, in_flight, computes)
            try:
                settings: RunSettings = {**options, "seed": number}
                if folder is None:
                    settings.pop("keep_best", None)
                summary = fit(job, strategy, on, out=folder, quiet=True, **settings).summary
            except (JobError, UsageError) as error:
                if isinstance(error, UsageError) and not done:
                    raise
                failures.append(error)
                summary = dict.fromkeys(Tally().summary()) | {"ended": f"{FAILED}{in_short(error)}"}
            except Interrupted as stopped:
                raise EstimateInterrupted(stopped.signal, _estimates(done, deadline)) from None
            done.setdefault(bought, []).append(summary)
            if stop.signal:
                raise EstimateInterrupted(stop.signal, _estimates(done, deadline))
    if len(failures) == seeds * len(ways):
        raise failures[0]
    return _estimates(done, deadline)


def purchase_options(fleet: Fleet) -> dict[str, Fleet]:
    """Return the ways to buy a fleet, by name: `spot`, `on demand` and its buying policy. A fleet without spot zones
    has one way without a name."""
    if not fleet.has_spot:
        return {"": fleet}
    ways = {"spot": replace(fleet, buying=None), "on demand": fleet.on_demand()}
    return ways if fleet.buying is None else {**ways, fleet.buying.policy: fleet}


def _estimates(done: dict[str, list[dict[str, Any]]], deadline: float | None) -> list[Estimate]:
    return [Estimate(bought, summaries, deadline) for bought, summaries in done.items()]


def _check_out(out: object) -> None:
    """Raise UsageError if `out` is not a new or empty folder."""
    if out is None:
        return
    if not isinstance(out, str | PathLike) or not str(out):
        raise InvalidValue("out", out, "a folder's path")
    folder = Path(out).expanduser()
    try:
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        message = f"cannot use {folder} as the folder of these runs: {error.strerror}"
        fields = {"path": str(folder), "reason": error.strerror}
        raise UsageError(message, "unusable_folder", "out", **fields) from None
    if used:
        message = f"{folder} is not empty, and an estimate cannot be resumed: use another folder"
        raise UsageError(message, "folder_not_empty", "out", path=str(folder))


def estimates(title: str, found: Sequence[Estimate]) -> Table:
    """Return a table of time and cost, with a column for each purchase option: medians and ranges over the seeds."""
    seeds = " and ".join(dict.fromkeys(f"{len(one.summaries)}" for one in found))
    table = Table(
        title=f"{title}, {'1 seed' if seeds == '1' else f'medians and ranges of {seeds} seeds'}",
        box=None,
        pad_edge=False,
    )
    table.title_justify = "left"
    table.add_column("", no_wrap=True)
    for one in found:
        table.add_column(one.bought or "runs", justify="right", no_wrap=True)
    compared = len(found) == 2 and len({len(one.summaries) for one in found}) == 1
    if compared:
        table.add_column("ratio", justify="right", no_wrap=True)
    table.add_row("ended", *("\n".join(f"{why} ({n})" for why, n in one.ended.items()) for one in found))
    if any(one.deadline_met is not None for one in found):
        table.add_row("deadline met", *(share(one.deadline_met or 0.0) for one in found))
    for name, (figure, tell) in SHOWN.items():
        known = [one.values(figure) for one in found]
        if not any(known) or (figure == "samples_returned" and not any(map(any, known))):
            continue  # a run without training has no metrics, and few strategies return samples
        cells = [_range(values, tell) for values in known]
        # A ratio would mislead if runs of only one purchase option failed.
        alike = compared and len(set(map(len, known))) == 1
        table.add_row(name, *cells, *([_ratio(*(one.median(figure) for one in found))] if alike else []))
    return table


SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "time": ("seconds", duration),
    "cost": ("dollars", money),
    "lost to preemptions": ("dollars_lost", money),
    "per point": ("dollars_per_point", money),
    "accuracy": ("accuracy", "{:.4f}".format),
    "epochs": ("epochs", "{:,.1f}".format),
    "machines lost": ("workers_lost", "{:,.0f}".format),
    "lost while starting": ("starts_lost", "{:,.0f}".format),
    "samples wasted": ("samples_wasted", "{:,.0f}".format),
    "samples returned": ("samples_returned", "{:,.0f}".format),
    "without machines": ("seconds_without_workers", duration),
    "availability": ("availability", share),
    "mean machines": ("workers_mean", "{:.3g}".format),
}
"""Names of the rows, with their figures and formats."""


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one is not None and other else ""


def _range(values: Sequence[float], tell: Callable[[float], str]) -> str:
    if not values:
        return ""
    low, high = tell(min(values)), tell(max(values))
    return tell(median(values)) + (f"\n{low} to {high}" if low != high else "")
