"""Clustering of rows: each row is in one cluster, clusters differ by seed, and the best clusters are chosen."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oddlot.sparse import Clusters
from oddlot.sparse.clustering import REACH, Clustering, nearest
from oddlot.sparse.kernels import clusters as kernels
from oddlot.sparse.threads import Crew
from tests.sparse.found import COLUMNS, rows_for, some_rows


def test_rows_are_clustered_by_direction_regardless_of_length() -> None:
    """In the only round, all rows are centers. A long row attracts only rows of its own direction."""
    ways = np.eye(COLUMNS, dtype=np.float32)[:4] + np.float32(0.5)
    way, long = np.arange(40) % 4, np.where(np.arange(40) % 4 == 0, 100, 1).astype(np.float32)
    clustering = Clustering(1, rounds=1, groups=40)
    clustering.update(Crew(1), ways[way] * long[:, None], np.zeros(40, np.float32), 0)
    assert all(len({*way[clustering.codes[0] == code]}) == 1 for code in {*clustering.codes[0].tolist()})


@pytest.mark.parametrize(("rows", "each"), [(1, 2), (3, 8), (37, 4), (1000, 16), (1024, 16)])
def test_every_row_is_in_one_cluster(rows: int, each: int) -> None:
    weight = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)
    weight[rows // 2 :] = weight[rows // 2]  # equal rows cannot be separated by clustering
    bias = np.random.default_rng(2).standard_normal(rows).astype(np.float32)
    sampler = Clusters(each, probes=1 << 20, found=rows, by_chance=0)
    found = rows_for(sampler, weight, weight[:3], bias)
    assert found == [{*range(1, rows)}] * len(found)
    own = sampler.clustering
    assert sorted(own.members[0]) == [*range(rows)]
    assert len(own.means) <= max(1, 1.5 * rows / each)
    for cluster, (low, high) in enumerate(zip(own.begins[0], own.begins[0][1:], strict=False)):
        mine = own.members[0][low:high]
        assert (own.codes[0][mine] == cluster).all()
        if len(mine):
            mean = weight[mine].mean(0)
            assert own.means[cluster] == pytest.approx(mean, abs=1e-4)
            spread = np.sqrt(((weight[mine] - mean) ** 2).sum(1).mean())
            assert own.spreads[cluster] == pytest.approx(REACH * spread, abs=2e-3)
            assert own.biases[cluster] == pytest.approx(bias[mine].mean(), abs=1e-4)
            unit = weight[mine] / np.linalg.norm(weight[mine], axis=1, keepdims=True)
            assert own.centers[cluster] == pytest.approx(
                unit.mean(0) / np.linalg.norm(unit.mean(0)), abs=1e-4
            )
        else:
            assert np.isneginf(own.biases[cluster]), "it is never the best"


def test_clustering_recovers_true_clusters() -> None:
    """Clustering recovers 200 true clusters of 2,000 rows. Random clusters would have a share of 0.105."""
    weight, bias = some_rows(), np.zeros(2000, np.float32)
    own = Clustering(each=10)
    own.update(Crew(), weight, bias, 0)
    codes = own.codes[0].reshape(-1, 10)
    assert (codes[:, :, None] == codes[:, None, :]).mean() > 0.5


def test_clusters_depend_on_the_seed() -> None:
    weight, bias, own = some_rows(), np.zeros(2000, np.float32), Clustering(each=10)
    codes = list[NDArray[np.int32]]()
    for _ in range(2):
        own.update(Crew(), weight, bias, len(codes))
        codes.append(own.codes.copy())
    assert (codes[0] != codes[1]).mean() > 0.5
    own.update(Crew(), weight, bias, 0)
    assert (own.codes == codes[0]).all(), "the same seed gives the same"


def test_rows_are_assigned_to_the_nearest_center() -> None:
    """The result is approximate, because only a few groups of centers are searched. With few groups, all are
    searched."""
    chance = np.random.default_rng(3)
    rows, centers, crew = some_rows(), some_rows()[::10], Crew()
    best = (rows @ centers.T).argmax(1)
    assert (nearest(crew, rows, centers[:60], 8, chance)[0] == (rows @ centers[:60].T).argmax(1)).all()
    assert (nearest(crew, rows, centers, 8, chance)[0] == best).mean() > 0.85
    same = np.ones((50, COLUMNS), np.float32)
    assert nearest(crew, same, same[:40], 8, chance).max() < 40


def test_second_center_is_the_second_nearest() -> None:
    rows, centers = some_rows(), some_rows()[::40]
    both = nearest(Crew(), rows, centers, len(centers), np.random.default_rng(3), 2)
    assert (both == (-rows @ centers.T).argsort(1)[:, :2].T).all()
    one = nearest(Crew(), rows[:5], centers[:1], 1, np.random.default_rng(3), 2)
    assert not one.any()


def test_spread_puts_each_row_in_the_given_number_of_clusters() -> None:
    rows, own = some_rows(), Clustering(each=10)
    own.update(Crew(), rows, np.zeros(len(rows), np.float32), 0)
    begins, members = own.spread(Crew(), rows, 2, 0)
    assert begins[0] == 0
    assert begins[-1] == 2 * len(rows)
    assert (np.bincount(members) == 2).all()
    clusters = np.repeat(np.arange(len(own.means)), np.diff(begins))
    assert len(set(zip(clusters, members, strict=True))) == 2 * len(rows)


def test_nearest_centers_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest centers are the same if the rows of a group are in several blocks."""
    rows, centers = some_rows(), some_rows()[::10]
    found = [nearest(Crew(), rows, centers, 3, np.random.default_rng(3))]
    monkeypatch.setattr("oddlot.sparse.clustering.SCORES", 500)
    found.append(nearest(Crew(), rows, centers, 3, np.random.default_rng(3)))
    assert (found[0] == found[1]).all()


