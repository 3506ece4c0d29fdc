"""The Gemma decoder: one layer, written once, and the scans that run it.

Every published Gemma is runs of equal periods: some sliding layers and then a full-attention one. A segment is one
`lax.scan` over its periods whose body is one period, itself a scan over its sliding layers and then the full layer,
each kind at its own shape. The weights are whole arguments of which a layer takes its slice, and the pages are read
only: new keys and values leave the scans as outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from rvchat.engine.config import KINDS, Kind, ModelConfig, Segment
from rvchat.engine.experts import experts
from rvchat.engine.norm import rms_norm
from rvchat.engine.params import Layers, Params
from rvchat.engine.rope import rotate, turns
from rvchat.kernels.attention import Pages, attention
from rvchat.kernels.linear import linear, product, take_layer
from rvchat.kernels.quantised import QuantisedRows

Array = jax.Array

Rows = tuple[Array, Array]
"""New keys and values: of one layer [S, C, K, H], of all layers of a kind [L, S, C, K, H]."""


Traces = Array | None
"""The residual stream after each layer, where it is kept: [layers, S, Q, D]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """S sequences by C new tokens, and what stands before them: pages, and then rows that no page holds yet.

    tokens: int32 [S, C], of which the first `count` [S] of each sequence are real; recent: rows [L, S, R, K, H] of
    which the first `recent_count` are real, while several tokens are decoded in one call (C is 1 then).
    """

    tokens: Array
    count: Array
    pages: Mapping[Kind, Pages]
    recent: Mapping[Kind, Rows] | None = None
    recent_count: Array | None = None

    @property
    def start(self) -> Array:
        """The position of each sequence's first new token. # int32 [S]"""
        start = self.pages["full"].start
        return start if self.recent_count is None else start + self.recent_count

    def beside_pages(self, kind: Kind, owner: Array | int, new: Rows) -> tuple[Array, Array, Array]:
        """Keys and values of layer `owner` that no page holds, the new ones last, and how many are real.

        # 2 x [S, C, K, H] or 2 x [S, R, K, H], int32 [S]
        """
        if self.recent is None or self.recent_count is None:
            return *new, self.count
        earlier = self.recent[kind]
        keys, values = (
            lax.dynamic_update_slice_in_dim(take_layer(old, owner), row, self.recent_count, axis=1)
            for old, row in zip(earlier, new, strict=True)
        )
        return keys, values, self.recent_count + self.count


@dataclass(frozen=True)
class Result:
    """x: the residual stream after the last layer, [S, Q, D], Q = 1 when only the last position was wanted;
    rows: what to write into the pages; hidden: [layers + 1, S, Q, D] when asked for."""

    x: Array
    rows: dict[Kind, Rows]
    hidden: Array | None = None


@dataclass(frozen=True)
class _Queries:
    """The tokens that go through a layer: all new ones, or the last of each sequence."""

    positions: Array  # int32 [S, Q]
    turns: Mapping[Kind, tuple[Array, Array]]
    per_layer: Array | None  # [layers, S, Q, W]


def decode(
    config: ModelConfig, params: Params, step: Step, *, last_only: bool = False, keep_hidden: bool = False
) -> Result:
    """Runs the decoder over the new tokens.

    With `last_only`, layers that share KV, which write none, are run for the last position of each sequence alone, and
    so is everything after them.
    """
    positions = step.start[:, None] + jnp.arange(step.tokens.shape[1], dtype=jnp.int32)  # [S, C]
    with jax.named_scope("embed"):
        x = embed(config, params, step.tokens)  # [S, C, D]
        per_layer = per_layer_inputs(config, params, step.tokens, x)
    queries = _queries(config, positions, per_layer)
    rows: dict[Kind, list[Rows]] = {"sliding": [], "full": []}
    hidden: list[Traces] = [x[None]]
    cut = config.first_sharing_segment if last_only else -1
    for index, segment in enumerate(config.segments):
        if index == cut:
            x, queries = _last(config, step, x, positions, per_layer)
        run = _Run(config, step, segment, queries, {k: _stacked(r) for k, r in rows.items() if r}, keep_hidden)
        x, new_rows, trace = run.scan(x, params.segments[index].sliding, params.segments[index].full)
        hidden.append(trace)
        for kind, new in new_rows.items():
            rows[kind].append(new)
    if last_only and cut == len(config.segments):
        x, _ = _last(config, step, x, positions, None)
    return Result(
        x,
        {kind: _stacked(found) for kind, found in rows.items() if found},
        _concatenated(hidden) if keep_hidden else None,
    )


