"""Ranking quality of SAROS, BPR and attention on logs with time, and the time to reach it.

The test is the last block of each user. Learning rates, epochs and the negatives of BPR are chosen on the block before
it, by NDCG@10 by full ranking. Each method is then trained with three seeds. Times are processor times of the steps.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.recommend.training import METHODS, train, tuned, with_thresholds
from benchmarks.recommend.two_processes import spread
from benchmarks.report import Measured, Size, show
from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommend import Recipe, job_of
from oddlot.workloads.recommender.blocks import Split, blocks_of, split
from oddlot.workloads.recommender.click_log import ClickLog, Columns, read_log
from oddlot.workloads.recommender.generator import Generator, generate

SEEDS = 3
EPOCHS = 25
METRICS = {"": "ndcg10", "_authors": "ndcg10_authors"}
"""NDCG@10 by suffix of the figures. The authors' metric needs test blocks with items that were not clicked."""


def movielens() -> ClickLog:
    """Return MovieLens latest small. A click is a rating of 4 or more."""
    columns = Columns("userId", "movieId", "timestamp", rating="rating")
    return read_log(_folder("rec_movielens_latest_small") / "ratings.csv.gz", columns)


def movietweetings() -> ClickLog:
    """Return MovieTweetings 100K. A click is a rating of 8 or more of 10."""
    columns = Columns("0", "1", "3", rating="2", click_rating=8, separator="::", has_header=False)
    return read_log(_folder("rec_movietweetings") / "ratings.dat.gz", columns)


def online_retail() -> ClickLog:
    """Return Online Retail, without returned items. It has no negatives, and an invoice is a block."""
    path = _folder("rec_online_retail") / "transactions_2010-12_2011-10.csv.gz"
    columns = Columns("CustomerID", "StockCode", "InvoiceDate", rating="Quantity", click_rating=1)
    log = read_log(path, columns)
    kept = log.rows(log.clicked)
    return ClickLog.of(log.user_ids[kept.users], log.item_ids[kept.items], kept.times)


def _folder(name: str) -> Path:
    folder = Path(os.environ.get("ODDLOT_DATA", "")) / name
    if not folder.is_dir():
        raise UsageError(f"$ODDLOT_DATA has no folder {name}", "no_data", path=str(folder))
    return folder


LOGS: dict[str, Callable[[], ClickLog]] = {
    "": movielens,
    "_generated": lambda: generate(Generator()).log,
    "_movietweetings": movietweetings,
    "_retail": online_retail,
}
"""Logs by suffix of the figures."""


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures of all logs of this size."""
    suffixes = list(LOGS)[: size.pick(4, 2, 4)]
    parts = {suffix: split(_log(suffix, size)) for suffix in suffixes}
    methods = {suffix: _methods(parts[suffix]) for suffix in suffixes}
    tasks = [(suffix, name, size) for name in METHODS for suffix in suffixes if name in methods[suffix]]
    trained = dict(zip(((suffix, name) for suffix, name, _ in tasks), spread(_train, tasks), strict=True))
    found: dict[str, Measured] = {}
    for suffix in suffixes:
        by_method = {name: trained[suffix, name] for name in methods[suffix]}
        found |= _figures(suffix, _log(suffix, size), parts[suffix], by_method)
    return found


def _log(suffix: str, size: Size) -> ClickLog:
    if size is not Size.SMOKE:
        return LOGS[suffix]()
    log = generate(Generator(100, 60)).log
    return log.rows(log.clicked) if suffix == "_retail" else log


def _methods(parts: Split) -> list[str]:
    return [name for name in METHODS if parts.train.has_negatives or not name.startswith("saros")]


@dataclass(frozen=True)
class Trained:
    """A method with its chosen settings, and its metrics and times of each seed."""

    recipe: Recipe
    epochs: int
    metrics: list[Mapping[str, float]]
    seconds_to_95: list[float]


def _train(suffix: str, name: str, size: Size) -> Trained:
    """Train a method with each seed, with the settings that are the best on the block before the test."""
    parts = split(_log(suffix, size))
    best = tuned(name, parts, size.pick(1, EPOCHS, EPOCHS))
    job = job_of(parts, with_thresholds(name, best.recipe, parts))
    courses = [train(job, best.epochs, seed) for seed in range(size.pick(1, SEEDS, SEEDS))]
    metrics = [one.metrics[-1] for one in courses]
    return Trained(best.recipe, best.epochs, metrics, [one.seconds_to_95 for one in courses])


def _figures(suffix: str, log: ClickLog, parts: Split, trained: Mapping[str, Trained]) -> dict[str, Measured]:
    """Return the figures of a log, and print them as a table."""
    found, rows = _floors(suffix, parts), []
    for name, one in trained.items():
        for end, metric in _metrics(parts).items():
            found[f"ndcg_{name}{end}{suffix}"] = [each[metric] for each in one.metrics]
        rows.append(
            [
                name,
                f"{one.recipe.lr:g}",
                str(one.epochs),
                one.recipe.negatives if one.recipe.loss == "bpr" else "-",
                *_cells(found, name, suffix),
                f"{median(one.seconds_to_95):.2f}",
            ]
        )
    if "saros_b" in trained:
        times = zip(trained["saros_b"].seconds_to_95, trained["bpr"].seconds_to_95, strict=True)
        found[f"saros_time_over_bpr{suffix}"] = [one / other for one, other in times]
    rows.extend([floor, "-", "-", "-", *_cells(found, floor, suffix), "-"] for floor in ("random", "popular"))
    columns = ["method", "rate", "epochs", "negatives", "NDCG@10", "NDCG@10 (authors)", "seconds to 95 %"]
    show(_title(suffix, log, parts), columns, rows)
    return found


def _floors(suffix: str, parts: Split) -> dict[str, Measured]:
    """Return NDCG@10 of random scores and of popularity."""
    constants = job_of(parts, METHODS["bpr"]).metrics
    return {
        f"ndcg_{floor}{end}{suffix}": constants[f"{metric}_{floor}"].value  # type: ignore[union-attr]  # a Constant
        for floor in ("random", "popular")
        for end, metric in _metrics(parts).items()
    }


def _metrics(parts: Split) -> dict[str, str]:
    """Return the metrics by suffix that a log has."""
    return {end: name for end, name in METRICS.items() if not end or parts.train.has_negatives}


def _cells(found: Mapping[str, Measured], method: str, suffix: str) -> list[str]:
    values = [found.get(f"ndcg_{method}{end}{suffix}") for end in METRICS]
    return ["-" if value is None else f"{np.median(value):.4f}" for value in values]


def _title(suffix: str, log: ClickLog, parts: Split) -> str:
    counts = blocks_of(log).counts(len(log.user_ids))
    users, items = len(log.user_ids), len(log.item_ids)
    name, rows = (suffix or "_movielens")[1:], f"{len(log):,} rows, {log.clicked.mean():.0%} clicked"
    unseen = f"{parts.unseen_users:,} users, {parts.unseen_items:,} items"
    share = f"{np.mean(counts > 1):.0%}"
    return f"{name}: {users:,} users, {items:,} items, {rows}; {share} have two blocks; unseen: {unseen}"
