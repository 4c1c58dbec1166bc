"""Frames: a binary header with checksums, and a body of bytes.

The header has 24 bytes, little-endian: magic `ODLT`, format version (u8), kind (u8), flags (u16), length of the
body (u64), CRC-32 of the body (u32), CRC-32 of the 20 bytes before it (u32). Sender and receiver define the kinds.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from oddlot.core.support.errors import OddlotError

MAGIC = b"ODLT"
FORMAT = 1
HEADER_BYTES = 24
CHECKED = 1
"""Flag of a header with the CRC-32 of the body. All headers have it."""

_FIELDS = struct.Struct("<4sBBHQI")
_CHECK = struct.Struct("<I")


class FrameError(OddlotError):
    """Bytes that are not a complete, undamaged frame or packet."""


class Frame(NamedTuple):
    """The content of a frame."""

    kind: int
    body: bytes


class Header(NamedTuple):
    """The header of a frame."""

    kind: int
    length: int
    """Bytes of the body."""
    checksum: int

    def check(self, checksum: int) -> None:
        """Raise FrameError if this is not the checksum of the body."""
        if checksum != self.checksum:
            message = f"a frame's body of {self.length} bytes is damaged: its checksum does not match"
            raise FrameError(message, "damaged_body", bytes=self.length)


def pack(kind: int, body: bytes = b"") -> bytes:
    """Return a frame of this kind (0 to 255)."""
    return pack_header(kind, [memoryview(body)]) + body


def pack_header(kind: int, parts: Iterable[memoryview]) -> bytes:
    """Return the header of a frame with a body of these contiguous parts."""
    length = checksum = 0
    for part in parts:
        length += part.nbytes
        checksum = crc32(part, checksum)
    fields = _FIELDS.pack(MAGIC, FORMAT, kind, CHECKED, length, checksum)
    return fields + _CHECK.pack(crc32(fields))


def unpack(frame: bytes) -> Frame:
    """Return the content of a frame. Raise FrameError unless the bytes are exactly one valid frame."""
    header, body = read_header(frame[:HEADER_BYTES]), frame[HEADER_BYTES:]
    if len(body) != header.length:
        message = f"a frame's body has {len(body)} bytes, but its header says {header.length}"
        raise FrameError(message, "wrong_size", bytes=len(body), expected=header.length)
    header.check(crc32(body))
    return Frame(header.kind, body)


def read_header(header: bytes) -> Header:
    """Return the content of a header. Raise FrameError if it is invalid."""
    if len(header) < HEADER_BYTES:
        message = f"a frame's header needs {HEADER_BYTES} bytes, but there are {len(header)}"
        raise FrameError(message, "short_header", bytes=len(header))
    magic, version, kind, flags, length, checksum = _FIELDS.unpack(header[: _FIELDS.size])
    if magic != MAGIC:
        raise FrameError(f"not a frame: it begins with {magic!r} instead of {MAGIC!r}", "not_a_frame")
    if _CHECK.unpack(header[_FIELDS.size :]) != (crc32(header[: _FIELDS.size]),):
        raise FrameError("a frame's header is damaged: its checksum does not match", "damaged_header")
    if version != FORMAT or flags != CHECKED:
        message = f"a frame has format {version} and flags {flags}, but this version reads format {FORMAT}"
        raise FrameError(message, "other_format", format=version, flags=flags)
    return Header(kind, length, checksum)
