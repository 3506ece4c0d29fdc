"""One answer: the prompt in pieces, then step after step, each issued before the last one's token is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from rvchat.engine.pages import PagesExhaustedError
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Draw
from rvchat.engine.runner import Runner
from rvchat.types import FinishReason, Request, Stats, TokenChunk

Array = jax.Array


@dataclass
class Generation:
    """The state of one answer while it is made."""

    runner: Runner
    request: Request
    max_context: int
    sequence: PageSequence = field(default_factory=PageSequence)
    began: float = field(default_factory=time.perf_counter)
    new_tokens: int = 0
    first_token_at: float | None = None

    def run(self) -> Iterator[TokenChunk]:
        """Ends after the chunk that has a finish reason. Closing it gives the pages back."""
        try:
            yield from self._run()
        finally:
            self.runner.table.release(self.sequence)

    def _run(self) -> Iterator[TokenChunk]:
        ids = list(self.request.ids)
        draw = Draw.start([self.request.sampling], self.runner.config.vocab_size)
        try:
            done = 0
            while done < len(ids):
                if self._cancelled():
                    yield self._chunk((), "cancelled")
                    return
                piece = ids[done : done + self.runner.prompt_rung(len(ids) - done)]
                final = done + len(piece) == len(ids)
                draw, token = self.runner.read(self.sequence, piece, done, draw, final=final)
                done += len(piece)
                if self.request.on_prefill is not None:
                    self.request.on_prefill(done, len(ids))
            if self.request.max_new_tokens is not None and self.request.max_new_tokens < 1:
                yield self._chunk((), "length")
                return
            yield from self._decode(token, len(ids), draw)
        except PagesExhaustedError:
            yield self._chunk((), "memory")

    def _decode(self, token: Array, position: int, draw: Draw) -> Iterator[TokenChunk]:
        """`token` [1] stands at `position`, and is still on the device."""
        limit = self.request.max_new_tokens
        stop_ids = frozenset(self.request.stop_ids)
        while True:
            last = (limit is not None and self.new_tokens + 1 >= limit) or position + 1 >= self.max_context
            following: Array | None = None
            exhausted = False
            if self.first_token_at is not None and not last and not self._cancelled():
                # Issued before this token is read; the very first token is delivered before anything else is done.
                try:
                    draw, following = self.runner.step(self.sequence, token, position, draw)
                except PagesExhaustedError:
                    exhausted = True
            value = int(np.asarray(token)[0])
            if self.first_token_at is None:
                self.first_token_at = time.perf_counter()
            if self._cancelled():
                yield self._chunk((), "cancelled")
                return
            if value in stop_ids:
                yield self._chunk((), "stop")
                return
            self.new_tokens += 1
            finish: FinishReason | None = None
            if last:
                finish = "length" if limit is not None and self.new_tokens >= limit else "context"
            elif exhausted:
                finish = "memory"
            yield self._chunk((value,), finish)
            if finish is not None:
                return
            if following is None:
                draw, following = self.runner.step(self.sequence, token, position, draw)
            token, position = following, position + 1

    def _cancelled(self) -> bool:
        return self.request.cancel is not None and self.request.cancel.is_set()

    def _chunk(self, ids: tuple[int, ...], finish: FinishReason | None) -> TokenChunk:
        now = time.perf_counter()
        first = self.first_token_at if self.first_token_at is not None else now
        return TokenChunk(
            ids,
            finish,
            Stats(
                prompt_tokens=len(self.request.ids),
                new_tokens=self.new_tokens,
                ttft_s=first - self.began,
                prefill_s=first - self.began,
                decode_s=now - first,
            ),
        )
