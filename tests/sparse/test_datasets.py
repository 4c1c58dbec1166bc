"""Datasets of extreme classification: reading, errors, metrics and generated sets."""

import bz2
import errno
import gzip
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets import generating, text_files
from oddlot.sparse.datasets.generating import Shape, generate
from oddlot.sparse.datasets.metrics import ndcg, precision, propensities, propensity_precision
from oddlot.sparse.datasets.text_files import BadSet, read_xmc, write_xmc
from tests.transcripts import mask, raises, warns

TEXT = "4 10 6\n0,5 3:1.5 9:-2e-1\n 1:0.25\n2\n4,1,0 0:1 0:2 7:.5\n"


def written(folder: Path, text: str, name: str = "set.txt") -> Path:
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


@pytest.mark.parametrize("change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: text[:-1]])
@pytest.mark.parametrize("name", ["set.txt", "set.txt.gz"])
def test_read_xmc_reads_a_dataset(tmp_path: Path, name: str, change: object) -> None:
    """Lines without labels or features, duplicate features, other line endings and no final line ending are valid."""
    x, y = read_xmc(written(tmp_path, change(TEXT), name))  # type: ignore[operator]  # a function
    assert (x.shape, y.shape) == ((4, 10), (4, 6))
    assert x.indptr.tolist() == [0, 2, 3, 3, 6]
    assert x.indices.tolist() == [3, 9, 1, 0, 0, 7]
    assert x.data == pytest.approx([1.5, -0.2, 0.25, 1.0, 2.0, 0.5])
    assert y.indptr.tolist() == [0, 2, 2, 3, 6]
    assert y.indices.tolist() == [0, 5, 2, 4, 1, 0]


@pytest.mark.parametrize(
    ("number", "is_value"),
    [("1", 1.0), ("-0.5", -0.5), ("+3.25E2", 325.0), ("0.1", 0.1), ("123456789012345678901234", 1.2345679e23),
     ("1e-50", 0.0), ("0.000000000000000000000012345", 1.2345e-23), ("3.4028234e38", 3.4028234e38)],
)  # fmt: skip
def test_numbers_are_parsed_as_in_python(tmp_path: Path, number: str, is_value: float) -> None:
    x, _ = read_xmc(written(tmp_path, f"1 2 2\n0 1:{number}\n"))
    assert x.data[0] == np.float32(float(number)) == np.float32(is_value)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("label_out_of_range", ["0,6 3:1", "99999999999999999999 3:1", "50000000000 1:1"]),
        ("invalid_label", ["0, 3:1", "0,1,", "0;1 3:1", "1,5:0.3"]),
        ("missing_colon", ["0 3"]),
        ("invalid_feature", ["0 x:1", "0 -1:1", "0 99999999999999999999:1", "\x00\xff"]),
        ("feature_out_of_range", ["0 10:1"]),
        ("invalid_number", ["0 3:one", "0 3:", "0 3:1e", "0 3:1.5.2", "0 3:nan", "0 3:1e39"]),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, code: str, lines: list[str]) -> None:
    for line in lines:
        path = written(tmp_path, f"3 10 6\n1 2:1\n{line}\n1 2:1\n")
        with raises(BadSet, code, path=str(path), line=3) as caught:
            read_xmc(path)
        assert caught.fields["given"] in line


@pytest.mark.parametrize(
    ("code", "text", "fields"),
    [
        ("invalid_header", "", {"line": 1}),
        ("invalid_header", "3 4\n", {"line": 1}),
        ("invalid_header", "3 -4 5\n", {"line": 1}),
        ("invalid_header", "1" * 5000 + " 4 5\n1 2:1\n", {"line": 1}),
        ("other_format", "\ufeff1 4 5\n1 2:1\n", {"line": 1, "format": "byte order mark"}),
        ("different_lengths", "3 4 5\n1 2:1\n", {"name": "points", "given": 1, "expected": 3}),
        ("different_lengths", "1 4 5\n1 2:1\n\n", {"name": "points", "given": 2, "expected": 1}),
        ("too_many_columns", "1 10 99999999999\n50000000000 1:1\n", {"line": 1, "given": 99999999999}),
        ("too_many_columns", "1 99999999999 3\n0 50000000000:1\n", {"line": 1, "most": 2**31 - 1}),
    ],
    ids=lambda part: part if str(part).count("_") else "",
)
def test_invalid_dataset_file_is_rejected(
    tmp_path: Path, code: str, text: str, fields: dict[str, Any]
) -> None:
    path = written(tmp_path, text)
    with raises(BadSet, code, path=str(path), **fields):
        read_xmc(path)


