"""Updates needed to a goal, as a function of staleness and momentum, on a quadratic with known curvatures."""

from collections.abc import Sequence
from math import inf, log

import numpy as np

from oddlot.timing.survival import Numbers

TAIL = 1e-9
"""Probability of longer staleness that is left out of a geometric distribution."""


def implicit_momentum(groups: int) -> float:
    """Return the momentum that asynchrony adds with memoryless delays: 1 - 1/groups.

    Source: Mitliagkas et al., "Asynchrony begets Momentum" (2016), theorem 5.
    """
    return 1 - 1 / groups


def memoryless_staleness(groups: int) -> Numbers:
    """Return the probabilities of staleness 0, 1, 2, ... with memoryless delays: a geometric distribution."""
    implicit = implicit_momentum(groups)
    length = 1 if not implicit else int(np.ceil(log(TAIL) / log(implicit)))
    found = np.array([(1 - implicit) * implicit**staleness for staleness in range(length)])
    return found / float(found.sum())


def convergence_rate(
    lr: float, momentum: float, curvatures: Sequence[float], staleness: Sequence[float] | Numbers
) -> float:
    """Return the factor of the expected distance to the optimum per update. A factor above 1 diverges.

    The optimizer is SGD with momentum on a quadratic. Its expected path follows a linear recurrence, and the factor is
    the largest absolute root of

        z**(n+1) - (1 + momentum) z**n + momentum z**(n-1) + lr * curvature * sum of staleness[l] z**(n-l).

    With memoryless staleness, this is theorem 7 of the paper; any other distribution may be measured.

    Args:
        lr: Learning rate.
        momentum: Momentum of the optimizer. It may be negative.
        curvatures: Eigenvalues of the quadratic, above 0.
        staleness: Probabilities of staleness 0, 1, 2, ... They sum to 1.

    Source: Mitliagkas et al., "Asynchrony begets Momentum" (2016), theorems 2 and 7.
    """
    shares = np.asarray(staleness, float)
    n = max(len(shares) - 1, 1)
    worst = 0.0
    for curvature in curvatures:
        terms = np.zeros(n + 2)
        terms[:3] = 1.0, -(1 + momentum), momentum
        terms[1 : 1 + len(shares)] += lr * curvature * shares
        worst = max(worst, float(np.abs(np.roots(terms)).max()))
    return worst


def theorem_7_rate(lr: float, momentum: float, curvatures: Sequence[float], groups: int) -> float:
    """Return the factor of `convergence_rate` with memoryless delays, from a cubic equation.

    Source: Mitliagkas et al., "Asynchrony begets Momentum" (2016), theorem 7.
    """
    implicit = implicit_momentum(groups)
    worst = 0.0
    for curvature in curvatures:
        z = 1 + implicit + momentum - lr * (1 - implicit) * curvature
        cubic = [1, -z, implicit + momentum + implicit * momentum, -implicit * momentum]
        worst = max(worst, float(np.abs(np.roots(cubic)).max()))
    return worst


def best_momentum(
    lr: float, curvatures: Sequence[float], groups: int, candidates: Sequence[float]
) -> tuple[float, float]:
    """Return the candidate with the fastest convergence at memoryless delays, and its factor per update."""
    rates = {each: theorem_7_rate(lr, each, curvatures, groups) for each in candidates}
    best = min(rates, key=rates.__getitem__)
    return best, rates[best]


def updates_needed(rate: float, reduction: float) -> float:
    """Return the updates until the distance has shrunk by the factor `reduction`; infinity if it does not."""
    return log(reduction) / log(rate) if rate < 1 else inf
