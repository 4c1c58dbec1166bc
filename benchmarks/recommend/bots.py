"""Bots in a generated log: what thresholds on the blocks of users keep.

Bots are 5 % or 10 % of the users. They start in the second half of the log and click 10 chosen items, 10 to 100 times
as often as a mean user. Thresholds are percentiles of the first half, scaled to the length of the log. The tested users
are the real ones. A gain is the mean rank of the chosen items without bots, minus the rank with bots.
"""

from dataclasses import replace

import numpy as np
import torch

from benchmarks.recommend.training import HIGH, LOW, evaluated, train, tuned
from benchmarks.report import NOT_REACHED, Measured, Size, show
from oddlot.train.job import Job
from oddlot.workloads.recommend import Recipe, job_of
from oddlot.workloads.recommender.blocks import Thresholds, split, thresholds_of
from oddlot.workloads.recommender.generator import Generated, Generator, generate

SHARES = (0.05, 0.10)
SEEDS = 3
EPOCHS = 15
METHOD = "saros_b"


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures: for each seed, the worst of both shares of bots."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(size)
    finally:
        torch.set_num_threads(threads)


def _measure(size: Size) -> dict[str, Measured]:
    settings = size.pick(Generator(100, 60), Generator(), Generator())
    best = tuned(METHOD, split(generate(settings).log), size.pick(1, EPOCHS, EPOCHS))
    gated, ungated, gains, rows = [], [], [], []
    for seed in range(size.pick(1, SEEDS, SEEDS)):
        clean = _trained(generate(settings, seed), best.recipe, best.epochs, seed, is_gated=False)
        shares = dict[str, list[float]]()
        for share in SHARES:
            log = generate(replace(settings, bots=share), seed)
            ratios = []
            for is_gated in (True, False):
                found = _trained(log, best.recipe, best.epochs, seed, is_gated=is_gated)
                ratios.append((found[0] / clean[0], clean[1] - found[1]))
            (kept, gain), (kept_without, gain_without) = ratios
            shares.setdefault("gated", []).append(kept)
            shares.setdefault("ungated", []).append(kept_without)
            ratio = max(gain, 0.0) / gain_without if gain_without > 0 else NOT_REACHED
            shares.setdefault("gain", []).append(ratio)
            rows.append(
                [
                    *(f"{share:.0%}", str(seed), f"{clean[0]:.4f}", f"{kept:.3f}", f"{kept_without:.3f}"),
                    *(f"{clean[1]:.0f}", f"{gain:.1f}", f"{gain_without:.1f}"),
                ]
            )
        gated.append(min(shares["gated"]))
        ungated.append(min(shares["ungated"]))
        gains.append(max(shares["gain"]))
    columns = [
        "bots",
        "seed",
        "clean NDCG@10",
        "gated",
        "ungated",
        "clean rank",
        "gain gated",
        "gain ungated",
    ]
    show(f"{METHOD} with bots: share of the clean NDCG@10, and rank of the chosen items", columns, rows)
    return {"gated_ndcg_share": gated, "ungated_ndcg_share": ungated, "target_rank_gain_ratio": gains}


def _trained(
    given: Generated, recipe: Recipe, epochs: int, seed: int, *, is_gated: bool
) -> tuple[float, float]:
    """Return NDCG@10 of the real users, and the mean rank of the chosen items."""
    parts = split(given.log)
    limits = Thresholds()
    if is_gated:
        times = parts.train.times
        limits = thresholds_of(parts.train, LOW, HIGH, (times.min() + times.max()) / 2)
    job = job_of(parts, replace(recipe, thresholds=limits), ~given.is_bot)
    model = train(job, epochs, seed).model
    targets = np.searchsorted(given.log.item_ids, given.targets)
    return evaluated(job, model)["ndcg10"], _mean_rank(job, model, torch.from_numpy(targets))


def _mean_rank(job: Job, model: torch.nn.Module, targets: torch.Tensor) -> float:
    """Return the mean rank, from 1, of items among all items for the test users."""
    users = job.eval_data
    with torch.no_grad():
        scores = model.scores(model.history(users.__getitems__(range(len(users)))))  # type: ignore[operator]
    ranks = [1 + (scores > scores[:, [one]]).sum(1).float().mean() for one in targets.tolist()]
    return float(torch.stack(ranks).mean())
