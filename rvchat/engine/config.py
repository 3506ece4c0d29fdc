"""What a Gemma is made of: its shapes, its layer plan, and how much memory it needs. No jax.

`ModelConfig` is read once, from a config.json or from GGUF metadata, and is static to every compiled program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rvchat.errors import ModelError

Kind = Literal["sliding", "full"]
KINDS: tuple[Kind, ...] = ("sliding", "full")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: `theta ** (-2i / head_dim) / divisor` for pair i, of which the first `turning` share turns."""

    theta: float
    turning: float = 1.0
    divisor: float = 1.0


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one kind of layer. `window` None sees everything before it."""

    kv_heads: int
    head_dim: int
    rope: Rope
    window: int | None
    value_is_key: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    count: int
    per_token: int
    mlp_size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of equal periods: in each, `sliding` sliding layers and then `full` (0 or 1) full-attention layers.

    Layers of a segment that `shares_kv` have queries only and read the keys and values of the last owner of their kind.
    """

    first_layer: int
    periods: int
    sliding: int
    full: int
    mlp_size: int
    shares_kv: bool

    @property
    def period(self) -> int:
        return self.sliding + self.full

    @property
    def layers(self) -> int:
        return self.periods * self.period

    def count(self, kind: Kind) -> int:
        """Layers of `kind` in the whole segment."""
        return self.periods * (self.sliding if kind == "sliding" else self.full)

    def layer_numbers(self, kind: Kind) -> list[int]:
        """Which layers of the model the stack of `kind` holds, in the order of the stack."""
        places = range(self.sliding) if kind == "sliding" else range(self.sliding, self.period)
        return [self.first_layer + p * self.period + place for p in range(self.periods) for place in places]

    def place(self, offset: int) -> tuple[Kind, int]:
        """The kind of the segment's `offset`-th layer, and its place in the stack of that kind."""
        period, within = divmod(offset, self.period)
        return ("sliding", period * self.sliding + within) if within < self.sliding else ("full", period)


@dataclass(frozen=True)
class ModelConfig:
    """One Gemma. Sizes are numbers of values; `context` and windows are tokens."""

    model_type: str  # "gemma3" or "gemma4"
    vocab_size: int
    hidden_size: int
    num_layers: int
    query_heads: int
    sliding: Attention
    full: Attention
    segments: tuple[Segment, ...]
    context: int
    query_scale: float
    norm_eps: float
    softcap: float | None
    value_norm: bool
    layer_scalar: bool
    per_layer_width: int
    experts: Experts | None
    eos_ids: tuple[int, ...]
    bos_id: int = 2

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """From a config.json (and the stop ids of a generation_config.json). Raises ModelError naming the field."""
        from rvchat.engine.config_hf import read

        return read(config, generation or {})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Sequence[str] = ()) -> ModelConfig:
        """From GGUF metadata. `tensors`, the names in the file, settle what the metadata does not say: whether full
        layers have a value projection. Raises ModelError naming the field."""
        from rvchat.engine.config_gguf import read

        return read(metadata, tensors)

    def attention(self, kind: Kind) -> Attention:
        return self.sliding if kind == "sliding" else self.full

    def owners(self, kind: Kind) -> int:
        """Layers of `kind` that write keys and values, and so have a place in the cache."""
        return sum(s.count(kind) for s in self.segments if not s.shares_kv)

    @cached_property
    def first_sharing_segment(self) -> int:
        """Index of the first segment that shares KV; the number of segments where none does."""
        return next((i for i, s in enumerate(self.segments) if s.shares_kv), len(self.segments))

    @property
    def shares_kv(self) -> bool:
        return self.first_sharing_segment < len(self.segments)


def plan_segments(kinds: Sequence[Kind], mlp_sizes: Sequence[int], first_sharing: int) -> tuple[Segment, ...]:
    """Cuts the layers into runs of equal periods.

    A period ends in a full-attention layer. A cut falls where KV begins to be shared, where the MLP changes width, and
    before the layers left over after the last whole period. Raises ModelError for anything that is not periodic.
    """
    layers = len(kinds)
    period = kinds.index("full") + 1 if "full" in kinds else layers
    for i, kind in enumerate(kinds):
        expected = "full" if "full" in kinds and (i + 1) % period == 0 else "sliding"
        if kind != expected:
            raise ModelError(
                f"The layer pattern is not periodic: layer {i} is {kind}, where a period of {period} has {expected}",
                "rvchat runs patterns of sliding layers that end in one full-attention layer.",
            )
    whole = layers // period * period
    changes = {i for i in range(1, layers) if mlp_sizes[i] != mlp_sizes[i - 1]}
    cuts = sorted({0, whole, first_sharing, layers} | changes)
    for cut in cuts:
        if cut % period and cut != layers:
            what = "KV sharing starts" if cut == first_sharing else "the MLP changes width"
            raise ModelError(f"{what} at layer {cut}, in the middle of a period of {period} layers")
    segments = []
    for start, stop in itertools.pairwise(cuts):
        full = int("full" in kinds and start < whole)
        sliding = period - full if start < whole else stop - start
        periods = (stop - start) // (sliding + full)
        segments.append(Segment(start, periods, sliding, full, mlp_sizes[start], start >= first_sharing))
    for kind in KINDS:
        shared = any(s.count(kind) for s in segments if s.shares_kv)
        if shared and not any(s.count(kind) for s in segments if not s.shares_kv):
            raise ModelError(
                f"KV sharing starts at layer {first_sharing}, before any {kind} layer that could be shared"
            )
    return tuple(segments)


