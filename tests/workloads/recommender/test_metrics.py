"""Tests of the metrics against values by hand and loops, and of the floors."""

from math import log2
from typing import Any

import pytest
import torch

from oddlot.workloads.recommender.blocks import split
from oddlot.workloads.recommender.click_log import ClickLog
from oddlot.workloads.recommender.metrics import METRICS, K, floors, hits
from oddlot.workloads.recommender.samples import HeldOutUsers

FULL, OWN = [0, 1, 0, 0, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0, 0, 0, 0]


def test_metrics_have_the_values_by_hand() -> None:
    outputs = torch.tensor([[*FULL, *OWN], [0] * 20], dtype=torch.float32)
    found = {name: metric(outputs, torch.tensor([[4.0], [12.0]])) for name, metric in METRICS.items()}
    ideal = sum(1 / log2(place + 1) for place in range(1, 5))
    assert found == {
        "ndcg10": pytest.approx((1 / log2(3) + 1 / log2(6)) / ideal / 2),
        "map10": pytest.approx((1 / 2 + 2 / 5) / 4 / 2),
        "recall10": pytest.approx(2 / 4 / 2),
        "ndcg10_authors": pytest.approx((1 + 1 / log2(3) + 1 / log2(5)) / (1 + 1 + 1 / log2(3)) / 2),
        "map10_authors": pytest.approx((1 / 2 + 2 / 3 + 3 / 5) / 3 / 2),
    }


def test_best_ranking_has_the_largest_values() -> None:
    outputs = torch.ones(1, 2 * K)
    assert [metric(outputs, torch.tensor([[10.0]])) for metric in METRICS.values()] == pytest.approx(
        [1.0] * 5
    )
    assert METRICS["recall10"](outputs, torch.tensor([[20.0]])) == pytest.approx(0.5)
    assert METRICS["map10"](outputs, torch.tensor([[20.0]])) == pytest.approx(1.0)


def log_of(*rows: str) -> ClickLog:
    """Return a log: for each user a text with items, in upper case if they were clicked."""
    table = [
        (user, item.lower(), at, item.isupper())
        for user, text in enumerate(rows)
        for at, item in enumerate(text)
    ]
    columns: Any = zip(*table, strict=True)
    return ClickLog.of(*columns)


def test_only_new_items_of_the_training_part_count() -> None:
    log = log_of("aBcDeFbG", "fGzA", "cE", "aBcX", "aBaB")  # user 0 is tested on b (seen) and g
    users = HeldOutUsers.of(parts := split(log), 3)
    assert (parts.unseen_users, parts.unseen_items) == (1, 2)
    assert users.users.tolist() == [0, 1]
    batch = users.__getitems__([0, 1])
    names = [[str(log.item_ids[at]) for at in row if at >= 0] for row in batch["test_items"]]
    assert names == [["g"], ["a"]]
    candidates = torch.zeros(len(log.item_ids), dtype=torch.bool)
    candidates[torch.from_numpy(parts.train.items)] = True
    scores = torch.arange(float(len(log.item_ids))).expand(2, -1)
    found, relevant = hits(scores, batch, candidates)
    order = {0: "g", 1: "edcba"}  # by score, without seen items and items that training lacks
    for user, items in order.items():
        wanted = [float(one == names[user][0]) for one in items]
        assert found[user, :K].tolist() == wanted + [0.0] * (K - len(wanted))
    assert relevant.flatten().tolist() == [1, 1]


def test_floors_are_those_of_the_scores() -> None:
    random = torch.Generator().manual_seed(0)
    rows = 40 * 200
    user, item = (torch.randint(most, (rows,), generator=random).numpy() for most in (200, 300))
    clicked = (torch.rand(rows, generator=random) < 0.3).numpy()
    parts = split(ClickLog.of(user, item, range(rows), clicked))
    users = HeldOutUsers.of(parts, 3)
    constant = torch.ones(300)
    found = floors(users, constant > 0, constant)
    relevant = sum((users[at]["test_clicked"] > 0).sum() for at in range(len(users))) / len(users)
    assert found["recall10_random"] == pytest.approx(10 / (300 - 30), rel=0.6)
    assert relevant >= 1
    for name in ("ndcg10_authors", "map10_authors", "recall10"):  # ties are in random order
        assert found[f"{name}_popular"] == pytest.approx(found[f"{name}_random"], abs=0.06)
    assert set(found) == {f"{name}_{floor}" for name in METRICS for floor in ("random", "popular")}