def test_wider_of_two_clusters_is_chosen() -> None:
    """The clusters have equal mean logits, but the wider one has a larger maximum."""
    own = Clustering(each=10)
    near = np.tile(np.eye(COLUMNS, dtype=np.float32)[0], (10, 1))
    wide, turned = near.copy(), np.eye(COLUMNS, dtype=np.float32)[1:11]
    wide += 0.8 * turned - 0.08 * turned.sum(0)
    other = np.tile(-near[:1], (80, 1))
    own.update(Crew(), np.concatenate([near, wide, other]), np.zeros(100, np.float32), 3)
    mean, spread = own.means[:, 0], own.spreads
    there = mean > 0.9
    best = own.best(Crew(), near[:1], 1)[0, 0]
    assert there.sum() > 1
    assert best == np.flatnonzero(there)[np.argmax((mean + spread)[there])]
    assert spread[best] > spread[there].min()


def best_by(products: NDArray[Any], wanted: int, **given: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the best clusters, by default for zero vectors and scales of 1."""
    examples, clusters = products.shape
    ones, zeros = (np.full(max(products.shape), number, np.float32) for number in (1, 0))
    plain = {"scales": ones[:examples], "cluster_scales": ones[:clusters]}
    plain |= {"spreads": zeros[:clusters], "biases": zeros[:clusters]} | given
    hidden, best = np.zeros((examples, 4), np.float32), np.zeros((examples, wanted), np.int64)
    Crew().share(kernels.best_clusters, plain.pop("hidden", hidden), products, *plain.values(), best)
    return best


def test_cluster_score_combines_product_spread_and_bias() -> None:
    chance = np.random.default_rng(1)
    products = chance.integers(-99, 99, (5, 300)).astype(np.int32)
    scales, hidden = chance.random(5, np.float32), chance.standard_normal((5, 4)).astype(np.float32)
    of_clusters, spreads, biases = (9 * chance.random(300, np.float32) for _ in range(3))
    own = {"scales": scales, "cluster_scales": of_clusters, "spreads": spreads, "biases": biases}
    best = best_by(products, 7, hidden=hidden, **own)
    scores = (
        products * scales[:, None] * of_clusters + np.linalg.norm(hidden, axis=1)[:, None] * spreads + biases
    )
    assert (best == (-scores).argsort(1)[:, :7]).all()


@pytest.mark.parametrize("clusters", [1, 40, 128, 129, 1_000])
@pytest.mark.parametrize("wanted", [1, 10, 128, 300])
@pytest.mark.parametrize("steps", [5, 1 << 24])
def test_best_clusters_have_the_largest_scores(clusters: int, wanted: int, steps: int) -> None:
    """The best clusters have the largest scores, also with many ties."""
    wanted = min(wanted, clusters)
    scores = np.random.default_rng(clusters).integers(-steps, steps, (7, clusters)).astype(np.float32)
    best = best_by(scores, wanted)
    found = np.take_along_axis(scores, best, 1)
    assert (found == -np.sort(-scores, 1)[:, :wanted]).all()
    assert all(len(set(some)) == wanted for some in best)


def test_nan_scores_still_give_distinct_clusters() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 500)).astype(np.float32)
    scores[0], scores[1, ::2], scores[2, 7:] = np.nan, np.nan, -np.inf
    best = best_by(scores, 20)
    assert all(len(set(some)) == 20 for some in best)
    assert set(range(7)) <= set(best[2])
    assert not np.isnan(scores[1, best[1]]).any()
