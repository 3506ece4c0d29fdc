"""An embedding table kept in its file's form: a step reads the rows of its tokens and nothing else.

The per-layer table of the small Gemma 4 models is larger than all their other weights together, and each token needs
one row of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """`data`: float32 [V, width] ("F32"), the bits of 16-bit floats in uint16 [V, width] ("F16", "BF16"), or uint8
    [V, bytes] in a block form of GGUF.

    Bits and not floats: in a loop XLA's CPU code widens a whole table of 16-bit floats to take one row of it.
    """

    data: Array
    form: str = field(metadata={"static": True})
    width: int = field(metadata={"static": True})

    def rows(self, tokens: Array) -> Array:
        """The rows of `tokens` [...] in float32. # [..., width]"""
        taken = jnp.take(self.data, tokens, axis=0, mode="clip")
        if self.form in PLAIN_FORMS:
            return PLAIN_FORMS[self.form](taken)
        return BLOCK_FORMS[self.form](taken).reshape(*tokens.shape, self.width)


def _float16(raw: Array) -> Array:
    """uint16 [...] or uint8 [..., 2] as float32 [...]"""
    return lax.bitcast_convert_type(raw, jnp.float16).astype(jnp.float32)


def _bfloat16(raw: Array) -> Array:
    """uint16 [...] as float32 [...], of which they are the upper half."""
    return lax.bitcast_convert_type(raw.astype(jnp.uint32) << 16, jnp.float32)


def _int8(raw: Array) -> Array:
    return lax.bitcast_convert_type(raw, jnp.int8)


def _q8_0(raw: Array) -> Array:
    """Blocks of 32: a float16 scale, 32 int8."""
    blocks = raw.reshape(*raw.shape[:-1], -1, 34)
    return _float16(blocks[..., :2])[..., None] * _int8(blocks[..., 2:]).astype(jnp.float32)


def _q4_0(raw: Array) -> Array:
    """Blocks of 32: a float16 scale, 16 bytes whose low nibbles are the first half; minus 8."""
    blocks = raw.reshape(*raw.shape[:-1], -1, 18)
    nibbles = jnp.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    return _float16(blocks[..., :2])[..., None] * (nibbles.astype(jnp.float32) - 8.0)


def _q6_k(raw: Array) -> Array:
    """Blocks of 256: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, a float16 scale; minus 32.

    In each half of a block, 64 low bytes and 32 high bytes make four runs of 32 values.
    """
    blocks = raw.reshape(*raw.shape[:-1], -1, 210)
    lead = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*lead, 2, 2, 32)  # halves, runs, values
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    nibbles = jnp.concatenate([low & 15, low >> 4], axis=-2)  # [..., 2, 4, 32]
    pairs = jnp.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-2)
    values = (nibbles | (pairs << 4)).astype(jnp.float32) - 32.0
    scales = _int8(blocks[..., 192:208]).astype(jnp.float32) * _float16(blocks[..., 208:210])[..., None]
    return values.reshape(*lead, 16, 16) * scales[..., None]


PLAIN_FORMS: Mapping[str, Callable[[Array], Array]] = {"F32": lambda a: a, "F16": _float16, "BF16": _bfloat16}
BLOCK_FORMS: Mapping[str, Callable[[Array], Array]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q6_K": _q6_k}
