"""The compiled programs: a score of every position, a chunk of a prompt, one step of decoding.

Each is compiled once per shape. Lengths, page ids and sampling settings are arrays. Pools are donated.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.decoder import Result, Step, decode, logits
from rvchat.engine.pages import KVPages, write
from rvchat.engine.params import Params
from rvchat.engine.sampling import Settings, choose
from rvchat.kernels.attention import Pages
from rvchat.types import Sampling

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chunk:
    """S sequences by C new tokens: tokens int32 [S, C]; start, count int32 [S]; tables int32 [S, context pages]."""

    tokens: Array
    start: Array
    count: Array
    tables: dict[Kind, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draw:
    """What choosing tokens needs besides logits.

    keys: uint32 [S, 2], from the seed; seen: bool [S, V], the tokens so far, for the repetition penalty.
    """

    settings: Settings
    keys: Array
    seen: Array

    @classmethod
    def start(cls, samplings: Sequence[Sampling], vocab_size: int) -> Draw:
        """Nothing seen yet. A sampling without a seed gets a fresh one."""
        seeds = [secrets.randbits(32) if s.seed is None else s.seed % (1 << 32) for s in samplings]
        keys = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        return cls(Settings.of(samplings), keys, jnp.zeros((len(seeds), vocab_size), bool))

    def saw(self, tokens: Array, count: Array) -> Draw:
        """With the first `count` [S] of tokens [S, C] seen."""
        real = jnp.arange(tokens.shape[1]) < count[:, None]
        row = jnp.arange(tokens.shape[0])[:, None]
        return replace(self, seen=self.seen.at[row, jnp.where(real, tokens, self.seen.shape[1])].set(True, mode="drop"))


def _step(pools: KVPages, chunk: Chunk) -> Step:
    pages = {k: Pages(pools[k].keys, pools[k].values, chunk.tables[k], chunk.start) for k in KINDS}
    return Step(chunk.tokens, chunk.count, pages)


def _written(pools: KVPages, chunk: Chunk, result: Result) -> KVPages:
    with jax.named_scope("write_pages"):
        new = {k: write(pools[k], rows, chunk.tables[k], chunk.start, chunk.count) for k, rows in result.rows.items()}
    return {**pools, **new}


@partial(jax.jit, static_argnames=("config", "keep_hidden"), donate_argnames="pools")
def score(
    config: ModelConfig, params: Params, pools: KVPages, chunk: Chunk, keep_hidden: bool = False
) -> tuple[KVPages, Array, Array | None]:
    """Logits of every new position, and the residual stream of every layer if asked. # pools, float32 [S, C, V]"""
    result = decode(config, params, _step(pools, chunk), keep_hidden=keep_hidden)
    return _written(pools, chunk, result), logits(config, params, result.x), result.hidden


@partial(jax.jit, static_argnames=("config",), donate_argnames=("pools", "draw"))
def advance(
    config: ModelConfig, params: Params, pools: KVPages, chunk: Chunk, draw: Draw, final: Array
) -> tuple[KVPages, Draw, Array]:
    """Reads a chunk and, where `final` (bool []), chooses the token after it. # pools, draw, int32 [S]

    A chunk of a prompt and a step of decoding are this program at different shapes.
    """
    result = decode(config, params, _step(pools, chunk), last_only=True)
    draw = draw.saw(chunk.tokens, chunk.count)

    def choice() -> Array:
        scores = logits(config, params, result.x[:, 0])
        with jax.named_scope("sample"):
            keys = jax.vmap(jax.random.fold_in)(draw.keys, chunk.start + chunk.count)
            return choose(scores, draw.settings, draw.seen, keys)

    token = lax.cond(final, choice, lambda: jnp.zeros(chunk.start.shape, jnp.int32))
    return _written(pools, chunk, result), draw, token
