"""The decoder's small parts against the formulas they stand for: norms, rotary positions, tables, experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rvchat.engine.config import Attention, Experts, ModelConfig, Rope, plan_segments
from rvchat.engine.experts import BLOCK, experts
from rvchat.engine.norm import rms_norm
from rvchat.engine.rope import frequencies, rotate, turns
from rvchat.engine.table import BLOCK_FORMS, PLAIN_FORMS, Table

# --- norms -----------------------------------------------------------------------------------------------------------


def test_norm() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 16)).astype(np.float32), rng.normal(size=16).astype(np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-6), expected * weight, rtol=1e-5)
    np.testing.assert_allclose(rms_norm(jnp.asarray(x), None, 1e-6), expected, rtol=1e-5)


def test_norm_of_large_numbers_in_16_bits() -> None:
    """Squares of activations as large as Gemma's leave the range of float16: they are made in float32."""
    x = jnp.full((4, 8), 60_000.0, jnp.bfloat16)
    found = rms_norm(x, None, 1e-6)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), 1.0, rtol=1e-2)


# --- rotary positions ------------------------------------------------------------------------------------------------


def test_frequencies() -> None:
    np.testing.assert_allclose(frequencies(Rope(1e4), 8), [1.0, 0.1, 0.01, 0.001], rtol=1e-6)
    np.testing.assert_allclose(frequencies(Rope(1e4, divisor=8.0), 8), [0.125, 0.0125, 0.00125, 0.000125], rtol=1e-6)
    # The first quarter of the pairs turns, each as fast as in a head that turns whole.
    np.testing.assert_allclose(
        frequencies(Rope(1e4, turning=0.25), 16), [1.0, 10 ** (-0.5), 0, 0, 0, 0, 0, 0], rtol=1e-6
    )


def test_rotation_is_by_the_position_and_of_the_pair_half_a_head_apart() -> None:
    rng = np.random.default_rng(1)
    rope, head = Rope(1e4), 8
    x = rng.normal(size=(2, 3, 2, head)).astype(np.float32)
    positions = np.array([[0, 1, 77], [5, 6, 4000]], np.int32)
    found = np.asarray(rotate(jnp.asarray(x), turns(rope, head, jnp.asarray(positions))))
    for s in range(2):
        for q in range(3):
            for i in range(head // 2):
                turned = (x[s, q, :, i] + 1j * x[s, q, :, i + head // 2]) * np.exp(
                    1j * positions[s, q] * 1e4 ** (-2 * i / head)
                )
                np.testing.assert_allclose(found[s, q, :, i], turned.real, atol=1e-3)
                np.testing.assert_allclose(found[s, q, :, i + head // 2], turned.imag, atol=1e-3)
    np.testing.assert_array_equal(found[0, 0], x[0, 0])  # position 0 turns nothing


def test_scores_depend_on_the_distance_alone() -> None:
    rng = np.random.default_rng(2)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 16)), jnp.float32) for _ in range(2))

    def score(p: int, r: int) -> float:
        at = [turns(Rope(1e6, turning=0.5), 16, jnp.asarray([[i]], jnp.int32)) for i in (p, r)]
        return float((rotate(q, at[0]) * rotate(k, at[1])).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [*BLOCK_FORMS, *PLAIN_FORMS])
