"""Attention of new tokens over pages of earlier keys and values, and over each other.

The softmax is online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): the new tokens' own
scores are its first state, and each page that holds something visible is one turn of a loop, so the cost grows with the
tokens present and not with the context allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.kernels.quantised import precision_of

Array = jax.Array

# Decoding takes so many pages of a full-attention layer a turn: alone, a page is too little work for what a turn costs.
TURN_PAGES = 4
# Finite, so that a row that sees nothing (padding) gives numbers and not NaN.
MASKED = -1e30


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pages:
    """One kind's pages for this step, read only.

    keys, values: [L, pages, K, page, H], numbers or bits of bfloat16; table: int32 [S, context pages], the page of the
    pool that holds each page of a sequence's positions, or 0; start: int32 [S], how many tokens of each sequence they
    hold.
    """

    keys: Array
    values: Array
    table: Array
    start: Array

    @property
    def page_size(self) -> int:
        return int(self.keys.shape[3])


def take_pages(pool: Array, layer: Array | int, ids: Array) -> Array:
    """The pages `ids` [S, P] of `layer`, as slices: a gather over a pool copies it on some backends.

    # [S, K, P * page, H], in float32 where the pool holds bits
    """
    zero = jnp.int32(0)
    layer = jnp.asarray(layer, jnp.int32)
    size = (1, 1, *pool.shape[2:])

    def joined(parts: list[Array], axis: int) -> Array:
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)

    def row(s: int) -> Array:  # [1, K, P * page, H]
        places = [(layer, ids[s, p], zero, zero, zero) for p in range(ids.shape[1])]
        return joined([lax.dynamic_slice(pool, place, size)[0] for place in places], axis=2)

    pages = joined([row(s) for s in range(ids.shape[0])], axis=0)
    return from_bits(pages) if pages.dtype == BITS else pages


# Numbers that are stored in bfloat16 and computed with in float32 are kept as their bits: given the type itself, XLA
# widens the whole pool before it takes a page.
BITS = jnp.dtype(jnp.uint16)


def from_bits(bits: Array) -> Array:
    """The upper half of float32 numbers, as float32."""
    wide: Array = lax.bitcast_convert_type(bits.astype(jnp.uint32) << 16, jnp.float32)
    return wide


def to_bits(x: Array) -> Array:
    """x rounded to bfloat16, as bits."""
    bits: Array = lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)
    return bits


def attention(
    q: Array,
    q_positions: Array,
    k_new: Array,
    v_new: Array,
    pages: Pages,
    layer: Array | int,
    count: Array,
    window: int | None,
) -> Array:
    """Softmax attention, queries already scaled.

    q: [S, Q, N, H]; q_positions: int32 [S, Q]; k_new, v_new: [S, C, K, H], the new tokens at positions `pages.start`
    and on, of which the first `count` [S] are real; `layer`: whose pages in the pool. A query at p sees the positions
    k with `k <= p`, and `k > p - window` where there is a window. # [S, Q, N, H]
    """
    s, q_len, n, h = q.shape
    c, k_heads = k_new.shape[1:3]
    precision = precision_of(q.dtype)
    grouped = q.reshape(s, q_len, k_heads, n // k_heads, h)  # [S, Q, K, G, H]

    def visible(positions: Array, valid: Array) -> Array:  # positions, valid: [S, T] -> [S, 1, 1, Q, T]
        p, k = q_positions[:, :, None], positions[:, None, :]
        seen = (k <= p) & valid[:, None, :]
        if window is not None:
            seen &= k > p - window
        return seen[:, None, None]

    def scores(keys: Array, seen: Array) -> Array:  # keys: [S, K, T, H] -> [S, K, G, Q, T]
        raw = jnp.einsum("sqkgh,skth->skgqt", grouped, keys, precision=precision, preferred_element_type=jnp.float32)
        return jnp.where(seen, raw, MASKED)

    def weighted(weights: Array, values: Array) -> Array:  # values: [S, K, T, H] -> [S, K, G, Q, H]
        return jnp.einsum(
            "skgqt,skth->skgqh",
            weights.astype(values.dtype),
            values,
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def absorb(state: tuple[Array, Array, Array], keys: Array, values: Array, seen: Array) -> tuple[Array, ...]:
        top, total, out = state
        raw = scores(keys, seen)
        new_top = jnp.maximum(top, raw.max(-1))
        shrink = jnp.exp(top - new_top)
        weights = jnp.where(seen, jnp.exp(raw - new_top[..., None]), 0.0)
        return (
            new_top,
            total * shrink + weights.sum(-1),
            out * shrink[..., None] + weighted(weights, values),
        )

    new_positions = pages.start[:, None] + jnp.arange(c, dtype=jnp.int32)  # [S, C]
    new_valid = jnp.arange(c, dtype=jnp.int32) < count[:, None]
    shape = (s, k_heads, n // k_heads, q_len)
    state: tuple[Array, ...] = (
        jnp.full(shape, MASKED, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, h), jnp.float32),
    )
    state = absorb(
        state,  # type: ignore[arg-type]
        k_new.swapaxes(1, 2),
        v_new.swapaxes(1, 2),
        visible(new_positions, new_valid),
    )

    size = pages.page_size
    together = max(1, TURN_PAGES // s) if q_len == 1 and window is None else 1
    table = jnp.pad(pages.table, ((0, 0), (0, together - 1)))  # the last turn may reach beyond it

    def turn(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        place = first + i * together
        ids = lax.dynamic_slice_in_dim(table, place, together, axis=1)  # [S, P]
        positions = place * size + jnp.arange(together * size, dtype=jnp.int32)
        positions = jnp.broadcast_to(positions, (s, together * size))
        return absorb(
            state,
            take_pages(pages.keys, layer, ids),
            take_pages(pages.values, layer, ids),
            visible(positions, positions < pages.start[:, None]),
        )

    first = jnp.int32(0)
    if window is not None:
        first = jnp.maximum(q_positions[:, 0].min() - window + 1, 0) // size
    last = (pages.start.max() + size - 1) // size
    turns = (last - first + together - 1) // together
    _, total, out = lax.fori_loop(0, turns, turn, state)
    out = out / jnp.maximum(total, 1e-30)[..., None]
    return jnp.moveaxis(out, 3, 1).reshape(s, q_len, n, h).astype(q.dtype)  # [S, Q, N, H]
