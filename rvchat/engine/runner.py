"""The device side of the engine: the parameters, the pools, and the calls of the compiled programs on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.pages import NO_PAGE, KVPages, PageTable
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.params import Params
from rvchat.engine.programs import MOST_STEPS, Answers, Chunk, Draw, advance, extend, nll, score

Array = jax.Array

# A call to the device should not last longer, so that stopping is prompt on slow machines too.
CALL_SECONDS = 0.15
# Numbers of sequences that decoding is compiled for.
SEQUENCES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of decoding that is under way. ids: int32 [S, MOST_STEPS], of which `made` [] are there when it ends."""

    ids: Array
    made: Array
    issued: float

    def tokens(self) -> list[list[int]]:
        """Waits for the call. # the new tokens of each row"""
        made = int(self.made)
        rows: list[list[int]] = np.asarray(self.ids)[:, :made].tolist()
        return rows


@dataclass
class Runner:
    """Holds what every call needs. `pools` are donated to each call and replaced by what it returns.

    `ladder`: the numbers of prompt tokens that programs are compiled for, rising.
    """

    config: ModelConfig
    params: Params
    pools: KVPages
    table: PageTable
    ladder: tuple[int, ...]
    seconds: dict[int, float] = field(default_factory=dict)
    """How long reading a piece of each length last took, compiling left out."""
    step_seconds: float | None = None
    """How long a step of decoding last took."""
    prompt_seconds: float = CALL_SECONDS
    """How long a call that reads a piece of a prompt may take."""
    _compiled: set[int] = field(default_factory=set)
    """Lengths of pieces, and numbers of rows less than zero, whose program has run before."""
    _last_end: float = 0.0

    def rung(self, count: int) -> int:
        """The shortest compiled length that holds `count` tokens."""
        return next(r for r in self.ladder if r >= count)

    def prompt_rung(self, remaining: int) -> int:
        """The compiled length for the next piece of a prompt: what is left, in a call that is not too long.

        A length that was never timed is tried when a shorter one promises that it will be quick enough.
        """
        best = self.ladder[0]
        for rung in self.ladder[1:]:
            expected = self.seconds.get(rung, self.seconds.get(best, CALL_SECONDS) * rung / best)
            if expected > self.prompt_seconds or remaining <= best:
                break
            best = rung
        return best

    def _timed(self, length: int, seconds: float) -> None:
        """Notes how long a piece took. One that was slow far into a text, or on a busy machine, is not slow for ever:
        it is tried again when a shorter one promises that it will be quick."""
        self.seconds[length] = seconds
        for longer in self.ladder:
            if longer > length and seconds * longer / length <= self.prompt_seconds:
                self.seconds.pop(longer, None)

    def steps(self, remaining: int) -> int:
        """How many steps the next call of decoding takes."""
        quick = 1 if self.step_seconds is None else int(CALL_SECONDS / self.step_seconds)
        return max(1, min(quick, remaining, MOST_STEPS))

    def score(self, sequence: PageSequence, ids: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """Logits after each of ids, the first at position `start`. # [len(ids), V]"""
        chunk = self._chunk(sequence, ids, start)
        self.pools, scores, _ = score(self.config, self.params, self.pools, chunk)
        return np.asarray(scores)[0, : len(ids)]

    def nll(
        self, sequence: PageSequence, ids: Sequence[int], targets: Sequence[int], start: int
    ) -> npt.NDArray[np.float32]:
        """The negative log likelihood of targets[i] after ids[i], the first id at position `start`. # [len(ids)]"""
        chunk = self._chunk(sequence, ids, start)
        padded = np.zeros(chunk.tokens.shape, np.int32)
        padded[0, : len(ids)] = targets
        self.pools, found = nll(self.config, self.params, self.pools, chunk, jnp.asarray(padded))
        return np.asarray(found)[0, : len(ids)]

    def hidden(self, sequence: PageSequence, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The residual stream after the embedding and after each layer. # [layers + 1, len(ids), D]"""
        chunk = self._chunk(sequence, ids, 0)
        self.pools, _, hidden = score(self.config, self.params, self.pools, chunk, keep_hidden=True)
        return np.asarray(hidden, np.float32)[:, 0, : len(ids)]

    def read(
        self, sequence: PageSequence, ids: Sequence[int], start: int, draw: Draw, *, final: bool
    ) -> tuple[Draw, Array]:
        """Reads a piece of a prompt and waits for it; where `final`, the token after it. # draw, int32 [1]"""
        chunk = self._chunk(sequence, ids, start)
        length = chunk.tokens.shape[1]
        for pool in self.pools.values():
            pool.keys.block_until_ready()  # a call that was cancelled may still be at work
        began = time.perf_counter()
        self.pools, draw, token = advance(self.config, self.params, self.pools, chunk, draw, jnp.asarray(final))
        token.block_until_ready()
        if length in self._compiled:
            self._timed(length, time.perf_counter() - began)
        self._compiled.add(length)
        return draw, token

    def together(self, states: Sequence[Answers]) -> Answers:
        """The states of single answers as the rows of one, with rows that are done up to a compiled number."""
        rows = next(s for s in SEQUENCES if s >= len(states))
        idle = [replace(states[0], done=jnp.ones(1, bool))] * (rows - len(states))
        joined: Answers = jax.tree.map(lambda *parts: jnp.concatenate(parts), *states, *idle)
        return joined

    def decode(
        self,
        rows: Sequence[tuple[PageSequence, int] | None],
        answers: Answers,
        stop_ids: npt.NDArray[np.int32],
        steps: int,
    ) -> tuple[Answers, Call]:
        """Issues `steps` steps for each row, without waiting: of a sequence that has room for them, after the token at
        a position; None where a row has ended. stop_ids: int32 [S, n]."""
        count = len(answers.token)
        # Pages are looked through from the first that any row needs, so a row that has ended stands beside the others.
        first = min((row[1] for row in rows if row is not None), default=0)
        start, active = np.full(count, first, np.int32), np.zeros(count, bool)
        tables = {kind: np.full((count, self.table.context_pages), NO_PAGE, np.int32) for kind in KINDS}
        for i, row in enumerate(rows):
            if row is not None:
                start[i], active[i] = row[1], True
                for kind in KINDS:
                    tables[kind][i] = self.table.row(row[0], kind)
        began = time.perf_counter()
        self.pools, answers, ids, made = extend(
            self.config, self.params, self.pools, answers, start, active, tables, stop_ids, np.int32(steps)
        )
        return answers, Call(ids, made, began)

    def finish(self, call: Call) -> list[list[int]]:
        """Waits for a call, notes how long its steps took, and returns the tokens it made for each row."""
        tokens = call.tokens()
        now = time.perf_counter()
        rows, made = len(tokens), len(tokens[0])
        # A call that was issued while another ran began when that one ended.
        if made and -rows in self._compiled:
            self.step_seconds = (now - max(call.issued, self._last_end)) / made
        self._compiled.add(-rows)
        self._last_end = now
        return tokens

    def make_room(self, sequence: PageSequence, start: int, count: int) -> None:
        """Raises OutOfMemoryError when the pools cannot hold `count` new tokens from position `start` on."""
        self.table.trim(sequence, start)
        self.table.extend(sequence, start, start + count)

    def _tables(self, sequence: PageSequence) -> dict[Kind, Array]:
        return {kind: jnp.asarray(self.table.row(sequence, kind)[None]) for kind in KINDS}

    def _chunk(self, sequence: PageSequence, ids: Sequence[int], start: int) -> Chunk:
        """Raises OutOfMemoryError when the pools cannot hold the new tokens."""
        count = len(ids)
        self.make_room(sequence, start, count)
        padded = np.zeros((1, self.rung(count)), np.int32)
        padded[0, :count] = ids
        return Chunk(
            jnp.asarray(padded),
            jnp.asarray([start], jnp.int32),
            jnp.asarray([count], jnp.int32),
            self._tables(sequence),
        )
