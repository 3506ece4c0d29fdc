"""Answers being made: each prompt in pieces, then calls of some steps for all of them together.

A call is issued before the last one's tokens are read, so that the device never waits for the host.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.programs import Answers, Draw
from rvchat.engine.runner import Call, Runner
from rvchat.errors import BadInputError
from rvchat.types import FinishReason, Request, Stats, TokenChunk

Array = jax.Array

MOST_STOP_IDS = 16
# Calls under way at a time: one that runs, and one that waits for it.
CALLS = 2


@dataclass(eq=False)
class Answer:
    """One answer. `limit`: how many tokens it may have; `issued`: how many are made or being made."""

    request: Request
    limit: int
    at_limit: FinishReason
    sequence: PageSequence = field(default_factory=PageSequence)
    reused: int = 0
    began: float = field(default_factory=time.perf_counter)
    # Where several answers are made, each prompt is read by itself, and then all are decoded together.
    reading_from: float | None = None
    first_token_at: float | None = None
    decoding_from: float | None = None
    new_tokens: int = 0
    issued: int = 0
    exhausted: bool = False
    finished: bool = False
    # What the decoder has read, and the token it reads next.
    read: list[int] = field(default_factory=list)
    unread: int = 0

    @property
    def cancelled(self) -> bool:
        return self.request.cancel is not None and self.request.cancel.is_set()

    @property
    def goes_on(self) -> bool:
        """Whether another call may be issued for it."""
        return not self.finished and not self.exhausted and not self.cancelled and self.issued < self.limit

    @property
    def position(self) -> int:
        """Where the token stands that the next call begins with."""
        return len(self.request.ids) + self.issued - 1

    def deliver(self, tokens: Sequence[int]) -> TokenChunk:
        """The chunk of new tokens up to a stop id, and why the answer ends with them if it does."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        if self.cancelled:
            return self.chunk((), "cancelled")
        stop = next((i for i, token in enumerate(tokens) if token in self.request.stop_ids), None)
        kept = tuple(tokens[:stop])
        self.new_tokens += len(kept)
        if stop is not None:
            return self.chunk(kept, "stop")
        return self.chunk(kept, self.at_limit if self.new_tokens >= self.limit else None)

    def chunk(self, ids: tuple[int, ...], finish: FinishReason | None) -> TokenChunk:
        now = time.perf_counter()
        reading = now if self.reading_from is None else self.reading_from
        first = now if self.first_token_at is None else self.first_token_at
        decoding = now if self.decoding_from is None else self.decoding_from
        self.finished = finish is not None
        stats = Stats(
            prompt_tokens=len(self.request.ids),
            reused_tokens=self.reused,
            new_tokens=self.new_tokens,
            ttft_s=first - self.began,
            prefill_s=first - reading,
            decode_s=now - decoding,
        )
        return TokenChunk(ids, finish, stats)


