"""A configuration that is no Gemma's, or makes no sense, is refused in a line that names the field."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rvchat.engine.config import ModelConfig, plan_segments
from rvchat.engine.gguf import GGUF
from rvchat.errors import ModelError

DATA = Path(__file__).parents[1] / "data"
CONFIGS = DATA / "engine" / "configs"


def published(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return value


def refused(config: dict[str, Any], *said: str) -> None:
    with pytest.raises(ModelError) as error:
        ModelConfig.from_hf(config)
    for part in said:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


REQUIRED = [
    "num_hidden_layers",
    "layer_types",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "global_head_dim",
    "hidden_size_per_layer_input",
    "vocab_size",
    "sliding_window",
    "max_position_embeddings",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named(name: str) -> None:
    config = published("gemma-4-E2B")
    del config["text_config"][name]
    refused(config, name)


@pytest.mark.parametrize("name", ["num_experts", "top_k_experts", "moe_intermediate_size"])
def test_a_missing_field_of_experts_is_named(name: str) -> None:
    config = published("gemma-4-26B-A4B")
    config["text_config"][name] = None
    refused(config, name)


def test_the_unified_class_has_no_per_layer_embeddings_to_name() -> None:
    assert "hidden_size_per_layer_input" not in published("gemma-4-12B")["text_config"]
    assert ModelConfig.from_hf(published("gemma-4-12B")).per_layer_width == 0


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "intermediate_size", "sliding_window"])
def test_gemma_3_has_defaults_only_for_what_its_files_leave_out(name: str) -> None:
    config = published("gemma-3-4b")
    assert ModelConfig.from_hf(config).vocab_size == 262_208
    del config["text_config"][name]
    refused(config, name)


WRONG: list[tuple[str, Any]] = [
    *[
        (name, value)
        for name in ("num_hidden_layers", "hidden_size", "head_dim")
        for value in (0, -1, "8", 1.5, True, [])
    ],
    ("num_hidden_layers", 10**9),
    ("num_key_value_heads", 3),
    ("layer_types", "sliding_attention"),
    ("layer_types", []),
    ("layer_types", [7] * 35),
    ("layer_types", ["linear_attention"] * 35),
    ("rope_parameters", {"sliding_attention": {"rope_type": "default"}}),
    ("rope_parameters", [1, 2]),
    ("rope_parameters", {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}),
    ("rms_norm_eps", "small"),
    ("rms_norm_eps", -1e-6),
    ("rms_norm_eps", 10**400),
    ("final_logit_softcapping", "30"),
    ("final_logit_softcapping", float("nan")),
    ("num_kv_shared_layers", 35),
    ("num_kv_shared_layers", -1),
    ("num_kv_shared_layers", "all"),
    ("hidden_activation", "silu"),
    ("use_bidirectional_attention", "all"),
    ("global_head_dim", -512),
    ("per_layer_config", {"0": {"head_dim": 512}}),
    ("per_layer_config", {"full": {"head_dim": 512}}),
    ("per_layer_config", {"4": {"head_dim": 512}, "9": {"head_dim": 256}}),
    ("per_layer_config", {"4": 512}),
    ("per_layer_config", {"4" * 5000: {"head_dim": 512}}),
    ("eos_token_id", "</s>"),
    ("hidden_size_per_layer_input", -256),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    config = published("gemma-4-E2B")
    config["text_config"][name] = value
    refused(config, "8 query heads, which 3 KV heads" if name == "num_key_value_heads" else name)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gemma3n", None, 4, ["gemma4"]])
def test_an_unknown_model_type(model_type: Any) -> None:
    config = published("gemma-4-E2B")
    config["model_type"] = config["text_config"]["model_type"] = model_type
    refused(config, repr(model_type), "Gemma 4 and Gemma 3")


def test_an_empty_configuration() -> None:
    refused({}, "None")
    refused({"model_type": "gemma4", "text_config": "gemma4"}, "text_config")


def test_sharing_that_starts_inside_a_period() -> None:
    config = published("gemma-4-E2B")
    config["text_config"]["num_kv_shared_layers"] = 18
    refused(config, "sharing starts at layer 17", "period of 5")


def test_sharing_before_any_full_layer() -> None:
    config = published("gemma-4-E2B")
    config["text_config"]["num_kv_shared_layers"] = 31
    refused(config, "layer 4")


def test_a_pattern_that_is_not_periodic() -> None:
    config = published("gemma-4-E2B")
    types = config["text_config"]["layer_types"]
    types[7], types[9] = types[9], types[7]
    refused(config, "not periodic", "layer 7 is full")


def test_more_experts_for_a_token_than_there_are() -> None:
    config = published("gemma-4-26B-A4B")
    config["text_config"]["top_k_experts"] = 129
    refused(config, "top_k_experts is 129 of 128")


def test_segments() -> None:
    sliding, full = "sliding", "full"
    period = [sliding, sliding, full]
    one = plan_segments(period * 2, [8] * 6, 6)
    assert [(s.first_layer, s.periods, s.sliding, s.full) for s in one] == [(0, 2, 2, 1)]
    leftover = plan_segments([*period, sliding], [8] * 4, 4)
    assert [(s.first_layer, s.periods, s.sliding, s.full) for s in leftover] == [(0, 1, 2, 1), (3, 1, 1, 0)]
    wider = plan_segments(period * 2, [8] * 3 + [16] * 3, 6)
    assert [(s.first_layer, s.mlp_size, s.shares_kv) for s in wider] == [(0, 8, False), (3, 16, False)]
    with pytest.raises(ModelError, match="MLP changes width at layer 2"):
        plan_segments(period * 2, [8] * 2 + [16] * 4, 6)


@given(
    sliding=st.integers(0, 6),
    periods=st.integers(1, 8),
    leftover=st.integers(0, 5),
    shared=st.integers(0, 7),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_segments_hold_every_layer_once(sliding: int, periods: int, leftover: int, shared: int, data: Any) -> None:
    leftover, shared = min(leftover, sliding), min(shared, periods - 1)
    kinds: list[Any] = (["sliding"] * sliding + ["full"]) * periods + ["sliding"] * leftover
    period = sliding + 1
    first_sharing = (periods - shared) * period if shared else len(kinds)
    segments = plan_segments(kinds, [8] * len(kinds), first_sharing)
    numbers = {kind: sorted(n for s in segments for n in s.layer_numbers(kind)) for kind in ("sliding", "full")}
    assert numbers == {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in numbers}
    assert sum(s.layers for s in segments) == len(kinds)
    assert all(s.shares_kv == (s.first_layer >= first_sharing) for s in segments)


@given(data=st.data(), name=st.sampled_from(["gemma-4-E2B", "gemma-4-26B-A4B", "gemma-3-270m", "gemma-3-4b"]))
@settings(max_examples=150, deadline=None)
def test_no_value_of_any_field_is_worse_than_refused(data: Any, name: str) -> None:
    config = copy.deepcopy(published(name))
    text = config.get("text_config", config)
    field = data.draw(st.sampled_from(sorted(text)))
    text[field] = data.draw(
        st.none()
        | st.booleans()
        | st.integers(-(2**40), 2**40)
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers(), max_size=4)
        | st.dictionaries(st.sampled_from(["full_attention", "rope_type", "3"]), st.integers(), max_size=2)
    )
    with contextlib.suppress(ModelError):  # and nothing but that
        ModelConfig.from_hf(config)


# --- GGUF ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata() -> Callable[[str], dict[str, Any]]:
    return lambda name: dict(GGUF.open(DATA / "goldens" / name / "model.gguf").metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_count", None),
        ("block_count", 2**31),
        ("block_count", "ten"),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.head_count_kv", [1, 1]),
        ("attention.head_count_kv", "1"),
        ("attention.sliding_window_pattern", 6),
        ("attention.sliding_window_pattern", [True]),
        ("attention.sliding_window_pattern", None),
        ("attention.shared_kv_layers", 10),
        ("attention.shared_kv_layers", 4),
        ("attention.key_length", None),
        ("attention.layer_norm_rms_epsilon", "tiny"),
        ("attention.layer_norm_rms_epsilon", None),
        ("rope.freq_base", float("nan")),
        ("feed_forward_length", [96] * 10 + [1]),
        ("feed_forward_length", 1.5),
        ("final_logit_softcapping", -30.0),
        ("embedding_length", -1),
        ("context_length", None),
    ],
)
def test_wrong_gguf_metadata_is_named(name: str, value: Any, metadata: Callable[[str], dict[str, Any]]) -> None:
    changed = metadata("gemma4-e2b-q4_0")
    changed[f"gemma4.{name}"] = value
    with pytest.raises(ModelError) as error:
        ModelConfig.from_gguf(changed)
    named = {
        "attention.head_count_kv": ("head_count_kv", "KV heads"),
        "attention.shared_kv_layers": ("share KV", "sharing starts"),
    }
    assert any(part in str(error.value) for part in named.get(name, (name,)))


@pytest.mark.parametrize("architecture", ["llama", "gemma2", None, 7])
def test_another_architecture(architecture: Any, metadata: Callable[[str], dict[str, Any]]) -> None:
    changed = metadata("gemma4-e2b-q4_0") | {"general.architecture": architecture}
    with pytest.raises(ModelError, match=f"architecture {architecture!r}"):
        ModelConfig.from_gguf(changed)


@pytest.mark.parametrize("pair", [("gemma4-e2b", "gemma4-e2b-q4_0"), ("gemma4-31b", "gemma4-31b-q4_0")])
def test_a_model_is_the_same_in_both_formats(pair: tuple[str, str], metadata: Callable[[str], dict[str, Any]]) -> None:
    folder = DATA / "goldens" / pair[0]
    plain = ModelConfig.from_hf(
        json.loads((folder / "config.json").read_text()), json.loads((folder / "generation_config.json").read_text())
    )
    file = GGUF.open(DATA / "goldens" / pair[1] / "model.gguf")
    stored = ModelConfig.from_gguf(file.metadata, tuple(file.tensors))
    differing = {k for k in vars(plain) if vars(plain)[k] != vars(stored)[k]}
    assert differing <= {"eos_ids", "context"}
    assert set(plain.eos_ids) == set(stored.eos_ids)


def gemma_3(layers: int, hidden: int, heads: int, kv_heads: int, width: int, **more: Any) -> dict[str, Any]:
    """The metadata that a published Gemma 3 file has: no pattern, no sliding theta, no scale, no vocabulary size."""
    fields = {
        "block_count": layers,
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": width,
        "feed_forward_length": 4 * hidden,
        "attention.sliding_window": 1024,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "context_length": 131_072,
        **more,
    }
    return {
        "general.architecture": "gemma3",
        "tokenizer.ggml.tokens": ["a"] * 300,
        **{f"gemma3.{k}": v for k, v in fields.items()},
    }


def test_gemma_3_files_leave_much_to_the_reader() -> None:
    config = ModelConfig.from_gguf(gemma_3(26, 1152, 4, 1, 256))
    assert [s.full for s in config.segments] == [1, 0]
    assert (config.vocab_size, config.sliding.rope.theta, config.full.rope.theta) == (300, 1e4, 1e6)
    assert config.query_scale == 256**-0.5
    large = ModelConfig.from_gguf(
        gemma_3(62, 5376, 32, 16, 128, **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    )
    assert large.query_scale == 168**-0.5
    assert (large.full.rope.divisor, large.sliding.rope.divisor) == (8.0, 1.0)
    with pytest.raises(ModelError, match=r"rope\.scaling\.type"):
        ModelConfig.from_gguf(gemma_3(26, 1152, 4, 1, 256, **{"rope.scaling.type": "yarn"}))
    without = gemma_3(26, 1152, 4, 1, 256)
    del without["tokenizer.ggml.tokens"]
    with pytest.raises(ModelError, match="vocab_size"):
        ModelConfig.from_gguf(without)
