"""What a job would take and cost on a fleet, bought on the spot market and on demand, over several seeds."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from oddlot.core.errors import InvalidValue, JobError, UnknownName, UsageError
from oddlot.core.strategy import Strategy
from oddlot.core.user_warnings import once
from oddlot.engines.simulated.config import Simulated
from oddlot.formatting import duration, money, share
from oddlot.history.metrics import Tally
from oddlot.history.outcome import FAILED, in_short
from oddlot.machines.market import Fleet
from oddlot.run.fit import Interrupted, fit
from oddlot.run.signals import StopWish
from oddlot.train.job import Job

FIGURES = (
    *("seconds", "dollars", "dollars_lost", "dollars_per_point", "accuracy", "epochs"),
    *("workers_lost", "starts_lost", "samples_wasted", "samples_returned", "seconds_without_workers"),
    *("availability", "workers_mean"),
)
"""of a summary, those that an estimate is about"""


@dataclass(frozen=True, repr=False)
class Estimate:
    """What became of the same job bought in one way, a summary a seed."""

    bought: str
    """`spot`, `on demand`, or empty where the fleet has no zones"""
    summaries: Sequence[dict[str, Any]]

    def __repr__(self) -> str:
        told = [
            f"{name} {tell(value)}" for name, (figure, tell) in TOLD.items() if (value := self.median(figure))
        ]
        return f"<Estimate {self.bought or 'runs'}: {len(self.summaries)}, medians: {', '.join(told)}>"

    def values(self, figure: str) -> list[float]:
        """Of every seed, where it is known. UsageError: it is no figure of a summary that is a number."""
        try:
            return [float(one[figure]) for one in self.summaries if one[figure] is not None]
        except (KeyError, TypeError, ValueError):
            raise UnknownName("figure", str(figure), FIGURES, key="figure") from None

    def median(self, figure: str) -> float | None:
        """None where it is not known."""
        values = self.values(figure)
        return median(values) if values else None

    @property
    def ended(self) -> dict[str, int]:
        """Why the runs have ended, and how many of them; those that failed together."""
        whys = (str(one["ended"]) for one in self.summaries)
        return dict(Counter("failed" if why.startswith(FAILED) else why for why in whys))

    @property
    def failure(self) -> str:
        """Why the first run has failed, where all have; empty otherwise."""
        whys = [str(one["ended"]) for one in self.summaries]
        return whys[0].removeprefix(FAILED) if all(why.startswith(FAILED) for why in whys) else ""

    def plain(self) -> dict[str, list[Any]]:
        """Every figure in the order of the seeds; None where it is not known."""
        return {figure: [one[figure] for one in self.summaries] for figure in ("ended", *FIGURES)}


class EstimateInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, as `signal` tells: `found` holds the estimates of the runs that were done."""

    def __init__(self, signal: int, found: "list[Estimate]") -> None:
        done = sum(len(one.summaries) for one in found)
        super().__init__(f"stopped after {done} runs; their estimates are in the `found` of this exception")
        self.signal, self.found = signal, found


