"""`ModelConfig` from GGUF metadata of the architectures gemma3 and gemma4, with llama.cpp's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rvchat.engine.config import Attention, Experts, Kind, ModelConfig, Rope, plan_segments
from rvchat.engine.config_hf import EOS, GEMMA3_PERIOD
from rvchat.errors import ModelError

# llama.cpp scales Gemma 3 27B's queries by (hidden / heads) ** -0.5 and every other size's by head_dim ** -0.5, and
# tells it by its depth; the file itself does not say.
GEMMA3_27B_LAYERS = 62


class Metadata:
    """The fields under `<architecture>.`; a missing one without a default is an error that names it."""

    def __init__(self, architecture: str, values: Mapping[str, Any]) -> None:
        self.architecture, self.values = architecture, values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelError(f"The GGUF metadata has no {self.architecture}.{name}, which has no default")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value < 0:
            raise ModelError(f"The GGUF metadata says {self.architecture}.{name} is {value!r}; it must be a number")
        return value

    def per_layer(self, name: str, layers: int) -> list[int]:
        """A field given once for all layers or as a list with one value a layer."""
        value = self.get(name)
        values = [value] * layers if isinstance(value, int) else [int(v) for v in value]
        if len(values) != layers:
            raise ModelError(f"The GGUF metadata lists {len(values)} of {self.architecture}.{name} for {layers} layers")
        return values


def read(metadata: Mapping[str, Any], tensors: Sequence[str]) -> ModelConfig:
    """See `ModelConfig.from_gguf`."""
    architecture = metadata.get("general.architecture")
    if architecture == "gemma4":
        return _gemma4(Metadata("gemma4", metadata), metadata, frozenset(tensors))
    if architecture == "gemma3":
        return _gemma3(Metadata("gemma3", metadata), metadata)
    raise ModelError(
        f"The GGUF file holds a model of architecture {architecture!r}, which rvchat does not run",
        "It runs Gemma 4 and Gemma 3 text models.",
    )


def _gemma3(m: Metadata, metadata: Mapping[str, Any]) -> ModelConfig:
    layers, heads = m.number("block_count"), m.number("attention.head_count")
    hidden, head_dim = m.number("embedding_length"), m.number("attention.key_length")
    kv_heads = m.number("attention.head_count_kv")
    kinds: list[Kind] = ["full" if (i + 1) % GEMMA3_PERIOD == 0 else "sliding" for i in range(layers)]
    divisor = float(m.get("rope.scaling.factor", 1.0)) if m.get("rope.scaling.type", "none") == "linear" else 1.0
    return ModelConfig(
        model_type="gemma3",
        vocab_size=_vocab_size(m, metadata),
        hidden_size=hidden,
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(
            kv_heads, head_dim, Rope(float(m.get("rope.freq_base_swa", 1e4))), m.number("attention.sliding_window")
        ),
        full=Attention(kv_heads, head_dim, Rope(float(m.get("rope.freq_base", 1e6)), divisor=divisor), None),
        segments=plan_segments(kinds, m.per_layer("feed_forward_length", layers), layers),
        context=m.number("context_length"),
        query_scale=float(hidden / heads if layers == GEMMA3_27B_LAYERS else head_dim) ** -0.5,
        norm_eps=float(m.get("attention.layer_norm_rms_epsilon")),
        softcap=float(m.get("final_logit_softcapping", 0.0)) or None,
        value_norm=False,
        layer_scalar=False,
        per_layer_width=0,
        experts=None,
        eos_ids=_eos("gemma3", metadata),
    )


def _gemma4(m: Metadata, metadata: Mapping[str, Any], tensors: frozenset[str]) -> ModelConfig:
    layers, heads = m.number("block_count"), m.number("attention.head_count")
    pattern = m.get("attention.sliding_window_pattern")
    if len(pattern) != layers:
        raise ModelError(f"The GGUF metadata's sliding_window_pattern has {len(pattern)} entries for {layers} layers")
    kinds: list[Kind] = ["sliding" if sliding else "full" for sliding in pattern]
    first_sharing = layers - m.number("attention.shared_kv_layers", 0)
    if first_sharing < 1:
        raise ModelError(f"The GGUF metadata says all {layers} layers share KV, and none owns it")
    kv = m.per_layer("attention.head_count_kv", layers)
    sliding_kv, full_kv = _kv_heads(kv, kinds, "sliding"), _kv_heads(kv, kinds, "full")
    full_owners = [i for i in range(first_sharing) if kinds[i] == "full"]
    if tensors:
        value_is_key = bool(full_owners) and not any(f"blk.{i}.attn_v.weight" in tensors for i in full_owners)
    else:  # the number of KV heads differs only where the value is the key
        value_is_key = full_kv != sliding_kv
    experts = None
    if count := m.number("expert_count", 0):
        experts = Experts(count, m.number("expert_used_count"), m.number("expert_feed_forward_length"))
    return ModelConfig(
        model_type="gemma4",
        vocab_size=_vocab_size(m, metadata),
        hidden_size=m.number("embedding_length"),
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(
            sliding_kv,
            m.number("attention.key_length_swa"),
            Rope(float(m.get("rope.freq_base_swa", 1e4))),
            m.number("attention.sliding_window"),
        ),
        full=Attention(
            full_kv,
            m.number("attention.key_length"),
            Rope(float(m.get("rope.freq_base", 1e6)), turning=0.25),
            None,
            value_is_key,
        ),
        segments=plan_segments(kinds, m.per_layer("feed_forward_length", layers), first_sharing),
        context=m.number("context_length"),
        query_scale=1.0,
        norm_eps=float(m.get("attention.layer_norm_rms_epsilon")),
        softcap=float(m.get("final_logit_softcapping", 0.0)) or None,
        value_norm=True,
        layer_scalar=True,
        per_layer_width=m.number("embedding_length_per_layer_input", 0),
        experts=experts,
        eos_ids=_eos("gemma4", metadata),
    )


def _kv_heads(kv: Sequence[int], kinds: Sequence[Kind], kind: Kind) -> int:
    found = {heads for heads, k in zip(kv, kinds, strict=True) if k == kind} or set(kv)
    if len(found) != 1:
        raise ModelError(f"The GGUF metadata gives {kind} layers different numbers of KV heads: {sorted(found)}")
    return found.pop()


def _vocab_size(m: Metadata, metadata: Mapping[str, Any]) -> int:
    """As stated, or else the length of the vocabulary: Gemma 3 files do not state it."""
    return m.number("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())) or None)


def _eos(family: str, metadata: Mapping[str, Any]) -> tuple[int, ...]:
    stated = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return tuple(dict.fromkeys([i for i in stated if isinstance(i, int)] + list(EOS[family])))
