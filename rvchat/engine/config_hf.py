"""`ModelConfig` from a config.json as Hugging Face transformers writes it, in both spellings of the full layers' shape.

Defaults are those of transformers' Gemma3TextConfig and Gemma4TextConfig, and only where published files rely on them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rvchat.engine.config import Attention, Experts, Kind, ModelConfig, Rope, plan_segments
from rvchat.errors import ModelError

GEMMA3_TYPES = ("gemma3", "gemma3_text")
# The unified class has no per-layer embeddings, and no field that says so.
UNIFIED_TYPES = ("gemma4_unified", "gemma4_unified_text")
GEMMA4_TYPES = ("gemma4", "gemma4_text", *UNIFIED_TYPES)

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
ACTIVATION = "gelu_pytorch_tanh"
NAMED_KINDS = "sliding_attention, full_attention"
# Several times the depth of any published model: a damaged file may claim billions.
MAX_LAYERS = 1024


class Fields:
    """Fields of config.json, or of an object in it. A missing one without a default, and one that makes no sense, is an
    error that names it."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, place: str = "") -> None:
        self.values, self.defaults, self.place = values, defaults or {}, place

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self._present(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, value, f"a whole number of {least} or more")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self._present(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise self.wrong(name, value, "a number above 0")
        return float(value)

    def within(self, name: str) -> Fields:
        """The object `name`; an empty one where there is none."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Fields(value, place=f"{self.place}{name}.")

    def layers(self) -> int:
        count = self.number("num_hidden_layers")
        if count > MAX_LAYERS:
            raise self.wrong("num_hidden_layers", count, f"{MAX_LAYERS} or fewer")
        return count

    def wrong(self, name: str, value: Any, needed: str) -> ModelError:
        return ModelError(f"config.json says {self.place}{name} is {value!r}; it must be {needed}")

    def _present(self, name: str, default: Any) -> Any:
        value = self.get(name, self.defaults.get(name, default))
        if value is None:
            raise ModelError(f"config.json has no {self.place}{name}, which has no default")
        return value


def read(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ModelError(f"config.json has a text_config that is no object: {text!r}")
    model_type = text.get("model_type") or config.get("model_type")
    f = Fields(text, GEMMA3_DEFAULTS if model_type in GEMMA3_TYPES else None)
    if model_type not in GEMMA3_TYPES + GEMMA4_TYPES:
        raise ModelError(
            f"config.json describes a model of type {model_type!r}, which rvchat does not run",
            "It runs Gemma 4 and Gemma 3 text models.",
        )
    activation = f.get("hidden_activation", ACTIVATION)
    if activation != ACTIVATION:
        raise f.wrong("hidden_activation", activation, ACTIVATION)
    if f.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise ModelError("config.json sets use_bidirectional_attention: the model reads text and does not continue it")
    if model_type in GEMMA4_TYPES:
        return _gemma4(f, config, generation, per_layer_embeddings=model_type not in UNIFIED_TYPES)
    return _gemma3(f, config, generation)


def _gemma3(f: Fields, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    layers = f.layers()
    if f.get("layer_types") is not None:
        kinds = _kinds(f, layers)
    else:
        period = f.number("sliding_window_pattern", f.number("_sliding_window_pattern", GEMMA3_PERIOD))
        kinds = ["full" if (i + 1) % period == 0 else "sliding" for i in range(layers)]
    heads, kv_heads, head_dim = f.number("num_attention_heads"), f.number("num_key_value_heads"), f.number("head_dim")
    _check_heads(heads, kv_heads)
    if f.get("rope_parameters") is not None:
        full, sliding = _rope(f, "full_attention", 1e6, "default"), _rope(f, "sliding_attention", 1e4, "default")
    else:
        full = _linear_rope(f.real("rope_theta", 1e6), f.within("rope_scaling"))
        sliding = Rope(f.real("rope_local_base_freq", 1e4))
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
        query_scale=f.real("query_pre_attn_scalar") ** -0.5,
        norm_eps=f.real("rms_norm_eps", 1e-6),
        softcap=_softcap(f),
        value_norm=False,
        layer_scalar=False,
        per_layer_width=0,
        experts=None,
        eos_ids=_eos("gemma3", config, f, generation),
    )


def _gemma4(
    f: Fields, config: Mapping[str, Any], generation: Mapping[str, Any], per_layer_embeddings: bool
) -> ModelConfig:
    layers = f.layers()
    if f.get("layer_types") is None:
        raise ModelError("config.json has no layer_types, which say which layers are sliding and which are full")
    kinds = _kinds(f, layers)
    shared = f.number("num_kv_shared_layers", 0, least=0)
    if shared >= layers:
        raise ModelError(f"config.json says num_kv_shared_layers is {shared} of {layers} layers")
    first_sharing = layers - shared
    mlp = f.number("intermediate_size")
    wide = bool(f.get("use_double_wide_mlp", False))
    heads, head_dim, kv_heads = f.number("num_attention_heads"), f.number("head_dim"), f.number("num_key_value_heads")
    value_is_key = bool(f.get("attention_k_eq_v", False))
    full_dim, full_kv = _full_shape(f, kinds, head_dim, kv_heads, value_is_key)
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
        sliding=Attention(
            kv_heads, head_dim, _rope(f, "sliding_attention", 1e4, "default"), f.number("sliding_window")
        ),
        full=Attention(full_kv, full_dim, _rope(f, "full_attention", 1e6, "proportional"), None, value_is_key),
        segments=plan_segments(
            kinds, [mlp * 2 if wide and i >= first_sharing else mlp for i in range(layers)], first_sharing
        ),
        context=f.number("max_position_embeddings"),
        query_scale=1.0,
        norm_eps=f.real("rms_norm_eps", 1e-6),
        softcap=_softcap(f),
        value_norm=True,
        layer_scalar=True,
        per_layer_width=f.number("hidden_size_per_layer_input", least=0) if per_layer_embeddings else 0,
        experts=experts,
        eos_ids=_eos("gemma4", config, f, generation),
    )


def _softcap(f: Fields) -> float | None:
    return None if f.get("final_logit_softcapping") is None else f.real("final_logit_softcapping")


def _kinds(f: Fields, layers: int) -> list[Kind]:
    names: Mapping[str, Kind] = {"sliding_attention": "sliding", "full_attention": "full"}
    types = f.get("layer_types")
    if not isinstance(types, list):
        raise f.wrong("layer_types", types, "a list")
    if len(types) != layers:
        raise ModelError(f"config.json lists {len(types)} layer_types for {layers} layers")
    for i, kind in enumerate(types):
        if not isinstance(kind, str) or kind not in names:
            raise ModelError(f"config.json says in layer_types that layer {i} is {kind!r}; rvchat knows {NAMED_KINDS}")
    return [names[kind] for kind in types]


def _full_shape(f: Fields, kinds: Sequence[Kind], head_dim: int, kv_heads: int, value_is_key: bool) -> tuple[int, int]:
    """Head width and KV heads of full layers, in either spelling.

    `global_head_dim` and `num_global_key_value_heads` in published files; in newer ones `per_layer_config`, which maps
    a layer's number to what it has of its own. The number of KV heads differs only where the value is the key.
    """
    overrides = f.within("per_layer_config")
    if not overrides.values:
        full_kv = f.number("num_global_key_value_heads", kv_heads)
        return f.number("global_head_dim"), full_kv if value_is_key else kv_heads
    shapes = set()
    for key in overrides.values:
        layer = int(key) if str(key).isdecimal() and len(key) < 10 else -1
        if not 0 <= layer < len(kinds) or kinds[layer] != "full":
            raise ModelError(f"config.json gives layer {key!r} a shape in per_layer_config; only full layers have one")
        own = overrides.within(key)
        shapes.add((own.number("head_dim", head_dim), own.number("num_key_value_heads", kv_heads)))
    if len(shapes) != 1 or len(overrides.values) != kinds.count("full"):
        raise ModelError(f"config.json's per_layer_config gives full layers different shapes: {sorted(shapes)}")
    return shapes.pop()


def _rope(f: Fields, kind: str, theta: float, form: str) -> Rope:
    """The RoPE of one kind of layer; `theta` and `form` are for a file that leaves rope_parameters out."""
    stated = f.within("rope_parameters")
    if stated.values and not isinstance(stated.get(kind), Mapping):
        raise ModelError(f"config.json has no rope_parameters.{kind}, which has no default")
    parameters = stated.within(kind)
    form = parameters.get("rope_type", form)
    theta = parameters.real("rope_theta", theta)
    if form == "proportional":
        return Rope(theta, turning=parameters.real("partial_rotary_factor", 0.25))
    return _linear_rope(theta, parameters)


def _linear_rope(theta: float, scaling: Fields) -> Rope:
    form = scaling.get("rope_type", scaling.get("type", "default"))
    if form not in ("default", "linear"):
        raise ModelError(
            f"config.json asks for RoPE of type {form!r} in {scaling.place.rstrip('.')}; "
            "rvchat knows default, linear and Gemma 4's proportional"
        )
    return Rope(theta, divisor=scaling.real("factor") if form == "linear" else 1.0)


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ModelError(f"config.json has {heads} query heads, which {kv_heads} KV heads do not divide")


def _eos(family: str, config: Mapping[str, Any], f: Fields, generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Stop ids: generation_config.json's, the configuration's, and those that every published model of the family has
    (a stop list that is lost makes a model that never stops)."""
    ids: list[int] = []
    for found in (generation.get("eos_token_id"), config.get("eos_token_id"), f.get("eos_token_id")):
        stated = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(i, int) for i in stated):
            raise f.wrong("eos_token_id", found, "a token id or a list of them")
        ids += stated
    return tuple(dict.fromkeys([*ids, *EOS[family]]))
