"""Thousands of whole runs in which nearly everything goes wrong. One seed is one trace, and one command repeats it."""

import hashlib

import pytest

from oddlot.core import words as w
from oddlot.engines.disturbed import GOES_ON
from tests.simulation.world import STRATEGIES, World, told

SEEDS = 1_000
CHUNK = 250


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
@pytest.mark.parametrize("name", STRATEGIES)
def test_whatever_goes_wrong_every_sample_counts_exactly_once(name: str, first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            World(name, seed).run()
        except Exception as error:
            error.add_note(f"To repeat it: python -m tests.simulation {name} {seed}")
            raise


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_seed_is_one_trace(name: str) -> None:
    traces = set()
    for seed in range(25):
        one, other = (told(World(name, seed).run()) for _ in range(2))
        assert one == other, f"seed {seed}"
        traces.add(hashlib.sha256(one.encode()).digest())
    assert len(traces) == 25, "each seed is another run"


@pytest.mark.parametrize("name", STRATEGIES)
def test_everything_that_may_go_wrong_does(name: str) -> None:
    """The worlds are as bad as they say."""
    seen = set[str]()
    for seed in range(150):
        world = World(name, seed)
        log = world.run()
        seen |= world.mishaps
        for record in log:
            seen.add(type(record.event).__name__)
            seen |= {f"fault {record.event.kind}"} if isinstance(record.event, w.Struck) else set()
            seen |= {record.remark} if record.remark else set()
            seen |= (
                {"goes on"} if isinstance(record.event, w.Struck) and GOES_ON in record.event.fault else set()
            )
    faults = {"kill", "freeze", "slow", "leave", "delay", "drop", "corrupt"}
    assert seen >= {f"fault {kind}" for kind in faults} | {
        "nobody here",
        "goes on",
        "twice",
        "later",
        "lie",
        "corrupt",
        "stray",
    }
    assert seen >= {
        "Priced",
        "Resumed",
        "Lost",
        "Leaving",
        "Refused",
        "Cancelled",
        "Ticked",
        "Evaluated",
        "echo",
    }
