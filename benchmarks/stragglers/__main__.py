"""Strategies for slow workers.

There are four studies: least squares with 50 workers as in two papers, networks on eight machines with recorded step
times, goodput while machines fail, and four real processes with one 5x slower. The first three run in the simulator.

ODDLOT_DATA=... python -m benchmarks.stragglers [--quick|--smoke] [--save] [--only PART ...] [--job mnist|cifar10 ...]
    [--record NAME ...] [--policy NAME ...] [--ratio NUMBER ...] [--learners NUMBER ...]
"""

import argparse
from collections.abc import Callable, Mapping

from benchmarks import smoke
from benchmarks.report import Measured, finish, parse, parser
from benchmarks.stragglers import (
    asynchronous,
    floors,
    goodput,
    joint,
    networks,
    paths,
    real,
    records,
    tails,
    theory,
)

PARTS: dict[str, Callable[[argparse.Namespace], Mapping[str, Measured]]] = {
    "theory": lambda asked: theory.measure(asked.size),
    "floors": lambda asked: floors.measure(asked.size),
    "asynchronous": lambda asked: asynchronous.measure(asked.size),
    "joint": lambda asked: joint.measure(asked.size, asked.ratio),
    "tails": lambda asked: tails.measure(asked.size),
    "goodput": lambda asked: goodput.measure(asked.size, asked.learners),
    "networks": lambda asked: networks.measure(asked.size, asked.job, asked.record, asked.policy),
    "paths": lambda asked: paths.measure(asked.size),
    "real": lambda asked: real.measure(asked.size),
}
QUICK = ["floors", "asynchronous", "joint", "real"]
"""Parts of the quick form. Short runs of the other parts measure no figures."""


def main() -> None:
    """Measure, print the tables and the figures."""
    line = parser("stragglers", __doc__, "fewer rounds, ratios and seeds")
    line.add_argument("--only", nargs="*", choices=list(PARTS))
    some = line.add_argument_group("a few tables of a part that takes hours")
    some.add_argument("--ratio", nargs="*", type=float, choices=joint.RATIOS, help="of joint")
    some.add_argument("--learners", nargs="*", type=int, choices=list(goodput.HOURS), help="of goodput")
    some.add_argument("--job", nargs="*", choices=list(networks.JOBS), help="of networks")
    some.add_argument("--record", nargs="*", choices=list(networks.RECORDS), help="of networks")
    some.add_argument(
        "--policy",
        nargs="*",
        metavar="NAME",
        choices=list(networks.POLICIES),
        help=f"of networks: joint, and others, in quotes: {'; '.join(networks.POLICIES)}",
    )
    asked = parse(line)
    if asked.policy and ("joint" not in asked.policy or len(asked.policy) == 1):
        line.error("--policy: joint, and others to stand beside it")
    figures = dict[str, Measured]()
    with smoke.data(asked.size, smoke.pictures, records.write):
        for part in asked.only or asked.size.pick(list(PARTS), QUICK, list(PARTS)):
            figures |= PARTS[part](asked)
    finish(asked, figures)


if __name__ == "__main__":
    main()
