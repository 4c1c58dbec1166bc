"""The database of a queue: SQLite with a write-ahead log, synced at each commit."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from oddlot.core.support.errors import JobError, UsageError

VERSION = 1
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE tokens (hash TEXT PRIMARY KEY, user TEXT NOT NULL, created REAL NOT NULL) STRICT;
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, submission TEXT NOT NULL, request TEXT NOT NULL,
  submitted REAL NOT NULL, state TEXT NOT NULL, predicted REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
  served REAL NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
  started REAL, ended REAL, exit INTEGER, reason TEXT NOT NULL DEFAULT '', UNIQUE (user, submission)
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE attempts (
  job INTEGER NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL, state TEXT NOT NULL, placement TEXT NOT NULL,
  created REAL NOT NULL, stop TEXT NOT NULL DEFAULT '', ended REAL, exit INTEGER, reason TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job, attempt)
) STRICT;
CREATE INDEX attempts_by_state ON attempts (state);
CREATE TABLE history (
  job INTEGER PRIMARY KEY, user TEXT NOT NULL, name TEXT NOT NULL, virtual_cluster TEXT NOT NULL, gpus INTEGER NOT NULL,
  cpus INTEGER NOT NULL, submitted REAL NOT NULL, duration REAL NOT NULL, ended REAL NOT NULL
) STRICT;
"""
FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY)
"""Errors of writes that may work again later."""


class DiskFull(JobError):
    """The database cannot be written. Nothing has changed."""

    code = "full_disk"


class DamagedDatabase(UsageError):
    """The database is damaged. Nothing was written to it."""

    code = "damaged_database"


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the database. Raise DamagedDatabase if it is damaged, without writing to it."""
    try:
        if path.exists() and path.stat().st_size:
            _check(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        connection.row_factory = sqlite3.Row
        path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in FULL:
            raise _full(error) from error
        raise damaged_database(path, str(error)) from error
    return connection


def _check(path: Path) -> None:
    """Raise DamagedDatabase unless the file is an intact database of this version. It is opened for reading."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != "ok":
        raise damaged_database(path, found)
    if version not in {0, VERSION}:
        message = f"{path} has version {version} of the queue's tables, and this oddlot needs {VERSION}: use its oddlot"
        raise UsageError(message, "other_database", path=str(path), version=version)


def damaged_database(path: Path, reason: str) -> DamagedDatabase:
    """Return the error about a damaged database."""
    message = (
        f"the queue's database {path} is damaged: {reason}. Nothing was changed. Restore a copy, or move it away to "
        "start an empty queue"
    )
    return DamagedDatabase(message, path=str(path), reason=reason)


def _full(error: sqlite3.Error) -> DiskFull:
    reason = str(error)
    return DiskFull(
        f"the queue's database cannot be written: {reason}. Check the free space of its disk", reason=reason
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit what the block writes, synced to the disk. Raise DiskFull, without a change, if that is impossible."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in FULL:
            raise _full(error) from error
        raise
