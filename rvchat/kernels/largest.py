"""The largest of many numbers, without sorting them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

CHUNK = 64


def largest(x: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row and their places, largest first, exactly; of equal ones, the first places.

    A sort of a vocabulary is slow everywhere. The largest k values lie in the k chunks with the largest maxima, so two
    small searches do. x: [S, V]. # [S, k], int32 [S, k], with k = V where `count` is more
    """
    s, width = x.shape
    k = min(count, width)
    if width < 4 * k * CHUNK or width % CHUNK:
        return lax.top_k(x, k)
    chunks = x.reshape(s, -1, CHUNK)
    _, best = lax.top_k(chunks.max(-1), k)  # [S, k]
    best = jnp.sort(best, axis=-1)  # so that equal values keep the order of their places
    values = jnp.take_along_axis(chunks, best[..., None], axis=1).reshape(s, -1)
    places = (best[..., None] * CHUNK + jnp.arange(CHUNK)).reshape(s, -1)
    values, at = lax.top_k(values, k)
    return values, jnp.take_along_axis(places, at, axis=1)
