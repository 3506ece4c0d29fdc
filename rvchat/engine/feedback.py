"""INT4 that lets the inputs still to come make up for what rounding the ones before has lost.

It is the method of Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(2022): for inputs x with the second moments M = mean of x xᵀ, the inputs of a weight are rounded in turn, the most
powerful first, and the error of each is spread over the others by the rows of U, where U is upper triangular and
UᵀU = M⁻¹. Scales are chosen before that, as everywhere, but an error counts by the power of its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from threadpoolctl import threadpool_limits

from rvchat.engine import quantising
from rvchat.engine.nibbles import GROUP, pack_nibbles

Array = jax.Array
Float = npt.NDArray[np.float32]

# Inputs make up for each other within blocks of at most so many.
MOST_INPUTS = 2048
# What is added to each input's power, as a share of their mean: the texts are few, and others will be read.
DAMPING = 0.1
# So many inputs are rounded before the rest of a block hears of their errors.
RUN = 32
# So many values of a weight are rounded at a time.
ROUNDED_VALUES = 1 << 25


def block_of(inputs: int) -> int:
    """How many inputs make up for each other: the largest part of `inputs` in whole groups that is not too large."""
    groups = inputs // GROUP
    return GROUP * next(n for n in range(MOST_INPUTS // GROUP, 0, -1) if groups % n == 0)


def moments(x: Array) -> Array:
    """The sum of `x xᵀ` over all inputs x [..., inputs], in blocks. # float32 [B, I, I]"""
    rows = x.reshape(-1, x.shape[-1] // block_of(x.shape[-1]), block_of(x.shape[-1]))
    found: Array = jnp.einsum("rbi,rbj->bij", rows, rows, preferred_element_type=jnp.float32)
    return found


@dataclass(frozen=True)
class Rounding:
    """How weights are rounded that multiply certain inputs, and over which `columns` [inputs].

    importance: [inputs], how much an error of each counts; order: [B, I], in which each block's inputs are rounded;
    factors: U, float32 [B, I, I].
    """

    columns: Float
    importance: Float
    order: npt.NDArray[np.intp]
    factors: Float

    @classmethod
    def of(cls, moments: Float, columns: Float) -> Rounding:
        """For inputs of such `moments` [B, I, I], whatever their scale."""
        each = columns.reshape(len(moments), -1)
        scaled = moments * each[:, :, None] * each[:, None, :]
        power = np.diagonal(scaled, axis1=1, axis2=2)  # [B, I]
        mean = power.mean(1)
        known = np.isfinite(scaled).all((1, 2)) & (mean > 0)  # not so of inputs that never were, or are no numbers
        order = np.argsort(-power, axis=1, kind="stable")
        importance, factors = np.ones_like(power), np.empty_like(scaled)
        # Two threads of OpenBLAS take a hundred times as long for this as one.
        with threadpool_limits(1, user_api="blas"):
            for block, place in enumerate(order):
                factors[block] = np.eye(len(place))  # each for itself
                if known[block]:
                    factors[block] = _factor(scaled[block][np.ix_(place, place)] / mean[block])
                    importance[block] = power[block] / mean[block]
        return cls(columns, importance.reshape(-1), order, factors)

    def pieces(self, weights: Array) -> Iterator[tuple[int, npt.NDArray[np.uint8], npt.NDArray[np.float16]]]:
        """Some rows of weights [n, inputs] over their columns at a time, in INT4: where they start, integers and
        scales. # uint8 [rows, G, 16], float16 [rows, G]"""
        n, inputs = weights.shape
        step = max(1, ROUNDED_VALUES // inputs)
        for start in range(0, n, step):
            rows = np.asarray(weights[start : start + step], np.float32) / self.columns
            scales = quantising.int4_scales(rows, self.importance)
            each = np.repeat(scales.astype(np.float32), GROUP, axis=1)
            rounded = np.asarray(_rounded(self._ordered(rows), self._ordered(each), self.factors))  # [B, I, rows]
            integers = np.empty_like(rounded)
            np.put_along_axis(integers, self.order[..., None], rounded, axis=1)
            yield start, pack_nibbles(integers.transpose(2, 0, 1).reshape(len(rows), -1, GROUP)), scales

    def _ordered(self, rows: Float) -> Float:
        """rows: [n, inputs]. # [B, I, n]"""
        blocks = rows.T.reshape(*self.order.shape, len(rows))
        return np.take_along_axis(blocks, self.order[..., None], axis=1)


@jax.jit
def _factor(moments: Array) -> Array:
    """U of moments [I, I] whose mean power is 1. # [I, I]

    From the end to the beginning M is LLᵀ, and the inverse of L, from the end to the beginning again, is U.
    """
    damped = moments + DAMPING * jnp.eye(len(moments), dtype=moments.dtype)
    lower = jnp.linalg.cholesky(damped[::-1, ::-1])
    inverse: Array = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(moments), dtype=moments.dtype), lower=True)
    return inverse[::-1, ::-1]


@jax.jit
def _rounded(weights: Array, scales: Array, factors: Array) -> Array:
    """weights and each one's scale: float32 [B, I, n], factors: [B, I, I]. # int8 [B, I, n]"""

    def block(found: tuple[Array, Array, Array]) -> Array:
        w, scale, u = found
        size, n = w.shape

        def integers(w: Array, scale: Array) -> Array:
            return jnp.clip(jnp.round(w / jnp.where(scale == 0, 1.0, scale)), *quantising.INT4_RANGE)

        def run(r: Array, w: Array) -> Array:
            at = r * RUN
            steps = lax.dynamic_slice_in_dim(scale, at, RUN)
            own = lax.dynamic_slice(u, (at, at), (RUN, RUN))

            def one(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                part, errors = state
                error = (part[j] - integers(part[j], steps[j]) * steps[j]) / own[j, j]
                # Below the diagonal U is 0: those before stay, and j becomes what it was rounded to.
                return part - own[j][:, None] * error, errors.at[j].set(error)

            part, errors = lax.fori_loop(
                0, RUN, one, (lax.dynamic_slice_in_dim(w, at, RUN), jnp.zeros((RUN, n), w.dtype))
            )
            later = jnp.where(jnp.arange(size) >= at + RUN, lax.dynamic_slice_in_dim(u, at, RUN), 0.0)  # [RUN, I]
            w = w - jnp.einsum("ri,rn->in", later, errors, precision=lax.Precision.HIGHEST)
            return lax.dynamic_update_slice_in_dim(w, part, at, axis=0)

        return integers(lax.fori_loop(0, size // RUN, run, w), scale).astype(jnp.int8)

    rounded: Array = lax.map(block, (weights, scales, factors))
    return rounded
