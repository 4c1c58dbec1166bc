"""Frames: round trips, and errors for damaged frames."""

import pytest
from hypothesis import given, strategies as st

from oddlot.wire.framing import HEADER_BYTES, Frame, FrameError, pack, unpack
from tests.transcripts import raises

kinds = st.integers(0, 255)
bodies = st.binary(max_size=300)


@given(kind=kinds, body=bodies)
def test_frame_round_trips(kind: int, body: bytes) -> None:
    frame = pack(kind, body)
    assert len(frame) == HEADER_BYTES + len(body)
    assert unpack(frame) == Frame(kind, body)


@given(kind=kinds, body=bodies, data=st.data())
def test_damaged_frame_raises_frame_error(kind: int, body: bytes, data: st.DataObject) -> None:
    frame = pack(kind, body)
    short = frame[: data.draw(st.integers(0, len(frame) - 1))]
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    for damaged in (short, bytes(flipped), body):
        with pytest.raises(FrameError):
            unpack(damaged)


def changed(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


FRAME = pack(1, b"ab")


@pytest.mark.parametrize(
    ("frame", "code", "fields"),
    [
        (FRAME[:-1], "wrong_size", {"bytes": 1, "expected": 2}),
        (FRAME + b"c", "wrong_size", {"bytes": 3, "expected": 2}),
        (FRAME[:23], "short_header", {"bytes": 23}),
        (changed(FRAME, 0), "not_a_frame", {}),
        (changed(FRAME, 5), "damaged_header", {}),
        (changed(FRAME, 25), "damaged_body", {"bytes": 2}),
    ],
    ids=["short", "long", "cut", "magic", "header", "body"],
)
def test_frame_error_has_the_code_of_the_damage(frame: bytes, code: str, fields: dict[str, int]) -> None:
    with raises(FrameError, code, **fields):
        unpack(frame)


def test_other_frame_format_raises_other_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.wire.framing.FORMAT", 2)
    frame = pack(1)
    monkeypatch.undo()
    with raises(FrameError, "other_format", format=2, flags=1):
        unpack(frame)
