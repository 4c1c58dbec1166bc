"""Samplers: hash collision probabilities, recall of hashes and clusters, and warnings for unsuitable tables."""

import logging
import warnings
from math import pi
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.sparse import LSH, Clusters, Refresh, SampledLinear, Unigram
from oddlot.sparse.active_set import Labels
from oddlot.sparse.kernels import hashing, tables
from oddlot.sparse.samplers.lsh import Choice
from oddlot.sparse.threads import Crew
from tests.sparse.found import COLUMNS, rows_for, some_rows
from tests.sparse.layers import logged
from tests.transcripts import check, mask, warns

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(family: Any, digits: int, count: int = 50) -> LSH:
    lsh = LSH(family, digits=digits, tables=count)
    lsh._draw(COLUMNS, Choice(digits, count), seed=1)
    return lsh


def codes(lsh: LSH, *vectors: NDArray[np.float64]) -> NDArray[np.int32]:
    return lsh._codes(Crew(), np.array(vectors, np.float32))


def two_vectors(angle: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    chance = np.random.default_rng(3)
    one, other = np.linalg.qr(chance.standard_normal((COLUMNS, 2)))[0].T
    return one, np.cos(angle) * one + np.sin(angle) * other


@pytest.mark.parametrize("angle", [0.2, 0.8, 1.6, 2.6])
@pytest.mark.parametrize("digits", [1, 4])
def test_simhash_collision_rate_follows_the_angle(angle: float, digits: int) -> None:
    """The bits of two vectors are equal with probability 1 - angle / pi (Charikar, STOC 2002)."""
    first, second = codes(drawn("simhash", digits, 4000), *two_vectors(angle)).T
    law = (1 - angle / pi) ** digits
    assert np.mean(first == second) == pytest.approx(law, abs=4 * (law * (1 - law) / 4000) ** 0.5)


def test_signs_computed_in_parts_give_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for signs is limited for any number of tables."""
    vectors = np.random.default_rng(7).standard_normal((20, COLUMNS))
    whole = codes(drawn("simhash", 4), *vectors)
    for signs in (1, 3 * 4 * 50):
        monkeypatch.setattr("oddlot.sparse.samplers.lsh.PROJECTED", signs)
        assert np.array_equal(codes(drawn("simhash", 4), *vectors), whole)


def test_simhash_has_the_first_sign_in_the_highest_bit() -> None:
    lsh = drawn("simhash", 3, 2)
    projected = np.array([[1.0, -1.0, 1.0, -1.0, -1.0, 1.0]], np.float32)
    found = np.zeros((2, 1), np.int32)
    Crew().share(hashing.pack_signs, projected, found)
    assert found[:, 0].tolist() == [0b101, 0b001]
    assert lsh.bits == 3


def test_dwta_depends_only_on_the_order_of_coordinates() -> None:
    vector = np.random.default_rng(5).uniform(0.1, 1.0, COLUMNS)
    same = codes(drawn("dwta", 4), vector, 7.5 * vector, vector**3)
    assert (same == same[:, :1]).all()


def test_dwta_digits_have_three_bits_each() -> None:
    """In the published code, digits share bits, so few buckets are ever used."""
    lsh = drawn("dwta", 2, 16)
    vector = np.random.default_rng(5).standard_normal(COLUMNS)
    for table, code in enumerate(codes(lsh, vector)[:, 0]):
        bins = lsh.order.reshape(16, 2, hashing.BIN)[table]
        expected = [int(vector[one].argmax()) for one in bins]
        assert [code >> 3, code & 7] == expected


@pytest.mark.parametrize(("family", "digits"), [("dwta", 8), ("simhash", 24)])
def test_long_codes_are_folded_into_the_table(family: Any, digits: int) -> None:
    """The published setting for 670,091 outputs is DWTA with 8 digits of 3 bits. Each digit must affect the bucket."""
    chance = np.random.default_rng(5)
    vectors = chance.standard_normal((400, COLUMNS)).astype(np.float32)
    near = vectors + 0.03 * chance.standard_normal(vectors.shape).astype(np.float32)
    lsh = drawn(family, digits, 10)
    one, other = codes(lsh, *vectors), codes(lsh, *near)
    if family == "dwta":
        bins = lsh.order.reshape(10, digits, hashing.BIN)
        same = [(of[:, bins].argmax(3)) for of in (vectors, near)]
    else:
        same = [(of @ lsh.planes.numpy() > 0).reshape(400, 10, digits) for of in (vectors, near)]
    differ = (same[0] != same[1]).sum(2).T
    assert (differ == 1).sum() > 400
    assert ((one == other) == (differ == 0)).all()
    assert lsh.bits == 20
    spread = np.bincount(one.ravel() >> 16, minlength=16)
    assert len(spread) == 16, "of the table's buckets, all sixteenths are used"
    assert spread.min() > 100


@pytest.mark.parametrize("digits", [1, 3])
def test_dwta_of_independent_vectors_collides_once_in_eight(digits: int) -> None:
    vectors = np.random.default_rng(7).standard_normal((800, COLUMNS))
    found = codes(drawn("dwta", digits, 200), *vectors)
    collided = np.mean(found[:, ::2] == found[:, 1::2])
    assert 0.9 * 8.0**-digits < collided < 2 * 8.0**-digits, (
        "digits of two permutations may share coordinates"
    )


@pytest.mark.parametrize("alike", [0.5, 0.9])
def test_dwta_collision_rate_follows_the_correlation(alike: float) -> None:
    """Correlated vectors collide as often as the largest of eight independent pairs has the same position in both
    vectors."""
    chance = np.random.default_rng(8)

    def pairs(count: int, columns: int) -> NDArray[np.float64]:
        first, other = chance.standard_normal((2, count, columns))
        return np.stack([first, alike * first + np.sqrt(1 - alike**2) * other])

    largest = pairs(200_000, hashing.BIN).argmax(2)
    law = np.mean(largest[0] == largest[1])
    first, second = pairs(800, COLUMNS)
    one, other = codes(drawn("dwta", 1, 100), *first), codes(drawn("dwta", 1, 100), *second)
    assert np.mean(one == other) == pytest.approx(law, abs=0.015)


def test_dwta_densification_separates_sparse_vectors() -> None:
    """Vectors with two nonzero coordinates of 32 have mostly empty bins. Without densification, empty bins would all
    agree."""
    one, other, none = np.zeros((3, COLUMNS))
    one[[3, 17]], other[[4, 20]] = 1.0, 1.0
    found = codes(drawn("dwta", 2), one, one, other, none)
    assert (found[:, 0] == found[:, 1]).all()
    assert np.mean(found[:, 0] == found[:, 2]) < 0.3
    assert (found[:, 3] == 0).all(), "nothing can be borrowed"


def test_hash_tables_hold_every_row_once() -> None:
    of = np.random.default_rng(1).integers(0, 16, (3, 100)).astype(np.int32)
    begins, members = np.empty((3, 17), np.int32), np.empty((3, 100), np.int32)
    Crew().share(tables.sort_by_code, of, begins, members)
    for code, begin, rows in zip(of, begins, members, strict=True):
        assert rows.tolist() == np.argsort(code, kind="stable").tolist()
        assert begin.tolist() == np.searchsorted(np.sort(code), np.arange(17)).tolist()


def recall(sampler: Any) -> float:
    """Return the share of the ten largest logits that is found for vectors similar to the rows."""
    weight = some_rows()
    hidden = weight[5:2000:20] + 0.3 * np.random.default_rng(4).standard_normal((100, COLUMNS)).astype(
        np.float32
    )
    found = rows_for(sampler, weight, hidden)
    best = np.argsort(-(hidden @ weight.T), axis=1)[:, :10]
    assert np.mean([len(rows) for rows in found]) < 300
    return float(np.mean([len(rows & {*top.tolist()}) / 10 for rows, top in zip(found, best, strict=True)]))


def test_samplers_find_rows_with_large_logits() -> None:
    """300 random rows of 2,000 would have a recall of 0.15."""
    assert recall(Clusters(each=10, probes=20, found=250, by_chance=0)) > 0.8
    assert recall(LSH(tables=50, digits=7, found=250, by_chance=0)) > 0.5
    assert recall(LSH("dwta", tables=50, digits=2, found=250, by_chance=0)) > 0.4


@pytest.mark.parametrize("family", ["simhash", "dwta"])
@pytest.mark.parametrize(("found", "rows"), [(20, 300), (200, 300), (200, 20_000)])
def test_lsh_chooses_digits_and_tables_that_find_enough_rows(
    family: Any, found: int, rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With one table less, or one digit more, LSH finds too few rows."""
    weight = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)
    sampler = LSH(family, found=found, by_chance=0)
    with caplog.at_level(logging.INFO, logger="oddlot.sparse"):
        got = rows_for(sampler, weight, weight[:50])
    assert np.mean([len(one) for one in got]) > 0.4 * min(found, rows)
    digits, tables = sampler.chosen.digits, sampler.chosen.tables
    assert (family, rows, sampler.chosen) in logged(caplog)
    enough = 2 * min(found, rows)
    assert sampler.chosen.taken >= enough
    others = [LSH(family, digits, tables - 1, found, 0)]
    if digits < (8 if family == "simhash" else 2):  # this limit of digits separates all 300 rows
        others.append(LSH(family, digits + 1, 50, found, 0))
    for other in others:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            rows_for(other, weight, weight[:50])
        assert other.chosen.taken < enough, other


