"""VC-ASGD on spot machines.

VC-ASGD trains on machines that are preempted. Federated averaging trains on the same number of machines on demand.
Recorded preemptions and prices determine the time and cost of each run. Gradients are real, and time is simulated. Only
the part `preempted` runs processes.

ODDLOT_DATA=... python -m benchmarks.vc_asgd [--quick|--smoke] [--save] [--only PART...] [--seed N]
"""

from collections.abc import Callable, Mapping

from benchmarks import smoke
from benchmarks.report import Measured, Size, finish, parse, parser
from benchmarks.vc_asgd import alpha, bill, makespan, other_traces, preempted, scale, store, traces
from benchmarks.vc_asgd.setting import proofs

PARTS: dict[str, Callable[[Size, int], Mapping[str, Measured]]] = {
    "makespan": makespan.measure,
    "bill": bill.measure,
    "other_traces": other_traces.measure,
    "preempted": preempted.measure,
    "scale": scale.measure,
    "store": store.measure,
    "alpha": alpha.measure,
}


def main() -> None:
    """Measure, print the tables and the figures."""
    line = parser("vc_asgd", __doc__, "fewer epochs, samples and seeds")
    line.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    line.add_argument("--seed", type=int, default=0, help="of every source of chance; the first of several")
    asked = parse(line)
    figures = dict[str, Measured]()
    with smoke.data(asked.size, smoke.pictures, traces.write):
        for part in asked.only:
            figures |= PARTS[part](asked.size, asked.seed)
    if proofs:
        figures["exactly_once"] = float(all(proofs))
    finish(asked, figures)


if __name__ == "__main__":
    main()
