"""Thousands of whole runs in which nearly everything goes wrong. One seed is one trace, and one command repeats it."""

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from oddlot.core import words as w
from oddlot.engines.disturbed import GOES_ON
from tests.simulation.world import STRATEGIES, World, told

SEEDS, CHUNK, THOROUGH = 250, 250, 1_000
"""THOROUGH: with `pytest -m thorough tests/simulation` too"""
FAULTS = ("kill", "freeze", "slow", "leave", "delay", "drop", "corrupt")
MISHAPS = frozenset(f"fault {kind}" for kind in FAULTS) | {
    *("goes on", "nobody here", "twice", "later", "lie", "corrupt", "stray", "echo"),
    *("Priced", "Resumed", "Lost", "Leaving", "Refused", "Cancelled", "Ticked", "Evaluated"),
}


@cache
def lived(name: str, seed: int) -> tuple[bytes, frozenset[str]]:
    """The digest of a world's trace, and what has happened in it."""
    world = World(name, seed)
    log = world.run()
    seen = set(world.mishaps)
    for record in log:
        seen |= {type(record.event).__name__, record.remark}
        if isinstance(record.event, w.Struck):
            seen |= {f"fault {record.event.kind}", "goes on" if GOES_ON in record.event.fault else ""}
    return hashlib.sha256(told(log).encode()).digest(), MISHAPS & seen


def chunks() -> Iterator[Any]:
    """Strategies, and the first seeds of so many each."""
    for name in STRATEGIES:
        for first in range(0, THOROUGH, CHUNK):
            marks = [lived_by_one(name), *([pytest.mark.thorough] if first >= SEEDS else [])]
            yield pytest.param(name, first, marks=marks)


def lived_by_one(name: str) -> pytest.MarkDecorator:
    """One process has all tests of a strategy, so that each world is lived once."""
    return pytest.mark.xdist_group(f"worlds of {name}")


ALL = [pytest.param(name, marks=lived_by_one(name)) for name in STRATEGIES]


@pytest.mark.parametrize(("name", "first"), list(chunks()))
def test_whatever_goes_wrong_every_sample_counts_exactly_once(name: str, first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            lived(name, seed)
        except Exception as error:
            error.add_note(f"To repeat it: python -m tests.simulation {name} {seed}")
            raise


@pytest.mark.parametrize("name", ALL)
def test_one_seed_is_one_trace(name: str) -> None:
    traces = set()
    for seed in range(25):
        trace, _ = lived(name, seed)
        assert lived.__wrapped__(name, seed)[0] == trace, f"seed {seed}"
        traces.add(trace)
    assert len(traces) == 25, "each seed is another run"


@pytest.mark.parametrize("name", ALL)
def test_everything_that_may_go_wrong_does(name: str) -> None:
    """The worlds are as bad as they say."""
    seen = frozenset[str]().union(*(lived(name, seed)[1] for seed in range(SEEDS)))
    assert seen >= MISHAPS
