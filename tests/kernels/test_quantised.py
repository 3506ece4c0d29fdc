"""Products with INT4 and INT8 weights against the weights written out, and how well weights are rounded."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine import quantising
from rvchat.engine.nibbles import pack_nibbles
from rvchat.kernels import quantised
from rvchat.kernels.linear import linear, product
from rvchat.kernels.quantised import LEADING, Quantised, QuantisedRows

LAYERS, OUTPUTS, INPUTS = 3, 48, 96


def stack(bits: int, exact: bool, seed: int = 0) -> tuple[Quantised, Any]:
    """A stack in `bits`, and the same weights written out. # [L, outputs, inputs]"""
    rng = np.random.default_rng(seed)
    low, high = (-8, 8) if bits == 4 else (-127, 128)
    integers = rng.integers(low, high, (LAYERS, OUTPUTS, INPUTS)).astype(np.int8)
    groups = INPUTS // 32
    scales = rng.uniform(0.5, 2.0, (LAYERS, OUTPUTS, groups)).astype(np.float32) / high
    plain = integers * np.repeat(scales, INPUTS // groups, axis=2)
    if bits == 4:
        values = pack_nibbles(integers.reshape(LAYERS, OUTPUTS, groups, 32)).view(np.uint16)  # [L, outputs, G, 8]
    else:
        values = integers.reshape(LAYERS, OUTPUTS, groups, 32).view(np.uint16)  # [L, outputs, G, 16]
    return (
        Quantised(jnp.asarray(values.transpose(0, 2, 3, 1)), jnp.asarray(scales.transpose(0, 2, 1)), bits, exact),
        plain,
    )


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("bits", [4, 8])
def test_an_exact_product_rounds_nothing(bits: int, rows: int) -> None:
    weights, plain = stack(bits, exact=True)
    assert (weights.inputs, weights.outputs) == (INPUTS, OUTPUTS)
    x = np.random.default_rng(1).normal(size=(1, rows, INPUTS)).astype(np.float32)
    for layer in range(LAYERS):
        found = jax.jit(linear)(x, weights, layer)
        assert found.shape == (1, rows, OUTPUTS)
        np.testing.assert_allclose(found, x @ plain[layer].T, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quick_product_rounds_activations_and_no_more(bits: int, rows: int) -> None:
    """Each activation may be off by half of its group's 127th, weights by nothing. Of more rows both are bfloat16, and
    off by less than that together."""
    weights, plain = stack(bits, exact=False)
    x = np.random.default_rng(2).normal(size=(rows, INPUTS)).astype(np.float32)
    x[:, :32] *= 100  # a group of its own: the others are rounded as finely as ever
    found = np.asarray(jax.jit(linear)(x, weights, 1))
    half = np.repeat(np.abs(x.reshape(rows, -1, 32)).max(-1), 32, axis=1) / 127 / 2
    bound = half @ np.abs(plain[1]).T
    assert (np.abs(found - x @ plain[1].T) <= bound + 1e-3).all()
    assert not np.allclose(found, x @ plain[1].T, atol=1e-4)  # it is the rounded way that was measured


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("exact", [True, False])
def test_inputs_are_multiplied_by_their_columns(rows: int, exact: bool) -> None:
    weights, plain = stack(4, exact)
    rng = np.random.default_rng(8)
    columns = rng.uniform(0.1, 3.0, (LAYERS, INPUTS)).astype(np.float32)
    x = rng.normal(size=(rows, INPUTS)).astype(np.float32)
    scaled = dataclasses.replace(weights, columns=jnp.asarray(columns))
    for layer in range(LAYERS):
        found = np.asarray(jax.jit(linear)(x, scaled, layer))
        bound = 3e-5 if exact else (np.abs(x * columns[layer]).max() / 254) * np.abs(plain[layer]).sum(-1) + 1e-3
        assert (np.abs(found - (x * columns[layer]) @ plain[layer].T) <= bound).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_integers_do_not_overflow(bits: int) -> None:
    weights, _ = stack(bits, exact=False)
    lowest = np.uint16(0 if bits == 4 else 0x8181)
    full = Quantised(jnp.full_like(weights.values, lowest), jnp.ones_like(weights.scales), bits, exact=False)
    x = np.full((1, INPUTS), 2.0, np.float32)
    expected = -2.0 * INPUTS * (8 if bits == 4 else 127)
    np.testing.assert_allclose(jax.jit(linear)(x, full, 0), np.full((1, OUTPUTS), expected), rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_pieces_of_the_outputs_are_joined_in_order(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "PIECE_BYTES", INPUTS * 4 * 7)  # pieces of 6 outputs
    weights, plain = stack(bits, exact=True)
    x = np.random.default_rng(3).normal(size=(5, INPUTS)).astype(np.float32)
    np.testing.assert_allclose(weights.product(jnp.asarray(x), 2), x @ plain[2].T, atol=2e-5)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 8, 40])
def test_the_embedding_is_also_the_head(rows: int, exact: bool) -> None:
    rng = np.random.default_rng(4)
    values = rng.integers(-127, 128, (100, 64)).astype(np.int8)
    scales = rng.uniform(0.5, 2.0, (100, 1)).astype(np.float32) / 127
    columns = rng.uniform(0.1, 3.0, 64).astype(np.float32)
    table = QuantisedRows(jnp.asarray(values), jnp.asarray(scales), jnp.asarray(columns), exact)
    plain = values * scales * columns
    tokens = rng.integers(0, 100, (2, 7))
    np.testing.assert_allclose(table.rows(jnp.asarray(tokens)), plain[tokens], rtol=1e-6)
    x = rng.normal(size=(rows, 64)).astype(np.float32)
    found = np.asarray(jax.jit(table.product)(x))
    step = np.abs(x * columns).max(-1, keepdims=True) / 254
    bound = 5e-5 if exact else step * np.abs(plain / columns).sum(-1) + 1e-3
    assert found.shape == (rows, 100)
    assert (np.abs(found - x @ plain.T) <= bound).all()


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_leading_scores_are_made_of_activations_that_are_not_rounded(rows: int) -> None:
    """Of one row all are; of several those that a token is drawn from, and the others within what rounding costs."""
    vocab = 32 * LEADING
    rng = np.random.default_rng(6)
    values = rng.integers(-127, 128, (vocab, 64)).astype(np.int8)
    scales = rng.uniform(0.5, 2.0, (vocab, 1)).astype(np.float32) / 127
    table = QuantisedRows(jnp.asarray(values), jnp.asarray(scales), jnp.ones(64, jnp.float32), exact=False)
    x = rng.normal(size=(rows, 64)).astype(np.float32)
    off = np.abs(np.asarray(jax.jit(table.product)(x)) - x @ (values * scales).T)
    half_a_step = np.abs(x).max(-1) / 254
    assert (off <= half_a_step[:, None] * np.abs(values * scales).sum(-1) + 1e-3).all()
    best = np.argsort(-(x @ (values * scales).T), axis=-1)[:, : LEADING // 2]
    exact = half_a_step[:, None] / 254 * np.abs(values * scales).sum(-1)[best] + 1e-4 if rows == 1 else 1e-4
    assert (np.take_along_axis(off, best, axis=-1) <= exact).all()


def test_plain_weights() -> None:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(LAYERS, OUTPUTS, INPUTS)).astype(np.float32)
    x = rng.normal(size=(2, 3, INPUTS)).astype(np.float32)
    np.testing.assert_allclose(linear(jnp.asarray(x), jnp.asarray(weights), 2), x @ weights[2].T, atol=2e-5)
    half = product(jnp.asarray(x, jnp.bfloat16), jnp.asarray(weights[0], jnp.bfloat16))
    assert half.dtype == jnp.float32


# --- rounding --------------------------------------------------------------------------------------------------------


def unpacked(packed: Any) -> Any:
    """# int [..., 32]"""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int32) - 8


