"""Gossip with adaptive communication.

`calibration` compares it with gossip at every step and with controls of the same traffic, on a simulated mesh: a fixed
period, random exchanges, LocalSGD; and with one peer alone. --quick measures Fashion-MNIST only. `rates` searches the
learning rate of each method, which `calibration` then uses. `real` trains on four local processes, kills peers and cuts
the network. `map` finds who wins where: gossip, all-reduce, LocalSGD, an asynchronous star or one peer alone. --quick
leaves `rates` and `map` out: they take hours.

ODDLOT_DATA=... python -m benchmarks.gossip [--quick|--smoke] [--save] [--only PART ...]
"""

import argparse
from collections.abc import Callable, Mapping

from benchmarks import smoke
from benchmarks.gossip import calibration, real, winners
from benchmarks.report import Measured, Size, finish, parse, parser

PARTS: dict[str, Callable[[argparse.Namespace], Mapping[str, Measured]]] = {
    "rates": lambda asked: calibration.tune(asked.size),
    "calibration": lambda asked: calibration.measure(asked.size),
    "real": lambda asked: real.measure(asked.size),
    "map": lambda asked: winners.measure(asked.size),
}
LONG = ("rates", "map")
"""Parts that --quick leaves out."""


def main() -> None:
    """Measure, print the tables, print the line."""
    line = parser("gossip", __doc__, "10,000 images, three seeds, eight kills")
    line.add_argument(
        "--only",
        nargs="*",
        choices=list(PARTS),
    )
    asked = parse(line)
    figures = dict[str, Measured]()
    with smoke.data(asked.size, smoke.pictures):
        for part in asked.only or [
            part for part in PARTS if asked.size is not Size.QUICK or part not in LONG
        ]:
            figures |= PARTS[part](asked)
    finish(asked, figures)


if __name__ == "__main__":
    main()
