"""Frames: what was packed comes back, and nothing damaged does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlot.wire.framing import HEADER_BYTES, Frame, FrameError, pack, unpack

kinds = st.integers(0, 255)
bodies = st.binary(max_size=300)


@given(kind=kinds, body=bodies, checked=st.booleans())
def test_a_frame_comes_back(kind: int, body: bytes, checked: bool) -> None:
    frame = pack(kind, body, checked=checked)
    assert len(frame) == HEADER_BYTES + len(body)
    assert unpack(frame) == Frame(kind, body)


@given(kind=kinds, body=bodies, data=st.data())
def test_a_truncated_frame_is_told(kind: int, body: bytes, data: st.DataObject) -> None:
    frame = pack(kind, body)
    short = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises(FrameError):
        unpack(short)


@given(kind=kinds, body=bodies, data=st.data())
def test_a_flipped_bit_is_told(kind: int, body: bytes, data: st.DataObject) -> None:
    frame = bytearray(pack(kind, body))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        unpack(bytes(frame))


@given(st.binary(max_size=100))
def test_any_other_bytes_are_told(noise: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(noise)


def test_more_bytes_than_a_frame_are_told() -> None:
    with pytest.raises(FrameError, match="a frame of 2 bytes came with 3"):
        unpack(pack(1, b"ab") + b"c")


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
