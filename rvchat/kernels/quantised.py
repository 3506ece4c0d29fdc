"""Weights in INT4 and INT8, and products with them. A weight is never dequantised as a whole stack.

Outputs are the last axis, so that one instruction of a CPU works on many of them and sums along the inputs need no
shuffling. Sixteen inputs of sixteen outputs each are summed before anything else happens: XLA unrolls that, and fuses
it with the unpacking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

GROUP = 32
RUN = 16

# Up to so many rows a product is made row by row from the integers; beyond, dequantising a weight once is cheaper.
FEW_ROWS = 4
# The head's integers are multiplied by a library that takes many rows at a time.
FEW_HEAD_ROWS = 32
# From so many rows on it is quicker with the head's table as its first operand.
TABLE_FIRST_ROWS = 8
# What is left of an activation after rounding, at most half a step, is counted in such parts of a step.
REST = 254.0
# A dequantised piece of one weight takes at most so many bytes: more would leave the cache before it is multiplied.
PIECE_BYTES = 3 << 20


def precision_of(dtype: jnp.dtype) -> lax.Precision | None:
    """Float32 activations mean the exact path: no pass of the matrix unit may round them."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantised:
    """A stack of weights [L, outputs, inputs] as integers and scales [L, inputs / 32, outputs], one for each group of
    32 inputs.

    bits 4: values uint8 [L, inputs / 32, 16, outputs], the low nibble input i of a group and the high one input i + 16,
    both plus 8. bits 8: values int8 [L, inputs / 16, 16, outputs]. `exact`: activations are not rounded in a product.
    `columns`: float32 [L, inputs], what each input is multiplied by before all this, where that made rounding finer.
    """

    values: Array
    scales: Array
    bits: int = field(metadata={"static": True})
    exact: bool = field(metadata={"static": True})
    columns: Array | None = None

    @property
    def inputs(self) -> int:
        return int(self.values.shape[1]) * (GROUP if self.bits == 4 else RUN)

    @property
    def outputs(self) -> int:
        return int(self.values.shape[3])

    def product(self, x: Array, layer: Array | int) -> Array:
        """`x @ weight[layer].T` in float32. x: [..., inputs]. # [..., outputs]"""
        rows = x.reshape(-1, self.inputs)
        if self.columns is not None:
            rows = (rows * lax.dynamic_index_in_dim(self.columns, layer, keepdims=False)).astype(x.dtype)
        if self.exact or len(rows) > FEW_ROWS:
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
        """Outputs `start` to `start + count` of one layer's weight over its columns, in planes: of INT4 inputs whose
        nibble is low and those whose nibble is high, since joining them costs more than multiplying twice.

        # each [inputs / planes, count]
        """
        values = _piece(self.values, layer, start, count)
        scales = _piece(self.scales, layer, start, count).astype(jnp.float32)[:, None]
        if self.bits == 4:
            integers = [(values & 15).astype(jnp.int8) - 8, (values >> 4).astype(jnp.int8) - 8]
        else:
            integers = [values.reshape(-1, GROUP, count)]
        return [(plane.astype(jnp.float32) * scales).astype(dtype).reshape(-1, count) for plane in integers]

    def planes_of(self, rows: Array) -> list[Array]:
        """The inputs that go with each plane of a dequantised weight. rows: [R, inputs]. # each [R, inputs / planes]"""
        if self.bits == 8:
            return [rows]
        halves = rows.reshape(len(rows), -1, 2, RUN)
        return [halves[:, :, 0].reshape(len(rows), -1), halves[:, :, 1].reshape(len(rows), -1)]

    def _dequantised_product(self, rows: Array, layer: Array | int) -> Array:
        """A piece of the outputs at a time, so that it stays in the cache between dequantising and use."""
        dtype = rows.dtype
        count = _divisor(self.outputs, PIECE_BYTES // (self.inputs * dtype.itemsize))
        inputs = self.planes_of(rows)

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


def _int4_row(x: Array, values: Array, scales: Array) -> Array:
    """values: uint8 [G, 16, outputs]. Sums fit in int16: 32 products of at most 8 and 127. # float32 [outputs]"""
    integers, x_scales = rounded(x, GROUP)
    low, high = jnp.split(integers.astype(jnp.int16), 2, axis=-1)  # [G, 16]
    products = ((values & 15).astype(jnp.int16) - 8) * low[..., None]
    products += ((values >> 4).astype(jnp.int16) - 8) * high[..., None]
    sums = products.sum(1, dtype=jnp.int16).astype(jnp.float32)  # [G, outputs]
    return (sums * x_scales * scales).sum(0)


def _int8_row(x: Array, values: Array, scales: Array) -> Array:
    """values: int8 [2G, 16, outputs]; scales: [G, outputs]. # float32 [outputs]

    A weight is 16 times its high nibble plus its low one. Written as a product it would be turned into a matrix
    multiplication, whose operand is first copied and widened.
    """
    integers, x_scales = rounded(x, GROUP)
    runs = integers.reshape(-1, RUN)  # [2G, 16]
    products = (values >> 4).astype(jnp.int32) * (runs * 16)[..., None]
    products += (values & 15).astype(jnp.int32) * runs[..., None]
    halves = products.sum(1).reshape(-1, 2, values.shape[-1])
    sums = (halves[:, 0] + halves[:, 1]).astype(jnp.float32)  # [G, outputs]
    return (sums * x_scales * scales).sum(0)


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
        dtype = rows.dtype
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
        """With each row of activations as two rows of INT8, steps and 254ths of a step. One row would take XLA's slow
        path anyway, and one of INT8 alone, of activations as uneven as those before the head, costs 0.02 nats."""
        x = rows.astype(jnp.float32)
        x_scales = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-30) / 127.0
        steps = x / x_scales
        whole = jnp.round(steps)
        rest = jnp.round((steps - whole) * REST)
        integers = jnp.concatenate([whole, rest]).astype(jnp.int8)  # [2 * rows, D]
        along = (((1,), (1,)), ((), ()))
        if len(integers) < TABLE_FIRST_ROWS:
            sums = lax.dot_general(integers, self.values, along, preferred_element_type=jnp.int32)
        else:
            sums = lax.dot_general(self.values, integers, along, preferred_element_type=jnp.int32).T
        joined = sums[: len(rows)].astype(jnp.float32) + sums[len(rows) :].astype(jnp.float32) / REST
        out: Array = joined * x_scales * self.scales[:, 0]
        return out
