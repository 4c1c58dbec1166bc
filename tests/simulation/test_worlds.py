"""Tests of exactly-once sample accounting in complete runs with many random faults.

The seed determines the trace, and one command repeats it.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random, SystemRandom

import pytest

from oddlot.testing import check_strategy
from tests.simulation.world import MISHAPS, STRATEGIES, World, trace_of

CORPUS: dict[str, list[int]] = json.loads((Path(__file__).parent / "corpus.json").read_text())
"""Seeds that cover all mishaps. `python -m tests.simulation corpus` selects them again."""
FRESH, LONG = 10, 1_000
EACH = pytest.mark.parametrize("name", STRATEGIES)


def lived(name: str, seeds: Iterable[int]) -> tuple[dict[int, str], set[str]]:
    """Return the digest of each world's trace, and the events and mishaps of all worlds."""
    digests, seen = dict[int, str](), set[str]()
    for seed in seeds:
        world = World(name, seed)
        try:
            log = world.run()
        except Exception as error:
            error.add_note(f"To repeat it: python -m tests.simulation {name} {seed}")
            raise
        digests[seed] = hashlib.sha256(trace_of(log).encode()).hexdigest()
        seen |= world.seen
    return digests, seen


@EACH
def test_every_sample_counts_once(name: str) -> None:
    digests, seen = lived(name, CORPUS[name])
    assert seen >= MISHAPS, "the corpus lacks a kind of fault: choose it anew"
    assert len({*digests.values()}) == len(CORPUS[name]), "each seed is another run"
    again = CORPUS[name][:1]
    assert lived(name, again)[0] == {seed: digests[seed] for seed in again}, "one seed is one trace"


@EACH
def test_every_sample_counts_once_for_random_seeds(name: str) -> None:
    lived(name, (SystemRandom().randrange(2**32) for _ in range(FRESH)))


@EACH
@pytest.mark.long
def test_every_sample_counts_once_for_a_thousand_seeds(name: str) -> None:
    lived(name, range(LONG))


IN_HISTORIES = pytest.mark.parametrize("name", sorted({*STRATEGIES} - {"timed"}))
"""All strategies except `timed`: it has too many alarms."""


def keeps_promises(name: str, seeds: int, examples: int) -> None:
    """Check a strategy with random events, like users' strategies."""
    for seed in range(seeds):
        check_strategy(lambda: STRATEGIES[name](Random(seed)), examples=examples)  # noqa: B023 - called at once


@IN_HISTORIES
def test_invariants_hold_in_random_histories(name: str) -> None:
    keeps_promises(name, seeds=3, examples=5)


@IN_HISTORIES
@pytest.mark.long
def test_invariants_hold_in_many_random_histories(name: str) -> None:
    keeps_promises(name, seeds=10, examples=30)