def estimate(
    job: Job,
    strategy: Strategy,
    fleet: Fleet,
    *,
    seeds: int = 5,
    computes: bool = True,
    in_flight: int = 1,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    told: Callable[[str, int], None] = lambda *_: None,
    **options: Any,
) -> list[Estimate]:
    """Simulate the job on the fleet as it is, and with its zones bought on demand, `seeds` times each.

    `computes=False` keeps the time and trains nothing: for large fleets, and goals such as "epochs>=20". Each run has a
    seed of its own, from `seed` on, and with `out` a folder of its own in there. `options` are those of `fit`; `told`
    hears of every run before it begins. A run that fails, such as one whose machines never come back, counts as failed
    beside those that do not: its summary has None for every figure. UsageError as `fit`, before anything is done; the
    first failure where all fail; EstimateInterrupted, with what was done, after Ctrl-C or SIGTERM.
    """
    if type(seeds) is not int or seeds < 1:
        raise InvalidValue("seeds", seeds, "a whole number, at least 1")
    if not isinstance(fleet, Fleet):
        raise InvalidValue("fleet", fleet, "a Fleet: oddlot.read_fleet(path) reads one")
    _check_out(out)
    ways = {"spot": fleet, "on demand": fleet.on_demand()} if fleet.has_spot else {"": fleet}
    done, stop = dict[str, list[dict[str, Any]]](), StopWish()
    failures = list[Exception]()
    with stop.heard(), once():
        for bought, number in product(ways, range(seed, seed + seeds)):
            told(bought, number)
            folder = None if out is None else Path(out) / f"{bought.replace(' ', '-') or 'seed'}-{number}"
            on = Simulated.of(ways[bought], number, in_flight, computes)
            try:
                summary = fit(job, strategy, on, seed=number, out=folder, **options).summary
            except (JobError, UsageError) as error:
                if isinstance(error, UsageError) and not done:
                    raise
                failures.append(error)
                summary = dict.fromkeys(Tally().summary()) | {"ended": f"{FAILED}{in_short(error)}"}
            except Interrupted as stopped:
                raise EstimateInterrupted(stopped.signal, _estimates(done)) from None
            done.setdefault(bought, []).append(summary)
            if stop.signal:
                raise EstimateInterrupted(stop.signal, _estimates(done))
    if len(failures) == seeds * len(ways):
        raise failures[0]
    return _estimates(done)


def _estimates(done: dict[str, list[dict[str, Any]]]) -> list[Estimate]:
    return [Estimate(bought, summaries) for bought, summaries in done.items()]


def _check_out(out: object) -> None:
    """UsageError: it is no folder of its own for these runs."""
    if out is None:
        return
    if not isinstance(out, str | PathLike) or not str(out):
        raise InvalidValue("out", out, "a folder's path")
    folder = Path(out)
    try:
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        told = f"cannot use {folder} as the folder of these runs: {error.strerror}"
        fields = {"path": str(folder), "reason": error.strerror}
        raise UsageError(told, "unusable_folder", "out", **fields) from None
    if used:
        told = f"{folder} is not empty, and these runs begin anew: name another folder"
        raise UsageError(told, "folder_not_empty", "out", path=str(folder))


def estimates(title: str, found: Sequence[Estimate]) -> Table:
    """What a job would take and cost, the ways of buying beside each other: medians, with ranges of several seeds."""
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
    for name, (figure, tell) in TOLD.items():
        known = [one.values(figure) for one in found]
        if not any(known) or (figure == "samples_returned" and not any(map(any, known))):
            continue  # a run that computes nothing learns nothing, and few strategies have anything handed back
        cells = [_range(values, tell) for values in known]
        # No ratio of all runs to those that did not fail.
        alike = compared and len(set(map(len, known))) == 1
        table.add_row(name, *cells, *([_ratio(*(one.median(figure) for one in found))] if alike else []))
    return table


TOLD: dict[str, tuple[str, Callable[[float], str]]] = {
    "time": ("seconds", duration),
    "cost": ("dollars", money),
    "in vain": ("dollars_lost", money),
    "per point": ("dollars_per_point", money),
    "accuracy": ("accuracy", "{:.4f}".format),
    "epochs": ("epochs", "{:,.1f}".format),
    "machines lost": ("workers_lost", "{:,.0f}".format),
    "lost starting": ("starts_lost", "{:,.0f}".format),
    "samples wasted": ("samples_wasted", "{:,.0f}".format),
    "handed back": ("samples_returned", "{:,.0f}".format),
    "without machines": ("seconds_without_workers", duration),
    "available": ("availability", share),
    "mean machines": ("workers_mean", "{:.3g}".format),
}
"""What a row is called, its figure, and how that is told."""


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one is not None and other else ""


def _range(values: Sequence[float], tell: Callable[[float], str]) -> str:
    if not values:
        return ""
    low, high = tell(min(values)), tell(max(values))
    return tell(median(values)) + (f"\n{low} to {high}" if low != high else "")
