"""How far a download is: bytes of the whole model, rate, remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rvchat.engine.memory import gigabytes

Stage = Literal["asking", "waiting", "checking", "fetching", "linking", "done"]

_ACTIVITIES: dict[Stage, str] = {
    "asking": "Asking the hub",
    "waiting": "Waiting for another program to fetch",
    "checking": "Checking",
    "fetching": "Fetching",
    "linking": "Keeping",
    "done": "Done",
}

# The rate is that of so many seconds.
RATE_S = 8.0
# Reports in between are left out.
INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` and `total`: bytes of all files of the model; `total` 0 while it is not known. `rate`: bytes a second.
    `remaining`: seconds. `note`: what happens besides, in a sentence: a wait, another try."""

    stage: Stage = "asking"
    file: str = ""
    done: int = 0
    total: int = 0
    rate: float | None = None
    remaining: float | None = None
    note: str = ""

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def how_far(self) -> str:
        """In words: "43% of 3.4 GB, 12.3 MB/s, 2 min left"; empty while nothing is known."""
        if self.fraction is None:
            return ""
        parts = [f"{self.fraction:.0%} of {gigabytes(self.total)}"]
        if self.rate is not None:
            parts.append(f"{self.rate / 1e6:.1f} MB/s")
        if self.remaining is not None:
            minutes, seconds = divmod(round(self.remaining), 60)
            parts.append(f"{minutes} min left" if minutes else f"{seconds} s left")
        return ", ".join(parts)

    @property
    def activity(self) -> str:
        """The stage in words."""
        return _ACTIVITIES[self.stage]


OnProgress = Callable[[Progress], None]


class Tracker:
    """Adds up the files of one model and tells `on_progress`, at most some times a second."""

    def __init__(self, on_progress: OnProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = on_progress, clock
        self._now = Progress()
        self._before = 0
        self._came: deque[tuple[float, int]] = deque()
        self._told = float("-inf")

    def expect(self, total: int) -> None:
        self._now = replace(self._now, total=total)

    def begin(self, stage: Stage, file: str = "") -> None:
        if (stage, file) != (self._now.stage, self._now.file):
            self._came.clear()
            self._now = replace(self._now, stage=stage, file=file, rate=None, remaining=None, note="")
        self._report(True)

    def at(self, size: int) -> None:
        """So many bytes of the current file are there."""
        done = self._before + size
        if self._now.stage == "fetching":
            self._measure(size)
        self._now = replace(self._now, done=done, note="")
        self._report(False)

    def complete(self, size: int) -> None:
        """The current file, of so many bytes, is there."""
        self._before += size
        self._now = replace(self._now, done=self._before)
        self._report(True)

    def note(self, text: str) -> None:
        self._came.clear()
        self._now = replace(self._now, note=text, rate=None, remaining=None)
        self._report(True)

    def _measure(self, size: int) -> None:
        now = self._clock()
        if self._came and size < self._came[-1][1]:
            self._came.clear()  # begun anew
        self._came.append((now, size))
        while now - self._came[0][0] > RATE_S:
            self._came.popleft()
        since, first = self._came[0]
        rate = (size - first) / (now - since) if now - since >= 1.0 else None
        left = self._now.total - self._before - size
        self._now = replace(self._now, rate=rate, remaining=left / rate if rate and self._now.total else None)

    def _report(self, always: bool) -> None:
        now = self._clock()
        if always or now - self._told >= INTERVAL_S:
            self._told = now
            self._tell(self._now)
