"""Root mean square norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x over its root mean square along the last axis, times `weight`, in float32, returned in x's dtype.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. `weight` None is a norm without one.
    """
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    if weight is not None:
        normed = normed * weight.astype(jnp.float32)
    return normed.astype(x.dtype)
