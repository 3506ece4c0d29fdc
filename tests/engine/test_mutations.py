"""One fact about a model is changed at a time, and the goldens notice: proof that they would.

A change of a configuration or of a function is compiled; a change of weights runs the program that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rvchat.engine import decoder, rope
from rvchat.engine.config import Attention, ModelConfig, Rope
from rvchat.engine.engine import Engine
from rvchat.engine.params import Layers, Params

# The goldens allow 0.005; what is wrong must be far from that.
CLEARLY = 0.05


@pytest.fixture
def off(golden: Callable[[str], Any]) -> Callable[..., float]:
    """How far from the reference a changed model is."""

    def measure(name: str, config: ModelConfig | None = None, params: Params | None = None) -> float:
        model = golden(name)
        changed = replace(model, config=config or model.config, params=params or model.params)
        engine: Engine = changed.engine()
        return float(np.abs(engine.logits(model.ids) - model.logits).max())

    return measure


def with_rope(attention: Attention, **changes: Any) -> Attention:
    return replace(attention, rope=replace(attention.rope, **changes))


CONFIGS: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "window_less_one": ("gemma4-12b", lambda c: replace(c, sliding=replace(c.sliding, window=7))),
    "window_plus_one": ("gemma3", lambda c: replace(c, sliding=replace(c.sliding, window=9))),
    "no_window": ("gemma4-e2b", lambda c: replace(c, sliding=replace(c.sliding, window=None))),
    "rope_divisor": ("gemma3", lambda c: replace(c, full=with_rope(c.full, divisor=8.0))),
    "every_pair_turns": ("gemma4-12b", lambda c: replace(c, full=with_rope(c.full, turning=1.0))),
    "too_few_pairs_turn": ("gemma4-e4b", lambda c: replace(c, full=with_rope(c.full, turning=0.125))),
    "theta_of_full_layers": ("gemma4-e2b", lambda c: replace(c, full=with_rope(c.full, theta=1e4))),
    "theta_of_sliding_layers": ("gemma3", lambda c: replace(c, sliding=with_rope(c.sliding, theta=1e6))),
    "layer_scalar": ("gemma4-26b-a4b", lambda c: replace(c, layer_scalar=False)),
    "value_norm": ("gemma4-12b", lambda c: replace(c, value_norm=False)),
    "soft_cap": ("gemma4-26b-a4b", lambda c: replace(c, softcap=None)),
    "soft_cap_value": ("gemma4-12b", lambda c: replace(c, softcap=50.0)),
    "query_scale": ("gemma3", lambda c: replace(c, query_scale=64**-0.5)),
    "query_scale_of_one": ("gemma4-e2b", lambda c: replace(c, query_scale=16**-0.5)),
    "experts_per_token": ("gemma4-26b-a4b", lambda c: replace(c, experts=replace(c.experts, per_token=2))),
    "embedding_scale": ("gemma4-12b", lambda c: replace(c, hidden_size=1)),
}


@pytest.mark.parametrize("change", CONFIGS)
def test_a_wrong_configuration_is_noticed(change: str, golden: Callable[[str], Any], off: Callable[..., float]) -> None:
    name, mutate = CONFIGS[change]
    assert off(name, config=mutate(golden(name).config)) > CLEARLY


def in_layers(params: Params, change: Callable[[Layers], Layers]) -> Params:
    """Every segment's layers of both kinds, changed."""
    segments = tuple(
        replace(
            s, sliding=None if s.sliding is None else change(s.sliding), full=None if s.full is None else change(s.full)
        )
        for s in params.segments
    )
    return replace(params, segments=segments)


def field(name: str, change: Callable[[jax.Array], jax.Array]) -> Callable[[Params], Params]:
    return lambda params: in_layers(params, lambda layers: {**layers, name: change(layers[name])})


def less_one(params: Params) -> Params:
    """Gemma 3's norms as the file has them, without the 1."""
    norms = in_layers(params, lambda layers: {k: v - 1.0 if k.endswith("norm") else v for k, v in layers.items()})
    return replace(norms, final_norm=params.final_norm - 1.0)


def per_layer(**changes: Callable[[Any], Any]) -> Callable[[Params], Params]:
    def change(params: Params) -> Params:
        assert params.per_layer is not None
        return replace(
            params,
            per_layer=replace(params.per_layer, **{k: f(getattr(params.per_layer, k)) for k, f in changes.items()}),
        )

    return change


