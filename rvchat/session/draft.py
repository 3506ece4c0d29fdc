"""An answer while it is being made."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from rvchat.types import Message, Sampling, Stats, ToolCall


class Draft:
    """Takes text as it comes from the engine thread and gives the message so far to any other."""

    def __init__(self, message: Message) -> None:
        self._lock = threading.Lock()
        self.id = message.id
        self._base = message
        self._content = [message.content]
        self._reasoning = [message.reasoning]
        self._calls = list(message.tool_calls)
        self._stats = message.stats
        self._thinking_since: float | None = None
        self._reasoning_s = message.reasoning_s

    def answer(self, text: str) -> None:
        with self._lock:
            self._stop_thinking()
            self._content.append(text)

    def reasoning(self, text: str) -> None:
        with self._lock:
            if self._thinking_since is None:
                self._thinking_since = time.monotonic()
            self._reasoning.append(text)

    def call(self, call: ToolCall) -> None:
        with self._lock:
            self._stop_thinking()
            self._calls.append(call)

    def made(self, stats: Stats) -> None:
        """`stats` of the request that runs; what the message had cost before is added."""
        with self._lock:
            self._stats = together(self._base.stats, stats)

    def made_by(self, model: str, sampling: Sampling) -> None:
        with self._lock:
            self._base = replace(self._base, model=model, sampling=sampling)

    def message(self) -> Message:
        """The message so far, as streaming."""
        with self._lock:
            self._content = ["".join(self._content)]
            self._reasoning = ["".join(self._reasoning)]
            return replace(
                self._base,
                content=self._content[0],
                reasoning=self._reasoning[0],
                reasoning_s=self._thought_for(),
                tool_calls=tuple(self._calls),
                stats=self._stats,
            )

    def _thought_for(self) -> float | None:
        if self._thinking_since is None:
            return self._reasoning_s
        return (self._reasoning_s or 0.0) + time.monotonic() - self._thinking_since

    def _stop_thinking(self) -> None:
        self._reasoning_s = self._thought_for()
        self._thinking_since = None


def together(before: Stats | None, now: Stats) -> Stats:
    """What an answer cost that was continued: times and new tokens add up, the first token came once."""
    if before is None:
        return now
    return Stats(
        prompt_tokens=now.prompt_tokens,
        reused_tokens=now.reused_tokens,
        new_tokens=before.new_tokens + now.new_tokens,
        ttft_s=before.ttft_s or now.ttft_s,
        prefill_s=before.prefill_s + now.prefill_s,
        decode_s=before.decode_s + now.decode_s,
    )
