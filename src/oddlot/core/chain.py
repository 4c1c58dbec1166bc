"""Lines of JSON with a checksum each: a line that was changed, removed, doubled or moved is noticed.

The last member of each line is `crc`: 8 hexadecimal digits, the CRC-32 of the line before that member, continued from
the checksum of the line before.
"""

from zlib import crc32

_MEMBER, _END = b',"crc":"', b'"}'
_DIGITS = 8
_REST = len(_MEMBER) + _DIGITS + len(_END)


def first_line(text: bytes) -> bytes:
    """Return the text up to its first checksum; empty if it has none."""
    start = text.find(_MEMBER)
    return b"" if start < 0 else text[: start + _REST]


class Chain:
    """The checksum of all lines so far, in their order."""

    def __init__(self) -> None:
        self.crc = 0

    def seal(self, text: str) -> bytes:
        """Return the line of a JSON object that has at least one member."""
        start = text[:-1].encode()
        self.crc = crc32(start, self.crc)
        return b'%b,"crc":"%08x"}\n' % (start, self.crc)

    def open(self, line: bytes) -> bytes:
        """Return the object of the next line, which has no newline. ValueError, with nothing changed: it is damaged."""
        start, crc = line[:-_REST], crc32(line[:-_REST], self.crc)
        if line[-_REST:] != b'%b%08x"}' % (_MEMBER, crc):
            raise ValueError("the checksum does not match")
        self.crc = crc
        return start + b"}"
