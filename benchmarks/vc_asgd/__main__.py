"""VC-ASGD on machines that come and go: what it takes, costs and learns. Virtual clock, real gradients.

ODDLOT_DATA=... python -m benchmarks.vc_asgd [--quick] [--only PART...] [--seed N]
"""

import argparse
from collections.abc import Callable

from benchmarks.report import finish
from benchmarks.vc_asgd import alpha, bill, makespan, preempted, scale, store
from benchmarks.vc_asgd.setting import proofs

PARTS: dict[str, Callable[[bool, int], dict[str, float]]] = {
    "makespan": makespan.measure,
    "bill": bill.measure,
    "preempted": preempted.measure,
    "scale": scale.measure,
    "store": store.measure,
    "alpha": alpha.measure,
}


def main() -> None:
    """Measure, print the tables, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer epochs, samples and seeds")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0, help="of every source of chance; the first of several")
    asked = parser.parse_args()
    figures: dict[str, float] = {}
    for part in asked.only:
        figures |= PARTS[part](asked.quick, asked.seed)
    if proofs:
        figures["exactly_once"] = float(all(proofs))
    finish(figures)


if __name__ == "__main__":
    main()
