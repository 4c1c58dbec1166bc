"""Frames: a binary header with checksums, and a body of bytes.

The header has 24 bytes, little-endian: magic `ODLT`, format version (u8), kind (u8), flags (u16), length of the
body (u64), CRC-32 of the body (u32, zero unless flag 1 is set), CRC-32 of the 20 bytes before it (u32). Sender and
receiver define the kinds.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from oddlot.core.errors import OddlotError

MAGIC = b"ODLT"
FORMAT = 1
HEADER_BYTES = 24
CHECKED = 1
"""Flag of a header with the CRC-32 of the body."""

_FIELDS = struct.Struct("<4sBBHQI")
_CHECK = struct.Struct("<I")


class FrameError(OddlotError):
    """Bytes that are not a complete, undamaged frame or packet."""


class Frame(NamedTuple):
    """The content of a frame."""

    kind: int
    body: bytes


def pack(kind: int, body: bytes = b"", *, checked: bool = True) -> bytes:
    """Return a frame of this kind (0 to 255). `checked=False` leaves out the checksum of the body."""
    fields = _FIELDS.pack(
        MAGIC, FORMAT, kind, CHECKED if checked else 0, len(body), crc32(body) if checked else 0
    )
    return b"".join((fields, _CHECK.pack(crc32(fields)), body))


def unpack(frame: bytes) -> Frame:
    """Return the content of a frame. Raise FrameError unless the bytes are exactly one valid frame."""
    kind, length, check = _read_header(frame[:HEADER_BYTES])
    body = frame[HEADER_BYTES:]
    if len(body) != length:
        told = f"a frame's body has {len(body)} bytes, but its header says {length}"
        raise FrameError(told, "wrong_size", bytes=len(body), expected=length)
    return Frame(kind, _checked(body, check))


def _read_header(header: bytes) -> tuple[int, int, int | None]:
    """Return the kind, the length of the body, and its checksum."""
    if len(header) < HEADER_BYTES:
        told = f"a frame's header needs {HEADER_BYTES} bytes, but there are {len(header)}"
        raise FrameError(told, "short_header", bytes=len(header))
    magic, version, kind, flags, length, check = _FIELDS.unpack(header[: _FIELDS.size])
    if magic != MAGIC:
        raise FrameError(f"not a frame: it begins with {magic!r} instead of {MAGIC!r}", "not_a_frame")
    if _CHECK.unpack(header[_FIELDS.size :]) != (crc32(header[: _FIELDS.size]),):
        raise FrameError("a frame's header is damaged: its checksum does not match", "damaged_header")
    if version != FORMAT or flags & ~CHECKED:
        told = f"a frame has format {version} and flags {flags}, but this version reads format {FORMAT}"
        raise FrameError(told, "other_format", format=version, flags=flags)
    return kind, length, check if flags & CHECKED else None


def _checked(body: bytes, check: int | None) -> bytes:
    if check is not None and crc32(body) != check:
        told = f"a frame's body of {len(body)} bytes is damaged: its checksum does not match"
        raise FrameError(told, "damaged_body", bytes=len(body))
    return body
