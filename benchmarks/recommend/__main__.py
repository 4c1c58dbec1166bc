"""Recommenders (SAROS, Burashnikova et al. 2021), bots, and merging with hostile workers.

- NDCG@10 of SAROS, BPR and attention beside random scores and popularity, by full ranking and as the authors count it.
- What thresholds on the blocks of users keep of it when some users are bots.
- Accuracy with one hostile worker of five, and the time of a trimmed mean.

ODDLOT_DATA=... python -m benchmarks.recommend [--quick|--smoke] [--save] [--only PART ...]
"""

from collections.abc import Callable

from benchmarks.recommend import bots, hostile, ranking
from benchmarks.report import Measured, Size, run_parts

PARTS: dict[str, Callable[[Size], dict[str, Measured]]] = {
    "ranking": ranking.measure,
    "bots": bots.measure,
    "hostile": hostile.measure,
}


def main() -> None:
    """Measure the parts, and print their tables and the figures."""
    run_parts("recommend", __doc__, "a generated log and MovieLens small, 3 seeds, within 6 minutes", PARTS)


if __name__ == "__main__":
    main()
