"""Tests of the reader of IDX files: it returns correct arrays or raises, for any bytes."""

import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from oddlot.core.support import validation as unpacked
from oddlot.core.support.errors import UsageError
from oddlot.workloads.formats.idx import DTYPES, find_idx, read_idx
from tests.transcripts import raises

NAMES = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites


def written(array: NDArray[Any], code: int) -> bytes:
    """Return the bytes of an IDX file with this array."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(DTYPES[code]).tobytes()


def placed(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def header(code: int, *sizes: int) -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, code, len(sizes), *sizes)


@same_folder
@given(code=st.sampled_from(sorted(DTYPES)), zipped=st.booleans(), data=st.data())
def test_written_arrays_are_read(tmp_path: Path, code: int, zipped: bool, data: st.DataObject) -> None:
    dtype = np.dtype(DTYPES[code]).newbyteorder("=")
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0)))
    content = written(array, code)
    path = placed(tmp_path, gzip.compress(content), "a.gz") if zipped else placed(tmp_path, content, "a")
    back = read_idx(path)
    assert back.dtype == dtype
    assert back.dtype.isnative
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@same_folder
@given(
    content=st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda end: b"\0\0\x08\x01" + end))
)
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_random_bytes_raise_or_give_the_described_array(tmp_path: Path, name: str, content: bytes) -> None:
    try:
        array = read_idx(placed(tmp_path, content, name))
    except UsageError:
        return
    assert written(array, content[2]) == content


@same_folder
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_gzip_raises_or_gives_the_array(tmp_path: Path, place: int, byte: int, cut: bool) -> None:
    array = np.arange(2000, dtype=np.uint8)
    content = bytearray(gzip.compress(written(array, 0x08), mtime=0))
    place %= len(content)
    content[place:] = b"" if cut else bytes([byte]) + content[place + 1 :]
    try:
        back = read_idx(placed(tmp_path, bytes(content), "a.gz"))
    except UsageError:
        return
    np.testing.assert_array_equal(back, array)  # the damage was in a part of gzip's header that is not used


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (b"", "other_format", {"given": ""}),
        (b"PNG!", "other_format", {"given": "50 4e 47 21"}),
        (b"\0\0\x08", "other_format", {"given": "00 00 08"}),
        (header(0x0A, 1) + b"1", "unknown_dtype", {"given": 0x0A}),
        (header(0x08), "invalid_dimensions", {"given": 0}),
        (b"\0\0\x08\xff", "invalid_dimensions", {"given": 255}),
        (header(0x08, 3)[:-1], "truncated_header", {}),
        (header(0x08, 3) + b"12", "truncated_file", {"claimed": 3, "shape": [3], "bytes": 2}),
        (header(0x0B, 3) + b"12345", "truncated_file", {"claimed": 6, "shape": [3], "bytes": 5}),
        (header(0x08, 3) + b"1234", "trailing_bytes", {"claimed": 3}),
        (header(0x08, 0, *[2**32 - 1] * 3), "impossible_shape", {"shape": [0, *[2**32 - 1] * 3]}),
    ],
    ids=range(11),
)
def test_invalid_idx_file_raises(tmp_path: Path, content: bytes, code: str, fields: dict[str, Any]) -> None:
    for path in (placed(tmp_path, content, "a"), placed(tmp_path, gzip.compress(content), "a.gz")):
        with raises(UsageError, code, path=str(path), **fields):
            read_idx(path)


def test_gzip_file_that_claims_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "MIN_BYTES", 10_000)
    content = header(0x08, 1_000, 1_000) + bytes(1_000_000)
    path = placed(tmp_path, gzip.compress(content), "a.gz")
    most = unpacked.MAX_RATIO * path.stat().st_size
    with raises(UsageError, "unpacks_to_too_much", claimed=1_000_000, most=most):
        read_idx(path)
    assert read_idx(placed(tmp_path, content)).shape == (1_000, 1_000)


def test_huge_unpacked_or_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as rejection:
        read_idx(placed(tmp_path, header(0x0E, *[2**32 - 1] * 64)))
    assert (rejection.value.code, rejection.value.fields["bytes"]) == ("truncated_file", 0)
    path = placed(tmp_path, header(0x08, 1) + b"1", "a.gz")
    with raises(UsageError, "damaged_file", path=str(path)):
        read_idx(path)
    with raises(UsageError, "unreadable_file", path=str(tmp_path / "absent")):
        read_idx(tmp_path / "absent")


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_data_dir_precedes_the_environment_and_gz_is_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = NAMES
    monkeypatch.setenv("ODDLOT_DATA", str(make(tmp_path / "variable", *NAMES)))
    argument = make(tmp_path / "argument", images, f"{labels}.gz")
    assert find_idx("mnist", NAMES, "there", argument) == [argument / images, argument / f"{labels}.gz"]
    assert find_idx("mnist", NAMES, "there") == [tmp_path / "variable" / name for name in NAMES]
    inner = make(tmp_path / "variable" / "fashion_mnist", *NAMES)
    assert find_idx("mnist", NAMES, "there")[0].parent == tmp_path / "variable"
    assert find_idx("fashion_mnist", NAMES, "there")[0].parent == inner, "called like the dataset"


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names missing files, and files from two folders are never mixed."""
    monkeypatch.setenv("ODDLOT_DATA", str(make(tmp_path / "variable", *NAMES)))
    make(tmp_path / "mine", NAMES[0])
    make(tmp_path / "mine" / "mnist", NAMES[1])
    looked = [tmp_path / "mine" / "mnist", tmp_path / "mine"]
    with raises(UsageError, "missing_data", dataset="mnist", looked_in=list(map(str, looked))) as rejection:
        find_idx("mnist", NAMES, "the MNIST database", tmp_path / "mine")
    assert (rejection.fields["files"], rejection.fields["others_in"]) == ([NAMES[0]], str(looked[0]))
    monkeypatch.delenv("ODDLOT_DATA")
    with raises(UsageError, "missing_data", files=NAMES, looked_in=[], others_in=None):
        find_idx("mnist", NAMES, "the MNIST database")


@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist"])
def test_published_files_are_read(dataset: str) -> None:
    if not os.environ.get("ODDLOT_DATA"):
        pytest.skip("ODDLOT_DATA names no folder with the real files")
    images, labels = (read_idx(path) for path in find_idx(dataset, NAMES, dataset))
    assert images.shape == (10_000, 28, 28)
    assert images.dtype == np.uint8
    assert labels.shape == (10_000,)
    assert set(labels.tolist()) == set(range(10))
