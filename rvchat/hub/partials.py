"""Files in the cache, and folders of imports, that are not whole yet, and whether a file is what it should be."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import filelock

from rvchat.errors import CancelledError
from rvchat.hub.pins import Hash, RemoteFile
from rvchat.hub.place import RepositoryPlace
from rvchat.hub.progress import Tracker

BLOCK = 1 << 20


def remove(place: RepositoryPlace, file: RemoteFile) -> int:
    """Bytes freed by taking a partial file away; none while another process works on it."""
    partial = place.partial(file.blob)
    if not partial.exists():
        return 0
    lock = filelock.FileLock(place.lock(file.blob), mode=0o664)
    try:
        with lock.acquire(timeout=0):
            size = partial.stat().st_size
            partial.unlink()
            return size
    except filelock.Timeout:
        return 0


def is_busy(place: RepositoryPlace, file: RemoteFile) -> bool:
    """Whether someone is fetching the file."""
    path = place.lock(file.blob)
    if not path.exists():
        return False
    try:
        with filelock.FileLock(path, mode=0o664).acquire(timeout=0):
            return False
    except filelock.Timeout:
        return True


def of_import(models: Path, name: str) -> Path:
    """The folder that an import copies to before it is the model's own."""
    return models / f".{name}.partial"


def sweep(models: Path) -> None:
    """Takes away what imports left that were killed."""
    for left in models.glob(of_import(models, "*").name):
        if not is_held(left):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Has others see that what is written there is not left over. The system ends it with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process that lives has locked a file or folder, as it does with what it is writing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def size_here(place: RepositoryPlace, file: RemoteFile) -> int:
    """Bytes of a file that are here, whole or in part; none where the cache cannot be looked into."""
    for path in (place.blob(file.blob), place.partial(file.blob)):
        with contextlib.suppress(OSError):
            return min(path.stat().st_size, file.size)
    return 0


def hashed(there: BinaryIO, file: RemoteFile, size: int, stop: threading.Event, track: Tracker) -> Hash:
    """The hash of the first `size` bytes of what stands for `file`, telling how far it is."""
    digest, done = file.hash(), 0
    while done < size and (block := there.read(min(BLOCK, size - done))):
        if stop.is_set():
            raise CancelledError("Stopped")
        digest.update(block)
        done += len(block)
        track.at(done)
    return digest


def hash_matches(path: Path, file: RemoteFile, stop: threading.Event, track: Tracker) -> bool:
    """Whether a file's bytes are those that the hub listed."""
    with path.open("rb") as there:
        if os.fstat(there.fileno()).st_size != file.size:
            return False
        return hashed(there, file, file.size, stop, track).hexdigest() == file.blob
