"""Which processes are alive: an answer that streams belongs to a writer, and a writer holds a lock while it lives.

A lock of the system (`flock`) is given up by the kernel however a process ends, and unlike a process id it is never
taken over by a stranger, nor does it mislead in another container that shares the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path


class Writer:
    """One opened store as a maker of answers. The lock file appears with the first answer and goes with `close`."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._file: int | None = None
        self.name = secrets.token_hex(8)

    def claim(self) -> str:
        """The writer's name, from now on known to be alive."""
        while self._file is None:
            path = _lock_path(self._database, self.name)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            # Between the two calls another process may have taken the file for a leftover and removed it.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(file).st_ino:
                    self._file = file
                    break
            os.close(file)
        return self.name

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                _lock_path(self._database, self.name).unlink()
            os.close(self._file)
            self._file = None


def is_alive(database: Path, name: str) -> bool:
    """Whether the writer `name` still runs. What a dead one left behind is removed."""
    path = _lock_path(database, name)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return False
    finally:
        os.close(file)


def leftovers(database: Path) -> list[str]:
    """Names of all writers that have a lock file, alive or not."""
    prefix = _lock_path(database, "").name
    return [entry.name.removeprefix(prefix) for entry in database.parent.glob(f"{prefix}*")]


def _lock_path(database: Path, name: str) -> Path:
    return database.with_name(f"{database.name}.live-{name}")
