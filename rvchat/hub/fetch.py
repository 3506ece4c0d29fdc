"""One file from the hub into its cache, whatever the network does: resumed, checked, and never half there."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import filelock

from rvchat.errors import CancelledError
from rvchat.hub import disk, partials
from rvchat.hub.failures import ShortError, StalledError, WrongContentError
from rvchat.hub.patience import Patience, Tries
from rvchat.hub.pins import Hash, Pin, RemoteFile
from rvchat.hub.place import RepositoryPlace
from rvchat.hub.progress import Tracker
from rvchat.hub.remote import Remote
from rvchat.hub.transfer import POLL_S, End, Head, Transfer


@dataclass(frozen=True, slots=True)
class Job:
    """What the files of one download have in common. Setting `stop` ends it within a moment, with CancelledError.
    `keep` writes down what has become of `pin`."""

    remote: Remote
    pin: Pin
    stop: threading.Event
    track: Tracker
    patience: Patience
    keep: Callable[[], None]

    @property
    def place(self) -> RepositoryPlace:
        return self.remote.place.repository(self.pin.repo)

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise CancelledError("Stopped")


class FileFetch:
    """Gets one file into the cache's `blobs`, with the right hash. `run` raises what the network raised last, or
    RvchatError for what the disk did."""

    def __init__(self, job: Job, file: RemoteFile) -> None:
        self._job, self._file = job, file
        self._blob, self._partial = job.place.blob(file.blob), job.place.partial(file.blob)
        self._hash, self._at = file.hash(), 0
        self._furthest = 0
        self._tries = Tries(job.patience, job.stop)

    def run(self) -> tuple[int, int]:
        """The file's size and time of change, by which it is known to be the one that was checked."""
        job, file = self._job, self._file
        with self._disk():
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            job.place.snapshot(job.pin.commit).mkdir(parents=True, exist_ok=True)
        with self._locked():
            if not self._is_there():
                self._fetch()
            with self._disk():
                found = self._blob.stat()
        job.track.complete(file.size)
        return found.st_size, found.st_mtime_ns

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk.refused(error, self._job.remote.place.cache, self._file.size - self._at) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self._job.place.lock(self._file.blob)
        with self._disk():
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, mode=0o664)
        while True:
            try:
                lock.acquire(timeout=0)
                break
            except filelock.Timeout:
                self._wait_for_other()
            except OSError as error:
                raise disk.refused(error, path.parent, 0) from error
        try:
            yield
        finally:
            lock.release()

    def _wait_for_other(self) -> None:
        self._job.track.begin("waiting", self._file.name)
        with contextlib.suppress(FileNotFoundError):
            self._job.track.at(self._partial.stat().st_size)
        self._tries.wait(2 * POLL_S)

    def _is_there(self) -> bool:
        """Whether the cache has the file, whole and right. A wrong one is taken away."""
        if not self._blob.exists():
            return False
        with self._disk(), self._blob.open("rb") as there:
            size = os.fstat(there.fileno()).st_size
            checked = self._job.pin.checked.get(self._file.name) == (size, os.fstat(there.fileno()).st_mtime_ns)
            if size == self._file.size and (checked or self._hashed(there, size).hexdigest() == self._file.blob):
                return True
        with self._disk():
            self._blob.unlink()
        return False

    def _fetch(self) -> None:
        try:
            self._complete()
        except WrongContentError as error:
            self._job.track.note(f"{error}: once more from the start")
            self._partial.unlink(missing_ok=True)
            try:
                self._complete()
            except WrongContentError:
                self._partial.unlink(missing_ok=True)
                raise
        with self._disk():
            os.replace(self._partial, self._blob)

    def _complete(self) -> None:
        """Makes the partial file whole. Raises WrongContentError when it is not what the hub described."""
        with self._disk():
            descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "r+b", buffering=0) as out:
            self._continue_from(out)
            self._job.track.begin("fetching", self._file.name)
            self._job.track.at(self._at)
            while self._at < self._file.size:
                self._try(out)
            if self._hash.hexdigest() != self._file.blob:
                raise WrongContentError(f"the bytes of {self._file.name} are not those that the hub lists")
            with self._disk():
                os.fsync(out.fileno())

    def _continue_from(self, out: BinaryIO) -> None:
        """Hashes what is there already."""
        self._restart(out, truncate=False)
        with self._disk():
            size = os.fstat(out.fileno()).st_size
            if size > self._file.size:
                self._restart(out)
            elif size:
                self._hash, self._at = self._hashed(out, size), size
                out.seek(size)
        self._furthest = self._at

    def _hashed(self, file: BinaryIO, size: int) -> Hash:
        self._job.track.begin("checking", self._file.name)
        return partials.hashed(file, self._file, size, self._job.stop, self._job.track)

    def _restart(self, out: BinaryIO, *, truncate: bool = True) -> None:
        self._hash, self._at = self._file.hash(), 0
        with self._disk():
            out.seek(0)
            if truncate:
                out.truncate()

    def _try(self, out: BinaryIO) -> None:
        job = self._job
        url = job.remote.url(job.pin.repo, job.pin.commit, self._file.name)
        transfer = Transfer(url, job.remote.headers(), self._at, job.patience.window)
        try:
            self._take(transfer, out)
        except Exception as error:
            pause = self._tries.pause_after(error)
            if pause is None:
                raise
            reason = job.remote.in_words(error, job.pin.repo, job.pin.asked).message
            job.track.note(f"{_why(error) or reason}: trying again in {pause:.0f} s")
            self._tries.wait(pause)
            job.track.note("")
        finally:
            transfer.close()

    def _take(self, transfer: Transfer, out: BinaryIO) -> None:
        """Writes what comes until the answer ends."""
        patience, came, since = self._job.patience, 0, time.monotonic()
        while True:
            item = transfer.take(POLL_S)
            self._job.check_stop()
            match item:
                case Head():
                    self._begin(item, out)
                case bytes():
                    came += len(item)
                    self._write(item, out)
                case End(error=None):
                    if self._at < self._file.size:
                        raise ShortError
                    return
                case End():
                    assert item.error is not None
                    raise item.error
            if time.monotonic() - since >= patience.window:
                if came < patience.least:
                    raise StalledError
                came, since = 0, time.monotonic()

    def _begin(self, head: Head, out: BinaryIO) -> None:
        size = self._file.size
        if head.status == 416 or (head.status == 206 and head.start != self._at):
            self._restart(out)  # the server counts otherwise: from the start, without a range
            raise ShortError
        if head.total not in (-1, size):
            raise WrongContentError(f"{self._file.name} has {head.total:,} bytes where the hub lists {size:,}")
        if head.status == 200 and self._at:
            self._restart(out)

    def _write(self, piece: bytes, out: BinaryIO) -> None:
        if self._at + len(piece) > self._file.size:
            raise WrongContentError(f"{self._file.name} goes on after the {self._file.size:,} bytes that the hub lists")
        view = memoryview(piece)
        with self._disk():
            while view:
                view = view[out.write(view) :]
        self._hash.update(piece)
        self._at += len(piece)
        if self._at > self._furthest:
            self._furthest = self._at
            self._tries.progress()
        self._job.track.at(self._at)


def _why(error: BaseException) -> str:
    match error:
        case StalledError():
            return "Nothing comes"
        case ShortError():
            return "The connection ended early"
    return ""
