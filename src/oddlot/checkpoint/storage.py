"""Files in a local folder or, through fsspec, in an object store."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from oddlot.checkpoint.local_storage import sync_path
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.core.support.text import masked, passwords

PIECE_BYTES = 1 << 24
LOG_PARTS = "log"
"""Folder of the log's parts, for checkpoints outside of the run folder."""
BEST = "best"
"""Folder with the weights of the best evaluations."""


class Storage:
    """A folder at a path, or at any URL that fsspec supports: `s3://bucket/run`, `gs://...`, `memory://...`.

    Local files are written atomically. An object store may keep a partial file after a failure, so size and CRC-32 are
    checked. Names are paths below the folder. Paths that leave it by `..` or by a symbolic link are rejected. The
    folder itself may be a link. Passwords in the URL are masked in all messages. Failures are OSErrors. Raise
    UsageError if fsspec does not support the URL.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.url = os.fspath(url)
        self.is_local = "://" not in self.url or self.url.startswith("file://")
        if self.is_local:
            self._fs: Any = LocalFileSystem(auto_mkdir=True)
            self._root = str(Path(self.url.removeprefix("file://")).expanduser().absolute())
            return
        try:
            self._fs, self._root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            url, reason = str(self), self._masked(str(error))
            raise UsageError(
                f"{url} cannot be reached: {reason}", "unreachable_location", url=url, reason=reason
            ) from None

    def __str__(self) -> str:
        return masked(self.url)

    def path(self, name: str) -> str:
        """Return the path of a file or folder, for messages."""
        return f"{str(self).rstrip('/')}/{name}"

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> dict[str, int]:
        """Write a file, and sync it if it is local. Return its size and CRC-32."""
        size, check = 0, Future[int]()
        check.set_result(0)
        # Computing each piece's checksum during its write saves a third of the time.
        at = self._at(f"{name}.partial" if self.is_local else name)
        with (
            ThreadPoolExecutor(1) as aside,
            self._reached(),
            self._new(at) as file,
            self._whole_or_gone(at),
            _thrown_away_on_error(file),
        ):
            for piece in pieces:
                before, size = check, size + len(piece)
                check = aside.submit(_check_on, piece, before)
                file.write(piece)
            if self.is_local:
                _sync(file)
        if self.is_local:
            Path(at).replace(self._at(name))  # object stores show a file only once it is closed
        return {"bytes": size, "crc32": check.result()}

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._reached():
            return bytes(self._fs.cat_file(self._at(name)))

    def check(self, name: str, expected: dict[str, int]) -> None:
        """Raise CheckpointError unless the file has this size and CRC-32."""
        size, check, file_name = 0, 0, _last(name)
        with self._reached(), self._fs.open(self._at(name), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                check = crc32(piece, check)
        if size != expected["bytes"]:
            message, whole = f"{file_name} has {size} of {expected['bytes']} bytes", expected["bytes"]
            raise CheckpointError(message, "wrong_size", file=file_name, bytes=size, expected=whole)
        if check != expected["crc32"]:
            raise CheckpointError(
                f"the checksum of {file_name} does not match", "wrong_checksum", file=file_name
            )

    def names(self, folder: str = "") -> list[str]:
        """Return the names in the folder, or an empty list if it does not exist."""
        with self._reached():
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(folder), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(_last(path) for path in found if path.rstrip("/") != self._at(folder))

    def remove(self, name: str) -> None:
        """Remove a file, a folder with its content, or a symbolic link without its target."""
        folder, _, last = name.rpartition("/")
        if self.is_local and (link := Path(self._at(folder)) / last).is_symlink():
            link.unlink()
            return
        with self._reached(), suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    def sync(self, folder: str = "") -> None:
        """Sync the folder's list of files to the disk."""
        if self.is_local:
            sync_path(Path(self._at(folder)))

    def local(self, name: str) -> Path | None:
        """Return the path of a local file, or None for other storage."""
        return Path(self._at(name)) if self.is_local else None

    def _new(self, path: str) -> Any:
        """Open a file for writing, and create its folders if the storage has folders."""
        try:
            return self._fs.open(path, "wb")
        except FileNotFoundError:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._fs.open(path, "wb")

    @contextmanager
    def _whole_or_gone(self, path: str) -> Iterator[None]:
        """Remove the file if an error is raised inside."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._fs.rm(path)
            raise

    def _at(self, name: str) -> str:
        """Return the path of a file or folder. Raise OSError if it is not below this folder."""
        at = self._root.rstrip("/")
        for part in name.split("/") if name else ():
            if part in {"", ".", ".."} or "\0" in part:
                raise OSError(errno.EINVAL, "not a name in this folder", name)
            at = f"{at}/{part}"
            if self.is_local:
                _check_own(at)
        return at

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not passwords(self.url):
                raise
            shown = [self._masked(each) if isinstance(each, str) else each for each in error.args]
            name = () if error.filename is None else (self._masked(str(error.filename)),)
            kind = type(error) if type(error).__module__ == "builtins" else OSError
            raise kind(*shown, *name) from None
        except Exception as error:  # object stores raise errors of their own
            message = self._masked(f"{type(error).__name__}: {error}")
            if passwords(self.url):
                raise OSError(message) from None
            raise OSError(message) from error

    def _masked(self, text: str) -> str:
        """Return the text with this URL's password masked, even if the text lacks the start of the URL."""
        for password in passwords(self.url):
            text = text.replace(f":{password}@", ":***@")
        return masked(text)


@contextmanager
def _thrown_away_on_error(file: Any) -> Iterator[None]:
    """Discard the file on an error. Otherwise an object store would keep the partial content when the file is
    closed."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # not all file types support it
            file.discard()
            file.closed = True
        raise


def _check_own(path: str) -> None:
    """Raise OSError if the path is a symbolic link, a pipe or a device."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "a symbolic link", path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "neither a file nor a folder", path)


def unreadable(path: str, error: Exception, what: str = "", then: str = "") -> CheckpointError:
    """Return the error for a file or folder that cannot be read."""
    message, reason = f"{what}{path} cannot be read: {error}{then}", str(error)
    return CheckpointError(message, "unreadable_file", path=path, reason=reason)


def _check_on(piece: bytes | memoryview, before: Future[int]) -> int:
    """Return the CRC-32 of all pieces so far, including this piece."""
    return crc32(piece, before.result())


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
