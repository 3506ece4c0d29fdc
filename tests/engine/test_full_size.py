"""The published models at their full size: what their configurations mean, and programs made without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rvchat.engine.config import (
    Attention,
    Experts,
    ModelConfig,
    Rope,
    Segment,
    kv_bytes,
    kv_bytes_per_token,
    parameter_count,
    weight_bytes,
)

CONFIGS = Path(__file__).parents[1] / "data" / "engine" / "configs"

# Gemma 4: counted by hand from the published dimensions. Gemma 3: the published totals less the vision towers.
PARAMETERS = {
    "gemma-4-E2B": 4_628_569_379,
    "gemma-4-E4B": 7_463_013_418,
    "gemma-4-12B": 11_907_350_320,
    "gemma-4-26B-A4B": 25_233_141_790,
    "gemma-4-31B": 30_697_345_340,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
}


def published(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return settings


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(published(name))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_counted(name: str) -> None:
    assert parameter_count(config_of(name)) == PARAMETERS[name]


@pytest.mark.parametrize("name", [n for n in PARAMETERS if n.startswith("gemma-4")])
def test_the_newer_spelling_of_full_layers_means_the_same(name: str) -> None:
    settings = published(name)
    text = settings["text_config"]
    shape = {"head_dim": text.pop("global_head_dim")}
    if (kv_heads := text.pop("num_global_key_value_heads")) is not None:
        shape["num_key_value_heads"] = kv_heads
    text["per_layer_config"] = {
        f"{i:02}": shape for i, kind in enumerate(text["layer_types"]) if kind == "full_attention"
    }
    assert ModelConfig.from_hf(settings) == config_of(name)


def test_a_text_only_file_means_the_same() -> None:
    settings = published("gemma-4-E4B")
    assert ModelConfig.from_hf({**settings["text_config"], "eos_token_id": [1, 106]}) == config_of("gemma-4-E4B")


def test_the_older_and_newer_fields_of_gemma_3_mean_the_same() -> None:
    settings = published("gemma-3-1b")
    older = {k: v for k, v in settings.items() if not k.startswith("rope")}
    newer = older | {
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(26)],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    del newer["sliding_window_pattern"]
    assert ModelConfig.from_hf(newer) == config_of("gemma-3-1b")


def test_e2b() -> None:
    config = config_of("gemma-4-E2B")
    assert config.segments == (Segment(0, 3, 4, 1, 6144, False), Segment(15, 4, 4, 1, 12288, True))
    assert config.sliding == Attention(1, 256, Rope(1e4), 512)
    assert config.full == Attention(1, 512, Rope(1e6, turning=0.25), None)
    assert (config.per_layer_width, config.softcap, config.query_scale) == (256, 30.0, 1.0)
    assert (config.value_norm, config.layer_scalar, config.experts) == (True, True, None)
    assert config.segments[0].layer_numbers("sliding")[-1] == 13  # whose keys and values sliding layers share
    assert config.segments[0].layer_numbers("full")[-1] == 14


def test_e4b() -> None:
    config = config_of("gemma-4-E4B")
    assert config.segments == (Segment(0, 4, 5, 1, 10240, False), Segment(24, 3, 5, 1, 10240, True))
    assert config.segments[0].layer_numbers("sliding")[-1] == 22
    assert config.segments[0].layer_numbers("full")[-1] == 23


def test_the_large_models() -> None:
    for name, kv_heads, full_kv in (("12B", 8, 1), ("26B-A4B", 8, 2), ("31B", 16, 4)):
        config = config_of(f"gemma-4-{name}")
        assert config.sliding == Attention(kv_heads, 256, Rope(1e4), 1024)
        assert config.full == Attention(full_kv, 512, Rope(1e6, turning=0.25), None, value_is_key=True)
        assert (config.context, config.shares_kv, config.per_layer_width) == (262_144, False, 0)
    assert config_of("gemma-4-26B-A4B").experts == Experts(128, 8, 704)


def test_gemma_3() -> None:
    small, large = config_of("gemma-3-1b"), config_of("gemma-3-27b")
    assert small.segments == (Segment(0, 4, 5, 1, 6912, False), Segment(24, 1, 2, 0, 6912, False))
    assert small.full == Attention(1, 256, Rope(1e6), None)
    assert large.full == Attention(16, 128, Rope(1e6, divisor=8.0), None)
    assert large.sliding == Attention(16, 128, Rope(1e4), 1024)
    assert large.query_scale == 168**-0.5
    assert (large.softcap, large.value_norm, large.layer_scalar) == (None, False, False)


@pytest.mark.parametrize("name", PARAMETERS)
def test_stop_ids_are_never_lost(name: str) -> None:
    ends = {1, 106, 50} if name.startswith("gemma-4") else {1, 106}
    for generation in ({}, {"eos_token_id": 1}, {"eos_token_id": [1, 106, 50]}):
        assert ends <= set(ModelConfig.from_hf(published(name), generation).eos_ids)


def test_bytes_of_weights() -> None:
    gigabytes = {name: weight_bytes(config_of(name), "bf16") / 1e9 for name in PARAMETERS if name.startswith("gemma-4")}
    assert {name: round(size, 1) for name, size in gigabytes.items()} == {
        "gemma-4-E2B": 9.3,
        "gemma-4-E4B": 14.9,
        "gemma-4-12B": 23.8,
        "gemma-4-26B-A4B": 50.5,
        "gemma-4-31B": 61.4,
    }
    e2b = config_of("gemma-4-E2B")
    assert weight_bytes(e2b, "float32") == 4 * parameter_count(e2b)
    # 29.3 G linear weights at 4.5 bits and 1.4 G of the embedding at 8.
    assert weight_bytes(config_of("gemma-4-31B"), "int4") / 1e9 == pytest.approx(17.9, abs=0.1)


def test_bytes_of_keys_and_values() -> None:
    """Per token of context on full layers; sliding layers hold their window and no more."""
    kilobytes = {name: kv_bytes_per_token(config_of(name), "full") / 1000 for name in PARAMETERS}
    for name, expected in (("31B", 82), ("26B-A4B", 20), ("12B", 16), ("E4B", 16), ("E2B", 6)):
        assert kilobytes[f"gemma-4-{name}"] == pytest.approx(expected, abs=0.5)
    large = config_of("gemma-4-31B")
    window = 50 * 2 * 16 * 256 * 2 * 1024
    full = 10 * 2 * 4 * 512 * 2
    assert kv_bytes(large, 512) == window // 2 + full * 512
    assert kv_bytes(large, 131_072) == window + full * 131_072
    assert kv_bytes(large, 1024, number_bytes=4) == 2 * (window + full * 1024)
