"""The published pickles: right arrays or a sentence, and never a call of what they name."""

import os
import pickle
import pickletools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlot.core.errors import UsageError
from oddlot.tasks.batches import read_archive, read_batch, read_folder
from tests.tasks.small_cifar import archive, batches, pickled, rows

IMAGES, LABELS = rows(range(4))
WHOLE = pickled(IMAGES, LABELS)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("columns", [False, True])
def test_what_python_3_has_written_is_read_too(protocol: int, columns: bool) -> None:
    images = np.asfortranarray(IMAGES) if columns else IMAGES
    content = pickle.dumps({b"data": images, b"labels": LABELS}, protocol)
    back, labels = read_batch(content)
    np.testing.assert_array_equal(back.reshape(4, -1), IMAGES)
    assert labels.tolist() == LABELS


class Harm:
    """Pickled, it is a call of whatever it was given."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.mkdir, exec, np.load, getattr, np.zeros])
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_anything_is_refused(
    tmp_path: Path, function: Callable[..., Any], protocol: int
) -> None:
    made = tmp_path / "made"
    argument = f"import os; os.mkdir({str(made)!r})" if function is exec else str(made)
    content = pickle.dumps({b"data": Harm(function, argument), b"labels": LABELS}, protocol)
    with pytest.raises(
        UsageError, match=r"it asks for '\S+', which no array needs: it may be made to do harm"
    ):
        read_batch(content)
    assert not made.exists()


def test_numpy_never_sees_what_a_pickle_says_of_an_array() -> None:
    """One of objects, whose addresses it names itself, would be followed."""
    content = WHOLE.replace(b"u1J\0\0\0\0", b"O8J\0\0\0\0")
    assert content != WHOLE
    with pytest.raises(UsageError, match="its b'data' are no array of bytes"):
        read_batch(content)
    vast = WHOLE.replace(
        b"(J" + len(LABELS).to_bytes(4, "little"), b"(J" + (2**31 - 1).to_bytes(4, "little"), 1
    )
    with pytest.raises(UsageError, match="no array of bytes"):
        read_batch(vast)


@pytest.mark.parametrize("number", [2**24, 2**31 - 1])
def test_a_few_bytes_do_not_take_much_memory(number: int) -> None:
    """They say that a value is number so and so of those to be remembered."""
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="it holds no dict"):
            read_batch(b"Nr" + number.to_bytes(4, "little") + b".")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("harm", [b"h\0\x85R", b"h\0N\x86b", b"N}X\4\0\0\0nameh\0s\x86b0h\0)R", b"h\0)\x81"])
def test_what_a_pickle_names_cannot_be_turned_into_anything_else(harm: bytes) -> None:
    """Called with itself, given a state or other attributes, made anew."""
    with pytest.raises(UsageError, match=r"it is no whole pickle|it holds no dict"):
        read_batch(b"cnumpy\nndarray\nq\0" + harm + b".")
    assert read_batch(WHOLE)[1].tolist() == LABELS


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([1, 2], "it holds no dict with b'data' and b'labels'"),
        ({b"data": IMAGES}, "it holds no dict with b'data' and b'labels'"),
        ({b"data": IMAGES.tolist(), b"labels": LABELS}, "its b'data' are no array of bytes"),
        ({b"data": IMAGES.astype(np.int16), b"labels": LABELS}, "its b'data' are no array of bytes"),
        ({b"data": IMAGES[:, :-1], b"labels": LABELS}, r"its b'data' has shape \[4, 3071\], not \[n, 3072\]"),
        ({b"data": IMAGES[0], b"labels": LABELS}, r"its b'data' has shape \[3072\]"),
        ({b"data": IMAGES, b"labels": LABELS[:3]}, "it has 4 pictures and 3 labels"),
        ({b"data": IMAGES, b"labels": [0, 1, 2, 10]}, "its b'labels' are no list of classes from 0 to 9"),
        ({b"data": IMAGES, b"labels": [0, 1, 2, -1]}, "its b'labels' are no list"),
        ({b"data": IMAGES, b"labels": [0, 1, 2, True]}, "its b'labels' are no list"),
        ({b"data": IMAGES, b"labels": "0123"}, "its b'labels' are no list"),
    ],
)
def test_each_fault_has_its_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_batch(pickle.dumps(value, 4))


@pytest.mark.parametrize("content", [b"", b"PNG!", WHOLE[:-1], WHOLE[:60]])
def test_what_is_no_whole_pickle_is_told(content: bytes) -> None:
    with pytest.raises(UsageError, match="it is no whole pickle"):
        read_batch(content)


@given(place=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_refused_or_gives_arrays_of_the_right_kind(place: int, byte: int, cut: bool) -> None:
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
def test_any_sequence_of_words_is_refused(opcodes: list[bytes]) -> None:
    with pytest.raises(UsageError):
        read_batch(b"cnumpy\nndarray\n" + b"".join(opcodes))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^{tmp_path}/data_batch_1: it cannot be read: No such file"):
        read_folder(tmp_path)


def test_the_file_in_the_archive_is_named(tmp_path: Path) -> None:
    contents = batches() | {"cifar-10-batches-py/data_batch_2": pickle.dumps(Harm(os.mkdir, "made"))}
    path = archive(tmp_path / "cifar-10-python.tar.gz", contents)
    with pytest.raises(
        UsageError, match=rf"^{path}: cifar-10-batches-py/data_batch_2: it asks for 'posix.mkdir'"
    ):
        read_archive(path)
