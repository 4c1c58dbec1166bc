"""Bots in a generated log: what thresholds on the blocks of users keep.

Bots are 5 % or 10 % of the users. They start in the second half of the log and click 10 chosen items, 10 to 100 times
as often as a mean user. Quiet bots, 5 % of the users, click as often as a mean user: no threshold on blocks finds them.
Thresholds are percentiles of the first half, scaled to the length of the log. The tested users
are the real ones. A gain is the mean rank of the chosen items without bots, minus the rank with bots.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.recommend.training import HIGH, LOW, evaluated, train, tuned
from benchmarks.recommend.two_processes import spread
from benchmarks.report import NOT_REACHED, Measured, Size, show
from oddlot.train.job import Job
from oddlot.workloads.recommend import Recipe, job_of
from oddlot.workloads.recommender.blocks import Thresholds, split, thresholds_of
from oddlot.workloads.recommender.generator import Generated, Generator, generate

SHARES = (0.05, 0.10)
QUIET = 0.05
SEEDS = 3
EPOCHS = 15
METHOD = "saros_b"


def measure(size: Size) -> dict[str, Measured]:
    """Return the figures: for each seed, the worst of both shares of bots, and the share of quiet bots."""
    settings = size.pick(Generator(100, 60), Generator(), Generator())
    best = tuned(METHOD, split(generate(settings).log), size.pick(1, EPOCHS, EPOCHS))
    tasks = [(settings, best.recipe, best.epochs, seed) for seed in range(size.pick(1, SEEDS, SEEDS))]
    by_seed = spread(_with_bots, tasks)
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
    rows = [
        [f"{one.share:.0%}{one.kind}", str(seed), *one.cells()]
        for seed, each in enumerate(by_seed)
        for one in each
    ]
    quiet, by_seed = [each[-1] for each in by_seed], [each[:-1] for each in by_seed]
    show(f"{METHOD} with bots: share of the clean NDCG@10, and rank of the chosen items", columns, rows)
    return {
        "gated_ndcg_share": [min(one.gated[0] / one.clean[0] for one in each) for each in by_seed],
        "ungated_ndcg_share": [min(one.ungated[0] / one.clean[0] for one in each) for each in by_seed],
        "target_rank_gain_ratio": [max(one.gain_ratio for one in each) for each in by_seed],
        "gated_ndcg_share_quiet": [one.gated[0] / one.clean[0] for one in quiet],
        "ungated_ndcg_share_quiet": [one.ungated[0] / one.clean[0] for one in quiet],
    }


@dataclass(frozen=True)
class WithBots:
    """NDCG@10 of the real users and the mean rank of the chosen items, for a share of bots."""

    share: float
    kind: str
    clean: tuple[float, float]
    """Without bots."""
    gated: tuple[float, float]
    ungated: tuple[float, float]

    @property
    def gain_ratio(self) -> float:
        """Ranks that the chosen items gain with the thresholds / without."""
        gain, without = (self.clean[1] - one[1] for one in (self.gated, self.ungated))
        return max(gain, 0.0) / without if without > 0 else NOT_REACHED

    def cells(self) -> list[str]:
        """Return the numbers of a row of the table."""
        kept = (f"{one[0] / self.clean[0]:.3f}" for one in (self.gated, self.ungated))
        gains = (f"{self.clean[1] - one[1]:.1f}" for one in (self.gated, self.ungated))
        return [f"{self.clean[0]:.4f}", *kept, f"{self.clean[1]:.0f}", *gains]


def _with_bots(settings: Generator, recipe: Recipe, epochs: int, seed: int) -> list[WithBots]:
    """Train without bots, and for each share of bots, the quiet ones last, with and without thresholds."""
    clean = _trained(generate(settings, seed), recipe, epochs, seed, is_gated=False)
    found, quiet = [], replace(settings, bots=QUIET, bot_clicks=(1.0, 1.0))
    cases = [("", replace(settings, bots=share)) for share in SHARES] + [(" quiet", quiet)]
    for kind, case in cases:
        log = generate(case, seed)
        gated, ungated = (
            _trained(log, recipe, epochs, seed, is_gated=is_gated) for is_gated in (True, False)
        )
        found.append(WithBots(case.bots, kind, clean, gated, ungated))
    return found


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
