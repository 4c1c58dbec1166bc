"""JSON lines with chained checksums. They reveal lines that were changed, removed, duplicated or moved.

The last member of each line is `crc`: 8 hexadecimal digits, the CRC-32 of the line up to that member, continued from
the checksum of the previous line.
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
        """Return the line, with its checksum, for a JSON object that has at least one member."""
        start = text[:-1].encode()
        self.crc = crc32(start, self.crc)
        return b'%b,"crc":"%08x"}\n' % (start, self.crc)

    def open(self, line: bytes) -> bytes:
        """Return the JSON object of the next line. Pass the line without its newline.

        Raise ValueError, and keep the state, if the line is damaged.
        """
        start, crc = line[:-_REST], crc32(line[:-_REST], self.crc)
        if line[-_REST:] != b'%b%08x"}' % (_MEMBER, crc):
            raise ValueError("the checksum does not match")
        self.crc = crc
        return start + b"}"
