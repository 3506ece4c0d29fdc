"""`ModelConfig` from a config.json as Hugging Face transformers writes it, in both spellings of the full layers' shape.

Defaults are those of transformers' Gemma3TextConfig and Gemma4TextConfig, and only where published files rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rvchat.engine.config import Attention, Experts, Kind, ModelConfig, Rope, plan_segments
from rvchat.errors import ModelError

GEMMA3_TYPES = ("gemma3", "gemma3_text")
GEMMA4_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")

# The published multimodal Gemma 3 files leave these to the class (Gemma3TextConfig).
GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 131072,
}
EOS = {"gemma3": (1, 106), "gemma4": (1, 106, 50)}
GEMMA3_PERIOD = 6


class Fields:
    """The text model's fields. A missing one without a default is an error that names it."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.values, self.defaults = values, defaults

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def number(self, name: str) -> int:
        value = self.get(name, self.defaults.get(name))
        if value is None:
            raise ModelError(f"config.json has no {name}, which has no default")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"config.json says {name} is {value!r}; it must be a whole number of 1 or more")
        return value


def read(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ModelError(f"config.json has a text_config that is no object: {text!r}")
    model_type = text.get("model_type") or config.get("model_type")
    if model_type in GEMMA4_TYPES:
        return _gemma4(Fields(text, {}), config, generation)
    if model_type in GEMMA3_TYPES:
        return _gemma3(Fields(text, GEMMA3_DEFAULTS), config, generation)
    raise ModelError(
        f"config.json describes a model of type {model_type!r}, which rvchat does not run",
        "It runs Gemma 4 and Gemma 3 text models.",
    )


def _gemma3(f: Fields, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    layers = f.number("num_hidden_layers")
    if "layer_types" in f.values:
        kinds = _kinds(f, layers)
    else:
        period = f.get("sliding_window_pattern", f.get("_sliding_window_pattern", GEMMA3_PERIOD))
        kinds = ["full" if (i + 1) % period == 0 else "sliding" for i in range(layers)]
    heads, kv_heads, head_dim = f.number("num_attention_heads"), f.number("num_key_value_heads"), f.number("head_dim")
    _check_heads(heads, kv_heads)
    if "rope_parameters" in f.values:
        full, sliding = _rope(f, "full_attention", 1e6), _rope(f, "sliding_attention", 1e4)
    else:
        full = _linear_rope(f.get("rope_theta", 1e6), f.get("rope_scaling") or {})
        sliding = Rope(f.get("rope_local_base_freq", 1e4))
    return ModelConfig(
        model_type="gemma3",
        vocab_size=f.number("vocab_size"),
        hidden_size=f.number("hidden_size"),
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(kv_heads, head_dim, sliding, f.number("sliding_window")),
        full=Attention(kv_heads, head_dim, full, None),
        segments=plan_segments(kinds, [f.number("intermediate_size")] * layers, layers),
        context=f.number("max_position_embeddings"),
        query_scale=float(f.get("query_pre_attn_scalar", GEMMA3_DEFAULTS["query_pre_attn_scalar"])) ** -0.5,
        norm_eps=float(f.get("rms_norm_eps", 1e-6)),
        softcap=f.get("final_logit_softcapping"),
        value_norm=False,
        layer_scalar=False,
        per_layer_width=0,
        experts=None,
        eos_ids=_eos("gemma3", config, f, generation),
    )


def _gemma4(f: Fields, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    layers = f.number("num_hidden_layers")
    if f.get("layer_types") is None:
        raise ModelError("config.json has no layer_types, which say which layers are sliding and which are full")
    kinds = _kinds(f, layers)
    shared = f.get("num_kv_shared_layers", 0)
    if not isinstance(shared, int) or not 0 <= shared < layers:
        raise ModelError(f"config.json says num_kv_shared_layers is {shared!r} of {layers} layers")
    first_sharing = layers - shared
    mlp = f.number("intermediate_size")
    wide = bool(f.get("use_double_wide_mlp", False))
    heads, head_dim, kv_heads = f.number("num_attention_heads"), f.number("head_dim"), f.number("num_key_value_heads")
    value_is_key = bool(f.get("attention_k_eq_v", False))
    full_dim, full_kv = _full_shape(f, head_dim, kv_heads, value_is_key)
    _check_heads(heads, kv_heads)
    _check_heads(heads, full_kv)
    experts = None
    if f.get("enable_moe_block", False):
        experts = Experts(f.number("num_experts"), f.number("top_k_experts"), f.number("moe_intermediate_size"))
        if experts.per_token > experts.count:
            raise ModelError(f"config.json says top_k_experts is {experts.per_token} of {experts.count} experts")
    return ModelConfig(
        model_type="gemma4",
        vocab_size=f.number("vocab_size"),
        hidden_size=f.number("hidden_size"),
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(kv_heads, head_dim, _rope(f, "sliding_attention", 1e4), f.number("sliding_window")),
        full=Attention(full_kv, full_dim, _rope(f, "full_attention", 1e6), None, value_is_key),
        segments=plan_segments(
            kinds, [mlp * 2 if wide and i >= first_sharing else mlp for i in range(layers)], first_sharing
        ),
        context=f.number("max_position_embeddings"),
        query_scale=1.0,
        norm_eps=float(f.get("rms_norm_eps", 1e-6)),
        softcap=f.get("final_logit_softcapping"),
        value_norm=True,
        layer_scalar=True,
        per_layer_width=int(f.get("hidden_size_per_layer_input", 0)),
        experts=experts,
        eos_ids=_eos("gemma4", config, f, generation),
    )


def _kinds(f: Fields, layers: int) -> list[Kind]:
    names: Mapping[str, Kind] = {"sliding_attention": "sliding", "full_attention": "full"}
    types = f.get("layer_types", [])
    if not isinstance(types, list) or len(types) != layers:
        raise ModelError(f"config.json lists {len(types)} layer_types for {layers} layers")
    for i, kind in enumerate(types):
        if kind not in names:
            raise ModelError(f"config.json says layer {i} is {kind!r}; rvchat knows {', '.join(names)}")
    return [names[kind] for kind in types]


def _full_shape(f: Fields, head_dim: int, kv_heads: int, value_is_key: bool) -> tuple[int, int]:
    """Head width and KV heads of full layers, in either spelling.

    `global_head_dim` and `num_global_key_value_heads` in published files, `per_layer_config` in newer ones. The
    number of KV heads differs only where the value is the key.
    """
    if overrides := f.get("per_layer_config"):
        shapes = {(o.get("head_dim", head_dim), o.get("num_key_value_heads", kv_heads)) for o in overrides.values()}
        if len(shapes) != 1:
            raise ModelError(f"config.json's per_layer_config gives full layers different shapes: {sorted(shapes)}")
        return shapes.pop()
    return f.get("global_head_dim", head_dim), (
        f.get("num_global_key_value_heads", kv_heads) if value_is_key else kv_heads
    )


def _rope(f: Fields, kind: str, theta: float) -> Rope:
    parameters = f.get("rope_parameters", {}).get(kind) or {}
    form = parameters.get("rope_type", "proportional" if kind == "full_attention" else "default")
    theta = float(parameters.get("rope_theta", theta))
    if form == "proportional":
        return Rope(theta, turning=float(parameters.get("partial_rotary_factor", 0.25)))
    if form in ("default", "linear"):
        return _linear_rope(theta, parameters)
    raise ModelError(f"config.json asks for the RoPE type {form!r}; rvchat knows default, linear and proportional")


def _linear_rope(theta: float, scaling: Mapping[str, Any]) -> Rope:
    form = scaling.get("rope_type", scaling.get("type", "default"))
    if form not in ("default", "linear"):
        raise ModelError(f"config.json asks for the RoPE scaling {form!r}; rvchat knows linear")
    return Rope(float(theta), divisor=float(scaling.get("factor") or 1.0) if form == "linear" else 1.0)


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ModelError(f"config.json has {heads} query heads, which {kv_heads} KV heads do not divide")


def _eos(family: str, config: Mapping[str, Any], f: Fields, generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Stop ids: generation_config.json's, the configuration's, and those that every published model of the family has
    (a stop list that is lost makes a model that never stops)."""
    ids: list[int] = []
    for found in (generation.get("eos_token_id"), config.get("eos_token_id"), f.get("eos_token_id"), EOS[family]):
        ids += [found] if isinstance(found, int) else list(found or ())
    return tuple(dict.fromkeys(ids))
