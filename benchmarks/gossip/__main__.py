"""Gossip with adaptive communication.

`calibration` compares it with gossip at every step and with a fixed period and random exchanges of the same traffic, on
a simulated mesh. `real` trains on four local processes, kills peers and cuts the network. `map` finds who wins where:
gossip, all-reduce, LocalSGD or an asynchronous star. It takes an hour, and --quick leaves it out.

ODDLOT_DATA=... python -m benchmarks.gossip [--quick|--smoke] [--save] [--only PART ...]
"""

import argparse
from collections.abc import Callable, Mapping

from benchmarks import smoke
from benchmarks.gossip import calibration, real, winners
from benchmarks.report import Measured, Size, finish, parse, parser

PARTS: dict[str, Callable[[argparse.Namespace], Mapping[str, Measured]]] = {
    "calibration": lambda asked: calibration.measure(asked.size),
    "real": lambda asked: real.measure(asked.size),
    "map": lambda asked: winners.measure(asked.size),
}


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
        for part in asked.only or [part for part in PARTS if part != "map" or asked.size is not Size.QUICK]:
            figures |= PARTS[part](asked)
    finish(asked, figures)


if __name__ == "__main__":
    main()
