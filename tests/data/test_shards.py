"""Data in parts. A worker opens only the parts of its tasks."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from oddlot import JobError, Shards, UsageError
from oddlot.data.batches import Batches, order
from tests.transcripts import raises

X, Y = np.arange(20.0, dtype=np.float32).reshape(10, 2), np.arange(10)


def written(folder: Path, cuts: tuple[int, ...] = (0, 4, 7, 10)) -> list[Path]:
    paths = []
    for number, (a, b) in enumerate(pairwise(cuts)):
        paths.append(folder / f"part{number}.npz")
        np.savez(paths[-1], x=X[a:b], y=Y[a:b])
    return paths


def test_shard_rows_are_concatenated_in_order(tmp_path: Path) -> None:
    for shards in (Shards(written(tmp_path)), Shards.of((X, Y), 3)):
        assert len(shards) == 10
        for rows in ([5], [0, 1, 3], [9, 0, 4, 4, 8]):
            x, y = shards.fetch(np.array(rows))
            assert torch.equal(x, torch.from_numpy(X[rows]))
            assert torch.equal(y, torch.from_numpy(Y[rows]))
    assert Shards(written(tmp_path)).cuts == (0, 4, 7, 10)
    assert Shards.of((X, Y), 3).cuts == (0, 3, 6, 10)


def test_shard_is_opened_once_and_only_if_needed(tmp_path: Path) -> None:
    opened = []

    def read(part: tuple[int, int]) -> list[Any]:
        opened.append(part)
        return [X[slice(*part)], Y[slice(*part)]]

    shards = Shards([(0, 4), (4, 7), (7, 10)], read, sizes=[4, 3, 3])
    assert not opened, "their sizes were told"
    shards.fetch(np.array([5, 6]))
    shards.fetch(np.array([4]))
    assert opened == [(4, 7)]
    assert shards.bytes_opened == 3 * (2 * 4 + 8)
    shards.close()
    shards.fetch(np.array([4]))
    assert opened == [(4, 7), (4, 7)]


def test_pickled_shards_open_local_and_remote_files(tmp_path: Path) -> None:
    files = MemoryFileSystem()
    with files.open("/bucket/a.npz", "wb") as file:
        np.savez(file, X[:6], Y[:6])
    shards = Shards(["memory://bucket/a.npz", *written(tmp_path, (6, 10))])
    shards.fetch(np.arange(10))
    there = cloudpickle.loads(cloudpickle.dumps(shards))
    assert (there.open, there.bytes_opened) == ({}, 0)
    x, y = Batches(there).fetch(np.array([8, 2]))
    assert (x.tolist(), y.tolist()) == (X[[8, 2]].tolist(), [8, 2])
    files.store.clear()


def test_mapped_array_is_split_without_a_copy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    shards = Shards.of((mapped,), 5)
    assert torch.equal(shards.fetch(np.array([3, 2]))[0], torch.from_numpy(X[[3, 2]]))
    assert list(shards.open) == [1]
    assert np.shares_memory(shards.open[1][0].numpy(), mapped)


def test_order_shuffles_within_shards_only() -> None:
    cuts = (0, 4, 7, 10)
    one, other = (order(3, epoch, 10, cuts) for epoch in (0, 1))
    for epoch in (one, other):
        for a, b in ((0, 4), (4, 7), (7, 10)):
            assert sorted(epoch[a:b]) == list(range(a, b))
    assert list(one) != list(other)


def short(part: object) -> list[Any]:
    return [X[:2]]


def rejects(part: object) -> list[Any]:
    raise OSError("no route to host")


OTHER_PARTS: dict[str, tuple[list[Any], list[str]]] = {
    "dtype": ([X.astype("float64"), Y], ["float64[:, :]", "int64[:]"]),
    "order": ([Y, X], ["int64[:]", "float32[:, :]"]),
    "count": ([X], ["float32[:, :]"]),
    "dimensions": ([torch.from_numpy(X[:, 0]), Y], ["float32[:]", "int64[:]"]),
}


@pytest.mark.parametrize("sizes", [None, [10, 10]], ids=["read", "message"])
@pytest.mark.parametrize("what", OTHER_PARTS)
def test_shard_with_different_arrays_is_named(what: str, sizes: list[int] | None) -> None:
    """With `sizes`, a part is checked when a worker opens it. Without `sizes`, it is checked at once."""
    arrays, found = OTHER_PARTS[what]
    parts = {"a.npz": [X, Y], "b.npz": arrays}
    expected = ["float32[:, :]", "int64[:]"]
    with raises(JobError, "part_differs", path="b.npz", first="a.npz", found=found, expected=expected):
        Shards([*parts], parts.__getitem__, sizes).fetch(np.array([5, 15]))


@pytest.mark.parametrize(
    ("make", "error", "code", "fields"),
    [
        (lambda: Shards("a.npz"), UsageError, "invalid_value", {"name": "parts", "given": "a.npz"}),
        (lambda: Shards([]), UsageError, "no_parts", {}),
        (lambda: Shards([1, 2], short, [3]), UsageError, "invalid_sizes", {"parts": 2, "sizes": [3]}),
        (lambda: Shards([1], short, [0]), UsageError, "invalid_sizes", {"parts": 1, "sizes": [0]}),
        (lambda: Shards.of((X, Y[:3]), 2), UsageError, "invalid_cut", {"lengths": [10, 3], "count": 2}),
        (lambda: Shards.of((X,), 11), UsageError, "invalid_cut", {"lengths": [10], "count": 11}),
        (lambda: Shards(["a.npz"]), JobError, "unreadable_file", {"path": "a.npz"}),
        (lambda: Shards([7], rejects), JobError, "unreadable_file", {"reason": "no route to host"}),
        (lambda: Shards([7], lambda _: []), JobError, "empty_part", {"path": "7"}),
        (
            lambda: Shards([7], short, [3]).fetch(np.array([0])),
            JobError,
            "part_changed",
            {"path": "7", "rows": [2], "expected": 3},
        ),
    ],
    ids=["text", "none", "count", "zero", "lengths", "too many", "absent", "unreadable", "empty", "changed"],
)
def test_invalid_shards_are_rejected(
    make: Callable[[], object], error: type[Exception], code: str, fields: dict[str, Any]
) -> None:
    with raises(error, code, **fields):
        make()


def test_pickled_objects_in_a_shard_are_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.array([print], dtype=object))
    (tmp_path / "cut.npz").write_bytes(written(tmp_path)[0].read_bytes()[:100])
    for path in (tmp_path / "bad.npz", tmp_path / "cut.npz"):
        with raises(JobError, "not_npz", path=str(path)):
            Shards([path])
