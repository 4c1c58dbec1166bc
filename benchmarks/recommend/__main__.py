"""Recommenders (SAROS, Burashnikova et al. 2021), bots, and merging with hostile workers.

- NDCG@10 of SAROS, BPR and attention beside random scores and popularity, by full ranking and as the authors count it.
- What thresholds on the blocks of users keep of it when some users are bots.
- Accuracy with one hostile worker of five, and the time of a trimmed mean.

ODDLOT_DATA=... python -m benchmarks.recommend [--quick|--smoke] [--save] [--only PART ...]
"""

from collections.abc import Callable

from benchmarks.recommend import bots, hostile, ranking
from benchmarks.report import Measured, Size, finish, parse, parser

PARTS: dict[str, Callable[[Size], dict[str, Measured]]] = {
    "ranking": ranking.measure,
    "bots": bots.measure,
    "hostile": hostile.measure,
}


def main() -> None:
    """Measure, print the tables and the figures."""
    arguments = parser("recommend", __doc__, "a generated log and MovieLens small, 3 seeds, within 6 minutes")
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART")
    options = parse(arguments)
    found: dict[str, Measured] = {}
    for part in options.only:
        found |= PARTS[part](options.size)
    finish(options, found)


if __name__ == "__main__":
    main()