def one_layer(
    config: ModelConfig,
    segment: Segment,
    kind: Kind,
    place: Array,
    offset: Array,
    stacks: Layers,
    x: Array,
    per_layer: Array | None,
    owned: Mapping[Kind, Rows],
) -> tuple[Array, Rows | None]:
    """One layer, the `place`-th of its stacks and the `offset`-th of its segment, over whole texts from their
    beginnings: x [S, C, D].

    `owned`: the rows [1, S, C, K, H] of the last layer of each kind that has its own, for those that share them.
    # [S, C, D], 2 x [S, C, K, H]
    """
    s, c, _ = x.shape
    nothing = jnp.zeros((s, 1), jnp.int32)
    pages: dict[Kind, Pages] = {}
    for each in KINDS:
        a = config.attention(each)
        empty = jnp.zeros((1, 1, a.kv_heads, 1, a.head_dim), x.dtype)
        pages[each] = Pages(empty, empty, nothing, nothing[:, 0])
    step = Step(jnp.zeros((s, c), jnp.int32), jnp.full(s, c, jnp.int32), pages)
    positions = jnp.broadcast_to(jnp.arange(c, dtype=jnp.int32), (s, c))
    run = _Run(config, step, segment, _queries(config, positions, per_layer), owned, keep_hidden=False)
    x, (rows, _) = run.layer(kind, x, stacks, place, offset)
    return x, rows


def embed(config: ModelConfig, params: Params, tokens: Array) -> Array:
    """Rows of the embedding, scaled. The scale is rounded as the activations are. # [S, C, D]"""
    table = params.embed
    rows = table.rows(tokens) if isinstance(table, QuantisedRows) else jnp.take(table, tokens, axis=0, mode="clip")
    dtype = activation_dtype(params)
    return rows.astype(dtype) * jnp.asarray(config.hidden_size**0.5, dtype)


def activation_dtype(params: Params) -> jnp.dtype:
    """What activations are computed in: the type of what is never quantised."""
    return jnp.dtype(params.final_norm.dtype)


def per_layer_inputs(config: ModelConfig, params: Params, tokens: Array, x: Array) -> Array | None:
    """What each layer adds for each token, from the token's row of the table and from its embedding x.

    # [layers, S, C, W], or None for a model without per-layer embeddings
    """
    if params.per_layer is None:
        return None
    width, layers = config.per_layer_width, config.num_layers
    projected = product(x, params.per_layer.projection) * config.hidden_size**-0.5  # [S, C, layers * W]
    projected = projected.reshape(*tokens.shape, layers, width)
    projected = rms_norm(projected, params.per_layer.norm, config.norm_eps)
    looked_up = params.per_layer.table.rows(tokens).reshape(projected.shape) * width**0.5
    both = ((projected + looked_up) * 2**-0.5).astype(x.dtype)
    return jnp.moveaxis(both, 2, 0)


def logits(config: ModelConfig, params: Params, x: Array) -> Array:
    """float32 scores of every token after x [..., D], after the soft cap. # [..., V]"""
    with jax.named_scope("head"):
        normed = rms_norm(x, params.final_norm, config.norm_eps)
        table = params.embed
        scores = table.product(normed) if isinstance(table, QuantisedRows) else product(normed, table)
        return scores if config.softcap is None else config.softcap * jnp.tanh(scores / config.softcap)


def _queries(config: ModelConfig, positions: Array, per_layer: Array | None) -> _Queries:
    shapes = {kind: config.attention(kind) for kind in KINDS}
    return _Queries(positions, {k: turns(a.rope, a.head_dim, positions) for k, a in shapes.items()}, per_layer)


def _last(
    config: ModelConfig, step: Step, x: Array, positions: Array, per_layer: Array | None
) -> tuple[Array, _Queries]:
    """x [S, C, D] and the queries, of each sequence's last real token. # [S, 1, D]"""
    at = step.count[:, None] - 1  # [S, 1]

    def pick(a: Array) -> Array:  # [S, C, ...] -> [S, 1, ...]
        return jnp.take_along_axis(a, at.reshape(*at.shape, *[1] * (a.ndim - 2)), axis=1)

    last_per_layer = None if per_layer is None else jax.vmap(pick)(per_layer)
    return pick(x), _queries(config, pick(positions), last_per_layer)


