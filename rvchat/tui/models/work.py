"""Downloads and checks of files, which go on beside everything else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rvchat.config import Paths
from rvchat.errors import CancelledError

if TYPE_CHECKING:
    from rvchat.hub.background import Download, State
    from rvchat.hub.catalogue import Entry
    from rvchat.hub.local import Installed
    from rvchat.hub.pins import RemoteFile
    from rvchat.hub.progress import Progress

STOP_S = 2.0
"""Seconds that leaving waits for downloads to stop."""


class Check:
    """The files of one model being read, to be compared or copied. `stop` ends it."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.stop = threading.Event()


class Work:
    """Everything here is called on the event loop, and so are `changed`, for every bit of progress, and `turned`, once
    for each state that a download comes into by itself."""

    def __init__(self, paths: Paths, changed: Callable[[], None], turned: Callable[[Download], None]) -> None:
        self._paths, self._changed, self._turned = paths, changed, turned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._waking = False
        self._downloads: dict[str, Download] = {}
        self._seen: dict[str, State] = {}
        self._checks: dict[str, Check] = {}

    def __iter__(self) -> Iterator[Download]:
        return iter(self._downloads.values())

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    def download(self, name: str) -> Download | None:
        """The download of that model since the start, whatever its state."""
        return self._downloads.get(name)

    def check(self, name: str) -> Check | None:
        return self._checks.get(name)

    @property
    def running(self) -> list[Download]:
        return [download for download in self if download.state == "running"]

    async def fetch(self, entry: Entry) -> None:
        """Begins the download, or goes on with it."""
        download = await self._of(entry)
        self._seen[entry.name] = "running"
        download.start()
        self._changed()

    def pause(self, name: str) -> None:
        if (download := self._downloads.get(name)) is not None:
            download.pause()

    async def give_up(self, entry: Entry) -> None:
        """Ends the download and takes away what is not whole; returns when that is done."""
        download = await self._of(entry)
        self._seen[entry.name] = "cancelled"  # nothing that is news to the user
        await asyncio.to_thread(download.cancel)
        await asyncio.to_thread(download.wait)
        self.forget(entry.name)

    def forget(self, name: str) -> None:
        """A download that has come to its end is of no more interest."""
        self._downloads.pop(name, None)
        self._seen.pop(name, None)
        self._changed()

    async def verify(self, model: Installed) -> list[RemoteFile] | None:
        """The files of a model whose bytes are wrong; None where it was stopped."""
        from rvchat.hub import verifying
        from rvchat.hub.progress import Progress

        check = self._checks[model.name] = Check(Progress("checking"))

        def heard(progress: Progress) -> None:
            check.progress = progress
            self._wake_soon()

        try:
            return await asyncio.to_thread(verifying.verify, model, self._paths, heard, check.stop)
        except CancelledError:
            return None
        finally:
            del self._checks[model.name]
            self._changed()

    async def bring_in(self, source: Path) -> str | None:
        """Copies a model from elsewhere, and says under what name it then is here; None where it was stopped."""
        from rvchat.hub import importing
        from rvchat.hub.progress import Progress

        copy = self._checks[str(source)] = Check(Progress("fetching"))
        name = source.resolve().name.removesuffix(".gguf")

        def heard(progress: Progress) -> None:
            copy.progress = progress
            self._wake_soon()

        try:
            await asyncio.to_thread(importing.bring_in, source, name, self._paths, heard, copy.stop)
        except CancelledError:
            return None
        finally:
            del self._checks[str(source)]
            self._changed()
        return name

    async def close(self) -> None:
        """Stops what runs; what has been fetched stays."""
        with self._lock:
            self._loop = None
        for check in self._checks.values():
            check.stop.set()
        running = self.running
        for download in running:
            download.pause()
        for download in running:
            await asyncio.to_thread(download.wait, STOP_S)

    async def _of(self, entry: Entry) -> Download:
        if entry.name not in self._downloads:
            download = await asyncio.to_thread(_made, entry, self._paths, self._heard)
            self._downloads.setdefault(entry.name, download)
        return self._downloads[entry.name]

    # --- from the threads of the downloads -----------------------------------------------------------------

    def _heard(self, download: Download) -> None:
        self._wake_soon()

    def _wake_soon(self) -> None:
        with self._lock:
            if self._loop is None or self._waking:
                return
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            self._waking = False
        for download in list(self):
            state = download.state
            if self._seen.get(download.entry.name) != state:
                self._seen[download.entry.name] = state
                self._turned(download)
        self._changed()


def _made(entry: Entry, paths: Paths, heard: Callable[[Download], None]) -> Download:
    from rvchat.hub.background import Download  # brings the library of the hub, which takes its time

    return Download(entry, paths, heard)
