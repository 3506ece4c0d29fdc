"""The mixture of experts beside a dense MLP: the router, and products grouped by expert."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.engine.config import Experts, ModelConfig
from rvchat.engine.norm import rms_norm
from rvchat.engine.params import Layers
from rvchat.kernels.linear import linear
from rvchat.kernels.quantised import precision_of

Array = jax.Array

# Rows of one product when tokens outnumber this: each expert's tokens are padded to whole blocks.
BLOCK = 32


def route(config: ModelConfig, shape: Experts, stacks: Layers, place: Array, x: Array) -> tuple[Array, Array]:
    """The chosen experts of each token of x [T, D] and their weights. # int32 [T, k], float32 [T, k]"""
    wide = rms_norm(x.astype(jnp.float32), stacks["router_scale"][place], config.norm_eps) * config.hidden_size**-0.5
    router = stacks["router"][place].astype(jnp.float32)
    scores = jnp.einsum("td,ed->te", wide, router, precision=precision_of(wide.dtype))
    weights, chosen = lax.top_k(jax.nn.softmax(scores, axis=-1), shape.per_token)
    weights = weights / weights.sum(-1, keepdims=True)
    return chosen, weights * stacks["expert_scale"][place].astype(jnp.float32)[chosen]


def experts(config: ModelConfig, stacks: Layers, place: Array, x: Array) -> Array:
    """The weighted sum of each token's chosen experts. The router reads the residual x [S, Q, D] itself.

    (token, expert) pairs are sorted by expert and cut into blocks of one expert each, and a loop runs over the blocks
    that are there: the weights of experts nobody chose are not read. # [S, Q, D]
    """
    shape = config.experts
    assert shape is not None
    flat = x.reshape(-1, x.shape[-1])  # [T, D]
    with jax.named_scope("router"):
        chosen, weights = route(config, shape, stacks, place, flat)
    h = rms_norm(flat, stacks["expert_norm"][place], config.norm_eps)
    tokens, per_token = chosen.shape
    pairs = tokens * per_token
    block = 1 if tokens <= 8 else BLOCK
    blocks = pairs if block == 1 else -(-pairs // block) + shape.count

    # Where each pair goes: experts in order, each starting on a block of its own.
    order = jnp.argsort(chosen.reshape(-1), stable=True)  # [pairs]
    expert_of = chosen.reshape(-1)[order]
    counts = jnp.zeros(shape.count, jnp.int32).at[expert_of].add(1)
    used = (counts + block - 1) // block  # blocks of each expert
    first_block = jnp.cumsum(used) - used
    rank = jnp.arange(pairs, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[expert_of]
    slot = first_block[expert_of] * block + rank
    token_at = jnp.full(blocks * block, tokens, jnp.int32).at[slot].set((order // per_token).astype(jnp.int32))
    weight_at = jnp.zeros(blocks * block, jnp.float32).at[slot].set(weights.reshape(-1)[order])
    expert_at = jnp.searchsorted(jnp.cumsum(used), jnp.arange(blocks, dtype=jnp.int32), side="right")

    padded = jnp.concatenate([h, jnp.zeros_like(h[:1])])  # row `tokens` stands for no token

    def one_block(i: Array, out: Array) -> Array:
        at = lax.dynamic_slice_in_dim(token_at, i * block, block)
        which = place * shape.count + expert_at[i]
        both = linear(padded[at], stacks["expert_gate_up"], which)  # [block, 2F], gate first
        gate, up = jnp.split(both, 2, axis=-1)
        y = linear(jax.nn.gelu(gate) * up, stacks["expert_down"], which).astype(jnp.float32)  # [block, D]
        return out.at[at].add(y * lax.dynamic_slice_in_dim(weight_at, i * block, block)[:, None])

    with jax.named_scope("experts"):
        out: Array = lax.fori_loop(
            0, pairs if block == 1 else used.sum(), one_block, jnp.zeros(padded.shape, jnp.float32)
        )
    return out[:tokens].reshape(x.shape).astype(x.dtype)
