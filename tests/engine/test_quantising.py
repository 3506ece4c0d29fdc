"""Rounding to INT4 and INT8: small errors, and products that are what the integers stand for."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from rvchat.engine import quantising
from rvchat.kernels.quantised import GROUP, Quantised, QuantisedRows, values_of

Float = npt.NDArray[np.float32]


def weights(rows: int, inputs: int, seed: int = 0) -> Float:
    """Heavy-tailed, as trained weights are."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(4, (rows, inputs)) * 0.02).astype(np.float32)


def unpacked(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8) - 8


def error(groups: Float, rounded: Float) -> float:
    return float(((groups - rounded) ** 2).sum())


def test_int4_beats_rounding_to_the_largest_value() -> None:
    w = weights(64, 256)
    packed, scales = quantising.int4(w)
    groups = w.reshape(64, -1, GROUP)
    ours = unpacked(packed) * scales[..., None].astype(np.float32)
    absmax = np.abs(groups).max(-1, keepdims=True) / 7
    plain = np.clip(np.round(groups / absmax), -8, 7) * absmax
    assert error(groups, ours) < 0.8 * error(groups, plain)
    # No group is worse off, beyond what storing its scale in 16 bits costs.
    each = ((groups - ours) ** 2).sum(-1), ((groups - plain) ** 2).sum(-1)
    assert (each[0] <= each[1] * 1.01).all()


def test_int8_is_at_least_as_good_as_rounding_to_the_largest_value() -> None:
    w = weights(64, 256)
    integers, scales = quantising.int8_rows(w)
    ours = integers * scales[:, None]
    absmax = np.abs(w).max(-1, keepdims=True) / 127
    plain = np.round(w / absmax) * absmax
    assert error(w, ours) <= error(w, plain)
    assert np.abs(w - ours).max() < 0.02 * np.abs(w).max()


def test_zeros_stay_zeros() -> None:
    packed, scales = quantising.int4(np.zeros((2, 64), np.float32))
    assert (unpacked(packed) * scales[..., None] == 0).all()
    integers, row_scales = quantising.int8_rows(np.zeros((2, 64), np.float32))
    assert (integers * row_scales[:, None] == 0).all()


def test_what_int4_holds_exactly_stays_as_it_is() -> None:
    rng = np.random.default_rng(1)
    integers = rng.integers(-8, 8, (16, 2, GROUP)).astype(np.int8)
    integers[..., 0] = -8  # so that the scale can be told
    w = (integers * np.float32(0.0078125)).reshape(16, -1)
    packed, scales = quantising.int4(w)
    np.testing.assert_array_equal((unpacked(packed) * scales[..., None].astype(np.float32)).reshape(w.shape), w)


def test_scales_of_columns_keep_a_group_from_serving_its_largest_column_alone() -> None:
    w = weights(64, 128)
    w[:, ::32] *= 8  # one input of each group is large
    columns = quantising.int4_columns(w)

    def lost(columns: Float) -> Float:
        packed, scales = quantising.int4(w / columns)
        stands_for = (unpacked(packed) * scales[..., None].astype(np.float32)).reshape(w.shape) * columns
        found: Float = np.linalg.norm(stands_for - w, axis=0) / np.linalg.norm(w, axis=0)
        return found

    assert lost(columns).max() < 0.15
    assert np.median(lost(np.ones_like(columns))) > 0.2


def test_weights_that_lie_on_a_grid_of_int4_get_no_scales_of_columns() -> None:
    """As those of a checkpoint that was trained for INT4 and is stored in bfloat16."""
    rng = np.random.default_rng(9)
    integers = rng.integers(-8, 8, (32, 4, GROUP))
    integers[..., 0] = -8
    scales = rng.uniform(0.001, 0.1, (32, 4, 1))
    w = np.asarray(jnp.asarray(integers * scales, jnp.bfloat16), np.float32).reshape(32, -1)
    assert (quantising.int4_columns(w) == 1).all()
    assert (quantising.int4_columns(weights(32, 128)) != 1).all()