def test_rows_of_a_table(form: str) -> None:
    kind = gguf.GGMLQuantizationType[form]
    rng = np.random.default_rng(3)
    vocab, width = 11, 512
    values = rng.normal(size=(vocab, width)).astype(np.float32)
    if form in ("Q8_0", "Q4_0", "F16"):
        raw = gguf.quants.quantize(values, kind)
    elif form == "Q6_K":
        raw = rng.integers(0, 256, (vocab, width // 256 * 210), np.uint8)
        scales = rng.uniform(-2, 2, (vocab, 2)).astype(np.float16)
        for block in range(2):  # any byte but in the scale, where it might be no number
            raw[:, block * 210 + 208 : block * 210 + 210] = scales[:, block : block + 1].view(np.uint8)
    else:
        raw = values if form == "F32" else gguf.quants.quantize(values, kind)
    expected = values if form == "F32" else gguf.quants.dequantize(raw, kind)
    data = raw if form in BLOCK_FORMS or form == "F32" else np.ascontiguousarray(raw).view(np.uint16)
    table = Table(jnp.asarray(data), form, width)
    tokens = np.array([[0, 10, 3], [3, 7, 10]], np.int32)
    found = jax.jit(Table.rows)(table, tokens)
    assert (found.shape, found.dtype) == ((2, 3, width), jnp.float32)
    np.testing.assert_array_equal(found, expected[tokens])


# --- experts ---------------------------------------------------------------------------------------------------------

COUNT, CHOSEN, WIDTH, HIDDEN = 8, 3, 32, 64


def configuration() -> ModelConfig:
    attention = Attention(1, 16, Rope(1e4), 8)
    return ModelConfig(
        model_type="gemma4",
        vocab_size=8,
        hidden_size=HIDDEN,
        num_layers=2,
        query_heads=1,
        sliding=attention,
        full=replace(attention, window=None),
        segments=plan_segments(["sliding", "full"], [8, 8], 2),
        context=64,
        query_scale=1.0,
        norm_eps=1e-6,
        softcap=None,
        value_norm=True,
        layer_scalar=True,
        per_layer_width=0,
        experts=Experts(COUNT, CHOSEN, WIDTH),
        eos_ids=(1,),
    )


def expert_stacks(seed: int, layers: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32) * shape[-1] ** -0.5

    return {
        "router": normal(layers, COUNT, HIDDEN) * 8,
        "router_scale": rng.uniform(0.5, 1.5, (layers, HIDDEN)).astype(np.float32),
        "expert_scale": rng.uniform(0.5, 1.5, (layers, COUNT)).astype(np.float32),
        "expert_norm": rng.uniform(0.5, 1.5, (layers, HIDDEN)).astype(np.float32),
        "expert_gate_up": normal(layers * COUNT, 2 * WIDTH, HIDDEN),
        "expert_down": normal(layers * COUNT, HIDDEN, WIDTH),
    }


def one_token(stacks: dict[str, Any], layer: int, x: Any) -> Any:
    """One token's experts, each by itself, in float64."""

    def normed(v: Any) -> Any:
        return v / np.sqrt((v**2).mean() + 1e-6)

    x = x.astype(np.float64)
    scores = stacks["router"][layer] @ (normed(x) * stacks["router_scale"][layer] * HIDDEN**-0.5)
    likely = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    best = np.argsort(-likely)[:CHOSEN]
    h, out = normed(x) * stacks["expert_norm"][layer], np.zeros(HIDDEN)
    for e in best:
        gate, up = np.split(stacks["expert_gate_up"][layer * COUNT + e] @ h, 2)
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        weight = likely[e] / likely[best].sum() * stacks["expert_scale"][layer][e]
        out += weight * (stacks["expert_down"][layer * COUNT + e] @ (gelu * up))
    return out


@pytest.mark.parametrize("tokens", [1, 8, 9, 100])
def test_experts_against_a_plain_loop(tokens: int) -> None:
    """Few tokens take their experts one by one, many are grouped by expert."""
    config, stacks = configuration(), expert_stacks(tokens)
    x = np.random.default_rng(tokens).normal(size=(1, tokens, HIDDEN)).astype(np.float32)
    for layer in range(2):
        found = jax.jit(experts, static_argnums=0)(config, stacks, layer, x)
        expected = np.stack([one_token(stacks, layer, row) for row in x[0]])
        np.testing.assert_allclose(found[0], expected, atol=1e-4)


@pytest.mark.parametrize("favourite", [0, COUNT - 1])
def test_an_expert_that_everybody_chooses(favourite: int) -> None:
    """More tokens than one block holds go to the first or the last expert, and some experts get none."""
    config, stacks = configuration(), expert_stacks(5)
    x = np.random.default_rng(6).normal(size=(2, BLOCK + 5, HIDDEN)).astype(np.float32)
    x += 3 * stacks["router"][0][favourite] * HIDDEN**0.5
    found = np.asarray(jax.jit(experts, static_argnums=0)(config, stacks, 0, x)).reshape(-1, HIDDEN)
    expected = np.stack([one_token(stacks, 0, row) for row in x.reshape(-1, HIDDEN)])
    np.testing.assert_allclose(found, expected, atol=1e-4)