def _stacked(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    keys, values = zip(*parts, strict=True)
    return jnp.concatenate(keys), jnp.concatenate(values)


def _concatenated(traces: list[Traces]) -> Traces:
    kept = [trace for trace in traces if trace is not None]
    return jnp.concatenate(kept) if kept else None


@dataclass(frozen=True)
class _Run:
    """One segment's scan."""

    config: ModelConfig
    step: Step
    segment: Segment
    queries: _Queries
    owned: Mapping[Kind, Rows]  # rows of the layers before this segment, [L, S, C, K, H]
    keep_hidden: bool

    def scan(
        self, x: Array, sliding: Layers | None, full: Layers | None
    ) -> tuple[Array, dict[Kind, Rows], Array | None]:
        """# x: [S, Q, D], rows of the segment's own layers: [L, S, C, K, H], trace: [layers, S, Q, D]"""
        segment = self.segment

        def period(x: Array, p: Array) -> tuple[Array, tuple[dict[Kind, Rows], Traces]]:
            rows: dict[Kind, Rows] = {}
            traces: list[Traces] = []
            if sliding is not None:

                def one(x: Array, j: Array) -> tuple[Array, tuple[Rows | None, Traces]]:
                    place = p * segment.sliding + j
                    return self.layer("sliding", x, sliding, place, p * segment.period + j)

                x, (new, trace) = lax.scan(one, x, jnp.arange(segment.sliding))
                traces.append(trace)
                if new is not None:
                    rows["sliding"] = new
            if full is not None:
                x, (new, trace) = self.layer("full", x, full, p, p * segment.period + segment.sliding)
                traces.append(None if trace is None else trace[None])
                if new is not None:
                    rows["full"] = (new[0][None], new[1][None])
            return x, (rows, _concatenated(traces))

        x, (rows, traces) = lax.scan(period, x, jnp.arange(segment.periods))
        rows, traces = jax.tree.map(lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:]), (rows, traces))
        return x, rows, traces

    def layer(
        self, kind: Kind, x: Array, stacks: Layers, place: Array, offset: Array
    ) -> tuple[Array, tuple[Rows | None, Traces]]:
        """One layer: the `place`-th of its stacks, the `offset`-th of its segment. # x: [S, Q, D]"""
        config, eps = self.config, self.config.norm_eps
        number = self.segment.first_layer + offset

        def norm(h: Array, name: str) -> Array:
            return rms_norm(h, stacks[name][place], eps)

        with jax.named_scope("attention"):
            h, rows = self.attend(kind, norm(x, "attn_norm"), stacks, place)
            x = x + norm(h, "post_attn_norm")
        with jax.named_scope("mlp"):
            h = norm(x, "mlp_norm")
            h = jax.nn.gelu(linear(h, stacks["gate"], place)) * linear(h, stacks["up"], place)  # [S, Q, F]
            h = linear(h, stacks["down"], place)  # [S, Q, D]
            if config.experts is not None:
                h = norm(h, "post_dense_norm") + norm(experts(config, stacks, place, x), "post_expert_norm")
            x = x + norm(h, "post_mlp_norm")
        if self.queries.per_layer is not None:
            with jax.named_scope("per_layer_embedding"):
                added = self.queries.per_layer[number]  # [S, Q, W]
                g = jax.nn.gelu(linear(x, stacks["ple_gate"], place)) * added
                x = x + norm(linear(g, stacks["ple_projection"], place), "post_ple_norm")
        if config.layer_scalar:
            x = x * stacks["scalar"][place]
        return x, (rows, x if self.keep_hidden else None)

    def attend(self, kind: Kind, h: Array, stacks: Layers, place: Array) -> tuple[Array, Rows | None]:
        """Attention of the normed h [S, Q, D]; the rows are this layer's own, None where it shares. # [S, Q, D]"""
        config, a = self.config, self.config.attention(kind)
        eps, turn = config.norm_eps, self.queries.turns[kind]
        s, q_len, _ = h.shape
        q = linear(h, stacks["q"], place).reshape(s, q_len, config.query_heads, a.head_dim)
        q = rotate(rms_norm(q, stacks["q_norm"][place], eps), turn) * config.query_scale  # [S, Q, N, H]
        rows: Rows | None = None
        before = self.owned[kind][0].shape[0] if kind in self.owned else 0
        if self.segment.shares_kv:
            k, v = (r[-1] for r in self.owned[kind])
            owner: Array | int = before - 1
        else:
            raw = linear(h, stacks["k"], place).reshape(s, q_len, a.kv_heads, a.head_dim)
            k = rotate(rms_norm(raw, stacks["k_norm"][place], eps), turn)  # [S, C, K, H]
            v = raw if a.value_is_key else linear(h, stacks["v"], place).reshape(raw.shape)
            if config.value_norm:
                v = rms_norm(v, None, eps)
            rows, owner = (k, v), before + place
        keys, values, count = self.step.beside_pages(kind, owner, (k, v))
        out = attention(q, self.queries.positions, keys, values, self.step.pages[kind], owner, count, a.window)
        return linear(out.reshape(s, q_len, -1), stacks["o"], place), rows
