"""A model's files, whatever their format: the configuration, and each weight under the name the decoder gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rvchat.engine.config import ModelConfig
from rvchat.engine.gguf import GGUF
from rvchat.engine.nibbles import Int4Rows
from rvchat.engine.safetensors import FLOATS, StoredTensor, open_folder
from rvchat.engine.w4a16 import PackedTensor, check_scheme
from rvchat.errors import ModelError

Float = npt.NDArray[np.float32]

# Two forms of one table differ by no more than this share of their power, in so many rows.
SAME_HEAD, SAMPLE_ROWS = 0.1, 256


class Tensor(Protocol):
    """A stored tensor, read as float32 a few rows at a time. `form` is how its file stores it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def form(self) -> str: ...
    @property
    def stored_bytes(self) -> int: ...
    def as_stored(self) -> npt.NDArray[Any] | None:
        """The map's own bytes: a plain tensor in its type, a block format as uint8 [rows, bytes]; None where the
        tensor is stored in parts."""
        ...

    def rows(self, start: int = 0, stop: int | None = None) -> Float:
        """Rows of the tensor seen as a matrix. # [rows, shape[-1]]"""
        ...

    def int4_rows(self, start: int = 0, stop: int | None = None) -> Int4Rows | None:
        """The same as the file has them where it holds INT4 in groups of 32; None where it does not."""
        ...


class Checkpoint(Protocol):
    config: ModelConfig

    def tensor(self, field: str, layer: int | None = None) -> Tensor:
        """The weight `field` of the model, or of one layer. Raises ModelError naming what is missing."""
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A folder with config.json and safetensors, or a .gguf file. Raises ModelError for anything else."""
    path = Path(path).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelError(f"{path} has no config.json", "Name a model's folder, or a .gguf file.")
        return HFCheckpoint(path)
    if not path.exists():
        raise ModelError(f"There is no model at {path}", "Name a model's folder, or a .gguf file.")
    return GGUFCheckpoint(path)


# --- safetensors --------------------------------------------------------------------------------------------------

HF_MODEL = {
    "embed": "embed_tokens.weight",
    "final_norm": "norm.weight",
    "per_layer_table": "embed_tokens_per_layer.weight",
    "per_layer_projection": "per_layer_model_projection.weight",
    "per_layer_norm": "per_layer_projection_norm.weight",
}
HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "scalar": "layer_scalar",
    "ple_gate": "per_layer_input_gate.weight",
    "ple_projection": "per_layer_projection.weight",
    "post_ple_norm": "post_per_layer_input_norm.weight",
    "post_dense_norm": "post_feedforward_layernorm_1.weight",
    "router": "router.proj.weight",
    "router_scale": "router.scale",
    "expert_scale": "router.per_expert_scale",
    "expert_norm": "pre_feedforward_layernorm_2.weight",
    "expert_gate_up": "experts.gate_up_proj",
    "expert_down": "experts.down_proj",
    "post_expert_norm": "post_feedforward_layernorm_2.weight",
}
# Where the text model's tensors stand: Gemma 4, multimodal Gemma 3 of both ages, text-only Gemma 3.
HF_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A tensor in a float type. `plus` is added to every value: Gemma 3's norms are stored less 1."""

    stored: StoredTensor
    plus: float = 0.0

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def form(self) -> str:
        return self.stored.dtype

    @property
    def stored_bytes(self) -> int:
        return self.stored.data.nbytes

    def as_stored(self) -> npt.NDArray[Any] | None:
        return self.stored.array()

    def rows(self, start: int = 0, stop: int | None = None) -> Float:
        matrix = self.stored.array().reshape(-1, self.shape[-1] if self.shape else 1)
        return matrix[start:stop].astype(np.float32) + np.float32(self.plus)

    def int4_rows(self, start: int = 0, stop: int | None = None) -> Int4Rows | None:
        return None