# --- weights: names, shapes, and what they are for ----------------------------------------------------------------

Role = Literal["linear", "experts", "high", "embedding", "table"]
"""`linear` and `experts` may be quantised to 4 bits; `embedding` (also the head) and `table` (per-layer embeddings) to
8; `high` stays as it is: norms, scalars, the router, per-layer projections."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One field of the parameters: its shape for one layer (or for the model), and what it is."""

    shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        size = 1
        for axis in self.shape:
            size *= axis
        return size


def model_weights(config: ModelConfig) -> dict[str, Weight]:
    """The weights outside the layers. Linear weights are `[outputs, inputs]`, as the files have them."""
    d, w = config.hidden_size, config.per_layer_width
    weights = {"embed": Weight((config.vocab_size, d), "embedding"), "final_norm": Weight((d,), "high")}
    if w:
        weights["per_layer_table"] = Weight((config.vocab_size, config.num_layers * w), "table")
        weights["per_layer_projection"] = Weight((config.num_layers * w, d), "high")
        weights["per_layer_norm"] = Weight((w,), "high")
    return weights


def layer_weights(config: ModelConfig, segment: Segment, kind: Kind) -> dict[str, Weight]:
    """The weights of one layer of `kind` in `segment`."""
    a, d, f = config.attention(kind), config.hidden_size, segment.mlp_size
    q_size, kv_size = config.query_heads * a.head_dim, a.kv_heads * a.head_dim
    weights = {
        "attn_norm": Weight((d,), "high"),
        "q": Weight((q_size, d), "linear"),
        "q_norm": Weight((a.head_dim,), "high"),
        "o": Weight((d, q_size), "linear"),
        "post_attn_norm": Weight((d,), "high"),
        "mlp_norm": Weight((d,), "high"),
        "gate": Weight((f, d), "linear"),
        "up": Weight((f, d), "linear"),
        "down": Weight((d, f), "linear"),
        "post_mlp_norm": Weight((d,), "high"),
    }
    if not segment.shares_kv:
        weights["k"] = Weight((kv_size, d), "linear")
        weights["k_norm"] = Weight((a.head_dim,), "high")
        if not a.value_is_key:
            weights["v"] = Weight((kv_size, d), "linear")
    if config.layer_scalar:
        weights["scalar"] = Weight((), "high")
    if w := config.per_layer_width:
        weights["ple_gate"] = Weight((w, d), "high")
        weights["ple_projection"] = Weight((d, w), "high")
        weights["post_ple_norm"] = Weight((d,), "high")
    if e := config.experts:
        weights["post_dense_norm"] = Weight((d,), "high")
        weights["router"] = Weight((e.count, d), "high")
        weights["router_scale"] = Weight((d,), "high")
        weights["expert_scale"] = Weight((e.count,), "high")
        weights["expert_norm"] = Weight((d,), "high")
        weights["expert_gate_up"] = Weight((e.count, 2 * e.mlp_size, d), "experts")
        weights["expert_down"] = Weight((e.count, d, e.mlp_size), "experts")
        weights["post_expert_norm"] = Weight((d,), "high")
    return weights


def all_weights(config: ModelConfig) -> Iterator[tuple[str, Weight, int]]:
    """Every field with the number of layers that have it."""
    for name, weight in model_weights(config).items():
        yield name, weight, 1
    for segment in config.segments:
        for kind in KINDS:
            if count := segment.count(kind):
                for name, weight in layer_weights(config, segment, kind).items():
                    yield name, weight, count


def parameter_count(config: ModelConfig) -> int:
    return sum(weight.size * count for _, weight, count in all_weights(config))


# --- memory ---------------------------------------------------------------------------------------------------------

Form = Literal["float32", "bf16", "int8", "int4"]

BITS: Mapping[Form, Mapping[Role, float]] = {
    "float32": {"linear": 32, "experts": 32, "high": 32, "embedding": 32, "table": 32},
    "bf16": {"linear": 16, "experts": 16, "high": 16, "embedding": 16, "table": 16},
    "int8": {"linear": 8.5, "experts": 8.5, "high": 16, "embedding": 8, "table": 8},
    "int4": {"linear": 4.5, "experts": 4.5, "high": 16, "embedding": 8, "table": 8},
}
"""Bits a weight in each form of storage: INT4 and INT8 have a 16-bit scale for each group of 32, tables in INT8 one a
row."""


def weight_bytes(config: ModelConfig, form: Form) -> int:
    """Bytes of all weights when those that may be are stored in `form`."""
    return round(sum(weight.size * count * BITS[form][weight.role] / 8 for _, weight, count in all_weights(config)))


def kv_bytes_per_token(config: ModelConfig, kind: Kind, number_bytes: int = 2) -> int:
    """Bytes that one token's keys and values take in all layers of `kind`."""
    a = config.attention(kind)
    return config.owners(kind) * a.kv_heads * a.head_dim * 2 * number_bytes


def kv_bytes(config: ModelConfig, tokens: int, number_bytes: int = 2) -> int:
    """Bytes of keys and values of a context of `tokens`: full layers hold all of it, sliding layers their window."""
    held = tokens if config.sliding.window is None else min(tokens, config.sliding.window)
    return kv_bytes_per_token(config, "full", number_bytes) * tokens + (
        kv_bytes_per_token(config, "sliding", number_bytes) * held
    )
