"""The database as a file: opened so that nobody else reads it, and what went wrong said in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from rvchat.config import private_folder
from rvchat.errors import StoreError
from rvchat.store import schema

BUSY = 15.0  # seconds to wait for another process that writes
MAGIC = b"SQLite format 3\x00"


def opened(path: Path) -> sqlite3.Connection:
    """The file opened for writing and brought up to date, made with its folder if it is not there. Nothing in it is
    changed before it is known to be ours and not newer than this program. sqlite3.Error, OSError, StoreError."""
    end = time.monotonic() + BUSY
    while True:
        try:
            return _opened(path)
        except sqlite3.OperationalError as error:
            # SQLite waits for other processes by itself, but not for the one that gives a new file its log.
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
        time.sleep(0.01)


def _opened(path: Path) -> sqlite3.Connection:
    private_folder(path.parent)
    if path.is_file() and path.stat().st_size > 0:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise sqlite3.DatabaseError("file is not a database")
        # A connection that may not write looks first: one that may would tidy the log into the file when it closes.
        look = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY)
        try:
            schema.check(look, path)
        finally:
            look.close()
    else:
        # SQLite gives its log the permissions of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # Each commit reaches the disk: a question is kept even when the power fails while it is answered.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        schema.migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Turns what SQLite and the system say into a StoreError."""
    where = path if path is not None else "the conversations in memory"
    try:
        yield
    except sqlite3.Error as error:
        # Errors of the module itself, such as the use of a closed connection, have no name.
        name = getattr(error, "sqlite_errorname", "SQLITE_NOTADB" if type(error) is sqlite3.DatabaseError else "")
        raise StoreError(*_in_words(name, str(error), where)) from error
    except OverflowError as error:
        raise StoreError(f"A number is too large for {where}, which keeps 64 bits of one") from error
    except OSError as error:
        raise StoreError(
            f"Conversations cannot be kept in {where}: {error.strerror or error}",
            "Name a folder that can be written to with --data or RVCHAT_DATA",
        ) from error


def _in_words(name: str, detail: str, where: Path | str) -> tuple[str, str]:
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return (
            f"{where} is damaged ({detail}); it has not been changed",
            "Put a copy of it in its place, or move it away to begin anew",
        )
    if name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE"):
        return f"There is no room on the disk for {where} ({detail})", "What was kept before is safe; free some space"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return (
            f"{where} cannot be written to ({detail})",
            "Name a folder that can be written to with --data or RVCHAT_DATA",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"Another program has kept {where} locked for {BUSY:.0f} s", "Close it, or wait until it is done"
    if name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return "A message with the same id is kept already", ""
    return f"{where} could not be read or written: {detail}", ""