def stack(w: Float, bits: int, *, exact: bool) -> tuple[Quantised, Float]:
    """One layer's weight [outputs, inputs] quantised, and what it then stands for."""
    outputs, inputs = w.shape
    if bits == 4:
        packed, scales = quantising.int4(w)
        stands_for = (unpacked(packed) * scales[..., None].astype(np.float32)).reshape(w.shape)
        stored = packed
    else:
        integers, scales = quantising.int8(w)
        stands_for = (integers * scales[..., None].astype(np.float32)).reshape(w.shape)
        stored = integers
    values = stored.view(np.uint16).transpose(1, 2, 0)
    assert values[None].shape == values_of(bits, 1, outputs, inputs)
    return Quantised(jnp.asarray(values[None]), jnp.asarray(scales.T[None]), bits, exact), stands_for


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_an_exact_product_is_that_of_what_the_integers_stand_for(bits: int, rows: int) -> None:
    quantised, stands_for = stack(weights(48, 96), bits, exact=True)
    x = np.random.default_rng(2).standard_normal((rows, 96)).astype(np.float32)
    np.testing.assert_allclose(quantised.product(jnp.asarray(x), 0), x @ stands_for.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_product_in_integers_differs_by_the_rounding_of_activations_alone(bits: int, rows: int) -> None:
    quantised, stands_for = stack(weights(64, 128), bits, exact=False)
    x = np.random.default_rng(3).standard_normal((rows, 128)).astype(np.float32)
    groups = x.reshape(rows, -1, GROUP)
    scale = np.abs(groups).max(-1, keepdims=True) / 127
    rounded = (np.round(groups / scale) * scale).reshape(x.shape)
    product = np.asarray(quantised.product(jnp.asarray(x), 0))
    np.testing.assert_allclose(product, rounded @ stands_for.T, rtol=1e-3, atol=1e-5)


def test_the_largest_sums_of_int4_do_not_overflow() -> None:
    values = jnp.zeros(values_of(4, 1, 4, GROUP), jnp.uint16)  # every weight is -8
    quantised = Quantised(values, jnp.ones((1, 1, 4), jnp.float16), 4, exact=False)
    for sign in (1.0, -1.0):
        product = quantised.product(jnp.full((1, GROUP), sign, jnp.float32), 0)
        np.testing.assert_allclose(product, np.full((1, 4), -8.0 * GROUP * sign), rtol=1e-6)


def test_a_product_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quantised, _ = stack(weights(96, 64), 4, exact=True)
    x = jnp.asarray(np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32))
    whole = np.asarray(quantised.product(x, 0))
    monkeypatch.setattr("rvchat.kernels.quantised.PIECE_BYTES", 64 * 4 * 32)
    np.testing.assert_allclose(quantised.product(x, 0), whole, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_the_head_and_the_rows_of_a_quantised_embedding_agree(rows: int) -> None:
    w = weights(300, 64) * np.geomspace(0.1, 10.0, 64, dtype=np.float32)
    columns = quantising.table_columns(w)
    integers, scales = quantising.int8_rows(w / columns)
    table = QuantisedRows(jnp.asarray(integers), jnp.asarray(scales[:, None]), jnp.asarray(columns), exact=False)
    stands_for = integers * scales[:, None] * columns
    lost = np.linalg.norm(stands_for - w, axis=0) / np.linalg.norm(w, axis=0)
    assert lost.max() < 0.03  # of the smallest column too
    np.testing.assert_allclose(table.rows(jnp.asarray([[5, 299]])), stands_for[[[5, 299]]], rtol=1e-6)
    x = np.random.default_rng(5).standard_normal((rows, 64)).astype(np.float32)
    bound = (
        np.abs(stands_for / columns).sum(-1).max() * np.abs(x * columns).max() / 254
    )  # half a step of the activations' rounding
    assert np.abs(np.asarray(table.product(jnp.asarray(x))) - x @ stands_for.T).max() < bound
    exact = replace(table, exact=True)
    np.testing.assert_allclose(exact.product(jnp.asarray(x)), x @ stands_for.T, rtol=1e-4, atol=1e-5)
