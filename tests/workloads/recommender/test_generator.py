"""Tests of generated logs: tastes, position bias and bots."""

from dataclasses import replace

import numpy as np
import pytest

from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommender.generator import DAY, Generator, generate
from tests.transcripts import raises

SMALL = Generator(users=300, items=200)


def test_same_seed_gives_the_same_log() -> None:
    first, second, other = generate(SMALL, 3).log, generate(SMALL, 3).log, generate(SMALL, 4).log
    for name in ("users", "items", "times", "clicked"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert len(other) != len(first) or (other.items != first.items).any()


def test_users_see_no_item_twice_and_notice_first_places_more() -> None:
    log = generate(SMALL).log
    pairs = log.users * len(log.item_ids) + log.items
    assert len(np.unique(pairs)) == len(pairs)
    counts = np.bincount(log.users)
    assert counts.min() >= 2 * SMALL.length
    assert counts.mean() == pytest.approx(SMALL.lists * SMALL.length, rel=0.2)
    place = np.round(log.times - log.times[np.arange(len(log)) // 10 * 10]).astype(int)
    rates = [log.clicked[place == at].mean() for at in (0, 9)]
    assert rates[1] / rates[0] == pytest.approx(10**-SMALL.position_bias, rel=0.35)


def test_clicks_depend_on_tastes() -> None:
    largest = []
    for taste in (0.0, 5.0):
        log = generate(replace(SMALL, taste=taste, position_bias=0.0)).log
        means = np.bincount(log.items, log.clicked) / np.bincount(log.items)
        residuals = np.zeros((300, 200))
        residuals[log.users, log.items] = log.clicked - means[log.items]
        largest.append(np.linalg.norm(residuals, 2) / np.linalg.norm(residuals))
    assert largest[1] > 1.15 * largest[0], "tastes are common directions"


def test_bots_click_their_targets_late_and_often() -> None:
    clean, found = generate(SMALL).log, generate(replace(SMALL, bots=0.1))
    log, is_bot = found.log, found.is_bot
    assert is_bot.sum() == round(300 * 0.1 / 0.9)
    by_bots = is_bot[log.users]
    assert set(log.item_ids[log.items[by_bots & log.clicked]]) == set(found.targets)
    assert not set(log.item_ids[log.items[by_bots & ~log.clicked]]) & set(found.targets)
    assert log.times[by_bots].min() >= SMALL.clean * SMALL.days * DAY
    clicks = np.bincount(log.users[log.clicked], minlength=len(log.user_ids))
    ratio = clicks[is_bot] / (clean.clicked.sum() / 300)
    assert 9.9 < ratio.min() < ratio.max() < 101
    kept = log.rows(~by_bots)
    np.testing.assert_array_equal(kept.times[np.argsort(kept.times)], np.sort(clean.times))
    assert kept.clicked.sum() == clean.clicked.sum()


@pytest.mark.parametrize(
    ("settings", "name"),
    [(Generator(users=0), "users"), (Generator(bots=1.0), "bots"), (Generator(items=19), "items")],
)
def test_invalid_setting_is_rejected(settings: Generator, name: str) -> None:
    with raises(UsageError, "invalid_value", name=name):
        generate(settings)
