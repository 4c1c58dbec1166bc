"""Reading tar archives member by member. Nothing is unpacked to the disk, and sizes in headers are not trusted."""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import most_unpacked
from oddlot.machines.text_files import unreadable

OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".tar": lambda file: file,
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.xz": lzma.open,
}
"""Functions that open an archive, by the end of its name."""
MAX_MEMBERS = 200_000
LONGEST_READ = 1 << 26
"""Largest number of bytes that are read at once. A header may claim more than the available memory."""
PIECE_BYTES = 1 << 20
DAMAGED = (
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    EOFError,
    ValueError,
    OverflowError,
    RecursionError,
)
"""Exceptions that Python raises for damaged archives."""
Read = Callable[[int], bytes]
"""Function that returns the content of a member. It raises UsageError for more bytes than its argument."""


class Readable(Protocol):
    """A file open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


class _Patient:
    """A file that rejects very large reads, and more decompressed data than an archive of its size contains."""

    def __init__(self, packed: IO[bytes], path: Path) -> None:
        self.packed, self.path, self.size = packed, path, path.stat().st_size
        self.file = _opener(path.name)(packed)
        self.tell = self.file.tell

    def seek(self, place: int) -> int:
        self._check(place, self.size)
        there: int = self.file.seek(place)
        return there

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LONGEST_READ:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        self._check(self.tell(), self.packed.tell())
        content: bytes = self.file.read(size)
        return content

    def _check(self, place: int, packed: int) -> None:
        """Raise UsageError if position `place` is more than `packed` compressed bytes can contain."""
        if self.file is not self.packed and place > (most := most_unpacked(packed)):
            message = f"{self.path} unpacks to more than {most:,} bytes, too much for an archive of images of its size"
            raise UsageError(message, "unpacks_to_too_much", path=str(self.path), most=most)


def members(path: Path) -> Iterator[tuple[str, Read]]:
    """Yield the name of each file in the archive, and a function that reads it before the next file is requested.

    Raise UsageError if the archive is damaged, or has a member that is neither a file nor a folder, such as a link.
    """
    with ExitStack() as closing:
        try:
            file = _Patient(closing.enter_context(path.open("rb")), path)
            tar = closing.enter_context(tarfile.open(fileobj=file, mode="r:"))  # type: ignore[call-overload]  # tarfile needs only these methods
        except DAMAGED as error:
            raise _damaged(path, error) from None
        except OSError as error:
            raise unreadable(path, error) from None
        count = 0
        while (member := _next(tar, path)) is not None:
            count += 1
            if count > MAX_MEMBERS:
                message = f"{path} has more than {MAX_MEMBERS:,} members, too many for this dataset"
                raise UsageError(message, "too_many_members", path=str(path), most=MAX_MEMBERS)
            if member.isdir():
                continue
            _check_regular(member, path)
            yield member.name.removeprefix("./"), _reader(tar, member, path)
        _drain(file, path)


def is_archive(path: Path) -> bool:
    """Return whether the name has the ending of a supported archive."""
    return any(path.name.endswith(end) for end in OPENERS)


def at_most(most: int, file: Readable) -> bytes:
    """Return the rest of the file. Raise UsageError if it has more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise UsageError(f"it has more than {most:,} bytes", "file_too_large", most=most)
    return content


def _opener(name: str) -> Callable[[IO[bytes]], Any]:
    return next(opener for end, opener in OPENERS.items() if name.endswith(end))


def _next(tar: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    try:
        return tar.next()
    except DAMAGED as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _check_regular(member: tarfile.TarInfo, path: Path) -> None:
    """Raise UsageError unless the member is a regular file."""
    if not member.isreg() or member.issparse():
        message = f"{path}: {member.name!r} is not a regular file but a link or a device"
        raise UsageError(message, "not_a_file", path=str(path), member=member.name)


def _drain(file: Readable, path: Path) -> None:
    """Read to the end, to verify the checksum of compressed data."""
    try:
        while file.read(PIECE_BYTES):
            pass
    except DAMAGED as error:
        raise _damaged(path, error) from None


def _reader(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Read:
    def read(most: int) -> bytes:
        if member.size > most:
            message = f"it has {member.size:,} bytes, more than {most:,}"
            raise UsageError(message, "file_too_large", bytes=member.size, most=most)
        try:
            file = tar.extractfile(member)
            assert file is not None  # because it is a regular file
            content = at_most(most, file)
        except DAMAGED as error:
            raise _damaged(path, error) from None
        except OSError as error:
            raise unreadable(path, error) from None
        if len(content) < member.size:
            raise UsageError("the archive ends within it. Download it again", "truncated_file")
        return content

    return read


def _damaged(path: Path, error: Exception) -> UsageError:
    reason = str(error) or type(error).__name__
    message = f"{path} is not a complete archive: {reason}. Download it again"
    return UsageError(message, "damaged_file", path=str(path), reason=reason)
