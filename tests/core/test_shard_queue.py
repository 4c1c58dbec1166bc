"""The choice of the next lane to lease from: the index, compared with a search of all lanes."""

from copy import deepcopy
from math import inf
from random import Random

import pytest

from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span


def ready(ledger: SampleLedger) -> list[int]:
    """Return the lanes with samples to lease now."""
    latest = inf if ledger.epochs is None else ledger.epochs - 1
    latest = min(latest, ledger.epoch) if ledger.epoch_barrier else latest
    return [
        n
        for n, cursor in enumerate(ledger.cursors)
        if cursor.first < cursor.last and cursor.next_epoch <= latest
    ]


def first_choice(ledger: SampleLedger, node: str) -> int | None:
    """Return the lane to choose: by oldest epoch, then the node's lane before lanes without a node, then by number."""

    def reluctance(number: int) -> tuple[int, int, int]:
        cursor = ledger.cursors[number]
        return cursor.next_epoch, {node: 0, None: 1}.get(cursor.home, 2), number

    return min(ready(ledger), key=reluctance, default=None)


@pytest.mark.parametrize("seed", range(60))
def test_index_finds_the_same_shard_as_a_full_search(seed: int) -> None:
    chance = Random(seed)
    size, shards = chance.randint(1, 40), chance.randint(1, 12)
    ledger = SampleLedger(size, chance.choice([None, 3]), shards, chance.random() < 0.5)
    nodes = [f"w{i}" for i in range(4)]
    held, made = dict[str, str](), 0
    for _ in range(400):
        node, move = chance.choice(nodes), chance.random()
        expected = first_choice(ledger, node)
        assert ledger.work_left is (expected is not None)
        assert ledger.shards_left == len(ready(ledger))
        if move < 0.5 and len(held) < 6:
            made += 1
            spans = ledger.lease(f"t{made}", chance.choice([1, 2, 5, 50]), node)
            assert bool(spans) is (expected is not None)
            if expected is not None:
                cursor = ledger.cursors[expected]
                assert cursor.first <= spans[0].start < cursor.last
                assert shards == 1 or cursor.home == node
                held[f"t{made}"] = node
        elif move < 0.6:
            for task in [task for task, whose in held.items() if whose == node]:
                del held[task]
                ledger.give_back(task)
            ledger.lose(node)
        elif held:
            task = chance.choice(list(held))
            del held[task]
            if move < 0.7:
                ledger.give_back(task)
            else:
                ledger.arrive(task, chance.randint(1, sum(b - a for _, a, b in ledger.leases[task].spans)))
                ledger.merge(task)


def test_restored_ledger_rebuilds_its_index() -> None:
    ledger = SampleLedger(30, 2, 3)
    ledger.lease("a", 10, "w1")
    ledger.give_back("a")
    again = SampleLedger(30, 2, 3, cursors=deepcopy(ledger.cursors))
    assert again.lease("b", 5, "w1") == (Span(0, 0, 5),), "what it holds"
    assert again.lease("c", 10, "w2") == (Span(0, 10, 20),), "what nobody holds"
    again.lose("w1")
    assert again.lease("d", 10, "w2") == (Span(0, 5, 10),)
