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
# What was last asked of it.
Wish = Literal["run", "pause", "cancel"]

log = logging.getLogger(__name__)


class Download:
    """One model on its way here. `on_change` is called from the download's thread whenever `state` or `progress` is
    another; a screen puts it into its own loop. All methods return at once and may be called from any thread, in any
    order: what was asked for last is what happens, unless all is there before."""

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
        self._wish: Wish = "pause"
        self._working = False
        self._thread: threading.Thread | None = None
        self._pull = Pull(entry, paths, self._heard, patience=patience or Patience())

    def start(self) -> None:
        """Begins, or goes on after a pause, a failure or giving up. Nothing where it runs already or is done."""
        self._ask("run")

    def pause(self) -> None:
        """Stops within a moment; what has been fetched stays. `state` is "paused" when it has stopped."""
        self._ask("pause")

    def cancel(self) -> None:
        """Stops, and takes away what is not whole. `state` is "cancelled" when that is done."""
        self._ask("cancel")

    def wait(self, timeout: float | None = None) -> State:
        """Blocks until it runs no more, or `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self.state

    def _ask(self, wish: Wish) -> None:
        with self._lock:
            if self.state == "done" or (wish == "pause" and (not self._working or self._wish == "cancel")):
                return
            self._wish = wish
            if wish == "run":
                self.state, self.error = "running", None
            else:
                self._pull.stop.set()
            if not self._working:
                self._working = True
                self._thread = threading.Thread(target=self._work, name="rvchat-download", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        """Does what is wished, until nothing else was wished in the meantime."""
        while True:
            with self._lock:
                wish = self._wish
                if wish == "run":
                    self._pull = replace(self._pull, stop=threading.Event())
            state = self._do(wish)
            with self._lock:
                if state == "done" or (state is not None and (self._wish == wish or self._wish == "pause")):
                    self.state, self._working = state, False
                    break
        self._on_change(self)

    def _do(self, wish: Wish) -> State | None:
        """The state that it is in then; None where it was stopped before."""
        try:
            if wish == "run":
                self.path = self._pull.run()
                return "done"
            if wish == "cancel":
                self._pull.remove_partials()
                return "cancelled"
        except CancelledError:
            return None
        except Exception as error:  # a fault of ours must not leave a download that runs for ever
            log.warning("download of %s", self.entry.repo, exc_info=True)
            worded = RvchatError(f"The download failed: {type(error).__name__}: {error}")
            self.error = error if isinstance(error, RvchatError) else worded
            return "failed"
        return "paused"

    def _heard(self, progress: Progress) -> None:
        self.progress = progress
        self._on_change(self)
