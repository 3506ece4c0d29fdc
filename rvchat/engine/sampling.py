"""Choosing the next token on the device. All settings are arrays: changing one compiles nothing.

The order is penalty, temperature, top-k, top-p, min-p, as in Hugging Face transformers; each filter sees what the one
before it left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvchat.kernels.largest import largest
from rvchat.types import Sampling

Array = jax.Array

# With top_k of 1 to this many, the filters work on so many candidates instead of the whole vocabulary.
CANDIDATES = 64
MASKED = -jnp.inf


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings:
    """One value a sequence, each [S]."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    penalty: Array

    @classmethod
    def of(cls, samplings: Sequence[Sampling]) -> Settings:
        def column(name: str, dtype: type) -> Array:
            return jnp.asarray(np.array([getattr(s, name) for s in samplings], dtype))

        return cls(
            column("temperature", np.float32),
            column("top_k", np.int32),
            column("top_p", np.float32),
            column("min_p", np.float32),
            column("repetition_penalty", np.float32),
        )


def choose(logits: Array, settings: Settings, seen: Array, keys: Array) -> Array:
    """The next token of each sequence.

    logits: float32 [S, V]; seen: bool [S, V], the tokens the penalty applies to; keys: uint32 [S, 2]. # int32 [S]
    """
    logits = lax.cond(
        jnp.all(settings.penalty == 1.0), lambda: logits, lambda: penalised(logits, settings.penalty, seen)
    )
    few = (settings.temperature <= 0.0) | ((settings.top_k >= 1) & (settings.top_k <= CANDIDATES))
    nobody = jnp.zeros(few.shape, jnp.int32)
    # Each sequence has its own way: of the same key, the other way would make another token.
    from_few = lax.cond(
        few.any(),
        lambda: jax.vmap(_among_candidates)(*largest(logits, CANDIDATES), settings, keys),
        lambda: nobody,
    )
    from_all = lax.cond(few.all(), lambda: nobody, lambda: jax.vmap(_among_all)(logits, settings, keys))
    return jnp.where(few, from_few, from_all)


def penalised(logits: Array, penalty: Array, seen: Array) -> Array:
    """A seen token's positive logit over the penalty, a negative one times it (Keskar et al., "CTRL", 2019)."""
    factor = penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / factor, logits * factor), logits)


def _among_candidates(values: Array, tokens: Array, settings: Settings, key: Array) -> Array:
    """One sequence, from its candidates in falling order: [k], [k]. # []"""
    scores = values / jnp.maximum(settings.temperature, 1e-6)
    scores = jnp.where(jnp.arange(scores.size) < settings.top_k, scores, MASKED)
    probabilities = jax.nn.softmax(scores)
    before = jnp.cumsum(probabilities) - probabilities
    keep = (before < settings.top_p) & (probabilities >= settings.min_p * probabilities[0])
    scores = jnp.where(keep.at[0].set(True), scores, MASKED)
    place = jnp.where(settings.temperature <= 0.0, 0, jax.random.categorical(key, scores))
    return tokens[place]


def _among_all(logits: Array, settings: Settings, key: Array) -> Array:
    """One sequence, from the whole vocabulary [V], without sorting it. # []"""
    scores = logits / jnp.maximum(settings.temperature, 1e-6)
    order = _ordered(scores)
    k = jnp.where(settings.top_k >= 1, settings.top_k, scores.size)
    scores = jnp.where(order >= _threshold(order, jnp.ones_like(scores), k.astype(jnp.float32)), scores, MASKED)
    probabilities = jax.nn.softmax(scores)
    # The likeliest token always stays: of no probability at all, nothing at all is enough.
    keep = order >= jnp.minimum(_threshold(order, probabilities, settings.top_p), order.max())
    keep &= probabilities >= settings.min_p * probabilities.max()
    scores = jnp.where(keep, scores, MASKED)
    return jnp.where(settings.temperature <= 0.0, logits.argmax(), jax.random.categorical(key, scores))


def _ordered(x: Array) -> Array:
    """float32 as uint32 that sort alike: negative numbers have their bits inverted, others their sign bit set."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _threshold(order: Array, weights: Array, enough: Array) -> Array:
    """The largest t for which the weights of all `order >= t` add up to `enough`, found bit by bit. # uint32 []"""

    def bit(i: Array, t: Array) -> Array:
        higher = t | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        total = jnp.where(order >= higher, weights, 0.0).sum()
        return jnp.where(total >= enough, higher, t)

    found: Array = lax.fori_loop(0, 32, bit, jnp.uint32(0))
    return found
