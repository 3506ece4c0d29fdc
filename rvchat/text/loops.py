"""Noticing that an answer says the same thing over and over."""

from __future__ import annotations

from dataclasses import dataclass

_STEP = 64  # characters between two looks
_KEY = 32  # characters at the end whose last occurrence gives the period
_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """When repetition counts as a loop: a block of at most `period` characters, `count` times in a row, and all of it
    at least `length` characters long, so that a drawn line or a table's rows do not."""

    period: int = 1000
    count: int = 6
    length: int = 1000

    def __post_init__(self) -> None:
        if self.period < 1 or self.count < 2 or self.length < 1:
            raise ValueError(f"{self}: period and length are at least 1, count at least 2")


class LoopWatch:
    """Looks for a loop in text that comes in pieces. It looks at fixed places of the text, so that how the text was cut
    makes no difference, and in time that is linear in it."""

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard
        self._window = max(guard.length, guard.period * guard.count)
        self._tail = ""
        self._fresh: list[str] = []
        self._until = _STEP

    def take(self, text: str) -> tuple[str, bool]:
        """How much of `text` may pass, and whether a loop was noticed at its end."""
        at = 0
        while len(text) - at >= self._until:
            self._fresh.append(text[at : at + self._until])
            at += self._until
            self._until = _STEP
            self._tail = (self._tail + "".join(self._fresh))[-self._window :]
            self._fresh.clear()
            if self._repeats():
                return text[:at], True
        if at < len(text):
            self._fresh.append(text[at:])
            self._until -= len(text) - at
        return text, False

    def _repeats(self) -> bool:
        tail, guard = self._tail, self._guard
        if len(tail) < guard.length:
            return False
        key = tail[-_KEY:]
        first = max(0, len(tail) - _KEY - guard.period)
        at = tail.rfind(key, first, len(tail) - 1)
        for _ in range(_CANDIDATES):
            if at < 0:
                return False
            period = len(tail) - _KEY - at
            size = max(guard.length, period * guard.count)
            if size <= len(tail) and tail[-size:-period] == tail[len(tail) - size + period :]:
                return True
            at = tail.rfind(key, first, at + _KEY - 1)
        return False
