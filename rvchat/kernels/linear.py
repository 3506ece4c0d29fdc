"""The product of activations with a layer's weight, taken out of the stack of all layers."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.kernels.quantised import precision_of

Array = jax.Array


class Stack(Protocol):
    """The weights of several layers, stored in a way of their own."""

    def product(self, x: Array, layer: Array | int) -> Array:
        """`x @ weight[layer].T` in float32. x: [..., inputs]. # [..., outputs]"""
        ...


def take_layer(stack: Array, layer: Array | int) -> Array:
    """`stack[layer]` as a slice, which XLA may read in place. # stack.shape[1:]"""
    taken: Array = lax.dynamic_index_in_dim(stack, layer, axis=0, keepdims=False)
    return taken


def linear(x: Array, stack: Array | Stack, layer: Array | int) -> Array:
    """`x @ stack[layer].T`, accumulated in float32 and returned in x's dtype.

    x: [..., inputs]; stack: [L, outputs, inputs], plain or with a product of its own. # [..., outputs]
    """
    if isinstance(stack, jax.Array):
        return product(x, take_layer(stack, layer)).astype(x.dtype)
    return stack.product(x, layer).astype(x.dtype)


def product(x: Array, weight: Array) -> Array:
    """`x @ weight.T` in float32. x: [..., inputs]; weight: [outputs, inputs]. # [..., outputs]"""
    return lax.dot_general(
        x,
        weight.astype(x.dtype),
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=precision_of(x.dtype),
        preferred_element_type=jnp.float32,
    )
