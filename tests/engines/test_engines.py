"""Every engine keeps the same promises."""

from collections.abc import Callable
from typing import Any

import pytest

from oddlot import Local, Machine, Simulated
from oddlot.machines import Deterministic, Lifetime, Link
from oddlot.testing.engines import SCENARIOS

pytestmark = pytest.mark.usefixtures("fork_server")


def local(workers: int) -> Local:
    return Local(workers=workers, threads=1)


def simulated(workers: int) -> Simulated:
    link = Link(megabits_per_second=100, latency_milliseconds=1)
    stays = Lifetime(mean_seconds=1e9, delay=Deterministic())
    names = [f"m{number}" for number in range(workers)]
    return Simulated(
        [Machine(name, 0.01, link=link, lifetime=stays, seconds_to_return=0.5) for name in names]
    )


@pytest.mark.parametrize("make", [local, simulated])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_engine_survives(scenario: Callable[[Any], None], make: Callable[[int], Any]) -> None:
    scenario(make)
