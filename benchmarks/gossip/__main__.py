"""Gossip with adaptive communication.

- `rates` searches the learning rate of each method. `calibration` uses the result.
- `calibration` compares adaptive gossip on a simulated mesh with gossip at every step, with controls of equal traffic
  (fixed period, random exchanges, LocalSGD) and with a single peer. --quick measures only Fashion-MNIST.
- `real` trains on four local processes, kills peers and partitions the network.
- `map` finds the fastest method for each link speed and number of peers: gossip, all-reduce, LocalSGD, an asynchronous
  star or a single peer.

--quick skips `rates` and `map`: they take hours.

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
"""Parts that --quick skips."""


def main() -> None:
    """Measure, print the tables and the figures."""
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
