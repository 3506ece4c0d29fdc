"""The weights as the decoder sees them: a pytree stacked by segment and kind. Never donated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rvchat.engine.table import Table
from rvchat.kernels.quantised import QuantisedRows

Array = jax.Array

Layers = dict[str, Any]
"""The layers of one kind in one segment: field (`layer_weights` in config.py) -> stack [L, ...], an array or
`Quantised`; experts' stacks are [L * E, ...], so that a product takes one expert as it takes one layer."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SegmentParams:
    """None where a segment has no layers of that kind."""

    sliding: Layers | None
    full: Layers | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerLayerParams:
    """Per-layer embeddings. table: [V, layers * W]; projection: [layers * W, D]; norm: [W]."""

    table: Table
    projection: Array
    norm: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Params:
    """embed: [V, D], which is also the head; final_norm: [D]."""

    embed: Array | QuantisedRows
    final_norm: Array
    per_layer: PerLayerParams | None
    segments: tuple[SegmentParams, ...]


def bytes_of(tree: object) -> int:
    """Bytes of every array in `tree`."""
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
