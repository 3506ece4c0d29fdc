"""The compiled programs: scores of every position, a piece of a prompt, some steps of decoding.

Each is compiled once per shape. Lengths, page ids and sampling settings are arrays. Pools are donated.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvchat.engine.config import KINDS, Kind, ModelConfig
from rvchat.engine.decoder import Result, Rows, Step, activation_dtype, decode, logits
from rvchat.engine.pages import KVPages, Pool, write
from rvchat.engine.params import Params
from rvchat.engine.sampling import Settings, choose
from rvchat.kernels.attention import Pages
from rvchat.types import Sampling

Array = jax.Array

# Steps that one call of decoding may take.
MOST_STEPS = 16
# Where scores are used up and not returned, so many rows of them, of 262,144 numbers each, exist at a time.
SCORED_ROWS = 128


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
    def start(cls, samplings: Sequence[Sampling], vocab_size: int, seen: Sequence[Sequence[int]]) -> Draw:
        """With the tokens `seen` by each sequence so far. A sampling without a seed gets a fresh one."""
        seeds = [secrets.randbits(32) if s.seed is None else s.seed % (1 << 32) for s in samplings]
        keys = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        marks = np.zeros((len(seeds), vocab_size), bool)
        for row, ids in zip(marks, seen, strict=True):
            row[list(ids)] = True
        return cls(Settings.of(samplings), keys, jnp.asarray(marks))

    def saw(self, tokens: Array, count: Array) -> Draw:
        """With the first `count` [S] of tokens [S, C] seen."""
        real = jnp.arange(tokens.shape[1]) < count[:, None]
        row = jnp.arange(tokens.shape[0])[:, None]
        return replace(self, seen=self.seen.at[row, jnp.where(real, tokens, self.seen.shape[1])].set(True, mode="drop"))


def _step(pools: KVPages, chunk: Chunk) -> Step:
    pages = {k: Pages(pools[k].keys, pools[k].values, chunk.tables[k], chunk.start) for k in KINDS}
    return Step(chunk.tokens, chunk.count, pages)


def _written(pools: KVPages, chunk: Chunk, result: Result) -> KVPages:
    """Layers that share KV read the pools after the last row was made, and XLA copies what is written before it is
    read. So whether a row is written depends on what the last layer gave: none is where that is not a number."""
    with jax.named_scope("write_pages"):
        count = jnp.where(jnp.isnan(result.x).all(axis=(1, 2)), 0, chunk.count)
        new = {k: write(pools[k], rows, chunk.tables[k], chunk.start, count) for k, rows in result.rows.items()}
    return {**pools, **new}


@partial(jax.jit, static_argnames=("config", "keep_hidden"), donate_argnames="pools")
def score(
    config: ModelConfig, params: Params, pools: KVPages, chunk: Chunk, keep_hidden: bool = False
) -> tuple[KVPages, Array, Array | None]:
    """Logits of every new position, and the residual stream of every layer if asked. # pools, float32 [S, C, V]"""
    result = decode(config, params, _step(pools, chunk), keep_hidden=keep_hidden)
    return _written(pools, chunk, result), logits(config, params, result.x), result.hidden


@partial(jax.jit, static_argnames=("config",), donate_argnames="pools")
def nll(config: ModelConfig, params: Params, pools: KVPages, chunk: Chunk, targets: Array) -> tuple[KVPages, Array]:
    """The negative log likelihood of `targets` int32 [S, C] as the tokens that follow those of the chunk, in nats.

    # pools, float32 [S, C]
    """
    result = decode(config, params, _step(pools, chunk))
    rows = gcd(targets.size, SCORED_ROWS)

    def piece(xs: tuple[Array, Array]) -> Array:
        x, wanted = xs  # [rows, D], [rows]
        scores = logits(config, params, x)  # [rows, V]
        return jax.nn.logsumexp(scores, axis=-1) - jnp.take_along_axis(scores, wanted[:, None], axis=-1)[:, 0]

    with jax.named_scope("nll"):
        pieces = lax.map(piece, (result.x.reshape(-1, rows, result.x.shape[-1]), targets.reshape(-1, rows)))
    return _written(pools, chunk, result), pieces.reshape(targets.shape)


