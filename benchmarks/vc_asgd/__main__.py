"""VC-ASGD on machines that come and go: what it takes, costs and learns. Virtual clock, real gradients.

ODDLOT_DATA=... python -m benchmarks.vc_asgd [--quick|--smoke] [--only PART...] [--seed N]
"""

from collections.abc import Callable

from benchmarks import smoke
from benchmarks.report import Size, finish, parser
from benchmarks.vc_asgd import alpha, bill, makespan, preempted, scale, store, traces
from benchmarks.vc_asgd.setting import proofs

PARTS: dict[str, Callable[[Size, int], dict[str, float]]] = {
    "makespan": makespan.measure,
    "bill": bill.measure,
    "preempted": preempted.measure,
    "scale": scale.measure,
    "store": store.measure,
    "alpha": alpha.measure,
}


def main() -> None:
    """Measure, print the tables, print the line."""
    line = parser(__doc__, "fewer epochs, samples and seeds")
    line.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    line.add_argument("--seed", type=int, default=0, help="of every source of chance; the first of several")
    asked = line.parse_args()
    figures: dict[str, float] = {}
    with smoke.data(asked.size, smoke.pictures, traces.write):
        for part in asked.only:
            figures |= PARTS[part](asked.size, asked.seed)
    if proofs:
        figures["exactly_once"] = float(all(proofs))
    finish(figures)


if __name__ == "__main__":
    main()