def test_lsh_adapts_digits_to_the_hidden_vectors() -> None:
    """The first number of digits is based on rows. The next one is based on hidden vectors of another direction."""
    chance = np.random.default_rng(5)
    weight = chance.standard_normal((4000, COLUMNS)).astype(np.float32)
    weight[:, 0] += 8
    sampler = LSH(found=60, by_chance=0, refresh=Refresh(1))
    layer = SampledLinear(COLUMNS, len(weight), sampler, None)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    found, digits = list[float](), list[int]()
    for _ in range(3):
        hidden = chance.standard_normal((64, COLUMNS)).astype(np.float32)
        hidden[:, 0] -= 8
        layer.batches += 1
        active = layer._begin(hidden, Labels.of(np.zeros(64, np.int64), 1)).active
        found.append(float((active.sure - 1).mean()))
        digits.append(sampler.chosen.digits)
    assert found[0] < 30, digits
    assert found[1] > 50, digits
    assert digits[0] > digits[1] == digits[2]
    sampler.forget()
    assert sampler.asked is None


@pytest.mark.parametrize("family", ["simhash", "dwta"])
def test_changed_only_hashes_only_changed_rows(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing only the changed rows gives the same results in less time."""
    hashed, codes = list[int](), LSH._codes

    def counted(self: LSH, crew: Crew, vectors: NDArray[Any]) -> NDArray[np.int32]:
        hashed.append(len(vectors))
        return codes(self, crew, vectors)

    monkeypatch.setattr(LSH, "_codes", counted)
    ends, wholes = list[torch.Tensor](), list[int]()
    for changed_only in (True, False):
        sampler = LSH(family, 2, 8, 20, 5, refresh=Refresh(4), redraw_every=3, changed_only=changed_only)
        layer, chance = SampledLinear(COLUMNS, 400, sampler), torch.Generator().manual_seed(2)
        hashed.clear()
        for _ in range(20):
            hidden = torch.randn(2, COLUMNS, generator=chance).requires_grad_()
            layer(hidden, torch.randint(0, 400, (2,), generator=chance)).backward()
        ends.append(layer.weight.detach())
        wholes.append(hashed.count(400))
        assert sum(10 < count < 250 for count in hashed) == (3 if changed_only else 0), hashed
    assert torch.equal(*ends)
    assert wholes[0] == wholes[1] - 3


@pytest.mark.parametrize(
    ("digits", "tables", "rows", "found"),
    [(18, None, 500, 200), (1, None, 20_000, 100), (9, 1, 20_000, 2_000), (None, 1, 20_000, 2_000)],
)
def test_unsuitable_digits_and_tables_warn_with_better_ones(
    digits: int | None, tables: int | None, rows: int, found: int
) -> None:
    """Empty or too full buckets cause a warning. The suggested settings cause no warning."""
    chance = np.random.default_rng(1)
    weight, hidden = (chance.standard_normal((count, COLUMNS)).astype(np.float32) for count in (rows, 5))
    with warnings.catch_warnings(record=True, action="always") as warned:
        rows_for(sampler := LSH(digits=digits, tables=tables, found=found), weight, hidden)
    assert (digits or tables) in (sampler.chosen.digits, sampler.chosen.tables)
    assert warned[0].filename == rows_for.__code__.co_filename, "the line that has led there"
    mask(number=r"\d+")
    check(warned[0].message, "unsuitable_tables", wanted=found)
    better = vars(warned[0].message)["fields"]
    rows_for(LSH(digits=better["digits"], tables=better["tables"], found=found), weight, hidden)


def of_a_cone() -> NDArray[np.float32]:
    """Return 8,000 rows, a fifth of them with nearly the same direction."""
    chance = np.random.default_rng(6)
    weight = chance.standard_normal((8_000, COLUMNS)).astype(np.float32)
    weight[::5] = 0.1 * weight[::5] + chance.standard_normal(COLUMNS)
    return weight


def test_few_long_buckets_do_not_hide_many_short_ones() -> None:
    """At least half of the vectors find enough rows, for any number of rows in the dense direction."""
    weight = of_a_cone()
    found = [len(rows) for rows in rows_for(LSH(found=200, by_chance=0), weight, weight[::19])]
    assert np.median(found) > 100


def test_digits_that_find_nothing_for_hidden_vectors_warn() -> None:
    """Queries equal to the rows would find enough rows."""
    sampler = LSH(digits=12, tables=20, found=60, by_chance=0, refresh=Refresh(1))
    layer = SampledLinear(COLUMNS, 8_000, sampler, None, std=1.0)
    with torch.no_grad():
        layer.weight.add_(1)
    away = torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(1)) - 1
    layer(away, torch.zeros(64, dtype=torch.int64))
    mask(number=r"\d+")
    with warns("unsuitable_tables", wanted=60):
        layer(away, torch.zeros(64, dtype=torch.int64))
    assert sampler.chosen.taken < 1
    layer(away, torch.zeros(64, dtype=torch.int64))  # warns only once


def test_hash_functions_are_redrawn_periodically() -> None:
    """With default settings, hash functions are redrawn within 2,000 steps."""
    sampler, weight, bias = LSH(found=20, by_chance=5), some_rows(200), np.zeros(200, np.float32)
    drawn = set()
    for step in range(2_000):
        sampler.prepare(Crew(), weight, bias, step, seed=step)
        drawn.add(sampler.planes.numpy().tobytes())
    assert len(drawn) >= 2


def test_rows_of_a_too_long_bucket_are_sampled() -> None:
    """If the only bucket has all rows, each example takes 8 rows from different positions."""
    weight = np.ones((1000, COLUMNS), np.float32)
    sampler = LSH(digits=2, tables=1, found=10, by_chance=0, most_of_bucket=8)
    found = rows_for(sampler, weight, weight[:200])
    assert {len(one) for one in found} <= {7, 8}
    assert len(set.union(*found)) > 600


def test_examples_start_with_different_tables() -> None:
    """Each table has more rows than requested, and row i is only in table i % 40."""
    sampler, hidden = LSH(tables=40, found=8, by_chance=0), np.ones((200, COLUMNS), np.float32)
    layer, labels = SampledLinear(COLUMNS, 1000, sampler, None), Labels.of(np.zeros(200, np.int64), 1)
    layer._begin(hidden, labels)  # builds the tables
    sampler.begins[:, 0], sampler.begins[:, 1:] = 0, 25
    sampler.members[:, :25] = np.arange(1000).reshape(25, 40).T
    sampler._codes = lambda crew, vectors: np.zeros((40, len(vectors)), np.int32)  # type: ignore[method-assign]
    active = layer._begin(hidden, labels).active
    assert (active.counts >= 8).all()
    assert len({int(active.rows[start + 1]) % 40 for start in active.starts}) > 30


def test_refresh_is_due_at_growing_intervals() -> None:
    refresh = Refresh(5)
    assert [step for step in range(1, 20) if refresh.due(step, 10)] == [1, 6, 11, 16]
    slower = Refresh(5, slower=0.5)
    assert [step for step in range(1, 60) if slower.due(step, 10)] == [1, 6, 15, 29, 52]
    refresh.forget()
    assert refresh.due(20, 10)
    usual = Refresh()
    assert [step for step in range(1, 200) if usual.due(step, 10)] == [1, 51, 113, 188]
    many = Refresh()
    assert [step for step in range(1, 900) if many.due(step, 670_091)] == [1, 51, 151, 351, 751]


@pytest.mark.parametrize("make", [Clusters, LSH, Unigram])
def test_samplers_do_not_share_a_refresh(make: Any) -> None:
    shared = Refresh(5)
    one, other = make(refresh=shared), make(refresh=shared)
    assert one.refresh.due(1, 10)
    assert other.refresh.due(1, 10)