class Generation:
    """Some answers at once, each with its own sampling, seed, limits and cancellation."""

    def __init__(self, runner: Runner, requests: Sequence[Request], max_context: int) -> None:
        """Raises BadInputError for more stop ids than a call can look for."""
        self.runner = runner
        self.answers: list[Answer] = []
        for request in requests:
            if len(request.stop_ids) > MOST_STOP_IDS:
                raise BadInputError(f"There are {len(request.stop_ids)} stop ids; at most {MOST_STOP_IDS} are possible")
            room, wanted = max_context - len(request.ids), request.max_new_tokens
            if wanted is None or wanted > room:
                self.answers.append(Answer(request, room, "context"))
            else:
                self.answers.append(Answer(request, wanted, "length"))

    def run(self) -> Generator[tuple[int, TokenChunk], None, None]:
        """Chunks, each with the number of its request. An answer that ends gives its pages back, closing all do."""
        try:
            for number, chunk in self._chunks():
                if chunk.finish is not None:
                    self.runner.table.release(self.answers[number].sequence)
                yield number, chunk
        finally:
            for answer in self.answers:
                self.runner.table.release(answer.sequence)

    def _chunks(self) -> Generator[tuple[int, TokenChunk], None, None]:
        started: list[tuple[Answer, Answers]] = []
        for number, answer in enumerate(self.answers):
            chunk, state = self._start(answer)
            yield number, chunk
            if state is not None and not answer.finished:
                started.append((answer, state))
        if started:
            yield from self._decode([a for a, _ in started], self.runner.together([s for _, s in started]))

    def _start(self, answer: Answer) -> tuple[TokenChunk, Answers | None]:
        """Reads the prompt and delivers the first token, before anything else is done."""
        answer.reading_from = time.perf_counter()
        ids, table = list(answer.request.ids), self.runner.table
        answer.sequence, answer.reused = table.begin(ids)
        table.keep(answer.sequence, len(ids))
        done = answer.reused
        draw = Draw.start([answer.request.sampling], self.runner.config.vocab_size, [ids[:done]])
        while done < len(ids):
            if answer.cancelled:
                return answer.chunk((), "cancelled"), None
            most = min(self.runner.prompt_rung(len(ids) - done), len(ids) - done)
            piece = ids[done : done + self._make_room([(answer.sequence, done)], most)]
            if not piece:
                return answer.chunk((), "memory"), None
            final = done + len(piece) == len(ids)
            draw, token = self.runner.read(answer.sequence, piece, done, draw, final=final)
            done += len(piece)
            table.wrote(answer.sequence, ids[:done])
            if answer.request.on_prefill is not None:
                answer.request.on_prefill(done, len(ids))
        answer.read = ids
        if answer.limit < 1:
            return answer.chunk((), answer.at_limit), None
        answer.unread, answer.issued = int(np.asarray(token)[0]), 1
        return answer.deliver([answer.unread]), Answers(token, jnp.zeros(1, bool), draw)

    def _decode(self, answers: list[Answer], state: Answers) -> Generator[tuple[int, TokenChunk], None, None]:
        """`answers` stand in the rows of `state` in this order."""
        stop_ids = np.full((len(state.token), MOST_STOP_IDS), -1, np.int32)
        for row, answer in enumerate(answers):
            stop_ids[row, : len(answer.request.stop_ids)] = answer.request.stop_ids
            answer.decoding_from = time.perf_counter()
        calls: deque[tuple[Call, list[Answer]]] = deque()
        while not all(answer.finished for answer in answers):
            while len(calls) < CALLS and (active := [a for a in answers if a.goes_on]):
                most = self.runner.steps(min(a.limit - a.issued for a in active))
                steps = self._make_room([(a.sequence, a.position) for a in active], most)
                if not steps:
                    break  # what is under way may end an answer, whose pages then serve the others
                rows = [(a.sequence, a.position) if a in active else None for a in answers]
                state, call = self.runner.decode(rows, state, stop_ids, steps)
                calls.append((call, active))
                for answer in active:
                    answer.issued += steps
            if calls:
                call, made_for = calls.popleft()
                made = self.runner.finish(call)
                for answer in made_for:
                    tokens = made[answers.index(answer)]
                    if tokens and not answer.finished:
                        answer.read += [answer.unread, *tokens[:-1]]
                        answer.unread = tokens[-1]
                        self.runner.table.wrote(answer.sequence, answer.read)
                        yield self._number(answer), answer.deliver(tokens)
            elif active:
                self._without_room(active).exhausted = True
            for answer in answers:
                waits = any(answer in others for _, others in calls)
                if not answer.finished and not answer.goes_on and not waits:
                    yield self._number(answer), answer.chunk((), "cancelled" if answer.cancelled else "memory")

    def _make_room(self, sequences: Sequence[tuple[PageSequence, int]], most: int) -> int:
        """Takes the pages for new tokens of each sequence from its position on: as many as all have room for, at most
        `most`. # how many that is"""
        table = self.runner.table
        for sequence, position in sequences:
            table.trim(sequence, position)
        count = table.room(sequences, most)
        for sequence, position in sequences:
            table.extend(sequence, position, position + count)
        return count

    def _without_room(self, answers: Sequence[Answer]) -> Answer:
        """The first of them that has no page for its next token once those before it have theirs."""
        places = [(a.sequence, a.position) for a in answers]
        return next(a for i, a in enumerate(answers, 1) if not self.runner.table.room(places[:i], 1))

    def _number(self, answer: Answer) -> int:
        return self.answers.index(answer)
