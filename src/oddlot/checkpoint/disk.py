"""Files of a run folder: regular files only, synced to the disk."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""Mode of a file that only its owner may read."""


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file. Raise OSError for a pipe or a device, because reading it may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a regular file."""
    with open_to_read(path) as file:
        return file.read()


def open_to_append(path: Path) -> BinaryIO:
    """Open or create a file for appending. Raise OSError for a symbolic link or a pipe."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def sync_path(path: Path) -> None:
    """Sync a file's content, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync their names to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_path(folder.parent)
    if not missing:  # it may exist but not be synced yet
        with suppress(PermissionError):
            sync_path(path.parent)


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file atomically, even if power is lost."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, PRIVATE if private else 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def rename(draft: Path, path: Path) -> None:
    """Rename a file within its folder, and sync that to the disk."""
    draft.replace(path)
    sync_path(path.parent)
