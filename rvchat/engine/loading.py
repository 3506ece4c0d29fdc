"""From a checkpoint to parameters: tensor by tensor, a few rows at a time, into the stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rvchat.engine.checkpoint import BlockTensor, Checkpoint, Tensor
from rvchat.engine.config import KINDS, Kind, Segment, Weight, layer_weights, model_weights
from rvchat.engine.params import Layers, Params, PerLayerParams, SegmentParams
from rvchat.engine.table import BLOCK_FORMS, Table
from rvchat.errors import ModelError

Progress = Callable[[str, float], None]

# So many values are converted at a time: what a load needs beyond the parameters themselves.
BLOCK_VALUES = 1 << 22


class Loader:
    """Fills parameters of `dtype` from a checkpoint, reporting the share of values read."""

    def __init__(self, checkpoint: Checkpoint, dtype: jnp.dtype, progress: Progress) -> None:
        self.checkpoint, self.config, self.dtype, self.progress = checkpoint, checkpoint.config, dtype, progress
        self._total = sum(
            w.size * s.count(k) for s in self.config.segments for k in KINDS for w in self._layer(s, k).values()
        ) + sum(w.size for w in model_weights(self.config).values())
        self._done = 0

    def _layer(self, segment: Segment, kind: Kind) -> dict[str, Weight]:
        return layer_weights(self.config, segment, kind)

    def load(self) -> Params:
        model = model_weights(self.config)
        segments = tuple(
            SegmentParams(self.layers(segment, "sliding"), self.layers(segment, "full"))
            for segment in self.config.segments
        )
        per_layer = None
        if self.config.per_layer_width:
            per_layer = PerLayerParams(
                self.table(model["per_layer_table"]),
                self.model_weight("per_layer_projection", model),
                self.model_weight("per_layer_norm", model),
            )
        return Params(self.model_weight("embed", model), self.model_weight("final_norm", model), per_layer, segments)

    def layers(self, segment: Segment, kind: Kind) -> Layers | None:
        numbers = segment.layer_numbers(kind)
        if not numbers:
            return None
        stacks: Layers = {}
        for field, weight in self._layer(segment, kind).items():
            out = np.empty((len(numbers), *weight.shape), self.dtype)
            for place, number in enumerate(numbers):
                self.fill(out[place : place + 1], self.find(field, weight, number))
            if weight.role == "experts":
                out = out.reshape(-1, *weight.shape[1:])
            stacks[field] = place_on_device(out)
        return stacks

    def model_weight(self, field: str, weights: dict[str, Weight]) -> jax.Array:
        out = np.empty((1, *weights[field].shape), self.dtype)
        self.fill(out, self.find(field, weights[field], None))
        return place_on_device(out[0])

    def table(self, weight: Weight) -> Table:
        """The per-layer table as its file stores it where a step can read rows of that form."""
        tensor = self.find("per_layer_table", weight, None)
        if isinstance(tensor, BlockTensor) and tensor.form in (*BLOCK_FORMS, "F16"):
            form = tensor.form
            data: npt.NDArray[Any] = tensor.stored.data
            data = data.view(np.float16) if form == "F16" else data
            self._advance(weight.size)
        else:
            form = "BF16" if tensor.form == "BF16" or self.dtype == jnp.bfloat16 else "F32"
            data = np.empty(weight.shape, jnp.bfloat16 if form == "BF16" else np.float32)
            self.fill(data[None], tensor)
        return Table(place_on_device(data), form, weight.shape[-1])

    def find(self, field: str, weight: Weight, layer: int | None) -> Tensor:
        tensor = self.checkpoint.tensor(field, layer)
        found = tensor.shape
        if found != weight.shape and not (weight.shape == () and found == (1,)):
            raise ModelError(f"Tensor {tensor.name} has shape {found}; the configuration needs {weight.shape}")
        return tensor

    def fill(self, out: npt.NDArray[Any], tensor: Tensor) -> None:
        """Writes one tensor into out [1, *shape]."""
        matrix = out.reshape(-1, out.shape[-1] if tensor.shape and out.ndim > 1 else 1)
        step = max(1, BLOCK_VALUES // matrix.shape[1])
        for start in range(0, len(matrix), step):
            block = tensor.rows(start, start + step)
            matrix[start : start + step] = block
            self._advance(block.size)

    def _advance(self, values: int) -> None:
        self._done += values
        self.progress("read", min(1.0, self._done / self._total))


def place_on_device(array: npt.NDArray[Any]) -> jax.Array:
    placed: jax.Array = jax.device_put(array)
    return placed
