"""One answer: the prompt in pieces, then calls of some steps, each issued before the last one's tokens are read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rvchat.engine.pages import PagesExhaustedError
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Answers, Draw
from rvchat.engine.runner import Call, Runner
from rvchat.errors import BadInputError
from rvchat.types import FinishReason, Request, Stats, TokenChunk

Array = jax.Array

MOST_STOP_IDS = 16


@dataclass
class Generation:
    """The state of one answer while it is made."""

    runner: Runner
    request: Request
    max_context: int
    sequence: PageSequence = field(default_factory=PageSequence)
    reused: int = 0
    began: float = field(default_factory=time.perf_counter)
    new_tokens: int = 0
    first_token_at: float | None = None

    def __post_init__(self) -> None:
        if len(self.request.stop_ids) > MOST_STOP_IDS:
            raise BadInputError(
                f"There are {len(self.request.stop_ids)} stop ids; at most {MOST_STOP_IDS} are possible"
            )

    def run(self) -> Iterator[TokenChunk]:
        """Ends after the chunk that has a finish reason. Closing it gives the pages back."""
        try:
            yield from self._run()
        except PagesExhaustedError:
            yield self._chunk([], "memory")
        finally:
            self.runner.table.release(self.sequence)

    @property
    def _limit(self) -> tuple[int, FinishReason]:
        """How many tokens there may be at most, and what it is called to reach that."""
        room = self.max_context - len(self.request.ids)
        wanted = self.request.max_new_tokens
        return (room, "context") if wanted is None or wanted > room else (wanted, "length")

    def _run(self) -> Iterator[TokenChunk]:
        ids = list(self.request.ids)
        table = self.runner.table
        self.sequence, self.reused = table.begin(ids)
        done = self.reused
        draw = Draw.start([self.request.sampling], self.runner.config.vocab_size, [ids[:done]])
        while done < len(ids):
            if self._cancelled():
                yield self._chunk([], "cancelled")
                return
            piece = ids[done : done + self.runner.prompt_rung(len(ids) - done)]
            done += len(piece)
            draw, token = self.runner.read(self.sequence, piece, done - len(piece), draw, final=done == len(ids))
            table.wrote(self.sequence, ids[:done])
            if self.request.on_prefill is not None:
                self.request.on_prefill(done, len(ids))
        table.keep(self.sequence, len(ids))
        limit, reason = self._limit
        if limit < 1:
            yield self._chunk([], reason)
            return
        # The first token is delivered before anything else is done.
        first = int(np.asarray(token)[0])
        chunk = self._deliver([first])
        yield chunk
        if chunk.finish is None:
            yield from self._decode(Answers(token, jnp.zeros(1, bool), draw), first)

    def _decode(self, answers: Answers, first: int) -> Iterator[TokenChunk]:
        """`first` is the token that `answers` begin with: chosen, and not yet read by the decoder."""
        stop_ids = np.full((1, MOST_STOP_IDS), -1, np.int32)
        stop_ids[0, : len(self.request.stop_ids)] = self.request.stop_ids
        stops = jnp.asarray(stop_ids)
        limit, _ = self._limit
        written = list(self.request.ids)
        unread = first
        calls: deque[Call] = deque()
        issued, exhausted = 1, False
        while True:
            while len(calls) < 2 and issued < limit and not exhausted and not self._cancelled():
                steps = self.runner.steps(limit - issued)
                position = len(self.request.ids) + issued - 1
                try:
                    answers, call = self.runner.decode(self.sequence, answers, position, stops, steps)
                except PagesExhaustedError:
                    exhausted = True
                    break
                calls.append(call)
                issued += steps
            if not calls:
                yield self._chunk([], "cancelled" if self._cancelled() else "memory")
                return
            made = self.runner.finish(calls.popleft())
            written += [unread, *made[:-1]] if made else []
            unread = made[-1] if made else unread
            self.runner.table.wrote(self.sequence, written)
            chunk = self._deliver(made)
            yield chunk
            if chunk.finish is not None:
                return

    def _deliver(self, tokens: list[int]) -> TokenChunk:
        """The chunk of new tokens, up to a stop id, and why the answer ends with them if it does."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        if self._cancelled():
            return self._chunk([], "cancelled")
        stop = next((i for i, token in enumerate(tokens) if token in self.request.stop_ids), None)
        kept = tokens[:stop]
        self.new_tokens += len(kept)
        limit, reason = self._limit
        if stop is not None:
            return self._chunk(kept, "stop")
        return self._chunk(kept, reason if self.new_tokens >= limit else None)

    def _cancelled(self) -> bool:
        return self.request.cancel is not None and self.request.cancel.is_set()

    def _chunk(self, ids: list[int], finish: FinishReason | None) -> TokenChunk:
        now = time.perf_counter()
        first = self.first_token_at if self.first_token_at is not None else now
        return TokenChunk(
            tuple(ids),
            finish,
            Stats(
                prompt_tokens=len(self.request.ids),
                reused_tokens=self.reused,
                new_tokens=self.new_tokens,
                ttft_s=first - self.began,
                prefill_s=first - self.began,
                decode_s=now - first,
            ),
        )
