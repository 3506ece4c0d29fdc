"""Weights in INT4 and INT8, and products with them. A weight is never dequantised as a whole stack.

Outputs are the last axis, so that one instruction of a CPU works on many of them and sums along the inputs need no
shuffling. Values are unpacked from words of 16 bits and multiplied in as many, which a CPU does for twice or four times
as many outputs at once as anything wider; XLA unrolls the sum over a group, and fuses it with the unpacking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.kernels.largest import largest

Array = jax.Array

GROUP = 32

# Up to so many rows, by the bits of a weight, a product is made row by row from the integers; beyond, dequantising a
# weight once is cheaper.
FEW_ROWS = {4: 4, 8: 2}
# The head's integers are multiplied by a library that takes many rows at a time.
FEW_HEAD_ROWS = 32
# So many scores of each of several rows are made of activations that are not rounded: those that tokens are drawn from.
LEADING = 128
# What is left of an activation after rounding, at most half a step, is counted in such parts of a step.
REST = 254.0
# A dequantised piece of one weight takes at most so many bytes: more would leave the cache before it is multiplied.
PIECE_BYTES = 3 << 20


def precision_of(dtype: jnp.dtype) -> lax.Precision | None:
    """Float32 activations mean the exact path: no pass of the matrix unit may round them."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


def _product_dtype(rows: Array, exact: bool) -> jnp.dtype:
    """What is multiplied where a weight is dequantised. Sums are float32 in any case, and processors that multiply
    bfloat16 at all do it in half the time."""
    return rows.dtype if exact else jnp.dtype(jnp.bfloat16)


