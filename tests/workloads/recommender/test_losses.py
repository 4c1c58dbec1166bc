"""Tests of the losses of users: blocks, pairs and softmax, against loops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from oddlot.workloads.recommender import losses
from oddlot.workloads.recommender.blocks import blocks_of
from oddlot.workloads.recommender.click_log import ClickLog
from oddlot.workloads.recommender.losses import NEGATIVES, block_loss, pair_loss, softmax_loss
from oddlot.workloads.recommender.models import Attention, MatrixFactorization, Recommender
from oddlot.workloads.recommender.samples import Batch, TrainUsers, UserRows

USERS, ITEMS, WIDTH, CONTEXT = 12, 30, 4, 5


@pytest.fixture
def users() -> TrainUsers:
    random = np.random.default_rng(0)
    rows = 20 * USERS
    user = np.concatenate(
        [np.arange(USERS), random.integers(USERS, size=rows)]
    )  # everybody has clicked an item
    item = np.concatenate([np.zeros(USERS, np.int64), random.integers(ITEMS, size=rows)])
    clicked = np.concatenate([np.ones(USERS, np.bool_), random.random(rows) < 0.4])
    log = ClickLog.of([f"{one:02}" for one in user], [f"{one:02}" for one in item], range(len(user)), clicked)
    return TrainUsers(UserRows(log), CONTEXT)


def factorization(users: TrainUsers) -> MatrixFactorization:
    torch.manual_seed(0)
    return MatrixFactorization(USERS, len(users.rows.log.item_ids), WIDTH)


def attention(users: TrainUsers) -> Attention:
    torch.manual_seed(0)
    return Attention(len(users.rows.log.item_ids), WIDTH, CONTEXT, dropout=0.0)


def all_of(users: TrainUsers) -> tuple[Batch, Tensor]:
    return users.__getitems__(range(len(users))), torch.ones(len(users), dtype=torch.bool)


def looped_block_loss(model: MatrixFactorization, log: ClickLog, decay: float) -> Tensor:
    found, blocks = [], blocks_of(log)
    for at in range(len(blocks.users)):
        user = model.user.weight[blocks.users[at]]
        rows = log.items[blocks.starts[at] : blocks.ends[at]]
        negatives, clicks = (
            model.item.weight[rows[: blocks.negatives[at]]],
            model.item.weight[rows[blocks.negatives[at] :]],
        )
        pairs = [softplus(-user @ (click - negative)) for click in clicks for negative in negatives]
        norms = user.square().sum() + clicks.square().sum(1).mean() + negatives.square().sum(1).mean()
        found.append(torch.stack(pairs).mean() + decay * norms)
    return torch.stack(found).mean()


@pytest.mark.parametrize("pairs", [2_000_000, 7])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_block_loss_is_the_mean_over_all_pairs(
    users: TrainUsers, monkeypatch: pytest.MonkeyPatch, pairs: int, decay: float
) -> None:
    monkeypatch.setattr(losses, "PAIRS", pairs)
    model = factorization(users)
    loss, weight = block_loss(model, *all_of(users), decay)
    wanted = looped_block_loss(model, users.rows.log, decay)
    assert weight == len(users.rows.blocks.users)
    torch.testing.assert_close(loss, wanted)
    found, right = (torch.autograd.grad(one, list(model.parameters())) for one in (loss, wanted))
    torch.testing.assert_close(found, right)


def test_batches_of_users_have_the_same_loss(users: TrainUsers) -> None:
    model, total, weights = factorization(users), 0.0, 0
    for some in ([3, 1], [0], [2, *range(4, USERS)]):
        batch = users.__getitems__(some)
        loss, weight = block_loss(model, batch, torch.ones(len(some), dtype=torch.bool), 0.1)
        total, weights = total + float(loss.detach()) * weight, weights + weight
    assert total / weights == pytest.approx(
        float(looped_block_loss(model, users.rows.log, 0.1).detach()), rel=1e-5
    )


@pytest.mark.parametrize("loss", [block_loss, pair_loss, softmax_loss])
@pytest.mark.parametrize("of", [factorization, attention])
def test_left_out_users_have_no_effect(
    users: TrainUsers, loss: Callable[..., Any], of: Callable[[TrainUsers], Recommender]
) -> None:
    model, (batch, kept) = of(users), all_of(users)
    kept[[1, 5]] = False
    alone = users.__getitems__([each for each in range(USERS) if each not in {1, 5}])
    results = []
    for some, of_them in ((batch, kept), (alone, torch.ones(USERS - 2, dtype=torch.bool))):
        torch.manual_seed(0)
        found, weight = loss(model, some, of_them, 0.1)
        results.append((weight, torch.autograd.grad(found, list(model.parameters()), allow_unused=True)))
    assert results[0][0] == results[1][0] > 0
    if loss is not pair_loss:
        for one, other in zip(results[0][1], results[1][1], strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    if of is factorization:
        assert not results[0][1][1][[1, 5]].any()
    nothing, weight = loss(model, batch, ~(kept | True), 0.1)
    assert (float(nothing.detach()), weight, nothing.requires_grad) == (0.0, 0, True)


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_drawn_negatives_are_not_clicked(users: TrainUsers, negatives: str) -> None:
    model, (batch, kept) = factorization(users), all_of(users)
    log = users.rows.log
    seen = {user: set(log.items[(log.users == user) & ~log.clicked]) for user in range(USERS)}
    drawn = list[tuple[int, int]]()
    original, calls = model.item_vectors, list[Tensor]()
    model.item_vectors = lambda items: (calls.append(items), original(items))[1]  # type: ignore[method-assign,func-returns-value]
    context = model.context
    rows = list[Tensor]()
    model.context = lambda batch, which: (rows.append(which), context(batch, which))[1]  # type: ignore[method-assign,func-returns-value,assignment]
    pair_loss(model, batch, kept, 0.0, negatives)
    drawn = [(int(batch["owners"][row]), int(item)) for row, item in zip(rows[0], calls[1], strict=True)]
    clicked = {user: set(log.items[(log.users == user) & log.clicked]) for user in range(USERS)}
    assert len(drawn) > 40
    assert not any(item in clicked[user] for user, item in drawn)
    assert all(item in seen[user] for user, item in drawn) == (negatives == "own")


def test_log_without_negatives_draws_from_all_items() -> None:
    log = ClickLog.of([0] * 3 + [1] * 3, [*"abc", *"def"], range(6))
    users = TrainUsers(UserRows(log), CONTEXT)
    torch.manual_seed(0)
    model = MatrixFactorization(2, 6, WIDTH)
    weights = [pair_loss(model, *all_of(users), 0.0, "own")[1] for _ in range(50)]
    assert 0 < np.mean(weights) < 6  # a draw that the user has clicked is left out
    loss, _ = pair_loss(model, *all_of(users), 0.0, "own")
    assert float(loss.detach()) > 0


def test_softmax_is_the_cross_entropy_over_all_items(users: TrainUsers) -> None:
    log = users.rows.log
    for model in (factorization(users), attention(users)):
        batch, kept = all_of(users)
        rows = torch.nonzero(batch["clicked"]).flatten()
        logits = model.context(batch, rows) @ model.item_matrix().T
        wanted = cross_entropy(logits, batch["items"][rows])
        found, weight = softmax_loss(model, batch, kept, 0.0)
        torch.testing.assert_close(found, wanted)
        assert weight == log.clicked.sum()


def test_context_has_the_clicks_before_a_row(users: TrainUsers) -> None:
    batch, _ = all_of(users)
    table = batch["windows"].flatten()
    log = users.rows.log
    for row, (user, place) in enumerate(zip(log.users, batch["places"].tolist(), strict=True)):
        before = log.items[:row][(log.users == user)[:row] & log.clicked[:row]]
        inside = len(before) % CONTEXT
        known = table[place - inside : place + 1].tolist()
        newest = before[len(before) - inside - (len(before) >= CONTEXT) :].tolist()
        assert known == ([-1] if len(before) < CONTEXT else []) + newest


def test_later_clicks_do_not_change_a_context(users: TrainUsers) -> None:
    model, (batch, _) = attention(users).eval(), all_of(users)
    row = torch.nonzero(batch["owners"] == 3).flatten()[9]
    before = model.context(batch, row[None])
    batch["windows"] = batch["windows"].clone()
    flat, place = batch["windows"].view(-1), int(batch["places"][row])
    flat[place + 1 :] = 0
    torch.testing.assert_close(model.context(batch, row[None]), before)
    flat[place] = (flat[place] + 1) % 10
    assert not torch.allclose(model.context(batch, row[None]), before)