class HFCheckpoint:
    """A folder with config.json and safetensors, each tensor plain or packed in w4a16."""

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        self.config = ModelConfig.from_hf(settings, read_json(generation) if generation.exists() else None)
        self.folder = folder
        self.packed = check_scheme(settings)
        self._tensors = open_folder(folder)
        text = settings.get("text_config")
        tied = all(s.get("tie_word_embeddings", True) for s in (settings, text) if isinstance(s, Mapping))
        if not tied and any(name.endswith("lm_head.weight") for name in self._tensors):
            raise _own_head(folder)
        self._prefix = next((p for p in HF_PREFIXES if p + HF_MODEL["embed"] in self._tensors), None)
        if self._prefix is None:
            raise ModelError(f"{folder} has no tensor embed_tokens.weight under any known prefix")

    def tensor(self, field: str, layer: int | None = None) -> Tensor:
        place = HF_MODEL[field] if layer is None else f"layers.{layer}.{HF_LAYER[field]}"
        name = f"{self._prefix}{place}"
        if self.packed and f"{name}_packed" in self._tensors:
            return PackedTensor.of(name, self._tensors)
        if name not in self._tensors:
            raise ModelError(f"{self.folder} lacks the tensor {name}", "Fetch the model's files again.")
        self._tensors[name].check(FLOATS)
        less_one = self.config.model_type == "gemma3" and field.endswith("norm")
        return PlainTensor(self._tensors[name], 1.0 if less_one else 0.0)


def _own_head(path: Path) -> ModelError:
    return ModelError(f"{path} has an output head of its own; rvchat runs models whose head is the embedding")


def read_json(path: Path) -> Mapping[str, Any]:
    """Raises ModelError for a file that is no JSON object."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}", "Fetch the file again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object", "Fetch the file again.")
    return value


# --- GGUF -----------------------------------------------------------------------------------------------------------

GGUF_MODEL = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "per_layer_table": "per_layer_token_embd.weight",
    "per_layer_projection": "per_layer_model_proj.weight",
    "per_layer_norm": "per_layer_proj_norm.weight",
}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "scalar": "layer_output_scale.weight",
    "ple_gate": "inp_gate.weight",
    "ple_projection": "proj.weight",
    "post_ple_norm": "post_norm.weight",
    "post_dense_norm": "post_ffw_norm_1.weight",
    "router": "ffn_gate_inp.weight",
    "router_scale": "ffn_gate_inp.scale",
    "expert_scale": "ffn_down_exps.scale",
    "expert_norm": "pre_ffw_norm_2.weight",
    "expert_gate_up": "ffn_gate_up_exps.weight",
    "expert_down": "ffn_down_exps.weight",
    "post_expert_norm": "post_ffw_norm_2.weight",
}


class GGUFCheckpoint:
    """A .gguf file of architecture gemma3 or gemma4."""

    def __init__(self, path: Path) -> None:
        self.file = GGUF.open(path)
        self.config = ModelConfig.from_gguf(self.file.metadata, tuple(self.file.tensors))
        self._check_rope()
        self._check_head()

    def tensor(self, field: str, layer: int | None = None) -> Tensor:
        name = GGUF_MODEL[field] if layer is None else f"blk.{layer}.{GGUF_LAYER[field]}"
        if name not in self.file.tensors:
            raise ModelError(f"{self.file.path} lacks the tensor {name}", "Fetch the file again.")
        return self.file.tensors[name]

    def _check_head(self) -> None:
        """Some files store the embedding a second time, as the head, in another form. A head of its own is something
        else, and only its numbers tell."""
        head = self.file.tensors.get("output.weight")
        if head is None:
            return
        embedding = self.file.tensors.get(GGUF_MODEL["embed"])
        if embedding is not None and embedding.shape == head.shape:
            ours, theirs = (t.rows(0, SAMPLE_ROWS) for t in (embedding, head))
            if np.square(ours - theirs).sum() <= SAME_HEAD * np.square(ours).sum():
                return
        raise _own_head(self.file.path)

    def _check_rope(self) -> None:
        """Gemma 4 files say which pairs of full layers turn by divisors of the frequencies: 1, or a huge number."""
        if self.config.model_type != "gemma4" or "rope_freqs.weight" not in self.file.tensors:
            return
        divisors = self.file.tensors["rope_freqs.weight"].rows()[0]
        rope, pairs = self.config.full.rope, self.config.full.head_dim // 2
        expected = int(rope.turning * pairs)
        turning = int((divisors == 1.0).sum())
        if len(divisors) != pairs or turning != expected or not (divisors[expected:] > 1e20).all():
            raise ModelError(
                f"{self.file.path}: rope_freqs.weight turns {turning} of {len(divisors)} pairs; "
                f"rvchat expects the first {expected} of {pairs}"
            )
