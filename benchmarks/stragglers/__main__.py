"""Stragglers: the published least-squares study under a virtual clock, networks under real machines'
times, goodput against failures, and four real processes.

python -m benchmarks.stragglers [--quick] [--only PART ...] [--job mnist|cifar10 ...] [--record NAME ...]
                               [--policy NAME ...] [--ratio NUMBER ...] [--learners NUMBER ...]
"""

import argparse
from collections.abc import Callable

from benchmarks.report import finish
from benchmarks.stragglers import asynchronous, floors, goodput, joint, networks, paths, real, tails, theory

PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "theory": lambda asked: theory.measure(asked.quick),
    "floors": lambda asked: floors.measure(asked.quick),
    "asynchronous": lambda asked: asynchronous.measure(asked.quick),
    "joint": lambda asked: joint.measure(asked.quick, asked.ratio),
    "tails": lambda asked: tails.measure(asked.quick),
    "goodput": lambda asked: goodput.measure(asked.quick, asked.learners),
    "networks": lambda asked: networks.measure(asked.quick, asked.job, asked.record, asked.policy),
    "paths": lambda asked: paths.measure(asked.quick),
    "real": lambda asked: real.measure(asked.quick),
}


def main() -> None:
    """Measure, print the tables, print the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds, ratios and seeds")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    some = parser.add_argument_group("a few tables of a part that takes hours")
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
    asked = parser.parse_args()
    if asked.policy and ("joint" not in asked.policy or len(asked.policy) == 1):
        parser.error("--policy: joint, and others to stand beside it")
    figures: dict[str, float] = {}
    for part in asked.only:
        figures |= PARTS[part](asked)
    finish(figures)


if __name__ == "__main__":
    main()