def values_of(bits: int, layers: int, outputs: int, inputs: int) -> tuple[int, ...]:
    """The shape of `Quantised.values`, which are uint16."""
    return layers, inputs // GROUP, GROUP * bits // 16, outputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantised:
    """A stack of weights [L, outputs, inputs] as integers and scales [L, inputs / 32, outputs], one for each group of
    32 inputs.

    values: uint16 [L, inputs / 32, words, outputs]. Word j of a group holds, the first in the low bits, of `bits` 4 the
    inputs 2j, 2j + 16, 2j + 1 and 2j + 17, all plus 8, and of `bits` 8 the inputs 2j and 2j + 1. `exact`: activations
    are not rounded in a product.
    `columns`: float32 [L, inputs], what each input is multiplied by before all this, where that made rounding finer.
    """

    values: Array
    scales: Array
    bits: int = field(metadata={"static": True})
    exact: bool = field(metadata={"static": True})
    columns: Array | None = None

    @property
    def inputs(self) -> int:
        return int(self.scales.shape[1]) * GROUP

    @property
    def outputs(self) -> int:
        return int(self.values.shape[3])

    def product(self, x: Array, layer: Array | int) -> Array:
        """`x @ weight[layer].T` in float32. x: [..., inputs]. # [..., outputs]"""
        rows = x.reshape(-1, self.inputs)
        if self.columns is not None:
            rows = (rows * lax.dynamic_index_in_dim(self.columns, layer, keepdims=False)).astype(x.dtype)
        if self.exact or len(rows) > FEW_ROWS[self.bits]:
            out = self._dequantised_product(rows, layer)
        else:
            out = lax.platform_dependent(
                rows,
                cpu=lambda rows: self._integer_product(rows, layer),
                default=lambda rows: self._dequantised_product(rows, layer),
            )
        shaped: Array = out.reshape(*x.shape[:-1], self.outputs)
        return shaped

    def dequantised(self, layer: Array | int, start: Array | int, count: int, dtype: jnp.dtype) -> list[Array]:
        """Outputs `start` to `start + count` of one layer's weight over its columns, in planes, one for each place
        in a word, since joining them costs more than multiplying several times.

        # each [inputs / planes, count]
        """
        words = _piece(self.values, layer, start, count)
        scales = _piece(self.scales, layer, start, count).astype(jnp.float32)[:, None]
        integers = _bytes(words) if self.bits == 8 else [nibbles - 8 for nibbles in _nibbles(words)]
        return [(plane.astype(jnp.float32) * scales).astype(dtype).reshape(-1, count) for plane in integers]

    def planes_of(self, rows: Array) -> list[Array]:
        """The inputs that go with each plane of a dequantised weight. rows: [R, inputs]. # each [R, inputs / planes]"""
        planes = _planes(rows.reshape(len(rows), -1, GROUP), self.bits)
        return [plane.reshape(len(rows), -1) for plane in planes]

    def _dequantised_product(self, rows: Array, layer: Array | int) -> Array:
        """A piece of the outputs at a time, so that it stays in the cache between dequantising and use."""
        dtype = _product_dtype(rows, self.exact)
        count = _divisor(self.outputs, PIECE_BYTES // (self.inputs * dtype.itemsize))
        inputs = self.planes_of(rows.astype(dtype))

        def piece(start: Array | int) -> Array:
            planes = self.dequantised(layer, start, count, dtype)
            products = [
                jnp.dot(x, weight, precision=precision_of(dtype), preferred_element_type=jnp.float32)
                for x, weight in zip(inputs, planes, strict=True)
            ]
            return sum(products[1:], start=products[0])

        if count == self.outputs:
            return piece(0)
        pieces = lax.map(piece, jnp.arange(0, self.outputs, count))  # [pieces, rows, count]
        joined: Array = pieces.swapaxes(0, 1).reshape(len(rows), self.outputs)
        return joined

    def _integer_product(self, rows: Array, layer: Array | int) -> Array:
        """With activations rounded to INT8, a scale for each group of inputs."""
        values = _piece(self.values, layer, 0, self.outputs)
        scales = _piece(self.scales, layer, 0, self.outputs).astype(jnp.float32)
        one = _int4_row if self.bits == 4 else _int8_row
        return jnp.stack([one(row, values, scales) for row in rows])


def _piece(stack: Array, layer: Array | int, start: Array | int, count: int) -> Array:
    """stack: [L, ..., outputs]. # [..., count]"""
    at = (layer, *[0] * (stack.ndim - 2), start)
    size = (1, *stack.shape[1:-1], count)
    return lax.dynamic_slice(stack, tuple(jnp.asarray(i, jnp.int32) for i in at), size)[0]


def _nibbles(words: Array) -> list[Array]:
    """The four values plus 8 that each word of INT4 holds. # 4 x int16 words.shape"""
    words = lax.bitcast_convert_type(words, jnp.int16)
    shifted = [words, *(lax.shift_right_logical(words, jnp.int16(bits)) for bits in (4, 8, 12))]
    return [*(nibbles & 15 for nibbles in shifted[:3]), shifted[3]]


def _bytes(words: Array) -> list[Array]:
    """The two values that each word of INT8 holds. # 2 x int16 words.shape"""
    words = lax.bitcast_convert_type(words, jnp.int16)
    return [lax.shift_right_arithmetic(shifted, jnp.int16(8)) for shifted in (words << 8, words)]


def _planes(groups: Array, bits: int) -> list[Array]:
    """What goes with each of the values in words. groups: [..., 32]. # 16 / bits x [..., words]"""
    if bits == 8:
        pairs = groups.reshape(*groups.shape[:-1], 16, 2)
        return [pairs[..., odd] for odd in (0, 1)]
    halves = groups.reshape(*groups.shape[:-1], 2, 8, 2)
    return [halves[..., half, :, odd] for odd in (0, 1) for half in (0, 1)]


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`, or 1."""
    return next(d for d in range(max(1, min(n, most)), 0, -1) if n % d == 0)


def rounded(x: Array, group: int) -> tuple[Array, Array]:
    """x [inputs] as integers of -127 to 127 and a scale for each group. # int32 [groups, group], float32 [groups, 1]

    XLA would fuse this into each product and do it again for every output. A branch it cannot foresee keeps it apart.
    """
    groups = x.astype(jnp.float32).reshape(-1, group)
    largest = jnp.abs(groups).max(-1, keepdims=True)
    scales = jnp.maximum(largest, 1e-30) / 127.0
    integers: Array = lax.cond(
        largest.max() >= 0.0,
        lambda: jnp.round(groups / scales).astype(jnp.int32),
        lambda: jnp.zeros(groups.shape, jnp.int32),  # NaN
    )
    return integers, scales


def _int4_row(x: Array, words: Array, scales: Array) -> Array:
    """words: uint16 [G, 8, outputs]; scales: [G, outputs]. # float32 [outputs]

    The sum of 32 products of at most 8 and 127 fits in int16, and so nothing is lost where a sum on the way to it, of
    values that are still plus 8, wraps around.
    """
    integers, x_scales = rounded(x, GROUP)
    integers = integers.astype(jnp.int16)
    products = [a * b[..., None] for a, b in zip(_nibbles(words), _planes(integers, 4), strict=True)]
    sums = sum(products[1:], start=products[0]).sum(1, dtype=jnp.int16)  # [G, outputs]
    sums -= 8 * integers.sum(1, dtype=jnp.int16)[:, None]
    return _scaled_sum(sums, x_scales, scales)


def _int8_row(x: Array, words: Array, scales: Array) -> Array:
    """words: uint16 [G, 16, outputs]; scales: [G, outputs]. # float32 [outputs]

    Two products of at most 127 and 127 fit in int16.
    """
    integers, x_scales = rounded(x, GROUP)
    low, high = _bytes(words)
    x_low, x_high = _planes(integers.astype(jnp.int16), 8)
    pairs = low * x_low[..., None] + high * x_high[..., None]  # [G, 16, outputs]
    return _scaled_sum(pairs.sum(1, dtype=jnp.int32), x_scales, scales)


def _scaled_sum(sums: Array, x_scales: Array, scales: Array) -> Array:
    """What the groups add up to, as a product with the activations' scales: XLA gives a sum over groups, with all that
    leads to it, to a library that takes longer. sums, scales: [G, outputs]; x_scales: [G, 1]. # float32 [outputs]"""
    return jnp.dot(x_scales[:, 0], sums.astype(jnp.float32) * scales, precision=precision_of(x_scales.dtype))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantisedRows:
    """An embedding table that is also the head: values int8 [V, D], float32 scales of rows [V, 1] and columns [D].

    A few columns of Gemma's embedding are ten times larger than the others. With scales of rows alone they would leave
    the others few of the 255 steps; a column's scale costs nothing, because activations take it on either way.
    """

    values: Array
    scales: Array
    columns: Array
    exact: bool = field(metadata={"static": True})

    def rows(self, tokens: Array) -> Array:
        """The rows of `tokens` [...] in float32. # [..., D]"""
        scales = jnp.take(self.scales, tokens, axis=0, mode="clip")
        return jnp.take(self.values, tokens, axis=0, mode="clip").astype(jnp.float32) * scales * self.columns

    def product(self, x: Array) -> Array:
        """`x @ table.T` in float32. x: [..., D]. # [..., V]"""
        rows = (x.reshape(-1, x.shape[-1]) * self.columns).astype(x.dtype)
        if self.exact or len(rows) > FEW_HEAD_ROWS:
            out = self._dequantised_product(rows)
        else:
            out = lax.platform_dependent(rows, cpu=self._integer_product, default=self._dequantised_product)
        shaped: Array = out.reshape(*x.shape[:-1], -1)
        return shaped

    def _dequantised_product(self, rows: Array) -> Array:
        vocab, width = self.values.shape
        dtype = _product_dtype(rows, self.exact)
        rows = rows.astype(dtype)
        count = _divisor(vocab, PIECE_BYTES // (width * dtype.itemsize))

        def piece(start: Array | int) -> Array:
            values = lax.dynamic_slice_in_dim(self.values, start, count)
            table = (values.astype(jnp.float32) * lax.dynamic_slice_in_dim(self.scales, start, count)).astype(dtype)
            out: Array = lax.dot_general(
                rows, table, (((1,), (1,)), ((), ())), precision=precision_of(dtype), preferred_element_type=jnp.float32
            )
            return out

        if count == vocab:
            return piece(0)
        pieces = lax.map(piece, jnp.arange(0, vocab, count))
        joined: Array = pieces.swapaxes(0, 1).reshape(len(rows), vocab)
        return joined

    def _integer_product(self, rows: Array) -> Array:
        """With activations rounded to INT8 and what is left of them, without which the head costs 0.02 nats, since
        activations before it are uneven. One row is multiplied as two, steps and 254ths of a step: one row alone would
        take XLA's slow path. Of several rows the second half would cost as much again, and is left to LEADING scores.
        """
        x = rows.astype(jnp.float32)
        x_scales = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-30) / 127.0
        steps = x / x_scales
        whole = jnp.round(steps)
        rest = steps - whole
        integers = whole if len(rows) > 1 else jnp.concatenate([whole, jnp.round(rest * REST)])
        sums = lax.dot_general(
            integers.astype(jnp.int8), self.values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
        ).astype(jnp.float32)  # [S, V] or [2, V]
        if len(rows) == 1:
            return (sums[:1] + sums[1:] / REST) * x_scales * self.scales[:, 0]
        scores = sums * x_scales * self.scales[:, 0]
        _, leading = largest(scores, LEADING)
        table = jnp.take(self.values, leading, axis=0, mode="clip").astype(jnp.float32)  # [S, k, D]
        more = jnp.einsum("skd,sd->sk", table, rest) * x_scales * self.scales[leading, 0]
        joined: Array = scores.at[jnp.arange(len(rows))[:, None], leading].add(more)
        return joined
