"""Rounding weights to INT4 and INT8 so that each group's squared error is small, not just its range covered.

For each group several scales are tried; each rounding is refitted, since for given integers q the best scale is
`<w, q> / <q, q>`, and the one with the least error wins.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.nibbles import GROUP, pack_nibbles

Array = jax.Array

# What the largest value of a group is rounded to, in turn. INT4 reaches from -8 to 7: with a negative scale the largest
# value can be 8 whatever its sign.
INT4_RANGE = (-8, 7)
INT4_LARGEST = (-8.5, -8.0, -7.5, -7.0, -6.5, -6.0, 5.5, 6.0, 6.5, 7.0, 7.5)
INT8_LARGEST = (127.0, 130.0, 134.0, 140.0, 150.0)
# The grids of Q8_0 and Q5_0, whose groups are these and whose largest value is that: INT8 holds them as they are.
HELD_LARGEST = (127.0, 16.0)
# A column's size is taken to be at least this share of the mean: what is nearly nothing in a sample need not be so
# elsewhere, and scales have 16 bits.
LEAST_COLUMN = 1e-3
# A weight that loses no more than this share of its power was trained for INT4: bfloat16 has rounded it a little.
ON_GRID = 1e-4


@partial(jax.jit, static_argnames=("low", "high", "largest", "scale_dtype"))
def _fit(
    groups: Array, importance: Array | float, low: int, high: int, largest: tuple[float, ...], scale_dtype: Any
) -> tuple[Array, Array]:
    """groups: float32 [..., size], the error of each value counting as `importance` says, of any shape that goes with
    that. # int8 [..., size], scales [..., 1] in scale_dtype"""
    at = jnp.argmax(jnp.abs(groups), axis=-1, keepdims=True)
    extreme = jnp.take_along_axis(groups, at, axis=-1)  # with its sign

    def integers(scale: Array) -> Array:
        inverse = jnp.where(scale == 0, 0.0, 1.0 / jnp.where(scale == 0, 1.0, scale))
        return jnp.clip(jnp.round(groups * inverse), low, high)

    best_error = jnp.full(extreme.shape, jnp.inf)
    best_scale = jnp.zeros_like(extreme)
    for value in largest:
        q = integers(extreme / value)
        norm = (importance * q * q).sum(-1, keepdims=True)
        refitted = (importance * groups * q).sum(-1, keepdims=True) / jnp.where(norm == 0, 1.0, norm)
        scale = refitted.astype(scale_dtype).astype(jnp.float32)
        error = (importance * (groups - integers(scale) * scale) ** 2).sum(-1, keepdims=True)
        best_scale = jnp.where(error < best_error, scale, best_scale)
        best_error = jnp.minimum(error, best_error)
    return integers(best_scale).astype(jnp.int8), best_scale.astype(scale_dtype)


def _in_groups(
    weights: npt.NDArray[np.float32],
    low: int,
    high: int,
    largest: tuple[float, ...],
    importance: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """weights: [n, inputs]; importance: [inputs]. # int8 [n, G, 32], float16 [n, G]"""
    groups = weights.reshape(len(weights), -1, GROUP)
    counts = 1.0 if importance is None else importance.reshape(-1, GROUP)
    q, scales = _fit(groups, counts, low, high, largest, jnp.float16)
    return np.asarray(q), np.asarray(scales)[..., 0]


def int8(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Rows of a weight [n, inputs] in groups of 32 along the inputs. # int8 [n, G, 32], float16 [n, G]"""
    return _in_groups(weights, -127, 127, HELD_LARGEST)


def int4(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Rows of a weight [n, inputs] in groups of 32 along the inputs. # uint8 [n, G, 16], float16 [n, G]"""
    q, scales = _in_groups(weights, *INT4_RANGE, INT4_LARGEST)
    return pack_nibbles(q), scales


def int4_scales(weights: npt.NDArray[np.float32], importance: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Scales for rows of a weight [n, inputs] in groups of 32, the error of each input counting as `importance`
    [inputs] says. # [n, G]"""
    return _in_groups(weights, *INT4_RANGE, INT4_LARGEST, importance)[1]


def table_columns(sample: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A scale for each column of a table of which `sample` [n, inputs] are some rows: its largest value. # [inputs]"""
    largest = np.abs(sample).max(0)
    return np.where(largest > 0, largest, 1.0).astype(np.float32)


def int4_columns(sample: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A scale for each column of a weight of which `sample` [n, inputs] are some rows: its size, so that a group's few
    steps are not spent on its largest column; or 1 where the weight lies on a grid of INT4 as it is. # [inputs]"""
    q, scales = _in_groups(sample, *INT4_RANGE, INT4_LARGEST)
    lost = np.square(q * scales[..., None].astype(np.float32) - sample.reshape(q.shape)).sum()
    if lost <= ON_GRID * np.square(sample).sum():
        return np.ones(sample.shape[1], np.float32)
    size = np.sqrt(np.square(sample, dtype=np.float64).mean(0))
    least = LEAST_COLUMN * float(size.mean())
    columns: npt.NDArray[np.float32] = np.maximum(size, least or 1.0).astype(np.float32)
    return columns


def int8_rows(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rows of a table [n, inputs], one scale a row. # int8 [n, inputs], float32 [n]"""
    q, scales = _fit(weights, 1.0, -127, 127, INT8_LARGEST, jnp.float32)
    return np.asarray(q), np.asarray(scales)[:, 0]
