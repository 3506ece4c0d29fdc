"""`ModelConfig` from GGUF metadata of the architectures gemma3 and gemma4, with llama.cpp's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rvchat.engine.config import Attention, Experts, Kind, ModelConfig, Rope, plan_segments
from rvchat.engine.config_hf import EOS, GEMMA3_PERIOD, MAX_LAYERS
from rvchat.errors import ModelError

# llama.cpp scales Gemma 3 27B's queries by (hidden / heads) ** -0.5 and every other size's by head_dim ** -0.5, and
# tells it by its depth; the file itself does not say.
GEMMA3_27B_LAYERS = 62


class Metadata:
    """The fields under `<architecture>.`; a missing one without a default, and one that makes no sense, is an error
    that names it."""

    def __init__(self, architecture: str, values: Mapping[str, Any]) -> None:
        self.architecture, self.values = architecture, values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise ModelError(f"The GGUF metadata has no {self.architecture}.{name}, which has no default")
        return value

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value < least:
            raise self.wrong(name, value, f"a whole number of {least} or more")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.wrong(name, value, "a number above 0")
        return float(f"{value:.7g}")  # stored in float32: the decimal that was meant, as config.json has it

    def layers(self) -> int:
        count = self.number("block_count")
        if count > MAX_LAYERS:
            raise self.wrong("block_count", count, f"{MAX_LAYERS} or fewer")
        return count

    def numbers(self, name: str, layers: int) -> list[int]:
        """A list with one number a layer."""
        value = self.get(name)
        values = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(values, (list, tuple)) or not all(isinstance(v, int) for v in values):
            raise self.wrong(name, value, "a list of whole numbers")
        if len(values) != layers:
            raise ModelError(f"The GGUF metadata lists {len(values)} of {self.architecture}.{name} for {layers} layers")
        return list(values)

    def per_layer(self, name: str, layers: int) -> list[int]:
        """A field given once for all layers or as a list with one number a layer; each is 1 or more."""
        if isinstance(self.get(name), int):
            return [self.number(name)] * layers
        values = self.numbers(name, layers)
        if min(values) < 1:
            raise self.wrong(name, min(values), "a whole number of 1 or more")
        return values

    def wrong(self, name: str, value: Any, needed: str) -> ModelError:
        return ModelError(f"The GGUF metadata says {self.architecture}.{name} is {value!r:.60}; it must be {needed}")


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
    layers, heads = m.layers(), m.number("attention.head_count")
    hidden, head_dim = m.number("embedding_length"), m.number("attention.key_length")
    kv_heads = m.number("attention.head_count_kv")
    _check_heads(heads, kv_heads)
    kinds: list[Kind] = ["full" if (i + 1) % GEMMA3_PERIOD == 0 else "sliding" for i in range(layers)]
    scaling = m.get("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise m.wrong("rope.scaling.type", scaling, "none or linear")
    divisor = m.real("rope.scaling.factor") if scaling == "linear" else 1.0
    return ModelConfig(
        model_type="gemma3",
        vocab_size=_vocab_size(m, metadata),
        hidden_size=hidden,
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(
            kv_heads, head_dim, Rope(m.real("rope.freq_base_swa", 1e4)), m.number("attention.sliding_window")
        ),
        full=Attention(kv_heads, head_dim, Rope(m.real("rope.freq_base", 1e6), divisor=divisor), None),
        segments=plan_segments(kinds, m.per_layer("feed_forward_length", layers), layers),
        context=m.number("context_length"),
        query_scale=float(hidden / heads if layers == GEMMA3_27B_LAYERS else head_dim) ** -0.5,
        norm_eps=m.real("attention.layer_norm_rms_epsilon"),
        softcap=_softcap(m),
        value_norm=False,
        layer_scalar=False,
        per_layer_width=0,
        experts=None,
        eos_ids=_eos("gemma3", metadata),
    )


def _gemma4(m: Metadata, metadata: Mapping[str, Any], tensors: frozenset[str]) -> ModelConfig:
    layers, heads = m.layers(), m.number("attention.head_count")
    pattern = m.numbers("attention.sliding_window_pattern", layers)
    kinds: list[Kind] = ["sliding" if sliding else "full" for sliding in pattern]
    first_sharing = layers - m.number("attention.shared_kv_layers", 0, least=0)
    if first_sharing < 1:
        raise ModelError(f"The GGUF metadata says all {layers} layers share KV, and none owns it")
    kv = m.per_layer("attention.head_count_kv", layers)
    sliding_kv, full_kv = _kv_heads(kv, kinds, "sliding"), _kv_heads(kv, kinds, "full")
    _check_heads(heads, sliding_kv)
    _check_heads(heads, full_kv)
    full_owners = [i for i in range(first_sharing) if kinds[i] == "full"]
    if tensors:
        value_is_key = bool(full_owners) and not any(f"blk.{i}.attn_v.weight" in tensors for i in full_owners)
    else:  # the number of KV heads differs only where the value is the key
        value_is_key = full_kv != sliding_kv
    experts = None
    if count := m.number("expert_count", 0, least=0):
        experts = Experts(count, m.number("expert_used_count"), m.number("expert_feed_forward_length"))
        if experts.per_token > count:
            raise m.wrong("expert_used_count", experts.per_token, f"{count}, the number of experts, or fewer")
    return ModelConfig(
        model_type="gemma4",
        vocab_size=_vocab_size(m, metadata),
        hidden_size=m.number("embedding_length"),
        num_layers=layers,
        query_heads=heads,
        sliding=Attention(
            sliding_kv,
            m.number("attention.key_length_swa"),
            Rope(m.real("rope.freq_base_swa", 1e4)),
            m.number("attention.sliding_window"),
        ),
        full=Attention(
            full_kv,
            m.number("attention.key_length"),
            Rope(m.real("rope.freq_base", 1e6), turning=0.25),
            None,
            value_is_key,
        ),
        segments=plan_segments(kinds, m.per_layer("feed_forward_length", layers), first_sharing),
        context=m.number("context_length"),
        query_scale=1.0,
        norm_eps=m.real("attention.layer_norm_rms_epsilon"),
        softcap=_softcap(m),
        value_norm=True,
        layer_scalar=True,
        per_layer_width=m.number("embedding_length_per_layer_input", 0, least=0),
        experts=experts,
        eos_ids=_eos("gemma4", metadata),
    )


def _kv_heads(kv: Sequence[int], kinds: Sequence[Kind], kind: Kind) -> int:
    found = {heads for heads, k in zip(kv, kinds, strict=True) if k == kind} or set(kv)
    if len(found) != 1:
        raise ModelError(f"The GGUF metadata gives {kind} layers different numbers of KV heads: {sorted(found)}")
    return found.pop()


def _softcap(m: Metadata) -> float | None:
    """0 is how a file says that there is none."""
    return m.real("final_logit_softcapping") if m.get("final_logit_softcapping", 0.0) != 0.0 else None


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise ModelError(f"The GGUF metadata gives {heads} query heads, which {kv_heads} KV heads do not divide")


def _vocab_size(m: Metadata, metadata: Mapping[str, Any]) -> int:
    """As stated, or else the length of the vocabulary: Gemma 3 files do not state it."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    return m.number("vocab_size", len(tokens) if isinstance(tokens, Sequence) else None)


def _eos(family: str, metadata: Mapping[str, Any]) -> tuple[int, ...]:
    stated = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return tuple(dict.fromkeys([i for i in stated if isinstance(i, int)] + list(EOS[family])))
