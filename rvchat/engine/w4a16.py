"""INT4 linear layers as Google publishes them: compressed-tensors' `pack-quantized`, symmetric, groups of 32.

Eight values plus 8 to an int32, the first in the low bits; one scale for each group along the input; the shape beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rvchat.engine.nibbles import GROUP, Int4Rows, pack_nibbles
from rvchat.engine.safetensors import FLOATS, StoredTensor
from rvchat.errors import ModelError

PER_WORD = 8


def check_scheme(settings: Mapping[str, Any]) -> bool:
    """Whether config.json says that linear layers are packed. Raises ModelError for a scheme rvchat does not read."""
    scheme = settings.get("quantization_config")
    if not scheme:
        return False
    if not isinstance(scheme, Mapping):
        raise ModelError(f"config.json has a quantization_config that is no object: {scheme!r}")
    found: dict[str, Any] = {"quant_method": scheme.get("quant_method"), "format": scheme.get("format")}
    expected: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    groups = scheme.get("config_groups") or {}
    for stated in groups.values() if isinstance(groups, Mapping) else [groups]:
        group = stated if isinstance(stated, Mapping) else {}
        weights = group["weights"] if isinstance(group.get("weights"), Mapping) else {}
        found |= {k: weights.get(k) for k in ("num_bits", "type", "symmetric", "strategy", "group_size")}
        found["activations"] = group.get("input_activations")
        expected |= {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
        expected["activations"] = None
        if found != expected:
            break
    if found != expected:
        wrong = ", ".join(f"{k} {found.get(k)!r}" for k in found if found.get(k) != expected.get(k))
        raise ModelError(
            f"The checkpoint is quantised in a way rvchat does not read: {wrong}",
            "Use the bfloat16 checkpoint, a w4a16 one (INT4, groups of 32), or a GGUF.",
        )
    return True


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One packed weight. words: int32 [outputs, inputs / 8]; scales: [outputs, inputs / 32]."""

    name: str
    shape: tuple[int, ...]
    words: npt.NDArray[np.int32]
    scales: npt.NDArray[Any]

    form = "W4A16"

    @property
    def stored_bytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes

    def as_stored(self) -> None:
        return None

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, StoredTensor]) -> PackedTensor:
        for part in ("_scale", "_shape"):
            if name + part not in tensors:
                raise ModelError(f"The checkpoint lacks {name}{part} beside {name}_packed", "Fetch the files again.")
        for part in ("_zero_point", "_g_idx"):
            if name + part in tensors:
                raise ModelError(f"The checkpoint has {name}{part}: rvchat reads symmetric groups in order only")
        tensors[name + "_packed"].check(("I32",))
        tensors[name + "_scale"].check(FLOATS)
        tensors[name + "_shape"].check(("I64", "I32"))
        words, scales = tensors[name + "_packed"].array(), tensors[name + "_scale"].array()
        shape = tuple(tensors[name + "_shape"].array().reshape(-1).tolist())
        if len(shape) != 2 or shape[1] % GROUP:
            raise ModelError(f"{name}_shape is {shape}; it must be outputs and inputs, in groups of {GROUP}")
        expected = {"packed": (shape[0], shape[1] // PER_WORD), "scale": (shape[0], shape[1] // GROUP)}
        for part, found in (("packed", words.shape), ("scale", scales.shape)):
            if found != expected[part]:
                raise ModelError(f"{name}_{part} has shape {found}; a weight of {shape} needs {expected[part]}")
        return cls(name, shape, words, scales)

    def integers(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int8]:
        """Rows of the stored integers, -8 to 7. # int8 [rows, inputs]"""
        words = self.words[start:stop].view(np.uint32)
        shifts = np.arange(0, 32, 4, dtype=np.uint32)
        nibbles = (words[..., None] >> shifts) & np.uint32(15)
        return (nibbles.astype(np.int8) - np.int8(8)).reshape(len(words), -1)

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        scales = self.scales[start:stop].astype(np.float32)
        groups = self.integers(start, stop).reshape(*scales.shape, GROUP).astype(np.float32)
        return (groups * scales[..., None]).reshape(len(scales), -1)

    def int4_rows(self, start: int = 0, stop: int | None = None) -> Int4Rows:
        """The integers two to a byte, as `Quantised` has them. # uint8 [rows, G, 16], scales [rows, G]"""
        scales = self.scales[start:stop]
        return pack_nibbles(self.integers(start, stop).reshape(*scales.shape, GROUP)), scales
