"""Fleets for the planner's benchmarks."""

from oddlot import Machine
from oddlot.machines import Deterministic, Fleet, Hub, Lognormal, Memoryless, Offer, Steps, Zone

BATCH_SECONDS = 3.3
"""Mean seconds of one machine for a batch of `BATCH` samples."""
BATCH = 32
HUB = Hub(seconds_per_update=0.003)
EACH = BATCH_SECONDS / BATCH


def equal() -> Fleet:
    """Return 8 equal machines."""
    return Fleet([Machine(f"m{number}", EACH, Deterministic()) for number in range(8)], HUB)


def stragglers() -> Fleet:
    """Return 32 spot machines with computation times of variation 1.

    Each is preempted after 10 minutes on average, and returns a minute later.
    """
    offer = Offer("c4", 1.0, Steps((0.0,), (0.3,)))
    template = Machine("m", EACH, Lognormal(1.0))
    capacity = Memoryless(600, seconds_to_return=60)
    return Fleet([Zone("m", offer, 32, template, capacity)], HUB)


def mixed() -> Fleet:
    """Return 12 slow and 4 fast spot machines, and 2 on demand, with prices that change."""
    slow = Offer("slow", 0.4, Steps((0.0, 120.0), (0.12, 0.16), period_seconds=240.0))
    fast = Offer("fast", 1.6, Steps((0.0, 90.0), (0.5, 0.7), period_seconds=180.0), speed=3.0)
    template = Machine("m", EACH, Lognormal(0.5))
    return Fleet(
        [
            Zone("slow", slow, 12, template, Memoryless(900, seconds_to_return=120)),
            Zone("fast", fast, 4, template, Memoryless(400, seconds_to_return=60)),
            *(Machine(f"own{number}", EACH, Lognormal(0.5), dollars_per_hour=0.4) for number in range(2)),
        ],
        HUB,
    )