@partial(jax.jit, static_argnames=("config",), donate_argnames=("pools", "draw"))
def advance(
    config: ModelConfig, params: Params, pools: KVPages, chunk: Chunk, draw: Draw, final: Array
) -> tuple[KVPages, Draw, Array]:
    """Reads a piece of a prompt and, where `final` (bool []), chooses the token after it. # pools, draw, int32 [S]

    Layers that share KV are run for the last token of the chunk only.
    """
    result = decode(config, params, _step(pools, chunk), last_only=True)
    draw = draw.saw(chunk.tokens, chunk.count)

    token = lax.cond(
        final,
        lambda: _choice(config, params, result.x, draw, chunk.start + chunk.count),
        lambda: jnp.zeros(chunk.start.shape, jnp.int32),
    )
    return _written(pools, chunk, result), draw, token


def _choice(config: ModelConfig, params: Params, x: Array, draw: Draw, positions: Array) -> Array:
    """The token that comes to stand at `positions` [S], after x [S, 1, D]. # int32 [S]"""
    scores = logits(config, params, x[:, 0])
    with jax.named_scope("sample"):
        keys = jax.vmap(jax.random.fold_in)(draw.keys, positions)
        return choose(scores, draw.settings, draw.seen, keys)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Answers:
    """What one call of decoding hands to the next, on the device.

    token: int32 [S], chosen and not yet read; done: bool [S], it or an earlier one was a stop id.
    """

    token: Array
    done: Array
    draw: Draw


@partial(jax.jit, static_argnames=("config",), donate_argnames=("pools", "answers"))
def extend(
    config: ModelConfig,
    params: Params,
    pools: KVPages,
    answers: Answers,
    start: Array,
    active: Array,
    tables: dict[Kind, Array],
    stop_ids: Array,
    steps: Array,
) -> tuple[KVPages, Answers, Array, Array]:
    """Up to `steps` (at most MOST_STEPS) more tokens of each sequence; fewer once all have met one of `stop_ids`.

    start: int32 [S], the positions of `answers.token`; active: bool [S], false where a sequence has ended; stop_ids:
    int32 [S, n], -1 where there are fewer. New keys and values are kept beside the pages, which no loop carries, and
    are written at the end.
    # pools, answers, tokens int32 [S, MOST_STEPS], how many of them are made int32 []
    """
    s = start.shape[0]
    pages = {k: Pages(pools[k].keys, pools[k].values, tables[k], start) for k in KINDS}
    recent = {k: _no_rows(pools[k], s, activation_dtype(params)) for k in KINDS if config.owners(k)}
    ids = jnp.zeros((s, MOST_STEPS), jnp.int32)
    one = jnp.ones(s, jnp.int32)

    def stopped(token: Array, done: Array) -> Array:
        return done | (token[:, None] == stop_ids).any(-1)

    Carry = tuple[Array, Answers, dict[Kind, Rows], Array]

    def unfinished(carry: Carry) -> Array:
        i, answers, _, _ = carry
        return (i < steps) & ~answers.done.all()

    def step(carry: Carry) -> Carry:
        i, answers, recent, ids = carry
        tokens = answers.token[:, None]
        draw = answers.draw.saw(tokens, one)
        result = decode(config, params, Step(tokens, one, pages, recent, i), last_only=True)
        token = _choice(config, params, result.x, draw, start + i + 1)
        rows = result.rows
        recent = {k: (_at(old[0], rows[k][0], i, 2), _at(old[1], rows[k][1], i, 2)) for k, old in recent.items()}
        return i + 1, Answers(token, stopped(token, answers.done), draw), recent, _at(ids, token[:, None], i, 1)

    answers = replace(answers, done=stopped(answers.token, answers.done | ~active))
    made, answers, recent, ids = lax.while_loop(unfinished, step, (jnp.int32(0), answers, recent, ids))
    with jax.named_scope("write_pages"):
        new = {k: write(pools[k], rows, tables[k], start, jnp.where(active, made, 0)) for k, rows in recent.items()}
    return {**pools, **new}, answers, ids, made


def _no_rows(pool: Pool, sequences: int, dtype: jnp.dtype) -> Rows:
    layers, _, heads, _, width = pool.keys.shape
    empty = jnp.zeros((layers, sequences, MOST_STEPS, heads, width), dtype)
    return empty, empty


def _at(whole: Array, part: Array, place: Array, axis: int) -> Array:
    updated: Array = lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), place, axis)
    return updated