@given(seed=st.integers(0, 1000), size=st.sampled_from([1e-3, 1.0, 30.0]))
@settings(max_examples=20, deadline=None)
def test_rounding_is_better_than_covering_the_range(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    weights = (rng.standard_t(4, (8, 64)) * size).astype(np.float32)
    packed, scales = quantising.int4(weights)
    assert (packed.shape, scales.shape, scales.dtype) == ((8, 2, 16), (8, 2), np.float16)
    groups = weights.reshape(8, 2, 32)
    error = ((unpacked(packed) * scales[..., None].astype(np.float32) - groups) ** 2).sum(-1)
    covering = np.abs(groups).max(-1, keepdims=True) / 7
    naive = ((np.clip(np.round(groups / covering), -8, 7) * covering - groups) ** 2).sum(-1)
    assert (error <= naive * 1.01).all()
    assert error.sum() < naive.sum() * 0.95
    integers, scales = quantising.int8(weights)
    assert (integers.shape, scales.shape, scales.dtype) == ((8, 2, 32), (8, 2), np.float16)
    assert (
        np.abs(integers * scales[..., None].astype(np.float32) - groups) <= np.abs(groups).max(-1, keepdims=True) / 127
    ).all()
    rows, row_scales = quantising.int8_rows(weights)
    assert (np.abs(rows * row_scales[:, None] - weights) <= np.abs(weights).max(-1, keepdims=True) / 127).all()


def test_what_a_form_holds_is_kept() -> None:
    rng = np.random.default_rng(6)
    integers = rng.integers(-8, 8, (4, 3, 32))
    integers[..., 0] = -8
    scales = rng.choice([0.25, 0.5, 3.0], (4, 3, 1))
    packed, found = quantising.int4((integers * scales).reshape(4, 96).astype(np.float32))
    assert np.array_equal(unpacked(packed) * found[..., None].astype(np.float32), integers * scales)
    wide = rng.integers(-127, 128, (4, 96))
    wide[:, 5] = 127
    rows, row_scales = quantising.int8_rows((wide * 0.125).astype(np.float32))
    np.testing.assert_allclose(rows * row_scales[:, None], wide * 0.125, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-127, 127), (-16, 15)], ids=["Q8_0", "Q5_0"])
def test_int8_keeps_what_such_files_hold(low: int, high: int) -> None:
    rng = np.random.default_rng(7)
    integers = rng.integers(low, high + 1, (4, 3, 32))
    integers[..., 3] = low
    scales = rng.uniform(0.001, 0.1, (4, 3, 1)).astype(np.float16).astype(np.float32)
    weights = integers * scales
    values, found = quantising.int8(weights.reshape(4, 96))
    assert np.array_equal(values * found[..., None].astype(np.float32), weights)


def test_nothing_but_zeros() -> None:
    packed, scales = quantising.int4(np.zeros((2, 32), np.float32))
    assert not (unpacked(packed) * scales[..., None]).any()
    values, scales = quantising.int8(np.zeros((2, 32), np.float32))
    assert not (values * scales[..., None]).any()
    rows, row_scales = quantising.int8_rows(np.zeros((2, 32), np.float32))
    assert not (rows * row_scales[:, None]).any()
    assert np.isfinite(row_scales).all()
