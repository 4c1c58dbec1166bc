"""Tests of the reader of pickled batches. It returns correct arrays or raises, and never calls named functions."""

import os
import pickle
import pickletools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from oddlot.core.support.errors import UsageError
from oddlot.workloads.formats.cifar_pickle import read_archive, read_batch, read_folder
from tests.transcripts import raises
from tests.workloads.small_cifar import archive, batches, pickled, rows

IMAGES, LABELS = rows(range(4))
WHOLE = pickled(IMAGES, LABELS)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("columns", [False, True])
def test_pickle_written_by_python_3_is_read(protocol: int, columns: bool) -> None:
    images = np.asfortranarray(IMAGES) if columns else IMAGES
    content = pickle.dumps({b"data": images, b"labels": LABELS}, protocol)
    back, labels = read_batch(content)
    np.testing.assert_array_equal(back.reshape(4, -1), IMAGES)
    assert labels.tolist() == LABELS


def test_named_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data_batch_1")
    with raises(UsageError, "not_a_file", member="data_batch_1"):
        read_folder(tmp_path)


class Harm:
    """An object with a pickle that calls the given function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.mkdir, exec, np.load, getattr, np.zeros])
@pytest.mark.parametrize("protocol", range(6))
def test_pickle_with_a_function_call_is_rejected(
    tmp_path: Path, function: Callable[..., Any], protocol: int
) -> None:
    made = tmp_path / "made"
    argument = f"import os; os.mkdir({str(made)!r})" if function is exec else str(made)
    content = pickle.dumps({b"data": Harm(function, argument), b"labels": LABELS}, protocol)
    with pytest.raises(UsageError) as rejection:
        read_batch(content)
    assert rejection.value.code == "unsafe_pickle"
    assert not made.exists()


def test_pickled_array_state_is_not_passed_to_numpy() -> None:
    """The state of a pickled array is not passed to NumPy: it would follow addresses in arrays of objects."""
    objects = WHOLE.replace(b"u1J\0\0\0\0", b"O8J\0\0\0\0")
    count, most = (number.to_bytes(4, "little") for number in (len(LABELS), 2**31 - 1))
    for content in (objects, WHOLE.replace(b"(J" + count, b"(J" + most, 1)):
        assert content != WHOLE
        with raises(UsageError, "wrong_dtype"):
            read_batch(content)


def test_small_pickle_does_not_allocate_much_memory() -> None:
    """A pickle with a very large memo index does not allocate much memory."""
    tracemalloc.start()
    try:
        for number in (2**24, 2**31 - 1):
            with raises(UsageError, "other_format"):
                read_batch(b"Nr" + number.to_bytes(4, "little") + b".")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_pickle_that_calls_or_changes_its_globals_is_rejected() -> None:
    """The pickles call the named object, set its state or attributes, or create it again."""
    for harm in (b"h\0\x85R", b"h\0N\x86b", b"N}X\4\0\0\0nameh\0s\x86b0h\0)R", b"h\0)\x81"):
        with pytest.raises(UsageError) as rejection:
            read_batch(b"cnumpy\nndarray\nq\0" + harm + b".")
        assert rejection.value.code in {"damaged_file", "other_format"}
        assert read_batch(WHOLE)[1].tolist() == LABELS


FAULTS: dict[str, list[tuple[Any, Any]]] = {
    "other_format": [(IMAGES, None)],
    "wrong_dtype": [(IMAGES.tolist(), LABELS), (IMAGES.astype(np.int16), LABELS)],
    "wrong_shape": [(IMAGES[:, :-1], LABELS), (IMAGES[0], LABELS)],
    "different_lengths": [(IMAGES, LABELS[:3])],
    "invalid_labels": [
        (IMAGES, labels) for labels in ([0, 1, 2, 10], [0, 1, 2, -1], [0, 1, 2, True], "0123")
    ],
}


@pytest.mark.parametrize("code", FAULTS)
def test_invalid_batch_raises(code: str) -> None:
    for images, labels in FAULTS[code]:
        batch = {b"data": images} | ({b"labels": labels} if labels is not None else {})
        with raises(UsageError, code):
            read_batch(pickle.dumps(batch, 4))


def test_incomplete_pickle_raises() -> None:
    for content in (b"", b"PNG!", WHOLE[:-1], WHOLE[:60]):
        with raises(UsageError, "damaged_file"):
            read_batch(content)
    with raises(UsageError, "other_format"):
        read_batch(pickle.dumps([1, 2], 4))


@given(place=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_pickle_raises_or_gives_valid_arrays(place: int, byte: int, cut: bool) -> None:
    content = bytearray(WHOLE)
    content[place:] = b"" if cut else bytes([byte]) + WHOLE[place + 1 :]
    try:
        images, labels = read_batch(bytes(content))
    except UsageError:
        return
    assert (images.dtype.name, images.shape[1:]) == ("uint8", (3, 32, 32))
    assert (labels.dtype.name, labels.shape) == ("int64", images.shape[:1])


@given(
    opcodes=st.lists(st.sampled_from([op.code.encode("latin1") for op in pickletools.opcodes]), max_size=12)
)
def test_random_opcodes_raise(opcodes: list[bytes]) -> None:
    with pytest.raises(UsageError):
        read_batch(b"cnumpy\nndarray\n" + b"".join(opcodes))


def test_error_names_the_file(tmp_path: Path) -> None:
    with raises(UsageError, "unreadable_file", path=str(tmp_path), member="data_batch_1"):
        read_folder(tmp_path)
    contents = batches() | {"cifar-10-batches-py/data_batch_2": pickle.dumps(Harm(os.mkdir, "made"))}
    path = archive(tmp_path / "cifar-10-python.tar.gz", contents)
    with raises(UsageError, "unsafe_pickle", path=str(path), member="data_batch_2", given="posix.mkdir"):
        read_archive(path)