def test_compressed_or_damaged_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    for form, data in {
        "bzip2": bz2.compress(TEXT.encode()),
        "gzip": gzip.compress(TEXT.encode(), mtime=0),
    }.items():
        path.write_bytes(data)
        mask(bytes=r"(?<=but )b'.*'")
        with raises(BadSet, "other_format", path=str(path), line=1, format=form):
            read_xmc(path)
    with raises(BadSet, "not_a_file", path=str(tmp_path)):
        read_xmc(tmp_path)
    path = written(tmp_path, TEXT, "set.txt.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with raises(BadSet, "damaged_file", path=str(path)):
        read_xmc(path)


def test_decompression_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MIN_BYTES", 10_000)
    path = written(tmp_path, "1 2 2\n0 " + " " * 3_000_000 + "1:1\n", "set.txt.gz")
    mask(most=r"[\d,]+(?= bytes)")  # the compressed size depends on the zlib library
    with raises(BadSet, "unpacks_to_too_much", path=str(path)):
        read_xmc(path)


def test_named_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "set.txt")
    with raises(BadSet, "not_a_file", path=str(tmp_path / "set.txt")):
        read_xmc(tmp_path / "set.txt")


def test_written_dataset_can_be_read(tmp_path: Path) -> None:
    x, y = generate(50, Shape(features=200, labels=100, nonzeros=9.0))
    write_xmc(tmp_path / "set.txt.gz", x, y)
    x_read, y_read = read_xmc(tmp_path / "set.txt.gz")
    assert x_read.indices.tolist() == x.indices.tolist()
    assert x_read.data == pytest.approx(x.data, rel=1e-4)
    assert y_read.indices.tolist() == y.indices.tolist()


