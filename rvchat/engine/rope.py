"""Rotary positions: which pairs turn, how fast, and the turning itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rvchat.engine.config import Rope

Array = jax.Array


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians per position of each pair. # float32 [H/2]

    `theta ** (-2i / head_dim) / divisor`, zero past the turning share: the exponent's divisor is the whole head even
    where only a part of it turns (Gemma 4's proportional RoPE).
    """
    pairs = head_dim // 2
    i = np.arange(pairs, dtype=np.float64)
    speed = rope.theta ** (-2.0 * i / head_dim) / rope.divisor
    return np.where(i < int(rope.turning * pairs), speed, 0.0).astype(np.float32)


def turns(rope: Rope, head_dim: int, positions: Array) -> tuple[Array, Array]:
    """Cosine and sine of each pair at each position. positions: int32 [S, Q]. # 2 x float32 [S, Q, 1, H/2]"""
    angles = positions[..., None, None].astype(jnp.float32) * frequencies(rope, head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, turn: tuple[Array, Array]) -> Array:
    """Turns the pairs (i, i + H/2) of x [S, Q, N, H], in float32, and returns x's dtype. # [S, Q, N, H]"""
    cos, sin = turn
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
