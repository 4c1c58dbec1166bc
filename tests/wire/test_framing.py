"""Frames: what was packed comes back, and nothing damaged does."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlot.wire.framing import HEADER_BYTES, Frame, FrameError, pack, read, unpack

kinds = st.integers(0, 255)
bodies = st.binary(max_size=300)
LONGEST = 1 << 20


@given(kind=kinds, body=bodies, checked=st.booleans())
def test_a_frame_comes_back(kind: int, body: bytes, checked: bool) -> None:
    frame = pack(kind, body, checked=checked)
    assert len(frame) == HEADER_BYTES + len(body)
    assert unpack(frame) == read(io.BytesIO(frame).read, LONGEST) == Frame(kind, body)


@given(kind=kinds, body=bodies, data=st.data())
def test_a_truncated_frame_is_told(kind: int, body: bytes, data: st.DataObject) -> None:
    frame = pack(kind, body)
    short = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises(FrameError):
        unpack(short)
    if short:
        with pytest.raises(FrameError):
            read(io.BytesIO(short).read, LONGEST)
    else:
        assert read(io.BytesIO(short).read, LONGEST) is None


@given(kind=kinds, body=bodies, data=st.data())
def test_a_flipped_bit_is_told(kind: int, body: bytes, data: st.DataObject) -> None:
    frame = bytearray(pack(kind, body))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    for reading in (unpack, lambda bytes_: read(io.BytesIO(bytes_).read, LONGEST)):
        with pytest.raises(FrameError):
            reading(bytes(frame))


@given(st.binary(max_size=100))
def test_any_other_bytes_are_told(noise: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(noise)


@given(st.lists(st.tuples(kinds, bodies), max_size=5), st.integers(1, 50))
def test_frames_are_read_one_after_the_other_from_a_slow_source(
    frames: list[tuple[int, bytes]], most: int
) -> None:
    stream = io.BytesIO(b"".join(pack(kind, body) for kind, body in frames))

    def source(count: int) -> bytes:
        return stream.read(min(count, most))

    assert [read(source, LONGEST) for _ in frames] == frames
    assert read(source, LONGEST) is None


def test_more_bytes_than_a_frame_are_told() -> None:
    with pytest.raises(FrameError, match="a frame of 2 bytes came with 3"):
        unpack(pack(1, b"ab") + b"c")


def test_a_long_frame_is_told_before_its_body_is_read() -> None:
    frame = io.BytesIO(pack(1, bytes(1000)))
    with pytest.raises(FrameError, match="a frame of 1000 bytes is longer than the 999 allowed here"):
        read(frame.read, 999)
    assert frame.tell() == HEADER_BYTES


def test_memory_is_taken_as_bytes_come() -> None:
    """A truthful header of an enormous frame, then silence: no call asks for more than a piece."""
    huge = pack(1, bytes(3 << 20))[:HEADER_BYTES]
    stream, asked = io.BytesIO(huge + bytes(10)), list[int]()

    def source(count: int) -> bytes:
        asked.append(count)
        return stream.read(count)

    with pytest.raises(FrameError, match="a frame of 3145728 bytes ended after 10"):
        read(source, 1 << 40)
    assert max(asked) <= 1 << 20


def test_an_unchecked_body_is_the_callers_risk() -> None:
    frame = bytearray(pack(1, b"ab", checked=False))
    frame[-1] ^= 1
    assert unpack(bytes(frame)).body == b"ac"


def test_another_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.wire.framing.FORMAT", 2)
    frame = pack(1)
    monkeypatch.undo()
    with pytest.raises(FrameError, match="a frame of format 2, flags 1: this version reads format 1"):
        unpack(frame)
