"""From the engine's thread to the screen: events wait in a queue and are taken in batches, never one by one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter

from rvchat.types import Event, ReasoningDelta, TextDelta

FLUSH_S = 0.08
"""Seconds between two batches; longer where the screen needs long to show one."""

_SHARE = 5  # a batch that took t seconds to show is followed by this many times t without one
_SLOWEST_S = 0.5


class Bridge:
    """Collects events from any thread and hands them to `deliver` on the event loop.

    Nothing wakes the loop while there are no events. `shown` tells how long showing the last batch took.
    """

    def __init__(self, deliver: Callable[[list[Event]], None]) -> None:
        self._deliver = deliver
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False
        self._last = 0.0
        self._pause = FLUSH_S

    def attach(self) -> None:
        """Starts handing over, on the running loop. What came before is handed over at once."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        self.flush()

    def detach(self) -> None:
        """Ends it: later events are kept unseen."""
        with self._lock:
            self._loop = None

    def rest(self) -> list[Event]:
        """Takes what has come and was not handed over."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
        return events

    def put(self, event: Event) -> None:
        """Called from any thread; returns at once."""
        with self._lock:
            self._events.append(event)
            if self._loop is None or self._waking:
                return
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def shown(self, seconds: float) -> None:
        self._pause = min(max(FLUSH_S, _SHARE * seconds), _SLOWEST_S)

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        delay = self._last + self._pause - perf_counter()
        if delay > 0:
            loop.call_later(delay, self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Hands over what has come so far, now."""
        with self._lock:
            self._waking = False
            if self._loop is None:
                return
        events = self.rest()
        self._last = perf_counter()
        if events:
            self._deliver(merged(events))


def merged(events: list[Event]) -> list[Event]:
    """`events` with neighbouring pieces of the same text joined."""
    out: list[Event] = []
    pieces: list[str] = []

    def close() -> None:
        if pieces:
            last = out[-1]
            assert isinstance(last, TextDelta | ReasoningDelta)
            out[-1] = type(last)(last.answer_id, last.text + "".join(pieces))
            pieces.clear()

    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, TextDelta | ReasoningDelta)
            and isinstance(last, TextDelta | ReasoningDelta)
            and type(event) is type(last)
            and event.answer_id == last.answer_id
        ):
            pieces.append(event.text)
        else:
            close()
            out.append(event)
    close()
    return out
