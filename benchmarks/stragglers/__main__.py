"""Stragglers: the published least-squares study under a virtual clock, networks under real machines'
times, goodput against failures, and four real processes.

python -m benchmarks.stragglers [--quick] [--only PART ...]
"""

import argparse
from collections.abc import Callable

from benchmarks.report import finish
from benchmarks.stragglers import floors, goodput, joint, networks, paths, real

PARTS: dict[str, Callable[[bool], dict[str, float]]] = {
    "floors": floors.measure,
    "joint": joint.measure,
    "goodput": goodput.measure,
    "networks": networks.measure,
    "paths": paths.measure,
    "real": real.measure,
}


def main() -> None:
    """Measure, print the tables, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds, ratios and seeds")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    asked = parser.parse_args()
    figures: dict[str, float] = {}
    for part in asked.only:
        figures |= PARTS[part](asked.quick)
    finish(figures)


if __name__ == "__main__":
    main()
