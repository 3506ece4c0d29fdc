"""A download in a thread of its own, which can be paused, gone on with, and given up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rvchat.config import Paths
from rvchat.errors import CancelledError, RvchatError
from rvchat.hub.catalogue import Entry
from rvchat.hub.download import Pull
from rvchat.hub.patience import Patience
from rvchat.hub.progress import Progress

State = Literal["ready", "running", "paused", "done", "failed", "cancelled"]

log = logging.getLogger(__name__)


class Download:
    """One model on its way here. `on_change` is called from the download's thread whenever `state` or `progress` is
    another; a screen puts it into its own loop. All methods return at once and may be called from any thread."""

    def __init__(
        self, entry: Entry, paths: Paths, on_change: Callable[[Download], None], patience: Patience | None = None
    ) -> None:
        self.entry = entry
        self.state: State = "ready"
        self.progress = Progress()
        self.error: RvchatError | None = None
        self.path: Path | None = None
        self._on_change = on_change
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._give_up = False
        self._pull = Pull(entry, paths, self._heard, patience=patience or Patience())

    def start(self) -> None:
        """Begins, or goes on after a pause or a failure. Nothing where it runs already or is done."""
        with self._lock:
            if self.state in ("running", "done"):
                return
            previous, self._give_up = self._thread, False
            self._pull = replace(self._pull, stop=threading.Event())
            self.state, self.error = "running", None
            self._thread = threading.Thread(target=self._run, args=(previous,), name="rvchat-download", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Stops within a moment; what has been fetched stays. `state` is "paused" when it has stopped."""
        self._pull.stop.set()

    def cancel(self) -> None:
        """Stops, and takes away what is not whole. `state` is "cancelled" when that is done."""
        with self._lock:
            self._give_up = True
            if self.state == "running":
                self._pull.stop.set()
                return
            if self.state == "done":
                return
        self._pull.remove_partials()
        self._become("cancelled")

    def wait(self, timeout: float | None = None) -> State:
        """Blocks until it runs no more, or `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self.state

    def _run(self, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        try:
            self.path = self._pull.run()
        except CancelledError:
            if self._give_up:
                self._pull.remove_partials()
            self._become("cancelled" if self._give_up else "paused")
        except Exception as error:  # a fault of ours must not leave a download that runs for ever
            log.warning("download of %s", self.entry.repo, exc_info=True)
            worded = RvchatError(f"The download failed: {type(error).__name__}: {error}")
            self.error = error if isinstance(error, RvchatError) else worded
            self._become("failed")
        else:
            self._become("done")

    def _become(self, state: State) -> None:
        with self._lock:
            self.state = state
        self._on_change(self)

    def _heard(self, progress: Progress) -> None:
        self.progress = progress
        self._on_change(self)