def test_failed_write_keeps_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a write fails, the earlier file is unchanged."""
    x, y = generate(50, Shape(features=200, labels=100, nonzeros=9.0))
    write_xmc(tmp_path / "set.txt", x, y)
    before = (tmp_path / "set.txt").read_text()

    def is_full(path: Path, *_: object) -> None:
        path.write_text("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("oddlot.sparse.datasets.text_files._write", is_full)
    with pytest.raises(OSError, match="No space left"):
        write_xmc(tmp_path / "set.txt", x, y)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"set.txt": before}


def test_unreachable_averages_raise_or_warn() -> None:
    with raises(ValueError, "too_many_labels_each", labels_each=900, labels=1_000):
        generate(50, Shape(labels=1_000, labels_each=900))
    with warns("averages_missed", nonzeros=2.0, labels_each=5.45):
        generate(50, Shape(nonzeros=2.0))


def test_generated_dataset_resembles_published_ones() -> None:
    shape = Shape(features=5_000, labels=3_000, nonzeros=75.0, labels_each=5.4)
    x, y = generate(4_000, shape)
    assert len(x.indices) / len(x) == pytest.approx(75, rel=0.08)
    assert len(y.indices) / len(y) == pytest.approx(5.4, rel=0.08)
    assert np.sqrt(np.add.reduceat(x.data**2, x.indptr[:-1])) == pytest.approx(1.0, abs=1e-5)
    counts = np.sort(np.bincount(y.indices, minlength=3_000))[::-1]
    assert counts[0] > 10 * np.median(counts)
    again, other = generate(4_000, shape)[0], generate(4_000, shape, stream=1)[0]
    assert again.indices.tolist() == x.indices.tolist()
    assert other.indices.tolist() != x.indices.tolist()


@pytest.mark.parametrize("nonzeros", [8.0, 20.0, 40.0, 150.0, 300.0])
@pytest.mark.parametrize("labels_each", [1.0, 5.45])
def test_points_have_the_requested_number_of_features(nonzeros: float, labels_each: float) -> None:
    x, _ = generate(1_000, Shape(50_000, 30_000, nonzeros, labels_each))
    assert len(x.indices) / len(x) == pytest.approx(nonzeros, rel=0.07)


@pytest.mark.parametrize("labels_each", [1.0, 2.0, 12.0, 50.0])
def test_points_have_the_requested_number_of_labels(labels_each: float) -> None:
    """Most further labels of a point are from one cluster of 16, so duplicates are common."""
    _, y = generate(1_000, Shape(5_000, 3_000, 75.0, labels_each, seed=3))
    assert len(y.indices) / len(y) == pytest.approx(labels_each, rel=0.07)


@pytest.mark.parametrize("shape", [Shape(), Shape(135_909, 200_000), Shape(135_909, 670_091)])
def test_benchmark_datasets_stay_unchanged(shape: Shape) -> None:
    assert generating._drawn_for(shape) == (generating.NOISE, generating.MORE * (shape.labels_each - 1))


LABELS = Csr(np.array([0, 2, 2, 5]), np.array([1, 3, 0, 1, 2], np.int32), np.ones(5, np.float32), (3, 5))
BEST = np.array([[3, 0, 1], [2, 1, 0], [4, 0, 3]])


def test_metrics_match_values_computed_by_hand() -> None:
    assert precision(BEST, LABELS, 1) == pytest.approx(1 / 3)
    assert precision(BEST, LABELS, 3) == pytest.approx((2 + 0 + 1) / 9)
    second, third = 1 / np.log2(3), 1 / np.log2(4)
    assert ndcg(BEST, LABELS, 3) == pytest.approx(
        ((1 + third) / (1 + second) + second / (1 + second + third)) / 2
    )
    propensity = np.array([0.5, 0.25, 1.0, 0.2, 1.0])
    assert propensity_precision(BEST, LABELS, 1, propensity) == pytest.approx(5 / (5 + 4))
    assert propensity_precision(BEST, LABELS, 2, propensity) == pytest.approx((5 + 2) / (5 + 4 + 4 + 2))


def test_metrics_accept_all_label_formats() -> None:
    """Labels may be SciPy matrices with explicit zeros and duplicates, arrays, or one label per example."""
    matrix = csr_matrix((LABELS.data, LABELS.indices, LABELS.indptr), LABELS.shape)
    columns, starts = np.array([1, 3, 3, 4, 0, 1, 2, 2]), np.array([0, 4, 4, 8])
    stored = csr_matrix((np.array([1, 1, 1, 0, 1, 1, 1, 1]), columns, starts), LABELS.shape)
    propensity = propensities(LABELS)
    for labels in (matrix, stored, matrix.toarray()):
        assert precision(BEST, labels, 3) == precision(BEST, LABELS, 3)
        assert ndcg(BEST, labels, 3) == ndcg(BEST, LABELS, 3)
        assert propensities(labels).tolist() == propensity.tolist()
        message = propensity_precision(BEST, labels, 2, propensity)
        assert message == propensity_precision(BEST, LABELS, 2, propensity)
    assert precision(BEST, np.array([3, 0, 4]), 1) == pytest.approx(2 / 3)
    assert precision(np.array([[3], [0]]), np.array([0, 1]), 1) == 0, "a label that nobody has is nobody's"
    with raises(ValueError, "different_lengths", name="y", given=3, expected=2):
        precision(BEST[:2], matrix, 1)
    with raises(ValueError, "wrong_shape", name="best", shape=(3,)):
        precision(BEST[:, 0], matrix, 1)


def test_propensities_follow_the_formula() -> None:
    found = propensities(LABELS)
    scale = (np.log(3) - 1) * 2.5**0.55
    assert found[1] == pytest.approx(1 / (1 + scale * 3.5**-0.55))
    assert found[4] == pytest.approx(1 / (1 + scale * 1.5**-0.55))
    assert found[1] > found[4]


def test_point_without_labels_may_start_with_a_large_feature(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("2 10 3\n5:0.5 7:1\n2 9:1\n")
    x, y = read_xmc(tmp_path / "x.txt")
    assert x.indices.tolist() == [5, 7, 9]
    assert y.indptr.tolist() == [0, 0, 1]


def test_duplicate_labels_count_once() -> None:
    best = np.array([[0, 1, 2]])
    once, twice = (
        Csr(np.array([0, n]), np.array([0, 3] * (n // 2), np.int32), np.ones(n, np.float32), (1, 5))
        for n in (2, 4)
    )
    assert ndcg(best, twice, 3) == ndcg(best, once, 3)
    some = np.array([0.5, 0.1, 0.2, 0.25, 1.0])
    assert propensity_precision(best, twice, 3, some) == propensity_precision(best, once, 3, some)
    for metric in (ndcg, precision, partial(propensity_precision, propensity=np.ones(5))):
        for k in (0, 4):
            with raises(ValueError, "invalid_value", name="k", given=k):
                metric(best, once, k)


def test_missing_prediction_is_no_hit() -> None:
    labels = Csr(np.array([0, 1, 2]), np.array([3, 0], np.int32), np.ones(2, np.float32), (2, 4))
    assert precision(np.array([[3], [-1]]), labels, 1) == 0.5
    assert precision(np.array([[1], [-1]]), labels, 1) == 0.0