PARAMS: dict[str, tuple[str, Callable[[Params], Params]]] = {
    "gemma_3_norms_less_one": ("gemma3", less_one),
    "final_norm": ("gemma3", lambda p: replace(p, final_norm=jnp.ones_like(p.final_norm))),
    "expert_scale": ("gemma4-26b-a4b", field("expert_scale", jnp.ones_like)),
    "router_scale": ("gemma4-26b-a4b", field("router_scale", jnp.ones_like)),
    "expert_norm": ("gemma4-26b-a4b", field("expert_norm", jnp.ones_like)),
    "norm_after_the_dense_mlp": ("gemma4-26b-a4b", field("post_dense_norm", jnp.ones_like)),
    "norm_after_the_experts": ("gemma4-26b-a4b", field("post_expert_norm", jnp.ones_like)),
    "layer_scalars_of_neighbours": ("gemma4-12b", field("scalar", lambda s: jnp.roll(s, 1))),
    "query_norm": ("gemma4-12b", field("q_norm", jnp.ones_like)),
    "post_attention_norm": ("gemma4-e2b", field("post_attn_norm", jnp.ones_like)),
    "per_layer_embedding_scale": (
        "gemma4-e2b",
        per_layer(table=lambda t: replace(t, data=t.data * t.data.dtype.type(12**-0.5))),
    ),
    "per_layer_projection_norm": ("gemma4-e2b", per_layer(norm=jnp.ones_like)),
    "per_layer_embedding_of_the_next_layer": (
        "gemma4-e4b",
        per_layer(table=lambda t: replace(t, data=jnp.roll(t.data, -8, axis=1))),
    ),
    "per_layer_projection": ("gemma4-e4b", per_layer(projection=jnp.zeros_like)),
    "norm_after_the_per_layer_embedding": ("gemma4-e4b", field("post_ple_norm", jnp.ones_like)),
}


@pytest.mark.parametrize("change", PARAMS)
def test_wrong_weights_are_noticed(change: str, golden: Callable[[str], Any], off: Callable[..., float]) -> None:
    name, mutate = PARAMS[change]
    assert off(name, params=mutate(golden(name).params)) > CLEARLY


def turning_width_as_divisor(rope_of: Rope, head_dim: int) -> np.ndarray:
    """The exponents divided by the width that turns, where Gemma 4 divides by the whole head."""
    pairs, turning = head_dim // 2, int(rope_of.turning * (head_dim // 2))
    i = np.arange(pairs, dtype=np.float64)
    return np.where(i < turning, rope_of.theta ** (-i / turning), 0.0).astype(np.float32)


def neighbours_as_pairs(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The pairs (2i, 2i + 1), where Gemma turns (i, i + H/2)."""
    cos, sin = turn
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def attending(**changes: Callable[..., Any]) -> Callable[..., jax.Array]:
    """Attention whose named arguments are changed, each given all of them."""
    names = ("q", "q_positions", "k_new", "v_new", "pages", "layer", "count", "window")

    def changed(*arguments: Any) -> jax.Array:
        given = dict(zip(names, arguments, strict=True))
        return decoder_attention(**{**given, **{name: change(**given) for name, change in changes.items()}})

    return changed


decoder_attention = decoder.attention

FUNCTIONS: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "rope_exponent": ("gemma4-12b", rope, "frequencies", turning_width_as_divisor),
    "rope_pairs": ("gemma3", decoder, "rotate", neighbours_as_pairs),
    "value_is_the_finished_key": (
        "gemma4-12b",
        decoder,
        "attention",
        attending(v_new=lambda k_new, v_new, window, **_: k_new if window is None else v_new),
    ),
    "one_position_ahead": (
        "gemma3",
        decoder,
        "attention",
        attending(q_positions=lambda q_positions, **_: q_positions + 1),
    ),
    # The keys and values that a sharing layer finds are the last owner's; the first owner's instead.
    "sharing_donor": ("gemma4-e2b", decoder, "_stacked", lambda parts: jax.tree.map(lambda a: a[::-1], parts[0])),
    "exact_gelu": ("gemma4-e2b", jax.nn, "gelu", lambda x: jax.scipy.special.ndtr(x) * x),
}


@pytest.mark.parametrize("change", FUNCTIONS)
def test_wrong_arithmetic_is_noticed(
    change: str, golden: Callable[[str], Any], off: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, module, function, wrong = FUNCTIONS[change]
    monkeypatch.setattr(module, function, wrong)
    retraced = replace(golden(name).config, bos_id=3)  # equal in all that matters; no program of it is compiled yet
    try:
        assert off(name, config=retraced) > CLEARLY
    finally:
        jax.clear_caches()


def test_nothing_changed_is_nothing_noticed(golden: Callable[[str], Any], off: Callable[..., float]) -> None:
    """The measure itself: 0.005 where all is right, so that what it says of a change is due to the change."""
    assert off("gemma4-e2b") <= 5e-3
