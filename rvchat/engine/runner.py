"""The device side of the engine: the parameters, the pools, and the calls of the compiled programs on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.config import KINDS, ModelConfig
from rvchat.engine.pages import KVPages, PageTable
from rvchat.engine.pages import Sequence as PageSequence
from rvchat.engine.params import Params
from rvchat.engine.programs import Chunk, Draw, advance, score

Array = jax.Array

# A call to the device should not last longer, so that stopping is prompt on slow machines too.
CALL_SECONDS = 0.15


@dataclass
class Runner:
    """Holds what every call needs. `pools` are donated to each call and replaced by what it returns.

    `ladder`: the numbers of new tokens that programs are compiled for, rising from 1.
    """

    config: ModelConfig
    params: Params
    pools: KVPages
    table: PageTable
    ladder: tuple[int, ...]
    seconds: dict[int, float] = field(default_factory=dict)
    """How long a call of each length last took, compiling left out."""
    _compiled: set[int] = field(default_factory=set)

    def rung(self, count: int) -> int:
        """The shortest compiled length that holds `count` tokens."""
        return next(r for r in self.ladder if r >= count)

    def prompt_rung(self, remaining: int) -> int:
        """The compiled length for the next piece of a prompt: what is left, in a call that is not too long.

        One rung above the longest that was measured is tried once its predecessor promises to be quick enough.
        """
        best = self.ladder[min(1, len(self.ladder) - 1)]
        for rung in self.ladder[2:]:
            known = self.seconds.get(rung)
            expected = known if known is not None else self.seconds.get(best, CALL_SECONDS) * rung / best
            if expected > CALL_SECONDS or remaining <= best:
                break
            best = rung
        return min(best, self.rung(min(remaining, best)))

    def score(self, sequence: PageSequence, ids: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """Logits after each of ids, the first at position `start`. # [len(ids), V]"""
        chunk = self._chunk(sequence, ids, start)
        self.pools, scores, _ = score(self.config, self.params, self.pools, chunk)
        return np.asarray(scores)[0, : len(ids)]

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
        began = time.perf_counter()
        self.pools, draw, token = advance(self.config, self.params, self.pools, chunk, draw, jnp.asarray(final))
        token.block_until_ready()
        if length in self._compiled:
            self.seconds[length] = time.perf_counter() - began
        self._compiled.add(length)
        return draw, token

    def step(self, sequence: PageSequence, token: Array, position: int, draw: Draw) -> tuple[Draw, Array]:
        """Issues one step of decoding after `token` [1], still on the device, without waiting. # draw, int32 [1]"""
        chunk = self._chunk(sequence, token, position)
        self.pools, draw, token = advance(self.config, self.params, self.pools, chunk, draw, jnp.asarray(True))
        return draw, token

    def _chunk(self, sequence: PageSequence, ids: Sequence[int] | Array, start: int) -> Chunk:
        """Raises PagesExhaustedError when the pools cannot hold the new tokens."""
        count = len(ids)
        self.table.trim(sequence, start)
        self.table.extend(sequence, start, start + count)
        if isinstance(ids, jax.Array):
            tokens = ids[:, None]
        else:
            padded = np.zeros((1, self.rung(count)), np.int32)
            padded[0, :count] = ids
            tokens = jnp.asarray(padded)
        return Chunk(
            tokens,
            jnp.asarray([start], jnp.int32),
            jnp.asarray([count], jnp.int32),
            {kind: jnp.asarray(self.table.row(sequence, kind)[None]) for kind in KINDS},
        )
